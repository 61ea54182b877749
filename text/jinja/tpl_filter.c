/* tpl_filter.c - filters of text, numbers and JSON. Filters of lists: tpl_filter_list.c. */
#include "text/jinja/tpl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "text/tok.h"

/* Converts the value to a string and calls a method of str on it. */
static int by_method(struct tpl *t, struct val self, const char *method, const struct val *a, size_t n,
                     struct val *out)
{
    const struct str *s;
    struct args args = { .v = (struct val *)(uintptr_t)a, .n = n };
    RETURN_IF_ERROR(v_to_str(t, self, &s));
    struct val text = { .type = V_STR, .u.s = s };
    return fn_run(t, fn_find(tpl_str_methods, method, strlen(method)), text, &args, out);
}
FN(f_upper)
{
    UNUSED;
    return by_method(t, self, "upper", a, 0, out);
}
FN(f_lower)
{
    UNUSED;
    return by_method(t, self, "lower", a, 0, out);
}
FN(f_capitalize)
{
    UNUSED;
    return by_method(t, self, "capitalize", a, 0, out);
}
FN(f_trim)
{
    UNUSED;
    return by_method(t, self, "strip", a, 1, out);
}

FN(f_title)
{
    const struct str *s;
    UNUSED;
    RETURN_IF_ERROR(v_to_str(t, self, &s));
    return str_case(t, s, 'f', out);
}

FN(f_center)
{
    struct val width = a[0].type == V_ABSENT ? v_int(80) : a[0];
    UNUSED;
    return by_method(t, self, "center", &width, 1, out);
}

FN(f_string)
{
    const struct str *s;
    UNUSED;
    RETURN_IF_ERROR(v_to_str(t, self, &s));
    *out = (struct val){ .type = V_STR, .u.s = s };
    return 0;
}

FN(f_safe)
{
    const struct str *s;
    UNUSED;
    RETURN_IF_ERROR(v_to_str(t, self, &s));
    RETURN_IF_ERROR(v_part(t, s, 0, s->n, out));
    ((struct str *)(uintptr_t)out->u.s)->markup = 1;
    return 0;
}

FN(f_escape)
{
    const struct str *s;
    UNUSED;
    RETURN_IF_ERROR(v_to_str(t, self, &s));
    *out = self;
    return self.type == V_STR && s->markup ? 0 : str_escape(t, s, out);
}

FN(f_forceescape)
{
    const struct str *s;
    UNUSED;
    RETURN_IF_ERROR(v_to_str(t, self, &s));
    return str_escape(t, s, out);
}

FN(f_replace)
{
    const struct str *s, *old, *by;
    int64_t count;
    UNUSED;
    RETURN_IF_ERROR(v_to_str(t, self, &s));
    RETURN_IF_ERROR(v_to_str(t, a[0], &old));
    RETURN_IF_ERROR(v_to_str(t, a[1], &by));
    RETURN_IF_ERROR(arg_int(t, a[2], -1, "replace", &count));
    return str_replace(t, s, old, by, count, out);
}

FN(f_default)
{
    UNUSED;
    static const struct str nothing = { "", NULL, 0, 0 };
    struct val by = a[0].type == V_ABSENT ? (struct val){ .type = V_STR, .u.s = &nothing } : a[0];
    *out = self.type == V_UNDEF || (v_true(a[1]) && !v_true(self)) ? by : self;
    return 0;
}

FN(f_format)
{
    const struct str *s;
    struct val arg;
    UNUSED;

    RETURN_IF_ERROR(v_to_str(t, self, &s));
    if (raw->n && raw->n_kw)
        return tpl_fail(t, ERR_USAGE, "format: arguments with and without names at the same time");
    if (!raw->n_kw) {
        RETURN_IF_ERROR(v_list_new(t, L_TUPLE, &arg));
        for (size_t i = 0; i < raw->n; i++)
            RETURN_IF_ERROR(v_list_add(t, arg.u.l, raw->v[i]));
        return str_percent(t, s, arg, out);
    }

    RETURN_IF_ERROR(v_dict_new(t, &arg));
    for (size_t i = 0; i < raw->n_kw; i++)
        RETURN_IF_ERROR(
            v_dict_put(t, arg.u.d, (struct val){ .type = V_STR, .u.s = raw->kw[i].name }, raw->kw[i].v));
    return str_percent(t, s, arg, out);
}

FN(f_tojson)
{
    struct sb b = { .t = t };
    UNUSED;
    RETURN_IF_ERROR(v_to_json(&b, self, a));
    return sb_done(&b, out);
}

FN(f_length)
{
    size_t n;
    UNUSED;
    RETURN_IF_ERROR(v_length(t, self, &n));
    *out = v_int((int64_t)n);
    return 0;
}

