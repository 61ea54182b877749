/* tpl_method.c - the methods of strings. */
#include "text/jinja/tpl.h"

#include <string.h>
#include <utf8proc.h>
#include "text/tok.h"

#define SELF const struct str *s = self.u.s

/* Characters to strip: NULL for white space. */
static int strip_chars(struct tpl *t, struct val v, const struct str **out)
{
    *out = NULL;
    return arg_absent(v) ? 0 : arg_str(t, v, "strip", out);
}

static int strip(struct tpl *t, const struct str *s, struct val chars, int left, int right, struct val *out)
{
    const struct str *c;
    RETURN_IF_ERROR(strip_chars(t, chars, &c));
    RETURN_IF_ERROR(tpl_steps(t, c ? s->n * (c->n / 64 + 1) / 16 : s->n / 64));
    size_t from = left ? strip_left(s, c) : 0;
    return v_part(t, s, from, right ? strip_right(s, c, from) : s->n, out);
}
FN(m_strip)
{
    UNUSED;
    return strip(t, self.u.s, a[0], 1, 1, out);
}
FN(m_lstrip)
{
    UNUSED;
    return strip(t, self.u.s, a[0], 1, 0, out);
}
FN(m_rstrip)
{
    UNUSED;
    return strip(t, self.u.s, a[0], 0, 1, out);
}

FN(m_upper)
{
    UNUSED;
    return str_case(t, self.u.s, 'u', out);
}
FN(m_lower)
{
    UNUSED;
    return str_case(t, self.u.s, 'l', out);
}
FN(m_title)
{
    UNUSED;
    return str_case(t, self.u.s, 't', out);
}
FN(m_capitalize)
{
    UNUSED;
    return str_case(t, self.u.s, 'c', out);
}
FN(m_swapcase)
{
    UNUSED;
    return str_case(t, self.u.s, 's', out);
}

/* --- looking --- */

/* [start, end) in characters, as slices clip, as bytes; 0: start lies behind the end of the text */
static int bounds(struct tpl *t, const struct str *s, const struct val *a, size_t *from, size_t *to)
{
    int64_t n, start, end;
    RETURN_IF_ERROR(tpl_steps(t, s->n / 16));
    n = (int64_t)str_chars(s);
    RETURN_IF_ERROR(arg_int(t, a[0], 0, "start", &start));
    RETURN_IF_ERROR(arg_int(t, a[1], n, "end", &end));
    start = start < -n ? 0 : start < 0 ? start + n : start;
    end = end < -n ? 0 : end < 0 ? end + n : end > n ? n : end;
    if (start > end)
        return 0;
    *from = str_offset(s, (size_t)start);
    *to = str_offset(s, (size_t)end);
    return 1;
}

static int has_end(const struct str *s, size_t from, size_t to, const struct str *part, int at_end)
{
    return part->n <= to - from && !memcmp(s->p + (at_end ? to - part->n : from), part->p, part->n);
}

static int starts_or_ends(struct tpl *t, const struct str *s, const struct val *a, int at_end,
                          struct val *out)
{
    size_t from, to;
    int is = 0, inside;
    const struct str *part;
    const struct list *l = a[0].type == V_LIST && a[0].u.l->kind == L_TUPLE ? a[0].u.l : NULL;
    RETURN_IF_ERROR(inside = bounds(t, s, a + 1, &from, &to));
    for (size_t i = 0; i < (l ? l->n : 1); i++) {
        RETURN_IF_ERROR(arg_str(t, l ? l->v[i] : a[0], at_end ? "endswith" : "startswith", &part));
        RETURN_IF_ERROR(tpl_bytes(t, part->n < s->n ? part->n + 8 : 8));
        is |= inside && has_end(s, from, to, part, at_end);
    }
    *out = v_bool(is);
    return 0;
}
FN(m_startswith)
{
    UNUSED;
    return starts_or_ends(t, self.u.s, a, 0, out);
}
FN(m_endswith)
{
    UNUSED;
    return starts_or_ends(t, self.u.s, a, 1, out);
}

