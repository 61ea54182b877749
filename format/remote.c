/* remote.c - see remote.h.
 *
 *     CACHE/<hash of the URL>/manifest.json, config.json, …     fetched anew at every opening: a changed checkpoint is noticed
 *                             model.safetensors                 sparse; MiBs appear as they are needed
 *                             .model.safetensors.have           which of them are there: a byte each, shared memory of all processes
 * A byte of .have is set after the data are in the file, so a process may die at any time. After a crash of the machine the order on the
 * disk is not known: another boot starts the file again. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "format/remote.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/io.h"
#include "base/jx.h"
#include "base/pool.h"
#include "format/fmt.h"
#include "format/store.h"

#define UNIT ((int64_t)1 << 20)
#define REQUEST 8                       /* units of one request, at most */
#define BUSY_S 30.0                     /* another process has had a unit for this long: it is gone */
enum { ABSENT, BUSY, HERE };

struct have { char magic[8]; int64_t bytes; char etag[160], boot[40]; _Atomic unsigned char unit[]; };
struct far {
    char *name, *path;
    struct store_info info;
    int fd;
    struct have *have;                  /* mapped */
    size_t map_bytes;
};
struct remote {
    struct store *store;
    char *dir, *path;
    int users_fd, alone;                /* alone: nobody else had the folder open when this did */
    int n, one_stream;
    struct far *file;
    pthread_mutex_t lock;               /* of err */
    struct err err;
};

static int64_t units_of(const struct far *f)
{
    return (f->info.bytes + UNIT - 1) / UNIT;
}

/* ---- the folder ---- */

static int choose_folder(struct remote *r, const char *url, const char *dir, struct err *e)
{
    char path[4096], hex[33];
    const char *own = getenv("SHARDLINE_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    fmt_hex128(fmt_sum128(url, strlen(url)), hex);
    if (dir)
        snprintf(path, sizeof path, "%s", dir);
    else if (own && *own)
        snprintf(path, sizeof path, "%s/%s", own, hex);
    else
        snprintf(path, sizeof path, "%s%s/shardline/%s", xdg && *xdg ? xdg : home && *home ? home : "/tmp", xdg && *xdg ? "" : "/.cache", hex);
    r->dir = strdup(path);
    return r->dir ? io_make_dirs(path, e) : err_set(e, ERR_MEMORY, "no room for a path");
}

/* Everybody holds a shared lock on .users as long as it reads; who gets the exclusive one first is alone. */
static int lock_folder(struct remote *r, struct err *e)
{
    char *path = fmt_join(r->dir, ".users");
    int rc = 0;
    if (!path)
        return err_set(e, ERR_MEMORY, "no room for a path");
    r->users_fd = io_open_write(path, e);
    if (r->users_fd < 0)
        rc = r->users_fd;
    else if (!(r->alone = flock(r->users_fd, LOCK_EX | LOCK_NB) == 0) && flock(r->users_fd, LOCK_SH) < 0)
        rc = err_sys(e, "cannot lock %s", path);
    free(path);
    return rc;
}

static void boot_id(char out[40])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, 36);
    io_close(fd);
    out[n < 0 ? 0 : n] = 0;
}

/* ---- one large file ---- */

static int map_have(struct remote *r, struct far *f, struct err *e)
{
    struct have want = { .magic = "have 1", .bytes = f->info.bytes };
    char name[300], *path;
    snprintf(want.etag, sizeof want.etag, "%s", f->info.etag);
    boot_id(want.boot);
    snprintf(name, sizeof name, ".%.255s.have", f->name);
    path = fmt_join(r->dir, name);
    int fd = path ? io_open_write(path, e) : err_set(e, ERR_MEMORY, "no room for a path"), rc = fd < 0 ? fd : 0;
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
    int same = !memcmp(f->have, &want, sizeof want) && *want.etag;
    if (!same) {                        /* another version of it, or none yet */
        for (int64_t u = 0; u < units_of(f); u++)
            atomic_store(&f->have->unit[u], ABSENT);
        memcpy(f->have, &want, sizeof want);
    }
    for (int64_t u = 0; r->alone && u < units_of(f); u++)
        if (atomic_load(&f->have->unit[u]) == BUSY)
            atomic_store(&f->have->unit[u], ABSENT);        /* of a process that is gone */
    return 0;
}

