/* read.c - reads boxes of tensors from files; blocks with checksums are checked before they are used.
 *
 *     request (box b, range [lo, hi)) -> pieces of the tensor -> runs contiguous in both
 *     -> blocks of 1 MiB -> dst
 * Both walks ascend, so that a block is read once for each piece; the blocks read last are kept for the next
 * small tensor. */
#include "format/fmt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/io.h"
#include "format/native/panels_table.h"
#include "format/native/zst.h"
#include "format/remote/remote_list.h"
#include "store/memory.h"
#include "store/url_cache.h"

/* files open at once in one checkpoint: it may have those of a thousand ranks */
#define OPEN_MAX 128
#define HOLD_MAX 64   /* of these, ckpt_hold_files() keeps open */
#define SMALL_RUN 512 /* bytes: shorter runs are read through a window, without checksums too */
#define WINDOW ((int64_t)64 << 10)
/* of a read that digests prove: shorter runs go through a window of WIDE bytes */
#define WIDE_RUN ((int64_t)32 << 10)
#define WIDE ((int64_t)256 << 10)
/* bytes: what a piece that is not row-major may span to be read at once */
#define STRIDED_MAX ((int64_t)64 << 20)

struct fmt_file *fmt_add_file(struct ckpt *c, const char *name, int64_t bytes, struct err *e)
{
    struct fmt_file *grown = realloc(c->file, sizeof *grown * (size_t)(c->n_files + 1));
    if (grown) {
        c->file = grown;
        struct fmt_file *f = &grown[c->n_files];
        memset(f, 0, sizeof *f);
        f->fd = -1;
        f->bytes = bytes;
        f->name = strdup(name);
        f->path = io_join(c->dir, name);
        f->real = c->memory ? fmt_place(c, name) : NULL;
        c->n_files++;
        if (f->path && (f->real || !c->memory))
            io_mark_path(fmt_real(f), &f->mark);
        if (f->name && f->path && (f->real || !c->memory))
            return f;
    }
    err_set(e, ERR_MEMORY, "%s: no memory for the table of files", c->path);
    return NULL;
}

char *fmt_place(const struct ckpt *c, const char *name)
{
    const char *path = c->memory ? memory_file(c->memory, name) : NULL;
    return path ? strdup(path) : io_join(c->dir, name);
}

/* ---- open files ---- */

static int close_oldest(struct ckpt *c)
{
    struct fmt_file *old = NULL;
    for (struct fmt_file *f = c->file; f < c->file + c->n_files; f++)
        if (f->fd >= 0 && f->users == 0 && (!old || f->used < old->used))
            old = f;
    if (!old)
        return 0;
    io_close(old->fd);
    old->fd = -1;
    c->n_open--;
    return 1;
}

void ckpt_release_files(struct ckpt *c)
{
    c = fmt_bottom(c);
    pthread_mutex_lock(&c->lock);
    while (close_oldest(c))
        ;
    for (int i = 0; i < FMT_CACHE; i++) {
        free(c->cache[i].data);
        c->cache[i].data = NULL;
    }
    pthread_mutex_unlock(&c->lock);
}

int fmt_acquire(struct ckpt *c, int file, int *fd, struct err *e)
{
    struct fmt_file *f = &c->file[file];
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    if (f->fd < 0) {
        if (c->n_open >= OPEN_MAX)
            close_oldest(c);
        rc = io_open_read(fmt_real(f), e);
        if (rc >= 0) {
            f->fd = rc;
            c->n_open++;
        }
    }
    if (rc >= 0) {
        f->users++;
        f->used = ++c->clock;
        *fd = f->fd;
    }
    pthread_mutex_unlock(&c->lock);
    return rc < 0 ? rc : 0;
}

void fmt_release(struct ckpt *c, int file)
{
    pthread_mutex_lock(&c->lock);
    c->file[file].users--;
    pthread_mutex_unlock(&c->lock);
}

