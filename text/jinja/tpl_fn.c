/* tpl_fn.c - tables of functions, tests, and methods of dicts, lists and loops. Filters: tpl_filter.c;
 * methods of strings: tpl_method.c. */
#include "text/jinja/tpl.h"

#include <string.h>
#include <time.h>
#include "text/tok.h"

/* --- calling --- */

const struct fn *fn_find(const struct fn *table, const char *name, size_t n)
{
    for (const struct fn *f = table; f->name; f++)
        if (strlen(f->name) == n && !memcmp(f->name, name, n))
            return f;
    return NULL;
}

int word_index(const char *words, const char *name, size_t n)
{
    int at = 1;
    for (const char *p = words; *p; p += *p == ' ', at++) {
        size_t len = strcspn(p, " ");
        if (len == n && !memcmp(p, name, n))
            return at;
        p += len;
    }
    return 0;
}

int fn_run(struct tpl *t, const struct fn *f, struct val self, const struct args *args, struct val *out)
{
    struct val a[FN_ARGS] = { { .type = V_ABSENT } };
    size_t n_params = 0;

    RETURN_IF_ERROR(tpl_steps(t, 1));
    if (!f->params)
        return f->call(t, self, a, args, out);
    for (const char *p = f->params; *p; p += strcspn(p, " "), p += *p == ' ')
        n_params++;
    if (args->n > n_params)
        return tpl_fail(t, ERR_USAGE, "%s takes %zu arguments at most, not %zu", f->name, n_params, args->n);
    for (size_t i = 0; i < args->n; i++)
        a[i] = args->v[i];
    for (size_t i = 0; i < args->n_kw; i++) {
        int at = word_index(f->params, args->kw[i].name->p, args->kw[i].name->n);
        if (!at || a[at - 1].type != V_ABSENT)
            return tpl_fail(t, ERR_USAGE, "%s has no argument '%.*s', or has it twice", f->name,
                            (int)(args->kw[i].name->n < 60 ? args->kw[i].name->n : 60), args->kw[i].name->p);
        a[at - 1] = args->kw[i].v;
    }

    for (int i = 0; i < f->n_least; i++)
        if (a[i].type == V_ABSENT)
            return tpl_fail(t, ERR_USAGE, "%s needs %d argument%s", f->name, f->n_least,
                            f->n_least > 1 ? "s" : "");
    return f->call(t, self, a, args, out);
}

int arg_str(struct tpl *t, struct val v, const char *what, const struct str **out)
{
    if (v.type != V_STR)
        return tpl_fail(t, ERR_USAGE, "%s needs a string, not a %s", what, v_type(v));
    *out = v.u.s;
    return 0;
}

int arg_int(struct tpl *t, struct val v, int64_t absent, const char *what, int64_t *out)
{
    if (!v_is_int(v) && !arg_absent(v))
        return tpl_fail(t, ERR_USAGE, "%s needs an integer, not a %s", what, v_type(v));
    *out = arg_absent(v) ? absent : v.u.i;
    return 0;
}

/* --- functions --- */

FN(f_raise)
{
    UNUSED;
    const struct str *s;
    RETURN_IF_ERROR(v_to_str(t, a[0], &s));
    return tpl_fail(t, ERR_USAGE, "%.*s", (int)(s->n < 700 ? s->n : 700), s->p);
}

FN(f_strftime)
{
    UNUSED;
    char text[256];
    const struct str *s = NULL;
    struct sb b = { .t = t };
    time_t now = t->now ? (time_t)t->now : time(NULL);
    struct tm tm;

    RETURN_IF_ERROR(arg_str(t, a[0], "strftime_now", &s));
    localtime_r(&now, &tm);
    for (size_t i = 0; i < s->n; i++) {
        char form[4] = { '%', 0, 0, 0 };
        if (s->p[i] != '%' || i + 1 == s->n) {
            sb_part(&b, s, i, i + 1);
            continue;
        }
        form[1] = s->p[++i];
        if (strchr("EO-_0^#", form[1]) && form[1] && i + 1 < s->n) /* glibc's modifiers */
            form[2] = s->p[++i];
        if (form[1] == 'z' || form[1] == 'Z') /* Python's datetime.now() has no time zone */
            continue;
        if (form[1] == 'f') {
            sb_text(&b, "000000");
            continue;
        }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        sb_add(&b, text, strftime(text, sizeof text, form, &tm), NULL);
#pragma GCC diagnostic pop
    }
    return sb_done(&b, out);
}

