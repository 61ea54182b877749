/* tpl_filter_list.c - filters of lists. */
#include "text/jinja/tpl.h"

#include <string.h>

/* The result of a filter that is a generator in Jinja: it can be read once. */
static int new_gen(struct tpl *t, struct val *out) { return v_list_new(t, L_GEN, out); }

FN(f_list)
{
    struct list *l;
    UNUSED;
    RETURN_IF_ERROR(v_iterate(t, self, &l));
    RETURN_IF_ERROR(v_list_new(t, L_LIST, out));
    for (size_t i = 0; i < l->n; i++)
        RETURN_IF_ERROR(v_list_add(t, out->u.l, l->v[i]));
    return 0;
}

FN(f_items)
{
    struct args none = { 0 };
    struct val all;
    UNUSED;
    if (self.type == V_UNDEF)
        return new_gen(t, out);
    if (self.type != V_DICT)
        return tpl_fail(t, ERR_USAGE, "items of a %s: only a dict has items", v_type(self));
    RETURN_IF_ERROR(fn_run(t, fn_find(tpl_dict_methods, "items", 5), self, &none, &all));
    all.u.l->kind = L_GEN;
    all.u.l->at = 0;
    *out = all;
    return 0;
}

FN(f_first)
{
    struct list *l;
    UNUSED;
    if (self.type == V_LIST && self.u.l->kind == L_GEN && self.u.l->at < self.u.l->n) {
        *out = self.u.l->v[self.u.l->at++];
        return 0;
    }
    RETURN_IF_ERROR(v_iterate(t, self, &l));
    *out = l->n ? l->v[0] : v_undef("no first item: the sequence is empty");
    return 0;
}

FN(f_last)
{
    struct list *l;
    UNUSED;
    if (self.type == V_LIST && self.u.l->kind == L_GEN)
        return tpl_fail(t, ERR_USAGE, "last of a generator: put | list in front of it");
    RETURN_IF_ERROR(v_iterate(t, self, &l));
    *out = l->n ? l->v[l->n - 1] : v_undef("no last item: the sequence is empty");
    return 0;
}

FN(f_reverse)
{
    struct list *l;
    struct sb b = { .t = t };
    UNUSED;
    RETURN_IF_ERROR(v_iterate(t, self, &l));
    if (self.type != V_STR)
        return list_reverse(t, l, self.type == V_LIST && self.u.l->kind == L_GEN ? L_LIST : L_GEN, out);
    for (size_t i = l->n; i > 0; i--)
        sb_str(&b, l->v[i - 1].u.s);
    return sb_done(&b, out);
}

FN(f_join)
{
    static const struct str nothing = { "", NULL, 0, 0 };
    struct sb b = { .t = t };
    const struct str *by = &nothing;
    struct list *l;
    UNUSED;

    if (a[0].type != V_ABSENT)
        RETURN_IF_ERROR(v_to_str(t, a[0], &by));
    RETURN_IF_ERROR(v_iterate(t, self, &l));
    for (size_t i = 0; i < l->n; i++) {
        struct val v;
        RETURN_IF_ERROR(get_path(t, l->v[i], a[1], &v));
        if (i)
            sb_str(&b, by);
        RETURN_IF_ERROR(v_print(&b, v));
    }
    return sb_done(&b, out);
}

FN(f_sum)
{
    struct list *l;
    UNUSED;
    *out = a[1].type == V_ABSENT ? v_int(0) : a[1];
    RETURN_IF_ERROR(v_iterate(t, self, &l));
    if (out->type == V_STR)
        return tpl_fail(t, ERR_USAGE, "sum of strings: use join");
    RETURN_IF_ERROR(tpl_steps(t, l->n));
    for (size_t i = 0; i < l->n; i++) {
        struct val v, sum;
        RETURN_IF_ERROR(get_path(t, l->v[i], a[0], &v));
        RETURN_IF_ERROR(op_arith(t, OP_ADD, *out, v, &sum));
        *out = sum;
    }
    return 0;
}

/* --- order --- */

static int fold(struct tpl *t, struct val v, int case_matters, struct val *out)
{
    *out = v;
    return v.type == V_STR && !case_matters ? str_case(t, v.u.s, 'l', out) : 0;
}

/* The sort keys of the items of l: the item's attribute (a path, or several separated by commas), in lower
 * case unless case_matters. many: a key is a list of values. */
static int sort_keys(struct tpl *t, const struct list *l, struct val attribute, int case_matters, int many,
                     struct val *keys)
{
    struct val paths;
    RETURN_IF_ERROR(v_list_new(t, L_LIST, keys));
    RETURN_IF_ERROR(v_list_new(t, L_LIST, &paths));
    if (many && attribute.type == V_STR && memchr(attribute.u.s->p, ',', attribute.u.s->n)) {
        struct val comma;
        struct args args = { .v = &comma, .n = 1 };
        RETURN_IF_ERROR(v_str(t, ",", 1, NULL, &comma));
        RETURN_IF_ERROR(fn_run(t, fn_find(tpl_str_methods, "split", 5), attribute, &args, &paths));
    }