FN(f_attr)
{
    const struct str *name;
    UNUSED;
    RETURN_IF_ERROR(arg_str(t, a[0], "attr", &name));
    if (self.type == V_DICT && v_dict_text(self.u.d, name->p, name->n) &&
        !fn_find(tpl_dict_methods, name->p, name->n))
        return v_undef_of(t, out, "a dict has no attribute '%.*s'", (int)(name->n < 100 ? name->n : 100),
                          name->p);
    return get_attr(t, self, name, out);
}

FN(f_indent)
{
    const struct str *s, *by;
    struct sb text = { .t = t }, b = { .t = t }, blanks = { .t = t };
    struct val v, fill, lines;
    int64_t width = 4;
    UNUSED;

    RETURN_IF_ERROR(arg_str(t, self, "indent", &s));
    if (a[0].type != V_STR) {
        RETURN_IF_ERROR(arg_int(t, a[0], 4, "indent", &width));
        for (int64_t i = 0; i < width && !t->failed; i++)
            sb_text(&blanks, " ");
    }

    RETURN_IF_ERROR(sb_done(&blanks, &fill));
    by = a[0].type == V_STR ? a[0].u.s : fill.u.s;
    sb_str(&text, s);
    sb_text(&text, "\n");
    RETURN_IF_ERROR(sb_done(&text, &v));
    RETURN_IF_ERROR(v_list_new(t, L_LIST, &lines));
    RETURN_IF_ERROR(str_lines(t, v.u.s, 0, lines.u.l));
    for (size_t i = 0; i < lines.u.l->n; i++) {
        const struct str *line = lines.u.l->v[i].u.s;
        if (i)
            sb_text(&b, "\n");
        if (i ? line->n || v_true(a[2]) : v_true(a[1]))
            sb_str(&b, by);
        sb_str(&b, line);
    }
    return sb_done(&b, out);
}

FN(f_truncate)
{
    static const struct str dots = { "...", NULL, 3, 0 };
    const struct str *s, *end = &dots;
    struct sb b = { .t = t };
    int64_t length, leeway;
    UNUSED;

    RETURN_IF_ERROR(arg_str(t, self, "truncate", &s));
    RETURN_IF_ERROR(arg_int(t, a[0], 255, "truncate", &length));
    if (a[2].type != V_ABSENT)
        RETURN_IF_ERROR(arg_str(t, a[2], "truncate", &end));
    RETURN_IF_ERROR(arg_int(t, a[3], 5, "truncate", &leeway));
    RETURN_IF_ERROR(tpl_steps(t, (s->n + end->n) / 16));
    int64_t n_end = (int64_t)str_chars(end);
    *out = self;
    if (length < n_end || leeway < 0)
        return tpl_fail(t, ERR_USAGE, "truncate: the length is less than that of its end");
    if (length < INT32_MAX && leeway < INT32_MAX && (int64_t)str_chars(s) <= length + leeway)
        return 0;
    if (length >= INT32_MAX || leeway >= INT32_MAX)
        return 0;
    size_t to = str_offset(s, (size_t)(length - n_end)), word = to;
    while (word > 0 && s->p[word - 1] != ' ')
        word--;
    sb_part(&b, s, 0, v_true(a[1]) || !word ? to : word - 1);
    sb_str(&b, end);
    return sb_done(&b, out);
}

FN(f_wordcount)
{
    const struct str *s;
    int64_t n = 0;
    int inside = 0;
    UNUSED;
    RETURN_IF_ERROR(v_to_str(t, self, &s));
    for (size_t i = 0; i < s->n;) {
        uint32_t cp;
        i += (size_t)utf8_next(s->p + i, s->n - i, &cp);
        n += !inside && uni_is_word(cp);
        inside = uni_is_word(cp);
    }
    *out = v_int(n);
    return tpl_steps(t, s->n / 16);
}

/* --- numbers --- */

/* Reads a number as int() and float() do. Returns 0: the string is not a number. */
static int read_number(const struct str *s, int base, int is_float, struct val *out)
{
    char text[128], *end;
    size_t from = strip_left(s, NULL), to = strip_right(s, NULL, from), n = 0;

    for (size_t i = from; i < to && n + 1 < sizeof text; i++) {
        int between = i > from && i + 1 < to && s->p[i - 1] >= '0' && s->p[i - 1] <= '9' &&
                      s->p[i + 1] >= '0' && s->p[i + 1] <= '9';
        if (s->p[i] != '_' || !between)
            text[n++] = s->p[i];
    }

    text[n] = 0;
    if (!n || n + 1 == sizeof text ||
        strspn(text, is_float ? "0123456789+-.eEinftyaINFTYA" : "0123456789+-abcdefABCDEFxXoO") < n)
        return 0;
    if (is_float) {
        *out = v_float(strtod(text, &end));
        return *end == 0;
    }

    if (base == 10 && strspn(text, "0123456789+-") < n)
        return 0;
    *out = v_int(strtoll(text, &end, base));
    return *end == 0 && out->u.i != INT64_MAX && out->u.i != INT64_MIN;
}

