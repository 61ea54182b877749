/* serve_fields_test.c - the text of completions under a tokenizer whose words carry their space, and the
 * fields of a request beside OpenAI's: token ids, words and ids that may not come, log-probs of given ids,
 * echoes. */
#include <math.h>
#include "base/jx.h"
#include "serve/api/openai.h"
#include "serve/replicas/request_wire.h"
#include "tests/test.h"
#include "text/template.h"

/* As SentencePiece's: a word begins with U+2581, the text's first word loses it, characters come as byte
 * tokens, a text is encoded behind <s>. _A is U+2581 and a. */
#define WORDS \
    "\"<unk>\":0,\"<s>\":1,\"</" \
    "s>\":2,\"<0x0A>\":3,\"<0xC3>\":4,\"<0xA9>\":5,\"\xe2\x96\x81\":6,\"a\":7,\"b\":8,\"\xe2\x96\x81\x61\":" \
    "9,\"\xe2\x96\x81\x62\":10,\";\":11"
enum { NEWLINE = 3, C3, A9, SPACE, A, B, _A, _B, SEMICOLON, VOCAB };
static const char pieces[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},{\"id\":1,\"content\":\"<s>\","
    "\"special\":true},{\"id\":2,\"content\":\"</s>\",\"special\":true}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
    "\"\xe2\x96\x81\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\","
    "\"type_id\":0}},"
    "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
    "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]}}},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
    "\"\xe2\x96\x81\"},"
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
    "\",\"start\":1,"
    "\"stop\":0}]},\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"byte_fallback\":true,\"vocab\":"
    "{" WORDS "},\"merges\":[\"\xe2\x96\x81 a\",\"\xe2\x96\x81 b\"]}}";

static void service_open(struct service *sv)
{
    static const char text[] = "{% for m in messages %}{{ m.content }}{% if not loop.last %};{% endif %}"
                               "{% endfor %}{% if add_generation_prompt %};{% endif %}";
    struct err e = { 0 };
    *sv = (struct service){
        .state = SERVICE_READY, .model = "m", .vocab = VOCAB, .ctx = 200, .n_eos = 1, .eos = { 2 }
    };
    if (tokenizer_open(&sv->tok, pieces, sizeof pieces - 1, NULL, 0, "pieces", &e) < 0 ||
        template_open(&sv->chat, text, sizeof text - 1, "template", &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
}

static void service_close(struct service *sv)
{
    template_close(sv->chat);
    tokenizer_close(sv->tok);
}

/* A request as it arrives at a replica in another process: nothing may be lost on the way. */
static struct request *taken(const struct service *sv, const char *body)
{
    struct request *rq = NULL, *there;
    struct fault f = { 0 };
    struct json_out wire = { 0 };
    if (openai_parse(sv, !!strstr(body, "\"messages\""), body, strlen(body), &rq, &f) < 0)
        test_fail(__FILE__, __LINE__, "%s: refused: %s", body, f.text);
    if (!rq)
        return NULL;
    request_wire_write(&wire, rq);
    there = request_wire_read(sv, wire.p, wire.n, &(struct fault){ 0 });
    CHECK(there != NULL);
    json_out_free(&wire);
    request_release(rq);
    return there;
}

static void refused(const struct service *sv, const char *body, const char *param, const char *part)
{
    struct request *rq = NULL;
    struct fault f = { 0 };
    CHECK_INT(openai_parse(sv, !!strstr(body, "\"messages\""), body, strlen(body), &rq, &f), -1);
    CHECK_INT(f.status, 400);
    CHECK_STR(f.param, param);
    CHECK_HAS(f.text, part);
    request_release(rq);
}

/* Generates tokens in every choice, as the engine would: the log-prob of token i is -i / 4. */
static void generate(struct request *rq, const int32_t *ids, int n)
{
    for (int i = 0; i < rq->n_choices; i++) {
        struct choice *c = &rq->choice[i];
        struct top_entry top[WATCH_MAX], natural = { _B, -1 };
        struct fault f = { 0 };
        for (int j = 0; j < WATCH_MAX; j++)
            top[j] = (struct top_entry){ j < rq->n_watch ? rq->watch[j] : _B, -1.0f - (float)j };
        for (int64_t p = 1; p < c->prompt->n && choice_scores_prompt(c); p++)
            choice_score(c, p, -0.25f * (float)p, &natural, 1);
        for (int k = 0; k < n && c->finish == FINISH_NONE; k++) {
            CHECK_INT(choice_accept(c, ids[k], -0.25f * (float)c->n_ids, top, &f), 0);
            if (rq->stream)
                openai_event(&rq->events, c, choice_safe_text(c));
        }
    }
}
#define GENERATE(rq, ...) \
    generate(rq, (const int32_t[]){ __VA_ARGS__ }, \
             (int)(sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t)))

static json_t *parsed(const char *text, size_t n)
{
    struct err e = { 0 };
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

static const json_t *choice_0(const json_t *j) { return json_array_get(json_object_get(j, "choices"), 0); }

/* The value as compact JSON is the text; NULL: there is none. */
static void is_json(int line, const json_t *v, const char *want)
{
    char *got = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6)) : NULL;
    if (want ? !got || strcmp(got, want) : !!got)
        test_fail(__FILE__, line, "%s, not %s", got ? got : "nothing", want ? want : "nothing");
    free(got);
}
#define IS(v, want) is_json(__LINE__, v, want)
#define MEMBER(j, key) json_object_get(j, key)

/* The body with these tokens generated: text, tokens and offsets of choice 0, streamed as one. */
static void reads(int line, const struct service *sv, const char *body, const int32_t *ids, int n,
                  const char *text, const char *tokens, const char *offsets)
{
    for (int stream = 0; stream < 2; stream++) {
        char whole[512], got[512] = "";
        snprintf(whole, sizeof whole, "{%s,\"stream\":%s,\"max_tokens\":%d}", body, stream ? "true" : "false",
                 n);
        struct request *rq = taken(sv, whole);
        json_t *all_tokens = json_array(), *all_offsets = json_array(), *j;
        generate(rq, ids, n);
        const char *p = rq->events.p;
        do {
            const char *end = stream ? strstr(p, "\n\n") : NULL;
            j = stream ? parsed(p + 6, (size_t)(end - p) - 6) : answer(rq);
            const json_t *l = MEMBER(choice_0(j), "logprobs");
            strcat(got, json_string_value(MEMBER(choice_0(j), "text")));
            json_array_extend(all_tokens, MEMBER(l, "tokens"));
            json_array_extend(all_offsets, MEMBER(l, "text_offset"));
            json_decref(j);
            p = stream ? end + 2 : p;
        } while (stream && *p);
        if (strcmp(got, text))
            test_fail(__FILE__, line, "stream %d: \"%s\", not \"%s\"", stream, got, text);
        is_json(line, all_tokens, tokens);
        is_json(line, all_offsets, offsets);
        json_decref(all_tokens);
        json_decref(all_offsets);
        request_release(rq);
    }
}
#define READS(body, text, tokens, offsets, ...) \
    reads(__LINE__, &sv, body, (const int32_t[]){ __VA_ARGS__ }, \
          (int)(sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t)), text, tokens, offsets)

