/* source_fuzz.c - documents to be made into tokens: text, JSONL, zstd of both (text/source.c). The first
 * byte selects one. A frame may ask for a window of up to 128 MiB, as for `zstd -d`: those that do are left
 * out, so that other large allocations are seen. */
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_getFrameHeader */
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include "tests/fuzz/fuzz.h"
#include "text/source.h"

static int asks_for_much(const uint8_t *data, size_t n)
{
    for (size_t i = 0; i + 4 <= n; i++) {
        ZSTD_frameHeader h;
        if (!memcmp(data + i, "\x28\xb5\x2f\xfd", 4) && ZSTD_getFrameHeader(&h, data + i, n - i) == 0 &&
            h.windowSize > 8 << 20)
            return 1;
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = { "a.txt", "a.jsonl", "a.txt.zst", "a.jsonl.zst" };
    struct source *s;
    struct err e;
    char *text;
    size_t n_text;
    int more;
    if (!n || asks_for_much(data, n) ||
        source_open(&s, fuzz_write(names[data[0] & 3], data + 1, n - 1), "text", &e) < 0)
        return 0;
    for (int i = 0; i < 1000 && source_next(s, data[0] & 4 ? 100 : 0, &text, &n_text, &more, &e) > 0; i++)
        free(text);
    source_close(s);
    return 0;
}
