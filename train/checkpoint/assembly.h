/* assembly.h - a checkpoint made of the files of all ranks: every rank writes its own, rank 0 seals them.
 *
 *     write -> agree, gather tables -> seal (rank 0) -> agree
 *     phase                            phase
 * A phase runs in place, or on a thread of its own while training goes on. That thread calls nothing of
 * comm/: the main thread ends a phase, and only then takes the agreement. With a board the threads pass the
 * tables themselves, and both phases are one: the checkpoint is there before the main threads meet again.
 * assembly_start, assembly_is_busy and assembly_advance are called by the main threads of all ranks
 * together. */
#ifndef SHARDLINE_TRAIN_CHECKPOINT_ASSEMBLY_H
#define SHARDLINE_TRAIN_CHECKPOINT_ASSEMBLY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include "base/err.h"
#include "train/checkpoint/board.h"
#include "train/ranks.h"

/* Each is one phase. arg is struct assembly's. */
struct assembly_ops {
    /* This rank's files. *table as of ckpt_shard_close; NULL: the rank has none. */
    int (*write)(void *arg, void **table, size_t *bytes, struct err *e);
    /* Rank 0: one checkpoint of n ranks' files. */
    int (*seal)(void *arg, int n, void *const *table, const size_t *bytes, struct err *e);
};
enum assembly_phase { ASSEMBLY_IDLE, ASSEMBLY_WRITING, ASSEMBLY_SEALING };

struct assembly {
    const struct assembly_ops *ops;
    void *arg;
    struct ranks *ranks;
    int on_thread;       /* phases run on a thread */
    struct board *board; /* borrowed; or NULL. With on_thread only */
    enum assembly_phase phase;
    void *table, *blobs; /* of this rank's files; of all ranks' (rank 0) */
    size_t table_bytes, *sizes;

    /* its phase */
    pthread_t thread;
    int has_thread;
    int rc; /* rc, err: how the phase ended */
    struct err err;
    _Atomic int running;
};

/* Borrows ranks, ops and arg. ERR_MEMORY. */
int assembly_open(struct assembly *a, struct ranks *ranks, int on_thread, const struct assembly_ops *ops,
                  void *arg, struct err *e);
/* Waits for the phase. Of a zeroed struct, too. */
void assembly_close(struct assembly *a);
/* Starts to write. Without a thread: writes. With a board all ranks have called board_clear, and met. */
void assembly_start(struct assembly *a);
/* *busy: the number of ranks whose phase has not ended. */
int assembly_is_busy(struct assembly *a, int64_t *busy, struct err *e);
/* Waits for the phase and starts the next one. 1: it was the last one, on all ranks. An error is that of all
 * ranks, and the files are left to the caller. */
int assembly_advance(struct assembly *a, struct err *e);
/* Waits until the phase has ended; returns how. Not collective. */
int assembly_wait(struct assembly *a, struct err *e);
/* Frees the tables; the phase is idle then. Not collective. */
void assembly_forget(struct assembly *a);

#endif
