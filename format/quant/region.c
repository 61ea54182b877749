/* region.c - see region.h. */
#include "format/quant/region.h"

#include <stdlib.h>
#include <string.h>

#define MOST_COLUMNS 4096 /* codes that are unpacked at once */
#define AHEAD 8           /* rows of codes that are fetched before they are needed */

int region_n_last(const struct quant_weight *w)
{
    return w->scheme.form == QUANT_GPTQ || w->scheme.form == QUANT_AWQ;
}

/* ---- reading ---- */

static struct box patch_box(const struct quant_weight *w, const struct patch *p)
{
    struct box b = { .n_dims = w->n_dims };
    b.start[0] = p->e;
    b.extent[0] = 1;
    b.start[w->dim_n] = p->n0;
    b.extent[w->dim_n] = p->n1 - p->n0;
    b.start[w->dim_k] = p->k0;
    b.extent[w->dim_k] = p->k1 - p->k0;
    return b;
}

/* What the patch needs of the stored tensor of that role: *data is malloc'd, *b its box. 0: there is none. */
static int load_part(struct region *r, struct ckpt *c, enum quant_role role, char **data, struct box *b,
                     struct err *e)
{
    const struct quant_weight *w = r->w->w;
    const struct quant_stored *s = quant_part(w, role);
    int i = s ? r->w->tensor[s - w->stored] : -1;
    if (i < 0)
        return 0;

    const struct ckpt_tensor *t = ckpt_tensor(c, i);
    struct box of = patch_box(w, &r->p);
    *b = quant_box(w, s, t->n_dims, t->shape, &of);
    *data = malloc((size_t)stored_bytes(t->dtype, box_count(b)) + 8);
    if (!*data)
        return err_set(e, ERR_MEMORY, "no memory for a part of %s", t->name);
    int rc = ckpt_read(c, i, b, *data, e);
    return rc < 0 ? rc : 1;
}

static enum stored_dtype dtype_of(const struct region *r, const struct ckpt *c, enum quant_role role)
{
    const struct quant_stored *s = quant_part(r->w->w, role);
    return ckpt_tensor(c, r->w->tensor[s - r->w->w->stored])->dtype;
}

/* Elements from one index of a dim of a box to the next. */
static int64_t step_of(const struct box *b, int dim)
{
    int64_t n = 1;
    for (int d = dim + 1; d < b->n_dims; d++)
        n *= b->extent[d];
    return dim < 0 ? 0 : n;
}

static struct region_axis axis_of(const struct quant_axis *a, const struct box *b)
{
    if (a->dim < 0)
        return (struct region_axis){ 1, 0, 0, 0 };
    return (struct region_axis){ a->values, a->indices, b->start[a->dim], step_of(b, a->dim) };
}

/* The index at v, from the first one in memory. */
static int64_t index_of(const struct region_axis *a, int64_t v)
{
    return v * a->indices / a->values - a->first;
}

static int load_scale(struct region *r, struct ckpt *c, struct err *e)
{
    const struct quant_weight *w = r->w->w;
    char *data = NULL, *global = NULL;
    struct box b, gb;
    float g = 1;
    int64_t n;
    int rc = load_part(r, c, QUANT_SCALE, &data, &b, e);
    if (rc == 0)
        rc = err_set(e, ERR_FORMAT, "%s has no scale", w->name);
    if (rc < 0)
        goto out;

    n = box_count(&b);
    r->scale = malloc(sizeof *r->scale * (size_t)n + 4);
    if (!r->scale)
        rc = err_set(e, ERR_MEMORY, "no memory for the scales of %s", w->name);
    else if (codec_to_f32(dtype_of(r, c, QUANT_SCALE), data, n, r->scale) < 0)
        rc = err_set(e, ERR_FORMAT, "%s: its scale is %s, which is no scale", w->name,
                     stored_dtype_name(dtype_of(r, c, QUANT_SCALE)));
    if (rc < 0)
        goto out;
    const struct quant_stored *s = quant_part(w, QUANT_SCALE);
    r->scale_n = axis_of(&s->axis[w->dim_n], &b);
    r->scale_k = axis_of(&s->axis[w->dim_k], &b);

    TRY(load_part(r, c, QUANT_GLOBAL_SCALE, &global, &gb, e));
    if (rc > 0 && w->scheme.global != QUANT_GLOBAL_NONE) {
        codec_to_f32(dtype_of(r, c, QUANT_GLOBAL_SCALE), global, 1, &g);
        for (int64_t i = 0; i < n; i++)
            r->scale[i] = w->scheme.global == QUANT_GLOBAL_TIMES ? r->scale[i] * g : r->scale[i] / g;
    }
out:
    free(data);
    free(global);
    return rc < 0 ? rc : 0;
}

