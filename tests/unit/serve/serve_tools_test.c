/* serve_tools_test.c - chats with tools: requests, answers and streams, without a model: the test writes
 * the answer's tokens. */
#include "base/jx.h"
#include "base/rnd.h"
#include "serve/api/openai.h"
#include "serve/replicas/request_wire.h"
#include "tests/test.h"
#include "text/grammar.h"
#include "text/template.h"

/* As Qwen's templates are, with the reasoning opened where `think` is set. */
static const char source[] =
    "{%- for t in tools or [] %}[{{ t.function.name }}]{% endfor -%}"
    "{%- for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif -%}"
    "{%- for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor -%}"
    "{%- if add_generation_prompt %}<assistant>{% if think %}<think>\n{% endif %}{% endif %}";

#define TOOLS \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":" \
    "\"object\"," \
    "\"properties\":{\"city\":{\"type\":\"string\"}}}}},{\"type\":\"function\",\"function\":{\"name\":" \
    "\"now\"}}]"
#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"

static void service_open(struct service *sv, const char *template)
{
    struct err e;
    *sv = (struct service){
        .state = SERVICE_READY, .model = "m", .vocab = 256, .ctx = 4096, .n_eos = 1, .eos = { 0 }
    };
    CHECK_INT(tokenizer_bytes(&sv->tok, &e), 0);
    CHECK_INT(template_open(&sv->chat, template, strlen(template), "template", &e), 0);
    sv->form = tools_detect(template, strlen(template));
    tools_habits(sv->chat, NULL, &sv->habits);
}

static void service_close(struct service *sv)
{
    template_close(sv->chat);
    tokenizer_close(sv->tok);
}

static struct request *taken(const struct service *sv, const char *body)
{
    struct request *rq = NULL;
    struct fault f = { 0 };
    if (openai_parse(sv, ENDPOINT_CHAT, body, strlen(body), &rq, &f) < 0)
        test_fail(__FILE__, __LINE__, "%s: refused: %s", body, f.text);
    return rq;
}

static void refused(const struct service *sv, const char *body, const char *param, const char *part)
{
    struct request *rq = NULL;
    struct fault f = { 0 };
    CHECK_INT(openai_parse(sv, ENDPOINT_CHAT, body, strlen(body), &rq, &f), -1);
    if (f.status != 400 || strcmp(f.param, param) || !strstr(f.text, part))
        test_fail(__FILE__, __LINE__, "%s: status %d, param %s, %s", body, f.status, f.param, f.text);
    request_release(rq);
}

static char *prompt_of(const struct request *rq)
{
    char *s = calloc(1, (size_t)rq->prompt->n + 1);
    for (int64_t i = 0; i < rq->prompt->n; i++)
        s[i] = (char)rq->prompt->ids[i];
    return s;
}

/* Gives every choice the tokens of the text and, unless the length ends it, the end token; of a stream each
 * token is an event. */
static void write_answer(struct request *rq, const char *text, struct json_out *events)
{
    struct fault f = { 0 };
    size_t n = strlen(text);

    for (int k = 0; k < rq->n_choices; k++) {
        struct choice *c = &rq->choice[k];
        for (size_t i = 0; i <= n && c->finish == FINISH_NONE; i++) {
            CHECK_INT(choice_accept(c, i < n ? (unsigned char)text[i] : 0, 0, NULL, &f), 0);
            if (rq->stream)
                openai_event(events, c, choice_safe_text(c));
        }
    }
}

/* The whole answer's choices. */
static json_t *answer(const struct service *sv, const char *body, const char *text)
{
    struct request *rq = taken(sv, body);
    struct json_out o = { 0 };
    write_answer(rq, text, &o);
    openai_answer(&o, rq);
    json_t *j = json_loadb(o.p, o.n, 0, NULL), *choices = json_incref(json_object_get(j, "choices"));
    if (!j)
        test_fail(__FILE__, __LINE__, "no JSON: %.*s", (int)o.n, o.p);
    json_decref(j);
    json_out_free(&o);
    request_release(rq);
    return choices;
}

