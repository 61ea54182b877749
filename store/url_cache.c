/* url_cache.c - see url_cache.h: the folder, what its files are, and what other processes found. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "store/url_cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/env.h"
#include "base/io.h"
#include "base/jx.h"
#include "store/url_cache_list.h"
#include "store/url_cache_priv.h"

#define STATE ".opened"
#define SMALL_MAX ((int64_t)1 << 28) /* bytes of a small file, and of STATE */

/* ---- names ---- */

static int no_memory(struct err *e)
{
    return err_set(e, ERR_MEMORY, "no memory for a path or the table of files");
}

/* Names come from files that were transferred: each part of "folder/file" must be a plain one. */
static int check_name(const char *name, struct err *e)
{
    const char *at = name;
    int ok = strlen(name) < 2048;
    while (ok) {
        size_t n = strcspn(at, "/");
        ok = n > 0 && n < 256 && at[0] != '.' && !memchr(at, '\\', n);
        for (size_t i = 0; i < n && ok; i++)
            ok = (unsigned char)at[i] >= ' ';
        if (!at[n])
            break;
        at += n + 1;
    }
    return ok ? 0 : err_set(e, ERR_FORMAT, "\"%.100s\" is no name of a file in the folder", name);
}

char *cache_hidden_path(const char *dir, const char *name, const char *ending)
{
    const char *slash = strrchr(name, '/'), *file = slash ? slash + 1 : name;
    size_t n = strlen(dir) + strlen(name) + strlen(ending) + 4;
    char *path = malloc(n);
    if (path)
        snprintf(path, n, "%s/%.*s.%s.%s", dir, (int)(file - name), name, file, ending);
    return path;
}

/* ---- the folder ---- */

int url_cache_root(char path[4096], struct err *e)
{
    const char *own = env_get(ENV_SHARDLINE_CACHE), *xdg = env_get(ENV_XDG_CACHE_HOME);
    const char *home = env_get(ENV_HOME);
    int n;
    if (own)
        n = snprintf(path, 4096, "%s", own);
    else if (xdg)
        n = snprintf(path, 4096, "%s/shardline", xdg);
    else
        n = snprintf(path, 4096, "%s/.cache/shardline", home ? home : "/tmp");
    return n < 4000 ? 0
                    : err_set(e, ERR_USAGE, "the name of the cache folder is too long: set SHARDLINE_CACHE");
}

