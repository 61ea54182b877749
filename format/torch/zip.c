/* zip.c - see zip.h. */
#include "format/torch/zip.h"

#include <stdlib.h>
#include <string.h>
#include "format/torch/crc32.h"

#define END_SIG 0x06054b50u
#define END_BYTES 22
#define LOCATOR_SIG 0x07064b50u
#define LOCATOR_BYTES 20
#define END64_SIG 0x06064b50u
#define END64_BYTES 56
#define CENTRAL_SIG 0x02014b50u
#define CENTRAL_BYTES 46
#define LOCAL_SIG 0x04034b50u
#define LOCAL_BYTES 30
#define DIRECTORY_MAX ((int64_t)1 << 28)
/* Bytes to keep of both ends: enough for a directory and the pickle of one tensor. */
#define WINDOW ((int64_t)4096)

static uint32_t u16(const char *p)
{
    return (uint32_t)(unsigned char)p[0] | (uint32_t)(unsigned char)p[1] << 8;
}
static uint32_t u32(const char *p) { return u16(p) | u16(p + 2) << 16; }
static uint64_t u64(const char *p) { return u32(p) | (uint64_t)u32(p + 4) << 32; }

static const char *path_of(const struct zip *z) { return z->c->file[z->file].path; }

static int bad(const struct zip *z, const char *what, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: the zip at byte %lld (%lld bytes) %s: is the file whole", path_of(z),
                   (long long)z->base, (long long)z->length, what);
}

/* Reads n bytes at off of the zip, which must be inside it. */
static int read_at(const struct zip *z, int64_t off, int64_t n, char *dst, struct err *e)
{
    if (off + n <= z->n_head)
        memcpy(dst, z->head + off, (size_t)n);
    else if (off >= z->length - z->n_tail)
        memcpy(dst, z->tail + (off - (z->length - z->n_tail)), (size_t)n);
    else
        return fmt_pread(z->c, z->file, dst, n, z->base + off, e);
    return 0;
}

static int read_ends(struct zip *z, struct err *e)
{
    int rc = 0;
    z->n_tail = z->length < 2 * WINDOW ? z->length : WINDOW;
    z->tail = malloc((size_t)z->n_tail);
    z->head = malloc((size_t)WINDOW);
    if (!z->tail || !z->head)
        return err_set(e, ERR_MEMORY, "%s: no memory for the ends of a zip", path_of(z));
    TRY(fmt_pread(z->c, z->file, z->tail, z->n_tail, z->base + z->length - z->n_tail, e));
    if (z->n_tail < z->length) {
        TRY(fmt_pread(z->c, z->file, z->head, WINDOW, z->base, e));
        z->n_head = WINDOW;
    }
out:
    return rc < 0 ? rc : 0;
}

/* ---- the end record, and its 64-bit form ---- */

/* at: the first byte of the end records */
struct end {
    uint64_t n, bytes, offset;
    int64_t at;
};

static int find_end64(const struct zip *z, struct end *end, struct err *e)
{
    char loc[LOCATOR_BYTES], rec[END64_BYTES];
    int rc = 0;
    int64_t at = end->at - LOCATOR_BYTES;

    if (at < 0)
        return 0;
    TRY(read_at(z, at, LOCATOR_BYTES, loc, e));
    if (u32(loc) != LOCATOR_SIG)
        return 0;
    uint64_t to = u64(loc + 8);
    if (at < END64_BYTES || to > (uint64_t)(at - END64_BYTES))
        return bad(z, "points to an end record outside of it", e);
    TRY(read_at(z, (int64_t)to, END64_BYTES, rec, e));
    if (u32(rec) != END64_SIG)
        return bad(z, "has no 64-bit end record where it should be", e);
    struct end wide = { u64(rec + 32), u64(rec + 40), u64(rec + 48), (int64_t)to };
    if ((end->n != 0xffff && end->n != wide.n) || (end->bytes != 0xffffffffu && end->bytes != wide.bytes) ||
        (end->offset != 0xffffffffu && end->offset != wide.offset))
        return bad(z, "has two end records that do not agree", e);
    *end = wide;
out:
    return rc < 0 ? rc : 0;
}

static int find_end(const struct zip *z, struct end *end, struct err *e)
{
    char rec[END_BYTES];
    int rc = 0;

    if (z->length < END_BYTES)
        return bad(z, "is too short", e);
    end->at = z->length - END_BYTES;
    TRY(read_at(z, end->at, END_BYTES, rec, e));
    if (u32(rec) != END_SIG || u16(rec + 20) != 0)
        return bad(z, "does not end with an end record", e);
    if (u16(rec + 4) || u16(rec + 6))
        return bad(z, "is one of several volumes", e);
    end->n = u16(rec + 10);
    end->bytes = u32(rec + 12);
    end->offset = u32(rec + 16);
    TRY(find_end64(z, end, e));
    if (end->offset > (uint64_t)end->at || end->bytes > (uint64_t)end->at - end->offset ||
        end->n > end->bytes / CENTRAL_BYTES)
        return bad(z, "has a directory that passes its end", e);
    if (end->bytes > (uint64_t)DIRECTORY_MAX || end->n > INT32_MAX)
        return bad(z, "has a directory beyond the limit of 256 MiB", e);
out:
    return rc < 0 ? rc : 0;
}

