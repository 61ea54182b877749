/* serve_doors_test.c - /v1/responses and /v1/messages without a model: what becomes of their requests, items
 * and events of an answer that the test writes, kept responses. */
#include "serve/api/front.h"
#include "serve/api/structured.h"
#include "serve/doors/messages.h"
#include "serve/doors/response_store.h"
#include "serve/doors/responses.h"
#include "serve/replicas/request_wire.h"
#include "tests/test.h"
#include "text/template.h"

static const char source[] =
    "{%- for t in tools or [] %}[{{ t.function.name }}]{% endfor -%}"
    "{%- for m in messages %}<{{ m.role }}>"
    "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif -%}{{ m.content or '' }}"
    "{%- for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor -%}"
    "{%- if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>\n{% endif %}{% endif %}";

static const char said[] =
    "<think>\nhm\n</think>\n\nOne.<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"\xc3\xa9\"}}"
    "</tool_call>Two.";

static void service_open(struct service *sv)
{
    struct err e;
    *sv = (struct service){
        .state = SERVICE_READY, .model = "m", .vocab = 256, .ctx = 4096, .n_eos = 1, .eos = { 0 }
    };
    CHECK_INT(tokenizer_bytes(&sv->tok, &e), 0);
    CHECK_INT(template_open(&sv->chat, source, strlen(source), "template", &e), 0);
    sv->form = tools_detect(source, strlen(source));
    tools_habits(sv->chat, NULL, &sv->habits);
    sv->responses = response_store_open(100, 1 << 20);
    CHECK_INT(grammar_cache_open(&sv->grammars, &e), 0);
}

static void service_close(struct service *sv)
{
    template_close(sv->chat);
    tokenizer_close(sv->tok);
    response_store_close(sv->responses);
    grammar_cache_close(sv->grammars);
}

static struct request *taken(const struct service *sv, enum endpoint endpoint, const char *body)
{
    struct request *rq = NULL;
    struct fault f = { 0 };
    if (openai_parse(sv, endpoint, body, strlen(body), &rq, &f) < 0)
        test_fail(__FILE__, __LINE__, "%s: refused: %s", body, f.text);
    return rq;
}

static void refused(const struct service *sv, enum endpoint endpoint, const char *body, const char *param,
                    const char *part)
{
    struct request *rq = NULL;
    struct fault f = { 0 };
    CHECK_INT(openai_parse(sv, endpoint, body, strlen(body), &rq, &f), -1);
    if (f.status / 100 != 4 || strcmp(f.param, param) || !strstr(f.text, part))
        test_fail(__FILE__, __LINE__, "%s: status %d, param %s, %s", body, f.status, f.param, f.text);
    request_release(rq);
}

static void check_prompt(const struct service *sv, enum endpoint endpoint, const char *body, const char *want)
{
    struct request *rq = taken(sv, endpoint, body);
    char *s = calloc(1, (size_t)rq->prompt->n + 1);
    for (int64_t i = 0; i < rq->prompt->n; i++)
        s[i] = (char)rq->prompt->ids[i];
    CHECK_STR(s, want);
    free(s);
    request_release(rq);
}

/* Is the answer to a door's request held to the grammar of this chat's answer? */
static void check_grammar(const struct service *sv, enum endpoint endpoint, const char *body,
                          const char *chat)
{
    struct request *a = taken(sv, ENDPOINT_CHAT, chat), *b = taken(sv, endpoint, body);
    const struct structured *x = &a->structured, *y = &b->structured;

    CHECK(a->grammar != NULL);
    if (a->grammar != b->grammar) /* grammars are kept by what they are made of */
        test_fail(__FILE__, __LINE__, "%s: %s %s, the chat has %s %s", body, y->text ? y->text : "",
                  y->tools ? y->tools : "", x->text ? x->text : "", x->tools ? x->tools : "");
    CHECK_INT(a->tool_choice, b->tool_choice);
    CHECK_INT(a->parallel_tools, b->parallel_tools);
    request_release(a);
    request_release(b);
}

