/* terminal.c - states of terminals: vectors of states of their components, and what a decoder has read of a
 * code point between two of them. A state from which the terminal cannot end is none, so that no text is led
 * into a dead end. */
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "text/grammar/automaton.h"
#include "text/tok.h"

#define LIVE_STATES 400000 /* that a search for an end may look at */

static void too_large(struct machine *m)
{
    if (!m->failed)
        m->failed = ERR_CONFIG;
}

static void *no_memory(struct machine *m)
{
    m->failed = ERR_MEMORY;
    return NULL;
}

/* --- components --- */

/* Places for components and terminals that the program has got since. */
static int make_places(struct machine *m)
{
    const struct program *p = m->p;
    size_t cap = m->n_components, cap_terminals = m->n_terminals;
    if (m->n_components < p->n_components) {
        struct dfa **v = buf_grow(m->dfa, &cap, p->n_components, sizeof(void *));
        if (!v)
            return no_memory(m), -1;
        memset(v + m->n_components, 0, (cap - m->n_components) * sizeof(void *));
        m->dfa = v;
        m->n_components = cap;
    }
    if (m->n_terminals < p->n_terminals) {
        struct terminal_ranges *v = buf_grow(m->ranges, &cap_terminals, p->n_terminals, sizeof *v);
        if (!v)
            return no_memory(m), -1;
        memset(v + m->n_terminals, 0, (cap_terminals - m->n_terminals) * sizeof *v);
        m->ranges = v;
        m->n_terminals = cap_terminals;
    }
    return 0;
}

static struct dfa *dfa_of(struct machine *m, int32_t component)
{
    struct err e;
    if (m->dfa[component])
        return m->dfa[component];
    struct dfa *d = malloc(sizeof *d);
    if (!d || dfa_open(d, m->p->component[component].regex, &e) < 0) {
        free(d);
        return no_memory(m);
    }
    m->dfa[component] = d;
    return d;
}

static uint32_t part_begin(struct machine *m, int32_t component)
{
    const struct component *c = &m->p->component[component];
    return c->kind == PART_REGEX ? 0 : component_begin(c);
}

static uint32_t part_step(struct machine *m, int32_t component, uint32_t state, uint32_t cp)
{
    const struct component *c = &m->p->component[component];
    if (state == STATE_DEAD || c->kind != PART_REGEX)
        return state == STATE_DEAD ? STATE_DEAD : component_step(c, state, cp);
    struct dfa *d = dfa_of(m, component);
    uint32_t next = d ? dfa_step(d, state, cp) : STATE_DEAD;
    if (d) {
        m->work -= d->work / 4;
        d->work = 0;
        m->failed = m->failed ? m->failed : d->failed;
    }
    return next;
}

int part_accepts(struct machine *m, int32_t component, uint32_t state)
{
    const struct component *c = &m->p->component[component];
    if (state == STATE_DEAD || c->kind != PART_REGEX)
        return state != STATE_DEAD && component_accepts(c, state);
    struct dfa *d = dfa_of(m, component);
    return d && dfa_accepts(d, state);
}

/* --- vectors --- */

struct key {
    uint32_t terminal, state[TERMINAL_PARTS];
};

const uint32_t *vector_states(const struct machine *m, int32_t vector)
{
    size_t n;
    return (const uint32_t *)intern_key(&m->vectors, (uint32_t)vector, &n) + 1;
}

static uint32_t vector_terminal(const struct machine *m, int32_t vector)
{
    size_t n;
    return *(const uint32_t *)intern_key(&m->vectors, (uint32_t)vector, &n);
}

/* Parts of a key that only sort keys (declared ones, patterns): one that is dead stays so. */
static int is_soft(const struct machine *m, const struct terminal *t, int part)
{
    return t->object >= 0 && part <= m->p->object[t->object].n_patterns;
}

static int key_accepts(struct machine *m, const struct terminal *t, const struct key *k)
{
    if (t->object >= 0)
        return key_is_other(m, t, k->state);
    for (int i = 0; i < t->n_parts; i++)
        if (part_accepts(m, t->part[i].component, k->state[i]) == t->part[i].negated)
            return 0;
    return 1;
}

