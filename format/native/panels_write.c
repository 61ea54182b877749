/* panels_write.c - the file of the serve format: laid out, then filled by pieces in any order.
 *
 *     header | region of unit 0 | region of unit 1 | …       a region: natural tensors, then packs
 *
 * The kernel keeps what one write of whole 2 MiB covers in pages of 2 MiB, if it can, and a server maps them
 * so. The file is therefore put together in *windows* of 4 MiB: a window is written when all of its bytes are
 * there. As many windows wait in memory as the pieces that are under way share. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sync_file_range */
#endif
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/ckpt_write.h"
#include "format/fmt.h"
#include "format/hf/safetensors.h"
#include "format/native/manifest.h"
#include "format/native/panel_bytes.h"
#include "format/native/panels_table.h"

#define WINDOW (2 * PANELS_HUGE)
#define SPARES 8 /* memory of windows that is kept for the next ones: fresh pages cost more than copying */
#define FILE_NAME "weights-00000.safetensors"
#define COLS PANEL_OUTPUTS

struct window {
    char *data;   /* NULL: nothing has come, or it is written */
    int64_t left; /* bytes that have not come; what lies between regions is not among them */
};
struct out_piece {
    const struct panels_piece *p;
    const struct ckpt_pack *pack;  /* NULL: natural order */
    int64_t offset, n, done, held; /* elements; held: of done, those in rows */
    char *rows, *panel;            /* up to 32 outputs in natural order, and as a panel */
    struct ckpt_digest digest;
};
/* A natural piece, or a pack: what the header of the file has a name for. */
struct item {
    int unit, pack, piece; /* pack -1: a natural piece */
    int64_t offset, bytes;
};
struct panels_write {
    char *path;
    int fd, n_pieces, n_packs, n_items;
    int64_t bytes, data;
    struct panels_piece *given; /* [n_pieces] a copy */
    struct out_piece *piece;    /* [n_pieces] */
    struct out_piece **order;   /* [n_pieces] natural ones, then those of pack 0, 1, … */
    struct ckpt_pack *pack;     /* [n_packs] */
    int64_t *leaves;            /* of the packs */
    struct item *item;          /* [n_items] in the order of the file */
    struct window *window;
    uint64_t *block; /* sums */
    pthread_mutex_t lock;
    int n_spares;
    char *spare[SPARES];
    const struct ckpt_watch *watch; /* or NULL */
};

static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/* ---- places ---- */

static int compare_items(const void *pa, const void *pb)
{
    const struct item *a = pa, *b = pb;
    if (a->unit != b->unit)
        return a->unit < b->unit ? -1 : 1;
    if ((a->pack < 0) != (b->pack < 0))
        return a->pack < 0 ? -1 : 1;
    return a->pack != b->pack ? (a->pack > b->pack) - (a->pack < b->pack)
                              : (a->piece > b->piece) - (a->piece < b->piece);
}

static int compare_pieces(const void *pa, const void *pb)
{
    const struct panels_piece *a = (*(struct out_piece *const *)pa)->p;
    const struct panels_piece *b = (*(struct out_piece *const *)pb)->p;
    if (a->pack != b->pack)
        return a->pack < b->pack ? -1 : 1;
    return a->place != b->place ? (a->place > b->place) - (a->place < b->place) : (a > b) - (a < b);
}

/* Runs of a pack one behind the other. Offsets from the pack's first byte. */
static void place_runs(struct panels_write *w)
{
    for (int i = 0; i < w->n_pieces; i++)
        w->order[i] = &w->piece[i];
    qsort(w->order, (size_t)w->n_pieces, sizeof *w->order, compare_pieces);
    for (int i = 0; i < w->n_pieces; i++) {
        struct out_piece *o = w->order[i];
        if (o->p->pack < 0)
            continue;
        struct ckpt_pack *k = &w->pack[o->p->pack];
        o->pack = k;
        o->offset = k->bytes;
        k->n_runs++;
        k->bytes += (o->p->box.extent[o->p->out_dim] + COLS - 1) / COLS * k->stride;
    }
}

