/* megatron_blocks.c - cuts blocks of Megatron's arrays into parts of logical tensors; see megatron.h. */
#include <string.h>
#include "format/megatron/megatron.h"

int64_t mg_ranks(const struct mg *m, const struct mg_row *r)
{
    return r->of_experts && m->s.etp > 0 ? m->s.etp : m->s.tp;
}

int64_t mg_compressed_rows(const struct mg *m, const struct mg_row *r)
{
    const struct mg_shape *s = &m->s;
    if (!strcmp(r->key, "self_attention.linear_q_down_proj.weight"))
        return s->q_rank;
    if (!strcmp(r->key, "self_attention.linear_kv_down_proj.weight") && s->kv_rank && s->rotary)
        return s->kv_rank + s->rotary;
    return 0;
}

/* The dim that tp cuts, -1: none. Megatron's local layers cut the compressed rows, Transformer Engine's do
 * not: the local tensor shows it. */
static int cut_dim(const struct mg *m, const struct mg_row *r, const int64_t *local)
{
    int64_t whole = mg_compressed_rows(m, r);
    return whole && local[0] < whole ? 0 : r->tp_dim;
}

/* GPT-2 has no gate. */
static enum mg_cut cut_of(const struct mg *m, const struct mg_row *r)
{
    return r->cut == MG_GATED && m->s.family == MG_GPT2 ? MG_PLAIN : r->cut;
}

int64_t mg_n_segments(const struct mg *m, const struct mg_row *r)
{
    return cut_of(m, r) == MG_QKV ? 3 * m->s.groups : cut_of(m, r) == MG_GATED ? 2 : 1;
}

struct mg_segment mg_segment_at(const struct mg *m, const struct mg_row *r, int64_t rows, int64_t i)
{
    int64_t h = m->s.head_dim, q = m->s.heads / m->s.groups * h, g = i / 3,
            part = m->s.family == MG_GPT2 ? m->s.heads * h : 0;
    switch (cut_of(m, r)) {
    case MG_QKV:
        if (i % 3 == 0)
            return (struct mg_segment){ 0, g * (q + 2 * h), q, g * q };
        return (struct mg_segment){ (int)(i % 3), g * (q + 2 * h) + q + (i % 3 - 1) * h, h,
                                    i % 3 * part + g * h };
    case MG_GATED: return (struct mg_segment){ (int)i, i * (rows / 2), rows / 2, 0 };
    case MG_VOCAB: return (struct mg_segment){ 0, 0, m->s.vocab && m->s.vocab < rows ? m->s.vocab : rows, 0 };
    default: return (struct mg_segment){ 0, 0, rows, 0 };
    }
}

int64_t mg_rows_of(const struct mg *m, const struct mg_row *r, int64_t rows, int hf)
{
    int64_t h = m->s.head_dim;
    if (cut_of(m, r) == MG_QKV && m->s.family == MG_GPT2)
        return 3 * m->s.heads * h;
    return cut_of(m, r) == MG_QKV ? (hf == 0 ? m->s.heads : m->s.groups) * h : mg_segment_at(m, r, rows, 0).n;
}

static int check_rows(const struct mg *m, const struct mg_row *r, int64_t rows, struct err *e)
{
    const char *path = m->b->c->path;
    if (r->cut == MG_QKV && rows != (m->s.heads + 2 * m->s.groups) * m->s.head_dim)
        return err_set(e, ERR_CONFIG,
                       "%s: %s has %lld rows, %lld heads and 2 x %lld groups of %lld need %lld: is it the "
                       "config of another model",
                       path, r->key, (long long)rows, (long long)m->s.heads, (long long)m->s.groups,
                       (long long)m->s.head_dim, (long long)((m->s.heads + 2 * m->s.groups) * m->s.head_dim));
    if (mg_compressed_rows(m, r) && rows != mg_compressed_rows(m, r))
        return err_set(e, ERR_CONFIG,
                       "%s: %s has %lld rows, config.json says %lld: is it the config of another model", path,
                       r->key, (long long)rows, (long long)mg_compressed_rows(m, r));
    if (!r->hf[m->s.family][0])
        return err_set(e, ERR_CONFIG, "%s: %s is not a tensor of %s: is it the config of another model", path,
                       r->key,
                       m->s.family == MG_GPT2       ? "a GPT-2"
                       : m->s.family == MG_MIXTRAL  ? "a Mixtral"
                       : m->s.family == MG_DEEPSEEK ? "a DeepSeek"
                                                    : "a Llama-like model");
    if (m->s.family == MG_GPT2 && (m->s.groups != m->s.heads || m->s.has_gate == 1))
        return err_set(e, ERR_CONFIG,
                       "%s: config.json says gpt2, the saved run has query groups or a gate: is it the "
                       "config of another model",
                       path);
    if (cut_of(m, r) == MG_GATED && (m->s.has_gate == 0 || rows % 2))
        return err_set(
            e, ERR_CONFIG,
            "%s: %s without a gate: only Llama-like models and GPT-2 (learned positions) can be named yet",
            path, r->key);
    if (r->cut == MG_VOCAB && m->s.vocab > rows)
        return err_set(e, ERR_CONFIG,
                       "%s: %s has %lld rows, the vocabulary %lld: is it the config of another model", path,
                       r->key, (long long)rows, (long long)m->s.vocab);
    return 0;
}