TEST(a_completion_keeps_the_space_between_it_and_the_prompt)
{
    struct service sv;
    service_open(&sv);
    READS("\"prompt\":\"a\",\"logprobs\":0", " b a", "[\" b\",\" a\"]", "[0,2]", _B, _A);
    READS("\"prompt\":[1,9],\"logprobs\":0", " b a", "[\" b\",\" a\"]", "[0,2]", _B, _A);
    READS("\"prompt\":\"a\",\"logprobs\":0", "b a", "[\"b\",\" a\"]", "[0,1]", B, _A);
    /* behind <s> alone the text begins */
    READS("\"prompt\":[1],\"logprobs\":0", "b a", "[\"b\",\" a\"]", "[0,1]", _B, _A);
    READS("\"prompt\":[1],\"logprobs\":0,\"skip_special_tokens\":false", " b a", "[\" b\",\" a\"]", "[0,2]",
          _B, _A);
    /* what the prompt's last tokens say stays in the prompt, but a character that they begin */
    READS("\"prompt\":[1,9,3],\"logprobs\":0", "b", "[\"b\"]", "[0]", B);
    READS("\"prompt\":[1,9,3,4],\"logprobs\":0",
          "\xc3\xa9"
          "b",
          "[\"\xef\xbf\xbd\",\"b\"]", "[0,1]", A9, B);
    service_close(&sv);
}

