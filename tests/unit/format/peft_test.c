/* peft_test.c - adapter_config.json and the arithmetic of merging (format/peft). Whole adapters:
 * tests/cli/reshard/reshard_adapter.sh, tests/cli/foreign/adapter_peers.sh. */
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "format/peft/merge_priv.h"

static int parse(struct peft_config *c, const char *text, struct err *e)
{
    return peft_config_parse(c, text, strlen(text), e);
}

TEST(rank_and_scale_are_those_of_the_patterns)
{
    static const char text[] = "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":6,\"rank_pattern\":{\"k_"
                               "proj\":2,\"layers\\\\.1\\\\d\\\\.up\":8,"
                               "\"b.*\\\\.(x|y)\":16},\"alpha_pattern\":{\"3.k_proj\":1.5}}";
    static const struct {
        const char *name;
        int64_t rank;
        double scale;
    } rows[] = {
        { "model.layers.3.q_proj", 4, 1.5 },
        { "model.layers.3.k_proj", 2, 0.75 },
        { "model.layers.2.k_proj", 2, 3 },
        { "k_proj", 2, 3 },
        { "model.layers.2.xk_proj", 4, 1.5 },
        { "model.layers.17.up", 8, 0.75 },
        { "model.layers.1.up", 4, 1.5 },
        { "model.layers.17.upper", 4, 1.5 },
        { "bc.d.y", 16, 0.375 },
        { "bc.d.z", 4, 1.5 },
    };
    struct peft_config c;
    struct err e = { 0 };
    CHECK_INT(parse(&c, text, &e), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t rank = 0;
        double scale = 0;
        CHECK_INT(peft_config_scale(&c, rows[i].name, &rank, &scale, &e), 0);
        CHECK_INT(rank, rows[i].rank);
        CHECK(scale == rows[i].scale);
    }
    peft_config_free(&c);
}

TEST(rslora_divides_by_the_root_and_defaults_are_those_of_peft)
{
    struct peft_config c;
    struct err e = { 0 };
    int64_t rank = 0;
    double scale = 0;
    CHECK_INT(parse(&c, "{\"peft_type\":\"LORA\",\"use_rslora\":true,\"r\":16,\"lora_alpha\":6}", &e), 0);
    CHECK_INT(peft_config_scale(&c, "x", &rank, &scale, &e), 0);
    CHECK(scale == 1.5);
    peft_config_free(&c);

    CHECK_INT(parse(&c, "{\"peft_type\":\"LORA\"}", &e), 0);
    CHECK_INT(peft_config_scale(&c, "x", &rank, &scale, &e), 0);
    CHECK_INT(rank, 8);
    CHECK(scale == 1);
    CHECK_INT(c.experts, PEFT_EXPERTS_UNKNOWN);
    peft_config_free(&c);
}

TEST(a_new_config_is_read_as_it_was_meant)
{
    char first[] = "q_proj", second[] = "layers.1.mlp.up_proj", *target[] = { first, second };
    const struct peft_new p = { .base = "some \"base\"",
                                .rank = 7,
                                .alpha = 0.3,
                                .rslora = 1,
                                .fan_in_fan_out = 1,
                                .n = 2,
                                .target = target };
    struct peft_config c, on;
    struct err e = { 0 };
    char *text = peft_config_text(&p);
    CHECK_INT(parse(&c, text, &e), 0);
    CHECK_STR(c.base, p.base);
    CHECK_INT(c.rank, 7);
    CHECK(c.alpha == 0.3);
    CHECK(c.rslora && c.fan_in_fan_out);
    json_t *list = json_object_get(c.root, "target_modules");
    CHECK_INT((long long)json_array_size(list), 2);
    CHECK_STR(json_string_value(json_array_get(list, 1)), target[1]);

    char *moved = peft_config_on(&c, "elsewhere");
    CHECK_INT(parse(&on, moved, &e), 0);
    CHECK_STR(on.base, "elsewhere");
    CHECK(on.alpha == 0.3 && on.rank == 7);
    peft_config_free(&on);
    peft_config_free(&c);
    free(moved);
    free(text);
}