FN(f_range)
{
    UNUSED;
    int64_t from = 0, to = 0, step = 1;
    struct list *l;

    RETURN_IF_ERROR(arg_int(t, a[0], 0, "range", &to));
    if (a[1].type != V_ABSENT) {
        from = to;
        RETURN_IF_ERROR(arg_int(t, a[1], 0, "range", &to));
    }

    RETURN_IF_ERROR(arg_int(t, a[2], 1, "range", &step));
    if (!step)
        return tpl_fail(t, ERR_USAGE, "range with step 0");
    RETURN_IF_ERROR(v_list_new(t, L_RANGE, out));
    l = out->u.l;
    memcpy(l->range, (int64_t[3]){ from, to, step }, sizeof l->range);
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        if (l->n == TPL_RANGE)
            return tpl_fail(t, ERR_USAGE, "a range of more than %d numbers", TPL_RANGE);
        RETURN_IF_ERROR(v_list_add(t, l, v_int(i)));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return 0;
}

static int put_keywords(struct tpl *t, const struct args *raw, struct dict *d)
{
    for (size_t i = 0; i < raw->n_kw; i++) {
        struct val k = { .type = V_STR, .u.s = raw->kw[i].name };
        RETURN_IF_ERROR(v_dict_put(t, d, k, raw->kw[i].v));
    }
    return 0;
}

/* dict(a=1), dict(other), dict(pairs) */
FN(f_dict)
{
    UNUSED;
    struct list *l;

    RETURN_IF_ERROR(v_dict_new(t, out));
    struct dict *d = out->u.d;
    if (raw->n > 1)
        return tpl_fail(t, ERR_USAGE, "dict takes one argument, and named ones");
    if (raw->n && raw->v[0].type == V_DICT) {
        for (size_t i = 0; i < raw->v[0].u.d->n; i++)
            RETURN_IF_ERROR(v_dict_add(t, d, raw->v[0].u.d->v[i].k, raw->v[0].u.d->v[i].v));
    } else if (raw->n) {
        RETURN_IF_ERROR(v_iterate(t, raw->v[0], &l));
        for (size_t i = 0; i < l->n; i++) {
            struct list *pair;
            RETURN_IF_ERROR(v_iterate(t, l->v[i], &pair));
            if (pair->n != 2)
                return tpl_fail(t, ERR_USAGE, "dict needs pairs, item %zu has %zu", i, pair->n);
            RETURN_IF_ERROR(v_dict_put(t, d, pair->v[0], pair->v[1]));
        }
    }
    return put_keywords(t, raw, d);
}

FN(f_namespace)
{
    RETURN_IF_ERROR(f_dict(t, self, a, raw, out));
    out->type = V_NAMESPACE;
    return 0;
}

const struct fn tpl_functions[] = {
    { "raise_exception", "message", 1, f_raise }, { "strftime_now", "format", 1, f_strftime },
    { "range", "start stop step", 1, f_range },   { "dict", NULL, 0, f_dict },
    { "namespace", NULL, 0, f_namespace },        { NULL },
};

/* --- tests --- */

#define TEST_FN(name, condition) \
    FN(name) \
    { \
        UNUSED; \
        *out = v_bool(condition); \
        return 0; \
    }
TEST_FN(is_defined, self.type != V_UNDEF)
TEST_FN(is_undefined, self.type == V_UNDEF)
TEST_FN(is_none, self.type == V_NONE)
TEST_FN(is_boolean, self.type == V_BOOL)
TEST_FN(is_true, self.type == V_BOOL && self.u.i)
TEST_FN(is_false, self.type == V_BOOL && !self.u.i)
TEST_FN(is_string, self.type == V_STR)
TEST_FN(is_integer, self.type == V_INT)
TEST_FN(is_float, self.type == V_FLOAT)
TEST_FN(is_number, v_is_number(self))
TEST_FN(is_mapping, self.type == V_DICT)
TEST_FN(is_iterable, self.type == V_UNDEF || self.type == V_STR || self.type == V_LIST ||
                         self.type == V_DICT || self.type == V_LOOP)
TEST_FN(is_sequence, self.type == V_UNDEF || self.type == V_STR ||
                         (self.type == V_LIST && self.u.l->kind < L_VIEW) || self.type == V_DICT)
TEST_FN(is_callable,
        self.type == V_FUNC || self.type == V_METHOD || self.type == V_MACRO || self.type == V_UNDEF)
