/* tpl_value.c - values: construction, comparison, truth, items, by the rules of Python's types. */
#include "text/jinja/tpl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "text/tok.h"

#define DICT_UNINDEXED 16 /* pairs that are searched in order */
#define PAIR_BYTES 32     /* adding a pair costs as much as so many bytes of a string */

int v_undef_of(struct tpl *t, struct val *out, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    char *p = tpl_alloc(t, len + 1);
    if (!p)
        return t->failed;
    memcpy(p, text, len);
    *out = v_undef(p);
    return 0;
}

int v_str(struct tpl *t, const char *p, size_t n, const char *mark, struct val *out)
{
    struct str *s = tpl_alloc(t, sizeof *s);
    if (!s)
        return t->failed;
    *s = (struct str){ p, mark, n, 0 };
    *out = (struct val){ .type = V_STR, .u.s = s };
    return 0;
}

int v_part(struct tpl *t, const struct str *s, size_t from, size_t to, struct val *out)
{
    return v_str(t, s->p + from, to - from, s->mark ? s->mark + from : NULL, out);
}

/* --- lists and dicts --- */

int v_list_new(struct tpl *t, enum list_kind kind, struct val *out)
{
    struct list *l = tpl_alloc(t, sizeof *l);
    if (!l)
        return t->failed;
    l->kind = kind;
    *out = v_list(l);
    return 0;
}

/* Makes space for one more item. The heap frees nothing before its end, so the old array stays allocated. */
static void *one_more(struct tpl *t, void *v, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return v;
    size_t want = *cap ? 2 * *cap : 4;
    void *p = tpl_alloc(t, want * size);
    if (p && n)
        memcpy(p, v, n * size);
    if (p)
        *cap = want;
    return p;
}

int v_list_add(struct tpl *t, struct list *l, struct val v)
{
    struct val *p = one_more(t, l->v, l->n, &l->cap, sizeof *p);
    if (!p)
        return t->failed;
    l->v = p;
    l->v[l->n++] = v;
    return tpl_steps(t, 1);
}

int v_dict_new(struct tpl *t, struct val *out)
{
    struct dict *d = tpl_alloc(t, sizeof *d);
    if (!d)
        return t->failed;
    *out = v_dict(d);
    return 0;
}

/* The slot of a string key, or the empty one where it belongs. *probes: slots looked at. The address of d is
 * the seed, so that no client can choose keys of one slot. */
static uint32_t *dict_slot(const struct dict *d, const char *p, size_t n, size_t *probes)
{
    size_t mask = d->n_slots - 1, i = (size_t)XXH3_64bits_withSeed(p, n, (uint64_t)(uintptr_t)d) & mask;
    for (*probes = 1; d->slot[i]; i = (i + 1) & mask, ++*probes) {
        const struct str *k = d->v[d->slot[i] - 1].k.u.s;
        if (k->n == n && !memcmp(k->p, p, n))
            break;
    }
    return &d->slot[i];
}

/* Enters pair i into the table. */
static int index_pair(struct tpl *t, struct dict *d, size_t i)
{
    const struct val *k = &d->v[i].k;
    size_t probes;
    if (k->type != V_STR)
        return 0;
    uint32_t *slot = dict_slot(d, k->u.s->p, k->u.s->n, &probes);
    if (!*slot)
        *slot = (uint32_t)i + 1;
    return tpl_bytes(t, 8 * probes + k->u.s->n);
}

/* Makes a table that is at most half full. */
static int index_pairs(struct tpl *t, struct dict *d)
{
    size_t n_slots = d->n_slots ? 4 * d->n_slots : 8 * DICT_UNINDEXED;
    uint32_t *slot = tpl_alloc(t, n_slots * sizeof *slot);
    if (!slot)
        return t->failed;
    d->slot = slot;
    d->n_slots = n_slots;
    for (size_t i = 0; i < d->n; i++)
        RETURN_IF_ERROR(index_pair(t, d, i));
    return 0;
}

