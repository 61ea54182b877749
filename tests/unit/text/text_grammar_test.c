/* text_grammar_test.c - grammars and matchers: what they accept, what they refuse by name, and masks against
 * every token tried one by one. */
#include "tests/test.h"
#include "text/grammar.h"
#include "text/tools.h"

static struct grammar *compile(enum grammar_kind kind, const char *text, unsigned flags, struct err *e)
{
    struct grammar *g = NULL;
    struct grammar_spec s = { .kind = kind, .flags = flags, .text = text, .n = strlen(text) };
    grammar_open(&g, &s, NULL, e);
    return g;
}

/* Which texts of a list are accepted. */
static void check_texts(enum grammar_kind kind, const char *text, unsigned flags, const char *const *yes,
                        const char *const *no)
{
    struct err e = { 0 };
    struct grammar *g = compile(kind, text, flags, &e);
    size_t at;
    if (!g) {
        test_fail(__FILE__, __LINE__, "%.80s: %s", text, e.text);
        return;
    }
    for (; *yes; yes++)
        if (grammar_accepts(g, *yes, strlen(*yes), &at, &e) != 1)
            test_fail(__FILE__, __LINE__, "%.60s: %s is refused at %zu", text, *yes, at);
    for (; *no; no++)
        if (grammar_accepts(g, *no, strlen(*no), &at, &e) != 0)
            test_fail(__FILE__, __LINE__, "%.60s: %s is accepted", text, *no);
    grammar_close(g);
}
#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define REGEX(text, yes, no) check_texts(GRAMMAR_REGEX, text, 0, yes, no)
#define SCHEMA(text, yes, no) check_texts(GRAMMAR_SCHEMA, text, 0, yes, no)

TEST(a_regex_matches_whole_texts)
{
    REGEX("(ab|cd)*e{2,3}", LIST("abcdeee", "ee"), LIST("abe", "eeee", "abee "));
    REGEX("^\\d{3}-[a-z\xC3\xA9]+$", LIST("123-ab\xC3\xA9"), LIST("12-a", "123-", "123-\xC3"));
    REGEX("(a*)*b|^$", LIST("aaaab", ""), LIST("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac"));
    REGEX("[^\\W\\d_]\\p{Lu}\\x41\\u0042\\u{43}",
          LIST("x\xC3\x84"
               "ABC"),
          LIST("1\xC3\x84"
               "ABC"));
    REGEX(".", LIST("\xF0\x9F\x98\x80"),
          LIST("\n", "\xED\xA0\x80", "\xC0\xAF", "\xF4\x90\x80\x80", "\xF0\x8F\xBF\xBF"));
    REGEX("(x+x+)+y", LIST("xxy"), LIST("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"));
}

TEST(rules_of_gbnf_nest)
{
    check_texts(GRAMMAR_EBNF, "root ::= \"a\" root \"b\" | \"\"", 0, LIST("", "aabb"), LIST("aab", "ba"));
    check_texts(
        GRAMMAR_EBNF,
        "root ::= expr # c\nexpr ::= term ((\"+\"|\"-\") term)*\nterm ::= [0-9]{1,3}\n  | \"(\" expr \")\"",
        0, LIST("1+(2-333)"), LIST("1++", "(1", "1234"));
    /* every text of the letters b and c could be on the stack */
    check_texts(GRAMMAR_EBNF, "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"\"", 0,
                LIST("aaaaaaaaaaaaaaaaaaaaaaaabcbcbcbcbcbcbcbcbcbcbcbc"),
                LIST("ab"
                     "d"));
    check_texts(GRAMMAR_EBNF, "root ::= a a\na ::= \"x\"{3,5} | b?\nb ::= \"y\"", 0,
                LIST("", "xxx", "yxxx", "xxxxxxxxxx"), LIST("xx", "xxxxxxxxxxx"));
    check_texts(GRAMMAR_EBNF, "root ::= [^\\x00-\\x1F\"]+ | .\"\\n\"", 0, LIST("ab", "\n\n"), LIST("a\n\n"));
}

