/* text_constrain_test.c - grammars of tool calls: what is written at random within one is read as calls of
 * the tools, with arguments of their schemas. */
#include "base/rnd.h"
#include "tests/test.h"
#include "text/grammar.h"
#include "text/tools.h"

#define TEXT_MAX 6000

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":"
    "30},\"unit\":{\"enum\":[\"c\",\"f\"]},\"tags\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
    "tag\"},\"maxItems\":3}},\"required\":[\"city\",\"days\"],\"additionalProperties\":false,\"$defs\":{"
    "\"tag\":{\"type\":\"string\",\"pattern\":\"^[a-z]{1,4}$\"}}}}},{\"type\":\"function\",\"function\":{"
    "\"name\":\"now\",\"parameters\":{\"type\":\"object\",\"properties\":{\"zone\":{\"type\":\"string\"},"
    "\"utc\":{\"type\":\"boolean\"}},\"additionalProperties\":false}}},{\"type\":\"function\",\"function\":{"
    "\"name\":\"ping\"}}]";

static const char *const reasons[] = { "", "<think> </think>" };

/* Marks that end what could go on for ever, which the writer tries now and then. */
static const char *const marks[] = { "</think>",
                                     "\n</parameter>",
                                     "</parameter>",
                                     "</arg_value>",
                                     "</｜DSML｜parameter>",
                                     "<|\"|>",
                                     "<tool_call>",
                                     "[TOOL_CALLS]",
                                     "<|end|><|start|>assistant",
                                     "<|tool_calls_section_begin|>",
                                     "\"" };

static struct token_trie *bytes_trie(void)
{
    static char text[256];
    static size_t off[258];
    struct token_trie *t = NULL;
    struct err e;
    const int32_t end = 256;
    for (int i = 0; i < 256; i++) {
        text[i] = (char)i;
        off[i] = (size_t)i;
    }
    off[256] = off[257] = 256;
    CHECK_INT(token_trie_of(&t, text, off, 257, &end, 1, &e), 0);
    return t;
}

/* Writes a text at random. Its bytes; 0: it did not end in TEXT_MAX. */
static size_t write_at_random(struct grammar *g, const struct token_trie *trie, uint64_t seed, char *out)
{
    struct matcher *m;
    struct err e;
    uint32_t bits[16];
    const char *goal = "";
    size_t n = 0;

    CHECK_INT(matcher_open(&m, g, trie, &e), 0);
    while (n < TEXT_MAX) {
        int allowed[257], k = 0, id = -1;
        if (matcher_mask(m, bits, &e) < 0)
            test_fail(__FILE__, __LINE__, "%s behind %.*s", e.text, (int)n, out);
        for (int i = 0; i < 257; i++)
            if (bits[i / 32] >> i % 32 & 1)
                allowed[k++] = i;
        if (!k)
            break;
        uint64_t x = rnd_u64(seed, 1, n);
        if (!*goal && x % 5 == 0)
            goal = marks[x / 5 % (sizeof marks / sizeof *marks)];
        if (*goal && bits[(unsigned char)*goal / 32] >> (unsigned char)*goal % 32 & 1)
            id = (unsigned char)*goal++;
        else
            goal = "";
        if (id < 0)
            id = bits[8] & 1 && x % 3 ? 256 : allowed[x / 64 % (uint64_t)k];
        CHECK_INT(matcher_take(m, id, &e), 1);
        if (id == 256) {
            matcher_close(m);
            return n;
        }
        out[n++] = (char)id;
    }
    matcher_close(m);
    return 0;
}