/* The vector of a key; -1: m has failed. */
static int32_t put_vector(struct machine *m, const struct terminal *t, const struct key *k)
{
    uint32_t before = m->vectors.n;
    uint32_t id = intern_put(&m->vectors, k, sizeof k->terminal + t->n_parts * sizeof *k->state);
    if (m->vectors.n == before)
        return m->vectors.failed ? (no_memory(m), -1) : (int32_t)id;
    struct vector_info *v = m->vector;
    if (id >= m->cap_vectors && !(v = buf_grow(v, &m->cap_vectors, (size_t)id + 1, sizeof *v)))
        return no_memory(m), -1;
    m->vector = v;
    m->vector[id] = (struct vector_info){ 0 };
    m->vector[id].accepts = (uint8_t)key_accepts(m, t, k);
    m->vector[id].live = m->vector[id].accepts ? LIVE_YES : LIVE_UNKNOWN;
    return (int32_t)id;
}

static int32_t vector_begin(struct machine *m, int32_t terminal)
{
    const struct terminal *t = &m->p->terminal[terminal];
    struct key k = { .terminal = (uint32_t)terminal };
    for (int i = 0; i < t->n_parts; i++)
        k.state[i] = part_begin(m, t->part[i].component);
    return put_vector(m, t, &k);
}

/* The vector behind a code point; -1: none. */
static int32_t vector_step(struct machine *m, int32_t vector, uint32_t cp)
{
    struct key k = { .terminal = vector_terminal(m, vector) };
    const struct terminal *t = &m->p->terminal[k.terminal];
    memcpy(k.state, vector_states(m, vector), t->n_parts * sizeof *k.state);
    m->work--;
    for (int i = 0; i < t->n_parts; i++) {
        k.state[i] = part_step(m, t->part[i].component, k.state[i], cp);
        if (k.state[i] == STATE_DEAD && !t->part[i].negated && !is_soft(m, t, i))
            return -1;
    }
    return m->failed ? -1 : put_vector(m, t, &k);
}

/* --- ranges of code points that are alike --- */

static const struct terminal_ranges *ranges_of(struct machine *m, uint32_t terminal)
{
    const struct terminal *t = &m->p->terminal[terminal];
    struct terminal_ranges *r = &m->ranges[terminal];
    struct ints cuts = { 0 };
    if (r->v)
        return r;
    ints_add(&cuts, 0);
    ints_add(&cuts, 0xD800);
    ints_add(&cuts, 0xE000);
    for (int i = 0; i < t->n_parts; i++)
        component_cuts(&m->p->component[t->part[i].component], &cuts);
    ints_sort(&cuts);
    while (cuts.n && cuts.v[cuts.n - 1] > CP_MAX)
        cuts.n--;

    r->v = cuts.failed ? NULL : malloc((cuts.n + 1) * sizeof *r->v);
    if (!r->v) {
        ints_free(&cuts);
        return no_memory(m);
    }
    r->n = cuts.n;
    for (size_t i = 0; i < cuts.n; i++)
        r->v[i] = (struct cprange){ (uint32_t)cuts.v[i],
                                    i + 1 < cuts.n ? (uint32_t)cuts.v[i + 1] - 1 : CP_MAX };
    ints_free(&cuts);
    return r;
}

static int is_surrogate(uint32_t cp) { return cp >= 0xD800 && cp <= 0xDFFF; }

/* Index of the range that has cp. */
static size_t range_at(const struct terminal_ranges *r, uint32_t cp)
{
    size_t lo = 0, hi = r->n - 1;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > r->v[mid].hi)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* --- live vectors --- */

struct search {
    struct ints path, at, seen; /* vectors from the first one, the range that each tries next */
};

/* Looks for a vector that accepts, depth first; in a cycle every vector is looked at once. */
static int find_end(struct machine *m, struct search *s, const struct terminal_ranges *r)
{
    while (s->path.n && !m->failed) {
        int32_t v = s->path.v[s->path.n - 1], next = -1, i = s->at.v[s->at.n - 1]++;
        if (i >= (int32_t)r->n) {
            s->path.n--;
            s->at.n--;
            continue;
        }
        if (!is_surrogate(r->v[i].lo))
            next = vector_step(m, v, r->v[i].lo);
        if (next < 0 || m->vector[next].live == LIVE_NO)
            continue;
        if (m->vector[next].live == LIVE_YES)
            return 1;
        /* LIVE_NO for now, so that it is not looked at again: undone by whoever finds an end */
        m->vector[next].live = LIVE_NO;
        ints_add(&s->seen, next);
        ints_add(&s->path, next);
        ints_add(&s->at, 0);
        if (s->seen.n > LIVE_STATES || m->work < 0)
            too_large(m);
        if (s->seen.failed || s->path.failed || s->at.failed)
            no_memory(m);
    }
    return 0;
}

