/* gguf_fuzz.c - any bytes as a GGUF file: opened, read whole, its vocabulary made, its blocks decoded
 * (format/gguf, format/vocab). */
#include <stdlib.h>
#include "format/ckpt.h"
#include "format/gguf_read.h"
#include "tests/fuzz/fuzz.h"

#define READ_MAX (1 << 16) /* elements of a tensor that are read */

static void read_some(struct ckpt *c)
{
    struct err e;
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor(c, i);
        struct box b = box_whole(t->n_dims, t->shape);
        int64_t n = box_count(&b) < READ_MAX ? box_count(&b) : READ_MAX;
        void *data = stored_on_bytes(t->dtype, n) ? malloc((size_t)stored_bytes(t->dtype, n) + 1) : NULL;
        if (data)
            ckpt_read_range(c, i, &b, 0, n, data, &e);
        free(data);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *path = fuzz_write("model.gguf", data, n);
    struct ckpt *c = NULL;
    struct err e;
    fuzz_open_ckpt(path);
    if (ckpt_open(&c, path, NULL, &e) < 0)
        return 0;
    for (int i = 0; i < ckpt_n_extra(c); i++) {
        void *text = NULL;
        size_t size;
        if (ckpt_extra_read(c, i, &text, &size, &e) >= 0)
            free(text);
    }
    if (gguf_dequantize(&c, STORED_BF16, &e) >= 0)
        read_some(c);
    ckpt_close(c);
    return 0;
}
