/* text_grammar_hostile_test.c - specs that ask for much: each is refused with a line, or served in bounded
 * time by the clock of this thread. */
#include <time.h>
#include "tests/test.h"
#include "text/grammar.h"

#define MOST_S 5.0 /* of compiling, and of one text: both take less than a second without sanitizers */
enum { N_TOKENS = 300, STEPS = 300 };

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* All bytes, and pairs of letters; the last id is the end. */
static struct token_trie *vocabulary(void)
{
    static char text[2 * N_TOKENS];
    static size_t off[N_TOKENS + 1];
    const int32_t end = N_TOKENS - 1;
    struct token_trie *t = NULL;
    struct err e;
    size_t n = 0;
    for (int i = 0; i < N_TOKENS - 1; i++) {
        off[i] = n;
        text[n++] = (char)(i < 256 ? i : "abx1"[i % 4]);
        if (i >= 256)
            text[n++] = "ab1\""[i / 4 % 4];
    }
    off[N_TOKENS - 1] = off[N_TOKENS] = n;
    CHECK_INT(token_trie_of(&t, text, off, N_TOKENS, &end, 1, &e), 0);
    return t;
}

/* Walks through a text of the grammar, the tokens with letters first. */
static void walk(const char *name, struct grammar *g, const struct token_trie *t)
{
    uint32_t mask[(N_TOKENS + 31) / 32], random = 1;
    struct matcher *m = NULL;
    struct err e = { 0 };
    int rc = matcher_open(&m, g, t, &e);
    for (int step = 0; step < STEPS && rc >= 0 && matcher_at_end(m) < 2; step++) {
        rc = matcher_mask(m, mask, &e);
        int32_t id = N_TOKENS - 1, from;
        random = random * 1664525 + 1013904223;
        from = (int32_t)(random >> 8) % (N_TOKENS - 1);
        for (int32_t i = 0; rc >= 0 && i < N_TOKENS - 1; i++) {
            int32_t j = (from + i) % (N_TOKENS - 1);
            if (mask[j / 32] >> (j % 32) & 1 && (id == N_TOKENS - 1 || j >= 256 || j == 'a'))
                id = j;
        }
        if (rc < 0 || id == N_TOKENS - 1)
            break;
        CHECK_INT(matcher_take(m, id, &e), 1);
    }
    if (rc < 0 && strlen(e.text) < 30)
        test_fail(__FILE__, __LINE__, "%s: %s", name, e.text);
    matcher_close(m);
}

/* 1: it is compiled and a text of it is walked; 0: it is refused with a line. Both in time. */
static int serve(const char *name, enum grammar_kind kind, const char *text, size_t n,
                 const struct token_trie *t)
{
    struct grammar_spec s = { .kind = kind, .text = text, .n = n };
    struct grammar *g = NULL;
    struct err e = { 0 };
    double begin = cpu_s();
    int rc = grammar_open(&g, &s, NULL, &e);
    double compiled = cpu_s();
    if (rc < 0 && strlen(e.text) < 30)
        test_fail(__FILE__, __LINE__, "%s: refused without a reason: %s", name, e.text);
    if (rc == 0)
        walk(name, g, t);
    double walked = cpu_s();
    if (compiled - begin > MOST_S || walked - compiled > MOST_S)
        test_fail(__FILE__, __LINE__, "%s: %.1f s to compile, %.1f s for a text", name, compiled - begin,
                  walked - compiled);
    grammar_close(g);
    return rc == 0;
}

/* --- texts --- */

/* head, then `one` n times with commas between (%d is its number), then tail; malloc'd. */
static char *many(const char *head, const char *one, int n, const char *tail)
{
    size_t cap = strlen(head) + (strlen(one) + 16) * (size_t)n + strlen(tail) + 1, at = 0;
    char *text = malloc(cap);
    CHECK(text);
    if (!text)
        return NULL;
    at += (size_t)snprintf(text, cap, "%s", head);
    for (int i = 0; i < n; i++) {
        const char *number = strstr(one, "%d");
        int before = number ? (int)(number - one) : (int)strlen(one);
        at += (size_t)snprintf(text + at, cap - at, "%s%.*s", i ? "," : "", before, one);
        if (number)
            at += (size_t)snprintf(text + at, cap - at, "%d%s", i, number + 2);
    }
    snprintf(text + at, cap - at, "%s", tail);
    return text;
}

