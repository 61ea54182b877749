/* fmt.h - private to the room: the tables of a checkpoint, which a driver fills, and the drivers.
 *
 * A driver only makes tables: files, logical tensors, and pieces (where in which file a part of a tensor
 * lies). One reader (read.c) serves them all; files with block checksums are read in whole blocks and
 * checked. */
#ifndef SHARDLINE_FORMAT_FMT_H
#define SHARDLINE_FORMAT_FMT_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include "base/io.h"
#include "format/ckpt.h"
#include "format/ckpt_proof.h"
#include "format/ckpt_view.h"

#define FMT_BLOCK ((int64_t)1 << 20) /* bytes that one checksum of the native format covers */
#define FMT_NAME_MAX 512             /* bytes of a tensor's name */
#define FMT_MANIFEST_MAX ((size_t)1 << 28)
#define FMT_EXTRA_MAX ((size_t)1 << 26) /* a small file; tokenizers are the largest */
#define FMT_MANIFEST "manifest.json"
#define FMT_CONFIG "config.json"
#define FMT_CUTS CKPT_CUTS
#define FMT_ZSTD ".zst" /* how the name of a compressed file ends; with byte planes: */
#define FMT_PLANES_ZSTD ".planes.zst"

/* XXH3-128; as text 32 hex digits, hi first (as xxhsum -H2 prints it). */
struct sum128 {
    uint64_t lo, hi;
};

/* Bytes [begin, end) of a file. */
struct fmt_gap {
    int64_t begin, end;
};
/* Part of a file with a CRC-32 of its own (zip). Where its pieces are row-major and no byte is in two of them
 * (`once`), the sum can be made of the parts that readers pass on, in any order; the gaps between the pieces
 * are read at the end. */
struct fmt_record {
    int64_t begin, bytes, covered; /* covered: bytes that pieces hold */
    uint32_t crc;                  /* as the file's directory has it */
    int once;
    int64_t n_gaps;
    struct fmt_gap *gap;
    _Atomic int checked;
    _Atomic uint32_t parts; /* sum of the parts so far, `passed` bytes */
    _Atomic int64_t passed;
};

struct fmt_file {
    char *name, *path;   /* path: for messages */
    char *real;          /* the path that opens it, where that is another one; or NULL */
    int64_t bytes;       /* of a compressed file: those of the plain one */
    int64_t data;        /* first byte behind the header */
    struct io_mark mark; /* taken before the header is read */

    /* Native: XXH64 of each block; NULL: the format has none. */
    uint64_t *block;
    struct sum128 sum;           /* of all block checksums */
    _Atomic unsigned char *seen; /* [blocks] 1: checked since the checkpoint was opened */
    _Atomic uint32_t *proven;    /* [blocks] bytes read for a caller that compares digests; NULL: none yet */
    _Atomic int head_checked;

    /* Compressed: where the frame of each block begins in the stored file, and the end; NULL: not compressed.
     * width: of byte planes, the bytes of an element in each block; NULL: no planes. */
    int64_t *frame;
    unsigned char *width;

    struct fmt_record *record; /* sorted by begin; NULL: none */
    int64_t n_records;

    int fd, users; /* -1: not open. users: calls between fmt_acquire and fmt_release */
    uint64_t used; /* clock of the last use: the file that is idle for longest is closed first */
};

struct fmt_piece {
    int tensor, file;
    int64_t offset; /* bytes, in the (plain) file */
    struct box box;
    int64_t lo, hi; /* elements of the box in row-major order */
    /* Elements from one index of a dim to the next, owned by the checkpoint; lo is 0 and hi the whole box.
     * NULL: row-major. */
    const int64_t *stride;
    int64_t run; /* 1 + the number of a run of panels that the piece is (panels_table.h); 0: it is none */
};

/* A small file beside the weights. */
struct fmt_extra {
    char *name;
    int64_t bytes;
    struct sum128 sum; /* valid when has_sum */
    int has_sum;
    /* Makes its bytes, which the caller frees, where it is no file; NULL: it is one. */
    int (*make)(struct ckpt *c, const char *name, void **data, size_t *bytes, struct err *e);
};

/* Blocks kept for the next read: as many files as usually share one tensor, twice, because a piece may lie in
 * two blocks. data NULL: empty. */
#define FMT_CACHE 16
struct fmt_cached {
    int file;
    int64_t block;
    char *data;
};

struct ckpt {
    char *opened;     /* of a URL whose versions change: the URL, with its key; or NULL */
    char *path, *dir; /* dir: the folder; of a single file the one that it lies in */
    int hold;         /* keeps other processes from removing an unpublished folder (tmp_folder_hold), or -1 */
    const char *driver;

