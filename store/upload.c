/* upload.c - see upload.h.
 *
 *     upload_range -> a part has all of its bytes -> queue -> threads: MD5, PUT, hole in the file
 *     -> the last part of a file -> one object
 * The MD5 of a part decides whether an earlier run has sent it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "store/upload.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/tmp_folder.h"
#include "store/s3.h"
#include "store/store_priv.h"
#include "store/url_cache_priv.h"

#define PARTS_MAX 9000                 /* S3 allows 10,000 */
#define QUEUE_MAX ((int64_t)256 << 20) /* bytes that wait on the disk before writers wait */
#define SMALL_MAX ((int64_t)256 << 20) /* of a file that upload_publish puts */
#define READ_BYTES (64 << 10)

struct part {
    int64_t left;  /* bytes that are not final yet */
    char etag[80]; /* before it is sent: that of an earlier run, or "" */
};
struct object {
    char *name, *path;
    int64_t bytes, part_bytes;
    int n_parts, n_sent;
    struct part *part;
    char id[S3_ID];       /* of the upload; "": none yet */
    pthread_mutex_t lock; /* of id */
    const struct there *there;
};
/* An object or an unfinished upload (id not "") that was at the URL before. */
struct there {
    char *name, *id;
    char etag[80], when[40];
    int64_t bytes;
    int is_used;
};
struct job {
    struct object *o;
    int part;
};
struct upload {
    struct store *s;
    char *dir, *url;
    struct upload_opts how;
    int n_there;
    struct there *there;
    pthread_t *thread;
    int n_threads;

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t work, done;
    struct object **object;
    int n_objects;
    struct job *job; /* [first_job, n_jobs) wait */
    int first_job, n_jobs, most_jobs, n_running, closing;
    int64_t queued, sent, found, all;
    int is_taken;   /* another program has published at the URL */
    struct err err; /* the first one; code 0: none */
};

static int no_memory(const struct upload *u, struct err *e)
{
    return err_set(e, ERR_MEMORY, "%s: no memory for the list of its files", u->url);
}

static int is_last(const struct upload *u, const char *name)
{
    for (const char *const *l = u->how.last; *l; l++)
        if (!strcmp(*l, name))
            return 1;
    return 0;
}

/* ---- one part ---- */

static int64_t part_size(const struct object *o, int part)
{
    int64_t off = part * o->part_bytes;
    return o->bytes - off < o->part_bytes ? o->bytes - off : o->part_bytes;
}

static int sum_part(struct s3_body *b, struct err *e)
{
    char data[READ_BYTES];
    struct md5 sum;
    md5_start(&sum);
    for (int64_t at = 0; at < b->bytes;) {
        int64_t n = b->bytes - at < READ_BYTES ? b->bytes - at : READ_BYTES;
        int rc = io_pread(b->fd, b->path, data, (size_t)n, b->off + at, e);
        if (rc < 0)
            return rc;
        md5_add(&sum, data, (size_t)n);
        at += n;
    }
    md5_end(&sum, b->md5);
    return 0;
}

/* The upload's id, from the server when the first part needs it. */
static int need_id(struct upload *u, struct object *o, struct err *e)
{
    pthread_mutex_lock(&o->lock);
    int rc = *o->id ? 0 : s3_begin(u->s, o->name, o->id, e);
    pthread_mutex_unlock(&o->lock);
    return rc;
}

/* Sends a part whose MD5 is known. 1: it was there already. */
static int send_body(struct upload *u, struct object *o, int k, const struct s3_body *b, struct err *e)
{
    struct part *p = &o->part[k];
    char hex[33];
    md5_hex(b->md5, hex);
    if (o->n_parts == 1) {
        if (o->there && !strcmp(o->there->etag, hex))
            return 1;
        return s3_put(u->s, o->name, b, 0, e);
    }
    int known = o->there || !strcmp(p->etag, hex);
    if (known) {
        snprintf(p->etag, sizeof p->etag, "%s", hex);
        return 1;
    }
    int rc = need_id(u, o, e);
    return rc < 0 ? rc : s3_put_part(u->s, o->name, o->id, k + 1, b, p->etag, e);
}

