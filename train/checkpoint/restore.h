/* restore.h - where a run starts: a checkpoint of any layout (--resume: all of it, --init: its weights), or
 * initial values. */
#ifndef SHARDLINE_TRAIN_CHECKPOINT_RESTORE_H
#define SHARDLINE_TRAIN_CHECKPOINT_RESTORE_H

#include "train/ranks.h"
#include "train/run.h"
#include "train/work.h"

/* N of "step-N"; -1: another name. */
int64_t checkpoint_step(const char *name);
/* Opens the checkpoint of --resume or --init as r->source, and takes the model's config from it. --resume
 * auto: rank 0 looks for the newest whole one; where --out has none the option is dropped. Collective. */
int restore_find(struct run *r, const struct ranks *ranks, struct log *term, struct err *e);
/* Checks that all ranks have opened the same version of c, which may change at its URL. Collective.
 * ERR_CONFIG. */
int restore_same_version(const struct ckpt *c, const struct ranks *ranks, struct err *e);
/* Fills weights, masters and moments from the source, or with initial values, and sets w->at. Collective. */
int restore_load(struct work *w, struct err *e);
/* A model_read: box b of parameter p from the source, in dtype dt. ctx: struct work. */
int restore_read_param(void *ctx, const struct param *p, const struct box *b, struct ring *ring, void *dst,
                       enum dtype dt, struct err *e);
/* The same for a parameter of the adapter, from run->lora.peft. */
int restore_read_adapter(void *ctx, const struct param *p, const struct box *b, struct ring *ring, void *dst,
                         enum dtype dt, struct err *e);
/* Reports what a resumed checkpoint of another framework held, and what of its run goes on. */
void restore_report(const struct ckpt *source, struct log *term);

#endif
