/* channel.c - the messages of gpt-oss: a head that names a channel and a recipient, then a body. Analysis is
 * reasoning, a message to functions.NAME is a call, the others are content. See parse.h.
 *
 *     <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f
 *     <|constrain|>json<|message|>{…}<|call|> */
#include "text/tools/parse.h"

#include <string.h>

enum target { TO_CONTENT, TO_REASONING, TO_CALL, TO_NOBODY };

#define HEAD_BYTES 512
static const char message_mark[] = "<|message|>";

/* The word behind `mark` in a head of n bytes; its length to *len, 0 where there is none. */
static const char *word_behind(const char *s, size_t n, const char *mark, size_t *len)
{
    size_t k = strlen(mark);

    *len = 0;
    for (size_t i = 0; i + k <= n; i++) {
        if (memcmp(s + i, mark, k))
            continue;
        s += i + k;
        n -= i + k;
        while (*len < n && !strchr(" \n<", s[*len]))
            ++*len;
        return s;
    }
    return NULL;
}

static int word_is(const char *s, size_t n, const char *text)
{
    return n == strlen(text) && !memcmp(s, text, n);
}

/* Where a message with this head goes. */
static enum target read_head(struct tool_parser *p, const char *s, size_t n)
{
    static const char prefix[] = "functions.";
    size_t to, channel, k = sizeof prefix - 1;
    const char *name = word_behind(s, n, "to=", &to), *where = word_behind(s, n, "<|channel|>", &channel);

    if (name && to > k && !memcmp(name, prefix, k)) {
        p->name.n = p->early.n = 0;
        buf_add(&p->name, name + k, to - k);
        p->json = (struct json_value){ 0 };
        return TO_CALL;
    }
    if (name && !word_is(name, to, "user"))
        return TO_REASONING; /* a tool of the model's own */
    return where && word_is(where, channel, "analysis") ? TO_REASONING : TO_CONTENT;
}

/* Ends a message. */
static void end_body(struct tool_parser *p)
{
    if (p->target == TO_CALL)
        parser_end_call(p);
    p->after_call |= p->text.content.n > 0 || p->any;
    p->skip_space = p->text.content.n == 0 && p->any;
    if (p->text.reasoning.n) {
        p->thought_gap.n = 0;
        buf_add(&p->thought_gap, "\n", 1);
    }
    parser_go(p, IN_CHANNEL_HEAD);
}

static enum progress head_step(struct tool_parser *p)
{
    const char *mark = message_mark;
    size_t off;
    int which;
    enum match m = parser_find(p, &mark, 1, &off, &which);

    if (m != YES && off <= HEAD_BYTES && !p->final)
        return WAIT;
    if (off > HEAD_BYTES) { /* wherever its end may be */
        off = HEAD_BYTES + 1;
        m = NO;
    }
    if (m != YES) { /* no message of this form: what is no mark is content */
        if (!word_behind(p->held.p + p->at, off, "<|", &(size_t){ 0 })) {
            parser_add_text(p, p->held.p + p->at, off);
            p->target = TO_CONTENT;
            parser_go(p, IN_CHANNEL_BODY);
        }
        p->at += off;
        parser_take(p);
        return off ? GO : WAIT;
    }

    p->target = (int)read_head(p, p->held.p + p->at, off);
    p->at += off + strlen(mark);
    parser_take(p);
    if (p->target == TO_CALL && !parser_commit(p))
        p->target = TO_NOBODY;
    return parser_go(p, IN_CHANNEL_BODY);
}

static enum progress body_step(struct tool_parser *p)
{
    static const char *const ends[] = { "<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>" };
    size_t off;
    int which;

    if (p->target == TO_CALL && p->committed) {
        enum match m = json_value_read(p, &p->json, parser_arguments(p));
        parser_take(p);
        if (m == MORE)
            return WAIT;
        parser_end_call(p);
        p->target = TO_NOBODY;
    }

    enum match m = parser_find(p, ends, 5, &off, &which);
    if (p->target == TO_CONTENT)
        parser_add_text(p, p->held.p + p->at, off);
    else if (p->target == TO_REASONING)
        parser_add_reasoning(p, p->held.p + p->at, off);
    p->at += off;
    parser_take(p);
    if (m != YES)
        return WAIT;
    p->at += which < 3 ? strlen(ends[which]) : 0; /* the others begin the next head */
    parser_take(p);
    end_body(p);
    return GO;
}

enum progress channel_step(struct tool_parser *p)
{
    return p->state == IN_CHANNEL_HEAD ? head_step(p) : body_step(p);
}
