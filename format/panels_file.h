/* panels_file.h - where a checkpoint of the serve format has its weights, for programs that map its file
 * (FORMAT.md, "Panels").
 *
 * A *pack* is the weights of one product: panels of 32 outputs, `stride` bytes from one to the next, each all
 * of the contraction, leaf after leaf. A *run* is neighbouring outputs of one tensor. It begins with a panel
 * of its own, and its last panel is filled up to 32 outputs with +0.
 *
 * Everything is owned by the checkpoint and constant until ckpt_close: any thread. */
#ifndef SHARDLINE_FORMAT_PANELS_FILE_H
#define SHARDLINE_FORMAT_PANELS_FILE_H

#include "format/ckpt.h"

/* How the elements of a panel are stored (FORMAT.md has a section a kind). */
enum ckpt_panel_kind { CKPT_PANELS_PLAIN, CKPT_PANELS_B12, CKPT_PANEL_KINDS };

struct ckpt_run {
    int tensor, pack; /* ckpt_tensor(), ckpt_pack() */
    struct box box;   /* of the tensor: one index of every dim but two, and all of the pack's contraction: */
    int out_dim, in_dim; /* the dims that count outputs and elements of the contraction */
    int64_t offset;      /* of its first panel: byte of the file */
    int64_t n;           /* outputs */
    int is_copy;         /* the tensor has these elements elsewhere too (the table of a tied head) */
};
struct ckpt_pack {
    int unit; /* of the model: 0 the embedding, 1 … L the layers, L + 1 the end; then those that predict
                 further tokens */
    int file; /* ckpt_file_path() */
    enum ckpt_panel_kind kind;
    enum stored_dtype dtype;       /* of its tensors */
    int64_t offset, bytes, stride; /* in the file; offset is a multiple of 64 */
    int64_t k;                     /* elements of the contraction */
    int n_leaves;
    const int64_t *leaf_end;    /* [n_leaves] elements of the contraction */
    const int64_t *leaf_offset; /* [n_leaves + 1] bytes from the first one of a panel; the last is stride */
    int n_runs;
    const struct ckpt_run *run; /* in the order of the outputs */
};

/* As a manifest has it: "plain". */
const char *ckpt_panel_kind_name(enum ckpt_panel_kind kind);
/* 0: c is not of the serve format. */
int ckpt_n_packs(const struct ckpt *c);
const struct ckpt_pack *ckpt_pack(const struct ckpt *c, int i);
/* The runs of a tensor: how many. *out: sorted by is_copy, then by the box's start. */
int ckpt_runs_of(const struct ckpt *c, int tensor, const struct ckpt_run *const **out);

/* The files with data. */
const char *ckpt_file_path(const struct ckpt *c, int file);
int64_t ckpt_file_bytes(const struct ckpt *c, int file);

/* The blocks of 1 MiB that have a checksum, of all files together. */
int64_t ckpt_n_blocks(const struct ckpt *c);
/* Reads a block and checks its sum. ERR_INTEGRITY names the file and the bytes; a file that was cut is an
 * error, too. Any thread, several at once. */
int ckpt_check_block(struct ckpt *c, int64_t block, struct err *e);

#endif
