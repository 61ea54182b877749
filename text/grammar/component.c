/* component.c - see component.h. */
#include "text/grammar/component.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"

/* --- numbers --- */

int decimal_of(struct decimal *d, double x)
{
    char text[64], digits[32];
    int n = 0, exponent, precision = 1;
    memset(d, 0, sizeof *d);
    if (!isfinite(x))
        return -1;
    do
        snprintf(text, sizeof text, "%.*e", precision - 1, x);
    while (strtod(text, NULL) != x && ++precision <= 17);

    d->negative = text[0] == '-';
    const char *mantissa = text + d->negative, *e = strchr(text, 'e');
    for (const char *p = mantissa; p < e; p++)
        if (*p != '.')
            digits[n++] = *p;
    exponent = atoi(e + 1);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    if (digits[0] == '0') {
        d->negative = 0;
        exponent = 0;
    }

    /* digit i counts ten to the power exponent - i */
    for (int i = 0; i <= exponent; i++)
        d->whole[d->n_whole++] = i < n ? digits[i] : '0';
    if (!d->n_whole)
        d->whole[d->n_whole++] = '0';
    for (int i = -1; i > exponent && d->n_part < DIGITS_MAX; i--)
        d->part[d->n_part++] = '0';
    for (int i = exponent < 0 ? 0 : exponent + 1; i < n && d->n_part < DIGITS_MAX; i++)
        d->part[d->n_part++] = digits[i];
    return 0;
}

/* A state of PART_BOUND: what is known of the number that is read. */
enum { IN_SIGN, IN_WHOLE, IN_PART };
struct reading {
    unsigned phase : 2, negative : 1, nonzero : 1, relation : 2; /* relation: of the digits, + 1 */
    unsigned n : 16;                                             /* digits of this phase that count */
};
static uint32_t pack(struct reading r)
{
    return r.phase | r.negative << 2 | r.nonzero << 3 | r.relation << 4 | (uint32_t)r.n << 6;
}
static struct reading unpack(uint32_t s)
{
    return (struct reading){ s & 3, s >> 2 & 1, s >> 3 & 1, s >> 4 & 3, s >> 6 & 0xFFFF };
}

static int compare_digits(char a, char b) { return (a > b) - (a < b); }

/* The whole part has ended: -1, 0, 1 as it compares to the bound's. */
static int whole_relation(const struct decimal *b, struct reading r)
{
    return (int)r.n < b->n_whole ? -1 : (int)r.n > b->n_whole ? 1 : (int)r.relation - 1;
}

static uint32_t bound_step(const struct decimal *b, uint32_t state, uint32_t cp)
{
    struct reading r = unpack(state);
    if (r.phase == IN_SIGN && cp == '-' && !r.negative) {
        r.negative = 1;
        return pack(r);
    }
    if (cp == '.' && r.phase == IN_WHOLE) {
        r.relation = (unsigned)(whole_relation(b, r) + 1);
        r.phase = IN_PART;
        r.n = 0;
        return pack(r);
    }
    if (cp < '0' || cp > '9')
        return STATE_DEAD;

    r.nonzero |= cp != '0';
    if (r.phase != IN_PART) {
        r.phase = IN_WHOLE;
        if ((int)r.n < b->n_whole && r.relation == 1)
            r.relation = (unsigned)(compare_digits((char)cp, b->whole[r.n]) + 1);
        r.n += (int)r.n <= b->n_whole;
    } else {
        if (r.relation == 1)
            r.relation = (unsigned)(compare_digits((char)cp, (int)r.n < b->n_part ? b->part[r.n] : '0') + 1);
        r.n += (int)r.n < b->n_part;
    }
    return pack(r);
}

static int bound_accepts(const struct bound *bound, uint32_t state)
{
    const struct decimal *b = &bound->at;
    struct reading r = unpack(state);
    int zero = b->n_whole == 1 && b->whole[0] == '0' && !b->n_part, relation;

    if (r.phase == IN_SIGN)
        return 0;
    relation = r.phase == IN_WHOLE ? whole_relation(b, r) : (int)r.relation - 1;
    int from = r.phase == IN_WHOLE ? 0 : (int)r.n;
    if (relation == 0 && from < b->n_part) /* its last digit is no zero */
        relation = -1;

    if (!r.nonzero)
        relation = zero ? 0 : b->negative ? 1 : -1;
    else if (r.negative && (!b->negative || zero))
        relation = -1;
    else if (!r.negative && b->negative)
        relation = 1;
    else if (r.negative)
        relation = -relation;
    return relation == 0 ? !bound->exclusive : bound->below ? relation < 0 : relation > 0;
}

