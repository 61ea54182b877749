/* shard.c - one rank's files of a native checkpoint: lays out the pieces, writes their data, computes
 * checksums and digests on the way.
 *
 * Pieces are laid out by element size, role, name and box, so that the bytes of a file do not depend on the
 * order in which the caller lists them. Data of different pieces may arrive in any order: a checksum block
 * that lies inside one piece is summed as its bytes arrive; the few blocks that two pieces share are read
 * back at the end, while they are still in memory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sync_file_range */
#endif
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"
#include "format/ckpt_write.h"
#include "format/fmt.h"
#include "format/native/manifest.h"
#include "format/native/out_file.h"
#include "format/native/zst.h"
#include "format/hf/safetensors.h"
#include "store/memory.h"

#define XXH_STATIC_LINKING_ONLY /* for hash states inside of our own structures */
#include <xxhash.h>

#define CHECK_BYTES (128 << 10) /* read back at once: they stay in the second-level cache */
#define PUT_BYTES (256 << 10)   /* written at once, likewise */

enum { FILE_WEIGHTS, FILE_OPTIM, FILES };
static const char *const file_kind[FILES] = { "weights", "optim" };

struct out_file {
    char name[40], *path;
    int fd, n;                   /* n: pieces in it */
    int64_t bytes, data, stored; /* stored: of the compressed file */
    int64_t *frame;              /* compressed: see zst.c; or NULL */
    unsigned char *width;        /* in byte planes: bytes of an element, a block; or NULL */
    uint64_t *block;
    unsigned char *have;   /* [blocks] 1: block is set */
    _Atomic int64_t *left; /* [blocks] watched: bytes that are not there yet; or NULL */
    struct out_memory memory;
};
struct out_piece {
    const struct ckpt_piece *p;
    int file;
    int64_t offset, bytes, done;
    int64_t checked; /* of done: read back */
    struct ckpt_digest digest;
    XXH64_state_t sum; /* of the block that is being written */
};
struct ckpt_shard {
    char *dir;
    int n, deferred, level; /* deferred: ckpt_shard_check computes the sums; level: of the codec */
    enum ckpt_codec codec;
    const struct ckpt_watch *watch; /* or NULL */
    struct ckpt_piece *given;       /* [n] a copy, as the caller numbers them */
    struct out_piece *piece;        /* [n] likewise */
    struct out_piece **order;       /* in the order of the files */
    struct out_file file[FILES];
};

/* ---- layout ---- */

static int64_t piece_elements(const struct ckpt_piece *p) { return p->hi - p->lo; }

/* The number of elements in `bytes` bytes of a piece; bytes: as stored_bytes() counts them. */
static int64_t elements_in(const struct ckpt_piece *p, int64_t bytes)
{
    return bytes * 8 / stored_dtype_bits(p->t.dtype);
}

static int is_whole_box(const struct ckpt_piece *p) { return p->lo == 0 && p->hi == box_count(&p->box); }

static int compare_out(const void *pa, const void *pb)
{
    const struct out_piece *a = *(struct out_piece *const *)pa, *b = *(struct out_piece *const *)pb;
    int c;
    if (a->file != b->file)
        return a->file - b->file;
    /* the largest elements first: every element is aligned to its size */
    int a_bits = stored_dtype_bits(a->p->t.dtype), b_bits = stored_dtype_bits(b->p->t.dtype);
    if (a_bits != b_bits)
        return a_bits > b_bits ? -1 : 1;
    if ((c = fmt_compare_tensors(&a->p->t, &b->p->t)))
        return c;
    for (int d = 0; d < a->p->box.n_dims; d++)
        if (a->p->box.start[d] != b->p->box.start[d])
            return a->p->box.start[d] < b->p->box.start[d] ? -1 : 1;
    return (a->p->lo > b->p->lo) - (a->p->lo < b->p->lo);
}

/* Role prefix, name, and @k where it is piece k > 0 of its tensor in this file; the caller frees it. */
static char *stored_name(const struct ckpt_tensor *t, int k)
{
    size_t room = strlen(ckpt_role_prefix[t->role]) + strlen(t->name) + 16;
    char *name = malloc(room), at[16] = "";
    if (k)
        snprintf(at, sizeof at, "@%d", k);
    if (name)
        snprintf(name, room, "%s%s%s", ckpt_role_prefix[t->role], t->name, at);
    return name;
}