/* Adds box dst of a tensor, whose elements are in the sequence from element `at` on. */
static int add_flat(struct mg *m, int tensor, const struct box *dst, const struct mg_flat *f, int64_t at,
                    struct err *e)
{
    int64_t n = box_count(dst), size = stored_bytes(f->dtype, 1);
    int rc = 0;
    for (int i = 0; i < f->n && rc >= 0; i++) {
        const struct mg_extent *x = &f->x[i];
        int64_t lo = x->begin > at ? x->begin - at : 0,
                hi = x->begin + x->n < at + n ? x->begin + x->n - at : n;
        if (lo < hi)
            rc = build_piece(m->b, tensor, x->file, x->offset + (at + lo - x->begin) * size, dst, lo, hi, e);
    }
    return rc;
}

/* The same for a transposed box: dst is [in][out], the sequence [out][in], its rows `pitch` elements apart.
 * Whole rows of the sequence are one piece with strides; a row that an extent cuts is a piece by itself. */
static int add_transposed(struct mg *m, int tensor, const struct box *dst, int64_t pitch,
                          const struct mg_flat *f, int64_t at, struct err *e)
{
    int64_t cols = dst->extent[0], n = (dst->extent[1] - 1) * pitch + cols, size = stored_bytes(f->dtype, 1);
    int rc = 0;

    for (int i = 0; i < f->n; i++) {
        const struct mg_extent *x = &f->x[i];
        int64_t lo = x->begin > at ? x->begin - at : 0,
                end = x->begin + x->n < at + n ? x->begin + x->n - at : n;
        while (lo < end && rc >= 0) {
            int64_t row = lo / pitch, first = lo % pitch, left = end - lo,
                    rows = first || left < cols ? 0 : (left - cols) / pitch + 1,
                    offset = x->offset + (at + lo - x->begin) * size;
            if (first >= cols) {
                lo = (row + 1) * pitch;
            } else if (!rows) {
                int64_t some = cols - first < left ? cols - first : left;
                struct box part = { .n_dims = 2,
                                    .start = { dst->start[0] + first, dst->start[1] + row },
                                    .extent = { some, 1 } };
                rc = build_piece(m->b, tensor, x->file, offset, &part, 0, some, e);
                lo += some;
            } else {
                struct chunk k = { .file = x->file,
                                   .offset = offset,
                                   .dtype = f->dtype,
                                   .box = { .n_dims = 2, .extent = { cols, rows } },
                                   .stride = { 1, pitch } };
                int64_t start[BOX_DIMS] = { dst->start[0], dst->start[1] + row };
                rc = build_map(m->b, tensor, &k, &k.box, start, e);
                lo += rows * pitch;
            }
        }
    }
    return rc < 0 ? rc : 0;
}

static void swap_dims(int64_t v[2])
{
    int64_t first = v[0];
    v[0] = v[1];
    v[1] = first;
}

int mg_block(struct mg *m, const struct mg_name *which, const struct box *box, const int64_t *shape,
             const struct mg_flat *f, int64_t at, struct err *e)
{
    const struct mg_row *r = which->row;
    char name[FMT_NAME_MAX];
    int rc = check_rows(m, r, shape[0], e),
        transposed = m->s.family == MG_GPT2 && r->in_layer && box->n_dims == 2;

    for (int64_t i = 0; rc >= 0 && i < mg_n_segments(m, r); i++) {
        struct mg_segment s = mg_segment_at(m, r, shape[0], i);
        int64_t lo = s.from > box->start[0] ? s.from : box->start[0],
                hi = s.from + s.n < box->start[0] + box->extent[0] ? s.from + s.n
                                                                   : box->start[0] + box->extent[0];
        int64_t whole[2] = { mg_rows_of(m, r, shape[0], s.hf), box->n_dims > 1 ? shape[1] : 0 },
                cols = box->n_dims > 1 ? box->extent[1] : 1, at_rows;
        struct box dst = *box;
        if (lo >= hi)
            continue;
        dst.start[0] = s.to + lo - s.from;
        dst.extent[0] = hi - lo;
        mg_hf_name(r, m->s.family, s.hf, which->layer, which->expert, name);
        if (transposed) {
            swap_dims(whole);
            swap_dims(dst.start);
            swap_dims(dst.extent);
        }
        int t = rc = build_tensor(m->b, which->role, name, (int)strlen(name), f->dtype, box->n_dims, whole,
                                  e);
        at_rows = at + (lo - box->start[0]) * cols;
        if (rc >= 0)
            rc = transposed ? add_transposed(m, t, &dst, cols, f, at_rows, e)
                            : add_flat(m, t, &dst, f, at_rows, e);
    }
    return rc < 0 ? rc : 0;
}

