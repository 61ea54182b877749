/* tpl_print.c - values to text, as Python's str(), repr() and json.dumps(); JSON to values. */
#include "text/jinja/tpl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "text/tok.h"

/* The shortest digits that read back as f, in the form of repr(): 1e-05, 0.0001, 1e+16, 123456.0 */
void float_text(double f, char out[40])
{
    char digits[32], *e;
    int n = 0, precision = 1;

    if (isnan(f) || isinf(f)) {
        snprintf(out, 40, "%s", isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }

    do
        snprintf(digits, sizeof digits, "%.*e", precision - 1, f);
    while (strtod(digits, NULL) != f && precision++ < 17);
    e = strchr(digits, 'e');
    int exp = atoi(e + 1);
    *e = 0;
    if (exp < -4 || exp >= 16) {
        snprintf(out, 40, "%se%s%02d", digits, exp < 0 ? "-" : "+", abs(exp) % 1000);
        return;
    }

    /* collect the digits, then print them with the dot in its place */
    const char *sign = digits[0] == '-' ? "-" : "";
    char all[32];
    for (char *p = digits; *p; p++)
        if (*p >= '0' && *p <= '9')
            all[n++] = *p;
    all[n] = 0;
    if (exp < 0)
        snprintf(out, 40, "%s0.%0*d%s", sign, -exp - 1, 0, all);
    if (exp == -1)
        snprintf(out, 40, "%s0.%s", sign, all);
    if (exp >= 0 && n <= exp + 1)
        snprintf(out, 40, "%s%s%0*d.0", sign, all, exp + 1 - n ? exp + 1 - n : 1, 0);
    if (exp >= 0 && n == exp + 1)
        snprintf(out, 40, "%s%s.0", sign, all);
    if (exp >= 0 && n > exp + 1)
        snprintf(out, 40, "%s%.*s.%s", sign, exp + 1, all, all + exp + 1);
}

/* --- str, repr --- */

static int is_printable(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)uni_stand_in(cp))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return 0;
    case UTF8PROC_CATEGORY_ZS: return cp == ' ';
    default: return 1;
    }
}

/* Adds text with the mark of the characters that it replaces. */
static void add_marked(struct sb *b, const char *text, int marked)
{
    char ones[16];
    memset(ones, 1, sizeof ones);
    sb_add(b, text, strlen(text), marked ? ones : NULL);
}

