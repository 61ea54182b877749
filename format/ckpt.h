/* ckpt.h - checkpoints: logical tensors read by box, whatever the files look like; native shards written by
 * piece.
 *
 * A checkpoint is a set of logical tensors (full shape, Hugging Face name, role) plus a little state.
 * Readers hide layouts: ckpt_read() takes any box of any tensor. Writers take pieces: a box of a tensor, or
 * a row-major element range of a box (a ZeRO slice). FORMAT.md is the specification of the native files. */
#ifndef SHARDLINE_FORMAT_CKPT_H
#define SHARDLINE_FORMAT_CKPT_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include "base/box.h"
#include "base/err.h"

enum ckpt_role { ROLE_WEIGHT, ROLE_MASTER, ROLE_EXP_AVG, ROLE_EXP_AVG_SQ, ROLE_COUNT };
extern const char *const ckpt_role_prefix[ROLE_COUNT]; /* "", "master.", "exp_avg.", "exp_avg_sq." */
enum ckpt_dtype { CK_F32, CK_BF16, CK_F16, CK_F64, CK_I64, CK_I32, CK_I16, CK_I8, CK_U8, CK_BOOL, CK_DTYPES };
const char *ckpt_dtype_name(enum ckpt_dtype t); /* safetensors spelling: "F32", "BF16", … */
size_t ckpt_dtype_size(enum ckpt_dtype t);

/* 128 bits, adds up over pieces of any shape (FORMAT.md) */
struct ckpt_digest {
    uint64_t lo, hi;
};

struct ckpt_tensor {
    const char *name; /* Hugging Face name, without the role's prefix */
    enum ckpt_role role;
    enum ckpt_dtype dtype;
    int n_dims; /* 0 is stored and read as [1] with n_dims 1 */
    int64_t shape[BOX_DIMS];
    struct ckpt_digest digest; /* valid when has_digest */
    int has_digest;
};

/* vpp: virtual stages a pipeline rank, 0: one */
struct ckpt_layout {
    int tp, pp, cp, dp, ep, zero, vpp;
};

struct ckpt_state { /* what is not a tensor; absent for a checkpoint without optimizer state */
    int has_state;
    int64_t step; /* finished updates */
    uint64_t seed;
    int64_t epoch, sample; /* data position: next sample to be read */
    int grain;             /* of the sums; 0: not said (take the formula) */
    /* the run's settings that resume needs (schedule, data order, …), a JSON object; or NULL */
    const char *run_json;
};

/* ---- reading ---- */
struct ckpt;
/* path: a folder of any name, a single .safetensors file, or a URL (http, https, s3, hf; its bytes are kept
 * in a cache that processes
 * share, and only what is read is transferred: ckpt_check_rest leaves the rest of a URL alone, but notices
 * that it changed meanwhile). Detects the driver (native, Hugging Face, and those in FOREIGN.md). Reads
 * tables only; checks sizes, exact cover, manifest checksum. Data is checked against its block checksums as
 * it is read (native). */
int ckpt_open(struct ckpt **out, const char *path, struct err *e);
/* The same, and for all that is read later: requests to a server end soon after *stop is not 0
 * (ERR_STOPPED). stop outlives ckpt_done. */
int ckpt_open_until(struct ckpt **out, const char *path, const volatile sig_atomic_t *stop, struct err *e);
/* The same with a config.json (a path, or NULL) that says what the files of other frameworks do not:
 * Megatron's heads and vocabulary. */
int ckpt_open_config(struct ckpt **out, const char *path, const char *config_path, struct err *e);
/* Nothing more will be read; tables stay. A folder of the cache is given back, so that others may find a
 * newer version at its URL. */
void ckpt_done(struct ckpt *c);
void ckpt_close(struct ckpt *c);
/* Closes files that nobody reads and forgets their blocks, so that a checkpoint which is removed gives its
 * space back; more can be read. */
void ckpt_let_go(struct ckpt *c);
/* one line for people about how it is read, or NULL */
const char *ckpt_remark(const struct ckpt *c);
/* Names the cache through which a URL is read: processes with the same number share every byte. 0: the files
 * are here. */
uint64_t ckpt_cache(const struct ckpt *c);
/* bytes that came over the network so far, by this process */
int64_t ckpt_received(const struct ckpt *c);
/* Downloads the checkpoint at url to the folder dst (must not exist): resumes an earlier try, verifies all
 * of it, then dst appears. */
