/* torch_file.h - private to the room: what torch.save writes. A zip of a pickle and one record a storage, or
 * the older stream of five pickles and the storages behind them; as a file of its own or as bytes in the
 * middle of one (PyTorch DCP).
 *
 * The pickle becomes nodes (pickle.h); a tensor is a view of a storage and is turned into a place in the
 * file. No data are read here. */
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
    TORCH_F8_OTHER,
    TORCH_BYTES,
    TORCH_DTYPES
};
const char *torch_dtype_name(enum torch_dtype t);
int64_t torch_dtype_size(enum torch_dtype t);
int torch_dtype_known(enum torch_dtype t); /* enum stored_dtype, or -1 */

/* data: the place in the file */
struct torch_storage {
    const char *key;
    int n_key;
    int64_t data, bytes;
    struct zip_entry *record;
};
struct torch_file {
    struct ckpt *c;
    int file;
    int is_zip;
    struct zip zip;
    void *text;           /* of the pickles */
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
    int64_t offset;                                /* of the first one: byte of the file */
    int contiguous;                                /* row-major */
    struct zip_entry *record;                      /* of its storage; NULL in a stream */
};

/* bytes [base, base + length) of a file of c. ERR_FORMAT says what is wrong. Close it before c. */
int torch_open(struct torch_file *t, struct ckpt *c, int file, int64_t base, int64_t length, struct err *e);
void torch_close(struct torch_file *t);
int torch_is_tensor(const struct pk *p);
/* name: for messages. Every number is checked against the storage, the storage against the file; its CRC-32
 * is noted for reading. */
int torch_tensor(struct torch_file *t, const struct pk *p, const char *name, struct torch_tensor *out,
                 struct err *e);
/* A number: of a tensor with one element (it is read), or of the pickle itself. 1: found, 0: p is neither. */
int torch_number(struct torch_file *t, const struct pk *p, const char *name, double *out, struct err *e);
/* 1: the file begins as one that torch.save writes (zip, stream, or the tar of the oldest versions). */
int torch_looks_like(const char *path);

#endif