static int send_part(struct upload *u, struct object *o, int k, struct err *e)
{
    struct s3_body b = { .path = o->path, .off = k * o->part_bytes, .bytes = part_size(o, k), .fd = -1 };
    int rc = 0, found = 0;
    TRY(b.fd = io_open_write(o->path, e));
    TRY(sum_part(&b, e));
    TRY(found = send_body(u, o, k, &b, e));
    if (o->n_parts > 1)
        io_punch(b.fd, b.off, b.bytes);
    pthread_mutex_lock(&u->lock);
    *(found ? &u->found : &u->sent) += b.bytes;
    pthread_mutex_unlock(&u->lock);
out:
    io_close(b.fd);
    return rc < 0 ? rc : 0;
}

/* ---- one object ---- */

/* The ETag that S3 gives to an object of these parts. -1: a part's ETag is no MD5. */
static int joined_etag(const struct object *o, char etag[80])
{
    struct md5 all;
    unsigned char sum[MD5_BYTES];
    char hex[33];
    md5_start(&all);
    for (int k = 0; k < o->n_parts; k++) {
        const char *text = o->part[k].etag;
        if (strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
            return -1;
        for (int i = 0; i < MD5_BYTES; i++) {
            unsigned v = 0;
            sscanf(text + 2 * i, "%2x", &v);
            sum[i] = (unsigned char)v;
        }
        md5_add(&all, sum, sizeof sum);
    }
    md5_end(&all, sum);
    md5_hex(sum, hex);
    snprintf(etag, 80, "%s-%d", hex, o->n_parts);
    return 0;
}

/* An answer that was lost: the parts were joined all the same. */
static int is_joined(struct upload *u, const struct object *o, const char *etag)
{
    struct store_info info;
    struct err ignored;
    size_t n = strlen(etag);
    return n && store_stat(u->s, o->name, &info, &ignored) == 1 && info.bytes == o->bytes &&
           strlen(info.etag) == n + 2 && !memcmp(info.etag + 1, etag, n);
}

static int join_parts(struct upload *u, struct object *o, struct err *e)
{
    char etag[80] = "", (*list)[80];
    int known = joined_etag(o, etag) == 0;
    if (o->n_parts == 1)
        return 0;
    if (o->there)
        return known && !strcmp(etag, o->there->etag)
                   ? 0
                   : err_set(e, ERR_FILE,
                             "%s/%s is there with other bytes, from another run or program: remove it, or "
                             "choose another prefix",
                             u->url, o->name);
    if (!(list = malloc(sizeof *list * (size_t)o->n_parts)))
        return no_memory(u, e);
    for (int k = 0; k < o->n_parts; k++)
        memcpy(list[k], o->part[k].etag, sizeof list[k]);
    int rc = need_id(u, o, e);
    rc = rc < 0 ? rc : s3_complete(u->s, o->name, o->id, o->n_parts, list, e);
    free(list);
    return rc < 0 && e->code != ERR_STOPPED && is_joined(u, o, etag) ? 0 : rc;
}

/* ---- threads ---- */

static void keep_error(struct upload *u, const struct err *e)
{
    if (!u->err.code)
        u->err = *e;
    pthread_cond_broadcast(&u->done);
}

static void *send_parts(void *arg)
{
    struct upload *u = arg;
    pthread_mutex_lock(&u->lock);
    for (;;) {
        while (!u->closing && (u->first_job == u->n_jobs || u->err.code))
            pthread_cond_wait(&u->work, &u->lock);
        if (u->closing)
            break;
        struct job j = u->job[u->first_job++];
        struct err e = { 0 };
        u->n_running++;
        pthread_mutex_unlock(&u->lock);
        int rc = send_part(u, j.o, j.part, &e), last = 0;

        pthread_mutex_lock(&u->lock);
        u->queued -= part_size(j.o, j.part);
        last = rc >= 0 && ++j.o->n_sent == j.o->n_parts;
        if (last) {
            pthread_mutex_unlock(&u->lock);
            rc = join_parts(u, j.o, &e);
            pthread_mutex_lock(&u->lock);
        }
        if (rc < 0)
            keep_error(u, &e);
        u->n_running--;
        pthread_cond_broadcast(&u->done);
    }
    pthread_mutex_unlock(&u->lock);
    return NULL;
}

/* Adds a part to the queue. The lock is held. */
static int add_job(struct upload *u, struct object *o, int part, struct err *e)
{
    if (u->n_jobs == u->most_jobs && u->first_job > 0) {
        memmove(u->job, u->job + u->first_job, sizeof *u->job * (size_t)(u->n_jobs - u->first_job));
        u->n_jobs -= u->first_job;
        u->first_job = 0;
    }
    if (u->n_jobs == u->most_jobs) {
        int most = u->most_jobs ? 2 * u->most_jobs : 64;
        struct job *grown = realloc(u->job, sizeof *grown * (size_t)most);
        if (!grown)
            return no_memory(u, e);
        u->job = grown;
        u->most_jobs = most;
    }
    u->job[u->n_jobs++] = (struct job){ o, part };
    u->queued += part_size(o, part);
    pthread_cond_signal(&u->work);
    return 0;
}

static void stop_threads(struct upload *u)
{
    pthread_mutex_lock(&u->lock);
    u->closing = 1;
    pthread_cond_broadcast(&u->work);
    pthread_mutex_unlock(&u->lock);
    for (int i = 0; i < u->n_threads; i++)
        pthread_join(u->thread[i], NULL);
    u->n_threads = 0;
}

/* ---- what is there ---- */

static int add_there(void *arg, const struct s3_item *item, struct err *e)
{
    struct upload *u = arg;
    struct there *grown = realloc(u->there, sizeof *grown * (size_t)(u->n_there + 1)), *t;
    if (!grown)
        return no_memory(u, e);
    u->there = grown;
    t = &grown[u->n_there];
    *t = (struct there){ .name = strdup(item->name), .id = strdup(item->id), .bytes = item->bytes };
    snprintf(t->etag, sizeof t->etag, "%s", item->etag);
    snprintf(t->when, sizeof t->when, "%s", item->when);
    u->n_there++;
    return t->name && t->id ? 0 : no_memory(u, e);
}

/* Fills in the parts that an unfinished upload has. */
static int add_part(void *arg, const struct s3_item *item, struct err *e)
{
    struct object *o = arg;
    (void)e;
    if (item->number >= 1 && item->number <= o->n_parts && item->bytes == part_size(o, (int)item->number - 1))
        memcpy(o->part[item->number - 1].etag, item->etag, sizeof item->etag);
    return 0;
}

/* What an earlier run has sent of a file: the object, or an upload of it. */
static int find_earlier(struct upload *u, struct object *o, struct err *e)
{
    for (int i = 0; i < u->n_there; i++) {
        struct there *t = &u->there[i];
        if (strcmp(t->name, o->name))
            continue;
        if (!*t->id) {
            o->there = t->bytes == o->bytes || o->n_parts == 1 ? t : NULL;
            if (!o->there)
                return err_set(
                    e, ERR_FILE,
                    "%s/%s is there with %lld bytes, not %lld, from another run or program: remove "
                    "it, or choose another prefix",
                    u->url, o->name, (long long)t->bytes, (long long)o->bytes);
            t->is_used = 1;
        } else if (!o->there && o->n_parts > 1 && !*o->id) {
            snprintf(o->id, sizeof o->id, "%s", t->id);
            t->is_used = 1;
        }
    }
    return *o->id && !o->there ? s3_list(u->s, S3_PARTS, o->name, o->id, add_part, o, e) : 0;
}

/* Nothing that is there may be of something else. */
static int check_there(const struct upload *u, struct err *e)
{
    for (int i = 0; i < u->n_there; i++)
        if (!*u->there[i].id && is_last(u, u->there[i].name))
            return err_set(e, ERR_FILE, "%s exists (it has a %s): choose another prefix or remove it", u->url,
                           u->there[i].name);
    for (int i = 0; i < u->n_there; i++)
        if (!*u->there[i].id && u->how.is_known && !u->how.is_known(u->there[i].name))
            return err_set(e, ERR_FILE,
                           "%s holds %s, which is no file of such a checkpoint: choose another prefix",
                           u->url, u->there[i].name);
    return 0;
}

/* ---- opening ---- */

/* Says which URL the folder is for (url_cache_list.c). */
static int note_url(const struct upload *u, struct err *e)
{
    char *path = io_join(u->dir, CACHE_URL);
    int rc = path ? io_write_file(path, u->url, strlen(u->url), e) : no_memory(u, e);
    free(path);
    return rc < 0 ? rc : 0;
}

static int start_threads(struct upload *u, struct err *e)
{
    u->thread = calloc((size_t)u->how.n_threads, sizeof *u->thread);
    if (!u->thread)
        return no_memory(u, e);
    while (u->n_threads < u->how.n_threads) {
        int failed = pthread_create(&u->thread[u->n_threads], NULL, send_parts, u);
        if (failed)
            return err_set(e, ERR_FILE, "%s: cannot start a thread: %s", u->url, strerror(failed));
        u->n_threads++;
    }
    return 0;
}

int upload_open(struct upload **out, const char *url, const char *dir, const struct upload_opts *how,
                struct err *e)
{
    struct upload *u = calloc(1, sizeof *u);
    int rc = 0;
    if (strncmp(url, "s3://", 5)) {
        free(u);
        return err_set(e, ERR_USAGE, "%s: files are only sent to s3://bucket/prefix", url);
    }
    if (!u)
        return err_set(e, ERR_MEMORY, "%s: no memory to write there", url);
    u->how = *how;
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->work, NULL);
    pthread_cond_init(&u->done, NULL);
    u->dir = strdup(dir);
    u->url = strdup(url);
    if (!u->dir || !u->url) {
        rc = no_memory(u, e);
        goto out;
    }
    for (size_t n = strlen(u->url); n && u->url[n - 1] == '/'; n--)
        u->url[n - 1] = 0;
    TRY(note_url(u, e));
    TRY(store_open(&u->s, url, e));
    store_stop_on(u->s, how->stop);
    TRY(s3_list(u->s, S3_OBJECTS, "", "", add_there, u, e));
    TRY(check_there(u, e));
    TRY(s3_list(u->s, S3_UPLOADS, "", "", add_there, u, e));
    TRY(start_threads(u, e));
out:
    if (rc < 0) {
        upload_close(u);
        return rc;
    }
    *out = u;
    return 0;
}