TEST(an_object_has_its_keys_in_any_order)
{
    static const char text[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"ab\":{\"type\":"
        "\"string\"}},\"required\":[\"a\"],\"additionalProperties\":false}";
    SCHEMA(text,
           LIST("{\"a\":1}", "{\"ab\": \"x\", \"a\" : -12}", "{\n  \"a\": 1,\n  \"ab\": \"\\u00e9\"\n}"),
           LIST("{}", "{\"ab\":\"\"}", "{\"a\":1,\"a\":2}", "{\"a\":1,}", "{\"b\"", "{\"a\":01}",
                "{\"a\":  1}"));
    check_texts(GRAMMAR_SCHEMA, text, GRAMMAR_IN_ORDER | GRAMMAR_COMPACT, LIST("{\"a\":1,\"ab\":\"\"}"),
                LIST("{\"ab\"", "{\"a\": 1}"));
    check_texts(GRAMMAR_SCHEMA,
                "{\"allOf\":[{\"$ref\":\"#/$defs/base\"},{\"properties\":{\"own\":{}}}],\"type\":\"object\","
                "\"$defs\":{\"base\":{\"properties\":{\"id\":{}}}}}",
                GRAMMAR_IN_ORDER | GRAMMAR_COMPACT, LIST("{\"id\":1,\"own\":2}"), LIST("{\"own\":1,\"id\""));
    SCHEMA(
        "{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2,\"propertyNames\":{\"maxLength\":2}}",
        LIST("{\"x\":null}", "{\"x\":1,\"yy\":[]}"), LIST("{}", "{\"xyz\"", "{\"x\":1,\"y\":2,\"z\":3}"));
    SCHEMA("{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"null\"},\"b$\":{\"const\":null}},"
           "\"additionalProperties\":{\"type\":\"string\"}}",
           LIST("{\"a\":null,\"b\":null,\"ab\":null,\"c\":\"\"}"),
           LIST("{\"a\":1", "{\"xb\":\"", "{\"c\":null"));
    /* the key without a character is one of those that a pattern sorts */
    SCHEMA("{\"type\":\"object\",\"propertyNames\":{\"not\":{\"pattern\":\"^x*$\"}}}", LIST("{\"y\":1}"),
           LIST("{\"\":1}", "{\"x\":1}"));
    SCHEMA("{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^x*$\"}}", LIST("{\"\":1}", "{\"x\":1}"),
           LIST("{\"y\":1}"));
    SCHEMA("{\"type\":\"object\",\"patternProperties\":{\".*\":{\"type\":\"string\"}}}", LIST("{\"\":\"\"}"),
           LIST("{\"\":1}"));
    SCHEMA("{\"type\":\"object\",\"dependentRequired\":{\"a\":[\"b\"]}}",
           LIST("{}", "{\"a\":1,\"b\":2}", "{\"b\":1}"), LIST("{\"a\":1}", "{\"a\":1,\"c\":2}"));
}

TEST(a_schema_bounds_numbers_exactly)
{
    SCHEMA("{\"type\":\"integer\",\"minimum\":-5,\"exclusiveMaximum\":120}",
           LIST("-5", "0", "119", "99", "-0"), LIST("-6", "120", "1.5", "01", "1e1", "1000"));
    SCHEMA("{\"type\":\"number\",\"minimum\":0.1,\"maximum\":2.50}", LIST("0.1", "2.5", "2.500", "1", "0.11"),
           LIST("0.09", "2.51", "-1", "0", "10", "2.5001"));
    SCHEMA("{\"type\":\"number\",\"exclusiveMinimum\":-1,\"multipleOf\":0.25}",
           LIST("0.25", "-0.75", "0.50", "3"), LIST("-1", "0.3", "0.255"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":1}", LIST("7", "700"), LIST("0", "8", "-7"));
    SCHEMA("{\"not\":{\"type\":[\"string\",\"null\",\"boolean\",\"array\",\"object\"]},\"maximum\":3}",
           LIST("3", "-2.5"), LIST("4", "\"", "null"));
}

TEST(a_schema_bounds_texts_and_lists)
{
    SCHEMA("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3,\"pattern\":\"^[a-z\\\\u00e9]*$\"}",
           LIST("\"ab\"", "\"\\u00e9\xC3\xA9z\"", "\"\\u0061b\""),
           LIST("\"a\"", "\"abcd\"", "\"aB\"", "\"\\u0041"));
    SCHEMA("{\"enum\":[\"a\\\"b\",\"a\\\\\",1,2.5,null,[1,{\"x\":true}]]}",
           LIST("\"a\\\"b\"", "\"a\\\\\"", "1", "2.5", "null", "[1, {\"x\": true}]"),
           LIST("\"a\"", "2", "[1]", "true", "{"));
    SCHEMA("{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"string\"},"
           "\"minItems\":1,"
           "\"maxItems\":40}",
           LIST("[1]", "[1, \"a\", \"b\"]"), LIST("[]", "[\"a\"", "[1,2", "[1,]"));
    SCHEMA("{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":30,\"maxItems\":31}",
           LIST("[null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,"
                "null,null,"
                "null,null,null,null,null,null,null,null,null,null]"),
           LIST("[null,null]"));
    SCHEMA("{\"type\":\"string\",\"format\":\"date\"}", LIST("\"2024-02-29\""),
           LIST("\"2023-02-29\"", "\"2024-13"));
    SCHEMA("{\"type\":\"string\",\"format\":\"ipv6\"}", LIST("\"::1\"", "\"1:2:3:4:5:6:1.2.3.4\""),
           LIST("\"1::2::3\""));
    SCHEMA("{\"type\":\"string\"}", LIST("\"\\ud83d\\ude00\"", "\"\\n\""),
           LIST("\"\\ud83d\"", "\"\\ude00", "\"\n\"", "\"\\x"));
}

TEST(alternatives_and_references_are_honoured)
{
    /* a percent sign with one digit, at the end of a text, is itself */
    SCHEMA("{\"$ref\":\"#/$defs/a%4\",\"$defs\":{\"a%4\":{\"const\":1}}}", LIST("1"), LIST("2"));
    SCHEMA("{\"$ref\":\"#/$defs%2fa%41~1\",\"$defs\":{\"aA/\":{\"const\":1}}}", LIST("1"), LIST("2"));
    SCHEMA("{\"$ref\":\"#/$defs/"
           "t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
           "\"l\":{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#/$defs/t\"}]}},\"required\":[\"v\",\"l\"],"
           "\"additionalProperties\":false}}}",
           LIST("{\"v\":1,\"l\":{\"v\":2,\"l\":null}}"),
           LIST("{\"v\":1,\"l\":{}}", "{\"v\":1,\"l\":{\"v\":2}}"));
    SCHEMA("{\"type\":\"object\",\"oneOf\":[{\"required\":[\"a\",\"b\"]},{\"required\":[\"c\"]}]}",
           LIST("{\"a\":1,\"b\":2}", "{\"c\":1,\"a\":2}"), LIST("{\"a\":1,\"b\":2,\"c\":3}", "{\"a\":1}"));
    SCHEMA("{\"if\":{\"properties\":{\"k\":{\"const\":\"x\"}},\"required\":[\"k\"]},\"then\":{\"required\":["
           "\"y\"]},"
           "\"type\":\"object\"}",
           LIST("{\"k\":\"x\",\"y\":1}", "{\"k\":\"z\"}", "{}"), LIST("{\"k\":\"x\"}"));
    SCHEMA("{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":3}}},{\"properties\":{\"a\":{\"type\":"
           "\"integer\"}}}],"
           "\"type\":\"object\"}",
           LIST("{\"a\":3}"), LIST("{\"a\":2", "{\"a\":3.5"));
    SCHEMA("true", LIST("{\"a\":[1,null]}", "1e5"), LIST("{", ""));
}

