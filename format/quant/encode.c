/* encode.c - see encode.h.
 *
 * A rectangle of a stored tensor -> the part of the weight in it -> values -> a code in each byte, row by row
 * of the file -> words. Where words begin inside of a code (3 bits), the rectangle is widened to words that
 * begin with one. */
#include "format/quant/encode.h"

#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((int64_t)32 << 10) /* of codes that are made at once */
#define COLUMNS 64                     /* columns of a file are taken in multiples of this */

/* ---- values ---- */

static struct box value_box(const struct quant_weight *w, const struct patch *p)
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

int encode_is_turned(const struct encoder *c)
{
    return (c->w.w->dim_k == c->w.w->n_dims - 1) == region_n_last(c->w.w);
}

/* [rows][cols] to [cols][rows]. */
static void turn(const float *in, int64_t rows, int64_t cols, float *out)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            out[c * rows + r] = in[r * cols + c];
}

int encode_values(const struct encoder *c, struct ckpt *below, const struct patch *p, float *out,
                  struct err *e)
{
    const struct quant_weight *w = c->w.w;
    enum stored_dtype dtype = ckpt_tensor(below, c->values)->dtype;
    struct box b = value_box(w, p);
    int64_t n = box_count(&b), rows = b.extent[w->n_dims - 2];
    int turned = encode_is_turned(c);
    char *data = malloc((size_t)(stored_bytes(dtype, n) + n * 4) + 8);
    float *x = turned ? (float *)(void *)(data + stored_bytes(dtype, n + n % 2)) : out;
    if (!data)
        return err_set(e, ERR_MEMORY, "no memory for values of %s", w->name);
    int rc = ckpt_read(below, c->values, &b, data, e);
    if (rc >= 0 && codec_to_f32(dtype, data, n, x) < 0)
        rc = err_set(e, ERR_FORMAT, "%s is %s: give F32, BF16 or F16", w->name, stored_dtype_name(dtype));
    if (rc >= 0 && turned)
        turn(x, rows, n / rows, out);
    free(data);
    return rc < 0 ? rc : 0;
}

/* ---- rows of codes ---- */

static int not_a_value(const struct quant_weight *w, int64_t n, int64_t k, float x, const struct codec *c,
                       const char *why, struct err *e)
{
    return err_set(e, ERR_INTEGRITY, "%s: row %lld, column %lld is %.9g, scale %.9g: %s", w->name,
                   (long long)n, (long long)k, (double)x, (double)c->scale, why);
}

static int code_run(const struct encoder *c, const struct region *r, int64_t n, int64_t k, int64_t m,
                    const float *x, uint8_t *code, struct err *e)
{
    const struct codec at = region_codec_at(r, n, k);
    const char *why = "";
    if (!c->exact) {
        codec_codes(&at, x, m, code);
        return 0;
    }
    int64_t good = codec_exact(&at, x, m, code, &why);
    return good == m ? 0
                     : not_a_value(c->w.w, n, k + (region_n_last(c->w.w) ? 0 : good), x[good], &at, why, e);
}

/* Codes of the values x of a part, in their order. */
static int code_all(const struct encoder *c, const struct region *r, const float *x, uint8_t *code,
                    struct err *e)
{
    const struct patch *p = &r->p;
    int n_last = region_n_last(c->w.w), rc = 0;
    int64_t width = n_last ? p->n1 - p->n0 : p->k1 - p->k0, m;
    for (int64_t n = p->n0; n < p->n1; n++)
        for (int64_t k = p->k0; k < p->k1; k += m) {
            int64_t at = n_last ? (k - p->k0) * width + n - p->n0 : (n - p->n0) * width + k - p->k0;
            m = n_last ? 1 : region_same_k(r, k, p->k1);
            if ((rc = code_run(c, r, n, k, m, x + at, code + at, e)) < 0)
                return rc;
        }
    return 0;
}

/* ---- words ---- */

/* A rectangle of the stored tensor in memory: rows and columns of its last two dims (of four: the last two
 * are one). */
struct words {
    struct rect at;
    uint32_t *data; /* bytes of codes, rows without gaps */
    int64_t row_bytes;
};

