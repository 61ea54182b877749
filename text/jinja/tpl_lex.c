/* tpl_lex.c - splits the source of a template into tokens. White space around tags is removed as by Jinja
 * with trim_blocks and lstrip_blocks:
 *
 *     {%- … -%}   '-' removes all white space on its side (of {{ }} and {# #} too)
 *     {% … %}\n   a tag or comment removes the line end behind it, and the blanks in front of it if nothing
 *                 else is on its line
 *     {%+ … +%}   '+' keeps them */
#include "text/jinja/tpl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "text/tok.h"

struct lexer {
    struct tpl *t;
    const char *s;
    size_t n, at;
    /* the tag before removed a line end: the text here is at the start of a line */
    int new_line;
    struct tpl_tokens *out;
    char open[TPL_PARSE_DEPTH]; /* brackets */
    int n_open;
};

static int at_text(const struct lexer *l, size_t i, const char *text)
{
    size_t n = strlen(text);
    return l->n - i >= n && !memcmp(l->s + i, text, n);
}

static int add(struct lexer *l, enum tok_kind kind, const char *p, size_t n, struct val v)
{
    struct tpl_tokens *o = l->out;
    if (o->n == o->cap) {
        size_t cap = o->cap ? 2 * o->cap : 64;
        struct tpl_token *q = tpl_alloc(l->t, cap * sizeof *q);
        if (!q)
            return l->t->failed;
        if (o->n)
            memcpy(q, o->v, o->n * sizeof *q);
        o->v = q;
        o->cap = cap;
    }
    o->v[o->n++] = (struct tpl_token){ kind, l->t->line, p, n, v };
    return 0;
}

static void step_over(struct lexer *l, size_t to)
{
    for (; l->at < to; l->at++)
        l->t->line += l->s[l->at] == '\n';
}

static size_t blanks_behind(const struct lexer *l, size_t i)
{
    uint32_t cp;
    while (i < l->n) {
        int len = utf8_next(l->s + i, l->n - i, &cp);
        if (!py_is_space(cp))
            break;
        i += (size_t)len;
    }
    return i;
}

/* The end of the text [from, to) in front of a tag, after its white space is removed. */
static size_t text_end(const struct lexer *l, size_t from, size_t to, int variable)
{
    struct str s = { l->s + from, NULL, to - from, 0 };
    char sign = to + 2 < l->n ? l->s[to + 2] : 0;
    if (sign == '-')
        return from + strip_right(&s, NULL, 0);
    if (sign == '+' || variable)
        return to;
    size_t line = to;
    while (line > from && l->s[line - 1] != '\n')
        line--;
    if (line == from && !l->new_line)
        return to;
    s = (struct str){ l->s + line, NULL, to - line, 0 };
    return strip_right(&s, NULL, 0) == 0 ? line : to;
}

/* If a tag ends with close ("%}", "#}") at i, returns the byte behind it and the white space it removes;
 * else 0. */
static size_t tag_end(const struct lexer *l, size_t i, const char *close, int takes_line)
{
    if (at_text(l, i, close))
        return i + 2 + (takes_line && at_text(l, i + 2, "\n"));
    if (l->s[i] == '-' && at_text(l, i + 1, close))
        return blanks_behind(l, i + 3);
    return takes_line && l->s[i] == '+' && at_text(l, i + 1, close) ? i + 3 : 0;
}

static size_t skip_sign(const struct lexer *l, size_t i)
{
    return i + (i < l->n && (l->s[i] == '-' || l->s[i] == '+'));
}

/* If the tag "{% word" is at i, returns the byte behind word and blanks; else 0. */
static size_t tag_word(const struct lexer *l, size_t i, const char *word)
{
    if (!at_text(l, i, "{%"))
        return 0;
    i = blanks_behind(l, skip_sign(l, i + 2));
    return at_text(l, i, word) ? blanks_behind(l, i + strlen(word)) : 0;
}

static int lex_data(struct lexer *l, size_t from, size_t to)
{
    return to > from ? add(l, T_DATA, l->s + from, to - from, v_none()) : 0;
}

