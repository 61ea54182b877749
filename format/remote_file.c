/* remote_file.c - one large file of a remote checkpoint: sparse, parts appear as they are needed. A byte of
 * NAME.have is set after the data are in the file, so a process may die at any time. After a crash of the
 * machine the order on the disk is not known: another boot starts the file again. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "base/io.h"
#include "base/pool.h"
#include "format/fmt.h"
#include "format/remote_priv.h"
#include "store/sha256.h"

#define UNITS (REMOTE_REQUEST / REMOTE_UNIT)
#define PARALLEL 4  /* requests of one large read at once */
#define BUSY_S 30.0 /* another process has had a unit for this long: it is gone */
enum { ABSENT, BUSY, HERE };

struct have {
    char magic[8];
    int64_t bytes;
    char etag[160], sha256[72], boot[40];
    _Atomic unsigned char proven;
    _Atomic unsigned char unit[];
};
#define HEAD offsetof(struct have, proven) /* what must be equal for the units to be of this version */

static int64_t units_of(const struct far *f) { return (f->info.bytes + REMOTE_UNIT - 1) / REMOTE_UNIT; }

void fmt_boot_id(char out[40])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, 36);
    io_close(fd);
    out[n < 0 ? 0 : n] = 0;
}

static void head_of(const struct far *f, struct have *h)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, "have 3", 7);
    h->bytes = f->info.bytes;
    snprintf(h->etag, sizeof h->etag, "%s", f->info.etag);
    snprintf(h->sha256, sizeof h->sha256, "%s", f->info.sha256);
    fmt_boot_id(h->boot);
}

char *far_hidden(const char *dir, const char *name, const char *ending)
{
    const char *slash = strrchr(name, '/'), *file = slash ? slash + 1 : name;
    size_t n = strlen(dir) + strlen(name) + strlen(ending) + 4;
    char *path = malloc(n);
    if (path)
        snprintf(path, n, "%s/%.*s.%s.%s", dir, (int)(file - name), name, file, ending);
    return path;
}

