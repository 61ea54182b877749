/* views.c - see quant_view.h: which views a conversion asks for. */
#include "format/quant_view.h"

int quant_views(struct ckpt **c, const struct quant_wish *wish, struct err *e)
{
    int rc = 0;
    if (wish->dequantize)
        rc = quant_dequantize(c, wish->to, e);
    if (rc >= 0 && wish->requantize)
        rc = quant_requantize(c, e);
    return rc;
}
