/* codes_weights.h - quantised weights that the products read as they are stored (kernels/panel_codes.h). */
#ifndef SHARDLINE_SERVE_WEIGHTS_CODES_WEIGHTS_H
#define SHARDLINE_SERVE_WEIGHTS_CODES_WEIGHTS_H

#include "format/ckpt.h"
#include "model/model.h"

/* How quantised weights are computed: --quantized. */
enum codes_wish { CODES_WISH_VALUES, CODES_WISH_CODES, CODES_WISH_INT8 };

struct codes_weights;
/* view: a checkpoint that shows the values of quantised weights (quant_open_values; borrowed). mem: where
 * panels go. ERR_MEMORY, and errors of reading the list. */
int codes_weights_open(struct codes_weights **out, struct ckpt *view, struct mem *mem, enum codes_wish wish,
                       struct err *e);
/* Frees the panels too: nothing may read them any more. NULL is allowed. */
void codes_weights_close(struct codes_weights *x);
/* As pack of struct resident_source: 1: the pack's codes are in panels now, which p points at; 0: its unit
 * has a matrix that is not quantised in a form of panel_codes.h, and its values are to be read. */
int codes_weights_pack(struct codes_weights *x, const struct model *m, int unit, int pack, struct panels *p,
                       struct err *e);
/* The class that decides bits beside the values: "grp", "int"; "deq": the values' own. */
const char *codes_weights_class(const struct codes_weights *x);
int codes_weights_count(const struct codes_weights *x); /* packs of this rank */
int64_t codes_weights_bytes(const struct codes_weights *x);

#endif
