/* config_parse.h - inside model/: the parts of reading and writing config.json that have a file of their own.
 * o: the object that is read or written; what: its path, for messages. */
#ifndef SHARDLINE_MODEL_CONFIG_PARSE_H
#define SHARDLINE_MODEL_CONFIG_PARSE_H

#include <jansson.h>
#include "model/config.h"

#define SIZE_LIMIT ((int64_t)1 << 28) /* of a size, so that no product of two can overflow */

/* config.c: notes something in the file that nothing computes. The first note stays. */
__attribute__((format(printf, 2, 3))) void config_not_computed(struct model_config *c, const char *format,
                                                               ...);

/* config_window.c: which layers have a sliding window: sliding_window and the family's rule (enum
 * window_rule), or layer_types, which decides where both are there. ERR_CONFIG: a window without positions,
 * layer_types of another number of layers. */
int config_read_windows(struct model_config *c, const json_t *o, const char *what, struct err *e);
void config_write_windows(json_t *o, const struct model_config *c);

/* config_latent.c: latent attention, its sizes having been read; a router of sigmoids; and their keys that
 * no list of sizes has. */
int config_read_latent(struct model_config *c, const json_t *o, const char *what, struct err *e);
int config_read_router(struct model_config *c, const json_t *o, const char *what, struct err *e);
void config_write_latent(json_t *o, const struct model_config *c);
/* config_router.c: keys of routers that training refuses become c->not_trained. */
int config_read_untrained(struct model_config *c, const json_t *o, const char *what, struct err *e);
/* config_latent.c: mlp_only_layers, layers without experts. */
int config_read_dense(struct model_config *c, const json_t *o, const char *what, struct err *e);
json_t *config_dense_json(const struct model_config *c);
/* YaRN's factor for one of DeepSeek's keys mscale and mscale_all_dim. */
double config_yarn_mscale(double factor, double mscale);

#endif
