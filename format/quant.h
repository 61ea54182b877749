/* quant.h - the quantised weights of a checkpoint: which stored tensors hold a weight, and how they lie.
 *
 * A *weight* is what a model computes with: X.weight [N, K], or the fused experts X [E, N, K]. N counts
 * outputs, K is what a product sums over. Its *stored tensors* are codes and what turns codes into values:
 *
 *     FP8        X.weight F8 [N, K], X.weight_scale_inv | .weight_scale | .scale: a block, a row or all of it
 *     FP4        X.weight_packed | X.weight U8 [N, K/2] (low nibble first), X.weight_scale [N, K/16 or K/32]
 *                gpt-oss: X_blocks U8 [E, N, K/32, 16], X_scales U8 [E, N, K/32]; the weight is X [E, K, N]
 *     INT8       X.weight I8 [N, K], X.weight_scale, maybe X.weight_zero_point
 *     PACKED     X.weight_packed I32 [N, ceil(K bits / 32)], X.weight_scale, X.weight_shape I64 [2], maybe
 *                X.weight_zero_point (packed along N), X.weight_g_idx [K]
 *     GPTQ       X.qweight I32 [K bits/32, N], X.scales [G, N], X.qzeros I32 [G, N bits/32], X.g_idx I32 [K]
 *     AWQ        X.qweight I32 [K, N/8], X.scales [G, N], X.qzeros I32 [G, N/8]
 *
 * The list of weights is made of names, shapes, dtypes and the configuration alone; quant_settle() reads what
 * only contents tell. Cutting and decoding read the same list.
 * Sources: compressed_tensors 0.19, transformers 5.17 (integrations of finegrained_fp8, mxfp4), GPTQModel,
 * AutoGPTQ (qlinear_cuda), AutoAWQ (packing_utils). */
#ifndef SHARDLINE_FORMAT_QUANT_H
#define SHARDLINE_FORMAT_QUANT_H

#include <jansson.h>
#include "base/err.h"
#include "format/ckpt_tensor.h"

struct ckpt;

/* Small files of a checkpoint that describe its quantisation, beside config.json. */
#define QUANT_GPTQ_FILE "quantize_config.json"
#define QUANT_MODELOPT_FILE "hf_quant_config.json"

enum quant_form {
    QUANT_FP8,    /* codes F8_E4M3 or F8_E5M2: value = code * scale */
    QUANT_FP4,    /* codes E2M1, two a byte: value = code * scale, then the global scale */
    QUANT_INT8,   /* codes I8: value = (code - zero) * scale */
    QUANT_PACKED, /* codes of `bits` bits, dense in I32 along K, low bits first, stored + 2^(bits-1) */
    QUANT_GPTQ,   /* codes of `bits` bits, dense in I32 along K, low bits first: (code - zero) * scale */
    QUANT_AWQ,    /* codes of 4 bits in I32 along N, in the order 0 2 4 6 1 3 5 7 from the low bits on */
    QUANT_FORMS
};
/* What a scale is. */
enum quant_scale_kind {
    QUANT_SCALE_FLOAT, /* F32, BF16, F16: the number */
    QUANT_SCALE_E8M0,  /* a byte e, as U8 or F8_E8M0: 2^(e - 127) */
    QUANT_SCALE_E4M3   /* F8_E4M3 */
};
enum quant_global {
    QUANT_GLOBAL_NONE,
    QUANT_GLOBAL_TIMES,  /* value * global (ModelOpt's weight_scale_2) */
    QUANT_GLOBAL_DIVIDES /* value / global (compressed-tensors' weight_global_scale) */
};
struct quant_scheme {
    enum quant_form form;
    int bits; /* of a code */
    /* Values of N and of K under one scale; the last block may be short. 0: all of that dim */
    int64_t block_n, block_k;
    enum quant_scale_kind scale;
    enum quant_global global;
    int has_zeros;     /* zero points are stored */
    int zero_less_one; /* GPTQ v1: the stored zero point is the zero point - 1 */
    int symmetric;     /* GPTQ: the configuration says so (every zero point is 2^(bits-1)) */
    int act_order;     /* the scale of column k is number g_idx[k], and not k / block_k */
};

enum quant_role {
    QUANT_CODES,
    QUANT_SCALE,
    QUANT_ZERO,
    QUANT_G_IDX,        /* I32 [K]: the group of each column */
    QUANT_GLOBAL_SCALE, /* one number, or one an expert */
    QUANT_SHAPE,        /* I64 [2]: N and K of the whole weight, also in a piece of it */
    QUANT_INPUT,        /* scales of activations: no part of the value */
    QUANT_ROLES
};
/* How a dim of the weight lies in a stored tensor: `values` values take `indices` indices of `dim`, so value
 * v begins in index v * indices / values, rounded down. */
struct quant_axis {
    int16_t
        dim; /* -1: the stored tensor does not depend on it, or every part of the weight needs all of it */
    int16_t indices;
    int32_t values;
};
#define QUANT_DIMS 4 /* of a weight, at most */
struct quant_stored {
    enum quant_role role;
    int tensor;                         /* index in the list of tensors */
    struct quant_axis axis[QUANT_DIMS]; /* of every dim of the weight */
};
#define QUANT_STORED_MAX 8
struct quant_weight {
    char *name; /* X.weight, or X of fused experts */
    int n_dims;
    int64_t shape[BOX_DIMS];
    int dim_n, dim_k; /* which dims are N and K; a dim before both counts experts */
    /* K is known up to the padding of the last packed word: quant_settle() reads X.weight_shape. */
    int k_at_most;
    struct quant_scheme scheme;
    int n_stored;
    struct quant_stored stored[QUANT_STORED_MAX]; /* the codes first */
};
struct quant_list {
    int n, n_tensors;
    struct quant_weight *weight; /* sorted by name */
    int *weight_of;              /* [n_tensors]: the weight that a tensor stores a part of, or -1 */
    char method[64];             /* quant_method of the configuration; "": none */
    int is_known;                /* 0: the configuration names a method that is not one of those above */
    int unscaled;                /* a tensor of codes without scales, or -1 */
};