/* The text is refused with a message that has these words. */
static void check_refusal(enum grammar_kind kind, const char *text, const char *words)
{
    struct err e = { 0 };
    struct grammar *g = compile(kind, text, 0, &e);
    CHECK(!g);
    if (g)
        printf("accepted: %s\n", text);
    CHECK_INT(e.code, ERR_CONFIG);
    CHECK_HAS(e.text, words);
    grammar_close(g);
}

TEST(what_is_not_honoured_is_refused_by_name)
{
    check_refusal(GRAMMAR_REGEX, "(?=a)b", "look-around");
    check_refusal(GRAMMAR_REGEX, "(a)\\1", "back reference");
    check_refusal(GRAMMAR_REGEX, "a\\b", "word boundary");
    check_refusal(GRAMMAR_REGEX, "(a{1000}){1000}", "more than 20000 states");
    check_refusal(GRAMMAR_REGEX, "[[:alpha:]]", "POSIX");
    check_refusal(GRAMMAR_REGEX, "(a", "( without its )");
    check_refusal(GRAMMAR_REGEX, "a**", "quantifier");
    check_refusal(GRAMMAR_EBNF, "root ::= root \"a\" | \"b\"", "rule root begins with itself");
    check_refusal(GRAMMAR_EBNF, "root ::= x \"a\" | \"b\"\nx ::= \"y\"? root", "left recursion");
    check_refusal(GRAMMAR_EBNF, "root ::= b", "rule b of the grammar is used and not defined");
    check_refusal(GRAMMAR_EBNF, "a ::= \"b\"", "no rule root");
    check_refusal(GRAMMAR_EBNF, "root ::= \"a\" root", "no text is within the grammar");
    check_refusal(GRAMMAR_SCHEMA, "{\"type\":\"array\",\"contains\":{\"const\":1}}", "contains at #");
    check_refusal(GRAMMAR_SCHEMA, "{\"properties\":{\"a\":{\"type\":\"array\",\"uniqueItems\":true}}}",
                  "uniqueItems at #/properties/a");
    check_refusal(GRAMMAR_SCHEMA, "{\"$ref\":\"other.json\"}", "leads to another document");
    check_refusal(GRAMMAR_SCHEMA, "{\"$ref\":\"#/$defs/x\"}", "leads nowhere");
    check_refusal(GRAMMAR_SCHEMA,
                  "{\"oneOf\":[{\"minimum\":2,\"multipleOf\":3},{\"minimum\":3,\"multipleOf\":2}]}",
                  "oneOf at #");
    check_refusal(GRAMMAR_SCHEMA, "{\"type\":\"string\",\"format\":\"regex\"}", "format at # \"regex\"");
    check_refusal(GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"(?!a)b\"}", "pattern at # look-around");
    check_refusal(GRAMMAR_SCHEMA, "{\"type\":\"strin\"}", "type at # is not the name of a type");
    check_refusal(GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"minimum\":2,\"maximum\":1}", "contradicts itself");
    check_refusal(GRAMMAR_SCHEMA, "[1]", "it is no object");
    check_refusal(GRAMMAR_SCHEMA, "{\"type\":", "schema");
}