/* open n times, middle, close n times. */
static char *nested(const char *open, const char *middle, const char *close, int n)
{
    size_t cap = (strlen(open) + strlen(close)) * (size_t)n + strlen(middle) + 1, at = 0;
    char *text = malloc(cap);
    CHECK(text);
    for (int i = 0; text && i < n; i++)
        at += (size_t)snprintf(text + at, cap - at, "%s", open);
    at += text ? (size_t)snprintf(text + at, cap - at, "%s", middle) : 0;
    for (int i = 0; text && i < n; i++)
        at += (size_t)snprintf(text + at, cap - at, "%s", close);
    return text;
}

#define SERVED 1
#define REFUSED 0
#define EITHER (-1)
static void check(const char *name, enum grammar_kind kind, char *text, int expected,
                  const struct token_trie *t)
{
    int is = serve(name, kind, text, strlen(text), t);
    if (expected != EITHER && is != expected)
        test_fail(__FILE__, __LINE__, "%s is %s", name, is ? "served" : "refused");
    free(text);
}

TEST(large_schemas_are_served_or_refused_in_time)
{
    struct token_trie *t = vocabulary();
    const enum grammar_kind S = GRAMMAR_SCHEMA;
    check("a schema of 1 MB", S,
          many("{\"type\":\"object\",\"properties\":{",
               "\"key%d\":{\"type\":\"string\",\"description\":\"12345678901234567890\"}", 16000, "}}"),
          SERVED, t);
    check("10,000 values", S, many("{\"enum\":[", "\"value %d\"", 10000, "]}"), SERVED, t);
    check("10,000 numbers", S, many("{\"enum\":[", "%d", 10000, "]}"), SERVED, t);
    check("10,000 required keys", S, many("{\"type\":\"object\",\"required\":[", "\"key%d\"", 10000, "]}"),
          EITHER, t);
    check("10,000 alternatives", S, many("{\"anyOf\":[", "{\"const\":%d}", 10000, "]}"), EITHER, t);
    check("10,000 schemas that hold", S, many("{\"allOf\":[", "{\"minLength\":%d}", 10000, "]}"), EITHER, t);
    check("2 to the power of 40 combinations", S,
          many("{\"allOf\":[", "{\"anyOf\":[{\"required\":[\"a%d\"]},{\"maxProperties\":9}]}", 40, "]}"),
          REFUSED, t);
    check("a oneOf of 300", S, many("{\"oneOf\":[", "{\"required\":[\"a%d\"]}", 300, "]}"), EITHER, t);
    check("a list of a thousand million", S,
          nested("", "{\"type\":\"array\",\"items\":{},\"minItems\":1000000000}", "", 1), EITHER, t);
    check("a text of a thousand million", S,
          nested("", "{\"type\":\"string\",\"minLength\":1000000000,\"pattern\":\"^(a|b)*$\"}", "", 1),
          EITHER, t);
    token_trie_close(t);
}

