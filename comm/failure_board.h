/* failure_board.h - what the ranks of one machine know of each other: who is there, since when silent, what
 * failed. It stands at the beginning of their common segment, so that a rank that cannot speak any more can
 * still be judged by the others. */
#ifndef SHARDLINE_COMM_FAILURE_BOARD_H
#define SHARDLINE_COMM_FAILURE_BOARD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

/* A number that ranks wait for. A line of its own, so that neighbours do not disturb the waiting. */
struct wait_counter {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t waiters;
};

enum failure_board_state { BOARD_ABSENT, BOARD_RUNNING, BOARD_CLOSING, BOARD_CLOSED };
/* WRITING: the text is not there yet */
enum failure_board_status { BOARD_HEALTHY, BOARD_WRITING, BOARD_FAILED };

enum { BOARD_GROUPS = 16 };
struct failure_board_rank {
    _Alignas(64) int world_rank;
    int pid;
    _Atomic int state;         /* enum failure_board_state */
    _Atomic int64_t beat_ns;   /* monotonic clock, last sign of life */
    _Atomic int64_t polled_ns; /* monotonic clock, when it last waited for its device (nccl_watch.c) */
    /* to operation n of a group on devices: 2 n - 1; gave it to its device: 2 n */
    _Atomic int64_t entered[BOARD_GROUPS];
};

struct failure_board {
    int n_ranks;
    _Atomic int failed;   /* enum failure_board_status */
    _Atomic int reported; /* somebody has printed (or prints now) the line that ends the job */
    _Atomic int stop_signal;
    _Atomic int64_t used_bytes; /* of the segment, by all ranks */
    int64_t limit_bytes;
    char text[1024]; /* of the failure; valid when failed == BOARD_FAILED */
    struct failure_board_rank rank[];
};

size_t failure_board_bytes(int n_ranks);
/* The first failure wins; later ones are ignored. Returns 1 when it was this one. */
int failure_board_fail(struct failure_board *b, const char *text);
/* 0, or -ERR_PEER with the text of the failure. */
int failure_board_check(struct failure_board *b, struct err *e);
/* 1 for the first who asks: that one prints. */
int failure_board_claim_report(struct failure_board *b);

/* Waits until w->value has reached target (numbers wrap). -ERR_PEER when the world fails meanwhile. spin:
 * ranks have a core each, so that a short wait may burn its own. */
int wait_counter_until(struct failure_board *b, struct wait_counter *w, uint32_t target, int spin,
                       struct err *e);
/* The same, for at most ns, without a look at the board: 1 when the target is reached. */
int wait_counter_for(struct wait_counter *w, uint32_t target, int64_t ns);
int wait_counter_reached(const struct wait_counter *w, uint32_t target);
/* Sets the number and wakes who waits for it. */
void wait_counter_set(struct wait_counter *w, uint32_t value);
void wait_counter_add(struct wait_counter *w, uint32_t n); /* of several writers */

#endif
