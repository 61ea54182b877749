/* tpl_text.c - Python's string operations; every byte keeps its mark. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem */
#endif
#include "text/jinja/tpl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "text/tok.h"

/* str.isspace of Python: White_Space and the separators of ASCII */
int py_is_space(uint32_t cp) { return uni_is_space(cp) || (cp >= 0x1C && cp <= 0x1F); }

static int strips(const struct str *chars, const char *p, size_t n, uint32_t cp)
{
    struct str one = { p, NULL, n, 0 };
    return chars ? str_find(chars, 0, &one) >= 0 : py_is_space(cp);
}

size_t strip_left(const struct str *s, const struct str *chars)
{
    size_t i = 0;
    uint32_t cp;
    while (i < s->n) {
        int len = utf8_next(s->p + i, s->n - i, &cp);
        if (len <= 0 || !strips(chars, s->p + i, (size_t)len, cp))
            break;
        i += (size_t)len;
    }
    return i;
}

size_t strip_right(const struct str *s, const struct str *chars, size_t least)
{
    size_t end = s->n;
    uint32_t cp;
    while (end > least) {
        int len = utf8_prev(s->p, end, &cp);
        if (len <= 0 || !strips(chars, s->p + end - len, (size_t)len, cp))
            break;
        end -= (size_t)len;
    }
    return end;
}

int64_t str_find(const struct str *s, size_t from, const struct str *what)
{
    if (from > s->n || what->n > s->n - from)
        return -1;
    if (!what->n)
        return (int64_t)from;
    const char *p = memmem(s->p + from, s->n - from, what->p, what->n);
    return p ? p - s->p : -1;
}

int str_replace(struct tpl *t, const struct str *s, const struct str *old, const struct str *by,
                int64_t count, struct val *out)
{
    struct sb b = { .t = t };
    size_t at = 0, from = 0;

    RETURN_IF_ERROR(tpl_steps(t, s->n / 64));
    while (count != 0 && !t->failed) {
        int64_t i = str_find(s, from, old);
        if (i < 0)
            break;
        sb_part(&b, s, at, (size_t)i);
        sb_str(&b, by);
        RETURN_IF_ERROR(tpl_steps(t, 1));
        at = from = (size_t)i + old->n;
        if (!old->n) { /* between all characters */
            if (from == s->n)
                break;
            uint32_t cp;
            from += (size_t)utf8_next(s->p + from, s->n - from, &cp);
        }
        count -= count > 0;
    }

    sb_part(&b, s, at, s->n);
    return sb_done(&b, out);
}