/* --- matchers --- */

#define N_TOKENS 700
static char token_text[N_TOKENS * 8];
static size_t token_off[N_TOKENS + 1];

/* All bytes, then pieces of JSON and of UTF-8, among them halves of characters; the last id is an end. */
static struct token_trie *small_vocabulary(void)
{
    static const char *const pieces[] = { "\"",  "{",  "}",    ":",    ",", " ", "a",  "b",
                                          "\\u", "00", "\xC3", "\xA9", "1", "-", "\n", "x" };
    uint32_t random = 12345;
    size_t n = 0;
    struct token_trie *t = NULL;
    struct err e;
    for (int i = 0; i < N_TOKENS - 1; i++) {
        token_off[i] = n;
        if (i < 256) {
            token_text[n++] = (char)i;
            continue;
        }
        for (int j = 0, len = 2 + (i & 1); j < len; j++) {
            random = random * 1664525 + 1013904223;
            const char *p = pieces[random >> 16 & 15];
            memcpy(token_text + n, p, strlen(p));
            n += strlen(p);
        }
    }
    token_off[N_TOKENS - 1] = token_off[N_TOKENS] = n;
    const int32_t end = N_TOKENS - 1;
    CHECK_INT(token_trie_of(&t, token_text, token_off, N_TOKENS, &end, 1, &e), 0);
    return t;
}

