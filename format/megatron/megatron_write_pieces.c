/* megatron_write_pieces.c - writes pieces of tensors to their places in the chunks of Megatron's arrays.
 *
 *     q_proj  [ g0 | g1 ]  k_proj [ g0 | g1 ]         logical tensors
 *     linear_qkv [ q0 | k0 | v0 | q1 | k1 | v1 ]      array: each part of a row range is a segment
 *
 * Segments of a file that follow each other in an array are one chunk: a tp rank that holds whole groups has
 * one chunk of linear_qkv a layer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/megatron/megatron_write_priv.h"

#define FORMAT "--format megatron-dist"

static int add_segment(struct megatron_write *w, const struct mgw_segment *s, struct err *e)
{
    if (w->n_segments == w->capacity) {
        int64_t more = w->capacity ? w->capacity * 2 : 1024;
        struct mgw_segment *grown = realloc(w->segment, sizeof *grown * (size_t)more);
        if (!grown)
            return err_set(e, ERR_MEMORY, "no memory for a plan of %lld pieces", (long long)more);
        w->segment = grown;
        w->capacity = more;
    }
    w->segment[w->n_segments++] = *s;
    return 0;
}

int megatron_write_piece(struct megatron_write *w, int f, int index, int tensor, const struct box *b,
                         struct err *e)
{
    const struct mgw_tensor *x = &w->tensor[tensor];
    struct mgw_array *a = &w->array[x->array];
    struct mgw_piece *p = &w->piece[f][index];
    int64_t n = mg_n_segments(&w->m, a->row), col = b->n_dims > 1 ? b->start[1] : 0,
            n_cols = b->n_dims > 1 ? b->extent[1] : 1;
    int rc = 0;

    *p = (struct mgw_piece){ .first = (int)w->n_segments };
    for (int64_t i = 0; i < n && rc >= 0; i++) {
        struct mg_segment s = mg_segment_at(&w->m, a->row, a->rows, i);
        int64_t lo = b->start[0] > s.to ? b->start[0] : s.to,
                hi = b->start[0] + b->extent[0] < s.to + s.n ? b->start[0] + b->extent[0] : s.to + s.n;
        if (s.hf != x->hf || lo >= hi || n_cols < 1)
            continue;
        rc = add_segment(w,
                         &(struct mgw_segment){ .file = f,
                                                .tensor = tensor,
                                                .row = s.from + lo - s.to,
                                                .n_rows = hi - lo,
                                                .col = col,
                                                .n_cols = n_cols,
                                                .from = (lo - b->start[0]) * n_cols },
                         e);
        a->filled += (hi - lo) * n_cols;
        p->n++;
    }
    return rc;
}

/* ---- chunks ---- */

/* The order of files, in each that of arrays, in each that of chunks and of rows. */
struct order {
    const struct megatron_write *w;
    const struct mgw_segment *s;
};
static int compare_place(const struct order *a, const struct order *b)
{
    const struct mgw_tensor *x = &a->w->tensor[a->s->tensor], *y = &b->w->tensor[b->s->tensor];
    const int64_t left[] = { a->s->file, x->array, x->layer, x->expert, a->s->col, a->s->n_cols },
                  right[] = { b->s->file, y->array, y->layer, y->expert, b->s->col, b->s->n_cols };
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        if (left[i] != right[i])
            return (left[i] > right[i]) - (left[i] < right[i]);
    return 0;
}
static int compare_segments(const void *pa, const void *pb)
{
    const struct order *a = pa, *b = pb;
    int c = compare_place(a, b);
    return c ? c : (a->s->row > b->s->row) - (a->s->row < b->s->row);
}

static int sort_segments(struct megatron_write *w, struct order **out, struct err *e)
{
    struct order *o = malloc(sizeof *o * (size_t)(w->n_segments + 1));
    if (!o)
        return err_set(e, ERR_MEMORY, "no memory for a plan of %lld pieces", (long long)w->n_segments);
    for (int64_t i = 0; i < w->n_segments; i++)
        o[i] = (struct order){ w, &w->segment[i] };
    qsort(o, (size_t)w->n_segments, sizeof *o, compare_segments);
    *out = o;
    return 0;
}