int vector_live(struct machine *m, int32_t vector)
{
    struct search s = { 0 };
    if (m->vector[vector].live != LIVE_UNKNOWN)
        return m->vector[vector].live == LIVE_YES;
    const struct terminal_ranges *r = ranges_of(m, vector_terminal(m, vector));
    if (!r)
        return 0;

    m->vector[vector].live = LIVE_NO;
    ints_add(&s.seen, vector);
    ints_add(&s.path, vector);
    ints_add(&s.at, 0);
    int found = find_end(m, &s, r);
    if (found || m->failed)
        for (size_t i = 0; i < s.seen.n; i++)
            m->vector[s.seen.v[i]].live = LIVE_UNKNOWN;
    for (size_t i = 0; found && i < s.path.n; i++)
        m->vector[s.path.v[i]].live = LIVE_YES;
    ints_free(&s.seen);
    ints_free(&s.path);
    ints_free(&s.at);
    return found;
}

/* Live as a terminal or, of keys, as some key of the object, whatever keys it has. */
static int vector_goes_on(struct machine *m, int32_t vector)
{
    const struct terminal *t = &m->p->terminal[vector_terminal(m, vector)];
    if (t->object >= 0 && vector_states(m, vector)[0] != STATE_DEAD)
        return 1; /* a declared key begins so; which keys are left, key_live() asks */
    return vector_live(m, vector);
}

/* Is there a code point from lo to hi that leads on? *same (or NULL): the vector to which all of them lead,
 * or -1. */
static int range_goes_on(struct machine *m, int32_t vector, uint32_t lo, uint32_t hi, int32_t *same)
{
    const struct terminal_ranges *r = ranges_of(m, vector_terminal(m, vector));
    int found = 0, mixed = 0;
    int32_t one = -2;
    for (size_t i = r ? range_at(r, lo) : 0;
         r && i < r->n && r->v[i].lo <= hi && !(found && (mixed || !same)); i++) {
        if (is_surrogate(r->v[i].lo))
            continue;
        int32_t next = vector_step(m, vector, r->v[i].lo);
        next = next >= 0 && vector_goes_on(m, next) ? next : -1;
        found |= next >= 0;
        mixed |= one != -2 && next != one;
        one = next;
    }
    if (same)
        *same = mixed || one < 0 ? -1 : one;
    return found;
}

/* --- states --- */

/* The state of these members; 0 after a failure. State 0 is no state. */
static uint32_t put_state(struct machine *m, int32_t vector, enum decoding at, uint32_t value)
{
    struct {
        int32_t vector;
        uint32_t value, at;
    } k = { vector, value, at };
    uint32_t before = m->term_states.n, id = intern_put(&m->term_states, &k, sizeof k);
    if (m->term_states.n == before)
        return m->term_states.failed ? (no_memory(m), 0) : id;
    struct term_state *v = m->term;
    if (id >= m->cap_term && !(v = buf_grow(v, &m->cap_term, (size_t)id + 1, sizeof *v)))
        return no_memory(m), 0;
    m->term = v;
    uint32_t terminal = vector < 0 ? 0 : vector_terminal(m, vector);
    m->term[id] = (struct term_state){ .vector = vector, .value = value, .decoding = (uint8_t)at };
    if (vector < 0)
        return id;

    int is_string = m->p->terminal[terminal].decoder == DECODER_STRING;
    m->term[id].accepts = is_string ? at == AT_CLOSED : at == AT_CHAR && m->vector[vector].accepts;
    m->term[id].extends = at != AT_CLOSED;
    if (at == AT_CHAR && !is_string) { /* a text that can only end here is not kept */
        int goes_on = range_goes_on(m, vector, 0, CP_MAX, NULL);
        m->term[id].extends = (uint8_t)goes_on;
    }
    return id;
}

static uint32_t find_begin(struct machine *m, int32_t terminal)
{
    const struct terminal *t = &m->p->terminal[terminal];
    if (m->term_states.n == 0 && put_state(m, -1, AT_OPEN, 0) != 0)
        return 0;
    int32_t v = vector_begin(m, terminal);
    if (v < 0 || !vector_goes_on(m, v))
        return 0;
    return put_state(m, v, t->decoder == DECODER_STRING ? AT_OPEN : AT_CHAR, 0);
}