/* Gives the only choice the tokens of the text; events: of a stream, else NULL. */
static void write_answer(struct request *rq, const char *text, struct json_out *events)
{
    struct choice *c = rq->choice;
    struct fault f = { 0 };
    size_t n = strlen(text);

    for (size_t i = 0; i <= n && c->finish == FINISH_NONE; i++) {
        CHECK_INT(choice_accept(c, i < n ? (unsigned char)text[i] : 0, 0, NULL, &f), 0);
        if (events)
            front_event(events, c, choice_safe_text(c));
    }
    if (events)
        front_end(events, rq);
}

/* The data of the last event, and how many events there are. */
static json_t *last_event(const struct json_out *o, int *n)
{
    json_t *last = NULL;
    *n = 0;
    for (const char *at = o->p; (at = strstr(at, "\ndata: ")); at += 7) {
        json_decref(last);
        last = json_loads(at + 7, JSON_DISABLE_EOF_CHECK, NULL);
        CHECK(last != NULL);
        ++*n;
    }
    return last;
}

#define TOOLS "\"tools\":[{\"type\":\"function\",\"name\":\"now\"}]"
#define NATIVE "\"tools\":[{\"name\":\"now\",\"input_schema\":{}}]"

TEST(items_become_the_conversation_that_they_say)
{
    struct service sv;
    service_open(&sv);
    check_prompt(&sv, ENDPOINT_RESPONSES, "{\"input\":\"Hi\"}", "<user>Hi<assistant>");
    check_prompt(
        &sv, ENDPOINT_RESPONSES,
        "{\"instructions\":\"A\",\"input\":[{\"role\":\"developer\",\"content\":\"B\"},{\"role\":\"user\","
        "\"content\":[{\"type\":\"input_text\",\"text\":\"c\"},{\"type\":\"input_text\",\"text\":\"d\"}]},"
        "{\"role\":\"developer\",\"content\":\"E\"}]}",
        "<system>A\n\nB<user>c\nd<system>E<assistant>");
    check_prompt(
        &sv, ENDPOINT_RESPONSES,
        "{" TOOLS
        ",\"input\":[{\"role\":\"user\",\"content\":\"q\"},{\"type\":\"reasoning\",\"id\":\"r\",\"summary\":"
        "[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"hm\"}]},{\"type\":\"message\",\"role\":"
        "\"assistant\","
        "\"content\":[{\"type\":\"output_text\",\"text\":\"x\",\"annotations\":[]}]},{\"type\":\"function_"
        "call\","
        "\"call_id\":\"c1\",\"name\":\"now\",\"arguments\":\"{\\\"a\\\":1}\"},{\"type\":\"function_call\","
        "\"call_id\":\"c2\",\"name\":\"now\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_"
        "id\":"
        "\"c1\",\"output\":\"12\"}]}",
        "[now]<user>q<assistant><think>hm</think>x<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1}}"
        "</tool_call><tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call><tool>12<assistant>");
    service_close(&sv);
}

TEST(blocks_become_the_conversation_that_they_say)
{
    struct service sv;
    service_open(&sv);
    check_prompt(
        &sv, ENDPOINT_MESSAGES,
        "{\"max_tokens\":5,\"system\":[{\"type\":\"text\",\"text\":\"A\",\"cache_control\":{}}],\"messages\":"
        "[{"
        "\"role\":\"user\",\"content\":\"b\"}],\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":9}}",
        "<system>A<user>b<assistant><think>\n");
    check_prompt(
        &sv, ENDPOINT_MESSAGES,
        "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"b\"},{\"role\":\"assistant\","
        "\"content\":\"so\"}]}",
        "<user>b<assistant>so");
    check_prompt(
        &sv, ENDPOINT_MESSAGES,
        "{\"max_tokens\":5," NATIVE
        ",\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
        "\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"},{\"type\":\"text\","
        "\"text\":\"x\"},"
        "{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"now\",\"input\":{\"a\":1}}]},{\"role\":\"user\","
        "\"content\":[{"
        "\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"content\":[{\"type\":\"text\",\"text\":\"12\"}]},{"
        "\"type\":"
        "\"text\",\"text\":\"and?\"}]}]}",
        "[now]<user>q<assistant><think>hm</think>x<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1}}"
        "</tool_call><tool>12<user>and?<assistant>");
    service_close(&sv);
}

