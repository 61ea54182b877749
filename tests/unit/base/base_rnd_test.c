/* base_rnd_test.c - Philox against the known answers of its authors, distributions, permutations. */
#include "tests/test.h"

#include <math.h>
#include "base/rnd.h"

/* Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, result. */
static const uint32_t kat[3][10] = {
    { 0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
    { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e,
      0xa20bc7c6, 0x6d5451fd },
    { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb,
      0x5001e420, 0x24126ea1 },
};

TEST(philox_gives_the_known_answers)
{
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        rnd_philox(kat[i], kat[i] + 4, out);
        CHECK_SAME(out, kat[i] + 6, sizeof out);
    }
}

TEST(index_is_the_low_half_of_the_counter_and_seed_the_key)
{
    uint64_t got = rnd_u64(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u);
    CHECK(got == 0x94fdccebd16cfe09u);
    CHECK(rnd_u64(0, 0, 0) == 0xe169c58d6627e8d5u);
    CHECK(rnd_unit(0, 0, 0) == (double)(0xe169c58d6627e8d5u >> 11) * 0x1p-53);
}

TEST(many_normals_are_the_single_ones)
{
    enum { N = 100003 };
    static double many[N];
    for (uint64_t seed = 0; seed < 3; seed++) {
        uint64_t stream = rnd_stream("w") + seed, first = seed * 0xfffffff0u;
        rnd_normals(seed << 33 | seed, stream, first, N, many);
        for (uint64_t i = 0; i < N; i++) {
            double one = rnd_normal(seed << 33 | seed, stream, first + i);
            CHECK_SAME(&many[i], &one, sizeof one);
        }
    }
}

TEST(unit_numbers_are_uniform)
{
    enum { N = 200000, BINS = 16 };
    int bin[BINS] = { 0 };
    for (uint64_t i = 0; i < N; i++) {
        double u = rnd_unit(9, 1, i);
        CHECK(u >= 0 && u < 1);
        bin[(int)(u * BINS)]++;
    }
    for (int b = 0; b < BINS; b++)
        CHECK_NEAR(bin[b], N / BINS, 6 * sqrt(N / BINS));
}

TEST(normal_numbers_have_the_moments_of_the_normal_distribution)
{
    enum { N = 200000 };
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, product = 0, last = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = rnd_normal(9, 2, i);
        m1 += x, m2 += x * x, m3 += x * x * x, m4 += x * x * x * x;
        product += x * last;
        last = x;
    }
    CHECK_NEAR(m1 / N, 0, 0.012);
    CHECK_NEAR(m2 / N, 1, 0.016);
    CHECK_NEAR(m3 / N, 0, 0.045);
    CHECK_NEAR(m4 / N, 3, 0.12);
    CHECK_NEAR(product / N, 0, 0.012);
}

/* A run is started again years later on another machine: these may never change. */
TEST(normal_bits_are_pinned)
{
    CHECK(rnd_normal(0, 0, 0) == -0x1.973628c131c06p-2);
    CHECK(rnd_normal(1, 2, 3) == -0x1.26ab5baedb3e9p-4);
    CHECK(rnd_stream("model.embed_tokens.weight") == 0x1acb025cf390dc05u);
    CHECK_INT(rnd_permute(42, 7, 5, 1000), 485);
}

TEST(streams_differ_when_names_do)
{
    CHECK(rnd_stream("a") != rnd_stream("b"));
    CHECK(rnd_stream("") != rnd_stream("a"));
    CHECK(rnd_stream("layers.1.x") != rnd_stream("layers.11.x"));
    int n_same_bits = __builtin_popcountll(~(rnd_stream("q_proj") ^ rnd_stream("k_proj")));
    CHECK(n_same_bits > 12 && n_same_bits < 52);
}

TEST(permute_hits_every_number_once)
{
    static const uint64_t size[] = { 1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097 };
    static unsigned char hit[4097];
    for (size_t s = 0; s < sizeof size / sizeof *size; s++) {
        uint64_t n = size[s], n_fixed = 0;
        memset(hit, 0, sizeof hit);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t j = rnd_permute(3, 4, i, n);
            CHECK(j < n);
            n_fixed += j == i;
            hit[j % sizeof hit]++;
        }
        for (uint64_t i = 0; i < n; i++)
            CHECK_INT(hit[i], 1);
        CHECK(n < 100 || n_fixed < 10);
    }
    CHECK(rnd_permute(3, 4, (UINT64_C(1) << 60) - 1, UINT64_C(1) << 60) < UINT64_C(1) << 60);
    CHECK(rnd_permute(3, 4, 7, UINT64_MAX) < UINT64_MAX);
}

TEST(permutations_of_other_seeds_and_streams_differ)
{
    int same_seed = 0, same_stream = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        same_seed += rnd_permute(1, 1, i, 1000) == rnd_permute(2, 1, i, 1000);
        same_stream += rnd_permute(1, 1, i, 1000) == rnd_permute(1, 2, i, 1000);
    }
    CHECK(same_seed < 10);
    CHECK(same_stream < 10);
}