TEST(an_echo_is_the_prompt_and_the_answer_and_offsets_point_into_it)
{
    struct service sv;
    service_open(&sv);
#define ECHO(prompt) "\"prompt\":" prompt ",\"echo\":true,\"logprobs\":0"
    READS(ECHO("\"a b\""), "a b a", "[\"<s>\",\"a\",\" b\",\" a\"]", "[0,0,1,3]", _A);
    READS(ECHO("[1,9,10]"), "a b a", "[\"<s>\",\"a\",\" b\",\" a\"]", "[0,0,1,3]", _A);
    /* special tokens but that which the tokenizer adds are text */
    READS(ECHO("[1,0,9]"), "<unk> a b", "[\"<s>\",\"<unk>\",\" a\",\" b\"]", "[0,0,5,7]", _B);
    READS(ECHO("[0,0]"), "<unk><unk> b", "[\"<unk>\",\"<unk>\",\" b\"]", "[0,5,10]", _B);
    READS(ECHO("\"a</s>\""), "a</s> b", "[\"<s>\",\"a\",\"</s>\",\" b\"]", "[0,0,1,5]", _B);
    /* one that is generated is not, unless it is asked for */
    READS(ECHO("\"a\"") ",\"ignore_eos\":true", "a b", "[\"<s>\",\"a\",\"<unk>\",\" b\"]", "[0,0,1,1]", 0,
          _B);
    READS(ECHO("\"a\"") ",\"ignore_eos\":true,\"skip_special_tokens\":false", "a<unk> b",
          "[\"<s>\",\"a\",\"<unk>\",\" b\"]", "[0,0,1,6]", 0, _B);
    READS(ECHO("[9,4]"), "a\xc3\xa9", "[\"a\",\"\xef\xbf\xbd\",\"\xef\xbf\xbd\"]", "[0,1,2]", A9);
    service_close(&sv);
}

TEST(stop_strings_can_stay_in_the_answer)
{
    struct service sv;
    service_open(&sv);
    struct request *rq = taken(&sv, "{\"prompt\":\"a\",\"stop\":[\"b a\"],\"max_tokens\":9,"
                                    "\"include_stop_str_in_output\":true,\"stream\":true}");
    GENERATE(rq, _B, _A, B);
    CHECK_STR(rq->choice[0].text.p, " b a");
    CHECK_INT(rq->choice[0].sent, 4);
    CHECK_INT(rq->choice[0].finish, FINISH_STOP);
    CHECK_STR(rq->choice[0].stop_text, "b a");
    request_release(rq);
    /* an end token's text, too, where special tokens have one */
    rq = taken(&sv, "{\"prompt\":\"a\",\"include_stop_str_in_output\":true,\"stop_token_ids\":[7]}");
    GENERATE(rq, _B, A, B);
    CHECK_STR(rq->choice[0].text.p, " ba");
    request_release(rq);
    rq = taken(&sv, "{\"prompt\":\"a\",\"stop_token_ids\":[7]}");
    GENERATE(rq, _B, A, B);
    CHECK_STR(rq->choice[0].text.p, " b");
    request_release(rq);
    service_close(&sv);
}

/* ---- chats ---- */

#define TALK "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"

TEST(a_chat_has_its_prompts_ids_beside_the_choices_and_in_the_first_event_only)
{
    struct service sv;
    service_open(&sv);
    struct request *rq = taken(&sv, "{" TALK ",\"return_token_ids\":true,\"n\":2,\"max_tokens\":2}");
    GENERATE(rq, _B, _A);
    json_t *j = answer(rq);
    IS(MEMBER(j, "prompt_token_ids"), "[9,11]");
    IS(MEMBER(choice_0(j), "token_ids"), "[10,9]");
    IS(MEMBER(choice_0(j), "prompt_token_ids"), NULL);
    json_decref(j);
    request_release(rq);

    rq = taken(&sv, "{" TALK ",\"return_token_ids\":true,\"n\":2,\"max_tokens\":2,\"stream\":true}");
    GENERATE(rq, _B, _A);
    json_t *ids[2] = { json_array(), json_array() };
    int events = 0;
    for (const char *p = rq->events.p, *end; p && (end = strstr(p, "\n\n")); p = end + 2, events++) {
        j = parsed(p + 6, (size_t)(end - p) - 6);
        IS(MEMBER(j, "prompt_token_ids"), events ? NULL : "[9,11]");
        json_array_extend(ids[json_integer_value(MEMBER(choice_0(j), "index"))],
                          MEMBER(choice_0(j), "token_ids"));
        json_decref(j);
    }
    CHECK_INT(events, 6);
    for (int i = 0; i < 2; i++) {
        IS(ids[i], "[10,9]");
        json_decref(ids[i]);
    }
    request_release(rq);
    service_close(&sv);
}