int ckpt_hold_files(struct ckpt *c, struct err *e)
{
    c = fmt_bottom(c);
    int held = 0, fd;
    for (int f = 0; f < c->n_files && held < HOLD_MAX && !c->live && !c->remote; f++) {
        if (!c->file[f].block)
            continue;
        int rc = fmt_acquire(c, f, &fd, e); /* never released: stays open */
        if (rc < 0)
            return rc;
        held++;
    }
    return 0;
}

int fmt_pread(struct ckpt *c, int file, void *dst, int64_t n, int64_t off, struct err *e)
{
    if (c->is_done)
        return err_set(e, ERR_INTERNAL, "%s is read after ckpt_end_reading: please report it",
                       c->file[file].name);
    if (c->live) {
        int got = live_read(c, c->file[file].name, dst, n, off, e);
        if (got >= 0)
            atomic_fetch_add(&c->bytes_read, n);
        return got;
    }
    int fd, rc = c->remote ? url_cache_need(c->remote, c->file[file].name, off, n, 0, e) : 0;
    if (rc < 0 || (rc = fmt_acquire(c, file, &fd, e)) < 0)
        return rc;
    rc = io_pread(fd, c->file[file].path, dst, (size_t)n, off, e);
    fmt_release(c, file);
    if (rc >= 0)
        atomic_fetch_add(&c->bytes_read, n);
    return rc < 0 ? rc : 0;
}

/* ---- blocks with checksums ---- */

int64_t fmt_block_bytes(const struct fmt_file *f, int64_t b)
{
    int64_t left = f->bytes - b * FMT_BLOCK;
    return left < FMT_BLOCK ? left : FMT_BLOCK;
}

int fmt_read_block(struct ckpt *c, int file, int64_t b, void *data, struct err *e)
{
    struct fmt_file *f = &c->file[file];
    int64_t n = fmt_block_bytes(f, b);
    int rc = f->frame ? zst_read_block(c, file, b, data, e) : fmt_pread(c, file, data, n, b * FMT_BLOCK, e);
    if (rc < 0)
        return rc;
    if (!f->frame && fmt_sum64(data, (size_t)n) != f->block[b])
        return err_set(
            e, ERR_INTEGRITY,
            "%s: bytes %lld to %lld do not have the checksum in %s: restore the file from a good copy",
            f->path, (long long)(b * FMT_BLOCK), (long long)(b * FMT_BLOCK + n), FMT_MANIFEST);
    atomic_store_explicit(&f->seen[b], 1, memory_order_relaxed);
    return 0;
}

/* Takes a block out of the cache; its memory is the caller's until cache_put. NULL: it is not there. */
static char *cache_take(struct ckpt *c, int file, int64_t block)
{
    char *data = NULL;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < FMT_CACHE && !data; i++)
        if (c->cache[i].data && c->cache[i].file == file && c->cache[i].block == block) {
            data = c->cache[i].data;
            c->cache[i].data = NULL;
        }
    pthread_mutex_unlock(&c->lock);
    return data;
}

static void cache_put(struct ckpt *c, int file, int64_t block, char *data)
{
    pthread_mutex_lock(&c->lock);
    struct fmt_cached *slot = &c->cache[c->cache_next];
    for (int i = 0; i < FMT_CACHE; i++)
        if (!c->cache[i].data)
            slot = &c->cache[i];
    if (slot->data)
        c->cache_next = (c->cache_next + 1) % FMT_CACHE;
    free(slot->data);
    *slot = (struct fmt_cached){ file, block, data };
    pthread_mutex_unlock(&c->lock);
}

/* Readers never need the header of a native file, but damage in it must not go unnoticed: it is checked on
 * the first use of the file. */
int fmt_check_head(struct ckpt *c, int file, struct err *e)
{
    struct fmt_file *f = &c->file[file];
    if (!f->block || atomic_load(&f->head_checked))
        return 0;
    for (int64_t b = 0; b * FMT_BLOCK < f->data; b++) {
        if (atomic_load(&f->seen[b]))
            continue;
        char *data = malloc((size_t)FMT_BLOCK);
        if (!data)
            return err_set(e, ERR_MEMORY, "%s: no memory for a block", f->path);
        int rc = fmt_read_block(c, file, b, data, e);
        if (rc < 0) {
            free(data);
            return rc;
        }
        cache_put(c, file, b, data); /* the first tensors lie in the same block */
    }
    int rc = f->frame ? zst_check_tail(c, file, e) : 0;
    if (rc < 0)
        return rc;
    atomic_store(&f->head_checked, 1);
    return 0;
}

