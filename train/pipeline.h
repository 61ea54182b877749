/* pipeline.h - pipeline schedules as data: for every stage a list of actions, made by a generator, checked by a verifier, printed
 * by --dry-run, run by one executor (step.c). No MPI and no model here.
 *
 * GPipe (Huang et al. 2019): all forwards, then all backwards. 1F1B (Narayanan et al. 2019, 2021): a stage runs ahead by its distance
 * from the end, then alternates; the bubble is the same, (P-1)/(M+P-1), the memory is P micro-batches instead of M. Every schedule runs
 * backwards in increasing micro-batch order, as the numerics contract asks. */
#ifndef SHARDLINE_TRAIN_PIPELINE_H
#define SHARDLINE_TRAIN_PIPELINE_H

#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

enum pipe_kind { PIPE_GPIPE, PIPE_1F1B, PIPE_KINDS };
enum pipe_op { PIPE_RECV_X, PIPE_FORWARD, PIPE_SEND_X, PIPE_RECV_DX, PIPE_BACKWARD, PIPE_SEND_DX };
struct pipe_act { enum pipe_op op; int64_t micro; };
struct pipe_list { int64_t n, in_flight; struct pipe_act *act; };    /* in_flight: micro-batches kept at once at most */

/* The list of one stage. ERR_MEMORY. */
int pipe_make(struct pipe_list *l, enum pipe_kind kind, int stages, int stage, int64_t micros, struct err *e);
void pipe_free(struct pipe_list *l);

struct pipe_report { double bubble; int64_t in_flight; };            /* share of idle time of a stage; the most of any stage */
/* Runs all stages' lists against each other (a forward takes 1, a backward 2, messages nothing): ERR_INTERNAL when one would wait for
 * ever, runs a micro-batch twice or backwards out of order, or keeps more than it says. draw: one line a stage, or NULL. */
int pipe_verify(const struct pipe_list *stage, int stages, int64_t micros, struct pipe_report *r, FILE *draw, struct err *e);

#endif
