/* universal_write.h - a DeepSpeed universal checkpoint written: a folder for each parameter and a file for
 * each of its states, for any number of ranks.
 *
 *   latest_universal                 the tag
 *   global_stepN_universal/
 *     zero/NAME/                     fp32.pt, exp_avg.pt, exp_avg_sq.pt: {"param": tensor, "cat_dim": 0};
 *                                    step.pt
 *     zero/optimizer_state.pt        options of AdamW, the step
 *     mp_rank_00_model_states.pt     counters, shapes, weights in the working dtype, buffers
 *     zero_pp_rank_0_mp_rank_00_model_states.pt    the same, where an engine of stage 3 looks for it
 * It holds whole tensors. One process writes it: ckpt_begin makes the folder, ckpt_reveal publishes it.
 * Source: deepspeed/checkpoint/{ds_to_universal,universal_checkpoint}.py, runtime/engine.py of 0.19
 * (described, not copied). */
#ifndef SHARDLINE_FORMAT_UNIVERSAL_WRITE_H
#define SHARDLINE_FORMAT_UNIVERSAL_WRITE_H

#include "format/ckpt_write.h"

struct universal_write;
/* t: n tensors, sorted by role and name; t and state are borrowed until the end. ERR_USAGE: a tensor that the
 * format cannot hold. */
int universal_write_open(struct universal_write **out, const char *dir, int n, const struct ckpt_tensor *t,
                         const struct ckpt_state *state, struct err *e);
/* Writes the next n_elements of tensor i, in its row-major order. Different tensors may be written from
 * different threads. */
int universal_write_put(struct universal_write *w, int i, const void *data, int64_t n_elements,
                        struct err *e);
/* fsyncs and closes the files, writes config.json and the extra files of meta, fsyncs the folders. On error
 * the folder is removed. */
int universal_write_seal(struct universal_write *w, const struct ckpt_meta *meta, struct err *e);
/* Frees w; the folder stays. NULL is allowed. */
void universal_write_free(struct universal_write *w);

#endif
