/* torch_write.h - private to room format: writes a file of torch.save, as a file or as a part of one (PyTorch
 * DCP).
 *
 *   data.pkl  .format_version  .storage_alignment  byteorder  data/0 … data/N-1  version  directory
 *
 * Records are stored, never compressed. The pickle and the sizes of the storages fix the place of every
 * byte, so the caller writes the storages to their places in any order, and the rest of the zip
 * (torch_out_frame) when their CRC-32 are known. Every storage starts at a multiple of 64 bytes of the
 * zip. Unless noted, functions return 0 or a negative code: ERR_MEMORY, ERR_FILE, ERR_SPACE. */
#ifndef SHARDLINE_FORMAT_TORCH_TORCH_WRITE_H
#define SHARDLINE_FORMAT_TORCH_TORCH_WRITE_H

#include "format/torch/pickle_write.h"

/* A storage. */
struct torch_part {
    int64_t bytes, at; /* at: its first byte in the zip */
    uint32_t crc;
};
struct torch_out {
    /* the folder in front of all names; "archive" when torch writes to a stream */
    const char *root;
    const void *pickle;
    size_t n_pickle;
    int n; /* storages */
    struct torch_part *part;
    int64_t length; /* bytes of the whole zip */
};
/* Fills in the places of the storages and the length of the zip. */
int torch_out_plan(struct torch_out *z, struct err *e);
/* Writes everything but the storages, whose crc must be set. base: the byte of the file at which the zip
 * starts. */
int torch_out_frame(const struct torch_out *z, int fd, const char *path, int64_t base, struct err *e);
/* Writes a whole file with n storages from memory: bytes[i] bytes at data[i]. */
int torch_out_file(const char *path, const char *root, const struct pkw *w, int n, const void *const *data,
                   const int64_t *bytes, struct err *e);

#endif
