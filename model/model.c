/* model.c - a rank's model: its sizes, stages, tables; see model.h. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>
#include "base/alter.h"
#include "kernels/fn.h"
#include "model/units.h"

int model_set_stages(struct model *m, const struct layout *l, int pp_rank, struct err *e)
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

    m->shares = lay->sp ? lay->tp : 1;
    m->learned_positions = family_learns_positions(c);
    m->hidden = c->hidden;
    m->n_layers = c->n_layers;
    m->vocab = c->vocab;
    m->embed_factor = (float)family_embed_factor(c);
    if (m->dt == DT_BF16 && !ALTERED("embed_factor"))
        m->embed_factor = fn_round_bf16(m->embed_factor);
    m->vocab_begin = block_begin(c->vocab, g, first);
    m->vocab_n = block_begin(c->vocab, g, first + each) - m->vocab_begin;
    m->of_hidden = leaves_cut(leaves_of(c->hidden, g, 0, g), m->fast || ALTERED("leaves_hidden"));
    m->of_vocab = leaves_cut(leaves_of(c->vocab, g, first, each), ALTERED("leaves_vocab"));
}

int model_shape(struct model *m, const struct model_config *cfg, const struct layout *lay, struct rank_at at,
                enum dtype dt, int fast, struct err *e)
{
    int rc;
    memset(m, 0, sizeof *m);
    m->dt = dt;
    m->fast = fast;
    TRY(model_config_computed(cfg, e));
    TRY(layout_check(lay, cfg, e));
    TRY(param_table_open(&m->table, cfg, e));
    TRY(params_local_open(&m->local, &m->table, lay, at, e));
    set_sizes(m, lay, at.tp);
    TRY(units_open(m, at.tp, e));
    TRY(model_set_stages(m, lay, at.pp, e));
    return 0;
out:
    model_close(m);
    return rc;
}

static int open_rope(struct model *m, int which)
{
    size_t bytes = sizeof(float) * (size_t)(m->max_pos * (m->table.cfg.rope_dim / 2));
    m->rope[which].cos = dev_alloc(m->dev, MEM_WORK, bytes);
    m->rope[which].sin = dev_alloc(m->dev, MEM_WORK, bytes);
    return m->rope[which].cos && m->rope[which].sin;
}

/* Vectors with a dtype of their own. */
static int open_own(struct model *m, struct err *e)
{
    m->own = calloc((size_t)m->local.n_vectors, sizeof *m->own);
    int ok = m->own != NULL;
    for (int v = 0; ok && v < m->local.n_vectors; v++) {
        size_t bytes = (size_t)m->local.unit[v].flat * sizeof(float);
        if (!m->local.unit[v].dtype)
            continue;
        m->own[v] = dev_alloc(m->dev, MEM_PARAMS, bytes);
        ok = m->own[v] != NULL;
        if (ok)
            dev_fill(m->dev, m->own[v], 0, bytes);
    }
    return ok ? 0 : err_set(e, ERR_MEMORY, "no memory for parameters with a dtype of their own");
}

void *model_own(const struct model *m, int part)
{
    const struct part *p = &m->local.part[part];
    return m->local.unit[p->vector].dtype ? (float *)m->own[p->vector] + p->offset : NULL;
}

/* Memory that the model has beside weights and activations. */
static int open_tables(struct model *m, struct err *e)
{
    int64_t sums = m->max_rows * m->hidden;
    int ok;

    if (m->adapter_rank) {
        struct arena a = { 0 };
        sums += adapter_room_carve(m, &a, m->max_rows, m->adapter_rank, &m->adapters);
        a = (struct arena){ m->adapter_memory = dev_alloc(m->dev, MEM_WORK, a.used), 0, a.used };
        adapter_room_carve(m, &a, m->max_rows, m->adapter_rank, &m->adapters);
    }
    m->sum_rows = comm_alloc(m->tp, MEM_COMM, sizeof(float) * (size_t)sums);
    m->stat = comm_alloc(m->tp, MEM_COMM, sizeof(float) * (size_t)(4 * m->max_rows));
    m->lists_bytes = forward_lists_bytes(m, m->max_rows);
    if (m->table.cfg.n_experts) /* also on a stage without experts: ranks add their counts together */
        m->loads = calloc((size_t)(m->n_layers * m->table.cfg.n_experts), sizeof *m->loads);
    m->rounds = m->loads ? calloc((size_t)m->n_layers, sizeof *m->rounds) : NULL;
    m->lists = m->lists_bytes ? mem_alloc(m->dev->mem, MEM_WORK, m->lists_bytes) : NULL;
    ok = m->sum_rows && m->stat && (m->adapter_memory || !m->adapter_rank) && (m->lists || !m->lists_bytes) &&
         (m->rounds || !m->table.cfg.n_experts);
    if (m->learned_positions) {
        m->pos = calloc((size_t)m->max_rows, sizeof *m->pos);
        ok = ok && m->pos;
    } else {
        ok = ok && open_rope(m, ROPE_GLOBAL) &&
             (!(m->table.cfg.rope_local_theta > 0) || open_rope(m, ROPE_LOCAL));
    }
    if (!ok)
        return err_set(
            e, ERR_MEMORY,
            "no memory for the model's tables (%lld positions, %lld rows): use fewer rows or positions",
            (long long)m->max_pos, (long long)m->max_rows);
    return rope_extend(m, m->max_pos < ROPE_FIRST ? m->max_pos : ROPE_FIRST, e);
}