static void repr_str(struct sb *b, const struct str *s)
{
    const char *quote = memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n) ? "\"" : "'";
    size_t from = 0, i = 0;

    sb_text(b, quote);
    while (i < s->n) {
        char shown[16] = "";
        uint32_t cp = 0;
        int len = utf8_next(s->p + i, s->n - i, &cp);
        if (cp == '\\' || cp == (unsigned char)*quote)
            snprintf(shown, sizeof shown, "\\%c", (int)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(shown, sizeof shown, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (!is_printable(cp))
            snprintf(shown, sizeof shown, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        if (*shown) {
            sb_part(b, s, from, i);
            add_marked(b, shown, s->mark && s->mark[i]);
            from = i + (size_t)len;
        }
        i += (size_t)len;
    }

    sb_part(b, s, from, i);
    sb_text(b, quote);
}

static int repr_list(struct sb *b, const struct list *l)
{
    const char *open = l->kind == L_TUPLE ? "(" : "[", *close = l->kind == L_TUPLE ? ")" : "]";
    static const char *const views[] = { "dict_keys(", "dict_values(", "dict_items(" };
    if (l->kind == L_VIEW)
        sb_text(b, views[l->at]);
    if (l->kind == L_RANGE) {
        char text[80];
        snprintf(text, sizeof text,
                 l->range[2] == 1 ? "range(%" PRId64 ", %" PRId64 ")"
                                  : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
                 l->range[0], l->range[1], l->range[2]);
        sb_text(b, text);
        return 0;
    }
    sb_text(b, open);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            sb_text(b, ", ");
        RETURN_IF_ERROR(v_repr(b, l->v[i]));
    }
    sb_text(b, l->kind == L_TUPLE && l->n == 1 ? ",)" : close);
    if (l->kind == L_VIEW)
        sb_text(b, ")");
    return 0;
}

static int repr_dict(struct sb *b, const struct dict *d)
{
    sb_text(b, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            sb_text(b, ", ");
        RETURN_IF_ERROR(v_repr(b, d->v[i].k));
        sb_text(b, ": ");
        RETURN_IF_ERROR(v_repr(b, d->v[i].v));
    }
    sb_text(b, "}");
    return 0;
}

static int repr_deep(struct sb *b, struct val v)
{
    RETURN_IF_ERROR(tpl_enter(b->t));
    if (v.type == V_NAMESPACE)
        sb_text(b, "<Namespace ");
    int rc = v.type == V_LIST ? repr_list(b, v.u.l) : repr_dict(b, v.u.d);
    if (v.type == V_NAMESPACE)
        sb_text(b, ">");
    b->t->depth--;
    return rc;
}

int v_repr(struct sb *b, struct val v)
{
    char text[80] = "";
    switch (v.type) {
    case V_ABSENT:
    case V_UNDEF: snprintf(text, sizeof text, "Undefined"); break;
    case V_NONE: snprintf(text, sizeof text, "None"); break;
    case V_BOOL: snprintf(text, sizeof text, "%s", v.u.i ? "True" : "False"); break;
    case V_INT: snprintf(text, sizeof text, "%" PRId64, v.u.i); break;
    case V_FLOAT: float_text(v.u.f, text); break;
    case V_STR: repr_str(b, v.u.s); return b->t->failed;
    case V_LIST:
        if (v.u.l->kind == L_GEN)
            return tpl_fail(b->t, ERR_USAGE, "a generator has no text: put | list behind it");
        return repr_deep(b, v);
    case V_DICT:
    case V_NAMESPACE: return repr_deep(b, v);
    case V_LOOP:
        snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v.u.loop->at + 1, v.u.loop->items->n);
        break;
    default: return tpl_fail(b->t, ERR_USAGE, "a %s has no text: is its call missing, ()", v_type(v));
    }

    sb_text(b, text);
    return b->t->failed;
}

int v_print(struct sb *b, struct val v)
{
    if (v.type == V_STR)
        sb_str(b, v.u.s);
    else if (v.type != V_UNDEF && v.type != V_ABSENT)
        return v_repr(b, v);
    return b->t->failed;
}

int v_to_str(struct tpl *t, struct val v, const struct str **out)
{
    struct sb b = { .t = t };
    struct val s;
    if (v.type == V_STR) {
        *out = v.u.s;
        return 0;
    }
    RETURN_IF_ERROR(v_print(&b, v));
    RETURN_IF_ERROR(sb_done(&b, &s));
    *out = s.u.s;
    return 0;
}

/* --- from JSON: strings are copied, and marked if untrusted --- */

static int json_str(struct tpl *t, const char *p, size_t n, int user, struct val *out)
{
    char *mark = user && n ? tpl_alloc(t, n) : NULL;
    char *copy = tpl_alloc(t, n + 1);
    if (t->failed)
        return t->failed;
    if (n)
        memcpy(copy, p, n);
    if (mark)
        memset(mark, 1, n);
    return v_str(t, copy, n, mark, out);
}

static int json_deep(struct tpl *t, const json_t *j, int user, struct val *out)
{
    size_t i;
    const char *key;
    const json_t *item;
    struct val k, v;

    if (json_is_array(j)) {
        RETURN_IF_ERROR(v_list_new(t, L_LIST, out));
        json_array_foreach(j, i, item) {
            RETURN_IF_ERROR(v_from_json(t, item, user, &v));
            RETURN_IF_ERROR(v_list_add(t, out->u.l, v));
        }
        return 0;
    }

    RETURN_IF_ERROR(v_dict_new(t, out));
    json_object_foreach((json_t *)(uintptr_t)j, key, item) {
        RETURN_IF_ERROR(json_str(t, key, strlen(key), user, &k));
        RETURN_IF_ERROR(v_from_json(t, item, user, &v));
        RETURN_IF_ERROR(v_dict_add(t, out->u.d, k, v));
    }
    return 0;
}

