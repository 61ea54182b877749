/* launch.h - how programs start their own ranks: without a launcher and with more than one rank a program
 * starts mpirun of itself. Called by main, before it starts a thread. */
#ifndef SHARDLINE_COMM_LAUNCH_H
#define SHARDLINE_COMM_LAUNCH_H

#include "base/err.h"

/* Returns 0 when this process should go on: it is the only rank, or one of `ranks` ranks under a launcher.
 * Otherwise it starts `mpirun -n ranks` of this program with the same arguments, stays as its parent, passes
 * signals on, ends with its status and does not return. ranks 0: as many as the launcher started, else 1.
 *
 * Ranks end at once when mpirun or the first process is killed: it sets PR_SET_PDEATHSIG in ranks and holds
 * them on a leash (leash.h). It also blocks SIGTERM and SIGINT until world_open takes them, and records
 * whether stderr is a terminal (launch_stderr_is_tty). ERR_USAGE: the launcher started another number of
 * ranks, or SLURM_NTASKS > 1 without PMIX_RANK. ERR_FILE: no mpirun. */
int launch_ranks(int ranks, char **argv, struct err *e);

/* What decides, in the first process, whether other ranks follow when those of a job have ended. */
struct launch_next {
    int ranks;         /* how many; 0: as many as at first */
    char *const *more; /* arguments to append, ends with NULL; borrowed until the next question */
    int turn;          /* 0: no early ones */
};
struct launch_keeper {
    /* The job has ended with `status`; stopped 1: the user asked for it; 2: and did not wait for its end.
     * 1: *n is started, and asked to stop, too; with the turn of early ranks they are the job now. 0: this
     * process ends with that status. */
    int (*next)(void *ctx, int status, int stopped, struct launch_next *n);
    /* A rank has called leash_ask(). 1: *n is started beside the job; launch_turn() tells its ranks that they
     * wait. There are never two such sets of ranks. NULL: does nothing. */
    int (*early)(void *ctx, struct launch_next *n);
    /* A child that launch has not started has ended. Starts none. NULL: does nothing. */
    void (*ended)(void *ctx, long pid);
    /* While a job runs, after a child has ended and at least once a second: may start children. NULL: does
     * nothing. */
    void (*tick)(void *ctx);
    /* A process sent SIGHUP. NULL: that asks to stop, as it does when the terminal of the start is gone: then
     * the kernel sends it, or the shell. */
    void (*hangup)(void *ctx);
    void *ctx;
};
/* The same, and asks k when the job has ended. One rank gets a parent too. k NULL: launch_ranks(). */
int launch_ranks_kept(int ranks, char **argv, const struct launch_keeper *k, struct err *e);
/* 1 when a status is a failure: neither success nor wrong usage. */
int launch_is_failure(int status);

/* Treats every n ranks of this machine as a machine of their own, to try layouts: in this process and in
 * ranks that it starts (SHARDLINE_RANKS_PER_NODE). 0: changes nothing. */
void launch_ranks_per_node(int n);

/* 1 when a launcher (Open MPI, PMIx, PMI) started this process. */
int launch_under_launcher(void);

/* The turn for which this rank waits; 0: none, it goes on. */
int launch_turn(void);

/* PID of the first process of the job (launch_ranks), on this machine; 0: none started this one. */
long launch_parent(void);

/* 1 when no foreign launcher decides where this process runs: there is none, or launch_ranks started it. */
int launch_is_ours(void);

/* Prints an error that ends this process before the world is open, and returns the exit status. An error that
 * all ranks find alike is rank 0's to print; memory that one of them lacks is its own. */
int launch_report(const struct err *e, const char *program);

/* 1 when stderr is a terminal; for ranks of launch_ranks, the stderr of the parent. */
int launch_stderr_is_tty(void);

#endif