/* ---- the directory ---- */

/* The 64-bit values of an extra field replace the 32-bit values that are all ones, in the order: size,
 * compressed size, offset. */
static int widen(const char *extra, uint32_t n, uint64_t *size, uint64_t *packed, uint64_t *offset)
{
    uint64_t *value[3] = { size, packed, offset };
    for (uint32_t at = 0; at + 4 <= n;) {
        uint32_t id = u16(extra + at), len = u16(extra + at + 2), used = 0;
        if (len > n - at - 4)
            return -1;
        for (int i = 0; id == 1 && i < 3; i++)
            if (*value[i] == 0xffffffffu) {
                if (used + 8 > len)
                    return -1;
                *value[i] = u64(extra + at + 4 + used);
                used += 8;
            }
        at += 4 + len;
    }
    return *size == 0xffffffffu || *packed == 0xffffffffu || *offset == 0xffffffffu ? -1 : 0;
}

static int read_entry(struct zip *z, struct zip_entry *x, const char *p, int64_t left, const struct end *end,
                      int64_t *used, struct err *e)
{
    if (left < CENTRAL_BYTES || u32(p) != CENTRAL_SIG)
        return bad(z, "has a damaged directory", e);
    uint32_t n_name = u16(p + 28), n_extra = u16(p + 30), n_comment = u16(p + 32);
    uint64_t packed = u32(p + 20), size = u32(p + 24), offset = u32(p + 42);
    *used = CENTRAL_BYTES + (int64_t)n_name + n_extra + n_comment;
    if (*used > left)
        return bad(z, "has a damaged directory", e);
    const char *name = p + CENTRAL_BYTES, *slash = memchr(name, '/', n_name);
    if (u16(p + 8) & 1)
        return err_set(e, ERR_FORMAT, "%s: record %.*s is encrypted: save it again without", path_of(z),
                       (int)n_name, name);
    if (u16(p + 10) != 0)
        return err_set(
            e, ERR_FORMAT,
            "%s: record %.*s is compressed (method %u), torch.save stores: save it again with torch.save",
            path_of(z), (int)n_name, name, u16(p + 10));
    if ((size == 0xffffffffu || packed == 0xffffffffu || offset == 0xffffffffu) &&
        widen(name + n_name, n_extra, &size, &packed, &offset) < 0)
        return bad(z, "has an entry without its 64-bit sizes", e);
    if (size != packed || offset > end->offset || size > end->offset - offset ||
        LOCAL_BYTES + n_name > end->offset - offset - size)
        return err_set(e, ERR_FORMAT,
                       "%s: record %.*s has %llu bytes at %llu, the zip has %llu before its directory: is "
                       "the file whole",
                       path_of(z), (int)n_name, name, (unsigned long long)size, (unsigned long long)offset,
                       (unsigned long long)end->offset);
    const char *tail = slash ? slash + 1 : name;
    *x = (struct zip_entry){
        tail, (int)(name + n_name - tail), (int)n_name, u32(p + 16), (int64_t)offset, (int64_t)size, 0, 0, -1
    };
    return 0;
}

static int compare_header(const void *pa, const void *pb)
{
    const struct zip_entry *a = pa, *b = pb;
    return (a->header > b->header) - (a->header < b->header);
}

static int compare_name(const void *pa, const void *pb)
{
    const struct zip_entry *a = pa, *b = pb;
    int n = a->n_name < b->n_name ? a->n_name : b->n_name, d = memcmp(a->name, b->name, (size_t)n);
    return d ? d : (a->n_name > b->n_name) - (a->n_name < b->n_name);
}

/* Checks that entries neither overlap nor share a name; sorts them by name. */
static int check_entries(struct zip *z, struct err *e)
{
    qsort(z->entry, (size_t)z->n, sizeof *z->entry, compare_header);
    for (int i = 1; i < z->n; i++) {
        const struct zip_entry *a = &z->entry[i - 1];
        if (a->header + LOCAL_BYTES + a->n_full + a->bytes > z->entry[i].header)
            return err_set(e, ERR_FORMAT, "%s: records %.*s and %.*s overlap: is the file damaged",
                           path_of(z), a->n_name, a->name, z->entry[i].n_name, z->entry[i].name);
    }
    qsort(z->entry, (size_t)z->n, sizeof *z->entry, compare_name);
    for (int i = 1; i < z->n; i++)
        if (!compare_name(&z->entry[i - 1], &z->entry[i]))
            return err_set(e, ERR_FORMAT, "%s: record %.*s is there twice: which one is meant", path_of(z),
                           z->entry[i].n_name, z->entry[i].name);
    return 0;
}

