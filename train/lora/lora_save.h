/* lora_save.h - the weights of an adapter on their way into a checkpoint: whole tensors in the one file that
 * PEFT reads, whatever the layout, written by the first rank of all. Masters and moments are written by every
 * rank, as those of any run. */
#ifndef SHARDLINE_TRAIN_LORA_LORA_SAVE_H
#define SHARDLINE_TRAIN_LORA_LORA_SAVE_H

#include "train/checkpoint/pieces.h"
#include "train/work.h"

struct lora_save {
    const struct work *w;
    struct pieces mine; /* this rank's pieces of weights */
    size_t bytes;       /* of them */
    char *sent, *whole; /* memory for them; of the first rank: for all weights */
};
/* *p: what this rank writes. Both zeroed before, closed also after an error. */
int lora_save_open(struct lora_save *s, struct pieces *p, const struct work *w, struct err *e);
void lora_save_close(struct lora_save *s);
/* Brings the weights as they are now to the first rank. Collective; no save is being written. */
int lora_save_gather(struct lora_save *s, struct err *e);
/* Bytes of memory that the first rank takes; trained: from a shaped model. */
double lora_save_measure(const struct model *trained);

#endif
