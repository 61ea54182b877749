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
        uint32_t next = machine_step(m, at[x->depth - 1], x->byte);
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

/* --- where the characters of a slice lead --- */

static const struct {
    uint8_t lo, hi;
} slice_bytes[N_SLICES][6] = {
    [SLICE_LOWER] = { { 'a', 'z' } },
    [SLICE_NAME] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' }, { '-', '-' } },
    [SLICE_ASCII] = { { ' ', '!' }, { '#', '[' }, { ']', '~' } },
    [SLICE_TEXT] = { { ' ', '!' }, { '#', '[' }, { ']', '~' } },
};

#define PLACES 12
/* Configurations to which some character leads. */
struct places {
    uint32_t v[PLACES];
    int n;
    int too_many, dead; /* dead: a character leads nowhere */
};

static void add_place(struct places *p, uint32_t config)
{
    for (int i = 0; i < p->n; i++)
        if (p->v[i] == config)
            return;
    if (p->n == PLACES)
        p->too_many = 1;
    else
        p->v[p->n++] = config;
}

/* Adds where the bytes lo to hi lead from all places of `from`. */
static void add_bytes(struct machine *m, const struct places *from, int lo, int hi, struct places *to)
{
    for (int i = 0; i < from->n; i++) {
        uint32_t last = 0;
        for (int b = lo; b <= hi; b++) {
            uint32_t next = machine_step(m, from->v[i], (unsigned char)b);
            if (!next)
                to->dead = 1;
            else if (next != last)
                add_place(to, last = next);
        }
    }
    to->dead |= from->dead;
    to->too_many |= from->too_many;
}

/* The same of all code points of more than one byte: through the states of UTF-8. */
static void add_beyond_ascii(struct machine *m, const struct places *from, struct places *to)
{
    static const struct {
        uint8_t lo, hi, next_lo, next_hi; /* lead bytes, the second bytes that they may have */
        int rest;                         /* bytes behind the second one */
    } leads[] = { { 0xC2, 0xDF, 0x80, 0xBF, 0 }, { 0xE0, 0xE0, 0xA0, 0xBF, 1 }, { 0xE1, 0xEC, 0x80, 0xBF, 1 },
                  { 0xED, 0xED, 0x80, 0x9F, 1 }, { 0xEE, 0xEF, 0x80, 0xBF, 1 }, { 0xF0, 0xF0, 0x90, 0xBF, 2 },
                  { 0xF1, 0xF3, 0x80, 0xBF, 2 }, { 0xF4, 0xF4, 0x80, 0x8F, 2 } };
    for (size_t i = 0; i < sizeof leads / sizeof *leads && !to->too_many; i++) {
        struct places a = { .n = 0 }, b = { .n = 0 };
        add_bytes(m, from, leads[i].lo, leads[i].hi, &a);
        for (int j = 0; j < leads[i].rest; j++) {
            b = (struct places){ .n = 0 };
            add_bytes(m, &a, j ? 0x80 : leads[i].next_lo, j ? 0xBF : leads[i].next_hi, &b);
            a = b;
        }
        add_bytes(m, &a, leads[i].rest ? 0x80 : leads[i].next_lo, 0xBF, to);
    }
}

/* Where one more character of a slice leads from one configuration; not all of it when one leads nowhere, or
 * they lead to too many. */
static struct places step_from(struct machine *m, enum slice_kind kind, uint32_t config)
{
    const struct places from = { .v = { config }, .n = 1 };
    struct places to = { .n = 0 };
    for (int i = 0; i < 6 && slice_bytes[kind][i].hi && !to.too_many; i++)
        add_bytes(m, &from, slice_bytes[kind][i].lo, slice_bytes[kind][i].hi, &to);
    if (kind == SLICE_TEXT && !to.dead && !to.too_many)
        add_beyond_ascii(m, &from, &to);
    return to;
}

/* The same, kept for the largest slice, whose characters are many. */
static struct places step_one(struct machine *m, enum slice_kind kind, uint32_t config)
{
    if (kind != SLICE_TEXT)
        return step_from(m, kind, config);
    if (!m->config[config].places) {
        struct places to = step_from(m, kind, config), *kept = malloc(sizeof *kept);
        if (!kept)
            return to;
        *kept = to;
        m->config[config].places = kept;
        m->row_bytes += sizeof *kept;
    }
    return *m->config[config].places;
}

/* The same from all places of a set. */
static struct places slice_step(struct machine *m, enum slice_kind kind, const struct places *from)
{
    struct places to = { .n = 0 };
    for (int i = 0; i < from->n && !to.too_many; i++) {
        struct places one = step_one(m, kind, from->v[i]);
        for (int j = 0; j < one.n; j++)
            add_place(&to, one.v[j]);
        to.dead |= one.dead;
        to.too_many |= one.too_many;
    }
    return to;
}

