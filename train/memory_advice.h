/* memory_advice.h - layouts that need less memory than the one that was asked for. */
#ifndef SHARDLINE_TRAIN_MEMORY_ADVICE_H
#define SHARDLINE_TRAIN_MEMORY_ADVICE_H

#include "train/layout_plan.h"

struct memory_advice {
    int ranks_a_place; /* ranks of the run that share the memory of its fullest machine or GPU */
    double free_bytes; /* of the place */
    double rank_bytes; /* what a rank needs besides the plan */
    const char *place; /* "machine" or "GPU" */
    int is_gpu;
};

enum { MEMORY_ADVICE_TEXT = 400 };
/* Writes what would fit, in words that follow a colon: "use --zero 2 --recompute full", or how many
 * machines like this one hold the run and with which options, and whether the same ranks do with
 * --offload DIR. First the ranks stay and ZeRO, recomputation, micro-batch and dtype change, as little as
 * possible; then the number of machines doubles. The model, the global batch and the length of a sequence
 * stay. */
void memory_advice_text(const struct layout_spec *asked, const struct memory_advice *a,
                        char out[MEMORY_ADVICE_TEXT]);

#endif