/* Appends the text v to member key of o. */
static void join_text(json_t *o, const char *key, const json_t *v)
{
    const char *old = json_string_value(json_object_get(o, key));
    if (json_is_string(v))
        json_object_set_new(o, key, json_sprintf("%s%s", old ? old : "", json_string_value(v)));
}

static void join_calls(json_t *message, const json_t *list)
{
    json_t *calls = json_object_get(message, "tool_calls");
    const json_t *d;
    size_t i;

    if (list && !calls)
        json_object_set_new(message, "tool_calls", calls = json_array());
    json_array_foreach(list, i, d) {
        size_t at = (size_t)json_integer_value(json_object_get(d, "index"));
        const json_t *fn = json_object_get(d, "function");
        CHECK(at <= json_array_size(calls));
        if (at == json_array_size(calls)) {
            json_t *first = json_deep_copy(d);
            json_object_del(first, "index");
            json_array_append_new(calls, first);
            CHECK(json_object_get(d, "id") && json_object_get(fn, "name"));
            continue;
        }
        CHECK(at + 1 == json_array_size(calls) && !json_object_get(d, "id"));
        join_text(json_object_get(json_array_get(calls, at), "function"), "arguments",
                  json_object_get(fn, "arguments"));
    }
}

/* The choices that the events of a stream join to. */
static json_t *joined(const struct service *sv, const char *body, const char *text)
{
    char *streams = malloc(strlen(body) + 32);
    sprintf(streams, "{\"stream\":true,%s", body + 1);
    struct request *rq = taken(sv, streams);
    struct json_out o = { 0 };
    json_t *choices = json_array();

    write_answer(rq, text, &o);
    for (int k = 0; k < rq->n_choices; k++)
        json_array_append_new(choices, json_pack("{s:i, s:{s:s, s:n}}", "index", k, "message", "role",
                                                 "assistant", "content"));
    for (char *line = strtok(o.p, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *event = json_loads(line + 6, 0, NULL),
               *d = json_array_get(json_object_get(event, "choices"), 0);
        json_t *c = json_array_get(choices, (size_t)json_integer_value(json_object_get(d, "index"))),
               *m = json_object_get(c, "message"), *delta = json_object_get(d, "delta");
        CHECK(event && c);
        join_text(m, "content", json_object_get(delta, "content"));
        join_text(m, "reasoning_content", json_object_get(delta, "reasoning_content"));
        join_calls(m, json_object_get(delta, "tool_calls"));
        if (!json_is_null(json_object_get(d, "finish_reason")))
            json_object_set(c, "finish_reason", json_object_get(d, "finish_reason"));
        json_decref(event);
    }
    request_release(rq);
    json_out_free(&o);
    free(streams);
    return choices;
}

/* The answer with this text has, in one piece and as a stream, this content, reasoning, calls and finish. */
static void answers(const struct service *sv, const char *body, const char *text, const char *want)
{
    json_t *whole = answer(sv, body, text), *parts = joined(sv, body, text);
    const json_t *c = json_array_get(whole, 0), *m = json_object_get(c, "message"), *call;
    const char *content = json_string_value(json_object_get(m, "content")),
               *reasoning = json_string_value(json_object_get(m, "reasoning_content"));
    char got[2048];
    size_t i, n = (size_t)snprintf(got, sizeof got, "%s|%s|%s", content ? content : "null",
                                   reasoning ? reasoning : "",
                                   json_string_value(json_object_get(c, "finish_reason")));

    json_array_foreach(json_object_get(m, "tool_calls"), i, call) {
        const json_t *fn = json_object_get(call, "function");
        n += (size_t)snprintf(got + n, sizeof got - n, "|%s%s",
                              json_string_value(json_object_get(fn, "name")),
                              json_string_value(json_object_get(fn, "arguments")));
        CHECK(!strncmp(json_string_value(json_object_get(call, "id")), "call_", 5));
    }
    CHECK_STR(got, want);
    for (i = 0; i < json_array_size(whole); i++) {
        const json_t *a = json_array_get(whole, i), *b = json_array_get(parts, i);
        json_t *am = json_deep_copy(json_object_get(a, "message"));
        json_object_del(am, "refusal");
        char *x = json_dumps(am, JSON_SORT_KEYS),
             *y = json_dumps(json_object_get(b, "message"), JSON_SORT_KEYS);
        CHECK_STR(y, x);
        CHECK(json_equal(json_object_get(a, "finish_reason"), json_object_get(b, "finish_reason")));
        json_decref(am);
        free(x);
        free(y);
    }
    json_decref(whole);
    json_decref(parts);
}

TEST(calls_are_answers_whose_streams_join_to_them)
{
    struct service sv;
    service_open(&sv, source);
    const char *body = "{" ASK "," TOOLS "}";
    answers(
        &sv, body,
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\xc3\xb6ln\"}}\n</tool_call>",
        "null||tool_calls|get_weather{\"city\": \"K\xc3\xb6ln\"}");
    answers(
        &sv, body,
        "Let me see. \n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call><tool_call>{\"name\": "
        "\"get_weather\", \"arguments\": {\"city\": \"a\\\"b\\n\"}}</tool_call>\n",
        "Let me see.||tool_calls|now{}|get_weather{\"city\": \"a\\\"b\\n\"}");
    answers(&sv, body, "No call.\n", "No call.\n||stop");
    answers(&sv, body, "", "||stop");
    answers(&sv, body, "<think>\nhm\n</think>\n\nA <b>", "A <b>|hm|stop");
    answers(&sv, body, "<think>\nhm</think><tool_call>{\"name\": \"now\"}</tool_call>",
            "null|hm|tool_calls|now{}");
    answers(&sv, "{" ASK "," TOOLS ",\"n\":2}", "<tool_call>{\"name\": \"now\"}</tool_call>",
            "null||tool_calls|now{}");
    answers(&sv, "{" ASK "," TOOLS ",\"parallel_tool_calls\":false}",
            "<tool_call>{\"name\": \"now\"}</tool_call><tool_call>{\"name\": \"now\"}</tool_call>",
            "null||tool_calls|now{}");
    answers(&sv, "{" ASK "," TOOLS ",\"max_tokens\":52}",
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}",
            "null||length|get_weather{\"ci");
    answers(&sv, "{" ASK "," TOOLS ",\"tool_choice\":\"none\"}", "<tool_call>{\"name\": \"now\"}</tool_call>",
            "<tool_call>{\"name\": \"now\"}</tool_call>||stop");
    answers(&sv, "{" ASK "}", "<think>t</think>x", "x|t|stop");
    answers(&sv, "{" ASK ",\"separate_reasoning\":false}", "<think>t</think>x", "<think>t</think>x||stop");
    answers(&sv, "{" ASK ",\"chat_template_kwargs\":{\"think\":true}}", "t\n</think>\n\nx", "x|t|stop");
    answers(&sv, "{" ASK "," TOOLS ",\"stop\":[\"STOP\"]}",
            "<tool_call>{\"name\": \"now\"}</tool_call>aSTOPb", "a||tool_calls|now{}");
    service_close(&sv);
}

