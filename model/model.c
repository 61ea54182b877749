/* model.c - a rank's model: its sizes, leaves, tables, and the packing of weights; see model.h. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>
#include "base/alter.h"
#include "model/block.h"
#include "model/family.h"

/* First kv row of block g. Heads are grouped by c = gcd(kv heads, GRAIN), each group's rows cut into GRAIN /
 * c blocks: the plain ceil(rows / GRAIN) where that divides, and elsewhere cuts that no allowed tp finds
 * inside another rank's head. */
static int64_t kv_block_begin(const struct model_config *c, int grain, int g)
{
    int groups = grain;
    while (c->n_kv % groups || grain % groups)
        groups--;
    int64_t rows = c->n_kv / groups * c->head_dim;
    int each = grain / groups;
    return g / each * rows + block_begin(rows, each, g % each);
}

static struct leaves kv_leaves(const struct model_config *c, int grain, int first, int count)
{
    struct leaves l = { .n = count };
    for (int i = 0; i < count; i++)
        l.end[i] = kv_block_begin(c, grain, first + i + 1) - kv_block_begin(c, grain, first);
    return l;
}

static int set_stages(struct model *m, const struct layout *l, int pp_rank, struct err *e)
{
    int last = l->pp * layout_chunks(l) - 1;
    m->n_chunks = layout_chunks(l);
    m->chunk = calloc((size_t)m->n_chunks, sizeof *m->chunk);
    if (!m->chunk)
        return err_set(e, ERR_MEMORY, "no memory for %d virtual stages", m->n_chunks);
    for (int u = (int)m->table.cfg.n_layers; u > 0; u--) {
        int v = params_stage(&m->table, l, u);
        struct stage *s = &m->chunk[v / l->pp];
        if (v % l->pp != pp_rank)
            continue;
        s->first_unit = u;
        s->last_unit = s->last_unit ? s->last_unit : u;
        s->has_embed = v == 0;
        s->has_head = v == last;
    }
    m->has_embed = m->chunk[0].has_embed;
    m->has_head = m->chunk[m->n_chunks - 1].has_head;
    return 0;
}

static void set_sizes(struct model *m, const struct layout *lay, int tp_rank)
{
    const struct model_config *c = &m->table.cfg;
    int g = m->grain = layout_grain(lay, c), each = g / lay->tp, first = tp_rank * each;
    int64_t kv_rows = c->n_kv * c->head_dim, my_kv;
    m->shares = lay->sp ? lay->tp : 1;
    m->features = c->features;
    m->hidden = c->hidden;
    m->head_dim = c->head_dim;
    m->n_layers = c->n_layers;
    m->vocab = c->vocab;
    m->n_heads = (int)(c->n_heads / lay->tp);
    m->n_kv = lay->tp > c->n_kv ? 1 : (int)(c->n_kv / lay->tp);
    m->inter = block_begin(c->inter, g, first + each) - block_begin(c->inter, g, first);
    m->up_cols = (c->features & F_GATE ? 2 : 1) * m->inter;
    m->vocab_begin = block_begin(c->vocab, g, first);
    m->vocab_n = block_begin(c->vocab, g, first + each) - m->vocab_begin;
    m->of_hidden = leaves_of(c->hidden, g, 0, g);
    m->of_heads = leaves_of(c->n_heads * c->head_dim, g, first, each);
    m->of_inter = leaves_of(c->inter, g, first, each);
    m->of_vocab = leaves_of(c->vocab, g, first, each);
    m->of_kv = kv_leaves(c, g, first, each);
    my_kv = lay->tp > c->n_kv ? tp_rank / (lay->tp / c->n_kv) * c->head_dim : kv_rows / lay->tp * tp_rank;
    m->kv_begin = kv_block_begin(c, g, first) - my_kv;
    const struct {
        struct leaves *l;
        int lifted;
    } all[] = {
        /* fast: one chain a product */
        { &m->of_hidden, m->fast || ALTERED("leaves_hidden") },
        { &m->of_heads, m->fast || ALTERED("leaves_heads") },
        { &m->of_inter, m->fast || ALTERED("leaves_inter") },
        { &m->of_kv, m->fast || ALTERED("leaves_heads") },
        { &m->of_vocab, ALTERED("leaves_vocab") },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].lifted)
            *all[i].l = (struct leaves){ 1, { all[i].l->end[all[i].l->n - 1] } };
    for (int i = 0; ALTERED("leaves_kv") && i < m->of_kv.n - 1; i++)
        m->of_kv.end[i] = 0; /* all rows in a rank's last block */
}