/* Every region begins at a huge page, a small one at a page. *large: there is a large one. */
static int64_t place_items(struct panels_write *w, int *large)
{
    int64_t at = 0;
    for (int i = 0, end; i < w->n_items; i = end) {
        int64_t size = 0;
        for (end = i; end < w->n_items && w->item[end].unit == w->item[i].unit; end++) {
            w->item[end].offset = size;
            size = round_up(size + w->item[end].bytes, PANELS_ALIGN);
        }
        *large |= size >= PANELS_HUGE;
        at = round_up(at, size >= PANELS_HUGE ? PANELS_HUGE : PANELS_PAGE);
        for (int k = i; k < end; k++)
            w->item[k].offset += at;
        at = w->item[end - 1].offset + w->item[end - 1].bytes;
    }
    return at;
}

static void list_items(struct panels_write *w)
{
    for (int i = 0; i < w->n_pieces; i++)
        if (!w->piece[i].pack)
            w->item[w->n_items++] = (struct item){ w->given[i].unit, -1, i, 0,
                                                   stored_bytes(w->given[i].t.dtype, w->piece[i].n) };
    for (int i = 0; i < w->n_packs; i++)
        w->item[w->n_items++] = (struct item){ w->pack[i].unit, i, -1, 0, w->pack[i].bytes };
    qsort(w->item, (size_t)w->n_items, sizeof *w->item, compare_items);
}

/* ---- the header ---- */

/* Which pack of its unit this is: units have their packs one behind the other. */
static int number_in_unit(const struct panels_write *w, int pack)
{
    int n = 0;
    while (n < pack && w->pack[pack - n - 1].unit == w->pack[pack].unit)
        n++;
    return n;
}

static void pack_entry(const struct panels_write *w, const struct item *x, struct st_entry *t)
{
    const struct ckpt_pack *k = &w->pack[x->pack];
    int plain = k->kind == CKPT_PANELS_PLAIN, dims = !plain ? 2 : k->dtype == STORED_F32 ? 3 : 4;
    *t = (struct st_entry){ .dtype = plain ? k->dtype : STORED_U8, .n_dims = dims, .begin = x->offset };
    t->end = x->offset + x->bytes;
    t->shape[0] = k->bytes / k->stride;
    t->shape[1] = plain ? k->stride / (COLS * 4) : k->stride;
    t->shape[2] = COLS;
    t->shape[3] = 2;
    t->name = malloc(64);
    if (t->name)
        snprintf(t->name, 64, PANELS_PACK_NAME, k->unit, number_in_unit(w, x->pack));
}

static void piece_entry(const struct panels_write *w, const struct item *x, struct st_entry *t)
{
    const struct ckpt_tensor *from = &w->given[x->piece].t;
    *t = (struct st_entry){ .dtype = from->dtype,
                            .n_dims = from->n_dims,
                            .tail = (char *)from->tail,
                            .begin = x->offset,
                            .end = x->offset + x->bytes };
    memcpy(t->shape, from->shape, sizeof t->shape);
    t->name = strdup(from->name);
}

static void gap_entry(int64_t begin, int64_t end, int number, struct st_entry *t)
{
    *t = (struct st_entry){ .dtype = STORED_U8, .n_dims = 1, .begin = begin, .end = end };
    t->shape[0] = end - begin;
    t->name = malloc(64);
    if (t->name)
        snprintf(t->name, 64, PANELS_GAP_NAME, number);
}

/* A safetensors file has no holes: what lies between the items has a name, too. */
static int make_header(const struct panels_write *w, size_t align, char **head, size_t *bytes, struct err *e)
{
    struct st_entry *t = calloc(2 * (size_t)w->n_items + 1, sizeof *t);
    int n = 0, gaps = 0, ok = t != NULL, rc;
    int64_t at = 0;
    for (int i = 0; ok && i < w->n_items; i++) {
        const struct item *x = &w->item[i];
        if (x->offset > at)
            gap_entry(at, x->offset, gaps++, &t[n++]);
        (x->pack < 0 ? piece_entry : pack_entry)(w, x, &t[n++]);
        at = x->offset + x->bytes;
        ok = t[n - 1].name && (n < 2 || t[n - 2].name);
    }
    rc = ok ? st_make(t, n, align, head, bytes, e)
            : err_set(e, ERR_MEMORY, "no memory for the header of %s", w->path);
    for (int i = 0; t && i < n; i++)
        free(t[i].name);
    free(t);
    return rc;
}

