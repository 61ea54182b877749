/* bootstrap.h - how ranks find each other: through MPI, which the transports self and shm use for nothing
 * else. Every function but bootstrap_expected_ranks and bootstrap_close is collective over the world. */
#ifndef SHARDLINE_COMM_BOOTSTRAP_H
#define SHARDLINE_COMM_BOOTSTRAP_H

#include "comm/comm_priv.h"

/* Number of ranks of this job by the launcher's environment: 1 without a launcher, 0 when the launcher does
 * not give it. */
int bootstrap_expected_ranks(void);

/* Starts MPI (once per process) and fills *p. ERR_PEER: MPI does not start. */
int bootstrap_open(struct topology *p, struct err *e);

/* Opens one segment for the ranks of this machine: the first of them creates it, all map it. On an error no
 * rank of the machine has it. */
int bootstrap_segment(struct segment *s, const struct topology *p, size_t bytes, struct err *e);

/* 0 when every rank passes 0; else this rank's own error, or where it has none ERR_PEER with the error of the
 * first rank that failed. */
int bootstrap_agree(const struct topology *p, int rc, struct err *e);

/* 1: bootstrap_agree() has given all ranks an error. Not collective. */
int bootstrap_has_agreed(void);

/* Frees what *p owns. orderly: MPI is finalized at the end of the process; else never, because MPI_Finalize
 * would wait for the missing rank. */
void bootstrap_close(struct topology *p, int orderly);

#endif