int model_shape(struct model *m, const struct model_config *cfg, const struct layout *lay, int tp_rank,
                int pp_rank, enum dtype dt, int fast, struct err *e)
{
    int rc;
    memset(m, 0, sizeof *m);
    m->dt = dt;
    m->fast = fast;
    TRY(model_config_computed(cfg, e));
    TRY(layout_check(lay, cfg, e));
    TRY(param_table_open(&m->table, cfg, e));
    TRY(params_local_open(&m->local, &m->table, lay, (struct rank_at){ .tp = tp_rank, .pp = pp_rank }, e));
    set_sizes(m, lay, tp_rank);
    TRY(set_stages(m, lay, pp_rank, e));
    return 0;
out:
    model_close(m);
    return rc;
}

/* Memory that the model has beside weights and activations. */
static int open_tables(struct model *m, struct err *e)
{
    size_t rope = sizeof(float) * (size_t)(m->max_pos * (m->head_dim / 2));
    int learned = (m->features & F_POSITIONS) != 0, ok;
    m->sum_rows = comm_alloc(m->tp, MEM_COMM, sizeof(float) * (size_t)(m->max_rows * m->hidden));
    m->stat = comm_alloc(m->tp, MEM_COMM, sizeof(float) * (size_t)(4 * m->max_rows));
    ok = m->sum_rows && m->stat;
    if (learned) {
        m->pos = calloc((size_t)m->max_rows, sizeof *m->pos);
        ok = ok && m->pos;
    } else {
        m->rope_cos = dev_alloc(m->dev, MEM_WORK, rope);
        m->rope_sin = dev_alloc(m->dev, MEM_WORK, rope);
        ok = ok && m->rope_cos && m->rope_sin;
    }
    if (!ok)
        return err_set(
            e, ERR_MEMORY,
            "no memory for the model's tables (%lld positions, %lld rows): use fewer rows or positions",
            (long long)m->max_pos, (long long)m->max_rows);
    return model_turns_upto(m, m->max_pos < ROPE_FIRST ? m->max_pos : ROPE_FIRST, e);
}

int model_open(struct model *m, const struct model_config *cfg, const struct layout *lay, struct dev *dev,
               struct comm *tp, int tp_rank, int pp_rank, enum dtype dt, int fast, int64_t max_rows,
               int64_t max_pos, struct err *e)
{
    int rc = model_shape(m, cfg, lay, tp_rank, pp_rank, dt, fast, e);
    if (rc < 0)
        return rc;
    m->dev = dev;
    m->tp = tp;
    dev_numerics(dev, fast);
    m->max_rows = max_rows;
    m->max_pos = max_pos ? max_pos : cfg->max_pos;
    if (m->features & F_POSITIONS && m->max_pos > cfg->max_pos) {
        rc = err_set(
            e, ERR_USAGE,
            "%lld positions are asked for, the model has learned %lld: use a shorter --seq-len or --ctx",
            (long long)m->max_pos, (long long)cfg->max_pos);
        goto out;
    }
    if (lay->tp > cfg->n_kv)
        TRY(comm_split(&m->kv_group, tp, (int)(tp_rank / (lay->tp / cfg->n_kv)), e));
    rc = open_tables(m, e);
    /* all ranks get what they share, or none: giving it back takes all of them */
    if (m->shares > 1) {
        TRY(comm_agree(tp, rc, e));
        rc = comm_alloc_shared(&m->all_rows, tp, MEM_COMM, (size_t)(max_rows * cfg->hidden) * dtype_size(dt),
                               e);
    }
    TRY(rc);
    return 0;
out:
    model_close(m);
    return rc;
}

