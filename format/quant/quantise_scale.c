/* quantise_scale.c - the scale of a block: its largest magnitude over the largest code, rounded to the dtype
 * of the scale before any code is made with it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "format/quant/quantise.h"

#define MOST_VALUES ((int64_t)128 << 10)

static const struct quantise_kind kinds[] = {
    [QUANT_KIND_INT8_G128] = { 1, 128, 127, 0 },
    [QUANT_KIND_FP8_B128] = { 128, 128, 448, 0 },
    [QUANT_KIND_MXFP4] = { 1, 32, 6, 1 },
};

const struct quantise_kind *quantise_kind_of(enum quant_kind kind) { return &kinds[kind]; }

/* The scale of a block whose largest magnitude is `most`, in fp32. A block of zeros has scale 1, or the
 * smallest power of two. */
static float scale_of(const struct scale_cache *s, float most)
{
    float x = most > 0 ? most / s->kind->largest : 1;
    int exponent;
    if (s->kind->is_e8m0) {
        frexpf(most, &exponent); /* most = f * 2^exponent, f from 0.5 to 1 */
        exponent = most > 0 ? exponent - 1 - 2 + 127 : 0;
        return codec_e8m0((uint8_t)(exponent < 0 ? 0 : exponent));
    }
    if (s->dtype == STORED_BF16)
        return codec_of_bf16(codec_bf16(x));
    return s->dtype == STORED_F16 ? codec_f16(codec_to_f16(x)) : x;
}

/* Raises most[row / block_n][column / block_k] to the largest magnitude of n rows of k values, the first of
 * which is row `first`. -1: a value is not finite. */
static int raise_to(const struct quantise_kind *kind, const float *x, int64_t first, int64_t n, int64_t k,
                    int64_t groups, float *most)
{
    uint32_t worst = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t g = 0; g < groups; g++) {
            int64_t from = g * kind->block_k, end = from + kind->block_k < k ? from + kind->block_k : k;
            float *to = &most[(first + i) / kind->block_n * groups + g];
            uint32_t m, u;
            memcpy(&m, to, sizeof m);
            for (int64_t j = from; j < end; j++) { /* magnitudes compare as integers do, NaN last */
                memcpy(&u, &x[i * k + j], sizeof u);
                u &= 0x7fffffffu;
                m = u > m ? u : m;
            }
            worst = m > worst ? m : worst;
            memcpy(to, &m, sizeof m);
        }
    return worst < 0x7f800000u ? 0 : -1;
}

/* The scales of a part that begins and ends where blocks do: rows of groups, without gaps. */
static int compute(const struct encoder *c, struct ckpt *below, const struct patch *p, float *out,
                   struct err *e)
{
    const struct scale_cache *s = c->arg;
    int64_t width = p->k1 - p->k0, rows = p->n1 - p->n0, step = MOST_VALUES / width;
    int64_t groups = (width + s->kind->block_k - 1) / s->kind->block_k;
    int64_t n_scales = (rows + s->kind->block_n - 1) / s->kind->block_n * groups;
    int rc = 0;
    step = step < 1 ? 1 : step > rows ? rows : step;
    float *x = malloc((size_t)(step * width) * sizeof *x + 4);
    if (!x)
        return err_set(e, ERR_MEMORY, "no memory for values of %s", c->w.w->name);

    memset(out, 0, sizeof *out * (size_t)n_scales);
    for (int64_t n = p->n0; n < p->n1 && rc >= 0; n += step) {
        struct patch part = { p->e, n, n + step < p->n1 ? n + step : p->n1, p->k0, p->k1 };
        rc = encode_values(c, below, &part, x, e);
        if (rc >= 0 && raise_to(s->kind, x, n - p->n0, part.n1 - n, width, groups, out) < 0)
            rc = err_set(e, ERR_FORMAT, "%s: rows %lld to %lld hold NaN or an infinity: they have no scale",
                         c->w.w->name, (long long)n, (long long)part.n1 - 1);
    }
    for (int64_t i = 0; i < n_scales && rc >= 0; i++)
        out[i] = scale_of(s, out[i]);
    free(x);
    return rc;
}

/* ---- for codes ---- */

static int64_t n_rows(const struct encoder *c) { return c->w.w->shape[c->w.w->dim_n]; }
static int64_t n_columns(const struct encoder *c) { return c->w.w->shape[c->w.w->dim_k]; }

/* The scales of a row of blocks that has many rows of values: each is needed for many reads. */
static int cached_row(const struct encoder *c, struct ckpt *below, int64_t row, int64_t groups, float *out,
                      struct err *e)
{
    const struct scale_cache *s = c->arg;
    int found = 0;
    pthread_mutex_lock(s->lock);
    for (int i = 0; i < SCALE_ROWS && !found; i++)
        if (s->row[i].of == c && s->row[i].row == row) {
            memcpy(out, s->row[i].scale, sizeof *out * (size_t)groups);
            found = 1;
        }
    pthread_mutex_unlock(s->lock);
    if (found)
        return 0;