/* ---- windows ---- */

static int64_t window_bytes(const struct panels_write *w, int64_t i)
{
    return w->bytes - i * WINDOW < WINDOW ? w->bytes - i * WINDOW : WINDOW;
}

static int write_window(struct panels_write *w, int64_t i, char *data, struct err *e)
{
    int64_t n = window_bytes(w, i), at = i * WINDOW;
    int rc = io_pwrite(w->fd, w->path, data, (size_t)n, at, e);
    if (rc < 0)
        return rc;
    for (int64_t b = 0; b < n; b += FMT_BLOCK)
        w->block[(at + b) / FMT_BLOCK] = fmt_sum64(data + b, (size_t)(n - b < FMT_BLOCK ? n - b : FMT_BLOCK));
    /* starts writing to the disk early: a hint, the fsync at the end decides */
    sync_file_range(w->fd, at, n, SYNC_FILE_RANGE_WRITE);
    return w->watch ? w->watch->final(w->watch->arg, FILE_NAME, at, n, e) : 0;
}

/* Under the lock. NULL: no memory. */
static char *take_memory(struct panels_write *w)
{
    if (!w->n_spares)
        return calloc(1, (size_t)WINDOW);
    char *data = w->spare[--w->n_spares];
    memset(data, 0, (size_t)WINDOW);
    return data;
}

static void give_memory(struct panels_write *w, char *data)
{
    pthread_mutex_lock(&w->lock);
    if (w->n_spares < SPARES) {
        w->spare[w->n_spares++] = data;
        data = NULL;
    }
    pthread_mutex_unlock(&w->lock);
    free(data);
}

/* n bytes of a piece, or of the header, have their place at `off`. Any thread. */
static int deposit(struct panels_write *w, int64_t off, const char *data, int64_t n, struct err *e)
{
    int rc = 0;
    while (n > 0 && rc >= 0) {
        int64_t i = off / WINDOW, in = off - i * WINDOW, m = WINDOW - in < n ? WINDOW - in : n;
        struct window *x = &w->window[i];
        pthread_mutex_lock(&w->lock);
        if (!x->data)
            x->data = take_memory(w);
        char *to = x->data;
        pthread_mutex_unlock(&w->lock);
        if (!to)
            return err_set(e, ERR_MEMORY, "no memory for a part of %s", w->path);
        memcpy(to + in, data, (size_t)m);

        pthread_mutex_lock(&w->lock);
        int whole = (x->left -= m) == 0;
        if (whole)
            x->data = NULL;
        pthread_mutex_unlock(&w->lock);
        if (whole) {
            rc = write_window(w, i, to, e);
            give_memory(w, to);
        }
        data += m, off += m, n -= m;
    }
    return rc < 0 ? rc : 0;
}

/* Bytes [off, off + n) are to come. */
static void expect(struct panels_write *w, int64_t off, int64_t n)
{
    for (int64_t m; n > 0; off += m, n -= m) {
        m = WINDOW - off % WINDOW < n ? WINDOW - off % WINDOW : n;
        w->window[off / WINDOW].left += m;
    }
}

static int open_windows(struct panels_write *w, int64_t head_bytes, struct err *e)
{
    w->data = head_bytes;
    const struct item *last = &w->item[w->n_items - 1];
    w->bytes = head_bytes + last->offset + last->bytes;
    w->window = calloc((size_t)(w->bytes / WINDOW + 1), sizeof *w->window);
    w->block = calloc((size_t)(w->bytes / FMT_BLOCK + 1), sizeof *w->block);
    if (!w->window || !w->block)
        return err_set(e, ERR_MEMORY, "no memory for the checksums of %s", w->path);
    expect(w, 0, head_bytes);
    for (int i = 0; i < w->n_items; i++) {
        struct item *x = &w->item[i];
        x->offset += head_bytes;
        expect(w, x->offset, x->bytes);
        if (x->pack < 0)
            w->piece[x->piece].offset = x->offset;
        else
            w->pack[x->pack].offset = x->offset;
    }
    for (int i = 0; i < w->n_pieces; i++)
        if (w->piece[i].pack)
            w->piece[i].offset += w->piece[i].pack->offset;
    return 0;
}

