/* tpl_ops.c - operators, attributes, subscripts and sorting, by Python's rules and the limits of Jinja's
 * sandbox. */
#include "text/jinja/tpl.h"

#include <math.h>
#include <string.h>

static int mismatch(struct tpl *t, const char *op, struct val a, struct val b)
{
    if (a.type == V_UNDEF || b.type == V_UNDEF)
        return tpl_fail(t, ERR_USAGE, "%s", a.type == V_UNDEF ? a.u.why : b.u.why);
    return tpl_fail(t, ERR_USAGE, "%s does not work on a %s and a %s", op, v_type(a), v_type(b));
}

static int too_large(struct tpl *t) { return tpl_fail(t, ERR_USAGE, "an integer of more than 64 bits"); }

/* --- numbers --- */

static int int_pow(struct tpl *t, int64_t a, int64_t b, struct val *out)
{
    int64_t v = 1;
    if (b < 0) {
        if (!a)
            return tpl_fail(t, ERR_USAGE, "0 to a negative power");
        *out = v_float(pow((double)a, (double)b));
        return 0;
    }
    if (a == 0 || a == 1 || a == -1)
        b = b ? 2 - b % 2 : 0; /* any size of power */
    for (; b > 0; b--)
        if (__builtin_mul_overflow(v, a, &v))
            return too_large(t);
    *out = v_int(v);
    return 0;
}

static int int_arith(struct tpl *t, enum op op, int64_t a, int64_t b, struct val *out)
{
    int64_t v = 0;
    int bad = 0;

    if ((op == OP_FLOOR || op == OP_MOD || op == OP_DIV) && b == 0)
        return tpl_fail(t, ERR_USAGE, "division by zero");
    switch (op) {
    case OP_ADD: bad = __builtin_add_overflow(a, b, &v); break;
    case OP_SUB: bad = __builtin_sub_overflow(a, b, &v); break;
    case OP_MUL: bad = __builtin_mul_overflow(a, b, &v); break;
    case OP_POW: return int_pow(t, a, b, out);
    case OP_DIV: *out = v_float((double)a / (double)b); return 0;
    default:
        if (b == -1) { /* INT64_MIN / -1 traps */
            bad = op == OP_FLOOR && __builtin_sub_overflow((int64_t)0, a, &v);
            break;
        }
        v = a % b;
        if (op == OP_MOD)
            v += v && (v < 0) != (b < 0) ? b : 0;
        else
            v = a / b - (v && (v < 0) != (b < 0));
    }

    if (bad)
        return too_large(t);
    *out = v_int(v);
    return 0;
}

static int float_arith(struct tpl *t, enum op op, double a, double b, struct val *out)
{
    double v = 0, m;
    if ((op == OP_FLOOR || op == OP_MOD || op == OP_DIV) && b == 0)
        return tpl_fail(t, ERR_USAGE, "division by zero");
    switch (op) {
    case OP_ADD: v = a + b; break;
    case OP_SUB: v = a - b; break;
    case OP_MUL: v = a * b; break;
    case OP_DIV: v = a / b; break;
    case OP_POW:
        v = pow(a, b);
        if ((a == 0 && b < 0) || (a < 0 && b != floor(b)) || (isinf(v) && !isinf(a) && !isinf(b)))
            return tpl_fail(t, ERR_USAGE, "a power that is not a real number");
        break;
    default:
        m = fmod(a, b);
        if (m != 0 && (m < 0) != (b < 0))
            m += b;
        v = op == OP_MOD ? (m == 0 ? copysign(0.0, b) : m) : (a - m) / b;
        if (op == OP_FLOOR && v != 0) { /* the quotient is an integer up to rounding */
            double whole = floor(v);
            v = v - whole > 0.5 ? whole + 1 : whole;
        } else if (op == OP_FLOOR) {
            v = copysign(0.0, a / b);
        }
    }

    *out = v_float(v);
    return 0;
}

/* --- strings and lists --- */