struct log;
/* log: progress, or NULL; stop: ends it when not 0, or NULL */
struct ckpt_fetch {
    int n_threads;
    struct log *log;
    const volatile sig_atomic_t *stop;
    int64_t received;
};
int ckpt_fetch(const char *url, const char *dst, struct ckpt_fetch *how, struct err *e);
const char *ckpt_path(const struct ckpt *c);
/* "native", "hf", "torch", "dcp", "dcp-hf", "deepspeed", "deepspeed-universal", "megatron-dist",
 * "megatron-legacy" */
const char *ckpt_driver(const struct ckpt *c);
int ckpt_n_tensors(const struct ckpt *c);
const struct ckpt_tensor *ckpt_tensor(const struct ckpt *c, int i);
int ckpt_find(const struct ckpt *c, enum ckpt_role role, const char *name); /* index or -1 */
const struct ckpt_state *ckpt_state(const struct ckpt *c);
const struct ckpt_layout *ckpt_layout(const struct ckpt *c);
/* what was found but cannot be used, and why: one line; or NULL */
const char *ckpt_note(const struct ckpt *c);
/* Of other frameworks: which one and which version wrote it, as far as the files say, and how many ranks did
 * (0: not said). NULL: native, Hugging Face. */
const char *ckpt_writer(const struct ckpt *c);
int ckpt_writer_ranks(const struct ckpt *c);
const char *ckpt_config_json(const struct ckpt *c); /* config.json text, or NULL */
/* Small files kept beside the weights (tokenizer.json, generation_config.json, …): names, and contents
 * malloc'd by the call. */
int ckpt_n_extra(const struct ckpt *c);
const char *ckpt_extra_name(const struct ckpt *c, int i);
int ckpt_extra_read(const struct ckpt *c, int i, void **data, size_t *bytes, struct err *e);
/* Reads box b of tensor i into dst: row-major, contiguous, in the tensor's own dtype. Reads only the bytes
 * it needs (in whole checksum blocks where the file has them). Thread-safe. ERR_INTEGRITY names file and
 * tensor. */
int ckpt_read(struct ckpt *c, int i, const struct box *b, void *dst, struct err *e);
/* The same for the element range [lo, hi) of box b's row-major order. */
int ckpt_read_range(struct ckpt *c, int i, const struct box *b, int64_t lo, int64_t hi, void *dst,
                    struct err *e);
/* The same without a look at checksums first, every element at most once, for those who call ckpt_check_rest
 * before they use anything: what was read of a record with a CRC-32 is summed on the way; of blocks (native)
 * the whole tensor's digest must be compared. */
int ckpt_read_unproven(struct ckpt *c, int i, const struct box *b, int64_t lo, int64_t hi, void *dst,
                       struct err *e);
/* Where both weights are in the checkpoint of a model that ties them: ERR_FORMAT when they differ, because
 * which one counts depends on the reader. */
int ckpt_check_tied(struct ckpt *c, const char *embed, const char *head, struct err *e);
int64_t ckpt_bytes_read(const struct ckpt *c); /* from files so far */
/* What is behind a checkpoint that ckpt_verify finds good. */
enum ckpt_proof { CKPT_READABLE, CKPT_SOME_CRC32, CKPT_CRC32, CKPT_DIGESTS };
enum ckpt_proof ckpt_proof(const struct ckpt *c);
/* Reads everything and checks every checksum and digest; without has_digest fills nothing. quick: tables
 * only. */
int ckpt_verify(struct ckpt *c, int quick, struct err *e);
/* Checks the checksum blocks that ckpt_read has not touched since the opening, so that one changed byte
 * anywhere is noticed also by those who need a part only; n_parts processes share the work (part 0 ..
 * n_parts - 1). No checksums in the files: nothing to do. */
int ckpt_check_rest(struct ckpt *c, int part, int n_parts, struct err *e);
/* For processes that share the reading: of every block of every file the bytes that this one has checked or
 * left to digests (n numbers), to be added up over all and given back, so that ckpt_check_rest knows what
 * the others did. */
int64_t ckpt_proven_count(const struct ckpt *c);
void ckpt_proven_get(const struct ckpt *c, int64_t *v);
void ckpt_proven_set(struct ckpt *c, const int64_t *v);
/* Digests of the whole: weights_digest over role weight; state_digest over all roles and the state (ok = 0:
 * no optimizer state). */
struct ckpt_digests {
    struct ckpt_digest weights, state;
    int has_state;
};

/* ---- digests ---- */
/* Adds the part of tensor (dtype, shape) that the elements [lo, hi) of box b make up; data: those elements,
 * contiguous. */