static int fill_entry(struct st_entry *t, const struct out_piece *o, int k, int64_t *at, struct err *e)
{
    const struct ckpt_piece *p = o->p;
    t->name = stored_name(&p->t, k);
    t->dtype = p->t.dtype;
    t->n_dims = is_whole_box(p) ? p->box.n_dims : 1;
    t->shape[0] = piece_elements(p);
    for (int d = 0; is_whole_box(p) && d < p->box.n_dims; d++)
        t->shape[d] = p->box.extent[d];
    if (t->n_dims == BOX_DIMS && p->box.extent[BOX_DIMS - 1] == p->t.shape[BOX_DIMS - 1])
        t->tail = (char *)p->t.tail;
    t->begin = *at;
    t->end = *at += o->bytes;
    return t->name ? 0 : err_set(e, ERR_MEMORY, "no memory for the names of %s", p->t.name);
}

/* Creates file f and writes its header; order: its pieces. */
static int start_file(struct ckpt_shard *s, struct out_file *f, struct out_piece **order, struct err *e)
{
    struct st_entry *entry = calloc((size_t)f->n, sizeof *entry);
    char *head = NULL;
    size_t head_bytes = 0;
    int64_t at = 0, n_blocks;
    int rc = 0, k = 0;
    f->path = io_join(s->dir, f->name);
    if (!entry || !f->path) {
        rc = err_set(e, ERR_MEMORY, "no memory for the header of %s", f->name);
        goto out;
    }
    for (int i = 0; i < f->n; i++) {
        k = i && !fmt_compare_tensors(&order[i]->p->t, &order[i - 1]->p->t) ? k + 1 : 0;
        TRY(fill_entry(&entry[i], order[i], k, &at, e));
    }
    TRY(st_make(entry, f->n, ST_ALIGN, &head, &head_bytes, e));
    f->data = (int64_t)head_bytes;
    f->bytes = f->data + at;
    n_blocks = (f->bytes + FMT_BLOCK - 1) / FMT_BLOCK;
    f->block = calloc((size_t)n_blocks, sizeof *f->block);
    f->have = calloc((size_t)n_blocks, 1);
    if (!f->block || !f->have) {
        rc = err_set(e, ERR_MEMORY, "no memory for the checksums of %s", f->name);
        goto out;
    }
    for (int i = 0; i < f->n; i++)
        order[i]->offset = f->data + entry[i].begin;
    TRY(f->fd = out_create(s->dir, f->name, f->path, e));
    TRY(io_pwrite(f->fd, f->path, head, head_bytes, 0, e));
    TRY(out_map(&f->memory, f->fd, s->dir, f->path, (size_t)f->bytes, e));
out:
    for (int i = 0; entry && i < f->n; i++)
        free(entry[i].name);
    free(entry);
    free(head);
    return rc < 0 ? rc : 0;
}

int ckpt_piece_check(const struct ckpt_piece *p, struct err *e)
{
    int64_t bytes;
    int rc = fmt_name_check(p->t.name, strlen(p->t.name), "a piece to write", e);
    if (rc < 0 || (rc = fmt_shape_check(p->t.dtype, p->t.n_dims, p->t.shape, "a piece to write", p->t.name,
                                        &bytes, e)) < 0)
        return rc;
    int ok = p->t.n_dims >= 1 && p->t.n_dims <= BOX_DIMS && p->box.n_dims == p->t.n_dims;
    for (int d = 0; d < p->t.n_dims && ok; d++)
        ok = p->box.start[d] >= 0 && p->box.extent[d] >= 0 &&
             p->box.start[d] + p->box.extent[d] <= p->t.shape[d];
    if (!ok || p->lo < 0 || p->hi < p->lo || p->hi > box_count(&p->box))
        return err_set(e, ERR_INTERNAL, "a piece of %s lies outside of it: please report it", p->t.name);
    return fmt_box_check(&p->t, &p->box, p->lo, p->hi, e);
}

/* 1: the piece is empty, and its tensor is not. A tensor without elements keeps its empty piece, so that it
 * is not lost. */
static int left_out(const struct ckpt_piece *p)
{
    struct box whole = box_whole(p->t.n_dims, p->t.shape);
    return p->lo == p->hi && box_count(&whole) > 0;
}

