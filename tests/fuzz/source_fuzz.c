/* source_fuzz.c - documents to be made into tokens: text, JSONL, zstd of both (text/source.c). The first byte says which. */
#include <stdlib.h>
#include "tests/fuzz/fuzz.h"
#include "text/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = { "a.txt", "a.jsonl", "a.txt.zst", "a.jsonl.zst" };
    struct source *s;
    struct err e;
    char *text;
    size_t n_text;
    int more;
    if (!n || source_open(&s, fuzz_write(names[data[0] & 3], data + 1, n - 1), "text", &e) < 0)
        return 0;
    for (int i = 0; i < 1000 && source_next(s, data[0] & 4 ? 100 : 0, &text, &n_text, &more, &e) > 0; i++)
        free(text);
    source_close(s);
    return 0;
}