/* Groups of columns k0 .. k1 - 1, or all where columns choose theirs. */
static void groups_of(const struct region *r, int64_t *first, int64_t *n)
{
    const struct quant_weight *w = r->w->w;
    const struct quant_axis *a = &quant_part(w, QUANT_SCALE)->axis[w->dim_k];
    const struct patch *p = &r->p;
    *first = r->scale_k.step ? r->scale_k.first : 0;
    if (w->scheme.act_order && w->scheme.block_k)
        *n = (w->shape[w->dim_k] + w->scheme.block_k - 1) / w->scheme.block_k;
    else
        *n = a->dim < 0 ? 1 : (p->k1 - 1) * a->indices / a->values + 1 - *first;
}

/* Elements from one group to the next; with an order of columns all groups are there, and no axis says
 * where. */
static int64_t group_step(const struct quant_weight *w, const struct quant_axis *a, const struct box *b)
{
    if (a->dim >= 0)
        return step_of(b, a->dim);
    if (!w->scheme.act_order)
        return 0;
    return region_n_last(w) ? b->extent[b->n_dims - 1] : 1;
}

/* The stored bits of the zero point of row n and group g of a box that the zero points are read in. */
static int zero_bits(const struct region *r, const struct box *b, const char *data, int64_t n, int64_t g)
{
    const struct quant_weight *w = r->w->w;
    const struct quant_stored *s = quant_part(w, QUANT_ZERO);
    const struct quant_axis *an = &s->axis[w->dim_n], *ak = &s->axis[w->dim_k];
    int bits = w->scheme.bits;
    int64_t row = an->dim < 0 ? 0 : n * an->indices / an->values - b->start[an->dim], word, next = 0;
    int64_t at = row * step_of(b, an->dim) + g * group_step(w, ak, b);
    const uint32_t *words = (const uint32_t *)(const void *)data;
    if (w->scheme.form == QUANT_INT8)
        return (uint8_t)data[at] ^ 0x80;

    word = words[at];
    int shift = w->scheme.form == QUANT_AWQ ? codec_awq_bit(n) : (int)(n * bits % 32);
    if (shift + bits > 32)
        next = words[at + step_of(b, an->dim)];
    return (int)((uint64_t)(word | next << 32) >> shift & ((1u << bits) - 1));
}

/* GPTQ's v1 as the zero points themselves. GPTQModel makes v1 by taking 1 from every code of a word at once,
 * so that a zero point of 0 borrows from its neighbour: the carry gives that back. Returns what is still to
 * be added to each code: those of 3 bits cross words, and GPTQModel counts them one by one. */
static int add_one(const struct quant_weight *w, const struct box *b, char *data)
{
    uint32_t *words = (uint32_t *)(void *)data, ones = 0;
    int64_t n = 1;
    if (!w->scheme.zero_less_one || 32 % w->scheme.bits)
        return w->scheme.zero_less_one;
    for (int bit = 0; bit < 32; bit += w->scheme.bits)
        ones |= 1u << bit;
    for (int d = 0; d < b->n_dims; d++)
        n *= b->extent[d];
    for (int64_t i = 0; i < n; i++)
        words[i] += ones;
    return 0;
}

