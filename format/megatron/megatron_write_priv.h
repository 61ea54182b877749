/* megatron_write_priv.h - shared by the files that write a Megatron checkpoint: which element goes where. */
#ifndef SHARDLINE_FORMAT_MEGATRON_MEGATRON_WRITE_PRIV_H
#define SHARDLINE_FORMAT_MEGATRON_MEGATRON_WRITE_PRIV_H

#include "format/dcp_write.h"
#include "format/megatron_write.h"
#include "format/megatron/megatron.h"

/* A global array of Megatron; its name is the key. */
struct mgw_array {
    const struct mg_row *row;
    int layer;          /* -1: stacked, or of no layer */
    int64_t rows, cols; /* of one layer and expert */
    int64_t filled;     /* elements that pieces have */
};
/* Which part of which array a tensor is. */
struct mgw_tensor {
    int array, hf;
    int64_t layer, expert; /* indices of the stacked dims, 0 where there are none */
};
/* Rows [row, row + n_rows) of an array, columns [col, col + n_cols): consecutive elements of a piece, from
 * element `from` on, and of a chunk, from `at` on. */
struct mgw_segment {
    int file, tensor;
    int64_t row, n_rows, col, n_cols, from, at;
    int item;
};
struct mgw_piece {
    int first, n, now; /* segments; now: the one that is being written */
    int64_t done;      /* elements */
};

struct megatron_write {
    struct megatron_target what;
    /* the shape of the model, as the reader has it */
    struct mg m;
    struct build build;
    struct ckpt ckpt;
    int64_t n_layers, n_experts;
    int stacked;

    struct mgw_tensor *tensor; /* [what.n] */
    int n_arrays;
    struct ckpt_tensor *list; /* [n_arrays]: key, role, dtype, shape */
    struct mgw_array *array;
    int *slot; /* [ROLE_COUNT][mg_n_rows][n_layers or 1]: array + 1 */

    struct mgw_piece **piece; /* [n_files][n_pieces] */
    struct mgw_segment *segment;
    int64_t n_segments, capacity;
    struct dcp_write *dcp;
};

/* The array of that role, row and layer; NULL: there is none. */
const struct mgw_array *mgw_find(const struct megatron_write *w, enum ckpt_role role, const struct mg_row *r,
                                 int layer);
#define MGW_KEY_ROOM (FMT_NAME_MAX + 64)
/* The key of a row without a prefix: "decoder.layers.[N.]KEY". */
void mgw_key(const struct mg_row *r, int layer, char out[MGW_KEY_ROOM]);
/* 1: both rows name the same logical tensors of this family. */
int mgw_same_row(const struct megatron_write *w, const struct mg_row *a, const struct mg_row *b);
/* 1: the optimizer has a state for some weight. */
int mgw_has_state(const struct megatron_write *w);
/* Writes .metadata and the objects; writes common.pt and metadata.json. */
int mgw_write_metadata(struct megatron_write *w, struct err *e);
int mgw_write_common(const struct megatron_write *w, const struct ckpt_meta *meta, struct err *e);

#endif
