/* fmt.h - private to the room: what every driver fills in, and the pieces of the walk behind ckpt_read().
 *
 * A driver only makes tables: files, logical tensors, and pieces (where in which file a part of a tensor
 * lies). One reader serves them all; files with block checksums are read in whole blocks and checked. */
#ifndef SHARDLINE_FORMAT_FMT_H
#define SHARDLINE_FORMAT_FMT_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include "base/io.h"
#include "format/ckpt.h"
#include "format/ckpt_proof.h"

#define FMT_BLOCK ((int64_t)1 << 20) /* bytes that one checksum of the native format covers */
#define FMT_NAME_MAX 512             /* bytes of a tensor's name */
#define FMT_MANIFEST_MAX ((size_t)1 << 28)
#define FMT_EXTRA_MAX ((size_t)1 << 26) /* tokenizers are the largest of the small files */
#define FMT_VERSION 1
#define FMT_FORMAT "shardline-checkpoint"
#define FMT_FEATURE_ZSTD "zstd"
#define FMT_FEATURE_PLANES "planes"
#define FMT_MANIFEST "manifest.json"
#define FMT_CONFIG "config.json"

/* XXH3-128; as text: 32 hex digits, hi first (as xxhsum -H2 prints it) */
struct sum128 {
    uint64_t lo, hi;
};

struct fmt_gap {
    int64_t begin, end;
};
/* Part of a file with a CRC-32 of its own (zip). Where pieces do not overlap, the sum can be made of the
 * parts that readers pass on (`parts`, of `passed` bytes), in any order; what lies between the pieces is
 * read at the end. */
struct fmt_record {
    int64_t begin, bytes, covered; /* covered: by pieces */
    uint32_t crc;
    int once; /* its pieces are row-major and no byte is in two */
    int64_t n_gaps;
    struct fmt_gap *gap;
    _Atomic int checked;
    _Atomic uint32_t parts;
    _Atomic int64_t passed;
};
/* bytes of a record that a reader has in order; record NULL: none */
struct fmt_pass {
    struct fmt_record *record;
    int64_t from, to;
    uint32_t crc;
};
struct fmt_file {
    char *name, *path;
    int64_t bytes;
    int64_t data;                /* first byte behind the header */
    uint64_t *block;             /* checksums of its blocks; NULL: the format has none */
    _Atomic unsigned char *seen; /* a byte a block: checked in this opening */
    /* bytes of a block that were read to be proven by digests; made by the first such read */
    _Atomic uint32_t *proven;
    _Atomic int head_checked;
    /* compressed: where every block's frame begins in the file, and the end; `bytes` counts the plain ones.
     * Or NULL */
    int64_t *frame;
    unsigned char *width;      /* compressed in byte planes: bytes of an element, a block. Or NULL */
    struct sum128 sum;         /* of all block checksums (native) */
    struct fmt_record *record; /* by begin; NULL: none */
    int64_t n_records;
    int fd, users;
    uint64_t used; /* when last: the oldest idle one is closed */
};
struct fmt_piece {
    int tensor, file;
    int64_t offset; /* bytes, in the file */
    struct box box;
    int64_t lo, hi;
    /* elements from one index of a dim to the next, c owns it; NULL: row-major. Then lo 0, hi all */
    const int64_t *stride;
};
struct fmt_extra {
    char *name;
    int64_t bytes;
    struct sum128 sum;
    int has_sum;
};

/* as many files as usually share one tensor, twice: a piece may straddle two blocks */
#define FMT_CACHE 16
struct fmt_cached {
    int file;
    int64_t block;
    char *data;
}; /* data NULL: empty */

struct ckpt {
    char *path, *dir; /* dir: the folder (of a single file: the one it lies in) */
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
    char *run_json, *config;
    char *writer;             /* framework and version that wrote it; NULL: native, Hugging Face */
    int n_ranks;              /* that wrote it; 0: not said */
    char *note;               /* what was found and left out, one line; or NULL */
    struct ckpt_digests said; /* what the manifest claims (native) */
    pthread_mutex_t lock;
    int n_open;
    uint64_t clock;
    struct fmt_cached cache[FMT_CACHE];
    int cache_next;
    struct url_cache *remote; /* where the files come from; NULL: this machine */
    /* they came from a server, and what is not here will not come any more */
    int is_done;
    int64_t received;        /* until then */
    const char *config_path; /* config.json to use instead of the one beside the files; or NULL */
    void **owned;            /* freed at the end */
    int n_owned;
    _Atomic int64_t bytes_read;
};

/* drivers: probe says whether path (a folder or a file) is theirs, open fills the tables of c (path and dir
 * are set). One row each in ckpt.c. */
struct fmt_driver {
    const char *name;
    int (*probe)(const struct ckpt *c, int is_folder);
    int (*open)(struct ckpt *c, int is_folder, struct err *e);
};
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
int hf_probe(const struct ckpt *c, int is_folder);
int hf_open(struct ckpt *c, int is_folder, struct err *e);

/* tables.c */
int fmt_name_check(const char *name, size_t n, const char *what, struct err *e); /* of a tensor */
/* directly in the folder, nothing else */
int fmt_file_name_check(const char *name, const char *what, struct err *e);
int fmt_shape_check(enum stored_dtype t, int n_dims, const int64_t *shape, const char *what, const char *name,
                    int64_t *bytes, struct err *e);
