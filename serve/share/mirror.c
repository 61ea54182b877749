/* mirror.c - see mirror.h. A version is a set mem:PID/live-STEP of this process. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "serve/share/mirror.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/io.h"
#include "base/jx.h"
#include "format/ckpt_proof.h"
#include "serve/share/delta.h"
#include "store/live.h"
#include "store/memory.h"
#include "store/store.h"

#define MANIFEST_MAX ((int64_t)1 << 30)
#define DELTA_WAIT_S 1800.0 /* the server makes a delta in this time, or all is read */
#define DELTA_MAX ((int64_t)1 << 42)

struct mirror {
    const char *url;
    const volatile sig_atomic_t *stop;
    struct keeper *keeper;
    char kept[MEMORY_PATH_BYTES]; /* the newest set; "": none */
};

/* A version that is being taken. */
struct taking {
    struct store *s;
    char etag[88]; /* of its files, as store_stat gives it */
    int changed;   /* the server has another version by now */
    char set[MEMORY_PATH_BYTES];
    struct memory_set *files; /* what has come, to verify it before others see it */
    int manifest;             /* it makes the set whole, so it is given last; -1: it has not come yet */
};

int mirror_open(struct mirror **out, const char *url, const volatile sig_atomic_t *stop, struct err *e)
{
    struct mirror *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_MEMORY, "no memory to follow a URL");
    *r = (struct mirror){ .url = url, .stop = stop };
    int rc = keeper_open(&r->keeper, NULL, e);
    if (rc < 0) {
        free(r);
        return rc;
    }
    *out = r;
    return 0;
}

void mirror_close(struct mirror *r)
{
    if (!r)
        return;
    keeper_close(r->keeper);
    free(r);
}

/* ---- files of a set ---- */

/* The manifest has another name until all is verified: with its own one the set would be there for readers,
 * because this process is its keeper. */
static int create(void *arg, const char *name, struct err *e)
{
    struct taking *t = arg;
    if (strcmp(name, MEMORY_LAST))
        return memory_create(t->set, name, e);
    int fd = memfd_create("shardline", MFD_CLOEXEC);
    return fd < 0 ? err_sys(e, "cannot make a file in memory") : fd;
}

/* Another descriptor of the file goes to t->files. */
static int keep(struct taking *t, int fd, const char *name, struct err *e)
{
    if (memory_file(t->files, name)) /* the one that is verified must be the one that is given */
        return err_set(e, ERR_FORMAT, "%s comes twice", name);
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return own < 0 ? err_sys(e, "%s: no descriptor is left", name) : memory_add_open(t->files, name, own, e);
}

static int done(void *arg, int fd, const char *name, struct err *e)
{
    struct taking *t = arg;
    int rc = keep(t, fd, name, e);
    if (rc < 0 || !strcmp(name, MEMORY_LAST)) {
        io_close(rc < 0 ? fd : t->manifest);
        t->manifest = rc < 0 ? t->manifest : fd;
        return rc;
    }
    return memory_give(fd, t->set, name, e);
}

/* The bytes of the manifest, malloc'd, with a NUL; *n of them. NULL: *e is set. */
static char *manifest_of(const struct taking *t, int64_t *n, struct err *e)
{
    char *text = NULL;
    *n = io_size(t->manifest, MEMORY_LAST, e);
    if (*n < 0)
        return NULL;
    if (*n > MANIFEST_MAX || !(text = malloc((size_t)*n + 1))) {
        err_set(e, ERR_MEMORY, "no memory for a manifest of %lld bytes", (long long)*n);
        return NULL;
    }
    text[*n] = 0;
    if (io_pread(t->manifest, MEMORY_LAST, text, (size_t)*n, 0, e) >= 0)
        return text;
    free(text);
    return NULL;
}

/* Gives the manifest: from now on the set is there for readers. */
static int reveal(struct taking *t, struct err *e)
{
    int64_t n;
    char *text = manifest_of(t, &n, e);
    int fd = -1, rc = text ? 0 : -e->code;
    TRY(rc);
    TRY(fd = memory_create(t->set, MEMORY_LAST, e));
    TRY(io_pwrite(fd, MEMORY_LAST, text, (size_t)n, 0, e));
    rc = memory_give(fd, t->set, MEMORY_LAST, e);
    fd = -1;
out:
    io_close(fd);
    free(text);
    return rc < 0 ? rc : 0;
}