int v_dict_add(struct tpl *t, struct dict *d, struct val k, struct val v)
{
    struct pair *p = one_more(t, d->v, d->n, &d->cap, sizeof *p);
    if (!p)
        return t->failed;
    d->v = p;
    d->v[d->n++] = (struct pair){ k, v };
    if (d->n <= DICT_UNINDEXED)
        return tpl_bytes(t, PAIR_BYTES);
    return d->n > d->n_slots / 2 ? index_pairs(t, d) : index_pair(t, d, d->n - 1);
}

/* The index of the pair with a string key; d->n: there is none. */
static size_t text_at(const struct dict *d, const char *p, size_t n)
{
    size_t i, probes;
    if (d->n_slots)
        return (i = *dict_slot(d, p, n, &probes)) ? i - 1 : d->n;
    for (i = 0; i < d->n; i++)
        if (d->v[i].k.type == V_STR && d->v[i].k.u.s->n == n && !memcmp(d->v[i].k.u.s->p, p, n))
            break;
    return i;
}

static int dict_at(struct tpl *t, const struct dict *d, struct val k, size_t *at)
{
    if (k.type == V_STR) {
        *at = text_at(d, k.u.s->p, k.u.s->n);
        return tpl_bytes(t, k.u.s->n) < 0 ? t->failed : *at < d->n;
    }
    RETURN_IF_ERROR(tpl_steps(t, d->n / 8));
    for (size_t i = 0; i < d->n; i++) {
        int same = v_equal(t, d->v[i].k, k);
        if (same < 0)
            return same;
        *at = i;
        if (same)
            return 1;
    }
    return 0;
}

int v_hashable(struct tpl *t, struct val v)
{
    if ((v.type == V_LIST && v.u.l->kind == L_LIST) || v.type == V_DICT)
        return tpl_fail(t, ERR_USAGE, "unhashable type: '%s'", v_type(v));
    return 0;
}

int v_dict_put(struct tpl *t, struct dict *d, struct val k, struct val v)
{
    size_t at = 0;
    int found;
    RETURN_IF_ERROR(v_hashable(t, k));
    RETURN_IF_ERROR(found = dict_at(t, d, k, &at));
    if (!found)
        return v_dict_add(t, d, k, v);
    d->v[at].v = v;
    return 0;
}

int v_dict_get(struct tpl *t, const struct dict *d, struct val k, struct val *out)
{
    size_t at = 0;
    int found;
    RETURN_IF_ERROR(v_hashable(t, k));
    RETURN_IF_ERROR(found = dict_at(t, d, k, &at));
    if (found)
        *out = d->v[at].v;
    return found;
}

const struct val *v_dict_text(const struct dict *d, const char *name, size_t n)
{
    size_t i = text_at(d, name, n);
    return i < d->n ? &d->v[i].v : NULL;
}

/* --- strings --- */

int str_same(const struct str *a, const struct str *b) { return a->n == b->n && !memcmp(a->p, b->p, a->n); }

size_t str_chars(const struct str *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += ((unsigned char)s->p[i] & 0xC0) != 0x80;
    return n;
}

size_t str_offset(const struct str *s, size_t chars)
{
    size_t i = 0;
    while (i < s->n) {
        if (((unsigned char)s->p[i] & 0xC0) != 0x80 && chars-- == 0)
            break;
        i++;
    }
    return i;
}

/* --- type, truth, length --- */

const char *v_type(struct val v)
{
    static const char *const lists[] = { "list", "tuple", "range", "dict view", "generator" };
    static const char *const names[] = { "nothing",     "Undefined", "NoneType", "bool", "int",
                                         "float",       "str",       "list",     "dict", "Namespace",
                                         "LoopContext", "function",  "method",   "Macro" };
    return v.type == V_LIST ? lists[v.u.l->kind] : names[v.type];
}

int v_true(struct val v)
{
    switch (v.type) {
    case V_ABSENT:
    case V_UNDEF:
    case V_NONE: return 0;
    case V_BOOL:
    case V_INT: return v.u.i != 0;
    case V_FLOAT: return v.u.f != 0;
    case V_STR: return v.u.s->n != 0;
    case V_LIST: return v.u.l->n != 0 || v.u.l->kind == L_GEN;
    case V_DICT: return v.u.d->n != 0;
    default: return 1;
    }
}

