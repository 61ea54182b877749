/* cut_template.h - private to reshard/: the cut table that ships for a model, as text. Pure functions, but
 * for what they allocate. */
#ifndef SHARDLINE_RESHARD_CUT_TEMPLATE_H
#define SHARDLINE_RESHARD_CUT_TEMPLATE_H

#include <jansson.h>
#include "format/ckpt_tensor.h"
#include "model/params.h"

/* The object of a config.json that describes the language model: the whole, or a nested one (text_config).
 * *type: its model_type, borrowed; where it has none or an unknown one that of the whole. NULL: the whole is
 * no object. */
const json_t *cut_config_text(const json_t *root, const char **type);

/* What a table is made for. */
struct cut_query {
    const char *config;                      /* text of config.json */
    const char *what;                        /* its name, for messages */
    int grain;                               /* of the checkpoint's state; 0: the config's */
    const struct ckpt_tensor *const *tensor; /* [n] of the checkpoint; rows that fit none are left out */
    int n;
};
/* 1: *text is a cut table, which the caller frees: the rows of the family in model/ and behind them those of
 * a template (cut_families.h). 0: neither is known for this model_type; *e says so. ERR_CONFIG: the config is
 * damaged. ERR_MEMORY. */
int cut_template(const struct cut_query *q, char **text, struct err *e);

#endif
