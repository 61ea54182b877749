/* zero_step.c - gradients: local tree, sum over dp, counter over super-steps; norm. See zero.h. */
#include <math.h>
#include <string.h>
#include "base/alter.h"
#include "train/zero/zero_priv.h"

static struct zero *zero_of(struct grads *g) { return (struct zero *)((char *)g - offsetof(struct zero, g)); }

/* The tied head's gradients (index n_vectors) are laid out as unit 0's. */
static const struct unit_part *part_of(const struct zero *z, int v)
{
    return &z->m->local.unit[v == z->n_vectors ? 0 : v];
}
static int64_t flat_of(const struct zero *z, int v) { return part_of(z, v)->flat; }
static int group_of(const struct zero *z, int v) { return (int)part_of(z, v)->group; }

/* What this rank keeps of a finished sum: [begin, begin + n) of the vector. */
struct kept {
    int64_t begin, n;
};
static struct kept kept_of(const struct zero *z, int v)
{
    const struct zero_group *g = &z->group[group_of(z, v)];
    int64_t flat = flat_of(z, v), slice = flat / g->size;
    return z->stage ? (struct kept){ slice * g->rank, slice } : (struct kept){ 0, flat };
}

/* The buffer that vector v is summed in, where buffers rotate. */
static int buffer_of(const struct zero *z, int v)
{
    const struct rotation *r = &z->rotation[group_of(z, v)];
    return flat_of(z, v) > r->flat[0] ? r->n - 1 : r->next;
}

static float *level_of(struct grads *g, int v, int j)
{
    struct zero *z = zero_of(g);
    const struct rotation *r = &z->rotation[group_of(z, v)];
    return r->n ? r->buffer[buffer_of(z, v)] : z->vector[v].level[j];
}

/* ---- the counter over super-steps ---- */
static struct joining join_in_tree(int64_t S, int64_t s)
{
    return (struct joining){ tree_depth_before(S, s), tree_merges(S, s) };
}
static struct joining join_in_chain(int64_t S, int64_t s)
{
    (void)S;
    return (struct joining){ s > 0, s > 0 };
}

struct joining zero_joining(const struct zero *z)
{
    return (ALTERED("super_counter") ? join_in_chain : join_in_tree)(z->plan.supers, z->super);
}

/* Adds v[n], a finished part of the super-step that runs, to the vector's counter. */
static void add_shard(struct zero *z, struct zero_vector *x, float *v, int64_t n)
{
    struct joining j = zero_joining(z);
    for (int k = 0; k < j.merges; k++) {
        const float *in[2] = { x->shard[--j.depth], v };
        KERNEL(z->m->dev, tree_add, v, in, 2, n);
    }
    if (v != x->shard[j.depth])
        dev_copy(z->m->dev, x->shard[j.depth], v, (size_t)n * sizeof *v);
}

/* ---- sums over dp ---- */
/* Waits for the sum of vector v and puts what this rank keeps of it where it belongs. */
static int finish_sum(struct zero *z, int v, struct err *e)
{
    struct zero_vector *x = &z->vector[v];
    struct kept kept = kept_of(z, v);
    int rc;

    if (!x->sum_of)
        return 0;
    if ((rc = comm_finish(&x->sum, e)) >= 0 && z->store->has_grads)
        rc = zero_spill(z, v, kept.begin, kept.n, x->sum_of + kept.begin, e);
    else if (rc >= 0 && z->n_shards)
        add_shard(z, x, x->sum_of + kept.begin, kept.n);
    x->sum_of = NULL;
    if (rc >= 0)
        zero_sum_is_final(z, v);
    return rc < 0 ? err_add(e, "summing the gradients of unit %d", part_of(z, v)->unit) : 0;
}

static int finish_sums(struct zero *z, struct err *e)
{
    int rc = 0;
    for (int v = z->n_vectors; v >= 0; v--) /* about the order in which they were started */
        TRY(finish_sum(z, v, e));
out:
    return rc;
}

static int start_sum(struct zero *z, int v, float *full, struct err *e)
{
    struct zero_vector *x = &z->vector[v];
    struct comm *ranks = z->group[group_of(z, v)].ranks;
    struct kept kept = kept_of(z, v);

    x->sum_of = full;
    if (z->overlap)
        return z->stage ? comm_start_reduce_scatter(&x->sum, ranks, full + kept.begin, full, kept.n, e)
                        : comm_start_all_reduce(&x->sum, ranks, full, kept.n, e);
    return z->stage ? comm_reduce_scatter(ranks, full + kept.begin, full, kept.n, e)
                    : comm_all_reduce(ranks, full, kept.n, e);
}

