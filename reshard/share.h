/* share.h - processes that share a conversion over a file system they all see (mpirun -n N reshard): few
 * words between them, no data.
 *
 * NULL stands for one process alone: every call is then done at once. All are collective; ERR_PEER: another
 * process failed or died. */
#ifndef SHARDLINE_RESHARD_SHARE_H
#define SHARDLINE_RESHARD_SHARE_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct world;
struct share;
/* The processes of w; does not own it. */
int share_open(struct share **out, struct world *w, struct err *e);
void share_close(struct share *s);
int share_rank(const struct share *s);
int share_size(const struct share *s);
int share_stopped(const struct share *s); /* not collective: a signal came here */
/* Every process brings its rc; all get 0 or the first failure. */
int share_agree(const struct share *s, int rc, struct err *e);
/* v[n] becomes the sum over the processes, modulo 2^64. */
int share_sum(const struct share *s, int64_t *v, int64_t n, struct err *e);
/* Rank 0's text[n] to all. */
int share_tell(const struct share *s, char *text, size_t n, struct err *e);
/* Rank 0 gets every process's blob, one behind the other, malloc'd (others NULL), and its whole length. */
int share_gather(const struct share *s, const void *blob, size_t bytes, void **out, size_t *n, struct err *e);

#endif
