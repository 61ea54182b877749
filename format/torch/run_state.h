/* run_state.h - private to room format: the state of a run in the checkpoints of other frameworks.
 *
 * Those formats have no place for the data position, the seed and the settings of a run. They are stored
 * as one text, an object of the state_dict named RUN_STATE_KEY, as in a native manifest (FORMAT.md). Other
 * readers ignore it. */
#ifndef SHARDLINE_FORMAT_TORCH_RUN_STATE_H
#define SHARDLINE_FORMAT_TORCH_RUN_STATE_H

#include "format/fmt.h"
#include "format/torch/pickle.h"

#define RUN_STATE_KEY "shardline_state"
/* The state of a run as JSON text, malloc'd; NULL: *e is set. */
char *run_state_text(const struct ckpt_state *s, struct err *e);
/* Fills c->state from such a text (NULL: does nothing). ERR_FORMAT: its step differs from c->state.step,
 * if that is known. */
int run_state_read(struct ckpt *c, const struct pk *text, struct err *e);

struct adamw {
    double lr, beta1, beta2, eps, weight_decay, clip;
};
/* Reads AdamW's settings from the settings of the run. Returns 0: some of them are not known. */
int run_adamw(const struct ckpt_state *s, struct adamw *out);

#endif
