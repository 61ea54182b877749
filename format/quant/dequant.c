/* dequant.c - a view that shows quantised weights as their values (format/quant_view.h).
 *
 *     [N, K] codes -> values of whole rows, straight into the buffer of the reader
 *     codes with the other dim last (GPTQ, AWQ, experts of gpt-oss) -> a slab of codes in memory, of which
 *     tiles are decoded and turned round. Rows of the view would be columns of the file, a few bytes each. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/ckpt_view.h"
#include "format/quant/kept.h"
#include "format/quant/region.h"
#include "format/quant_view.h"

#define SLABS 8                       /* slabs that are kept for the next read */
#define SLAB_BYTES ((int64_t)4 << 20) /* codes of a slab */
#define TILE_ROWS 128                 /* rows of the view that are turned round at once */
#define TILE_COLUMNS 32
#define MOST_VALUES ((int64_t)128 << 10) /* that are decoded at once */

struct slab {
    int64_t number; /* of its weight and expert */
    struct region r;
};
struct dequant {
    struct quant_list list;
    struct part *part; /* [list.n] */
    pthread_mutex_t lock;
    struct slab *slab[SLABS]; /* NULL: free */
    int next;
};
struct part {
    struct dequant *d;
    struct region_weight w;
};

/* ---- slabs ---- */

static struct slab *slab_take(struct dequant *d, const struct region_weight *w, int64_t e, int64_t number)
{
    struct slab *found = NULL;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < SLABS && !found; i++) {
        struct slab *s = d->slab[i];
        if (s && s->r.w == w && s->r.p.e == e && s->number == number) {
            found = s;
            d->slab[i] = NULL;
        }
    }
    pthread_mutex_unlock(&d->lock);
    return found;
}

static void slab_free(struct slab *s)
{
    if (s)
        region_free(&s->r);
    free(s);
}

static void slab_put(struct dequant *d, struct slab *s)
{
    struct slab *old = NULL;
    int at = -1;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < SLABS; i++)
        if (!d->slab[i])
            at = i;
    if (at < 0) {
        at = d->next;
        d->next = (d->next + 1) % SLABS;
    }
    old = d->slab[at];
    d->slab[at] = s;
    pthread_mutex_unlock(&d->lock);
    slab_free(old);
}

/* Rows of the view in a slab: a multiple of 128, so that slabs begin where blocks and words do. */
static int64_t slab_rows(const struct region_weight *w)
{
    const struct quant_weight *q = w->w;
    int64_t row_bytes = q->shape[q->n_dims - 1] * q->scheme.bits / 8 + 1, rows = SLAB_BYTES / row_bytes;
    return rows < 128 ? 128 : rows / 128 * 128;
}

static int slab_get(struct slab **out, struct part *p, struct ckpt *below, const struct patch *whole,
                    int64_t number, struct err *e)
{
    struct slab *s = slab_take(p->d, &p->w, whole->e, number);
    int rc = 0;
    if (!s) {
        if (!(s = calloc(1, sizeof *s)))
            return err_set(e, ERR_MEMORY, "no memory for codes of %s", p->w.w->name);
        s->number = number;
        rc = region_load(&s->r, below, &p->w, whole, 1, e);
    }
    if (rc < 0) {
        slab_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

/* ---- one rectangle ---- */

/* The rows r0 .. r1 - 1 and columns c0 .. c1 - 1 of the view as a part of the weight. */
static struct patch patch_of(const struct quant_weight *w, const struct rect *r)
{
    struct patch p = { r->e, r->r0, r->r1, r->c0, r->c1 };
    if (w->dim_k == w->n_dims - 2)
        p = (struct patch){ r->e, r->c0, r->c1, r->r0, r->r1 };
    return p;
}

typedef uint16_t eight __attribute__((vector_size(16), aligned(2)));
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)

/* 8 rows of 8, `width` elements apart, as columns `pitch` elements apart: three rounds of a perfect shuffle.
 * */
static void turn_8(const uint16_t *in, int64_t width, uint16_t *out, int64_t pitch)
{
    eight x[8], y[8];
    for (int i = 0; i < 8; i++)
        memcpy(&x[i], in + i * width, sizeof x[i]);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            y[2 * i] = LOW(x[i], x[i + 4]);
            y[2 * i + 1] = HIGH(x[i], x[i + 4]);
        }
        memcpy(x, y, sizeof x);
    }
    for (int i = 0; i < 8; i++)
        memcpy(out + i * pitch, &x[i], sizeof x[i]);
}

