/* responses_answer.c - answers and events of /v1/responses; see responses.h.
 *
 *     response.created, .in_progress
 *     for each item:  output_item.added, [content_part.added]
 *                     reasoning_text.delta | output_text.delta | function_call_arguments.delta …
 *                     the same .done, [content_part.done], output_item.done
 *     response.completed | .incomplete */
#include <string.h>
#include "serve/api/answer.h"
#include "serve/api/answer_items.h"
#include "serve/api/chat_tools.h"
#include "serve/doors/responses.h"

enum status { IN_PROGRESS, COMPLETED, INCOMPLETE, FAILED };
static const char *const status_name[] = { "in_progress", "completed", "incomplete", "failed" };

/* ---- items ---- */

static void write_text(struct json_out *o, const char *before, struct item_text t)
{
    json_out_text(o, before);
    json_out_string_n(o, t.p, t.n);
}

/* The id of item i, with its quotes. */
static void write_item_id(struct json_out *o, const struct choice *c, size_t i)
{
    static const char *const prefix[] = { [ITEM_REASONING] = "rs", [ITEM_TEXT] = "msg", [ITEM_CALL] = "fc" };
    json_out_fmt(o, "\"%s_%s_%zu\"", prefix[c->items.item[i].kind], c->rq->name, i);
}

/* Appends a list of the log-probs of tokens [first, last). */
static void write_logprobs(struct json_out *o, const struct choice *c, int64_t first, int64_t last)
{
    json_out_text(o, "[");
    if (c->rq->logprobs >= 0)
        answer_write_token_logprobs(o, c, first, last);
    json_out_text(o, "]");
}

/* The content part of item i as it begins (whole 0), or with what it has. */
static void write_part(struct json_out *o, const struct choice *c, size_t i, int whole)
{
    struct item_text t = item_text(c, i);
    int64_t first, last;

    t.n = whole ? t.n : 0;
    if (c->items.item[i].kind == ITEM_REASONING) {
        write_text(o, "{\"type\":\"reasoning_text\",\"text\":", t);
        json_out_text(o, "}");
        return;
    }
    write_text(o, "{\"type\":\"output_text\",\"annotations\":[],\"text\":", t);
    json_out_text(o, ",\"logprobs\":");
    item_tokens(c, i, &first, &last);
    write_logprobs(o, c, whole ? first : last, last);
    json_out_text(o, "}");
}

