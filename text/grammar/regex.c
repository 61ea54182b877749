/* regex.c - a regex's tree to an automaton (Thompson's construction), and its classes of code points. */
#include "text/grammar/regex.h"

#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "text/grammar/regex_parse.h"

struct builder {
    struct regex *r;
    const struct regex_tree *t;
    struct err *e;
    int failed;
};

static int32_t add_state(struct builder *b, struct regex_state s)
{
    struct regex *r = b->r;
    if (b->failed)
        return 0;
    if (r->n_states == REGEX_STATES) {
        err_set(b->e, ERR_CONFIG, "the regex has more than %d states, its counts written out: lower them",
                REGEX_STATES);
        b->failed = 1;
        return 0;
    }
    if (r->n_states == r->cap_states) {
        struct regex_state *v = buf_grow(r->state, &r->cap_states, r->n_states + 1, sizeof *v);
        if (!v) {
            err_set(b->e, ERR_MEMORY, "no memory for a regex");
            b->failed = 1;
            return 0;
        }
        r->state = v;
    }
    r->state[r->n_states] = s;
    return (int32_t)r->n_states++;
}

static int32_t emit(struct builder *b, int32_t node, int32_t next);

/* Built from its end: the last copy first. X{2,4} is XX(X(X)?)?, so that few states are alive at a time. */
static int32_t emit_repeat(struct builder *b, const struct ast *a, int32_t next)
{
    int32_t to = next;
    if (a->max < 0) {
        int32_t loop = add_state(b, (struct regex_state){ STATE_SPLIT, .or = next });
        int32_t body = emit(b, a->a, loop);
        if (!b->failed)
            b->r->state[loop].next = body;
        to = loop;
    }
    for (int32_t i = a->min; i < a->max && !b->failed; i++) {
        int32_t body = emit(b, a->a, to);
        to = add_state(b, (struct regex_state){ STATE_SPLIT, .next = body, .or = next });
    }
    for (int32_t i = 0; i < a->min && !b->failed; i++)
        to = emit(b, a->a, to);
    return to;
}

/* The first state of a node that goes on to state next. */
static int32_t emit(struct builder *b, int32_t node, int32_t next)
{
    const struct ast *a = &b->t->v[node];
    int32_t x, y;
    if (b->failed)
        return 0;
    switch (a->kind) {
    case AST_EMPTY: return next;
    case AST_SET: return add_state(b, (struct regex_state){ STATE_SET, .set = a->a, .next = next });
    case AST_CAT: /* a long sequence leans to the left */
        for (; a->kind == AST_CAT; a = &b->t->v[a->a]) {
            next = emit(b, a->b, next);
            node = a->a;
        }
        return emit(b, node, next);
    case AST_ALT:
        y = emit(b, a->b, next);
        for (; b->t->v[a->a].kind == AST_ALT;
             y = add_state(b, (struct regex_state){ STATE_SPLIT, 0, x, y })) {
            a = &b->t->v[a->a];
            x = emit(b, a->b, next);
        }
        x = emit(b, a->a, next);
        return add_state(b, (struct regex_state){ STATE_SPLIT, .next = x, .or = y });
    case AST_REPEAT: return emit_repeat(b, a, next);
    case AST_BEGIN: return add_state(b, (struct regex_state){ STATE_BEGIN, .next = next });
    case AST_END: return add_state(b, (struct regex_state){ STATE_END, .next = next });
    }
    return next;
}

