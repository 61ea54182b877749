/* text_grammar_memory_test.c - many grammars in one bound: it holds, and masks are those without it. */
#include "tests/test.h"
#include "text/grammar.h"

enum { N_TOKENS = 20000, WORDS = (N_TOKENS + 31) / 32, N_GRAMMARS = 16, STEPS = 140 };
#define MOST ((size_t)12 << 20)

/* All bytes, and texts of two and three letters; the last id is the end. */
static struct token_trie *vocabulary(void)
{
    static char text[3 * N_TOKENS];
    static size_t off[N_TOKENS + 1];
    const int32_t end = N_TOKENS - 1;
    struct token_trie *t = NULL;
    struct err e;
    size_t n = 0;
    for (int i = 0; i < N_TOKENS - 1; i++) {
        off[i] = n;
        if (i < 256) {
            text[n++] = (char)i;
            continue;
        }
        for (int rest = i - 256, len = 0; len < 3 && (rest || !len); rest /= 64, len++)
            text[n++] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _"[rest % 64];
    }
    off[N_TOKENS - 1] = off[N_TOKENS] = n;
    CHECK_INT(token_trie_of(&t, text, off, N_TOKENS, &end, 1, &e), 0);
    return t;
}

/* Grammar i: texts within brackets, whose lengths are counted, so that nearly every token is a new state. */
static struct grammar *grammar_of(int i)
{
    char schema[300];
    struct grammar *g = NULL;
    struct err e;
    snprintf(schema, sizeof schema,
             "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":%d,\"pattern\":\"^[a-z%c ]*"
             "[0-9]?[a-zA-Z]*$\"}}",
             900 + i, "ABCDEFGH"[i % 8]);
    const struct grammar_spec s = { .kind = GRAMMAR_SCHEMA, .text = schema, .n = strlen(schema) };
    CHECK_INT(grammar_open(&g, &s, NULL, &e), 0);
    return g;
}

/* An id that the mask allows, no quotation mark; the first step takes the bracket and the quote. */
static int32_t choose(const uint32_t *mask, int step, uint32_t *random)
{
    if (step < 2)
        return step ? '"' : '[';
    for (;;) {
        *random = *random * 1664525 + 1013904223;
        int32_t id = (int32_t)((*random >> 8) % (N_TOKENS - 1));
        if (mask[id / 32] >> (id % 32) & 1 && id != '"' && id != '\\')
            return id;
    }
}

/* A hash of all masks of a walk; *most grows to what y took. */
static uint64_t walk(struct matcher **m, struct grammar_memory *y, size_t *most)
{
    static uint32_t mask[WORDS];
    uint32_t random[N_GRAMMARS];
    uint64_t hash = 0;
    struct err e = { 0 };
    for (int i = 0; i < N_GRAMMARS; i++)
        random[i] = (uint32_t)i;
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < N_GRAMMARS; i++) {
            int rc = matcher_mask(m[i], mask, &e);
            if (rc < 0)
                test_fail(__FILE__, __LINE__, "grammar %d, step %d: %s", i, step, e.text);
            for (int j = 0; j < WORDS && rc == 0; j++)
                hash = (hash ^ mask[j]) * 0x100000001B3u;
            if (rc < 0 || matcher_take(m[i], choose(mask, step, &random[i]), &e) != 1)
                return 0;
            if (y && grammar_memory_used(y) > *most)
                *most = grammar_memory_used(y);
        }
    return hash;
}

static uint64_t walk_all(const struct token_trie *t, struct grammar_memory *y, size_t *most)
{
    struct grammar *g[N_GRAMMARS];
    struct matcher *m[N_GRAMMARS] = { 0 };
    struct err e;
    for (int i = 0; i < N_GRAMMARS; i++) {
        g[i] = grammar_of(i);
        if (y)
            CHECK_INT(grammar_count_in(g[i], y, &e), 0);
        CHECK_INT(matcher_open(&m[i], g[i], t, &e), 0);
    }
    uint64_t hash = walk(m, y, most);
    for (int i = 0; i < N_GRAMMARS; i++) {
        matcher_close(m[i]);
        grammar_close(g[i]);
    }
    return hash;
}

TEST(many_grammars_stay_in_their_bound_with_the_same_masks)
{
    struct token_trie *t = vocabulary();
    struct grammar_memory *narrow = NULL, *wide = NULL;
    struct err e;
    size_t narrow_most = 0, wide_most = 0;
    CHECK_INT(grammar_memory_open(&narrow, MOST, &e), 0);
    CHECK_INT(grammar_memory_open(&wide, MOST * 100, &e), 0);

    uint64_t of_wide = walk_all(t, wide, &wide_most), of_narrow = walk_all(t, narrow, &narrow_most);
    CHECK(wide_most > 2 * MOST); /* else this test shows nothing */
    CHECK(narrow_most <= MOST);
    CHECK(of_wide == of_narrow && of_wide != 0);
    CHECK_INT(grammar_memory_used(narrow), 0);
    CHECK_INT(grammar_memory_used(wide), 0);

    grammar_memory_close(narrow);
    grammar_memory_close(wide);
    token_trie_close(t);
}

/* Machines that no matcher uses go first: the one in use is as fast as alone. */
TEST(states_that_nobody_uses_are_forgotten_first)
{
    struct token_trie *t = vocabulary();
    struct grammar_memory *y = NULL;
    struct grammar *g[4];
    struct matcher *m = NULL;
    struct err e;
    size_t sum = 0, alone[4];
    static uint32_t mask[WORDS];
    CHECK_INT(grammar_memory_open(&y, (size_t)3 << 20, &e), 0);
    for (int i = 0; i < 4; i++) {
        uint32_t random = 7;
        size_t before = grammar_memory_used(y);
        g[i] = grammar_of(i);
        CHECK_INT(grammar_count_in(g[i], y, &e), 0);
        CHECK_INT(matcher_open(&m, g[i], t, &e), 0);
        for (int step = 0; step < 60; step++) {
            CHECK_INT(matcher_mask(m, mask, &e), 0);
            CHECK_INT(matcher_take(m, choose(mask, step, &random), &e), 1);
        }
        alone[i] = grammar_memory_used(y) - before;
        sum += i ? 0 : alone[i];
        matcher_close(m);
        CHECK(grammar_memory_used(y) <= (size_t)3 << 20);
    }
    CHECK(sum > (size_t)3 << 18); /* more than a quarter each */
    CHECK(alone[3] < alone[0]);   /* something was forgotten for it */
    for (int i = 0; i < 4; i++)
        grammar_close(g[i]);
    CHECK_INT(grammar_memory_used(y), 0);
    grammar_memory_close(y);
    token_trie_close(t);
}

TEST(a_grammar_that_does_not_fit_is_refused_with_numbers)
{
    struct grammar_memory *y = NULL;
    struct grammar *g = grammar_of(1);
    struct err e = { 0 };
    CHECK_INT(grammar_memory_open(&y, 4000, &e), 0);
    CHECK_INT(grammar_count_in(g, y, &e), -ERR_MEMORY);
    CHECK(strstr(e.text, "is the limit for all of them"));
    CHECK_INT(grammar_memory_used(y), 0);
    grammar_close(g);
    grammar_memory_close(y);
}
