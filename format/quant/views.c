/* views.c - see quant_view.h: which views a conversion asks for. */
#include <stdio.h>
#include <string.h>
#include "format/gguf_read.h"
#include "format/quant.h"
#include "format/quant_view.h"

/* Blocks of GGUF first; a file of gpt-oss has MXFP4 as published beside them, or instead. */
static int dequantize(struct ckpt **c, enum stored_dtype to, struct err *e)
{
    int had_blocks = gguf_has_blocks(*c, NULL), rc = gguf_dequantize(c, to, e);
    const char *config = rc >= 0 ? ckpt_config_json(*c) : NULL;
    if (rc < 0 || (had_blocks && !(config && strstr(config, "\"quantization_config\""))))
        return rc;
    return quant_dequantize(c, to, e);
}

int quant_views(struct ckpt **c, const struct quant_wish *wish, int *n_narrow, struct err *e)
{
    int rc = wish->dequantize ? dequantize(c, wish->to, e) : gguf_refuse_blocks(*c, e);
    if (rc >= 0 && wish->requantize)
        rc = quant_requantize(c, e);
    if (rc >= 0 && wish->quantize && ckpt_state(*c)->has_state && !wish->weights_only)
        rc = err_set(e, ERR_USAGE, "%s: holds optimizer state, and codes have none: add --weights-only",
                     ckpt_path(*c));
    if (rc >= 0 && wish->quantize)
        rc = quant_quantize(c, wish->quantize, n_narrow, e);
    return rc;
}

/* How many weights are quantised in a form of quant.h; -1: as blocks of GGUF. text [64]: what says so. */
static int count_quantised(struct ckpt *c, char text[64])
{
    struct quant_list q = { 0 };
    struct err ignored;
    int n = 0;
    if (gguf_has_blocks(c, NULL)) {
        snprintf(text, 64, "GGUF");
        return -1;
    }
    if (quant_open_ckpt(&q, c, &ignored) >= 0)
        n = q.n;
    snprintf(text, 64, "%s", *q.method ? q.method : "no quant_method");
    quant_close(&q);
    return n;
}

int quant_open_values(struct ckpt **c, const char *first, char text[64], struct err *e)
{
    const int n = count_quantised(*c, text), i = ckpt_find(*c, ROLE_WEIGHT, first);
    const enum stored_dtype t = i < 0 ? STORED_BF16 : ckpt_tensor(*c, i)->dtype;
    const struct quant_wish wish = { .dequantize = 1,
                                     .to = t == STORED_F32 || t == STORED_F16 ? STORED_F32 : STORED_BF16 };
    int unused = 0;
    if (n == 0)
        return 0;
    const int rc = quant_views(c, &wish, &unused, e);
    return rc < 0 ? rc : 1;
}

int quant_refuse(struct ckpt *c, struct err *e)
{
    struct quant_list q = { 0 };
    struct err ignored;
    int rc = gguf_refuse_blocks(c, e);
    if (rc >= 0 && quant_open_ckpt(&q, c, &ignored) >= 0 && q.n)
        rc = err_set(e, ERR_USAGE,
                     "%s: holds %d quantised weights (%s): reshard with --dequantize bf16 or fp32 makes "
                     "numbers of them",
                     ckpt_path(c), q.n, *q.method ? q.method : "no quant_method");
    quant_close(&q);
    return rc < 0 ? rc : 0;
}
