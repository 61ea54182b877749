/* serve_sampler_test.c - the next token: argmax and ties, filters, frequencies, and what a draw depends
 * on. */
#include <math.h>
#include "serve/engine/logit_processors.h"
#include "tests/test.h"

#define GREEDY \
    (struct sampling) { .temperature = 0, .top_p = 1, .repetition = 1 }
static struct sampling drawn(double temperature, uint64_t seed)
{
    return (struct sampling){ .temperature = temperature, .top_p = 1, .repetition = 1, .seed = seed };
}

TEST(temperature_0_takes_the_lowest_id_of_equals)
{
    float l[5] = { 1, 3, -2, 3, 3 };
    struct sampling s = GREEDY;
    CHECK_INT(sample_token(&s, 0, 0, l, 5, 3), 1);
    CHECK_INT(sample_token(&s, 7, 99, l, 5, 3), 1);
}

TEST(top_tokens_are_sorted_and_ties_go_to_the_lower_id)
{
    float l[8] = { 1, 5, -INFINITY, 5, 2, 9, 2, 1 };
    int32_t id[8], want[8] = { 5, 1, 3, 4, 6, 0, 7, 2 };
    for (int n = 0; n <= 8; n++) {
        memset(id, 0xff, sizeof id);
        top_tokens(l, 8, n, id);
        CHECK_SAME(id, want, n * 4);
    }
}

TEST(a_nan_or_nothing_at_all_is_no_token)
{
    float l[3] = { -INFINITY, -INFINITY, -INFINITY }, m[3] = { 1, NAN, 0 };
    struct sampling g = GREEDY, d = drawn(1, 3);
    CHECK_INT(sample_token(&g, 0, 0, l, 3, -INFINITY), -1);
    CHECK_INT(sample_token(&g, 0, 0, m, 3, NAN), -1);
    CHECK_INT(sample_token(&d, 0, 0, m, 3, NAN), -1);
    CHECK_INT(sample_token(&d, 0, 0, m, 3, 1), -1); /* a NaN after the maximum */
}

TEST(a_draw_depends_on_seed_choice_and_position_alone)
{
    enum { V = 1000 };
    float l[V];
    int differs[3] = { 0 };
    for (int i = 0; i < V; i++)
        l[i] = (float)(i % 17) * 0.01f;
    for (int64_t p = 0; p < 20; p++) {
        struct sampling s = drawn(1, 42), other = drawn(1, 43);
        int32_t id = sample_token(&s, 0, p, l, V, 0.16f);
        CHECK_INT(sample_token(&s, 0, p, l, V, 0.16f), id);
        differs[0] += sample_token(&other, 0, p, l, V, 0.16f) != id;
        differs[1] += sample_token(&s, 1, p, l, V, 0.16f) != id;
        differs[2] += sample_token(&s, 0, p + 1000, l, V, 0.16f) != id;
    }
    for (int i = 0; i < 3; i++)
        CHECK(differs[i] >= 18);
}

/* Counts of 20000 draws; logits so that p = 8/15, 4/15, 2/15, 1/15 at temperature 1. */
static void count(struct sampling s, int n[4])
{
    const float ln2 = 0.6931472f, l[4] = { 1 * ln2, 0, 3 * ln2, 2 * ln2 };
    memset(n, 0, 4 * sizeof *n);
    for (int64_t p = 0; p < 20000; p++) {
        int32_t id = sample_token(&s, 0, p, l, 4, 3 * ln2);
        CHECK(id >= 0 && id < 4);
        n[id]++;
    }
}

TEST(draws_have_the_frequencies_that_the_logits_say)
{
    int n[4];
    count(drawn(1, 1), n);
    const double p[4] = { 2.0 / 15, 1.0 / 15, 8.0 / 15, 4.0 / 15 };
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(n[i] / 20000.0, p[i], 0.015);
    count(drawn(0.5, 1), n); /* squares: 4 1 64 16 of 85 */
    const double q[4] = { 4.0 / 85, 1.0 / 85, 64.0 / 85, 16.0 / 85 };
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(n[i] / 20000.0, q[i], 0.015);
}

TEST(filters_leave_out_what_they_say_and_keep_the_ratios)
{
    int n[4];
    struct sampling s = drawn(1, 5);
    s.top_k = 2;
    count(s, n);
    CHECK_INT(n[0] + n[1], 0);
    CHECK_NEAR(n[2] / 20000.0, 2.0 / 3, 0.015);
    s.top_k = 0;
    s.top_p = 0.6; /* 8/15 is not enough, 12/15 is */
    count(s, n);
    CHECK_INT(n[0] + n[1], 0);
    CHECK(n[3] > 0);
    s.top_p = 0.5; /* 8/15 is enough */
    count(s, n);
    CHECK_INT(n[2], 20000);
    s.top_p = 1e-9;
    count(s, n);
    CHECK_INT(n[2], 20000);
    s.top_p = 1;
    s.min_p = 0.2; /* at least a fifth of the best: 8, 4, 2 of 15 */
    count(s, n);
    CHECK_INT(n[1], 0);
    CHECK(n[0] > 0);
}

