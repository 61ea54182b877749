/* serve_openai_test.c - requests in, answers out: every field, every refusal, stop strings, streams that join
 * to the answer. */
#include <math.h>
#include "base/jx.h"
#include "serve/api/openai.h"
#include "tests/test.h"
#include "text/template.h"

static void service_bytes(struct service *sv)
{
    struct err e;
    *sv = (struct service){
        .state = SERVICE_READY, .model = "m", .vocab = 256, .ctx = 128, .n_eos = 1, .eos = { 0 }
    };
    CHECK_INT(tokenizer_bytes(&sv->tok, &e), 0);
}

/* A refusal: its status, the field, a part of the text. */
static void refused(const struct service *sv, const char *body, int status, const char *param,
                    const char *part)
{
    struct request *rq = NULL;
    struct fault f = { 0 };
    CHECK_INT(openai_parse(sv, !!strstr(body, "\"messages\""), body, strlen(body), &rq, &f), -1);
    if (f.status != status || strcmp(f.param, param) || !strstr(f.text, part))
        test_fail(__FILE__, __LINE__, "%s: status %d, param \"%s\", \"%s\"; not %d, \"%s\", \"%s\"", body,
                  f.status, f.param, f.text, status, param, part);
    request_release(rq);
}

static struct request *taken(const struct service *sv, const char *body)
{
    struct request *rq = NULL;
    struct fault f = { 0 };
    if (openai_parse(sv, !!strstr(body, "\"messages\""), body, strlen(body), &rq, &f) < 0)
        test_fail(__FILE__, __LINE__, "%s: refused: %s", body, f.text);
    return rq;
}

static void passes(const struct service *sv, const char *body) { request_release(taken(sv, body)); }

TEST(every_field_lands_where_it_belongs)
{
    struct service sv;
    service_bytes(&sv);
    struct request *rq = taken(&sv, "{\"model\":\"m\",\"prompt\":\"ab\",\"max_tokens\":7,\"temperature\":0.5,"
                                    "\"top_p\":0.9,\"top_k\":11,\"min_p\":0.1,\"n\":3,"
                                    "\"seed\":-5,\"logprobs\":4,\"echo\":true,\"stream\":true,\"stream_"
                                    "options\":{\"include_usage\":true},\"stop\":[\"x\",\"yz\"],"
                                    "\"stop_token_ids\":[9,8],\"ignore_eos\":true,\"return_tokens_as_token_"
                                    "ids\":true,\"return_token_ids\":true,\"user\":\"u\"}");
    CHECK_INT(rq->max_tokens, 7);
    CHECK_NEAR(rq->sampling.temperature, 0.5, 0);
    CHECK_NEAR(rq->sampling.top_p, 0.9, 0);
    CHECK_NEAR(rq->sampling.min_p, 0.1, 0);
    CHECK_INT(rq->sampling.top_k, 11);
    CHECK_INT((int64_t)rq->sampling.seed, -5);
    CHECK_INT(rq->n_choices, 3);
    CHECK_INT(rq->logprobs, 4);
    CHECK(rq->echo && rq->stream && rq->include_usage && rq->ignore_eos && rq->tokens_as_ids &&
          rq->return_ids);
    CHECK_INT(rq->n_stop, 2);
    CHECK_STR(rq->stop[1], "yz");
    CHECK_INT(rq->n_stop_ids, 2);
    CHECK_INT(rq->stop_ids[1], 8);
    CHECK_INT(rq->prompt[0].n, 2);
    CHECK_INT(rq->prompt[0].ids[1], 'b');
    CHECK_INT(rq->choice[2].k, 2);
    CHECK_INT(rq->choice[0].seq.first_want, 0); /* the prompt is scored */
    request_release(rq);
    tokenizer_close(sv.tok);
}

TEST(defaults_are_those_of_the_wire_and_null_means_default)
{
    struct service sv;
    service_bytes(&sv);
    struct request *rq = taken(&sv, "{\"prompt\":\"abc\",\"max_tokens\":null,\"temperature\":null,\"stop\":"
                                    "null,\"logprobs\":null,\"seed\":null,\"never_heard_of\":null}");
    CHECK_INT(rq->max_tokens, 16);
    CHECK_NEAR(rq->sampling.temperature, 1, 0);
    CHECK_INT(rq->logprobs, -1);
    CHECK_INT(rq->n_choices, 1);
    CHECK_INT(rq->choice[0].seq.first_want, 2); /* only the last row */
    CHECK(!strncmp(rq->id, "cmpl-", 5) && strlen(rq->id) == 37);
    request_release(rq);
    tokenizer_close(sv.tok);
}

TEST(prompts_come_in_four_forms_and_index_is_prompt_times_n_plus_k)
{
    struct service sv;
    service_bytes(&sv);
    struct request *rq = taken(&sv, "{\"prompt\":[65,66]}");
    CHECK_INT(rq->n_prompts, 1);
    CHECK_INT(rq->prompt[0].n, 2);
    request_release(rq);
    rq = taken(&sv, "{\"prompt\":[\"a\",\"bc\"]}");
    CHECK_INT(rq->n_prompts, 2);
    CHECK_INT(rq->prompt[1].n, 2);
    request_release(rq);
    rq = taken(&sv, "{\"prompt\":[[1],[2,3],[4]],\"n\":2}");
    CHECK_INT(rq->n_choices, 6);
    CHECK_INT(rq->choice[3].prompt->ids[0], 2);
    CHECK_INT(rq->choice[3].index, 3);
    CHECK_INT(rq->choice[3].k, 1);
    request_release(rq);
    tokenizer_close(sv.tok);
}

