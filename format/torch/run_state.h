/* run_state.h - private to the room: what a checkpoint holds beside tensors, in the files of other
 * frameworks.
 *
 * Those have no place for the data position, the seed and the settings of a run; they stand in them as one
 * text, an object of the state_dict named RUN_STATE_KEY, as in a native manifest (FORMAT.md). Who does not
 * know it leaves it alone. */
#ifndef SHARDLINE_FORMAT_TORCH_RUN_STATE_H
#define SHARDLINE_FORMAT_TORCH_RUN_STATE_H

#include "format/fmt.h"
#include "format/torch/pickle.h"

#define RUN_STATE_KEY "shardline_state"
char *run_state_text(const struct ckpt_state *s, struct err *e); /* malloc'd; NULL: error set */
/* Fills c->state from the text, when there is one; c->state.step, when known, must agree. */
int run_state_read(struct ckpt *c, const struct pk *text, struct err *e);

/* Out of the settings of the run. 0: some of them are not known. */
struct adamw {
    double lr, beta1, beta2, eps, weight_decay, clip;
};
int run_adamw(const struct ckpt_state *s, struct adamw *out);

#endif