    int64_t first = row * s->kind->block_n, end = first + s->kind->block_n;
    struct patch p = { 0, first, end < n_rows(c) ? end : n_rows(c), 0, n_columns(c) };
    float *kept = malloc(sizeof *kept * (size_t)groups);
    int rc = kept ? compute(c, below, &p, out, e)
                  : err_set(e, ERR_MEMORY, "no memory for %lld scales", (long long)groups);
    if (rc < 0) {
        free(kept);
        return rc;
    }
    memcpy(kept, out, sizeof *kept * (size_t)groups);
    pthread_mutex_lock(s->lock);
    struct scale_row *to = &s->row[*s->next];
    *s->next = (*s->next + 1) % SCALE_ROWS;
    free(to->scale);
    *to = (struct scale_row){ c, row, kept };
    pthread_mutex_unlock(s->lock);
    return 0;
}

int quantise_scales(const struct encoder *c, struct ckpt *below, const struct patch *p, struct region *r,
                    struct err *e)
{
    const struct quantise_kind *kind = ((const struct scale_cache *)c->arg)->kind;
    int64_t n0 = p->n0 / kind->block_n, n1 = (p->n1 - 1) / kind->block_n + 1, k0 = 0, k1 = n_columns(c);
    if (kind->block_n == 1) {
        k0 = p->k0 / kind->block_k * kind->block_k;
        k1 = ((p->k1 - 1) / kind->block_k + 1) * kind->block_k;
        k1 = k1 < n_columns(c) ? k1 : n_columns(c);
    }
    int64_t groups = (k1 - k0 + kind->block_k - 1) / kind->block_k;
    struct patch whole = { p->e, p->n0, p->n1, k0, k1 };
    int rc = 0;
    *r = (struct region){ .w = &c->w, .p = *p, .mid = 1 << (c->w.w->scheme.bits - 1) };
    r->scale_n = (struct region_axis){ kind->block_n, 1, n0, groups };
    r->scale_k = (struct region_axis){ kind->block_k, 1, k0 / kind->block_k, 1 };
    if (!(r->scale = malloc(sizeof *r->scale * (size_t)((n1 - n0) * groups) + 4)))
        return err_set(e, ERR_MEMORY, "no memory for the scales of %s", c->w.w->name);
    if (kind->block_n == 1)
        return compute(c, below, &whole, r->scale, e);
    for (int64_t n = n0; n < n1 && rc >= 0; n++)
        rc = cached_row(c, below, n, groups, r->scale + (n - n0) * groups, e);
    return rc;
}

/* ---- as a tensor ---- */

static void store(enum stored_dtype to, const float *x, int64_t n, char *out)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        uint16_t half = to == STORED_F16 ? codec_to_f16(x[i]) : (uint16_t)(u >> 16);
        if (to == STORED_F32)
            memcpy(out + 4 * i, &u, 4);
        else if (to == STORED_U8)
            out[i] = (char)(u >> 23);
        else
            memcpy(out + 2 * i, &half, 2);
    }
}

int quantise_compute_scales(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi,
                            void *dst, struct err *e)
{
    const struct encoder *c = arg;
    const struct scale_cache *s = c->arg;
    const struct quantise_kind *kind = s->kind;
    struct rect_walk w = rect_walk(b, lo, hi);
    struct rect t;
    int rc = 0;
    while (rc >= 0 && rect_next(&w, 1 << 16, &t)) {
        /* Where a row of scales is a column of values, a few columns of scales have long runs of values. */
        int64_t width = t.c1 - t.c0, step = encode_is_turned(c) ? 4 : width;
        float *x = malloc(sizeof *x * (size_t)((t.r1 - t.r0) * step) + 4);
        if (!x)
            return err_set(e, ERR_MEMORY, "no memory for the scales of %s", c->w.w->name);
        for (int64_t col = t.c0, m; col < t.c1 && rc >= 0; col += m) {
            m = step < t.c1 - col ? step : t.c1 - col;
            struct patch p = { t.e, t.r0 * kind->block_n, t.r1 * kind->block_n, col * kind->block_k,
                               (col + m) * kind->block_k };
            p.n1 = p.n1 < n_rows(c) ? p.n1 : n_rows(c);
            p.k1 = p.k1 < n_columns(c) ? p.k1 : n_columns(c);
            rc = compute(c, below, &p, x, e);
            for (int64_t i = 0; i < t.r1 - t.r0 && rc >= 0; i++)
                store(s->dtype, x + i * m, m,
                      (char *)dst + stored_bytes(s->dtype, t.first + i * width + col - t.c0));
        }
        free(x);
    }
    return rc < 0 ? rc : 0;
}