static int load_zero(struct region *r, struct ckpt *c, struct err *e)
{
    const struct quant_weight *w = r->w->w;
    const struct patch *p = &r->p;
    char *data = NULL;
    struct box b;
    int64_t first, n_groups, rows = p->n1 - p->n0;
    int rc = load_part(r, c, QUANT_ZERO, &data, &b, e);
    r->mid = 1 << (w->scheme.bits - 1);
    if (rc <= 0)
        goto out;

    groups_of(r, &first, &n_groups);
    if (!(r->zero = malloc(sizeof *r->zero * (size_t)(rows * n_groups) + 2))) {
        rc = err_set(e, ERR_MEMORY, "no memory for the zero points of %s", w->name);
        goto out;
    }
    r->zero_step_n = region_n_last(w) ? 1 : n_groups;
    r->zero_step_k = region_n_last(w) ? rows : 1;
    const int more = add_one(w, &b, data);
    for (int64_t n = p->n0; n < p->n1; n++)
        for (int64_t g = 0; g < n_groups; g++) {
            int z = (zero_bits(r, &b, data, n, g) + more) & ((1 << w->scheme.bits) - 1);
            r->zero[(n - p->n0) * r->zero_step_n + g * r->zero_step_k] = (int16_t)z;
        }
out:
    free(data);
    return rc < 0 ? rc : 0;
}

static int load_g_idx(struct region *r, struct ckpt *c, struct err *e)
{
    const struct quant_weight *w = r->w->w;
    char *data = NULL;
    struct box b;
    int64_t first, n_groups;
    int rc = w->scheme.act_order ? load_part(r, c, QUANT_G_IDX, &data, &b, e) : 0;
    if (rc <= 0)
        return rc;
    r->g_idx = (int32_t *)(void *)data;
    groups_of(r, &first, &n_groups);
    for (int64_t k = 0; k < r->p.k1 - r->p.k0; k++)
        if (r->g_idx[k] < 0 || r->g_idx[k] >= n_groups)
            return err_set(e, ERR_FORMAT, "%s: g_idx[%lld] is %d, there are %lld groups", w->name,
                           (long long)(r->p.k0 + k), r->g_idx[k], (long long)n_groups);
    return 0;
}

int region_load(struct region *r, struct ckpt *c, const struct region_weight *w, const struct patch *p,
                int with_codes, struct err *e)
{
    int rc = 0;
    *r = (struct region){ .w = w, .p = *p };
    TRY(load_scale(r, c, e));
    TRY(load_zero(r, c, e));
    TRY(load_g_idx(r, c, e));
    if (with_codes)
        TRY(load_part(r, c, QUANT_CODES, &r->codes, &r->codes_box, e));
out:
    return rc < 0 ? rc : 0;
}

void region_free(struct region *r)
{
    free(r->codes);
    free(r->scale);
    free(r->zero);
    free(r->g_idx);
    memset(r, 0, sizeof *r);
}

/* ---- scales ---- */

struct codec region_codec(const struct region_weight *w)
{
    const struct quant_scheme *s = &w->w->scheme;
    struct codec c = { .kind = CODEC_INT, .to = w->to, .n_codes = 1 << s->bits };
    if (s->form == QUANT_FP4)
        c.kind = CODEC_E2M1;
    if (s->form == QUANT_FP8)
        c.kind = w->codes == STORED_F8_E5M2 ? CODEC_E5M2 : CODEC_E4M3;
    return c;
}

static int64_t group_at(const struct region *r, int64_t k)
{
    return r->g_idx ? r->g_idx[k - r->p.k0] : index_of(&r->scale_k, k);
}

static int64_t scale_at(const struct region *r, int64_t n, int64_t k)
{
    int64_t step = r->scale_k.step;
    if (r->g_idx) /* scales of all groups are in memory */
        step = region_n_last(r->w->w) ? r->p.n1 - r->p.n0 : 1;
    return index_of(&r->scale_n, n) * r->scale_n.step + group_at(r, k) * step;
}

static int64_t zero_at(const struct region *r, int64_t n, int64_t k)
{
    return (n - r->p.n0) * r->zero_step_n + group_at(r, k) * r->zero_step_k;
}

