/* deepspeed.h - private to the room: DeepSpeed's folders, ZeRO and universal. */
#ifndef SHARDLINE_FORMAT_DEEPSPEED_DEEPSPEED_H
#define SHARDLINE_FORMAT_DEEPSPEED_DEEPSPEED_H

#include "format/torch/torch_build.h"

/* The three flat buffers of ZeRO, and the roles they become. */
enum { FLAT_PARAM, FLAT_AVG, FLAT_SQ, FLATS };

/* param_shapes: names and shapes of all parameters in the order of the flat buffers, group after group. */
/* skip: elements behind it */
struct ds_param {
    const char *name;
    int n_name, group, n_dims;
    int64_t shape[BOX_DIMS], n;
    int64_t skip;
};
struct ds_params {
    struct ds_param *p;
    int n, n_groups;
};
int ds_params_read(struct ds_params *l, const struct pk *model, const char *path, struct err *e);
void ds_params_free(struct ds_params *l);
int ds_shape(const struct pk *size, const char *path, const char *name, int n_name, int64_t shape[BOX_DIMS],
             int *n_dims, int64_t *n, struct err *e);

/* The model file: weights in the working dtype where they are whole, buffers, frozen parameters. */
struct ds_model {
    struct torch_file t;
    const struct pk *module, *buffers, *shared, *frozen;
    int has_weights;
};
int ds_model_open(struct ds_model *m, struct ckpt *c, const char *name, struct err *e);
/* Adds as weights: buffers, and, when whole, the frozen parameters and those in a dtype narrower than their
 * masters. */
int ds_model_add(struct build *b, struct ds_model *m, const struct ds_params *l, int *narrow, struct err *e);
/* What else the module holds whole: parameters that the optimizer does not know and no list names (stage 1
 * lists no frozen ones). */
int ds_model_add_rest(struct build *b, struct ds_model *m, const struct ds_params *l, struct err *e);
/* Another name for the same tensor: i-th alias of owner, or NULL. The tied head is left out when config.json
 * does not say that it is not tied. */
const struct pk *ds_alias(const struct ckpt *c, const struct ds_model *m, const struct ds_param *owner,
                          uint32_t *i);
int ds_aliases_check(const struct ckpt *c, const struct ds_model *m, const struct ds_params *l,
                     struct err *e);

int ds_zero_open(struct build *b, const char *sub, const struct names *files, struct err *e);
/* Finishes the build too: the state beside the tensors comes last. */
int ds_universal_open(struct build *b, const char *sub, const struct names *files, struct err *e);

#endif