TEST_FN(is_escaped, self.type == V_STR && self.u.s->markup)
TEST_FN(is_filter, self.type == V_STR && filter_find(self.u.s) != NULL)
TEST_FN(is_test, self.type == V_STR && fn_find(tpl_tests, self.u.s->p, self.u.s->n) != NULL)

FN(is_same)
{
    UNUSED;
    *out = v_bool(self.type == a[0].type &&
                  (self.type == V_NONE || self.type == V_UNDEF || self.type == V_BOOL || self.type == V_INT
                       ? v_equal(t, self, a[0])
                       : self.u.s == a[0].u.s));
    return 0;
}

/* odd, even and divisibleby compare the remainder. */
static int remainder_of(struct tpl *t, struct val v, struct val by, struct val *out)
{
    if (!v_is_number(v) || !v_is_number(by))
        return tpl_fail(t, ERR_USAGE, "a remainder of a %s", v_type(v));
    return op_arith(t, OP_MOD, v, by, out);
}
FN(is_odd)
{
    UNUSED;
    RETURN_IF_ERROR(remainder_of(t, self, v_int(2), out));
    *out = v_bool(v_number(*out) == 1);
    return 0;
}
FN(is_even)
{
    UNUSED;
    RETURN_IF_ERROR(remainder_of(t, self, v_int(2), out));
    *out = v_bool(v_number(*out) == 0);
    return 0;
}
FN(is_divisible)
{
    UNUSED;
    RETURN_IF_ERROR(remainder_of(t, self, a[0], out));
    *out = v_bool(v_number(*out) == 0);
    return 0;
}

/* str.isupper, str.islower: at least one letter has this case, none has the other. */
static int has_case(struct tpl *t, struct val v, int how, struct val *out)
{
    struct val all, other;
    const struct str *s;
    RETURN_IF_ERROR(v_to_str(t, v, &s));
    RETURN_IF_ERROR(str_case(t, s, how, &all));
    RETURN_IF_ERROR(str_case(t, s, how == 'u' ? 'l' : 'u', &other));
    *out = v_bool(str_same(all.u.s, s) && !str_same(all.u.s, other.u.s));
    return 0;
}
FN(is_upper)
{
    UNUSED;
    return has_case(t, self, 'u', out);
}
FN(is_lower)
{
    UNUSED;
    return has_case(t, self, 'l', out);
}

static int compare(struct tpl *t, enum op op, struct val x, struct val y, struct val *out)
{
    int is = 0;
    RETURN_IF_ERROR(op_compare(t, op, x, y, &is));
    *out = v_bool(is);
    return 0;
}
FN(is_eq)
{
    UNUSED;
    return compare(t, OP_EQ, self, a[0], out);
}
FN(is_ne)
{
    UNUSED;
    return compare(t, OP_NE, self, a[0], out);
}
FN(is_lt)
{
    UNUSED;
    return compare(t, OP_LT, self, a[0], out);
}
FN(is_le)
{
    UNUSED;
    return compare(t, OP_LE, self, a[0], out);
}
FN(is_gt)
{
    UNUSED;
    return compare(t, OP_GT, self, a[0], out);
}
FN(is_ge)
{
    UNUSED;
    return compare(t, OP_GE, self, a[0], out);
}
FN(is_in)
{
    UNUSED;
    return compare(t, OP_IN, self, a[0], out);
}

const struct fn tpl_tests[] = {
    { "defined", "", 0, is_defined },
    { "undefined", "", 0, is_undefined },
    { "none", "", 0, is_none },
    { "boolean", "", 0, is_boolean },
    { "true", "", 0, is_true },
    { "false", "", 0, is_false },
    { "string", "", 0, is_string },
    { "integer", "", 0, is_integer },
    { "float", "", 0, is_float },
    { "number", "", 0, is_number },
    { "mapping", "", 0, is_mapping },
    { "iterable", "", 0, is_iterable },
    { "sequence", "", 0, is_sequence },
    { "callable", "", 0, is_callable },
    { "escaped", "", 0, is_escaped },
    { "filter", "", 0, is_filter },
    { "test", "", 0, is_test },
    { "sameas", "other", 1, is_same },
    { "odd", "", 0, is_odd },
    { "even", "", 0, is_even },
    { "divisibleby", "num", 1, is_divisible },
    { "upper", "", 0, is_upper },
    { "lower", "", 0, is_lower },
    { "in", "seq", 1, is_in },
    { "equalto", "other", 1, is_eq },
    { "eq", "other", 1, is_eq },
    { "==", "other", 1, is_eq },
    { "ne", "other", 1, is_ne },
    { "!=", "other", 1, is_ne },
    { "lt", "other", 1, is_lt },
    { "lessthan", "other", 1, is_lt },
    { "<", "other", 1, is_lt },
    { "le", "other", 1, is_le },
    { "<=", "other", 1, is_le },
    { "gt", "other", 1, is_gt },
    { "greaterthan", "other", 1, is_gt },
    { ">", "other", 1, is_gt },
    { "ge", "other", 1, is_ge },
    { ">=", "other", 1, is_ge },
    { NULL },
};