uint32_t term_begin(struct machine *m, int32_t terminal)
{
    if (make_places(m) < 0)
        return 0;
    if (!m->ranges[terminal].begin) {
        uint32_t begin = find_begin(m, terminal);
        m->ranges[terminal].begin = begin + 1;
    }
    return m->failed ? 0 : m->ranges[terminal].begin - 1;
}

/* The state behind a whole code point. */
static uint32_t after_char(struct machine *m, int32_t vector, uint32_t cp)
{
    int32_t next = vector_step(m, vector, cp);
    return next >= 0 && vector_goes_on(m, next) ? put_state(m, next, AT_CHAR, 0) : 0;
}

/* Do the bytes behind lo, `rest` of them, make a code point from min on? 2: any bytes do. */
static int makes_code_points(uint32_t lo, int rest, uint32_t min)
{
    uint32_t end = lo + (1u << 6 * rest) - 1, hi = end > CP_MAX ? CP_MAX : end, from = lo < min ? min : lo;
    if (from > hi || (is_surrogate(from) && is_surrogate(hi)))
        return 0;
    return from == lo && hi == end && !(lo <= 0xDFFF && hi >= 0xD800) ? 2 : 1;
}

/* The state before `rest` more bytes of a code point from lo to lo + 64^rest - 1, of those from min on. */
static uint32_t before_bytes(struct machine *m, int32_t vector, uint32_t lo, int rest, uint32_t min)
{
    uint32_t hi = lo + (1u << 6 * rest) - 1;
    int32_t same;
    int can = makes_code_points(lo, rest, min);
    if (!can || !range_goes_on(m, vector, lo < min ? min : lo, hi > CP_MAX ? CP_MAX : hi, &same))
        return 0;
    if (same >= 0)
        return can == 2 ? put_state(m, same, AT_SAME, (uint32_t)rest)
                        : put_state(m, same, AT_LIMITED, (uint32_t)rest << 24 | lo);
    return put_state(m, vector, AT_UTF8, (uint32_t)rest << 24 | lo);
}

static uint32_t lead_byte(struct machine *m, int32_t vector, unsigned char b)
{
    if (b < 0xC2 || b > 0xF4)
        return 0;
    if (b < 0xE0)
        return before_bytes(m, vector, (b & 0x1Fu) << 6, 1, 0x80);
    if (b < 0xF0)
        return before_bytes(m, vector, (b & 0xFu) << 12, 2, 0x800);
    return before_bytes(m, vector, (b & 7u) << 18, 3, 0x10000);
}

/* From where code points count behind a second or later byte: a lead byte alone decides how long one is. */
static uint32_t least(uint32_t lo, int rest) { return rest == 1 && lo < 0x10000 ? 0x800 : 0x10000; }

static uint32_t next_limited(struct machine *m, struct term_state s, unsigned char b)
{
    int rest = (int)(s.value >> 24) - 1;
    uint32_t lo = (s.value & 0xFFFFFF) | (b & 0x3Fu) << 6 * rest;
    if ((b & 0xC0) != 0x80)
        return 0;
    if (rest == 0)
        return is_surrogate(lo) || lo > CP_MAX ? 0 : put_state(m, s.vector, AT_CHAR, 0);
    int can = makes_code_points(lo, rest, least(lo, rest));
    return can == 2   ? put_state(m, s.vector, AT_SAME, (uint32_t)rest)
           : can == 1 ? put_state(m, s.vector, AT_LIMITED, (uint32_t)rest << 24 | lo)
                      : 0;
}

static uint32_t next_utf8(struct machine *m, struct term_state s, unsigned char b)
{
    int rest = (int)(s.value >> 24) - 1;
    uint32_t lo = (s.value & 0xFFFFFF) | (b & 0x3Fu) << 6 * rest;
    if ((b & 0xC0) != 0x80)
        return 0;
    if (rest == 0)
        return is_surrogate(lo) || lo > CP_MAX ? 0 : after_char(m, s.vector, lo);
    return before_bytes(m, s.vector, lo, rest, least(lo, rest));
}

static int hex_digit(unsigned char b)
{
    if (b >= '0' && b <= '9')
        return b - '0';
    b |= 32;
    return b >= 'a' && b <= 'f' ? b - 'a' + 10 : -1;
}