/* Draws tokens at random from a choice's masks until it ends. */
static void write_within(const struct service *sv, struct choice *c, uint64_t seed)
{
    uint32_t bits[8];
    struct err e;
    struct fault f = { 0 };
    (void)sv;
    while (c->finish == FINISH_NONE) {
        int allowed[256], n = 0;
        CHECK_INT(matcher_mask(c->matcher, bits, &e), 0);
        for (int i = 0; i < 256; i++)
            if (bits[i / 32] >> i % 32 & 1)
                allowed[n++] = i;
        uint64_t x = rnd_u64(seed, 1, (uint64_t)c->n_ids);
        int end = bits[0] & 1 && x % 2, close = bits['"' / 32] >> '"' % 32 & 1 && x % 3;
        int id = end ? 0 : close ? '"' : allowed[x / 64 % (uint64_t)n];
        if (choice_accept(c, id, 0, NULL, &f) < 0) {
            test_fail(__FILE__, __LINE__, "%s", f.text);
            return;
        }
    }
}

TEST(a_call_that_must_come_comes_by_its_schema)
{
    static const char *const bodies[] = {
        "\"tool_choice\":\"required\"",
        "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"now\"}}",
        "\"tool_choice\":\"required\",\"parallel_tool_calls\":false",
        "\"tool_choice\":\"required\",\"chat_template_kwargs\":{\"think\":true}",
    };
    struct service sv;
    struct err e;
    int called = 0;

    service_open(&sv, source);
    CHECK_INT(grammar_cache_open(&sv.grammars, &e), 0);
    for (uint64_t i = 0; i < 24; i++) {
        char body[1024];
        snprintf(body, sizeof body, "{" ASK "," TOOLS ",%s,\"max_tokens\":400}", bodies[i % 4]);
        struct request *rq = taken(&sv, body);
        struct json_out o = { 0 };
        write_within(&sv, rq->choice, i);
        openai_answer(&o, rq);
        const struct tool_text *t = tool_parser_text(rq->choice->parts.parser);
        int whole = rq->choice->finish == FINISH_STOP;
        called += whole;
        if (t->content.n || (whole && !t->n_calls) || (i % 4 == 2 && t->n_calls > 1))
            test_fail(__FILE__, __LINE__, "%s", o.p);
        for (size_t k = 0; whole && k < t->n_calls; k++) {
            json_t *a = json_loadb(t->call[k].arguments.p, t->call[k].arguments.n, JSON_ALLOW_NUL, NULL);
            CHECK(json_is_object(a));
            CHECK(i % 4 != 1 || t->call[k].name.n == 3);
            json_decref(a);
        }
        json_out_free(&o);
        request_release(rq);
    }
    CHECK(called > 8);
    grammar_cache_close(sv.grammars);
    service_close(&sv);
}

