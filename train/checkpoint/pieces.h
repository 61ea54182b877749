/* pieces.h - what a rank writes into a checkpoint: a list that the layout fixes, and where its bytes come
 * from. */
#ifndef SHARDLINE_TRAIN_CHECKPOINT_PIECES_H
#define SHARDLINE_TRAIN_CHECKPOINT_PIECES_H

#include "format/ckpt.h"
#include "train/zero/zero.h"

struct pieces {
    const struct model *m;
    const struct zero *z;
    int n;
    struct ckpt_piece *piece;
    struct source *source;
    size_t *at, bytes; /* where piece i begins in a copy of all of them, and its size */
};
/* In the order weights, masters, moments. ERR_MEMORY. */
int pieces_open(struct pieces *p, const struct model *m, const struct zero *z, int dp_rank, int zero,
                struct err *e);
void pieces_close(struct pieces *p);
/* Bytes of all pieces of dp rank `dp_rank`, from model_shape. */
double pieces_measure(const struct model *m, int dp_rank, int zero);
void pieces_copy(const struct pieces *p, int i, char *out);
/* Piece i straight out of the memory of training into its file. */
int pieces_put(const struct pieces *p, int i, struct ckpt_shard *f, struct err *e);

#endif
