/* zero_step.c - gradients: local tree, sum over dp, counter over super-steps; norm; update. See zero.h. */
#include <math.h>
#include <string.h>
#include "base/alter.h"
#include "train/zero/zero_priv.h"

static struct zero *zero_of(struct grads *g) { return (struct zero *)((char *)g - offsetof(struct zero, g)); }

/* The tied head's gradients (index n_units) are laid out as unit 0's. */
static int layout_unit(const struct zero *z, int u) { return u == z->n_units ? 0 : u; }
static int64_t flat_of(const struct zero *z, int u) { return z->m->local.unit[layout_unit(z, u)].flat; }

/* The buffer that unit u is summed in, where buffers rotate. */
static int buffer_of(const struct zero *z, int u)
{
    return flat_of(z, u) > z->rotation.flat[0] ? z->rotation.n - 1 : z->next;
}

static float *level_of(struct grads *g, int u, int j)
{
    struct zero *z = zero_of(g);
    return z->rotation.n ? z->buffer[buffer_of(z, u)] : z->unit[u].level[j];
}

/* ---- the counter over super-steps ---- */
/* How super-step s of S joins the sums before it: `merges` additions, beginning with partial sum depth -
 * 1. */
struct joining {
    int depth, merges;
};
static struct joining join_in_tree(int64_t S, int64_t s)
{
    return (struct joining){ tree_depth_before(S, s), tree_merges(S, s) };
}
static struct joining join_in_chain(int64_t S, int64_t s)
{
    (void)S;
    return (struct joining){ s > 0, s > 0 };
}

/* Adds v[n], a finished slice of the super-step that runs, to the unit's counter. */
static void add_shard(struct zero *z, struct zero_unit *x, float *v, int64_t n)
{
    struct joining j = (ALTERED("super_counter") ? join_in_chain : join_in_tree)(z->plan.supers, z->super);
    for (int k = 0; k < j.merges; k++) {
        const float *in[2] = { x->shard[--j.depth], v };
        KERNEL(z->m->dev, tree_add, v, in, 2, n);
    }
    if (v != x->shard[j.depth])
        dev_copy(z->m->dev, x->shard[j.depth], v, (size_t)n * sizeof *v);
}

/* ---- sums over dp ---- */
/* Waits for the sum of unit u and puts its slice where it belongs. */
static int finish_sum(struct zero *z, int u, struct err *e)
{
    struct zero_unit *x = &z->unit[u];
    int64_t slice = flat_of(z, u) / z->n_dp;
    int rc;
    if (!x->sum_of)
        return 0;
    if ((rc = comm_finish(&x->sum, e)) >= 0 && z->stage >= 2)
        add_shard(z, x, x->sum_of + slice * z->d, slice);
    x->sum_of = NULL;
    return rc < 0 ? err_add(e, "summing the gradients of unit %d", u) : 0;
}

static int finish_sums(struct zero *z, struct err *e)
{
    int rc = 0;
    for (int u = z->n_units; u >= 0; u--) /* about the order in which they were started */
        TRY(finish_sum(z, u, e));
out:
    return rc;
}

static int start_sum(struct zero *z, int u, float *full, struct err *e)
{
    struct zero_unit *x = &z->unit[u];
    int64_t flat = flat_of(z, u), slice = flat / z->n_dp;
    x->sum_of = full;
    if (z->overlap)
        return z->stage ? comm_start_reduce_scatter(&x->sum, z->dp, full + slice * z->d, full, slice, e)
                        : comm_start_all_reduce(&x->sum, z->dp, full, flat, e);
    return z->stage ? comm_reduce_scatter(z->dp, full + slice * z->d, full, slice, e)
                    : comm_all_reduce(z->dp, full, flat, e);
}

static int free_buffer(struct zero *z, int b, struct err *e)
{
    int rc = 0;
    for (int u = 0; rc >= 0 && u <= z->n_units; u++)
        if (z->unit[u].sum_of == z->buffer[b])
            rc = finish_sum(z, u, e);
    return rc;
}

/* Where buffers rotate: chooses and frees the buffer for the gradients after unit u's. It is the one whose
 * sum was started longest ago. The final norm of a model with a tied head does not advance the rotation,
 * because the large sum before it occupies the other buffer. After the first layer comes the embedding,
 * which uses the last buffer. */
