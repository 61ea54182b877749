/* pieces.h - what one rank writes into a checkpoint: a list that the layout decides, and where its bytes
 * are. */
#ifndef SHARDLINE_TRAIN_CHECKPOINT_PIECES_H
#define SHARDLINE_TRAIN_CHECKPOINT_PIECES_H

#include "format/ckpt_write.h"
#include "train/zero/zero.h"

struct piece_source;
struct pieces {
    const struct model *m;
    const struct zero *z;
    int n;
    struct ckpt_piece *piece;
    struct piece_source *source;
    size_t *at;   /* where piece i begins in a copy of all of them */
    size_t bytes; /* size of that copy */
    /* The first n_given pieces have their bytes here, at `at`, and nowhere else; borrowed. */
    const char *given;
    int n_given;
    int of_adapter; /* names in files are those of PEFT */
    char **name;    /* [parameters]: these */
};

/* Lists the pieces of dp rank dp_rank in ZeRO stage `zero`, in the order weights, masters, moments.
 * Borrows m and z; z may be NULL when only sizes are asked for. ERR_MEMORY. */
int pieces_open(struct pieces *p, const struct model *m, const struct zero *z, int dp_rank, int zero,
                struct err *e);
void pieces_close(struct pieces *p);
/* The same without the pieces of weights, but, with `whole`, every tensor's weights as one piece: the first
 * n_given ones, whose bytes the caller gives before they are copied or written. */
int pieces_open_given(struct pieces *p, const struct model *m, const struct zero *z, int dp_rank, int zero,
                      int whole, struct err *e);
/* The weights alone. */
int pieces_open_weights(struct pieces *p, const struct model *m, const struct zero *z, int dp_rank, int zero,
                        struct err *e);
/* Bytes of all pieces of dp rank dp_rank; m may be from model_shape. */
double pieces_measure(const struct model *m, int dp_rank, int zero);
/* The same of the weights alone. */
double pieces_measure_weights(const struct model *m, int dp_rank, int zero);

/* Copies piece i to out, in host memory. Different pieces from different threads. For states in the device's
 * memory. */
void pieces_copy(const struct pieces *p, int i, char *out);
/* Writes piece i from where training keeps it into its file. After zero_settle_all(). */
int pieces_put(const struct pieces *p, int i, struct ckpt_shard *f, struct err *e);
/* Adds the digest of piece i, as training keeps it, to *d. Not of the n_given first ones. */
int pieces_digest(const struct pieces *p, int i, struct ckpt_digest *d, struct err *e);

#endif