static int bit(const uint32_t *mask, int32_t i) { return mask[i / 32] >> (i % 32) & 1; }

/* Walks through texts of the grammar at random; at every step the mask is what taking each token says. */
static void check_masks(struct grammar *g, const struct token_trie *t, uint32_t random, int n_walks)
{
    uint32_t mask[(N_TOKENS + 31) / 32];
    struct err e;
    for (int walk = 0; walk < n_walks; walk++) {
        struct matcher *m = NULL;
        char text[4096];
        size_t n = 0, at;
        CHECK_INT(matcher_open(&m, g, t, &e), 0);
        for (int step = 0; step < 60; step++) {
            int n_allowed = 0, wrong = 0;
            int32_t chosen = -1;
            CHECK_INT(matcher_mask(m, mask, &e), 0);
            for (int32_t i = 0; i < N_TOKENS; i++) {
                int taken = matcher_take(m, i, &e);
                if (taken > 0)
                    matcher_rewind(m, 1);
                wrong += taken != bit(mask, i);
                random = random * 1664525 + 1013904223;
                if (taken > 0 && (random >> 8) % (uint32_t)++n_allowed == 0)
                    chosen = i;
            }
            CHECK_INT(wrong, 0);
            CHECK(chosen >= 0);
            if (chosen < 0 || chosen == N_TOKENS - 1)
                break;
            CHECK_INT(matcher_take(m, chosen, &e), 1);
            memcpy(text + n, token_text + token_off[chosen], token_off[chosen + 1] - token_off[chosen]);
            n += token_off[chosen + 1] - token_off[chosen];
        }
        /* an end is allowed exactly where the text is one of the grammar's */
        CHECK_INT(grammar_accepts(g, text, n, &at, &e), matcher_at_end(m) > 0);
        matcher_close(m);
    }
}

TEST(a_mask_allows_what_can_be_taken)
{
    static const char *const schemas[] = {
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":5},\"ab\":{\"type\":"
        "\"integer\","
        "\"maximum\":111},\"\xC3\xA9\":{\"type\":\"boolean\"}},\"additionalProperties\":false}",
        "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\",\"pattern\":\"^[ab]{2,9}$\"},"
        "\"minProperties\":1}",
        "{\"enum\":[\"a\xC3\xA9\",\"ab\",\"a\xC3\xA8\",1,11,-1,null]}",
        "true",
    };
    struct token_trie *t = small_vocabulary();
    struct err e;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        struct grammar *g = compile(GRAMMAR_SCHEMA, schemas[i], 0, &e);
        CHECK(g);
        if (g)
            check_masks(g, t, (uint32_t)i + 7, 12);
        grammar_close(g);
    }
    struct grammar *g = compile(GRAMMAR_REGEX, "(a|\xC3\xA9)*b{1,30}x?", 0, &e);
    check_masks(g, t, 3, 12);
    grammar_close(g);
    token_trie_close(t);
}

TEST(a_text_ends_by_an_end_id_alone)
{
    struct token_trie *t = small_vocabulary();
    struct err e;
    struct grammar *g = compile(GRAMMAR_REGEX, "ab?", 0, &e);
    struct matcher *m = NULL;
    uint32_t mask[(N_TOKENS + 31) / 32];
    CHECK_INT(matcher_open(&m, g, t, &e), 0);
    CHECK_INT(matcher_at_end(m), 0);
    CHECK_INT(matcher_take(m, N_TOKENS - 1, &e), 0);
    CHECK_INT(matcher_take(m, 'a', &e), 1);
    CHECK_INT(matcher_at_end(m), 1);
    CHECK_INT(matcher_take(m, 'b', &e), 1);
    CHECK_INT(matcher_at_end(m), 2);
    CHECK_INT(matcher_mask(m, mask, &e), 0);
    for (int32_t i = 0; i < N_TOKENS; i++)
        CHECK_INT(bit(mask, i), i == N_TOKENS - 1);
    CHECK_INT(matcher_take(m, N_TOKENS - 1, &e), 1);
    CHECK_INT(matcher_take(m, 'a', &e), 0);
    CHECK_INT(matcher_mask(m, mask, &e), -ERR_CONFIG);
    matcher_rewind(m, 2);
    CHECK_INT(matcher_at_end(m), 1);
    CHECK_INT(matcher_take(m, 'b', &e), 1);
    matcher_rewind(m, 100);
    CHECK_INT(matcher_at_end(m), 0);
    CHECK_INT(matcher_take(m, 'a', &e), 1);
    CHECK_INT(matcher_take(m, -1, &e), 0);
    CHECK_INT(matcher_take(m, N_TOKENS, &e), 0);
    matcher_close(m);
    grammar_close(g);
    token_trie_close(t);
}