TEST(an_answer_has_the_same_items_in_a_stream)
{
    static const char *const kinds[] = { "reasoning", "message", "function_call", "message" };
    struct service sv;
    struct json_out whole = { 0 }, events = { 0 };
    int n;

    service_open(&sv);
    struct request *a = taken(&sv, ENDPOINT_RESPONSES, "{\"input\":\"Hi\",\"request_id\":\"x\"," TOOLS "}"),
                   *b = taken(&sv, ENDPOINT_RESPONSES,
                              "{\"input\":\"Hi\",\"request_id\":\"x\",\"stream\":true," TOOLS "}");
    write_answer(a, said, NULL);
    front_answer(&whole, a);
    write_answer(b, said, &events);
    json_t *j = json_loadb(whole.p, whole.n, 0, NULL), *last = last_event(&events, &n),
           *items = json_object_get(j, "output");
    CHECK_STR(json_string_value(json_object_get(last, "type")), "response.completed");
    CHECK_INT(json_integer_value(json_object_get(last, "sequence_number")), n - 1);
    CHECK(json_equal(items, json_object_get(json_object_get(last, "response"), "output")));
    CHECK_INT(json_array_size(items), 4);
    for (size_t i = 0; i < 4; i++)
        CHECK_STR(json_string_value(json_object_get(json_array_get(items, i), "type")), kinds[i]);
    CHECK_HAS(whole.p, "\"text\":\"One.\"");
    CHECK_HAS(whole.p, "\"text\":\"Two.\"");
    CHECK_HAS(whole.p, "\"arguments\":\"{\\\"a\\\": \\\"\xc3\xa9\\\"}\"");
    json_decref(j);
    json_decref(last);
    json_out_free(&whole);
    json_out_free(&events);
    request_release(a);
    request_release(b);
    service_close(&sv);
}

TEST(a_message_has_blocks_and_its_stream_the_same_ones)
{
    struct service sv;
    struct json_out whole = { 0 }, events = { 0 };
    int n;

    service_open(&sv);
    struct request
        *a = taken(&sv, ENDPOINT_MESSAGES,
                   "{\"max_tokens\":500,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]," NATIVE "}"),
        *b = taken(&sv, ENDPOINT_MESSAGES,
                   "{\"max_tokens\":500,\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}"
                   "]," NATIVE "}");
    write_answer(a, said, NULL);
    front_answer(&whole, a);
    CHECK_HAS(
        whole.p,
        "\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"},{\"type\":\"text\","
        "\"text\":\"One.\"},{\"type\":\"tool_use\",\"id\":\"toolu_");
    CHECK_HAS(whole.p, "\"input\":{\"a\":\"\xc3\xa9\"}},{\"type\":\"text\",\"text\":\"Two.\"}],\"stop_"
                       "reason\":\"tool_use\"");
    write_answer(b, said, &events);
    json_t *last = last_event(&events, &n);
    CHECK_STR(json_string_value(json_object_get(last, "type")), "message_stop");
    CHECK_HAS(events.p, "{\"type\":\"content_block_stop\",\"index\":3}");
    CHECK_HAS(events.p, "{\"type\":\"text_delta\",\"text\":\"T\"}");
    CHECK_HAS(events.p, "{\"type\":\"thinking_delta\",\"thinking\":\"h\"}");
    json_decref(last);
    json_out_free(&whole);
    json_out_free(&events);
    request_release(a);
    request_release(b);
    service_close(&sv);
}

