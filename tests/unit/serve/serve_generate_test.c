/* serve_generate_test.c - /inference/v1/generate: token ids and sampling parameters in, token ids out. */
#include "base/jx.h"
#include "serve/api/openai.h"
#include "tests/test.h"

static void service_bytes(struct service *sv)
{
    struct err e;
    *sv = (struct service){
        .state = SERVICE_READY, .model = "m", .vocab = 256, .ctx = 128, .n_eos = 1, .eos = { 0 }
    };
    CHECK_INT(tokenizer_bytes(&sv->tok, &e), 0);
}

/* A 400: the field, a part of the text. */
static void refused(const struct service *sv, const char *body, const char *param, const char *part)
{
    struct request *rq = NULL;
    struct fault f = { 0 };
    CHECK_INT(openai_parse(sv, ENDPOINT_GENERATE, body, strlen(body), &rq, &f), -1);
    CHECK_INT(f.status, 400);
    CHECK_STR(f.param, param);
    CHECK_HAS(f.text, part);
    request_release(rq);
}

static struct request *taken(const struct service *sv, const char *body)
{
    struct request *rq = NULL;
    struct fault f = { 0 };
    if (openai_parse(sv, ENDPOINT_GENERATE, body, strlen(body), &rq, &f) < 0)
        test_fail(__FILE__, __LINE__, "%s: refused: %s", body, f.text);
    return rq;
}

/* Gives the only choice the tokens of a text as the engine would, # as the end token: log-prob of token i is
 * -i / 4. */
static void feed(struct request *rq, const char *tokens)
{
    struct choice *c = rq->choice;
    const struct top_entry top[LOGPROBS_MAX] = { { 'Q', -0.125f } };
    struct fault f = { 0 };
    for (int64_t p = 1; p < c->prompt->n && choice_scores_prompt(c); p++)
        choice_score(c, p, -0.25f * (float)p, top, 3);
    for (const char *t = tokens; *t && c->finish == FINISH_NONE; t++) {
        CHECK_INT(choice_accept(c, *t == '#' ? 0 : (unsigned char)*t, -0.25f * (float)c->n_ids, top, &f), 0);
        if (rq->stream)
            openai_event(&rq->events, c, choice_safe_text(c));
    }
}

static json_t *parsed(const char *text, size_t n)
{
    struct err e;
    json_t *j = jx_parse(text, n, "answer", &e);
    if (!j)
        test_fail(__FILE__, __LINE__, "%s: %s", e.text, text);
    return j;
}

static json_t *choice_of(const json_t *j) { return json_array_get(json_object_get(j, "choices"), 0); }

TEST(token_ids_and_sampling_params_become_a_request)
{
    struct service sv;
    service_bytes(&sv);
    struct request *rq = taken(
        &sv,
        "{\"token_ids\":[7,8,9],\"request_id\":\"r-1\",\"model\":\"m\",\"priority\":2,\"stream\":false,"
        "\"cache_salt\":\"x\",\"features\":null,\"kv_transfer_params\":null,\"output_mode\":\"tokens\","
        "\"sampling_params\":{\"n\":2,\"temperature\":0,\"top_k\":-1,\"seed\":3,\"max_tokens\":5,"
        "\"stop_token_ids\":[1],\"logprobs\":1,\"min_tokens\":2,\"ignore_eos\":true,\"detokenize\":false,"
        "\"output_kind\":2,\"skip_special_tokens\":false,\"spaces_between_special_tokens\":false,"
        "\"include_stop_str_in_output\":true,\"stop\":[],\"extra_args\":{},\"flat_logprobs\":false}}");
    CHECK_STR(rq->id, "r-1"); /* no prefix: clients look for the name they gave */
    CHECK_INT(rq->prompt[0].n, 3);
    CHECK_INT(rq->prompt[0].ids[2], 9);
    CHECK_INT(rq->n_choices, 2);
    CHECK_INT(rq->max_tokens, 5);
    CHECK_INT(rq->priority, 2);
    CHECK_INT(rq->logprobs, 1);
    CHECK_INT(rq->sampling.min_tokens, 2);
    CHECK(rq->ignore_eos && !rq->skip_special && rq->tokens_as_ids);
    request_release(rq);
    rq = taken(&sv, "{\"token_ids\":[7,8,9]}");
    CHECK_INT(rq->max_tokens,
              125); /* the rest of the context: 16 would cut every answer of a client that sets none */
    request_release(rq);
    tokenizer_close(sv.tok);
    sv.tok = NULL; /* without a tokenizer, too */
    request_release(taken(&sv, "{\"token_ids\":[255],\"sampling_params\":null}"));
}

