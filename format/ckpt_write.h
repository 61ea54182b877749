/* ckpt_write.h - native checkpoints written: a shard for each rank, merged and published by one process.
 *
 *     ckpt_begin -> on every rank: ckpt_shard_open, _put, _close -> gather the tables -> ckpt_publish
 * FORMAT.md specifies the files. */
#ifndef SHARDLINE_FORMAT_CKPT_WRITE_H
#define SHARDLINE_FORMAT_CKPT_WRITE_H

#include <stddef.h>
#include "base/err.h"
#include "base/log.h"
#include "format/ckpt_proof.h"
#include "format/ckpt_tensor.h"
#include "format/panels_file.h"

/* ---- one rank's files ---- */

/* A part of a tensor that one rank stores: the elements [lo, hi) of the row-major order of a box; 0 and the
 * count for the whole box. Empty pieces are left out of the files. */
struct ckpt_piece {
    struct ckpt_tensor t; /* the logical tensor; name is borrowed until the shard is closed */
    struct box box;
    int64_t lo, hi;
};

/* Whether a piece can be written. ERR_FORMAT: its name or shape. ERR_USAGE: elements of 4 or 6 bits do
 * not begin and end at bytes. */
int ckpt_piece_check(const struct ckpt_piece *p, struct err *e);

/* Creates one rank's files in the folder dir, which exists: weights-RRRRR.safetensors for the pieces of role
 * weight, optim-RRRRR.safetensors for the others. ERR_USAGE: a piece of elements of 4 or 6 bits does not
 * begin and end at bytes. */
struct ckpt_shard;
int ckpt_shard_open(struct ckpt_shard **out, const char *dir, int rank, int n_pieces,
                    const struct ckpt_piece *p, struct err *e);
/* The same with a name for the file of the weights, a .safetensors that no other rank writes; NULL: as
 * above. */
int ckpt_shard_open_named(struct ckpt_shard **out, const char *dir, int rank, const char *weights,
                          int n_pieces, const struct ckpt_piece *p, struct err *e);
/* The codec of the files, applied when the shard is closed. CODEC_ZSTD: seekable zstd (NAME.zst), level 1 to
 * 19. CODEC_PLANES: byte planes (NAME.planes.zst), smaller for floats, level 0 (entropy coding only, the best
 * for weights) to 19. */
enum ckpt_codec { CODEC_PLAIN, CODEC_ZSTD, CODEC_PLANES };
void ckpt_shard_compress(struct ckpt_shard *s, enum ckpt_codec codec, int level);
/* What a writer tells about its files while they grow, for a caller that sends them elsewhere. Any thread. */
struct ckpt_watch {
    /* A file of the folder that will have so many bytes. */
    int (*begin)(void *arg, const char *name, int64_t bytes, struct err *e);
    /* Bytes [off, off + n) of it are final, and the writer reads them no more. Each byte once. */
    int (*final)(void *arg, const char *name, int64_t off, int64_t n, struct err *e);
    void *arg;
};
/* For a plain shard whose caller calls ckpt_shard_check for everything that it puts. Before the first put.
 * w is borrowed until the shard is closed. */
int ckpt_shard_watch(struct ckpt_shard *s, const struct ckpt_watch *w, struct err *e);
/* Writes the next n_elements of a piece, in its row-major order. Pieces may be written in any order, and
 * different ones from different threads. */
int ckpt_shard_put(struct ckpt_shard *s, int piece, const void *data, int64_t n_elements, struct err *e);
/* For a writer that proves what it wrote: from now on ckpt_shard_put only writes, and ckpt_shard_check reads
 * back from the file what was put into a piece since its last check, and computes checksums and digest from
 * that. *got: the digest of the piece so far. */
void ckpt_shard_defer(struct ckpt_shard *s);
int ckpt_shard_check(struct ckpt_shard *s, int piece, struct ckpt_digest *got, struct err *e);
/* fsyncs and closes the files, and frees s. *table (*bytes long, the caller frees it): files, checksums,
 * pieces and digests, for ckpt_publish. On error the files are removed. */
int ckpt_shard_close(struct ckpt_shard *s, void **table, size_t *bytes, struct err *e);
/* Closes and removes the files, and frees s. NULL is allowed. */
void ckpt_shard_abort(struct ckpt_shard *s);

/* ---- the serve format: one file with the packs of a model (FORMAT.md, "Panels") ---- */

#define PANELS_LEAVES 64 /* of a contraction, at most */
/* A pack that is to be written. Packs are listed by unit, those of a unit in the order of use. */
struct panels_pack {
    int unit;
    enum ckpt_panel_kind kind;
    enum stored_dtype dtype;
    int n_leaves;
    int64_t leaf_end[PANELS_LEAVES]; /* elements; the last one is the contraction */
};
/* 1: 32 outputs, or n_out, fit in panels of kind b12. The element of output o and contraction element i lies
 * at p + o * step[0] + i * step[1] (bytes). *escapes: values that their table does not hold. */
