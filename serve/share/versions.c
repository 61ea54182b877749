/* versions.c - see versions.h. */
#include "serve/share/versions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "base/io.h"
#include "base/jx.h"
#include "format/ckpt_proof.h"
#include "format/ckpt_write.h"
#include "store/memory.h"

#define MANIFEST "manifest.json"
#define MANIFEST_MAX ((size_t)1 << 30)
#define HOLD_S 30.0

/* ---- one version ---- */

/* Where the files are: a folder, or a set in memory. */
struct place {
    const char *dir;
    struct memory_set *memory; /* or NULL */
};

static char *path_of(const struct place *p, const char *name)
{
    const char *path = p->memory ? memory_file(p->memory, name) : NULL;
    return path ? strdup(path) : io_join(p->dir, name);
}

static struct share_file *add(struct version *v, const char *name, struct err *e)
{
    struct share_file *grown = realloc(v->file, sizeof *grown * (size_t)(v->n + 1));
    if (!grown) {
        err_set(e, ERR_MEMORY, "no memory for the names of files");
        return NULL;
    }
    v->file = grown;
    grown[v->n] = (struct share_file){ .fd = -1 };
    snprintf(grown[v->n].name, sizeof grown->name, "%s", name);
    return &grown[v->n++];
}

/* Bytes of an element of the first tensor in a file of weights. */
static int width_of(const json_t *root, const json_t *file)
{
    const json_t *piece = json_array_get(json_object_get(file, "pieces"), 0);
    const json_t *t = json_array_get(json_object_get(root, "tensors"),
                                     (size_t)json_integer_value(json_object_get(piece, "tensor")));
    const char *dtype = json_string_value(json_object_get(t, "dtype"));
    const int i = piece && dtype ? stored_dtype_find(dtype) : -1;
    return i < 0 ? 0 : stored_dtype_bits((enum stored_dtype)i) / 8;
}

static int add_file(struct version *v, const struct place *p, const json_t *o, struct err *e)
{
    const char *name = json_string_value(json_object_get(o, "name"));
    int rc = 0;
    if (!name) /* no config */
        return 0;
    char *path = path_of(p, name);
    struct share_file *f = path ? add(v, name, e) : NULL;
    if (!f) {
        rc = err_set(e, ERR_MEMORY, "no memory for the path of %s", name);
        goto out;
    }
    TRY(f->fd = io_open_read(path, e));
    f->bytes = io_size(f->fd, path, e);
    rc = f->bytes < 0 ? (int)f->bytes : 0;
out:
    free(path);
    return rc < 0 ? rc : 0;
}

/* The manifest of the weights alone, and all files that it names. */
static int add_files(struct version *v, const struct place *p, const struct ckpt *c, struct err *e)
{
    char *path = path_of(p, MANIFEST);
    void *text = NULL;
    json_t *root = NULL, *o;
    struct share_file *f;
    size_t n, i;
    int rc = path ? 0 : err_set(e, ERR_MEMORY, "no memory for a path");
    if (rc < 0)
        return rc;
    TRY(io_read_file(path, MANIFEST_MAX, &text, &n, e));
    if (!(f = add(v, MANIFEST, e))) {
        rc = -e->code;
        goto out;
    }
    TRY(ckpt_weights_manifest(c, text, n, &f->text, &n, e));
    f->bytes = (int64_t)n;
    if (!(root = jx_parse(f->text, n, path, e))) {
        rc = -e->code;
        goto out;
    }
    TRY(add_file(v, p, json_object_get(root, "config"), e));
    json_array_foreach(json_object_get(root, "extra"), i, o)
        TRY(add_file(v, p, o, e));
    json_array_foreach(json_object_get(root, "files"), i, o) {
        TRY(add_file(v, p, o, e));
        v->file[v->n - 1].width = width_of(root, o);
    }
out:
    json_decref(root);
    free(text);
    free(path);
    return rc < 0 ? rc : 0;
}

