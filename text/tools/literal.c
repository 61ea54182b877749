/* literal.c - calls and values as Python writes them, or Gemma: their literals become JSON. See parse.h. */
#include "text/tools/parse.h"

#include <string.h>

#define WORD_BYTES 1024 /* of a word and the space behind it: what is longer is none */
#define GEMMA_QUOTE "<|\"|>"

/* The text that is read, and what is known of its end. */
struct input {
    const char *s;
    size_t n, at;
    int final;
};

static int is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static enum match match_at(const struct input *in, size_t at, const char *text)
{
    size_t n = strlen(text), have = in->n - at;
    if (have >= n)
        return memcmp(in->s + at, text, n) ? NO : YES;
    return in->final || memcmp(in->s + at, text, have) ? NO : MORE;
}

void literal_begin_call(struct literal *l, int gemma)
{
    *l = (struct literal){ .depth = 1, .gemma = gemma, .call = 1, .objects = 2 };
}

/* ---- strings ---- */

/* An escape of Python, at in->at. 0: more bytes are needed. */
static int read_escape(struct input *in, struct buf *out)
{
    static const char letter[] = "ntrbf", plain[] = "\n\t\r\b\f";
    const char *s = in->s + in->at;
    size_t have = in->n - in->at;

    if (have < 2)
        return 0;
    size_t need = s[1] == 'u' ? 6U : s[1] == 'x' ? 4U : 2U;
    if (have < need && !in->final)
        return 0;
    need = have < need ? 2 : need;
    const char *at = s[1] ? strchr(letter, s[1]) : NULL;
    int hex = need > 2 && strspn(s + 2, "0123456789abcdefABCDEF") >= need - 2;

    if (hex) {
        buf_add(out, need == 4 ? "\\u00" : "\\u", need == 4 ? 4 : 2);
        buf_add(out, s + 2, need - 2);
    } else {
        need = 2;
        if (s[1] != '\n')
            json_add_escaped(out, at ? &plain[at - letter] : s + 1, 1);
    }
    in->at += need;
    return 1;
}

/* Reads in a string, up to its quote. */
static enum match read_quoted(struct literal *l, struct input *in, struct buf *out)
{
    while (in->at < in->n) {
        char c = in->s[in->at];
        enum match end = l->quote == 'g' ? match_at(in, in->at, GEMMA_QUOTE) : c == l->quote ? YES : NO;
        if (end == MORE)
            return MORE;
        if (end == YES) {
            in->at += l->quote == 'g' ? strlen(GEMMA_QUOTE) : 1;
            l->quote = 0;
            buf_add(out, "\"", 1);
            return YES;
        }
        if (c == '\\' && l->quote != 'g') {
            if (!read_escape(in, out))
                return MORE;
            continue;
        }
        json_add_escaped(out, &c, 1);
        in->at++;
    }
    return MORE;
}

/* ---- words: numbers, constants, names ---- */

static int is_number(const char *s, size_t n)
{
    size_t i = n && *s == '-', whole = i;

    while (i < n && s[i] >= '0' && s[i] <= '9')
        i++;
    if (i == whole || (i - whole > 1 && s[whole] == '0'))
        return 0;
    if (i < n && s[i] == '.') {
        size_t from = ++i;
        while (i < n && s[i] >= '0' && s[i] <= '9')
            i++;
        if (i == from)
            return 0;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i += 1 + (i + 1 < n && (s[i + 1] == '+' || s[i + 1] == '-'));
        size_t from = i;
        while (i < n && s[i] >= '0' && s[i] <= '9')
            i++;
        if (i == from)
            return 0;
    }
    return i == n;
}

static void write_word(const char *s, size_t n, int is_key, struct buf *out)
{
    static const char *const words[][2] = { { "True", "true" }, { "False", "false" }, { "None", "null" },
                                            { "true", "true" }, { "false", "false" }, { "null", "null" } };
    for (size_t i = 0; !is_key && i < sizeof words / sizeof *words; i++)
        if (n == strlen(words[i][0]) && !memcmp(s, words[i][0], n)) {
            buf_add(out, words[i][1], strlen(words[i][1]));
            return;
        }
    if (!is_key && is_number(s, n)) {
        buf_add(out, s, n);
        return;
    }
    buf_add(out, "\"", 1);
    json_add_escaped(out, s, n);
    buf_add(out, "\"", 1);
}

static void write_comma(struct literal *l, struct buf *out)
{
    if (l->comma)
        buf_add(out, ", ", 2);
    l->comma = 0;
}

/* The word at in->at; a colon or = behind it makes it a key. */
static enum match read_word(struct literal *l, struct input *in, struct buf *out)
{
    size_t last = in->at + WORD_BYTES < in->n ? in->at + WORD_BYTES : in->n, end = in->at, next;

    while (end < last && !is_space(in->s[end]) && !strchr(",:=()[]{}'\"<", in->s[end]))
        end++;
    for (next = end; next < last && is_space(in->s[next]);)
        next++;
    if (next == in->n && !in->final && next < in->at + WORD_BYTES)
        return MORE;
    if (end == in->at || end == in->at + WORD_BYTES)
        return NO;
    int is_key = next < last && (in->s[next] == ':' || in->s[next] == '=');
    write_comma(l, out);
    write_word(in->s + in->at, end - in->at, is_key, out);
    in->at = next;
    return YES;
}