/* Adds the experts of a rank that are in one tensor: after one another, each [in][out]. */
static int add_group(struct mg *m, const struct mg_name *which, int64_t rank, const int64_t *local,
                     const struct mg_flat *f, int64_t at, struct err *e)
{
    const struct mg_row *r = which->row;
    int64_t n = which->group, k = mg_ranks(m, r), gated = r->cut == MG_GATED, in = local[0] / (gated ? 1 : n),
            out = local[1] / (gated ? n : 1), half = gated ? out / 2 : out;
    char name[FMT_NAME_MAX];
    int64_t shape[2] = { gated ? half * k : half, gated ? in : in * k };
    int rc = check_rows(m, r, gated ? 2 * shape[0] : shape[0], e);

    if (rc >= 0 &&
        (in < 1 || half < 1 || in * (gated ? 1 : n) != local[0] || half * (gated ? 2 * n : 1) != local[1]))
        return err_set(
            e, ERR_FORMAT,
            "%s: %s of layer %d is [%lld, %lld] for %lld experts: is it the config of another model",
            m->b->c->path, r->key, which->layer, (long long)local[0], (long long)local[1], (long long)n);
    for (int64_t i = 0; i < n * (gated ? 2 : 1) && rc >= 0; i++) {
        int64_t expert = gated ? i / 2 : i, part = gated ? i % 2 : 0;
        struct box dst = { .n_dims = 2,
                           .start = { gated ? rank * half : 0, gated ? 0 : rank * in },
                           .extent = { half, in } };
        mg_hf_name(r, m->s.family, (int)part, which->layer, which->expert + (int)expert, name);
        int t = rc = build_tensor(m->b, which->role, name, (int)strlen(name), f->dtype, 2, shape, e);
        if (rc >= 0)
            rc = add_transposed(m, t, &dst, out, f, at + expert * in * out + part * half, e);
    }
    return rc < 0 ? rc : 0;
}

int mg_local(struct mg *m, const struct mg_name *which, int64_t rank, int n_dims, const int64_t *local,
             const struct mg_flat *f, int64_t at, struct err *e)
{
    const struct mg_row *r = which->row;
    int64_t shape[2] = { 0 };
    struct box box = { .n_dims = n_dims };
    int cut = cut_dim(m, r, local);

    if (n_dims < 1 || n_dims > 2)
        return err_set(e, ERR_FORMAT, "%s: %s has %d dims: is the file damaged", m->b->c->path, r->key,
                       n_dims);
    if (which->group)
        return n_dims == 2
                   ? add_group(m, which, rank, local, f, at, e)
                   : err_set(e, ERR_FORMAT, "%s: %s has one dim: is the file damaged", m->b->c->path, r->key);
    if (m->s.tied == 1 && r->cut == MG_VOCAB && r->hf[m->s.family][0] &&
        !strcmp(r->hf[m->s.family][0], "lm_head.weight"))
        return 0; /* the last stage's copy of the embedding */
    if ((cut < 0 || cut >= n_dims) && rank > 0)
        return 0;
    for (int d = 0; d < n_dims; d++) {
        shape[d] = local[d] * (d == cut ? mg_ranks(m, r) : 1);
        box.start[d] = d == cut ? rank * local[d] : 0;
        box.extent[d] = local[d];
    }

    if (cut_of(m, r) != MG_GATED)
        return mg_block(m, which, &box, shape, f, at, e);
    int rc = 0;
    box.extent[0] = local[0] / 2;
    for (int part = 0; part < 2 && rc >= 0; part++) { /* gate and up are two blocks */
        box.start[0] = part * (shape[0] / 2) + rank * box.extent[0];
        rc = mg_block(m, which, &box, shape, f, at + part * box.extent[0] * (n_dims > 1 ? local[1] : 1), e);
    }
    return rc;
}
