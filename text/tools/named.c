/* named.c - calls that begin with a name: JSON follows, or parameters one by one. See parse.h. */
#include "text/tools/parse.h"

#include <string.h>

static int is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || (c & 0x80);
}

/* ---- the name ---- */

/* Finds the end of a name at p->at. YES: it has *n bytes, and *mark more end it. */
static enum match find_name(struct tool_parser *p, size_t *n, size_t *mark)
{
    const char *end = p->f->name_end;
    int which;

    *mark = end ? strlen(end) : 0;
    if (end) {
        enum match m = parser_find(p, &end, 1, n, &which);
        if (*n > NAME_BYTES) /* the same where its end is there already */
            return NO;
        return m == YES ? YES : p->final ? NO : MORE;
    }
    for (*n = 0; *n < p->held.n - p->at && is_name_char(p->held.p[p->at + *n]); ++*n)
        if (*n > NAME_BYTES)
            return NO;
    if (*n == p->held.n - p->at && !p->final)
        return MORE;
    return *n ? YES : NO;
}

/* Where in s[n] `text` begins; n: nowhere. */
static size_t find_in(const char *s, size_t n, const char *text)
{
    size_t len = strlen(text);
    for (size_t i = 0; i + len <= n; i++)
        if (!memcmp(s + i, text, len))
            return i;
    return n;
}

/* p->name from the n bytes at s, which may have an id, functions. and a number. 0: it is no name. */
static int set_name(struct tool_parser *p, const char *s, size_t n)
{
    const struct tool_family *f = p->f;
    const char *prefix = "functions.";

    if (f->id_end) {
        size_t id = find_in(s, n, f->id_end), past = id + strlen(f->id_end);
        if (f->flags & CALL_ID) { /* the id comes first */
            if (id == n)
                return 0;
            s += past;
            n -= past;
        } else {
            n = id;
        }
    }
    while (n && (*s == ' ' || *s == '\n')) {
        s++;
        n--;
    }
    while (n && (s[n - 1] == ' ' || s[n - 1] == '\n'))
        n--;
    if (f->flags & CALL_COUNTED) {
        for (size_t i = n; i > 0 && ((s[i - 1] >= '0' && s[i - 1] <= '9') || s[i - 1] == ':'); i--)
            n = s[i - 1] == ':' ? i - 1 : n;
        if (n > strlen(prefix) && !memcmp(s, prefix, strlen(prefix))) {
            s += strlen(prefix);
            n -= strlen(prefix);
        }
    }

    p->name.n = 0;
    buf_add(&p->name, s, n);
    for (size_t i = 0; i < n; i++)
        if (!is_name_char(s[i]))
            return 0;
    return n > 0;
}

/* A message of functionary to all is content. */
static enum progress talk(struct tool_parser *p)
{
    parser_take(p);
    p->skip_space = 0;
    return parser_go(p, IN_TEXT);
}

static enum progress name_step(struct tool_parser *p)
{
    size_t n, mark;

    if (!parser_skip_space(p))
        return WAIT;
    char c = p->held.p[p->at];
    if (p->f->keys[0] && (c == '[' || c == '{')) /* an older model of the family writes objects */
        return parser_go(p, IN_JSON);
    enum match m = find_name(p, &n, &mark);
    if (m == MORE)
        return WAIT;
    if (m == NO || !set_name(p, p->held.p + p->at, n))
        return parser_not_a_call(p);
    p->at += n + mark;
    if (p->f->flags & CALL_TALK && p->name.n == 3 && !memcmp(p->name.p, "all", 3))
        return talk(p);
    if (!parser_commit(p))
        return parser_not_a_call(p);
    return parser_go(p, p->f->form == FORM_PARAMS ? IN_PARAMS : IN_ARGUMENTS);
}

/* ---- JSON behind it ---- */

static enum progress arguments_step(struct tool_parser *p)
{
    const char *fence = p->f->fence;

    if (!p->json.started) {
        if (!parser_skip_space(p))
            return WAIT;
        enum match m = fence ? parser_match(p, 0, fence) : NO;
        if (m == MORE)
            return WAIT;
        if (m == YES) {
            p->at += strlen(fence);
            return GO;
        }
    }
    enum match m = json_value_read(p, &p->json, parser_arguments(p));
    parser_take(p);
    return m == MORE ? WAIT : parser_go(p, IN_CALL_END);
}

/* The mark behind a call, which may be missing. */
static enum progress end_step(struct tool_parser *p)
{
    const char *marks[] = { p->f->fence ? "```" : NULL, p->f->end };

    if (!parser_skip_space(p))
        return WAIT;
    for (size_t k = 0; k < 2; k++) {
        enum match m = parser_past(p, marks[k]);
        if (m == MORE)
            return WAIT;
        if (m == YES && k == 0)
            return GO;
        if (m == YES)
            break;
    }
    parser_end_call(p);
    return parser_go(p, IN_SECTION);
}