char *fmt_read_start(struct ckpt *c, int file, int64_t n, struct err *e)
{
    struct fmt_file *f = &c->file[file];
    int64_t n_blocks = (n + FMT_BLOCK - 1) / FMT_BLOCK;
    char *data = malloc((size_t)(n_blocks * FMT_BLOCK + 1));
    int rc = data ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for its header", f->path);
    for (int64_t b = 0; b < n_blocks && rc >= 0; b++)
        rc = fmt_read_block(c, file, b, data + b * FMT_BLOCK, e);
    if (rc < 0) {
        free(data);
        return NULL;
    }
    data[n] = 0;
    return data;
}

/* A piece being read, and the block or window of its file that is in memory. */
struct cursor {
    struct ckpt *c;
    int file;
    int64_t block;    /* in data; -1: data is a window */
    int64_t from, to; /* bytes of the file in data */
    char *data;
};

static void cursor_drop(struct cursor *k)
{
    if (k->data && k->block >= 0)
        cache_put(k->c, k->file, k->block, k->data);
    else
        free(k->data);
    k->data = NULL;
    k->block = -1;
    k->from = k->to = 0;
}

static int cursor_alloc(struct cursor *k, int64_t bytes, struct err *e)
{
    k->data = malloc((size_t)bytes);
    return k->data ? 0
                   : err_set(e, ERR_MEMORY, "%s: no memory for a block of %lld bytes",
                             k->c->file[k->file].path, (long long)bytes);
}

static int load_block(struct cursor *k, int64_t b, struct err *e)
{
    int rc;
    if (k->block == b)
        return 0;
    cursor_drop(k);
    k->data = cache_take(k->c, k->file, b);
    if (!k->data && ((rc = cursor_alloc(k, FMT_BLOCK, e)) < 0 ||
                     (rc = fmt_read_block(k->c, k->file, b, k->data, e)) < 0)) {
        free(k->data);
        k->data = NULL;
        return rc;
    }
    k->block = b;
    k->from = b * FMT_BLOCK;
    k->to = k->from + fmt_block_bytes(&k->c->file[k->file], b);
    return 0;
}

/* Reads n bytes at off of a file with checksums. Blocks that lie whole inside the run go straight to dst. */
static int run_checked(struct cursor *k, char *dst, int64_t off, int64_t n, struct err *e)
{
    const struct fmt_file *f = &k->c->file[k->file];
    int rc;
    while (n > 0) {
        int64_t b = off / FMT_BLOCK, in = off - b * FMT_BLOCK, have = fmt_block_bytes(f, b);
        int64_t m = have - in < n ? have - in : n;
        if (m == have && b != k->block) {
            if ((rc = fmt_read_block(k->c, k->file, b, dst, e)) < 0)
                return rc;
        } else {
            if ((rc = load_block(k, b, e)) < 0)
                return rc;
            memcpy(dst, k->data + in, (size_t)m);
        }
        dst += m, off += m, n -= m;
    }
    return 0;
}

int fmt_read_bytes(struct ckpt *c, int file, char *dst, int64_t off, int64_t n, struct err *e)
{
    const struct fmt_file *f = &c->file[file];
    struct cursor k = { .c = c, .file = file, .block = -1 };
    int rc = fmt_check_head(c, file, e);
    while (n > 0 && rc >= 0) {
        int64_t b = off / FMT_BLOCK, end = b * FMT_BLOCK + fmt_block_bytes(f, b),
                m = end - off < n ? end - off : n;
        rc = atomic_load(&f->seen[b]) ? fmt_pread(c, file, dst, m, off, e) : run_checked(&k, dst, off, m, e);
        dst += m, off += m, n -= m;
    }
    cursor_drop(&k);
    return rc < 0 ? rc : 0;
}