static int add_str(struct tpl *t, const struct str *a, const struct str *b, struct val *out)
{
    struct sb s = { .t = t };
    struct val v;
    /* if only one string is safe HTML, the other one is escaped */
    if (a->markup && !b->markup) {
        RETURN_IF_ERROR(str_escape(t, b, &v));
        b = v.u.s;
    } else if (b->markup && !a->markup) {
        RETURN_IF_ERROR(str_escape(t, a, &v));
        a = v.u.s;
    }
    sb_str(&s, a);
    sb_str(&s, b);
    RETURN_IF_ERROR(sb_done(&s, out));
    ((struct str *)(uintptr_t)out->u.s)->markup = a->markup || b->markup;
    return 0;
}

static int add_lists(struct tpl *t, const struct list *a, const struct list *b, struct val *out)
{
    RETURN_IF_ERROR(v_list_new(t, a->kind, out));
    for (size_t i = 0; i < a->n; i++)
        RETURN_IF_ERROR(v_list_add(t, out->u.l, a->v[i]));
    for (size_t i = 0; i < b->n; i++)
        RETURN_IF_ERROR(v_list_add(t, out->u.l, b->v[i]));
    return 0;
}

static int repeat(struct tpl *t, struct val v, int64_t times, struct val *out)
{
    if (v.type == V_STR) {
        struct sb b = { .t = t };
        for (int64_t i = 0; i < times && v.u.s->n && !t->failed; i++) {
            sb_str(&b, v.u.s);
            RETURN_IF_ERROR(tpl_steps(t, 1));
        }
        return sb_done(&b, out);
    }
    RETURN_IF_ERROR(v_list_new(t, v.u.l->kind, out));
    for (int64_t i = 0; i < times && v.u.l->n; i++)
        for (size_t k = 0; k < v.u.l->n; k++)
            RETURN_IF_ERROR(v_list_add(t, out->u.l, v.u.l->v[k]));
    return 0;
}

static int repeats(struct val v) { return v.type == V_STR || (v.type == V_LIST && v.u.l->kind <= L_TUPLE); }

int op_arith(struct tpl *t, enum op op, struct val a, struct val b, struct val *out)
{
    static const char *const names[] = { "", "+", "-", "*", "/", "//", "%", "**" };
    if (v_is_int(a) && v_is_int(b))
        return int_arith(t, op, a.u.i, b.u.i, out);
    if (v_is_number(a) && v_is_number(b))
        return float_arith(t, op, v_number(a), v_number(b), out);
    if (op == OP_ADD && a.type == V_STR && b.type == V_STR)
        return add_str(t, a.u.s, b.u.s, out);
    if (op == OP_ADD && a.type == V_LIST && b.type == V_LIST && a.u.l->kind == b.u.l->kind &&
        a.u.l->kind <= L_TUPLE)
        return add_lists(t, a.u.l, b.u.l, out);
    if (op == OP_MUL && repeats(a) && v_is_int(b))
        return repeat(t, a, b.u.i, out);
    if (op == OP_MUL && repeats(b) && v_is_int(a))
        return repeat(t, b, a.u.i, out);
    if (op == OP_MOD && a.type == V_STR)
        return str_percent(t, a.u.s, b, out);
    return mismatch(t, names[op], a, b);
}

int op_sign(struct tpl *t, int minus, struct val a, struct val *out)
{
    if (a.type == V_FLOAT)
        *out = v_float(minus ? -a.u.f : a.u.f);
    else if (v_is_int(a) && !(minus && a.u.i == INT64_MIN))
        *out = v_int(minus ? -a.u.i : a.u.i);
    else if (a.type == V_UNDEF)
        return tpl_fail(t, ERR_USAGE, "%s", a.u.why);
    else
        return v_is_int(a) ? too_large(t) : tpl_fail(t, ERR_USAGE, "a sign in front of a %s", v_type(a));
    return 0;
}

int op_compare(struct tpl *t, enum op op, struct val a, struct val b, int *out)
{
    int order;
    if (op == OP_EQ || op == OP_NE) {
        RETURN_IF_ERROR(order = v_equal(t, a, b));
        *out = order == (op == OP_EQ);
        return 0;
    }

    if (op == OP_IN || op == OP_NOT_IN) {
        RETURN_IF_ERROR(order = v_contains(t, b, a));
        *out = order == (op == OP_IN);
        return 0;
    }

    RETURN_IF_ERROR(v_order(t, a, b, &order));
    *out = order == 2    ? 0
           : op == OP_LT ? order < 0
           : op == OP_LE ? order <= 0
           : op == OP_GT ? order > 0
                         : order >= 0;
    return 0;
}

