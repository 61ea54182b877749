/* json.c - calls written as JSON, and JSON values read byte by byte. See parse.h. */
#include "text/tools/parse.h"

#include <stdio.h>
#include <string.h>
#include "text/tok.h"

enum key_kind { KEY_OTHER, KEY_NAME, KEY_ARGUMENTS, KEY_FUNCTION };

/* ---- values ---- */

void json_add_escaped(struct buf *b, const char *s, size_t n)
{
    static const char plain[] = "\"\\\n\r\t\b\f", letter[] = "\"\\nrtbf";
    size_t from = 0;

    if (!n)
        return;
    for (size_t i = 0; i < n; i++) {
        const char *at = s[i] ? strchr(plain, s[i]) : NULL;
        char code[8];
        if (!at && (unsigned char)s[i] >= 0x20)
            continue;
        buf_add(b, s + from, i - from);
        from = i + 1;
        if (at)
            snprintf(code, sizeof code, "\\%c", letter[at - plain]);
        else
            snprintf(code, sizeof code, "\\u%04x", (unsigned)s[i]);
        buf_add(b, code, strlen(code));
    }
    buf_add(b, s + from, n - from);
}

/* The four hexadecimal digits at s; -1: they are none. */
static int hex4(const char *s)
{
    int x = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef", *d = s[i] ? strchr(digits, s[i] | 0x20) : NULL;
        if (!d)
            return -1;
        x = 16 * x + (int)(d - digits);
    }
    return x;
}

/* Appends the character of a \u escape at s, of n bytes or more. Returns its bytes; 0: more are needed. */
static size_t unescape_unicode(const char *s, size_t n, int final, struct buf *out)
{
    if (n < 6)
        return final ? n : 0;
    int x = hex4(s + 2), low = -1;
    if (x >= 0xD800 && x < 0xDC00) {
        if (n < 12 && !final)
            return 0;
        low = n >= 12 && s[6] == '\\' && s[7] == 'u' ? hex4(s + 8) : -1;
    }
    if (low >= 0xDC00 && low < 0xE000) {
        buf_add_cp(out, 0x10000 + (((uint32_t)x - 0xD800) << 10) + ((uint32_t)low - 0xDC00));
        return 12;
    }
    buf_add_cp(out, x < 0 || (x >= 0xD800 && x < 0xE000) ? 0xFFFD : (uint32_t)x);
    return 6;
}

/* Appends the text of a string's inside, up to its quote. */
static enum match read_string(struct tool_parser *p, struct buf *out)
{
    static const char letter[] = "nrtbf", plain[] = "\n\r\t\b\f";

    while (p->at < p->held.n) {
        const char *s = p->held.p + p->at;
        size_t n = p->held.n - p->at, used = 1;
        if (out == &p->name && out->n > NAME_BYTES)
            return NO;
        if (*s == '"') {
            p->at++;
            return YES;
        }
        if (*s != '\\') {
            buf_add(out, s, 1);
        } else if (n < 2) {
            return MORE;
        } else if (s[1] == 'u') {
            used = unescape_unicode(s, n, p->final, out);
            if (!used)
                return MORE;
        } else {
            const char *at = s[1] ? strchr(letter, s[1]) : NULL;
            buf_add(out, at ? &plain[at - letter] : s + 1, 1);
            used = 2;
        }
        p->at += used;
    }
    return MORE;
}

/* A byte of a list or object. 1: it may stand there. */
static int container_byte(struct json_value *v, char c, struct buf *out)
{
    if (v->string) {
        v->string = v->escaped || c != '"';
        v->escaped = !v->escaped && c == '\\';
        if ((unsigned char)c < 0x20)
            json_add_escaped(out, &c, 1); /* models write line ends as they are */
        else
            buf_add(out, &c, 1);
        return 1;
    }

    if (!c || !strchr("{}[]\",: \t\r\n+-.0123456789truefalsnE", c))
        return 0;
    v->string = c == '"';
    v->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    buf_add(out, &c, 1);
    return 1;
}

static int is_scalar(char c) { return c && strchr("+-.0123456789truefalsnE", c); }

static enum match value_begin(struct tool_parser *p, struct json_value *v)
{
    if (!parser_skip_space(p))
        return MORE;
    char c = p->held.p[p->at];
    v->kind = c == '{' || c == '[' ? '{' : c == '"' ? '"' : is_scalar(c) ? 'x' : 0;
    v->started = v->kind != 0;
    p->at += c == '"';
    return v->kind ? YES : NO;
}

enum match json_value_read(struct tool_parser *p, struct json_value *v, struct buf *out)
{
    if (!v->started) {
        enum match m = value_begin(p, v);
        if (m != YES)
            return m;
    }
    if (v->kind == '"')
        return read_string(p, out);
    while (p->at < p->held.n) {
        char c = p->held.p[p->at];
        if (v->kind == 'x' ? !is_scalar(c) : !container_byte(v, c, out))
            return v->kind == 'x' ? YES : NO;
        p->at++;
        if (v->kind == 'x')
            buf_add(out, &c, 1);
        else if (!v->depth)
            return YES;
    }
    return p->final && v->kind == 'x' ? YES : MORE;
}

/* ---- between the calls of a list, or alone ---- */

