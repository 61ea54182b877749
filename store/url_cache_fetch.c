/* url_cache_fetch.c - all files of a URL's folder fetched, by several threads, and checked. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/tmp_folder.h"
#include "store/url_cache_priv.h"

#define FOLDERS_DEEP 2 /* folders in folders that a file may lie in */

struct fetch {
    struct url_cache *cache;
    struct log *log; /* progress; or NULL */
    double start_s;
    int64_t present_before, received_before, total; /* bytes; before: when the fetch began */
    pthread_mutex_t lock;                           /* of err and log */
    struct err err;                                 /* the first one; code 0: none */
};

static int has_failed(struct fetch *t)
{
    pthread_mutex_lock(&t->lock);
    int failed = t->err.code;
    pthread_mutex_unlock(&t->lock);
    return failed;
}

static void keep_error(struct fetch *t, const struct err *e)
{
    pthread_mutex_lock(&t->lock);
    if (!t->err.code)
        t->err = *e;
    pthread_mutex_unlock(&t->lock);
}

static void show_progress(struct fetch *t)
{
    char done[32], all[32], rate[32];
    if (!t->log)
        return;
    pthread_mutex_lock(&t->lock);
    int64_t got = url_cache_bytes(t->cache) - t->received_before;
    int64_t present = t->present_before + got < t->total ? t->present_before + got : t->total;
    double s = clock_s() - t->start_s;
    log_bytes(done, (double)present);
    log_bytes(all, (double)t->total);
    log_bytes(rate, s > 0 ? (double)got / s : 0);
    log_progress(t->log, 0, "%s of %s, %s/s, %.0f s left", done, all, rate,
                 got > 0 ? (double)(t->total - present) * s / (double)got : 0.0);
    pthread_mutex_unlock(&t->lock);
}

static int64_t n_tasks(const struct cache_file *f)
{
    return (f->info.bytes + CACHE_REQUEST - 1) / CACHE_REQUEST;
}

/* Task: one request; the requests of all files are numbered one after another. */
static void fetch_task(void *arg, int64_t task, int thread)
{
    struct fetch *t = arg;
    struct cache_file *f = t->cache->file;
    struct err e = { 0 };
    (void)thread;
    for (; task >= n_tasks(f); f++)
        task -= n_tasks(f);
    if (has_failed(t))
        return;
    show_progress(t);
    int64_t first = task * CACHE_REQUEST, end = first + CACHE_REQUEST;
    if (end > f->info.bytes)
        end = f->info.bytes;
    if (cache_file_need(t->cache, f, first, end - first, 1, &e) < 0)
        keep_error(t, &e);
}

/* Task: one file. Several at once, because a processor is slower at SHA-256 than a disk at reading. */
static void check_task(void *arg, int64_t task, int thread)
{
    struct fetch *t = arg;
    struct cache_file *f = &t->cache->file[task];
    struct err e = { 0 };
    (void)thread;
    if (cache_file_check(t->cache, f, &e) < 0 || cache_file_sync(f, &e) < 0)
        keep_error(t, &e);
}

/* Removes the cache's own files and what a killed process left (names that begin with a dot, but for
 * `hidden` and the folder's marker), and fsyncs the rest. */
static int settle_folder(const char *dir, const char *hidden, int depth, struct err *e)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    int rc = 0;
    if (!d)
        return err_sys(e, "cannot open folder %s", dir);
    while (rc >= 0 && (f = readdir(d))) {
        if (!strcmp(f->d_name, ".") || !strcmp(f->d_name, "..") || !strcmp(f->d_name, TMP_MARKER))
            continue;
        char *path = io_join(dir, f->d_name);
        if (!path)
            rc = err_set(e, ERR_MEMORY, "no memory for a path");
        else if (io_is_dir(path))
            rc = depth ? settle_folder(path, hidden, depth - 1, e) : 0;
        else if (f->d_name[0] == '.' && (!hidden || strcmp(f->d_name, hidden)))
            rc = io_unlink(path, e);
        else
            rc = io_sync_file(path, e);
        free(path);
    }
    closedir(d);
    return rc < 0 ? rc : io_sync_dir(dir, e);
}

int url_cache_fetch_all(struct url_cache *c, const struct url_cache_fetch *how, struct err *e)
{
    struct fetch t = {
        .cache = c, .log = how->log, .start_s = clock_s(), .received_before = url_cache_bytes(c)
    };
    struct pool *pool;
    int64_t tasks = 0;
    int rc = pool_open(&pool, how->n_threads, e);
    if (rc < 0)
        return rc;
    for (int i = 0; i < c->n; i++) {
        t.present_before += cache_file_units_present(&c->file[i]) * CACHE_UNIT;
        t.total += c->file[i].info.bytes;
        tasks += n_tasks(&c->file[i]);
    }

    pthread_mutex_init(&t.lock, NULL);
    pool_run(pool, tasks, fetch_task, &t);
    if (!t.err.code)
        pool_run(pool, c->n, check_task, &t);
    pthread_mutex_destroy(&t.lock);
    pool_close(pool);
    if (t.err.code) {
        *e = t.err;
        return -e->code;
    }
    return settle_folder(c->dir, how->hidden, FOLDERS_DEEP, e);
}