void model_close(struct model *m)
{
    struct err ignored;
    if (m->dev) {
        comm_free_shared(m->tp, m->all_rows, &ignored);
        dev_free(m->dev, m->rope_cos);
        dev_free(m->dev, m->rope_sin);
        comm_free(m->tp, m->sum_rows);
        comm_free(m->tp, m->stat);
    }
    if (m->kv_group)
        comm_close(m->kv_group);
    params_local_close(&m->local);
    param_table_close(&m->table);
    free(m->chunk);
    free(m->pos);
    memset(m, 0, sizeof *m);
}

int model_part(const struct model *m, int unit, enum param_kind kind)
{
    const struct unit_part *u = &m->local.unit[unit];
    for (int i = u->first; i < u->first + u->n; i++)
        if (m->table.p[m->local.part[i].param].kind == kind)
            return i;
    return -1;
}

struct mat model_mat(const struct model *m, const void *flat, int part)
{
    const struct part *p = &m->local.part[part];
    int64_t cols = p->box.n_dims == 2 ? p->box.extent[1] : 1;
    return mat_of((char *)(uintptr_t)flat + p->offset * (int64_t)dtype_size(m->dt), m->dt, p->box.extent[0],
                  cols, cols);
}

/* ---- packs: which matrices, stacked, over which leaves ---- */
static const struct {
    int n;
    enum param_kind kind[3];
} pack_of[PACK_COUNT] = {
    [PACK_QKV] = { 3, { P_Q, P_K, P_V } }, [PACK_O] = { 1, { P_O } },
    [PACK_GU] = { 2, { P_GATE, P_UP } },   [PACK_DOWN] = { 1, { P_DOWN } },
    [PACK_HEAD] = { 1, { P_HEAD } },
};

static int pack_in_unit(const struct model *m, int unit, enum pack k)
{
    int is_head = unit == m->n_layers + 1, is_layer = unit > 0 && !is_head;
    return m->local.unit[unit].n && (k == PACK_HEAD ? is_head : is_layer);
}

static void pack_shape(const struct model *m, enum pack k, struct panels *p)
{
    int64_t heads = m->n_heads * m->head_dim, kv = m->n_kv * m->head_dim;
    memset(p, 0, sizeof *p);
    p->dt = m->dt;
    switch (k) {
    case PACK_QKV:
        p->n = heads + 2 * kv;
        p->k = m->hidden;
        p->leaves = m->of_hidden;
        break;
    case PACK_O:
        p->n = m->hidden;
        p->k = heads;
        p->leaves = m->of_heads;
        break;
    case PACK_GU:
        p->n = m->up_cols;
        p->k = m->hidden;
        p->leaves = m->of_hidden;
        break;
    case PACK_DOWN:
        p->n = m->hidden;
        p->k = m->inter;
        p->leaves = m->of_inter;
        break;
    case PACK_HEAD:
        p->n = m->vocab_n;
        p->k = m->hidden;
        p->leaves = m->of_hidden;
        break;
    case PACK_COUNT: break;
    }
}

size_t model_pack_bytes(const struct model *m, int unit)
{
    size_t sum = 0;
    for (enum pack k = 0; k < PACK_COUNT; k++) {
        struct panels p;
        pack_shape(m, k, &p);
        if (pack_in_unit(m, unit, k))
            sum += (panels_bytes(p.n, p.k, p.dt, &p.leaves) + 63) / 64 * 64;
    }
    return sum;
}

/* A matrix as it is stored: [outputs][inputs], or transposed. */
struct stored {
    struct mat m;
    int transposed;
};

