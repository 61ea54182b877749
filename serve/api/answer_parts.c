/* answer_parts.c - content, reasoning and tool calls of a chat's answers; see chat_tools.h. */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "serve/api/answer_items.h"
#include "serve/api/chat_tools.h"

int parts_open(struct choice *c)
{
    struct request *rq = c->rq;
    struct err e;

    if (!rq->divided)
        return 0;
    if (rq->tools && !rq->tool_set && !(rq->tool_set = tool_set_open(rq->tools)))
        return -1;
    struct tool_parse how = { .form = rq->sv->form,
                              .tools = rq->tool_set,
                              .in_reasoning = rq->in_reasoning,
                              .max_calls = rq->parallel_tools ? 0 : 1 };
    if (!rq->calls && !tools_always(&rq->sv->form))
        how.form.calls = NULL;
    if (!rq->separate_reasoning)
        how.form.reasoning = NULL;
    return tool_parser_open(&c->parts.parser, &how, &e) < 0 ? -1 : 0;
}

void parts_feed(struct choice *c, size_t text_end, struct json_out *o)
{
    struct answer_parts *p = &c->parts;
    int noted = items_are_noted(c->rq);
    struct err e;

    if ((!p->parser && !noted) || p->finished)
        return;
    while (p->fed < text_end) {
        size_t n = noted && p->parser ? 1 : text_end - p->fed;
        if (p->parser && tool_parser_feed(p->parser, c->text.p + p->fed, n, &e) < 0)
            o->failed = 1;
        p->fed += n;
        if (noted)
            items_note(c, o);
    }
    if (c->finish == FINISH_NONE)
        return;

    if (p->parser && tool_parser_finish(p->parser, finish_is_cut(c->finish), &e) < 0)
        o->failed = 1;
    p->finished = 1;
    if (noted)
        items_note(c, o);
}

int parts_have_calls(const struct choice *c)
{
    return c->parts.parser && tool_parser_text(c->parts.parser)->n_calls > 0;
}

void parts_call_id(const struct choice *c, size_t i, char id[CALL_ID_SIZE])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ01";
    const struct prompt *p = c->prompt;
    XXH128_hash_t x = XXH3_128bits_withSeed(p->ids, sizeof *p->ids * (size_t)p->n,
                                            (XXH64_hash_t)c->index << 32 | (XXH64_hash_t)i);

    for (int k = 0; k < 12; k++) {
        id[k] = letters[x.low64 >> 5 * k & 31];
        id[12 + k] = letters[x.high64 >> 5 * k & 31];
    }
    id[24] = 0;
}

static void write_id(struct json_out *o, const struct choice *c, size_t i)
{
    char id[CALL_ID_SIZE];
    parts_call_id(c, i, id);
    json_out_fmt(o, "\"id\":\"call_%s\",\"type\":\"function\"", id);
}

static void write_member(struct json_out *o, const char *before, const struct buf *b, size_t from)
{
    json_out_text(o, before);
    json_out_string_n(o, b->p ? b->p + from : "", b->n - from);
}

/* Writes the content from byte `from` on, behind the echo. */
static void write_content(struct json_out *o, const struct json_out *echo, const struct buf *content,
                          size_t from)
{
    struct json_out all = { 0 };

    json_out_bytes(&all, echo->p, echo->n);
    json_out_bytes(&all, content->p ? content->p + from : "", content->n - from);
    json_out_string_n(o, all.p, all.n);
    o->failed |= all.failed;
    json_out_free(&all);
}

void parts_write_message(struct json_out *o, const struct choice *c, const struct json_out *echo)
{
    const struct tool_text *t = tool_parser_text(c->parts.parser);

    if (t->n_calls && !t->content.n && !echo->n)
        json_out_text(o, "null");
    else
        write_content(o, echo, &t->content, 0);
    json_out_text(o, ",\"refusal\":null");
    if (t->reasoning.n)
        write_member(o, ",\"reasoning_content\":", &t->reasoning, 0);
    for (size_t i = 0; i < t->n_calls; i++) {
        json_out_text(o, i ? ",{" : ",\"tool_calls\":[{");
        write_id(o, c, i);
        write_member(o, ",\"function\":{\"name\":", &t->call[i].name, 0);
        write_member(o, ",\"arguments\":", &t->call[i].arguments, 0);
        json_out_text(o, "}}");
    }
    json_out_text(o, t->n_calls ? "]" : "");
}

/* Appends what is new in call number i: its beginning, or more of its arguments. */
static void write_call_delta(struct json_out *o, const struct choice *c, size_t i, size_t sent, int begins)
{
    const struct tool_call *call = &tool_parser_text(c->parts.parser)->call[i];

    json_out_fmt(o, "{\"index\":%zu,", i);
    if (begins) {
        write_id(o, c, i);
        write_member(o, ",\"function\":{\"name\":", &call->name, 0);
        json_out_text(o, ",");
    } else {
        json_out_text(o, "\"function\":{");
    }
    write_member(o, "\"arguments\":", &call->arguments, sent);
    json_out_text(o, "}}");
}

void parts_write_delta(struct json_out *o, struct choice *c, const struct json_out *echo)
{
    struct answer_parts *p = &c->parts;
    const struct tool_text *t = tool_parser_text(p->parser);
    const char *comma = "";
    int empty = c->finish != FINISH_NONE && c->rq->calls && !t->n_calls && !t->content.n;

    if (t->reasoning.n > p->reasoning) {
        write_member(o, "\"reasoning_content\":", &t->reasoning, p->reasoning);
        p->reasoning = t->reasoning.n;
        comma = ",";
    }
    /* a first event without a content, and no call: the content is empty */
    if (t->content.n > p->content || echo->n || empty) {
        json_out_text(o, comma);
        json_out_text(o, "\"content\":");
        write_content(o, echo, &t->content, p->content);
        p->content = t->content.n;
        comma = ",";
    }

    size_t first = p->calls ? p->calls - 1 : 0, n = 0;
    for (size_t i = first; i < t->n_calls; i++) {
        int begins = i >= p->calls;
        if (begins)
            p->arguments = 0;
        if (!begins && t->call[i].arguments.n == p->arguments)
            continue;
        json_out_text(o, n++ ? "," : comma);
        json_out_text(o, n == 1 ? "\"tool_calls\":[" : "");
        write_call_delta(o, c, i, p->arguments, begins);
        p->arguments = t->call[i].arguments.n;
    }
    json_out_text(o, n ? "]" : "");
    p->calls = t->n_calls;
}