/* A state of PART_MULTIPLE: the rest so far, and digits behind the point + 1 (0: no point yet). */
static uint32_t multiple_step(const struct multiple *m, uint32_t state, uint32_t cp)
{
    uint32_t rest = state >> 6, point = state & 63;
    if (cp == '-')
        return state;
    if (cp == '.')
        return point ? STATE_DEAD : state | 1;
    if (cp < '0' || cp > '9')
        return STATE_DEAD;
    if (point > (uint32_t)m->scale)
        return cp == '0' ? state : STATE_DEAD;
    rest = (uint32_t)(((uint64_t)rest * 10 + (cp - '0')) % m->of);
    return rest << 6 | (point ? point + 1 : 0);
}

static int multiple_accepts(const struct multiple *m, uint32_t state)
{
    uint64_t rest = state >> 6;
    uint32_t point = state & 63;
    for (int i = point ? (int)point - 1 : 0; i < m->scale; i++)
        rest = rest * 10 % m->of;
    return rest == 0;
}

/* --- texts to be avoided (Aho and Corasick 1975) --- */

static uint32_t avoid_step(const struct words *w, uint32_t state, uint32_t cp)
{
    for (;;) {
        uint32_t next = words_step(w, state, cp);
        if (next != STATE_DEAD)
            return w->node[next].word >= 0 ? STATE_DEAD : next;
        if (!state)
            return 0;
        state = (uint32_t)w->node[state].fail;
    }
}

int component_avoid(struct component *c, struct err *e)
{
    struct words *w = &c->words;
    c->kind = PART_AVOID;
    if (w->node[0].word >= 0)
        return err_set(e, ERR_CONFIG, "a text to be avoided is empty");

    /* children have higher numbers than their parents, and nodes of a level than those above */
    for (size_t i = 0; i < w->n; i++) {
        struct word_node *x = &w->node[i];
        for (int32_t j = x->child; j < x->child + x->n_children; j++) {
            int32_t at = i ? x->fail : -1;
            uint32_t next = STATE_DEAD;
            for (; at >= 0 && (next = words_step(w, (uint32_t)at, w->node[j].cp)) == STATE_DEAD;)
                at = at ? w->node[at].fail : -1;
            w->node[j].fail = next == STATE_DEAD ? 0 : (int32_t)next;
            if (w->node[w->node[j].fail].word >= 0)
                w->node[j].word = w->node[w->node[j].fail].word;
        }
    }
    return 0;
}

/* --- all --- */

void component_close(struct component *c)
{
    regex_close(c->regex);
    words_close(&c->words);
    memset(c, 0, sizeof *c);
}

uint32_t component_begin(const struct component *c)
{
    return c->kind == PART_BOUND ? pack((struct reading){ .relation = 1 }) : 0;
}

uint32_t component_step(const struct component *c, uint32_t state, uint32_t cp)
{
    uint32_t count;
    switch (c->kind) {
    case PART_WORDS: return words_step(&c->words, state, cp);
    case PART_LENGTH:
        count = state + 1;
        if (c->max >= 0)
            return count > c->max ? STATE_DEAD : count;
        return count > c->min ? (uint32_t)c->min : count;
    case PART_BOUND: return bound_step(&c->bound.at, state, cp);
    case PART_MULTIPLE: return multiple_step(&c->multiple, state, cp);
    case PART_AVOID: return avoid_step(&c->words, state, cp);
    case PART_REGEX: break;
    }
    return STATE_DEAD;
}

int component_accepts(const struct component *c, uint32_t state)
{
    switch (c->kind) {
    case PART_WORDS: return c->words.node[state].word >= 0;
    case PART_LENGTH: return state >= c->min;
    case PART_BOUND: return bound_accepts(&c->bound, state);
    case PART_MULTIPLE: return multiple_accepts(&c->multiple, state);
    case PART_AVOID: return 1;
    case PART_REGEX: break;
    }
    return 0;
}

void component_cuts(const struct component *c, struct ints *cuts)
{
    static const char number[] = "-.0123456789";
    if (c->kind == PART_REGEX)
        for (size_t i = 0; i < c->regex->n_ranges; i++)
            ints_add(cuts, (int32_t)c->regex->range[i].lo);
    if (c->kind == PART_WORDS || c->kind == PART_AVOID)
        for (size_t i = 1; i < c->words.n; i++) {
            ints_add(cuts, (int32_t)c->words.node[i].cp);
            ints_add(cuts, (int32_t)c->words.node[i].cp + 1);
        }
    if (c->kind == PART_BOUND || c->kind == PART_MULTIPLE)
        for (const char *p = number; *p; p++) {
            ints_add(cuts, *p);
            ints_add(cuts, *p + 1);
        }
}