TEST(a_long_tail_is_left_out_without_changing_top_p)
{
    enum { V = 5000 };
    static float l[V];
    struct sampling s = drawn(1, 9);
    int64_t seen = 0;
    for (int i = 0; i < V; i++)
        l[i] = (float)-i * 0.01f; /* a geometric series: top_p 0.9 keeps about 230 ids */
    s.top_p = 0.9;
    for (int64_t p = 0; p < 3000; p++) {
        int32_t id = sample_token(&s, 0, p, l, V, 0);
        CHECK(id >= 0 && id <= 231);
        seen = id > seen ? id : seen;
    }
    CHECK(seen > 215);
}

TEST(far_apart_logits_and_tiny_temperatures_do_no_harm)
{
    float l[3] = { -1e30f, 5, -INFINITY };
    struct sampling s = drawn(1e-6, 2);
    for (int64_t p = 0; p < 50; p++)
        CHECK_INT(sample_token(&s, 0, p, l, 3, 5), 1);
    s.top_p = 0.99;
    CHECK_INT(sample_token(&s, 0, 1, l, 3, 5), 1);
    s = drawn(1e6, 2);
    s.top_k = 3;
    CHECK(sample_token(&s, 0, 1, l, 3, 5) <= 1);
}

static int32_t adjusted(const struct sampling *s, const float *l, const int32_t *ids, int64_t n_prompt,
                        int64_t n)
{
    static const int32_t eos[1] = { 3 }, stop[1] = { 2 };
    struct token_history h = { ids, n_prompt, n };
    struct end_ids ends = { eos, stop, 1, 1 };
    CHECK(logit_processors_active(s, &h));
    return logit_processors_sample(s, 0, &h, &ends, l, 4);
}

TEST(penalties_count_what_was_generated_and_repetition_the_prompt_too)
{
    const float l[4] = { 2, 1.75f, -1, 1.5f };
    const int32_t prompt_0[3] = { 0, 0, 1 }, twice_1[4] = { 2, 0, 1, 1 };
    struct sampling s = GREEDY;
    s.presence = 0.6;
    CHECK_INT(adjusted(&s, l, prompt_0, 3, 3), 0); /* the prompt does not count */
    /* 1.4 1.15 -1 1.5: presence of both, however often */
    CHECK_INT(adjusted(&s, l, prompt_0, 1, 3), 3);
    s = GREEDY;
    s.frequency = 0.3;
    CHECK_INT(adjusted(&s, l, twice_1, 1, 4), 0);                   /* 1.7 1.15 -1 1.5 */
    CHECK_INT(adjusted(&s, l, (const int32_t[]){ 0, 0 }, 0, 2), 1); /* 1.4 */
    s = GREEDY;
    s.repetition = 1.2;
    /* 1.67 1.46 -1 1.5: once, not once a time it occurs */
    CHECK_INT(adjusted(&s, l, prompt_0, 3, 3), 0);
    s.repetition = 1.5;
    CHECK_INT(adjusted(&s, l, prompt_0, 3, 3), 3);
    const float below[4] = { -1, -1.1f, -9, -9 };
    CHECK_INT(adjusted(&s, below, prompt_0, 2, 2), 1); /* a negative logit falls too */
}

TEST(bias_is_added_and_ends_wait_for_min_tokens)
{
    const float l[4] = { 0, 1, 3, 4 };
    const int32_t ids[2] = { 0, 0 };
    struct logit_bias b[2] = { { 0, 7 }, { 1, -100 } };
    struct sampling s = GREEDY;
    s.n_bias = 2;
    s.bias = b;
    CHECK_INT(adjusted(&s, l, ids, 1, 1), 0);
    s = GREEDY;
    s.min_tokens = 1;
    CHECK_INT(adjusted(&s, l, ids, 1, 1), 1); /* neither the end token nor the stop id */
    struct token_history h = { ids, 1, 2 };
    CHECK_INT(logit_processors_active(&s, &h), 0); /* enough of them */
    s = drawn(1, 4);
    s.frequency = 1e-9;
    for (int64_t p = 1; p < 2; p++) /* the draw is the one of the same position */
        CHECK_INT(adjusted(&s, l, ids, 1, 2), sample_token(&s, 0, 2, l, 4, 4));
}

TEST(only_allowed_ids_come_and_the_last_of_a_bad_sequence_does_not)
{
    const float l[4] = { 0, 1, 3, 2 };
    const int32_t ids[4] = { 2, 2, 3, 2 };
    int32_t allowed[] = { 3, 0, 3 }, bad[] = { 2, -1, 3, 2, 3, -1 };
    struct sampling s = GREEDY;
    s.allowed = allowed, s.n_allowed = 3;
    CHECK_INT(adjusted(&s, l, ids, 1, 1), 3);
    s.bad = bad, s.n_bad = 6;
    CHECK_INT(adjusted(&s, l, ids, 1, 4), 0); /* 3 2 were generated: no 3 now */
    CHECK_INT(adjusted(&s, l, ids, 3, 4), 3); /* the prompt does not count */
    s.n_allowed = 0;
    CHECK_INT(adjusted(&s, l, ids, 1, 1), 3); /* 2 alone is bad */
    CHECK_INT(logit_processors_active(&s, &(struct token_history){ ids, 1, 1 }), 1);
    s.allowed = bad, s.n_allowed = 1;
    CHECK_INT(adjusted(&s, l, ids, 1, 1), -3); /* nothing is left */
}