TEST(wrong_requests_are_refused_with_the_field_and_the_numbers)
{
    struct service sv;
    service_bytes(&sv);
    refused(&sv, "{", 400, "", "the body");
    refused(&sv, "", 400, "", "the body");
    refused(&sv, "[1]", 400, "", "object");
    refused(&sv, "{\"prompt\":\"a\\u0000b\"}", 400, "", "the body");
    refused(&sv, "{\"prompt\":\"\xff\"}", 400, "", "the body");
    refused(&sv, "{\"prompt\":\"a\",\"prompt\":\"b\"}", 400, "", "the body");
    refused(&sv, "{}", 400, "prompt", "missing");
    refused(&sv, "{\"prompt\":7}", 400, "prompt", "must be");
    refused(&sv, "{\"prompt\":\"\"}", 400, "prompt", "empty");
    refused(&sv, "{\"prompt\":[]}", 400, "prompt", "empty");
    refused(&sv, "{\"prompt\":[[]]}", 400, "prompt", "prompt[0] is empty");
    refused(&sv, "{\"prompt\":[1,\"a\"]}", 400, "prompt", "prompt[1]");
    refused(&sv, "{\"prompt\":[1,2.5]}", 400, "prompt", "integers only");
    refused(&sv, "{\"prompt\":[1,256]}", 400, "prompt", "256");
    refused(&sv, "{\"prompt\":[1,-1]}", 400, "prompt", "-1");
    refused(&sv, "{\"prompt\":[[1],7]}", 400, "prompt", "prompt[1]");
    refused(&sv, "{\"prompt\":\"a\",\"model\":\"other\"}", 404, "model", "'other'");
    refused(
        &sv, "{\"prompt\":\"a\",\"max_tokens\":128}", 400, "max_tokens",
        "this model's maximum context length is 128 tokens, but max_tokens 128 and 1 tokens of prompt are "
        "129 together: ask for at most 127");
    refused(&sv, "{\"prompt\":\"a\",\"max_tokens\":-1}", 400, "max_tokens", "-1");
    refused(&sv, "{\"prompt\":\"a\",\"max_tokens\":1.5}", 400, "max_tokens", "integer");
    refused(&sv, "{\"prompt\":\"a\",\"max_tokens\":\"5\"}", 400, "max_tokens", "integer");
    refused(&sv, "{\"prompt\":\"a\",\"temperature\":-0.1}", 400, "temperature", "-0.1");
    refused(&sv, "{\"prompt\":\"a\",\"top_p\":0}", 400, "top_p", "0");
    refused(&sv, "{\"prompt\":\"a\",\"n\":0}", 400, "n", "0");
    refused(&sv, "{\"prompt\":\"a\",\"logprobs\":21}", 400, "logprobs", "21");
    refused(&sv, "{\"prompt\":\"a\",\"logprobs\":true}", 400, "logprobs", "integer");
    refused(&sv, "{\"prompt\":\"a\",\"echo\":1}", 400, "echo", "true or false");
    refused(&sv, "{\"prompt\":\"a\",\"stop\":\"\"}", 400, "stop", "empty");
    refused(&sv, "{\"prompt\":\"a\",\"stop\":[1]}", 400, "stop", "text");
    refused(&sv, "{\"prompt\":\"a\",\"stop_token_ids\":[999]}", 400, "stop_token_ids", "999");
    refused(&sv, "{\"prompt\":\"a\",\"stream_options\":{}}", 400, "stream_options", "stream true");
    refused(&sv, "{\"prompt\":\"a\",\"stream\":true,\"stream_options\":{\"foo\":true}}", 400,
            "stream_options", "foo");
    refused(&sv, "{\"prompt\":\"a\",\"guided_json\":{}}", 400, "guided_json",
            "structured_outputs: {\"json\"");
    refused(&sv, "{\"prompt\":\"a\",\"best_of\":2}", 400, "best_of", "not supported");
    refused(&sv, "{\"prompt\":\"a\",\"logit_bias\":{\"256\":1}}", 400, "logit_bias", "'256'");
    refused(&sv, "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", 400, "logit_bias", "'x'");
    refused(&sv, "{\"prompt\":\"a\",\"logit_bias\":{\"5\":101}}", 400, "logit_bias", "token 5");
    refused(&sv, "{\"prompt\":\"a\",\"logit_bias\":{\"5\":1,\"05\":2}}", 400, "logit_bias", "twice");
    refused(&sv, "{\"prompt\":\"a\",\"logit_bias\":[5]}", 400, "logit_bias", "object");
    refused(&sv, "{\"prompt\":\"a\",\"presence_penalty\":2.5}", 400, "presence_penalty", "2.5");
    refused(&sv, "{\"prompt\":\"a\",\"frequency_penalty\":\"1\"}", 400, "frequency_penalty", "number");
    refused(&sv, "{\"prompt\":\"a\",\"repetition_penalty\":0}", 400, "repetition_penalty", "0");
    refused(&sv, "{\"prompt\":\"a\",\"min_tokens\":17}", 400, "min_tokens", "max_tokens 16");
    refused(&sv, "{\"prompt\":\"a\",\"prompt_logprobs\":21}", 400, "prompt_logprobs", "21");
    refused(&sv, "{\"prompt\":\"a\",\"prompt_logprobs\":1,\"stream\":true}", 400, "prompt_logprobs",
            "stream");
    refused(&sv, "{\"prompt\":[[1],[2],[3]],\"n\":1400}", 400, "n", "1400");
    tokenizer_close(sv.tok);
}