/* Numbers the chunks of every file: n_items[f], and item and at of every segment. */
static void number_chunks(struct megatron_write *w, const struct order *o, int *n_items)
{
    int64_t first_row = 0, end = -1;
    for (int64_t i = 0; i < w->n_segments; i++) {
        struct mgw_segment *s = &w->segment[o[i].s - w->segment];
        if (i == 0 || compare_place(&o[i - 1], &o[i]) || s->row != end) {
            n_items[s->file]++;
            first_row = s->row;
        }
        s->item = n_items[s->file] - 1;
        s->at = (s->row - first_row) * s->n_cols;
        end = s->row + s->n_rows;
    }
}

/* The chunk of segments o[0] to o[n - 1], as a box of the array. */
static struct box chunk_box(const struct megatron_write *w, const struct order *o, int64_t n)
{
    const struct mgw_segment *s = o->s, *last = o[n - 1].s;
    const struct mgw_tensor *x = &w->tensor[s->tensor];
    const struct mgw_array *a = &w->array[x->array];
    struct box b = { 0 };
    if (a->row->in_layer && a->layer < 0)
        b.start[b.n_dims] = x->layer, b.extent[b.n_dims++] = 1;
    if (a->row->of_experts)
        b.start[b.n_dims] = x->expert, b.extent[b.n_dims++] = 1;
    b.start[b.n_dims] = s->row, b.extent[b.n_dims++] = last->row + last->n_rows - s->row;
    if (b.n_dims < w->list[x->array].n_dims)
        b.start[b.n_dims] = s->col, b.extent[b.n_dims++] = s->n_cols;
    return b;
}

static int check_filled(const struct megatron_write *w, struct err *e)
{
    for (int i = 0; i < w->n_arrays; i++) {
        struct box whole = box_whole(w->list[i].n_dims, w->list[i].shape);
        if (w->array[i].filled != box_count(&whole))
            return err_set(e, ERR_USAGE,
                           FORMAT
                           ": %s has %lld elements, the source has %lld of them: a layer, an expert or "
                           "a part is missing (without optimizer state: --weights-only)",
                           w->list[i].name, (long long)box_count(&whole), (long long)w->array[i].filled);
    }
    return 0;
}

int megatron_write_start(struct megatron_write *w, struct err *e)
{
    struct order *o = NULL;
    int *n_items = calloc((size_t)w->what.n_files + 1, sizeof *n_items), rc = 0;
    if (!n_items)
        return err_set(e, ERR_MEMORY, "no memory for %d files", w->what.n_files);
    TRY(check_filled(w, e));
    TRY(sort_segments(w, &o, e));
    number_chunks(w, o, n_items);
    TRY(dcp_write_open(&w->dcp, w->what.dir, w->n_arrays, w->list, w->what.n_files, n_items, w->what.ours,
                       e));
    for (int64_t i = 0, n; i < w->n_segments; i += n) {
        const struct mgw_segment *s = o[i].s;
        for (n = 1; i + n < w->n_segments && o[i + n].s->file == s->file && o[i + n].s->item == s->item;)
            n++;
        struct box b = chunk_box(w, &o[i], n);
        dcp_write_item(w->dcp, s->file, s->item, w->tensor[s->tensor].array, &b);
    }
    TRY(dcp_write_start(w->dcp, e));
out:
    free(o);
    free(n_items);
    return rc < 0 ? rc : 0;
}

/* ---- elements ---- */

int megatron_write_put(struct megatron_write *w, int f, int index, const void *data, int64_t n, struct err *e)
{
    struct mgw_piece *p = &w->piece[f][index];
    const char *from = data;
    while (n > 0) {
        const struct mgw_segment *s = &w->segment[p->first + p->now];
        int64_t within = p->done - s->from, left = s->n_rows * s->n_cols - within, some = n < left ? n : left;
        if (p->now == p->n)
            return err_set(e, ERR_INTERNAL, "more elements than a piece of %s has: please report it",
                           w->what.t[s->tensor].name);
        int rc = dcp_write_put_at(w->dcp, f, s->item, s->at + within, from, some, e);
        if (rc < 0)
            return rc;
        from += stored_bytes(w->what.t[s->tensor].dtype, some);
        p->done += some;
        p->now += some == left;
        n -= some;
    }
    return 0;
}

int megatron_write_close(struct megatron_write *w, int f, struct err *e)
{
    return dcp_write_close(w->dcp, f, e);
}
