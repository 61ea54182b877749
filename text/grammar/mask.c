/* mask.c - which tokens a configuration allows.
 *
 * The tokens are walked as a trie, depth first; a byte without a configuration behind it ends the walk of
 * what lies below. Most tokens are words, and in most states within a string every character of a word
 * leads to the same state; then nothing is walked: the slice of such tokens has a ready mask. */
#include <stdlib.h>
#include <string.h>
#include "text/grammar/matching.h"

static void allow(uint32_t *bits, int32_t id) { bits[id / 32] |= 1u << (id % 32); }

/* Adds the tokens of a trie that the configuration allows. */
static void walk(struct machine *m, const struct token_trie *t, const struct byte_trie *trie, uint32_t config,
                 uint32_t *bits)
{
    uint32_t at[TOKEN_BYTES + 1];
    m->work -= (int64_t)trie->n / 8;
    at[0] = config;
    for (int32_t i = 0; i < (int32_t)trie->n;) {
        const struct byte_node *x = &trie->node[i];
        const uint32_t *row = m->config[at[x->depth - 1]].row;
        if (!row && !(row = machine_row(m, at[x->depth - 1])))
            return;
        uint32_t next = row[x->byte];
        if (!next) {
            i = x->end;
            continue;
        }
        at[x->depth] = next;
        for (int32_t j = 0; j < x->n; j++)
            allow(bits, t->ids[x->first + j]);
        i++;
    }
}

/* --- slices --- */

static const struct {
    uint8_t lo, hi;
} slice_bytes[N_SLICES][8] = {
    [SLICE_LOWER] = { { 'a', 'z' } },
    [SLICE_NAME] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' }, { '-', '-' } },
    [SLICE_ASCII] = { { ' ', '!' }, { '#', '[' }, { ']', '~' } },
    [SLICE_TEXT] = { { ' ', '!' }, { '#', '[' }, { ']', '~' } },
};
enum { MIXED = -1, NOWHERE = 0 };

/* The configuration to which all bytes lo to hi lead (NOWHERE: none leads on); MIXED. first: what bytes
 * before lead to, or -2. */
static int64_t common(struct machine *m, uint32_t config, int lo, int hi, int64_t first)
{
    const uint32_t *row = machine_row(m, config);
    for (int b = lo; row && b <= hi; b++) {
        if (first == -2)
            first = row[b];
        if (row[b] != first)
            return MIXED;
    }
    return row ? first : MIXED;
}

/* The same of all code points of more than one byte: through the states of UTF-8. */
static int64_t common_beyond_ascii(struct machine *m, uint32_t config, int64_t first)
{
    static const struct {
        uint8_t lo, hi, next_lo, next_hi; /* lead bytes, the second bytes that they may have */
        int rest;                         /* bytes behind the second one */
    } leads[] = { { 0xC2, 0xDF, 0x80, 0xBF, 0 }, { 0xE0, 0xE0, 0xA0, 0xBF, 1 }, { 0xE1, 0xEC, 0x80, 0xBF, 1 },
                  { 0xED, 0xED, 0x80, 0x9F, 1 }, { 0xEE, 0xEF, 0x80, 0xBF, 1 }, { 0xF0, 0xF0, 0x90, 0xBF, 2 },
                  { 0xF1, 0xF3, 0x80, 0xBF, 2 }, { 0xF4, 0xF4, 0x80, 0x8F, 2 } };
    for (size_t i = 0; i < sizeof leads / sizeof *leads; i++) {
        int64_t at = common(m, config, leads[i].lo, leads[i].hi, -2);
        if (at > 0 && leads[i].rest)
            at = common(m, (uint32_t)at, leads[i].next_lo, leads[i].next_hi, -2);
        for (int j = 1; at > 0 && j < leads[i].rest; j++)
            at = common(m, (uint32_t)at, 0x80, 0xBF, -2);
        if (at > 0)
            at = common(m, (uint32_t)at, leads[i].rest ? 0x80 : leads[i].next_lo, 0xBF, -2);
        if (at != first)
            return MIXED;
    }
    return first;
}

