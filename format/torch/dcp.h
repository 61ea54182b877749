/* dcp.h - private to the room: the metadata of PyTorch Distributed Checkpoint, which Megatron's torch_dist
 * uses too.
 *
 * .metadata is a pickle: for every tensor its global size and its chunks (offsets, sizes), for every chunk a
 * file and a range of bytes in it, which hold a torch.save zip of their own. Source:
 * torch/distributed/checkpoint/metadata.py, filesystem.py (described, not copied). */
#ifndef SHARDLINE_FORMAT_TORCH_DCP_H
#define SHARDLINE_FORMAT_TORCH_DCP_H

#include "format/torch/torch_build.h"

struct dcp_part {
    int64_t start[TORCH_DIMS], size[TORCH_DIMS];
    int file; /* -1: not stored */
    int64_t at, length;
};
struct dcp_item {
    const char *key;  /* n_key bytes */
    int n_key, order; /* order: in the file, which is that of the state_dict */
    int is_tensor;    /* else: an object, one part */
    enum torch_dtype dtype;
    int n_dims;
    int64_t shape[TORCH_DIMS];
    /* where it stood in the saved object: tuple of names and numbers; or NULL */
    const struct pk *path;
    int first, n; /* its parts */
};
struct dcp {
    struct ckpt *c;
    char *name; /* ".metadata", for messages with its folder in front */
    void *text;
    struct pk_doc doc;
    struct dcp_item *item; /* by key */
    int n_items;
    struct dcp_part *part;
    int n_parts;
    /* files by name */
    struct {
        char *name;
        int file;
    } * seen;
    int n_seen;
};

/* Reads sub/.metadata (sub "" or "iter_0000010/"), checks that every chunk has a place inside a file that is
 * there. */
int dcp_open(struct dcp *d, struct ckpt *c, const char *sub, struct err *e);
void dcp_close(struct dcp *d);
const struct dcp_item *dcp_find(const struct dcp *d, const char *key);
int dcp_ranks(const struct dcp *d); /* that wrote files, by the files' names */
int dcp_starts(const struct dcp_item *x, const char *prefix);
/* Opens the file of a part: its tensor, which has the part's shape. */
int dcp_tensor(struct dcp *d, const struct dcp_item *x, const struct dcp_part *p, struct torch_file *t,
               struct torch_tensor *out, struct err *e);
/* Part p of item x as a chunk of the global array. */
int dcp_chunk(struct dcp *d, const struct dcp_item *x, const struct dcp_part *p, struct chunk *k,
              struct err *e);
/* The object of an item that is none of tensors: t stays open. */
int dcp_object(struct dcp *d, const struct dcp_item *x, struct torch_file *t, struct err *e);
/* A tensor with one element. */
int dcp_number(struct dcp *d, const struct dcp_item *x, double *out, struct err *e);

#endif