/* The codes of one row of the file into its words. first: n or k of the first one. */
static void pack_row(const struct encoder *c, const uint8_t *code, int64_t n, char *row)
{
    const struct quant_scheme *s = &c->w.w->scheme;
    if (s->form == QUANT_AWQ) {
        uint32_t *word = (uint32_t *)(void *)row;
        for (int64_t i = 0; i < n; i++)
            word[i / 8] |= (uint32_t)code[i] << codec_awq_bit(i);
        return;
    }
    codec_pack(code, n, s->bits, 0, row);
    if (s->form == QUANT_INT8)
        for (int64_t i = 0; i < n; i++)
            row[i] = (char)(row[i] ^ 0x80);
}

/* GPTQ: the codes of column k of the weight go into one or two rows of words. */
static void pack_column(const struct encoder *c, const uint8_t *code, int64_t n, int64_t bit, struct words *w)
{
    int bits = c->w.w->scheme.bits, shift = (int)(bit % 32);
    uint32_t *row = w->data + bit / 32 * (w->row_bytes / 4);
    for (int64_t i = 0; i < n; i++)
        row[i] |= (uint32_t)code[i] << shift;
    if (shift + bits > 32)
        for (int64_t i = 0; i < n; i++)
            row[i + w->row_bytes / 4] |= (uint32_t)code[i] >> (32 - shift);
}

static void pack_all(const struct encoder *c, const struct patch *p, const uint8_t *code, struct words *w)
{
    int n_last = region_n_last(c->w.w), gptq = c->w.w->scheme.form == QUANT_GPTQ;
    int64_t rows = n_last ? p->k1 - p->k0 : p->n1 - p->n0, width = n_last ? p->n1 - p->n0 : p->k1 - p->k0;
    for (int64_t r = 0; r < rows; r++) {
        if (gptq)
            pack_column(c, code + r * width, width, r * c->w.w->scheme.bits, w);
        else
            pack_row(c, code + r * width, width, (char *)w->data + r * w->row_bytes);
    }
}

/* ---- one rectangle ---- */

/* The range [*lo, *hi) of a dim that `axis` lays out, widened to where values begin, and its values. */
static void widen(const struct quant_axis *a, int64_t size, int64_t n_values, int64_t *lo, int64_t *hi,
                  int64_t *v0, int64_t *v1)
{
    *lo = *lo / a->indices * a->indices;
    *hi = (*hi + a->indices - 1) / a->indices * a->indices;
    *hi = *hi < size ? *hi : size;
    *v0 = *lo * a->values / a->indices;
    *v1 = *hi * a->values / a->indices;
    *v1 = *v1 < n_values && *hi < size ? *v1 : n_values;
}

/* The axes of rows and columns of the file. merged: indices of the last dim, where it is one with the dim
 * before it (blocks of 16 bytes). */
static void axes(const struct quant_weight *w, int merged, struct quant_axis *row, struct quant_axis *col)
{
    const struct quant_stored *s = quant_part(w, QUANT_CODES);
    *row = s->axis[region_n_last(w) ? w->dim_k : w->dim_n];
    *col = s->axis[region_n_last(w) ? w->dim_n : w->dim_k];
    if (merged > 1) {
        col->indices = 1;
        col->values = col->values / merged;
    }
}

/* Where codes go: the tensor seen as rows and columns. */
struct place {
    int64_t size[2]; /* of the last two dims */
    int merged;      /* indices of the last stored dim in one column; 1: dims are not merged */
    char *out;
    int64_t pitch; /* bytes from row to row of out */
};