/* The tokens of the log-probs in a list, joined. */
static void join_tokens(char *to, const json_t *list)
{
    size_t i;
    json_t *x;
    *to = 0;
    json_array_foreach((json_t *)(uintptr_t)list, i, x)
        strcat(to, json_string_value(json_object_get(x, "token")));
}

TEST(every_token_is_in_one_item)
{
    struct service sv;
    struct json_out whole = { 0 }, events = { 0 };
    char text[256], deltas[256] = "", part[64];

    service_open(&sv);
    const char *body =
        "{\"input\":\"Hi\",\"include\":[\"message.output_text.logprobs\"],\"stream\":true," TOOLS "}";
    struct request *a = taken(&sv, ENDPOINT_RESPONSES, body), *b = taken(&sv, ENDPOINT_RESPONSES, body);
    write_answer(a, said, NULL);
    front_answer(&whole, a);
    json_t *j = json_loadb(whole.p, whole.n, JSON_ALLOW_NUL, NULL), *items = json_object_get(j, "output");
    json_t *two = json_object_get(json_array_get(json_object_get(json_array_get(items, 3), "content"), 0),
                                  "logprobs"),
           *one = json_object_get(json_array_get(json_object_get(json_array_get(items, 1), "content"), 0),
                                  "logprobs");
    join_tokens(text, one);
    CHECK_STR(text, "One.");
    join_tokens(text, two);
    CHECK_STR(text, "Two.");
    CHECK_INT(json_array_size(two), 5); /* and the end token */
    json_t *details = json_object_get(json_object_get(j, "usage"), "output_tokens_details");
    CHECK_INT(json_integer_value(json_object_get(details, "reasoning_tokens")),
              strlen("<think>\nhm\n</think>\n\n"));

    write_answer(b, said, &events);
    for (const char *at = events.p; (at = strstr(at, "data: {\"type\":\"response.output_text.delta\""));
         at++) {
        json_t *e = json_loads(at + 6, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
        join_tokens(part, json_object_get(e, "logprobs"));
        strcat(deltas, part);
        json_decref(e);
    }
    CHECK_STR(deltas, "One.Two.");
    json_decref(j);
    json_out_free(&whole);
    json_out_free(&events);
    request_release(a);
    request_release(b);
    service_close(&sv);
}

TEST(a_kept_response_is_gone_on_with_by_its_key)
{
    struct service sv;
    struct request *rq = NULL;
    struct fault f = { 0 };
    struct json_out o = { 0 };
    const char *first = "{\"input\":\"Hi\",\"instructions\":\"A\",\"request_id\":\"one\"," TOOLS "}",
               *next = "{\"input\":\"so?\",\"previous_response_id\":\"resp_one\"}";

    service_open(&sv);
    CHECK_INT(openai_parse_of(&sv, ENDPOINT_RESPONSES, 3, first, strlen(first), &rq, &f), 0);
    write_answer(rq, said, NULL);
    front_keep(rq);
    front_keep(rq);
    request_release(rq);
    CHECK_INT(openai_parse_of(&sv, ENDPOINT_RESPONSES, 2, next, strlen(next), &rq, &f), -1);
    CHECK_INT(f.status, 404);
    CHECK_STR(f.code, "previous_response_not_found");
    CHECK_STR(f.text, "Previous response with id 'resp_one' not found.");
    CHECK_INT(openai_parse_of(&sv, ENDPOINT_RESPONSES, 3, next, strlen(next), &rq, &f), 0);
    CHECK_HAS(rq->history,
              "{\"type\":\"message\",\"role\":\"user\",\"content\":\"Hi\"},{\"id\":\"rs_one_0\"");
    request_release(rq);
    CHECK_INT(responses_read(&sv, 3, "resp_one", &o, &f), 0);
    CHECK_HAS(o.p, "\"instructions\":\"A\"");
    CHECK_INT(responses_delete(&sv, 2, "resp_one", &o, &f), -1);
    CHECK_INT(responses_delete(&sv, 3, "resp_one", &o, &f), 0);
    CHECK_INT(responses_read(&sv, 3, "resp_one", &o, &f), -1);
    json_out_free(&o);
    service_close(&sv);
}

TEST(the_key_that_holds_most_loses_its_oldest_response)
{
    struct response_store *s = response_store_open(4, 1 << 20);
    struct json_out text = { 0 }, got = { 0 };
    char id[2] = "a";

    json_out_text(&text, "{}");
    response_store_put(s, 1, "z", &text, NULL);
    for (; *id < 'f'; ++*id)
        response_store_put(s, 0, id, &text, "[]");
    CHECK_INT(response_store_get(s, 0, "a", &got, NULL), 0);
    CHECK_INT(response_store_get(s, 0, "b", &got, NULL), 0);
    CHECK_INT(response_store_get(s, 0, "c", &got, NULL), 1);
    CHECK_INT(response_store_get(s, 1, "z", &got, NULL), 1);
    response_store_put(s, 0, "f", &text, "[]"); /* c was used, so d goes */
    CHECK_INT(response_store_get(s, 0, "d", &got, NULL), 0);
    CHECK_INT(response_store_get(s, 0, "c", &got, NULL), 1);
    response_store_close(s);

    s = response_store_open(4, 64);
    response_store_put(s, 0, "a", &text, NULL);
    CHECK_INT(response_store_get(s, 0, "a", &got, NULL), 0);
    response_store_close(s);
    response_store_put(NULL, 0, "a", &text, NULL);
    CHECK_INT(response_store_get(NULL, 0, "a", &got, NULL), 0);
    json_out_free(&text);
    json_out_free(&got);
}

TEST(what_cannot_be_served_is_refused_by_its_own_name)
{
    static const struct {
        enum endpoint endpoint;
        const char *body, *param, *part;
    } cases[] = {
        { ENDPOINT_RESPONSES, "{}", "input", "input must be a text or a list" },
        { ENDPOINT_RESPONSES, "{\"input\":[]}", "input", "input has 0 items" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"messages\":[]}", "messages", "not known" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"max_output_tokens\":0}", "max_output_tokens", "must be 1" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"max_output_tokens\":9999}", "max_output_tokens", "9999" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"top_logprobs\":2}", "top_logprobs", "include" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"include\":[\"x\"]}", "include", "include[0] 'x'" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"reasoning\":{\"effort\":\"x\"}}", "reasoning.effort",
          "one of" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"tools\":[{\"type\":\"mcp\"}]}", "tools",
          "tools[0].type 'mcp'" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"b c\"}]}",
          "tools", "letters, digits" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"tool_choice\":{\"type\":\"web_search\"}}", "tool_choice",
          "must be" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"instructions\":[]}", "instructions", "must be a text" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"conversation\":\"c\"}", "conversation", "not supported" },
        { ENDPOINT_RESPONSES,
          "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"n\",\"arguments\":\"x\"}]}",
          "input", "input's messages[0].tool_calls[0].arguments must be a JSON object" },
        { ENDPOINT_RESPONSES, "{\"input\":[{\"type\":\"reasoning\",\"summary\":[]}]}", "input",
          "input must have 1 to 65536 messages" },
        { ENDPOINT_MESSAGES, "{\"max_tokens\":1}", "messages", "must be a list" },
        { ENDPOINT_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "max_tokens",
          "missing" },
        { ENDPOINT_MESSAGES, "{\"max_tokens\":1,\"messages\":[{\"role\":\"tool\",\"content\":\"a\"}]}",
          "messages", "messages[0].role" },
        { ENDPOINT_MESSAGES, "{\"max_tokens\":4090,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
          "max_tokens", "exceed context limit: 18 + 4090 > 4096" },
        { ENDPOINT_MESSAGES, "{\"max_tokens\":1,\"system\":3,\"messages\":[]}", "system", "system must be" },
        { ENDPOINT_MESSAGES, "{\"max_tokens\":1,\"thinking\":{\"type\":\"x\"},\"messages\":[]}", "thinking",
          "thinking.type" },
        { ENDPOINT_MESSAGES, "{\"max_tokens\":1,\"tools\":[{\"name\":\"a\"}],\"messages\":[]}", "tools",
          "tools[0].input_schema" },
        { ENDPOINT_MESSAGES, "{\"max_tokens\":1,\"tool_choice\":{\"type\":\"x\"},\"messages\":[]}",
          "tool_choice", "tool_choice.type" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"xml\"}}}", "text.format",
          "text.format.type must be" },
        { ENDPOINT_RESPONSES,
          "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"contains\":{}}}}}",
          "text.format", "contains" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\"}}}",
          "text.format", "text.format must have a schema" },
        { ENDPOINT_RESPONSES, "{\"input\":\"a\",\"tool_choice\":\"required\"}", "tool_choice",
          "there are no tools" },
        { ENDPOINT_RESPONSES,
          "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":3}]}", "tools",
          "tools[0].parameters must be" },
        { ENDPOINT_MESSAGES,
          "{\"max_tokens\":1,\"output_config\":{\"format\":{\"type\":\"json\",\"schema\":{}}}}",
          "output_config", "output_config.format must be" },
        { ENDPOINT_MESSAGES,
          "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"output_config\":{"
          "\"format\":{"
          "\"type\":\"json_schema\",\"schema\":{\"contains\":{}}}}}",
          "output_config.format", "contains" },
        { ENDPOINT_MESSAGES,
          "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"name\":\"b "
          "c\","
          "\"input_schema\":{}}]}",
          "tools", "tools[0].name must" },
        { ENDPOINT_MESSAGES, "{\"max_tokens\":1,\"metadata\":{\"x\":1},\"messages\":[]}", "metadata",
          "metadata.x" },
    };
    struct service sv;
    service_open(&sv);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(&sv, cases[i].endpoint, cases[i].body, cases[i].param, cases[i].part);
    service_close(&sv);
}