int ckpt_shard_open(struct ckpt_shard **out, const char *dir, int rank, int n_pieces,
                    const struct ckpt_piece *p, struct err *e)
{
    return ckpt_shard_open_named(out, dir, rank, NULL, n_pieces, p, e);
}

int ckpt_shard_open_named(struct ckpt_shard **out, const char *dir, int rank, const char *weights,
                          int n_pieces, const struct ckpt_piece *p, struct err *e)
{
    size_t n = (size_t)n_pieces + 1;
    struct ckpt_shard *s = calloc(1, sizeof *s);
    int rc = 0, kept = 0, first = 0;
    if (!s)
        return err_set(e, ERR_MEMORY, "no memory to write %d pieces", n_pieces);
    for (int f = 0; f < FILES; f++) {
        s->file[f].fd = -1;
        snprintf(s->file[f].name, sizeof s->file[f].name, "%s-%05d.safetensors", file_kind[f], rank);
    }
    if (weights)
        snprintf(s->file[FILE_WEIGHTS].name, sizeof s->file[FILE_WEIGHTS].name, "%s", weights);
    s->n = n_pieces;
    s->dir = strdup(dir);
    s->given = malloc(sizeof *s->given * n);
    s->piece = calloc(n, sizeof *s->piece);
    s->order = calloc(n, sizeof *s->order);
    if (!s->dir || !s->given || !s->piece || !s->order) {
        rc = err_set(e, ERR_MEMORY, "no memory to write %d pieces", n_pieces);
        goto out;
    }
    for (int i = 0; i < n_pieces; i++) {
        TRY(ckpt_piece_check(&p[i], e));
        s->given[i] = p[i];
        struct out_piece *o = &s->piece[i];
        o->p = &s->given[i];
        o->file = p[i].t.role == ROLE_WEIGHT ? FILE_WEIGHTS : FILE_OPTIM;
        o->bytes = stored_bytes(p[i].t.dtype, piece_elements(&p[i]));
        if (left_out(&p[i]))
            continue;
        s->order[kept++] = o;
        s->file[o->file].n++;
    }
    qsort(s->order, (size_t)kept, sizeof *s->order, compare_out);
    for (int f = 0; f < FILES; f++) {
        if (s->file[f].n)
            TRY(start_file(s, &s->file[f], s->order + first, e));
        first += s->file[f].n;
    }
out:
    if (rc < 0) {
        ckpt_shard_abort(s);
        return err_add(e, "writing shard %d", rank);
    }
    *out = s;
    return 0;
}

/* ---- data ---- */

/* Adds n bytes of a piece, at off in the file, to the checksum of every block that lies inside the piece. */
static void sum_blocks(struct out_file *f, struct out_piece *o, const char *data, int64_t off, int64_t n)
{
    while (n > 0) {
        int64_t b = off / FMT_BLOCK, begin = b * FMT_BLOCK,
                end = begin + FMT_BLOCK < f->bytes ? begin + FMT_BLOCK : f->bytes;
        int64_t m = end - off < n ? end - off : n;
        if (begin >= o->offset && end <= o->offset + o->bytes) {
            if (off == begin)
                XXH64_reset(&o->sum, 0);
            XXH64_update(&o->sum, data, (size_t)m);
            if (off + m == end) {
                f->block[b] = XXH64_digest(&o->sum);
                f->have[b] = 1;
            }
        }
        data += m, off += m, n -= m;
    }
}

static int64_t block_bytes(const struct out_file *f, int64_t b)
{
    return f->bytes - b * FMT_BLOCK < FMT_BLOCK ? f->bytes - b * FMT_BLOCK : FMT_BLOCK;
}

/* The checksum of a block that two pieces share, from the file. */
static int sum_shared(struct out_file *f, int64_t b, struct err *e)
{
    int64_t n = block_bytes(f, b);
    char *data = malloc((size_t)n);
    int rc = data ? io_pread(f->fd, f->path, data, (size_t)n, b * FMT_BLOCK, e)
                  : err_set(e, ERR_MEMORY, "no memory for a block of %s", f->name);
    if (rc >= 0) {
        f->block[b] = fmt_sum64(data, (size_t)n);
        f->have[b] = 1;
    }
    free(data);
    return rc < 0 ? rc : 0;
}