/* A vocabulary whose tokenizer cuts "abcabd" into abc, ab, d, or knows nothing of it. */
static const char *const forced_tokens[] = { "ab", "abc", "a", "b", "c", "d", "x", "bd", "\xC3", "\xA9", "" };
enum { N_FORCED = sizeof forced_tokens / sizeof *forced_tokens };

/* What follows the text `begun` by force. */
static int forced(const char *regex, const char *begun, int32_t *ids, int max)
{
    char text[64] = "";
    size_t off[N_FORCED + 1] = { 0 };
    const int32_t end = N_FORCED - 1;
    struct token_trie *t = NULL;
    struct matcher *m = NULL;
    struct err e;
    for (int i = 0; i < N_FORCED; i++) {
        strcat(text, forced_tokens[i]);
        off[i + 1] = strlen(text);
    }
    CHECK_INT(token_trie_of(&t, text, off, N_FORCED, &end, 1, &e), 0);
    struct grammar *g = compile(GRAMMAR_REGEX, regex, 0, &e);
    CHECK_INT(matcher_open(&m, g, t, &e), 0);
    for (; *begun; begun++)
        for (int i = 0; i < N_FORCED; i++)
            if (strlen(forced_tokens[i]) == 1 && forced_tokens[i][0] == *begun)
                CHECK_INT(matcher_take(m, i, &e), 1);

    int n = matcher_forced(m, ids, max, &e), taken = 0;
    while (taken < n && matcher_take(m, ids[taken], &e) == 1)
        taken++;
    CHECK_INT(taken, n);
    matcher_close(m);
    grammar_close(g);
    token_trie_close(t);
    return n;
}

TEST(what_alone_can_follow_is_known)
{
    int32_t ids[8];
    CHECK_INT(forced("abcabd", "", ids, 8), 3); /* and nothing else can follow */
    CHECK_STR(forced_tokens[ids[0]], "abc");
    CHECK_STR(forced_tokens[ids[1]], "ab");
    CHECK_STR(forced_tokens[ids[2]], "d");
    CHECK_INT(forced("abcabd", "", ids, 2), 2);
    CHECK_INT(forced("abcabd", "", ids, 0), 0);
    CHECK_INT(forced("abcabd", "a", ids, 8), 4); /* b c ab d */
    CHECK_STR(forced_tokens[ids[0]], "b");
    CHECK_STR(forced_tokens[ids[2]], "ab");
    CHECK_INT(forced("abcab(x|d)", "", ids, 8), 1); /* abc; the token behind it may be more than ab */
    CHECK_INT(forced("(x|d)ab", "", ids, 8), 0);
    CHECK_INT(forced("(x|d)ab", "x", ids, 8), 1);
    CHECK_INT(forced("ab?", "a", ids, 8), 0); /* the text may end here */
    CHECK_INT(forced("ab?", "", ids, 8), 1);  /* and behind one letter, but not before */
    CHECK_INT(forced("ab", "ab", ids, 8), 0); /* it can only end */
    CHECK_INT(forced("\xC3\xA9+", "", ids, 8),
              1); /* two bytes, the second one may not be the last of a token */
    CHECK_INT(forced("ac?e*d", "a", ids, 8), 0);
}