static int find(struct tpl *t, const struct str *s, const struct val *a, int last, int must, struct val *out)
{
    const struct str *part;
    size_t from = 0, to = 0;
    int64_t at = -1;
    int inside;

    RETURN_IF_ERROR(arg_str(t, a[0], "find", &part));
    RETURN_IF_ERROR(inside = bounds(t, s, a + 1, &from, &to));
    struct str head = { s->p, NULL, to, 0 };
    for (int64_t i = inside ? str_find(&head, from, part) : -1; i >= 0;
         i = last && (size_t)i < to ? str_find(&head, (size_t)i + 1, part) : -1) {
        at = i;
        RETURN_IF_ERROR(tpl_bytes(t, part->n + 64));
    }

    if (at < 0 && must)
        return tpl_fail(t, ERR_USAGE, "index: the part is not in the string");
    head.n = at < 0 ? 0 : (size_t)at;
    *out = v_int(at < 0 ? -1 : (int64_t)str_chars(&head));
    return 0;
}
FN(m_find)
{
    UNUSED;
    return find(t, self.u.s, a, 0, 0, out);
}
FN(m_rfind)
{
    UNUSED;
    return find(t, self.u.s, a, 1, 0, out);
}
FN(m_index)
{
    UNUSED;
    return find(t, self.u.s, a, 0, 1, out);
}
FN(m_rindex)
{
    UNUSED;
    return find(t, self.u.s, a, 1, 1, out);
}

FN(m_count)
{
    const struct str *part;
    size_t from = 0, to = 0;
    int64_t n = 0;
    int inside;
    UNUSED;
    RETURN_IF_ERROR(arg_str(t, a[0], "count", &part));
    RETURN_IF_ERROR(inside = bounds(t, self.u.s, a + 1, &from, &to));
    struct str span = { self.u.s->p + from, NULL, to - from, 0 };
    if (inside && !part->n)
        n = (int64_t)str_chars(&span) + 1;
    for (int64_t i = 0; inside && part->n && (i = str_find(&span, (size_t)i, part)) >= 0;
         i += (int64_t)part->n)
        n++;
    *out = v_int(n);
    return tpl_steps(t, (size_t)n);
}

/* --- cutting and joining --- */

static int split_blanks(struct tpl *t, const struct str *s, int64_t most, struct list *out)
{
    size_t at = strip_left(s, NULL);
    struct val part;

    while (at < s->n) {
        size_t end = at;
        uint32_t cp = 0;
        struct str rest;
        int is_rest = most-- == 0; /* the rest keeps the blanks in it */
        if (is_rest)
            end = s->n;
        while (end < s->n) {
            int len = utf8_next(s->p + end, s->n - end, &cp);
            if (py_is_space(cp))
                break;
            end += (size_t)len;
        }
        RETURN_IF_ERROR(v_part(t, s, at, end, &part));
        RETURN_IF_ERROR(v_list_add(t, out, part));
        rest = (struct str){ s->p + end, NULL, s->n - end, 0 };
        at = end + strip_left(&rest, NULL);
    }
    return 0;
}

static int split_blanks_right(struct tpl *t, const struct str *s, int64_t most, struct list *out)
{
    size_t end = strip_right(s, NULL, 0);
    struct val part;

    while (end > 0) {
        size_t from = end;
        uint32_t cp = 0;
        int is_rest = most-- == 0;
        if (is_rest)
            from = 0;
        while (from > 0) {
            int len = utf8_prev(s->p, from, &cp);
            if (py_is_space(cp))
                break;
            from -= (size_t)len;
        }
        RETURN_IF_ERROR(v_part(t, s, from, end, &part));
        RETURN_IF_ERROR(v_list_add(t, out, part));
        struct str head = { s->p, NULL, from, 0 };
        end = strip_right(&head, NULL, 0);
    }
    return 0;
}

static int split_at(struct tpl *t, const struct str *s, const struct str *by, int64_t most, struct list *out)
{
    size_t at = 0;
    struct val part;
    for (int64_t i; most-- != 0 && (i = str_find(s, at, by)) >= 0; at = (size_t)i + by->n) {
        RETURN_IF_ERROR(v_part(t, s, at, (size_t)i, &part));
        RETURN_IF_ERROR(v_list_add(t, out, part));
    }
    RETURN_IF_ERROR(v_part(t, s, at, s->n, &part));
    return v_list_add(t, out, part);
}

