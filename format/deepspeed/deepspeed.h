/* deepspeed.h - private to room format: reads DeepSpeed's folders, ZeRO and universal. Functions return 0
 * or a negative code, unless noted; ERR_FORMAT: damaged, or a variant that is not supported. */
#ifndef SHARDLINE_FORMAT_DEEPSPEED_DEEPSPEED_H
#define SHARDLINE_FORMAT_DEEPSPEED_DEEPSPEED_H

#include "format/torch/torch_build.h"

/* The three flat buffers of ZeRO: fp32 parameters, exp_avg, exp_avg_sq. */
enum { FLAT_PARAM, FLAT_AVG, FLAT_SQ, FLATS };

/* A row of param_shapes, which has the names and shapes of all parameters in the order of the flat
 * buffers, group after group. */
struct ds_param {
    const char *name;
    int n_name, group, n_dims;
    int64_t shape[BOX_DIMS], n;
    int64_t skip;     /* unused elements behind it in the buffer */
    int layer, local; /* layer of experts (-1: none); the expert's number on its rank (-1: all of the rank) */
};
struct ds_params {
    struct ds_param *p;
    int n, n_groups;
};
/* Reads param_shapes of a model file; path: the file, for messages. Names are borrowed from the pickle. */
int ds_params_read(struct ds_params *l, const struct pk *model, const char *path, struct err *e);
void ds_params_free(struct ds_params *l);
/* Reads a torch.Size: dims, elements. */
int ds_shape(const struct pk *size, const char *path, const char *name, int n_name, int64_t shape[BOX_DIMS],
             int *n_dims, int64_t *n, struct err *e);

/* The model file: buffers, frozen parameters, and the weights in the working dtype if it has them whole. */
struct ds_model {
    struct torch_file t;
    const struct pk *module, *buffers, *shared, *frozen;
    int has_weights;
};
/* Opens file `name` of c; the caller closes m->t. */
int ds_model_open(struct ds_model *m, struct ckpt *c, const char *name, struct err *e);
/* Adds as weights: the buffers, and the parameters if they are whole and of a dtype other than fp32
 * (*narrow becomes 1: the fp32 buffers are then their masters; -1 before: it becomes 0). */
int ds_model_add(struct build *b, struct ds_model *m, const struct ds_params *l, int *narrow, struct err *e);
/* Adds the other tensors of the module: parameters that neither the optimizer nor a list has (stage 1 does
 * not list frozen ones). */
int ds_model_add_rest(struct build *b, struct ds_model *m, const struct ds_params *l, struct err *e);
/* The next alias of owner (another name of the same tensor) from number *i on, or NULL. Skips the tied
 * head, unless config.json says that it is not tied. */
const struct pk *ds_alias(const struct ckpt *c, const struct ds_model *m, const struct ds_param *owner,
                          uint32_t *i);
/* Checks that every alias is one of a known parameter. */
int ds_aliases_check(const struct ckpt *c, const struct ds_model *m, const struct ds_params *l,
                     struct err *e);

/* ---- experts (deepspeed_experts.c) ---- */

/* The first tensor in an expert's file: the end of its name, its first element. */
struct ds_sample {
    int file; /* -1: no file yet */
    enum torch_dtype dtype;
    int64_t offset;
    char end[40];
};

/* Layers whose experts are divided over ranks: rank r of ep has the experts id[r · n_local + i]. */
struct ds_layer {
    const char *prefix; /* n_prefix bytes, "model.layers.0.mlp.experts" without the last word for MoE */
    int n_prefix;
    int is_stacked;                 /* AutoEP: w1, w2, w3 hold all experts of a rank; else MoE: one each */
    int is_cut;                     /* AutoEP with ZeRO-3: no expert has a file */
    int64_t n_experts, n_local, ep; /* 0: not known yet */
    const struct pk *placement;     /* a list for each rank; NULL: in order */
    struct ds_sample *sample;       /* [n_experts] */
    int number;                     /* in the files' names; -1: not known */
};
struct ds_experts {
    struct ds_layer *layer;
    int n;
};
/* A part of a parameter on one rank: elements [lo, hi) of it are box `box` of the tensor `name`. */
struct ds_part {
    char name[FMT_NAME_MAX + 1];
    int n_dims;
    int64_t shape[BOX_DIMS];
    struct box box;
    int64_t lo, hi;
};

/* Finds the layers of experts by the names in l and by `layers` (ds_autoep_layers; may be NULL), and sets
 * layer and local of every parameter. Text is borrowed from the pickles. path: for messages. */
int ds_experts_find(struct ds_experts *x, struct ds_params *l, const struct pk *layers, const char *path,
                    struct err *e);
void ds_experts_free(struct ds_experts *x);
/* Notes that ep ranks share the experts of p. ERR_FORMAT: the files say otherwise. */
int ds_experts_degree(struct ds_experts *x, const struct ds_param *p, int64_t ep, const char *path,
                      struct err *e);
/* The number of parts of p; part k of p on rank r of ep. */
int64_t ds_experts_parts(const struct ds_experts *x, const struct ds_param *p);
int ds_experts_part(const struct ds_experts *x, const struct ds_param *p, int64_t r, int64_t k,
                    struct ds_part *out, const char *path, struct err *e);
/* Reads the files layer_L_expert_E_…: every expert must have one. add: their tensors are the weights. */
int ds_experts_read(struct ds_experts *x, struct build *b, const char *sub, const struct names *files,
                    int add, struct err *e);
/* Compares the first element of part place[1] of p on rank place[0], which is at byte
 * `offset` of the file, with the weight in the expert's file. ERR_FORMAT: they are of different experts. */
int ds_experts_compare(const struct ds_experts *x, struct ckpt *c, const struct ds_param *p,
                       const int64_t place[2], int file, int64_t offset, struct err *e);
/* 1: `name` is one of these files; sets the numbers in it. */
int ds_expert_file(const char *name, int *layer, int *expert, int *mp);
/* Checks an expert's tensor of the universal form, a dict with ep_num_experts: x is its `param`. */
int ds_experts_universal(const struct pk *state, const struct torch_tensor *x, const char *path,
                         struct err *e);
/* Gives routers the names of Hugging Face. Call it before build_finish. */
int ds_router_names(struct ckpt *c, struct err *e);
/* 1: where there is a tensor `of`, this one is another name of it: AutoEP's router has two. */
int ds_router_copy(const char *name, int n, char of[FMT_NAME_MAX + 8]);

/* Add all tensors of a folder of ZeRO or of the universal form; sub: its tag, "" or "TAG/"; files: its
 * files. */
int ds_zero_open(struct build *b, const char *sub, const struct names *files, struct err *e);
/* The same for experts without ZeRO. */
int ds_plain_open(struct build *b, const char *sub, const struct names *files, struct err *e);
/* Calls build_finish itself, since it reads the state of the run afterwards. */
int ds_universal_open(struct build *b, const char *sub, const struct names *files, struct err *e);

#endif
