/* model.c - a rank's model: its sizes, leaves, tables, and the packing of weights; see model.h. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>
#include "base/alter.h"
#include "base/fmath.h"

#define PI 3.14159265358979323846

/* Llama-3 scaling of one inverse frequency (Llama 3.1 report; transformers' rope_type "llama3"). */
static double llama3_frequency(const struct model_config *c, double f)
{
    double wave = 2 * PI / f, low = (double)c->rope_original_max_pos / c->rope_low_freq, high = (double)c->rope_original_max_pos / c->rope_high_freq;
    if (wave < high)
        return f;
    if (wave > low)
        return f / c->rope_factor;
    double smooth = ((double)c->rope_original_max_pos / wave - c->rope_low_freq) / (c->rope_high_freq - c->rope_low_freq);
    return (1 - smooth) * f / c->rope_factor + smooth * f;
}

static void fill_rope(struct model *m)
{
    const struct model_config *c = &m->table.cfg;
    int64_t half = c->head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double f = 1.0 / fm_pow(c->rope_theta, (double)(2 * i) / (double)c->head_dim);
        if (c->rope == ROPE_LINEAR)
            f /= c->rope_factor;
        if (c->rope == ROPE_LLAMA3)
            f = llama3_frequency(c, f);
        for (int64_t p = 0; p < m->max_pos; p++) {
            m->rope_cos[p * half + i] = (float)fm_cos((double)p * f);
            m->rope_sin[p * half + i] = (float)fm_sin((double)p * f);
        }
    }
}

/* First kv row of block g. Heads are grouped by c = gcd(kv heads, GRAIN), each group's rows cut into GRAIN / c blocks: the plain
 * ceil(rows / GRAIN) where that divides, and elsewhere cuts that no allowed tp finds inside another rank's head. */
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
    m->hidden = c->hidden;
    m->head_dim = c->head_dim;
    m->n_layers = c->n_layers;
    m->vocab = c->vocab;
    m->n_heads = (int)(c->n_heads / lay->tp);
    m->n_kv = lay->tp > c->n_kv ? 1 : (int)(c->n_kv / lay->tp);
    m->inter = block_begin(c->inter, g, first + each) - block_begin(c->inter, g, first);
    m->vocab_begin = block_begin(c->vocab, g, first);
    m->vocab_n = block_begin(c->vocab, g, first + each) - m->vocab_begin;
    m->of_hidden = leaves_of(c->hidden, g, 0, g);
    m->of_heads = leaves_of(c->n_heads * c->head_dim, g, first, each);
    m->of_inter = leaves_of(c->inter, g, first, each);
    m->of_vocab = leaves_of(c->vocab, g, first, each);
    m->of_kv = kv_leaves(c, g, first, each);
    my_kv = lay->tp > c->n_kv ? tp_rank / (lay->tp / c->n_kv) * c->head_dim : kv_rows / lay->tp * tp_rank;
    m->kv_begin = kv_block_begin(c, g, first) - my_kv;
    const struct { struct leaves *l; int lifted; } all[] = {             /* fast: one chain a product */
        { &m->of_hidden, m->fast || ALTERED("leaves_hidden") }, { &m->of_heads, m->fast || ALTERED("leaves_heads") },
        { &m->of_inter, m->fast || ALTERED("leaves_inter") }, { &m->of_kv, m->fast || ALTERED("leaves_heads") },
        { &m->of_vocab, ALTERED("leaves_vocab") },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].lifted)
            *all[i].l = (struct leaves){ 1, { all[i].l->end[all[i].l->n - 1] } };
    for (int i = 0; ALTERED("leaves_kv") && i < m->of_kv.n - 1; i++)
        m->of_kv.end[i] = 0;             /* all rows in a rank's last block */
}

int model_shape(struct model *m, const struct model_config *cfg, const struct layout *lay, int tp_rank, int pp_rank, enum dtype dt, int fast, struct err *e)
{
    int rc;
    memset(m, 0, sizeof *m);
    m->dt = dt;
    m->fast = fast;
    TRY(model_config_computed(cfg, e));
    TRY(layout_check(lay, cfg, e));
    TRY(param_table_open(&m->table, cfg, e));
    TRY(params_local_open(&m->local, &m->table, lay, tp_rank, pp_rank, e));
    set_sizes(m, lay, tp_rank);
    TRY(set_stages(m, lay, pp_rank, e));
    return 0;
out:
    model_close(m);
    return rc;
}

