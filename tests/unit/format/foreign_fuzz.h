/* foreign_fuzz.h - any bytes as a pickle, as a torch file: for the fuzz targets and for
 * tests/unit/format/format_fuzz_test.c, which mutates good files. The readers must end, without a bad read
 * and within bounds; their result does not matter. */
#ifndef SHARDLINE_TESTS_UNIT_FORMAT_FOREIGN_FUZZ_H
#define SHARDLINE_TESTS_UNIT_FORMAT_FOREIGN_FUZZ_H

#include <stdlib.h>
#include "format/torch/torch_file.h"
#include "tests/fuzz/fuzz.h"

static inline void fuzz_pickle(const uint8_t *data, size_t n)
{
    struct pk_doc d;
    struct err e;
    void *exact = fuzz_copy(data, n);
    if (pk_parse(&d, exact, n, "fuzz", &e) >= 0)
        pk_free(&d);
    free(exact);
}

/* Every tensor among the nodes of a dict and the dicts in it. */
static inline void fuzz_tensors(struct torch_file *t, const struct pk *p, int depth)
{
    struct torch_tensor x;
    struct err e;
    double number;
    for (uint32_t i = 0; p && p->kind == PK_DICT && depth < 4 && i < p->n && i < 64; i++) {
        const struct pk *v = p->item[2 * i + 1];
        if (torch_is_tensor(v)) {
            torch_tensor(t, v, "fuzz", &x, &e);
            torch_number(t, v, "fuzz", &number, &e);
        } else {
            fuzz_tensors(t, v, depth + 1);
        }
    }
}

static inline void fuzz_torch(const uint8_t *data, size_t n)
{
    struct torch_file t = { 0 };
    struct err e = { 0 };
    struct ckpt *c = fuzz_ckpt(data, n);
    if (torch_open(&t, c, 0, 0, (int64_t)n, &e) >= 0)
        fuzz_tensors(&t, t.root, 0);
    torch_close(&t);
    for (int64_t i = 0; i < c->file[0].n_records; i++)
        fmt_check_record(c, 0, c->file[0].record[i].begin, &e);
    ckpt_close(c);
}

#endif