    int n_tensors, n_files, n_extra;
    int64_t n_pieces;
    struct ckpt_tensor *tensor; /* sorted by role and name; names owned */
    struct fmt_file *file;
    struct fmt_piece *piece; /* sorted by tensor */
    int64_t *first_piece;    /* [n_tensors + 1] */
    struct fmt_extra *extra;

    struct ckpt_state state;
    struct ckpt_layout layout;
    char *run_json;          /* state.run_json */
    int64_t *counts;         /* state.counts.count */
    char *config;            /* text of config.json; or NULL */
    const char *config_path; /* ckpt_open_opts; NULL after the opening */
    char *writer;            /* framework and version that wrote it; NULL: native, Hugging Face */
    int n_ranks;             /* ranks that wrote it; 0: unknown */
    char *note;              /* what was found and left out, one line; or NULL */
    void **owned;            /* memory of the driver, freed by ckpt_close */
    int n_owned;

    pthread_mutex_t lock; /* of open files and cached blocks */
    int n_open;
    uint64_t clock;
    struct fmt_cached cache[FMT_CACHE];
    int cache_next;
    _Atomic int64_t bytes_read;

    struct url_cache *remote;  /* where the files come from; NULL: this machine */
    struct memory_set *memory; /* they are in memory; or NULL */
    struct store *live;        /* large files are read here (versioned.c); or NULL */
    char live_version[80];     /* of live, or of a file of its server: STEP-DIGEST; or "" */
    int is_shared;             /* memory has the server's own files: live is NULL then */
    int read_once;             /* what was read is dropped (ckpt_open_opts.unpublished) */
    int is_done;      /* after ckpt_end_reading of a URL: what is not present does not come any more */
    int64_t received; /* bytes received until then */

    char **tail; /* [n_tails] of struct ckpt_tensor */
    int n_tails;

    /* A view (ckpt_view.h) has only this, tensors and perhaps config; NULL: a checkpoint with files. */
    struct fmt_view *view;
    struct gguf_model *gguf;   /* of the driver of GGUF; or NULL */
    struct fmt_panels *panels; /* of the serve format; or NULL */
};

/* ---- views (ckpt_view.c) ---- */

/* The checkpoint with files under a stack of views; c itself where it is no view. */
struct ckpt *fmt_bottom(const struct ckpt *c);
/* ckpt_read_range of a view; trusted: ckpt_read_unproven. The box and the range lie in the tensor. */
int fmt_view_read(struct ckpt *c, int i, const struct box *b, int64_t lo, int64_t hi, int trusted, void *dst,
                  struct err *e);
/* Its small files: as ckpt_n_extra, ckpt_extra_name and ckpt_extra_read. */
int fmt_view_n_extra(const struct fmt_view *v);
const char *fmt_view_extra_name(const struct fmt_view *v, int i);
int fmt_view_extra_read(const struct fmt_view *v, int i, void **data, size_t *bytes, struct err *e);
/* Closes the checkpoint below too. NULL is allowed. */
void fmt_view_free(struct fmt_view *v);

/* probe: 1 when the path (c->path, c->dir; a folder or a file) is one of this driver. open: fills the tables
 * of c. A row each in ckpt.c. */
struct fmt_driver {
    const char *name;
    int (*probe)(const struct ckpt *c, int is_folder);
    int (*open)(struct ckpt *c, int is_folder, struct err *e);
};
/* The functions of the drivers: struct fmt_driver says what they do. */
int native_probe(const struct ckpt *c, int is_folder);
int native_open(struct ckpt *c, int is_folder, struct err *e);
int torch_probe(const struct ckpt *c, int is_folder);
int torch_open_ckpt(struct ckpt *c, int is_folder, struct err *e);
int dcp_probe(const struct ckpt *c, int is_folder);
int dcp_open_ckpt(struct ckpt *c, int is_folder, struct err *e);
int dcp_hf_probe(const struct ckpt *c, int is_folder);
int dcp_hf_open(struct ckpt *c, int is_folder, struct err *e);
int deepspeed_probe(const struct ckpt *c, int is_folder);
int deepspeed_open(struct ckpt *c, int is_folder, struct err *e);
int megatron_probe(const struct ckpt *c, int is_folder);
int megatron_open(struct ckpt *c, int is_folder, struct err *e);
int gguf_probe(const struct ckpt *c, int is_folder);
int gguf_open(struct ckpt *c, int is_folder, struct err *e);
/* Replaces an open checkpoint of GGUF by a view of it where tensors are computed; another one stays. */
int gguf_present(struct ckpt **c, struct err *e);
void gguf_model_free(struct gguf_model *m); /* NULL is allowed */
int hf_probe(const struct ckpt *c, int is_folder);
int hf_open(struct ckpt *c, int is_folder, struct err *e);

#include "format/read.h"
#include "format/tables.h"

#endif