TEST(a_template_without_a_known_form_answers_in_plain_text)
{
    struct service sv;
    service_open(&sv, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
    answers(&sv, "{" ASK "," TOOLS "}", "<tool_call>{\"name\": \"now\"}</tool_call>",
            "<tool_call>{\"name\": \"now\"}</tool_call>||stop");
    refused(&sv, "{" ASK "," TOOLS ",\"tool_choice\":\"required\"}", "tool_choice", "tool_choice");
    service_close(&sv);
}

TEST(the_template_gets_the_tools_and_the_calls_of_the_history)
{
    static const struct {
        const char *body, *prompt;
    } cases[] = {
        { "{" ASK "," TOOLS "}", "[get_weather][now]<user>Hi<assistant>" },
        { "{" ASK "," TOOLS ",\"tool_choice\":\"none\"}", "<user>Hi<assistant>" },
        { "{" ASK ",\"tools\":[]}", "<user>Hi<assistant>" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":null,"
          "\"reasoning\":"
          "\"r\",\"tool_calls\":[{\"id\":\"call_a\",\"type\":\"function\",\"function\":{\"name\":\"now\","
          "\"arguments\":"
          "\"{\\\"b\\\": "
          "\\\"c\\\\\\\"d\\\\n\\\"}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"call_a\",\"content\":[{"
          "\"type\":\"text\",\"text\":\"12\"}]}]}",
          "<user>Hi<assistant><think>r</think><tool_call>{\"name\": \"now\", \"arguments\": {\"b\": "
          "\"c\\\"d\\n\"}}"
          "</tool_call><tool>12<assistant>" },
        { "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[{\"id\":\"c\","
          "\"function\":{\"name\":"
          "\"now\",\"arguments\":\"\"}}]},{\"role\":\"assistant\",\"content\":\"y\",\"tool_calls\":[]}]}",
          "<assistant>x<tool_call>{\"name\": \"now\", \"arguments\": "
          "{}}</tool_call><assistant>y<assistant>" },
    };
    struct service sv;
    service_open(&sv, source);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct request *rq = taken(&sv, cases[i].body);
        char *prompt = prompt_of(rq);
        CHECK_STR(prompt, cases[i].prompt);
        free(prompt);
        request_release(rq);
    }
    service_close(&sv);
}

