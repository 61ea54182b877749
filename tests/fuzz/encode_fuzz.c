/* encode_fuzz.c - any text, with untrusted parts, through tokenizers of every kind, and back (text/marked.c,
 * added.c, split.c, bpe.c, detok.c). The input: a byte that chooses the tokenizer, a byte for the number of
 * untrusted parts, two for the bytes before and in each, the text. */
#include <stdlib.h>
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/lib/small_tokenizers.h"

#define SPANS_MAX 16

/* A place in the text at or after `at` where a character may begin; sometimes one that is not. */
static size_t border(const uint8_t *text, size_t n, size_t at)
{
    while (at < n && (text[at] & 0xC0) == 0x80 && at % 31)
        at++;
    return at < n || at % 31 == 0 ? at : n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct text_span span[SPANS_MAX];
    size_t n_span = n > 1 ? data[1] % (SPANS_MAX + 1) : 0, head = 2 + 2 * n_span, at = 0, n_ids, n_text;
    struct err e;
    int32_t *ids;
    char *back;
    if (n < 2 || n < head)
        return 0;
    const struct tokenizer *t = small_tokenizer(data[0] % SMALL_TOKENIZERS);
    for (size_t i = 0; i < n_span; i++) {
        span[i].begin = at = border(data + head, n - head, at + data[2 + 2 * i]);
        span[i].end = at = border(data + head, n - head, at + data[3 + 2 * i]);
    }

    char *text = fuzz_copy(data + head, n - head);
    const struct marked_text m = { .text = text, .n = n - head, .user = span, .n_user = n_span };
    if (tokenizer_encode_marked(t, &m, data[0] >> 7, &ids, &n_ids, &e) >= 0) {
        if (tokenizer_decode(t, ids, n_ids, data[0] >> 6 & 1, &back, &n_text, &e) >= 0)
            free(back);
        free(ids);
    }
    free(text);
    return 0;
}
