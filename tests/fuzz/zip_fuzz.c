/* zip_fuzz.c - any bytes as a zip: end records, directory, local headers, contents (format/torch/zip.c). */
#include <stdlib.h>
#include "format/torch/zip.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct zip z;
    struct err e;
    struct ckpt *c = fuzz_ckpt(data, n);
    if (zip_open(&z, c, 0, 0, (int64_t)n, &e) >= 0) {
        for (int i = 0; i < z.n; i++) {
            void *content;
            zip_locate(&z, &z.entry[i], &e);
            if (zip_load(&z, &z.entry[i], 1 << 20, &content, &e) >= 0)
                free(content);
            zip_find(&z, z.entry[i].name, z.entry[i].n_name);
        }
        zip_close(&z);
    }
    ckpt_close(c);
    return 0;
}
