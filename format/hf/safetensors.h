/* safetensors.h - private to the room: the safetensors container, read strictly and written canonically.
 * Source: the safetensors README (huggingface/safetensors).
 *
 *     8 bytes: length of the header, little-endian | JSON header, padded with spaces | data of the tensors,
 *     no holes */
#ifndef SHARDLINE_FORMAT_HF_SAFETENSORS_H
#define SHARDLINE_FORMAT_HF_SAFETENSORS_H

#include "format/ckpt.h"

struct st_entry {
    char *name;
    enum stored_dtype dtype;
    int n_dims; /* 0: a scalar */
    int64_t shape[BOX_DIMS];
    char *tail;         /* of struct ckpt_tensor */
    int64_t begin, end; /* bytes, from the start of the data */
};
struct st_table {
    int64_t data; /* first byte of the data in the file */
    int n;
    int metadata;           /* 1: it has a member __metadata__ */
    struct st_entry *entry; /* by begin */
};

/* Reads and checks the header of the open file fd of `bytes` bytes. On success the caller frees *t with
 * st_free. ERR_FORMAT names file, tensor and both numbers. */
int st_read(struct st_table *t, int fd, const char *path, int64_t bytes, struct err *e);
/* The same for n bytes of header text in memory, which a NUL follows. data_bytes: bytes of the file behind
 * it. t->data stays 0. */
int st_parse(struct st_table *t, const char *text, size_t n, int64_t data_bytes, const char *path,
             struct err *e);
/* Frees the entries and zeroes *t. */
void st_free(struct st_table *t);

#define ST_ALIGN 4096
/* Makes the length and header for n entries whose begin and end are set (in order, no holes), padded so that
 * the data start at a multiple of align: ST_ALIGN, or 8 as the safetensors library has it. *head: *bytes
 * bytes, which the caller frees. */
int st_make(const struct st_entry *entry, int n, size_t align, char **head, size_t *bytes, struct err *e);

#endif