/* --- attributes and subscripts --- */

static int bind(struct tpl *t, struct val self, const struct fn *f, struct val *out)
{
    struct method *m = tpl_alloc(t, sizeof *m);
    if (!m)
        return t->failed;
    *m = (struct method){ self, f };
    *out = (struct val){ .type = V_METHOD, .u.m = m };
    return 0;
}

static int loop_attr(const struct loop *l, const struct str *name, struct val *out)
{
    int64_t i = (int64_t)l->at, n = (int64_t)l->items->n;
    const struct {
        const char *name;
        struct val v;
    } fields[] = {
        { "index", v_int(i + 1) },
        { "index0", v_int(i) },
        { "first", v_bool(i == 0) },
        { "last", v_bool(i + 1 == n) },
        { "length", v_int(n) },
        { "revindex", v_int(n - i) },
        { "revindex0", v_int(n - i - 1) },
        { "depth", v_int(1) },
        { "depth0", v_int(0) },
        { "previtem", i > 0 ? l->items->v[i - 1] : v_undef("there is no previous item") },
        { "nextitem", i + 1 < n ? l->items->v[i + 1] : v_undef("there is no next item") },
    };

    for (size_t k = 0; k < sizeof fields / sizeof *fields; k++)
        if (strlen(fields[k].name) == name->n && !memcmp(fields[k].name, name->p, name->n)) {
            *out = fields[k].v;
            return 1;
        }
    return 0;
}

/* The methods of v's type, or NULL; *mutators: the names of those that templates may not call. */
static const struct fn *methods_of(struct val v, const char **mutators)
{
    switch (v.type) {
    case V_STR: return tpl_str_methods;
    case V_LOOP: return tpl_loop_methods;
    case V_DICT: *mutators = tpl_dict_mutators; return tpl_dict_methods;
    case V_LIST:
        if (v.u.l->kind == L_LIST)
            *mutators = tpl_list_mutators;
        return v.u.l->kind <= L_TUPLE ? tpl_list_methods : NULL;
    default: return NULL;
    }
}

/* Python's getattr. Returns 1: found, where an attribute that the sandbox forbids is found as undefined;
 * 0: not found. */
static int attribute(struct tpl *t, struct val v, const struct str *name, struct val *out)
{
    const char *mutators = "";
    const struct fn *f = NULL, *table = methods_of(v, &mutators);
    const struct val *found;

    if (name->n > 4 && !memcmp(name->p, "__", 2) && !memcmp(name->p + name->n - 2, "__", 2)) {
        RETURN_IF_ERROR(v_undef_of(t, out, "the attribute %.*s is not for templates",
                                   (int)(name->n < 40 ? name->n : 40), name->p));
        return 1;
    }

    if (v.type == V_LOOP && loop_attr(v.u.loop, name, out))
        return 1;
    if (v.type == V_NAMESPACE && (found = v_dict_text(v.u.d, name->p, name->n))) {
        *out = *found;
        return 1;
    }

    if (table && (f = fn_find(table, name->p, name->n))) {
        RETURN_IF_ERROR(bind(t, v, f, out));
        return 1;
    }

    if (word_index(mutators, name->p, name->n)) {
        RETURN_IF_ERROR(v_undef_of(t, out, "%s.%.*s would change a value: templates may not, make a new one",
                                   v_type(v), (int)name->n, name->p));
        return 1;
    }

    if (v.type == V_STR && word_index(tpl_str_unsupported, name->p, name->n))
        return tpl_fail(t, ERR_USAGE, "str.%.*s is not supported", (int)name->n, name->p);
    return 0;
}

static int missing(struct tpl *t, struct val v, const struct str *name, struct val *out)
{
    int n = (int)(name->n < 100 ? name->n : 100);
    if (v.type == V_NONE)
        return v_undef_of(t, out, "none has no attribute '%.*s'", n, name->p);
    return v_undef_of(t, out, "a %s has no attribute '%.*s'", v_type(v), n, name->p);
}

