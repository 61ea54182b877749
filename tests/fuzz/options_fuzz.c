/* options_fuzz.c - sizes ("4k", "2MiB") and whole command lines, their words divided by line ends
 * (base/opt/opt.c). */
#include <stdlib.h>
#include <string.h>
#include "base/opt.h"
#include "tests/fuzz/fuzz.h"

#define WORDS_MAX 32

struct options {
    int on, kind;
    int64_t count, bytes;
    double lr;
    const char *text;
    struct opt_list list;
};
#define AT(m) offsetof(struct options, m)
static const struct opt rows[] = {
    { OPT_SWITCH, "on", AT(on), "0", NULL, "a switch", 0, 0, 0 },
    { OPT_INT, "count", AT(count), "16", "N", "a count", 0, 1e12, 0 },
    { OPT_SIZE, "kv-memory", AT(bytes), "1GiB", "SIZE", "bytes", 1, 1e15, 0 },
    { OPT_FLOAT, "lr", AT(lr), "1e-3", "X", "a number", 0, 1, 0 },
    { OPT_TEXT, "out", AT(text), NULL, "DIR", "a text", 0, 0, 0 },
    { OPT_CHOICE, "schedule", AT(kind), "a", "a|bc|def", "a choice", 0, 0, 0 },
    { OPT_LIST, "data", AT(list), NULL, "FILE", "a list", 0, 0, OPT_NOT_STORED },
    { OPT_INT, "cp", AT(count), "1", "N", "not built", 1, 64, OPT_NEUTRAL_ONLY },
    { OPT_GROUP, NULL, 0, NULL, NULL, NULL, 0, 0, 0 },
};
static const struct opt_program program = { "fuzz", "a program", "SRC DST", rows, 0, 4, NULL };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 1), *word[WORDS_MAX + 1] = { (char *)(uintptr_t) "fuzz" };
    int n_words = 1;
    int64_t size;
    struct options o;
    struct opt_args args;
    struct err e;
    memcpy(text, data, n);
    text[n] = 0;
    for (char *at = text, *end; n_words < WORDS_MAX && at; at = end) {
        if ((end = strchr(at, '\n')))
            *end++ = 0;
        opt_parse_size(at, &size);
        if (strncmp(at, "--help", 3) && strncmp(at, "--version", 3) && strncmp(at, "--man", 3) &&
            strncmp(at, "--completion", 4))
            word[n_words++] = at; /* left out: options that print pages */
    }
    if (opt_parse(&program, n_words, word, &o, &args, NULL, &e) == 0) {
        free(opt_json(&program, &o));
        opt_free(&program, &o, &args);
    }
    free(text);
    return 0;
}
