/* zst.c - see zst.h: seekable zstd, a frame for every block of a file, and behind the frames a table of them
 * that other programs skip.
 *
 *     frame of block 0 | frame of block 1 | … | skippable frame: sizes of all frames
 * `zstd -d` restores the plain file.
 *
 * Byte planes hold the first bytes of all elements of a block, then the second ones, and so on: exponents
 * compress well among themselves, mantissas not at all, so entropy coding alone (no search for matches) is
 * both the smallest and the fastest (tests/bench/RESULTS.md). Checksums are those of the frames as they lie
 * in the file, so damage is found before anything is decompressed, also in bits that a decompressor ignores.
 * Source: the zstd seekable format 0.1.0 (zstd repository, contrib/seekable_format). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode, ZSTD_getFrameHeader */
#include <zstd.h>
#include "base/io.h"
#include "format/native/zst.h"
#include "format/stored_dtype.h"

#define SKIPPABLE 0x184d2a5eu
#define SEEKABLE 0x8f92eab1u
#define FOOTER 9

static void put_u32(char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (char)(v >> 8 * i);
}

/* The table behind n frames of a plain file of `plain` bytes; the caller frees it. NULL: out of memory. */
static char *seek_table(const int64_t *frame, int64_t n, int64_t plain, size_t *bytes)
{
    size_t body = (size_t)n * 8 + FOOTER;
    char *t = malloc(body + 8);
    if (!t)
        return NULL;
    put_u32(t, SKIPPABLE);
    put_u32(t + 4, (uint32_t)body);
    for (int64_t i = 0; i < n; i++) {
        int64_t left = plain - i * FMT_BLOCK;
        put_u32(t + 8 + 8 * i, (uint32_t)(frame[i + 1] - frame[i]));
        put_u32(t + 12 + 8 * i, (uint32_t)(left < FMT_BLOCK ? left : FMT_BLOCK));
    }
    put_u32(t + 8 + 8 * n, (uint32_t)n);
    t[12 + 8 * n] = 0; /* no checksums in the table: the manifest has them */
    put_u32(t + 13 + 8 * n, SEEKABLE);
    *bytes = body + 8;
    return t;
}

/* ---- writing ---- */

/* One file being compressed. */
struct packer {
    ZSTD_CCtx *z;
    char *in, *planes, *out; /* a block, its byte planes, a frame */
    size_t out_bytes;
    const char *in_path, *out_path;
    int in_fd, out_fd;
};

static void packer_close(struct packer *k)
{
    io_close(k->in_fd);
    io_close(k->out_fd);
    ZSTD_freeCCtx(k->z);
    free(k->in);
    free(k->planes);
    free(k->out);
}