int get_attr(struct tpl *t, struct val v, const struct str *name, struct val *out)
{
    const struct val *found;
    int rc;
    if (v.type == V_UNDEF)
        return tpl_fail(t, ERR_USAGE, "%s", v.u.why);
    RETURN_IF_ERROR(rc = attribute(t, v, name, out));
    if (rc)
        return 0;
    if (v.type == V_DICT && (found = v_dict_text(v.u.d, name->p, name->n))) {
        *out = *found;
        return 0;
    }
    return missing(t, v, name, out);
}

static int at_index(struct tpl *t, struct val v, int64_t i, struct val *out)
{
    if (v.type == V_LIST) {
        int64_t n = (int64_t)v.u.l->n;
        i += i < 0 ? n : 0;
        if (i < 0 || i >= n)
            return v_undef_of(t, out, "the index %lld is outside of a %s of %lld", (long long)i, v_type(v),
                              (long long)n);
        *out = v.u.l->v[i];
        return 0;
    }

    RETURN_IF_ERROR(tpl_steps(t, v.u.s->n / 16));
    int64_t n = (int64_t)str_chars(v.u.s);
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n)
        return v_undef_of(t, out, "the index %lld is outside of a string of %lld characters", (long long)i,
                          (long long)n);
    size_t from = str_offset(v.u.s, (size_t)i);
    struct str rest = { v.u.s->p + from, NULL, v.u.s->n - from, 0 };
    return v_part(t, v.u.s, from, from + str_offset(&rest, 1), out);
}

int get_item(struct tpl *t, struct val v, struct val key, struct val *out)
{
    int rc = 0;
    if (v.type == V_UNDEF)
        return tpl_fail(t, ERR_USAGE, "%s", v.u.why);
    if (v.type == V_DICT && !(key.type == V_LIST && key.u.l->kind == L_LIST) && key.type != V_DICT) {
        RETURN_IF_ERROR(rc = v_dict_get(t, v.u.d, key, out));
        if (rc)
            return 0;
    }
    if (v_is_int(key) && (v.type == V_STR || (v.type == V_LIST && v.u.l->kind < L_VIEW)))
        return at_index(t, v, key.u.i, out);
    if (key.type != V_STR)
        return v_undef_of(t, out, "a %s has no item of that key (a %s)", v_type(v), v_type(key));
    RETURN_IF_ERROR(rc = attribute(t, v, key.u.s, out));
    return rc ? 0 : missing(t, v, key.u.s, out);
}

int get_path(struct tpl *t, struct val v, struct val path, struct val *out)
{
    *out = v;
    if (path.type == V_ABSENT || path.type == V_NONE)
        return 0;
    if (path.type != V_STR)
        return get_item(t, v, path, out);
    const struct str *s = path.u.s;
    for (size_t from = 0, i = 0; i <= s->n; i++) {
        struct val key;
        if (i < s->n && s->p[i] != '.')
            continue;
        int64_t index = 0;
        size_t digits = from;
        while (digits < i && s->p[digits] >= '0' && s->p[digits] <= '9' && index < 1000000000)
            index = index * 10 + (s->p[digits++] - '0');
        RETURN_IF_ERROR(tpl_steps(t, 1));
        RETURN_IF_ERROR(v_part(t, s, from, i, &key));
        if (digits == i && i > from)
            key = v_int(index);
        struct val next;
        RETURN_IF_ERROR(get_item(t, *out, key, &next));
        *out = next;
        from = i + 1;
    }
    return 0;
}

/* The bounds of a slice, clipped as by Python. */
static int slice_bounds(struct tpl *t, const struct val part[3], int64_t n, int64_t *start, int64_t *stop,
                        int64_t *step)
{
    for (int i = 0; i < 3; i++)
        if (part[i].type != V_NONE && !v_is_int(part[i]))
            return tpl_fail(t, ERR_USAGE, "a slice with a %s: bounds are integers", v_type(part[i]));
    *step = part[2].type == V_NONE ? 1 : part[2].u.i;
    if (!*step)
        return tpl_fail(t, ERR_USAGE, "a slice of step 0");
    int64_t low = *step > 0 ? 0 : -1, high = *step > 0 ? n : n - 1;
    *start = *step > 0 ? low : high;
    *stop = *step > 0 ? high : low;
    for (int i = 0; i < 2; i++) {
        int64_t *to = i ? stop : start, v = part[i].u.i;
        if (part[i].type == V_NONE)
            continue;
        v = v < 0 ? (v < -n ? low : v + n) : v;
        *to = v < low ? low : v > high ? high : v;
    }
    return 0;
}