struct codec region_codec_at(const struct region *r, int64_t n, int64_t k)
{
    struct codec c = region_codec(r->w);
    c.scale = r->scale[scale_at(r, n, k)];
    c.zero = r->zero ? r->zero[zero_at(r, n, k)] : r->mid;
    return c;
}

int64_t region_same_k(const struct region *r, int64_t k, int64_t k1)
{
    int64_t end = k + 1;
    const struct region_axis *a = &r->scale_k;
    if (r->g_idx) {
        while (end < k1 && r->g_idx[end - r->p.k0] == r->g_idx[k - r->p.k0])
            end++;
        return end - k;
    }
    if (!a->indices)
        return k1 - k;
    end = (k * a->indices / a->values + 1) * a->values / a->indices;
    return (end < k1 ? end : k1) - k;
}

/* Rows from n on, at most to n1, that have the scale of (n, k). */
static int64_t same_n(const struct region *r, int64_t n, int64_t n1)
{
    const struct region_axis *a = &r->scale_n;
    if (r->zero)
        return 1;
    if (!a->indices)
        return n1 - n;
    int64_t end = (n * a->indices / a->values + 1) * a->values / a->indices;
    return (end < n1 ? end : n1) - n;
}

/* ---- values ---- */

/* Unpacks the codes of row n, columns k .. k + m - 1. */
static void unpack_k(const struct region *r, int64_t n, int64_t k, int64_t m, uint8_t *out)
{
    const struct quant_weight *w = r->w->w;
    const struct quant_stored *s = quant_part(w, QUANT_CODES);
    const struct quant_axis *an = &s->axis[w->dim_n], *ak = &s->axis[w->dim_k];
    const struct box *b = &r->codes_box;
    int bits = w->scheme.bits, stored = stored_dtype_bits(r->w->codes);
    int64_t row = (n - b->start[an->dim]) * step_of(b, an->dim);
    int64_t from = b->start[ak->dim] * step_of(b, ak->dim);

    const int64_t first = (row - from) * stored + k * bits;
    /* Rows of a tile are far apart: processors do not expect the next one. */
    __builtin_prefetch(r->codes + (first + AHEAD * step_of(b, an->dim) * stored) / 8);
    codec_unpack(r->codes, first, bits, m, out);
    if (w->scheme.form == QUANT_INT8)
        for (int64_t i = 0; i < m; i++)
            out[i] ^= 0x80;
}

/* m codes from code `first` of a word on. */
static void unpack_awq(const uint32_t *word, int64_t first, int64_t m, uint8_t *out)
{
    static const unsigned char bit[8] = { 0, 16, 4, 20, 8, 24, 12, 28 }; /* codec_awq_bit */
    int64_t i = 0;
    for (; i < m && first; word += first == 0)
        out[i++] = (uint8_t)(*word >> bit[first] & 15), first = (first + 1) % 8;
    for (; i + 8 <= m; i += 8, word++) { /* two codes are 16 bits apart: byte 0 and byte 2 of a word */
        uint64_t eight = 0;
        for (int j = 0; j < 4; j++) {
            uint32_t two = *word >> 4 * j & 0x000f000f;
            eight |= (uint64_t)((two | two >> 8) & 0xffff) << 16 * j;
        }
        memcpy(out + i, &eight, sizeof eight);
    }
    for (int j = 0; i < m; j++)
        out[i++] = (uint8_t)(*word >> bit[j] & 15);
}

/* Unpacks the codes of column k, rows n .. n + m - 1 of a form with N last. */
static void unpack_n(const struct region *r, int64_t k, int64_t n, int64_t m, uint8_t *out)
{
    const struct quant_weight *w = r->w->w;
    const struct box *b = &r->codes_box;
    const uint32_t *words = (const uint32_t *)(void *)r->codes;
    int64_t width = b->extent[b->n_dims - 1], first = b->start[b->n_dims - 1];
    int bits = w->scheme.bits;

    if (w->scheme.form == QUANT_AWQ) {
        const uint32_t *word = words + (k - b->start[b->n_dims - 2]) * width + n / 8 - first;
        __builtin_prefetch(word + AHEAD * width);
        unpack_awq(word, n % 8, m, out);
        return;
    }
    int64_t word = k * bits / 32 - b->start[b->n_dims - 2];
    int shift = (int)(k * bits % 32);
    const uint32_t mask = (1u << bits) - 1, *row = words + word * width + n - first;
    for (int64_t i = 0; i < m; i++)
        out[i] = (uint8_t)(row[i] >> shift & mask);
    if (shift + bits > 32)
        for (int64_t i = 0; i < m; i++)
            out[i] |= (uint8_t)(row[i + width] << (32 - shift) & mask);
}