/* Facts about a configuration and a slice, as bits of config_info->checked. */
enum fact { CLOSED, ENDLESS };
static int fact_known(const struct machine *m, enum slice_kind kind, enum fact f, uint32_t config)
{
    return m->config[config].checked >> (4 * kind + 2 * f) & 1;
}
static int fact_true(const struct machine *m, enum slice_kind kind, enum fact f, uint32_t config)
{
    return m->config[config].checked >> (4 * kind + 2 * f + 1) & 1;
}
static void set_fact(struct machine *m, enum slice_kind kind, enum fact f, uint32_t config, int yes)
{
    m->config[config].checked |= (uint16_t)((yes ? 3u : 1u) << (4 * kind + 2 * f));
}

/* Does every character of the slice lead back to the configuration? */
static int is_closed(struct machine *m, enum slice_kind kind, uint32_t config)
{
    if (!fact_known(m, kind, CLOSED, config)) {
        const struct places here = { .v = { config }, .n = 1 };
        struct places to = { .dead = 1 };
        if (machine_step(m, config, slice_bytes[kind][0].lo) == config)
            to = slice_step(m, kind, &here);
        set_fact(m, kind, CLOSED, config, !to.dead && !to.too_many && to.n == 1 && to.v[0] == config);
    }
    return fact_true(m, kind, CLOSED, config);
}

static int in_list(const struct ints *list, uint32_t config)
{
    for (size_t i = list->n; i-- > 0;)
        if (list->v[i] == (int32_t)config)
            return 1;
    return 0;
}

#define ENDLESS_MOST 64
/* Can any number of characters of the slice follow? Looks at what they lead to until nothing is new; what is
 * found is true of all that was looked at. */
static int is_endless(struct machine *m, enum slice_kind kind, uint32_t config)
{
    struct ints list = { 0 };
    int yes = 1;
    if (fact_known(m, kind, ENDLESS, config))
        return fact_true(m, kind, ENDLESS, config);
    ints_add(&list, (int32_t)config);
    set_fact(m, kind, ENDLESS, config, 0); /* also: it is in the list */
    for (size_t i = 0; i < list.n && yes; i++) {
        const struct places here = { .v = { (uint32_t)list.v[i] }, .n = 1 };
        struct places to = slice_step(m, kind, &here);
        yes = !to.dead && !to.too_many && list.n < ENDLESS_MOST && !list.failed;
        for (int j = 0; j < to.n && yes; j++) {
            if (fact_known(m, kind, ENDLESS, to.v[j])) {
                yes = fact_true(m, kind, ENDLESS, to.v[j]) || in_list(&list, to.v[j]);
                continue;
            }
            set_fact(m, kind, ENDLESS, to.v[j], 0);
            ints_add(&list, (int32_t)to.v[j]);
        }
    }
    for (size_t i = 0; i < list.n && yes; i++)
        set_fact(m, kind, ENDLESS, (uint32_t)list.v[i], 1);
    ints_free(&list);
    return yes;
}

/* --- slices --- */

static void join(const struct token_trie *t, uint32_t *bits, const uint32_t *mask)
{
    for (size_t i = 0; i < t->n_words; i++)
        bits[i] |= mask[i];
}

/* The ids of the tokens at and below node i: a range of t->ids. */
static int32_t ids_end(const struct token_trie *t, enum slice_kind kind, int32_t i)
{
    const struct slice *s = &t->slice[kind];
    int32_t end = s->trie.node[i].end;
    return end < (int32_t)s->trie.n ? s->trie.node[end].first : s->first_id + (int32_t)s->n_tokens;
}

static void set_below(const struct token_trie *t, enum slice_kind kind, int32_t i, int on, uint32_t *bits)
{
    int32_t end = ids_end(t, kind, i);
    for (int32_t j = t->slice[kind].trie.node[i].first; j < end; j++) {
        int32_t id = t->ids[j];
        if (on)
            allow(bits, id);
        else
            bits[id / 32] &= ~(1u << (id % 32));
    }
}

/* Tokens at and below node i, which leads to `next`, that are likely to be allowed, by a look at one more
 * byte. */
static int32_t likely(struct machine *m, const struct token_trie *t, enum slice_kind kind, int32_t i,
                      uint32_t next)
{
    const struct byte_trie *trie = &t->slice[kind].trie;
    int32_t n = ids_end(t, kind, i) - trie->node[i].first, alive = trie->node[i].n;
    if ((size_t)n < t->slice[kind].n_tokens / 16 || is_closed(m, kind, next))
        return n;
    for (int32_t j = i + 1; j < trie->node[i].end; j = trie->node[j].end)
        if (machine_step(m, next, trie->node[j].byte))
            alive += ids_end(t, kind, j) - trie->node[j].first;
    return alive;
}