static enum progress begin_object(struct tool_parser *p)
{
    if (p->any)
        parser_take(p);
    p->at++;
    p->nested = p->has_arguments = p->committed = 0;
    p->name.n = p->early.n = 0;
    return parser_go(p, IN_JSON_KEY);
}

static enum progress leave(struct tool_parser *p)
{
    if (!p->any)
        return parser_not_a_call(p);
    parser_take(p);
    p->bare = 0;
    p->after_call = p->skip_space = 1;
    return parser_go(p, IN_TEXT);
}

enum progress json_between(struct tool_parser *p)
{
    const char *close = p->f->close;

    if (!parser_skip_space(p))
        return WAIT;
    enum match m = parser_past(p, close);
    if (m == MORE)
        return WAIT;
    if (m == YES) {
        p->any = 1; /* an empty list of calls is no content either */
        return leave(p);
    }

    switch (p->held.p[p->at]) {
    case '{': return begin_object(p);
    case '[':
        if (p->list || p->any)
            break;
        p->list = 1;
        p->at++;
        return GO;
    case ']':
        if (!p->list)
            break;
        p->list = 0;
        p->at++;
        return close ? GO : leave(p);
    case ',':
    case ';':
        if (!p->any)
            break;
        p->at++;
        return GO;
    }
    return leave(p);
}

/* ---- in a call's object ---- */

/* What was read is not JSON, or no call. */
static enum progress bad(struct tool_parser *p)
{
    if (!p->committed)
        return parser_not_a_call(p);
    parser_end_call(p);
    p->list = 0;
    return parser_go(p, IN_JSON);
}

static enum key_kind kind_of(const char *s, size_t n)
{
    static const struct {
        const char *text;
        enum key_kind kind;
    } keys[] = {
        { "name", KEY_NAME },           { "tool_name", KEY_NAME },
        { "arguments", KEY_ARGUMENTS }, { "parameters", KEY_ARGUMENTS },
        { "function", KEY_FUNCTION },
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (n == strlen(keys[i].text) && !memcmp(s, keys[i].text, n))
            return keys[i].kind;
    return KEY_OTHER;
}

static enum progress end_object(struct tool_parser *p)
{
    p->at++;
    if (p->nested) {
        p->nested--;
        return GO;
    }
    if (!p->committed)
        return bad(p);
    parser_end_call(p);
    return parser_go(p, IN_JSON);
}

static enum progress key_step(struct tool_parser *p)
{
    for (; parser_skip_space(p) && p->held.p[p->at] == ','; p->at++)
        ;
    if (p->at == p->held.n)
        return WAIT;
    if (p->held.p[p->at] == '}')
        return end_object(p);
    if (p->held.p[p->at] != '"')
        return bad(p);

    const char *s = p->held.p + p->at + 1;
    size_t n = 0, have = p->held.n - p->at - 1;
    while (n < have && s[n] != '"' && n <= NAME_BYTES)
        n++;
    if (n > NAME_BYTES)
        return bad(p);
    if (n == have)
        return WAIT;
    p->key_kind = (int)kind_of(s, n);
    if (p->key_kind == KEY_OTHER && p->f->flags & CALL_KEYED && !p->committed) {
        p->name.n = 0;
        buf_add(&p->name, s, n);
        p->at += n + 2;
        if (!parser_commit(p))
            return bad(p);
        p->key_kind = KEY_ARGUMENTS;
        return parser_go(p, IN_JSON_COLON);
    }
    p->at += n + 2;
    return parser_go(p, IN_JSON_COLON);
}

static enum progress colon_step(struct tool_parser *p)
{
    if (!parser_skip_space(p))
        return WAIT;
    if (p->held.p[p->at] != ':')
        return bad(p);
    p->at++;
    p->json = (struct json_value){ 0 };
    p->value.n = 0;
    return parser_go(p, IN_JSON_VALUE);
}

/* Chooses who reads a value. */
static enum progress value_step(struct tool_parser *p)
{
    if (!parser_skip_space(p))
        return WAIT;
    char c = p->held.p[p->at];

    if (p->key_kind == KEY_FUNCTION && c == '{') {
        p->nested++;
        p->at++;
        return parser_go(p, IN_JSON_KEY);
    }
    if ((p->key_kind == KEY_NAME || p->key_kind == KEY_FUNCTION) && !p->committed && c == '"')
        return parser_go(p, IN_JSON_NAME);
    if (p->key_kind == KEY_ARGUMENTS && !p->has_arguments) {
        p->has_arguments = 1;
        return parser_go(p, IN_JSON_ARGUMENTS);
    }
    return parser_go(p, IN_JSON_OTHER);
}

enum progress json_step(struct tool_parser *p)
{
    struct buf *to = p->state == IN_JSON_NAME        ? &p->name
                     : p->state == IN_JSON_ARGUMENTS ? parser_arguments(p)
                                                     : &p->value;
    switch (p->state) {
    case IN_JSON_KEY: return key_step(p);
    case IN_JSON_COLON: return colon_step(p);
    case IN_JSON_VALUE: return value_step(p);
    default: break;
    }

    enum match m = json_value_read(p, &p->json, to);
    if (p->committed)
        parser_take(p);
    if (m == NO || (to == &p->name && p->name.n > NAME_BYTES))
        return bad(p);
    if (m == MORE)
        return WAIT;
    if (p->state == IN_JSON_NAME && !parser_commit(p))
        return bad(p);
    return parser_go(p, IN_JSON_KEY);
}
