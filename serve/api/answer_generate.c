/* answer_generate.c - answers of /inference/v1/generate, vLLM's endpoint of token ids in and token ids out:
 * no text. See answer.h. */
#include "serve/api/answer.h"

void generate_write_head(struct json_out *o, const struct request *rq)
{
    json_out_fmt(o, "{\"request_id\":\"%s\",\"created\":%lld,\"model\":", rq->id, (long long)rq->created);
    json_out_string(o, request_model(rq));
    answer_write_weights(o, rq);
    json_out_text(o, ",\"choices\":[");
}

void generate_write_choice(struct json_out *o, const struct choice *c, int64_t first)
{
    json_out_fmt(o, "{\"index\":%d,\"token_ids\":", c->index);
    answer_write_ids(o, c->ids + first, c->n_ids - first);
    answer_write_versions(o, c, first);
    chat_write_logprobs(o, c, first);
    answer_write_finish(o, c);
    json_out_text(o, "}");
}

void generate_write_tail(struct json_out *o, const struct request *rq)
{
    answer_write_prompt_logprobs(o, rq->choice);
    if (rq->prompt_logprobs < 0)
        json_out_text(o, ",\"prompt_logprobs\":null");
    json_out_text(o, ",\"kv_transfer_params\":null");
}