static int split_at_right(struct tpl *t, const struct str *s, const struct str *by, int64_t most,
                          struct list *out)
{
    size_t end = s->n;
    struct val part;
    RETURN_IF_ERROR(tpl_steps(t, by->n < s->n ? (s->n - by->n) / 16 * (by->n / 64 + 1) : 0));
    for (; most != 0; most--) {
        const char *p = NULL;
        for (size_t i = end; i >= by->n && !p; i--)
            if (!memcmp(s->p + i - by->n, by->p, by->n))
                p = s->p + i - by->n;
        if (!p)
            break;
        RETURN_IF_ERROR(v_part(t, s, (size_t)(p - s->p) + by->n, end, &part));
        RETURN_IF_ERROR(v_list_add(t, out, part));
        end = (size_t)(p - s->p);
    }
    RETURN_IF_ERROR(v_part(t, s, 0, end, &part));
    return v_list_add(t, out, part);
}

static int split(struct tpl *t, const struct str *s, const struct val *a, int right, struct val *out)
{
    const struct str *by = NULL;
    int64_t most;
    struct val all;

    RETURN_IF_ERROR(tpl_steps(t, s->n / 16));
    RETURN_IF_ERROR(arg_int(t, a[1], -1, "split", &most));
    if (!arg_absent(a[0])) {
        RETURN_IF_ERROR(arg_str(t, a[0], "split", &by));
        if (!by->n)
            return tpl_fail(t, ERR_USAGE, "split at an empty string");
    }

    RETURN_IF_ERROR(v_list_new(t, L_LIST, &all));
    if (!right) {
        RETURN_IF_ERROR(by ? split_at(t, s, by, most, all.u.l) : split_blanks(t, s, most, all.u.l));
        *out = all;
        return 0;
    }

    RETURN_IF_ERROR(by ? split_at_right(t, s, by, most, all.u.l) : split_blanks_right(t, s, most, all.u.l));
    return list_reverse(t, all.u.l, L_LIST, out);
}
FN(m_split)
{
    UNUSED;
    return split(t, self.u.s, a, 0, out);
}
FN(m_rsplit)
{
    UNUSED;
    return split(t, self.u.s, a, 1, out);
}

FN(m_splitlines)
{
    UNUSED;
    RETURN_IF_ERROR(v_list_new(t, L_LIST, out));
    return str_lines(t, self.u.s, v_true(a[0]), out->u.l);
}

static int partition(struct tpl *t, const struct str *s, struct val by, int right, struct val *out)
{
    const struct str *k;
    struct val at, part[3];

    RETURN_IF_ERROR(arg_str(t, by, "partition", &k));
    if (!k->n)
        return tpl_fail(t, ERR_USAGE, "partition at an empty string");
    struct val none[3] = { by, { .type = V_ABSENT }, { .type = V_ABSENT } };
    RETURN_IF_ERROR(find(t, s, none, right, 0, &at));
    size_t from = at.u.i < 0 ? (right ? 0 : s->n) : str_offset(s, (size_t)at.u.i),
           to = at.u.i < 0 ? from : from + k->n;
    RETURN_IF_ERROR(v_part(t, s, 0, from, &part[0]));
    RETURN_IF_ERROR(v_part(t, s, from, to, &part[1]));
    RETURN_IF_ERROR(v_part(t, s, to, s->n, &part[2]));
    RETURN_IF_ERROR(v_list_new(t, L_TUPLE, out));
    for (int i = 0; i < 3; i++)
        RETURN_IF_ERROR(v_list_add(t, out->u.l, part[i]));
    return 0;
}
FN(m_partition)
{
    UNUSED;
    return partition(t, self.u.s, a[0], 0, out);
}
FN(m_rpartition)
{
    UNUSED;
    return partition(t, self.u.s, a[0], 1, out);
}

FN(m_join)
{
    struct sb b = { .t = t };
    struct list *l;
    UNUSED;
    RETURN_IF_ERROR(v_iterate(t, a[0], &l));
    for (size_t i = 0; i < l->n; i++) {
        const struct str *one;
        RETURN_IF_ERROR(arg_str(t, l->v[i], "join", &one));
        if (i)
            sb_str(&b, self.u.s);
        sb_str(&b, one);
    }
    return sb_done(&b, out);
}

