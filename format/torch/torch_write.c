/* torch_write.c - see torch_write.h. Source of the records: PKWARE APPNOTE 6.3, sections 4.3.7, 4.3.12,
 * 4.3.14 - 4.3.16, 4.5.3. */
#include "format/torch/torch_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/io.h"
#include "format/torch/crc32.h"

#define ALIGN 64
/* A size or offset from here on is in the 64-bit field; the 32-bit field then has this value. */
#define WIDE 0xffffffffll
#define LOCAL_BYTES 30
#define NAME_BYTES 64

/* Collects the bytes between two storages; fd -1: only counts them. */
struct writer {
    int fd;
    const char *path;
    int64_t base, at, start; /* at: in the zip; start: of the collected bytes */
    struct buf b;
    struct {
        int64_t header, bytes;
        uint32_t crc;
        char name[NAME_BYTES];
    } * entry;
    int n_entries;
};

static void put(struct writer *w, const void *data, size_t n)
{
    w->at += (int64_t)n;
    if (w->fd >= 0)
        buf_add(&w->b, data, n);
}

static void put_le(struct writer *w, uint64_t v, int n_bytes)
{
    char b[8];
    for (int i = 0; i < n_bytes; i++)
        b[i] = (char)(v >> 8 * i);
    put(w, b, (size_t)n_bytes);
}

static uint64_t narrow(int64_t v) { return (uint64_t)(v >= WIDE ? WIDE : v); }

static int flush(struct writer *w, struct err *e)
{
    int rc = 0;
    if (w->b.failed)
        return err_set(e, ERR_MEMORY, "%s: no memory for its directory", w->path);
    if (w->fd >= 0 && w->b.n)
        rc = io_pwrite(w->fd, w->path, w->b.p, w->b.n, w->base + w->start, e);
    w->b.n = 0;
    return rc < 0 ? rc : 0;
}

/* ---- records ---- */

/* Writes the header of a record; w->at is then the place of its bytes. */
static void put_header(struct writer *w, const char *root, const char *name, int64_t bytes, uint32_t crc)
{
    static const char filler[ALIGN + 4] =
        "ZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZ";
    int i = w->n_entries++, wide = bytes >= WIDE;
    char *full = w->entry[i].name;

    snprintf(full, NAME_BYTES, "%s/%s", root, name);
    size_t n_name = strlen(full);
    w->entry[i].header = w->at;
    w->entry[i].bytes = bytes;
    w->entry[i].crc = crc;
    int64_t data = w->at + LOCAL_BYTES + (int64_t)n_name + (wide ? 20 : 0) + 4;
    int pad = (int)((ALIGN - data % ALIGN) % ALIGN);
    put(w, "PK\3\4", 4);
    put_le(w, wide ? 45 : 20, 2); /* version that a reader needs */
    put_le(w, 0x0800, 2);         /* names are UTF-8 */
    put_le(w, 0, 2);              /* stored */
    put_le(w, 0, 4);              /* no times: the same state gives the same bytes */
    put_le(w, crc, 4);
    put_le(w, narrow(bytes), 4);
    put_le(w, narrow(bytes), 4);
    put_le(w, n_name, 2);
    put_le(w, (uint64_t)((wide ? 20 : 0) + 4 + pad), 2);
    put(w, full, n_name);
    if (wide) {
        put_le(w, 1, 2);
        put_le(w, 16, 2);
        put_le(w, (uint64_t)bytes, 8);
        put_le(w, (uint64_t)bytes, 8);
    }

    put(w, "FB", 2);
    put_le(w, (uint64_t)pad, 2);
    put(w, filler, (size_t)pad);
}

static void put_small(struct writer *w, const struct torch_out *z, const char *name, const void *data,
                      size_t n)
{
    put_header(w, z->root, name, (int64_t)n, w->fd < 0 ? 0 : fmt_crc32(0, data, n));
    put(w, data, n);
}

static void put_entry(struct writer *w, int i)
{
    int64_t bytes = w->entry[i].bytes, header = w->entry[i].header;
    size_t n_name = strlen(w->entry[i].name);
    int extra = (bytes >= WIDE ? 16 : 0) + (header >= WIDE ? 8 : 0);

    put(w, "PK\1\2", 4);
    put_le(w, extra ? 45 : 20, 2);
    put_le(w, extra ? 45 : 20, 2);
    put_le(w, 0x0800, 2);
    put_le(w, 0, 2);
    put_le(w, 0, 4);
    put_le(w, w->entry[i].crc, 4);
    put_le(w, narrow(bytes), 4);
    put_le(w, narrow(bytes), 4);
    put_le(w, n_name, 2);
    put_le(w, (uint64_t)(extra ? extra + 4 : 0), 2);
    put_le(w, 0, 2); /* no comment */
    put_le(w, 0, 8); /* first volume, attributes: none */
    put_le(w, narrow(header), 4);
    put(w, w->entry[i].name, n_name);
    if (extra) {
        put_le(w, 1, 2);
        put_le(w, (uint64_t)extra, 2);
        if (bytes >= WIDE) {
            put_le(w, (uint64_t)bytes, 8);
            put_le(w, (uint64_t)bytes, 8);
        }
        if (header >= WIDE)
            put_le(w, (uint64_t)header, 8);
    }
}

