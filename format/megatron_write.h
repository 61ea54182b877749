/* megatron_write.h - a Megatron checkpoint of the kind torch_dist written, whose optimizer state is fully
 * reshardable: Megatron-Core loads it at any tp, pp, ep and dp.
 *
 *   __R_0.distcp, __R_1.distcp   weights and optimizer state of rank R, as boxes of Megatron's global arrays
 *   __0_2.distcp                 the empty extra states of layers, which Megatron asks for
 *   .metadata                    the arrays, their chunks and places (PyTorch DCP)
 *   common.pt                    arguments, iteration, param_groups, scheduler, shardline_state
 *   metadata.json                the kind of checkpoint
 *
 * Layers are stacked in the first dim where all have the same tensors, else a layer has arrays of its own;
 * experts are stacked. The model is one of those that mg_rows (megatron/megatron.h) names. As for
 * dcp_write.h, processes that share the work each open all of it and write their own files; one seals.
 * Source: dist_checkpointing and optimizer of megatron/core (described, not copied). */
#ifndef SHARDLINE_FORMAT_MEGATRON_WRITE_H
#define SHARDLINE_FORMAT_MEGATRON_WRITE_H

#include "format/ckpt_write.h"

/* files a rank: weights, optimizer state; file number = rank * MEGATRON_KINDS + kind */
#define MEGATRON_KINDS 2

struct megatron_write;
/* What is written. All pointers are borrowed until the end. */
struct megatron_target {
    const char *dir;    /* an existing folder */
    const char *config; /* text of config.json */
    int n;
    const struct ckpt_tensor *t; /* under Hugging Face names */
    int n_files;
    const int *n_pieces; /* of every file */
    const char *ours;    /* [n_files] 1: this process writes it */
    /* 1: param_groups of dense and expert parameters apart, as Megatron has them with ep > 1 */
    int chained;
};
/* ERR_USAGE: a model that Megatron-Core has no layers for, or a dtype that the format cannot hold.
 * ERR_CONFIG: config.json and tensors disagree. */
int megatron_write_open(struct megatron_write **out, const struct megatron_target *what, struct err *e);
/* Says that piece `index` of file f is box b of a tensor. Call it for all pieces before megatron_write_start,
 * which lays out the files and creates those of this process. ERR_USAGE: the pieces do not fill an array. */
int megatron_write_piece(struct megatron_write *w, int f, int index, int tensor, const struct box *b,
                         struct err *e);
int megatron_write_start(struct megatron_write *w, struct err *e);
/* Writes the next n elements of a piece, in its row-major order. Different pieces may be written from
 * different threads. */
int megatron_write_put(struct megatron_write *w, int f, int index, const void *data, int64_t n,
                       struct err *e);
/* Writes checksums and directories of file f, fsyncs and closes it. */
int megatron_write_close(struct megatron_write *w, int f, struct err *e);
/* One process, when all files are closed: writes the other files, fsyncs the folder. On error the folder is
 * removed. */
int megatron_write_seal(struct megatron_write *w, const struct ckpt_meta *meta, struct err *e);
/* Frees w; the folder stays. NULL is allowed. */
void megatron_write_free(struct megatron_write *w);

#endif