/* Item i as it begins (whole 0), or with what it has. */
static void write_item(struct json_out *o, const struct choice *c, size_t i, int whole)
{
    const struct answer_item *item = &c->items.item[i];
    int cut = finish_is_cut(c->finish) && i + 1 == c->items.n;
    char id[CALL_ID_SIZE];

    json_out_text(o, "{\"id\":");
    write_item_id(o, c, i);
    json_out_fmt(o, ",\"status\":\"%s\",", status_name[!whole ? IN_PROGRESS : cut ? INCOMPLETE : COMPLETED]);
    if (item->kind == ITEM_CALL) {
        struct item_text arguments = item_text(c, i);
        parts_call_id(c, item->from, id);
        arguments.n = whole ? arguments.n : 0;
        json_out_fmt(o, "\"type\":\"function_call\",\"call_id\":\"call_%s\"", id);
        write_text(o, ",\"name\":", item_name(c, i));
        write_text(o, ",\"arguments\":", arguments);
        json_out_text(o, "}");
        return;
    }

    json_out_text(o, item->kind == ITEM_REASONING
                         ? "\"type\":\"reasoning\",\"summary\":[],\"content\":["
                         : "\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
    if (whole)
        write_part(o, c, i, 1);
    json_out_text(o, "]}");
}

/* ---- the response ---- */

static void write_usage(struct json_out *o, const struct request *rq)
{
    const struct choice *c = rq->choice;
    int64_t in = c->prompt->n, out = c->n_ids - in;

    json_out_fmt(
        o,
        "{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld,\"cache_write_tokens\":"
        "0},\"output_tokens\":%lld,\"output_tokens_details\":{\"reasoning_tokens\":%lld},\"total_tokens\""
        ":%lld}",
        (long long)in, (long long)c->seq.n_cached, (long long)out,
        (long long)items_count_tokens(c, ITEM_REASONING), (long long)(in + out));
}

/* The response object. f: why it failed, or NULL. Its items and its usage only where it is at an end. */
static void write_response(struct json_out *o, const struct request *rq, enum status status,
                           const struct fault *f)
{
    int ended = status == COMPLETED || status == INCOMPLETE;

    json_out_fmt(
        o,
        "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"background\":"
        "false,\"error\":",
        rq->id, (long long)rq->created, status_name[status]);
    if (f) {
        json_out_text(o, "{\"code\":\"server_error\",\"message\":");
        json_out_string(o, f->text);
        json_out_text(o, "}");
    } else {
        json_out_text(o, "null");
    }
    json_out_fmt(o, ",\"incomplete_details\":%s,\"model\":",
                 status != INCOMPLETE                 ? "null"
                 : rq->choice->finish == FINISH_ABORT ? "{\"reason\":\"abort\"}"
                                                      : "{\"reason\":\"max_output_tokens\"}");
    json_out_string(o, request_model(rq));
    answer_write_weights(o, rq);
    json_out_fmt(o, ",%s,\"output\":[", rq->about);
    for (size_t i = 0; ended && i < rq->choice->items.n; i++) {
        json_out_text(o, i ? "," : "");
        write_item(o, rq->choice, i, 1);
    }
    json_out_text(o, "],\"usage\":");
    if (ended)
        write_usage(o, rq);
    else
        json_out_text(o, "null");
    json_out_text(o, "}");
}

static enum status end_status(const struct request *rq)
{
    return finish_is_cut(rq->choice->finish) ? INCOMPLETE : COMPLETED;
}

void responses_answer(struct json_out *o, const struct request *rq)
{
    parts_feed(rq->choice, rq->choice->text.n, o);
    write_response(o, rq, end_status(rq), NULL);
}

/* ---- events ---- */

/* Begins an event; its other members follow, each with a comma before it. */
static void begin(struct json_out *o, struct request *rq, const char *type)
{
    json_out_fmt(o, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%lld", type, type,
                 (long long)rq->n_events++);
}

static void end(struct json_out *o) { json_out_text(o, "}\n\n"); }

static void begin_of_item(struct json_out *o, const struct choice *c, const char *type, size_t i)
{
    begin(o, c->rq, type);
    json_out_fmt(o, ",\"output_index\":%zu,\"item_id\":", i);
    write_item_id(o, c, i);
    if (c->items.item[i].kind != ITEM_CALL)
        json_out_text(o, ",\"content_index\":0");
}

static void write_response_event(struct json_out *o, struct request *rq, const char *type, enum status status,
                                 const struct fault *f)
{
    begin(o, rq, type);
    json_out_text(o, ",\"response\":");
    write_response(o, rq, status, f);
    end(o);
}

static void write_item_event(struct json_out *o, const struct choice *c, const char *type, size_t i,
                             int whole)
{
    begin(o, c->rq, type);
    json_out_fmt(o, ",\"output_index\":%zu,\"item\":", i);
    write_item(o, c, i, whole);
    end(o);
}

static void write_part_event(struct json_out *o, const struct choice *c, const char *type, size_t i,
                             int whole)
{
    if (c->items.item[i].kind == ITEM_CALL)
        return;
    begin_of_item(o, c, type, i);
    json_out_text(o, ",\"part\":");
    write_part(o, c, i, whole);
    end(o);
}

/* Names of the events about the text of an item: more of it, its end; the member that has all of it. */
static const struct {
    const char *delta, *done, *member;
} text_events[] = { [ITEM_REASONING] = { "response.reasoning_text.delta", "response.reasoning_text.done",
                                         ",\"text\":" },
                    [ITEM_TEXT] = { "response.output_text.delta", "response.output_text.done", ",\"text\":" },
                    [ITEM_CALL] = { "response.function_call_arguments.delta",
                                    "response.function_call_arguments.done", ",\"arguments\":" } };

/* What is new in the text and the tokens of item i. */
static void write_delta(struct json_out *o, struct choice *c, size_t i)
{
    enum item_kind kind = c->items.item[i].kind;
    struct item_text t = item_text(c, i), new = { t.p + c->items.sent, t.n - c->items.sent };
    int64_t first, last;

    item_tokens(c, i, &first, &last);
    first = first > c->sent_ids ? first : c->sent_ids;
    int tells = kind == ITEM_TEXT && c->rq->logprobs >= 0 && last > first;
    if (!new.n && !tells)
        return;
    begin_of_item(o, c, text_events[kind].delta, i);
    write_text(o, ",\"delta\":", new);
    if (kind == ITEM_TEXT) {
        json_out_text(o, ",\"logprobs\":");
        write_logprobs(o, c, first, last);
    }
    end(o);
    c->items.sent = t.n;
    c->sent_ids = last;
}

static void write_done(struct json_out *o, const struct choice *c, size_t i)
{
    enum item_kind kind = c->items.item[i].kind;
    struct item_text t = item_text(c, i);
    int64_t first, last;

    begin_of_item(o, c, text_events[kind].done, i);
    write_text(o, text_events[kind].member, t);
    if (kind == ITEM_CALL)
        write_text(o, ",\"name\":", item_name(c, i));
    if (kind == ITEM_TEXT) {
        item_tokens(c, i, &first, &last);
        json_out_text(o, ",\"logprobs\":");
        write_logprobs(o, c, first, last);
    }
    end(o);
    write_part_event(o, c, "response.content_part.done", i, 1);
    write_item_event(o, c, "response.output_item.done", i, 1);
}

void responses_event(struct json_out *o, struct choice *c, size_t text_end)
{
    struct answer_items *x = &c->items;

    if (!x->begun) {
        write_response_event(o, c->rq, "response.created", IN_PROGRESS, NULL);
        write_response_event(o, c->rq, "response.in_progress", IN_PROGRESS, NULL);
        x->begun = 1;
    }
    parts_feed(c, text_end, o);
    while (x->at < x->n) {
        if (!x->open) {
            write_item_event(o, c, "response.output_item.added", x->at, 0);
            write_part_event(o, c, "response.content_part.added", x->at, 0);
            x->open = 1;
            x->sent = 0;
        }
        write_delta(o, c, x->at);
        if (!item_is_whole(c, x->at))
            break;
        write_done(o, c, x->at++);
        x->open = 0;
    }

    c->sent = text_end;
    c->end_sent = c->finish != FINISH_NONE;
}

void responses_end(struct json_out *o, struct request *rq)
{
    enum status status = end_status(rq);
    if (rq->choice->end_sent)
        write_response_event(o, rq, status == INCOMPLETE ? "response.incomplete" : "response.completed",
                             status, NULL);
}

void responses_stream_error(struct json_out *o, struct request *rq, const struct fault *f)
{
    write_response_event(o, rq, "response.failed", FAILED, f);
}
