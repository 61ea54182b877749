/* tokfile.c - see tokfile.h and TOKENS.md. */
#include "text/tokfile.h"

#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/io.h"
#include "text/tok.h"

#define MAGIC "SHLDTOK\n"
#define HEAD 64
#define BLOCK ((size_t)262144)
/* Files that carry others are of version 2, those with weights of version 3; without them the bytes are those
 * of version 1. */
#define VERSION 1
#define VERSION_CARRIES 2
#define VERSION_WEIGHTS 3
#define FLAG_CHATS ((uint64_t)1)
#define PART_LIMIT ((uint64_t)1 << 30) /* bytes of a carried file */

/* The header as it is in the file: every supported machine is little-endian. */
struct head {
    char magic[8];
    uint32_t version, width;
    uint64_t count, vocab, documents, block, tables_hash, head_hash;
};
_Static_assert(sizeof(struct head) == HEAD, "the header is 64 bytes");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are mapped as they are");

/* Ids up to `end` have this weight. */
struct run {
    uint64_t end;
    float weight;
    uint32_t zero;
};
struct tokfile {
    char *path;
    struct io_mark mark; /* of the map */
    const unsigned char *map;
    size_t n;
    struct head head;
    const uint64_t *hash, *end; /* tables in the map */
    const struct run *run;      /* likewise; NULL: no weights */
    uint64_t n_runs, flags;
    uint64_t parts;                 /* byte at which the carried files begin; 0: there are none */
    _Atomic unsigned char *checked; /* one byte for each block: 1 after its check */
};

int tokfile_is(const void *begin, size_t n) { return n >= 8 && !memcmp(begin, MAGIC, 8); }

int tokfile_is_path(const char *path)
{
    char begin[8];
    struct err ignored;
    int fd = io_is_dir(path) ? -1 : io_open_read(path, &ignored);
    int is = fd >= 0 && pread(fd, begin, sizeof begin, 0) == sizeof begin && tokfile_is(begin, sizeof begin);
    if (fd >= 0)
        io_close(fd);
    return is;
}

static uint64_t blocks_of(const struct head *h) { return (h->count * h->width + BLOCK - 1) / BLOCK; }
static uint64_t ids_end(const struct head *h) { return (HEAD + h->count * h->width + 7) / 8 * 8; }

/* --- reading --- */

static int check_head(const struct tokfile *f, struct err *e)
{
    const struct head *h = &f->head;
    if (!tokfile_is(h->magic, 8))
        return err_set(e, ERR_FORMAT, "%s is not a token file: its first bytes differ", f->path);
    if (h->head_hash != XXH3_64bits(h, HEAD - 8))
        return err_set(e, ERR_INTEGRITY,
                       "%s: the header's checksum does not fit: make it again with ptok prepare", f->path);
    if (h->version < VERSION || h->version > VERSION_WEIGHTS)
        return err_set(
            e, ERR_FORMAT,
            "%s is a token file of version %u, this program reads versions 1 to %d: use a newer one", f->path,
            h->version, VERSION_WEIGHTS);
    if ((h->width != 2 && h->width != 4) || h->block != BLOCK || h->vocab > (uint64_t)INT32_MAX + 1 ||
        h->count > INT64_MAX / 16 || h->documents > INT64_MAX / 16)
        return err_set(e, ERR_FORMAT, "%s: the header makes no sense: make it again with ptok prepare",
                       f->path);
    uint64_t want = ids_end(h) + 8 * blocks_of(h) + 8 * h->documents;
    uint64_t more = h->version == VERSION_WEIGHTS ? 24 : 8;
    if (h->version != VERSION ? f->n < want + more : want != f->n)
        return err_set(e, ERR_FORMAT, "%s has %zu bytes, its header says %llu: is it cut off", f->path, f->n,
                       (unsigned long long)want);
    return 0;
}