TEST(deep_schemas_are_served_or_refused_in_time)
{
    struct token_trie *t = vocabulary();
    const enum grammar_kind S = GRAMMAR_SCHEMA;
    size_t cap = 1 << 20, n = 0;
    char *chain = malloc(cap);
    CHECK(chain);
    n = (size_t)snprintf(chain, cap, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 1000; i++)
        n += (size_t)
            snprintf(chain + n, cap - n,
                     "\"d%d\":{\"type\":\"object\",\"properties\":{\"k\":{\"$ref\":\"#/$defs/d%d\"}}},", i,
                     i + 1);
    snprintf(chain + n, cap - n, "\"d1000\":{\"type\":\"null\"}}}");
    check("1,000 references", S, chain, SERVED, t);

    chain = malloc(cap);
    CHECK(chain);
    n = (size_t)snprintf(chain, cap, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 1000; i++)
        n += (size_t)snprintf(chain + n, cap - n, "\"d%d\":{\"$ref\":\"#/$defs/d%d\"},", i, i + 1);
    snprintf(chain + n, cap - n, "\"d1000\":{\"$ref\":\"#/$defs/d0\"}}}");
    check("references in a circle", S, chain, EITHER, t);
    check("1,000 objects", S, nested("{\"properties\":{\"a\":", "{}", "}}", 1000), EITHER, t);
    check("100,000 objects", S, nested("{\"properties\":{\"a\":", "{}", "}}", 100000), REFUSED, t);
    check("1,000 allOf", S, nested("{\"allOf\":[", "{\"type\":\"null\"}", "]}", 1000), EITHER, t);
    check("1,000 not", S, nested("{\"not\":", "{\"type\":\"null\"}", "}", 1000), EITHER, t);
    check("200 lists of alternatives", S,
          nested("{\"items\":{\"anyOf\":[{\"type\":\"null\"},", "{}", "]}}", 200), EITHER, t);
    token_trie_close(t);
}

TEST(regexes_that_explode_elsewhere_are_served_or_refused_in_time)
{
    static const char *const regexes[] = { "(a+)+$",
                                           "(a|aa)+b",
                                           "(x+x+)+y",
                                           "((a*)*)*b",
                                           "(.*a){30}",
                                           "[ab]*a[ab]{30}",
                                           "([ab]*a[ab]{12}){4}",
                                           "(a?){500}a{500}",
                                           "((a{1,100}){1,100}){1,100}",
                                           "(((a|b){1,9}){1,9}){1,9}",
                                           "\\w{5000}",
                                           "(\\p{L}|\\d|\\s|.)*\\p{Lu}{200}",
                                           "(a|b|ab)*(bc|c|abc)*(.|ab){1,400}",
                                           "a{0,99999}",
                                           "^(([a-z])+.)+[A-Z]([a-z])+$" };
    struct token_trie *t = vocabulary();
    for (size_t i = 0; i < sizeof regexes / sizeof *regexes; i++)
        serve(regexes[i], GRAMMAR_REGEX, regexes[i], strlen(regexes[i]), t);
    check("20,000 groups", GRAMMAR_REGEX, nested("(", "a", ")+", 20000), REFUSED, t);
    check("10,000 alternatives", GRAMMAR_REGEX, nested("ab|", "c", "", 10000), EITHER, t);
    token_trie_close(t);
}

TEST(rules_that_explode_elsewhere_are_served_or_refused_in_time)
{
    static const char *const rules[] = {
        "root ::= \"a\" root root | \"a\"", "root ::= \"a\" root \"b\" | \"a\" root | \"\"",
        "root ::= (\"a\"* \"a\"*)* \"b\"",  "root ::= a a a a a a a a\na ::= \"x\"? | \"xx\"? | \"xxx\"?",
        "root ::= root \"a\" | \"b\"",      "root ::= x*\nx ::= \"\" | \"a\""
    };
    struct token_trie *t = vocabulary();
    size_t cap = 1 << 16, n = 0;
    char *doubled = malloc(cap);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        serve(rules[i], GRAMMAR_EBNF, rules[i], strlen(rules[i]), t);
    CHECK(doubled);
    n = (size_t)snprintf(doubled, cap, "root ::= r0\n");
    for (int i = 0; i < 60; i++)
        n += (size_t)snprintf(doubled + n, cap - n, "r%d ::= r%d r%d | r%d\n", i, i + 1, i + 1, i + 1);
    snprintf(doubled + n, cap - n, "r60 ::= \"a\"\n");
    check("2 to the power of 60 letters", GRAMMAR_EBNF, doubled, EITHER, t);
    token_trie_close(t);
}
