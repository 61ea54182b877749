/* failure_board.h - what the ranks of one machine know of each other: which are alive, when each last gave a
 * sign of life, which failure ended the world. The board is the beginning of their shared segment, so other
 * ranks can judge a rank that no longer runs. Any thread of any rank may call these functions. */
#ifndef SHARDLINE_COMM_FAILURE_BOARD_H
#define SHARDLINE_COMM_FAILURE_BOARD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

enum failure_board_state { BOARD_ABSENT, BOARD_RUNNING, BOARD_CLOSING, BOARD_CLOSED };

/* BOARD_WRITING: the world has failed, its text is not complete yet. */
enum failure_board_status { BOARD_HEALTHY, BOARD_WRITING, BOARD_FAILED };

/* Groups on devices whose operations are followed on the board. */
enum { BOARD_GROUPS = 16 };

struct failure_board_rank {
    _Alignas(64) int world_rank;
    int pid;
    _Atomic int state;         /* enum failure_board_state */
    _Atomic int64_t beat_ns;   /* clock_ns of its last heartbeat */
    _Atomic int64_t polled_ns; /* clock_ns of its last look at its device while it waited (nccl_watch.c) */
    /* Its progress in every group on devices: 2 n - 1 when it has entered operation n, 2 n when its device
     * has the operation. */
    _Atomic int64_t entered[BOARD_GROUPS];
};

struct failure_board {
    int n_ranks;
    _Atomic int failed;   /* enum failure_board_status */
    _Atomic int reported; /* some rank prints the line that ends the job */
    _Atomic int stop_signal;
    _Atomic int64_t used_bytes; /* of the segment, by all ranks */
    int64_t limit_bytes;
    char text[1024]; /* of the failure; valid when failed == BOARD_FAILED */
    struct failure_board_rank rank[];
};

/* Size of a board. */
size_t failure_board_bytes(int n_ranks);

/* Writes a failure on the board. The first one counts: returns 1 when it was this one. */
int failure_board_fail(struct failure_board *b, const char *text);

/* 0, or -ERR_PEER with the text of the failure. */
int failure_board_check(struct failure_board *b, struct err *e);

/* 1 for the first caller, which prints the error; the job's launcher is told that. */
int failure_board_claim_report(struct failure_board *b);

#endif