static uint32_t next_escape(struct machine *m, struct term_state s, unsigned char b)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *c = b ? strchr(from, b) : NULL;
    if (c)
        return after_char(m, s.vector, (unsigned char)to[c - from]);
    return b == 'u' ? put_state(m, s.vector, AT_HEX, 0) : 0;
}

/* Code points that a state in the middle of one can become: one or two ranges. Returns their number. */
static int possible(struct term_state s, struct cprange r[2])
{
    int n = (int)(s.value >> (s.decoding == AT_LOW_HEX ? 28 : 24)), shift = 4 * (4 - n);
    uint32_t high = 0x10000 + ((s.value >> (s.decoding == AT_LOW_HEX ? 16 : 0) & 0xFFF) << 10), lo, hi;
    r[0] = r[1] = (struct cprange){ 0, CP_MAX };
    switch ((enum decoding)s.decoding) {
    case AT_UTF8:
        lo = s.value & 0xFFFFFF;
        r[0] = (struct cprange){ lo, lo + (1u << 6 * n) - 1 };
        return 1;
    case AT_HEX:
        r[0].lo = (s.value & 0xFFFF) << shift;
        r[0].hi = r[0].lo + (1u << shift) - 1;
        if (r[0].lo >= 0xDC00 || r[0].hi < 0xD800)
            return 1;
        /* D8 to DB begin a pair: code points beyond FFFF */
        r[1].lo = 0x10000 + (((r[0].lo < 0xD800 ? 0xD800 : r[0].lo) - 0xD800) << 10);
        r[1].hi = 0x10000 + (((r[0].hi > 0xDBFF ? 0xDBFF : r[0].hi) - 0xD800) << 10) + 0x3FF;
        return 2;
    case AT_LOW:
    case AT_LOW_U: r[0] = (struct cprange){ high, high + 0x3FF }; return 1;
    case AT_LOW_HEX:
        lo = (s.value & 0xFFFF) << shift;
        hi = lo + (1u << shift) - 1;
        if (hi < 0xDC00 || lo > 0xDFFF)
            return 0;
        r[0].lo = high + ((lo < 0xDC00 ? 0xDC00 : lo) - 0xDC00);
        r[0].hi = high + ((hi > 0xDFFF ? 0xDFFF : hi) - 0xDC00);
        return 1;
    default: return 1;
    }
}

/* The state in the middle of an escape, or 0 when no code point that it can become leads on. */
static uint32_t put_escape(struct machine *m, int32_t vector, enum decoding at, uint32_t value)
{
    struct cprange r[2];
    int n = possible((struct term_state){ .decoding = (uint8_t)at, .value = value }, r);
    for (int i = 0; i < n; i++)
        if (range_goes_on(m, vector, r[i].lo, r[i].hi, NULL))
            return put_state(m, vector, at, value);
    return 0;
}

static uint32_t next_hex(struct machine *m, struct term_state s, unsigned char b)
{
    int digit = hex_digit(b), n = (int)(s.value >> 24) + 1;
    uint32_t x = (s.value & 0xFFFF) << 4 | (uint32_t)digit;
    if (digit < 0)
        return 0;
    if (n < 4)
        return put_escape(m, s.vector, AT_HEX, (uint32_t)n << 24 | x);
    if (x >= 0xD800 && x < 0xDC00)
        return put_escape(m, s.vector, AT_LOW, x - 0xD800);
    return is_surrogate(x) ? 0 : after_char(m, s.vector, x);
}

static uint32_t next_low_hex(struct machine *m, struct term_state s, unsigned char b)
{
    int digit = hex_digit(b), n = (int)(s.value >> 28) + 1;
    uint32_t high = s.value >> 16 & 0xFFF, x = (s.value & 0xFFFF) << 4 | (uint32_t)digit;
    if (digit < 0)
        return 0;
    if (n < 4)
        return put_escape(m, s.vector, AT_LOW_HEX, (uint32_t)n << 28 | high << 16 | x);
    return x < 0xDC00 || x > 0xDFFF ? 0 : after_char(m, s.vector, 0x10000 + (high << 10) + (x - 0xDC00));
}

