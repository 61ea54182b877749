/* delta.c - see delta.h. A block is xored with that of the older version, and the result is stored plane by
 * plane (the first bytes of all elements, the second ones, …) by zstd: a small update leaves sign and
 * exponent as they are, so that their planes are zeros. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "serve/share/delta.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zstd.h>
#include "base/io.h"
#include "format/stored_dtype.h"
#include "store/memory.h"

#define MAGIC "SHARDDL1"
#define BLOCK ((int64_t)4 << 20)
#define LEVEL 1
#define MANIFEST_ROOM ((int64_t)1 << 30) /* of files besides twice those of the version before */
#define FILES_MOST 100000
#define FILE_MOST ((int64_t)1 << 44) /* bytes; no sum of them wraps */

/* In front of a file's blocks. */
struct head {
    int64_t bytes;
    uint16_t name_bytes;
    uint8_t width;    /* bytes of an element: 1, 2 or 4 */
    uint8_t is_xored; /* 0: the older version has no file of this name */
};
#define HEAD_BYTES 12

static void put(unsigned char *at, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        at[i] = (unsigned char)(v >> 8 * i);
}

static uint64_t get(const unsigned char *at, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++)
        v |= (uint64_t)at[i] << 8 * i;
    return v;
}

/* Bytes of an element of a file, for its planes: most checkpoints have one dtype. */
static size_t width_of(const struct share_file *f)
{
    return f->width == 2 || f->width == 4 ? (size_t)f->width : 1;
}

static int read_file(const struct share_file *f, char *dst, int64_t n, int64_t off, struct err *e)
{
    if (f->text) {
        memcpy(dst, f->text + off, (size_t)n);
        return 0;
    }
    return io_pread(f->fd, f->name, dst, (size_t)n, off, e);
}

/* The bytes that block [off, off + n) of a file is xored with: those of the older file, then zeros. */
static int read_older(const struct share_file *old, char *dst, int64_t n, int64_t off, struct err *e)
{
    int64_t have = old && off < old->bytes ? old->bytes - off : 0;
    have = have < n ? have : n;
    memset(dst + have, 0, (size_t)(n - have));
    return have ? read_file(old, dst, have, off, e) : 0;
}

static int new_memory(struct err *e)
{
    int fd = memfd_create("shardline", MFD_CLOEXEC);
    return fd >= 0 ? fd : err_set(e, ERR_MEMORY, "cannot make a file in memory: %s", strerror(errno));
}

/* ---- making ---- */

struct making {
    int fd;
    int64_t at, most;
    const _Atomic int *stop;
    char *now, *old, *plane, *packed;
    size_t room;
    ZSTD_CCtx *z;
};

static int append(struct making *k, const void *data, size_t n, struct err *e)
{
    e->code = 0;
    if (k->at + (int64_t)n >= k->most)
        return -1;
    int rc = io_pwrite(k->fd, "a delta", data, n, k->at, e);
    k->at += (int64_t)n;
    return rc;
}

static int add_block(struct making *k, const struct share_file *f, const struct share_file *old, int64_t off,
                     int64_t n, struct err *e)
{
    unsigned char size[4];
    uint64_t any = 0;
    int rc;
    if (k->stop && atomic_load(k->stop))
        return err_set(e, ERR_STOPPED, "a delta is not made to its end");
    TRY(read_file(f, k->now, n, off, e));
    TRY(read_older(old, k->old, n, off, e));
    for (int64_t i = 0; i < n; i++) {
        k->now[i] = (char)(k->now[i] ^ k->old[i]);
        any |= (unsigned char)k->now[i];
    }
    size_t bytes = 0;
    if (any) {
        stored_split(k->plane, k->now, (size_t)n, width_of(f));
        bytes = ZSTD_compressCCtx(k->z, k->packed, k->room, k->plane, (size_t)n, LEVEL);
        if (ZSTD_isError(bytes))
            return err_set(e, ERR_INTERNAL, "zstd: %s: please report it", ZSTD_getErrorName(bytes));
    }
    put(size, bytes, 4);
    TRY(append(k, size, sizeof size, e));
    rc = bytes ? append(k, k->packed, bytes, e) : 0;
out:
    return rc;
}

static int add_file(struct making *k, const struct version *from, const struct share_file *f, struct err *e)
{
    const struct share_file *old = version_file(from, f->name);
    unsigned char head[HEAD_BYTES];
    int rc;
    put(head, (uint64_t)f->bytes, 8);
    put(head + 8, strlen(f->name), 2);
    head[10] = (unsigned char)width_of(f);
    head[11] = old != NULL;
    TRY(append(k, head, sizeof head, e));
    TRY(append(k, f->name, strlen(f->name), e));
    for (int64_t off = 0; off < f->bytes; off += BLOCK)
        TRY(add_block(k, f, old, off, f->bytes - off < BLOCK ? f->bytes - off : BLOCK, e));
out:
    return rc < 0 ? rc : 0;
}

int delta_make(const struct version *from, const struct version *to, int64_t most, const _Atomic int *stop,
               int64_t *bytes, struct err *e)
{
    struct making k = { .fd = -1, .most = most, .stop = stop, .room = ZSTD_compressBound((size_t)BLOCK) };
    unsigned char n[4];
    int rc;
    k.now = malloc((size_t)BLOCK);
    k.old = malloc((size_t)BLOCK);
    k.plane = malloc((size_t)BLOCK);
    k.packed = malloc(k.room);
    k.z = ZSTD_createCCtx();
    TRY(k.now && k.old && k.plane && k.packed && k.z ? 0 : err_set(e, ERR_MEMORY, "no memory for a delta"));
    TRY(k.fd = new_memory(e));
    TRY(append(&k, MAGIC, 8, e));
    put(n, (uint64_t)to->n, 4);
    TRY(append(&k, n, 4, e));
    for (int i = 0; i < to->n; i++)
        TRY(add_file(&k, from, &to->file[i], e));
    *bytes = k.at;
    rc = 0;
out:
    free(k.now);
    free(k.old);
    free(k.plane);
    free(k.packed);
    ZSTD_freeCCtx(k.z);
    if (rc < 0)
        io_close(k.fd);
    return rc < 0 ? rc : k.fd;
}