/* Rows [begin, end) of the matrices w[0..n) stacked, as stored: how many there are. */
static int rows_of(struct stored *out, const struct stored *w, int n, int64_t begin, int64_t end)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        int64_t rows = w[i].transposed ? w[i].m.cols : w[i].m.rows, lo = begin > 0 ? begin : 0,
                hi = end < rows ? end : rows;
        if (lo < hi)
            out[count++] = (struct stored){ w[i].transposed ? mat_cols(w[i].m, lo, hi - lo)
                                                            : mat_rows(w[i].m, lo, hi - lo),
                                            w[i].transposed };
        begin -= rows;
        end -= rows;
    }
    return count;
}

/* A panel is 32 rows of the matrices, panels stand one behind the other: a share is some of them, as a pack
 * of its own. */
static void pack_share(const struct model *m, const struct panels *whole, const struct stored *w, int n,
                       int share, int n_shares)
{
    enum { ROWS = 32 };
    int64_t panels = (whole->n + ROWS - 1) / ROWS, first = panels * share / n_shares * ROWS,
            end = panels * (share + 1) / n_shares * ROWS;
    struct panels p = *whole;
    struct stored part[3];
    struct mat rows[3];
    char *room = NULL;
    end = end < whole->n ? end : whole->n;
    p.n = end - first;
    p.p = (char *)whole->p + panels_bytes(first, whole->k, whole->dt, &whole->leaves);
    if (p.n <= 0)
        return;
    n = rows_of(part, w, n, first, end);
    if (part[0].transposed && !(room = dev_scratch(m->dev, 5, (size_t)(p.n * p.k) * dtype_size(p.dt)))) {
        /* NaN: nothing may go on with numbers that were not computed */
        dev_fill(m->dev, p.p, 0xff, panels_bytes(p.n, p.k, p.dt, &p.leaves));
        return;
    }
    for (int i = 0; i < n; i++)
        rows[i] = part[i].transposed ? model_transposed(m, part[i].m, &room) : part[i].m;
    KERNEL(m->dev, linear_pack, &p, n, rows);
}

struct mat model_transposed(const struct model *m, struct mat stored, char **room)
{
    struct mat t = mat_of(*room, stored.dt, stored.cols, stored.rows, stored.rows);
    KERNEL(m->dev, transpose, t, stored);
    *room += (size_t)(t.rows * t.cols) * dtype_size(t.dt);
    return t;
}

/* The matrices of a pack in unit's (the tied head's: unit 0's) flat vector. */
static int pack_mats(const struct model *m, int unit, enum pack k, const void *flat, const void *head_flat,
                     struct stored w[3])
{
    int n = 0, tied = k == PACK_HEAD && m->table.cfg.tied;
    for (int i = 0; i < pack_of[k].n; i++) {
        int part = tied ? model_part(m, 0, P_EMBED) : model_part(m, unit, pack_of[k].kind[i]);
        if (part >= 0) /* no gate in some families */
            w[n++] = (struct stored){ model_mat(m, k == PACK_HEAD ? head_flat : flat, part),
                                      m->table.p[m->local.part[part].param].transposed };
    }
    return n;
}

void model_pack(const struct model *m, int unit, const void *flat, const void *head_flat,
                struct unit_weights *uw, void *memory, int share, int n_shares)
{
    char *at = memory;
    for (enum pack k = 0; k < PACK_COUNT; k++) {
        struct panels *p = &uw->pack[k];
        struct stored w[3];
        pack_shape(m, k, p);
        if (!pack_in_unit(m, unit, k))
            continue;
        p->p = at;
        pack_share(m, p, w, pack_mats(m, unit, k, flat, head_flat, w), share, n_shares);
        at += (panels_bytes(p->n, p->k, p->dt, &p->leaves) + 63) / 64 * 64;
    }
}

size_t model_page_bytes(const struct model *m) { return attn_page_bytes(m->n_kv, (int)m->head_dim, m->dt); }

void model_point(const struct model *m, int unit, void *flat, struct unit_weights *uw)
{
    const struct unit_part *u = &m->local.unit[unit];
    uw->flat = flat;
    memset(uw->at, 0, sizeof uw->at);
    for (int i = u->first; i < u->first + u->n; i++)
        uw->at[m->table.p[m->local.part[i].param].kind] = model_mat(m, flat, i).p;
}