static int free_buffer(struct zero *z, const float *buffer, struct err *e)
{
    int rc = 0;
    for (int v = 0; rc >= 0 && v <= z->n_vectors; v++)
        if (z->vector[v].sum_of == buffer)
            rc = finish_sum(z, v, e);
    return rc;
}

/* Where buffers rotate: chooses and frees the buffer for the gradients after vector v's. It is the one whose
 * sum was started longest ago. The final norm of a model with a tied head does not advance the rotation,
 * because the large sum before it occupies the other buffer. After the first layer comes the embedding,
 * which uses the last buffer. */
static int next_buffer(struct zero *z, int v, struct err *e)
{
    struct rotation *r = &z->rotation[group_of(z, v)];
    int rc;

    if (!r->n)
        return 0;
    if (v != z->m->n_layers + 1 || buffer_of(z, v) != r->next || !z->m->table.cfg.tied)
        r->next = (buffer_of(z, v) + 1) % r->n;
    rc = free_buffer(z, r->buffer[r->next], e);
    return rc >= 0 && v == 1 ? free_buffer(z, r->buffer[r->n - 1], e) : rc;
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

/* The sum of one vector of a unit, whose gradients are all there. */
static int sum_vector(struct zero *z, int v, struct err *e)
{
    float *full = level_of(&z->g, v, 0);
    int rc;

    if (joins_before_sum(z)) {
        if (v == z->n_vectors)
            return 0;
        if (v == 0)
            join_head(z, full, z->vector[z->n_vectors].level[0], flat_of(z, v));
    }
    TRY(start_sum(z, v, full, e));
    if (!z->overlap)
        TRY(finish_sum(z, v, e));
    rc = next_buffer(z, v, e);
out:
    return rc;
}

/* Called when this micro-batch's part of unit u is complete. After the last micro-batch of the super-step
 * the unit's vectors are summed over their groups. */
static int done(struct grads *g, int u, struct err *e)
{
    struct zero *z = zero_of(g);
    int rc;

    if (g->next + z->plan.micro * g->inner < g->n)
        return 0;
    if (u == z->n_units)
        return sum_vector(z, z->n_vectors, e);
    rc = sum_vector(z, u, e);
    if (rc >= 0 && z->m->local.experts_of[u] >= 0)
        rc = sum_vector(z, z->m->local.experts_of[u], e);
    return rc;
}

/* ---- memory ---- */
/* Buffers rotate in stages 2 and 3 where a super-step is one micro-batch; otherwise partial sums stay in a
 * unit's own buffers between micro-batches. With overlap there are two, one summed while the other fills:
 * one of a layer's size, and one for embedding and head too, which may be much larger. */
static struct rotation rotation_of(const struct model *m, const struct batch_plan *b, struct zero_options how,
                                   int group)
{
    int64_t layer = 0, end = 0;

    if (how.stage < 2 || b->local != b->micro)
        return (struct rotation){ 0 };
    for (int v = 0; v < m->local.n_trained; v++) {
        const struct unit_part *of = &m->local.unit[v];
        int64_t *most = of->unit > 0 && of->unit <= m->n_layers ? &layer : &end;
        if ((int)of->group == group)
            *most = of->flat > *most ? of->flat : *most;
    }
    end = layer > end ? layer : end;
    return how.overlap ? (struct rotation){ .n = 2, .flat = { layer, end } }
                       : (struct rotation){ .n = 1, .flat = { end } };
}

/* Partial sums over super-steps: a step of one needs none where the sum stays in the vector's own buffer. */
int zero_shard_levels(const struct batch_plan *b, int stage)
{
    return stage >= 2 || b->supers > 1 ? tree_levels(b->supers, 1) : 0;
}

/* Ranks of a machine that share gathered parameters. Of the ranks of dp and cp a group of experts has one in
 * `sources`. */
static double sharers_of(const struct model *m, int sharers, int group)
{
    int sources = group == GROUP_EXPERT ? layout_expert_sources(&m->local.layout) : 1;
    return sharers > sources ? sharers / sources : 1;
}

/* Ranks that divide a vector of this group. */
static int slices_of(const struct model *m, int group)
{
    for (int v = 0; v < m->local.n_trained; v++)
        if ((int)m->local.unit[v].group == group)
            return m->local.unit[v].n_slices;
    return 1;
}

/* What ZeRO-3 gathers into; with no_weights a slice comes from a store through memory of its own. */
static double slots_bytes(const struct model *m, int sharers, struct zero_options how)
{
    const int ranks[GROUPS] = { slices_of(m, GROUP_DENSE), slices_of(m, GROUP_EXPERT) };
    struct slot_size size[ZERO_SLOTS][GROUPS];
    double sum = 0;

    zero_slot_sizes(m, how.frozen && ranks[GROUP_DENSE] == 1 && ranks[GROUP_EXPERT] == 1, size);
    for (int i = 0; i < ZERO_SLOTS; i++)
        for (int g = 0; g < GROUPS; g++) {
            double flat = (double)size[i][g].flat * (double)dtype_size(m->dt);
            sum += (flat + (double)size[i][g].packs) / sharers_of(m, sharers, g);
            if (how.no_weights && ranks[g] > 1)
                sum += (double)size[i][g].flat * (double)dtype_size(m->dt) / ranks[g];
        }
    return sum;
}

void zero_measure(const struct model *m, int sharers, struct zero_options how, const struct batch_plan *b,
                  double bytes[MEM_CATS])
{
    double el = (double)dtype_size(m->dt), own = 0, grads = 0, whole = 0;
    double shared = 0;
    int levels = tree_levels(b->local, b->micro), shards = how.no_grads ? 0 : zero_shard_levels(b, how.stage),
        n = m->local.n_trained;

    for (int v = 0; v < n + m->table.cfg.tied; v++) {
        const struct unit_part *of = &m->local.unit[v == n ? 0 : v];
        struct rotation rotation = rotation_of(m, b, how, (int)of->group);
        double f = (double)of->flat, mine = how.stage ? f / of->n_slices : f;
        double here = sharers_of(m, sharers, (int)of->group);
        if (v < n && how.stage < 3)
            shared += ((double)model_pack_bytes(m, v) + (how.stage ? f * el : 0)) / here;
        whole += v < n && how.stage == 0 ? f * el : 0;
        own += v < n ? mine : 0;
        grads += f * 4 * (rotation.n ? 0 : levels) + mine * 4 * shards;
    }
    for (int g = 0; g < GROUPS; g++) {
        struct rotation rotation = rotation_of(m, b, how, g);
        grads += 4.0 * (double)(rotation.flat[0] + rotation.flat[1]);
    }
    if (how.stage == 3)
        bytes[how.frozen ? MEM_WORK : MEM_PARAMS] += slots_bytes(m, sharers, how);
    bytes[MEM_PARAMS] += shared + (how.stage == 3 && !how.no_weights ? own * el : whole);
    if (how.frozen)
        return;
    bytes[MEM_GRADS] += grads + (how.no_grads ? zero_spill_bytes() : 0);
    bytes[MEM_OPTIM] += how.elsewhere ? 0 : (m->dt == DT_F32 ? 8 : 12) * own;
}

static int open_vector_grads(struct zero *z, int v, struct err *e)
{
    struct zero_vector *x = &z->vector[v];
    int group = group_of(z, v);
    int64_t flat = flat_of(z, v);

    for (int j = 0; !z->rotation[group].n && j < z->n_levels; j++)
        if (!(x->level[j] = comm_alloc(z->group[group].ranks, MEM_GRADS, (size_t)flat * 4 + 64)))
            return err_set(e, ERR_MEMORY,
                           "no memory for gradients: use a higher --zero or a larger --micro-batch");
    for (int j = 0; !z->store->has_grads && j < z->n_shards; j++)
        if (!(x->shard[j] = dev_alloc(z->m->dev, MEM_GRADS, (size_t)kept_of(z, v).n * 4 + 64)))
            return err_set(e, ERR_MEMORY, "no memory for gradient slices: use more dp ranks");
    return 0;
}

int zero_open_grads(struct zero *z, struct err *e)
{
    struct zero_options how = { .stage = z->stage, .overlap = z->overlap };
    int rc = 0;

    if (z->frozen)
        return 0;
    int inner = model_leaves(z->m);
    z->g = (struct grads){ .n = z->plan.local * inner, .inner = inner, .level = level_of, .done = done };
    z->g.fold = layout_expert_sources(&z->m->local.layout);
    z->g.n_levels = z->n_levels = tree_levels(z->plan.local, z->plan.micro);
    z->n_shards = zero_shard_levels(&z->plan, z->stage);
    for (int g = 0; g < GROUPS; g++)
        z->rotation[g] = rotation_of(z->m, &z->plan, how, g);

    for (int v = 0; rc >= 0 && v < z->n_vectors + z->m->table.cfg.tied; v++)
        rc = open_vector_grads(z, v, e);
    for (int g = 0; rc >= 0 && g < GROUPS; g++)
        for (int i = 0; i < z->rotation[g].n; i++) {
            struct rotation *r = &z->rotation[g];
            if (!(r->buffer[i] = comm_alloc(z->group[g].ranks, MEM_GRADS, (size_t)r->flat[i] * 4 + 64)))
                return err_set(e, ERR_MEMORY, "no memory for one unit's gradients: use more tp ranks");
        }
    return rc;
}

void zero_close_grads(struct zero *z)
{
    struct err ignored;
    for (int v = 0; v <= z->n_vectors; v++) {
        struct zero_vector *x = &z->vector[v];
        comm_finish(&x->sum, &ignored);
        for (int j = 0; j < TREE_DEPTH_MAX; j++) {
            comm_free(z->group[group_of(z, v)].ranks, x->level[j]);
            dev_free(z->m->dev, x->shard[j]);
        }
    }
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < MOST_ROTATING; i++)
            comm_free(z->group[g].ranks, z->rotation[g].buffer[i]);
}

