/* gguf_file.h - private to the room: the header of one GGUF file, parsed strictly from memory. Every count,
 * length, offset and type of the file is compared with the bytes that exist before it is used. No global
 * state: any thread may call these functions. */
#ifndef SHARDLINE_FORMAT_GGUF_GGUF_FILE_H
#define SHARDLINE_FORMAT_GGUF_GGUF_FILE_H

#include <stddef.h>
#include "base/box.h"
#include "base/err.h"
#include "format/gguf/gguf.h"

/* Bytes of a header that are read at first; doubled until the header is whole. */
#define GGUF_HEADER_FIRST ((int64_t)1 << 20)
#define GGUF_HEADER_MAX ((int64_t)1 << 27)

/* A text of the file: no NUL behind it. */
struct gguf_text {
    const char *p;
    int64_t n;
};
struct gguf_meta {
    struct gguf_text key;
    enum gguf_value type, of;  /* of: of an array's elements */
    int64_t n;                 /* elements of an array, bytes of a text; else 1 */
    const unsigned char *data; /* the value, the text's bytes, or the first element */
};
struct gguf_tensor {
    char *name; /* owned */
    const struct gguf_type_row *type;
    int n_dims;
    int64_t shape[BOX_DIMS]; /* slowest dim first, as torch writes it */
    int64_t offset, bytes;   /* offset: in the file */
};
struct gguf_file {
    const unsigned char *bytes; /* borrowed; keys, values and texts lie in it */
    const char *path;           /* for messages; borrowed */
    int64_t alignment, data;    /* data: where the data begin */
    int n_meta, n_tensors;
    struct gguf_meta *meta;     /* sorted by key */
    struct gguf_tensor *tensor; /* in the order of the file */
};

/* Parses the first n bytes of a file of `file_bytes` bytes. 0: *f is filled and must be freed. 1: the header
 * has more than n bytes (never when n is file_bytes); *f is empty. ERR_FORMAT names the file, the key or
 * tensor, and both numbers. p must outlive *f. */
int gguf_parse(struct gguf_file *f, const void *p, int64_t n, int64_t file_bytes, const char *path,
               struct err *e);
/* Frees what gguf_parse allocated, and zeroes *f. */
void gguf_file_free(struct gguf_file *f);

/* ---- metadata ---- */

/* The entry of that key, or NULL. */
const struct gguf_meta *gguf_meta_find(const struct gguf_file *f, const char *key);
/* These give 1 and *out when the key is there with a number (or element i of an array of numbers) or a text,
 * 0 when it is absent or has another type. Signed numbers, floats and bools become what is asked for. */
int gguf_int(const struct gguf_file *f, const char *key, int64_t *out);
int gguf_float(const struct gguf_file *f, const char *key, double *out);
int gguf_get_text(const struct gguf_file *f, const char *key, struct gguf_text *out);
/* Element i of an array of numbers; i lies in it. */
int64_t gguf_array_int(const struct gguf_meta *m, int64_t i);
double gguf_array_float(const struct gguf_meta *m, int64_t i);
/* The text at *at of an array of texts, whose first is at m->data; moves *at to the next. */
struct gguf_text gguf_next_text(const unsigned char **at);
/* 1: the same bytes. */
int gguf_text_is(struct gguf_text t, const char *s);

#endif
