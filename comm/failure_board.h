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
struct word {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t waiters;
};

enum board_state { BOARD_ABSENT, BOARD_RUNNING, BOARD_CLOSING, BOARD_CLOSED };
/* WRITING: the text is not there yet */
enum board_failure { BOARD_WELL, BOARD_WRITING, BOARD_FAILED };

enum { BOARD_GROUPS = 16 };
struct board_rank {
    _Alignas(64) int world_rank;
    int pid;
    _Atomic int state;         /* enum board_state */
    _Atomic int64_t beat_ns;   /* monotonic clock, last sign of life */
    _Atomic int64_t looked_ns; /* monotonic clock, when it last waited for its device (nccl_watch.c) */
    /* to operation n of a group on devices: 2 n - 1; gave it to its device: 2 n */
    _Atomic int64_t came[BOARD_GROUPS];
};

struct board {
    int n_ranks;
    _Atomic int failed; /* enum board_failure */
    _Atomic int spoken; /* somebody has printed (or prints now) the line that ends the job */
    _Atomic int stop_signal;
    _Atomic int64_t used_bytes; /* of the segment, by all ranks */
    int64_t limit_bytes;
    char text[1024]; /* of the failure; valid when failed == BOARD_FAILED */
    struct board_rank rank[];
};

size_t board_bytes(int n_ranks);
/* The first failure wins; later ones are ignored. Returns 1 when it was this one. */
int board_fail(struct board *b, const char *text);
/* 0, or -ERR_PEER with the text of the failure. */
int board_check(struct board *b, struct err *e);
/* 1 for the first who asks: that one prints. */
int board_speak(struct board *b);

/* Waits until w->value has reached target (numbers wrap). -ERR_PEER when the world fails meanwhile. spin:
 * ranks have a core each, so that a short wait may burn its own. */
int word_wait(struct board *b, struct word *w, uint32_t target, int spin, struct err *e);
/* The same, for at most ns, without a look at the board: 1 when the target is reached. */
int word_nap(struct word *w, uint32_t target, int64_t ns);
int word_reached(const struct word *w, uint32_t target);
/* Sets the number and wakes who waits for it. */
void word_set(struct word *w, uint32_t value);
void word_add(struct word *w, uint32_t n); /* of several writers */

#endif