static int check_tables(struct tokfile *f, struct err *e)
{
    const struct head *h = &f->head;
    uint64_t from = ids_end(h), done = 0;

    f->hash = (const uint64_t *)(const void *)(f->map + from);
    f->end = f->hash + blocks_of(h);
    if (XXH3_64bits(f->map + from, f->n - from) != h->tables_hash)
        return err_set(
            e, ERR_INTEGRITY,
            "%s: the checksum of its tables (from byte %llu) does not fit: make it again with ptok prepare",
            f->path, (unsigned long long)from);
    for (uint64_t i = 0; i < h->documents; i++) {
        if (f->end[i] < done || f->end[i] > h->count)
            return err_set(e, ERR_FORMAT,
                           "%s: document %llu ends at id %llu of %llu: make it again with ptok prepare",
                           f->path, (unsigned long long)i, (unsigned long long)f->end[i],
                           (unsigned long long)h->count);
        done = f->end[i];
    }

    if (h->documents && done != h->count)
        return err_set(e, ERR_FORMAT, "%s: ids behind the end of the last document", f->path);
    return 0;
}

/* A carried file: the lengths of its name and of its bytes, then both, each up to a multiple of 8. */
struct part {
    uint64_t n_name, n;
    const unsigned char *name, *data;
    uint64_t next; /* byte behind it */
};

static uint64_t whole_words(uint64_t n) { return (n + 7) / 8 * 8; }

/* Reads the part at byte `at`. -1: it does not lie in the file. */
static int part_at(const struct tokfile *f, uint64_t at, struct part *p)
{
    uint64_t left = f->n - at;
    if (at % 8 || left < 16)
        return -1;
    memcpy(&p->n_name, f->map + at, 8);
    memcpy(&p->n, f->map + at + 8, 8);
    if (p->n_name == 0 || p->n_name > 255 || p->n > PART_LIMIT ||
        left < 16 + whole_words(p->n_name) + whole_words(p->n))
        return -1;
    p->name = f->map + at + 16;
    p->data = p->name + whole_words(p->n_name);
    p->next = at + 16 + whole_words(p->n_name) + whole_words(p->n);
    return 0;
}

/* The runs of weights at *at, which moves behind them. */
static int check_runs(struct tokfile *f, uint64_t *at, struct err *e)
{
    uint64_t done = 0, room = (f->n - *at - 24) / sizeof *f->run;
    memcpy(&f->flags, f->map + *at, 8);
    memcpy(&f->n_runs, f->map + *at + 8, 8);
    if (f->n_runs > room || f->flags != FLAG_CHATS || !f->head.documents)
        return err_set(
            e, ERR_FORMAT,
            "%s: %llu runs of weights, the file has room for %llu: make it again with ptok prepare", f->path,
            (unsigned long long)f->n_runs, (unsigned long long)room);
    f->run = (const struct run *)(const void *)(f->map + *at + 16);
    for (uint64_t i = 0; i < f->n_runs; i++) {
        if (f->run[i].end <= done || f->run[i].end > f->head.count || !isfinite(f->run[i].weight))
            return err_set(e, ERR_FORMAT,
                           "%s: weight %llu is %g up to id %llu of %llu: make it again with ptok prepare",
                           f->path, (unsigned long long)i, (double)f->run[i].weight,
                           (unsigned long long)f->run[i].end, (unsigned long long)f->head.count);
        done = f->run[i].end;
    }
    *at += 16 + f->n_runs * sizeof *f->run;
    return done == f->head.count
               ? 0
               : err_set(e, ERR_FORMAT, "%s: weights for %llu of %llu ids: make it again with ptok prepare",
                         f->path, (unsigned long long)done, (unsigned long long)f->head.count);
}

/* What lies behind the table of documents: weights, carried files. */
static int check_rest(struct tokfile *f, struct err *e)
{
    const struct head *h = &f->head;
    uint64_t at = ids_end(h) + 8 * blocks_of(h) + 8 * h->documents, n;
    struct part p;
    if (h->version == VERSION)
        return 0;
    int rc = h->version == VERSION_WEIGHTS ? check_runs(f, &at, e) : 0;
    if (rc < 0)
        return rc;
    memcpy(&n, f->map + at, 8);
    f->parts = at += 8;
    for (uint64_t i = 0; i < n; i++, at = p.next)
        if (part_at(f, at, &p) < 0)
            return err_set(e, ERR_FORMAT,
                           "%s: the files that it carries make no sense: make it again with ptok prepare",
                           f->path);
    return at == f->n ? 0 : err_set(e, ERR_FORMAT, "%s: bytes behind the files that it carries", f->path);
}