/* Bytes [off, off + n) of a watched file are there and summed. A block is final when all of its bytes are. */
static int settle(struct ckpt_shard *s, struct out_file *f, int64_t off, int64_t n, struct err *e)
{
    int rc = 0;
    while (f->left && n > 0 && rc >= 0) {
        int64_t b = off / FMT_BLOCK, end = b * FMT_BLOCK + block_bytes(f, b),
                m = end - off < n ? end - off : n;
        if (atomic_fetch_sub(&f->left[b], m) == m) {
            rc = f->have[b] ? 0 : sum_shared(f, b, e);
            rc = rc < 0 ? rc : s->watch->final(s->watch->arg, f->name, b * FMT_BLOCK, block_bytes(f, b), e);
        }
        off += m, n -= m;
    }
    return rc < 0 ? rc : 0;
}

int ckpt_shard_watch(struct ckpt_shard *s, const struct ckpt_watch *w, struct err *e)
{
    int rc = 0;
    s->watch = w;
    for (int i = 0; i < FILES; i++) {
        struct out_file *f = &s->file[i];
        int64_t n_blocks = (f->bytes + FMT_BLOCK - 1) / FMT_BLOCK;
        if (!f->n)
            continue;
        if (!(f->left = calloc((size_t)n_blocks, sizeof *f->left)))
            return err_set(e, ERR_MEMORY, "no memory to watch %s", f->name);
        for (int64_t b = 0; b < n_blocks; b++)
            f->left[b] = block_bytes(f, b);
        TRY(w->begin(w->arg, f->name, f->bytes, e));
        TRY(settle(s, f, 0, f->data, e));
    }
out:
    return rc < 0 ? rc : 0;
}

/* The next n bytes of a piece. */
static int put_bytes(struct ckpt_shard *s, struct out_piece *o, const char *data, int64_t n, struct err *e)
{
    const struct ckpt_piece *p = o->p;
    struct out_file *f = &s->file[o->file];
    const int64_t off = o->offset + o->done, at = p->lo + elements_in(p, o->done);
    int rc = f->memory.at ? out_fill(&f->memory, f->path, data, (size_t)n, (size_t)off, e)
                          : io_pwrite(f->fd, f->path, data, (size_t)n, off, e);
    if (rc < 0)
        return rc;
    if (!s->deferred) {
        sum_blocks(f, o, data, off, n);
        ckpt_digest_add(&o->digest, p->t.dtype, p->t.n_dims, p->t.shape, &p->box, at, at + elements_in(p, n),
                        data);
    }
    o->done += n;
    return 0;
}