/* As store_stat, of the version that is taken. */
static int look_at(struct taking *t, const char *name, struct store_info *info, struct err *e)
{
    int rc = store_stat(t->s, name, info, e);
    t->changed = rc == -ERR_INTEGRITY;
    return rc;
}

/* Reads n bytes from the beginning of a file. */
static int read_from(struct taking *t, const char *name, const struct store_info *info, int64_t n, void *to,
                     struct err *e)
{
    struct store_info now;
    struct err ignored;
    int rc = store_read(t->s, name, info, 0, n, to, e);
    if (rc < 0) /* is it of another version by now */
        look_at(t, name, &now, &ignored);
    return rc;
}

/* Receives bytes [0, n) of a file into a descriptor. */
static int receive(struct taking *t, const char *name, const struct store_info *info, int fd, struct err *e)
{
    const int64_t n = info->bytes;
    int rc = io_truncate(fd, name, n, e);
    if (rc < 0 || n == 0)
        return rc;
    void *to = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (to == MAP_FAILED)
        return err_sys(e, "no memory for %s (%lld bytes)", name, (long long)n);
    rc = read_from(t, name, info, n, to, e);
    munmap(to, (size_t)n);
    return rc < 0 ? rc : 0;
}

static int take_file(struct taking *t, const char *name, struct err *e)
{
    struct store_info info;
    int rc = look_at(t, name, &info, e), fd;
    if (rc <= 0)
        return rc < 0 ? rc : err_set(e, ERR_FILE, "%s is not there: is the server a pshare", name);
    if (!strcmp(name, MEMORY_LAST) && info.bytes > MANIFEST_MAX)
        return err_set(e, ERR_FORMAT, "a manifest of %lld bytes", (long long)info.bytes);
    if ((fd = create(t, name, e)) < 0)
        return fd;
    if ((rc = receive(t, name, &info, fd, e)) < 0) {
        io_close(fd);
        return rc;
    }
    return done(t, fd, name, e);
}

/* ---- a version as whole files ---- */

static int take_named(struct taking *t, const json_t *o, struct err *e)
{
    const char *name = json_string_value(json_object_get(o, "name"));
    if (name && !memory_name_is_good(name)) /* it may come to a terminal */
        return err_set(e, ERR_FORMAT, "its manifest has a file without a good name");
    return name ? take_file(t, name, e) : 0;
}

static int take_whole(struct taking *t, struct err *e)
{
    json_t *root = NULL, *o;
    size_t i;
    int64_t n;
    int rc = take_file(t, MEMORY_LAST, e);
    if (rc < 0)
        return rc;
    char *text = manifest_of(t, &n, e);
    TRY(text ? 0 : -e->code);
    root = jx_parse(text, (size_t)n, MEMORY_LAST, e);
    TRY(root ? 0 : -e->code);
    TRY(take_named(t, json_object_get(root, "config"), e));
    json_array_foreach(json_object_get(root, "extra"), i, o)
        TRY(take_named(t, o, e));
    json_array_foreach(json_object_get(root, "files"), i, o)
        TRY(take_named(t, o, e));
out:
    json_decref(root);
    free(text);
    return rc < 0 ? rc : 0;
}

/* ---- a version as what changed ---- */

/* 1: taken; 0: the server has no delta. */
static int take_delta(struct taking *t, const struct version *now, struct err *e)
{
    const struct delta_out out = { create, done, t };
    struct store_info info;
    char name[40];
    void *delta;
    snprintf(name, sizeof name, "delta/%lld", (long long)now->step);
    const double until_s = clock_s() + DELTA_WAIT_S;
    int rc = look_at(t, name, &info, e);
    while (rc < 0 && store_is_late(t->s) && clock_s() < until_s) /* it is being made */
        rc = look_at(t, name, &info, e);
    if (rc <= 0)
        return rc;
    if (info.bytes > DELTA_MAX || !(delta = malloc((size_t)info.bytes + 1)))
        return err_set(e, ERR_MEMORY, "no memory for a delta of %lld bytes", (long long)info.bytes);
    rc = read_from(t, name, &info, info.bytes, delta, e);
    if (rc >= 0)
        rc = delta_apply(now, delta, info.bytes, &out, e);
    free(delta);
    return rc < 0 ? rc : 1;
}