struct grads *zero_grads(struct zero *z) { return &z->g; }

int zero_begin_rows(struct zero *z, int64_t super, int64_t row, struct err *e)
{
    /* gradients of the step before are read until its update has ended */
    int rc = zero_settle_all(z, e);
    /* sums of the super-step before join the counter while z->super is still its number */
    if (rc >= 0 && super != z->super)
        rc = finish_sums(z, e);
    z->super = super;
    z->g.next = row * z->g.inner;
    return rc;
}

float *zero_summed(const struct zero *z, int v, int64_t begin)
{
    const struct zero_vector *x = &z->vector[v];
    return z->n_shards ? x->shard[0] + (begin - kept_of(z, v).begin) : x->level[0] + begin;
}

/* First and last pipeline rank each hold the tied embedding and one part of its gradient. They exchange
 * the parts, so that both add the same two. */
int zero_swap_tied(struct zero *z, float *look_up, float *head, int64_t n, struct err *e)
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
    int64_t begin = z->vector[0].own_begin, n = z->vector[0].own;
    if (!z->m->table.cfg.tied || !z->m->local.unit[0].n)
        return 0;
    if (z->store->has_grads)
        return zero_join_spilled(z, e);
    float *look_up = zero_summed(z, 0, begin), *head = zero_summed(z, z->n_vectors, begin);
    int rc = zero_swap_tied(z, look_up, head, n, e);
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

