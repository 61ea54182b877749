/* ckpt_view.h - a checkpoint made of another one: tensors passed on under their own or another name, and
 * tensors that are computed when they are read.
 *
 *     source -> dequantised -> adapter merged -> quantised     each arrow is a view
 *
 * A view is an ordinary struct ckpt: all functions of ckpt.h and ckpt_proof.h take one. A tensor that is
 * passed on keeps the digest that the source claims, a computed one has none. State, layout, remarks,
 * checksums and what was proven are those of the checkpoint at the bottom. */
#ifndef SHARDLINE_FORMAT_CKPT_VIEW_H
#define SHARDLINE_FORMAT_CKPT_VIEW_H

#include "format/ckpt.h"

/* Writes the elements [lo, hi) of the row-major order of box b, which lies in the computed tensor, to dst, in
 * the dtype of that tensor. below: what to read from, with ckpt_read or ckpt_read_range. Called from several
 * threads at once. Scratch memory: about 1 MiB. The result may depend on nothing but the elements asked for:
 * a tensor is read in parts of any size, and twice where it is proven. */
typedef int ckpt_compute(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi,
                         void *dst, struct err *e);

struct ckpt_view_tensor {
    /* Name (copied) and role. A computed tensor also needs dtype and shape; one that is passed on has those
     * of the tensor below. The digest is not used. */
    struct ckpt_tensor t;
    int from; /* >= 0: tensor `from` of the checkpoint below, as it is; -1: computed */
    ckpt_compute *compute;
    void *arg; /* borrowed until ckpt_close */
};

/* A small file that the view has in place of the one below, or besides those. text NULL: the view has none of
 * that name. */
struct ckpt_view_file {
    const char *name, *text;
};

struct ckpt_view_opts {
    const char *config; /* the text of config.json (copied); NULL: that of the checkpoint below */
    /* Called by ckpt_close with `owned`, and by ckpt_view_open when it fails; NULL: nothing to free. */
    void *owned;
    void (*free_owned)(void *owned);
    int n_files;
    const struct ckpt_view_file *file; /* copied */
};

/* Makes a view of n tensors, in any order. It owns `below` from now on, also after an error. how NULL: no
 * options. ERR_FORMAT: a name or shape that no checkpoint may have, or two tensors of the same role and
 * name. */
int ckpt_view_open(struct ckpt **out, struct ckpt *below, int n, const struct ckpt_view_tensor *t,
                   const struct ckpt_view_opts *how, struct err *e);

/* 1: tensor i is computed when it is read, in this view or in one below. */
int ckpt_is_computed(const struct ckpt *c, int i);
/* The checkpoint below a view; NULL: c is no view. */
struct ckpt *ckpt_below(const struct ckpt *c);

#endif