TEST(a_chat_has_prompt_logprobs_beside_the_choices)
{
    struct service sv;
    service_open(&sv);
    struct request *rq = taken(&sv, "{" TALK ",\"prompt_logprobs\":0,\"max_tokens\":1}");
    CHECK_INT(rq->choice[0].seq.first_want, 0);
    GENERATE(rq, _B);
    json_t *j = answer(rq);
    IS(MEMBER(j, "prompt_logprobs"),
       "[null,{\"11\":{\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\";\"}}]");
    IS(MEMBER(choice_0(j), "logprobs"), "null");
    json_decref(j);
    request_release(rq);
    refused(&sv, "{" TALK ",\"prompt_logprobs\":1,\"stream\":true}", "prompt_logprobs", "stream");
    service_close(&sv);
}

/* The content of choice 0 of a chat, streamed or not. */
static void says(int line, const struct service *sv, const char *body, const char *want)
{
    for (int stream = 0; stream < 2; stream++) {
        char whole[512], got[512] = "";
        snprintf(whole, sizeof whole, "{%s,\"stream\":%s,\"max_tokens\":2}", body, stream ? "true" : "false");
        struct request *rq = taken(sv, whole);
        GENERATE(rq, _B, _A);
        const char *p = rq->events.p, *end;
        json_t *j = stream ? NULL : answer(rq);
        const char *text = stream ? NULL
                                  : json_string_value(MEMBER(MEMBER(choice_0(j), "message"), "content"));
        strcat(got, text ? text : "");
        json_decref(j);
        for (; stream && (end = strstr(p, "\n\n")); p = end + 2) {
            j = parsed(p + 6, (size_t)(end - p) - 6);
            text = json_string_value(MEMBER(MEMBER(choice_0(j), "delta"), "content"));
            strcat(got, text ? text : "");
            json_decref(j);
        }
        if (strcmp(got, want))
            test_fail(__FILE__, line, "stream %d: \"%s\", not \"%s\"", stream, got, want);
        request_release(rq);
    }
}
#define SAYS(body, want) says(__LINE__, &sv, body, want)

TEST(a_chat_echoes_its_last_message_where_it_is_the_assistants)
{
    struct service sv;
    service_open(&sv);
#define GOES_ON(content) \
    "\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":" content \
    "}],\"add_generation_prompt\":false,\"continue_final_message\":true"
    SAYS(GOES_ON("\"b a\""), " b a");
    SAYS(GOES_ON("\"b a\"") ",\"echo\":true", "b a b a");
    SAYS(GOES_ON("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]") ",\"echo\":true",
         "a\nb b a");
    SAYS(TALK ",\"echo\":true", " b a");
    SAYS(TALK ",\"echo\":true,\"logprobs\":true", " b a");
    refused(&sv, "{" TALK ",\"echo\":1}", "echo", "true or false");
    service_close(&sv);
}

/* ---- which tokens ---- */