/* --- methods of dicts, lists and loops --- */

FN(m_get)
{
    int found;
    UNUSED;
    RETURN_IF_ERROR(found = v_dict_get(t, self.u.d, a[0], out));
    if (!found)
        *out = a[1].type == V_ABSENT ? v_none() : a[1];
    return 0;
}

static int view(struct tpl *t, const struct dict *d, int part, struct val *out)
{
    RETURN_IF_ERROR(v_list_new(t, L_VIEW, out));
    out->u.l->at = (size_t)part;
    for (size_t i = 0; i < d->n; i++) {
        struct val pair;
        if (part < 2) {
            RETURN_IF_ERROR(v_list_add(t, out->u.l, part ? d->v[i].v : d->v[i].k));
            continue;
        }
        RETURN_IF_ERROR(v_list_new(t, L_TUPLE, &pair));
        RETURN_IF_ERROR(v_list_add(t, pair.u.l, d->v[i].k));
        RETURN_IF_ERROR(v_list_add(t, pair.u.l, d->v[i].v));
        RETURN_IF_ERROR(v_list_add(t, out->u.l, pair));
    }
    return 0;
}
FN(m_keys)
{
    UNUSED;
    return view(t, self.u.d, 0, out);
}
FN(m_values)
{
    UNUSED;
    return view(t, self.u.d, 1, out);
}
FN(m_items)
{
    UNUSED;
    return view(t, self.u.d, 2, out);
}
FN(m_copy)
{
    UNUSED;
    *out = self;
    return 0;
}

const char tpl_dict_mutators[] = "clear pop popitem setdefault update fromkeys";
const struct fn tpl_dict_methods[] = {
    { "get", "key default", 1, m_get }, { "keys", "", 0, m_keys }, { "values", "", 0, m_values },
    { "items", "", 0, m_items },        { "copy", "", 0, m_copy }, { NULL },
};

FN(m_list_count)
{
    int64_t n = 0;
    UNUSED;
    for (size_t i = 0; i < self.u.l->n; i++) {
        int same;
        RETURN_IF_ERROR(same = v_equal(t, self.u.l->v[i], a[0]));
        n += same;
    }
    *out = v_int(n);
    return tpl_steps(t, self.u.l->n);
}

FN(m_list_index)
{
    UNUSED;
    for (size_t i = 0; i < self.u.l->n; i++) {
        int same;
        RETURN_IF_ERROR(same = v_equal(t, self.u.l->v[i], a[0]));
        if (!same)
            continue;
        *out = v_int((int64_t)i);
        return tpl_steps(t, i);
    }
    return tpl_fail(t, ERR_USAGE, "index: the value is not in the list");
}

const char tpl_list_mutators[] = "append clear extend insert pop remove reverse sort";
const struct fn tpl_list_methods[] = { { "count", "value", 1, m_list_count },
                                       { "index", "value", 1, m_list_index },
                                       { "copy", "", 0, m_copy },
                                       { NULL } };

FN(m_cycle)
{
    UNUSED;
    if (!raw->n)
        return tpl_fail(t, ERR_USAGE, "loop.cycle needs values");
    *out = raw->v[self.u.loop->at % raw->n];
    return 0;
}

FN(m_changed)
{
    struct val now;
    int same = 0;
    UNUSED;
    RETURN_IF_ERROR(v_list_new(t, L_TUPLE, &now));
    for (size_t i = 0; i < raw->n; i++)
        RETURN_IF_ERROR(v_list_add(t, now.u.l, raw->v[i]));
    if (self.u.loop->changed.type == V_LIST)
        RETURN_IF_ERROR(same = v_equal(t, self.u.loop->changed, now));
    self.u.loop->changed = now;
    *out = v_bool(!same);
    return 0;
}

const struct fn tpl_loop_methods[] = { { "cycle", NULL, 0, m_cycle },
                                       { "changed", NULL, 0, m_changed },
                                       { NULL } };