static int lex_comment(struct lexer *l)
{
    size_t i = skip_sign(l, l->at + 2), end = 0;
    while (i < l->n && !(end = tag_end(l, i, "#}", 1)))
        i++;
    if (!end)
        return tpl_fail(l->t, ERR_CONFIG, "a comment {# is not closed: #} is missing");
    step_over(l, end);
    return 0;
}

/* Returns 1: it was {% raw %}, and its text is added; 0: another tag. */
static int lex_raw(struct lexer *l)
{
    size_t i = tag_word(l, l->at, "raw");
    size_t end = !i ? 0 : at_text(l, i, "%}") ? i + 2 : at_text(l, i, "-%}") ? blanks_behind(l, i + 3) : 0;
    if (!end)
        return 0;
    l->new_line = l->s[end - 1] == '\n';
    step_over(l, end);
    for (i = l->at; i < l->n; i++) {
        size_t behind = tag_word(l, i, "endraw");
        if (!behind || behind >= l->n || !(end = tag_end(l, behind, "%}", 1)))
            continue;
        RETURN_IF_ERROR(lex_data(l, l->at, text_end(l, l->at, i, 0)));
        step_over(l, end);
        return 1;
    }
    return tpl_fail(l->t, ERR_CONFIG, "{%% raw %%} is not closed: {%% endraw %%} is missing");
}

/* --- inside of a tag --- */

static uint32_t hex(const char *s, size_t n, int *ok)
{
    uint32_t v = 0;
    for (size_t i = 0; i < n; i++) {
        const char *digits = "0123456789abcdef", *d = s[i] ? strchr(digits, s[i] | 32) : NULL;
        if (!d || (s[i] < '0'))
            *ok = 0;
        else
            v = v << 4 | (uint32_t)(d - digits);
    }
    return v;
}

/* Reads the escape behind a backslash, at i, of a string that ends at to. Returns its bytes; *ok becomes 0
 * if it stands for no character. */
static size_t escape(struct lexer *l, struct sb *b, size_t i, size_t to, int *ok)
{
    static const char from[] = "nrtabfv\\'\"", by[] = "\n\r\t\a\b\f\v\\'\"";
    char c = l->s[i];
    const char *k = strchr(from, c);
    size_t n = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t cp;

    if (c && k) {
        sb_add(b, by + (k - from), 1, NULL);
        return 1;
    }

    if (c == '\n')
        return 1;
    if (n) {
        *ok &= to - i > n;
        cp = *ok ? hex(l->s + i + 1, n, ok) : 0;
        *ok &= cp < 0x110000 && (cp < 0xD800 || cp > 0xDFFF);
        if (*ok)
            sb_cp(b, cp, 0);
        return n + 1;
    }

    if (c >= '0' && c <= '7') {
        for (n = 0, cp = 0; n < 3 && i + n < to && l->s[i + n] >= '0' && l->s[i + n] <= '7'; n++)
            cp = cp * 8 + (uint32_t)(l->s[i + n] - '0');
        sb_cp(b, cp, 0);
        return n;
    }

    if (c == 'N')
        *ok = 0;
    sb_text(b, "\\");
    int len = utf8_next(l->s + i, to - i, &cp);
    if (len == 1) {
        sb_add(b, &c, 1, NULL);
    } else { /* Jinja encodes the string as ASCII before it reads escapes */
        char shown[16];
        snprintf(shown, sizeof shown, cp < 0x100 ? "x%02x" : cp < 0x10000 ? "u%04x" : "U%08x", cp);
        sb_text(b, shown);
    }
    return (size_t)len;
}

static int lex_string(struct lexer *l)
{
    size_t from = l->at + 1, to = from;
    char quote = l->s[l->at];
    struct sb b = { .t = l->t };
    struct val v;
    int ok = 1;

    while (to < l->n && l->s[to] != quote)
        to += l->s[to] == '\\' ? 2 : 1;
    if (to >= l->n)
        return tpl_fail(l->t, ERR_CONFIG, "a string is not closed: %c is missing", quote);
    for (size_t i = from; i < to;) {
        size_t plain = i;
        while (i < to && l->s[i] != '\\')
            i++;
        sb_add(&b, l->s + plain, i - plain, NULL);
        if (i < to)
            i += 1 + escape(l, &b, i + 1, to, &ok);
    }

    if (!ok)
        return tpl_fail(
            l->t, ERR_CONFIG,
            "a string with an escape that stands for no character: \\x, \\u and \\U take 2, 4 and 8 digits");
    RETURN_IF_ERROR(sb_done(&b, &v));
    RETURN_IF_ERROR(add(l, T_STR, l->s + from, to - from, v));
    step_over(l, to + 1);
    return 0;
}