/* Are more than half of the tokens of a slice likely to be allowed? */
static int most_begin(struct machine *m, const struct token_trie *t, enum slice_kind kind, uint32_t config)
{
    const struct byte_trie *trie = &t->slice[kind].trie;
    int32_t alive = 0;
    for (int32_t i = 0; i < (int32_t)trie->n; i = trie->node[i].end) {
        uint32_t next = machine_step(m, config, trie->node[i].byte);
        alive += next ? likely(m, t, kind, i, next) : 0;
    }
    return (size_t)alive * 2 > t->slice[kind].n_tokens;
}

/* Walks the tokens of a slice. What lies below a configuration to which all characters lead back is allowed;
 * the walk begins with all tokens, or with none, as the most of them end. */
static void walk_slice(struct machine *m, const struct token_trie *t, enum slice_kind kind, uint32_t config,
                       uint32_t *bits)
{
    const struct byte_trie *trie = &t->slice[kind].trie;
    int begins_full = most_begin(m, t, kind, config);
    uint32_t at[TOKEN_BYTES + 1];
    m->work -= (int64_t)trie->n / 8;
    if (begins_full)
        join(t, bits, t->slice[kind].up_to[0]);
    at[0] = config;
    for (int32_t i = 0; i < (int32_t)trie->n;) {
        const struct byte_node *x = &trie->node[i];
        uint32_t next = machine_step(m, at[x->depth - 1], x->byte);
        int closed = next && x->end > i + 1 && is_closed(m, kind, next);
        if (!next || closed) {
            if (begins_full != closed)
                set_below(t, kind, i, closed, bits);
            i = x->end;
            continue;
        }
        at[x->depth] = next;
        for (int32_t j = 0; j < x->n && !begins_full; j++)
            allow(bits, t->ids[x->first + j]);
        i++;
    }
}

/* How many characters of a slice may follow: *n, or any number (ENDLESS_CHARS), and whether more of them
 * never may; 0: a walk must tell. What a character more leads to is a set of places: while none of them is
 * the end, tokens of so many characters are allowed. */
#define ENDLESS_CHARS (SLICE_LENGTHS + 1)
static int count_chars(struct machine *m, enum slice_kind kind, uint32_t config, int *n)
{
    struct places now = { .v = { config }, .n = 1 }, seen = now;
    for (*n = 0; *n < SLICE_LENGTHS; ++*n) {
        struct places next = slice_step(m, kind, &now);
        int before = seen.n;
        if (next.dead)
            return next.n == 0;
        if (next.too_many) {
            *n = ENDLESS_CHARS;
            return is_endless(m, kind, config);
        }
        for (int i = 0; i < next.n; i++)
            add_place(&seen, next.v[i]);
        if (seen.n == before && !seen.too_many)
            break; /* more characters lead to places that were seen */
        now = next;
    }
    *n = ENDLESS_CHARS;
    return 1;
}

static void add_up_to(const struct token_trie *t, enum slice_kind kind, int n, uint32_t *bits)
{
    const struct slice *s = &t->slice[kind];
    if (s->n_tokens && n > 0)
        join(t, bits, s->up_to[n < ENDLESS_CHARS ? n : 0]);
}

/* Adds the tokens of all slices. What is true of the largest one, whose characters are all the others' too,
 * is true of each. */
static void add_slices(struct machine *m, const struct token_trie *t, uint32_t config, uint32_t *bits)
{
    int n;
    if (count_chars(m, SLICE_TEXT, config, &n)) {
        if (n == ENDLESS_CHARS)
            memcpy(bits, t->all_slices, t->n_words * sizeof *bits);
        for (int kind = 0; n < ENDLESS_CHARS && kind < N_SLICES; kind++)
            add_up_to(t, kind, n, bits);
        return;
    }
    for (int kind = 0; kind < N_SLICES; kind++) {
        if (!t->slice[kind].n_tokens)
            continue;
        if (kind != SLICE_TEXT && count_chars(m, kind, config, &n))
            add_up_to(t, kind, n, bits);
        else
            walk_slice(m, t, kind, config, bits);
    }
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
    if (m->mask_bytes + bytes > m->masks_most)
        drop_masks(m);
    uint32_t *bits = calloc(t->n_words + 1, sizeof *bits);
    if (!bits) {
        m->failed = ERR_MEMORY;
        return NULL;
    }

    add_slices(m, t, config, bits);
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