int panels_b12_fits(const struct panels_pack *k, const char *p, const int64_t step[2], int n_out,
                    int64_t *escapes);
/* A piece of the file: a whole tensor in natural order, or a run of a pack. */
struct panels_piece {
    struct ckpt_tensor t; /* the name is borrowed until the file is closed */
    struct box box;
    int unit;                     /* the region that it lies in: a model's unit, or one behind all */
    int pack;                     /* -1: natural order, the box is the tensor */
    int place;                    /* runs of a pack lie in this order */
    int out_dim, in_dim, is_copy; /* of struct ckpt_run */
};
struct panels_layout {
    int n_packs, n_pieces;
    const struct panels_pack *pack;
    const struct panels_piece *piece;
};
/* Lays the file out and creates it in the folder dir, which exists. l is copied but for names; watch (or
 * NULL) is borrowed until the file is closed. */
struct panels_write;
int panels_write_open(struct panels_write **out, const char *dir, const struct panels_layout *l,
                      const struct ckpt_watch *watch, struct err *e);
/* As ckpt_shard_put. Memory: what waits for its neighbours, about a unit; of a matrix stored [in][out] the
 * whole. */
int panels_write_put(struct panels_write *w, int piece, const void *data, int64_t n_elements, struct err *e);
/* As ckpt_shard_close and ckpt_shard_abort. */
int panels_write_close(struct panels_write *w, void **table, size_t *bytes, struct err *e);
void panels_write_abort(struct panels_write *w);

/* ---- the whole ---- */

/* What is not in the shards. */
struct ckpt_meta {
    struct ckpt_layout layout;
    struct ckpt_state state;
    const char *config_json; /* or NULL */
    int n_extra;             /* small files to copy */
    const char **extra_name;
    const void **extra_data;
    size_t *extra_bytes;
};

/* Makes an empty folder to write in beside dst: "dst.tmp-save", or "dst.2.tmp-save" and so on where that
 * name has to stay. Removes what an interrupted process left there. A folder stays that has no marker of ours
 * (base/tmp_folder.h), that a process reads, that holds all files of a checkpoint, or a file that no save
 * writes. log: gets a line for each folder that is removed or stays; or NULL. tmp: the name, at least 4096
 * bytes; "" on error. *lock keeps other processes away: io_close it after ckpt_reveal, or pass it to
 * ckpt_abandon. lock NULL: no lock, for tests. ERR_FILE: dst exists, or another process is writing it. */
int ckpt_begin(const char *dst, char *tmp, int *lock, struct log *log, struct err *e);
/* 1: the name of a file, directly in the folder, that a writer of some format makes. */
int ckpt_is_written(const char *name);
/* 1: path has the name of such a folder; dst[4096]: the checkpoint it was made for. */
int ckpt_place_of(const char *path, char dst[4096]);
/* Removes such a folder, or a checkpoint that a killed process was removing (ckpt_remove), by the rules of
 * ckpt_begin. 1: nothing is left at path. */
int ckpt_drop_left(const char *path, struct log *log);
/* One process, when all shards are closed: merges their n tables, checks exact cover, writes config.json, the
 * small files and the manifest, fsyncs, renames tmp to dst, fsyncs the parent. *got, where not NULL: digests
 * of what was written. On error nothing is at dst and tmp is removed. */
int ckpt_publish(const char *tmp, const char *dst, int n, void *const *table, const size_t *table_bytes,
                 const struct ckpt_meta *meta, struct ckpt_digests *got, struct err *e);
/* The two steps of ckpt_publish, for a caller that reads the files again before others can: after ckpt_seal
 * the folder tmp is a whole checkpoint, which ckpt_open reads; ckpt_reveal renames it to dst, and removes
 * what earlier, interrupted writers of dst left. Errors: as ckpt_publish. */
int ckpt_seal(const char *tmp, int n, void *const *table, const size_t *table_bytes,
              const struct ckpt_meta *meta, struct ckpt_digests *got, struct err *e);
int ckpt_reveal(const char *tmp, const char *dst, struct err *e);
/* The manifest of c without its optimizer's files, as a text that the caller frees: with it the other files
 * are a checkpoint of the weights alone. text: the n bytes of its manifest.json. ERR_FORMAT: a file holds
 * both. */
int ckpt_weights_manifest(const struct ckpt *c, const void *text, size_t n, char **out, size_t *n_out,
                          struct err *e);
/* As ckpt_reveal, of one file in the folder tmp, which becomes dst; tmp is removed. */
int ckpt_reveal_file(const char *tmp, const char *name, const char *dst, struct err *e);
/* Removes a temporary folder and closes its lock. With a lock it removes the folder only while the name still
 * stands for the locked one: another process may have made a new folder of that name. lock -1: removes it
 * without that check. */
void ckpt_abandon(const char *tmp, int lock);
/* Removes a published checkpoint. Its name disappears first, in one step, so that a part of a checkpoint is
 * never found. An error, and nothing removed: the folder has no manifest, or holds a file that the manifest
 * does not list. */
int ckpt_remove(const char *path, struct err *e);

#endif
