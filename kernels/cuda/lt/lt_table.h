/* lt_table.h - a file of lines that name the fastest cuBLASLt algorithm for a product, in the words of
 * lt_choice_text():
 *
 *     product linear bf16 2048x4096 over 4096 batch 1 align 16: algo 66 tile 20 stages 35 swizzle 0 option 0
 *     inner 0 cluster 1, …
 *
 * $SHARDLINE_CUBLASLT_TABLE names the file. A line is used where this library offers that very algorithm
 * and it fits. With $SHARDLINE_CUBLASLT_TUNE=1 a product without a line is timed, and its line added. */
#ifndef SHARDLINE_KERNELS_CUDA_LT_LT_TABLE_H
#define SHARDLINE_KERNELS_CUDA_LT_LT_TABLE_H

#include "base/err.h"

struct lt_table {
    char *text, path[512];
    int tunes;
};

/* Reads the file; without the variable the table is empty. ERR_FILE: it cannot be read; with TUNE a
 * missing file is an empty one. */
int lt_table_open(struct lt_table *t, struct err *e);
/* Frees the text. */
void lt_table_close(struct lt_table *t);
/* Is this a line, up to the comma behind it? */
int lt_table_says(const struct lt_table *t, const char *what);
/* Is there a line about this product? */
int lt_table_knows(const struct lt_table *t, const char *product);
/* Appends a line to the file. 0: it cannot be written. */
int lt_table_add(struct lt_table *t, const char *line);

#endif
