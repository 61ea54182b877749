/* parse.c - the parser of a model's text: content, reasoning, the marks that open calls, and what follows a
 * call. See parse.h. */
#include "text/tools/parse.h"

#include <stdlib.h>
#include <string.h>

enum mark_kind { MARK_OPEN, MARK_CALL, MARK_DROP, MARK_THINK };

static int is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* ---- what is held ---- */

enum match parser_match(const struct tool_parser *p, size_t off, const char *text)
{
    size_t n = strlen(text), have = p->held.n - p->at - off;
    const char *s = p->held.p + p->at + off;

    if (have >= n)
        return memcmp(s, text, n) ? NO : YES;
    return p->final || memcmp(s, text, have) ? NO : MORE;
}

enum match parser_past(struct tool_parser *p, const char *mark)
{
    size_t n = mark ? strlen(mark) : 0, have = p->held.n - p->at;
    enum match m = n ? parser_match(p, 0, mark) : NO;

    if (p->final && n && have < n && have && !memcmp(p->held.p + p->at, mark, have)) {
        p->at = p->held.n;
        return YES;
    }
    p->at += m == YES ? n : 0;
    return m;
}

int parser_skip_space(struct tool_parser *p)
{
    while (p->at < p->held.n && is_space(p->held.p[p->at]))
        p->at++;
    return p->at < p->held.n;
}

void parser_take(struct tool_parser *p)
{
    p->begin = p->at;
    p->scan = 0;
}

enum progress parser_go(struct tool_parser *p, enum parse_state next)
{
    p->state = next;
    p->scan = 0;
    return GO;
}

enum match parser_find(struct tool_parser *p, const char *const *marks, int n, size_t *off, int *which)
{
    size_t have = p->held.n - p->at;

    for (size_t i = p->scan; i < have; i++) {
        size_t longest = 0;
        int more = 0;
        *which = -1;
        for (int k = 0; k < n; k++) {
            enum match m = marks[k] ? parser_match(p, i, marks[k]) : NO;
            size_t len = m == NO ? 0 : strlen(marks[k]);
            more |= m == MORE;
            if (m == YES && len > longest) {
                longest = len;
                *which = k;
            }
        }
        if (more || *which >= 0) { /* a longer mark may begin as a shorter one does */
            *off = p->scan = i;
            return more ? MORE : YES;
        }
    }

    *off = p->scan = have;
    return MORE;
}

/* ---- content and reasoning ---- */

void parser_add_text(struct tool_parser *p, const char *s, size_t n)
{
    struct buf *content = &p->text.content;
    size_t last = n;

    while (n && ((p->skip_space && is_space(*s)) || (p->skip_lines && *s == '\n'))) {
        s++;
        n--;
    }
    for (last = n; last && is_space(s[last - 1]);)
        last--;
    if (last) {
        if (p->after_call && content->n && !p->gap.n)
            buf_add(&p->gap, "\n", 1);
        buf_add(content, p->gap.p, p->gap.n);
        buf_add(content, s, last);
        p->gap.n = 0;
        p->after_call = 0;
    }
    if (n)
        p->skip_space = p->skip_lines = 0;
    buf_add(&p->gap, s + last, n - last);
}

void parser_add_reasoning(struct tool_parser *p, const char *s, size_t n)
{
    struct buf *out = &p->text.reasoning;
    size_t last;

    while (n && !out->n && is_space(*s)) {
        s++;
        n--;
    }
    for (last = n; last && is_space(s[last - 1]);)
        last--;
    if (last) {
        buf_add(out, p->thought_gap.p, p->thought_gap.n);
        buf_add(out, s, last);
        p->thought_gap.n = 0;
    }
    if (last || out->n)
        buf_add(&p->thought_gap, s + last, n - last);
}

/* ---- calls ---- */

struct buf *parser_arguments(struct tool_parser *p)
{
    if (!p->committed)
        return &p->early;
    return p->drop_call ? &p->spare.arguments : &p->text.call[p->text.n_calls - 1].arguments;
}