#define INTEGER "{\"type\":\"integer\"}"
#define HELD(strict) \
    "{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{" \
    "\"n\":" INTEGER "}}" strict "}"
#define NESTED(strict) \
    "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"," \
    "\"properties\":{" \
    "\"n\":" INTEGER "}}" strict "}}"
#define OWN(strict) \
    "{\"name\":\"f\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"n\":" INTEGER "}}" strict "}"
#define STRICT ",\"strict\":true"
#define CHAT_HI "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
#define SCHEMA "\"schema\":{\"type\":\"object\",\"properties\":{\"a\":" INTEGER "}}"

TEST(a_response_is_held_to_the_grammar_of_the_chat)
{
    static const char *const same[][2] = {
        { "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_object\"}}}",
          "{" CHAT_HI ",\"response_format\":{\"type\":\"json_object\"}}" },
        { "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"strict\":"
          "true," SCHEMA "}}}",
          "{" CHAT_HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\"," SCHEMA
          "}}}" },
        { "{\"input\":\"a\",\"tools\":[" HELD(STRICT) "]}", "{" CHAT_HI ",\"tools\":[" NESTED(STRICT) "]}" },
        { "{\"input\":\"a\",\"tool_choice\":\"required\",\"tools\":[" HELD("") "]}",
          "{" CHAT_HI ",\"tool_choice\":\"required\",\"tools\":[" NESTED("") "]}" },
        { "{\"input\":\"a\",\"parallel_tool_calls\":false,\"tool_choice\":{\"type\":\"function\",\"name\":"
          "\"f\"},"
          "\"tools\":[" HELD("") "]}",
          "{" CHAT_HI
          ",\"parallel_tool_calls\":false,\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":"
          "\"f\"}},\"tools\":[" NESTED("") "]}" },
        { "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_object\"}},\"tools\":[" HELD(STRICT) "]}",
          "{" CHAT_HI ",\"response_format\":{\"type\":\"json_object\"},\"tools\":[" NESTED(STRICT) "]}" },
    };
    struct service sv;

    service_open(&sv);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        check_grammar(&sv, ENDPOINT_RESPONSES, same[i][0], same[i][1]);
    service_close(&sv);
}

