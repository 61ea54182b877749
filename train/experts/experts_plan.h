/* experts_plan.h - what a layout does with the experts of a mixture: memory of a layer's experts on a rank,
 * and how many experts a number of tokens chooses. Nothing is started. */
#ifndef SHARDLINE_TRAIN_EXPERTS_EXPERTS_PLAN_H
#define SHARDLINE_TRAIN_EXPERTS_EXPERTS_PLAN_H

#include <stdio.h>
#include "model/model.h"

struct experts_plan {
    int n_experts, k; /* of a layer, of a token; n_experts 0: the model has none, nothing below counts */
    int64_t n_layers, n_all; /* layers with experts, all layers */
    int local; /* experts of a layer that a rank computes a part of, or whole: the most of any rank */
    int whole; /* they are whole (--ep), not cut by tp */
    double weights, optim;   /* bytes of one layer's experts on such a rank: weights; masters and moments */
    int64_t tokens;          /* of a micro-step of an expert group */
    struct expert_room room; /* of such a rank, a layer and round; rows 0: ep is 1 */
    int cut;                 /* sequences are cut into leaves: room.n_seq is one of these */
};

/* Different experts of a layer that `tokens` tokens choose, where every choice is as likely:
 * E (1 - (1 - k / E)^tokens). */
double experts_distinct(int n_experts, int k, double tokens);
/* m: the model of a rank, shaped; s: its micro-batches. Does nothing where the rank's stage has no
 * experts. */
void experts_plan_add(struct experts_plan *x, const struct model *m, const struct work_shape *s);
void experts_plan_print(const struct experts_plan *x, FILE *out);

#endif
