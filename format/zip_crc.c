/* zip_crc.c - CRC-32 (ISO-HDLC, the one of zip), and records of files checked with it the first time something of them is read. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include "format/zip_crc.h"

#define CHUNK ((int64_t)1 << 20)
#define POLYNOMIAL 0xedb88320u      /* bits reversed */

struct tables { uint32_t t[16][256]; };

/* t[k][b]: what byte b does to the sum k bytes later, so that sixteen bytes take sixteen look-ups that do not wait for each other. */
static void make_tables(struct tables *x)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = b;
        for (int i = 0; i < 8; i++)
            c = c >> 1 ^ (c & 1 ? POLYNOMIAL : 0);
        x->t[0][b] = c;
    }
    for (int k = 1; k < 16; k++)
        for (int b = 0; b < 256; b++)
            x->t[k][b] = x->t[k - 1][b] >> 8 ^ x->t[0][x->t[k - 1][b] & 0xff];
}

static struct tables shared;
static void make_shared(void) { make_tables(&shared); }
static const struct tables *tables(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;     /* written once, the same for everybody */
    pthread_once(&once, make_shared);
    return &shared;
}

uint32_t zip_crc32(uint32_t crc, const void *data, size_t n)
{
    const struct tables *x = tables();
    const unsigned char *p = data;
    uint32_t c = ~crc;
    for (; n >= 16; n -= 16, p += 16) {
        uint32_t d = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        c = x->t[15][d & 0xff] ^ x->t[14][d >> 8 & 0xff] ^ x->t[13][d >> 16 & 0xff] ^ x->t[12][d >> 24];
        for (int i = 4; i < 16; i++)
            c ^= x->t[15 - i][p[i]];
    }
    while (n--)
        c = c >> 8 ^ x->t[0][(c ^ *p++) & 0xff];
    return ~c;
}

/* ---- records ---- */

enum { UNCHECKED, BUSY, GOOD };

static struct fmt_record *record_at(const struct fmt_file *f, int64_t off)
{
    int64_t lo = 0, hi = f->n_records;
    while (lo < hi) {           /* the last one that begins at or before off */
        int64_t mid = (lo + hi) / 2;
        if (f->record[mid].begin <= off)
            lo = mid + 1;
        else
            hi = mid;
    }
    struct fmt_record *r = lo ? &f->record[lo - 1] : NULL;
    return r && off - r->begin < r->bytes ? r : NULL;
}

static int check(struct ckpt *c, int file, const struct fmt_record *r, struct err *e)
{
    int64_t chunk = r->bytes < CHUNK ? r->bytes : CHUNK;
    char *data = malloc((size_t)chunk + 1);
    uint32_t crc = 0;
    int rc = data ? 0 : err_set(e, ERR_MEMORY, "%s: no room for a block", c->file[file].path);
    for (int64_t at = 0; at < r->bytes && rc >= 0; at += chunk) {
        int64_t n = r->bytes - at < chunk ? r->bytes - at : chunk;
        rc = fmt_pread(c, file, data, n, r->begin + at, e);
        crc = rc < 0 ? crc : zip_crc32(crc, data, (size_t)n);
    }
    free(data);
    if (rc >= 0 && crc != r->crc)
        rc = err_set(e, ERR_INTEGRITY, "%s: bytes %lld to %lld have CRC-32 %08x, the file's own directory says %08x: restore it from a good copy",
                     c->file[file].path, (long long)r->begin, (long long)(r->begin + r->bytes), crc, r->crc);
    return rc < 0 ? rc : 0;
}

int zip_keep_crc(struct zip *z, struct zip_entry *x, struct err *e)
{
    struct fmt_file *f = &z->c->file[z->file];
    if (x->kept || x->bytes == 0)
        return 0;
    if ((f->n_records & (f->n_records - 1)) == 0) {        /* room doubles */
        struct fmt_record *grown = realloc(f->record, sizeof *grown * (size_t)(f->n_records ? f->n_records * 2 : 1));
        if (!grown)
            return err_set(e, ERR_MEMORY, "%s: no room for its checksums", f->path);
        f->record = grown;
    }
    struct fmt_record *r = &f->record[f->n_records++];
    r->begin = x->data;
    r->bytes = x->bytes;
    r->crc = x->crc;
    atomic_init(&r->checked, UNCHECKED);
    x->kept = 1;
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
            nanosleep(&nap, NULL);      /* another thread reads it: do not read it twice */
            continue;
        }
        int rc = check(c, file, r, e);
        atomic_store(&r->checked, rc < 0 ? UNCHECKED : GOOD);
        return rc;
    }
    return 0;
}
