/* manifest.h - private to the room: the text of manifest.json, its checksum, and members that both the writer
 * and the reader know. */
#ifndef SHARDLINE_FORMAT_NATIVE_MANIFEST_H
#define SHARDLINE_FORMAT_NATIVE_MANIFEST_H

#include "base/jx.h"
#include "format/fmt.h"

#define MANIFEST_VERSION 1
#define MANIFEST_FORMAT "shardline-checkpoint"
#define MANIFEST_ZSTD "zstd" /* features */
#define MANIFEST_PLANES "planes"
#define MANIFEST_COUNTS "expert_counts" /* the member of `state`, too */
/* the members of orders */
#define MANIFEST_EXPERT_LEAF "expert_leaf"
#define MANIFEST_CP_GRAIN "cp_grain"

/* Members of a manifest and of its files that have an entry a tensor or piece. They are made and read an
 * entry at a time. */
#define MANIFEST_FILES "files"
#define MANIFEST_TENSORS "tensors"
#define MANIFEST_PIECES "pieces" /* of a file */
#define MANIFEST_TAIL "tail"     /* of a tensor with more than BOX_DIMS dims */
enum { LIST_FILES, LIST_TENSORS, MANIFEST_LISTS };

/* The canonical text of root (sorted keys, no spaces) with the n_lists further members and at the end
 * manifest_checksum; the caller frees it. NULL: *e is set. */
char *manifest_text(const json_t *root, const struct jx_member *list, int n_lists, size_t *n, struct err *e);
/* Checks the end of the text and the checksum there. ERR_INTEGRITY: bytes changed. */
int manifest_check(const char *text, size_t n, const char *path, struct err *e);

/* Values: a checksum as 32 hex digits; n block checksums, 16 digits each, in one string; n integers as a
 * list; the state as an object. NULL: out of memory; manifest_state sets *e. */
json_t *manifest_sum128(struct sum128 s);
json_t *manifest_blocks(const uint64_t *block, int64_t n);
json_t *manifest_ints(const int64_t *v, int n);
json_t *manifest_state(const struct ckpt_state *s, struct err *e);
/* Adds the member orders, unless all orders are neutral. */
void manifest_put_orders(json_t *root, const struct ckpt_state *s);
/* The reverse of both (native_read.c): members grain, orders and state of root become c->state. */
int manifest_read_state(struct ckpt *c, const json_t *root, const char *path, struct err *e);

/* Required members (native_read.c): ERR_FORMAT where one is absent, of another type or below min. */
int manifest_need_int(const json_t *o, const char *what, const char *key, int64_t min, int64_t *out,
                      struct err *e);
int manifest_need_text(const json_t *o, const char *what, const char *key, const char **out, struct err *e);

/* Lines of a shard's table, which ckpt_seal merges: a file, whose n_pieces pieces follow; a piece. */
json_t *manifest_shard_file(const char *name, int64_t length, const uint64_t *block, int64_t n_blocks,
                            int n_pieces);
json_t *manifest_shard_piece(const struct ckpt_tensor *t, const struct box *b, int64_t lo, int64_t hi,
                             int64_t offset, struct ckpt_digest digest);

/* manifest_counts.c: the member expert_counts of a state, and back. NULL: no memory. */
json_t *manifest_counts(const struct ckpt_counts *counts);
int manifest_read_counts(struct ckpt *c, const json_t *state, const char *path, struct err *e);

/* The member save_id: hash of the state digest (without state: of the weights'), layout and version. */
struct sum128 manifest_save_id(const struct ckpt_digests *d, const struct ckpt_layout *l);

/* Settings of the run: numbers that are not integers become hex-float strings, and back, to the last bit.
 * encode: NULL: *e is set. decode: a JSON text, which the caller frees; NULL: out of memory. */
json_t *manifest_run_encode(const char *text, struct err *e);
char *manifest_run_decode(const json_t *run);

/* The words of roles: "weight", "master", "exp_avg", "exp_avg_sq". */
extern const char *const manifest_role[ROLE_COUNT];

/* One row a degree of the layout. optional: not written where it is 0 or 1. */
#define LAYOUT_ROWS 7
struct layout_row {
    const char *key;
    size_t offset;
    int optional;
};
extern const struct layout_row manifest_layout[LAYOUT_ROWS];
/* 1: degree n of the row is not written. */
static inline int layout_left_out(const struct layout_row *r, int n) { return r->optional && n <= 1; }
#define LAYOUT_AT(l, row) (*(int *)((char *)(l) + (row)->offset))

#endif