/* Counts bytes that the caller proves by digests. A block all of whose bytes are counted needs no check. */
static int count_proven(struct ckpt *c, struct fmt_file *f, int64_t off, int64_t n, struct err *e)
{
    int64_t n_blocks = (f->bytes + FMT_BLOCK - 1) / FMT_BLOCK;

    pthread_mutex_lock(&c->lock);
    if (!f->proven)
        f->proven = calloc((size_t)n_blocks, sizeof *f->proven);
    pthread_mutex_unlock(&c->lock);
    if (!f->proven)
        return err_set(e, ERR_MEMORY, "%s: no memory to count what is proven", f->path);
    while (n > 0) {
        int64_t b = off / FMT_BLOCK, end = b * FMT_BLOCK + fmt_block_bytes(f, b),
                m = end - off < n ? end - off : n;
        if (atomic_fetch_add(&f->proven[b], (uint32_t)m) + (uint32_t)m == (uint32_t)fmt_block_bytes(f, b))
            atomic_store(&f->seen[b], 1);
        off += m, n -= m;
    }
    return 0;
}

/* Reads n bytes at off without checking blocks. ahead: about how many bytes of the piece the request takes
 * from here on. */
static int run_trusted(struct cursor *k, char *dst, int64_t off, int64_t n, int64_t ahead, int64_t piece_end,
                       struct err *e)
{
    int rc;
    if (n >= (k->c->is_shared ? SMALL_RUN : WIDE_RUN)) /* what is in memory is not read twice */
        return fmt_pread(k->c, k->file, dst, n, off, e);
    if (off < k->from || off + n > k->to) {
        if (!k->data && (rc = cursor_alloc(k, WIDE, e)) < 0)
            return rc;
        int64_t want = ahead < n ? n : ahead > WIDE ? WIDE : ahead;
        k->from = off;
        k->to = off + want < piece_end ? off + want : piece_end;
        if ((rc = fmt_pread(k->c, k->file, k->data, k->to - k->from, k->from, e)) < 0)
            return rc;
    }
    memcpy(dst, k->data + (off - k->from), (size_t)n);
    return 0;
}

/* Reads n bytes at off of a file without checksums. */
static int run_plain(struct cursor *k, char *dst, int64_t off, int64_t n, int64_t piece_end, struct err *e)
{
    int rc;
    if (n >= SMALL_RUN)
        return fmt_pread(k->c, k->file, dst, n, off, e);
    if (off < k->from || off + n > k->to) {
        if (!k->data && (rc = cursor_alloc(k, WINDOW, e)) < 0)
            return rc;
        k->from = off;
        k->to = off + WINDOW < piece_end ? off + WINDOW : piece_end;
        if ((rc = fmt_pread(k->c, k->file, k->data, k->to - k->from, k->from, e)) < 0)
            return rc;
    }
    memcpy(dst, k->data + (off - k->from), (size_t)n);
    return 0;
}

/* Bytes from the first element of a strided piece to the end of the last one. */
static int64_t strided_span(const struct fmt_piece *p, size_t size)
{
    int64_t last = 0;
    for (int d = 0; d < p->box.n_dims; d++)
        last += (p->box.extent[d] - 1) * p->stride[d];
    return (last + 1) * (int64_t)size;
}

/* Reads n elements from part_off of a strided piece. Its whole span is read once where it is small and its
 * runs are short. */
static int run_strided(struct cursor *k, const struct fmt_piece *p, size_t size, char *dst, int64_t part_off,
                       int64_t n, struct err *e)
{
    int64_t span = strided_span(p, size), end = p->offset + span;
    int last = p->box.n_dims - 1, rc;
    int long_runs = p->stride[last] == 1 && p->box.extent[last] * (int64_t)size >= SMALL_RUN;
    if (!k->data && !long_runs && span <= STRIDED_MAX) {
        if ((rc = cursor_alloc(k, span, e)) < 0 ||
            (rc = fmt_pread(k->c, k->file, k->data, span, p->offset, e)) < 0)
            return rc;
        k->from = p->offset;
        k->to = end;
    }
    while (n > 0) {
        int64_t rest = part_off, off = 0, at = part_off % p->box.extent[last];
        int64_t m = p->stride[last] == 1 ? p->box.extent[last] - at : 1;
        for (int d = last; d >= 0; d--) {
            off += rest % p->box.extent[d] * p->stride[d];
            rest /= p->box.extent[d];
        }
        m = m < n ? m : n;
        if ((rc = run_plain(k, dst, p->offset + off * (int64_t)size, m * (int64_t)size, end, e)) < 0)
            return rc;
        dst += m * (int64_t)size, part_off += m, n -= m;
    }
    return 0;
}

