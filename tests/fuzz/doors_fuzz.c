/* doors_fuzz.c - bodies of /v1/responses, /v1/messages and /v1/messages/count_tokens (serve/doors), behind a kept
 * response. The first byte: which endpoint, strict or lenient, how the template takes calls, the length of the
 * model's text, which is the rest's end. An accepted request is answered as a whole and as a stream, and both
 * must have the same items; the answer is kept. */
#include <stdlib.h>
#include <string.h>
#include "serve/api/answer_items.h"
#include "serve/api/front.h"
#include "serve/doors/messages.h"
#include "serve/doors/response_store.h"
#include "tests/fuzz/fuzz.h"
#include "text/template.h"

static const char chat_template[] =
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ m.reasoning_content }}{% for c in "
    "m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}{% endfor %}{% for t in "
    "tools or [] %}{{ t.function.name }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}";
static const char kept[] =
    "{\"id\":\"resp_a\",\"output\":[{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{"
    "\"type\":\"output_text\",\"text\":\"b\"}]}]}";

/* The bytes as the model's text, an event a token where the request streams. */
static void answer(struct request *rq, const char *text, size_t n, struct json_out *events)
{
    static const struct top_entry top[WATCH_MAX];
    struct choice *c = rq->choice;
    struct fault f = { 0 };

    for (size_t i = 0; i <= n && c->finish == FINISH_NONE; i++) {
        if (choice_accept(c, i < n ? (unsigned char)text[i] : 0, 0, top, &f) < 0)
            abort();
        if (events)
            front_event(events, c, choice_safe_text(c));
    }
    if (events && c->finish != FINISH_NONE)
        front_end(events, rq);
}

static void try(struct service *sv, enum endpoint endpoint, const char *body, size_t n, const char *text,
                size_t n_text)
{
    struct request *rq[2] = { NULL, NULL };
    struct fault f = { 0 };
    struct json_out o = { 0 }, events = { 0 };

    for (int i = 0; i < 2; i++)
        if (openai_parse_of(sv, endpoint, 0, body, n, &rq[i], &f) < 0)
            front_error(&o, endpoint, &f);
    if (!rq[0] != !rq[1])
        abort();
    if (rq[0] && endpoint != ENDPOINT_COUNT) {
        answer(rq[0], text, n_text, NULL);
        front_answer(&o, rq[0]);
        answer(rq[1], text, n_text, &events);
        const struct choice *a = rq[0]->choice, *b = rq[1]->choice;
        if (a->finish != FINISH_NONE && (a->items.n != b->items.n || b->items.at != b->items.n))
            abort();
        for (size_t i = 0; a->finish != FINISH_NONE && i < a->items.n; i++) {
            struct item_text x = item_text(a, i), y = item_text(b, i);
            if (a->items.item[i].kind != b->items.item[i].kind || x.n != y.n || memcmp(x.p, y.p, x.n))
                abort();
        }
        if (a->finish != FINISH_NONE)
            front_keep(rq[0]);
    }
    json_out_free(&o);
    json_out_free(&events);
    request_release(rq[0]);
    request_release(rq[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const enum endpoint endpoints[] = { ENDPOINT_RESPONSES, ENDPOINT_MESSAGES, ENDPOINT_COUNT,
                                               ENDPOINT_RESPONSES };
    struct service sv = {
        .state = SERVICE_READY, .model = "m", .vocab = 256, .ctx = 256, .n_eos = 1, .eos = { 0 }
    };
    struct json_out answer = { .p = (char *)(uintptr_t)kept, .n = sizeof kept - 1 };
    struct err e;

    if (!n)
        return 0;
    size_t n_text = (size_t)(data[0] >> 4) * 8;
    n_text = n_text < n - 1 ? n_text : n - 1;
    char *body = fuzz_copy(data + 1, n - 1 - n_text), *text = fuzz_copy(data + n - n_text, n_text);
    if (tokenizer_bytes(&sv.tok, &e) < 0 ||
        template_open(&sv.chat, chat_template, sizeof chat_template - 1, "template", &e) < 0)
        abort();
    sv.lenient = data[0] >> 2 & 1;
    sv.form = tools_detect("<tool_call> </think>", 20);
    sv.habits = (struct tool_habits){ .shows_calls = 1, .arguments_object = data[0] >> 3 & 1 };
    sv.responses = response_store_open(4, 1 << 16);
    response_store_put(sv.responses, 0, "resp_a", &answer, "[]");
    try(&sv, endpoints[data[0] & 3], body, n - 1 - n_text, text, n_text);
    response_store_close(sv.responses);
    template_close(sv.chat);
    tokenizer_close(sv.tok);
    free(body);
    free(text);
    return 0;
}
