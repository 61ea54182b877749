/* messages_answer.c - answers, events and errors of /v1/messages; see messages.h.
 *
 *     message_start, ping
 *     for each block: content_block_start, content_block_delta …, content_block_stop
 *     message_delta (why it ended, usage), message_stop */
#include <stdlib.h>
#include "serve/api/answer.h"
#include "serve/api/answer_items.h"
#include "serve/api/chat_tools.h"
#include "serve/doors/messages.h"

static void write_text(struct json_out *o, const char *before, struct item_text t)
{
    json_out_text(o, before);
    json_out_string_n(o, t.p, t.n);
}

/* ---- blocks ---- */

/* The arguments of a call as an object; what is none (the answer was cut) is an empty one. */
static void write_input(struct json_out *o, struct item_text arguments)
{
    json_t *j = json_loadb(arguments.p, arguments.n, JSON_ALLOW_NUL, NULL);
    char *text = json_is_object(j) ? json_dumps(j, JSON_COMPACT) : NULL;
    json_out_text(o, text ? text : "{}");
    free(text);
    json_decref(j);
}

/* Writes content block i: empty, as it begins (whole 0), or with its content (whole 1). */
static void write_block(struct json_out *o, const struct choice *c, size_t i, int whole)
{
    const struct answer_item *item = &c->items.item[i];
    struct item_text t = item_text(c, i);
    char id[CALL_ID_SIZE];

    t.n = whole ? t.n : 0;
    if (item->kind == ITEM_TEXT) {
        write_text(o, "{\"type\":\"text\",\"text\":", t);
    } else if (item->kind == ITEM_REASONING) {
        write_text(o, "{\"type\":\"thinking\",\"thinking\":", t);
        json_out_text(o, ",\"signature\":\"\"");
    } else {
        parts_call_id(c, item->from, id);
        json_out_fmt(o, "{\"type\":\"tool_use\",\"id\":\"toolu_%s\"", id);
        write_text(o, ",\"name\":", item_name(c, i));
        json_out_text(o, ",\"input\":");
        write_input(o, t);
    }
    json_out_text(o, "}");
}

/* ---- the message ---- */

static void write_stop(struct json_out *o, const struct choice *c)
{
    const char *reason = c->finish == FINISH_LENGTH  ? "max_tokens"
                         : c->finish == FINISH_ABORT ? "pause_turn"
                         : c->stop_text              ? "stop_sequence"
                         : parts_have_calls(c)       ? "tool_use"
                                                     : "end_turn";
    json_out_fmt(o, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    json_out_string(o, c->finish == FINISH_STOP ? c->stop_text : NULL);
}

/* ended: with what was generated. */
static void write_usage(struct json_out *o, const struct choice *c, int ended)
{
    int64_t cached = c->seq.n_cached;
    json_out_fmt(o,
                 "{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%lld,"
                 "\"output_tokens\":%lld",
                 (long long)(c->prompt->n - cached), (long long)cached,
                 ended ? (long long)(c->n_ids - c->prompt->n) : 0);
    if (ended)
        json_out_fmt(o, ",\"output_tokens_details\":{\"thinking_tokens\":%lld}",
                     (long long)items_count_tokens(c, ITEM_REASONING));
    json_out_text(o, "}");
}

static void write_message(struct json_out *o, const struct request *rq, int ended)
{
    const struct choice *c = rq->choice;

    json_out_fmt(o, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", rq->id);
    json_out_string(o, request_model(rq));
    answer_write_weights(o, rq);
    json_out_text(o, ",\"content\":[");
    for (size_t i = 0; ended && i < c->items.n; i++) {
        json_out_text(o, i ? "," : "");
        write_block(o, c, i, 1);
    }
    json_out_text(o, "],");
    if (ended)
        write_stop(o, c);
    else
        json_out_text(o, "\"stop_reason\":null,\"stop_sequence\":null");
    json_out_text(o, ",\"usage\":");
    write_usage(o, c, ended);
    json_out_text(o, "}");
}

void messages_answer(struct json_out *o, const struct request *rq)
{
    parts_feed(rq->choice, rq->choice->text.n, o);
    write_message(o, rq, 1);
}

/* ---- events ---- */

static void begin(struct json_out *o, const char *type)
{
    json_out_fmt(o, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void end(struct json_out *o) { json_out_text(o, "}\n\n"); }

static void write_delta(struct json_out *o, struct choice *c, size_t i)
{
    static const char *const member[] = {
        [ITEM_REASONING] = "\"type\":\"thinking_delta\",\"thinking\":",
        [ITEM_TEXT] = "\"type\":\"text_delta\",\"text\":",
        [ITEM_CALL] = "\"type\":\"input_json_delta\",\"partial_json\":",
    };
    struct item_text t = item_text(c, i), new = { t.p + c->items.sent, t.n - c->items.sent };

    if (!new.n)
        return;
    begin(o, "content_block_delta");
    json_out_fmt(o, ",\"index\":%zu,\"delta\":{", i);
    write_text(o, member[c->items.item[i].kind], new);
    json_out_text(o, "}");
    end(o);
    c->items.sent = t.n;
}

static void write_start(struct json_out *o, const struct request *rq)
{
    begin(o, "message_start");
    json_out_text(o, ",\"message\":");
    write_message(o, rq, 0);
    end(o);
    begin(o, "ping");
    end(o);
}

void messages_event(struct json_out *o, struct choice *c, size_t text_end)
{
    struct answer_items *x = &c->items;

    if (!x->begun)
        write_start(o, c->rq);
    x->begun = 1;
    parts_feed(c, text_end, o);
    while (x->at < x->n) {
        if (!x->open) {
            begin(o, "content_block_start");
            json_out_fmt(o, ",\"index\":%zu,\"content_block\":", x->at);
            write_block(o, c, x->at, 0);
            end(o);
            x->open = 1;
            x->sent = 0;
        }
        write_delta(o, c, x->at);
        if (!item_is_whole(c, x->at))
            break;
        begin(o, "content_block_stop");
        json_out_fmt(o, ",\"index\":%zu", x->at++);
        end(o);
        x->open = 0;
    }

    c->sent_ids = c->n_ids;
    c->sent = text_end;
    c->end_sent = c->finish != FINISH_NONE;
}

void messages_end(struct json_out *o, struct request *rq)
{
    const struct choice *c = rq->choice;

    if (!c->end_sent)
        return;
    begin(o, "message_delta");
    json_out_text(o, ",\"delta\":{");
    write_stop(o, c);
    json_out_text(o, "},\"usage\":");
    write_usage(o, c, 1);
    end(o);
    begin(o, "message_stop");
    end(o);
}

/* ---- errors ---- */

void messages_error(struct json_out *o, const struct fault *f)
{
    static const struct {
        int status;
        const char *type;
    } types[] = { { 401, "authentication_error" }, { 403, "permission_error" }, { 404, "not_found_error" },
                  { 413, "request_too_large" },    { 429, "rate_limit_error" }, { 503, "overloaded_error" } };
    const char *name = f->status >= 500 ? "api_error" : "invalid_request_error";

    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        name = types[i].status == f->status ? types[i].type : name;
    json_out_fmt(o, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", name);
    json_out_string(o, f->text);
    json_out_text(o, "}}");
}

void messages_stream_error(struct json_out *o, struct request *rq, const struct fault *f)
{
    (void)rq;
    json_out_text(o, "event: error\ndata: ");
    messages_error(o, f);
    json_out_text(o, "\n\n");
}