/* Fetches a long run at once, because it is read block by block, and a request of a single run exactly. */
static int need_ahead(struct ckpt *c, int file, int64_t off, int64_t n, struct err *e)
{
    const struct fmt_file *f = &c->file[file];
    int64_t from = off / FMT_BLOCK * FMT_BLOCK, to = (off + n + FMT_BLOCK - 1) / FMT_BLOCK * FMT_BLOCK;
    if (f->frame) /* off counts bytes of the plain file */
        return 0;
    if (!f->block)
        return url_cache_need(c->remote, f->name, off, n, 1, e);
    return url_cache_need(c->remote, f->name, from, (to < f->bytes ? to : f->bytes) - from, 1, e);
}

/* What one call of ckpt_read* asks for: the elements [lo, hi) of box b of a tensor, written to dst. */
struct request {
    enum stored_dtype dtype;
    const struct box *box;
    int64_t lo, hi;
    int trusted; /* the caller proves by digests what it reads */
    char *dst;
};

/* The part of run r (of the request and the box of piece p) that p stores. 0: none. */
static int clip_run(const struct fmt_piece *p, struct box_run *r)
{
    int64_t skip = r->part_off < p->lo ? p->lo - r->part_off : 0;
    r->part_off += skip;
    r->of_off += skip;
    r->count -= skip;
    if (r->count > p->hi - r->part_off)
        r->count = p->hi - r->part_off;
    return r->count > 0;
}

/* Before the first byte of a piece is used: the checks of its file's header and of the record that it lies
 * in. *pass: the record whose CRC-32 is computed from what is read, instead of being checked first. */
static int check_before(struct ckpt *c, const struct fmt_piece *p, int trusted, struct fmt_pass *pass,
                        struct err *e)
{
    int rc = fmt_check_head(c, p->file, e);
    if (rc < 0)
        return rc;
    if (trusted && !c->remote) /* of a URL the rest of the record is not read */
        pass->record = fmt_record_once(&c->file[p->file], p->offset);
    if (!pass->record && c->file[p->file].n_records)
        return fmt_check_record(c, p->file, p->offset, e);
    return 0;
}

/* Drops bytes that were read and are not read again. The blocks with the header are read by all threads. */
static void drop(struct ckpt *c, const struct fmt_file *f, int64_t off, int64_t n)
{
    int64_t first = (f->data + FMT_BLOCK - 1) / FMT_BLOCK * FMT_BLOCK;
    if (off < first) {
        n -= first - off;
        off = first;
    }
    if (n > 0)
        url_cache_drop(c->remote, f->name, off, n);
}

/* Writes to q->dst what piece p holds of the request; *got: the number of elements. */
static int read_piece(struct ckpt *c, const struct fmt_piece *p, const struct request *q, int64_t *got,
                      struct err *e)
{
    if (p->run)
        return panels_read(c, &c->panels->run[p->run - 1],
                           &(struct panels_request){ q->box, q->lo, q->hi, q->dst }, got, e);