int v_from_json(struct tpl *t, const json_t *j, int user, struct val *out)
{
    int rc = 0;
    switch (json_typeof(j)) {
    case JSON_NULL: *out = v_none(); return 0;
    case JSON_TRUE:
    case JSON_FALSE: *out = v_bool(json_is_true(j)); return 0;
    case JSON_INTEGER: *out = v_int(json_integer_value(j)); return 0;
    case JSON_REAL: *out = v_float(json_real_value(j)); return 0;
    case JSON_STRING: return json_str(t, json_string_value(j), json_string_length(j), user, out);
    case JSON_ARRAY:
    case JSON_OBJECT: break;
    }

    if (++t->depth > TPL_DATA_DEPTH)
        rc = tpl_fail(t, ERR_USAGE, "more than %d nested lists and objects", TPL_DATA_DEPTH);
    else
        rc = json_deep(t, j, user, out);
    t->depth--;
    return rc;
}

/* --- to JSON --- */

struct dump {
    struct sb *b;
    int ascii, sort, indented;
    const struct str *indent;
    const struct str *item, *key;
    size_t level;
};

static void json_text(struct dump *d, const struct str *s)
{
    size_t from = 0, i = 0;
    sb_text(d->b, "\"");
    while (i < s->n) {
        static const char names[] = "\"\\\n\r\t\b\f", by[] = "\"\\nrtbf";
        char shown[16] = "";
        uint32_t cp = 0;
        int len = utf8_next(s->p + i, s->n - i, &cp);
        const char *k = cp && cp < 128 ? strchr(names, (int)cp) : NULL;
        if (k)
            snprintf(shown, sizeof shown, "\\%c", by[k - names]);
        else if (cp < 32 || (d->ascii && cp >= 127 && cp < 0x10000))
            snprintf(shown, sizeof shown, "\\u%04x", cp);
        else if (d->ascii && cp >= 0x10000)
            snprintf(shown, sizeof shown, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                     0xDC00 + ((cp - 0x10000) & 1023));
        if (*shown) {
            sb_part(d->b, s, from, i);
            add_marked(d->b, shown, s->mark && s->mark[i]);
            from = i + (size_t)len;
        }
        i += (size_t)len;
    }

    sb_part(d->b, s, from, i);
    sb_text(d->b, "\"");
}

static int dump(struct dump *d, struct val v);

static void new_line(struct dump *d)
{
    if (!d->indented)
        return;
    sb_text(d->b, "\n");
    for (size_t i = 0; i < d->level && !d->b->t->failed; i++)
        sb_str(d->b, d->indent);
}

static int scalar_text(struct val v, char out[80])
{
    if (v.type == V_FLOAT)
        float_text(v.u.f, out);
    if (v.type == V_FLOAT && (isnan(v.u.f) || isinf(v.u.f)))
        snprintf(out, 80, "%s", isnan(v.u.f) ? "NaN" : v.u.f > 0 ? "Infinity" : "-Infinity");
    if (v.type == V_INT)
        snprintf(out, 80, "%" PRId64, v.u.i);
    if (v.type == V_BOOL)
        snprintf(out, 80, "%s", v.u.i ? "true" : "false");
    if (v.type == V_NONE)
        snprintf(out, 80, "null");
    return v.type == V_FLOAT || v.type == V_INT || v.type == V_BOOL || v.type == V_NONE;
}

static int dump_key(struct dump *d, struct val k)
{
    char text[80];
    if (k.type == V_STR) {
        json_text(d, k.u.s);
    } else if (scalar_text(k, text)) {
        struct str s = { text, NULL, strlen(text), 0 };
        json_text(d, &s);
    } else {
        return tpl_fail(d->b->t, ERR_USAGE, "tojson: a %s cannot be a key of a JSON object", v_type(k));
    }
    sb_str(d->b, d->key);
    return 0;
}