/* Where one more character of a slice leads. */
static int64_t slice_step(struct machine *m, enum slice_kind kind, uint32_t config)
{
    int64_t at = -2;
    for (int i = 0; i < 8 && slice_bytes[kind][i].hi && at != MIXED; i++)
        at = common(m, config, slice_bytes[kind][i].lo, slice_bytes[kind][i].hi, at);
    if (kind == SLICE_TEXT && at != MIXED)
        at = common_beyond_ascii(m, config, at);
    return at;
}

static void join(const struct token_trie *t, uint32_t *bits, const uint32_t *mask)
{
    for (size_t i = 0; i < t->n_words; i++)
        bits[i] |= mask[i];
}

/* Adds the tokens of a slice. */
static void add_slice(struct machine *m, const struct token_trie *t, enum slice_kind kind, uint32_t config,
                      uint32_t *bits)
{
    const struct slice *s = &t->slice[kind];
    uint32_t at = config;
    if (!s->n_tokens)
        return;
    for (int n = 0; n < s->longest; n++) {
        int64_t next = slice_step(m, kind, at);
        if (next == at)
            break; /* any number of characters */
        if (next == NOWHERE) {
            if (n)
                join(t, bits, s->up_to[n < SLICE_LENGTHS ? n : 0]);
            if (n <= SLICE_LENGTHS)
                return;
        }
        if (next == MIXED || n >= SLICE_LENGTHS) {
            walk(m, t, &s->trie, config, bits);
            return;
        }
        at = (uint32_t)next;
    }
    join(t, bits, s->up_to[0]);
}

/* --- all tokens --- */

static void add_end_ids(const struct token_trie *t, uint32_t *bits)
{
    for (int i = 0; i < t->n_ends; i++)
        if (t->end[i] >= 0 && t->end[i] < t->vocab)
            allow(bits, t->end[i]);
}

/* Tokens of which every byte is written where added tokens may write. */
static void add_added(struct machine *m, const struct token_trie *t, uint32_t config, uint32_t *bits)
{
    if (!t->n_added || !machine_added(m, config))
        return;
    for (int i = 0; i < t->n_added; i++)
        if (config_take(m, t, config, t->added[i]))
            allow(bits, t->added[i]);
}

static void drop_masks(struct machine *m)
{
    for (uint32_t i = 1; i < m->configs.n; i++) {
        free(m->config[i].mask);
        m->config[i].mask = NULL;
    }
    m->mask_bytes = 0;
}

const uint32_t *config_mask(struct machine *m, const struct token_trie *t, uint32_t config)
{
    size_t bytes = (t->n_words + 1) * sizeof(uint32_t);
    if (m->config[config].mask)
        return m->config[config].mask;
    if (m->mask_bytes + bytes > MACHINE_MASKS)
        drop_masks(m);
    uint32_t *bits = calloc(t->n_words + 1, sizeof *bits);
    if (!bits) {
        m->failed = ERR_MEMORY;
        return NULL;
    }

    /* where all characters lead back here, so do those of every slice */
    if (slice_step(m, SLICE_TEXT, config) == config)
        memcpy(bits, t->all_slices, t->n_words * sizeof *bits);
    else
        for (int i = 0; i < N_SLICES; i++)
            add_slice(m, t, i, config, bits);
    walk(m, t, &t->rest, config, bits);
    for (int i = 0; i < t->n_longer; i++)
        if (config_take(m, t, config, t->longer[i]))
            allow(bits, t->longer[i]);
    add_added(m, t, config, bits);
    if (m->config[config].accepts)
        add_end_ids(t, bits);

    if (m->failed) {
        free(bits);
        return NULL;
    }
    m->mask_bytes += bytes;
    return m->config[config].mask = bits;
}

uint32_t config_take(struct machine *m, const struct token_trie *t, uint32_t config, int32_t id)
{
    if (id < 0 || id >= t->vocab || t->kind[id] == TOKEN_NONE || t->kind[id] == TOKEN_END)
        return 0;
    for (size_t i = t->off[id]; i < t->off[id + 1] && config; i++) {
        if (t->kind[id] == TOKEN_OF_ADDED)
            config = machine_added(m, config);
        config = config ? machine_step(m, config, (unsigned char)t->text[i]) : 0;
    }
    return m->failed ? 0 : config;
}