const void *tokfile_part(const struct tokfile *f, const char *name, size_t *n)
{
    struct part p;
    *n = 0;
    for (uint64_t at = f->parts; f->parts && at < f->n && part_at(f, at, &p) == 0; at = p.next) {
        if (p.n_name != strlen(name) || memcmp(p.name, name, p.n_name))
            continue;
        *n = p.n;
        return p.data;
    }
    return NULL;
}

static int map_bytes(struct tokfile *f, int fd, struct err *e)
{
    int rc = io_mark(fd, f->path, &f->mark, e);
    if (rc < 0)
        return rc;
    if (f->mark.bytes < HEAD)
        return err_set(e, ERR_FORMAT,
                       "%s has %lld bytes, fewer than the header of a token file: is it cut off", f->path,
                       (long long)f->mark.bytes);
    void *p = mmap(NULL, (size_t)f->mark.bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return err_sys(e, "%s: cannot map it", f->path);
    f->map = p;
    f->n = (size_t)f->mark.bytes;
    return 0;
}

static int map_file(struct tokfile *f, struct err *e)
{
    int fd = io_open_read(f->path, e);
    if (fd < 0)
        return fd;
    int rc = map_bytes(f, fd, e);
    io_close(fd);
    return rc;
}

int tokfile_open(struct tokfile **out, const char *path, struct err *e)
{
    struct tokfile *f = calloc(1, sizeof *f);
    int rc = 0;

    if (!f || !(f->path = strdup(path))) {
        free(f);
        return text_memory(e);
    }

    TRY(map_file(f, e));
    memcpy(&f->head, f->map, HEAD);
    TRY(check_head(f, e));
    TRY(check_tables(f, e));
    TRY(check_rest(f, e));
    if (!(f->checked = calloc(blocks_of(&f->head) + 1, 1))) {
        rc = text_memory(e);
        goto out;
    }

    *out = f;
    return 0;
out:
    tokfile_close(f);
    return rc;
}

void tokfile_close(struct tokfile *f)
{
    if (!f)
        return;
    if (f->map)
        munmap((void *)(uintptr_t)f->map, f->n);
    free((void *)f->checked);
    free(f->path);
    free(f);
}

int tokfile_check_size(const struct tokfile *f, struct err *e) { return io_check_mark(f->path, &f->mark, e); }

int64_t tokfile_count(const struct tokfile *f) { return (int64_t)f->head.count; }
int64_t tokfile_vocab(const struct tokfile *f) { return (int64_t)f->head.vocab; }
int tokfile_width(const struct tokfile *f) { return (int)f->head.width; }
int64_t tokfile_documents(const struct tokfile *f) { return (int64_t)f->head.documents; }
int64_t tokfile_document_end(const struct tokfile *f, int64_t i) { return (int64_t)f->end[i]; }

int tokfile_is_chats(const struct tokfile *f) { return (f->flags & FLAG_CHATS) != 0; }
int tokfile_has_weights(const struct tokfile *f) { return f->run != NULL; }

int64_t tokfile_weighted(const struct tokfile *f)
{
    uint64_t n = 0, begin = 0;
    for (uint64_t i = 0; i < f->n_runs; begin = f->run[i++].end)
        n += f->run[i].weight != 0 ? f->run[i].end - begin : 0;
    return (int64_t)n;
}

/* The first run that ends after id `at`. */
static uint64_t run_at(const struct tokfile *f, uint64_t at)
{
    uint64_t lo = 0, hi = f->n_runs;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        if (f->run[mid].end <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void tokfile_weights(const struct tokfile *f, int64_t first, int64_t n, float *weights)
{
    uint64_t at = (uint64_t)first, r = run_at(f, at);
    for (int64_t i = 0; i < n; i++, at++) {
        r += at >= f->run[r].end;
        weights[i] = f->run[r].weight;
    }
}

static uint32_t id_at(const struct tokfile *f, uint64_t i)
{
    const unsigned char *p = f->map + HEAD + i * f->head.width;
    return f->head.width == 2 ? (uint32_t)(p[0] | p[1] << 8)
                              : p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int check_block(const struct tokfile *f, uint64_t k, struct err *e)
{
    uint64_t from = k * BLOCK, all = f->head.count * f->head.width,
             n = all - from < BLOCK ? all - from : BLOCK;
    if (atomic_load_explicit(&f->checked[k], memory_order_relaxed))
        return 0;
    if (XXH3_64bits(f->map + HEAD + from, n) != f->hash[k])
        return err_set(e, ERR_INTEGRITY,
                       "%s: bytes %llu to %llu are not what was written: make it again with ptok prepare",
                       f->path, (unsigned long long)(HEAD + from), (unsigned long long)(HEAD + from + n));
    for (uint64_t i = from / f->head.width; i < (from + n) / f->head.width; i++)
        if (id_at(f, i) >= f->head.vocab)
            return err_set(e, ERR_FORMAT, "%s: id %u at position %llu is outside of its vocabulary of %llu",
                           f->path, id_at(f, i), (unsigned long long)i, (unsigned long long)f->head.vocab);
    atomic_store_explicit(&f->checked[k], 1, memory_order_relaxed);
    return 0;
}

int tokfile_read(const struct tokfile *f, int64_t first, int64_t n, int32_t *ids, struct err *e)
{
    uint64_t width = f->head.width, per = BLOCK / width;
    if (first < 0 || n < 0 || first > tokfile_count(f) - n)
        return err_set(e, ERR_INTERNAL, "%s: ids %lld to %lld of %lld are asked for", f->path,
                       (long long)first, (long long)(first + n), (long long)tokfile_count(f));
    for (uint64_t k = (uint64_t)first / per; n > 0 && k <= (uint64_t)(first + n - 1) / per; k++) {
        int rc = check_block(f, k, e);
        if (rc < 0)
            return rc;
    }
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)id_at(f, (uint64_t)(first + i));
    return 0;
}

int tokfile_verify(const struct tokfile *f, struct err *e)
{
    for (uint64_t k = 0; k < blocks_of(&f->head); k++) {
        int rc = check_block(f, k, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* --- writing --- */

struct tokfile_writer {
    char *path, *part; /* the final name, and the name until then */
    int fd;
    struct head head;
    unsigned char *block;
    size_t n_block;
    int64_t off; /* of the block in the file */
    struct buf hash, end, parts, runs;
    uint64_t n_parts, n_runs, n_weights;
    struct run last; /* the run that is not in runs yet */
};

int tokfile_create(struct tokfile_writer **out, const char *path, int64_t vocab, struct err *e)
{
    struct tokfile_writer *w = calloc(1, sizeof *w);
    size_t cap = strlen(path) + 8;
    int rc = 0;

    if (!w)
        return text_memory(e);
    w->fd = -1;
    w->off = HEAD;
    w->head = (struct head){ .magic = MAGIC,
                             .version = VERSION,
                             .width = vocab > 65536 ? 4 : 2,
                             .vocab = (uint64_t)vocab,
                             .block = BLOCK };
    if (!(w->path = strdup(path)) || !(w->part = malloc(cap)) || !(w->block = malloc(BLOCK))) {
        rc = text_memory(e);
        goto out;
    }

    snprintf(w->part, cap, "%s.part", path);
    if (io_exists(path)) {
        rc = err_set(e, ERR_FILE, "%s exists: choose another name or remove it", path);
        goto out;
    }

    unlink(w->part); /* left by a killed run */
    TRY(w->fd = io_create(w->part, e));
    *out = w;
    return 0;
out:
    tokfile_abandon(w);
    return rc;
}

void tokfile_abandon(struct tokfile_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0) {
        io_close(w->fd);
        unlink(w->part);
    }
    buf_free(&w->hash);
    buf_free(&w->end);
    buf_free(&w->parts);
    buf_free(&w->runs);
    free(w->block);
    free(w->path);
    free(w->part);
    free(w);
}

static int flush_block(struct tokfile_writer *w, struct err *e)
{
    uint64_t hash = XXH3_64bits(w->block, w->n_block);
    if (!w->n_block)
        return 0;
    buf_add(&w->hash, &hash, sizeof hash);
    int rc = w->hash.failed ? text_memory(e) : io_pwrite(w->fd, w->part, w->block, w->n_block, w->off, e);
    w->off += (int64_t)w->n_block;
    w->n_block = 0;
    return rc;
}

int tokfile_add(struct tokfile_writer *w, const int32_t *ids, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)ids[i];
        if (id >= w->head.vocab)
            return err_set(e, ERR_INTERNAL, "id %d for a token file of vocabulary %llu", ids[i],
                           (unsigned long long)w->head.vocab);
        for (uint32_t k = 0; k < w->head.width; k++)
            w->block[w->n_block++] = (unsigned char)(id >> 8 * k);
        w->head.count++;
        if (w->n_block == BLOCK) {
            int rc = flush_block(w, e);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

int tokfile_weigh(struct tokfile_writer *w, const float *weights, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        if (w->n_weights && memcmp(&w->last.weight, &weights[i], sizeof *weights)) {
            buf_add(&w->runs, &w->last, sizeof w->last);
            w->n_runs++;
        }
        w->last = (struct run){ .end = ++w->n_weights, .weight = weights[i] };
    }
    return w->runs.failed ? text_memory(e) : 0;
}

/* The tables of weights, of a file that has them. */
static int add_runs(struct tokfile_writer *w, struct buf *tables, struct err *e)
{
    if (!w->n_weights)
        return 0;
    if (w->n_weights != w->head.count)
        return err_set(e, ERR_INTERNAL, "%llu weights for the %llu ids of a token file",
                       (unsigned long long)w->n_weights, (unsigned long long)w->head.count);
    uint64_t head[2] = { FLAG_CHATS, w->n_runs + 1 };
    buf_add(tables, head, sizeof head);
    buf_add(tables, w->runs.p ? w->runs.p : "", w->runs.n);
    buf_add(tables, &w->last, sizeof w->last);
    w->head.version = VERSION_WEIGHTS;
    return 0;
}

int tokfile_end_document(struct tokfile_writer *w, struct err *e)
{
    buf_add(&w->end, &w->head.count, sizeof w->head.count);
    w->head.documents++;
    return w->end.failed ? text_memory(e) : 0;
}

int tokfile_carry(struct tokfile_writer *w, const char *name, const void *data, size_t n, struct err *e)
{
    static const char zeros[8];
    uint64_t size[2] = { strlen(name), n };
    if (n > PART_LIMIT)
        return err_set(e, ERR_CONFIG, "%s has %zu bytes: a token file carries at most %llu", name, n,
                       (unsigned long long)PART_LIMIT);
    buf_add(&w->parts, size, sizeof size);
    buf_add(&w->parts, name, size[0]);
    buf_add(&w->parts, zeros, whole_words(size[0]) - size[0]);
    buf_add(&w->parts, data, n);
    buf_add(&w->parts, zeros, whole_words(n) - n);
    w->n_parts++;
    w->head.version = VERSION_CARRIES;
    return w->parts.failed ? text_memory(e) : 0;
}

int64_t tokfile_written(const struct tokfile_writer *w) { return (int64_t)w->head.count; }

int tokfile_finish(struct tokfile_writer *w, struct err *e)
{
    static const char zeros[8];
    struct buf tables = { 0 };
    int rc = 0;

    TRY(flush_block(w, e));
    size_t pad = (size_t)(ids_end(&w->head) - (uint64_t)w->off);
    TRY(io_pwrite(w->fd, w->part, zeros, pad, w->off, e));
    buf_add(&tables, w->hash.p ? w->hash.p : "", w->hash.n);
    buf_add(&tables, w->end.p ? w->end.p : "", w->end.n);
    TRY(add_runs(w, &tables, e));
    if (w->head.version != VERSION) {
        buf_add(&tables, &w->n_parts, sizeof w->n_parts);
        buf_add(&tables, w->parts.p ? w->parts.p : "", w->parts.n);
    }
    if (tables.failed) {
        rc = text_memory(e);
        goto out;
    }

    w->head.tables_hash = XXH3_64bits(tables.p, tables.n);
    w->head.head_hash = XXH3_64bits(&w->head, HEAD - 8);
    TRY(io_pwrite(w->fd, w->part, tables.p ? tables.p : "", tables.n, w->off + (int64_t)pad, e));
    TRY(io_pwrite(w->fd, w->part, &w->head, HEAD, 0, e));
    int fd = w->fd;
    w->fd = -1;
    if ((rc = io_sync_close(fd, w->part, e)) == 0)
        rc = io_rename(w->part, w->path, e);
    if (rc < 0)
        unlink(w->part);
out:
    buf_free(&tables);
    tokfile_abandon(w);
    return rc;
}
