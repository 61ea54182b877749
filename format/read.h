/* read.h - private to the room: files of an open checkpoint, their blocks, and records with a CRC-32.
 * Thread-safe but for fmt_add_file and fmt_find_gaps, which belong to the opening. */
#ifndef SHARDLINE_FORMAT_READ_H
#define SHARDLINE_FORMAT_READ_H

#include "format/fmt.h"

/* ---- files (read.c) ---- */

/* Appends a file to the table. The pointer is valid until the next call. NULL: *e is set. */
struct fmt_file *fmt_add_file(struct ckpt *c, const char *name, int64_t bytes, struct err *e);
/* The path that opens file `name` of a checkpoint, malloc'd; of one in memory it is another one than the path
 * in messages. fmt_real: that of a file of the table, borrowed. NULL: no memory. */
char *fmt_place(const struct ckpt *c, const char *name);
static inline const char *fmt_real(const struct fmt_file *f) { return f->real ? f->real : f->path; }
/* *fd: the open file, borrowed until fmt_release. At most 128 files are open at once. */
int fmt_acquire(struct ckpt *c, int file, int *fd, struct err *e);
void fmt_release(struct ckpt *c, int file);
/* Reads n bytes at `off` of the stored file, all of them; counts bytes_read. Of a URL it fetches them
 * first. */
int fmt_pread(struct ckpt *c, int file, void *dst, int64_t n, int64_t off, struct err *e);

/* ---- blocks with checksums (read.c) ---- */

/* Bytes of block b: FMT_BLOCK, or fewer in the last one. */
int64_t fmt_block_bytes(const struct fmt_file *f, int64_t b);
/* Reads block b into data (FMT_BLOCK bytes; decompressed) and checks it. ERR_INTEGRITY. */
int fmt_read_block(struct ckpt *c, int file, int64_t b, void *data, struct err *e);
/* Reads n bytes at `off` of a file with checksums that is not compressed. Blocks that no one has read yet are
 * checked. */
int fmt_read_bytes(struct ckpt *c, int file, char *dst, int64_t off, int64_t n, struct err *e);
/* Checks the blocks of the header, and the seek table of a compressed file, once. */
int fmt_check_head(struct ckpt *c, int file, struct err *e);
/* The first n bytes of a native file, checked, and a NUL behind them; the caller frees them. NULL: *e is
 * set. */
char *fmt_read_start(struct ckpt *c, int file, int64_t n, struct err *e);

/* ---- records with a CRC-32 (torch/zip_crc.c) ---- */

/* 1: byte `off` of the file lies in a record. */
int fmt_has_record(const struct fmt_file *f, int64_t off);
/* Reads the record around byte `off` and checks its CRC-32, once. No record there: nothing to do. */
int fmt_check_record(struct ckpt *c, int file, int64_t off, struct err *e);

/* What a reader passes on, in order, of a record whose sum is settled at the end. record NULL: none. */
struct fmt_pass {
    struct fmt_record *record;
    int64_t from, to; /* bytes of the file that crc is the sum of */
    uint32_t crc;
};
/* The record around `off`, when the sum of what is read of it may be made on the way; NULL: there is none, or
 * it must be checked first. The caller sees to fmt_settle_record at the end. */
struct fmt_record *fmt_record_once(const struct fmt_file *f, int64_t off);
/* Adds n bytes at `off` that were read. */
void fmt_pass_add(struct fmt_pass *p, int64_t off, const void *data, int64_t n);
/* Hands the sum so far to the record. */
void fmt_pass_end(struct fmt_pass *p);
/* Finds the gaps between the pieces of each record, when all pieces are in the tables. */
int fmt_find_gaps(struct ckpt *c, struct err *e);
/* Ends the check of a record: from the parts that were passed on when those are all of its pieces, else by
 * reading it. ERR_INTEGRITY. */
int fmt_settle_record(struct ckpt *c, int file, struct fmt_record *r, struct err *e);

#endif
