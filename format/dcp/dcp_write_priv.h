/* dcp_write_priv.h - shared by dcp_write.c and dcp_write_meta.c: which bytes are written where. */
#ifndef SHARDLINE_FORMAT_DCP_DCP_WRITE_PRIV_H
#define SHARDLINE_FORMAT_DCP_DCP_WRITE_PRIV_H

#include "format/dcp_write.h"
#include "format/fmt.h"
#include "format/torch/torch_write.h"

struct dcp_chunk {
    int tensor;
    struct box box;
    int64_t at, length; /* its zip: first byte in the file, bytes */
    int64_t data;       /* its elements: first byte in the file */
    int64_t done;       /* bytes of elements written so far */
    uint32_t crc;
    int in_parts; /* crc is the sum of parts (crc32.h) */
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
