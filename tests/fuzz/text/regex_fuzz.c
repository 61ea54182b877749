/* regex_fuzz.c - a regex, a zero byte, and a text (text/grammar/regex_parse.c): a text takes time in
 * proportion to its length, whatever the regex. */
#include <stdlib.h>
#include <string.h>
#include "tests/fuzz/fuzz.h"
#include "text/grammar.h"

#define TEXT_MAX 2000 /* bytes: a regex of 20,000 states looks at all of them for each byte */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *zero = n ? memchr(data, 0, n) : NULL;
    size_t n_text = zero ? (size_t)(zero - data) : n, n_after = zero ? n - n_text - 1 : 0, at;
    char *text = fuzz_copy(data, n_text);
    struct grammar_spec s = { .kind = GRAMMAR_REGEX, .text = text, .n = n_text };
    struct grammar *g = NULL;
    struct err e;
    int rc = grammar_open(&g, &s, NULL, &e);
    free(text);
    if (rc < 0)
        return 0;
    if (zero)
        grammar_accepts(g, (const char *)zero + 1, n_after < TEXT_MAX ? n_after : TEXT_MAX, &at, &e);
    grammar_close(g);
    return 0;
}
