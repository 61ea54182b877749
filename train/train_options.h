/* train_options.h - ptrain's options: one table (train_options.c), one struct. */
#ifndef SHARDLINE_TRAIN_TRAIN_OPTIONS_H
#define SHARDLINE_TRAIN_TRAIN_OPTIONS_H

#include <stdint.h>
#include "base/opt.h"

enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_WSD, SCHEDULE_CONSTANT };
enum { NUMERICS_EXACT, NUMERICS_FAST };
enum { OVERLAP_ON, OVERLAP_OFF };
enum { BALANCE_NONE, BALANCE_SEQUENCE, BALANCE_GLOBAL, BALANCE_BIAS };
enum { SAVE_ERROR_CONTINUE, SAVE_ERROR_STOP };

struct train_opts {
    int64_t ranks, ranks_per_node, rank_timeout_s;
    /* layout */
    int64_t tp, pp, cp, ep, zero;
    int sp, pipeline, overlap;
    int64_t virtual_stages;
    const char *transport;
    /* model */
    const char *model, *init, *lora, *lora_init;
    int64_t seed, grain, expert_leaf, cp_grain, vocab_size;
    /* data */
    struct opt_list data, eval_data;
    struct opt_list loss_weights;
    const char *tokenizer, *data_order, *data_mix, *chat_template;
    int chat_turns;
    int64_t loss_divisor;
    int64_t eval_every, eval_batches, sample_every;
    /* batch */
    int64_t seq_len, global_batch, micro_batch, documents;
    /* optimizer */
    double lr, min_lr, beta1, beta2, eps, weight_decay, clip;
    int64_t warmup;
    int schedule;
    /* numbers */
    int dtype, numerics, recompute, balance;
    double balance_rate, z_loss, expert_buffer;
    const char *offload;
    int offload_grads, offload_params, offload_activations;
    /* run */
    const char *publish, *publish_key_file;
    const char *layout_file;
    int64_t memory_every;
    int any_bits;
    const char *out, *resume, *config, *log, *trace, *device, *eval_logprobs, *simulate;
    int64_t steps, stop_after, save_every, keep, restarts, threads, publish_every;
    int publish_copy;
    int save_async, on_save_error, dry_run, eval_only, force;
};
enum { GIVEN_MAX = 96 }; /* rows of the table, at most */

extern const struct opt_program ptrain_program;
/* Whether the command line named this option. given: as opt_parse() filled it. */
int opts_given(const unsigned char *given, const char *name);
/* Whether this run overlaps: as --overlap says. By default not where several machines have several dp
 * ranks each (sharers: dp ranks of a machine), because blocking sums, inside a machine first, send less. */
int opts_overlap(const struct train_opts *o, const unsigned char *given, int dp, int sharers);
/* Whether a checkpoint keeps the option. */
int opts_stored(const char *name);

#endif
