/* bootstrap.h - how ranks find each other: MPI, used for nothing else by the transports self and shm. */
#ifndef SHARDLINE_COMM_BOOTSTRAP_H
#define SHARDLINE_COMM_BOOTSTRAP_H

#include "comm/comm_priv.h"

/* Ranks of this job by the launcher's environment: 1 without a launcher, 0 when it does not say. */
int bootstrap_expected_ranks(void);
/* Starts MPI (once per process) and fills *p. Collective over the world, as everything below. */
int bootstrap_open(struct topology *p, struct err *e);
/* One segment for the ranks of this machine: made by the first of them, mapped by all. ERR_…: it cannot be
 * shared, said to all. */
int bootstrap_segment(struct segment *s, const struct topology *p, size_t bytes, struct err *e);
/* 0 when every rank brings 0; else this rank's own error, or ERR_PEER. */
int bootstrap_agree(const struct topology *p, int rc, struct err *e);
/* MPI is finalized at exit when the last world ended in order; else never: MPI_Finalize would wait for the
 * missing rank. */
void bootstrap_close(struct topology *p, int orderly);

#endif