static void free_object(struct object *o)
{
    if (!o)
        return;
    pthread_mutex_destroy(&o->lock);
    free(o->name);
    free(o->path);
    free(o->part);
    free(o);
}

void upload_close(struct upload *u)
{
    if (!u)
        return;
    stop_threads(u);
    for (int i = 0; i < u->n_objects; i++)
        free_object(u->object[i]);
    for (int i = 0; i < u->n_there; i++) {
        free(u->there[i].name);
        free(u->there[i].id);
    }
    store_close(u->s);
    free(u->object);
    free(u->there);
    free(u->thread);
    free(u->job);
    free(u->dir);
    free(u->url);
    pthread_cond_destroy(&u->work);
    pthread_cond_destroy(&u->done);
    pthread_mutex_destroy(&u->lock);
    free(u);
}

/* ---- files ---- */

static struct object *find_object(const struct upload *u, const char *name)
{
    for (int i = u->n_objects - 1; i >= 0; i--)
        if (!strcmp(u->object[i]->name, name))
            return u->object[i];
    return NULL;
}

static int add_object(struct upload *u, struct object *o)
{
    pthread_mutex_lock(&u->lock);
    struct object **grown = realloc(u->object, sizeof(*grown) * (size_t)(u->n_objects + 1));
    if (grown) {
        u->object = grown;
        grown[u->n_objects++] = o;
        u->all += o->bytes;
    }
    pthread_mutex_unlock(&u->lock);
    return grown ? 0 : -1;
}

