/* md5.c - see md5.h. Source: RFC 1321. */
#include "store/md5.h"

#include <stdio.h>
#include <string.h>

/* floor(2^32 * |sin(i + 1)|) */
static const uint32_t sines[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
};

static uint32_t rotate(uint32_t x, int n) { return x << n | x >> (32 - n); }

/* One step of round r: f is its function of b, c and d. */
#define STEP(f, a, b, c, d, word, i, shift) a = b + rotate(a + (f) + (word) + sines[i], shift)

/* Four steps: the words in[x0], in[x0 + dx], …, modulo 16. */
#define FOUR(F, i, x0, dx, s0, s1, s2, s3) \
    STEP(F(b, c, d), a, b, c, d, in[(x0)&15], i, s0); \
    STEP(F(a, b, c), d, a, b, c, in[((x0) + (dx)) & 15], (i) + 1, s1); \
    STEP(F(d, a, b), c, d, a, b, in[((x0) + 2 * (dx)) & 15], (i) + 2, s2); \
    STEP(F(c, d, a), b, c, d, a, in[((x0) + 3 * (dx)) & 15], (i) + 3, s3)
#define F1(x, y, z) ((z) ^ ((x) & ((y) ^ (z))))
#define F2(x, y, z) ((y) ^ ((z) & ((x) ^ (y))))
#define F3(x, y, z) ((x) ^ (y) ^ (z))
#define F4(x, y, z) ((y) ^ ((x) | ~(z)))

static void add_block(struct md5 *s, const unsigned char block[64])
{
    uint32_t in[16], a = s->h[0], b = s->h[1], c = s->h[2], d = s->h[3];
    memcpy(in, block, 64); /* little endian, as all machines that this runs on */
    for (int i = 0; i < 16; i += 4) {
        FOUR(F1, i, i, 1, 7, 12, 17, 22);
    }
    for (int i = 0; i < 16; i += 4) {
        FOUR(F2, 16 + i, 5 * i + 1, 5, 5, 9, 14, 20);
    }
    for (int i = 0; i < 16; i += 4) {
        FOUR(F3, 32 + i, 3 * i + 5, 3, 4, 11, 16, 23);
    }
    for (int i = 0; i < 16; i += 4) {
        FOUR(F4, 48 + i, 7 * i, 7, 6, 10, 15, 21);
    }
    s->h[0] += a, s->h[1] += b, s->h[2] += c, s->h[3] += d;
}

void md5_start(struct md5 *s)
{
    *s = (struct md5){ .h = { 0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476 } };
}

void md5_add(struct md5 *s, const void *data, size_t n)
{
    const unsigned char *p = data;
    size_t have = s->n_bytes % 64;
    s->n_bytes += n;
    if (have) {
        size_t m = 64 - have < n ? 64 - have : n;
        memcpy(s->part + have, p, m);
        p += m, n -= m;
        if (have + m < 64)
            return;
        add_block(s, s->part);
    }
    for (; n >= 64; p += 64, n -= 64)
        add_block(s, p);
    memcpy(s->part, p, n);
}

void md5_end(struct md5 *s, unsigned char out[MD5_BYTES])
{
    static const unsigned char pad[64] = { 0x80 };
    uint64_t bits = s->n_bytes * 8;
    md5_add(s, pad, (s->n_bytes % 64 < 56 ? 56 : 120) - s->n_bytes % 64);
    md5_add(s, &bits, 8);
    memcpy(out, s->h, MD5_BYTES);
}

void md5_hex(const unsigned char sum[MD5_BYTES], char hex[33])
{
    for (int i = 0; i < MD5_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
}

void md5_base64(const unsigned char sum[MD5_BYTES], char text[25])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int i = 0, at = 0; i < 18; i += 3) {
        uint32_t v = (uint32_t)sum[i] << 16 | (i < 15 ? (uint32_t)sum[i + 1] << 8 | sum[i + 2] : 0);
        for (int k = 18; k >= 0; k -= 6)
            text[at++] = digits[v >> k & 63];
    }
    text[22] = text[23] = '=';
    text[24] = 0;
}
