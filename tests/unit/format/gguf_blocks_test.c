/* gguf_blocks_test.c - values of GGUF's blocks: sums of their bits, which are those of the gguf package's
 * dequantize (0.19) for the same blocks. */
#include "format/fmt.h"
#include "format/gguf/gguf_block.h"
#include "tests/test.h"

#define BLOCKS 64

/* Bytes of a linear congruence; the halves of a block get small exponents, so that no value is NaN. */
static void fill(enum gguf_type t, uint8_t *p)
{
    static const struct {
        enum gguf_type type;
        int half[2]; /* offsets of halves; -1: none */
    } halves[] = {
        { GGUF_Q4_0, { 0, -1 } },   { GGUF_Q4_1, { 0, 2 } },    { GGUF_Q5_0, { 0, -1 } },
        { GGUF_Q5_1, { 0, 2 } },    { GGUF_Q8_0, { 0, -1 } },   { GGUF_Q2_K, { 80, 82 } },
        { GGUF_Q3_K, { 108, -1 } }, { GGUF_Q4_K, { 0, 2 } },    { GGUF_Q5_K, { 0, 2 } },
        { GGUF_Q6_K, { 208, -1 } }, { GGUF_IQ4_NL, { 0, -1 } }, { GGUF_IQ4_XS, { 0, -1 } },
    };
    const struct gguf_type_row *row = gguf_type_row(t);
    uint32_t x = 12345u + t;
    for (int i = 0; i < BLOCKS * row->bytes; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = (uint8_t)(x >> 24);
    }
    for (size_t h = 0; h < sizeof halves / sizeof *halves; h++)
        for (int i = 0; i < 2 * BLOCKS && halves[h].type == t; i++)
            if (halves[h].half[i % 2] >= 0)
                p[i / 2 * row->bytes + halves[h].half[i % 2] + 1] &= 0xbb;
    for (int i = 0; i < BLOCKS && t == GGUF_MXFP4; i++)
        p[i * row->bytes] = (uint8_t)(100 + i % 40);
}

TEST(values_of_blocks_have_the_bits_of_the_gguf_package)
{
    static const struct {
        enum gguf_type type;
        uint64_t sum;
    } want[] = {
        { GGUF_Q4_0, 0x14ae0fdcfaf7f799u },   { GGUF_Q4_1, 0x0fd09bf0bcb2eb56u },
        { GGUF_Q5_0, 0x370f0b3104121c74u },   { GGUF_Q5_1, 0x7c78a7ccb889cb7cu },
        { GGUF_Q8_0, 0x960fa356ace79989u },   { GGUF_Q2_K, 0x1cf34e0d4f2a251bu },
        { GGUF_Q3_K, 0xf295de42f6abbcfau },   { GGUF_Q4_K, 0x1a14c21acf383507u },
        { GGUF_Q5_K, 0x5d14a3dd018cde14u },   { GGUF_Q6_K, 0xde67ad36278a0bd8u },
        { GGUF_IQ4_NL, 0xb03876789a00ce37u }, { GGUF_IQ4_XS, 0xa23b3a66f1d48cb0u },
        { GGUF_MXFP4, 0xd61e7af03db70b64u },
    };
    uint8_t blocks[BLOCKS * 210];
    static float out[BLOCKS * 256];
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const struct gguf_type_row *row = gguf_type_row(want[i].type);
        fill(want[i].type, blocks);
        gguf_decode(want[i].type, blocks, BLOCKS, out);
        uint64_t sum = fmt_sum64(out, sizeof *out * (size_t)(BLOCKS * row->values));
        CHECK(gguf_decodes(want[i].type));
        if (sum != want[i].sum)
            test_fail(__FILE__, __LINE__, "%s: 0x%016llx", row->name, (unsigned long long)sum);
    }
    CHECK(!gguf_decodes(GGUF_IQ2_XS) && !gguf_decodes(GGUF_F16));
}
