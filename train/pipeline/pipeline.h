/* pipeline.h - pipeline schedules as data: for every rank a list of actions, made by a generator, checked by
 * a verifier, drawn by --dry-run, run by one executor (train/step.c). No MPI and no model here.
 *
 * A rank holds `chunks` parts of the model; virtual stage v = chunk * ranks + rank. All schedules run the
 * forwards, the backwards and the weight gradients of a chunk in increasing micro-batch order, as the
 * numerics contract asks. With F forward, B both halves of a backward (2 F), P ranks, M micro-batches, V
 * chunks:
 *
 *   schedule      bubble            keeps            what
 *   naive         (P-1)/P           1                one micro-batch at a time
 *   gpipe         (P-1)/(M+P-1)     M                all forwards, then all backwards (Huang et al. 2019)
 *   1f1b          (P-1)/(M+P-1)     P - rank         a rank runs ahead by its distance from the end, then
 *                                                    alternates (Narayanan et al. 2019)
 *   interleaved   (P-1)/(V M+P-1)   more than 1f1b   1f1b over chunks (Narayanan et al. 2021); P divides M
 *   zero-bubble   (P-1)/(3 M+P-1)   P                1f1b with separate weight gradients, deferred by `rank`
 *                                                    micro-batches: ZB-H1 (Qi et al. 2023) */
#ifndef SHARDLINE_TRAIN_PIPELINE_PIPELINE_H
#define SHARDLINE_TRAIN_PIPELINE_PIPELINE_H

#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

enum pipe_kind { PIPE_GPIPE, PIPE_1F1B, PIPE_INTERLEAVED, PIPE_ZERO_BUBBLE, PIPE_NAIVE };
/* X: activations, DX: their gradients. PIPE_BACKWARD is both halves of a backward; PIPE_BACKWARD_INPUT is
 * the first, PIPE_BACKWARD_WEIGHT the second. */
enum pipe_op {
    PIPE_RECV_X,
    PIPE_FORWARD,
    PIPE_SEND_X,
    PIPE_RECV_DX,
    PIPE_BACKWARD,
    PIPE_BACKWARD_INPUT,
    PIPE_SEND_DX,
    PIPE_BACKWARD_WEIGHT
};
struct pipe_act {
    enum pipe_op op;
    int chunk;
    int64_t micro;
};
struct pipe_shape {
    enum pipe_kind kind;
    int ranks, chunks;
    int64_t micros;
};
/* The actions of one rank, and how much memory they need, by chunk. */
struct pipe_list {
    int64_t n;
    int64_t *in_flight; /* [chunks]: most micro-batches between their forward and the end of their backward */
    int64_t *deferred;  /* [chunks]: most of them between both halves of a backward */
    struct pipe_act *act;
};

/* Whether the schedule can be made. ERR_USAGE says what to change. */
int pipe_check(const struct pipe_shape *s, struct err *e);
/* Makes the list of one rank. ERR_MEMORY. */
int pipe_make(struct pipe_list *l, const struct pipe_shape *s, int rank, struct err *e);
void pipe_free(struct pipe_list *l);

/* Most messages on their way between two ranks in one direction (comm_send). */
#define PIPE_MESSAGES 16
struct pipe_report {
    double bubble;     /* share of idle time */
    int64_t in_flight; /* most micro-batches that any rank keeps, all chunks together */
};
/* Runs all ranks' lists against each other. A forward takes 1 / chunks, each half of a backward as much,
 * messages nothing. ERR_INTERNAL: a rank would wait for ever, receives a message that is not the next,
 * runs a micro-batch twice or out of order, or keeps more than its list says. draw: NULL, or where to
 * print a line a rank, with a dot for a unit of waiting. */
int pipe_verify(const struct pipe_list *list, const struct pipe_shape *s, struct pipe_report *r, FILE *draw,
                struct err *e);

#endif