/* The folder of those in memory. Anybody may make one of this name there: it must be this user's own. */
static int memory_root(char path[4096], struct err *e)
{
    struct stat st;
    snprintf(path, 4096, "/dev/shm/shardline-%u", (unsigned)geteuid());
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return err_sys(e, "cannot make the folder %s for files in memory", path);
    if (lstat(path, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 022)
        return err_set(e, ERR_FILE, "%s is not a folder that this user alone may write to: remove it", path);
    return 0;
}

/* Which URL the folder is of, for `reshard cache`; without a query, which may hold a signature. */
static int note_url(const struct url_cache *c, const char *url, struct err *e)
{
    char *path = io_join(c->dir, CACHE_URL);
    int rc = path ? 0 : no_memory(e);
    if (rc >= 0 && !io_exists(path)) {
        struct err ignored; /* another process may be writing it */
        io_write_file(path, url, strcspn(url, "?"), &ignored);
    }
    free(path);
    return rc;
}

static int choose_folder(struct url_cache *c, const char *url, const struct url_cache_opts *how,
                         struct err *e)
{
    char path[4096], root[4096];

    /* With the NUL at its end the same URL has another folder, where all files are whole. */
    XXH128_hash_t h = XXH3_128bits(url, strlen(url) + (how->whole ? 1 : 0));
    unsigned long long hi = h.high64, lo = h.low64;
    int rc = how->dir ? 0 : how->in_memory ? memory_root(root, e) : url_cache_root(root, e);
    if (rc < 0)
        return rc;
    if (how->dir)
        snprintf(path, sizeof path, "%s", how->dir);
    else
        snprintf(path, sizeof path, "%.4000s/%016llx%016llx", root, hi, lo);
    c->dir = strdup(path);
    rc = c->dir ? io_make_dirs(path, e) : no_memory(e);
    return rc < 0 || how->dir ? rc : note_url(c, url, e);
}

/* Every process holds a shared lock on .users while it has the folder open. The one that gets the exclusive
 * lock first is alone. */
static int lock_once(struct url_cache *c, struct err *e)
{
    char *path = io_join(c->dir, CACHE_USERS);
    int rc = 0;
    if (!path)
        return no_memory(e);
    c->users_fd = io_open_write(path, e);
    if (c->users_fd < 0) {
        rc = c->users_fd;
    } else {
        c->alone = flock(c->users_fd, LOCK_EX | LOCK_NB) == 0;
        if (!c->alone && flock(c->users_fd, LOCK_SH) < 0)
            rc = err_sys(e, "cannot lock %s", path);
        else if (!io_is_at(c->users_fd, path)) {
            io_close(c->users_fd);
            c->users_fd = -1;
        } else
            futimens(c->users_fd, NULL); /* its time is that of the last use */
    }
    free(path);
    return rc;
}

/* Again where `reshard cache clear` has removed the folder between its opening and the lock. */
static int lock_folder(struct url_cache *c, const char *url, const struct url_cache_opts *how, struct err *e)
{
    int rc = 0;
    for (int tries = 0; rc >= 0 && c->users_fd < 0 && tries < 100; tries++) {
        free(c->dir);
        c->dir = NULL;
        TRY(choose_folder(c, url, how, e));
        rc = lock_once(c, e);
    }
    if (rc >= 0 && c->users_fd < 0)
        rc = err_set(e, ERR_FILE, "%s is removed again and again: try again", c->dir);
out:
    return rc;
}

/* Makes the folders in front of a file's name. */
static int make_parents(struct url_cache *c, const char *name, struct err *e)
{
    const char *slash = strrchr(name, '/');
    if (!slash)
        return 0;
    char *sub = strndup(name, (size_t)(slash - name)), *full = sub ? io_join(c->dir, sub) : NULL;
    int rc = full ? io_make_dirs(full, e) : no_memory(e);
    free(full);
    free(sub);
    return rc;
}

/* ---- files ---- */

static int add_large(struct url_cache *c, const char *name, const struct store_info *info, struct err *e)
{
    struct cache_file *grown = realloc(c->file, sizeof *grown * (size_t)(c->n + 1)), *f;
    if (!grown)
        return no_memory(e);
    c->file = grown;
    f = &grown[c->n++];
    *f = (struct cache_file){ .name = strdup(name), .info = *info, .fd = -1 };
    f->path = io_join(c->dir, name);
    if (!f->name || !f->path)
        return no_memory(e);
    int rc = cache_file_open(c, f, e);
    return rc < 0 || !c->prepare ? rc : c->prepare(c, name, info->bytes, e);
}

int url_cache_large(struct url_cache *c, const char *name, struct err *e)
{
    struct store_info info;
    int rc = check_name(name, e);
    if (rc < 0)
        return rc;
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->file[i].name, name))
            return 1;
    TRY(store_stat(c->store, name, &info, e));
    if (rc == 0)
        return 0;
    TRY(make_parents(c, name, e));
    TRY(add_large(c, name, &info, e));
    rc = 1;
out:
    return rc;
}

static int note_small(struct url_cache *c, const char *name, const struct store_info *info, struct err *e)
{
    struct cache_small *grown = realloc(c->small, sizeof *grown * (size_t)(c->n_small + 1));
    if (!grown)
        return no_memory(e);
    c->small = grown;
    grown[c->n_small] = (struct cache_small){ strdup(name), *info };
    return grown[c->n_small++].name ? 0 : no_memory(e);
}

/* A file that the URL has not must not be in the folder either: it may be left from an older version. Only a
 * process that is alone removes it. */
static int drop_small(const struct url_cache *c, const char *as, struct err *e)
{
    if (!c->alone)
        return 0;
    char *path = io_join(c->dir, as);
    int rc = path ? io_unlink(path, e) : no_memory(e);
    free(path);
    return rc;
}

/* Takes a small file that the URL does not have from the folder c->unpublished. 1; 0: it is not there
 * either. */
static int take_unpublished(const struct url_cache *c, const char *name, const char *as, struct err *e)
{
    char *from = io_join(c->unpublished, name), *to = io_join(c->dir, as);
    void *data = NULL;
    size_t n = 0;
    int rc = from && to ? io_exists(from) : no_memory(e);
    if (rc > 0 && (rc = io_read_file(from, (size_t)SMALL_MAX, &data, &n, e)) >= 0 &&
        (rc = io_unlink(to, e)) >= 0)
        rc = io_write_file(to, data, n, e) < 0 ? -e->code : 1;
    free(data);
    free(from);
    free(to);
    return rc;
}