/* The tokenizer's own cut comes before the longest tokens. */
TEST(what_alone_can_follow_is_cut_as_the_tokenizer_cuts_it)
{
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"abc\":5,\"!\":6}"
        ","
        "\"merges\":[\"b c\"]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
        "\"use_regex\":false},\"decoder\":{\"type\":\"ByteLevel\"}}";
    struct tokenizer *tok = NULL;
    struct token_trie *t = NULL;
    struct matcher *m = NULL;
    struct err e;
    const int32_t end = 6;
    int32_t ids[4];
    CHECK_INT(tokenizer_open(&tok, json, sizeof json - 1, NULL, 0, "t", &e), 0);
    CHECK_INT(token_trie_open(&t, tok, 7, &end, 1, &e), 0);
    struct grammar *g = compile(GRAMMAR_REGEX, "abc", 0, &e);
    CHECK_INT(matcher_open(&m, g, t, &e), 0);
    CHECK_INT(matcher_forced(m, ids, 4, &e), 2); /* a, bc: the vocabulary has abc, but no merge makes it */
    CHECK_INT(ids[0], 0);
    CHECK_INT(ids[1], 4);
    matcher_close(m);
    grammar_close(g);
    token_trie_close(t);
    tokenizer_close(tok);
}

TEST(parts_are_put_together)
{
    struct grammar_spec marker = { .kind = GRAMMAR_LITERAL, .text = "<call>", .n = 6 };
    struct grammar_spec json = { .kind = GRAMMAR_JSON_OBJECT, .flags = GRAMMAR_COMPACT };
    struct grammar_spec free_text = { .kind = GRAMMAR_FREE, .part = &marker, .n_parts = 1 };
    struct grammar_spec call_parts[] = { marker, json };
    struct grammar_spec call = { .kind = GRAMMAR_SEQUENCE, .part = call_parts, .n_parts = 2 };
    struct grammar_spec calls = { .kind = GRAMMAR_REPEAT, .part = &call, .n_parts = 1, .min = 1, .max = 2 };
    struct grammar_spec nothing = { .kind = GRAMMAR_LITERAL };
    struct grammar_spec either_parts[] = { calls, nothing };
    struct grammar_spec either = { .kind = GRAMMAR_ANY_OF, .part = either_parts, .n_parts = 2 };
    struct grammar_spec all_parts[] = { free_text, either };
    struct grammar_spec all = { .kind = GRAMMAR_SEQUENCE, .part = all_parts, .n_parts = 2 };
    static const char *const yes[] = { "", "hello <cal", "hi <<call>{}", "<call>{\"a\":1}<call>{}" };
    static const char *const no[] = { "<call>", "<call>{ }", "<call>{}x", "<call>{}<call>{}<call>{}" };
    struct grammar *g = NULL;
    struct err e;
    size_t at;
    CHECK_INT(grammar_open(&g, &all, NULL, &e), 0);
    for (int i = 0; g && i < 4; i++) {
        CHECK_INT(grammar_accepts(g, yes[i], strlen(yes[i]), &at, &e), 1);
        CHECK_INT(grammar_accepts(g, no[i], strlen(no[i]), &at, &e), 0);
    }
    grammar_close(g);
}

TEST(an_answer_comes_behind_its_reasoning)
{
    static const char template[] = "<think>{{ x }}</think>";
    struct tool_form form = tools_detect(template, sizeof template - 1);
    struct grammar_spec choice[] = { { .kind = GRAMMAR_LITERAL, .text = "yes", .n = 3 } };
    struct grammar_spec answer = { .kind = GRAMMAR_CHOICE, .part = choice, .n_parts = 1 };
    static const char *const texts[] = { "yes", "<think>a <b</think>\n\nyes", "a</think>yes", "no",
                                         "<think>yes" };
    static const int accepted[2][5] = { { 1, 1, 0, 0, 0 }, { 0, 1, 1, 0, 0 } };
    for (int inside = 0; inside < 2; inside++) {
        struct grammar *g = NULL;
        struct err e;
        size_t at;
        CHECK_INT(tools_grammar_answer(&g, &form, inside, &answer, NULL, &e), 0);
        for (int i = 0; g && i < 5; i++)
            CHECK_INT(grammar_accepts(g, texts[i], strlen(texts[i]), &at, &e), accepted[inside][i]);
        grammar_close(g);
    }
}
