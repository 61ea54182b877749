/* url_cache_file.c - a large file of a URL's folder: sparse, its units appear as they are needed.
 *
 * The byte of a unit in .NAME.have is set after the unit's data are in the file, so a process may be killed
 * at any time. After a crash of the machine it is unknown which of both reached the disk: another boot begins
 * the file anew. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "base/io.h"
#include "base/pool.h"
#include "store/sha256.h"
#include "store/url_cache_priv.h"

#define REQUEST_UNITS (CACHE_REQUEST / CACHE_UNIT)
#define PARALLEL 4      /* requests of one large read at once */
#define FETCHING_S 30.0 /* a unit that another process has been fetching for longer is taken from it */

/* The state of a unit. Of `checked`, the SHA-256 of the whole file: not computed, being computed, right. */
enum { ABSENT, FETCHING, PRESENT };

struct presence {
    char magic[8];
    int64_t bytes;
    char etag[160], sha256[72], boot[40];
    _Atomic unsigned char checked;
    _Atomic unsigned char unit[];
};
/* The bytes in front that must be equal for the units to be of the same version. */
#define VERSION_BYTES offsetof(struct presence, checked)

static int64_t units_of(const struct cache_file *f) { return (f->info.bytes + CACHE_UNIT - 1) / CACHE_UNIT; }

void cache_boot_id(char out[40])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, 36);
    io_close(fd);
    out[n < 0 ? 0 : n] = 0;
}

static void version_of(const struct cache_file *f, struct presence *h)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, "have 3", 7);
    h->bytes = f->info.bytes;
    snprintf(h->etag, sizeof h->etag, "%s", f->info.etag);
    snprintf(h->sha256, sizeof h->sha256, "%s", f->info.sha256);
    cache_boot_id(h->boot);
}

