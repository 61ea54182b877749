/* schema_fuzz.c - a JSON Schema, a zero byte, and a text (text/schema): compiled within a second, the text is
 * then taken byte by byte, and at every place a way to some end is found. */
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "tests/fuzz/fuzz.h"
#include "text/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *zero = n ? memchr(data, 0, n) : NULL;
    size_t n_text = zero ? (size_t)(zero - data) : n, at;
    char *text = fuzz_copy(data, n_text);
    struct grammar_spec s = { .kind = GRAMMAR_SCHEMA, .flags = n & 3, .text = text, .n = n_text };
    const struct work_limit limit = { .end_s = clock_s() + 1 };
    struct grammar *g = NULL;
    struct err e;
    int rc = grammar_open(&g, &s, &limit, &e);
    free(text);
    if (rc < 0)
        return 0;
    if (zero)
        grammar_accepts(g, (const char *)zero + 1, n - n_text - 1, &at, &e);
    grammar_close(g);
    return 0;
}
