/* zst.c - seekable zstd: a frame for every block of a file, and behind them a table of the frames that other
 * programs skip.
 *
 *     frame of block 0 | frame of block 1 | … | skippable frame: sizes of all frames        `zstd -d` gives
 *     the plain file back
 * Byte planes: the first bytes of all elements of a block, then the second ones, …: exponents compress well
 * among themselves, mantissas not at all, so entropy coding alone (no search for matches) is both the
 * smallest and the fastest (tests/bench/RESULTS.md).
 * Source: the zstd seekable format 0.1.0 (zstd repository, contrib/seekable_format). Sums are over the
 * frames as they lie in the file, so damage is found before anything is decompressed, also in bits that a
 * decompressor does not look at. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode, ZSTD_getFrameHeader */
#include <zstd.h>
#include "base/io.h"
#include "format/fmt.h"

#define SKIPPABLE 0x184d2a5eu
#define SEEKABLE 0x8f92eab1u
#define FOOTER 9

static void put_u32(char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (char)(v >> 8 * i);
}

/* The table behind n frames of a plain file of `plain` bytes; malloc'd. */
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

/* ---- byte planes ---- */

static void split(char *out, const char *in, size_t n, size_t width)
{
    size_t m = n / width;
    for (size_t k = 0; k < width; k++)
        for (size_t i = 0; i < m; i++)
            out[k * m + i] = in[i * width + k];
    memcpy(out + m * width, in + m * width, n - m * width);
}

static void join(char *out, const char *in, size_t n, size_t width)
{
    size_t m = n / width;
    for (size_t k = 0; k < width; k++)
        for (size_t i = 0; i < m; i++)
            out[i * width + k] = in[k * m + i];
    memcpy(out + m * width, in + m * width, n - m * width);
}

/* ---- writing ---- */

struct packer {
    ZSTD_CCtx *z;
    char *in, *planes, *out;
    size_t room;
};

static int pack_blocks(const struct packer *k, const unsigned char *width, int in_fd, const char *in,
                       int out_fd, const char *out, int64_t bytes, int64_t *frame, uint64_t *sum,
                       struct err *e)
{
    int64_t n = (bytes + FMT_BLOCK - 1) / FMT_BLOCK;
    for (int64_t b = 0; b < n; b++) {
        size_t have = (size_t)(bytes - b * FMT_BLOCK < FMT_BLOCK ? bytes - b * FMT_BLOCK : FMT_BLOCK);
        int rc = io_pread(in_fd, in, k->in, have, b * FMT_BLOCK, e);
        if (rc < 0)
            return rc;
        int planes = width && width[b] > 1;
        if (planes)
            split(k->planes, k->in, have, width[b]);
        size_t put = ZSTD_compress2(k->z, k->out, k->room, planes ? k->planes : k->in, have);
        if (ZSTD_isError(put))
            return err_set(e, ERR_INTERNAL, "%s: cannot compress: %s: please report it", in,
                           ZSTD_getErrorName(put));
        if ((rc = io_pwrite(out_fd, out, k->out, put, frame[b], e)) < 0)
            return rc;
        sum[b] = fmt_sum64(k->out, put);
        frame[b + 1] = frame[b] + (int64_t)put;
    }
    return 0;
}

int zst_pack(const char *in, const char *out, int64_t bytes, struct zst_how how, int64_t *frame,
             uint64_t *sum, int64_t *stored, struct err *e)
{
    int64_t n = (bytes + FMT_BLOCK - 1) / FMT_BLOCK;
    size_t room = ZSTD_compressBound((size_t)FMT_BLOCK);
    struct packer k = { ZSTD_createCCtx(), malloc((size_t)FMT_BLOCK), malloc((size_t)FMT_BLOCK), malloc(room),
                        room };
    char *table = NULL;
    size_t table_bytes = 0;
    int in_fd = -1, out_fd = -1,
        rc = k.z && k.in && k.planes && k.out ? 0 : err_set(e, ERR_MEMORY, "no room to compress %s", in);
    if (rc < 0)
        goto out;
    ZSTD_CCtx_setParameter(k.z, ZSTD_c_compressionLevel, how.level ? how.level : ZSTD_minCLevel());
    if (!how.level) /* so low a level leaves literals as they are, unless told */
        ZSTD_CCtx_setParameter(k.z, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
    TRY(in_fd = io_open_read(in, e));
    TRY(out_fd = io_create(out, e));
    frame[0] = 0;
    TRY(pack_blocks(&k, how.width, in_fd, in, out_fd, out, bytes, frame, sum, e));
    table = seek_table(frame, n, bytes, &table_bytes);
    if (!table) {
        rc = err_set(e, ERR_MEMORY, "no room for the seek table of %s", out);
        goto out;
    }
    TRY(io_pwrite(out_fd, out, table, table_bytes, frame[n], e));
    *stored = frame[n] + (int64_t)table_bytes;
    rc = io_sync_close(out_fd, out, e);
    out_fd = -1;
out:
    io_close(in_fd);
    io_close(out_fd);
    ZSTD_freeCCtx(k.z);
    free(k.in);
    free(k.planes);
    free(k.out);
    free(table);
    return rc < 0 ? rc : 0;
}

/* ---- reading ---- */

/* One frame of today's format that says its content's size, without a dictionary, and nothing behind it:
 * older formats that the library may still read, or a window larger than the block, never get to the
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
        free(planes ? flat : NULL);
        return err_set(e, ERR_MEMORY, "%s: no room for a frame of %lld bytes", f->path, (long long)n);
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
        join(data, flat, want, f->width[b]);
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
        rc = err_set(e, ERR_MEMORY, "%s: no room for its seek table", f->path);
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
        return err_set(e, ERR_MEMORY, "%s: no room for %lld frames", what, (long long)n);
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
        return err_set(e, ERR_MEMORY, "%s: no room for %zu widths", what, n);
    for (size_t i = 0; i < n; i++)
        f->width[i] = (unsigned char)(digits[i] - '0');
    return 0;
}
