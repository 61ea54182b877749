/* locate.c - where the rows of a tensor lie in a file, for readers that map files (ckpt.h). */
#include "format/fmt.h"

/* Are elements of this piece in the file as they are used? */
static int is_plain(const struct ckpt *c, const struct fmt_piece *p)
{
    const struct fmt_file *f = &c->file[p->file];
    return !p->stride && !p->run && !f->frame && !f->record;
}

/* The element of the piece's box, in row-major order, at index `at` of the tensor; -1: outside. */
static int64_t element_at(const struct fmt_piece *p, const int64_t *at)
{
    int64_t n = 0;
    for (int d = 0; d < p->box.n_dims; d++) {
        const int64_t in = at[d] - p->box.start[d];
        if (in < 0 || in >= p->box.extent[d])
            return -1;
        n = n * p->box.extent[d] + in;
    }
    return n;
}

/* Rows of b from the one at index `at` on that piece p holds whole. */
static int64_t rows_in(const struct fmt_piece *p, const struct box *b, const int64_t *at, int64_t *element)
{
    const int last = b->n_dims - 1;
    const int64_t columns = b->extent[last];
    const int64_t begin = element_at(p, at);
    if (begin < p->lo || at[last] + columns > p->box.start[last] + p->box.extent[last])
        return 0;
    *element = begin;
    if (begin + columns > p->hi)
        return 0;
    if (last == 0)
        return 1;
    const int64_t row = p->box.extent[last], whole = 1 + (p->hi - begin - columns) / row;
    const int64_t in_piece = p->box.start[last - 1] + p->box.extent[last - 1] - at[last - 1];
    const int64_t in_box = b->start[last - 1] + b->extent[last - 1] - at[last - 1];
    const int64_t n = whole < in_piece ? whole : in_piece;
    return n < in_box ? n : in_box;
}

int ckpt_locate(const struct ckpt *c, int i, const struct box *b, int64_t first, struct ckpt_place *out)
{
    const int last = b->n_dims - 1;
    int64_t at[BOX_DIMS];
    if (c->view || c->remote || *c->live_version || b->n_dims < 1 ||
        stored_dtype_bits(c->tensor[i].dtype) % 8)
        return 0;
    for (int d = 0; d < b->n_dims; d++) {
        at[d] = b->start[d];
        if (d < last - 1 && b->extent[d] != 1)
            return 0;
    }
    if (last > 0)
        at[last - 1] += first;
    for (int64_t n = c->first_piece[i]; n < c->first_piece[i + 1]; n++) {
        const struct fmt_piece *p = &c->piece[n];
        int64_t element = 0;
        const int64_t rows = is_plain(c, p) ? rows_in(p, b, at, &element) : 0;
        if (rows == 0)
            continue;
        const int64_t size = stored_bytes(c->tensor[i].dtype, 1);
        *out = (struct ckpt_place){ .path = fmt_real(&c->file[p->file]),
                                    .file_bytes = c->file[p->file].bytes,
                                    .offset = p->offset + (element - p->lo) * size,
                                    .row_bytes = p->box.extent[last] * size,
                                    .rows = rows };
        return 1;
    }
    return 0;
}