/* Blocks of many rows: a table of values serves all rows of a block. */
static void values_by_block(const struct region *r, const struct patch *p, char *out)
{
    struct codec_table table;
    uint8_t code[MOST_COLUMNS];
    int64_t size = stored_bytes(r->w->to, 1), pitch = p->k1 - p->k0, rows, m;
    for (int64_t n = p->n0; n < p->n1; n += rows) {
        rows = same_n(r, n, p->n1);
        for (int64_t k = p->k0; k < p->k1; k += m) {
            struct codec c = region_codec_at(r, n, k);
            m = region_same_k(r, k, p->k1);
            m = m < MOST_COLUMNS ? m : MOST_COLUMNS;
            table.ready = 0;
            for (int64_t i = 0; i < rows; i++) {
                char *to = out + ((n + i - p->n0) * pitch + k - p->k0) * size;
                unpack_k(r, n + i, k, m, code);
                if (rows * m >= 2 * c.n_codes)
                    codec_values_by_table(&c, &table, code, m, to);
                else
                    codec_values(&c, code, m, to);
            }
        }
    }
}

/* Groups of one row: codes are unpacked for many groups at once. */
static void values_by_group(const struct region *r, const struct patch *p, char *out)
{
    uint8_t code[MOST_COLUMNS];
    int64_t size = stored_bytes(r->w->to, 1), m, next;
    int64_t values = r->scale_k.indices ? r->scale_k.values : p->k1;
    for (int64_t n = p->n0; n < p->n1; n++)
        for (int64_t k = p->k0; k < p->k1; k += m) {
            struct codec c = region_codec_at(r, n, k);
            const float *scale = r->scale + scale_at(r, n, k);
            const int16_t *zero = r->zero ? r->zero + zero_at(r, n, k) : NULL;
            m = p->k1 - k < MOST_COLUMNS ? p->k1 - k : MOST_COLUMNS;
            unpack_k(r, n, k, m, code);
            for (int64_t at = k, end = (k / values + 1) * values; at < k + m; at = next, end += values) {
                next = end < k + m ? end : k + m;
                c.scale = *scale;
                c.zero = zero ? *zero : r->mid;
                codec_values(&c, code + at - k, next - at, out);
                out += (next - at) * size;
                scale += r->scale_k.step;
                zero = zero ? zero + r->zero_step_k : NULL;
            }
        }
}

/* Columns that choose their groups: scale and zero point of each. */
static void values_by_index(const struct region *r, const struct patch *p, char *out)
{
    uint8_t code[MOST_COLUMNS];
    float scale[MOST_COLUMNS];
    int16_t zero[MOST_COLUMNS];
    int64_t size = stored_bytes(r->w->to, 1), pitch = p->k1 - p->k0, m;
    for (int64_t n = p->n0; n < p->n1; n++)
        for (int64_t k = p->k0; k < p->k1; k += m) {
            m = p->k1 - k < MOST_COLUMNS ? p->k1 - k : MOST_COLUMNS;
            for (int64_t i = 0; i < m; i++) {
                scale[i] = r->scale[scale_at(r, n, k + i)];
                zero[i] = (int16_t)(r->zero ? r->zero[zero_at(r, n, k + i)] : r->mid);
            }
            unpack_k(r, n, k, m, code);
            codec_values_each(r->w->to, code, scale, zero, m, out + ((n - p->n0) * pitch + k - p->k0) * size);
        }
}

