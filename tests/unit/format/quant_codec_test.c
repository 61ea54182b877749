/* quant_codec_test.c - codes of quantised weights against statements of their own: values by exact products
 * in double, nearest codes by a search, words bit by bit. */
#include "tests/test.h"

#include <math.h>
#include "base/rnd.h"
#include "format/quant/codec.h"

static const enum codec_kind kinds[] = { CODEC_E4M3, CODEC_E5M2, CODEC_E2M1 };
static const enum stored_dtype stored[] = { STORED_F8_E4M3, STORED_F8_E5M2, STORED_F4 };

static int n_codes(enum codec_kind kind) { return kind == CODEC_E2M1 ? 16 : 256; }

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Nearest bf16 of a finite x, by its two neighbours. */
static float nearest_bf16(float x)
{
    float down = codec_of_bf16((uint16_t)(bits_of(x) >> 16));
    float up = codec_of_bf16((uint16_t)((bits_of(x) >> 16) + 1));
    double a = fabs((double)x - (double)down), b = fabs((double)up - (double)x);
    if (isinf(up))
        b = 0x1p128 - fabs((double)x);
    return a < b || (a == b && !(bits_of(down) >> 16 & 1)) ? down : up;
}

static float random_scale(uint64_t *n)
{
    double fraction = 1 + (double)(rnd_u64(7, 1, *n) >> 12) * 0x1p-52;
    return (float)ldexp(fraction, (int)(rnd_u64(7, 2, (*n)++) % 40) - 30);
}

TEST(every_code_times_random_scales_is_the_exact_product_rounded_once)
{
    uint64_t n = 0;
    for (int k = 0; k < 3; k++)
        for (int round = 0; round < 400; round++) { /* from 200 on all powers of two */
            struct codec c = { kinds[k], STORED_F32, n_codes(kinds[k]), random_scale(&n), 0 };
            if (round >= 200)
                c.scale = codec_e8m0((uint8_t)(round - 200 + 30));
            for (int i = 0; i < c.n_codes; i++) {
                uint8_t code = (uint8_t)i;
                float x;
                uint16_t h;
                double exact = stored_value(stored[k], &code, 0) * (double)c.scale;
                c.to = STORED_F32;
                codec_values(&c, &code, 1, &x);
                c.to = STORED_BF16;
                codec_values(&c, &code, 1, &h);
                if (isnan(exact)) {
                    CHECK(isnan(x) && isnan(codec_of_bf16(h)) && !!signbit(x) == i >> 7);
                    continue;
                }
                CHECK_BITS(x, (float)exact);
                CHECK_BITS(codec_of_bf16(h), isinf(x) ? x : nearest_bf16(x));
            }
        }
}

TEST(codes_of_integers_are_taken_from_their_zero_point)
{
    struct codec c = { CODEC_INT, STORED_F32, 16, 0.3f, 7 };
    uint8_t code[300];
    float x[300];
    uint16_t h[300];
    for (int i = 0; i < 300; i++)
        code[i] = (uint8_t)(i % 16);
    codec_values(&c, code, 300, x);
    c.to = STORED_BF16;
    codec_values(&c, code, 300, h);
    for (int i = 0; i < 300; i++) {
        CHECK_BITS(x[i], (float)((double)(i % 16 - 7) * (double)0.3f));
        CHECK_BITS(codec_of_bf16(h[i]), nearest_bf16(x[i]));
    }
}

TEST(a_table_and_scales_of_each_give_the_same_values)
{
    uint8_t code[700];
    float scale[700], a[700], b[700];
    uint16_t g[700], h[700];
    int16_t zero[700];
    struct codec c = { CODEC_E4M3, STORED_F32, 256, 0.0173f, 0 },
                 q = { CODEC_INT, STORED_BF16, 256, 0.0173f, 131 };
    struct codec_table t = { 0 };
    for (int i = 0; i < 700; i++) {
        code[i] = (uint8_t)(i * 37);
        scale[i] = q.scale;
        zero[i] = (int16_t)q.zero;
    }
    codec_values(&c, code, 700, a);
    codec_values_by_table(&c, &t, code, 700, b);
    CHECK_SAME(a, b, sizeof a);
    codec_values(&q, code, 700, g);
    codec_values_each(STORED_BF16, code, scale, zero, 700, h);
    CHECK_SAME(g, h, sizeof g);
}

/* The nearest code of a finite x by a search over all; ties to the even code, beyond the largest the largest.
 * */
static int search(enum codec_kind kind, float x)
{
    const float *number = codec_numbers(kind);
    int best = -1, sign = signbit(x) ? n_codes(kind) / 2 : 0;
    double least = INFINITY;
    for (int i = 0; i < n_codes(kind) / 2; i++) {
        double d = fabs((double)number[i] - fabs((double)x));
        if (!isfinite(number[i]) || d > least || (d == least && i % 2))
            continue;
        best = i;
        least = d;
    }
    return best | sign;
}