TEST(a_prompt_that_fills_the_context_can_be_scored_but_not_answered)
{
    struct service sv;
    char body[1024];
    int n;
    service_bytes(&sv);
    n = snprintf(body, sizeof body, "{\"max_tokens\":0,\"echo\":true,\"logprobs\":1,\"prompt\":[1");
    for (int i = 1; i < 128; i++)
        n += snprintf(body + n, sizeof body - (size_t)n, ",%d", i);
    strcpy(body + n, "]}");
    struct request *rq = taken(&sv, body);
    /* the prediction of the last token was not asked for */
    CHECK_INT(rq->choice[0].seq.n_ids, 127);
    CHECK_INT(rq->choice[0].seq.first_want, 0);
    request_release(rq);
    memcpy(body, "{\"max_tokens\":1,", 16);
    refused(&sv, body, 400, "max_tokens", "at most 0");
    strcpy(body + n, ",5]}");
    refused(&sv, body, 400, "prompt", "129");
    tokenizer_close(sv.tok);
}

TEST(a_default_length_is_cut_where_the_context_ends)
{
    struct service sv;
    char body[256] = "{\"prompt\":\"";
    service_bytes(&sv);
    memset(body + 11, 'x', 120);
    strcpy(body + 131, "\"}");
    struct request *rq = taken(&sv, body);
    CHECK_INT(rq->max_tokens, 8);
    request_release(rq);
    tokenizer_close(sv.tok);
}

TEST(a_prompt_is_cut_to_its_end_when_that_is_asked_for)
{
    struct service sv;
    service_bytes(&sv);
    struct request *rq =
        taken(&sv,
              "{\"prompt\":[\"abcdef\",[1,2,3,4],\"xy\"],\"truncate_prompt_tokens\":3,\"max_tokens\":2}");
    CHECK_INT(rq->prompt[0].n, 3);
    CHECK_INT(rq->choice[0].ids[0], 'd');
    CHECK(!rq->prompt[0].text);
    CHECK_INT(rq->choice[1].ids[0], 2);
    CHECK_INT(rq->prompt[2].n, 2);
    CHECK_STR(rq->prompt[2].text, "xy");
    request_release(rq);
    char body[4096];
    int n = sprintf(body, "{\"prompt\":\"");
    for (int64_t i = 0; i < sv.ctx + 5 && n < 4000; i++)
        body[n++] = 'q';
    sprintf(body + n, "\",\"max_tokens\":0,\"echo\":true,\"truncate_prompt_tokens\":-1}");
    rq = taken(&sv, body);
    CHECK_INT(rq->prompt[0].n, sv.ctx);
    request_release(rq);
    /* the answer keeps its place in the context */
    sprintf(body + n, "\",\"max_tokens\":5,\"truncate_prompt_tokens\":-1}");
    rq = taken(&sv, body);
    CHECK_INT(rq->prompt[0].n, sv.ctx - 5);
    request_release(rq);
    sprintf(body + n, "\",\"truncate_prompt_tokens\":-1}");
    rq = taken(&sv, body);
    CHECK_INT(rq->prompt[0].n, sv.ctx - 16);
    CHECK_INT(rq->max_tokens, 16);
    request_release(rq);
    refused(&sv, "{\"prompt\":\"a\",\"truncate_prompt_tokens\":0}", 400, "truncate_prompt_tokens",
            "1 or more");
    refused(&sv, "{\"prompt\":\"a\",\"truncate_prompt_tokens\":-2}", 400, "truncate_prompt_tokens",
            "1 or more");
    refused(&sv, "{\"prompt\":\"a\",\"truncate_prompt_tokens\":\"3\"}", 400, "truncate_prompt_tokens",
            "1 or more");
    tokenizer_close(sv.tok);
}

TEST(a_text_far_too_long_is_refused_by_its_beginning)
{
    struct service sv;
    service_bytes(&sv); /* context 128: the first 64 bytes for each token decide */
    enum { LONG = 2 * 128 * 64 };
    static char body[LONG + 200];
    int n = sprintf(body, "{\"prompt\":\"");
    memset(body + n, 'q', LONG);
    strcpy(body + n + LONG, "\"}");
    refused(
        &sv, body, 400, "prompt",
        "this model's maximum context length is 128 tokens, but prompt is a text of 16384 bytes, of which "
        "the first 8192 are 8192 tokens already: shorten it");
    strcpy(body + n + LONG - 1, "\"}");
    refused(&sv, body, 400, "prompt", "128 tokens, but prompt has 16383 tokens: shorten it");
    strcpy(body + n + LONG, "\",\"truncate_prompt_tokens\":3}");
    body[n + LONG - 1] = 'q', body[n + LONG - 2] = 'q', body[n + LONG - 3] = 'q';
    passes(&sv, body);
    memcpy(body + n + 8190, "\xE2\x82\xAC\xE2\x82\xAC", 6); /* the cut is not inside a character */
    strcpy(body + n + LONG, "\"}");
    refused(&sv, body, 400, "prompt", "of which the first 8190 are");
    tokenizer_close(sv.tok);
}

