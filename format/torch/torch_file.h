/* torch_file.h - private to room format: reads files of torch.save. Such a file is a zip with a pickle and
 * one record for each storage, or the older stream of five pickles followed by the storages. It may be a file
 * or a part of one (PyTorch DCP).
 *
 * The pickle is parsed to nodes (pickle.h). A tensor is a view of a storage: torch_tensor finds its place
 * in the file and reads no data. */
#ifndef SHARDLINE_FORMAT_TORCH_TORCH_FILE_H
#define SHARDLINE_FORMAT_TORCH_TORCH_FILE_H

#include "format/torch/pickle.h"
#include "format/torch/zip.h"

enum torch_dtype {
    TORCH_F32,
    TORCH_F64,
    TORCH_F16,
    TORCH_BF16,
    TORCH_I64,
    TORCH_I32,
    TORCH_I16,
    TORCH_I8,
    TORCH_U8,
    TORCH_BOOL,
    TORCH_U16,
    TORCH_U32,
    TORCH_U64,
    TORCH_C64,
    TORCH_C128,
    TORCH_F8_E4M3,
    TORCH_F8_E5M2,
    TORCH_F8_E8M0,
    TORCH_F8_E4M3FNUZ,
    TORCH_F8_E5M2FNUZ,
    TORCH_BYTES,
    TORCH_DTYPES
};
/* Name ("float32"), bytes of an element, and our dtype: enum stored_dtype, or -1. */
const char *torch_dtype_name(enum torch_dtype t);
int64_t torch_dtype_size(enum torch_dtype t);
int torch_dtype_known(enum torch_dtype t);

struct torch_storage {
    const char *key;
    int n_key;
    int64_t data, bytes; /* data: its first byte in the file */
    struct zip_entry *record;
};
struct torch_file {
    struct ckpt *c;
    int file;
    int is_zip;
    struct zip zip;
    void *text;           /* the bytes of the pickles */
    struct pk_doc doc[5]; /* zip: one; stream: magic, version, system, object, keys */
    struct pk *root;
    struct torch_storage *storage; /* by key */
    int n_storages;
};

#define TORCH_DIMS 8
struct torch_tensor {
    enum torch_dtype dtype;
    int n_dims;
    int64_t shape[TORCH_DIMS], stride[TORCH_DIMS]; /* elements */
    int64_t n;                                     /* elements */
    int64_t offset;                                /* the byte of the file at which the first one is */
    int contiguous;                                /* row-major */
    struct zip_entry *record;                      /* its storage's; NULL in a stream */
};

/* Opens bytes [base, base + length) of a file of c; close it before c. Returns 0 or a negative code.
 * ERR_FORMAT: not a file of torch.save, or one that is not supported. */
int torch_open(struct torch_file *t, struct ckpt *c, int file, int64_t base, int64_t length, struct err *e);
void torch_close(struct torch_file *t);
int torch_is_tensor(const struct pk *p); /* 1: the node is a tensor */
/* Describes the tensor p; name: for messages. The view is checked against the storage and the storage
 * against the file; the record's CRC-32 is noted, so that reading its bytes checks it. ERR_FORMAT. */
int torch_tensor(struct torch_file *t, const struct pk *p, const char *name, struct torch_tensor *out,
                 struct err *e);
/* The number p: of the pickle, or of a tensor with one element, which is read. Returns 1: found; 0: p is
 * neither. */
int torch_number(struct torch_file *t, const struct pk *p, const char *name, double *out, struct err *e);
/* 1: the file starts as one of torch.save (zip, stream, or the tar of the oldest versions). */
int torch_looks_like(const char *path);

#endif
