/* dcp_write_priv.h - between dcp_write.c and dcp_write_meta.c: what is written where. */
#ifndef SHARDLINE_FORMAT_TORCH_DCP_WRITE_PRIV_H
#define SHARDLINE_FORMAT_TORCH_DCP_WRITE_PRIV_H

#include "format/dcp_write.h"
#include "format/fmt.h"
#include "format/torch/torch_write.h"

struct dcp_chunk {
    int tensor;
    struct box box;
    int64_t at, length, data; /* its zip in the file; its elements in the file */
    int64_t done;
    uint32_t crc;
};
struct dcp_file {
    char name[40], *path;
    int fd, n, ours;
    struct dcp_chunk *item;
};
struct dcp_write {
    char *dir;
    int n, n_files;
    const struct ckpt_tensor *t;
    struct dcp_file *file;
};

#endif