enum progress named_step(struct tool_parser *p)
{
    if (p->state == IN_NAME)
        return name_step(p);
    return p->state == IN_ARGUMENTS ? arguments_step(p) : end_step(p);
}

/* ---- parameters behind it ---- */

void params_close(struct tool_parser *p)
{
    struct buf *a = parser_arguments(p);

    buf_add(a, p->n_params ? "}" : "{}", p->n_params ? 1 : 2);
}

static enum progress end_params(struct tool_parser *p)
{
    params_close(p);
    parser_end_call(p);
    return parser_go(p, IN_SECTION);
}

/* Between parameters. */
static enum progress next_param(struct tool_parser *p)
{
    const struct tool_family *f = p->f;
    const char *marks[] = { f->param[0], f->end, f->close, f->begin };
    enum match m = NO;
    int k = 0;

    if (!parser_skip_space(p))
        return WAIT;
    for (; k < 4 && m == NO; k++)
        m = marks[k] ? parser_match(p, 0, marks[k]) : NO;
    if (m == MORE)
        return WAIT;
    if (m == NO) { /* not written as it should be: left out */
        p->at++;
        parser_take(p);
        return GO;
    }
    if (k == 1 || k == 2)
        p->at += strlen(marks[k - 1]);
    parser_take(p);
    return k == 1 ? parser_go(p, IN_PARAM_NAME) : end_params(p);
}

static enum progress param_name(struct tool_parser *p)
{
    size_t off;
    int which;
    enum match m = parser_find(p, &p->f->param[1], 1, &off, &which);

    if (off > NAME_BYTES) {
        parser_take(p);
        return parser_go(p, IN_PARAMS);
    }
    if (m != YES)
        return WAIT;

    const char *s = p->held.p + p->at;
    size_t n = off;
    p->types = 0;
    if (p->f->flags & CALL_TYPED) { /* NAME" string="true */
        n = find_in(s, off, "\"");
        p->types = find_in(s, off, "string=\"true") < off ? TYPE_STRING : ~(unsigned)TYPE_STRING;
    }
    p->key.n = 0;
    buf_add(&p->key, s, n);
    if (!p->types && p->text.n_calls && !p->drop_call)
        p->types = tool_types(p->how.tools, &p->text.call[p->text.n_calls - 1].name, &p->key);
    p->at += off + strlen(p->f->param[1]);
    parser_take(p);
    return parser_go(p, IN_PARAM_VALUE);
}

/* Writes what stands before a parameter's value. */
static void write_key(struct tool_parser *p)
{
    struct buf *a = parser_arguments(p);

    buf_add(a, p->n_params ? ", \"" : "{\"", p->n_params ? 3 : 2);
    json_add_escaped(a, p->key.p, p->key.n);
    buf_add(a, "\": ", 3);
    p->n_params++;
}

/* Before the value of a parameter. */
static enum progress param_value(struct tool_parser *p)
{
    const char *mark = p->f->param[2];

    if (mark) {
        if (!parser_skip_space(p))
            return WAIT;
        enum match m = parser_match(p, 0, mark);
        if (m == MORE)
            return WAIT;
        if (m == NO)
            return parser_go(p, IN_PARAMS);
        p->at += strlen(mark);
    }
    if (p->f->flags & CALL_LINES) {
        if (p->at == p->held.n)
            return WAIT;
        p->at += p->held.p[p->at] == '\n';
    }
    parser_take(p);
    p->streams = p->types == TYPE_STRING;
    if (p->streams) {
        write_key(p);
        buf_add(parser_arguments(p), "\"", 1);
    }
    return parser_go(p, IN_PARAM_TEXT);
}

static enum progress param_text(struct tool_parser *p)
{
    size_t off, n;
    int which;
    enum match m = parser_find(p, &p->f->param[3], 1, &off, &which);
    const char *s = p->held.p + p->at;

    n = off;
    if (p->f->flags & CALL_LINES && n && s[n - 1] == '\n' && (m == YES || !p->cut || !p->final))
        n--; /* the line end before the mark, as far as is known */
    if (p->streams) {
        json_add_escaped(parser_arguments(p), s, n);
        p->at += n;
        parser_take(p);
        off -= n;
    } else if (m == YES || (p->final && !p->cut)) {
        write_key(p);
        tool_write_value(p->types, s, n, parser_arguments(p));
    }
    if (m != YES && !(p->final && !p->cut))
        return WAIT;
    if (p->streams)
        buf_add(parser_arguments(p), "\"", 1);
    p->at += off + (m == YES ? strlen(p->f->param[3]) : 0);
    parser_take(p);
    return parser_go(p, IN_PARAMS);
}

enum progress params_step(struct tool_parser *p)
{
    switch (p->state) {
    case IN_PARAMS: return next_param(p);
    case IN_PARAM_NAME: return param_name(p);
    case IN_PARAM_VALUE: return param_value(p);
    default: return param_text(p);
    }
}