TEST(the_nearest_code_is_the_one_that_a_search_finds)
{
    for (int k = 0; k < 3; k++) {
        const float *number = codec_numbers(kinds[k]);
        for (uint64_t i = 0; i < 20000; i++) {
            double fraction = (double)(rnd_u64(9, 3, i) >> 12) * 0x1p-51 - 1;
            float x = (float)ldexp(fraction, (int)(rnd_u64(9, 4, i) % 40) - 26);
            CHECK_INT(codec_nearest(kinds[k], x), search(kinds[k], x));
        }
        for (int i = 0; i + 1 < n_codes(kinds[k]) / 2 && isfinite(number[i + 1]); i++) { /* ties */
            float middle = (number[i] + number[i + 1]) / 2;
            CHECK_INT(codec_nearest(kinds[k], middle), i % 2 ? i + 1 : i);
            CHECK_INT(codec_nearest(kinds[k], number[i]), i);
        }
    }
    CHECK_INT(codec_nearest(CODEC_E4M3, 1e9f), 0x7e);
    CHECK_INT(codec_nearest(CODEC_E4M3, -INFINITY), 0xfe);
    CHECK_INT(codec_nearest(CODEC_E4M3, NAN), 0x7f);
    CHECK_BITS(codec_largest(CODEC_E4M3), 448);
    CHECK_BITS(codec_largest(CODEC_E5M2), 57344);
    CHECK_BITS(codec_largest(CODEC_E2M1), 6);
}

static int64_t back(struct codec *c, int n, uint8_t *again, const char **why)
{
    uint8_t code[256];
    float x[256];
    uint16_t h[256] = { 0 };
    for (int i = 0; i < n; i++)
        code[i] = (uint8_t)i;
    if (c->to == STORED_F32)
        codec_values(c, code, n, x);
    else
        codec_values(c, code, n, h);
    for (int i = 0; i < n && c->to == STORED_BF16; i++)
        x[i] = codec_of_bf16(h[i]);
    return codec_exact(c, x, n, again, why);
}

TEST(every_code_comes_back_from_its_value_in_both_dtypes)
{
    uint64_t n = 0;
    const char *why = "";
    uint8_t again[256];
    for (int round = 0; round < 400; round++)
        for (int k = 0; k < 4; k++) {
            struct codec c = { k < 3 ? kinds[k] : CODEC_INT, round % 2 ? STORED_F32 : STORED_BF16,
                               k < 3           ? n_codes(kinds[k])
                               : round % 4 > 1 ? 16
                                               : 256,
                               random_scale(&n), 0 };
            c.zero = k < 3 ? 0 : c.n_codes == 16 ? round % 16 : 128;
            CHECK_INT(back(&c, c.n_codes, again, &why), c.n_codes);
            for (int i = 0; i < c.n_codes; i++)
                CHECK_INT(again[i], i);
        }
}

TEST(a_value_without_a_code_or_with_two_is_found)
{
    const char *why = "";
    uint8_t again[256];
    float x[3] = { 0.5f, 1.0f, 1.01f };
    struct codec c = { CODEC_E4M3, STORED_F32, 256, 0.5f, 0 };
    CHECK_INT(codec_exact(&c, x, 3, again, &why), 2);
    CHECK_HAS(why, "no code");

    struct codec zero = { CODEC_E4M3, STORED_F32, 256, 0, 0 },
                 wide = { CODEC_INT, STORED_BF16, 256, 0.7f, 3 };
    CHECK_INT(back(&zero, 1, again, &why), 0);
    CHECK_HAS(why, "several codes");
    CHECK(back(&wide, 256, again, &why) < 256);
    CHECK_HAS(why, "several codes");
}

TEST(codes_of_1_to_8_bits_are_dense_from_any_bit)
{
    for (int bits = 1; bits <= 8; bits++)
        for (int64_t first = 0; first < 40; first += bits == 4 ? 4 : 5) {
            uint8_t code[61], again[61], word[128] = { 0 };
            for (int i = 0; i < 61; i++)
                code[i] = (uint8_t)(rnd_u64(5, (uint64_t)bits, (uint64_t)i) & ((1u << bits) - 1));
            codec_pack(code, 61, bits, first, word);
            for (int64_t b = 0; b < 61 * bits; b++) {
                int64_t at = first + b;
                CHECK_INT(word[at / 8] >> at % 8 & 1, code[b / bits] >> b % bits & 1);
            }
            codec_unpack(word, first, bits, 61, again);
            CHECK_SAME(code, again, sizeof code);
        }
}

TEST(awq_keeps_eight_codes_in_the_order_0_2_4_6_1_3_5_7)
{
    static const int order[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };
    for (int place = 0; place < 8; place++)
        CHECK_INT(codec_awq_bit(order[place] + 8), 4 * place);
}

TEST(scales_of_all_dtypes_are_read)
{
    static const uint8_t e8m0[] = { 0, 1, 127, 254, 255 };
    static const uint16_t f16[] = { 0x3c00, 0x0001, 0xc000, 0x7c00 }, bf16[] = { 0x3f80, 0x4049 };
    const double d = 0.1;
    float x[5];
    CHECK_INT(codec_to_f32(STORED_F8_E8M0, e8m0, 5, x), 0);
    CHECK(x[0] == 0x1p-127f && x[1] == 0x1p-126f && x[2] == 1 && x[3] == 0x1p127f && isnan(x[4]));
    CHECK_INT(codec_to_f32(STORED_F16, f16, 4, x), 0);
    CHECK(x[0] == 1 && x[1] == 0x1p-24f && x[2] == -2 && isinf(x[3]));
    CHECK_INT(codec_to_f32(STORED_BF16, bf16, 2, x), 0);
    CHECK(x[0] == 1 && x[1] == 3.140625f);
    CHECK_INT(codec_to_f32(STORED_F64, &d, 1, x), 0);
    CHECK_BITS(x[0], 0.1f);
    CHECK_INT(codec_to_f32(STORED_I64, &d, 1, x), -1);
}
