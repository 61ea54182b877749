/* manifest.h - private to the room: the text of manifest.json, its checksum, and settings in it. */
#ifndef SHARDLINE_FORMAT_NATIVE_MANIFEST_H
#define SHARDLINE_FORMAT_NATIVE_MANIFEST_H

#include "format/fmt.h"

/* Canonical text of root (sorted keys, no spaces) with the member manifest_checksum put at its end;
 * malloc'd. */
char *manifest_text(const json_t *root, size_t *n, struct err *e);
/* Checks the end of the text and the checksum there, then parses. NULL: error set (ERR_INTEGRITY: bytes
 * changed). */
json_t *manifest_parse(const char *text, size_t n, const char *path, struct err *e);

json_t *manifest_sum128(struct sum128 s);
/* 16 hex digits each, in one string; NULL: no memory */
json_t *manifest_blocks(const uint64_t *block, int64_t n);
json_t *manifest_ints(const int64_t *v, int n);
json_t *manifest_state(const struct ckpt_state *s, struct err *e);
/* The way back (native.c): members grain and state of root become c->state. */
int manifest_read_state(struct ckpt *c, const json_t *root, const char *path, struct err *e);
/* hash of the state digest (of the weights' without state), layout and format version */
struct sum128 manifest_save_id(const struct ckpt_digests *d, const struct ckpt_layout *l);

/* One row a degree, for both directions. optional: not written where it is 0 or 1. */
#define LAYOUT_ROWS 7
struct layout_row {
    const char *key;
    size_t offset;
    int optional;
};
extern const struct layout_row manifest_layout[LAYOUT_ROWS];
static inline int layout_left_out(const struct layout_row *r, int n) { return r->optional && n <= 1; }
#define LAYOUT_AT(l, row) (*(int *)((char *)(l) + (row)->offset))

#endif