/* Reads a text that a grammar allowed. */
static void check_read(const struct tool_parse *how, const char *text, size_t n, int required,
                       const char *name)
{
    struct tool_parser *p;
    struct err e;
    CHECK_INT(tool_parser_open(&p, how, &e), 0);
    CHECK_INT(tool_parser_feed(p, text, n, &e), 0);
    CHECK_INT(tool_parser_finish(p, 0, &e), 0);
    const struct tool_text *t = tool_parser_text(p);
    int bad = required && (!t->n_calls || t->content.n);
    for (size_t i = 0; i < t->n_calls; i++) {
        const struct tool_call *c = &t->call[i];
        json_t *a = json_loadb(c->arguments.p, c->arguments.n, JSON_ALLOW_NUL, NULL);
        int weather = c->name.n == 11 && !memcmp(c->name.p, "get_weather", 11);
        bad |= !json_is_object(a) ||
               (!weather && !(c->name.n == 3 && !memcmp(c->name.p, "now", 3)) && c->name.n != 4);
        bad |= name && (c->name.n != strlen(name) || memcmp(c->name.p, name, c->name.n));
        if (weather)
            bad |= !json_is_string(json_object_get(a, "city")) ||
                   !json_is_integer(json_object_get(a, "days"));
        json_decref(a);
    }
    if (bad)
        test_fail(__FILE__, __LINE__, "%s: %zu calls, content %.*s: %.*s", tools_name(how->form.calls),
                  t->n_calls, (int)t->content.n, t->content.p ? t->content.p : "", (int)n, text);
    tool_parser_close(p);
}

static void try_family(const struct tool_form *form, const struct token_trie *trie, const json_t *tools,
                       int kind)
{
    struct tool_set *set = tool_set_open(tools);
    struct tool_constraint how = { .tools = tools,
                                   .required = !(kind & 1),
                                   .parallel = kind >> 1 & 1,
                                   .in_reasoning = form->reasoning && kind >> 2 & 1,
                                   .name = kind == 2 ? "now" : NULL };
    struct tool_parse parse = { .form = *form, .tools = set, .in_reasoning = how.in_reasoning };
    struct grammar *g = NULL;
    struct err e;
    char *text = malloc(TEXT_MAX + 1);
    int ended = 0;

    if (tools_grammar(&g, form, &how, NULL, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", tools_name(form->calls), e.text);
    for (uint64_t seed = 0; g && seed < 6; seed++) {
        size_t n = write_at_random(g, trie, seed * 64 + (uint64_t)kind, text);
        ended += n > 0;
        if (n)
            check_read(&parse, text, n, how.required, how.name);
    }
    if (!ended)
        test_fail(__FILE__, __LINE__, "%s, kind %d: no text ended", tools_name(form->calls), kind);
    grammar_close(g);
    tool_set_close(set);
    free(text);
}

TEST(what_a_grammar_allows_is_read_as_calls_of_the_tools)
{
    char names[2048];
    struct token_trie *trie = bytes_trie();
    json_t *tools = json_loads(tools_json, 0, NULL);

    CHECK(tools != NULL);
    tools_names(names, sizeof names);
    for (char *name = strtok(names, ", "); name; name = strtok(NULL, ", "))
        for (int kind = 0; kind < 8; kind++) {
            const char *source = reasons[kind >> 2];
            struct tool_form form = tools_detect(source, strlen(source));
            form.calls = tools_find(name);
            if (!tools_always(&form) || kind < 4)
                try_family(&form, trie, tools, kind);
        }
    json_decref(tools);
    token_trie_close(trie);
}

TEST(a_strict_schema_that_cannot_be_held_is_refused_by_name)
{
    json_t *tools = json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"contains\":{}}},\"required\":[\"a\"]}}}]",
        0, NULL);
    struct tool_form form = { .calls = tools_find("hermes") };
    struct tool_constraint how = { .tools = tools, .required = 1 };
    struct grammar *g = NULL;
    struct err e;
    CHECK(tools_grammar(&g, &form, &how, NULL, &e) < 0);
    CHECK_HAS(e.text, "contains");
    CHECK_HAS(e.text, "tool f");
    json_object_del(json_object_get(json_array_get(tools, 0), "function"), "strict");
    CHECK_INT(tools_grammar(&g, &form, &how, NULL, &e), 0); /* any object then */
    grammar_close(g);
    json_decref(tools);
}
