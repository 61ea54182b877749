/* zip_crc.c - checks the CRC-32 of records of files. A record is read and checked before its first bytes
 * are used. A caller that uses whole records and needs the result only at the end (a reshard publishes
 * last) sums the bytes as it uses them, so that each byte is read once. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "format/torch/zip_crc.h"
#include "format/torch/crc32.h"

#define CHUNK ((int64_t)1 << 20)

enum { UNCHECKED, BUSY, GOOD };

static struct fmt_record *record_at(const struct fmt_file *f, int64_t off)
{
    int64_t lo = 0, hi = f->n_records;
    while (lo < hi) { /* the last one that starts at or before off */
        int64_t mid = (lo + hi) / 2;
        if (f->record[mid].begin <= off)
            lo = mid + 1;
        else
            hi = mid;
    }
    struct fmt_record *r = lo ? &f->record[lo - 1] : NULL;
    return r && off - r->begin < r->bytes ? r : NULL;
}

/* Updates *crc with bytes [begin, end) of a file. */
static int sum_bytes(struct ckpt *c, int file, int64_t begin, int64_t end, uint32_t *crc, struct err *e)
{
    int64_t chunk = end - begin < CHUNK ? end - begin : CHUNK;
    char *data = malloc((size_t)chunk + 1);
    int rc = data ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for a block", c->file[file].path);
    for (int64_t at = begin; at < end && rc >= 0; at += chunk) {
        int64_t n = end - at < chunk ? end - at : chunk;
        rc = fmt_pread(c, file, data, n, at, e);
        *crc = rc < 0 ? *crc : fmt_crc32(*crc, data, (size_t)n);
    }
    free(data);
    return rc;
}

static int check(struct ckpt *c, int file, const struct fmt_record *r, struct err *e)
{
    uint32_t crc = 0;
    int rc = sum_bytes(c, file, r->begin, r->begin + r->bytes, &crc, e);
    if (rc >= 0 && crc != r->crc)
        rc = err_set(e, ERR_INTEGRITY,
                     "%s: bytes %lld to %lld have CRC-32 %08x, the file's own directory says %08x: restore "
                     "it from a good copy",
                     c->file[file].path, (long long)r->begin, (long long)(r->begin + r->bytes), crc, r->crc);
    return rc < 0 ? rc : 0;
}

int zip_note_crc(struct zip *z, struct zip_entry *x, struct err *e)
{
    struct fmt_file *f = &z->c->file[z->file];
    if (x->noted || x->bytes == 0)
        return 0;
    if ((f->n_records & (f->n_records - 1)) == 0) { /* the capacity doubles */
        struct fmt_record *grown = realloc(f->record,
                                           sizeof *grown * (size_t)(f->n_records ? f->n_records * 2 : 1));
        if (!grown)
            return err_set(e, ERR_MEMORY, "%s: no memory for its checksums", f->path);
        f->record = grown;
    }

    struct fmt_record *r = &f->record[f->n_records++];
    memset(r, 0, sizeof *r);
    r->begin = x->data;
    r->bytes = x->bytes;
    r->crc = x->crc;
    x->noted = 1;
    return 0;
}

