/* pipeline.h - pipeline schedules as data: for every rank a list of actions, made by a generator, checked by
 * a verifier, drawn by
 * --dry-run, run by one executor (step.c). No MPI and no model here.
 *
 * A rank holds `chunks` parts of the model; virtual stage v = chunk * ranks + rank. All schedules run the
 * forwards, the backwards and the weight gradients of a chunk in increasing micro-batch order, as the
 * numerics contract asks. With F forward, B both halves of a backward (2 F), P ranks, M micro-batches, V
 * chunks:
 *
 *   naive         one micro-batch at a time                                       bubble (P-1)/P
 *   keeps 1
 *   gpipe         all forwards, then all backwards (Huang et al. 2019)            (P-1)/(M+P-1)
 *   M
 *   1f1b          a rank runs ahead by its distance from the end, then alternates (Narayanan et al. 2019)
 *   P - rank
 *   interleaved   1f1b over chunks (Narayanan et al. 2021); P divides M           (P-1)/(V M+P-1)
 *   more than 1f1b
 *   zero-bubble   1f1b, weight gradients by themselves, rank's micro-batches late: ZB-H1 (Qi et al. 2023)
 *   (P-1)/(3 M+P-1)    P */
#ifndef SHARDLINE_TRAIN_PIPELINE_PIPELINE_H
#define SHARDLINE_TRAIN_PIPELINE_PIPELINE_H

#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

enum pipe_kind { PIPE_GPIPE, PIPE_1F1B, PIPE_INTERLEAVED, PIPE_ZERO_BUBBLE, PIPE_NAIVE };
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
/* in_flight[chunk]: micro-batches between their forward and the end of their backward, at most: what memory
 * is needed for. late[chunk]: of them, between both halves of a backward. */
struct pipe_list {
    int64_t n, *in_flight, *late;
    struct pipe_act *act;
};

/* Why the schedule cannot be made (ERR_USAGE, says what to change), or 0. */
int pipe_check(const struct pipe_shape *s, struct err *e);
/* The list of one rank. ERR_MEMORY. */
int pipe_make(struct pipe_list *l, const struct pipe_shape *s, int rank, struct err *e);
void pipe_free(struct pipe_list *l);

/* on their way between two ranks at most, of one direction (comm_send) */
#define PIPE_MESSAGES 16
struct pipe_report {
    double bubble;
    int64_t in_flight;
}; /* share of idle time; the most of any rank, all chunks together */
/* Runs all ranks' lists against each other (a forward takes 1 / chunks, each half of a backward as much,
 * messages nothing): ERR_INTERNAL when one would wait for ever, takes a message that is not the next, runs a
 * micro-batch twice or out of order, or keeps more than it says. draw: a line a rank, a dot for a unit of
 * waiting; or NULL. */
int pipe_verify(const struct pipe_list *list, const struct pipe_shape *s, struct pipe_report *r, FILE *draw,
                struct err *e);

#endif
