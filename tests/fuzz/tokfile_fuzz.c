/* tokfile_fuzz.c - a file of token ids (files/tokfile.c). With an odd first byte the checksums of header and
 * tables are made to fit. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "tests/fuzz/fuzz.h"
#include "text/tokfile.h"

#define HEAD 64

static uint64_t u64(const char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Fields by TOKENS.md: width at 12, count at 16, hash of the tables at 48, of the header at 56. */
static void mend(char *p, size_t n)
{
    uint64_t ids = u64(p + 16) * (u64(p + 8) >> 32), tables = (HEAD + ids + 7) / 8 * 8, h;
    if (tables <= n) {
        h = XXH3_64bits(p + tables, n - tables);
        memcpy(p + 48, &h, 8);
    }
    h = XXH3_64bits(p, HEAD - 8);
    memcpy(p + HEAD - 8, &h, 8);
}

/* Reads every byte of a carried file: one behind the end of the mapping would be found. */
static void read_part(const struct tokfile *f, const char *name)
{
    size_t n = 0;
    const unsigned char *part = tokfile_part(f, name, &n);
    volatile unsigned sum = 0;
    for (size_t i = 0; part && i < n; i++)
        sum += part[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tokfile *f;
    struct err e;
    int32_t ids[64];
    float weights[64];
    if (!n)
        return 0;
    char *p = fuzz_copy(data + 1, n - 1);
    if (data[0] & 1 && n - 1 >= HEAD)
        mend(p, n - 1);
    if (tokfile_open(&f, fuzz_write("tokens.bin", p, n - 1), &e) >= 0) {
        int64_t count = tokfile_count(f), docs = tokfile_documents(f);
        tokfile_read(f, 0, count < 64 ? count : 64, ids, &e);
        if (tokfile_has_weights(f) && count)
            tokfile_weights(f, count < 64 ? 0 : count - 64, count < 64 ? count : 64, weights);
        if (docs)
            tokfile_document_end(f, docs - 1);
        tokfile_verify(f, &e);
        read_part(f, "tokenizer.json");
        read_part(f, "chat_template.jinja");
        tokfile_close(f);
    }
    free(p);
    return 0;
}
