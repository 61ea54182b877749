/* quant_view.h - a checkpoint with other numbers: quantised weights as values, values as the codes they came
 * from, weights quantised here. Each function replaces *c by a view of it (ckpt_view.h); after an error *c is
 * closed and NULL.
 *
 * What turns codes into values stays in a dequantised checkpoint, so that --requantize gives the published
 * bytes again: scales, zero points and orders as tensors QUANT_KEPT_PREFIX + their name, which no model has,
 * and in the small file QUANT_KEPT_FILE the configuration and the dtypes and shapes of the codes. A folder
 * for Hugging Face has these tensors in a file of their own, QUANT_KEPT_TENSORS (safetensors), which its
 * index does not name and other programs do not open. */
#ifndef SHARDLINE_FORMAT_QUANT_VIEW_H
#define SHARDLINE_FORMAT_QUANT_VIEW_H

#include "format/ckpt.h"

#define QUANT_KEPT_FILE "quantized.json"
#define QUANT_KEPT_PREFIX "quantized."
#define QUANT_KEPT_TENSORS "quantized.tensors"

/* What quant_quantize() makes of linear weights (QUANT.md). */
enum quant_kind { QUANT_KIND_NONE, QUANT_KIND_INT8_G128, QUANT_KIND_FP8_B128, QUANT_KIND_MXFP4 };

/* What a conversion asks for; zero: nothing. Dequantising comes first, quantising last. */
struct quant_wish {
    int dequantize; /* to the dtype `to` */
    enum stored_dtype to;
    int requantize;
    enum quant_kind quantize;
    /* codes have no optimizer state: quantising without this is refused where there is one */
    int weights_only;
};
/* The views of a wish, in their order. *n_narrow: linear weights that quantising leaves as they are, because
 * their columns are no multiple of the kind's group. */
int quant_views(struct ckpt **c, const struct quant_wish *wish, int *n_narrow, struct err *e);

/* For a server: shows quantised weights, in a form of quant.h or as blocks of GGUF, as their values, and the
 * configuration without the quantisation. The values are fp32 where tensor `first` is stored as F32 or F16,
 * else bf16. Returns 1, with what the configuration calls them in text; 0: nothing is quantised, and *c stays
 * as it is. Errors as of quant_dequantize(): *c is closed and NULL. */
int quant_open_values(struct ckpt **c, const char *first, char text[64], struct err *e);

/* ERR_USAGE, with what to do: the checkpoint holds quantised weights, as blocks of GGUF or in a form of
 * quant.h. For programs that compute with weights. */
int quant_refuse(struct ckpt *c, struct err *e);

/* Shows each quantised weight under its logical name as values in the dtype `to` (STORED_F32 or STORED_BF16),
 * by the rules of FOREIGN.md, and config.json without the quantisation. ERR_USAGE: nothing is quantised.
 * ERR_CONFIG: an unknown quant_method. */
int quant_dequantize(struct ckpt **c, enum stored_dtype to, struct err *e);

/* Shows the weights that quant_dequantize made as the codes that they were made from, under the published
 * names, and the published config.json. ERR_CONFIG: not such a checkpoint. While data are read:
 * ERR_INTEGRITY, a value that no code stands for, or more than one. */
int quant_requantize(struct ckpt **c, struct err *e);

/* Shows the linear weights of the layers as codes and scales in the form of the kind, and a configuration
 * that says so. Embeddings, norms, routers and heads stay. *n_narrow: as above. ERR_USAGE: the checkpoint
 * holds quantised weights, or none that can be. While data are read: ERR_FORMAT, a value that is not finite.
 * */
int quant_quantize(struct ckpt **c, enum quant_kind kind, int *n_narrow, struct err *e);

#endif