static int encode_rect(const struct encoder *c, struct ckpt *below, const struct rect *t,
                       const struct place *to, struct err *e)
{
    const struct quant_weight *w = c->w.w;
    struct words words = { .at = *t };
    struct quant_axis row, col;
    struct region r = { 0 };
    struct patch p = { .e = t->e };
    int64_t element = stored_bytes(c->w.codes, 1), bytes = (t->c1 - t->c0) * element;
    int n_last = region_n_last(w), rc;
    axes(w, to->merged, &row, &col);
    widen(&row, to->size[0], w->shape[n_last ? w->dim_k : w->dim_n], &words.at.r0, &words.at.r1,
          n_last ? &p.k0 : &p.n0, n_last ? &p.k1 : &p.n1);
    widen(&col, to->size[1], w->shape[n_last ? w->dim_n : w->dim_k], &words.at.c0, &words.at.c1,
          n_last ? &p.n0 : &p.k0, n_last ? &p.n1 : &p.k1);

    size_t n = (size_t)((p.n1 - p.n0) * (p.k1 - p.k0));
    words.row_bytes = (words.at.c1 - words.at.c0) * element;
    words.data = calloc((size_t)((words.at.r1 - words.at.r0) * words.row_bytes) + 8, 1);
    float *x = malloc(n * sizeof *x + 4);
    uint8_t *code = malloc(n + 1);
    if (!words.data || !x || !code)
        rc = err_set(e, ERR_MEMORY, "no memory for codes of %s", w->name);
    else
        rc = encode_values(c, below, &p, x, e);
    if (rc >= 0)
        rc = c->scales ? c->scales(c, below, &p, &r, e) : region_load(&r, below, &c->w, &p, 0, e);
    if (rc >= 0)
        rc = code_all(c, &r, x, code, e);
    if (rc >= 0) {
        pack_all(c, &p, code, &words);
        for (int64_t i = t->r0; i < t->r1; i++)
            memcpy(to->out + (i - t->r0) * to->pitch,
                   (char *)words.data + (i - words.at.r0) * words.row_bytes + (t->c0 - words.at.c0) * element,
                   (size_t)bytes);
    }
    region_free(&r);
    free(words.data);
    free(x);
    free(code);
    return rc < 0 ? rc : 0;
}

/* ---- an element range ---- */

/* A rectangle in parts. Where rows of the file are columns of the values, a part has all of its rows and a
 * few of its columns: the runs of values are long then. */
static int encode_parts(const struct encoder *c, struct ckpt *below, const struct rect *t,
                        const struct place *to, struct err *e)
{
    int64_t element = stored_bytes(c->w.codes, 1), most = MOST_BYTES / element / (t->r1 - t->r0);
    int64_t step = most < COLUMNS ? COLUMNS : most / COLUMNS * COLUMNS;
    struct rect part = *t;
    struct place here = *to;
    int rc = 0;
    for (int64_t col = t->c0; col < t->c1 && rc >= 0; col = part.c1) {
        part.c0 = col;
        part.c1 = (col / step + 1) * step;
        part.c1 = part.c1 < t->c1 ? part.c1 : t->c1;
        here.out = to->out + (col - t->c0) * element;
        rc = encode_rect(c, below, &part, &here, e);
    }
    return rc;
}

static int encode_range(const struct encoder *c, struct ckpt *below, const struct box *b, int64_t lo,
                        int64_t hi, struct place to, struct err *e)
{
    int64_t element = stored_bytes(c->w.codes, 1);
    int64_t most = encode_is_turned(c) ? hi - lo : MOST_BYTES / element;
    struct rect_walk w = rect_walk(b, lo, hi);
    struct rect t;
    char *out = to.out;
    int rc = 0;
    while (rc >= 0 && rect_next(&w, most, &t)) {
        to.out = out + t.first * element;
        to.pitch = (t.c1 - t.c0) * element;
        rc = encode_is_turned(c) ? encode_parts(c, below, &t, &to, e) : encode_rect(c, below, &t, &to, e);
    }
    return rc;
}

int encode_codes(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi, void *dst,
                 struct err *e)
{
    const struct encoder *c = arg;
    const int64_t *shape = c->shape + b->n_dims - 2;
    struct place to = { { shape[0], shape[1] }, 1, dst, 0 };
    if (b->n_dims < 4)
        return encode_range(c, below, b, lo, hi, to, e);

    /* Blocks of 16 bytes: [E, N, K/32, 16] is [E, N, K/2] where whole blocks are asked for. */
    struct box flat = { 3,
                        { b->start[0], b->start[1], b->start[2] * shape[1] },
                        { b->extent[0], b->extent[1], b->extent[2] * shape[1] } };
    to = (struct place){ { c->shape[1], shape[0] * shape[1] }, (int)shape[1], dst, 0 };
    if (b->extent[3] == shape[1])
        return encode_range(c, below, &flat, lo, hi, to, e);

    int rc = 0;
    for (int64_t i = lo; i < hi && rc >= 0; i++) {
        int64_t at = i / b->extent[3] * shape[1] + b->start[3] + i % b->extent[3];
        to.out = (char *)dst + i - lo;
        rc = encode_range(c, below, &flat, at, at + 1, to, e);
    }
    return rc;
}