/* Line ends of str.splitlines */
static int is_line_end(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

int str_lines(struct tpl *t, const struct str *s, int keep_ends, struct list *out)
{
    size_t from = 0, i = 0;
    struct val line;

    RETURN_IF_ERROR(tpl_steps(t, s->n / 16));
    while (i < s->n) {
        uint32_t cp;
        size_t end = i + (size_t)utf8_next(s->p + i, s->n - i, &cp);
        if (is_line_end(cp)) {
            if (cp == '\r' && end < s->n && s->p[end] == '\n')
                end++;
            RETURN_IF_ERROR(v_part(t, s, from, keep_ends ? end : i, &line));
            RETURN_IF_ERROR(v_list_add(t, out, line));
            from = end;
        }
        i = end;
    }

    if (from == s->n)
        return 0;
    RETURN_IF_ERROR(v_part(t, s, from, s->n, &line));
    return v_list_add(t, out, line);
}

/* --- letter case --- */

/* Characters whose upper or lower case is several characters (SpecialCasing.txt, the unconditional ones of
 * everyday text) */
static const struct {
    uint32_t cp;
    const char *upper, *title, *lower;
} special_case[] = {
    { 0xDF, "SS", "Ss", NULL },
    { 0x130, NULL, NULL, "i\xCC\x87" },
    { 0x149, "\xCA\xBCN", "\xCA\xBCN", NULL },
    { 0x1F0, "J\xCC\x8C", "J\xCC\x8C", NULL },
    { 0x587, "\xD4\xB5\xD5\x92", "\xD4\xB5\xD6\x82", NULL },
    { 0xFB00, "FF", "Ff", NULL },
    { 0xFB01, "FI", "Fi", NULL },
    { 0xFB02, "FL", "Fl", NULL },
    { 0xFB03, "FFI", "Ffi", NULL },
    { 0xFB04, "FFL", "Ffl", NULL },
    { 0xFB05, "ST", "St", NULL },
    { 0xFB06, "ST", "St", NULL },
};

static int is_letter(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}
static int is_upper(uint32_t cp) { return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_LU; }

static void add_case(struct sb *b, uint32_t cp, int how, int marked)
{
    for (size_t i = 0; i < sizeof special_case / sizeof *special_case; i++) {
        const char *by = how == 'u'   ? special_case[i].upper
                         : how == 't' ? special_case[i].title
                                      : special_case[i].lower;
        if (special_case[i].cp == cp && by) {
            static const char ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
            sb_add(b, by, strlen(by), marked ? ones : NULL);
            return;
        }
    }
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    c = how == 'u' ? utf8proc_toupper(c) : how == 't' ? utf8proc_totitle(c) : (utf8proc_int32_t)uni_lower(cp);
    sb_cp(b, (uint32_t)c, marked);
}

/* A sigma at the end of a word has its own lower case. */
static int ends_word(const struct str *s, size_t i, size_t end)
{
    uint32_t before = 0, behind = 0;
    if (i > 0)
        utf8_prev(s->p, i, &before);
    if (end < s->n)
        utf8_next(s->p + end, s->n - end, &behind);
    return is_letter(before) && !is_letter(behind);
}

/* For the filter title, words start at the start of the text and behind blanks and -({[< */
static int begins_word(int how, uint32_t before, int first)
{
    if (how == 'f')
        return first || py_is_space(before) || (before < 128 && before && strchr("-({[<", (int)before));
    return how == 't' ? !is_letter(before) : first;
}

int str_case(struct tpl *t, const struct str *s, int how, struct val *out)
{
    struct sb b = { .t = t };
    uint32_t before = 0;

    RETURN_IF_ERROR(tpl_steps(t, s->n / 16));
    for (size_t i = 0; i < s->n && !t->failed;) {
        uint32_t cp;
        size_t end = i + (size_t)utf8_next(s->p + i, s->n - i, &cp);
        int kind = how, marked = s->mark && s->mark[i];
        if (how == 's')
            kind = is_upper(cp) ? 'l' : 'u';
        else if (how != 'u' && how != 'l')
            kind = !begins_word(how, before, i == 0) ? 'l' : how == 'f' ? 'u' : 't';
        if (kind == 'l' && cp == 0x3A3)
            sb_cp(&b, ends_word(s, i, end) ? 0x3C2 : 0x3C3, marked);
        else
            add_case(&b, cp, kind, marked);
        before = cp;
        i = end;
    }
    return sb_done(&b, out);
}

/* --- formatting --- */

/* The width, precision and flags of a conversion: "-5.2", up to the letter at *i. */
struct spec {
    char flags[8];
    int64_t width, precision;
    char letter;
};

static void put_padded(struct sb *b, const struct spec *k, const struct str *s, int left)
{
    size_t chars = tpl_bytes(b->t, s->n) < 0 ? 0 : str_chars(s);
    int64_t blanks = k->width > (int64_t)chars ? k->width - (int64_t)chars : 0;
    if (left)
        sb_str(b, s);
    for (int64_t i = 0; i < blanks && !b->t->failed; i++)
        sb_text(b, " ");
    if (!left)
        sb_str(b, s);
}

static int put_number(struct sb *b, const struct spec *k, struct val v)
{
    char form[32], text[400];
    int wide = (int)(k->width < 300 ? k->width : 300), digits = (int)(k->precision < 60 ? k->precision : 60);

    if (!v_is_number(v))
        return tpl_fail(b->t, ERR_USAGE, "%%%c needs a number, not a %s", k->letter, v_type(v));
    if (strchr("eEfFgG", k->letter)) {
        snprintf(form, sizeof form, "%%%s*.*%c", k->flags, k->letter);
        /* beyond this a fixed number has more digits than the buffer */
        if (v_number(v) > 1e300 || v_number(v) < -1e300)
            return tpl_fail(b->t, ERR_USAGE, "a number too large for %%%c", k->letter);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, sizeof text, form, wide, digits < 0 ? 6 : digits, v_number(v));
    } else {
        int64_t i = v.type == V_FLOAT ? (int64_t)v.u.f : v.u.i;
        snprintf(form, sizeof form, "%%%s*%s", k->flags,
                 k->letter == 'x'   ? PRIx64
                 : k->letter == 'X' ? PRIX64
                 : k->letter == 'o' ? PRIo64
                                    : PRId64);
        if (v.type == V_FLOAT && (v.u.f >= 0x1p63 || v.u.f < -0x1p63 || v.u.f != v.u.f || k->letter != 'd'))
            return tpl_fail(b->t, ERR_USAGE, "%%%c needs an integer", k->letter);
        if (i < 0 && k->letter != 'd' && k->letter != 'i' && k->letter != 'u')
            return tpl_fail(b->t, ERR_USAGE, "%%%c of a negative number is not supported", k->letter);
        snprintf(text, sizeof text, form, wide, i);
#pragma GCC diagnostic pop
    }

    sb_text(b, text);
    return 0;
}