    const struct fmt_file *f = &c->file[p->file];
    struct cursor k = { .c = c, .file = p->file, .block = -1 };
    struct fmt_pass pass = { NULL };
    double share = q->trusted ? (double)box_count(&p->box) / (double)box_count(q->box) : 0;
    int64_t end = p->offset + stored_bytes(q->dtype, p->hi - p->lo);
    struct box_walk w = { 0 };
    struct box_run r;
    int rc = 0;
    while (box_next_run(q->box, q->lo, q->hi, &p->box, &w, &r) && r.part_off < p->hi) {
        if (!clip_run(p, &r))
            continue;
        int64_t off = p->offset + stored_bytes(q->dtype, r.part_off - p->lo);
        int64_t bytes = stored_bytes(q->dtype, r.count);
        char *to = q->dst + stored_bytes(q->dtype, r.of_off - q->lo);

        if (!*got)
            TRY(check_before(c, p, q->trusted, &pass, e));
        if (c->remote && (r.count == q->hi - q->lo || bytes > FMT_BLOCK))
            TRY(need_ahead(c, p->file, off, bytes, e));

        if (p->stride) {
            TRY(run_strided(&k, p, (size_t)stored_bytes(q->dtype, 1), to, r.part_off, r.count, e));
        } else if (f->block && q->trusted && !f->frame) {
            int64_t ahead = stored_bytes(q->dtype, (int64_t)((double)(q->hi - r.of_off) * share));
            TRY(run_trusted(&k, to, off, bytes, ahead, end, e));
            TRY(count_proven(c, &c->file[p->file], off, bytes, e));
        } else if (f->block) {
            TRY(run_checked(&k, to, off, bytes, e));
        } else {
            TRY(run_plain(&k, to, off, bytes, end, e));
        }
        if (pass.record)
            fmt_pass_add(&pass, off, to, bytes);
        if (c->read_once && !p->stride && !f->frame && !f->n_records)
            drop(c, f, off, bytes);
        *got += r.count;
    }
    fmt_pass_end(&pass);
out:
    cursor_drop(&k);
    return rc < 0 ? rc : 0;
}

static int read_range(struct ckpt *c, int i, const struct request *q, struct err *e)
{
    const struct ckpt_tensor *t = &c->tensor[i];
    const struct box *b = q->box;
    int64_t got = 0, want = q->hi - q->lo;
    int inside = b->n_dims == t->n_dims && q->lo >= 0 && q->lo <= q->hi && q->hi <= box_count(b);
    for (int d = 0; d < t->n_dims && inside; d++)
        inside = b->start[d] >= 0 && b->extent[d] >= 0 && b->start[d] + b->extent[d] <= t->shape[d];
    if (!inside)
        return err_set(e, ERR_INTERNAL, "a box outside of %s%s was asked for: please report it",
                       ckpt_role_prefix[t->role], t->name);
    int rc = fmt_box_check(t, b, q->lo, q->hi, e);
    if (rc < 0)
        return rc;
    if (c->view)
        return fmt_view_read(c, i, b, q->lo, q->hi, q->trusted, q->dst, e);

    for (int64_t p = c->first_piece[i]; p < c->first_piece[i + 1] && got < want; p++) {
        int64_t here = 0;
        rc = read_piece(c, &c->piece[p], q, &here, e);
        if (rc < 0)
            return err_add(e, "reading %s%s", ckpt_role_prefix[t->role], t->name);
        got += here;
    }
    if (got != want)
        return err_set(e, ERR_INTERNAL, "%s: %lld of %lld elements of %s%s were found: please report it",
                       c->path, (long long)got, (long long)want, ckpt_role_prefix[t->role], t->name);
    return 0;
}

int ckpt_read_range(struct ckpt *c, int i, const struct box *b, int64_t lo, int64_t hi, void *dst,
                    struct err *e)
{
    return read_range(c, i, &(struct request){ c->tensor[i].dtype, b, lo, hi, 0, dst }, e);
}

int ckpt_read_unproven(struct ckpt *c, int i, const struct box *b, int64_t lo, int64_t hi, void *dst,
                       struct err *e)
{
    /* blocks of compressed files are checked all the same, before they are decompressed */
    return read_range(c, i, &(struct request){ c->tensor[i].dtype, b, lo, hi, 1, dst }, e);
}

int ckpt_read(struct ckpt *c, int i, const struct box *b, void *dst, struct err *e)
{
    return ckpt_read_range(c, i, b, 0, box_count(b), dst, e);
}

int64_t ckpt_bytes_read(const struct ckpt *c) { return atomic_load(&fmt_bottom(c)->bytes_read); }