int v_length(struct tpl *t, struct val v, size_t *n)
{
    if (v.type == V_UNDEF)
        *n = 0;
    else if (v.type == V_STR) {
        *n = str_chars(v.u.s);
        return tpl_bytes(t, v.u.s->n);
    } else if (v.type == V_LIST && v.u.l->kind != L_GEN)
        *n = v.u.l->n;
    else if (v.type == V_DICT)
        *n = v.u.d->n;
    else if (v.type == V_LOOP)
        *n = v.u.loop->items->n;
    else
        return tpl_fail(t, ERR_USAGE, "a %s has no length", v_type(v));
    return 0;
}

/* --- equal, less, contained --- */

static int lists_equal(struct tpl *t, const struct list *a, const struct list *b)
{
    if (a == b)
        return 1;
    if (a->kind != b->kind || a->kind == L_GEN || a->kind == L_VIEW || a->n != b->n)
        return 0;
    RETURN_IF_ERROR(tpl_steps(t, a->n / 8));
    for (size_t i = 0; i < a->n; i++) {
        int same = v_equal(t, a->v[i], b->v[i]);
        if (same != 1)
            return same;
    }
    return 1;
}

static int dicts_equal(struct tpl *t, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n)
        return 0;
    for (size_t i = 0; i < a->n; i++) {
        struct val v;
        int same;
        RETURN_IF_ERROR(same = v_dict_get(t, b, a->v[i].k, &v));
        if (same)
            RETURN_IF_ERROR(same = v_equal(t, a->v[i].v, v));
        if (!same)
            return 0;
    }
    return 1;
}

static int deep_equal(struct tpl *t, struct val a, struct val b)
{
    RETURN_IF_ERROR(tpl_enter(t));
    int same = a.type == V_LIST ? lists_equal(t, a.u.l, b.u.l) : dicts_equal(t, a.u.d, b.u.d);
    t->depth--;
    return same;
}

/* An integer against a float: exact, as in Python. */
static int number_order(struct val a, struct val b)
{
    if (v_is_int(a) && v_is_int(b))
        return a.u.i < b.u.i ? -1 : a.u.i > b.u.i;
    double x = v_number(a), y = v_number(b);
    if (isnan(x) || isnan(y))
        return 2;
    if (x != y || (a.type == V_FLOAT && b.type == V_FLOAT))
        return x < y ? -1 : x > y;
    /* equal after rounding: compare as integers, unless the float is beyond the range of int64_t */
    double f = a.type == V_FLOAT ? x : y;
    int64_t i = a.type == V_FLOAT ? b.u.i : a.u.i;
    int order = f >= 0x1p63 ? -1 : i < (int64_t)f ? -1 : i > (int64_t)f;
    return a.type == V_FLOAT ? -order : order;
}

int v_equal(struct tpl *t, struct val a, struct val b)
{
    if (v_is_number(a) && v_is_number(b))
        return number_order(a, b) == 0;
    if (a.type != b.type)
        return 0;
    switch (a.type) {
    case V_ABSENT:
    case V_UNDEF:
    case V_NONE: return 1;
    case V_STR:
        if (a.u.s->n != b.u.s->n)
            return 0;
        return tpl_bytes(t, a.u.s->n) < 0 ? t->failed : str_same(a.u.s, b.u.s);
    case V_LIST:
    case V_DICT: return deep_equal(t, a, b);
    case V_METHOD: return a.u.m->fn == b.u.m->fn && v_equal(t, a.u.m->self, b.u.m->self);
    case V_NAMESPACE: return a.u.d == b.u.d;
    case V_FUNC: return a.u.fn == b.u.fn;
    default: return a.u.loop == b.u.loop;
    }
}

