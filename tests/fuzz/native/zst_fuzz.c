/* zst_fuzz.c - frames and seek table of a compressed file, with checksums that fit (format/native/zst.c).
 * The input: a byte for the number of frames and the width of byte planes, two for the length of each, two
 * for the plain bytes of the last, frames, table. */
#include <stdlib.h>
#include <string.h>
#include "format/native/zst.h"
#include "tests/fuzz/fuzz.h"

#define FRAMES_MAX 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    size_t n_frames = n ? 1 + data[0] % FRAMES_MAX : 0, head = 1 + 2 * n_frames + 2, left;
    struct err e = { 0 };
    if (n < head || !n)
        return 0;
    const uint8_t *body = data + head;
    left = n - head;
    struct ckpt *c = fuzz_ckpt(body, left);
    struct fmt_file *f = &c->file[0];
    f->frame = calloc(n_frames + 1, sizeof *f->frame);
    f->block = calloc(n_frames, sizeof *f->block);
    f->seen = calloc(n_frames, 1);
    f->bytes = (int64_t)(n_frames - 1) * FMT_BLOCK + 1 + (data[head - 2] | data[head - 1] << 8);
    for (size_t i = 0; i < n_frames; i++) {
        size_t len = (size_t)data[1 + 2 * i] | (size_t)data[2 + 2 * i] << 8;
        len = len < left - (size_t)f->frame[i] ? len : left - (size_t)f->frame[i];
        f->frame[i + 1] = f->frame[i] + (int64_t)len;
        f->block[i] = fmt_sum64(body + f->frame[i], len);
    }
    if (data[0] >> 3 & 3) {
        f->width = malloc(n_frames);
        memset(f->width, 1 << (data[0] >> 3 & 3), n_frames);
    }
    char *plain = malloc((size_t)FMT_BLOCK);
    for (size_t i = 0; i < n_frames; i++)
        zst_read_block(c, 0, (int64_t)i, plain, &e);
    zst_check_tail(c, 0, &e);
    free(plain);
    ckpt_close(c);
    return 0;
}
