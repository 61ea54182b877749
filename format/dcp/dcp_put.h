/* dcp_put.h - private to room format: what every writer of a DCP folder puts into .metadata: the shape and
 * the chunks of a tensor, the place of every chunk. Keys are the caller's; two keys may name one tensor. The
 * put functions only append to the pickle, pkw_end reports their errors. */
#ifndef SHARDLINE_FORMAT_DCP_DCP_PUT_H
#define SHARDLINE_FORMAT_DCP_DCP_PUT_H

#include "format/dcp/dcp_write_priv.h"

/* the file of objects that are not tensors */
#define DCP_OBJECTS "__0_2.distcp"

/* The chunks of every tensor, in the order of the files: chunk[first[i]] to chunk[first[i + 1] - 1]. */
struct dcp_chunks {
    struct dcp_chunk_ref {
        int file, item;
    } * chunk;
    int *first;
};
/* Lists the chunks of w. ERR_MEMORY. Free with dcp_chunks_free, also after an error. */
int dcp_chunks_sort(struct dcp_chunks *b, const struct dcp_write *w, struct err *e);
void dcp_chunks_free(struct dcp_chunks *c);

/* The value of a key in state_dict_metadata: a tensor of w, a scalar in one chunk, an object. */
void dcp_put_tensor(struct pkw *p, const struct dcp_write *w, const struct dcp_chunks *c, int tensor);
void dcp_put_scalar(struct pkw *p, enum stored_dtype t);
void dcp_put_object(struct pkw *p);
/* An entry of storage_data: `length` bytes at byte `at` of a file. n_dims -1: an object. */
void dcp_put_place(struct pkw *p, const char *key, int n_dims, const int64_t *start, const char *file,
                   int64_t at, int64_t length);
void dcp_put_tensor_places(struct pkw *p, const struct dcp_write *w, const struct dcp_chunks *c, int tensor,
                           const char *key);

/* The three sections of .metadata: each puts keys and values. paths NULL: none. */
struct dcp_sections {
    void *arg;
    void (*contents)(void *arg);
    void (*paths)(void *arg);
    void (*places)(void *arg);
};
/* Writes dir/.metadata. p: zeroed; the caller frees it. */
int dcp_put_metadata(struct pkw *p, const char *dir, const struct dcp_sections *s, struct err *e);

#endif