/* Forms with N last: each column of N has a scale and zero point of its own. */
static void values_by_column(const struct region *r, const struct patch *p, char *out)
{
    uint8_t code[MOST_COLUMNS];
    int16_t mid[MOST_COLUMNS];
    int64_t size = stored_bytes(r->w->to, 1), pitch = p->n1 - p->n0, m;
    for (int64_t i = 0; !r->zero && i < MOST_COLUMNS && i < pitch; i++)
        mid[i] = (int16_t)r->mid;
    for (int64_t k = p->k0; k < p->k1; k++)
        for (int64_t n = p->n0; n < p->n1; n += m) {
            m = p->n1 - n < MOST_COLUMNS ? p->n1 - n : MOST_COLUMNS;
            unpack_n(r, k, n, m, code);
            codec_values_each(r->w->to, code, r->scale + scale_at(r, n, k),
                              r->zero ? r->zero + zero_at(r, n, k) : mid, m,
                              out + ((k - p->k0) * pitch + n - p->n0) * size);
        }
}

int region_values(const struct region *r, const struct patch *p, void *out, struct err *e)
{
    const struct patch *h = &r->p;
    if (p->e != h->e || p->n0 < h->n0 || p->n1 > h->n1 || p->k0 < h->k0 || p->k1 > h->k1)
        return err_set(e, ERR_INTERNAL, "%s: a part outside of what is in memory: please report it",
                       r->w->w->name);
    if (region_n_last(r->w->w))
        values_by_column(r, p, out);
    else if (r->g_idx)
        values_by_index(r, p, out);
    else if (r->zero || (r->scale_n.values == 1 && r->scale_k.indices))
        values_by_group(r, p, out);
    else
        values_by_block(r, p, out);
    return 0;
}

void region_codes(const struct region *r, uint8_t *out)
{
    const struct patch *p = &r->p;
    const int64_t n_k = p->k1 - p->k0, n_n = p->n1 - p->n0;
    uint8_t column[MOST_COLUMNS];
    for (int64_t n = p->n0; n < p->n1 && !region_n_last(r->w->w); n++)
        unpack_k(r, n, p->k0, n_k, out + (n - p->n0) * n_k);
    for (int64_t k = p->k0; k < p->k1 && region_n_last(r->w->w); k++)
        for (int64_t n = 0, m; n < n_n; n += m) {
            m = n_n - n < MOST_COLUMNS ? n_n - n : MOST_COLUMNS;
            unpack_n(r, k, p->n0 + n, m, column);
            for (int64_t i = 0; i < m; i++)
                out[(n + i) * n_k + k - p->k0] = column[i];
        }
}

/* ---- rectangles ---- */

struct rect_walk rect_walk(const struct box *b, int64_t lo, int64_t hi)
{
    struct rect_walk w = { *b, lo, lo, hi };
    while (w.box.n_dims < 3) {
        for (int d = w.box.n_dims++; d > 0; d--) {
            w.box.start[d] = w.box.start[d - 1];
            w.box.extent[d] = w.box.extent[d - 1];
        }
        w.box.start[0] = 0;
        w.box.extent[0] = 1;
    }
    return w;
}

int rect_next(struct rect_walk *w, int64_t most, struct rect *out)
{
    const struct box *b = &w->box;
    int64_t cols = b->extent[2], rows = b->extent[1], left = w->hi - w->at;
    if (left <= 0)
        return 0;
    int64_t c = w->at % cols, r = w->at / cols % rows, e = w->at / cols / rows, n_rows = 1, n_cols = cols;

    if (c || left < cols) {
        n_cols = cols - c < left ? cols - c : left;
    } else {
        n_rows = left / cols;
        n_rows = n_rows < rows - r ? n_rows : rows - r;
        if (n_rows * cols > most)
            n_rows = most / cols ? most / cols : 1;
    }
    *out = (struct rect){ b->start[0] + e, b->start[1] + r,          b->start[1] + r + n_rows,
                          b->start[2] + c, b->start[2] + c + n_cols, w->at - w->lo };
    w->at += n_rows * n_cols;
    return 1;
}
