/* fetch.h - a checkpoint at a URL downloaded to a folder. */
#ifndef SHARDLINE_FORMAT_FETCH_H
#define SHARDLINE_FORMAT_FETCH_H

#include <signal.h>
#include <stdint.h>
#include "base/err.h"

struct log;
struct ckpt_fetch {
    int n_threads;
    struct log *log;                   /* progress; or NULL */
    const volatile sig_atomic_t *stop; /* ends it with ERR_STOPPED when not 0; or NULL */
    int64_t received;                  /* set by the call: bytes received */
};

/* Downloads the checkpoint at url to the folder dst, which must not exist: resumes an earlier attempt,
 * verifies everything, then renames it to dst. */
int ckpt_fetch(const char *url, const char *dst, struct ckpt_fetch *how, struct err *e);

#endif