int url_cache_small_as(struct url_cache *c, const char *name, const char *as, struct err *e)
{
    struct store_info info;
    char *path = NULL, *tmp = NULL, *data = NULL, part[24];
    int fd = -1, found = store_stat(c->store, name, &info, e), rc = found;
    if (rc == 0)
        info.bytes = -1;
    if (rc >= 0)
        rc = note_small(c, name, &info, e);
    if (rc >= 0 && !found)
        return c->unpublished && (rc = take_unpublished(c, name, as, e)) ? rc : drop_small(c, as, e);
    if (rc < 0 || (rc = make_parents(c, as, e)) < 0)
        return rc;
    if (info.bytes > SMALL_MAX)
        return err_set(e, ERR_FORMAT, "%s has %lld bytes: is it the right file", name, (long long)info.bytes);

    /* Written beside its place and renamed, so that other processes never read a part of it. */
    snprintf(part, sizeof part, "%d", (int)getpid());
    path = io_join(c->dir, as);
    tmp = cache_hidden_path(c->dir, as, part);
    data = malloc((size_t)info.bytes + 1);
    if (!path || !tmp || !data) {
        rc = no_memory(e);
        goto out;
    }
    TRY(store_read(c->store, name, &info, 0, info.bytes, data, e));
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

int url_cache_small(struct url_cache *c, const char *name, struct err *e)
{
    return url_cache_small_as(c, name, name, e);
}

const char *url_cache_dir(const struct url_cache *c) { return c->dir; }
int url_cache_has_parent(const struct url_cache *c) { return store_has_parent(c->store); }
int url_cache_n_large(const struct url_cache *c) { return c->n; }

/* ---- what other processes found ---- */

static int write_state(struct url_cache *c, struct err *e)
{
    json_t *files = json_array();
    json_t *root = json_pack("{s:s, s:o}", "commit", store_commit(c->store), "files", files);
    char *text, *path = io_join(c->dir, STATE);
    for (int i = 0; i < c->n; i++) {
        const struct store_info *f = &c->file[i].info;
        json_array_append_new(files, json_pack("{s:s, s:I, s:b, s:s, s:s}", "name", c->file[i].name, "bytes",
                                               (json_int_t)f->bytes, "ranges", f->ranges, "etag", f->etag,
                                               "sha256", f->sha256));
    }
    text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    int rc = path && text ? io_unlink(path, e) : no_memory(e);
    if (rc >= 0)
        rc = io_write_file(path, text, strlen(text), e);
    json_decref(root);
    free(text);
    free(path);
    return rc < 0 ? rc : 0;
}

/* One file of the list of another process. */
static int take_file(struct url_cache *c, const json_t *o, struct err *e)
{
    struct store_info now, info = { .bytes = json_integer_value(json_object_get(o, "bytes")),
                                    .ranges = json_is_true(json_object_get(o, "ranges")) };
    const char *name = json_string_value(json_object_get(o, "name"));
    const char *etag = json_string_value(json_object_get(o, "etag"));
    const char *sum = json_string_value(json_object_get(o, "sha256"));
    int rc = 0;
    if (!name || !etag || !sum || check_name(name, e) < 0)
        return err_set(e, ERR_FORMAT, "%s/%s: is not as it was written: remove the folder", c->dir, STATE);
    snprintf(info.etag, sizeof info.etag, "%s", etag);
    snprintf(info.sha256, sizeof info.sha256, "%s", sum);

    /* One request for the first file shows whether the URL still has that version. */
    if (c->n == 0) {
        TRY(store_stat(c->store, name, &now, e));
        if (!rc || now.bytes != info.bytes || strcmp(now.etag, info.etag))
            return err_set(e, ERR_FILE,
                           "%s changed while other processes read the old one: wait for them, or set "
                           "SHARDLINE_CACHE to another folder",
                           name);
    }
    TRY(make_parents(c, name, e));
    TRY(add_large(c, name, &info, e));
out:
    return rc < 0 ? rc : 0;
}

/* 1: opened as another process has it, which still holds it. 0: no other process has it open, or it
 * failed. */
static int take_over(struct url_cache *c, struct err *e)
{
    char *path = io_join(c->dir, STATE);
    json_t *root = NULL, *o;
    size_t i;
    int rc = 0;
    if (!path)
        return no_memory(e);
    if (c->alone)
        rc = io_unlink(path, e);
    else if (io_exists(path))
        rc = (root = jx_load(path, SMALL_MAX, e)) ? 1 : -e->code;
    if (root && json_string_value(json_object_get(root, "commit")))
        store_pin(c->store, json_string_value(json_object_get(root, "commit")));
    json_array_foreach(json_object_get(root, "files"), i, o)
        if (rc >= 0 && (rc = take_file(c, o, e)) >= 0)
            rc = 1;
    json_decref(root);
    free(path);
    return rc;
}

/* ---- opening and closing ---- */

static void make_remark(struct url_cache *c)
{
    const char *commit = store_commit(c->store), *revision = store_revision(c->store);
    size_t n = 0;
    if (*commit && strcmp(commit, revision))
        n = (size_t)snprintf(c->remark, sizeof c->remark, "%s is commit %s", revision, commit);
    if (c->one_stream && n < sizeof c->remark)
        snprintf(c->remark + n, sizeof c->remark - n,
                 "%sthe server gives no ranges: files were read whole, in one stream", n ? "; " : "");
}

static int find_files(struct url_cache *c, const char *file, const struct url_cache_opts *how, struct err *e)
{
    int rc = take_over(c, e);
    if (rc)
        return rc < 0 ? rc : 0;
    TRY(how->list(c, file, how->arg, e));
    TRY(write_state(c, e));
out:
    return rc < 0 ? rc : 0;
}

int url_cache_open(struct url_cache **out, const char *url, const struct url_cache_opts *how, struct err *e)
{
    char folder[2048], name[256] = "";
    int rc = 0, n_url = (int)strcspn(url, "?");
    if (how->is_file && !url_split(url, folder, name))
        return err_set(e, ERR_USAGE, "%.*s: does not end in the name of a file", n_url, url);
    struct url_cache *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_MEMORY, "%.*s: no memory to open it", n_url, url);
    c->users_fd = -1;

    TRY(store_open(&c->store, how->is_file ? folder : url, e));
    store_stop_on(c->store, how->stop);
    c->prepare = how->prepare;
    c->in_memory = how->in_memory && !how->dir;
    c->unpublished = how->unpublished;
    TRY(lock_folder(c, url, how, e));
    TRY(find_files(c, how->is_file ? name : NULL, how, e));
    make_remark(c);
    c->path = how->is_file ? io_join(c->dir, name) : strdup(c->dir);
    if (!c->path) {
        rc = no_memory(e);
        goto out;
    }
    if (c->alone)
        flock(c->users_fd, LOCK_SH); /* other processes may open it now */
    for (int i = 0; how->whole && i < c->n; i++) {
        TRY(cache_file_need(c, &c->file[i], 0, c->file[i].info.bytes, 1, e));
        TRY(cache_file_check(c, &c->file[i], e));
    }
out:
    if (rc < 0) {
        url_cache_close(c);
        return err_add(e, "%.*s", n_url, url);
    }
    *out = c;
    return 0;
}

