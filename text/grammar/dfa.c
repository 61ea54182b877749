/* dfa.c - determinising a regex while texts ask for its states: see regex.h. */
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "text/grammar/regex.h"

/* Adds state s to d->now, with all that it reaches without a code point. at_begin: ^ holds. A state END
 * stays in the set: it is passed where the text ends. */
static void close_over(struct dfa *d, int32_t s, int at_begin)
{
    const struct regex *r = d->r;
    d->stack.n = 0;
    ints_add(&d->stack, s);
    while (d->stack.n && !d->stack.failed) {
        const struct regex_state *x;
        s = d->stack.v[--d->stack.n];
        if (d->mark[s])
            continue;
        d->mark[s] = 1;
        d->work++;
        x = &r->state[s];
        if (x->kind == STATE_SPLIT) {
            ints_add(&d->stack, x->or);
            ints_add(&d->stack, x->next);
        } else if (x->kind == STATE_BEGIN) {
            if (at_begin)
                ints_add(&d->stack, x->next);
        }
        /* a split matters, too: unmarked by the set's members, which name all that was marked */
        ints_add(&d->now, s);
    }
}

/* Does the set accept where the text ends? Follows END. */
static int set_accepts(struct dfa *d)
{
    const struct regex *r = d->r;
    size_t n = d->now.n;
    int accepts = 0;
    for (size_t i = 0; i < d->now.n; i++) {
        const struct regex_state *x = &r->state[d->now.v[i]];
        accepts |= x->kind == STATE_MATCH;
        if (x->kind == STATE_END) {
            size_t before = d->now.n;
            close_over(d, x->next, 0);
            if (d->now.n == before)
                continue;
        }
    }
    for (size_t i = n; i < d->now.n; i++)
        d->mark[d->now.v[i]] = 0;
    d->now.n = n;
    return accepts;
}

/* Makes room for a row and a truth value of every state. */
static int grow(struct dfa *d)
{
    size_t cap = d->cap;
    if (d->states.n <= cap)
        return 0;
    uint32_t **row = buf_grow(d->row, &cap, d->states.n, sizeof *row);
    d->row = row ? row : d->row;
    uint8_t *list = row ? realloc(d->accepts, cap) : NULL;
    d->accepts = list ? list : d->accepts;
    if (!list) {
        d->failed = ERR_MEMORY;
        return -1;
    }
    memset(d->row + d->cap, 0, (cap - d->cap) * sizeof *row);
    d->cap = cap;
    return 0;
}

/* The state of the set d->now, which is emptied. */
static uint32_t intern_set(struct dfa *d)
{
    uint8_t accepts = (uint8_t)set_accepts(d);
    size_t n = 0;
    for (size_t i = 0; i < d->now.n; i++) {
        int32_t s = d->now.v[i];
        d->mark[s] = 0;
        if (d->r->state[s].kind != STATE_SPLIT && d->r->state[s].kind != STATE_BEGIN)
            d->now.v[n++] = s;
    }
    d->now.n = n;
    if (!n)
        return DFA_DEAD;

    ints_sort(&d->now);
    uint32_t before = d->states.n, id = intern_put(&d->states, d->now.v, d->now.n * sizeof *d->now.v);
    d->now.n = 0;
    if (d->states.n > before) {
        if (grow(d) < 0 || dfa_size(d) > DFA_BYTES) {
            d->failed = d->failed ? d->failed : ERR_CONFIG;
            return DFA_DEAD;
        }
        d->accepts[id] = accepts;
    }
    if (d->states.failed || d->now.failed || d->stack.failed)
        d->failed = ERR_MEMORY;
    return d->failed ? DFA_DEAD : id;
}

int dfa_open(struct dfa *d, const struct regex *r, struct err *e)
{
    memset(d, 0, sizeof *d);
    d->r = r;
    d->mark = calloc(r->n_states, 1);
    if (d->mark) {
        close_over(d, r->begin, 1);
        intern_set(d);
    }
    return !d->mark || d->failed ? err_set(e, ERR_MEMORY, "no memory for the states of a regex") : 0;
}

void dfa_close(struct dfa *d)
{
    for (size_t i = 0; i < d->cap; i++)
        free(d->row[i]);
    free((void *)d->row);
    free(d->accepts);
    free(d->mark);
    intern_free(&d->states);
    ints_free(&d->now);
    ints_free(&d->stack);
    memset(d, 0, sizeof *d);
}

/* Index of the range of cp, from 128 on. */
static size_t range_of(const struct regex *r, uint32_t cp)
{
    size_t lo = 0, hi = r->n_ranges - 1;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > r->range[mid].hi)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static uint32_t find_next(struct dfa *d, uint32_t state, uint32_t cp)
{
    const struct regex *r = d->r;
    size_t n;
    const int32_t *set = intern_key(&d->states, state, &n);
    n /= sizeof *set;
    d->work += (int64_t)n;
    for (size_t i = 0; i < n; i++) {
        const struct regex_state *x = &r->state[set[i]];
        if (x->kind == STATE_SET && cpset_has(&r->set[x->set], cp))
            close_over(d, x->next, 0);
    }

    /* a match that any text may follow stays one: other states do not matter */
    for (size_t i = 0; i < d->now.n; i++) {
        const struct regex_state *x = &r->state[d->now.v[i]];
        if (x->kind == STATE_SPLIT && x->or
            == r->match && r->state[x->next].kind == STATE_SET && r->state[x->next].next == d->now.v[i] &&
                r->set[r->state[x->next].set].n == 1 && r->set[r->state[x->next].set].v[0].lo == 0 &&
                r->set[r->state[x->next].set].v[0].hi == CP_MAX) {
            int32_t loop = d->now.v[i];
            for (size_t j = 0; j < d->now.n; j++)
                d->mark[d->now.v[j]] = 0;
            d->now.n = 0;
            close_over(d, loop, 0);
            break;
        }
    }
    return intern_set(d);
}

uint32_t dfa_step(struct dfa *d, uint32_t state, uint32_t cp)
{
    const struct regex *r = d->r;
    uint16_t class = cp < 128 ? r->ascii[cp] : r->class[range_of(r, cp)];
    if (!d->row[state] && !(d->row[state] = calloc((size_t)r->n_classes, sizeof **d->row))) {
        d->failed = ERR_MEMORY;
        return DFA_DEAD;
    }

    uint32_t known = d->row[state][class];
    if (!known) {
        uint32_t next = find_next(d, state, cp);
        known = next == DFA_DEAD ? 1 : next + 2;
        if (!d->failed)
            d->row[state][class] = known;
    }
    return known == 1 ? DFA_DEAD : known - 2;
}

int dfa_accepts(const struct dfa *d, uint32_t state) { return d->accepts[state]; }

size_t dfa_size(const struct dfa *d)
{
    return intern_size(&d->states) + d->states.n * ((size_t)d->r->n_classes * 4 + 9);
}