static int fetch_units(struct remote *r, struct far *f, int64_t first, int64_t n, struct err *e)
{
    int64_t off = first * UNIT, bytes = n * UNIT < f->info.bytes - off ? n * UNIT : f->info.bytes - off;
    char *data = malloc((size_t)bytes);
    int rc = data ? store_read(r->store, f->name, &f->info, off, bytes, data, e) : err_set(e, ERR_MEMORY, "no room for a part of %s", f->name);
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

static void wait_for(struct far *f, int64_t u)
{
    const struct timespec t = { 0, 2000000 };
    for (double s = 0; s < BUSY_S && atomic_load(&f->have->unit[u]) == BUSY; s += 0.002)
        nanosleep(&t, NULL);
    unsigned char busy = BUSY;
    atomic_compare_exchange_strong(&f->have->unit[u], &busy, ABSENT);
}

static int need(struct remote *r, struct far *f, int64_t off, int64_t n, struct err *e)
{
    int64_t u = off / UNIT, end = n ? (off + n + UNIT - 1) / UNIT : u;
    if (end > units_of(f))
        return err_set(e, ERR_FORMAT, "%s ends at byte %lld, %lld are needed: is it a whole file", f->name, (long long)f->info.bytes, (long long)(off + n));
    while (u < end) {
        int64_t m = 0;
        while (u + m < end && m < REQUEST && take(f, u + m))
            m++;
        if (m) {
            int rc = fetch_units(r, f, u, m, e);
            if (rc < 0)
                return rc;
            u += m;
        } else if (atomic_load(&f->have->unit[u]) == HERE)
            u++;
        else
            wait_for(f, u);
    }
    return 0;
}

static int whole_in_one_stream(struct remote *r, struct far *f, struct err *e)
{
    int64_t n = 0;
    r->one_stream = 1;
    while (n < units_of(f) && atomic_load(&f->have->unit[n]) == HERE)
        n++;
    if (n == units_of(f))
        return 0;
    int rc = store_copy(r->store, f->name, &f->info, f->fd, f->path, e);
    for (int64_t u = 0; rc >= 0 && u < units_of(f); u++)
        atomic_store(&f->have->unit[u], HERE);
    return rc;
}

/* The header of a safetensors file is needed by everybody. Archives have their tables at their end: they are needed whole. */
static int need_header(struct remote *r, struct far *f, struct err *e)
{
    uint64_t n = 0;
    size_t len = strlen(f->name);
    int rc = 0;
    if (len > 4 && !strcmp(f->name + len - 4, FMT_ZSTD))
        return 0;
    if (len < 12 || strcmp(f->name + len - 12, ".safetensors"))
        return need(r, f, 0, f->info.bytes, e);
    TRY(need(r, f, 0, f->info.bytes < 8 ? f->info.bytes : 8, e));
    if (f->info.bytes >= 8)
        TRY(io_pread(f->fd, f->path, &n, 8, 0, e));
    if (n < ((uint64_t)1 << 27) && (int64_t)n + 8 <= f->info.bytes)        /* else the reader says what is wrong */
        TRY(need(r, f, 0, (int64_t)n + 8, e));
out:
    return rc < 0 ? rc : 0;
}

static int add_large(struct remote *r, const char *name, const struct store_info *info, struct err *e)
{
    struct far *grown = realloc(r->file, sizeof *grown * (size_t)(r->n + 1)), *f;
    int rc = 0;
    if (!grown)
        return err_set(e, ERR_MEMORY, "no room for the table of files");
    r->file = grown;
    f = &grown[r->n++];
    *f = (struct far){ .name = strdup(name), .info = *info, .fd = -1 };
    f->path = fmt_join(r->dir, name);
    if (!f->name || !f->path)
        return err_set(e, ERR_MEMORY, "no room for the table of files");
    TRY(f->fd = io_open_write(f->path, e));
    TRY(io_truncate(f->fd, f->path, info->bytes, e));
    TRY(map_have(r, f, e));
    if (!info->ranges && info->bytes)
        TRY(whole_in_one_stream(r, f, e));
    TRY(need_header(r, f, e));
out:
    return rc < 0 ? rc : 0;
}

/* ---- what a checkpoint consists of ---- */

/* A small file, whole: 1 it is there, 0 there is none. */
static int get_small(struct remote *r, const char *name, struct err *e)
{
    struct store_info info;
    char *path = NULL, *tmp = NULL, *data = NULL, part[300];
    int fd = -1, rc = store_stat(r->store, name, &info, e);
    if (rc <= 0)
        return rc;
    if (info.bytes > (int64_t)FMT_MANIFEST_MAX)
        return err_set(e, ERR_FORMAT, "%s has %lld bytes: is it the right file", name, (long long)info.bytes);
    snprintf(part, sizeof part, ".%.255s.%d", name, (int)getpid());
    path = fmt_join(r->dir, name);
    tmp = fmt_join(r->dir, part);
    data = malloc((size_t)info.bytes + 1);
    if (!path || !tmp || !data) {
        rc = err_set(e, ERR_MEMORY, "no room for %s", name);
        goto out;
    }
    TRY(store_read(r->store, name, &info, 0, info.bytes, data, e));
    TRY(io_unlink(tmp, e));
    TRY(fd = io_create(tmp, e));
    TRY(io_pwrite(fd, tmp, data, (size_t)info.bytes, 0, e));
    TRY(io_replace(tmp, path, e));
    rc = 1;
out:
    io_close(fd);
    free(path);
    free(tmp);
    free(data);
    return rc;
}

static int get_large(struct remote *r, const char *name, struct err *e)
{
    struct store_info info;
    int rc = fmt_file_name_check(name, "the checkpoint's table", e);
    for (int i = 0; i < r->n && rc >= 0; i++)
        if (!strcmp(r->file[i].name, name))
            return 0;
    if (rc >= 0 && (rc = store_stat(r->store, name, &info, e)) == 0)
        rc = err_set(e, ERR_FILE, "%s is not there, the checkpoint's table names it: is it whole", name);
    return rc < 0 ? rc : add_large(r, name, &info, e);
}

static json_t *load(struct remote *r, const char *name, struct err *e)
{
    char *path = fmt_join(r->dir, name);
    json_t *o = path ? jx_load(path, FMT_MANIFEST_MAX, e) : NULL;
    if (!path)
        err_set(e, ERR_MEMORY, "no room for a path");
    free(path);
    return o;
}

static int small_of(struct remote *r, const json_t *o, struct err *e)
{
    const char *name = json_string_value(json_object_get(o, "name"));
    if (!name)
        return 0;                       /* the reader of the manifest says what is wrong */
    int rc = fmt_file_name_check(name, FMT_MANIFEST, e);
    return rc < 0 ? rc : get_small(r, name, e);
}

static int by_manifest(struct remote *r, struct err *e)
{
    json_t *root = load(r, FMT_MANIFEST, e), *o;
    size_t i;
    int rc = root ? 0 : -e->code;
    json_array_foreach(json_object_get(root, "files"), i, o)
        if (rc >= 0 && json_string_value(json_object_get(o, "name")))
            rc = get_large(r, json_string_value(json_object_get(o, "name")), e);
    if (rc >= 0)
        rc = small_of(r, json_object_get(root, "config"), e);
    json_array_foreach(json_object_get(root, "extra"), i, o)
        if (rc >= 0)
            rc = small_of(r, o, e);
    json_decref(root);
    return rc;
}

static int by_index(struct remote *r, const char *index, struct err *e)
{
    json_t *root = load(r, index, e), *v;
    const char *tensor;
    int rc = root ? 0 : -e->code;
    json_object_foreach(json_object_get(root, "weight_map"), tensor, v)
        if (rc >= 0 && json_string_value(v))
            rc = get_large(r, json_string_value(v), e);
    json_decref(root);
    return rc;
}

/* Which large files are there, told by the first of these names that is found. A server lists no folder. */
static int find_files(struct remote *r, const char *url, struct err *e)
{
    static const char *const indexes[] = { "model.safetensors.index.json", "pytorch_model.bin.index.json" };
    static const char *const ones[] = { "model.safetensors", "pytorch_model.bin" };
    static const char *const small[] = {
        "config.json", "added_tokens.json", "chat_template.jinja", "chat_template.json", "generation_config.json", "merges.txt", "special_tokens_map.json",
        "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json",
    };
    struct store_info info;
    int rc = get_small(r, FMT_MANIFEST, e);
    if (rc)
        return rc < 0 ? rc : by_manifest(r, e);
    for (size_t i = 0; i < sizeof ones / sizeof *ones && !r->n; i++) {
        TRY(store_stat(r->store, ones[i], &info, e));
        if (rc)
            TRY(add_large(r, ones[i], &info, e));
    }
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes && !r->n; i++) {
        TRY(get_small(r, indexes[i], e));
        if (rc)
            TRY(by_index(r, indexes[i], e));
    }
    if (!r->n)
        return err_set(e, ERR_FILE, "%s: has no manifest.json, model.safetensors or its index: is it the URL of a checkpoint's folder", url);
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        TRY(get_small(r, small[i], e));
out:
    return rc < 0 ? rc : 0;
}

