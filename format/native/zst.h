/* zst.h - private to the room: seekable zstd files, of which every block of FMT_BLOCK bytes is a frame, and
 * byte planes (FORMAT.md, "Compressed files"). */
#ifndef SHARDLINE_FORMAT_NATIVE_ZST_H
#define SHARDLINE_FORMAT_NATIVE_ZST_H

#include "format/fmt.h"

/* level 0: entropy coding only. width: bytes of an element in each block, which is then compressed as byte
 * planes; NULL: no planes. */
struct zst_how {
    int level;
    const unsigned char *width;
};
/* What zst_pack made. frame: [blocks + 1] where each frame begins, and the end of the last; sum: [blocks]
 * XXH64 of each frame; both are the caller's. stored: bytes of the file. */
struct zst_packed {
    int64_t *frame;
    uint64_t *sum;
    int64_t stored;
};
/* Compresses the file `in` of `bytes` bytes to `out`, and fsyncs it. */
int zst_pack(const char *in, const char *out, int64_t bytes, struct zst_how how, struct zst_packed *got,
             struct err *e);

/* Reads the frame of block b, checks its sum, and decompresses it to data (FMT_BLOCK bytes). ERR_INTEGRITY:
 * the sum is wrong. ERR_FORMAT: it is not one frame that holds exactly the block. */
int zst_read_block(struct ckpt *c, int file, int64_t b, void *data, struct err *e);
/* Compares the seek table at the end of the file with the frames of the manifest. */
int zst_check_tail(struct ckpt *c, int file, struct err *e);
/* f->frame from the stored length of every frame, f->width from a digit for every block: the manifest's
 * members `frames` and `planes`. what: the manifest, for messages. */
int zst_table(struct fmt_file *f, const json_t *frames, int64_t stored, const char *what, struct err *e);
int zst_widths(struct fmt_file *f, const json_t *planes, const char *what, struct err *e);

#endif