/* ---- */

/* Every byte is what the manifest says, whose weights are those that were announced. Only then the set is
 * there for programs that look at mem:PID. */
static int prove(struct taking *t, const struct live_version *v, struct err *e)
{
    const struct ckpt_open_opts how = { .files = t->files };
    struct ckpt *c = NULL;
    char digest[33];
    int rc = t->manifest < 0 ? err_set(e, ERR_FORMAT, "it has no manifest") : 0;
    if (rc < 0)
        return rc;
    t->files = NULL;
    TRY(ckpt_open(&c, t->set, &how, e));
    ckpt_digest_hex(ckpt_digest_all(ckpt_n_tensors(c), ckpt_n_tensors(c) ? ckpt_tensor(c, 0) : NULL, NULL)
                        .weights,
                    digest);
    if (strcmp(digest, v->digest)) {
        rc = err_set(e, ERR_INTEGRITY, "it has weights_digest %s, %s is expected", digest, v->digest);
        goto out;
    }
    TRY(ckpt_verify(c, 0, e));
    rc = reveal(t, e);
out:
    ckpt_close(c);
    return rc < 0 ? rc : 0;
}

static int begin(struct mirror *r, struct taking *t, struct err *e)
{
    int rc = store_open(&t->s, r->url, e);
    if (rc < 0)
        return rc;
    store_stop_on(t->s, r->stop);
    store_keep_to(t->s, t->etag);
    rc = memory_private(&t->files, t->set, e);
    return rc < 0 ? rc : memory_begin(t->set, e);
}

/* Ends a try. keeps: its set stays. */
static int64_t end(struct taking *t, int keeps)
{
    struct err ignored;
    const int64_t received = t->s ? store_bytes(t->s) : 0;
    store_close(t->s);
    io_close(t->manifest);
    memory_close(t->files);
    if (!keeps)
        memory_drop(t->set, &ignored);
    return received;
}

static int take_version(struct mirror *r, const struct version *now, const struct live_version *v, int whole,
                        struct taking *t, struct err *e)
{
    int rc = begin(r, t, e);
    if (rc >= 0)
        rc = whole ? take_whole(t, e) : take_delta(t, now, e);
    if (rc == 0 && !whole)
        return 0;
    if (rc >= 0)
        rc = prove(t, v, e);
    return rc < 0 ? rc : 1;
}

int mirror_next(struct mirror *r, const struct version *now, char *path, size_t room, int64_t *step,
                struct mirror_got *got, struct err *e)
{
    struct live_version v;
    struct err ignored;
    char shown[4200];
    int rc = live_version_hold(r->url, now ? now->step : -1, r->stop, &v, e);
    *got = (struct mirror_got){ .from = -1 };
    if (rc <= 0 || (now && v.version <= now->step))
        return rc < 0 ? rc : 0;

    rc = 0;
    int changed = 0;
    for (int whole = now == NULL; rc <= 0 && whole <= 1 && !changed && !*r->stop; whole++) {
        struct taking t = { .manifest = -1 };
        snprintf(t.etag, sizeof t.etag, "\"%lld-%s\"", (long long)v.version, v.digest);
        snprintf(t.set, sizeof t.set, "mem:%ld/live-%lld", (long)getpid(), (long long)v.version);
        rc = take_version(r, now, &v, whole, &t, e);
        changed = t.changed;
        if (!whole && rc <= 0 && !changed)
            snprintf(got->whole, sizeof got->whole, "no delta from version %lld: %.180s",
                     (long long)now->step, rc < 0 ? e->text : "the server has none");
        got->received += end(&t, rc > 0);
        if (rc > 0) {
            got->from = whole ? -1 : now->step;
            if (*r->kept)
                memory_drop(r->kept, &ignored);
            memcpy(r->kept, t.set, sizeof r->kept);
            snprintf(path, room, "%s", t.set);
            *step = v.version;
        }
    }
    if (changed && now) /* the version that is there by now is taken at the next look */
        return 0;
    return rc < 0
               ? err_add(e, "%s: version %lld", url_shown(r->url, shown, sizeof shown), (long long)v.version)
               : rc;
}