static int next_buffer(struct zero *z, int u, struct err *e)
{
    int rc;
    if (!z->rotation.n)
        return 0;
    if (u != z->m->n_layers + 1 || buffer_of(z, u) != z->next || !z->m->table.cfg.tied)
        z->next = (buffer_of(z, u) + 1) % z->rotation.n;
    rc = free_buffer(z, z->next, e);
    return rc >= 0 && u == 1 ? free_buffer(z, z->rotation.n - 1, e) : rc;
}

/* ---- the tied head's gradient joins the look-up's ---- */
/* The contract's order: each is summed over dp, then both are added, once. Altered: every rank adds its
 * own two before the sum over dp (stage 0). */
static int joins_before_sum(const struct zero *z)
{
    return ALTERED("tied_once") && z->m->table.cfg.tied && z->stage == 0;
}

static void join_head(struct zero *z, float *look_up, const float *head, int64_t n)
{
    const float *in[2] = { look_up, head };
    KERNEL(z->m->dev, tree_add, look_up, in, 2, n);
}

/* Called when this micro-batch's part of unit u is complete. After the last micro-batch of the super-step
 * the unit is summed over dp. */
static int done(struct grads *g, int u, struct err *e)
{
    struct zero *z = zero_of(g);
    float *full = level_of(g, u, 0);
    int rc;
    if (g->next + z->plan.micro < g->n)
        return 0;
    if (joins_before_sum(z)) {
        if (u == z->n_units)
            return 0;
        if (u == 0)
            join_head(z, full, z->unit[z->n_units].level[0], flat_of(z, u));
    }
    TRY(start_sum(z, u, full, e));
    if (!z->overlap)
        TRY(finish_sum(z, u, e));
    rc = next_buffer(z, u, e);
out:
    return rc;
}

/* ---- memory ---- */
/* Buffers rotate in stages 2 and 3 where a super-step is one micro-batch; otherwise partial sums stay in a
 * unit's own buffers between micro-batches. With overlap there are two, one summed while the other fills:
 * one of a layer's size, and one for embedding and head too, which may be much larger. */
static struct rotation rotation_of(const struct model *m, const struct batch_plan *b, struct zero_options how)
{
    int64_t layer = 0, end = 0;
    if (how.stage < 2 || b->local != b->micro)
        return (struct rotation){ 0 };
    for (int u = 0; u < m->local.n_units; u++) {
        int64_t *most = u > 0 && u <= m->n_layers ? &layer : &end;
        *most = m->local.unit[u].flat > *most ? m->local.unit[u].flat : *most;
    }
    end = layer > end ? layer : end;
    return how.overlap ? (struct rotation){ 2, { layer, end } } : (struct rotation){ 1, { end } };
}

void zero_measure(const struct model *m, int dp, int sharers, struct zero_options how,
                  const struct batch_plan *b, double bytes[MEM_CATS])
{
    double el = (double)dtype_size(m->dt), flat = 0, grads = 0, packs = 0, slots = 0;
    int levels = tree_levels(b->local, b->micro), shards = how.stage >= 2 ? tree_levels(b->supers, 1) : 0;
    struct rotation rotation = rotation_of(m, b, how);
    struct slot_size size[ZERO_SLOTS];
    zero_slot_sizes(m, size);
    for (int i = 0; i < ZERO_SLOTS; i++)
        slots += (double)size[i].flat * el + (double)size[i].packs;
    for (int u = 0; u < m->local.n_units + m->table.cfg.tied; u++) {
        double f = (double)m->local.unit[u == m->local.n_units ? 0 : u].flat,
               p = u < m->local.n_units ? (double)model_pack_bytes(m, u) : 0;
        packs += p;
        flat += u < m->local.n_units ? f : 0;
        grads += f * 4 * (rotation.n ? 0 : levels) + f / dp * 4 * shards;
    }
    bytes[MEM_PARAMS] += how.stage == 3   ? flat / dp * el + slots / sharers
                         : how.stage == 0 ? flat * el + packs / sharers
                                          : (flat * el + packs) / sharers;
    bytes[MEM_GRADS] += grads + 4.0 * (double)(rotation.flat[0] + rotation.flat[1]);
    bytes[MEM_OPTIM] += (m->dt == DT_F32 ? 8 : 12) * (how.stage ? flat / dp : flat);
}