static void turn_halves(const uint16_t *in, int64_t rows, int64_t cols, uint16_t *out, int64_t pitch)
{
    int64_t whole_rows = rows / 8 * 8, whole_cols = cols / 8 * 8;
    for (int64_t c = 0; c < whole_cols; c += 8)
        for (int64_t r = 0; r < whole_rows; r += 8)
            turn_8(in + r * cols + c, cols, out + c * pitch + r, pitch);
    for (int64_t c = 0; c < cols; c++)
        for (int64_t r = c < whole_cols ? whole_rows : 0; r < rows; r++)
            out[c * pitch + r] = in[r * cols + c];
}

/* [rows][cols] to columns that are `pitch` elements apart. */
static void turn(const char *tile, int64_t rows, int64_t cols, int64_t size, char *out, int64_t pitch)
{
    const uint32_t *in = (const uint32_t *)(const void *)tile;
    if (size == 2) {
        turn_halves((const uint16_t *)(const void *)tile, rows, cols, (uint16_t *)(void *)out, pitch);
        return;
    }
    for (int64_t c = 0; c < cols; c++)
        for (int64_t r = 0; r < rows; r++)
            ((uint32_t *)(void *)out)[c * pitch + r] = in[r * cols + c];
}

/* Decodes rectangle t of a slab tile by tile; the rows of a tile are columns of the view. */
static int decode_turned(const struct region *r, const struct rect *t, char *out, struct err *e)
{
    char tile[TILE_ROWS * TILE_COLUMNS * 4];
    const int64_t size = stored_bytes(r->w->to, 1), pitch = t->c1 - t->c0;
    for (int64_t row = t->r0; row < t->r1; row += TILE_ROWS)
        for (int64_t col = t->c0; col < t->c1; col += TILE_COLUMNS) {
            struct rect q = { t->e, row, row + TILE_ROWS, col, col + TILE_COLUMNS, 0 };
            q.r1 = q.r1 < t->r1 ? q.r1 : t->r1;
            q.c1 = q.c1 < t->c1 ? q.c1 : t->c1;
            struct patch p = patch_of(r->w->w, &q);
            int rc = region_values(r, &p, tile, e);
            if (rc < 0)
                return rc;
            turn(tile, q.c1 - q.c0, q.r1 - q.r0, size, out + ((row - t->r0) * pitch + col - t->c0) * size,
                 pitch);
        }
    return 0;
}