static int put_conversion(struct sb *b, const struct spec *k, struct val v)
{
    struct sb one = { .t = b->t };
    struct val text;
    if (strchr("diuxXoeEfFgG", k->letter))
        return put_number(b, k, v);
    if (k->letter != 's' && k->letter != 'r')
        return tpl_fail(b->t, ERR_USAGE, "%%%c is not supported", k->letter);
    RETURN_IF_ERROR(k->letter == 's' ? v_print(&one, v) : v_repr(&one, v));
    RETURN_IF_ERROR(sb_done(&one, &text));
    struct str s = *text.u.s;
    if (k->precision >= 0)
        s.n = str_offset(&s, (size_t)k->precision);
    put_padded(b, k, &s, strchr(k->flags, '-') != NULL);
    return 0;
}

static int64_t small_number(const struct str *s, size_t *i)
{
    int64_t v = 0;
    for (; *i < s->n && s->p[*i] >= '0' && s->p[*i] <= '9'; ++*i)
        v = v < 100000 ? v * 10 + (s->p[*i] - '0') : v;
    return v;
}

static void read_spec(const struct str *s, size_t *i, const char *flags, struct spec *k)
{
    size_t n = 0;
    *k = (struct spec){ .precision = -1 };
    for (; *i < s->n && s->p[*i] && strchr(flags, s->p[*i]); ++*i)
        if (n + 1 < sizeof k->flags && !strchr(k->flags, s->p[*i]))
            k->flags[n++] = s->p[*i];
    k->width = small_number(s, i);
    if (*i < s->n && s->p[*i] == '.') {
        ++*i;
        k->precision = small_number(s, i);
    }
    k->letter = *i < s->n ? s->p[*i] : 0;
}

int str_percent(struct tpl *t, const struct str *s, struct val arg, struct val *out)
{
    struct sb b = { .t = t };
    int is_tuple = arg.type == V_LIST && arg.u.l->kind == L_TUPLE;
    size_t used = 0, n = is_tuple ? arg.u.l->n : 1, from = 0;

    RETURN_IF_ERROR(tpl_bytes(t, s->n));
    for (size_t i = 0; i < s->n; i++) {
        struct spec k;
        struct val v;
        if (s->p[i] != '%')
            continue;
        sb_part(&b, s, from, i++);
        if (i < s->n && s->p[i] == '%') {
            from = i;
            continue;
        }
        if (i < s->n && s->p[i] == '(') {
            const char *close = memchr(s->p + i, ')', s->n - i);
            size_t end = close ? (size_t)(close - s->p) : s->n;
            const struct val *named = arg.type == V_DICT && close
                                          ? v_dict_text(arg.u.d, s->p + i + 1, end - i - 1)
                                          : NULL;
            if (!named)
                return tpl_fail(t, ERR_USAGE, "no value for a named conversion");
            v = *named;
            i = end + 1;
            used = n;
        } else {
            if (used >= n)
                return tpl_fail(t, ERR_USAGE, "not enough arguments for the conversions of a string");
            v = is_tuple ? arg.u.l->v[used] : arg;
            used++;
        }
        read_spec(s, &i, "-+ #0", &k);
        if (!k.letter)
            return tpl_fail(t, ERR_USAGE, "a conversion without its letter");
        RETURN_IF_ERROR(put_conversion(&b, &k, v));
        from = i + 1;
    }

    sb_part(&b, s, from, s->n);
    if (used < n && arg.type != V_DICT)
        return tpl_fail(t, ERR_USAGE, "not all arguments were used by the conversions of a string");
    return sb_done(&b, out);
}