TEST(a_rank_counts_what_is_more_likely_and_ties_go_to_the_lower_id)
{
    const float l[5] = { 1, 3, 3, -INFINITY, 2 };
    const int64_t want[5] = { 4, 1, 2, 5, 3 };
    for (int32_t i = 0; i < 5; i++)
        CHECK_INT(token_rank(l, 5, i), want[i]);
}

/* ---- filters compared with a plain sort ---- */
enum { MANY = 3000 };
struct plain {
    double weight;
    int32_t id;
};
static int heavier(const void *a, const void *b)
{
    const struct plain *x = a, *y = b;
    return x->weight != y->weight ? (x->weight > y->weight ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

/* Marks which of n ids are kept. 0: an id is too close to the edge to decide. */
static int stays(const struct sampling *s, const float *l, int n, float max, char *stay)
{
    static struct plain p[MANY];
    double total = 0, sum = 0;
    int kept = 0, most = s->top_k && s->top_k < n ? (int)s->top_k : n;
    for (int i = 0; i < n; i++)
        p[i] = (struct plain){ exp(((double)l[i] - (double)max) / s->temperature), i };
    qsort(p, (size_t)n, sizeof *p, heavier);
    for (int i = 0; i < most; i++)
        total += p[i].weight;
    memset(stay, 0, (size_t)n);
    for (;
         kept < most && (!kept || ((s->top_p >= 1 || sum < s->top_p * total) && p[kept].weight >= s->min_p));
         kept++) {
        stay[p[kept].id] = p[kept].weight > 1e-37;
        sum += p[kept].weight;
        if (fabs(sum - s->top_p * total) < 1e-5 * total || fabs(p[kept].weight - s->min_p) < 1e-5 * s->min_p)
            return s->top_p >= 1 && s->min_p == 0;
    }
    return 1;
}

TEST(filters_keep_what_a_plain_sort_keeps)
{
    static float l[MANY];
    static char stay[MANY];
    unsigned seed = 11;
    int looked = 0;
    for (int t = 0; t < 400; t++) {
        const int n = rand_r(&seed) % MANY + 1, few = rand_r(&seed) % 3 == 0;
        const double spread = 0.01 * (rand_r(&seed) % 2000 + 1);
        struct sampling s = drawn(0.3 + rand_r(&seed) % 20 / 10.0, (uint64_t)t);
        float max = -INFINITY;
        for (int i = 0; i < n; i++) {
            /* few: many equals */
            l[i] = few ? (float)(rand_r(&seed) % 7) : (float)(spread * rand_r(&seed) / RAND_MAX);
            if (rand_r(&seed) % 50 == 0 && i)
                l[i] = -INFINITY;
            max = l[i] > max ? l[i] : max;
        }
        s.top_k = rand_r(&seed) % 2 ? rand_r(&seed) % (n + 5) : 0;
        s.top_p = rand_r(&seed) % 2 ? 0.01 * (rand_r(&seed) % 100 + 1) : 1;
        s.min_p = rand_r(&seed) % 3 == 0 ? 0.001 * (rand_r(&seed) % 1000) : 0;
        if (!stays(&s, l, n, max, stay))
            continue;
        looked++;
        for (int64_t p = 0; p < 100; p++) {
            const int32_t id = sample_token(&s, 0, p, l, n, max);
            if (id < 0 || id >= n || !stay[id])
                test_fail(__FILE__, __LINE__, "case %d: id %d of %d, top_k %lld, top_p %g, min_p %g", t, id,
                          n, (long long)s.top_k, s.top_p, s.min_p);
        }
    }
    CHECK(looked > 200);
}

/* Every id that is kept is drawn, in proportion to its weight. */
TEST(equals_at_the_edge_of_top_k_go_to_the_lower_ids)
{
    float l[2000];
    int n[2000] = { 0 };
    struct sampling s = drawn(0.7, 3);
    for (int i = 0; i < 2000; i++)
        l[i] = i % 100 == 7 ? 2 : i % 2 ? 1 : -3; /* 20 of the best, then 980 equals */
    s.top_k = 30;
    for (int64_t p = 0; p < 20000; p++)
        n[sample_token(&s, 0, p, l, 2000, 2)]++;
    const double best = 1 / (20 + 10 * exp(-1 / 0.7));
    for (int i = 0, odd = 0; i < 2000; i++) {
        const int edge = i % 2 && i % 100 != 7 && odd < 10;
        odd += i % 2 && i % 100 != 7;
        CHECK_NEAR(n[i] / 20000.0, i % 100 == 7 ? best : edge ? best * exp(-1 / 0.7) : 0, 0.006);
    }
}