static int map_have(struct remote *r, struct far *f, struct err *e)
{
    struct have want;
    char *path = far_hidden(r->dir, f->name, "have");
    head_of(f, &want);
    int fd = path ? io_open_write(path, e) : err_set(e, ERR_MEMORY, "no room for a path"),
        rc = fd < 0 ? fd : 0;
    f->map_bytes = sizeof *f->have + (size_t)units_of(f) + 1;
    int64_t have = fd < 0 ? 0 : io_size(fd, path, e);
    if (have < 0)
        rc = (int)have;
    else if (fd >= 0 && have < (int64_t)f->map_bytes)
        rc = io_truncate(fd, path, (int64_t)f->map_bytes, e);
    if (rc < 0) {
        io_close(fd);
        free(path);
        return rc;
    }
    f->have = mmap(NULL, f->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    io_close(fd);
    free(path);
    if (f->have == MAP_FAILED) {
        f->have = NULL;
        return err_sys(e, "cannot map the state of %s", f->path);
    }
    /* without an etag only those who read at the same time can share */
    int same = !memcmp(f->have, &want, HEAD) && (*want.etag || !r->alone);
    if (!same) { /* another version of it, or none yet */
        for (int64_t u = 0; u < units_of(f); u++)
            atomic_store(&f->have->unit[u], ABSENT);
        atomic_store(&f->have->proven, ABSENT);
        memcpy(f->have, &want, HEAD);
    }
    for (int64_t u = 0; r->alone && u < units_of(f); u++)
        if (atomic_load(&f->have->unit[u]) == BUSY)
            atomic_store(&f->have->unit[u], ABSENT); /* of a process that is gone */
    if (r->alone && atomic_load(&f->have->proven) == BUSY)
        atomic_store(&f->have->proven, ABSENT);
    return 0;
}

/* ---- units ---- */

static int fetch_units(struct remote *r, struct far *f, int64_t first, int64_t n, struct err *e)
{
    int64_t off = first * REMOTE_UNIT,
            bytes = n * REMOTE_UNIT < f->info.bytes - off ? n * REMOTE_UNIT : f->info.bytes - off;
    char *data = malloc((size_t)bytes);
    int rc = data ? store_read(r->store, f->name, &f->info, off, bytes, data, e)
                  : err_set(e, ERR_MEMORY, "no room for a part of %s", f->name);
    if (rc >= 0)
        rc = io_pwrite(f->fd, f->path, data, (size_t)bytes, off, e);
    for (int64_t u = first; u < first + n; u++)
        atomic_store(&f->have->unit[u], rc < 0 ? ABSENT : HERE);
    free(data);
    return rc < 0 ? rc : 0;
}

/* 1 when this process has taken unit u to fetch it. */
static int take(struct far *f, int64_t u)
{
    unsigned char absent = ABSENT;
    return atomic_compare_exchange_strong(&f->have->unit[u], &absent, BUSY);
}

/* Another process, or another thread of this one, fetches it. */
static int wait_for(const struct remote *r, struct far *f, int64_t u, struct err *e)
{
    const struct timespec t = { 0, 2000000 };
    for (double s = 0; s < BUSY_S && atomic_load(&f->have->unit[u]) == BUSY && !store_is_stopped(r->store);
         s += 0.002)
        nanosleep(&t, NULL);
    if (store_is_stopped(r->store))
        return err_set(e, ERR_STOPPED, "%s: stopped by a signal", f->name);
    unsigned char busy = BUSY;
    atomic_compare_exchange_strong(&f->have->unit[u], &busy, ABSENT);
    return 0;
}

static int need_units(struct remote *r, struct far *f, int64_t u, int64_t end, struct err *e)
{
    while (u < end) {
        int64_t m = 0;
        int rc = 0;
        while (u + m < end && m < UNITS && take(f, u + m))
            m++;
        if (m) {
            rc = fetch_units(r, f, u, m, e);
            u += m;
        } else if (atomic_load(&f->have->unit[u]) == HERE)
            u++;
        else
            rc = wait_for(r, f, u, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

struct span {
    struct remote *r;
    struct far *f;
    int64_t first, end;
    pthread_mutex_t lock;
    struct err err;
};

static void need_part(void *arg, int64_t task, int thread)
{
    struct span *s = arg;
    struct err e = { 0 };
    int64_t u = s->first + task * UNITS, end = u + UNITS < s->end ? u + UNITS : s->end;
    (void)thread;
    pthread_mutex_lock(&s->lock);
    int failed = s->err.code;
    pthread_mutex_unlock(&s->lock);
    if (!failed && need_units(s->r, s->f, u, end, &e) < 0) {
        pthread_mutex_lock(&s->lock);
        s->err = e;
        pthread_mutex_unlock(&s->lock);
    }
}

/* A connection brings a part of what a line can carry: many MiBs are asked for by several. */
static int need_in_parallel(struct remote *r, struct far *f, int64_t first, int64_t end, struct err *e)
{
    struct span s = { .r = r, .f = f, .first = first, .end = end };
    struct pool *pool;
    int rc = pool_open(&pool, PARALLEL, e);
    if (rc < 0)
        return rc;
    pthread_mutex_init(&s.lock, NULL);
    pool_run(pool, (end - first + UNITS - 1) / UNITS, need_part, &s);
    pthread_mutex_destroy(&s.lock);
    pool_close(pool);
    if (!s.err.code)
        return 0;
    *e = s.err;
    return -e->code;
}

int far_need(struct remote *r, struct far *f, int64_t off, int64_t n, int exact, struct err *e)
{
    int64_t u = off / REMOTE_UNIT, end = n ? (off + n + REMOTE_UNIT - 1) / REMOTE_UNIT : u, missing = 0,
            block = REMOTE_BLOCK / REMOTE_UNIT;
    if (off < 0 || n < 0 || off > f->info.bytes - n)
        return err_set(e, ERR_FORMAT, "%s ends at byte %lld, %lld are needed: is it a whole file", f->name,
                       (long long)f->info.bytes, (long long)(off + n));
    while (u < end && atomic_load(&f->have->unit[u]) == HERE)
        u++;
    if (u == end)
        return 0;
    if (!exact) {
        u = u / block * block;
        end = (end + block - 1) / block * block;
        end = end < units_of(f) ? end : units_of(f);
    }
    for (int64_t v = u; v < end; v++)
        missing += atomic_load(&f->have->unit[v]) == ABSENT;
    return missing > UNITS ? need_in_parallel(r, f, u, end, e) : need_units(r, f, u, end, e);
}

int64_t far_units_here(const struct far *f)
{
    int64_t n = 0;
    for (int64_t u = 0; u < units_of(f); u++)
        n += atomic_load(&f->have->unit[u]) == HERE;
    return n;
}

static int whole_in_one_stream(struct remote *r, struct far *f, struct err *e)
{
    r->one_stream = 1;
    if (far_units_here(f) == units_of(f))
        return 0;
    int rc = store_copy(r->store, f->name, &f->info, f->fd, f->path, e);
    for (int64_t u = 0; rc >= 0 && u < units_of(f); u++)
        atomic_store(&f->have->unit[u], HERE);
    return rc;
}

/* The header of a safetensors file is needed by everybody. Archives have their tables at their end: they are
 * needed whole. */
static int need_header(struct remote *r, struct far *f, struct err *e)
{
    uint64_t n = 0;
    size_t len = strlen(f->name);
    int rc = 0;
    if (len > 4 && !strcmp(f->name + len - 4, FMT_ZSTD))
        return 0;
    if (len < 12 || strcmp(f->name + len - 12, ".safetensors"))
        return far_need(r, f, 0, f->info.bytes, 1, e);
    TRY(far_need(r, f, 0, f->info.bytes < 8 ? f->info.bytes : 8, 1, e));
    if (f->info.bytes >= 8)
        TRY(io_pread(f->fd, f->path, &n, 8, 0, e));
    /* else the reader says what is wrong */
    if (n < ((uint64_t)1 << 27) && (int64_t)n + 8 <= f->info.bytes)
        TRY(far_need(r, f, 0, (int64_t)n + 8, 1, e));
out:
    return rc < 0 ? rc : 0;
}

int far_open(struct remote *r, struct far *f, struct err *e)
{
    int rc = 0;
    TRY(f->fd = io_open_write(f->path, e));
    TRY(io_truncate(f->fd, f->path, f->info.bytes, e));
    TRY(map_have(r, f, e));
    if (!f->info.ranges && f->info.bytes)
        TRY(whole_in_one_stream(r, f, e));
    TRY(need_header(r, f, e));
out:
    return rc < 0 ? rc : 0;
}

void far_close(struct far *f)
{
    io_close(f->fd);
    if (f->have)
        munmap(f->have, f->map_bytes);
    free(f->name);
    free(f->path);
}

/* ---- at the end ---- */

static int still_the_same(struct remote *r, struct far *f, struct err *e)
{
    struct store_info now;
    struct have want;
    head_of(f, &want);
    if (memcmp(f->have, &want, HEAD))
        return err_set(e, ERR_INTEGRITY, "%s: changed while it was read: start again", f->name);
    if (!r->alone || *store_commit(r->store)) /* a commit does not change */
        return 0;
    int rc = store_stat(r->store, f->name, &now, e);
    if (rc < 0)
        return rc;
    if (!rc || now.bytes != f->info.bytes || strcmp(now.etag, f->info.etag))
        return err_set(e, ERR_INTEGRITY, "%s: changed while it was read: start again", f->name);
    return 0;
}

/* Whoever finds the file whole first computes its sum; the others wait for no one. */
static int prove(struct far *f, struct err *e)
{
    unsigned char not_yet = ABSENT;
    char hex[65];
    if (!*f->info.sha256 || far_units_here(f) < units_of(f) ||
        !atomic_compare_exchange_strong(&f->have->proven, &not_yet, BUSY))
        return 0;
    int rc = sha256_file(f->path, hex, e);
    if (rc >= 0 && strcmp(hex, f->info.sha256)) {
        for (int64_t u = 0; u < units_of(f); u++)
            atomic_store(&f->have->unit[u], ABSENT);
        rc = err_set(e, ERR_INTEGRITY,
                     "%s: has sha256 %s, the server promised %s: its bytes were dropped, start again",
                     f->name, hex, f->info.sha256);
    }
    atomic_store(&f->have->proven, rc < 0 ? ABSENT : HERE);
    return rc < 0 ? rc : 0;
}

int far_check(struct remote *r, struct far *f, struct err *e)
{
    int rc = still_the_same(r, f, e);
    return rc < 0 ? rc : prove(f, e);
}

int far_seal(struct far *f, struct err *e)
{
    int fd = f->fd;
    f->fd = -1;
    return io_sync_close(fd, f->path, e);
}
