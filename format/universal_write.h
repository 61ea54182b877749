/* universal_write.h - a DeepSpeed universal checkpoint written: a folder a parameter, a file a state,
 * whatever the ranks that will load it.
 *
 *   latest_universal                          the tag
 *   global_stepN_universal/zero/NAME/         fp32.pt, exp_avg.pt, exp_avg_sq.pt: {"param": tensor,
 *   "cat_dim": 0}; step.pt
 *   global_stepN_universal/zero/optimizer_state.pt             options of AdamW, the step
 *   global_stepN_universal/mp_rank_00_model_states.pt          counters, shapes, weights in the working
 *   dtype, buffers
 *   global_stepN_universal/zero_pp_rank_0_mp_rank_00_model_states.pt       the same, where an engine of
 *   stage 3 looks for it
 * Whole tensors, one process. The folder exists (ckpt_begin), ckpt_reveal publishes it.
 * Source: deepspeed/checkpoint/{ds_to_universal,universal_checkpoint}.py, runtime/engine.py of 0.19
 * (described, not copied). */
#ifndef SHARDLINE_FORMAT_UNIVERSAL_WRITE_H
#define SHARDLINE_FORMAT_UNIVERSAL_WRITE_H

#include "format/ckpt_write.h"

struct universal_write;
/* t: sorted by role and name; names, and state, are borrowed until the end. ERR_USAGE: a tensor that the
 * format cannot hold. */
int universal_write_open(struct universal_write **out, const char *dir, int n, const struct ckpt_tensor *t,
                         const struct ckpt_state *state, struct err *e);
/* The next n_elements of tensor i, in its row-major order. Different tensors from different threads. */
int universal_write_put(struct universal_write *w, int i, const void *data, int64_t n_elements,
                        struct err *e);
/* fsync and close, the files beside tensors (meta: config_json and the extra ones), fsync of the folders. On
 * error the folder is removed. */
int universal_write_seal(struct universal_write *w, const struct ckpt_meta *meta, struct err *e);
void universal_write_free(struct universal_write *w); /* NULL is fine; the folder stays */

#endif
