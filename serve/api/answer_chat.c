/* answer_chat.c - choices of chats: messages, deltas, log-probs with the tokens' bytes. See answer.h. */
#include "serve/api/answer.h"

static void write_entry(struct out *o, const struct request *rq, struct top_entry t)
{
    size_t n;
    const char *p = answer_token(rq, t.id, &n);
    out_text(o, "{\"token\":");
    answer_write_token(o, rq, t.id);
    out_text(o, ",\"logprob\":");
    out_logprob(o, t.logprob);
    out_text(o, p ? ",\"bytes\":[" : ",\"bytes\":null");
    for (size_t i = 0; p && i < n; i++)
        out_fmt(o, "%s%d", i ? "," : "", (int)(unsigned char)p[i]);
    out_text(o, p ? "]" : "");
}

static void write_logprobs(struct out *o, const struct choice *c, int64_t first)
{
    const struct request *rq = c->rq;
    out_text(o, ",\"logprobs\":");
    if (rq->logprobs < 0) {
        out_text(o, "null");
        return;
    }
    out_text(o, "{\"content\":[");
    for (int64_t i = first; i < c->n_ids; i++) {
        out_text(o, i > first ? "," : "");
        write_entry(o, rq, (struct top_entry){ c->ids[i], c->logprob[i] });
        out_text(o, ",\"top_logprobs\":[");
        for (int64_t j = 0; j < rq->logprobs; j++) {
            out_text(o, j ? "," : "");
            write_entry(o, rq, c->top[i * rq->tops + j]);
            out_text(o, "}");
        }
        out_text(o, "]}");
    }
    out_text(o, "],\"refusal\":null}");
}

static void write_ids(struct out *o, const struct choice *c, int64_t first)
{
    if (!c->rq->return_ids)
        return;
    out_text(o, ",\"token_ids\":");
    answer_write_ids(o, c->ids + first, c->n_ids - first);
}

void chat_write_choice(struct out *o, const struct choice *c)
{
    out_fmt(o, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    out_json(o, c->text.p, c->text.n);
    out_text(o, ",\"refusal\":null}");
    write_logprobs(o, c, c->prompt->n);
    answer_write_finish(o, c);
    if (c->rq->return_ids) {
        out_text(o, ",\"prompt_token_ids\":");
        answer_write_ids(o, c->prompt->ids, c->prompt->n);
    }
    write_ids(o, c, c->prompt->n);
    out_text(o, "}");
}

void chat_write_role(struct out *o, const struct choice *c)
{
    out_fmt(o,
            "{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_"
            "reason\":null}",
            c->index);
}

void chat_write_delta(struct out *o, const struct choice *c, const struct out *text)
{
    out_fmt(o, "{\"index\":%d,\"delta\":{", c->index);
    if (text->n || c->finish == FINISH_NONE) {
        out_text(o, "\"content\":");
        out_json(o, text->p, text->n);
    }
    out_text(o, "}");
    write_logprobs(o, c, c->sent_ids);
    answer_write_finish(o, c);
    write_ids(o, c, c->sent_ids);
    out_text(o, "}");
}