int ckpt_shard_put(struct ckpt_shard *s, int piece, const void *data, int64_t n_elements, struct err *e)
{
    struct out_piece *o = &s->piece[piece];
    const enum stored_dtype t = o->p->t.dtype;
    const char *from = data;
    int64_t n = stored_bytes(t, n_elements);
    if (n_elements < 0 || n > o->bytes - o->done)
        return err_set(e, ERR_INTERNAL, "%lld elements more than the piece of %s has: please report it",
                       (long long)n_elements, o->p->t.name);
    /* what is written is summed while a cache has it */
    const int64_t most = s->deferred ? n : stored_bytes(t, stored_elements(t, PUT_BYTES));
    for (int64_t some; n > 0; from += some, n -= some) {
        some = n < most ? n : most;
        int rc = put_bytes(s, o, from, some, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void ckpt_shard_compress(struct ckpt_shard *s, enum ckpt_codec codec, int level)
{
    s->codec = codec;
    s->level = level;
}

void ckpt_shard_defer(struct ckpt_shard *s) { s->deferred = 1; }

int ckpt_shard_check(struct ckpt_shard *s, int piece, struct ckpt_digest *got, struct err *e)
{
    char data[CHECK_BYTES];
    struct out_piece *o = &s->piece[piece];
    const struct ckpt_piece *p = o->p;
    struct out_file *f = &s->file[o->file];
    while (o->checked < o->done) {
        int64_t most = stored_bytes(p->t.dtype, stored_elements(p->t.dtype, CHECK_BYTES));
        int64_t n = o->done - o->checked < most ? o->done - o->checked : most;
        int64_t at = p->lo + elements_in(p, o->checked);
        int rc = io_pread(f->fd, f->path, data, (size_t)n, o->offset + o->checked, e);
        if (rc < 0)
            return rc;
        sum_blocks(f, o, data, o->offset + o->checked, n);
        ckpt_digest_add(&o->digest, p->t.dtype, p->t.n_dims, p->t.shape, &p->box, at, at + elements_in(p, n),
                        data);
        if ((rc = settle(s, f, o->offset + o->checked, n, e)) < 0)
            return rc;
        o->checked += n;
    }
    /* starts writing to the disk early: a hint, the fsync at the end decides */
    if (o->bytes && o->done == o->bytes)
        sync_file_range(f->fd, o->offset, o->bytes, SYNC_FILE_RANGE_WRITE);
    *got = o->digest;
    return 0;
}

/* ---- end ---- */

static int read_back(struct out_file *f, struct err *e)
{
    int rc = 0;
    char *data = malloc((size_t)FMT_BLOCK);
    if (!data)
        return err_set(e, ERR_MEMORY, "no memory for a block of %s", f->name);
    for (int64_t b = 0; b * FMT_BLOCK < f->bytes; b++) {
        int64_t n = f->bytes - b * FMT_BLOCK < FMT_BLOCK ? f->bytes - b * FMT_BLOCK : FMT_BLOCK;
        if (f->have[b])
            continue;
        TRY(io_pread(f->fd, f->path, data, (size_t)n, b * FMT_BLOCK, e));
        f->block[b] = fmt_sum64(data, (size_t)n);
    }
out:
    free(data);
    return rc < 0 ? rc : 0;
}

/* Sets the width of every block: the size of the elements in its middle, because few blocks have elements of
 * two sizes. order: the pieces of f. */
static void find_widths(struct out_file *f, struct out_piece *const *order)
{
    int64_t n_blocks = (f->bytes + FMT_BLOCK - 1) / FMT_BLOCK;
    int k = 0;
    for (int64_t b = 0; b < n_blocks; b++) {
        int64_t end = (b + 1) * FMT_BLOCK < f->bytes ? (b + 1) * FMT_BLOCK : f->bytes,
                middle = b * FMT_BLOCK + (end - b * FMT_BLOCK) / 2;
        while (k + 1 < f->n && order[k + 1]->offset <= middle)
            k++;
        int size = stored_dtype_bits(order[k]->p->t.dtype) / 8;
        f->width[b] = (unsigned char)(order[k]->offset <= middle && size > 1 ? size : 1);
    }
}

/* Replaces the plain file by its compressed form. */
static int compress_file(struct out_file *f, const struct ckpt_shard *s, struct out_piece *const *order,
                         struct err *e)
{
    int64_t n_blocks = (f->bytes + FMT_BLOCK - 1) / FMT_BLOCK;
    const char *suffix = s->codec == CODEC_PLANES ? FMT_PLANES_ZSTD : FMT_ZSTD;
    char name[sizeof f->name], *path;
    snprintf(name, sizeof name, "%.*s%s", (int)(sizeof name - sizeof FMT_PLANES_ZSTD), f->name, suffix);
    path = io_join(s->dir, name);
    f->frame = malloc(sizeof *f->frame * (size_t)(n_blocks + 1));
    f->width = s->codec == CODEC_PLANES ? malloc((size_t)n_blocks + 1) : NULL;
    if (!path || !f->frame || (s->codec == CODEC_PLANES && !f->width)) {
        free(path);
        return err_set(e, ERR_MEMORY, "no memory to compress %s", f->name);
    }
    if (f->width)
        find_widths(f, order);
    struct zst_packed got = { .frame = f->frame, .sum = f->block };
    int rc = zst_pack(f->path, path, f->bytes, (struct zst_how){ s->level, f->width }, &got, e);
    f->stored = got.stored;
    struct err ignored;
    if (rc >= 0)
        rc = io_unlink(f->path, e);
    if (rc < 0) {
        io_unlink(path, &ignored);
        free(path);
        return rc;
    }
    free(f->path);
    f->path = path;
    memcpy(f->name, name, sizeof name);
    return 0;
}

static int finish_file(struct out_file *f, const struct ckpt_shard *s, struct out_piece *const *order,
                       struct err *e)
{
    int fd = f->fd, rc;
    if (s->codec && memory_is(s->dir))
        return err_set(e, ERR_USAGE, "%s: files in memory are not compressed: leave --compress out", s->dir);
    if (s->codec) { /* the plain bytes need not reach the disk */
        io_close(fd);
        f->fd = -1;
        return compress_file(f, s, order, e);
    }
    out_unmap(&f->memory);
    rc = read_back(f, e);
    if (rc < 0)
        return rc;
    /* closed by out_finish, also when it fails: an fsync that failed must not be tried again */
    f->fd = -1;
    return out_finish(fd, s->dir, f->name, f->path, e);
}

static json_t *piece_json(const struct out_piece *o)
{
    const struct ckpt_piece *p = o->p;
    return manifest_shard_piece(&p->t, &p->box, p->lo, p->hi, o->offset, o->digest);
}

static json_t *digits_json(const unsigned char *v, int64_t n)
{
    char *text = malloc((size_t)n + 1);
    for (int64_t i = 0; text && i < n; i++)
        text[i] = (char)('0' + v[i]);
    json_t *o = text ? json_stringn(text, (size_t)n) : NULL;
    free(text);
    return o;
}

/* A file without its pieces. */
static json_t *file_json(const struct out_file *f)
{
    int64_t n_blocks = (f->bytes + FMT_BLOCK - 1) / FMT_BLOCK;
    json_t *o = manifest_shard_file(f->name, f->frame ? f->stored : f->bytes, f->block, n_blocks, f->n);
    if (f->frame) {
        json_t *frames = json_array();
        for (int64_t i = 0; i < n_blocks; i++)
            json_array_append_new(frames, json_integer(f->frame[i + 1] - f->frame[i]));
        json_object_set_new(o, "frames", frames);
        json_object_set_new(o, "plain", json_integer(f->bytes));
        if (f->width)
            json_object_set_new(o, "planes", digits_json(f->width, n_blocks));
    }
    return o;
}

static void put_line(struct buf *to, json_t *o)
{
    jx_put(to, o);
    buf_add(to, "\n", 1);
    json_decref(o);
}

/* A line a file, behind it a line for each of its pieces. */
static int make_table(struct ckpt_shard *s, void **table, size_t *bytes, struct err *e)
{
    struct buf text = { 0 };
    for (int f = 0, first = 0; f < FILES; first += s->file[f++].n) {
        if (s->file[f].n)
            put_line(&text, file_json(&s->file[f]));
        for (int i = 0; i < s->file[f].n; i++)
            put_line(&text, piece_json(s->order[first + i]));
    }
    buf_add(&text, "\n", 1); /* also a shard without pieces has a table */
    if (text.failed) {
        buf_free(&text);
        return err_set(e, ERR_MEMORY, "no memory for the table of %d pieces", s->n);
    }
    *table = text.p;
    *bytes = text.n;
    return 0;
}

static void shard_free(struct ckpt_shard *s)
{
    for (int f = 0; f < FILES; f++) {
        out_unmap(&s->file[f].memory);
        io_close(s->file[f].fd);
        free(s->file[f].path);
        free(s->file[f].block);
        free(s->file[f].have);
        free((void *)s->file[f].left);
        free(s->file[f].frame);
        free(s->file[f].width);
    }
    free(s->dir);
    free(s->given);
    free(s->piece);
    free(s->order);
    free(s);
}

int ckpt_shard_close(struct ckpt_shard *s, void **table, size_t *bytes, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < s->n; i++)
        if (s->piece[i].done != s->piece[i].bytes) {
            rc = err_set(e, ERR_INTERNAL, "%s got %lld of %lld bytes: please report it", s->given[i].t.name,
                         (long long)s->piece[i].done, (long long)s->piece[i].bytes);
            goto out;
        }
    for (int f = 0, first = 0; f < FILES; first += s->file[f++].n)
        if (s->file[f].n)
            TRY(finish_file(&s->file[f], s, s->order + first, e));
    TRY(make_table(s, table, bytes, e));
out:
    if (rc < 0)
        ckpt_shard_abort(s);
    else
        shard_free(s);
    return rc < 0 ? rc : 0;
}

void ckpt_shard_abort(struct ckpt_shard *s)
{
    struct err ignored;
    if (!s)
        return;
    for (int f = 0; f < FILES; f++)
        if (s->file[f].path && !memory_is(s->dir))
            io_unlink(s->file[f].path, &ignored);
    shard_free(s);
}
