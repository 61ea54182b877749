/* dcp.h - private to room format: reads the metadata of PyTorch Distributed Checkpoint, which Megatron's
 * torch_dist uses too.
 *
 * .metadata is a pickle. It has the global size and the chunks (offsets, sizes) of every tensor, and the
 * file and range of bytes of every chunk; those bytes are a zip of torch.save. Source:
 * torch/distributed/checkpoint/metadata.py, filesystem.py (described, not copied). */
#ifndef SHARDLINE_FORMAT_DCP_DCP_H
#define SHARDLINE_FORMAT_DCP_DCP_H

#include "format/torch/titan_names.h"
#include "format/torch/torch_build.h"

struct dcp_part {
    int64_t start[TORCH_DIMS], size[TORCH_DIMS];
    int file;           /* -1: not stored */
    int64_t at, length; /* bytes of the file */
};
struct dcp_item {
    const char *key;  /* n_key bytes */
    int n_key, order; /* order: its number in the file, which has the order of the state_dict */
    int is_tensor;    /* 0: an object of one part */
    enum torch_dtype dtype;
    int n_dims;
    int64_t shape[TORCH_DIMS];
    /* its place in the saved object, a tuple of names and numbers; or NULL */
    const struct pk *path;
    int first, n; /* its parts */
};
struct dcp {
    struct ckpt *c;
    char *name; /* the path of .metadata, for messages */
    void *text;
    struct pk_doc doc;
    struct dcp_item *item; /* sorted by key */
    int n_items;
    struct dcp_part *part;
    int n_parts;
    /* data files, sorted by name */
    struct {
        char *name;
        int file;
    } * seen;
    int n_seen;
    struct titan titan; /* of the model's config.json */
    int is_titan;       /* it has torchtitan's names */
};

/* Reads sub/.metadata (sub "" or "iter_0000010/") and checks that every chunk is in an existing file.
 * Returns 0 or a negative code. */
int dcp_open(struct dcp *d, struct ckpt *c, const char *sub, struct err *e);
void dcp_close(struct dcp *d);
/* The item of this key; NULL: none. */
const struct dcp_item *dcp_find(const struct dcp *d, const char *key);
int dcp_ranks(const struct dcp *d); /* ranks that wrote files, by the files' names */
/* 1: the key of x starts with prefix. */
int dcp_starts(const struct dcp_item *x, const char *prefix);
/* Opens the zip of a part as t, which the caller closes; *out is its tensor, of the part's shape.
 * ERR_FORMAT. */
int dcp_tensor(struct dcp *d, const struct dcp_item *x, const struct dcp_part *p, struct torch_file *t,
               struct torch_tensor *out, struct err *e);
/* Fills k with part p of item x, as a chunk of the global array. */
int dcp_chunk(struct dcp *d, const struct dcp_item *x, const struct dcp_part *p, struct chunk *k,
              struct err *e);
/* Adds attention of a torchtitan model, whose rows are in another order than Hugging Face's; x's dtype is
 * known. ERR_CONFIG: config.json has other heads. */
int dcp_titan_add(struct build *b, struct dcp *d, const struct dcp_item *x, enum ckpt_role role,
                  const struct titan_name *name, struct err *e);
/* 1: this tensor of a torchtitan model follows from config.json: the table of RoPE, a head that is the
 * embedding. */
int dcp_titan_follows(const struct dcp *d, const char *name, int n);
/* Opens the zip of an item that is an object as t, which the caller closes. */
int dcp_object(struct dcp *d, const struct dcp_item *x, struct torch_file *t, struct err *e);
/* The value of an item that is a tensor with one element. */
int dcp_number(struct dcp *d, const struct dcp_item *x, double *out, struct err *e);

#endif