FN(m_replace)
{
    const struct str *old, *by;
    int64_t count;
    UNUSED;
    RETURN_IF_ERROR(arg_str(t, a[0], "replace", &old));
    RETURN_IF_ERROR(arg_str(t, a[1], "replace", &by));
    RETURN_IF_ERROR(arg_int(t, a[2], -1, "replace", &count));
    return str_replace(t, self.u.s, old, by, count, out);
}

FN(m_format)
{
    UNUSED;
    return str_format(t, self.u.s, raw, out);
}

static int remove_end(struct tpl *t, const struct str *s, struct val v, int at_end, struct val *out)
{
    const struct str *part;
    RETURN_IF_ERROR(arg_str(t, v, "removeprefix", &part));
    RETURN_IF_ERROR(tpl_bytes(t, part->n < s->n ? part->n : 0));
    int has = has_end(s, 0, s->n, part, at_end);
    return v_part(t, s, has && !at_end ? part->n : 0, has && at_end ? s->n - part->n : s->n, out);
}
FN(m_removeprefix)
{
    UNUSED;
    return remove_end(t, self.u.s, a[0], 0, out);
}
FN(m_removesuffix)
{
    UNUSED;
    return remove_end(t, self.u.s, a[0], 1, out);
}

/* side: -1: the text is at the left, 1: at the right, 0: in the middle */
static int pad(struct tpl *t, const struct str *s, const struct val *a, int side, struct val *out)
{
    static const struct str blank = { " ", NULL, 1, 0 };
    const struct str *fill = &blank;
    struct sb b = { .t = t };
    int64_t width, n = (int64_t)str_chars(s);

    RETURN_IF_ERROR(tpl_steps(t, s->n / 16));
    RETURN_IF_ERROR(arg_int(t, a[0], 0, "the width", &width));
    if (!arg_absent(a[1]))
        RETURN_IF_ERROR(arg_str(t, a[1], "the fill", &fill));
    if (str_chars(fill) != 1)
        return tpl_fail(t, ERR_USAGE, "the fill is one character");
    int64_t more = width > n ? width - n : 0, left = side < 0   ? 0
                                                     : side > 0 ? more
                                                                : more / 2 + (more & width & 1);
    for (int64_t i = 0; i < left && !t->failed; i++)
        sb_str(&b, fill);
    sb_str(&b, s);
    for (int64_t i = left; i < more && !t->failed; i++)
        sb_str(&b, fill);
    return sb_done(&b, out);
}
FN(m_ljust)
{
    UNUSED;
    return pad(t, self.u.s, a, -1, out);
}
FN(m_rjust)
{
    UNUSED;
    return pad(t, self.u.s, a, 1, out);
}
FN(m_center)
{
    UNUSED;
    return pad(t, self.u.s, a, 0, out);
}

FN(m_zfill)
{
    static const struct str zero = { "0", NULL, 1, 0 };
    SELF;
    struct sb b = { .t = t };
    int64_t width, n = (int64_t)str_chars(s);
    UNUSED;
    RETURN_IF_ERROR(tpl_steps(t, s->n / 16));
    RETURN_IF_ERROR(arg_int(t, a[0], 0, "zfill", &width));
    size_t sign = s->n && (s->p[0] == '-' || s->p[0] == '+');
    sb_part(&b, s, 0, sign);
    for (int64_t i = n; i < width && !t->failed; i++)
        sb_str(&b, &zero);
    sb_part(&b, s, sign, s->n);
    return sb_done(&b, out);
}

/* --- tests of all characters --- */

static int is_space(uint32_t cp) { return py_is_space(cp); }
static int is_ascii(uint32_t cp) { return cp < 128; }
static int is_decimal(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)uni_stand_in(cp)) == UTF8PROC_CATEGORY_ND;
}
static int is_digit(uint32_t cp) /* decimal digits, and superscript and circled ones */
{
    return is_decimal(cp) || cp == 0xB2 || cp == 0xB3 || cp == 0xB9 || cp == 0x2070 ||
           (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) || (cp >= 0x2460 && cp <= 0x2468);
}
static int is_alpha(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)uni_stand_in(cp));
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}
static int is_alnum(uint32_t cp) { return is_alpha(cp) || uni_is_numeric(cp); }