static int read_directory(struct zip *z, const struct end *end, struct err *e)
{
    int64_t at = 0, used = 0, bytes = (int64_t)end->bytes;
    int rc = 0;

    z->directory = malloc((size_t)bytes + 1);
    z->entry = malloc(sizeof *z->entry * (size_t)(end->n + 1));
    if (!z->directory || !z->entry)
        return err_set(e, ERR_MEMORY, "%s: no memory for a directory of %lld bytes", path_of(z),
                       (long long)bytes);
    TRY(read_at(z, (int64_t)end->offset, bytes, z->directory, e));
    for (uint64_t i = 0; i < end->n; i++, at += used) {
        TRY(read_entry(z, &z->entry[z->n], z->directory + at, bytes - at, end, &used, e));
        z->n++;
    }

    if (at != bytes)
        return bad(z, "has more in its directory than it counts", e);
    TRY(check_entries(z, e));
out:
    return rc < 0 ? rc : 0;
}

int zip_open(struct zip *z, struct ckpt *c, int file, int64_t base, int64_t length, struct err *e)
{
    struct end end = { 0 };
    int rc = 0;
    *z = (struct zip){ .c = c, .file = file, .base = base, .length = length };
    if (length <= 0)
        return bad(z, "is empty", e);
    TRY(read_ends(z, e));
    TRY(find_end(z, &end, e));
    TRY(read_directory(z, &end, e));
out:
    if (rc < 0)
        zip_close(z);
    return rc < 0 ? rc : 0;
}

void zip_close(struct zip *z)
{
    free(z->entry);
    free(z->directory);
    free(z->head);
    free(z->tail);
    z->entry = NULL;
    z->directory = z->head = z->tail = NULL;
    z->n = 0;
}

struct zip_entry *zip_find(const struct zip *z, const char *name, int n_name)
{
    struct zip_entry key = { .name = name, .n_name = n_name };
    return z->n ? bsearch(&key, z->entry, (size_t)z->n, sizeof key, compare_name) : NULL;
}

/* ---- entries ---- */

int zip_locate(struct zip *z, struct zip_entry *x, struct err *e)
{
    char head[LOCAL_BYTES], *name = NULL;
    int rc = 0;

    if (x->data >= 0)
        return 0;
    TRY(read_at(z, x->header, LOCAL_BYTES, head, e));
    if (u32(head) != LOCAL_SIG || u16(head + 26) != (uint32_t)x->n_full || u16(head + 8) != 0 ||
        (u16(head + 6) & 1)) {
        rc = err_set(
            e, ERR_FORMAT,
            "%s: record %.*s does not begin where the directory says: is the start of the file missing",
            path_of(z), x->n_name, x->name);
        goto out;
    }

    int64_t data = x->header + LOCAL_BYTES + x->n_full + u16(head + 28);
    if (data + x->bytes > z->length) {
        rc = bad(z, "has a record that passes its end", e);
        goto out;
    }

    if (!(name = malloc((size_t)x->n_full + 1))) {
        rc = err_set(e, ERR_MEMORY, "%s: no memory for a name", path_of(z));
        goto out;
    }

    TRY(read_at(z, x->header + LOCAL_BYTES, x->n_full, name, e));
    if (memcmp(name + x->n_full - x->n_name, x->name, (size_t)x->n_name)) {
        rc = err_set(e, ERR_FORMAT, "%s: record %.*s is named otherwise at its place: is the file damaged",
                     path_of(z), x->n_name, x->name);
        goto out;
    }

    x->data = z->base + data;
out:
    free(name);
    return rc < 0 ? rc : 0;
}

int zip_load(struct zip *z, struct zip_entry *x, int64_t limit, void **out, struct err *e)
{
    char *data = NULL;
    int rc = 0;

    if (x->bytes > limit)
        return err_set(e, ERR_FORMAT,
                       "%s: record %.*s has %lld bytes, the limit is %lld: is the file damaged", path_of(z),
                       x->n_name, x->name, (long long)x->bytes, (long long)limit);
    TRY(zip_locate(z, x, e));
    if (!(data = malloc((size_t)x->bytes + 1))) {
        rc = err_set(e, ERR_MEMORY, "%s: no memory for a record of %lld bytes", path_of(z),
                     (long long)x->bytes);
        goto out;
    }

    TRY(read_at(z, x->data - z->base, x->bytes, data, e));
    data[x->bytes] = 0;
    if (fmt_crc32(0, data, (size_t)x->bytes) != x->crc)
        rc = err_set(e, ERR_INTEGRITY,
                     "%s: record %.*s does not have its CRC-32: restore the file from a good copy",
                     path_of(z), x->n_name, x->name);
out:
    if (rc < 0)
        free(data);
    else
        *out = data;
    return rc < 0 ? rc : 0;
}