TEST(a_message_is_held_to_the_grammar_of_the_chat)
{
    static const char *const same[][2] = {
        { "{\"max_tokens\":9," CHAT_HI ",\"output_config\":{\"format\":{\"type\":\"json_schema\"," SCHEMA
          "}}}",
          "{" CHAT_HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\"," SCHEMA
          "}}}" },
        { "{\"max_tokens\":9," CHAT_HI ",\"tools\":[" OWN(STRICT) "]}",
          "{" CHAT_HI ",\"tools\":[" NESTED(STRICT) "]}" },
        { "{\"max_tokens\":9," CHAT_HI ",\"tool_choice\":{\"type\":\"any\"},\"tools\":[" OWN("") "]}",
          "{" CHAT_HI ",\"tool_choice\":\"required\",\"tools\":[" NESTED("") "]}" },
        { "{\"max_tokens\":9," CHAT_HI
          ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\",\"disable_parallel_tool_use\":"
          "true},\"tools\":[" OWN("") "]}",
          "{" CHAT_HI
          ",\"parallel_tool_calls\":false,\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":"
          "\"f\"}},\"tools\":[" NESTED("") "]}" },
    };
    struct service sv;

    service_open(&sv);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        check_grammar(&sv, ENDPOINT_MESSAGES, same[i][0], same[i][1]);
    service_close(&sv);
}