/* Of part p, what lies in elements [begin, end) of its vector, whose gradients are at g. */
static void add_part(const struct zero *z, struct xsum *s, const struct part *p, int64_t begin, int64_t end,
                     const float *g)
{
    void (*add)(const struct zero *z, struct xsum *s, const float *x,
                int64_t n) = ALTERED("norm_exact") ? add_rounded : add_exact;
    int (*counts)(const struct part *p) = ALTERED("norm_replicas") ? all_count : owner_counts;
    int64_t lo = begin > p->offset ? begin : p->offset;
    int64_t hi = end < p->offset + p->count ? end : p->offset + p->count;
    if (counts(p) && lo < hi)
        add(z, s, g + (lo - begin), hi - lo);
}

void zero_add_squares(struct zero *z, int v, int64_t begin, int64_t n, const float *g)
{
    const struct unit_part *of = part_of(z, v);
    for (int i = of->first; i < of->first + of->n; i++)
        add_part(z, &z->squares, &z->m->local.part[i], begin, begin + n, g);
}

/* Adds the squares of what this rank counts: of each part, its dp slice, so that one dp rank counts an
 * element. */
static void add_squares(const struct zero *z, struct xsum *s)
{
    for (int i = 0; i < z->m->local.n_parts; i++) {
        const struct part *p = &z->m->local.part[i];
        const struct zero_group *g = &z->group[group_of(z, p->vector)];
        if (model_own(z->m, i))
            continue;
        int64_t slice = flat_of(z, p->vector) / g->size, lo = slice * g->rank;
        add_part(z, s, p, lo, lo + slice, zero_summed(z, p->vector, lo));
    }
}

int zero_norm(struct zero *z, double *norm, struct err *e)
{
    struct xsum s;
    int rc;
    TRY(finish_sums(z, e));
    TRY(join_tied(z, e));
    s = z->squares; /* of gradients that a store has */
    memset(&z->squares, 0, sizeof z->squares);
    if (!z->store->has_grads)
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