/* Texts that describe the quantisation; each may be NULL. config: config.json (quantization_config at the top
 * or in text_config). gptq: quantize_config.json of old GPTQ files. modelopt: hf_quant_config.json. */
struct quant_texts {
    const char *config, *gptq, *modelopt;
};
/* The quantised weights among n tensors of role weight. Under an unknown quant_method (is_known 0) the list
 * has those whose shapes fit one of the forms above: they can be cut. ERR_FORMAT: a tensor with a wrong shape
 * or dtype, with both. quant_close() frees the list, after an error too. */
int quant_open(struct quant_list *q, const struct quant_texts *texts, const struct ckpt_tensor *const *t,
               int n, struct err *e);
/* The same for the weights of a checkpoint: `tensor` is their number there. Reads its small files. */
int quant_open_ckpt(struct quant_list *q, struct ckpt *c, struct err *e);
/* The same with another text of config.json (NULL: none). */
int quant_open_as(struct quant_list *q, struct ckpt *c, const char *config, struct err *e);
/* Corrects a list of quant_open_ckpt() by contents: K from X.weight_shape where packing hides it, GPTQ's v1
 * or v2 from the zero points of symmetric weights, act-order from g_idx. */
int quant_settle(struct quant_list *q, struct ckpt *c, struct err *e);
/* The first of these alone: for cutting. */
int quant_settle_shapes(struct quant_list *q, struct ckpt *c, struct err *e);
/* Why values cannot be computed (ERR_CONFIG: an unknown quant_method, ERR_FORMAT: codes without scales), or
 * 0. c: the checkpoint of quant_open_ckpt(). */
int quant_check_values(const struct quant_list *q, const struct ckpt *c, struct err *e);
void quant_close(struct quant_list *q); /* a zeroed one is fine */

/* Gives the lists of modules in the quantization_config of a config.json (modules_to_not_convert, ignore, …)
 * the names that the experts have in the target: fused 1: two tensors a layer, where the list has all experts
 * of a layer; 0: one an expert. Names of other families stay. */
int quant_names_follow(json_t *config, int fused, struct err *e);

/* The weight of that name, or -1. */
int quant_find(const struct quant_list *q, const char *name);
/* The stored tensor of that role, or NULL. */
const struct quant_stored *quant_part(const struct quant_weight *w, enum quant_role role);
/* The part of a stored tensor, of shape [n_dims], that box b of its weight needs. */
struct box quant_box(const struct quant_weight *w, const struct quant_stored *s, int n_dims,
                     const int64_t *shape, const struct box *b);

/* ---- codes and scales one by one (quant/quant_codes.c), for programs that compute with them as they are
 * stored. A value is (code - zero) * scale, without rounding; codes of floating-point forms have no zero. */

enum quant_code { QUANT_CODE_S8, QUANT_CODE_U4, QUANT_CODE_E4M3, QUANT_CODE_E2M1 };
enum quant_code_scale { QUANT_SCALED_F32, QUANT_SCALED_BF16, QUANT_SCALED_F16, QUANT_SCALED_E8M0 };

/* What all parts of a weight have in common. */
struct quant_code_form {
    enum quant_code code;
    enum quant_code_scale scale; /* the type that holds every scale */
    int has_zeros;
    int64_t group;    /* elements of the contraction under a scale; 0: all */
    int dim_n, dim_k; /* which dims of the weight count outputs and elements of the contraction */
    int n_dims;
};
/* Outputs n0 .. n1 - 1 and elements k0 .. k1 - 1 of the contraction, of expert e (0 where there are none). */
struct quant_piece {
    int64_t e, n0, n1, k0, k1;
};
struct quant_codes {
    int64_t n_groups; /* that the elements k0 .. k1 - 1 have a part of */
    uint8_t *code;    /* [n][k], one a byte: int8, 0..15, or the float's bits */
    float *scale;     /* [n][n_groups] */
    int16_t *zero;    /* the same, in the numbers of the codes; NULL: none */
};

struct quant_source;
/* The quantised weights of c, a checkpoint that shows codes (borrowed). ERR_MEMORY, and as quant_open_ckpt
 * and quant_settle. */
int quant_source_open(struct quant_source **out, struct ckpt *c, struct err *e);
void quant_source_close(struct quant_source *s); /* NULL is allowed */
/* 1: the weight of this name has codes of a form that can be computed with, filled into f. 0: it has not. */
int quant_source_form(const struct quant_source *s, const char *name, struct quant_code_form *f);
/* Reads a piece of it; codes_free frees it, after an error too. Any thread, one at a time. */
int quant_source_read(struct quant_source *s, const char *name, const struct quant_piece *p,
                      struct quant_codes *out, struct err *e);
void quant_codes_free(struct quant_codes *x); /* a zeroed one is fine */

#endif
