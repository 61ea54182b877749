/* remote.c - see remote.h.
 *
 *     CACHE/<hash of the URL>/manifest.json, config.json, …     fetched anew when nobody else has it open: a
 *                             changed checkpoint is noticed
 *                             model.safetensors                 sparse; MiBs appear as they are needed
 *                             .model.safetensors.have           which of them are there: a byte each, shared
 *                             memory of all processes
 *                             .opened                           what the first process found; those that
 *                             come while it is open take it over,
 *                                                               so that all of them read one version and ask
 *                                                               once */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "format/remote.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/env.h"
#include "base/io.h"
#include "base/jx.h"
#include "base/pool.h"
#include "format/fmt.h"
#include "format/remote_priv.h"

#define STATE ".opened"
#define FOLDERS_DEEP 2 /* iter_0000010/mp_rank_00 */

/* ---- the folder ---- */

static int choose_folder(struct remote *r, const char *url, const char *dir, int plain, struct err *e)
{
    char path[4096], hex[33];
    const char *own = env_get(ENV_SHARDLINE_CACHE), *xdg = env_get(ENV_XDG_CACHE_HOME),
               *home = env_get(ENV_HOME);
    /* the end of the text makes it another folder: other files are wanted */
    fmt_hex128(fmt_sum128(url, strlen(url) + (size_t)plain), hex);
    if (dir)
        snprintf(path, sizeof path, "%s", dir);
    else if (own)
        snprintf(path, sizeof path, "%s/%s", own, hex);
    else
        snprintf(path, sizeof path, "%s%s/shardline/%s",
                 xdg    ? xdg
                 : home ? home
                        : "/tmp",
                 xdg ? "" : "/.cache", hex);
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

/* ---- what a checkpoint consists of ---- */

static int add_large(struct remote *r, const char *name, const struct store_info *info, struct err *e)
{
    struct far *grown = realloc(r->file, sizeof *grown * (size_t)(r->n + 1)), *f;
    if (!grown)
        return err_set(e, ERR_MEMORY, "no room for the table of files");
    r->file = grown;
    f = &grown[r->n++];
    *f = (struct far){ .name = strdup(name), .info = *info, .fd = -1 };
    f->path = fmt_join(r->dir, name);
    return f->name && f->path ? far_open(r, f, e) : err_set(e, ERR_MEMORY, "no room for the table of files");
}

/* Folders of a file's name are folders here too: made where they are missing. */
static int make_place(struct remote *r, const char *name, struct err *e)
{
    const char *slash = strrchr(name, '/');
    char *path = slash ? strndup(name, (size_t)(slash - name)) : NULL,
         *full = path ? fmt_join(r->dir, path) : NULL;
    int rc = !slash ? 0 : full ? io_make_dirs(full, e) : err_set(e, ERR_MEMORY, "no room for a path");
    free(full);
    free(path);
    return rc;
}

/* What the URL has not, the folder has not either: it may be left of an older version. Who is not alone
 * leaves it to those who read it. */
static int drop_small(const struct remote *r, const char *as, struct err *e)
{
    char *path = r->alone ? fmt_join(r->dir, as) : NULL;
    int rc = path ? io_unlink(path, e) : r->alone ? err_set(e, ERR_MEMORY, "no room for a path") : 0;
    free(path);
    return rc;
}

/* Small file `name` of the URL as file `as` of the folder. */
static int get_small_as(struct remote *r, const char *name, const char *as, struct err *e)
{
    struct store_info info;
    char *path = NULL, *tmp = NULL, *data = NULL, part[24];
    int fd = -1, rc = store_stat(r->store, name, &info, e);
    if (rc == 0)
        return drop_small(r, as, e);
    if (rc < 0 || (rc = make_place(r, as, e)) < 0)
        return rc;
    if (info.bytes > (int64_t)FMT_MANIFEST_MAX)
        return err_set(e, ERR_FORMAT, "%s has %lld bytes: is it the right file", name, (long long)info.bytes);
    snprintf(part, sizeof part, "%d", (int)getpid());
    path = fmt_join(r->dir, as);
    tmp = far_hidden(r->dir, as, part);
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

static int get_small(struct remote *r, const char *name, struct err *e)
{
    return get_small_as(r, name, name, e);
}
int remote_small(struct remote *r, const char *name, struct err *e) { return get_small(r, name, e); }

/* "folder/file": every part must be a plain name. */
static int check_place(const char *name, const char *what, struct err *e)
{
    char part[256];
    int rc = 0;
    for (const char *at = name; at && rc >= 0; at = strchr(at, '/'), at = at ? at + 1 : NULL) {
        snprintf(part, sizeof part, "%.*s", (int)(strcspn(at, "/") < sizeof part ? strcspn(at, "/") : 0), at);
        rc = fmt_file_name_check(part, what, e);
    }
    return rc;
}

int remote_try_large(struct remote *r, const char *name, struct err *e)
{
    struct store_info info;
    int rc = check_place(name, "the checkpoint's table", e);
    for (int i = 0; i < r->n && rc >= 0; i++)
        if (!strcmp(r->file[i].name, name))
            return 1;
    if (rc >= 0 && (rc = store_stat(r->store, name, &info, e)) > 0 && (rc = make_place(r, name, e)) >= 0)
        rc = add_large(r, name, &info, e) < 0 ? -e->code : 1;
    return rc;
}

int remote_large(struct remote *r, const char *name, struct err *e)
{
    int rc = remote_try_large(r, name, e);
    return rc < 0 ? rc
           : rc   ? 0
                : err_set(e, ERR_FILE, "%s is not there, the checkpoint's table names it: is it whole", name);
}

static int get_large(struct remote *r, const char *name, struct err *e)
{
    /* nothing but foreign folders has folders */
    int rc = fmt_file_name_check(name, "the checkpoint's table", e);
    return rc < 0 ? rc : remote_large(r, name, e);
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
        return 0; /* the reader of the manifest says what is wrong */
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

/* Training code keeps config.json beside the folder of its checkpoint. Nothing depends on it, so who may not
 * ask goes without. */
static int config_above(struct remote *r, struct err *e)
{
    char *path = fmt_join(r->dir, FMT_CONFIG);
    struct err why;
    if (!path)
        return err_set(e, ERR_MEMORY, "no room for a path");
    if (!io_exists(path))
        get_small_as(r, "../" FMT_CONFIG, FMT_CONFIG, &why);
    free(path);
    return 0;
}

/* Which large files are there, told by the first of these names that is found. A server lists no folder. */
static int find_files(struct remote *r, struct err *e)
{
    static const char *const indexes[] = { "model.safetensors.index.json", "pytorch_model.bin.index.json" };
    static const char *const ones[] = { "model.safetensors", "pytorch_model.bin" };
    static const char *const small[] = {
        "config.json",
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "generation_config.json",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
    };
    struct store_info info;
    int is_foreign = 0, rc = get_small(r, FMT_MANIFEST, e);
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
        TRY(is_foreign = remote_foreign(r, e));
    if (!r->n)
        return err_set(e, ERR_FILE,
                       "has no manifest.json, model.safetensors, index, or what DCP, DeepSpeed and Megatron "
                       "begin with: is it the URL of a "
                       "checkpoint's folder");
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        TRY(get_small(r, small[i], e));
    if (is_foreign && store_is_http(r->store))
        TRY(config_above(r, e));
out:
    return rc < 0 ? rc : 0;
}

/* 1: the last part of the URL is a file's name of at most 255 bytes; folder is the URL without it. */
static int split_url(const char *url, char folder[2048], char name[256])
{
    size_t n = strcspn(url, "?"), slash = n, at;
    while (slash && url[slash - 1] != '/')
        slash--;
    if (n == slash || n - slash > 255 || strlen(url) >= 2000)
        return 0;
    snprintf(folder, 2048, "%.*s%s", (int)slash, url, url + n);
    for (at = slash; at < n; at++) { /* written with %20 for a blank and so on */
        unsigned c = (unsigned char)url[at];
        if (c == '%' && sscanf(url + at + 1, "%2x", &c) == 1)
            at += 2;
        *name++ = (char)c;
    }
    *name = 0;
    return 1;
}

/* https://host/path/FILE.safetensors (.bin, .pt, …): that one, and the config.json beside it. */
static int split_file_url(const char *url, char folder[2048], char name[256])
{
    static const char *const endings[] = { ".safetensors", ".bin", ".pt", ".pth", ".ckpt" };
    size_t n = strcspn(url, "?"), known = 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        known |= n > strlen(endings[i]) &&
                 !strncmp(url + n - strlen(endings[i]), endings[i], strlen(endings[i]));
    return known && split_url(url, folder, name);
}

/* ---- what others have found ---- */

static int write_state(struct remote *r, struct err *e)
{
    json_t *files = json_array(),
           *root = json_pack("{s:s, s:o}", "commit", store_commit(r->store), "files", files);
    char *text, *path = fmt_join(r->dir, STATE);
    for (int i = 0; i < r->n; i++) {
        const struct store_info *f = &r->file[i].info;
        json_array_append_new(files, json_pack("{s:s, s:I, s:b, s:s, s:s}", "name", r->file[i].name, "bytes",
                                               (json_int_t)f->bytes, "ranges", f->ranges, "etag", f->etag,
                                               "sha256", f->sha256));
    }
    text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    int rc = path && text ? 0 : err_set(e, ERR_MEMORY, "no room for the table of files");
    if (rc >= 0) {
        rc = io_unlink(path, e);
        rc = rc < 0 ? rc : io_write_file(path, text, strlen(text), e);
    }
    json_decref(root);
    free(text);
    free(path);
    return rc < 0 ? rc : 0;
}

static int take_file(struct remote *r, const json_t *o, struct err *e)
{
    struct store_info info = { .bytes = json_integer_value(json_object_get(o, "bytes")),
                               .ranges = json_is_true(json_object_get(o, "ranges")) },
                      now;
    const char *name = json_string_value(json_object_get(o, "name")),
               *etag = json_string_value(json_object_get(o, "etag")),
               *sum = json_string_value(json_object_get(o, "sha256"));
    int rc = 0;
    if (!name || !etag || !sum || check_place(name, STATE, e) < 0)
        return err_set(e, ERR_FORMAT, "%s/%s: is not as it was written: remove the folder", r->dir, STATE);
    snprintf(info.etag, sizeof info.etag, "%s", etag);
    snprintf(info.sha256, sizeof info.sha256, "%s", sum);
    if (r->n == 0) { /* one request tells whether it is still there */
        TRY(store_stat(r->store, name, &now, e));
        if (!rc || now.bytes != info.bytes || strcmp(now.etag, info.etag))
            return err_set(e, ERR_FILE,
                           "%s changed while other processes read the old one: wait for them, or set "
                           "SHARDLINE_CACHE to another folder",
                           name);
    }
    TRY(make_place(r, name, e));
    TRY(add_large(r, name, &info, e));
out:
    return rc < 0 ? rc : 0;
}

/* 1: opened as another process has, which still holds it; 0: there is nobody, or it failed. */
static int take_over(struct remote *r, struct err *e)
{
    char *path = fmt_join(r->dir, STATE);
    json_t *root = NULL, *o;
    size_t i;
    int rc = 0;
    if (!path)
        return err_set(e, ERR_MEMORY, "no room for a path");
    if (r->alone)
        rc = io_unlink(path, e);
    else if (io_exists(path))
        rc = (root = jx_load(path, FMT_MANIFEST_MAX, e)) ? 1 : -e->code;
    if (root && json_string_value(json_object_get(root, "commit")))
        store_pin(r->store, json_string_value(json_object_get(root, "commit")));
    json_array_foreach(json_object_get(root, "files"), i, o)
        if (rc >= 0 && (rc = take_file(r, o, e)) >= 0)
            rc = 1;
    json_decref(root);
    free(path);
    return rc;
}

/* ---- the door ---- */

static void make_remark(struct remote *r)
{
    const char *commit = store_commit(r->store), *revision = store_revision(r->store);
    if (*commit && strcmp(commit, revision))
        snprintf(r->remark, sizeof r->remark, "%s is commit %s", revision, commit);
    if (r->one_stream)
        snprintf(r->remark + strlen(r->remark), sizeof r->remark - strlen(r->remark),
                 "%sthe server gives no ranges: files were read whole, in one stream",
                 *r->remark ? "; " : "");
}

/* What is asked for: a checkpoint, one file and the config.json beside it, or something plain. */
struct wanted {
    const char *dir;
    int plain;
    const struct remote_plain *files;
    char folder[2048], name[256];
};

static int find_plain(struct remote *r, const struct wanted *w, struct err *e)
{
    int rc = *w->name ? fmt_file_name_check(w->name, "the URL", e) : 0;
    if (rc >= 0 && *w->name && (rc = remote_try_large(r, w->name, e)) == 0)
        rc = err_set(e, ERR_FILE, "there is no such file: check the URL");
    for (int i = 0; rc >= 0 && w->files && i < w->files->n; i++)
        if ((rc = get_small(r, w->files->names[i], e)) == 0 && i == 0)
            rc = err_set(e, ERR_FILE, "has no %s: is it the URL of the right folder", w->files->names[0]);
    return rc < 0 ? rc : 0;
}

static int find(struct remote *r, const struct wanted *w, struct err *e)
{
    int rc = take_over(r, e);
    if (rc)
        return rc < 0 ? rc : 0;
    if (w->plain) {
        TRY(find_plain(r, w, e));
    } else if (*w->name) {
        TRY(get_large(r, w->name, e));
        TRY(get_small(r, FMT_CONFIG, e));
    } else {
        TRY(find_files(r, e));
    }
    TRY(write_state(r, e));
out:
    return rc < 0 ? rc : 0;
}

static int open_wanted(struct remote **out, const char *url, const struct wanted *w,
                       const volatile sig_atomic_t *stop, struct err *e)
{
    struct remote *r = calloc(1, sizeof *r);
    int rc = 0;
    if (!r)
        return err_set(e, ERR_MEMORY, "%.*s: no room to open it", (int)strcspn(url, "?"), url);
    r->users_fd = -1;
    pthread_mutex_init(&r->lock, NULL);
    TRY(store_open(&r->store, *w->name ? w->folder : url, e));
    store_stop_on(r->store, stop);
    TRY(choose_folder(r, url, w->dir, w->plain, e));
    TRY(lock_folder(r, e));
    TRY(find(r, w, e));
    make_remark(r);
    r->path = *w->name ? fmt_join(r->dir, w->name) : strdup(r->dir);
    if (!r->path)
        rc = err_set(e, ERR_MEMORY, "no room for a path");
    else if (r->alone)
        flock(r->users_fd, LOCK_SH); /* others may come in now */
    for (int i = 0; rc >= 0 && w->plain && i < r->n; i++) {
        TRY(far_need(r, &r->file[i], 0, r->file[i].info.bytes, 1, e));
        TRY(far_check(r, &r->file[i], e));
    }
out:
    if (rc < 0) {
        remote_close(r);
        return err_add(e, "%.*s", (int)strcspn(url, "?"), url);
    }
    *out = r;
    return 0;
}

int remote_open(struct remote **out, const char *url, const char *dir, const volatile sig_atomic_t *stop,
                struct err *e)
{
    struct wanted w = { .dir = dir };
    if (!split_file_url(url, w.folder, w.name))
        *w.name = 0;
    return open_wanted(out, url, &w, stop, e);
}

int remote_open_plain(struct remote **out, const char *url, const struct remote_plain *what, struct err *e)
{
    struct wanted w = { .plain = 1, .files = what };
    if (!what && !split_url(url, w.folder, w.name))
        return err_set(e, ERR_USAGE, "%.*s: does not end in the name of a file", (int)strcspn(url, "?"), url);
    return open_wanted(out, url, &w, NULL, e);
}

void remote_close(struct remote *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n; i++)
        far_close(&r->file[i]);
    store_close(r->store);
    io_close(r->users_fd);
    free(r->file);
    free(r->dir);
    free(r->path);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

const char *remote_path(const struct remote *r) { return r->path; }
const char *remote_remark(const struct remote *r) { return *r->remark ? r->remark : NULL; }
int64_t remote_bytes(const struct remote *r) { return store_bytes(r->store); }

uint64_t remote_cache(const struct remote *r)
{
    struct {
        uint64_t dev, ino;
        char boot[40];
    } id = { 0 };
    struct stat st;
    fmt_boot_id(id.boot); /* the same inode number may exist on another machine */
    if (fstat(r->users_fd, &st) == 0) {
        id.dev = st.st_dev;
        id.ino = st.st_ino;
    }
    return fmt_sum64(&id, sizeof id) | 1;
}

int remote_need(struct remote *r, const char *name, int64_t off, int64_t n, int exact, struct err *e)
{
    for (int i = 0; i < r->n; i++)
        if (!strcmp(r->file[i].name, name))
            return far_need(r, &r->file[i], off, n, exact, e);
    return 0; /* a small one: it is whole */
}

int remote_check(struct remote *r, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < r->n && rc >= 0; i++)
        rc = far_check(r, &r->file[i], e);
    return rc < 0 ? rc : 0;
}

/* ---- all of it ---- */

static int64_t total_bytes(const struct remote *r)
{
    int64_t n = 0;
    for (int i = 0; i < r->n; i++)
        n += r->file[i].info.bytes;
    return n;
}

static void show_progress(struct remote *r)
{
    char done[32], all[32], rate[32];
    int64_t got = store_bytes(r->store) - r->got_before, total = total_bytes(r),
            here = r->here_before + got < total ? r->here_before + got : total;
    double s = clock_s() - r->start_s;
    log_bytes(done, (double)here);
    log_bytes(all, (double)total);
    log_bytes(rate, s > 0 ? (double)got / s : 0);
    log_progress(r->log, 0, "%s of %s, %s/s, %.0f s left", done, all, rate,
                 got > 0 ? (double)(total - here) * s / (double)got : 0.0);
}

static int64_t tasks_of(const struct far *f) { return (f->info.bytes + REMOTE_REQUEST - 1) / REMOTE_REQUEST; }

static void fetch_task(void *arg, int64_t task, int thread)
{
    struct remote *r = arg;
    struct err e = { 0 };
    struct far *f = r->file;
    int failed;
    (void)thread;
    for (; task >= tasks_of(f); f++)
        task -= tasks_of(f);
    pthread_mutex_lock(&r->lock);
    failed = r->err.code;
    if (!failed && r->log)
        show_progress(r);
    pthread_mutex_unlock(&r->lock);
    int64_t first = task * REMOTE_REQUEST,
            end = first + REMOTE_REQUEST < f->info.bytes ? first + REMOTE_REQUEST : f->info.bytes;
    if (failed || far_need(r, f, first, end - first, 1, &e) >= 0)
        return;
    pthread_mutex_lock(&r->lock);
    if (!r->err.code)
        r->err = e;
    pthread_mutex_unlock(&r->lock);
}

/* Sums of several files at once: a processor is slower than a disk at this. */
static void seal_task(void *arg, int64_t task, int thread)
{
    struct remote *r = arg;
    struct far *f = &r->file[task];
    struct err e = { 0 };
    (void)thread;
    if (far_check(r, f, &e) >= 0 && far_seal(f, &e) >= 0)
        return;
    pthread_mutex_lock(&r->lock);
    if (!r->err.code)
        r->err = e;
    pthread_mutex_unlock(&r->lock);
}

/* State, locks and what a killed process left go; what stays is on the disk. .metadata is PyTorch's. */
static int settle_folder(const char *dir, int depth, struct err *e)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    int rc = 0;
    if (!d)
        return err_sys(e, "cannot open folder %s", dir);
    while (rc >= 0 && (f = readdir(d))) {
        if (!strcmp(f->d_name, ".") || !strcmp(f->d_name, ".."))
            continue;
        char *path = fmt_join(dir, f->d_name);
        if (!path)
            rc = err_set(e, ERR_MEMORY, "no room for a path");
        else if (fmt_is_dir(path))
            rc = depth ? settle_folder(path, depth - 1, e) : 0;
        else if (f->d_name[0] == '.' && strcmp(f->d_name, ".metadata"))
            rc = io_unlink(path, e);
        else
            rc = io_sync_file(path, e);
        free(path);
    }
    closedir(d);
    return rc < 0 ? rc : io_sync_dir(dir, e);
}

int remote_fetch_all(struct remote *r, const struct remote_fetch *how, struct err *e)
{
    struct pool *pool;
    int64_t tasks = 0;
    int rc = pool_open(&pool, how->n_threads, e);
    if (rc < 0)
        return rc;
    r->log = how->log;
    r->start_s = clock_s();
    r->got_before = store_bytes(r->store);
    for (int i = 0; i < r->n; i++) {
        r->here_before += far_units_here(&r->file[i]) * REMOTE_UNIT;
        tasks += tasks_of(&r->file[i]);
    }
    pool_run(pool, tasks, fetch_task, r);
    if (!r->err.code)
        pool_run(pool, r->n, seal_task, r);
    pool_close(pool);
    if (r->err.code) {
        *e = r->err;
        return -e->code;
    }
    return settle_folder(r->dir, FOLDERS_DEEP, e);
}