static int lists_order(struct tpl *t, const struct list *a, const struct list *b, int *order)
{
    RETURN_IF_ERROR(tpl_steps(t, (a->n < b->n ? a->n : b->n) / 8));
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        int same;
        RETURN_IF_ERROR(same = v_equal(t, a->v[i], b->v[i]));
        if (!same)
            return v_order(t, a->v[i], b->v[i], order);
    }
    *order = a->n < b->n ? -1 : a->n > b->n;
    return 0;
}

int v_order(struct tpl *t, struct val a, struct val b, int *order)
{
    if (v_is_number(a) && v_is_number(b)) {
        *order = number_order(a, b);
        return 0;
    }

    /* the order of UTF-8 bytes is that of the characters */
    if (a.type == V_STR && b.type == V_STR) {
        size_t n = a.u.s->n < b.u.s->n ? a.u.s->n : b.u.s->n;
        int c = n ? memcmp(a.u.s->p, b.u.s->p, n) : 0;
        *order = c < 0 ? -1 : c > 0 ? 1 : a.u.s->n < b.u.s->n ? -1 : a.u.s->n > b.u.s->n;
        return tpl_steps(t, n / 64);
    }

    if (a.type == V_LIST && b.type == V_LIST && a.u.l->kind == b.u.l->kind && a.u.l->kind <= L_TUPLE) {
        RETURN_IF_ERROR(tpl_enter(t));
        int rc = lists_order(t, a.u.l, b.u.l, order);
        t->depth--;
        return rc;
    }

    if (a.type == V_UNDEF || b.type == V_UNDEF)
        return tpl_fail(t, ERR_USAGE, "%s", a.type == V_UNDEF ? a.u.why : b.u.why);
    return tpl_fail(t, ERR_USAGE, "a %s and a %s have no order", v_type(a), v_type(b));
}

int v_contains(struct tpl *t, struct val in, struct val v)
{
    struct val found;
    struct list *l;

    if (in.type == V_STR) {
        if (v.type != V_STR)
            return tpl_fail(t, ERR_USAGE, "'in' a string asks for a string, not a %s", v_type(v));
        RETURN_IF_ERROR(tpl_bytes(t, in.u.s->n + v.u.s->n));
        return str_find(in.u.s, 0, v.u.s) >= 0;
    }

    if (in.type == V_DICT)
        return v_dict_get(t, in.u.d, v, &found);
    RETURN_IF_ERROR(v_iterate(t, in, &l));
    RETURN_IF_ERROR(tpl_steps(t, l->n / 8));
    for (size_t i = 0; i < l->n; i++) {
        int same = v_equal(t, l->v[i], v);
        if (same)
            return same;
    }
    return 0;
}

/* --- items --- */

static int characters(struct tpl *t, const struct str *s, struct list *out)
{
    size_t from = 0;
    for (size_t i = 1; i <= s->n; i++) {
        struct val one;
        if (i < s->n && ((unsigned char)s->p[i] & 0xC0) == 0x80)
            continue;
        RETURN_IF_ERROR(v_part(t, s, from, i, &one));
        RETURN_IF_ERROR(v_list_add(t, out, one));
        from = i;
    }
    return 0;
}

int v_iterate(struct tpl *t, struct val v, struct list **out)
{
    struct val all = v_none();
    if (v.type == V_LIST && v.u.l->kind != L_GEN) {
        *out = v.u.l;
        return 0;
    }

    RETURN_IF_ERROR(v_list_new(t, L_LIST, &all));
    *out = all.u.l;
    if (v.type == V_UNDEF)
        return 0;
    if (v.type == V_STR)
        return characters(t, v.u.s, *out);
    if (v.type == V_LIST) {
        struct list *l = v.u.l;
        (*out)->v = l->n ? l->v + l->at : NULL;
        (*out)->n = (*out)->cap = l->n - l->at;
        l->at = l->n;
        return 0;
    }

    if (v.type != V_DICT)
        return tpl_fail(t, ERR_USAGE, "a %s cannot be looped over", v_type(v));
    for (size_t i = 0; i < v.u.d->n; i++)
        RETURN_IF_ERROR(v_list_add(t, *out, v.u.d->v[i].k));
    return 0;
}