/* Makes a call, the last one, which owns p->name. 0, or -1: no memory. */
static int add_call(struct tool_parser *p)
{
    struct tool_text *t = &p->text;

    if (t->n_calls == t->cap) {
        size_t cap = 2 * t->cap + 4;
        struct tool_call *q = realloc(t->call, cap * sizeof *q);
        if (!q)
            return -1;
        t->call = q;
        t->cap = cap;
    }

    t->call[t->n_calls] = (struct tool_call){ .name = p->name };
    p->name = (struct buf){ 0 };
    t->n_calls++;
    return 0;
}

int parser_commit(struct tool_parser *p)
{
    if (!p->name.n || (p->bare && !tool_set_has(p->how.tools, p->name.p, p->name.n)))
        return 0;
    p->drop_call = p->how.max_calls && p->text.n_calls >= p->how.max_calls;
    p->spare.arguments.n = 0;
    if (!p->drop_call && add_call(p) < 0) {
        p->failed = 1;
        return 0;
    }

    p->committed = p->any = 1;
    buf_add(parser_arguments(p), p->early.p, p->early.n);
    p->early.n = 0;
    parser_take(p);
    return 1;
}

void parser_end_call(struct tool_parser *p)
{
    struct buf *a = parser_arguments(p);

    if (p->committed && (!a->n || (a->n == 4 && !memcmp(a->p, "null", 4)))) {
        a->n = 0;
        buf_add(a, "{}", 2);
    }
    p->committed = p->has_arguments = 0;
    p->name.n = p->early.n = 0;
    parser_take(p);
}

enum progress parser_not_a_call(struct tool_parser *p)
{
    parser_add_text(p, p->held.p + p->begin, p->at - p->begin);
    parser_take(p);
    p->bare = 0;
    p->committed = 0;
    p->name.n = p->early.n = 0;
    return parser_go(p, IN_TEXT);
}

/* Ends the calls behind an opening. */
static enum progress leave_section(struct tool_parser *p)
{
    parser_take(p);
    p->bare = 0;
    p->after_call = p->skip_space = p->any;
    return parser_go(p, IN_TEXT);
}

/* Behind the mark of a call. */
static enum progress begin_call(struct tool_parser *p)
{
    int literal = p->f->form == FORM_PYTHON || p->f->form == FORM_GEMMA;
    p->name.n = p->early.n = 0;
    p->committed = p->n_params = 0;
    p->json = (struct json_value){ 0 };
    return parser_go(p, literal ? IN_LITERAL_NAME : IN_NAME);
}

static enum progress open_section(struct tool_parser *p)
{
    p->any = p->list = p->nested = p->has_arguments = p->committed = 0;
    p->name.n = p->early.n = 0;
    return parser_go(p, p->f->form == FORM_JSON ? IN_JSON : IN_SECTION);
}

static enum progress section_step(struct tool_parser *p)
{
    const struct tool_family *f = p->f;
    const char *marks[2] = { f->begin, f->close };

    if (f->form == FORM_PYTHON || (!f->begin && !p->any))
        return begin_call(p);
    if (!parser_skip_space(p))
        return WAIT;
    if (p->any)
        parser_take(p);
    for (int k = 0; k < 2; k++) {
        enum match m = parser_past(p, marks[k]);
        if (m == MORE)
            return WAIT;
        if (m == YES)
            return k ? leave_section(p) : begin_call(p);
    }
    return p->any ? leave_section(p) : parser_not_a_call(p);
}

/* ---- text ---- */

static void add_mark(struct tool_parser *p, const char *text, enum mark_kind kind)
{
    if (!text)
        return;
    p->mark[p->n_marks] = text;
    p->mark_kind[p->n_marks++] = (char)kind;
}

