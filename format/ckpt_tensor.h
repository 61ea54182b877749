/* ckpt_tensor.h - what readers and writers of checkpoints both talk about: a logical tensor, its role and
 * digest, the state of a run, the layout of the ranks that wrote it. */
#ifndef SHARDLINE_FORMAT_CKPT_TENSOR_H
#define SHARDLINE_FORMAT_CKPT_TENSOR_H

#include <stdint.h>
#include <string.h>
#include "base/box.h"
#include "format/stored_dtype.h"

enum ckpt_role { ROLE_WEIGHT, ROLE_MASTER, ROLE_EXP_AVG, ROLE_EXP_AVG_SQ, ROLE_COUNT };
extern const char *const ckpt_role_prefix[ROLE_COUNT]; /* "", "master.", "exp_avg.", "exp_avg_sq." */

/* 128 bits; digests of the parts of a tensor, whatever their shape, add up to that of the whole (FORMAT.md,
 * "Digests"). */
struct ckpt_digest {
    uint64_t lo, hi;
};

struct ckpt_tensor {
    const char *name; /* Hugging Face name, without the role's prefix */
    enum ckpt_role role;
    enum stored_dtype dtype;
    int n_dims;    /* a scalar is read as [1] with n_dims 1 */
    int is_scalar; /* the source has it without dims, and so has a target that can say it */
    int64_t shape[BOX_DIMS];
    /* Where the source has more than BOX_DIMS dims: those that the last dim of shape stands for, as "2,1,3".
     * NULL: it is a dim itself. Borrowed from the checkpoint. */
    const char *tail;
    struct ckpt_digest digest; /* valid when has_digest */
    int has_digest;
};

/* Degrees of the mesh. vpp: virtual stages of a pipeline rank; 0 means 1. */
struct ckpt_layout {
    int tp, pp, cp, dp, ep, zero, vpp;
};

/* How many rows chose each expert in the last step: [n_layers][n_experts], 0 in layers without experts. count
 * NULL: the run keeps none. */
struct ckpt_counts {
    int64_t n_layers, n_experts;
    const int64_t *count;
};

/* What a run needs to go on besides its tensors. */
struct ckpt_state {
    int has_state; /* 0: no optimizer state, the rest is not valid */
    int64_t step;  /* finished updates */
    uint64_t seed;
    int64_t epoch, sample; /* data position: the next sample to read */
    int grain;             /* GRAIN of the sums (numerics contract); 0: not stored, use the formula */
    /* Orders that the model does not fix. S of experts: sequences a leaf of their weight gradients; 0: 1 */
    int expert_leaf;
    int cp_grain; /* C: leaves of a sequence; 0: 1 */
    const char
        *run_json; /* settings that a resumed run needs (schedule, data order, …), a JSON object; or NULL */
    struct ckpt_counts counts;
};

/* Whether both have these dims. */
static inline int ckpt_shape_same(const struct ckpt_tensor *a, const struct ckpt_tensor *b)
{
    return a->n_dims == b->n_dims && !memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->n_dims) &&
           !strcmp(a->tail ? a->tail : "", b->tail ? b->tail : "");
}

static inline int ckpt_counts_same(const struct ckpt_counts *a, const struct ckpt_counts *b)
{
    size_t n = (size_t)(a->n_layers * a->n_experts);
    if (!a->count || !b->count)
        return !a->count && !b->count;
    return a->n_layers == b->n_layers && a->n_experts == b->n_experts &&
           !memcmp(a->count, b->count, n * sizeof *a->count);
}

#endif
