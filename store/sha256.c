/* sha256.c - see sha256.h. x86 processors have instructions for the rounds; where they are missing, portable
 * C does the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "store/sha256.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define ROOM ((size_t)1 << 20)

static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rot(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void block_portable(uint32_t h[8], const unsigned char *p)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 |
               p[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + (rot(w[i - 15], 7) ^ rot(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
               (rot(w[i - 2], 17) ^ rot(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t a = s[7] + (rot(s[4], 6) ^ rot(s[4], 11) ^ rot(s[4], 25)) +
                     ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
        uint32_t b = (rot(s[0], 2) ^ rot(s[0], 13) ^ rot(s[0], 22)) +
                     ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += a;
        s[0] = a + b;
    }
    for (int i = 0; i < 8; i++)
        h[i] += s[i];
}

#if defined(__x86_64__)
/* The instructions keep the eight words as {a b e f} and {c d g h}, a highest, and do two rounds at a
 * time. */
__attribute__((target("sha,sse4.1,ssse3"))) static void block_ni(uint32_t h[8], const unsigned char *p)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i abef = _mm_set_epi32((int)h[0], (int)h[1], (int)h[4], (int)h[5]),
            cdgh = _mm_set_epi32((int)h[2], (int)h[3], (int)h[6], (int)h[7]);
    const __m128i abef_was = abef, cdgh_was = cdgh;
    __m128i w[4];
    uint32_t out[8];
    for (int i = 0; i < 4; i++)
        w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)), swap);
    for (int i = 0; i < 16; i++) { /* four rounds each; w[i % 4] holds their words */
        __m128i x = _mm_add_epi32(w[i % 4], _mm_loadu_si128((const __m128i *)(const void *)(k + 4 * i)));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, x);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(x, 0x0e));
        if (i < 12) {
            __m128i *n = &w[i % 4];
            *n = _mm_add_epi32(_mm_sha256msg1_epu32(*n, w[(i + 1) % 4]),
                               _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4));
            *n = _mm_sha256msg2_epu32(*n, w[(i + 3) % 4]);
        }
    }
    _mm_storeu_si128((__m128i *)(void *)out, _mm_add_epi32(abef, abef_was));
    _mm_storeu_si128((__m128i *)(void *)(out + 4), _mm_add_epi32(cdgh, cdgh_was));
    static const int place[8] = { 5, 4, 1, 0, 7, 6, 3, 2 };
    for (int i = 0; i < 8; i++)
        h[place[i]] = out[i];
}

static int have_ni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1 && __get_cpuid(1, &a, &b, &c, &d) &&
           c >> 19 & 1 && c >> 9 & 1;
}
#else
static int have_ni(void) { return 0; }
static void block_ni(uint32_t h[8], const unsigned char *p) { block_portable(h, p); }
#endif

static void blocks(uint32_t h[8], const unsigned char *p, size_t n)
{
    void (*block)(uint32_t *, const unsigned char *) = have_ni() ? block_ni : block_portable;
    for (size_t at = 0; at + 64 <= n; at += 64)
        block(h, p + at);
}

void sha256_start(struct sha256 *s)
{
    static const uint32_t first[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    memcpy(s->h, first, sizeof s->h);
    s->n_bytes = 0;
}

void sha256_add(struct sha256 *s, const void *data, size_t n)
{
    const unsigned char *p = data;
    size_t in = s->n_bytes % 64, m = n < 64 - in ? n : 64 - in;
    s->n_bytes += n;
    if (in) {
        memcpy(s->part + in, p, m);
        if (in + m < 64)
            return;
        blocks(s->h, s->part, 64);
        p += m;
        n -= m;
    }
    blocks(s->h, p, n);
    memcpy(s->part, p + n / 64 * 64, n % 64);
}

/* A one bit, zeros, and the length in bits end the last block. */
void sha256_end(struct sha256 *s, unsigned char out[32])
{
    static const unsigned char pad[64] = { 0x80 };
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(s->n_bytes * 8 >> 8 * (7 - i));
    sha256_add(s, pad, 64 - (s->n_bytes + 8) % 64);
    sha256_add(s, length, 8);
    for (int i = 0; i < 32; i++)
        out[i] = (unsigned char)(s->h[i / 4] >> 8 * (3 - i % 4));
}

void sha256_hmac(const void *key, size_t n_key, const void *data, size_t n, unsigned char out[32])
{
    unsigned char pad[64] = { 0 };
    struct sha256 s;
    if (n_key > 64) {
        sha256_start(&s);
        sha256_add(&s, key, n_key);
        sha256_end(&s, pad);
    } else
        memcpy(pad, key, n_key);
    for (int i = 0; i < 64; i++)
        pad[i] ^= 0x36;
    sha256_start(&s);
    sha256_add(&s, pad, 64);
    sha256_add(&s, data, n);
    sha256_end(&s, out);
    for (int i = 0; i < 64; i++)
        pad[i] ^= 0x36 ^ 0x5c;
    sha256_start(&s);
    sha256_add(&s, pad, 64);
    sha256_add(&s, out, 32);
    sha256_end(&s, out);
}

void sha256_hex(const unsigned char sum[32], char hex[65])
{
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
}

int sha256_file(const char *path, char hex[65], struct err *e)
{
    unsigned char *room = malloc(ROOM), sum[32];
    struct sha256 s;
    int fd = -1, rc = room ? 0 : err_set(e, ERR_MEMORY, "no room to read %s", path);
    if (rc < 0)
        goto out;
    TRY(fd = io_open_read(path, e));
    int64_t bytes = io_size(fd, path, e);
    rc = bytes < 0 ? (int)bytes : 0;
    sha256_start(&s);
    for (int64_t at = 0; at < bytes; at += (int64_t)ROOM) {
        size_t n = bytes - at < (int64_t)ROOM ? (size_t)(bytes - at) : ROOM;
        TRY(io_pread(fd, path, room, n, at, e));
        sha256_add(&s, room, n);
    }
    sha256_end(&s, sum);
    sha256_hex(sum, hex);
out:
    io_close(fd);
    free(room);
    return rc < 0 ? rc : 0;
}