/* A rectangle through slabs of whole rows of the view. */
static int by_slabs(struct part *p, struct ckpt *below, const struct rect *t, char *out, struct err *e)
{
    const struct quant_weight *w = p->w.w;
    int64_t step = slab_rows(&p->w), n_rows = w->shape[w->n_dims - 2], pitch = t->c1 - t->c0, next;
    for (int64_t row = t->r0; row < t->r1; row = next) {
        int64_t number = row / step, end = (number + 1) * step;
        struct rect all = { t->e, number * step, end < n_rows ? end : n_rows, 0, w->shape[w->n_dims - 1], 0 },
                    here = *t;
        struct patch whole = patch_of(w, &all);
        struct slab *s = NULL;
        int rc = slab_get(&s, p, below, &whole, number, e);
        if (rc < 0)
            return rc;
        next = all.r1 < t->r1 ? all.r1 : t->r1;
        here.r0 = row;
        here.r1 = next;
        rc = decode_turned(&s->r, &here, out + (row - t->r0) * pitch * stored_bytes(p->w.to, 1), e);
        slab_put(p->d, s);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int by_rows(struct part *p, struct ckpt *below, const struct rect *t, char *out, struct err *e)
{
    struct patch q = patch_of(p->w.w, t);
    struct region r;
    int rc = region_load(&r, below, &p->w, &q, 1, e);
    if (rc >= 0)
        rc = region_values(&r, &q, out, e);
    region_free(&r);
    return rc;
}

static int compute_values(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi,
                          void *dst, struct err *e)
{
    struct part *p = arg;
    int k_last = p->w.w->dim_k == p->w.w->n_dims - 1, turned = k_last == region_n_last(p->w.w);
    struct rect_walk w = rect_walk(b, lo, hi);
    struct rect t;
    int rc = 0;
    while (rc >= 0 && rect_next(&w, turned ? hi - lo : MOST_VALUES, &t)) {
        char *out = (char *)dst + stored_bytes(p->w.to, t.first);
        rc = turned ? by_slabs(p, below, &t, out, e) : by_rows(p, below, &t, out, e);
    }
    return rc < 0 ? rc : 0;
}

/* ---- the view ---- */

static void free_dequant(void *arg)
{
    struct dequant *d = arg;
    for (int i = 0; i < SLABS; i++)
        slab_free(d->slab[i]);
    pthread_mutex_destroy(&d->lock);
    quant_close(&d->list);
    free(d->part);
    free(d);
}

/* One of the names that what is kept has, in a buffer for all of them. */
static const char *kept_name(char **at, const char *name)
{
    const char *here = *at;
    *at += sprintf(*at, QUANT_KEPT_PREFIX "%s", name) + 1;
    return here;
}

static struct ckpt_view_tensor show_values(struct dequant *d, const struct ckpt *c, int i,
                                           enum stored_dtype to)
{
    const struct quant_weight *w = &d->list.weight[i];
    struct part *p = &d->part[i];
    struct ckpt_view_tensor t = {
        { .name = w->name, .dtype = to, .n_dims = w->n_dims }, -1, compute_values, p
    };
    *p = (struct part){ .d = d, .w = { .w = w, .to = to } };
    for (int k = 0; k < w->n_stored; k++)
        p->w.tensor[k] = w->stored[k].tensor;
    p->w.codes = ckpt_tensor(c, quant_part(w, QUANT_CODES)->tensor)->dtype;
    memcpy(t.t.shape, w->shape, sizeof w->shape);
    return t;
}

/* Fills in the tensors of the view: values of weights, what is kept of them, all others as they are. */
static int list_tensors(struct dequant *d, const struct ckpt *c, enum stored_dtype to,
                        struct ckpt_view_tensor *t, char *names)
{
    int n = 0;
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct ckpt_tensor *s = ckpt_tensor(c, i);
        int at = i < d->list.n_tensors ? d->list.weight_of[i] : -1;
        if (at >= 0 && quant_part(&d->list.weight[at], QUANT_CODES)->tensor == i)
            continue;
        t[n] = (struct ckpt_view_tensor){ .t = *s, .from = i };
        if (at >= 0)
            t[n].t.name = kept_name(&names, s->name);
        n++;
    }
    for (int i = 0; i < d->list.n; i++)
        t[n++] = show_values(d, c, i, to);
    return n;
}

static size_t name_bytes(const struct ckpt *c)
{
    size_t n = 1;
    for (int i = 0; i < ckpt_n_tensors(c); i++)
        n += sizeof QUANT_KEPT_PREFIX + strlen(ckpt_tensor(c, i)->name);
    return n;
}

/* Replaces *c by the view; d is the view's, or freed. */
static int open_view(struct ckpt **c, struct dequant *d, enum stored_dtype to, struct err *e)
{
    const char *text = ckpt_config_json(*c);
    char *names = malloc(name_bytes(*c)), *config = text ? config_plain(text, to, e) : NULL;
    char *kept = kept_text(*c, &d->list, to, e);
    const struct ckpt_view_file file[] = { { QUANT_KEPT_FILE, kept },
                                           { QUANT_GPTQ_FILE, NULL },
                                           { QUANT_MODELOPT_FILE, NULL } };
    const struct ckpt_view_opts how = { config, d, free_dequant, 3, file };
    struct ckpt_view_tensor *t = calloc((size_t)(ckpt_n_tensors(*c) + d->list.n) + 1, sizeof *t);
    d->part = calloc((size_t)d->list.n + 1, sizeof *d->part);

    int rc = (text && !config) || !kept ? -e->code : 0;
    if (rc >= 0 && (!t || !names || !d->part))
        rc = err_set(e, ERR_MEMORY, "no memory for a view of %d tensors", ckpt_n_tensors(*c));
    if (rc >= 0) {
        struct ckpt *below = *c;
        *c = NULL;
        rc = ckpt_view_open(c, below, list_tensors(d, below, to, t, names), t, &how, e);
    } else {
        free_dequant(d);
    }
    free(t);
    free(names);
    free(config);
    free(kept);
    return rc;
}

static int open_list(struct quant_list *q, struct ckpt *c, struct err *e)
{
    int rc = quant_open_ckpt(q, c, e);
    if (rc >= 0)
        rc = quant_check_values(q, c, e);
    if (rc >= 0 && !q->n)
        rc = err_set(e, ERR_USAGE, "%s: has no quantised weights: leave --dequantize out", ckpt_path(c));
    return rc < 0 ? rc : quant_settle(q, c, e);
}

int quant_dequantize(struct ckpt **c, enum stored_dtype to, struct err *e)
{
    struct dequant *d = calloc(1, sizeof *d);
    int rc = d ? 0 : err_set(e, ERR_MEMORY, "no memory for a view of quantised weights");
    if (d)
        pthread_mutex_init(&d->lock, NULL);
    if (rc >= 0 && (rc = open_list(&d->list, *c, e)) < 0)
        free_dequant(d);
    if (rc >= 0)
        rc = open_view(c, d, to, e);
    if (rc < 0) {
        ckpt_close(*c);
        *c = NULL;
    }
    return rc;
}