/* ---- opening ---- */

static int take_packs(struct panels_write *w, const struct panels_layout *l, struct err *e)
{
    size_t n_leaves = 0;
    for (int i = 0; i < l->n_packs; i++)
        n_leaves += 2 * (size_t)l->pack[i].n_leaves + 1;
    w->pack = calloc((size_t)l->n_packs + 1, sizeof *w->pack);
    w->leaves = calloc(n_leaves + 1, sizeof *w->leaves);
    if (!w->pack || !w->leaves)
        return err_set(e, ERR_MEMORY, "no memory for %d packs", l->n_packs);
    int64_t *at = w->leaves;
    for (int i = 0; i < l->n_packs; i++) {
        const struct panels_pack *from = &l->pack[i];
        size_t n = (size_t)from->n_leaves;
        memcpy(at, from->leaf_end, n * sizeof *at);
        panel_leaves(from->kind, from->dtype, from->n_leaves, at, at + n);
        w->pack[i] = (struct ckpt_pack){ .unit = from->unit,
                                         .kind = from->kind,
                                         .dtype = from->dtype,
                                         .stride = at[2 * n],
                                         .k = at[n - 1],
                                         .n_leaves = from->n_leaves,
                                         .leaf_end = at,
                                         .leaf_offset = at + n };
        at += 2 * n + 1;
    }
    w->n_packs = l->n_packs;
    return 0;
}

static int take_pieces(struct panels_write *w, const struct panels_layout *l, struct err *e)
{
    w->given = calloc((size_t)l->n_pieces + 1, sizeof *w->given);
    w->piece = calloc((size_t)l->n_pieces + 1, sizeof *w->piece);
    w->order = calloc((size_t)l->n_pieces + 1, sizeof *w->order);
    w->item = calloc((size_t)l->n_pieces + (size_t)l->n_packs + 1, sizeof *w->item);
    if (!w->given || !w->piece || !w->order || !w->item || !l->n_pieces)
        return err_set(e, l->n_pieces ? ERR_MEMORY : ERR_FORMAT, "no memory for %d pieces", l->n_pieces);
    for (int i = 0; i < l->n_pieces; i++) {
        const struct panels_piece *p = &l->piece[i];
        int rc = ckpt_piece_check(&(struct ckpt_piece){ p->t, p->box, 0, box_count(&p->box) }, e);
        if (rc < 0)
            return rc;
        w->given[i] = *p;
        w->piece[i] = (struct out_piece){ .p = &w->given[i], .n = box_count(&p->box) };
    }
    w->n_pieces = l->n_pieces;
    return 0;
}

int panels_write_open(struct panels_write **out, const char *dir, const struct panels_layout *l,
                      const struct ckpt_watch *watch, struct err *e)
{
    struct panels_write *w = calloc(1, sizeof *w);
    char *head = NULL;
    size_t head_bytes = 0;
    int large = 0, rc = 0;
    if (!w)
        return err_set(e, ERR_MEMORY, "no memory to write %d pieces", l->n_pieces);
    w->fd = -1;
    w->watch = watch;
    pthread_mutex_init(&w->lock, NULL);
    if (!(w->path = io_join(dir, FILE_NAME)))
        TRY(err_set(e, ERR_MEMORY, "no memory for a path"));
    TRY(take_packs(w, l, e));
    TRY(take_pieces(w, l, e));
    place_runs(w);
    list_items(w);
    place_items(w, &large);
    TRY(make_header(w, (size_t)(large ? PANELS_HUGE : PANELS_PAGE), &head, &head_bytes, e));
    TRY(open_windows(w, (int64_t)head_bytes, e));
    TRY(w->fd = io_create(w->path, e));
    TRY(io_reserve(w->fd, w->path, w->bytes, e));
    if (watch)
        TRY(watch->begin(watch->arg, FILE_NAME, w->bytes, e));
    TRY(deposit(w, 0, head, (int64_t)head_bytes, e));
out:
    free(head);
    if (rc < 0) {
        panels_write_abort(w);
        return rc;
    }
    *out = w;
    return 0;
}