/* https://host/path/FILE.safetensors: that one, and the config.json beside it. */
static int split_file_url(const char *url, char folder[2048], char name[256])
{
    size_t n = strcspn(url, "?"), slash = n;
    while (slash && url[slash - 1] != '/')
        slash--;
    if (n < 12 || strncmp(url + n - 12, ".safetensors", 12) || n - slash > 255 || n >= 2000)
        return 0;
    snprintf(folder, 2048, "%.*s%s", (int)slash, url, url + n);
    snprintf(name, 256, "%.*s", (int)(n - slash), url + slash);
    return 1;
}

int remote_open(struct remote **out, const char *url, const char *dir, struct err *e)
{
    struct remote *r = calloc(1, sizeof *r);
    char folder[2048], name[256];
    int one = split_file_url(url, folder, name), rc = 0;
    if (!r)
        return err_set(e, ERR_MEMORY, "%s: no room to open it", url);
    r->users_fd = -1;
    pthread_mutex_init(&r->lock, NULL);
    TRY(store_open(&r->store, one ? folder : url, e));
    TRY(choose_folder(r, url, dir, e));
    TRY(lock_folder(r, e));
    if (one) {
        TRY(get_large(r, name, e));
        TRY(get_small(r, FMT_CONFIG, e));
    } else {
        TRY(find_files(r, url, e));
    }
    r->path = one ? fmt_join(r->dir, name) : strdup(r->dir);
    if (!r->path)
        rc = err_set(e, ERR_MEMORY, "no room for a path");
    else if (r->alone)
        flock(r->users_fd, LOCK_SH);    /* others may come in now */
out:
    if (rc < 0) {
        remote_close(r);
        return err_add(e, "%s", url);
    }
    *out = r;
    return 0;
}