int upload_file(struct upload *u, const char *name, int64_t bytes, struct err *e)
{
    struct object *o = calloc(1, sizeof *o);
    int64_t least = (bytes / PARTS_MAX + UPLOAD_PART - 1) / UPLOAD_PART * UPLOAD_PART;
    int rc = 0;
    if (!o)
        return no_memory(u, e);
    pthread_mutex_init(&o->lock, NULL);
    o->bytes = bytes;
    o->part_bytes = least > UPLOAD_PART ? least : UPLOAD_PART;
    o->n_parts = bytes ? (int)((bytes + o->part_bytes - 1) / o->part_bytes) : 1;
    o->name = strdup(name);
    o->path = io_join(u->dir, name);
    o->part = calloc((size_t)o->n_parts, sizeof *o->part);
    if (!o->name || !o->path || !o->part) {
        rc = no_memory(u, e);
        goto out;
    }
    for (int k = 0; k < o->n_parts; k++)
        o->part[k].left = part_size(o, k);
    TRY(find_earlier(u, o, e));
    if (add_object(u, o) < 0)
        rc = no_memory(u, e);
out:
    if (rc < 0)
        free_object(o);
    return rc < 0 ? rc : 0;
}

int upload_range(struct upload *u, const char *name, int64_t off, int64_t n, struct err *e)
{
    int rc = 0;
    pthread_mutex_lock(&u->lock);
    struct object *o = find_object(u, name);
    if (!o || off < 0 || n < 0 || off > o->bytes - n)
        rc = err_set(e, ERR_INTERNAL, "%s: bytes outside of it are to be sent: please report it", name);
    for (int64_t at = off; rc >= 0 && at < off + n;) {
        int k = (int)(at / o->part_bytes);
        int64_t end = (k + 1) * o->part_bytes, m = (end < off + n ? end : off + n) - at;
        o->part[k].left -= m;
        if (o->part[k].left == 0)
            rc = add_job(u, o, k, e);
        at += m;
    }
    if (rc >= 0 && o->bytes == 0)
        rc = add_job(u, o, 0, e);
    while (rc >= 0 && u->queued > QUEUE_MAX && !u->err.code)
        pthread_cond_wait(&u->done, &u->lock);
    if (u->err.code) {
        *e = u->err;
        rc = -e->code;
    }
    pthread_mutex_unlock(&u->lock);
    return rc < 0 ? rc : 0;
}

