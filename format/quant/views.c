/* views.c - see quant_view.h: which views a conversion asks for. */
#include "format/quant_view.h"

int quant_views(struct ckpt **c, const struct quant_wish *wish, int *n_narrow, struct err *e)
{
    int rc = 0;
    if (wish->dequantize)
        rc = quant_dequantize(c, wish->to, e);
    if (rc >= 0 && wish->requantize)
        rc = quant_requantize(c, e);
    if (rc >= 0 && wish->quantize && ckpt_state(*c)->has_state && !wish->weights_only)
        rc = err_set(e, ERR_USAGE, "%s: holds optimizer state, and codes have none: add --weights-only",
                     ckpt_path(*c));
    if (rc >= 0 && wish->quantize)
        rc = quant_quantize(c, wish->quantize, n_narrow, e);
    return rc;
}
