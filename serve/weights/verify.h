/* verify.h - checksums of a checkpoint's files, summed while the server answers or before. */
#ifndef SHARDLINE_SERVE_WEIGHTS_VERIFY_H
#define SHARDLINE_SERVE_WEIGHTS_VERIFY_H

#include <signal.h>
#include "base/pool.h"
#include "format/ckpt.h"
#include "serve/service.h"

struct verify;

/* Checks blocks first, first + step, … of c. progress (may be NULL) counts them. *stop not 0: ends early.
 * ERR_INTEGRITY names the file and the bytes. Any thread. */
int verify_blocks(struct ckpt *c, int64_t first, int64_t step, struct load_progress *progress,
                  const volatile sig_atomic_t *stop, struct err *e);

/* Checks all blocks in a thread of its own, of files that are open from now on: they may be removed. c and
 * progress are borrowed; the latter is done == total when all blocks are good. pool: whose threads may be
 * bound to CPUs, which the new thread is not. */
int verify_open(struct verify **out, struct ckpt *c, struct load_progress *progress, const struct pool *pool,
                struct err *e);
/* The error that it has found; 0: none so far. Cheap. */
int verify_result(struct verify *v, struct err *e);
/* Stops it. NULL: nothing. */
void verify_close(struct verify *v);

#endif