/* ---- applying ---- */

struct applying {
    const struct version *from;
    const unsigned char *at, *end;
    char *now, *old, *plane;
    int64_t room; /* bytes that the files may still have */
};

static int damaged(struct err *e, const char *what)
{
    return err_set(e, ERR_FORMAT, "a delta %s: is it cut, or of another program", what);
}

/* The next n bytes; NULL: there are not so many. */
static const unsigned char *take(struct applying *k, uint64_t n)
{
    if (n > (uint64_t)(k->end - k->at))
        return NULL;
    const unsigned char *at = k->at;
    k->at += n;
    return at;
}

static int take_block(struct applying *k, const struct head *h, const struct share_file *old, int fd,
                      int64_t off, int64_t n, struct err *e)
{
    const unsigned char *size = take(k, 4);
    const size_t bytes = size ? (size_t)get(size, 4) : 0;
    const unsigned char *packed = size ? take(k, bytes) : NULL;
    int rc;
    if (!packed)
        return damaged(e, "ends in a block");
    TRY(read_older(old, k->old, n, off, e));
    if (bytes) {
        size_t got = ZSTD_decompress(k->plane, (size_t)n, packed, bytes);
        if (ZSTD_isError(got) || got != (size_t)n)
            return damaged(e, "has a block that is no zstd frame of its length");
        stored_join(k->now, k->plane, (size_t)n, h->width);
        for (int64_t i = 0; i < n; i++)
            k->old[i] = (char)(k->old[i] ^ k->now[i]);
    }
    rc = io_pwrite(fd, "a file in memory", k->old, (size_t)n, off, e);
out:
    return rc < 0 ? rc : 0;
}

/* Reads a file's head and name. */
static int take_head(struct applying *k, struct head *h, char name[256], struct err *e)
{
    const unsigned char *at = take(k, HEAD_BYTES);
    if (!at)
        return damaged(e, "ends in the head of a file");
    *h = (struct head){ (int64_t)get(at, 8), (uint16_t)get(at + 8, 2), at[10], at[11] };
    const unsigned char *text = take(k, h->name_bytes);
    if (!text || h->name_bytes >= 256)
        return damaged(e, "has a file without a name");
    memcpy(name, text, h->name_bytes);
    name[h->name_bytes] = 0;
    if (strlen(name) != h->name_bytes || !memory_name_is_good(name)) /* it may come to a terminal */
        return damaged(e, "has a file without a good name");
    if (h->bytes < 0 || h->bytes > FILE_MOST || (h->width != 1 && h->width != 2 && h->width != 4) ||
        h->is_xored > 1 || (h->bytes + BLOCK - 1) / BLOCK > (k->end - k->at) / 4)
        return damaged(e, "has a file with an impossible length or width");
    if ((k->room -= h->bytes) < 0) /* a block that did not change has 4 bytes: a few make terabytes */
        return damaged(e, "has files of more than twice the bytes of the version before");
    return 0;
}

static int take_file(struct applying *k, const struct delta_out *out, struct err *e)
{
    char name[256];
    struct head h = { 0 };
    int fd, rc = take_head(k, &h, name, e);
    if (rc < 0)
        return rc;
    const struct share_file *old = h.is_xored ? version_file(k->from, name) : NULL;
    if (h.is_xored && !old)
        return err_set(e, ERR_FORMAT, "a delta changes %s, which the version before does not have", name);
    if ((fd = out->create(out->arg, name, e)) < 0)
        return fd;
    for (int64_t off = 0; off < h.bytes; off += BLOCK)
        TRY(take_block(k, &h, old, fd, off, h.bytes - off < BLOCK ? h.bytes - off : BLOCK, e));
    return out->done(out->arg, fd, name, e);
out:
    io_close(fd);
    return rc;
}

int delta_apply(const struct version *from, const void *delta, int64_t n, const struct delta_out *out,
                struct err *e)
{
    struct applying k = {
        .from = from, .at = delta, .end = (const unsigned char *)delta + n, .room = MANIFEST_ROOM
    };
    for (int i = 0; i < from->n; i++)
        k.room += 2 * from->file[i].bytes;
    const unsigned char *begin = take(&k, 12);
    int rc;
    if (!begin || memcmp(begin, MAGIC, 8))
        return damaged(e, "does not begin as one");
    const uint64_t count = get(begin + 8, 4);
    if (count == 0 || count > FILES_MOST)
        return damaged(e, "has an impossible number of files");
    k.now = malloc((size_t)BLOCK);
    k.old = malloc((size_t)BLOCK);
    k.plane = malloc((size_t)BLOCK);
    TRY(k.now && k.old && k.plane ? 0 : err_set(e, ERR_MEMORY, "no memory for a delta"));
    for (uint64_t i = 0; i < count; i++)
        TRY(take_file(&k, out, e));
    rc = k.at == k.end ? 0 : damaged(e, "goes on behind its last file");
out:
    free(k.now);
    free(k.old);
    free(k.plane);
    return rc;
}