/* Any text, then state next. */
static int32_t emit_any(struct builder *b, int32_t next)
{
    struct cpset *all = regex_add_set(b->r);
    int32_t loop = add_state(b, (struct regex_state){ STATE_SPLIT, .or = next });
    if (all)
        cpset_add(all, 0, CP_MAX);
    if (!all || all->failed) {
        err_set(b->e, ERR_MEMORY, "no memory for a regex");
        b->failed = 1;
        return 0;
    }
    int32_t one = add_state(b, (struct regex_state){ STATE_SET, .set = (int32_t)b->r->n_sets - 1,
                                                     .next = loop });
    if (!b->failed)
        b->r->state[loop].next = one;
    return loop;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Cuts all code points where a set begins or ends. */
static int cut_ranges(struct regex *r, struct err *e)
{
    size_t n = 1, unique = 0;
    for (size_t i = 0; i < r->n_sets; i++)
        n += 2 * r->set[i].n;
    uint32_t *cut = malloc(n * sizeof *cut);
    if (!cut)
        return err_set(e, ERR_MEMORY, "no memory for a regex");

    n = 0;
    cut[n++] = 0;
    for (size_t i = 0; i < r->n_sets; i++)
        for (size_t j = 0; j < r->set[i].n; j++) {
            cut[n++] = r->set[i].v[j].lo;
            cut[n++] = r->set[i].v[j].hi + 1;
        }
    qsort(cut, n, sizeof *cut, by_number);
    for (size_t i = 0; i < n; i++)
        if (cut[i] <= CP_MAX && (!unique || cut[i] != cut[unique - 1]))
            cut[unique++] = cut[i];

    r->range = malloc(unique * sizeof *r->range);
    r->class = calloc(unique, sizeof *r->class);
    r->n_ranges = unique;
    for (size_t i = 0; r->range && i < unique; i++)
        r->range[i] = (struct cprange){ cut[i], i + 1 < unique ? cut[i + 1] - 1 : CP_MAX };
    free(cut);
    return r->range && r->class ? 0 : err_set(e, ERR_MEMORY, "no memory for a regex");
}

/* Ranges that are in the same sets get one class. */
static int number_classes(struct regex *r, struct err *e)
{
    struct intern members = { 0 };
    size_t n_bytes = r->n_sets / 8 + 1;
    uint8_t *row = malloc(n_bytes);
    if (!row)
        return err_set(e, ERR_MEMORY, "no memory for a regex");

    for (size_t i = 0; i < r->n_ranges; i++) {
        memset(row, 0, n_bytes);
        for (size_t j = 0; j < r->n_sets; j++)
            if (cpset_has(&r->set[j], r->range[i].lo))
                row[j / 8] |= (uint8_t)(1 << (j % 8));
        r->class[i] = (uint16_t)intern_put(&members, row, n_bytes);
        for (uint32_t cp = r->range[i].lo; cp < 128 && cp <= r->range[i].hi; cp++)
            r->ascii[cp] = r->class[i];
    }

    r->n_classes = (int)members.n;
    int failed = members.failed;
    intern_free(&members);
    free(row);
    if (!failed && r->n_classes > UINT16_MAX)
        return err_set(e, ERR_CONFIG, "the regex has %d classes of characters, at most %d", r->n_classes,
                       UINT16_MAX);
    return failed ? err_set(e, ERR_MEMORY, "no memory for a regex") : 0;
}

int regex_open(struct regex **out, const char *text, size_t n, enum regex_use use, struct err *e)
{
    struct regex *r = calloc(1, sizeof *r);
    struct regex_tree t = { 0 };
    struct builder b = { r, &t, e, 0 };
    int rc = r ? 0 : err_set(e, ERR_MEMORY, "no memory for a regex");
    TRY(rc);
    TRY(regex_parse(&t, r, text, n, e));

    r->match = add_state(&b, (struct regex_state){ STATE_MATCH });
    r->begin = emit(&b, t.top, use == REGEX_SEARCH ? emit_any(&b, r->match) : r->match);
    if (use == REGEX_SEARCH)
        r->begin = emit_any(&b, r->begin);
    if (b.failed) {
        rc = -e->code;
        goto out;
    }

    TRY(cut_ranges(r, e));
    TRY(number_classes(r, e));
    *out = r;
    r = NULL;
out:
    free(t.v);
    regex_close(r);
    return rc;
}

void regex_close(struct regex *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n_sets; i++)
        cpset_free(&r->set[i]);
    free(r->set);
    free(r->state);
    free(r->range);
    free(r->class);
    free(r);
}