int key_state_live(struct machine *m, int32_t object, uint32_t set, uint32_t state)
{
    struct term_state s = m->term[state];
    struct cprange range[2];
    if (s.decoding == AT_OPEN || s.decoding == AT_CHAR || s.decoding == AT_SAME || s.decoding == AT_LIMITED)
        return key_live(m, object, set, s.vector);
    const struct terminal_ranges *r = ranges_of(m, vector_terminal(m, s.vector));
    for (int j = 0, n = possible(s, range); r && j < n; j++)
        for (size_t i = range_at(r, range[j].lo); i < r->n && r->v[i].lo <= range[j].hi; i++) {
            int32_t next = is_surrogate(r->v[i].lo) ? -1 : vector_step(m, s.vector, r->v[i].lo);
            if (next >= 0 && key_live(m, object, set, next))
                return 1;
        }
    return 0;
}

/* The state behind a byte between two code points. */
static uint32_t next_char(struct machine *m, struct term_state s, unsigned char b, int is_string, int has_end)
{
    if (is_string && b == '"')
        return has_end ? put_state(m, s.vector, AT_CLOSED, 0) : 0;
    if (is_string && b == '\\')
        return put_escape(m, s.vector, AT_ESCAPE, 0);
    if (is_string && b < 0x20)
        return 0;
    return b < 0x80 ? after_char(m, s.vector, b) : lead_byte(m, s.vector, b);
}

static uint32_t next_state(struct machine *m, struct term_state s, unsigned char b, int is_string,
                           int has_end)
{
    switch ((enum decoding)s.decoding) {
    case AT_OPEN: return b == '"' ? put_state(m, s.vector, AT_CHAR, 0) : 0;
    case AT_CHAR: return next_char(m, s, b, is_string, has_end);
    case AT_UTF8: return next_utf8(m, s, b);
    case AT_SAME:
        if ((b & 0xC0) != 0x80)
            return 0;
        return s.value == 1 ? put_state(m, s.vector, AT_CHAR, 0)
                            : put_state(m, s.vector, AT_SAME, s.value - 1);
    case AT_LIMITED: return next_limited(m, s, b);
    case AT_ESCAPE: return next_escape(m, s, b);
    case AT_HEX: return next_hex(m, s, b);
    case AT_LOW: return b == '\\' ? put_state(m, s.vector, AT_LOW_U, s.value) : 0;
    case AT_LOW_U: return b == 'u' ? put_state(m, s.vector, AT_LOW_HEX, s.value << 16) : 0;
    case AT_LOW_HEX: return next_low_hex(m, s, b);
    case AT_CLOSED: break;
    }
    return 0;
}

/* A key may be closed when it is another key that is allowed, or a declared one. */
static int may_close_quote(struct machine *m, const struct terminal *t, int32_t vector)
{
    if (m->vector[vector].accepts)
        return 1;
    uint32_t word = t->object >= 0 ? vector_states(m, vector)[0] : STATE_DEAD;
    return word != STATE_DEAD && m->p->component[t->part[0].component].words.node[word].word >= 0;
}

const uint32_t *term_row(struct machine *m, uint32_t state)
{
    struct term_state s = m->term[state];
    if (s.row)
        return s.row;
    uint32_t *row = malloc(256 * sizeof *row);
    const struct terminal *t = &m->p->terminal[vector_terminal(m, s.vector)];
    int is_string = t->decoder == DECODER_STRING, has_end = may_close_quote(m, t, s.vector);
    if (!row)
        return no_memory(m);
    for (int b = 0; b < 256; b++)
        row[b] = next_state(m, s, (unsigned char)b, is_string, has_end);
    m->row_bytes += 256 * sizeof *row;
    m->work -= 64;
    m->term[state].row = row;
    return m->failed ? NULL : row;
}

int terminal_is_empty(struct machine *m, int32_t terminal)
{
    if (make_places(m) < 0)
        return 0;
    int32_t v = vector_begin(m, terminal);
    return v < 0 || !vector_live(m, v);
}

int terminal_has(struct machine *m, int32_t terminal, const char *text, size_t n)
{
    if (make_places(m) < 0)
        return 0;
    int32_t v = vector_begin(m, terminal);
    for (size_t i = 0; i < n && v >= 0;) {
        uint32_t cp;
        int len = utf8_next(text + i, n - i, &cp);
        if (len <= 0)
            return 0;
        i += (size_t)len;
        v = vector_step(m, v, cp);
    }
    return v >= 0 && m->vector[v].accepts;
}