int model_open(struct model *m, const struct model_config *cfg, const struct layout *lay, struct dev *dev, struct comm *tp,
               int tp_rank, int pp_rank, enum dtype dt, int fast, int64_t max_rows, int64_t max_pos, struct err *e)
{
    int rc = model_shape(m, cfg, lay, tp_rank, pp_rank, dt, fast, e);
    if (rc < 0)
        return rc;
    m->dev = dev;
    m->tp = tp;
    m->max_rows = max_rows;
    m->max_pos = max_pos ? max_pos : cfg->max_pos;
    if (lay->tp > cfg->n_kv)
        TRY(comm_split(&m->kv_group, tp, (int)(tp_rank / (lay->tp / cfg->n_kv)), e));
    size_t rope = sizeof(float) * (size_t)(m->max_pos * (cfg->head_dim / 2));
    m->rope_cos = dev_alloc(dev, MEM_WORK, rope);
    m->rope_sin = dev_alloc(dev, MEM_WORK, rope);
    m->sum_rows = comm_alloc(tp, MEM_COMM, sizeof(float) * (size_t)(max_rows * cfg->hidden));
    m->stat = comm_alloc(tp, MEM_COMM, sizeof(float) * (size_t)(4 * max_rows));
    if (!m->rope_cos || !m->rope_sin || !m->sum_rows || !m->stat) {
        rc = err_set(e, ERR_MEMORY, "no memory for the model's tables (%lld positions, %lld rows): use fewer rows or positions", (long long)m->max_pos, (long long)max_rows);
        goto out;
    }
    fill_rope(m);
    return 0;
out:
    model_close(m);
    return rc;
}

void model_close(struct model *m)
{
    if (m->dev) {
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
    return mat_of((char *)(uintptr_t)flat + p->offset * (int64_t)dtype_size(m->dt), m->dt, p->box.extent[0], cols, cols);
}

/* ---- packs: which matrices, stacked, over which leaves ---- */
static const struct { int n; enum param_kind kind[3]; } pack_of[PACK_COUNT] = {
    [PACK_QKV] = { 3, { P_Q, P_K, P_V } }, [PACK_O] = { 1, { P_O } }, [PACK_GU] = { 2, { P_GATE, P_UP } },
    [PACK_DOWN] = { 1, { P_DOWN } }, [PACK_HEAD] = { 1, { P_HEAD } },
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
    case PACK_QKV: p->n = heads + 2 * kv; p->k = m->hidden; p->leaves = m->of_hidden; break;
    case PACK_O: p->n = m->hidden; p->k = heads; p->leaves = m->of_heads; break;
    case PACK_GU: p->n = 2 * m->inter; p->k = m->hidden; p->leaves = m->of_hidden; break;
    case PACK_DOWN: p->n = m->hidden; p->k = m->inter; p->leaves = m->of_inter; break;
    case PACK_HEAD: p->n = m->vocab_n; p->k = m->hidden; p->leaves = m->of_hidden; break;
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

/* Rows [begin, end) of the matrices w[0..n) stacked, as matrices: how many there are. */
static int rows_of(struct mat *out, const struct mat *w, int n, int64_t begin, int64_t end)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        int64_t lo = begin > 0 ? begin : 0, hi = end < w[i].rows ? end : w[i].rows;
        if (lo < hi)
            out[count++] = mat_of((char *)w[i].p + lo * w[i].ld * (int64_t)dtype_size(w[i].dt), w[i].dt, hi - lo, w[i].cols, w[i].ld);
        begin -= w[i].rows;
        end -= w[i].rows;
    }
    return count;
}

/* A panel is 32 rows of the matrices, panels stand one behind the other: a share is some of them, as a pack of its own. */
static void pack_share(const struct model *m, const struct panels *whole, const struct mat *w, int n, int share, int n_shares)
{
    enum { ROWS = 32 };
    int64_t panels = (whole->n + ROWS - 1) / ROWS, first = panels * share / n_shares * ROWS, end = panels * (share + 1) / n_shares * ROWS;
    struct panels p = *whole;
    struct mat part[3];
    end = end < whole->n ? end : whole->n;
    p.n = end - first;
    p.p = (char *)whole->p + panels_bytes(first, whole->k, whole->dt, &whole->leaves);
    if (p.n > 0)
        KERNEL(m->dev, linear_pack, &p, rows_of(part, w, n, first, end), part);
}

void model_pack(const struct model *m, int unit, const void *flat, const void *head_flat, struct unit_weights *uw, void *memory, int share,
                int n_shares)
{
    char *at = memory;
    for (enum pack k = 0; k < PACK_COUNT; k++) {
        struct panels *p = &uw->pack[k];
        struct mat w[3];
        pack_shape(m, k, p);
        if (!pack_in_unit(m, unit, k))
            continue;
        for (int i = 0; i < pack_of[k].n; i++)
            w[i] = k == PACK_HEAD && m->table.cfg.tied ? model_mat(m, head_flat, model_part(m, 0, P_EMBED))
                                                       : model_mat(m, k == PACK_HEAD ? head_flat : flat, model_part(m, unit, pack_of[k].kind[i]));
        p->p = at;
        pack_share(m, p, w, pack_of[k].n, share, n_shares);
        at += (panels_bytes(p->n, p->k, p->dt, &p->leaves) + 63) / 64 * 64;
    }
}

size_t model_page_bytes(const struct model *m) { return attn_page_bytes(m->n_kv, (int)m->head_dim, m->dt); }

void model_point(const struct model *m, int unit, void *flat, struct unit_weights *uw)
{
    static const enum param_kind norms[2][2] = { { P_NORM_ATTN, P_NORM_MLP }, { P_NORM, P_NORM } };
    int is_head = unit == m->n_layers + 1;
    uw->flat = flat;
    for (int i = 0; i < 2; i++) {
        int part = model_part(m, unit, norms[is_head][i]);
        uw->norm[i] = part < 0 ? NULL : model_mat(m, flat, part).p;
    }
    uw->embed = unit == 0 ? flat : NULL;
}
