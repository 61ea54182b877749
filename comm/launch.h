/* launch.h - programs start their own ranks: under no launcher and with ranks > 1 a program replaces itself
 * by mpirun. */
#ifndef SHARDLINE_COMM_LAUNCH_H
#define SHARDLINE_COMM_LAUNCH_H

#include "base/err.h"

/* Returns 0 when this process should go on (one rank, or already one of `ranks` ranks under a launcher).
 * Otherwise it starts `mpirun -n ranks` of this program with the same arguments, stays as its parent
 * (signals: launch.c), ends with its status and does not return; or returns an error (mpirun missing; under
 * a launcher with another number of ranks; SLURM_NTASKS > 1 without PMIX_RANK). ranks 0: take what the
 * launcher gives, else 1. Also: sets PR_SET_PDEATHSIG in ranks, blocks SIGTERM and SIGINT until world_open
 * takes them, remembers whether stderr was a terminal (launch_stderr_is_tty). Call it before any thread is
 * started. */
int launch_ranks(int ranks, char **argv, struct err *e);
/* The same, and a job that ends in a failure (not by wrong usage, not because a signal asked for its end) is
 * started again up to `times` times, with the arguments `more` (ends with NULL) behind its own. times > 0:
 * one rank gets a parent too. */
int launch_ranks_again(int ranks, char **argv, int times, char *const *more, struct err *e);
/* Takes every n ranks of this machine for a machine of their own from now on, to try layouts: here, and in
 * ranks started from here (SHARDLINE_RANKS_PER_NODE). 0: as it is. */
void launch_ranks_per_node(int n);
int launch_under_launcher(void);
/* Nobody but this process decides where it runs: no launcher, or the one that launch_ranks starts. */
int launch_is_ours(void);
/* 1 in the one process that speaks before the ranks have met: no launcher, or rank 0 under one. */
int launch_is_first(void);
int launch_stderr_is_tty(void);

#endif