/* Writes both end records; always the 64-bit one too, as torch does. */
static void put_end(struct writer *w, int64_t directory)
{
    int64_t bytes = w->at - directory, end = w->at;
    uint64_t n = (uint64_t)w->n_entries;

    put(w, "PK\6\6", 4);
    put_le(w, 44, 8); /* bytes that follow */
    put_le(w, 45, 2);
    put_le(w, 45, 2);
    put_le(w, 0, 8); /* volumes */
    put_le(w, n, 8);
    put_le(w, n, 8);
    put_le(w, (uint64_t)bytes, 8);
    put_le(w, (uint64_t)directory, 8);
    put(w, "PK\6\7", 4);
    put_le(w, 0, 4);
    put_le(w, (uint64_t)end, 8);
    put_le(w, 1, 4);
    put(w, "PK\5\6", 4);
    put_le(w, 0, 4);
    put_le(w, n < 0xffff ? n : 0xffff, 2);
    put_le(w, n < 0xffff ? n : 0xffff, 2);
    put_le(w, narrow(bytes), 4);
    put_le(w, narrow(directory), 4);
    put_le(w, 0, 2);
}

/* ---- the whole ---- */

/* Counts (w->fd -1; fills in the places) or writes: both are the same walk. */
static int walk(struct writer *w, const struct torch_out *z, struct err *e)
{
    int rc = 0;
    w->entry = calloc((size_t)z->n + 8, sizeof *w->entry);
    if (!w->entry)
        return err_set(e, ERR_MEMORY, "no memory for a directory of %d storages", z->n);
    put_small(w, z, "data.pkl", z->pickle, z->n_pickle);
    put_small(w, z, ".format_version", "1", 1);
    put_small(w, z, ".storage_alignment", "64", 2);
    put_small(w, z, "byteorder", "little", 6);
    for (int i = 0; i < z->n; i++) {
        char name[24];
        snprintf(name, sizeof name, "data/%d", i);
        put_header(w, z->root, name, z->part[i].bytes, z->part[i].crc);
        if (w->fd < 0)
            z->part[i].at = w->at;
        TRY(flush(w, e));
        w->at += z->part[i].bytes;
        w->start = w->at;
    }

    put_small(w, z, "version", "3\n", 2);
    int64_t directory = w->at;
    for (int i = 0; i < w->n_entries; i++)
        put_entry(w, i);
    put_end(w, directory);
    TRY(flush(w, e));
out:
    free(w->entry);
    buf_free(&w->b);
    return rc < 0 ? rc : 0;
}

int torch_out_plan(struct torch_out *z, struct err *e)
{
    struct writer w = { .fd = -1 };
    int rc = walk(&w, z, e);
    z->length = w.at;
    return rc;
}

int torch_out_frame(const struct torch_out *z, int fd, const char *path, int64_t base, struct err *e)
{
    struct writer w = { .fd = fd, .path = path, .base = base };
    return walk(&w, z, e);
}

int torch_out_file(const char *path, const char *root, const struct pkw *p, int n, const void *const *data,
                   const int64_t *bytes, struct err *e)
{
    struct torch_out z = { .root = root,
                           .pickle = p->b.p,
                           .n_pickle = p->b.n,
                           .n = n,
                           .part = calloc((size_t)n + 1, sizeof *z.part) };
    int fd = -1, rc = z.part ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for %d storages", path, n);

    if (rc < 0)
        return rc;
    for (int i = 0; i < n; i++)
        z.part[i] = (struct torch_part){ bytes[i], 0, fmt_crc32(0, data[i], (size_t)bytes[i]) };
    TRY(torch_out_plan(&z, e));
    TRY(fd = io_create(path, e));
    for (int i = 0; i < n; i++)
        TRY(io_pwrite(fd, path, data[i], (size_t)bytes[i], z.part[i].at, e));
    TRY(torch_out_frame(&z, fd, path, 0, e));
    rc = io_sync_close(fd, path, e);
    fd = -1;
out:
    io_close(fd);
    free(z.part);
    return rc < 0 ? rc : 0;
}