    for (size_t i = 0; i < l->n; i++) {
        struct val v, key = v_none();
        size_t n = paths.u.l->n;
        /* also a single value is a list: two undefined values are then equal, not an error */
        if (many)
            RETURN_IF_ERROR(v_list_new(t, L_LIST, &key));
        for (size_t k = 0; k < (n ? n : 1); k++) {
            struct val part;
            RETURN_IF_ERROR(get_path(t, l->v[i], n ? paths.u.l->v[k] : attribute, &v));
            RETURN_IF_ERROR(fold(t, v, case_matters, &part));
            if (many)
                RETURN_IF_ERROR(v_list_add(t, key.u.l, part));
            else
                key = part;
        }
        RETURN_IF_ERROR(v_list_add(t, keys->u.l, key));
    }
    return 0;
}

FN(f_sort)
{
    struct val keys;
    UNUSED;
    RETURN_IF_ERROR(f_list(t, self, a, raw, out));
    RETURN_IF_ERROR(sort_keys(t, out->u.l, a[2], v_true(a[1]), 1, &keys));
    return list_sort(t, keys.u.l, out->u.l, v_true(a[0]));
}

FN(f_dictsort)
{
    static const struct str by_key = { "key", NULL, 3, 0 };
    struct args none = { 0 };
    const struct str *by = &by_key;
    struct val view, keys;
    UNUSED;

    if (self.type != V_DICT)
        return tpl_fail(t, ERR_USAGE, "dictsort of a %s", v_type(self));
    if (a[1].type != V_ABSENT)
        RETURN_IF_ERROR(arg_str(t, a[1], "dictsort", &by));
    int part = word_index("key value", by->p, by->n) - 1;
    if (part < 0)
        return tpl_fail(t, ERR_USAGE, "dictsort by key or value");
    RETURN_IF_ERROR(fn_run(t, fn_find(tpl_dict_methods, "items", 5), self, &none, &view));
    RETURN_IF_ERROR(f_list(t, view, a, raw, out));
    RETURN_IF_ERROR(sort_keys(t, out->u.l, v_int(part), v_true(a[0]), 0, &keys));
    return list_sort(t, keys.u.l, out->u.l, v_true(a[2]));
}

static int extreme(struct tpl *t, struct val self, const struct val *a, int sign, struct val *out)
{
    struct list *l;
    struct val keys;
    size_t best = 0;
    RETURN_IF_ERROR(v_iterate(t, self, &l));
    RETURN_IF_ERROR(sort_keys(t, l, a[1], v_true(a[0]), 0, &keys));
    for (size_t i = 1; i < l->n; i++) {
        int order;
        RETURN_IF_ERROR(v_order(t, keys.u.l->v[i], keys.u.l->v[best], &order));
        if (order == sign)
            best = i;
    }
    *out = l->n ? l->v[best] : v_undef("no smallest or largest item: the sequence is empty");
    return 0;
}
FN(f_min)
{
    UNUSED;
    return extreme(t, self, a, -1, out);
}
FN(f_max)
{
    UNUSED;
    return extreme(t, self, a, 1, out);
}

FN(f_unique)
{
    struct list *l;
    struct val keys, seen, there;
    UNUSED;

    RETURN_IF_ERROR(v_iterate(t, self, &l));
    RETURN_IF_ERROR(sort_keys(t, l, a[1], v_true(a[0]), 0, &keys));
    RETURN_IF_ERROR(v_dict_new(t, &seen));
    RETURN_IF_ERROR(new_gen(t, out));
    for (size_t i = 0; i < l->n; i++) {
        int found;
        RETURN_IF_ERROR(found = v_dict_get(t, seen.u.d, keys.u.l->v[i], &there));
        if (found)
            continue;
        RETURN_IF_ERROR(v_dict_add(t, seen.u.d, keys.u.l->v[i], v_none()));
        RETURN_IF_ERROR(v_list_add(t, out->u.l, l->v[i]));
    }
    return 0;
}

FN(f_batch)
{
    struct list *l;
    struct val row = { .type = V_ABSENT };
    int64_t n;
    UNUSED;

    RETURN_IF_ERROR(arg_int(t, a[0], 0, "batch", &n));
    RETURN_IF_ERROR(v_iterate(t, self, &l));
    RETURN_IF_ERROR(new_gen(t, out));
    for (size_t i = 0; i < l->n; i++) {
        if (row.type == V_ABSENT || (int64_t)row.u.l->n == n) {
            RETURN_IF_ERROR(v_list_new(t, L_LIST, &row));
            RETURN_IF_ERROR(v_list_add(t, out->u.l, row));
        }
        RETURN_IF_ERROR(v_list_add(t, row.u.l, l->v[i]));
    }

    while (row.type == V_LIST && !arg_absent(a[1]) && (int64_t)row.u.l->n < n)
        RETURN_IF_ERROR(v_list_add(t, row.u.l, a[1]));
    return 0;
}

/* --- map, select --- */

