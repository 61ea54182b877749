/* kept.h - private to the room: what a dequantised checkpoint keeps of the quantised one
 * (format/quant_view.h), and config.json of both.
 *
 *     {"format": 1, "values": "BF16", "files": {"config.json": "text", …},
 *      "codes": {"layers.0.up_proj.qweight": ["I32", [512, 11008], "layers.0.up_proj.weight"]}} */
#ifndef SHARDLINE_FORMAT_QUANT_KEPT_H
#define SHARDLINE_FORMAT_QUANT_KEPT_H

#include <jansson.h>
#include "format/ckpt.h"
#include "format/quant.h"

/* The text of QUANT_KEPT_FILE for a checkpoint and its quantised weights; malloc'd. NULL: *e is set. */
char *kept_text(struct ckpt *c, const struct quant_list *q, enum stored_dtype to, struct err *e);

struct kept {
    json_t *root, *files, *codes; /* files and codes are borrowed from root */
    enum stored_dtype values;
};
/* Reads QUANT_KEPT_FILE of a checkpoint. ERR_CONFIG: it has none; ERR_FORMAT: it is not as above.
 * kept_close() frees *k, after an error too. */
int kept_open(struct kept *k, struct ckpt *c, struct err *e);
void kept_close(struct kept *k);
/* One row of `codes`: dtype and shape of the codes (t->name too, borrowed) and the name of their weight. */
int kept_row(const char *name, const json_t *row, struct ckpt_tensor *t, const char **weight, struct err *e);

/* config.json without its quantisation, for weights in the dtype `to`; malloc'd. NULL: *e is set. */
char *config_plain(const char *text, enum stored_dtype to, struct err *e);
/* o as the text of config.json; malloc'd; takes over the reference to o. NULL: *e is set. */
char *config_dump(json_t *o, struct err *e);

#endif
