/* grammar_fuzz.c - rules in GBNF, a zero byte, and tokens (text/grammar): each byte is a token of a small
 * vocabulary. What the mask allows is taken, what it does not is refused; taking back leads to the same
 * masks. */
#include <stdlib.h>
#include <string.h>
#include "tests/fuzz/fuzz.h"
#include "text/grammar.h"

#define IDS 300
#define STEPS 24

/* All bytes, then pairs of them; the last id is the end. */
static struct token_trie *vocabulary(void)
{
    static char text[2 * IDS];
    static size_t off[IDS + 1];
    struct token_trie *t = NULL;
    struct err e;
    const int32_t end = IDS - 1;
    size_t n = 0;
    for (int i = 0; i < IDS - 1; i++) {
        off[i] = n;
        text[n++] = (char)(i < 256 ? i : 'a' + i % 5);
        if (i >= 256)
            text[n++] = (char)('a' + i % 7);
    }
    off[IDS - 1] = off[IDS] = n;
    token_trie_of(&t, text, off, IDS, &end, 1, &e);
    return t;
}

static void require(int holds)
{
    if (!holds)
        abort();
}

static void take_tokens(struct grammar *g, const struct token_trie *t, const uint8_t *ids, size_t n)
{
    uint32_t mask[(IDS + 31) / 32], again[(IDS + 31) / 32];
    struct matcher *m = NULL;
    struct err e;
    if (matcher_open(&m, g, t, &e) < 0)
        return;
    for (size_t i = 0; i < n && i < STEPS; i++) {
        int32_t id = ids[i] % 7 ? ids[i] : 256 + ids[i] % 43;
        if (matcher_mask(m, mask, &e) < 0)
            break;
        int taken = matcher_take(m, id, &e);
        if (taken < 0)
            break;
        require(taken == (int)(mask[id / 32] >> (id % 32) & 1));
        if (taken) {
            matcher_rewind(m, 1);
            require(matcher_mask(m, again, &e) == 0 && !memcmp(mask, again, sizeof mask));
            require(matcher_take(m, id, &e) == 1);
        }
        if (matcher_at_end(m) == 2)
            break;
    }
    matcher_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct token_trie *t;
    const uint8_t *zero = n ? memchr(data, 0, n) : NULL;
    size_t n_text = zero ? (size_t)(zero - data) : n;
    char *text = fuzz_copy(data, n_text);
    struct grammar_spec s = { .kind = GRAMMAR_EBNF, .text = text, .n = n_text };
    struct grammar *g = NULL;
    struct err e;
    t = t ? t : vocabulary();
    int rc = t ? grammar_open(&g, &s, NULL, &e) : -1;
    free(text);
    if (rc < 0)
        return 0;
    if (zero)
        take_tokens(g, t, zero + 1, n - n_text - 1);
    grammar_close(g);
    return 0;
}