void remote_close(struct remote *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n; i++) {
        io_close(r->file[i].fd);
        if (r->file[i].have)
            munmap(r->file[i].have, r->file[i].map_bytes);
        free(r->file[i].name);
        free(r->file[i].path);
    }
    store_close(r->store);
    io_close(r->users_fd);
    free(r->file);
    free(r->dir);
    free(r->path);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

const char *remote_path(const struct remote *r) { return r->path; }
int64_t remote_bytes(const struct remote *r) { return store_bytes(r->store); }
int remote_one_stream(const struct remote *r) { return r->one_stream; }

int64_t remote_total(const struct remote *r)
{
    int64_t n = 0;
    for (int i = 0; i < r->n; i++)
        n += r->file[i].info.bytes;
    return n;
}

int remote_need(struct remote *r, const char *name, int64_t off, int64_t n, struct err *e)
{
    for (int i = 0; i < r->n; i++)
        if (!strcmp(r->file[i].name, name))
            return need(r, &r->file[i], off, n, e);
    return 0;                           /* a small one: it is whole */
}

/* ---- all of it ---- */

static void fetch_task(void *arg, int64_t task, int thread)
{
    struct remote *r = arg;
    struct err e = { 0 };
    (void)thread;
    pthread_mutex_lock(&r->lock);
    int failed = r->err.code;
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < r->n && !failed; i++) {
        struct far *f = &r->file[i];
        int64_t tasks = (units_of(f) + REQUEST - 1) / REQUEST, first = task * REQUEST * UNIT, end = first + REQUEST * UNIT;
        if (task < tasks) {
            if (need(r, f, first, (end < f->info.bytes ? end : f->info.bytes) - first, &e) < 0) {
                pthread_mutex_lock(&r->lock);
                if (!r->err.code)
                    r->err = e;
                pthread_mutex_unlock(&r->lock);
            }
            return;
        }
        task -= tasks;
    }
}

