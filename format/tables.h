/* tables.h - private to the room: names, shapes and boxes checked, the tables of a checkpoint sorted, exact
 * cover, checksums as text. */
#ifndef SHARDLINE_FORMAT_TABLES_H
#define SHARDLINE_FORMAT_TABLES_H

#include "format/fmt.h"

/* ---- what files claim; ERR_FORMAT. what: the file or place that messages name ---- */

/* A tensor's name: 1 to FMT_NAME_MAX bytes, no control characters. */
int fmt_name_check(const char *name, size_t n, const char *what, struct err *e);
/* A file's name: one that lies directly in the checkpoint's folder and is not hidden. */
int fmt_file_name_check(const char *name, const char *what, struct err *e);
/* The dims of struct ckpt_tensor's tail. *size: their product. ERR_FORMAT. */
int fmt_tail_check(const char *tail, int64_t *size, const char *what, const char *name, struct err *e);
/* t->tail becomes this malloc'd text, which c owns, also after an error. NULL: ERR_MEMORY. */
int fmt_keep_tail(struct ckpt *c, struct ckpt_tensor *t, char *tail, struct err *e);
/* A shape within the limits of FORMAT.md whose elements are a whole number of bytes. *bytes: how many. */
int fmt_shape_check(enum stored_dtype t, int n_dims, const int64_t *shape, const char *what, const char *name,
                    int64_t *bytes, struct err *e);
/* ERR_USAGE: t has elements of 4 or 6 bits, and the elements [lo, hi) of box b, which lies inside of t, do
 * not begin and end at bytes wherever they are contiguous. */
int fmt_box_check(const struct ckpt_tensor *t, const struct box *b, int64_t lo, int64_t hi, struct err *e);
/* Exact cover: boxes of a tensor are equal or disjoint, ranges of equal boxes tile them, boxes tile the
 * tensor. ERR_FORMAT names the tensor. p: its n pieces, which are reordered. */
int fmt_cover(const struct ckpt_tensor *t, struct fmt_piece *p, int64_t n, const char *what, struct err *e);

/* ---- order ---- */

/* Compares two struct ckpt_tensor by role, then name; for qsort. */
int fmt_compare_tensors(const void *a, const void *b);
/* The tensor of that role and name among n tensors in that order; NULL: there is none. */
const struct ckpt_tensor *fmt_find_tensor(const struct ckpt_tensor *t, int n, enum ckpt_role role,
                                          const char *name);
/* Sorts the pieces by tensor, and by box and range in a tensor, and fills first_piece. Tensors are sorted. */
void fmt_sort_tensors(struct ckpt *c);
/* The same for tensors in any order: sorts them too, and renumbers the pieces. first_piece is allocated. */
int fmt_sort_names(struct ckpt *c, struct err *e);
/* Gives names of a model that was saved without its head the first word that the whole model's have. */
int fmt_base_names(struct ckpt *c, struct err *e);

/* ---- checksums ---- */

/* XXH64 (seed 0), XXH3-128, and XXH3-128 over n block checksums. */
uint64_t fmt_sum64(const void *p, size_t n);
struct sum128 fmt_sum128(const void *p, size_t n);
struct sum128 fmt_sum_blocks(const uint64_t *block, int64_t n);
/* 32 lower-case hex digits, hi first. */
void fmt_hex128(struct sum128 s, char out[33]);
/* n lower-case hex digits (32 for a sum128) to a number. 0, or -1: they are none. */
int fmt_parse_hex(const char *text, size_t n, uint64_t *out);
int fmt_parse_hex128(const char *text, struct sum128 *out);

#endif
