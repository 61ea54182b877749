/* codec_pack.c - codes of a few bits in words, and one in a byte. */
#include <string.h>
#include "format/quant/codec.h"

/* Two codes a byte: the low four bits come first. in: from a whole byte on. */
static void unpack_nibbles(const uint8_t *restrict in, int64_t n, uint8_t *restrict out)
{
    for (int64_t i = 0; i < n / 2; i++) {
        out[2 * i] = in[i] & 15;
        out[2 * i + 1] = in[i] >> 4;
    }
    if (n % 2)
        out[n - 1] = in[n / 2] & 15;
}

void codec_unpack(const void *in, int64_t first, int bits, int64_t n, uint8_t *out)
{
    const uint8_t *p = in;
    unsigned mask = (1u << bits) - 1;
    if (bits == 8 && first % 8 == 0) {
        memcpy(out, p + first / 8, (size_t)n);
        return;
    }
    if (bits == 4 && first % 4 == 0) {
        if (n > 0 && first % 8) { /* from the middle of a byte on */
            *out++ = p[first / 8] >> 4;
            first += 4;
            n--;
        }
        unpack_nibbles(p + first / 8, n, out);
        return;
    }

    /* Little-endian words of any size are a stream of bytes. */
    for (int64_t i = 0; i < n; i++) {
        int64_t at = first + i * bits;
        unsigned low = (unsigned)(at % 8), v = (unsigned)p[at / 8] >> low;
        if (low + (unsigned)bits > 8)
            v |= (unsigned)p[at / 8 + 1] << (8 - low);
        out[i] = (uint8_t)(v & mask);
    }
}

void codec_pack(const uint8_t *in, int64_t n, int bits, int64_t first, void *out)
{
    uint8_t *p = out;
    if (bits == 8 && first % 8 == 0) {
        memcpy(p + first / 8, in, (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t at = first + i * bits;
        unsigned low = (unsigned)(at % 8), v = (unsigned)in[i] << low;
        p[at / 8] |= (uint8_t)v;
        if (low + (unsigned)bits > 8)
            p[at / 8 + 1] |= (uint8_t)(v >> 8);
    }
}

int codec_awq_bit(int64_t i)
{
    static const unsigned char place[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };
    return place[i % 8] * 4;
}