static int compare_begin(const void *a, const void *b)
{
    const struct fmt_record *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

void zip_sort_records(struct ckpt *c)
{
    for (int i = 0; i < c->n_files; i++)
        if (c->file[i].n_records)
            qsort(c->file[i].record, (size_t)c->file[i].n_records, sizeof *c->file[i].record, compare_begin);
}

int fmt_check_record(struct ckpt *c, int file, int64_t off, struct err *e)
{
    const struct timespec nap = { 0, 500000 };
    struct fmt_record *r = record_at(&c->file[file], off);
    while (r && atomic_load(&r->checked) != GOOD) {
        int was = UNCHECKED;
        if (!atomic_compare_exchange_strong(&r->checked, &was, BUSY)) {
            nanosleep(&nap, NULL); /* another thread is reading it: wait instead of reading it twice */
            continue;
        }
        int rc = check(c, file, r, e);
        atomic_store(&r->checked, rc < 0 ? UNCHECKED : GOOD);
        return rc;
    }
    return 0;
}

/* ---- summed while the bytes are used ---- */

int fmt_has_record(const struct fmt_file *f, int64_t off) { return record_at(f, off) != NULL; }

struct fmt_record *fmt_record_once(const struct fmt_file *f, int64_t off)
{
    struct fmt_record *r = record_at(f, off);
    return r && r->once && atomic_load(&r->checked) != GOOD ? r : NULL;
}

void fmt_pass_end(struct fmt_pass *p)
{
    if (p->from == p->to)
        return;
    atomic_fetch_xor(&p->record->parts,
                     fmt_crc32_moved(~p->crc, p->record->begin + p->record->bytes - p->to));
    atomic_fetch_add(&p->record->passed, p->to - p->from);
    p->from = p->to;
}

void fmt_pass_add(struct fmt_pass *p, int64_t off, const void *data, int64_t n)
{
    if (off != p->to || p->from == p->to) {
        fmt_pass_end(p);
        p->from = off;
        p->crc = ~0u; /* the sum of a part starts at 0 */
    }
    p->crc = fmt_crc32(p->crc, data, (size_t)n);
    p->to = off + n;
}

int fmt_settle_record(struct ckpt *c, int file, struct fmt_record *r, struct err *e)
{
    uint32_t parts = atomic_load(&r->parts);
    int rc = 0;

    if (!r->once || atomic_load(&r->checked) == GOOD || atomic_load(&r->passed) != r->covered)
        return fmt_check_record(c, file, r->begin, e);
    for (int64_t i = 0; i < r->n_gaps; i++) {
        uint32_t crc = ~0u;
        TRY(sum_bytes(c, file, r->gap[i].begin, r->gap[i].end, &crc, e));
        parts ^= fmt_crc32_moved(~crc, r->begin + r->bytes - r->gap[i].end);
    }

    if (fmt_crc32_whole(parts, r->bytes) == r->crc) {
        atomic_store(&r->checked, GOOD);
        return 0;
    }

    TRY(check(c, file, r, e)); /* if the file is damaged, this is the error; else the bytes changed: */
    rc = err_set(e, ERR_INTEGRITY,
                 "%s: bytes %lld to %lld did not have their CRC-32 when they were used, and have it now: "
                 "check memory and disk",
                 c->file[file].path, (long long)r->begin, (long long)(r->begin + r->bytes));
out:
    return rc < 0 ? rc : 0;
}

static int compare_place(const void *a, const void *b)
{
    const struct fmt_piece *x = *(struct fmt_piece *const *)a, *y = *(struct fmt_piece *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Finds the gaps between n pieces, sorted by offset; r->gap has space for n + 1. */
static void find_gaps(const struct ckpt *c, struct fmt_record *r, struct fmt_piece *const *p, int64_t n)
{
    int64_t at = r->begin, end = r->begin + r->bytes;
    r->once = 1;
    for (int64_t i = 0; i < n; i++) {
        int64_t bytes = stored_bytes(c->tensor[p[i]->tensor].dtype, p[i]->hi - p[i]->lo);
        if (p[i]->stride || p[i]->offset < at || bytes > end - p[i]->offset) {
            r->once = 0;
            return;
        }
        if (p[i]->offset > at)
            r->gap[r->n_gaps++] = (struct fmt_gap){ at, p[i]->offset };
        at = p[i]->offset + bytes;
        r->covered += bytes;
    }
    if (at < end)
        r->gap[r->n_gaps++] = (struct fmt_gap){ at, end };
}

/* place: the pieces that have bytes, sorted by file and offset. */
static int find_all_gaps(struct ckpt *c, struct fmt_piece *const *place, int64_t n_pieces, struct err *e)
{
    int64_t at = 0, n;
    for (int f = 0; f < c->n_files; f++)
        for (int64_t i = 0; i < c->file[f].n_records; i++, at += n) {
            struct fmt_record *r = &c->file[f].record[i];
            while (at < n_pieces &&
                   (place[at]->file < f || (place[at]->file == f && place[at]->offset < r->begin)))
                at++;
            n = 0;
            while (at + n < n_pieces && place[at + n]->file == f &&
                   place[at + n]->offset < r->begin + r->bytes)
                n++;
            if (n == 0)
                continue; /* no piece uses it: it is checked at the end */
            if (!(r->gap = malloc(sizeof *r->gap * (size_t)(n + 1))))
                return err_set(e, ERR_MEMORY, "%s: no memory for the gaps between %lld pieces",
                               c->file[f].path, (long long)n);
            find_gaps(c, r, place + at, n);
        }
    return 0;
}

int fmt_find_gaps(struct ckpt *c, struct err *e)
{
    int64_t n = 0, n_records = 0;
    for (int f = 0; f < c->n_files; f++)
        n_records += c->file[f].n_records;
    struct fmt_piece **place = n_records ? malloc(sizeof *place * (size_t)(c->n_pieces + 1)) : NULL;
    if (!place)
        return n_records ? err_set(e, ERR_MEMORY, "%s: no memory to sort %lld pieces", c->path,
                                   (long long)c->n_pieces)
                         : 0;
    for (int64_t i = 0; i < c->n_pieces; i++)
        if (c->piece[i].hi > c->piece[i].lo)
            place[n++] = &c->piece[i];
    qsort(place, (size_t)n, sizeof *place, compare_place);
    int rc = find_all_gaps(c, place, n, e);
    free(place);
    return rc;
}