TEST(ends_that_are_the_whole_vocabulary_leave_min_tokens_nothing)
{
    struct service sv;
    service_bytes(&sv);
    char body[4096];
    int n = sprintf(body, "{\"prompt\":\"a\",\"min_tokens\":1,\"stop_token_ids\":[0,0");
    for (int id = 1; id < 255; id++)
        n += sprintf(body + n, ",%d", id);
    sprintf(body + n, "]}");
    passes(&sv, body); /* 255 is left */
    sprintf(body + n, ",255]}");
    refused(&sv, body, 400, "stop_token_ids", "every token of the vocabulary");
    memcpy(strstr(body, "min_tokens\":1"), "min_tokens\":0", 13);
    passes(&sv, body);
    tokenizer_close(sv.tok);
}

TEST(neutral_values_pass_and_lenient_ignores_the_rest)
{
    struct service sv;
    service_bytes(&sv);
    passes(&sv, "{\"prompt\":\"a\",\"best_of\":1,\"suffix\":\"\",\"logit_bias\":{},\"presence_penalty\":0.0,"
                "\"frequency_penalty\":0,\"repetition_penalty\":1.0,"
                "\"min_tokens\":0,\"use_beam_search\":false,\"metadata\":{\"a\":1},\"store\":true,\"response_"
                "format\":{\"type\":\"text\"},\"skip_special_tokens\":true,"
                "\"spaces_between_special_tokens\":true}");
    refused(&sv, "{\"prompt\":\"a\",\"priority\":0.5}", 400, "priority", "integer");
    refused(&sv, "{\"prompt\":\"a\",\"priority\":1e300}", 400, "priority", "integer");
    refused(&sv, "{\"prompt\":\"a\",\"priority\":-9000000000}", 400, "priority", "-9e+09");
    refused(&sv, "{\"prompt\":\"a\",\"spaces_between_special_tokens\":false}", 400,
            "spaces_between_special_tokens", "not supported");
    passes(&sv, "{\"prompt\":\"a\",\"prompt_cache_retention\":\"24h\",\"stream\":true,\"stream_options\":{"
                "\"include_obfuscation\":false,\"include_usage\":null}}");
    struct request *rq = taken(&sv, "{\"prompt\":\"a\",\"stream\":true,\"stream_options\":{\"include_usage\":"
                                    "false,\"continuous_usage_stats\":true}}");
    CHECK(!rq->include_usage && !rq->usage_in_every_chunk);
    request_release(rq);
    sv.lenient = 1;
    passes(&sv,
           "{\"prompt\":\"a\",\"best_of\":2,\"guided_json\":{},\"response_format\":{\"type\":\"text\"}}");
    tokenizer_close(sv.tok);
}

TEST(without_a_tokenizer_only_ids_are_taken)
{
    struct service sv = { .state = SERVICE_READY, .model = "m", .vocab = 100, .ctx = 64 };
    refused(&sv, "{\"prompt\":\"a\"}", 400, "prompt", "token ids");
    refused(&sv, "{\"prompt\":[1],\"stop\":\"a\"}", 400, "stop", "tokenizer");
    passes(&sv, "{\"prompt\":[1,99]}");
}

/* ---- answers ---- */