TEST(the_same_request_has_the_same_ids_and_another_one_has_others)
{
    struct service sv;
    service_open(&sv, source);
    const char *text = "<tool_call>{\"name\": \"now\"}</tool_call><tool_call>{\"name\": \"now\"}</tool_call>";
    json_t *a = answer(&sv, "{" ASK "," TOOLS ",\"n\":2}", text),
           *b = answer(&sv, "{" ASK "," TOOLS ",\"n\":2}", text),
           *c = answer(&sv, "{\"messages\":[{\"role\":\"user\",\"content\":\"Ho\"}]," TOOLS "}", text);
    const char *id[6];
    for (size_t i = 0; i < 6; i++) {
        const json_t *one = json_array_get(i < 4 ? a : c, i < 4 ? i / 2 : 0);
        id[i] = json_string_value(
            json_object_get(json_array_get(json_object_get(json_object_get(one, "message"), "tool_calls"),
                                           i % 2),
                            "id"));
        CHECK_INT(strlen(id[i]), 29);
        for (size_t k = 0; k < i; k++)
            CHECK(strcmp(id[i], id[k]));
    }
    CHECK(json_equal(a, b));
    json_decref(a);
    json_decref(b);
    json_decref(c);
    service_close(&sv);
}

TEST(tools_that_are_none_are_refused_by_what_is_wrong)
{
    struct service sv;
    char *many = malloc(1 << 16);
    size_t n = (size_t)sprintf(many, "{" ASK ",\"tools\":[");

    service_open(&sv, source);
    refused(&sv, "{" ASK ",\"tools\":{}}", "tools", "must be a list");
    refused(&sv, "{" ASK ",\"tools\":[{\"type\":\"function\"}]}", "tools",
            "tools[0].function.name must have 1 to 64");
    refused(&sv, "{" ASK ",\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"a\"}}]}", "tools",
            "tools[0].type must be \"function\"");
    refused(&sv, "{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]}", "tools",
            "letters, digits");
    refused(&sv,
            "{" ASK
            ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},{\"type\":\"function\","
            "\"function\":{\"name\":\"a\"}}]}",
            "tools", "tools[0] and tools[1] are both named a");
    refused(&sv,
            "{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":3}}]}",
            "tools", "parameters must be a JSON schema");
    refused(&sv, "{" ASK "," TOOLS ",\"tool_choice\":\"any\"}", "tool_choice", "tool_choice must be");
    refused(&sv, "{" ASK ",\"tool_choice\":\"required\"}", "tool_choice", "there are no tools");
    refused(&sv, "{" ASK "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"x\"}}}",
            "tool_choice", "names x, which is none of the tools");
    refused(&sv, "{" ASK "," TOOLS ",\"parallel_tool_calls\":1}", "parallel_tool_calls", "true or false");
    refused(&sv,
            "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[{\"id\":\"c\","
            "\"function\":{"
            "\"name\":\"now\",\"arguments\":\"{bad\"}}]}]}",
            "messages", "messages[0].tool_calls[0].function.arguments must be a JSON object");
    refused(&sv, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[3]}]}", "messages",
            "messages[0].tool_calls[0] must be");
    refused(&sv, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":3}]}", "messages",
            "messages[0].tool_calls must be a list");
    for (int i = 0; i < 129; i++)
        n += (size_t)sprintf(many + n, "%s{\"type\":\"function\",\"function\":{\"name\":\"t%d\"}}",
                             i ? "," : "", i);
    sprintf(many + n, "]}");
    refused(&sv, many, "tools", "tools has 129 tools, at most 128 are taken");
    free(many);
    service_close(&sv);
}

TEST(a_request_with_tools_crosses_to_another_process_whole)
{
    struct service sv;
    struct json_out wire = { 0 }, here = { 0 }, there = { 0 };
    const char *text = "<tool_call>{\"name\": \"now\"}</tool_call>";

    service_open(&sv, source);
    struct request *a = taken(&sv,
                              "{" ASK "," TOOLS ",\"chat_template_kwargs\":{\"think\":true},\"seed\":1}");
    request_wire_write(&wire, a);
    struct request *b = request_wire_read(&sv, wire.p, wire.n, &(struct fault){ 0 });
    CHECK(b && json_equal(a->tools, b->tools));
    write_answer(a, text, &here);
    write_answer(b, text, &there);
    openai_answer(&here, a);
    openai_answer(&there, b);
    CHECK_STR(there.p, here.p);
    CHECK_HAS(here.p, "\"reasoning_content\":\"<tool_call>");
    json_out_free(&wire);
    json_out_free(&here);
    json_out_free(&there);
    request_release(a);
    request_release(b);
    service_close(&sv);
}
