/* gguf_encode_test.c - blocks of GGUF: the bits of ggml's reference rules, recorded from ggml itself (libggml
 * of llama.cpp, 2026: ggml_quantize_chunk without an importance matrix). */
#include <math.h>
#include <string.h>
#include "format/gguf/gguf_block_encode.h"
#include "tests/test.h"

#define N (256 * 64)

/* Values of many sizes: groups of 32 with scales from 2^-12 to 2^3, every fifth value 16 times larger, every
 * seventh group of 16 zero, whole numbers in the last quarter. */
static void fill(float *x)
{
    uint64_t z = 1;
    for (int i = 0; i < N; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        float u = (float)(z >> 40) / 16777216 - 0.5f;
        x[i] = ldexpf(u, i / 32 % 16 - 12) * (i % 5 ? 1 : 16);
        if (i / 16 % 7 == 0)
            x[i] = 0;
        if (i >= N / 4 * 3)
            x[i] = (float)(int)(u * 30);
    }
}

static uint64_t fnv(const unsigned char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

TEST(blocks_have_the_bits_of_ggml)
{
    static const struct {
        enum gguf_type type;
        uint64_t sum;
    } recorded[] = {
        { GGUF_Q8_0, 0x81e7e034d185cac1u },  { GGUF_Q4_0, 0x7932b049297cb242u },
        { GGUF_MXFP4, 0xbf9323ed1d70a125u }, { GGUF_Q4_K, 0x93defce83b5b298eu },
        { GGUF_Q5_K, 0x47cde5619491d98bu },  { GGUF_Q6_K, 0xbbb63f30563ad8e8u },
    };
    static float x[N];
    static unsigned char out[N * 2];
    fill(x);
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        const struct gguf_type_row *row = gguf_type_row(recorded[i].type);
        CHECK(gguf_encode(row->id, x, N, out) == 0);
        CHECK(fnv(out, (size_t)(N / row->values * row->bytes)) == recorded[i].sum);
    }
}

TEST(what_a_block_cannot_hold_is_refused)
{
    static const enum gguf_type types[] = {
        GGUF_Q8_0, GGUF_Q4_0, GGUF_MXFP4, GGUF_Q4_K, GGUF_Q5_K, GGUF_Q6_K
    };
    float x[256] = { 1, 2, 3 };
    unsigned char out[512];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        CHECK(gguf_can_encode(types[i]) && gguf_encode(types[i], x, 256, out) == 0);
        x[100] = NAN;
        CHECK(gguf_encode(types[i], x, 256, out) < 0);
        x[100] = INFINITY;
        CHECK(gguf_encode(types[i], x, 256, out) < 0);
        x[100] = 0;
    }
    x[3] = 1e30f;
    CHECK(gguf_encode(GGUF_Q8_0, x, 256, out) < 0);
    CHECK(gguf_encode(GGUF_Q4_K, x, 256, out) < 0);
    CHECK(!gguf_can_encode(GGUF_Q2_K) && !gguf_can_encode(GGUF_F16));
}

TEST(half_floats_round_to_nearest_even)
{
    static const struct {
        float x;
        uint16_t bits;
    } cases[] = {
        { 1, 0x3c00 },          { -2, 0xc000 },         { 65504, 0x7bff },      { 65519.996f, 0x7bff },
        { 65520, 0x7c00 },      { -1e9f, 0xfc00 },      { 0x1p-14f, 0x0400 },   { 0x1.ff8p-15f, 0x03ff },
        { 0x1p-24f, 0x0001 },   { 0x1p-25f, 0x0000 },   { 0x1.8p-25f, 0x0001 }, { 0x1.8p-24f, 0x0002 },
        { 0x1.002p0f, 0x3c00 }, { 0x1.006p0f, 0x3c02 }, { -0.0f, 0x8000 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(gguf_f16_bits(cases[i].x) == cases[i].bits);
    for (uint32_t b = 0; b < 0x7c00; b++)
        CHECK(gguf_f16_bits(gguf_f16_value((uint16_t)b)) == b);
    CHECK(isinf(gguf_f16_value(0x7c00)) && isnan(gguf_f16_value(0x7e00)));
}

/* Value j of a published block is code j; of a GGUF block value j is the low half of byte j below 16. */
TEST(mxfp4_pairs_move_without_a_change)
{
    unsigned char pairs[16], out[17];
    for (int j = 0; j < 32; j++) {
        int code = (j * 7 + 3) % 16;
        pairs[j / 2] = (unsigned char)(j % 2 ? pairs[j / 2] | code << 4 : code);
    }
    gguf_mxfp4_of_pairs(pairs, 121, out);
    CHECK(out[0] == 121);
    for (int j = 0; j < 32; j++)
        CHECK((out[1 + j % 16] >> j / 16 * 4 & 15) == (j * 7 + 3) % 16);
}