size_t model_tables_measure(const struct model *m, int64_t rows, int64_t positions)
{
    const struct model_config *c = &m->table.cfg;
    size_t bytes = sizeof(float) * (size_t)(rows * (m->hidden + 4)) + forward_lists_bytes(m, rows);
    int64_t rope = m->learned_positions ? 0 : 1 + (c->rope_local_theta > 0);
    return bytes + sizeof(float) * (size_t)(rope * 2 * positions * (c->rope_dim / 2));
}

int model_open(struct model *m, const struct model_config *cfg, const struct model_open *how, struct err *e)
{
    const struct layout *lay = &how->layout;
    struct rank_at at = { .tp = how->tp_rank,
                          .cp = how->cp ? comm_rank(how->cp) : 0,
                          .pp = how->pp_rank,
                          .ep = how->ep ? comm_rank(how->ep) : 0 };
    int rc = model_shape(m, cfg, lay, at, how->dt, how->fast, e);

    if (rc < 0)
        return rc;
    m->kv = how->kv;
    m->dev = how->dev;
    m->tp = how->tp;
    m->ep = how->ep;
    m->cp = how->cp;
    dev_numerics(m->dev, m->fast);
    m->max_rows = how->max_rows;
    m->adapter_rank = how->adapter_rank;
    m->max_pos = how->max_pos ? how->max_pos : cfg->max_pos;
    if (m->learned_positions && m->max_pos > cfg->max_pos) {
        rc = err_set(
            e, ERR_USAGE,
            "%lld positions are asked for, the model has learned %lld: use a shorter --seq-len or --ctx",
            (long long)m->max_pos, (long long)cfg->max_pos);
        goto out;
    }
    if (lay->tp > cfg->n_kv)
        TRY(comm_split(&m->kv_group, m->tp, (int)(how->tp_rank / (lay->tp / cfg->n_kv)), e));

    TRY(open_own(m, e));
    /* All ranks get shared memory, or none: freeing it takes all of them. */
    rc = open_tables(m, e);
    if (m->shares > 1) {
        size_t bytes = (size_t)(m->max_rows * m->hidden) * dtype_size(m->dt);
        TRY(comm_agree(m->tp, rc, e));
        rc = comm_alloc_shared(&m->all_rows, m->tp, MEM_COMM, bytes, e);
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
        for (int i = 0; i < ROPE_TABLES; i++) {
            dev_free(m->dev, m->rope[i].cos);
            dev_free(m->dev, m->rope[i].sin);
        }
        for (int v = 0; m->own && v < m->local.n_vectors; v++)
            dev_free(m->dev, m->own[v]);
        free(m->own);
        comm_free(m->tp, m->sum_rows);
        comm_free(m->tp, m->stat);
        dev_free(m->dev, m->adapter_memory);
        mem_free(m->dev->mem, m->lists);
    }
    if (m->kv_group)
        comm_close(m->kv_group);
    units_close(m);
    params_local_close(&m->local);
    param_table_close(&m->table);
    free(m->chunk);
    free(m->pos);
    free(m->loads);
    free(m->rounds);
    memset(m, 0, sizeof *m);
}

int model_part(const struct model *m, int unit, enum param_kind kind)
{
    return params_part(&m->local, unit, kind, -1);
}

struct mat model_mat(const struct model *m, const void *flat, int part)
{
    const struct part *p = &m->local.part[part];
    const struct param *q = &m->table.p[p->param];
    const int64_t *extent = p->box.extent + q->stacked;
    int64_t cols = param_is_vector(q) ? 1 : extent[1];
    return mat_of((char *)(uintptr_t)flat + p->offset * (int64_t)dtype_size(m->dt), m->dt, extent[0], cols,
                  cols);
}

/* What a kv head in a page depends on. */
static struct attn page_shape(const struct model_config *c, enum dtype dt, enum kv_kind kv)
{
    struct attn a = { .head_dim = (int)c->head_dim, .dt = dt, .kv = kv };
    if (family_has(c, F_LATENT)) {
        a.head_dim = (int)(c->latent.kv_rank + c->latent.rope_dim);
        a.v_dim = (int)c->latent.kv_rank;
    }
    return a;
}

size_t model_page_bytes_of(const struct model_config *c, int tp, enum dtype dt, enum kv_kind kv)
{
    const struct attn a = page_shape(c, dt, kv);
    const int heads = a.v_dim || tp > c->n_kv ? 1 : (int)(c->n_kv / tp);
    return (size_t)heads * attn_head_bytes(&a);
}

size_t model_page_bytes(const struct model *m)
{
    return model_page_bytes_of(&m->table.cfg, m->local.layout.tp, m->dt, m->kv);
}

struct page_values model_page_values(const struct model *m, int group)
{
    const struct attn a = page_shape(&m->table.cfg, m->dt, m->kv);
    const size_t code = attn_code_size(&a), head = attn_head_bytes(&a),
                 heads = model_page_bytes(m) / head * (size_t)model_page_layers(m, group, m->n_layers);
    struct page_values v = { .n = 1 };

    v.part[0] = (struct page_part){ attn_key_bytes(&a), (size_t)a.head_dim * code, head, (int64_t)heads };
    if (a.kv == KV_INT8)
        v.part[1] = (struct page_part){ attn_value_scales(&a), sizeof(float), head, (int64_t)heads };
    if (a.v_dim) {
        v.part[0] = (struct page_part){ 0, code, ATTN_PAGE * code, a.head_dim };
        v.part[1].rows = v.part[1].rows ? 1 : 0;
        v.n = (int64_t)heads;
        v.block = head;
    }
    return v;
}