static int all_are(struct tpl *t, const struct str *s, int (*is)(uint32_t cp), int when_empty,
                   struct val *out)
{
    int all = s->n || when_empty;
    for (size_t i = 0; all && i < s->n;) {
        uint32_t cp;
        i += (size_t)utf8_next(s->p + i, s->n - i, &cp);
        all = is(cp);
    }
    *out = v_bool(all);
    return tpl_steps(t, s->n / 16);
}
FN(m_isspace)
{
    UNUSED;
    return all_are(t, self.u.s, is_space, 0, out);
}
FN(m_isascii)
{
    UNUSED;
    return all_are(t, self.u.s, is_ascii, 1, out);
}
FN(m_isdigit)
{
    UNUSED;
    return all_are(t, self.u.s, is_digit, 0, out);
}
FN(m_isdecimal)
{
    UNUSED;
    return all_are(t, self.u.s, is_decimal, 0, out);
}
FN(m_isnumeric)
{
    UNUSED;
    return all_are(t, self.u.s, uni_is_numeric, 0, out);
}
FN(m_isalpha)
{
    UNUSED;
    return all_are(t, self.u.s, is_alpha, 0, out);
}
FN(m_isalnum)
{
    UNUSED;
    return all_are(t, self.u.s, is_alnum, 0, out);
}

static int by_test(struct tpl *t, const char *test, struct val self, struct val *out)
{
    struct args none = { 0 };
    return fn_run(t, fn_find(tpl_tests, test, strlen(test)), self, &none, out);
}
FN(m_isupper)
{
    UNUSED;
    return by_test(t, "upper", self, out);
}
FN(m_islower)
{
    UNUSED;
    return by_test(t, "lower", self, out);
}

const char tpl_str_unsupported[] =
    "casefold encode expandtabs format_map isidentifier isprintable istitle maketrans translate";
const struct fn tpl_str_methods[] = {
    { "strip", "chars", 0, m_strip },
    { "lstrip", "chars", 0, m_lstrip },
    { "rstrip", "chars", 0, m_rstrip },
    { "upper", "", 0, m_upper },
    { "lower", "", 0, m_lower },
    { "title", "", 0, m_title },
    { "capitalize", "", 0, m_capitalize },
    { "swapcase", "", 0, m_swapcase },
    { "startswith", "prefix start end", 1, m_startswith },
    { "endswith", "suffix start end", 1, m_endswith },
    { "find", "sub start end", 1, m_find },
    { "rfind", "sub start end", 1, m_rfind },
    { "index", "sub start end", 1, m_index },
    { "rindex", "sub start end", 1, m_rindex },
    { "count", "sub start end", 1, m_count },
    { "split", "sep maxsplit", 0, m_split },
    { "rsplit", "sep maxsplit", 0, m_rsplit },
    { "splitlines", "keepends", 0, m_splitlines },
    { "partition", "sep", 1, m_partition },
    { "rpartition", "sep", 1, m_rpartition },
    { "join", "iterable", 1, m_join },
    { "replace", "old new count", 2, m_replace },
    { "format", NULL, 0, m_format },
    { "removeprefix", "prefix", 1, m_removeprefix },
    { "removesuffix", "suffix", 1, m_removesuffix },
    { "ljust", "width fillchar", 1, m_ljust },
    { "rjust", "width fillchar", 1, m_rjust },
    { "center", "width fillchar", 1, m_center },
    { "zfill", "width", 1, m_zfill },
    { "isspace", "", 0, m_isspace },
    { "isascii", "", 0, m_isascii },
    { "isdigit", "", 0, m_isdigit },
    { "isdecimal", "", 0, m_isdecimal },
    { "isnumeric", "", 0, m_isnumeric },
    { "isalpha", "", 0, m_isalpha },
    { "isalnum", "", 0, m_isalnum },
    { "isupper", "", 0, m_isupper },
    { "islower", "", 0, m_islower },
    { NULL },
};
