/* versions.h - the versions of a checkpoint that pshare serves: the newest one, and those before it while
 * requests use them. */
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
    int keeps_before;       /* the newest version keeps the one before it, for deltas */
    int stopped;
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
/* Makes n the newest version, which belongs to v from then on. ERR_USAGE, and n is freed: its step is not
 * above that of the newest one. */
int versions_add(struct versions *v, struct version *n, struct err *e);
/* The newest version, borrowed until versions_release; NULL: there is none. Any thread. */
struct version *versions_acquire(struct versions *v);
void versions_release(struct versions *v, struct version *n);
/* The version before n, while n is the newest one (keeps_before), borrowed as n is; NULL: there is none. */
struct version *versions_before(struct versions *v, const struct version *n);
/* Waits until the newest version has a step above `after`, at most timeout_s seconds, and borrows it. NULL:
 * none came, or versions_stop was called. Any thread. */
struct version *versions_wait(struct versions *v, int64_t after, double timeout_s);
/* Ends all waits. */
void versions_stop(struct versions *v);

/* The file of that name, borrowed from v; NULL: there is none. */
const struct share_file *version_file(const struct version *v, const char *name);

#endif