/* ---- data ---- */

static void drop_rows(struct out_piece *o)
{
    free(o->rows);
    free(o->panel);
    o->rows = o->panel = NULL;
}

/* Outputs [first, first + n) are at `from`. */
static int put_panel(struct panels_write *w, struct out_piece *o, int64_t first, int n,
                     struct panel_view from, struct err *e)
{
    if (panel_encode(o->pack, from, n, o->panel) < 0)
        return err_set(
            e, ERR_INTEGRITY,
            "%s does not fit in panels of kind %s any more: does another program change the source",
            o->p->t.name, ckpt_panel_kind_name(o->pack->kind));
    return deposit(w, o->offset + first / COLS * o->pack->stride, o->panel, o->pack->stride, e);
}

static int open_rows(struct out_piece *o, int64_t elements, struct err *e)
{
    if (!o->panel)
        o->panel = malloc((size_t)o->pack->stride);
    if (!o->rows)
        o->rows = malloc((size_t)stored_bytes(o->p->t.dtype, elements));
    return o->rows && o->panel ? 0 : err_set(e, ERR_MEMORY, "no memory for a part of %s", o->p->t.name);
}

/* Rows of a piece are its outputs: 32 of them are a panel. */
static int put_rows(struct panels_write *w, struct out_piece *o, const char *data, int64_t n, struct err *e)
{
    const int64_t k = o->pack->k, size = stored_bytes(o->p->t.dtype, 1), outputs = o->n / k;
    int rc = open_rows(o, COLS * k, e);
    while (n > 0 && rc >= 0) {
        int64_t first = (o->done - o->held) / k, here = outputs - first < COLS ? outputs - first : COLS;
        int64_t m = here * k - o->held < n ? here * k - o->held : n;
        struct panel_view from = { (char *)(uintptr_t)data, k * size, size };
        if (o->held || m < here * k) {
            memcpy(o->rows + o->held * size, data, (size_t)(m * size));
            from.p = o->rows;
        }
        o->held += m;
        o->done += m;
        if (o->held == here * k) {
            rc = put_panel(w, o, first, (int)here, from, e);
            o->held = 0;
        }
        data += m * size;
        n -= m;
    }
    return rc;
}

/* Rows of a piece are elements of the contraction: the whole piece waits for its last one. */
static int put_turned(struct panels_write *w, struct out_piece *o, const char *data, int64_t n, struct err *e)
{
    const int64_t size = stored_bytes(o->p->t.dtype, 1), outputs = o->n / o->pack->k;
    int rc = open_rows(o, o->n, e);
    if (rc < 0)
        return rc;
    memcpy(o->rows + o->done * size, data, (size_t)(n * size));
    o->done += n;
    for (int64_t first = 0; o->done == o->n && first < outputs && rc >= 0; first += COLS) {
        int here = (int)(outputs - first < COLS ? outputs - first : COLS);
        rc = put_panel(w, o, first, here, (struct panel_view){ o->rows + first * size, size, outputs * size },
                       e);
    }
    return rc;
}

int panels_write_put(struct panels_write *w, int piece, const void *data, int64_t n, struct err *e)
{
    struct out_piece *o = &w->piece[piece];
    const struct panels_piece *p = o->p;
    int rc;
    if (n < 0 || n > o->n - o->done)
        return err_set(e, ERR_INTERNAL, "%lld elements more than the piece of %s has: please report it",
                       (long long)n, p->t.name);
    if (!p->is_copy)
        ckpt_digest_add(&o->digest, p->t.dtype, p->t.n_dims, p->t.shape, &p->box, o->done, o->done + n, data);
    if (o->pack) {
        rc = (p->out_dim < p->in_dim ? put_rows : put_turned)(w, o, data, n, e);
    } else {
        int64_t at = o->offset + stored_bytes(p->t.dtype, o->done);
        o->done += n;
        rc = deposit(w, at, data, stored_bytes(p->t.dtype, n), e);
    }
    if (o->done == o->n)
        drop_rows(o);
    return rc < 0 ? rc : 0;
}

/* ---- end ---- */