static size_t digits(const struct lexer *l, size_t i, int base)
{
    size_t from = i;
    for (; i < l->n; i++) {
        unsigned char c = (unsigned char)(l->s[i] | 32);
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
        if (l->s[i] == '_' && i > from && i + 1 < l->n && l->s[i - 1] != '_')
            continue;
        if (d >= base || l->s[i] == '_')
            break;
    }
    return i > from && l->s[i - 1] == '_' ? i - 1 : i;
}

static int lex_number(struct lexer *l)
{
    char text[128], kind = l->at + 1 < l->n ? l->s[l->at + 1] | 32 : 0, *rest;
    int base = l->s[l->at] != '0' ? 10
               : kind == 'x'      ? 16
               : kind == 'o'      ? 8
               : kind == 'b'      ? 2
                                  : 10,
        is_float = 0;
    size_t from = l->at, to = digits(l, base == 10 ? from : from + 2, base), n = 0;
    /* a digit behind the dot of a subscript (a.0.1) is not a fraction */
    int after_dot = from > 0 && l->s[from - 1] == '.';

    if (base == 10 && !after_dot && to + 1 < l->n && l->s[to] == '.' && digits(l, to + 1, 10) > to + 1) {
        to = digits(l, to + 1, 10);
        is_float = 1;
    }

    if (base == 10 && !after_dot && to < l->n && (l->s[to] | 32) == 'e') {
        size_t i = skip_sign(l, to + 1);
        if (i < l->n && digits(l, i, 10) > i) {
            to = digits(l, i, 10);
            is_float = 1;
        }
    }

    /* Jinja reads 007 as 00 and 7, which is a syntax error: take the zeros only */
    if (base == 10 && !is_float && l->s[from] == '0')
        for (to = from; to < l->n && l->s[to] == '0';)
            to++;
    for (size_t i = from + (base == 10 ? 0 : 2); i < to && n + 1 < sizeof text; i++)
        if (l->s[i] != '_')
            text[n++] = l->s[i];
    text[n] = 0;
    errno = 0;
    struct val v = is_float ? v_float(strtod(text, &rest)) : v_int(strtoll(text, &rest, base));
    if (!n || *rest || n + 1 == sizeof text || (errno == ERANGE && !is_float))
        return tpl_fail(l->t, ERR_CONFIG, "a number of more than 64 bits, or none: %.40s", text);
    RETURN_IF_ERROR(add(l, is_float ? T_FLOAT : T_INT, l->s + from, to - from, v));
    step_over(l, to);
    return 0;
}

static int lex_name(struct lexer *l, size_t to)
{
    uint32_t cp;
    while (to < l->n) {
        int len = utf8_next(l->s + to, l->n - to, &cp);
        if (!uni_is_word(cp))
            break;
        to += (size_t)len;
    }
    RETURN_IF_ERROR(add(l, T_NAME, l->s + l->at, to - l->at, v_none()));
    step_over(l, to);
    return 0;
}

