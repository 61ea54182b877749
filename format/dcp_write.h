/* dcp_write.h - a PyTorch Distributed Checkpoint written: for each rank of the target a file of weights and
 * one of optimizer state, and .metadata, which says where every chunk is.
 *
 *   __R_0.distcp   weights of rank R            model.NAME
 *   __R_1.distcp   its optimizer state          optim.state.NAME.{exp_avg,exp_avg_sq,master_param}
 *   __0_2.distcp   steps, options of AdamW      optim.state.NAME.step, optim.param_groups.{0,1,NAME}.lr, …,
 *                                               shardline_state
 *
 * Chunks are boxes of whole tensors. Their places follow from the tables, so that processes that share the
 * work need not communicate: each opens all of it and writes its own files, and one of them seals.
 * ckpt_begin makes the folder, ckpt_reveal publishes it.
 * Source: torch/distributed/checkpoint/{metadata,filesystem}.py and state_dict.py (described, not copied). */
#ifndef SHARDLINE_FORMAT_DCP_WRITE_H
#define SHARDLINE_FORMAT_DCP_WRITE_H

#include "format/ckpt_write.h"

/* files a rank: weights, optimizer state; file number = rank * DCP_KINDS + kind */
#define DCP_KINDS 2

struct dcp_write;
/* n tensors t, borrowed until the end. n_items[f]: chunks in file f; ours[f]: this process writes it.
 * ERR_USAGE: a dtype that the format cannot hold. */
int dcp_write_open(struct dcp_write **out, const char *dir, int n, const struct ckpt_tensor *t, int n_files,
                   const int *n_items, const char *ours, struct err *e);
/* Says that chunk `item` of file f is box b of a tensor. Call it for all chunks before dcp_write_start, which
 * lays out the files and creates those of this process. */
void dcp_write_item(struct dcp_write *w, int f, int item, int tensor, const struct box *b);
int dcp_write_start(struct dcp_write *w, struct err *e);
/* Writes the next n elements of the chunk, in its row-major order. Different chunks may be written from
 * different threads. */
int dcp_write_put(struct dcp_write *w, int f, int item, const void *data, int64_t n, struct err *e);
/* The same for elements at..at + n of the chunk, in any order, each once; different threads may write parts
 * of one chunk. Not together with dcp_write_put. */
int dcp_write_put_at(struct dcp_write *w, int f, int item, int64_t at, const void *data, int64_t n,
                     struct err *e);
/* Writes checksums and directories of file f, fsyncs and closes it. A file of another process: nothing to
 * do. */
int dcp_write_close(struct dcp_write *w, int f, struct err *e);
/* One process, when all files are closed: writes .metadata, config.json and the small files, fsyncs the
 * folder. On error the folder is removed. */
int dcp_write_seal(struct dcp_write *w, const struct ckpt_meta *meta, struct err *e);
/* Frees w; the folder stays. NULL is allowed. */
void dcp_write_free(struct dcp_write *w);

#endif