/* Runs a request as the engine would, with tokens given: the log-prob of token i of a choice is -i / 4. */
static void feed(struct request *rq, const char *const *tokens)
{
    for (int i = 0; i < rq->n_choices; i++) {
        struct choice *c = &rq->choice[i];
        struct top_entry top[LOGPROBS_MAX] = { { 'Q', -0.125f }, { 'R', -INFINITY } };
        struct fault f = { 0 };
        for (int64_t p = 1; p < c->prompt->n && choice_scores_prompt(c); p++)
            choice_score(c, p, -0.25f * (float)p, top, 3);
        for (const char *t = tokens[i]; *t && c->finish == FINISH_NONE; t++) {
            CHECK_INT(choice_accept(c, *t == '#' ? 0 : (unsigned char)*t, -0.25f * (float)c->n_ids, top, &f),
                      0);
            if (rq->stream)
                openai_event(&rq->events, c, choice_safe_text(c));
        }
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

static json_t *answer(const struct request *rq)
{
    struct json_out o = { 0 };
    openai_answer(&o, rq);
    json_t *j = parsed(o.p, o.n);
    json_out_free(&o);
    return j;
}

static const char *text_of(const json_t *j, size_t i, const char *key)
{
    const json_t *v = json_object_get(json_array_get(json_object_get(j, "choices"), i), key);
    return json_is_string(v) ? json_string_value(v) : json_is_null(v) ? "null" : "?";
}

TEST(an_answer_has_text_reason_and_counts)
{
    struct service sv;
    service_bytes(&sv);
    struct request *rq = taken(&sv, "{\"prompt\":[\"ab\",\"c\"],\"max_tokens\":3,\"return_token_ids\":true}");
    feed(rq, (const char *const[]){ "xyz", "p#q" });
    json_t *j = answer(rq);
    CHECK_STR(text_of(j, 0, "text"), "xyz");
    CHECK_STR(text_of(j, 0, "finish_reason"), "length");
    CHECK_STR(text_of(j, 1, "text"), "p"); /* the end token is not in the text … */
    CHECK_STR(text_of(j, 1, "finish_reason"), "stop");
    CHECK_STR(text_of(j, 1, "logprobs"), "null");
    const json_t *u = json_object_get(j, "usage"),
                 *ids = json_object_get(json_array_get(json_object_get(j, "choices"), 1), "token_ids");
    CHECK_INT(json_integer_value(json_object_get(u, "prompt_tokens")), 3);
    /* … but it was generated */
    CHECK_INT(json_integer_value(json_object_get(u, "completion_tokens")), 5);
    CHECK_INT(json_integer_value(json_object_get(u, "total_tokens")), 8);
    CHECK_INT(json_array_size(ids), 2);
    CHECK_INT(json_integer_value(json_array_get(ids, 1)), 0);
    json_decref(j);
    request_release(rq);
    tokenizer_close(sv.tok);
}

TEST(logprobs_have_four_lists_floats_come_back_and_the_first_is_null)
{
    struct service sv;
    service_bytes(&sv);
    struct request *rq = taken(&sv,
                               "{\"prompt\":\"a\xc3\xa9z\",\"max_tokens\":2,\"echo\":true,\"logprobs\":2}");
    feed(rq, (const char *const[]){ "xy" });
    rq->choice[0].logprob[4] = -0.1f;
    struct json_out o = { 0 };
    openai_answer(&o, rq);
    CHECK_HAS(o.p, "\"token_logprobs\":[null,-0.25,-0.5,-0.75,-0.100000001,-1.25]");
    CHECK_HAS(o.p, "\"x\":-0.100000001"); /* printed the same in both places */
    CHECK_HAS(o.p, "\"R\":-9999.0");
    CHECK_HAS(o.p, "\"text\":\"a\xc3\xa9zxy\"");
    /* the two halves of é count one each: they are shown as U+FFFD */
    CHECK_HAS(o.p, "\"text_offset\":[0,1,2,3,4,5]");
    json_t *j = parsed(o.p, o.n);
    const json_t *l = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "logprobs");
    CHECK_INT(json_array_size(json_object_get(l, "tokens")), 6);
    CHECK(json_is_null(json_array_get(json_object_get(l, "top_logprobs"), 0)));
    CHECK_INT(json_object_size(json_array_get(json_object_get(l, "top_logprobs"), 4)), 3);
    json_decref(j);
    json_out_free(&o);
    request_release(rq);
    tokenizer_close(sv.tok);
}

TEST(tokens_as_ids_are_written_in_both_lists)
{
    struct service sv;
    service_bytes(&sv);
    struct request *rq =
        taken(&sv, "{\"prompt\":\"a\",\"max_tokens\":1,\"logprobs\":0,\"return_tokens_as_token_ids\":true}");
    feed(rq, (const char *const[]){ "x" });
    struct json_out o = { 0 };
    openai_answer(&o, rq);
    CHECK_HAS(o.p, "\"tokens\":[\"token_id:120\"]");
    CHECK_HAS(o.p, "\"top_logprobs\":[{\"token_id:120\":-0.25}]");
    json_out_free(&o);
    request_release(rq);
    tokenizer_close(sv.tok);
}

TEST(a_stop_string_over_several_tokens_is_cut_off_and_the_earliest_wins)
{
    struct service sv;
    service_bytes(&sv);
    struct request *rq = taken(&sv,
                               "{\"prompt\":\"a\",\"max_tokens\":50,\"stop\":[\"lo wo\",\"END\",\"o w\"]}");
    feed(rq, (const char *const[]){ "hello world END" });
    json_t *j = answer(rq);
    CHECK_STR(text_of(j, 0, "text"), "hell");
    CHECK_STR(text_of(j, 0, "stop_reason"), "o w"); /* complete first: nothing after it is generated */
    CHECK_INT(rq->choice[0].n_ids, 1 + 7);
    json_decref(j);
    request_release(rq);
    tokenizer_close(sv.tok);
}

/* Joins the texts of all events; every one must be a JSON document of its own. */
static void join(const struct request *rq, char *text, char *reason, int *events)
{
    *text = *reason = 0;
    *events = 0;
    for (const char *p = rq->events.p, *end; p && (end = strstr(p, "\n\n")); p = end + 2) {
        json_t *j = parsed(p + 6, (size_t)(end - p) - 6);
        CHECK(!strncmp(p, "data: {", 7));
        strcat(text, text_of(j, 0, "text"));
        strcpy(reason, text_of(j, 0, "finish_reason"));
        ++*events;
        json_decref(j);
    }
}

TEST(a_stream_joins_to_the_answer_and_never_shows_what_a_stop_string_takes_back)
{
    static const struct {
        const char *tokens, *text, *reason;
        int events;
    } row[] = {
        { "hello ENDx", "hello ", "stop", 9 }, /* E, N, D are held back */
        /* … and sent when they are no stop string after all */
        { "hello EN#", "hello EN", "stop", 9 },
        { "EEENDabc", "EE", "stop", 5 },
        { "abcdefghijkl", "abcdefghijkl", "length", 12 },
        { "a\xc3\xa9\xe2\x82\xac!", "a\xc3\xa9\xe2\x82\xac!", "null", 7 },
        { "x\xe2\x82#", "x\xef\xbf\xbd", "stop", 4 }, /* a character that the end cuts */
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct service sv;
        char text[256], reason[16];
        int events;
        service_bytes(&sv);
        struct request *rq = taken(&sv,
                                   "{\"prompt\":\"a\",\"max_tokens\":12,\"stop\":\"END\",\"stream\":true}");
        feed(rq, (const char *const[]){ row[i].tokens });
        join(rq, text, reason, &events);
        CHECK_STR(text, row[i].text);
        CHECK_STR(reason, row[i].reason);
        /* one event for each token, also when it has no text */
        CHECK_INT(events, row[i].events);
        json_t *j = answer(rq);
        CHECK_STR(text_of(j, 0, "text"), row[i].text);
        json_decref(j);
        request_release(rq);
        tokenizer_close(sv.tok);
    }
}

TEST(an_end_token_counts_unless_it_is_to_be_ignored)
{
    struct service sv;
    service_bytes(&sv);
    sv.n_eos = 2;
    sv.eos[1] = 'y';
    struct request *rq = taken(&sv, "{\"prompt\":\"a\",\"max_tokens\":5}");
    feed(rq, (const char *const[]){ "xyz" });
    CHECK_INT(rq->choice[0].finish, FINISH_STOP);
    CHECK_INT(rq->choice[0].stop_id, 'y');
    CHECK_INT(rq->choice[0].text.n, 1);
    request_release(rq);
    rq = taken(&sv, "{\"prompt\":\"a\",\"max_tokens\":3,\"ignore_eos\":true}");
    feed(rq, (const char *const[]){ "xyz" });
    CHECK_INT(rq->choice[0].finish, FINISH_LENGTH);
    CHECK_INT(rq->choice[0].text.n, 3);
    request_release(rq);
    tokenizer_close(sv.tok);
}

TEST(json_texts_are_escaped_and_broken_utf8_is_replaced)
{
    struct json_out o = { 0 };
    json_out_string_n(&o, "a\"\\\n\x01\xff\xc3\xa9\xed\xa0\x80\xf0\x9f\x98\x80\xe2\x82", 17);
    CHECK_STR(o.p, "\"a\\\"\\\\\\n\\u0001\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xf0\x9f\x98"
                   "\x80\xef\xbf\xbd\xef\xbf\xbd\"");
    json_out_free(&o);
    CHECK_INT(utf8_count("a\xc3\xa9\xe2\x82", 5), 4);
}

TEST(errors_have_the_four_members)
{
    struct json_out o = { 0 };
    struct fault f;
    fault_set(&f, 503, NULL, "say \"%s\"", "x");
    openai_error(&o, &f);
    CHECK_STR(o.p, "{\"error\":{\"message\":\"say "
                   "\\\"x\\\"\",\"type\":\"unavailable_error\",\"param\":null,\"code\":503}}");
    json_out_free(&o);
    fault_set_context(&f, 128, "prompt", "prompt has %d tokens", 129);
    openai_error(&o, &f);
    CHECK_STR(o.p,
              "{\"error\":{\"message\":\"this model's maximum context length is 128 tokens, but prompt has "
              "129 tokens\",\"type\":\"invalid_request_error\",\"param\":\"prompt\",\"code\":\"context_"
              "length_exceeded\"}}");
    json_out_free(&o);
    fault_set(&f, 400, "n", "no"); /* a later fault does not keep the name */
    openai_error(&o, &f);
    CHECK_STR(
        o.p,
        "{\"error\":{\"message\":\"no\",\"type\":\"invalid_request_error\",\"param\":\"n\",\"code\":400}}");
    json_out_free(&o);
}

TEST(prompt_logprobs_are_a_list_beside_the_answer_with_the_prompts_own_tokens_first)
{
    struct service sv;
    service_bytes(&sv);
    struct request *rq = taken(&sv,
                               "{\"prompt\":\"ab\",\"max_tokens\":1,\"logprobs\":0,\"prompt_logprobs\":2}");
    CHECK_INT(rq->choice[0].seq.first_want, 0);
    CHECK_INT(rq->tops, 2);
    feed(rq, (const char *const[]){ "x" });
    struct json_out o = { 0 };
    openai_answer(&o, rq);
    CHECK_HAS(o.p,
              "\"prompt_logprobs\":[null,{\"98\":{\"logprob\":-0.25,\"rank\":3,\"decoded_token\":\"b\"},");
    CHECK_HAS(o.p, "\"tokens\":[\"x\"]");
    CHECK_HAS(o.p, "\"top_logprobs\":[{\"x\":"); /* logprobs 0: only the sampled token */
    json_out_free(&o);
    request_release(rq);
    tokenizer_close(sv.tok);
}

TEST(a_stop_string_inside_of_min_tokens_does_not_stop)
{
    struct service sv;
    service_bytes(&sv);
    struct request *rq = taken(&sv, "{\"prompt\":\"a\",\"max_tokens\":12,\"min_tokens\":6,\"stop\":\"ab\"}");
    feed(rq, (const char *const[]){ "xabxababyyyy" });
    CHECK_INT(rq->choice[0].finish, FINISH_STOP);
    /* the second one ends with the sixth token, the third counts */
    CHECK_INT(rq->choice[0].text.n, 6);
    request_release(rq);
    tokenizer_close(sv.tok);
}

/* ---- chats ---- */

static void service_chat(struct service *sv)
{
    static const char text[] = "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no bad "
                               "roles') }}{% endif %}<{{ m.role }}>{{ m.content }};"
                               "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    struct err e = { 0 };
    service_bytes(sv);
    CHECK_INT(template_open(&sv->chat, text, sizeof text - 1, "test template", &e), 0);
}

static void service_chat_close(struct service *sv)
{
    template_close(sv->chat);
    tokenizer_close(sv->tok);
}

static void prompt_is(const struct service *sv, const char *body, const char *want)
{
    struct request *rq = taken(sv, body);
    char text[256] = { 0 };
    for (int64_t i = 0; i < rq->prompt->n && i < 255; i++)
        text[i] = (char)rq->prompt->ids[i];
    CHECK_STR(text, want);
    request_release(rq);
}

TEST(messages_go_through_the_template)
{
    struct service sv;
    service_chat(&sv);
    prompt_is(&sv, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", "<user>hi;<assistant>");
    prompt_is(&sv,
              "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
              "\"text\",\"text\":\"b\"}]}],\"add_generation_prompt\":false}",
              "<user>a\nb;");
    struct request *rq = taken(&sv, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    CHECK_INT(rq->max_tokens, 128 - 20); /* the rest of the context */
    CHECK(!strncmp(rq->id, "chatcmpl-", 9));
    request_release(rq);
    service_chat_close(&sv);
}

TEST(reasoning_effort_is_a_variable_of_the_template)
{
    static const char text[] = "{{ reasoning_effort | default('unset') }}:{{ x | default('-') }}";
    struct service sv;
    struct err e = { 0 };
    service_bytes(&sv);
    CHECK_INT(template_open(&sv.chat, text, sizeof text - 1, "test template", &e), 0);
#define ASK "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
    prompt_is(&sv, ASK "}", "unset:-");
    prompt_is(&sv, ASK ",\"reasoning_effort\":\"high\"}", "high:-");
    prompt_is(&sv, ASK ",\"reasoning_effort\":\"high\",\"chat_template_kwargs\":{\"x\":1}}", "high:1");
    prompt_is(&sv,
              ASK ",\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"reasoning_effort\":\"max\"}}",
              "max:-");
#undef ASK
    service_chat_close(&sv);
}

TEST(wrong_chats_are_refused_with_the_field)
{
    struct service sv;
    service_chat(&sv);
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
    refused(&sv, "{\"messages\":[]}", 400, "messages", "1 to");
    refused(&sv, "{\"messages\":\"hi\"}", 400, "messages", "list");
    refused(&sv, "{\"messages\":[7]}", 400, "messages", "messages[0]");
    refused(&sv, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"content\":\"b\"}]}", 400,
            "messages", "messages[1]");
    refused(&sv, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", 400, "messages", "content");
    refused(&sv, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400,
            "messages", "content[0]");
    refused(&sv, "{\"messages\":[{\"role\":\"bad\",\"content\":\"a\"}]}", 400, "messages", "no bad roles");
    refused(&sv, "{" HI ",\"prompt\":\"a\"}", 400, "prompt", "'prompt'");
    refused(&sv, "{" HI ",\"suffix\":\"a\"}", 400, "suffix", "'suffix'");
    refused(&sv, "{" HI ",\"logprobs\":1}", 400, "logprobs", "true or false");
    refused(&sv, "{" HI ",\"top_logprobs\":2}", 400, "top_logprobs", "logprobs true");
    refused(&sv, "{" HI ",\"max_completion_tokens\":120}", 400, "max_tokens", "at most 108");
    refused(&sv, "{" HI ",\"tools\":[{}]}", 400, "tools", "tools[0].type");
    refused(&sv, "{" HI ",\"tool_choice\":\"required\"}", 400, "tool_choice", "there are no tools");
    refused(&sv, "{" HI ",\"reasoning_effort\":\"huge\"}", 400, "reasoning_effort",
            "one of none, minimal, low, medium, high");
    refused(&sv, "{" HI ",\"verbosity\":1}", 400, "verbosity", "one of low, medium, high");
    refused(&sv, "{" HI ",\"modalities\":[\"text\",\"audio\"]}", 400, "modalities", "text only");
    refused(&sv, "{" HI ",\"modalities\":\"text\"}", 400, "modalities", "[\"text\"]");
    refused(&sv, "{" HI ",\"response_format\":{\"type\":\"json_object\"}}", 400, "response_format",
            "needs a tokenizer");
    refused(&sv, "{" HI ",\"response_format\":{\"type\":\"xml\"}}", 400, "response_format", "json_schema");
    refused(&sv, "{" HI ",\"response_format\":\"json\"}", 400, "response_format", "with a type");
    refused(&sv, "{" HI ",\"response_format\":{\"type\":\"json_schema\"}}", 400, "response_format",
            "an object with a schema");
    refused(&sv, "{" HI ",\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"b\"]}}", 400,
            "structured_outputs", "2 of json");
    refused(&sv, "{" HI ",\"continue_final_message\":true}", 400, "continue_final_message",
            "add_generation_prompt");
    refused(&sv, "{" HI ",\"chat_template_kwargs\":[]}", 400, "chat_template_kwargs", "object");
    refused(&sv, "{" HI ",\"chat_template_kwargs\":{\"tools\":[{}]}}", 400, "chat_template_kwargs",
            "tools is a field of the request");
    refused(&sv, "{" HI ",\"chat_template_kwargs\":{\"messages\":[]}}", 400, "chat_template_kwargs",
            "messages is a field of the request");
    passes(&sv, "{" HI
                ",\"tools\":[],\"tool_choice\":\"auto\",\"top_logprobs\":0,\"stop\":null,\"max_tokens\":5}");
    passes(&sv,
           "{" HI ",\"tools\":[],\"tool_choice\":\"none\",\"reasoning_effort\":\"minimal\",\"verbosity\":"
           "\"low\",\"modalities\":[\"text\"],\"prompt_cache_retention\":\"in_memory\"}");
    template_close(sv.chat);
    sv.chat = NULL;
    refused(&sv, "{" HI "}", 400, "messages", "no chat template");
    tokenizer_close(sv.tok);
}

TEST(a_chat_answers_with_a_message_and_the_bytes_of_its_tokens)
{
    struct service sv;
    service_chat(&sv);
    struct request *rq = taken(&sv,
                               "{" HI ",\"max_completion_tokens\":3,\"logprobs\":true,\"top_logprobs\":1}");
    feed(rq, (const char *const[]){ "o\xc3\xa9" });
    struct json_out o = { 0 };
    openai_answer(&o, rq);
    json_decref(parsed(o.p, o.n));
    CHECK_HAS(o.p, "\"object\":\"chat.completion\",");
    CHECK_HAS(o.p, "\"message\":{\"role\":\"assistant\",\"content\":\"o\xc3\xa9\",\"refusal\":null}");
    CHECK_HAS(o.p, "{\"token\":\"o\",\"logprob\":-5,\"bytes\":[111],\"top_logprobs\":[{\"token\":\"Q\","
                   "\"logprob\":-0.125,\"bytes\":[81]}]}");
    CHECK_HAS(o.p, "\"bytes\":[195],");
    CHECK_HAS(o.p, "\"finish_reason\":\"length\"");
    json_out_free(&o);
    request_release(rq);
    service_chat_close(&sv);
}

TEST(a_streamed_chat_begins_with_the_role_and_joins_to_the_answer)
{
    struct service sv;
    service_chat(&sv);
    struct request *rq = taken(
        &sv,
        "{" HI
        ",\"max_tokens\":9,\"stream\":true,\"stop\":\"END\",\"stream_options\":{\"include_usage\":true}}");
    feed(rq, (const char *const[]){ "ab ENx END" });
    char text[64] = "";
    int events = 0;
    for (const char *p = rq->events.p, *end; p && (end = strstr(p, "\n\n")); p = end + 2, events++) {
        json_t *j = parsed(p + 6, (size_t)(end - p) - 6),
               *c = json_array_get(json_object_get(j, "choices"), 0), *d = json_object_get(c, "delta");
        CHECK_STR(json_string_value(json_object_get(j, "object")), "chat.completion.chunk");
        CHECK(!events == !!json_object_get(d, "role"));
        const char *piece = json_string_value(json_object_get(d, "content"));
        strcat(text, piece ? piece : "");
        CHECK(json_is_null(json_object_get(c, "finish_reason")) == (events < 9));
        json_decref(j);
    }
    CHECK_STR(text, "ab ENx EN"); /* nine tokens: the stop string never became whole */
    CHECK_INT(events, 10);
    request_release(rq);
    service_chat_close(&sv);
}

TEST(the_usage_of_an_event_counts_the_tokens_that_were_sent_up_to_it)
{
    static const int want[] = { 0, 1, 2, 2, 3, 4 }; /* a role, two tokens; another role, two tokens */
    struct service sv;
    service_chat(&sv);
    struct request *rq = taken(&sv, "{" HI ",\"max_tokens\":2,\"n\":2,\"stream\":true,\"stream_options\":{"
                                    "\"include_usage\":true,\"continuous_usage_stats\":true}}");
    feed(rq, (const char *const[]){ "ab", "cd" });
    int events = 0;
    for (const char *p = rq->events.p, *end; p && (end = strstr(p, "\n\n")); p = end + 2, events++) {
        json_t *j = parsed(p + 6, (size_t)(end - p) - 6), *u = json_object_get(j, "usage");
        CHECK_INT(json_integer_value(json_object_get(u, "completion_tokens")), want[events % 6]);
        CHECK_INT(json_integer_value(json_object_get(u, "total_tokens")), 20 + want[events % 6]);
        json_decref(j);
    }
    CHECK_INT(events, 6);
    request_release(rq);
    service_chat_close(&sv);
}