TEST(tokens_of_a_conversation_are_counted)
{
    struct service sv;
    struct json_out o = { 0 };
    struct fault f = { 0 };
    const char *body = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";

    service_open(&sv);
    CHECK_INT(messages_count(&sv, body, strlen(body), &o, &f), 0);
    CHECK_STR(o.p, "{\"input_tokens\":18}");
    json_out_free(&o);
    service_close(&sv);
}

TEST(a_response_crosses_to_another_process_whole)
{
    struct service sv;
    struct json_out wire = { 0 }, here = { 0 }, there = { 0 };

    service_open(&sv);
    struct request *a = taken(&sv, ENDPOINT_RESPONSES,
                              "{\"input\":\"Hi\",\"seed\":1,\"metadata\":{\"k\":\"v\"}," TOOLS "}");
    request_wire_write(&wire, a);
    struct request *b = request_wire_read(&sv, wire.p, wire.n, &(struct fault){ 0 });
    write_answer(a, said, NULL);
    write_answer(b, said, NULL);
    front_answer(&here, a);
    front_answer(&there, b);
    CHECK_STR(there.p, here.p);
    CHECK_HAS(here.p, "\"metadata\":{\"k\":\"v\"}");
    json_out_free(&wire);
    json_out_free(&here);
    json_out_free(&there);
    request_release(a);
    request_release(b);
    service_close(&sv);
}

TEST(errors_have_the_form_of_their_endpoint)
{
    struct fault f;
    struct json_out o = { 0 };
    struct service sv;

    service_open(&sv);
    struct request *rq = taken(&sv, ENDPOINT_RESPONSES, "{\"input\":\"Hi\",\"stream\":true}");
    fault_set(&f, 503, NULL, "too late");
    front_error(&o, ENDPOINT_MESSAGES, &f);
    CHECK_STR(o.p, "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"too late\"}}");
    o.n = 0;
    rq->n_events = 7;
    front_stream_error(&o, rq, &f);
    CHECK_HAS(
        o.p,
        "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":7,\"response\":{");
    CHECK_HAS(o.p, "\"error\":{\"code\":\"server_error\",\"message\":\"too late\"}");
    json_out_free(&o);
    request_release(rq);
    service_close(&sv);
}