int version_open(struct version **out, const char *path, int64_t step, struct err *e)
{
    struct version *v = calloc(1, sizeof *v);
    struct place p = { .dir = path };
    struct ckpt *c = NULL;
    int rc = v ? 0 : err_set(e, ERR_MEMORY, "%s: no memory", path);
    if (rc < 0)
        return rc;
    atomic_store(&v->users, 1);
    TRY(memory_is(path) ? memory_open(&p.memory, path, e) : 0);
    TRY(ckpt_open(&c, p.memory ? memory_path(p.memory) : path, NULL, e));
    if (strcmp(ckpt_driver(c), "native")) {
        rc = err_set(e, ERR_FORMAT, "%s is no native checkpoint (%s): reshard --weights-only makes one", path,
                     ckpt_driver(c));
        goto out;
    }
    for (int i = 0; i < ckpt_n_tensors(c); i++)
        if (ckpt_tensor(c, i)->role == ROLE_WEIGHT && !ckpt_tensor(c, i)->has_digest)
            rc = err_set(e, ERR_FORMAT, "%s: %s has no digest", path, ckpt_tensor(c, i)->name);
    if (rc < 0)
        goto out;
    const struct ckpt_digests d = ckpt_digest_all(ckpt_n_tensors(c),
                                                  ckpt_n_tensors(c) ? ckpt_tensor(c, 0) : NULL,
                                                  ckpt_state(c));
    v->step = step >= 0 ? step : ckpt_state(c)->has_state ? ckpt_state(c)->step : 0;
    ckpt_digest_hex(d.weights, v->digest);
    snprintf(v->etag, sizeof v->etag, "%lld-%s", (long long)v->step, v->digest);
    TRY(add_files(v, &p, c, e));
out:
    ckpt_close(c);
    memory_close(p.memory);
    if (rc < 0) {
        version_free(v);
        return rc;
    }
    *out = v;
    return 0;
}

void version_free(struct version *v)
{
    if (!v || atomic_fetch_sub(&v->users, 1) > 1)
        return;
    version_free(v->before);
    for (int i = 0; i < v->n; i++) {
        io_close(v->file[i].fd);
        free(v->file[i].text);
    }
    free(v->file);
    free(v);
}

struct version *version_share(struct version *v)
{
    atomic_fetch_add(&v->users, 1);
    return v;
}

const struct share_file *version_file(const struct version *v, const char *name)
{
    for (int i = 0; i < v->n; i++)
        if (!strcmp(v->file[i].name, name))
            return &v->file[i];
    return NULL;
}

/* ---- the newest one ---- */

int versions_open(struct versions *v, struct err *e)
{
    pthread_condattr_t clock;
    *v = (struct versions){ .hold_s = HOLD_S };
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    int rc = pthread_mutex_init(&v->lock, NULL) || pthread_cond_init(&v->changed, &clock);
    pthread_condattr_destroy(&clock);
    return rc ? err_set(e, ERR_MEMORY, "no memory for a lock") : 0;
}

void versions_close(struct versions *v)
{
    version_free(v->held_base);
    version_free(v->held);
    version_free(v->newest);
    pthread_cond_destroy(&v->changed);
    pthread_mutex_destroy(&v->lock);
}

int versions_add(struct versions *v, struct version *n, struct err *e)
{
    struct version *old, *older = NULL;
    pthread_mutex_lock(&v->lock);
    old = v->newest;
    if (old && n->step <= old->step) {
        int64_t step = old->step;
        pthread_mutex_unlock(&v->lock);
        int rc = err_set(e, ERR_USAGE, "version %lld comes behind version %lld: versions do not go backwards",
                         (long long)n->step, (long long)step);
        version_free(n);
        return rc;
    }
    v->newest = n;
    if (old && v->keeps_before) {
        older = old->before;
        old->before = NULL;
        n->before = old;
        old = older;
    }
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->lock);
    version_free(old);
    versions_expire(v);
    return 0;
}

struct version *versions_acquire(struct versions *v)
{
    pthread_mutex_lock(&v->lock);
    struct version *n = v->newest ? version_share(v->newest) : NULL;
    pthread_mutex_unlock(&v->lock);
    return n;
}

void versions_release(struct versions *v, struct version *n)
{
    pthread_mutex_lock(&v->lock);
    if (n && n == v->held)
        v->held_until_s = clock_s() + v->hold_s;
    pthread_mutex_unlock(&v->lock);
    version_free(n);
}

