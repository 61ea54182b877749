/* schema_array.c - arrays of an alternative. */
#include <stdlib.h>
#include "text/schema/schema.h"

#define UNROLLED 24 /* items that are written out; more are counted */
struct array {
    int64_t min, max; /* max -1: without end */
    int64_t n_prefix; /* items that have schemas of their own */
};

static const json_t *prefix_of(const json_t *node)
{
    const json_t *items = json_object_get(node, "items"), *prefix = json_object_get(node, "prefixItems");
    return prefix ? prefix : json_is_array(items) ? items : NULL;
}

/* The schemas that hold for item i. */
static int32_t item_set(struct schemas *s, const struct members *m, int64_t i)
{
    struct members all = { 0 };
    for (size_t j = 0; j < m->n; j++) {
        const json_t *prefix = prefix_of(m->v[j]), *items = json_object_get(m->v[j], "items");
        const json_t *rest = json_is_array(items) ? json_object_get(m->v[j], "additionalItems") : items;
        const json_t *one = i < (int64_t)json_array_size(prefix) ? json_array_get(prefix, (size_t)i) : rest;
        if (one)
            members_add(s, &all, one);
    }
    int32_t set = schema_set(s, &all);
    free((void *)all.v);
    return set;
}

static struct array shape(struct schemas *s, const struct members *m)
{
    struct array a = { .max = -1 };
    int64_t x;
    for (size_t i = 0; i < m->n; i++) {
        const json_t *prefix = prefix_of(m->v[i]);
        if (schema_count(s, m->v[i], "minItems", &x) && x > a.min)
            a.min = x;
        if (schema_count(s, m->v[i], "maxItems", &x) && (a.max < 0 || x < a.max))
            a.max = x;
        if (prefix && !json_is_array(prefix))
            schema_fail(s, m->v[i], "prefixItems", "is not a list of schemas");
        if ((int64_t)json_array_size(prefix) > a.n_prefix)
            a.n_prefix = (int64_t)json_array_size(prefix);
    }
    /* an item that no value fits ends the array before it */
    for (int64_t i = 0; i <= a.n_prefix && !s->p->failed && (a.max < 0 || i < a.max); i++)
        if (!schema_satisfiable(s, item_set(s, m, i)))
            a.max = i;
    for (size_t i = 0; i < m->n; i++)
        if (json_is_true(json_object_get(m->v[i], "uniqueItems")) && (a.max < 0 || a.max > 1))
            schema_fail(s, m->v[i], "uniqueItems", "is not honoured for more than one item");
    if (a.max >= 0 && a.n_prefix > a.max)
        a.n_prefix = a.max;
    return a;
}

int schema_array_satisfiable(struct schemas *s, const struct members *m)
{
    struct array a = shape(s, m);
    return s->p->failed || a.max < 0 || a.min <= a.max;
}

/* Item i, then node next; the items behind it are there. */
static int32_t item(struct schemas *s, const struct members *m, int64_t i, int32_t next)
{
    return program_node(s->p, NODE_CALL, schema_rule(s, item_set(s, m, i)), 0, next);
}

/* ", " and an item of the rest, as a rule. */
static int32_t next_item(struct schemas *s, const struct members *m, int64_t i)
{
    int32_t rule = program_rule(s->p), one = item(s, m, i, s->end);
    int32_t node = program_node(s->p, NODE_TERM, s->comma, 0, one);
    if (!s->p->failed)
        s->p->rule[rule] = node;
    return rule;
}

/* What follows `n` items that are written out, up to the closing bracket at node close. */
static int32_t rest(struct schemas *s, const struct members *m, const struct array *a, int64_t n,
                    int32_t close)
{
    if (a->max >= 0 && n >= a->max)
        return close;
    int64_t min = a->min > n ? a->min - n : 0, max = a->max < 0 ? -1 : a->max - n;
    int32_t rule = next_item(s, m, a->n_prefix);
    if (min == 0 && max < 0) { /* a loop: no count */
        int32_t again = program_alt(s->p, (int32_t[]){ close, close }, 2);
        int32_t one = program_node(s->p, NODE_CALL, rule, 0, again);
        if (!s->p->failed)
            s->p->target.v[s->p->node[again].a] = one;
        return again;
    }
    return program_repeat(s->p, rule, min, max, close);
}

int32_t schema_array(struct schemas *s, const struct members *m)
{
    struct array a = shape(s, m);
    int32_t close = program_node(s->p, NODE_TERM, s->close_bracket, 0, s->end);
    int32_t closed = program_node(s->p, NODE_TERM, s->empty_bracket, 0, s->end), node;
    if (s->p->failed || (a.max >= 0 && a.min > a.max))
        return -1;

    /* from the end: items that are written out, each behind those before it */
    int64_t n = a.n_prefix > 1 ? a.n_prefix : 1;
    node = rest(s, m, &a, n, close);
    for (int64_t i = n - 1; i > 0; i--) {
        node = program_node(s->p, NODE_TERM, s->comma, 0, item(s, m, i, node));
        if (i >= a.min)
            node = program_alt(s->p, (int32_t[]){ node, close }, 2);
    }
    node = item(s, m, 0, node);
    if (a.max == 0)
        node = closed;
    else if (a.min == 0)
        node = program_alt(s->p, (int32_t[]){ node, closed }, 2);
    return program_node(s->p, NODE_TERM, s->open_bracket, 0, node);
}