static void write_free(struct panels_write *w)
{
    int64_t n_windows = w->window ? w->bytes / WINDOW + 1 : 0;
    for (int64_t i = 0; i < n_windows; i++)
        free(w->window[i].data);
    for (int i = 0; i < w->n_spares; i++)
        free(w->spare[i]);
    for (int i = 0; w->piece && i < w->n_pieces; i++)
        drop_rows(&w->piece[i]);
    io_close(w->fd);
    pthread_mutex_destroy(&w->lock);
    free(w->window);
    free(w->block);
    free(w->given);
    free(w->piece);
    free(w->order);
    free(w->item);
    free(w->pack);
    free(w->leaves);
    free(w->path);
    free(w);
}

void panels_write_abort(struct panels_write *w)
{
    struct err ignored;
    if (!w)
        return;
    if (w->path)
        io_unlink(w->path, &ignored);
    write_free(w);
}

static void put_line(struct buf *to, json_t *o)
{
    jx_put(to, o);
    buf_add(to, "\n", 1);
    json_decref(o);
}

static json_t *pack_json(const struct ckpt_pack *k)
{
    return json_pack("{s:i, s:s, s:s, s:I, s:I, s:I, s:o}", MANIFEST_UNIT, k->unit, "kind",
                     ckpt_panel_kind_name(k->kind), "dtype", stored_dtype_name(k->dtype), "offset",
                     (json_int_t)k->offset, "bytes", (json_int_t)k->bytes, "stride", (json_int_t)k->stride,
                     MANIFEST_LEAVES, manifest_ints(k->leaf_end, k->n_leaves));
}

static json_t *piece_json(const struct out_piece *o)
{
    const struct panels_piece *p = o->p;
    json_t *out = manifest_shard_piece(&p->t, &p->box, 0, o->n, o->offset, o->digest);
    if (out && o->pack) {
        json_object_set_new(out, MANIFEST_PACK, json_integer(p->pack));
        json_object_set_new(out, MANIFEST_OUTPUTS, json_integer(p->out_dim));
        json_object_set_new(out, MANIFEST_INPUTS, json_integer(p->in_dim));
        if (p->is_copy)
            json_object_set_new(out, MANIFEST_COPY, json_true());
    }
    return out;
}

/* The table of a shard (shard.c) with a line for each pack behind that of the file. */
static int make_table(const struct panels_write *w, void **table, size_t *bytes, struct err *e)
{
    struct buf text = { 0 };
    int64_t n_blocks = (w->bytes + FMT_BLOCK - 1) / FMT_BLOCK;
    put_line(&text, manifest_shard_file(FILE_NAME, w->bytes, w->block, n_blocks, w->n_pieces));
    for (int i = 0; i < w->n_packs; i++)
        put_line(&text, pack_json(&w->pack[i]));
    int run = 0; /* packs lie in the order of their numbers */
    while (run < w->n_pieces && !w->order[run]->pack)
        run++;
    for (int i = 0; i < w->n_items; i++) {
        const struct item *x = &w->item[i];
        if (x->pack < 0)
            put_line(&text, piece_json(&w->piece[x->piece]));
        for (int r = 0; x->pack >= 0 && r < w->pack[x->pack].n_runs; r++)
            put_line(&text, piece_json(w->order[run++]));
    }
    if (text.failed) {
        buf_free(&text);
        return err_set(e, ERR_MEMORY, "no memory for the table of %d pieces", w->n_pieces);
    }
    *table = text.p;
    *bytes = text.n;
    return 0;
}

int panels_write_close(struct panels_write *w, void **table, size_t *bytes, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < w->n_pieces; i++)
        if (w->piece[i].done != w->piece[i].n)
            TRY(err_set(e, ERR_INTERNAL, "%s got %lld of %lld elements: please report it", w->given[i].t.name,
                        (long long)w->piece[i].done, (long long)w->piece[i].n));
    int fd = w->fd;
    w->fd = -1; /* closed also when the fsync fails, which must not be tried again */
    TRY(io_sync_close(fd, w->path, e));
    TRY(make_table(w, table, bytes, e));
out:
    if (rc < 0)
        panels_write_abort(w);
    else
        write_free(w);
    return rc < 0 ? rc : 0;
}
