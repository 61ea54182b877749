/* torch_write.h - private to the room: a file of torch.save written, alone or in the middle of a larger one
 * (PyTorch DCP).
 *
 *   data.pkl  .format_version  .storage_alignment  byteorder  data/0 … data/N-1  version  directory
 *   stored, never compressed
 * The pickle and the sizes of the storages say where every byte goes, so storages are written where they
 * belong as they come, in any order of storages, and the zip around them when their CRC-32 are known. Every
 * storage begins at a multiple of 64 bytes of the zip. */
#ifndef SHARDLINE_FORMAT_TORCH_TORCH_WRITE_H
#define SHARDLINE_FORMAT_TORCH_TORCH_WRITE_H

#include "format/torch/pickle_write.h"

/* at: in the zip */
struct torch_part {
    int64_t bytes, at;
    uint32_t crc;
};
struct torch_out {
    /* the folder that all names begin with; "archive" when torch writes to a stream */
    const char *root;
    const void *pickle;
    size_t n_pickle;
    int n; /* storages */
    struct torch_part *part;
    int64_t length; /* of the whole */
};
/* Fills in where the storages lie and how long all will be. */
int torch_out_plan(struct torch_out *z, struct err *e);
/* Writes everything but the storages, whose crc must be there. base: of the zip in the file. */
int torch_out_frame(const struct torch_out *z, int fd, const char *path, int64_t base, struct err *e);
/* A whole file of n_bytes storages that lie in memory (data[i]; n 0: none): what small ones are. */
int torch_out_file(const char *path, const char *root, const struct pkw *w, int n, const void *const *data,
                   const int64_t *bytes, struct err *e);

#endif