static int packer_open(struct packer *k, const char *in, const char *out, int level, struct err *e)
{
    size_t most = ZSTD_compressBound((size_t)FMT_BLOCK);
    int rc = 0;
    *k = (struct packer){ .z = ZSTD_createCCtx(),
                          .in = malloc((size_t)FMT_BLOCK),
                          .planes = malloc((size_t)FMT_BLOCK),
                          .out = malloc(most),
                          .out_bytes = most,
                          .in_path = in,
                          .out_path = out,
                          .in_fd = -1,
                          .out_fd = -1 };
    if (!k->z || !k->in || !k->planes || !k->out) {
        rc = err_set(e, ERR_MEMORY, "no memory to compress %s", in);
        goto out;
    }
    ZSTD_CCtx_setParameter(k->z, ZSTD_c_compressionLevel, level ? level : ZSTD_minCLevel());
    if (!level) /* so low a level does not code literals by default */
        ZSTD_CCtx_setParameter(k->z, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
    TRY(k->in_fd = io_open_read(in, e));
    TRY(k->out_fd = io_create(out, e));
out:
    if (rc < 0)
        packer_close(k);
    return rc < 0 ? rc : 0;
}

/* Compresses block b of n bytes to byte `at` of the output. Returns the bytes of its frame. */
static int64_t pack_block(const struct packer *k, int64_t b, size_t n, size_t width, int64_t at,
                          struct err *e)
{
    int rc = io_pread(k->in_fd, k->in_path, k->in, n, b * FMT_BLOCK, e);
    if (rc < 0)
        return rc;
    if (width > 1)
        stored_split(k->planes, k->in, n, width);
    size_t put = ZSTD_compress2(k->z, k->out, k->out_bytes, width > 1 ? k->planes : k->in, n);
    if (ZSTD_isError(put))
        return err_set(e, ERR_INTERNAL, "%s: cannot compress: %s: please report it", k->in_path,
                       ZSTD_getErrorName(put));
    rc = io_pwrite(k->out_fd, k->out_path, k->out, put, at, e);
    return rc < 0 ? rc : (int64_t)put;
}

int zst_pack(const char *in, const char *out, int64_t bytes, struct zst_how how, struct zst_packed *got,
             struct err *e)
{
    int64_t n_blocks = (bytes + FMT_BLOCK - 1) / FMT_BLOCK, *frame = got->frame;
    struct packer k;
    char *table = NULL;
    size_t table_bytes = 0;
    int rc = packer_open(&k, in, out, how.level, e);
    if (rc < 0)
        return rc;

    frame[0] = 0;
    for (int64_t b = 0; b < n_blocks; b++) {
        int64_t left = bytes - b * FMT_BLOCK;
        size_t n = (size_t)(left < FMT_BLOCK ? left : FMT_BLOCK);
        int64_t put = pack_block(&k, b, n, how.width ? how.width[b] : 1, frame[b], e);
        if (put < 0) {
            rc = (int)put;
            goto out;
        }
        got->sum[b] = fmt_sum64(k.out, (size_t)put);
        frame[b + 1] = frame[b] + put;
    }

    table = seek_table(frame, n_blocks, bytes, &table_bytes);
    if (!table) {
        rc = err_set(e, ERR_MEMORY, "no memory for the seek table of %s", out);
        goto out;
    }
    TRY(io_pwrite(k.out_fd, out, table, table_bytes, frame[n_blocks], e));
    got->stored = frame[n_blocks] + (int64_t)table_bytes;
    rc = io_sync_close(k.out_fd, out, e);
    k.out_fd = -1;
out:
    packer_close(&k);
    free(table);
    return rc < 0 ? rc : 0;
}

/* ---- reading ---- */

/* 1: packed is exactly one frame of RFC 8878 that gives the size of its content, has no dictionary and a
 * window no larger than a block. Older formats that the library may still read never get to the
 * decompressor. */
static int is_frame_of(const char *packed, size_t n, size_t content)
{
    ZSTD_frameHeader h;
    return ZSTD_getFrameHeader(&h, packed, n) == 0 && h.frameType == ZSTD_frame &&
           h.frameContentSize == content && h.dictID == 0 && h.windowSize <= (size_t)FMT_BLOCK &&
           ZSTD_findFrameCompressedSize(packed, n) == n;
}

int zst_read_block(struct ckpt *c, int file, int64_t b, void *data, struct err *e)
{
    struct fmt_file *f = &c->file[file];
    int64_t n = f->frame[b + 1] - f->frame[b];
    int planes = f->width && f->width[b] > 1;
    char *packed = malloc((size_t)n + 1), *flat = planes ? malloc((size_t)FMT_BLOCK) : data;
    if (!packed || !flat) {
        free(packed);
        if (planes)
            free(flat);
        return err_set(e, ERR_MEMORY, "%s: no memory for a frame of %lld bytes", f->path, (long long)n);
    }
    int rc = fmt_pread(c, file, packed, n, f->frame[b], e);
    if (rc >= 0 && fmt_sum64(packed, (size_t)n) != f->block[b])
        rc = err_set(
            e, ERR_INTEGRITY,
            "%s: bytes %lld to %lld do not have the checksum in %s: restore the file from a good copy",
            f->path, (long long)f->frame[b], (long long)f->frame[b + 1], FMT_MANIFEST);
    size_t want = (size_t)fmt_block_bytes(f, b), got = 0;
    if (rc >= 0 && !is_frame_of(packed, (size_t)n, want))
        rc = err_set(
            e, ERR_FORMAT,
            "%s: at byte %lld there is not one zstd frame of %zu bytes: was it written by another program",
            f->path, (long long)f->frame[b], want);
    if (rc >= 0)
        got = ZSTD_decompress(flat, want, packed, (size_t)n);
    if (rc >= 0 && got != want)
        rc = err_set(
            e, ERR_FORMAT,
            "%s: the frame at byte %lld does not hold %zu bytes (%s): was it written by another program",
            f->path, (long long)f->frame[b], want, ZSTD_isError(got) ? ZSTD_getErrorName(got) : "too few");
    if (rc >= 0 && planes)
        stored_join(data, flat, want, f->width[b]);
    if (planes)
        free(flat);
    free(packed);
    return rc < 0 ? rc : 0;
}

int zst_check_tail(struct ckpt *c, int file, struct err *e)
{
    struct fmt_file *f = &c->file[file];
    int64_t n = (f->bytes + FMT_BLOCK - 1) / FMT_BLOCK;
    size_t bytes = 0;
    char *want = seek_table(f->frame, n, f->bytes, &bytes), *have = malloc(bytes + 1);
    int rc = 0;
    if (!want || !have)
        rc = err_set(e, ERR_MEMORY, "%s: no memory for its seek table", f->path);
    else
        rc = fmt_pread(c, file, have, (int64_t)bytes, f->frame[n], e);
    if (rc >= 0 && memcmp(want, have, bytes))
        rc = err_set(e, ERR_INTEGRITY,
                     "%s: its seek table is not that of the frames in %s: restore it from a good copy",
                     f->path, FMT_MANIFEST);
    free(want);
    free(have);
    return rc < 0 ? rc : 0;
}

int zst_table(struct fmt_file *f, const json_t *frames, int64_t stored, const char *what, struct err *e)
{
    int64_t n = (f->bytes + FMT_BLOCK - 1) / FMT_BLOCK;
    if (!json_is_array(frames) || (int64_t)json_array_size(frames) != n)
        return err_set(e, ERR_FORMAT, "%s: %s of %lld bytes has %zu frames, not %lld", what, f->name,
                       (long long)f->bytes, json_array_size(frames), (long long)n);
    f->frame = malloc(sizeof *f->frame * (size_t)(n + 1));
    if (!f->frame)
        return err_set(e, ERR_MEMORY, "%s: no memory for %lld frames", what, (long long)n);
    f->frame[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        json_int_t v = json_integer_value(json_array_get(frames, (size_t)i));
        if (v < 1 || v > (json_int_t)ZSTD_compressBound((size_t)FMT_BLOCK))
            return err_set(e, ERR_FORMAT, "%s: frame %lld of %s has %lld bytes", what, (long long)i, f->name,
                           (long long)v);
        f->frame[i + 1] = f->frame[i] + v;
    }
    if (f->frame[n] + n * 8 + FOOTER + 8 != stored)
        return err_set(e, ERR_FORMAT, "%s: frames and seek table of %s have %lld bytes, its length is %lld",
                       what, f->name, (long long)(f->frame[n] + n * 8 + FOOTER + 8), (long long)stored);
    return 0;
}

int zst_widths(struct fmt_file *f, const json_t *planes, const char *what, struct err *e)
{
    size_t n = (size_t)((f->bytes + FMT_BLOCK - 1) / FMT_BLOCK);
    const char *digits = json_string_value(planes);
    if (!digits || json_string_length(planes) != n || strspn(digits, "1248") != n)
        return err_set(e, ERR_FORMAT,
                       "%s: planes of %s is not one of the digits 1, 2, 4, 8 for each of its %zu blocks",
                       what, f->name, n);
    if (!(f->width = malloc(n + 1)))
        return err_set(e, ERR_MEMORY, "%s: no memory for %zu widths", what, n);
    for (size_t i = 0; i < n; i++)
        f->width[i] = (unsigned char)(digits[i] - '0');
    return 0;
}