static int sorted_keys(struct tpl *t, const struct dict *in, struct val *out)
{
    struct val keys, pairs;
    RETURN_IF_ERROR(v_list_new(t, L_LIST, &keys));
    RETURN_IF_ERROR(v_list_new(t, L_LIST, &pairs));
    for (size_t i = 0; i < in->n; i++) {
        RETURN_IF_ERROR(v_list_add(t, keys.u.l, in->v[i].k));
        RETURN_IF_ERROR(v_list_add(t, pairs.u.l, v_int((int64_t)i)));
    }
    RETURN_IF_ERROR(list_sort(t, keys.u.l, pairs.u.l, 0));
    RETURN_IF_ERROR(v_dict_new(t, out));
    for (size_t i = 0; i < in->n; i++)
        RETURN_IF_ERROR(v_dict_add(t, out->u.d, in->v[pairs.u.l->v[i].u.i].k, in->v[pairs.u.l->v[i].u.i].v));
    return 0;
}

static int dump_items(struct dump *d, struct val v)
{
    int is_dict = v.type == V_DICT;
    size_t n = is_dict ? v.u.d->n : v.u.l->n;
    struct val all = v;

    if (is_dict && d->sort)
        RETURN_IF_ERROR(sorted_keys(d->b->t, v.u.d, &all));
    sb_text(d->b, is_dict ? "{" : "[");
    d->level++;
    for (size_t i = 0; i < n; i++) {
        if (i)
            sb_str(d->b, d->item);
        new_line(d);
        if (is_dict)
            RETURN_IF_ERROR(dump_key(d, all.u.d->v[i].k));
        RETURN_IF_ERROR(dump(d, is_dict ? all.u.d->v[i].v : all.u.l->v[i]));
    }

    d->level--;
    if (n)
        new_line(d);
    sb_text(d->b, is_dict ? "}" : "]");
    return 0;
}

static int dump(struct dump *d, struct val v)
{
    char text[80];
    if (v.type == V_STR) {
        json_text(d, v.u.s);
    } else if (scalar_text(v, text)) {
        sb_text(d->b, text);
    } else if (v.type == V_DICT || (v.type == V_LIST && (v.u.l->kind <= L_TUPLE || v.u.l->kind == L_GEN))) {
        RETURN_IF_ERROR(tpl_enter(d->b->t));
        int rc = dump_items(d, v);
        d->b->t->depth--;
        return rc;
    } else {
        return tpl_fail(d->b->t, ERR_USAGE, "tojson: a %s is not JSON", v_type(v));
    }
    return d->b->t->failed;
}

int v_to_json(struct sb *b, struct val v, const struct val *a)
{
    static const struct str comma = { ", ", NULL, 2, 0 }, bare = { ",", NULL, 1, 0 },
                            colon = { ": ", NULL, 2, 0 };
    struct dump d = { .b = b, .ascii = v_true(a[0]), .sort = v_true(a[3]), .item = &comma, .key = &colon };

    if (a[1].type != V_ABSENT && a[1].type != V_NONE) {
        struct sb blanks = { .t = b->t };
        struct val s = a[1];
        if (!v_is_int(a[1]) && a[1].type != V_STR)
            return tpl_fail(b->t, ERR_USAGE, "tojson: indent is a %s, not a number", v_type(a[1]));
        for (int64_t i = 0; v_is_int(a[1]) && i < a[1].u.i && !b->t->failed; i++)
            sb_text(&blanks, " ");
        if (v_is_int(a[1]))
            RETURN_IF_ERROR(sb_done(&blanks, &s));
        d.indent = s.u.s;
        d.indented = 1;
        d.item = &bare;
    }

    if (a[2].type != V_ABSENT && a[2].type != V_NONE) {
        struct list *l;
        RETURN_IF_ERROR(v_iterate(b->t, a[2], &l));
        if (l->n != 2 || l->v[0].type != V_STR || l->v[1].type != V_STR)
            return tpl_fail(b->t, ERR_USAGE, "tojson: separators are two strings");
        d.item = l->v[0].u.s;
        d.key = l->v[1].u.s;
    }
    return dump(&d, v);
}