TEST(wrong_token_ids_and_sampling_params_are_refused_with_the_field)
{
    struct service sv;
    service_bytes(&sv);
#define IDS "{\"token_ids\":[1]"
    refused(&sv, "{\"token_ids\":\"a\"}", "token_ids", "list of token ids");
    refused(&sv, "{\"token_ids\":[]}", "token_ids", "token_ids is empty");
    refused(&sv, "{\"token_ids\":[[1]]}", "token_ids", "token_ids[0]");
    refused(&sv, "{\"token_ids\":[1,256]}", "token_ids", "256");
    refused(&sv, IDS ",\"sampling_params\":[]}", "sampling_params", "object");
    refused(&sv, IDS ",\"temperature\":0}", "temperature", "not known"); /* it belongs into sampling_params */
    refused(&sv, IDS ",\"sampling_params\":{\"model\":\"m\"}}", "sampling_params.model", "not known");
    refused(&sv, IDS ",\"sampling_params\":{\"stream\":true}}", "sampling_params.stream", "not known");
    refused(&sv, IDS ",\"sampling_params\":{\"temperature\":-1}}", "sampling_params.temperature", "-1");
    refused(&sv, IDS ",\"sampling_params\":{\"logprobs\":21}}", "sampling_params.logprobs", "21");
    refused(&sv, IDS ",\"sampling_params\":{\"max_tokens\":128}}", "max_tokens", "maximum context length");
    refused(&sv, IDS ",\"sampling_params\":{\"structured_outputs\":{\"regex\":\"a\"}}}",
            "sampling_params.structured_outputs", "needs a tokenizer");
    refused(&sv, IDS ",\"kv_transfer_params\":{\"do_remote_decode\":true}}", "kv_transfer_params",
            "not supported");
    refused(&sv, IDS ",\"output_mode\":\"text\"}", "output_mode", "one of tokens");
    refused(&sv, IDS ",\"stream_options\":{}}", "stream_options", "stream true");
    refused(&sv, IDS ",\"prompt\":\"a\"}", "prompt", "not known");
#undef IDS
    tokenizer_close(sv.tok);
}

TEST(an_answer_of_token_ids_has_no_text_and_names_tokens_by_id)
{
    struct service sv;
    service_bytes(&sv);
    struct request *rq =
        taken(&sv, "{\"token_ids\":[65,66],\"request_id\":\"r\",\"sampling_params\":{\"max_tokens\":2,"
                   "\"logprobs\":1,\"prompt_logprobs\":1}}");
    feed(rq, "xy");
    struct json_out o = { 0 };
    openai_answer(&o, rq);
    json_t *j = parsed(o.p, o.n), *c = choice_of(j);
    CHECK_STR(json_string_value(json_object_get(j, "request_id")), "r");
    CHECK(!json_object_get(j, "object") && !json_object_get(c, "text") && !json_object_get(c, "message"));
    CHECK_HAS(o.p, "\"token_ids\":[120,121],\"token_versions\":[0,0],\"logprobs\":{\"content\":[{\"token\":"
                   "\"token_id:120\",\"logprob\":-0.5,");
    CHECK_HAS(o.p, "\"top_logprobs\":[{\"token\":\"token_id:81\",\"logprob\":-0.125,");
    CHECK_STR(json_string_value(json_object_get(c, "finish_reason")), "length");
    CHECK_HAS(o.p, "\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":2,\"total_tokens\":4,");
    CHECK_HAS(o.p, "\"prompt_logprobs\":[null,{\"66\":{\"logprob\":-0.25,\"rank\":3,");
    CHECK(json_is_null(json_object_get(j, "kv_transfer_params")));
    json_decref(j);
    json_out_free(&o);
    request_release(rq);
    tokenizer_close(sv.tok);
}

TEST(streamed_token_ids_join_to_the_answers)
{
    struct service sv;
    service_bytes(&sv);
    struct request *rq =
        taken(&sv, "{\"token_ids\":[65],\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                   "\"sampling_params\":{\"max_tokens\":9,\"logprobs\":0}}");
    feed(rq, "xyz#");
    int64_t ids[8] = { 0 };
    int n = 0;
    for (const char *p = rq->events.p, *end; p && (end = strstr(p, "\n\n")); p = end + 2, n++) {
        json_t *j = parsed(p + 6, (size_t)(end - p) - 6), *c = choice_of(j);
        CHECK_STR(json_string_value(json_object_get(j, "request_id")), rq->name);
        CHECK_INT(json_array_size(json_object_get(c, "token_ids")), 1);
        CHECK_INT(json_array_size(json_object_get(json_object_get(c, "logprobs"), "content")), 1);
        CHECK(json_is_null(json_object_get(c, "finish_reason")) == (n < 3));
        if (n < 8)
            ids[n] = json_integer_value(json_array_get(json_object_get(c, "token_ids"), 0));
        json_decref(j);
    }
    CHECK_INT(n, 4); /* the end token is among the ids, as in other lists of tokens */
    CHECK(ids[0] == 'x' && ids[1] == 'y' && ids[2] == 'z' && ids[3] == 0);
    request_release(rq);
    tokenizer_close(sv.tok);
}