TEST(the_version_says_how_experts_lie)
{
    struct peft_config c;
    struct err e = { 0 };
    CHECK_INT(parse(&c, "{\"peft_type\":\"LORA\",\"peft_version\":\"0.18.1\"}", &e), 0);
    CHECK_INT(c.experts, PEFT_EXPERTS_IN_OUT);
    peft_config_free(&c);
    CHECK_INT(parse(&c, "{\"peft_type\":\"LORA\",\"peft_version\":\"0.19.0.dev0\"}", &e), 0);
    CHECK_INT(c.experts, PEFT_EXPERTS_BY_MODULE);
    peft_config_free(&c);
}

TEST(other_kinds_and_damaged_configs_are_refused)
{
    static const struct {
        const char *text, *why;
        int code;
    } rows[] = {
        { "{}", "peft_type is not given", ERR_CONFIG },
        { "{\"peft_type\":\"LOHA\"}", "peft_type is LOHA", ERR_CONFIG },
        { "{\"peft_type\":\"LORA\",\"use_dora\":true}", "use_dora is set", ERR_CONFIG },
        { "{\"peft_type\":\"LORA\",\"trainable_token_indices\":[1]}", "trainable_token_indices is set",
          ERR_CONFIG },
        { "{\"peft_type\":\"LORA\",\"init_lora_weights\":\"olora\"}", "init_lora_weights is olora",
          ERR_CONFIG },
        { "{\"peft_type\":7}", "peft_type", ERR_FORMAT },
        { "[1]", "no object", ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"r\":\"8\"}", "r", ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"lora_alpha\":NaN}", "adapter_config.json", ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"rank_pattern\":[3]}", "rank_pattern is no object", ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"alpha_pattern\":{\"q\":null}}", "no number for q", ERR_FORMAT },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct peft_config c;
        struct err e = { 0 };
        CHECK_INT(parse(&c, rows[i].text, &e), -rows[i].code);
        CHECK(strstr(e.text, rows[i].why) != NULL);
        peft_config_free(&c);
    }
}

TEST(patterns_that_may_take_any_time_are_refused)
{
    static const char *const refused[] = {
        "(a*)*", "((a+)b)+", "a**", "a{3}",    "(?=a)",
        "a*?",   "((a)",     "a)(", "[[:x:]]", "(((((((((((((((((a)))))))))))))))))"
    };
    static const char *const taken[] = { "(a|b)*", "(a)*", "(a*)b", "[*+?]+", "x(\\\\.y)?", "a*b*" };
    for (size_t i = 0; i < sizeof refused / sizeof *refused + sizeof taken / sizeof *taken; i++) {
        const size_t n = sizeof refused / sizeof *refused;
        struct peft_config c;
        struct err e = { 0 };
        char text[128];
        int64_t rank;
        double scale;
        snprintf(text, sizeof text, "{\"peft_type\":\"LORA\",\"rank_pattern\":{\"%s\":2}}",
                 i < n ? refused[i] : taken[i - n]);
        CHECK_INT(parse(&c, text, &e), 0);
        CHECK_INT(peft_config_scale(&c, "model.layers.1.x", &rank, &scale, &e), i < n ? -ERR_FORMAT : 0);
        peft_config_free(&c);
    }
}

TEST(ranks_that_no_adapter_has_are_refused)
{
    static const char *const values[] = { "0", "-3", "2.5", "65537", "1e300" };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct peft_config c;
        struct err e = { 0 };
        char text[128];
        int64_t rank;
        double scale;
        snprintf(text, sizeof text, "{\"peft_type\":\"LORA\",\"rank_pattern\":{\"x\":%s}}", values[i]);
        CHECK_INT(parse(&c, text, &e), 0);
        CHECK_INT(peft_config_scale(&c, "x", &rank, &scale, &e), -ERR_FORMAT);
        peft_config_free(&c);
    }
}

/* ---- arithmetic ---- */

static uint16_t rounded(enum stored_dtype t, double x)
{
    uint16_t out;
    merge_round(t, x, &out, 0);
    return out;
}

