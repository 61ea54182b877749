/* tools_fuzz.c - texts of models with tool calls (text/tools). The first byte: the family; the second:
 * whether the prompt opened the reasoning, one call at most, tools that are known, the end; the third:
 * where the text is cut. In pieces and as a whole it must say the same. */
#include <stdlib.h>
#include <string.h>
#include "tests/fuzz/fuzz.h"
#include "text/tools.h"

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{"
    "\"type\":\"string\"},\"b\":{\"type\":[\"integer\",\"null\"]},\"c\":{\"$ref\":\"#/$defs/c\"}"
    "},\"$defs\":{\"c\":{\"anyOf\":[{\"type\":\"array\"},{\"$ref\":\"#/$defs/c\"}]}}}}}]";
/* templates whose marks of reasoning are read */
static const char *const marks[] = { "<think></think>", "[THINK][/THINK]", "<|channel><channel|>",
                                     "<|START_THINKING|><|END_THINKING|>", "<|think|><|tool_call:begin|>" };

/* The family of this number, counted around. */
static const struct tool_family *family(unsigned number)
{
    char names[2048], *name = names;
    unsigned n = 1;
    tools_names(names, sizeof names);
    for (const char *s = names; *s; s++)
        n += *s == ',';
    for (number %= n; number; number--)
        name = strchr(name, ',') + 2;
    name[strcspn(name, ",")] = 0;
    return tools_find(name);
}

static struct tool_parser *parse(const struct tool_parse *how, const char *s, size_t n, size_t each, int cut)
{
    struct tool_parser *p;
    struct err e;
    if (tool_parser_open(&p, how, &e) < 0)
        abort();
    for (size_t at = 0; at < n; at += each) {
        size_t k = n - at < each ? n - at : each;
        char *piece = fuzz_copy((const uint8_t *)s + at, k); /* of its own: a read beyond it is found */
        if (tool_parser_feed(p, piece, k, &e) < 0)
            abort();
        free(piece);
    }
    if (tool_parser_finish(p, cut, &e) < 0)
        abort();
    return p;
}

static void same(const struct buf *a, const struct buf *b)
{
    if (a->n != b->n || (a->n && memcmp(a->p, b->p, a->n)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct tool_set *tools;
    if (n < 3)
        return 0;
    if (!tools) {
        json_t *j = json_loads(tools_json, 0, NULL);
        tools = tool_set_open(j);
        json_decref(j);
    }
    const char *source = marks[(data[1] >> 4) % (sizeof marks / sizeof *marks)];
    struct tool_parse how = { .form = tools_detect(source, strlen(source)),
                              .tools = data[1] & 1 ? tools : NULL,
                              .in_reasoning = data[1] >> 1 & 1,
                              .max_calls = data[1] >> 2 & 1 };
    how.form.calls = family(data[0]);
    int cut = data[1] >> 3 & 1;
    struct tool_parser *whole = parse(&how, (const char *)data + 3, n - 3, n, cut),
                       *parts = parse(&how, (const char *)data + 3, n - 3, 1 + data[2] % 7, cut);
    const struct tool_text *a = tool_parser_text(whole), *b = tool_parser_text(parts);
    same(&a->content, &b->content);
    same(&a->reasoning, &b->reasoning);
    if (a->n_calls != b->n_calls)
        abort();
    for (size_t i = 0; i < a->n_calls; i++) {
        same(&a->call[i].name, &b->call[i].name);
        same(&a->call[i].arguments, &b->call[i].arguments);
    }
    tool_parser_close(whole);
    tool_parser_close(parts);
    return 0;
}