FN(f_int)
{
    int64_t base;
    struct val v;
    UNUSED;

    RETURN_IF_ERROR(arg_int(t, a[1], 10, "int", &base));
    *out = a[0].type == V_ABSENT ? v_int(0) : a[0];
    if (self.type == V_UNDEF)
        return tpl_fail(t, ERR_USAGE, "%s", self.u.why);
    if (base < 2 || base > 36)
        return tpl_fail(t, ERR_USAGE, "int: a base from 2 to 36");
    if (v_is_int(self)) {
        *out = v_int(self.u.i);
        return 0;
    }

    if (self.type == V_STR && read_number(self.u.s, (int)base, 0, &v)) {
        *out = v;
        return 0;
    }

    if (self.type == V_STR && !read_number(self.u.s, 10, 1, &v))
        return 0;
    if (self.type != V_STR && self.type != V_FLOAT)
        return 0;
    double f = self.type == V_STR ? v.u.f : self.u.f;
    if (f > -0x1p63 && f < 0x1p63)
        *out = v_int((int64_t)f);
    return 0;
}

FN(f_float)
{
    UNUSED;
    *out = a[0].type == V_ABSENT ? v_float(0) : a[0];
    if (self.type == V_UNDEF)
        return tpl_fail(t, ERR_USAGE, "%s", self.u.why);
    if (v_is_number(self))
        *out = v_float(v_number(self));
    else if (self.type == V_STR) {
        struct val v;
        if (read_number(self.u.s, 10, 1, &v))
            *out = v;
    }
    return 0;
}

FN(f_abs)
{
    UNUSED;
    if (!v_is_number(self))
        return tpl_fail(t, ERR_USAGE, "abs of a %s", v_type(self));
    return op_sign(t, v_number(self) < 0 || (self.type == V_FLOAT && signbit(self.u.f)), self, out);
}

FN(f_round)
{
    int64_t digits;
    const struct str *method;
    static const struct str common = { "common", NULL, 6, 0 };
    UNUSED;

    RETURN_IF_ERROR(arg_int(t, a[0], 0, "round", &digits));
    method = &common;
    if (a[1].type != V_ABSENT)
        RETURN_IF_ERROR(arg_str(t, a[1], "round", &method));
    int how = word_index("common ceil floor", method->p, method->n);
    if (!how || !v_is_number(self) || digits < -300 || digits > 300)
        return tpl_fail(t, ERR_USAGE, "round: a number, and common, ceil or floor");
    if (how == 1 && v_is_int(self) && digits >= 0) {
        *out = v_int(self.u.i);
        return 0;
    }

    /* printf rounds the exact binary value to the nearest decimal, as Python does */
    if (how == 1 && digits >= 0) {
        char text[700];
        snprintf(text, sizeof text, "%.*f", (int)digits, self.u.f);
        *out = v_float(fabs(self.u.f) < 1e300 ? strtod(text, NULL) : self.u.f);
        return 0;
    }

    double by = pow(10, (double)digits), v = v_number(self) * by;
    v = (how == 1 ? nearbyint(v) : how == 2 ? ceil(v) : floor(v)) / by;
    *out = how == 1 && v_is_int(self) ? v_int((int64_t)v) : v_float(v);
    return 0;
}

const struct fn tpl_filters[] = {
    { "upper", "", 0, f_upper },
    { "lower", "", 0, f_lower },
    { "capitalize", "", 0, f_capitalize },
    { "title", "", 0, f_title },
    { "trim", "chars", 0, f_trim },
    { "center", "width", 0, f_center },
    { "string", "", 0, f_string },
    { "safe", "", 0, f_safe },
    { "escape", "", 0, f_escape },
    { "e", "", 0, f_escape },
    { "forceescape", "", 0, f_forceescape },
    { "replace", "old new count", 2, f_replace },
    { "default", "default_value boolean", 0, f_default },
    { "d", "default_value boolean", 0, f_default },
    { "format", NULL, 0, f_format },
    { "tojson", "ensure_ascii indent separators sort_keys", 0, f_tojson },
    { "length", "", 0, f_length },
    { "count", "", 0, f_length },
    { "attr", "name", 1, f_attr },
    { "indent", "width first blank", 0, f_indent },
    { "truncate", "length killwords end leeway", 0, f_truncate },
    { "wordcount", "", 0, f_wordcount },
    { "int", "default base", 0, f_int },
    { "float", "default", 0, f_float },
    { "abs", "", 0, f_abs },
    { "round", "precision method", 0, f_round },
    { NULL },
};

const struct fn *filter_find(const struct str *name)
{
    const struct fn *f = fn_find(tpl_filters, name->p, name->n);
    return f ? f : fn_find(tpl_list_filters, name->p, name->n);
}