int get_slice(struct tpl *t, struct val v, const struct val part[3], struct val *out)
{
    int64_t start, stop, step;
    if (v.type == V_UNDEF)
        return tpl_fail(t, ERR_USAGE, "%s", v.u.why);
    if (v.type == V_STR && (part[2].type == V_NONE || (v_is_int(part[2]) && part[2].u.i == 1))) {
        RETURN_IF_ERROR(tpl_steps(t, v.u.s->n / 16));
        RETURN_IF_ERROR(slice_bounds(t, part, (int64_t)str_chars(v.u.s), &start, &stop, &step));
        size_t from = str_offset(v.u.s, (size_t)start),
               to = stop > start ? str_offset(v.u.s, (size_t)stop) : from;
        return v_part(t, v.u.s, from, to, out);
    }

    if (v.type != V_STR && !(v.type == V_LIST && v.u.l->kind < L_VIEW))
        return v_undef_of(t, out, "a %s cannot be sliced", v_type(v));
    struct list *l;
    struct val all;
    struct sb b = { .t = t };
    RETURN_IF_ERROR(v_iterate(t, v, &l));
    RETURN_IF_ERROR(slice_bounds(t, part, (int64_t)l->n, &start, &stop, &step));
    RETURN_IF_ERROR(v_list_new(t, v.type == V_STR ? L_LIST : v.u.l->kind, &all));
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (v.type == V_STR)
            sb_str(&b, l->v[i].u.s);
        else
            RETURN_IF_ERROR(v_list_add(t, all.u.l, l->v[i]));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }

    *out = all;
    if (v.type != V_STR && v.u.l->kind == L_RANGE) { /* a slice of a range is a range */
        const int64_t *r = v.u.l->range;
        memcpy(all.u.l->range, (int64_t[3]){ r[0] + start * r[2], r[0] + stop * r[2], r[2] * step },
               sizeof all.u.l->range);
    }
    return v.type == V_STR ? sb_done(&b, out) : 0;
}

/* --- sorting --- */

/* Merges sorted runs of `width` indices of `from` in pairs into `to`. Stable. */
static int merge_pass(struct tpl *t, const struct list *keys, const size_t *from, size_t *to, size_t width,
                      int reverse)
{
    for (size_t low = 0; low < keys->n; low += 2 * width) {
        size_t mid = low + width < keys->n ? low + width : keys->n,
               end = mid + width < keys->n ? mid + width : keys->n;
        size_t a = low, b = mid;
        for (size_t i = low; i < end; i++) {
            int order = -1;
            if (a < mid && b < end)
                RETURN_IF_ERROR(v_order(t, keys->v[from[a]], keys->v[from[b]], &order));
            int take_a = b == end || (a < mid && (reverse ? order >= 0 : order <= 0));
            to[i] = take_a ? from[a++] : from[b++];
        }
        RETURN_IF_ERROR(tpl_steps(t, end - low));
    }
    return 0;
}

int list_sort(struct tpl *t, struct list *keys, struct list *l, int reverse)
{
    size_t n = l->n, *at = tpl_alloc(t, n * sizeof *at), *other = tpl_alloc(t, n * sizeof *at);
    struct val *sorted = tpl_alloc(t, n * sizeof *sorted);

    if (t->failed)
        return t->failed;
    for (size_t i = 0; i < n; i++)
        at[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        size_t *swap = at;
        RETURN_IF_ERROR(merge_pass(t, keys, at, other, width, reverse));
        at = other;
        other = swap;
    }

    for (size_t i = 0; i < n; i++)
        sorted[i] = l->v[at[i]];
    l->v = sorted;
    return 0;
}

int list_reverse(struct tpl *t, const struct list *l, enum list_kind kind, struct val *out)
{
    RETURN_IF_ERROR(v_list_new(t, kind, out));
    for (size_t i = l->n; i > 0; i--)
        RETURN_IF_ERROR(v_list_add(t, out->u.l, l->v[i - 1]));
    return 0;
}