/* A field "{name.attr:spec}", [i, end) inside of the braces */
static int format_field(struct sb *b, const struct str *s, size_t i, size_t end, const struct args *args,
                        size_t *next)
{
    struct tpl *t = b->t;
    struct str name = { s->p + i, NULL, 0, 0 };
    struct spec k = { .precision = -1, .letter = 's' };
    struct val v = { .type = V_ABSENT };
    size_t name_end = i, at;

    while (name_end < end && s->p[name_end] != ':' && s->p[name_end] != '!' && s->p[name_end] != '.' &&
           s->p[name_end] != '[')
        name_end++;
    name.n = name_end - i;
    at = i;
    int64_t index = name.n ? small_number(s, &at) : (int64_t)(*next)++;
    if (at == name_end && index < (int64_t)args->n)
        v = args->v[index];
    RETURN_IF_ERROR(tpl_steps(t, args->n_kw / 8));
    for (size_t j = 0; at != name_end && j < args->n_kw; j++)
        if (str_same(args->kw[j].name, &name))
            v = args->kw[j].v;
    if (v.type == V_ABSENT)
        return tpl_fail(t, ERR_USAGE, "format: no argument for a field");
    int has_spec = name_end < end && s->p[name_end] == ':' && name_end + 1 < end;
    if (name_end < end && !has_spec && s->p[name_end] != ':')
        return tpl_fail(t, ERR_USAGE, "format: fields with attributes and conversions are not supported");
    if (has_spec) {
        struct str inner = { s->p, s->mark, end, 0 };
        at = name_end + 1;
        read_spec(&inner, &at, "+0<>", &k);
        if (!k.letter)
            k.letter = v.type == V_STR ? 's' : v.type == V_FLOAT ? 'g' : 'd';
        else
            at++;
        if (at != end || strchr(k.flags, '<') || strchr(k.flags, '>') || (v.type == V_STR && k.letter != 's'))
            return tpl_fail(t, ERR_USAGE, "format: this form of a field is not supported");
        if (v.type == V_STR)
            snprintf(k.flags, sizeof k.flags, "-");
    }
    return put_conversion(b, &k, v);
}

int str_format(struct tpl *t, const struct str *s, const struct args *args, struct val *out)
{
    struct sb b = { .t = t };
    size_t from = 0, next = 0;

    RETURN_IF_ERROR(tpl_bytes(t, s->n));
    for (size_t i = 0; i < s->n; i++) {
        char c = s->p[i];
        if (c != '{' && c != '}')
            continue;
        sb_part(&b, s, from, i);
        if (i + 1 < s->n && s->p[i + 1] == c) {
            from = ++i;
            continue;
        }
        const char *close = c == '{' ? memchr(s->p + i, '}', s->n - i) : NULL;
        if (!close)
            return tpl_fail(t, ERR_USAGE, "format: a single '%c'", c);
        RETURN_IF_ERROR(format_field(&b, s, i + 1, (size_t)(close - s->p), args, &next));
        i = (size_t)(close - s->p);
        from = i + 1;
    }

    sb_part(&b, s, from, s->n);
    return sb_done(&b, out);
}

int str_escape(struct tpl *t, const struct str *s, struct val *out)
{
    static const struct {
        char c;
        const char *by;
    } table[] = { { '&', "&amp;" }, { '<', "&lt;" }, { '>', "&gt;" }, { '"', "&#34;" }, { '\'', "&#39;" } };
    static const char ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    struct sb b = { .t = t };
    size_t from = 0;
    RETURN_IF_ERROR(tpl_steps(t, s->n / 16));
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < sizeof table / sizeof *table; k++)
            if (s->p[i] == table[k].c) {
                sb_part(&b, s, from, i);
                sb_add(&b, table[k].by, strlen(table[k].by), s->mark && s->mark[i] ? ones : NULL);
                from = i + 1;
            }
    sb_part(&b, s, from, s->n);
    RETURN_IF_ERROR(sb_done(&b, out));
    ((struct str *)(uintptr_t)out->u.s)->markup = 1;
    return 0;
}