static void collect_marks(struct tool_parser *p)
{
    const struct tool_family *f = p->f;
    const struct reasoning_marks *r = p->how.form.reasoning;

    for (int i = 0; f && i < MARKS; i++) {
        int is_call = f->open[i] && f->begin && !strcmp(f->open[i], f->begin);
        add_mark(p, f->open[i], is_call ? MARK_CALL : MARK_OPEN);
        add_mark(p, f->drop[i], MARK_DROP);
    }
    for (int i = 0; r && i < 2; i++)
        add_mark(p, r->begin[i], MARK_THINK);
    for (int i = 0; r && i < MARKS; i++)
        add_mark(p, r->drop[i], MARK_DROP);
}

static enum progress begin_reasoning(struct tool_parser *p)
{
    parser_take(p);
    if (!p->text.content.n)
        p->gap.n = 0;
    return parser_go(p, IN_REASONING);
}

/* A text that begins with a bracket may be a call without a mark. */
static enum progress try_bare(struct tool_parser *p)
{
    size_t i = p->at + p->scan;

    while (i < p->held.n && is_space(p->held.p[i]))
        i++;
    p->scan = i - p->at;
    if (i == p->held.n && !p->final)
        return WAIT;
    p->scan = 0;
    if (i < p->held.n && (p->held.p[i] == '{' || p->held.p[i] == '['))
        return open_section(p);
    p->bare = 0;
    return GO;
}

static enum progress text_step(struct tool_parser *p)
{
    const struct reasoning_marks *r = p->how.form.reasoning;
    size_t off;
    int which;

    if (p->bare)
        return try_bare(p);
    enum match m = parser_find(p, p->mark, p->n_marks, &off, &which);
    parser_add_text(p, p->held.p + p->at, off);
    p->at += off;
    parser_take(p);
    if (m != YES)
        return WAIT;

    size_t len = strlen(p->mark[which]);
    p->at += len;
    switch ((enum mark_kind)p->mark_kind[which]) {
    case MARK_OPEN: return open_section(p);
    case MARK_CALL: open_section(p); return begin_call(p);
    case MARK_THINK:
        if (r->anywhere || !p->text.content.n)
            return begin_reasoning(p);
        parser_add_text(p, p->mark[which], len);
        break;
    case MARK_DROP: break;
    }
    parser_take(p);
    return GO;
}

static enum progress reasoning_step(struct tool_parser *p)
{
    size_t off;
    int which;
    enum match m = parser_find(p, &p->how.form.reasoning->end, 1, &off, &which);

    parser_add_reasoning(p, p->held.p + p->at, off);
    p->at += off;
    parser_take(p);
    if (m != YES)
        return WAIT;
    p->at += strlen(p->how.form.reasoning->end);
    p->thought_gap.n = 0;
    p->skip_lines = 1;
    parser_take(p);
    return parser_go(p, IN_TEXT);
}

/* ---- the loop ---- */

static enum progress one_step(struct tool_parser *p)
{
    static enum progress (*const steps[PARSE_STATES])(struct tool_parser *) = {
        [IN_TEXT] = text_step,          [IN_REASONING] = reasoning_step,  [IN_SECTION] = section_step,
        [IN_JSON] = json_between,       [IN_JSON_KEY] = json_step,        [IN_JSON_COLON] = json_step,
        [IN_JSON_VALUE] = json_step,    [IN_JSON_NAME] = json_step,       [IN_JSON_ARGUMENTS] = json_step,
        [IN_JSON_OTHER] = json_step,    [IN_NAME] = named_step,           [IN_ARGUMENTS] = named_step,
        [IN_CALL_END] = named_step,     [IN_PARAMS] = params_step,        [IN_PARAM_NAME] = params_step,
        [IN_PARAM_VALUE] = params_step, [IN_PARAM_TEXT] = params_step,    [IN_LITERAL_NAME] = literal_step,
        [IN_LITERAL] = literal_step,    [IN_CHANNEL_HEAD] = channel_step, [IN_CHANNEL_BODY] = channel_step,
    };
    return steps[p->state](p);
}

