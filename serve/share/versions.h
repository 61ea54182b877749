/* versions.h - the versions of a checkpoint that pshare serves: the newest one, those before it while
 * requests use them, and one that is held for a reader which is slower than the trainer. */
#ifndef SHARDLINE_SERVE_SHARE_VERSIONS_H
#define SHARDLINE_SERVE_SHARE_VERSIONS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include "base/err.h"

/* A file of a version: open, or a text. */
struct share_file {
    char name[256];
    int64_t bytes;
    int fd;
    int width;  /* bytes of an element of the first tensor in it, of weights; else 0 */
    char *text; /* NULL: fd has the bytes */
};
struct version {
    int64_t step;
    char digest[33], etag[80]; /* etag: STEP-DIGEST, without quotes */
    int n;
    struct share_file *file;
    _Atomic int users;      /* references; the last one frees it */
    struct version *before; /* a reference; under the lock of struct versions; or NULL */
};
struct versions {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct version *newest; /* a reference; NULL: none yet */
    int keeps_before;       /* older versions stay for deltas: the one before the newest one, and held_base */
    int stopped;

    /* A version that stays while a slow reader reads it; references, or NULL. */
    struct version *held, *held_base; /* held_base: the one that was held before, which a reader has */
    double hold_s;                    /* so long behind the last request for it */
    double held_until_s;
};

/* Without a version yet. ERR_MEMORY. */
int versions_open(struct versions *v, struct err *e);
/* When no thread uses v or a version of it. */
void versions_close(struct versions *v);
/* Opens the native checkpoint at path as version `step`: its weights, config and small files. *out is one
 * reference. */
int version_open(struct version **out, const char *path, int64_t step, struct err *e);
/* Gives up a reference. NULL is allowed. */
void version_free(struct version *v);
/* One more reference to v; returns it. Any thread. */
struct version *version_share(struct version *v);
/* Makes n the newest version, which belongs to v from then on. ERR_USAGE, and n is freed: its step is not
 * above that of the newest one. */
int versions_add(struct versions *v, struct version *n, struct err *e);
/* The newest version, borrowed until versions_release; NULL: there is none. Any thread. */
struct version *versions_acquire(struct versions *v);
void versions_release(struct versions *v, struct version *n);
/* Whether a version has one of the ETags in a list, as in If-Match ("*": the newest one): the newest or the
 * held one, or the one that was held before, borrowed; NULL: none has. Any thread. */
struct version *versions_find(struct versions *v, const char *etags);
/* A version with a step above `after`, borrowed, which stays until it is read: from now on, and while
 * requests for it come at most hold_s apart, versions_find finds it. Several readers share it. The asker has
 * read version `after`, which stays for other readers of it, or as what a delta may start from. While
 * another reader reads one that is not newer than `after`, it is the newest one, and it is not held. A reader
 * that is slower than another one may lose its version so, and begins again. NULL: there is none. Any
 * thread. */
struct version *versions_hold(struct versions *v, int64_t after);
/* Drops what is held and is not read any more. Any thread. */
void versions_expire(struct versions *v);
/* The version of that step from which a delta to n may start (keeps_before), borrowed; NULL: there is none.
 * Any thread. */
struct version *versions_base(struct versions *v, const struct version *n, int64_t step);
/* Waits until the newest version has a step above `after`, at most timeout_s seconds, and borrows it. NULL:
 * none came, or versions_stop was called. Any thread. */
struct version *versions_wait(struct versions *v, int64_t after, double timeout_s);
/* Ends all waits. */
void versions_stop(struct versions *v);

/* The file of that name, borrowed from v; NULL: there is none. */
const struct share_file *version_file(const struct version *v, const char *name);

#endif
