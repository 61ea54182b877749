/* procs.h - the processes that share a conversion over a file system they all see (mpirun -n N reshard). They
 * exchange short messages, never tensor data.
 *
 * A NULL procs is one process alone: every call then returns at once. All calls that take an err are
 * collective; ERR_PEER: another process failed or died. */
#ifndef SHARDLINE_RESHARD_PROCS_H
#define SHARDLINE_RESHARD_PROCS_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct world;
struct procs;
/* The processes of w, which is borrowed. */
int procs_open(struct procs **out, struct world *w, struct err *e);
void procs_close(struct procs *s);
/* This process's number, from 0, and how many there are. */
int procs_rank(const struct procs *s);
int procs_size(const struct procs *s);
/* Whether this process received a signal to stop. Not collective. */
int procs_stopped(const struct procs *s);

/* Every process passes its rc; all get 0, or the first failure. */
int procs_agree(const struct procs *s, int rc, struct err *e);
/* 0, or ERR_USAGE on all processes when those of one machine need more memory than it has free. bytes: what
 * this one needs. advice: what to do about it. */
int procs_check_memory(const struct procs *s, int64_t bytes, const char *advice, struct err *e);
/* v[n] becomes the sum over the processes, modulo 2^64. */
int procs_sum(const struct procs *s, int64_t *v, int64_t n, struct err *e);
/* text[n] of every process becomes that of rank 0. */
int procs_broadcast(const struct procs *s, char *text, size_t n, struct err *e);
/* *out: on rank 0 every process's blob, in order, malloc'd, *n bytes in all; NULL on the others. */
int procs_gather(const struct procs *s, const void *blob, size_t bytes, void **out, size_t *n, struct err *e);

#endif