int zero_open_grads(struct zero *z, struct err *e)
{
    z->g = (struct grads){ .n = z->plan.local, .level = level_of, .done = done };
    z->g.n_levels = z->n_levels = tree_levels(z->plan.local, z->plan.micro);
    z->n_shards = z->stage >= 2 ? tree_levels(z->plan.supers, 1) : 0;
    z->rotation = rotation_of(z->m, &z->plan, (struct zero_options){ z->stage, z->overlap });
    for (int u = 0; u < z->n_units + z->m->table.cfg.tied; u++) {
        struct zero_unit *x = &z->unit[u];
        int64_t flat = flat_of(z, u);
        for (int j = 0; !z->rotation.n && j < z->n_levels; j++)
            if (!(x->level[j] = comm_alloc(z->dp, MEM_GRADS, (size_t)flat * 4 + 64)))
                return err_set(e, ERR_MEMORY,
                               "no memory for gradients: use a higher --zero or a larger --micro-batch");
        for (int j = 0; j < z->n_shards; j++)
            if (!(x->shard[j] = dev_alloc(z->m->dev, MEM_GRADS, (size_t)(flat / z->n_dp) * 4 + 64)))
                return err_set(e, ERR_MEMORY, "no memory for gradient slices: use more dp ranks");
    }
    for (int i = 0; i < z->rotation.n; i++)
        if (!(z->buffer[i] = comm_alloc(z->dp, MEM_GRADS, (size_t)z->rotation.flat[i] * 4 + 64)))
            return err_set(e, ERR_MEMORY, "no memory for one unit's gradients: use more tp ranks");
    return 0;
}

void zero_close_grads(struct zero *z)
{
    struct err ignored;
    for (int u = 0; u <= z->n_units; u++) {
        comm_finish(&z->unit[u].sum, &ignored);
        for (int j = 0; j < TREE_DEPTH_MAX; j++) {
            comm_free(z->dp, z->unit[u].level[j]);
            dev_free(z->m->dev, z->unit[u].shard[j]);
        }
    }
    for (int i = 0; i < MOST_ROTATING; i++)
        comm_free(z->dp, z->buffer[i]);
}

struct grads *zero_grads(struct zero *z) { return &z->g; }

int zero_begin_rows(struct zero *z, int64_t super, int64_t row, struct err *e)
{
    /* sums of the super-step before join the counter while z->super is still its number */
    int rc = super == z->super ? 0 : finish_sums(z, e);
    z->super = super;
    z->g.next = row;
    return rc;
}

/* Summed gradients of unit u from element `begin` of its flat vector on. */
static float *summed(const struct zero *z, int u, int64_t begin)
{
    const struct zero_unit *x = &z->unit[u];
    return z->stage >= 2 ? x->shard[0] + (begin - z->unit[layout_unit(z, u)].own_begin) : x->level[0] + begin;
}

/* First and last pipeline rank each hold the tied embedding and one part of its gradient. They exchange
 * the parts, so that both add the same two. */
static int swap_tied(struct zero *z, float *look_up, float *head, int64_t n, struct err *e)
{
    int last = comm_size(z->pp) - 1, me = comm_rank(z->pp), rc;
    size_t bytes = (size_t)n * sizeof(float);
    if (last == 0 || (me && me != last))
        return 0;
    TRY(comm_send(z->pp, me ? head : look_up, bytes, me ? 0 : last, e));
    TRY(comm_recv(z->pp, me ? look_up : head, bytes, me ? 0 : last, e));
out:
    return rc;
}

/* Adds the tied head's part to the look-up part, when both are complete. */
static int join_tied(struct zero *z, struct err *e)
{
    int64_t begin = z->unit[0].own_begin, n = z->unit[0].own;
    if (!z->m->table.cfg.tied || !z->m->local.unit[0].n)
        return 0;
    float *look_up = summed(z, 0, begin), *head = summed(z, z->n_units, begin);
    int rc = swap_tied(z, look_up, head, n, e);
    if (rc >= 0 && !joins_before_sum(z))
        join_head(z, look_up, head, n);
    return rc;
}