void ckpt_digest_add(struct ckpt_digest *d, enum ckpt_dtype t, int n_dims, const int64_t *shape,
                     const struct box *b, int64_t lo, int64_t hi, const void *data);
/* Digest of the whole from the tensors' own (order of the list does not matter). */
struct ckpt_digests ckpt_digest_all(int n, const struct ckpt_tensor *t, const struct ckpt_state *s);
void ckpt_digest_hex(struct ckpt_digest d, char out[33]);

/* ---- writing, native ---- */
struct ckpt_piece {
    struct ckpt_tensor t; /* the logical tensor (name borrowed until the shard is closed) */
    struct box box;
    /* of the box's row-major elements; 0, count for a whole box. Empty pieces are left out */
    int64_t lo, hi;
};
/* One rank's files inside folder `dir` (exists): weights-RRRRR.safetensors and optim-RRRRR.safetensors for
 * the pieces of role weight and of the other roles. Data may come in any order of pieces, in order inside a
 * piece; different pieces from different threads. */
struct ckpt_shard;
int ckpt_shard_open(struct ckpt_shard **out, const char *dir, int rank, int n_pieces,
                    const struct ckpt_piece *p, struct err *e);
int ckpt_shard_put(struct ckpt_shard *s, int piece, const void *data, int64_t n_elements, struct err *e);
/* For those who prove what they write: from now on ckpt_shard_put only writes. ckpt_shard_check reads back
 * from the file what was put into a piece since the last check, and makes checksums and digest from what it
 * finds. *got: the digest of the piece so far. */
void ckpt_shard_defer(struct ckpt_shard *s);
int ckpt_shard_check(struct ckpt_shard *s, int piece, struct ckpt_digest *got, struct err *e);
/* The shard's files become seekable zstd when it is closed: CODEC_ZSTD (NAME.zst) of level 1 to 19;
 * CODEC_PLANES (NAME.planes.zst), byte planes, smaller for floats, level 0 (entropy coding only: the best
 * for weights) to 19. */
enum ckpt_codec { CODEC_PLAIN, CODEC_ZSTD, CODEC_PLANES };
void ckpt_shard_compress(struct ckpt_shard *s, enum ckpt_codec codec, int level);
/* fsync, close; *table (malloc'd, *bytes long): what ckpt_publish needs of this shard (files, checksums,
 * pieces, digests). s is gone afterwards; on error its files are removed. */
int ckpt_shard_close(struct ckpt_shard *s, void **table, size_t *bytes, struct err *e);
void ckpt_shard_abort(struct ckpt_shard *s); /* closes and removes; NULL is fine */

struct ckpt_meta {
    struct ckpt_layout layout;
    struct ckpt_state state;
    const char *config_json;
    int n_extra; /* small files to carry along */
    const char **extra_name;
    const void **extra_data;
    size_t *extra_bytes;
};
/* Makes an empty temporary folder next to dst ("dst.tmp-…" derived from dst's name only); removes what a
 * process left that is gone. ERR_FILE when dst exists, or another process is writing it; tmp is "" then.
 * tmp: at least 4096 bytes. *lock keeps other processes of
 * this machine away: io_close it after ckpt_reveal, or give it to ckpt_abandon. NULL: only for tests. */
int ckpt_begin(const char *dst, char *tmp, int *lock, struct err *e);
/* One process: merges the shards' tables, checks exact cover, writes config.json, extras and the manifest,
 * fsyncs, renames tmp to dst, fsyncs the parent. *got: digests of what was written. On error nothing has
 * appeared at dst and tmp is removed. */
int ckpt_publish(const char *tmp, const char *dst, int n, void *const *table, const size_t *table_bytes,
                 const struct ckpt_meta *meta, struct ckpt_digests *got, struct err *e);
/* Removes a checkpoint: its name goes first and at once, so that nobody ever finds a part of one. */
int ckpt_remove(const char *path, struct err *e);
/* Removes a temporary folder, and closes its lock. With a lock: only when the name still stands for the
 * locked folder, which an error may have removed before, and another process made anew. -1: without looking.
 * */
void ckpt_abandon(const char *tmp, int lock);
/* ckpt_publish in its two steps, for those who want to read the files again before anybody else can: after
 * ckpt_seal the folder tmp is a whole checkpoint (ckpt_open reads it), ckpt_reveal gives it its name. On
 * error of either: as ckpt_publish. */
int ckpt_seal(const char *tmp, int n, void *const *table, const size_t *table_bytes,
              const struct ckpt_meta *meta, struct ckpt_digests *got, struct err *e);
int ckpt_reveal(const char *tmp, const char *dst, struct err *e);

#endif