/* Removes a folder in memory that no process uses any more. */
static void remove_folder(char *dir)
{
    struct err ignored; /* what stays is removed, or used again, by the next user */
    const struct cache_entry entry = { .path = dir };
    url_cache_remove(&entry, &ignored);
}

void url_cache_close(struct url_cache *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n; i++)
        cache_file_close(&c->file[i]);
    for (int i = 0; i < c->n_small; i++)
        free(c->small[i].name);
    free(c->small);
    store_close(c->store);
    io_close(c->users_fd);
    if (c->in_memory && c->dir)
        remove_folder(c->dir);
    free(c->file);
    free(c->dir);
    free(c->path);
    free(c);
}

/* ---- reading ---- */

const char *url_cache_path(const struct url_cache *c) { return c->path; }
const char *url_cache_remark(const struct url_cache *c) { return *c->remark ? c->remark : NULL; }
int64_t url_cache_bytes(const struct url_cache *c) { return store_bytes(c->store); }

uint64_t url_cache_id(const struct url_cache *c)
{
    struct {
        uint64_t dev, ino;
        char boot[40];
    } id = { 0 };
    struct stat st;
    cache_boot_id(id.boot); /* another machine may have the same inode number */
    if (fstat(c->users_fd, &st) == 0) {
        id.dev = st.st_dev;
        id.ino = st.st_ino;
    }
    return XXH64(&id, sizeof id, 0) | 1;
}

void url_cache_drop(struct url_cache *c, const char *name, int64_t off, int64_t n)
{
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->file[i].name, name))
            cache_file_drop(&c->file[i], off, n);
}

int url_cache_need(struct url_cache *c, const char *name, int64_t off, int64_t n, int exact, struct err *e)
{
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->file[i].name, name))
            return cache_file_need(c, &c->file[i], off, n, exact, e);
    return 0; /* a small file: it is whole */
}

/* A config of one version and weights of another would go together without a word. */
static int check_small(struct url_cache *c, const struct cache_small *s, struct err *e)
{
    struct store_info now;
    int rc = store_stat(c->store, s->name, &now, e);
    if (rc < 0 || (rc == 0 && s->info.bytes < 0))
        return rc;
    if (rc && now.bytes == s->info.bytes && !strcmp(now.etag, s->info.etag))
        return 0;
    return err_set(e, ERR_INTEGRITY, "%s: changed while the folder was read: start again", s->name);
}

int url_cache_check(struct url_cache *c, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < c->n_small && rc >= 0 && c->alone && !*store_commit(c->store); i++)
        rc = check_small(c, &c->small[i], e);
    for (int i = 0; i < c->n && rc >= 0; i++)
        rc = cache_file_check(c, &c->file[i], e);
    return rc < 0 ? rc : 0;
}