/* ---- the norm ---- */
/* The squares of x[n] into the exact sum s. */
static void add_exact(const struct zero *z, struct xsum *s, const float *x, int64_t n)
{
    KERNEL(z->m->dev, sum_squares, s, x, n);
}

/* Altered: squares of a slice are summed in fp32 first. */
static void add_rounded(const struct zero *z, struct xsum *s, const float *x, int64_t n)
{
    float sum = 0;
    (void)z;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    xsum_add(s, (double)sum);
}

/* Which tp ranks count a part: the contract counts a part that several tp ranks hold once. */
static int owner_counts(const struct part *p) { return p->owner; }
static int all_count(const struct part *p)
{
    (void)p;
    return 1;
}

/* Adds the squares of what this rank counts: of each part, its dp slice, so that one dp rank counts an
 * element. */
static void add_squares(const struct zero *z, struct xsum *s)
{
    void (*add)(const struct zero *z, struct xsum *s, const float *x,
                int64_t n) = ALTERED("norm_exact") ? add_rounded : add_exact;
    int (*counts)(const struct part *p) = ALTERED("norm_replicas") ? all_count : owner_counts;
    for (int i = 0; i < z->m->local.n_parts; i++) {
        const struct part *p = &z->m->local.part[i];
        int u = z->m->table.p[p->param].unit;
        int64_t slice = flat_of(z, u) / z->n_dp, lo = slice * z->d, hi = lo + slice;
        lo = lo > p->offset ? lo : p->offset;
        hi = hi < p->offset + p->count ? hi : p->offset + p->count;
        if (counts(p) && lo < hi)
            add(z, s, summed(z, u, lo), hi - lo);
    }
}

int zero_norm(struct zero *z, double *norm, struct err *e)
{
    struct xsum s = { 0 };
    int rc;
    TRY(finish_sums(z, e));
    TRY(join_tied(z, e));
    add_squares(z, &s);

    xsum_carry(&s);
    int64_t all[XSUM_LIMBS + 2];
    memcpy(all, s.limb, sizeof s.limb);
    all[XSUM_LIMBS] = s.n_nan;
    all[XSUM_LIMBS + 1] = s.n_inf;
    rc = comm_all_reduce_i64(z->all, all, XSUM_LIMBS + 2, e);
    memcpy(s.limb, all, sizeof s.limb);
    s.n_nan = all[XSUM_LIMBS];
    s.n_inf = all[XSUM_LIMBS + 1];
    *norm = sqrt(xsum_double(&s));
out:
    return rc;
}

/* AdamW on the elements of one part that this rank owns. */
static void update_part(struct zero *z, const struct part *p, const struct adamw *h, double weight_decay)
{
    const struct param *q = &z->m->table.p[p->param];
    struct zero_unit *x = &z->unit[q->unit];
    int64_t lo = x->own_begin > p->offset ? x->own_begin : p->offset, hi = x->own_begin + x->own;
    int64_t at = lo - x->own_begin, weight_at = (lo - x->weight_begin) * (int64_t)dtype_size(z->m->dt);
    void *w16 = z->m->dt == DT_F32 ? NULL : (char *)x->weight + weight_at;
    struct adamw step = *h;
    hi = hi < p->offset + p->count ? hi : p->offset + p->count;
    step.weight_decay = q->decay ? (float)weight_decay : 0.0f;
    if (lo < hi)
        KERNEL(z->m->dev, adamw, x->master + at, w16, x->exp_avg + at, x->exp_avg_sq + at,
               summed(z, q->unit, lo), hi - lo, &step);
}

int zero_update(struct zero *z, const struct adamw *h, double weight_decay, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < z->m->local.n_parts; i++)
        update_part(z, &z->m->local.part[i], h, weight_decay);
    for (int u = 0; (z->stage == 1 || z->stage == 2) && u < z->n_units; u++) {
        size_t bytes = (size_t)(flat_of(z, u) / z->n_dp) * dtype_size(z->m->dt);
        char *weight = z->unit[u].weight;
        if (bytes)
            TRY(comm_all_gather_shared(z->dp, weight, weight + bytes * (size_t)z->d, bytes, e));
    }
    rc = 0;
    zero_forget_packs(z);
out:
    return rc;
}
