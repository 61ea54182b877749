/* indexed.h - the pair of files NAME.bin and NAME.idx that Megatron-LM's preprocessing writes: ids one after
 * the other, and an index of sequences and documents. Read in place; version 1 of the index.
 *
 *   NAME.idx: "MMIDIDX\0\0"  version u64 = 1  type u8  sequences u64  documents u64
 *             lengths i32[sequences]  first bytes in NAME.bin i64[sequences]  first sequences i64[documents]
 * Numbers are little-endian. documents counts the boundaries: one more than there are documents. */
#ifndef SHARDLINE_TEXT_INDEXED_H
#define SHARDLINE_TEXT_INDEXED_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct indexed {
    char *bin;      /* path of NAME.bin */
    int width;      /* bytes an id: 1, 2, 4 or 8 */
    int64_t n;      /* ids */
    int64_t n_ends; /* documents */
    int64_t *end;   /* [n_ends] ids up to the end of each, ascending */
};

/* 1: path is NAME.bin, NAME.idx or NAME, and both files of the pair are there. */
int indexed_is(const char *path);
/* Reads and checks the index. The caller calls indexed_close, also after an error (*x zeroed before).
 * ERR_FORMAT: not such an index, or one that does not fit NAME.bin. */
int indexed_open(struct indexed *x, const char *path, struct err *e);
void indexed_close(struct indexed *x);

#endif
