/* answer_chat.c - choices of chats: messages, deltas, log-probs with the tokens' bytes. See answer.h. */
#include "serve/api/answer.h"
#include "serve/api/chat_tools.h"

static void write_entry(struct json_out *o, const struct choice *c, int64_t at, struct top_entry t)
{
    size_t n;
    const char *p = answer_token(c, at, t.id, &n);
    json_out_text(o, "{\"token\":");
    answer_write_token(o, c, at, t.id);
    json_out_text(o, ",\"logprob\":");
    json_out_logprob(o, t.logprob);
    json_out_text(o, p ? ",\"bytes\":[" : ",\"bytes\":null");
    for (size_t i = 0; p && i < n; i++)
        json_out_fmt(o, "%s%d", i ? "," : "", (int)(unsigned char)p[i]);
    json_out_text(o, p ? "]" : "");
}

void answer_write_token_logprobs(struct json_out *o, const struct choice *c, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        json_out_text(o, i > first ? "," : "");
        write_entry(o, c, i, (struct top_entry){ c->ids[i], c->logprob[i] });
        json_out_text(o, ",\"top_logprobs\":[");
        for (int j = 0; j < answer_tops(c, i); j++) {
            json_out_text(o, j ? "," : "");
            write_entry(o, c, i, c->top[i * c->rq->tops + j]);
            json_out_text(o, "}");
        }
        json_out_text(o, "]}");
    }
}

void chat_write_logprobs(struct json_out *o, const struct choice *c, int64_t first)
{
    json_out_text(o, ",\"logprobs\":");
    if (c->rq->logprobs < 0) {
        json_out_text(o, "null");
        return;
    }
    json_out_text(o, "{\"content\":[");
    answer_write_token_logprobs(o, c, first, c->n_ids);
    json_out_text(o, "],\"refusal\":null}");
}

static void write_ids(struct json_out *o, const struct choice *c, int64_t first)
{
    if (!c->rq->return_ids)
        return;
    json_out_text(o, ",\"token_ids\":");
    answer_write_ids(o, c->ids + first, c->n_ids - first);
    answer_write_versions(o, c, first);
}

void chat_write_choice(struct json_out *o, const struct choice *c, const struct json_out *text)
{
    json_out_fmt(o, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    if (c->parts.parser) {
        parts_write_message(o, c, text);
    } else {
        json_out_string_n(o, text->p, text->n);
        json_out_text(o, ",\"refusal\":null");
    }
    json_out_text(o, "}");
    chat_write_logprobs(o, c, c->prompt->n);
    answer_write_finish(o, c);
    write_ids(o, c, c->prompt->n);
    json_out_text(o, "}");
}

void chat_write_role(struct json_out *o, const struct choice *c)
{
    json_out_fmt(o,
                 "{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":%s},\"logprobs\":null,\"finish_"
                 "reason\":null}",
                 c->index, c->rq->calls ? "null" : "\"\"");
}

void chat_write_delta(struct json_out *o, struct choice *c, const struct json_out *text)
{
    json_out_fmt(o, "{\"index\":%d,\"delta\":{", c->index);
    if (c->parts.parser) {
        parts_write_delta(o, c, text);
    } else if (text->n || c->finish == FINISH_NONE) {
        json_out_text(o, "\"content\":");
        json_out_string_n(o, text->p, text->n);
    }
    json_out_text(o, "}");
    chat_write_logprobs(o, c, c->sent_ids);
    answer_write_finish(o, c);
    write_ids(o, c, c->sent_ids);
    json_out_text(o, "}");
}