/* ---- brackets ---- */

static enum match open_bracket(struct literal *l, struct input *in, struct buf *out)
{
    int object = in->s[in->at] == '{';

    if (l->depth == LITERAL_DEPTH - 1)
        return NO;
    write_comma(l, out);
    l->depth++;
    l->objects = (l->objects & ~(1ULL << l->depth)) | (unsigned long long)object << l->depth;
    buf_add(out, object ? "{" : "[", 1);
    in->at++;
    return YES;
}

static void close_bracket(struct literal *l, struct input *in, struct buf *out)
{
    buf_add(out, l->objects >> l->depth & 1 ? "}" : "]", 1);
    l->depth--;
    l->comma = 0;
    in->at++;
}

/* Begins a string. */
static void begin_quoted(struct literal *l, struct input *in, char quote, struct buf *out)
{
    write_comma(l, out);
    buf_add(out, "\"", 1);
    l->quote = quote;
    in->at += quote == 'g' ? strlen(GEMMA_QUOTE) : 1;
}

/* One token. YES: it was read. */
static enum match read_token(struct literal *l, struct input *in, struct buf *out)
{
    char c = in->s[in->at];

    if (l->quote)
        return read_quoted(l, in, out);
    switch (c) {
    case '(':
    case '[':
    case '{': return open_bracket(l, in, out);
    case ')':
    case ']':
    case '}': close_bracket(l, in, out); return YES;
    case ',':
        l->comma = 1;
        in->at++;
        return YES;
    case ':':
    case '=':
        buf_add(out, ": ", 2);
        in->at++;
        return YES;
    case '"':
    case '\'': begin_quoted(l, in, c, out); return YES;
    case '<': {
        enum match m = match_at(in, in->at, GEMMA_QUOTE);
        if (m == YES)
            begin_quoted(l, in, 'g', out);
        return m;
    }
    default: break;
    }
    if (is_space(c)) {
        in->at++;
        return YES;
    }
    return read_word(l, in, out);
}

enum match literal_read(struct literal *l, const char *s, size_t n, int final, size_t *used, struct buf *out)
{
    struct input in = { s, n, 0, final };
    enum match m = YES;

    do
        m = in.at < n ? read_token(l, &in, out) : MORE;
    while (m == YES && (l->depth > 0 || l->quote));
    *used = in.at;
    return m;
}

/* ---- calls ---- */

/* The mark that opens a call's arguments. */
static char bracket(const struct tool_parser *p) { return p->f->form == FORM_GEMMA ? '{' : '('; }

static enum progress leave(struct tool_parser *p)
{
    if (!p->any)
        return parser_not_a_call(p);
    parser_take(p);
    p->bare = 0;
    p->after_call = p->skip_space = 1;
    return parser_go(p, IN_TEXT);
}

/* What may stand before a name besides space. YES: it was read; NO: it is none of that. */
static enum match before_name(struct tool_parser *p)
{
    const char *marks[] = { p->f->close, p->f->begin };
    char c = p->held.p[p->at];

    for (size_t k = 0; k < 2; k++) {
        enum match m = parser_past(p, marks[k]);
        if (m == NO)
            continue;
        if (m == YES && k == 0) {
            p->any = 1;
            leave(p);
        }
        return m;
    }

    if (p->f->form == FORM_GEMMA || (c != '[' && c != ']' && c != ',' && c != ';'))
        return NO;
    if (c == '[' ? p->list || p->any : c == ']' ? !p->list : !p->any)
        return NO;
    p->list = c == '[' || (p->list && c != ']');
    p->at++;
    if (c == ']' && !p->f->close)
        leave(p);
    return YES;
}

static enum progress name_step(struct tool_parser *p)
{
    size_t n = 0;

    if (!parser_skip_space(p))
        return WAIT;
    if (p->any)
        parser_take(p);
    enum match m = before_name(p);
    if (m != NO)
        return m == MORE ? WAIT : GO;

    const char *s = p->held.p + p->at;
    size_t have = p->held.n - p->at;
    while (n < have && n <= NAME_BYTES && s[n] != bracket(p) && !strchr(" \n\t()[]{}<>,=:;'\"", s[n]))
        n++;
    if (n == have && !p->final)
        return WAIT;
    if (n == have || s[n] != bracket(p))
        return leave(p);
    p->name.n = 0;
    buf_add(&p->name, s, n);
    p->at += n + 1;
    if (!parser_commit(p))
        return parser_not_a_call(p);
    buf_add(parser_arguments(p), "{", 1);
    literal_begin_call(&p->lit, p->f->form == FORM_GEMMA);
    return parser_go(p, IN_LITERAL);
}

enum progress literal_step(struct tool_parser *p)
{
    size_t used = 0;

    if (p->state == IN_LITERAL_NAME)
        return name_step(p);
    enum match m = literal_read(&p->lit, p->held.p + p->at, p->held.n - p->at, p->final, &used,
                                parser_arguments(p));
    p->at += used;
    parser_take(p);
    if (m == MORE)
        return WAIT;
    parser_end_call(p);
    return parser_go(p, IN_LITERAL_NAME);
}