static int map_attribute(struct tpl *t, const struct list *l, const struct args *raw, struct list *out)
{
    struct val path = { .type = V_ABSENT }, by = { .type = V_ABSENT };
    for (size_t i = 0; i < raw->n_kw; i++) {
        const struct str *name = raw->kw[i].name;
        int at = word_index("attribute default", name->p, name->n);
        if (!at)
            return tpl_fail(t, ERR_USAGE, "map has no argument '%.*s'", (int)(name->n < 60 ? name->n : 60),
                            name->p);
        *(at == 1 ? &path : &by) = raw->kw[i].v;
    }

    if (path.type == V_ABSENT)
        return tpl_fail(t, ERR_USAGE, "map needs the name of a filter, or attribute=");
    for (size_t i = 0; i < l->n; i++) {
        struct val v;
        RETURN_IF_ERROR(get_path(t, l->v[i], path, &v));
        RETURN_IF_ERROR(v_list_add(t, out, v.type == V_UNDEF && !arg_absent(by) ? by : v));
    }
    return 0;
}

static struct args tail_of(const struct args *raw, size_t n)
{
    return (struct args){ raw->v + n, raw->n - n, raw->kw, raw->n_kw };
}

FN(f_map)
{
    struct list *l;
    const struct str *name;
    UNUSED;

    RETURN_IF_ERROR(new_gen(t, out));
    if (!v_true(self)) /* none and 0 too: no items */
        return 0;
    RETURN_IF_ERROR(v_iterate(t, self, &l));
    if (!raw->n)
        return map_attribute(t, l, raw, out->u.l);
    RETURN_IF_ERROR(arg_str(t, raw->v[0], "map", &name));
    const struct fn *f = filter_find(name);
    const struct args args = tail_of(raw, 1);
    if (!f)
        return tpl_fail(t, ERR_USAGE, "map: no filter is named '%.*s'", (int)(name->n < 60 ? name->n : 60),
                        name->p);
    RETURN_IF_ERROR(tpl_enter(t));
    for (size_t i = 0; i < l->n; i++) {
        struct val v;
        RETURN_IF_ERROR(fn_run(t, f, l->v[i], &args, &v));
        RETURN_IF_ERROR(v_list_add(t, out->u.l, v));
    }

    t->depth--;
    return 0;
}

/* The items for which a test (without one: their truth) has the result `keep`. with_attribute: the first
 * argument names the attribute to test. */
static int choose(struct tpl *t, struct val self, const struct args *raw, int with_attribute, int keep,
                  struct val *out)
{
    struct list *l;
    const struct fn *test = NULL;
    const struct str *name;
    size_t n = (size_t)with_attribute;

    RETURN_IF_ERROR(new_gen(t, out));
    if (!v_true(self))
        return 0;
    RETURN_IF_ERROR(v_iterate(t, self, &l));
    if (raw->n < n)
        return tpl_fail(t, ERR_USAGE, "the name of an attribute is missing");
    if (raw->n > n) {
        RETURN_IF_ERROR(arg_str(t, raw->v[n], "the name of a test", &name));
        if (!(test = fn_find(tpl_tests, name->p, name->n)))
            return tpl_fail(t, ERR_USAGE, "no test is named '%.*s'", (int)(name->n < 60 ? name->n : 60),
                            name->p);
    }

    const struct args args = tail_of(raw, raw->n > n ? n + 1 : n);
    for (size_t i = 0; i < l->n; i++) {
        struct val v = l->v[i], is;
        if (with_attribute)
            RETURN_IF_ERROR(get_path(t, l->v[i], raw->v[0], &v));
        is = v;
        if (test)
            RETURN_IF_ERROR(fn_run(t, test, v, &args, &is));
        if (v_true(is) == keep)
            RETURN_IF_ERROR(v_list_add(t, out->u.l, l->v[i]));
    }
    return 0;
}
FN(f_select)
{
    UNUSED;
    return choose(t, self, raw, 0, 1, out);
}
FN(f_reject)
{
    UNUSED;
    return choose(t, self, raw, 0, 0, out);
}
FN(f_selectattr)
{
    UNUSED;
    return choose(t, self, raw, 1, 1, out);
}
FN(f_rejectattr)
{
    UNUSED;
    return choose(t, self, raw, 1, 0, out);
}

const struct fn tpl_list_filters[] = {
    { "list", "", 0, f_list },
    { "items", "", 0, f_items },
    { "first", "", 0, f_first },
    { "last", "", 0, f_last },
    { "reverse", "", 0, f_reverse },
    { "join", "d attribute", 0, f_join },
    { "sum", "attribute start", 0, f_sum },
    { "sort", "reverse case_sensitive attribute", 0, f_sort },
    { "dictsort", "case_sensitive by reverse", 0, f_dictsort },
    { "min", "case_sensitive attribute", 0, f_min },
    { "max", "case_sensitive attribute", 0, f_max },
    { "unique", "case_sensitive attribute", 0, f_unique },
    { "batch", "linecount fill_with", 1, f_batch },
    { "map", NULL, 0, f_map },
    { "select", NULL, 0, f_select },
    { "reject", NULL, 0, f_reject },
    { "selectattr", NULL, 0, f_selectattr },
    { "rejectattr", NULL, 0, f_rejectattr },
    { NULL },
};