static int is_named(const struct version *n, const char *etags)
{
    char etag[sizeof n->etag + 2];
    snprintf(etag, sizeof etag, "\"%s\"", n->etag);
    return strstr(etags, etag) != NULL;
}

struct version *versions_find(struct versions *v, const char *etags)
{
    struct version *n = NULL;
    pthread_mutex_lock(&v->lock);
    if (v->newest && (!strcmp(etags, "*") || is_named(v->newest, etags)))
        n = version_share(v->newest);
    else if (v->held && is_named(v->held, etags))
        n = version_share(v->held);
    else if (v->held_base && is_named(v->held_base, etags))
        n = version_share(v->held_base);
    pthread_mutex_unlock(&v->lock);
    return n;
}

/* ---- the held one ---- */

/* 1: no request uses it. Under the lock. */
static int is_idle(const struct versions *v)
{
    const struct version *n = v->newest;
    const int own = 1 + (v->held == n) + (n && n->before == v->held);
    return atomic_load(&v->held->users) == own;
}

/* Takes both out of *v, for the caller to free without the lock. */
static void forget_held(struct versions *v, struct version *out[2])
{
    out[0] = v->held;
    out[1] = v->held_base;
    v->held = v->held_base = NULL;
}

static int has_expired(const struct versions *v)
{
    return v->held && is_idle(v) && clock_s() > v->held_until_s;
}

void versions_expire(struct versions *v)
{
    struct version *old[2] = { NULL, NULL };
    pthread_mutex_lock(&v->lock);
    if (has_expired(v)) {
        forget_held(v, old);
    } else if (v->held_base && !v->keeps_before && atomic_load(&v->held_base->users) == 1) {
        old[1] = v->held_base;
        v->held_base = NULL;
    }
    pthread_mutex_unlock(&v->lock);
    version_free(old[0]);
    version_free(old[1]);
}

struct version *versions_hold(struct versions *v, int64_t after)
{
    struct version *old[2] = { NULL, NULL }, *n = NULL;
    pthread_mutex_lock(&v->lock);
    if (has_expired(v))
        forget_held(v, old);
    const int is_read = v->held && v->held->step == after;
    if (v->held && v->held->step > after) {
        n = v->held;
    } else if (v->newest && v->newest->step > after) {
        n = v->newest;
        if (is_read) { /* other readers of it may still be under way */
            forget_held(v, old);
            v->held_base = old[0];
            old[0] = NULL;
        }
        v->held = v->held ? v->held : version_share(n);
    }
    if (n)
        version_share(n);
    if (v->held && (n == v->held || v->held->step == after)) /* it is read next, or was read last */
        v->held_until_s = clock_s() + v->hold_s;
    pthread_mutex_unlock(&v->lock);
    version_free(old[0]);
    version_free(old[1]);
    return n;
}

struct version *versions_base(struct versions *v, const struct version *n, int64_t step)
{
    struct version *b = NULL;
    pthread_mutex_lock(&v->lock);
    struct version *const may[] = { n->before, v->held_base, v->held };
    for (size_t i = 0; v->keeps_before && !b && i < sizeof may / sizeof *may; i++)
        if (may[i] && may[i]->step == step && step < n->step)
            b = version_share(may[i]);
    pthread_mutex_unlock(&v->lock);
    return b;
}

/* ---- */

struct version *versions_wait(struct versions *v, int64_t after, double timeout_s)
{
    struct timespec until;
    struct version *n = NULL;
    clock_gettime(CLOCK_MONOTONIC, &until);
    double ns = (double)until.tv_nsec + 1e9 * (timeout_s - (double)(int64_t)timeout_s);
    until.tv_sec += (time_t)timeout_s + (ns >= 1e9);
    until.tv_nsec = (long)(ns >= 1e9 ? ns - 1e9 : ns);
    pthread_mutex_lock(&v->lock);
    while (!v->stopped && !(v->newest && v->newest->step > after))
        if (pthread_cond_timedwait(&v->changed, &v->lock, &until))
            break;
    if (!v->stopped && v->newest && v->newest->step > after)
        n = version_share(v->newest);
    pthread_mutex_unlock(&v->lock);
    return n;
}

void versions_stop(struct versions *v)
{
    pthread_mutex_lock(&v->lock);
    v->stopped = 1;
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->lock);
}