static int map_presence(const struct url_cache *c, struct cache_file *f, struct err *e)
{
    char *path = cache_hidden_path(c->dir, f->name, "have");
    int fd = -1, rc = 0;
    if (!path)
        return err_set(e, ERR_MEMORY, "no memory for a path");
    f->map_bytes = sizeof *f->presence + (size_t)units_of(f) + 1;
    TRY(fd = io_open_write(path, e));
    int64_t bytes = io_size(fd, path, e);
    if (bytes < 0)
        rc = (int)bytes;
    else if (bytes < (int64_t)f->map_bytes)
        rc = io_truncate(fd, path, (int64_t)f->map_bytes, e);
    if (rc >= 0)
        rc = io_reserve(fd, path, (int64_t)f->map_bytes, e);
    if (rc < 0)
        goto out;
    f->presence = mmap(NULL, f->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (f->presence == MAP_FAILED) {
        f->presence = NULL;
        rc = err_sys(e, "cannot map the state of %s", f->path);
    }
out:
    io_close(fd);
    free(path);
    return rc < 0 ? rc : 0;
}

/* Forgets units of another version, and what a killed process was fetching. */
static void settle_presence(const struct url_cache *c, struct cache_file *f)
{
    struct presence want, *h = f->presence;
    version_of(f, &want);

    /* Without an etag only processes that read at the same time can share. */
    int same = !memcmp(h, &want, VERSION_BYTES) && (*want.etag || !c->alone);
    if (!same) {
        for (int64_t u = 0; u < units_of(f); u++)
            atomic_store(&h->unit[u], ABSENT);
        atomic_store(&h->checked, ABSENT);
        memcpy(h, &want, VERSION_BYTES);
    }
    if (!c->alone)
        return;
    for (int64_t u = 0; u < units_of(f); u++)
        if (atomic_load(&h->unit[u]) == FETCHING)
            atomic_store(&h->unit[u], ABSENT);
    if (atomic_load(&h->checked) == FETCHING)
        atomic_store(&h->checked, ABSENT);
}

/* ---- units ---- */

static int fetch_units(struct url_cache *c, struct cache_file *f, int64_t first, int64_t n, struct err *e)
{
    int64_t off = first * CACHE_UNIT, bytes = n * CACHE_UNIT;
    if (bytes > f->info.bytes - off)
        bytes = f->info.bytes - off;
    char *data = malloc((size_t)bytes);
    int rc = data ? store_read(c->store, f->name, &f->info, off, bytes, data, e)
                  : err_set(e, ERR_MEMORY, "no memory for a part of %s", f->name);
    if (rc >= 0)
        rc = io_pwrite(f->fd, f->path, data, (size_t)bytes, off, e);
    for (int64_t u = first; u < first + n; u++)
        atomic_store(&f->presence->unit[u], rc < 0 ? ABSENT : PRESENT);
    free(data);
    return rc < 0 ? rc : 0;
}

/* 1: unit u was absent, and this thread is the one that fetches it. */
static int take(struct cache_file *f, int64_t u)
{
    unsigned char absent = ABSENT;
    return atomic_compare_exchange_strong(&f->presence->unit[u], &absent, FETCHING);
}

/* Waits while another process, or another thread of this one, fetches unit u. */
static int wait_for(const struct url_cache *c, struct cache_file *f, int64_t u, struct err *e)
{
    const struct timespec t = { 0, 2000000 };
    for (double s = 0; s < FETCHING_S && !store_is_stopped(c->store); s += 0.002) {
        if (atomic_load(&f->presence->unit[u]) != FETCHING)
            break;
        nanosleep(&t, NULL);
    }
    if (store_is_stopped(c->store))
        return err_set(e, ERR_STOPPED, "%s: stopped by a signal", f->name);
    unsigned char fetching = FETCHING;
    atomic_compare_exchange_strong(&f->presence->unit[u], &fetching, ABSENT);
    return 0;
}

/* Units [u, end). */
static int need_units(struct url_cache *c, struct cache_file *f, int64_t u, int64_t end, struct err *e)
{
    while (u < end) {
        int64_t m = 0;
        int rc = 0;
        while (u + m < end && m < REQUEST_UNITS && take(f, u + m))
            m++;
        if (m) {
            rc = fetch_units(c, f, u, m, e);
            u += m;
        } else if (atomic_load(&f->presence->unit[u]) == PRESENT) {
            u++;
        } else {
            rc = wait_for(c, f, u, e);
        }
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Units [first, end) of a file, fetched by several threads. */
struct span {
    struct url_cache *c;
    struct cache_file *f;
    int64_t first, end;
    pthread_mutex_t lock;
    struct err err;
};

static void need_part(void *arg, int64_t task, int thread)
{
    struct span *s = arg;
    struct err e = { 0 };
    int64_t u = s->first + task * REQUEST_UNITS,
            end = u + REQUEST_UNITS < s->end ? u + REQUEST_UNITS : s->end;
    (void)thread;
    pthread_mutex_lock(&s->lock);
    int failed = s->err.code;
    pthread_mutex_unlock(&s->lock);
    if (!failed && need_units(s->c, s->f, u, end, &e) < 0) {
        pthread_mutex_lock(&s->lock);
        s->err = e;
        pthread_mutex_unlock(&s->lock);
    }
}

/* One connection uses a part of the bandwidth: many MiBs are fetched over several. */
static int need_in_parallel(struct url_cache *c, struct cache_file *f, int64_t first, int64_t end,
                            struct err *e)
{
    struct span s = { .c = c, .f = f, .first = first, .end = end };
    struct pool *pool;
    int rc = pool_open(&pool, PARALLEL, e);
    if (rc < 0)
        return rc;
    pthread_mutex_init(&s.lock, NULL);
    pool_run(pool, (end - first + REQUEST_UNITS - 1) / REQUEST_UNITS, need_part, &s);
    pthread_mutex_destroy(&s.lock);
    pool_close(pool);
    if (!s.err.code)
        return 0;
    *e = s.err;
    return -e->code;
}

int cache_file_need(struct url_cache *c, struct cache_file *f, int64_t off, int64_t n, int exact,
                    struct err *e)
{
    int64_t block = CACHE_BLOCK / CACHE_UNIT, missing = 0;
    int64_t u = off / CACHE_UNIT, end = n ? (off + n + CACHE_UNIT - 1) / CACHE_UNIT : u;
    if (off < 0 || n < 0 || off > f->info.bytes - n)
        return err_set(e, ERR_FORMAT, "%s ends at byte %lld, %lld are needed: is it a whole file", f->name,
                       (long long)f->info.bytes, (long long)(off + n));
    while (u < end && atomic_load(&f->presence->unit[u]) == PRESENT)
        u++;
    if (u == end)
        return 0;

    if (!exact) {
        u = u / block * block;
        end = (end + block - 1) / block * block;
        end = end < units_of(f) ? end : units_of(f);
    }
    for (int64_t v = u; v < end; v++)
        missing += atomic_load(&f->presence->unit[v]) == ABSENT;
    return missing > REQUEST_UNITS ? need_in_parallel(c, f, u, end, e) : need_units(c, f, u, end, e);
}

void cache_file_drop(struct cache_file *f, int64_t off, int64_t n)
{
    int64_t first = (off + CACHE_UNIT - 1) / CACHE_UNIT, end = (off + n) / CACHE_UNIT;
    for (int64_t u = first; u < end; u++)
        atomic_store(&f->presence->unit[u], ABSENT);
    io_punch(f->fd, first * CACHE_UNIT, (end - first) * CACHE_UNIT);
}

int64_t cache_file_units_present(const struct cache_file *f)
{
    int64_t n = 0;
    for (int64_t u = 0; u < units_of(f); u++)
        n += atomic_load(&f->presence->unit[u]) == PRESENT;
    return n;
}

/* For a server without ranges. */
static int whole_in_one_stream(struct url_cache *c, struct cache_file *f, struct err *e)
{
    c->one_stream = 1;
    if (cache_file_units_present(f) == units_of(f))
        return 0;
    int rc = store_copy(c->store, f->name, &f->info, f->fd, f->path, e);
    for (int64_t u = 0; rc >= 0 && u < units_of(f); u++)
        atomic_store(&f->presence->unit[u], PRESENT);
    return rc;
}

int cache_file_open(struct url_cache *c, struct cache_file *f, struct err *e)
{
    int rc = 0;
    TRY(f->fd = io_open_write(f->path, e));
    TRY(io_truncate(f->fd, f->path, f->info.bytes, e));
    TRY(map_presence(c, f, e));
    settle_presence(c, f);
    if (!f->info.ranges && f->info.bytes)
        TRY(whole_in_one_stream(c, f, e));
out:
    return rc < 0 ? rc : 0;
}

void cache_file_close(struct cache_file *f)
{
    io_close(f->fd);
    if (f->presence)
        munmap(f->presence, f->map_bytes);
    free(f->name);
    free(f->path);
}

/* ---- after reading ---- */

static int check_version(struct url_cache *c, struct cache_file *f, struct err *e)
{
    struct store_info now;
    struct presence want;
    version_of(f, &want);
    if (memcmp(f->presence, &want, VERSION_BYTES))
        return err_set(e, ERR_INTEGRITY, "%s: changed while it was read: start again", f->name);
    if (!c->alone || *store_commit(c->store)) /* a commit does not change */
        return 0;
    int rc = store_stat(c->store, f->name, &now, e);
    if (rc < 0)
        return rc;
    if (!rc || now.bytes != f->info.bytes || strcmp(now.etag, f->info.etag))
        return err_set(e, ERR_INTEGRITY, "%s: changed while it was read: start again", f->name);
    return 0;
}

/* The first process that finds the file whole computes its SHA-256; the others do not wait for it. */
static int check_sum(struct cache_file *f, struct err *e)
{
    unsigned char not_yet = ABSENT;
    char hex[65];
    if (!*f->info.sha256 || cache_file_units_present(f) < units_of(f) ||
        !atomic_compare_exchange_strong(&f->presence->checked, &not_yet, FETCHING))
        return 0;
    int rc = sha256_file(f->path, hex, e);
    if (rc >= 0 && strcmp(hex, f->info.sha256)) {
        for (int64_t u = 0; u < units_of(f); u++)
            atomic_store(&f->presence->unit[u], ABSENT);
        rc = err_set(e, ERR_INTEGRITY,
                     "%s: has sha256 %s, the server promised %s: its bytes were dropped, start again",
                     f->name, hex, f->info.sha256);
    }
    atomic_store(&f->presence->checked, rc < 0 ? ABSENT : PRESENT);
    return rc < 0 ? rc : 0;
}

int cache_file_check(struct url_cache *c, struct cache_file *f, struct err *e)
{
    int rc = check_version(c, f, e);
    return rc < 0 ? rc : check_sum(f, e);
}

int cache_file_sync(struct cache_file *f, struct err *e)
{
    int fd = f->fd;
    f->fd = -1;
    return io_sync_close(fd, f->path, e);
}
