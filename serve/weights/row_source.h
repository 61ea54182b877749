/* row_source.h - weights of a folder that are used where its files are mapped: matrices in natural order,
 * as rows (PANEL_ROWS), and tables that are looked up.
 *
 * A matrix is mapped when its rows lie in local files as the products read them: a Hugging Face or native
 * folder, not compressed, in the dtype of arithmetic, where every row of this rank's part lies in one
 * piece of a file. Others are read and packed. Both give the same bits. */
#ifndef SHARDLINE_SERVE_WEIGHTS_ROW_SOURCE_H
#define SHARDLINE_SERVE_WEIGHTS_ROW_SOURCE_H

#include "format/ckpt.h"
#include "model/model.h"

struct row_source;

/* *out NULL: nothing of c can be used so (a URL, another device, SHARDLINE_MAP=off). Maps no file yet. c
 * and m are borrowed until the source is closed, m's shape only. ERR_MEMORY. */
int row_source_open(struct row_source **out, struct ckpt *c, const struct model *m, struct err *e);
/* resident_source.pack and .part. ERR_FILE, ERR_MEMORY; 0: it is to be read. */
int row_source_pack(void *source, int unit, int pack, struct panels *p, struct err *e);
int row_source_part(void *source, int part, const void **at, struct err *e);
/* Bytes of weights that are used where they are mapped. */
int64_t row_source_bytes(const struct row_source *s);
/* Calls fn for the elements of a part of m in row-major order, a mapped stretch at a time: elements [lo,
 * hi) of the part's box at `from`. ERR_INTERNAL: the part is not mapped; an error of fn. */
typedef int (*row_source_fn)(void *arg, int64_t lo, int64_t hi, const void *from, struct err *e);
int row_source_walk(struct row_source *s, int part, row_source_fn fn, void *arg, struct err *e);
/* Its matrices are not used any more: takes the files out of this process's page table. Tables stay. */
void row_source_release(struct row_source *s);
/* Nothing that it gave may be used any more. NULL is allowed. */
void row_source_close(struct row_source *s);

/* Packs `rows` (PANEL_ROWS) as d's class has plain panels: *made and its memory (MEM_PARAMS of d; the caller
 * frees it). The thread of d. ERR_MEMORY. */
int row_source_repack(struct dev *d, const struct panels *rows, struct panels *made, void **memory,
                      struct err *e);

#endif
