/* peft.h - adapters of PEFT (LoRA): which modules of a model they change, their ranks and scales. Knows
 * nothing of layouts; the data are read with ckpt_read.
 *
 *     adapter_config.json            r, lora_alpha, use_rslora, rank_pattern, alpha_pattern, ...
 *     adapter_model.safetensors      base_model.model.X.lora_A.weight [r, in], ...lora_B.weight [out, r]
 *     (or adapter_model.bin)         base_model.model.X.lora_embedding_A [r, rows], ..._B [columns, r]
 *                                    base_model.model.X.weight: a tensor that was trained as a whole
 *
 * Experts of a layer in one tensor (target_parameters): A [E r, in] with the expert slowest, B [out, r E]
 * with the expert fastest; the wrapper of the first parameter of a module lies in `base_layer` of the next
 * one's. Which modules an adapter changes is what its tensors say: target_modules, layers_to_transform and
 * the like are not read. Source: the layers Linear, Embedding and ParamWrapper of peft 0.21, and its
 * get_peft_model_state_dict. */
#ifndef SHARDLINE_FORMAT_PEFT_H
#define SHARDLINE_FORMAT_PEFT_H

#include <jansson.h>
#include "format/ckpt.h"

#define PEFT_CONFIG "adapter_config.json"
#define PEFT_TENSORS "adapter_model.safetensors"
#define PEFT_BIN "adapter_model.bin"
#define PEFT_PREFIX "base_model.model."

/* How PEFT takes the matrices of experts in one tensor. */
enum peft_experts {
    PEFT_EXPERTS_UNKNOWN,  /* the config does not say which version wrote it */
    PEFT_EXPERTS_IN_OUT,   /* before 0.19: always as [E, in, out] */
    PEFT_EXPERTS_BY_MODULE /* as [E, out, in], but where the module says that it is transposed (gpt-oss) */
};

/* What adapter_config.json says. */
struct peft_config {
    char *text;       /* as it is stored */
    json_t *root;     /* parsed */
    const char *base; /* base_model_name_or_path; "" where it has none */
    int64_t rank;
    double alpha;
    int rslora, fan_in_fan_out;
    enum peft_experts experts;
};
/* Parses n bytes. ERR_FORMAT: it is damaged. ERR_CONFIG: its kind is not W + scale (B A); names the word that
 * says so. peft_config_free() frees it, after an error too. */
int peft_config_parse(struct peft_config *c, const char *text, size_t n, struct err *e);
void peft_config_free(struct peft_config *c); /* a zeroed one is fine */
/* Rank and scale of the module or parameter of that name: those of rank_pattern and alpha_pattern, else the
 * general ones. ERR_FORMAT: numbers that no adapter has, or a pattern that is not understood here. */
int peft_config_scale(const struct peft_config *c, const char *name, int64_t *rank, double *scale,
                      struct err *e);

/* A new adapter, for peft_config_text. */
struct peft_new {
    const char *base; /* base_model_name_or_path */
    int64_t rank;
    double alpha;
    int rslora, gaussian, fan_in_fan_out;
    int n;
    char *const *target; /* [n]: target_modules */
};
/* Its adapter_config.json, as PEFT writes it; malloc'd. NULL: no memory, or text that is no UTF-8. */
char *peft_config_text(const struct peft_new *p);
/* The same config for weights that lie at `base`; malloc'd, NULL as above. */
char *peft_config_on(const struct peft_config *c, const char *base);

struct peft_module {
    char *name;       /* of the module in the model ("model.layers.0.mlp.up_proj"), or of the parameter */
    int is_param;     /* the model's tensor is `name`, not `name`.weight */
    int is_embedding; /* A [r, rows], B [columns, r] of an embedding */
    int a, b;         /* tensors of the checkpoint */
    int64_t rank, n_experts, in, out;
    double scale;
};
/* A tensor that replaces one of the model. */
struct peft_saved {
    char *name; /* of the model's tensor */
    int tensor; /* of the checkpoint */
};
struct peft {
    struct ckpt *c; /* borrowed */
    struct peft_config config;
    int n;
    struct peft_module *module; /* sorted by name */
    int n_saved;
    struct peft_saved *saved; /* sorted by name */
};

/* 1: the checkpoint is an adapter: it has an adapter_config.json. */
int peft_is(const struct ckpt *c);
/* Reads what the adapter consists of, its weights alone; borrows c until peft_free. ERR_FORMAT: its files do
 * not fit together, or are of a kind that is not known. peft_free() frees it, after an error too. */