/* ---- the end ---- */

/* Sends the files of a folder below u->dir (sub: "", or "name/") that are not known yet. */
static int send_folder(struct upload *u, const char *sub, struct err *e)
{
    char *path = io_join(u->dir, *sub ? sub : "."), name[2048], *full;
    DIR *d = path ? opendir(path) : NULL;
    const struct dirent *x;
    struct stat st;
    int rc = d ? 0 : err_sys(e, "cannot list %s", u->dir);
    while (rc >= 0 && d && (x = readdir(d))) {
        if (!strcmp(x->d_name, ".") || !strcmp(x->d_name, "..") || !strcmp(x->d_name, TMP_MARKER) ||
            !strcmp(x->d_name, CACHE_URL) || (u->how.hidden && !strcmp(x->d_name, u->how.hidden)))
            continue;
        if (snprintf(name, sizeof name, "%s%s", sub, x->d_name) >= (int)sizeof name - 1) {
            rc = err_set(e, ERR_FILE, "%s: its path is too long", x->d_name);
            break;
        }
        full = io_join(u->dir, name);
        if (!full || lstat(full, &st) < 0) {
            rc = err_sys(e, "cannot read %s", name);
        } else if (S_ISDIR(st.st_mode)) {
            name[strlen(name) + 1] = 0;
            name[strlen(name)] = '/';
            rc = send_folder(u, name, e);
        } else if (!is_last(u, name) && !find_object(u, name)) {
            rc = upload_file(u, name, st.st_size, e);
            rc = rc < 0 ? rc : upload_range(u, name, 0, st.st_size, e);
        }
        free(full);
    }
    if (d)
        closedir(d);
    free(path);
    return rc < 0 ? rc : 0;
}