TEST(log_probs_can_be_those_of_given_ids)
{
    struct service sv;
    service_open(&sv);
    struct request *rq = taken(&sv, "{\"prompt\":[9,10],\"logprobs\":1,\"echo\":true,\"max_tokens\":1,"
                                    "\"logprob_token_ids\":[8,7,8,2]}");
    CHECK_INT(rq->tops, 3);
    CHECK_INT(choice_tops(rq, 0), 1);
    CHECK_INT(choice_tops(rq, 1), 3);
    GENERATE(rq, _A);
    json_t *j = answer(rq);
    IS(MEMBER(MEMBER(choice_0(j), "logprobs"), "top_logprobs"),
       "[null,{\" b\":-1},{\"b\":-1,\"a\":-2,\"</s>\":-3,\" a\":-0.5}]");
    json_decref(j);
    request_release(rq);

    rq = taken(&sv, "{" TALK ",\"logprobs\":true,\"max_tokens\":1,\"logprob_token_ids\":[8,7]}");
    GENERATE(rq, _A);
    j = answer(rq);
    IS(MEMBER(json_array_get(MEMBER(MEMBER(choice_0(j), "logprobs"), "content"), 0), "top_logprobs"),
       "[{\"token\":\"b\",\"logprob\":-1,\"bytes\":[98]},{\"token\":\"a\",\"logprob\":-2,\"bytes\":[97]}"
       "]");
    json_decref(j);
    request_release(rq);

    refused(&sv, "{\"prompt\":[9],\"logprob_token_ids\":[8]}", "logprob_token_ids", "set logprobs");
    refused(&sv, "{" TALK ",\"logprob_token_ids\":[8]}", "logprob_token_ids", "set logprobs true");
    refused(&sv, "{\"prompt\":[9],\"logprobs\":0,\"logprob_token_ids\":[]}", "logprob_token_ids", "1 to 128");
    refused(&sv, "{\"prompt\":[9],\"logprobs\":0,\"logprob_token_ids\":[12]}", "logprob_token_ids", "12");
    refused(&sv, "{\"prompt\":[9],\"logprobs\":0,\"max_tokens\":0,\"echo\":true,\"logprob_token_ids\":[7]}",
            "logprob_token_ids", "max_tokens is 0");
    service_close(&sv);
}

TEST(words_and_ids_are_read_as_tokens)
{
    static const int32_t words[] = { _A, -1, SPACE, _A, -1, _A, _B, -1, SPACE, _A, _B, -1 };
    struct service sv;
    service_open(&sv);
    struct request *rq =
        taken(&sv, "{\"prompt\":[9],\"bad_words\":[\"a\",\" a b\"],\"allowed_token_ids\":[9,7,9]}");
    CHECK_INT(rq->sampling.n_bad, (int)(sizeof words / sizeof words[0]));
    for (int i = 0; i < rq->sampling.n_bad; i++)
        CHECK_INT(rq->sampling.bad[i], words[i]);
    CHECK_INT(rq->sampling.n_allowed, 3);
    CHECK_INT(rq->sampling.allowed[1], 7);
    request_release(rq);
    request_release(taken(&sv, "{\"prompt\":[9],\"bad_words\":[]}"));
    refused(&sv, "{\"prompt\":[9],\"bad_words\":[\" \"]}", "bad_words", "not blank");
    refused(&sv, "{\"prompt\":[9],\"bad_words\":\"a\"}", "bad_words", "list");
    refused(&sv, "{\"prompt\":[9],\"bad_words\":[7]}", "bad_words", "texts");
    refused(&sv, "{\"prompt\":[9],\"allowed_token_ids\":[]}", "allowed_token_ids", "1 to 12");
    refused(&sv, "{\"prompt\":[9],\"allowed_token_ids\":[12]}", "allowed_token_ids", "12");
    refused(&sv, "{\"prompt\":[9],\"allowed_token_ids\":7}", "allowed_token_ids", "list");
    service_close(&sv);
}

TEST(a_prompt_is_cut_at_the_side_that_is_asked_for)
{
    struct service sv;
    service_open(&sv);
    struct request *rq =
        taken(&sv, "{\"prompt\":[9,10,11],\"truncate_prompt_tokens\":2,\"truncation_side\":\"right\"}");
    CHECK_INT(rq->prompt[0].n, 2);
    CHECK_INT(rq->choice[0].ids[0], 9);
    request_release(rq);
    rq = taken(&sv, "{\"prompt\":[9,10,11],\"truncate_prompt_tokens\":2,\"truncation_side\":\"left\"}");
    CHECK_INT(rq->choice[0].ids[0], 10);
    request_release(rq);
    refused(&sv, "{\"prompt\":[9],\"truncation_side\":\"middle\"}", "truncation_side", "left");
    service_close(&sv);
}
