/* lt_table.h - which of cuBLASLt's algorithms was fastest for a product, in a file of lines: what lt.c's
 * choice says of itself, one a product.
 *
 *     product linear bf16 2048x4096 over 4096 batch 1 align 16: algo 66 tile 20 stages 35 swizzle 0 option 0
 *     inner 0 cluster 1, …
 *
 * $SHARDLINE_CUBLASLT_TABLE names it; a line is a wish: it holds where this library offers just that
 * algorithm, and fits. With $SHARDLINE_CUBLASLT_TUNE=1 a product that no line is about is timed, and its
 * line added. */
#ifndef SHARDLINE_KERNELS_CUDA_LT_LT_TABLE_H
#define SHARDLINE_KERNELS_CUDA_LT_LT_TABLE_H

#include "base/err.h"

struct lt_table {
    char *text, path[512];
    int tunes;
};

/* Nothing in the environment: an empty one. ERR_FILE: the file cannot be read; one that is not there yet is
 * empty when it is to be made. */
int lt_table_open(struct lt_table *t, struct err *e);
void lt_table_close(struct lt_table *t);
/* Does a line say just this, up to the comma behind it? */
int lt_table_says(const struct lt_table *t, const char *what);
/* Is there a line about this product? */
int lt_table_knows(const struct lt_table *t, const char *product);
/* Appends a line. 0: it cannot be written. */
int lt_table_add(struct lt_table *t, const char *line);

#endif