static int wait_for_parts(struct upload *u, struct err *e)
{
    const double start_s = clock_s();
    const int64_t before = u->sent + u->found;
    int rc = 0;
    pthread_mutex_lock(&u->lock);
    while (!u->err.code && (u->first_job < u->n_jobs || u->n_running)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        if (u->how.log)
            log_rate(u->how.log, "sent", (double)(u->sent + u->found - before), (double)(u->all - before),
                     start_s);
        pthread_cond_timedwait(&u->done, &u->lock, &until);
    }
    if (u->err.code) {
        *e = u->err;
        rc = -e->code;
    }
    pthread_mutex_unlock(&u->lock);
    return rc;
}

int upload_rest(struct upload *u, struct err *e)
{
    int rc = 0;
    TRY(send_folder(u, "", e));
    TRY(wait_for_parts(u, e));
    for (int i = 0; i < u->n_objects; i++)
        if (u->object[i]->n_sent < u->object[i]->n_parts)
            return err_set(e, ERR_INTERNAL, "%s: %d of %d parts were sent: please report it",
                           u->object[i]->name, u->object[i]->n_sent, u->object[i]->n_parts);
    for (int i = 0; i < u->n_there; i++) {
        const struct there *t = &u->there[i];
        if (t->is_used)
            continue;
        if (!*t->id)
            return err_set(e, ERR_FILE,
                           "%s holds %s, which is no file of this checkpoint: remove it, or choose another "
                           "prefix",
                           u->url, t->name);
        if (u->how.log)
            log_line(u->how.log,
                     "%s/%s: an unfinished upload that began %s stays: this run has no use for it (id %s)",
                     u->url, t->name, t->when, t->id);
    }
out:
    return rc < 0 ? rc : 0;
}

int upload_publish(struct upload *u, struct err *e)
{
    int rc = 0;
    for (const char *const *name = u->how.last; *name && rc >= 0; name++) {
        char *path = io_join(u->dir, *name);
        void *data = NULL;
        size_t n = 0;
        struct md5 sum;
        rc = path ? 0 : no_memory(u, e);
        if (rc >= 0 && io_exists(path) && (rc = io_read_file(path, SMALL_MAX, &data, &n, e)) >= 0) {
            struct s3_body b = { .data = data, .fd = -1, .bytes = (int64_t)n };
            md5_start(&sum);
            md5_add(&sum, data, n);
            md5_end(&sum, b.md5);
            if ((rc = s3_put(u->s, *name, &b, 1, e)) > 0) {
                u->is_taken = 1;
                rc = err_set(e, ERR_FILE,
                             "%s: another program has written its %s meanwhile: choose another prefix",
                             u->url, *name);
            }
        }
        free(data);
        free(path);
    }
    return rc < 0 ? rc : 0;
}

/* ---- without a result ---- */

static int drop_one(void *arg, const struct s3_item *item, struct err *e)
{
    struct upload *u = arg;
    if (!find_object(u, item->name) && !is_last(u, item->name))
        return 0;
    return *item->id ? s3_abort(u->s, item->name, item->id, e) : s3_delete(u->s, item->name, e);
}

int upload_abort(struct upload *u, struct err *e)
{
    struct err first = { 0 };
    pthread_mutex_lock(&u->lock);
    err_set(&first, ERR_STOPPED, "aborted");
    keep_error(u, &first);
    pthread_mutex_unlock(&u->lock);
    stop_threads(u);
    store_stop_on(u->s, NULL);
    int rc = s3_list(u->s, S3_UPLOADS, "", "", drop_one, u, e);
    return rc < 0 ? rc : s3_list(u->s, S3_OBJECTS, "", "", drop_one, u, e);
}

int upload_is_taken(const struct upload *u) { return u->is_taken; }
int64_t upload_sent(const struct upload *u) { return u->sent; }
int64_t upload_found(const struct upload *u) { return u->found; }