static int finish_file(struct far *f, struct err *e)
{
    char hex[65];
    int rc = 0, fd = f->fd;
    f->fd = -1;
    TRY(io_sync_close(fd, f->path, e));
    if (*f->info.sha256) {
        TRY(sha256_file(f->path, hex, e));
        if (strcmp(hex, f->info.sha256)) {
            TRY(io_unlink(f->path, e));
            rc = err_set(e, ERR_INTEGRITY, "%s: has sha256 %s, the server promised %s: it was removed, fetch again", f->name, hex, f->info.sha256);
        }
    }
out:
    return rc < 0 ? rc : 0;
}

/* State, locks and what a killed process left go; what stays is on the disk. */
static int settle_entry(const char *dir, const char *name, struct err *e)
{
    char *path = fmt_join(dir, name);
    if (!path)
        return err_set(e, ERR_MEMORY, "no room for a path");
    int rc = *name == '.' ? io_unlink(path, e) : io_sync_file(path, e);
    free(path);
    return rc;
}

static int settle_folder(struct remote *r, struct err *e)
{
    DIR *d = opendir(r->dir);
    struct dirent *f;
    int rc = 0;
    if (!d)
        return err_sys(e, "cannot open folder %s", r->dir);
    while (rc >= 0 && (f = readdir(d)))
        if (strcmp(f->d_name, ".") && strcmp(f->d_name, ".."))
            rc = settle_entry(r->dir, f->d_name, e);
    closedir(d);
    return rc < 0 ? rc : io_sync_dir(r->dir, e);
}

int remote_fetch_all(struct remote *r, int n_threads, struct err *e)
{
    struct pool *pool;
    int64_t tasks = 0;
    int rc = pool_open(&pool, n_threads, e);
    if (rc < 0)
        return rc;
    for (int i = 0; i < r->n; i++)
        tasks += (units_of(&r->file[i]) + REQUEST - 1) / REQUEST;
    pool_run(pool, tasks, fetch_task, r);
    pool_close(pool);
    if (r->err.code) {
        *e = r->err;
        return -e->code;
    }
    for (int i = 0; i < r->n; i++)
        TRY(finish_file(&r->file[i], e));
    rc = settle_folder(r, e);
out:
    return rc < 0 ? rc : 0;
}
