/* values_fuzz.c - folders with quantised weights: their values, the codes of values again, codes made here
 * (format/quant_view.h). The first byte says which. */
#include <stdlib.h>
#include <string.h>
#include "format/ckpt.h"
#include "format/quant_view.h"
#include "tests/fuzz/fuzz.h"

#define MOST 4096 /* elements read of a tensor */

static void read_some(struct ckpt *c)
{
    char *data = malloc(MOST * 8);
    for (int i = 0; i < ckpt_n_tensors(c) && i < 64; i++) {
        const struct ckpt_tensor *t = ckpt_tensor(c, i);
        struct box b = box_whole(t->n_dims, t->shape);
        struct err e = { 0 };
        int64_t n = box_count(&b), step = n / 3 + 1;
        for (int64_t lo = 0; lo < n && n <= MOST; lo += step)
            if (stored_on_bytes(t->dtype, lo))
                ckpt_read_range(c, i, &b, lo, lo + step < n ? lo + step : n, data, &e);
    }
    free(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = {
        "config.json", "model.safetensors", "quantized.json", "quantized.tensors", "quantize_config.json",
    };
    struct ckpt *c = NULL;
    struct err e = { 0 };
    int narrow, rc;
    if (!n)
        return 0;
    fuzz_write_parts(names, sizeof names / sizeof *names, data + 1, n - 1);
    if (ckpt_open(&c, fuzz_dir(), NULL, &e) < 0)
        return 0;
    struct quant_wish wish = { .to = data[0] & 1 ? STORED_F32 : STORED_BF16, .weights_only = 1 };
    wish.dequantize = !(data[0] & 2);
    wish.requantize = (data[0] & 2) || (data[0] & 4);
    wish.quantize = wish.requantize ? QUANT_KIND_NONE : (enum quant_kind)(data[0] >> 3 & 3);
    rc = quant_views(&c, &wish, &narrow, &e);
    if (rc >= 0)
        read_some(c);
    ckpt_close(c);
    return 0;
}