/* Every value, the middle of every two neighbours, and what lies a little to each side of it. */
static void check_all(enum stored_dtype t, uint16_t largest)
{
    for (uint16_t k = 0; k < largest; k++) {
        const uint16_t next = (uint16_t)(k + 1);
        const double a = stored_value(t, &k, 0), b = stored_value(t, &next, 0), mid = (a + b) / 2;
        const uint16_t even = k & 1 ? next : k;
        int ok = rounded(t, a) == k && rounded(t, mid) == even && rounded(t, nextafter(mid, a)) == k &&
                 rounded(t, nextafter(mid, b)) == next && rounded(t, -mid) == (even | 0x8000);
        if (!ok)
            test_fail(__FILE__, __LINE__, "%s %04x is not rounded to nearest even", stored_dtype_name(t), k);
    }
}

TEST(every_value_of_16_bits_is_rounded_once_to_nearest_even)
{
    check_all(STORED_BF16, 0x7f7f);
    check_all(STORED_F16, 0x7bff);
    CHECK_INT(rounded(STORED_F16, 65520), 0x7c00);
    CHECK_INT(rounded(STORED_F16, nextafter(65520, 0)), 0x7bff);
    CHECK_INT(rounded(STORED_BF16, 1e300), 0x7f80);
    CHECK_INT(rounded(STORED_BF16, -INFINITY), 0xff80);
    CHECK_INT(rounded(STORED_BF16, NAN) & 0x7fff, 0x7fc0);
    CHECK_INT(rounded(STORED_F16, NAN) & 0x7fff, 0x7e00);
}

TEST(rows_are_rounded_as_single_values_are)
{
    enum { N = 1031 };
    static const enum stored_dtype types[] = { STORED_BF16, STORED_F16, STORED_F32, STORED_F64 };
    static const double scales[] = { 1, -0x1.555p-9, 0x1p-24, 0, 0x1p100 };
    static double right[N];
    static char w[8 * N + 1], want[8 * N + 1];
    uint64_t x = 1;
    for (size_t t = 0; t < 4; t++)
        for (size_t s = 0; s < 5; s++) {
            struct merge_tally tally = { 0 };
            const double left[1] = { 1 };
            for (int i = 0; i < N; i++) {
                x = x * 6364136223846793005u + 1442695040888963407u;
                right[i] = ((double)(x >> 40) / (1 << 24) - 0.5) * (i % 7 ? 1 : 0x1p-11);
                merge_round(types[t], (double)(x >> 20 & 0xffff) / (1 << 14) - 2, w + 1, i);
                const double d = scales[s] * right[i];
                memcpy(want + 1 + stored_bytes(types[t], i), w + 1 + stored_bytes(types[t], i),
                       (size_t)stored_bytes(types[t], 1));
                if (d != 0)
                    merge_round(types[t], stored_value(types[t], w + 1, i) + d, want + 1, i);
            }
            merge_row(types[t], w + 1, N, 1, left, right, N, scales[s], &tally);
            CHECK(!memcmp(w + 1, want + 1, (size_t)stored_bytes(types[t], N)));
        }
}

TEST(a_sum_goes_by_rank_and_a_zero_keeps_the_bits)
{
    /* 1 + 2^-60 - 1 is 0 in this order, 2^-60 in another */
    const double left[3] = { 1, 1, -1 }, right[3][2] = { { 1, 0 }, { 0x1p-60, 0 }, { 1, 0 } };
    float w[2] = { -0.0f, -0.0f };
    struct merge_tally tally = { 0 };
    merge_row(STORED_F32, (char *)w, 2, 3, left, &right[0][0], 2, 4, &tally);
    CHECK(w[0] == 0 && signbit(w[0]) && signbit(w[1]));
    CHECK_INT(tally.moved, 0);

    const double other[3] = { 1, -1, 1 };
    merge_row(STORED_F32, (char *)w, 2, 3, other, &right[0][0], 2, 4, &tally);
    CHECK(w[0] == 8 && signbit(w[1]));
    CHECK_INT(tally.moved, 1);
    CHECK_INT(tally.changed, 1);
    CHECK_INT(tally.bad, 0);
}

TEST(values_that_are_not_finite_are_counted)
{
    const double left[1] = { 1 }, right[3] = { NAN, INFINITY, 60000 };
    uint16_t w[3] = { 0, 0, 0x7bff };
    struct merge_tally tally = { 0 };
    merge_row(STORED_F16, (char *)w, 3, 1, left, right, 3, 1, &tally);
    CHECK_INT(tally.bad, 3);
}