/* ERR_USAGE: t has elements of 4 or 6 bits, and the elements [lo, hi) of box b, which lies inside of t, do
 * not begin and end at bytes wherever they are contiguous. */
int fmt_box_check(const struct ckpt_tensor *t, const struct box *b, int64_t lo, int64_t hi, struct err *e);
/* struct ckpt_tensor: role, name */
int fmt_compare_tensors(const void *a, const void *b);
/* in that order; NULL: not there */
const struct ckpt_tensor *fmt_find_tensor(const struct ckpt_tensor *t, int n, enum ckpt_role role,
                                          const char *name);
/* sorts tensors, renumbers pieces, sorts them, makes first_piece */
void fmt_sort_tensors(struct ckpt *c);
/* the same of tensors in any order; first_piece is there */
int fmt_sort_names(struct ckpt *c, struct err *e);
/* a base model's names get the first word that the whole model's have */
int fmt_base_names(struct ckpt *c, struct err *e);
/* Exact cover: boxes of a tensor are equal or disjoint, ranges of equal boxes tile them, boxes tile the
 * tensor. ERR_FORMAT names the tensor. p: the pieces of that tensor (reordered). */
int fmt_cover(const struct ckpt_tensor *t, struct fmt_piece *p, int64_t n, const char *what, struct err *e);
void fmt_hex128(struct sum128 s, char out[33]);
/* n lower-case digits; 0 or -1 */
int fmt_parse_hex(const char *text, size_t n, uint64_t *out);
int fmt_parse_hex128(const char *text, struct sum128 *out);
struct sum128 fmt_sum128(const void *p, size_t n);
uint64_t fmt_sum64(const void *p, size_t n);
struct sum128 fmt_sum_blocks(const uint64_t *block, int64_t n);
/* Old names of io_join and io_is_dir. */
static inline char *fmt_join(const char *dir, const char *name) { return io_join(dir, name); }
static inline int fmt_is_dir(const char *path) { return io_is_dir(path); }

/* read.c */
/* NULL: error set */
struct fmt_file *fmt_add_file(struct ckpt *c, const char *name, int64_t bytes, struct err *e);
int fmt_use(struct ckpt *c, int file, int *fd, struct err *e); /* lends an open file … */
void fmt_done(struct ckpt *c, int file);                       /* … until this */
/* all of n; counts bytes_read */
int fmt_pread(struct ckpt *c, int file, void *dst, int64_t n, int64_t off, struct err *e);
/* Checks the CRC-32 of the record around byte `off`, once; no record there: nothing to do. */
int fmt_check_record(struct ckpt *c, int file, int64_t off, struct err *e);
/* The record around `off`, when what is read of it may be passed on instead of being checked first, and
 * somebody settles it at the end; or NULL. */
struct fmt_record *fmt_record_once(const struct fmt_file *f, int64_t off);
void fmt_pass_add(struct fmt_pass *p, int64_t off, const void *data, int64_t n);
void fmt_pass_end(struct fmt_pass *p);
/* Ends the check of a record: of what was passed on where that is all of its pieces, else by reading it. */
int fmt_settle_record(struct ckpt *c, int file, struct fmt_record *r, struct err *e);
int fmt_find_gaps(struct ckpt *c, struct err *e); /* when the pieces are there */
int fmt_has_record(const struct fmt_file *f, int64_t off);
/* Reads block b of a file with checksums into data (FMT_BLOCK bytes) and checks it. */
int fmt_read_block(struct ckpt *c, int file, int64_t b, void *data, struct err *e);
int fmt_check_head(struct ckpt *c, int file, struct err *e);
int64_t fmt_block_bytes(const struct fmt_file *f, int64_t b);

/* The first n bytes of a file (plain, checked where there are sums); malloc'd, one NUL behind. */
char *fmt_read_start(struct ckpt *c, int file, int64_t n, struct err *e);

/* zst.c: files of which every block is a zstd frame */
#define FMT_ZSTD ".zst"
#define FMT_PLANES_ZSTD ".planes.zst"
/* level 0: entropy coding only. width: bytes of an element in every block, which is then compressed as byte
 * planes; or NULL. */
struct zst_how {
    int level;
    const unsigned char *width;
};
/* Compresses the file `in` of `bytes` bytes to `out`; frame: room for blocks + 1, sum: for blocks (of the
 * frames). fsyncs. */
int zst_pack(const char *in, const char *out, int64_t bytes, struct zst_how how, int64_t *frame,
             uint64_t *sum, int64_t *stored, struct err *e);
int zst_read_block(struct ckpt *c, int file, int64_t b, void *data, struct err *e);
int zst_check_tail(struct ckpt *c, int file, struct err *e);
int zst_table(struct fmt_file *f, const json_t *frames, int64_t stored, const char *what, struct err *e);
int zst_widths(struct fmt_file *f, const json_t *planes, const char *what, struct err *e);

/* manifest.c, run settings: reals become hex-float strings and come back as reals */
json_t *fmt_run_encode(const char *text, struct err *e);
char *fmt_run_decode(const json_t *run);

#endif