/* 0, or ERR_MEMORY. */
static int check_memory(const struct tool_parser *p, struct err *e)
{
    const struct buf *all[] = { &p->text.content, &p->text.reasoning, &p->held,  &p->gap, &p->thought_gap,
                                &p->name,         &p->early,          &p->value, &p->key };
    int failed = p->failed;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        failed |= all[i]->failed;
    if (p->text.n_calls)
        failed |= p->text.call[p->text.n_calls - 1].arguments.failed;
    return failed ? err_set(e, ERR_MEMORY, "no memory for the text of an answer") : 0;
}

static int run(struct tool_parser *p, struct err *e)
{
    while (!p->failed && one_step(p) == GO)
        ;
    /* drop what was used, once it is more than half: every byte is moved at most once then */
    if (p->begin > p->held.n / 2) {
        memmove(p->held.p, p->held.p + p->begin, p->held.n - p->begin);
        p->held.n -= p->begin;
        p->at -= p->begin;
        p->begin = 0;
    }
    return check_memory(p, e);
}

int tool_parser_open(struct tool_parser **out, const struct tool_parse *how, struct err *e)
{
    struct tool_parser *p = calloc(1, sizeof *p);

    if (!p)
        return err_set(e, ERR_MEMORY, "no memory for the text of an answer");
    p->how = *how;
    p->f = how->form.calls;
    p->bare = p->f && p->f->flags & CALL_BARE;
    collect_marks(p);
    buf_add(&p->held, "", 1); /* so that it has an address */
    p->held.n = 0;
    if (p->f && p->f->form == FORM_CHANNELS)
        p->state = IN_CHANNEL_HEAD;
    else if (how->in_reasoning && how->form.reasoning)
        p->state = IN_REASONING;
    else if (p->f && p->f->flags & CALL_TALK)
        p->state = IN_NAME;
    *out = p;
    return 0;
}

int tool_parser_feed(struct tool_parser *p, const char *text, size_t n, struct err *e)
{
    buf_add(&p->held, text, n);
    return p->held.failed ? check_memory(p, e) : run(p, e);
}

/* Where an answer was cut in the middle of a mark, more than its first half is left out. */
static void drop_cut_mark(struct tool_parser *p)
{
    size_t have = p->held.n - p->at, longest = 0;

    for (int k = 0; k < p->n_marks; k++) {
        size_t n = strlen(p->mark[k]);
        for (size_t len = n - 1; len > longest && len >= n / 2; len--)
            if (len <= have && !memcmp(p->held.p + p->held.n - len, p->mark[k], len))
                longest = len;
    }
    p->held.n -= longest;
}

int tool_parser_finish(struct tool_parser *p, int cut, struct err *e)
{
    if (p->final)
        return 0;
    p->final = 1;
    p->cut = cut;
    if (cut && p->state == IN_TEXT)
        drop_cut_mark(p);
    int rc = run(p, e);

    if (p->committed && !cut) {
        if (p->f->form == FORM_PARAMS)
            params_close(p);
        parser_end_call(p);
    } else if (p->bare && !p->any) {
        parser_add_text(p, p->held.p + p->begin, p->held.n - p->begin); /* no mark was read: it is text */
    }
    if (!p->after_call && !p->skip_space)
        buf_add(&p->text.content, p->gap.p, p->gap.n);
    return rc < 0 ? rc : check_memory(p, e);
}

const struct tool_text *tool_parser_text(const struct tool_parser *p) { return &p->text; }

void tool_parser_close(struct tool_parser *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->text.n_calls; i++) {
        buf_free(&p->text.call[i].name);
        buf_free(&p->text.call[i].arguments);
    }
    free(p->text.call);
    buf_free(&p->text.content);
    buf_free(&p->text.reasoning);
    buf_free(&p->held);
    buf_free(&p->gap);
    buf_free(&p->thought_gap);
    buf_free(&p->name);
    buf_free(&p->early);
    buf_free(&p->value);
    buf_free(&p->key);
    buf_free(&p->spare.arguments);
    free(p);
}