int peft_read(struct peft *a, struct ckpt *c, struct err *e);
void peft_free(struct peft *a); /* a zeroed one is fine */

/* ---- merging ----
 *
 * A checkpoint with an adapter merged into its weights, as a view (ckpt_view.h).
 *
 *     W'[o][i] = round(W[o][i] + scale * (B[o][0] A[0][i] + B[o][1] A[1][i] + ... + B[o][r-1] A[r-1][i]))
 *
 * Products and sums are binary64, in the order written (the product of two binary32 values is exact); there
 * is one rounding to the weight's dtype, to nearest even, denormals kept. Where the sum is zero the bits of
 * W stay. An element depends on nothing but its row of B, its column of A and itself, so every layout and
 * number of threads gives the same bits. Several adapters are several views: each rounds once, in the order
 * given. */

/* The small file of a merged checkpoint: {"adapters": [{"digest": "HEX", "r": 8, "lora_alpha": 16}, ...]}, in
 * the order of merging. */
#define PEFT_MERGED "merged_adapters.json"

struct peft_merge;
struct peft_merge_source {
    struct ckpt *adapter; /* the view owns it, also after an error */
    const char *path;     /* its name for messages (copied) */
    const char *digest;   /* its weights_digest, for the record */
};
/* Makes a view of *c with the adapter merged; *c is then the view, which owns the old one, also after an
 * error (*c is NULL then). What --dequantize keeps for --requantize is left out: no code stands for a merged
 * weight. *m lives as long as the view. ERR_CONFIG: the adapter is of another model: tensor and both shapes.
 * ERR_USAGE: weights that are no floats. While data are read: ERR_FORMAT, a sum that is not finite. */
int peft_merge_open(struct peft_merge **m, struct ckpt **c, const struct peft_merge_source *from,
                    struct err *e);
/* The adapter, as it was read. */
const struct peft *peft_merge_adapter(const struct peft_merge *m);
/* Tensors of the model that the adapter changes. */
int peft_merge_n_tensors(const struct peft_merge *m);
/* Elements that this process has computed and that the adapter moves, and those of them whose bits changed:
 * two numbers to add up over the processes. */
void peft_merge_counts(const struct peft_merge *m, int64_t v[2]);
/* Of the sums. ERR_INTEGRITY: the adapter is not zero, and has changed nothing. */
int peft_merge_check(const struct peft_merge *m, const int64_t v[2], struct err *e);

/* ---- computing with an adapter that is not merged ----
 *
 *     W[row][col] + scale * (left[row][0] right[0][col] + ... + left[row][r-1] right[r-1][col])
 *
 * W is a tensor of the model as its checkpoint shows it, or the matrix of one expert in it. Its left factor
 * is B where the tensor is [out, in]; it is A where the tensor is [in, out] (GPT-2), or where PEFT takes the
 * tensor so (experts before 0.19). */

struct peft_fit;
/* Finds what adapter changes in the model. *f owns adapter, also after an error; the model and the text path
 * (its name in messages) are borrowed until peft_fit_close(). Reads no factors. ERR_CONFIG: the adapter is of
 * another model: tensor and both shapes. ERR_USAGE: weights that are no floats; the adapter holds whole
 * weights besides. */
int peft_fit_open(struct peft_fit **f, struct ckpt *adapter, const char *path, const struct ckpt *model,
                  struct err *e);
void peft_fit_close(struct peft_fit *f); /* NULL is fine */

struct peft_fit_tensor {
    int tensor; /* of the model */
    const struct peft_module *module;
    int expert; /* of the module; -1: dim 0 of the tensor counts the experts */
};
/* Tensors of the model that the adapter changes, and number i of them. */
int peft_fit_n(const struct peft_fit *f);
struct peft_fit_tensor peft_fit_at(const struct peft_fit *f, int i);
/* A hash of ranks and scales: with the digest of its tensors what an adapter computes. */
uint64_t peft_fit_scales(const struct peft_fit *f);

/* Of tensor i, expert x of its module: rows [at, at + n) of the left factor, out [n][r]; columns of the right
 * one, out [r][n]. ERR_FORMAT: a value that is not finite. Several threads may read at once. */
int peft_fit_left(const struct peft_fit *f, int i, int64_t x, int64_t at, int64_t n, double *out,
                  struct err *e);
int peft_fit_right(const struct peft_fit *f, int i, int64_t x, int64_t at, int64_t n, double *out,
                   struct err *e);

#endif