static int lex_operator(struct lexer *l)
{
    static const char *const two[] = { "//", "**", "==", "!=", ">=", "<=" };
    char c = l->s[l->at];
    size_t n = 1;

    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (at_text(l, l->at, two[i]))
            n = 2;
    if (n == 1 && (!c || !strchr("+-/*%~[](){}><=.:|,;", c)))
        return tpl_fail(l->t, ERR_CONFIG, "unexpected character '%c' (0x%02x)", c >= 32 && c < 127 ? c : '?',
                        (unsigned char)c);
    if (strchr("([{", c)) {
        if (l->n_open == TPL_PARSE_DEPTH)
            return tpl_fail(l->t, ERR_CONFIG, "more than %d nested brackets", TPL_PARSE_DEPTH);
        l->open[l->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (!l->n_open || l->open[l->n_open - 1] != c)
            return tpl_fail(l->t, ERR_CONFIG, "unexpected '%c'", c);
        l->n_open--;
    }

    RETURN_IF_ERROR(add(l, T_OP, l->s + l->at, n, v_none()));
    step_over(l, l->at + n);
    return 0;
}

static int lex_tag(struct lexer *l, int variable)
{
    int line = l->t->line;
    RETURN_IF_ERROR(add(l, variable ? T_VAR : T_BLOCK, l->s + l->at, 2, v_none()));
    step_over(l, skip_sign(l, l->at + 2));
    while (l->at < l->n) {
        size_t end = l->n_open ? 0 : tag_end(l, l->at, variable ? "}}" : "%}", !variable),
               behind = blanks_behind(l, l->at);
        unsigned char c = (unsigned char)l->s[l->at];
        uint32_t cp = 0;
        if (end) {
            RETURN_IF_ERROR(add(l, variable ? T_VAR_END : T_BLOCK_END, l->s + l->at, 2, v_none()));
            step_over(l, end);
            l->new_line = l->s[end - 1] == '\n';
            return 0;
        }
        int len = utf8_next(l->s + l->at, l->n - l->at, &cp);
        if (behind > l->at)
            step_over(l, behind);
        else if (c >= '0' && c <= '9')
            RETURN_IF_ERROR(lex_number(l));
        else if (uni_is_word(cp))
            RETURN_IF_ERROR(lex_name(l, l->at + (size_t)len));
        else if (c == '\'' || c == '"')
            RETURN_IF_ERROR(lex_string(l));
        else
            RETURN_IF_ERROR(lex_operator(l));
    }
    return tpl_fail(l->t, ERR_CONFIG, "a tag of line %d is not closed", line);
}

/* --- the whole source --- */

static size_t next_tag(const struct lexer *l)
{
    for (size_t i = l->at; i + 1 < l->n; i++)
        if (l->s[i] == '{' && (l->s[i + 1] == '{' || l->s[i + 1] == '%' || l->s[i + 1] == '#'))
            return i;
    return l->n;
}

static int lex_all(struct lexer *l)
{
    while (l->at < l->n) {
        size_t tag = next_tag(l);
        int variable = tag < l->n && l->s[tag + 1] == '{';
        RETURN_IF_ERROR(lex_data(l, l->at, tag < l->n ? text_end(l, l->at, tag, variable) : tag));
        step_over(l, tag);
        if (tag == l->n)
            break;
        l->new_line = 0;
        if (l->s[tag + 1] == '#') {
            RETURN_IF_ERROR(lex_comment(l));
        } else if (variable) {
            RETURN_IF_ERROR(lex_tag(l, 1));
            continue;
        } else {
            int raw;
            RETURN_IF_ERROR(raw = lex_raw(l));
            if (!raw) {
                RETURN_IF_ERROR(lex_tag(l, 0));
                continue;
            }
        }
        l->new_line = l->s[l->at - 1] == '\n';
    }
    return add(l, T_END, "", 0, v_none());
}

/* Copies the source with \n as line end and without the last line end. */
static char *one_line_end(struct tpl *t, const char *s, size_t n, size_t *n_out)
{
    char *q = tpl_alloc(t, n + 1);
    size_t k = 0;
    for (size_t i = 0; q && i < n; i++) {
        if (s[i] == '\r' && i + 1 < n && s[i + 1] == '\n')
            continue;
        q[k++] = s[i] == '\r' ? '\n' : s[i];
    }
    *n_out = k > 0 && q[k - 1] == '\n' ? k - 1 : k;
    return q;
}

int tpl_lex(struct tpl *t, const char *s, size_t n, struct tpl_tokens *out)
{
    struct lexer l = { .t = t, .out = out, .new_line = 1 };
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = utf8_next(s + i, n - i, &cp);
        if (len <= 0)
            return tpl_fail(t, ERR_CONFIG, "byte %zu of the template is not UTF-8", i);
        i += (size_t)len;
    }
    if (!(l.s = one_line_end(t, s, n, &l.n)))
        return t->failed;
    return lex_all(&l);
}
