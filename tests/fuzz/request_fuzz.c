/* request_fuzz.c - bodies of requests (serve/api/openai.c, chat.c, tokens.c, serve/doors). The first byte:
 * which endpoint (two bits, and bits 5 and 6), a model with tokenizer or without, strict or lenient. An
 * accepted request is answered as if it had been cancelled at once.
 *
 * With bit 6: /v1/responses, behind a kept response, /v1/messages and its count. The end of the input, 128
 * bytes at most, is what the model writes; as a whole and as a stream it must have the same items. */
#include <stdlib.h>
#include <string.h>
#include "serve/api/answer_items.h"
#include "serve/api/front.h"
#include "serve/api/structured.h"
#include "serve/api/tokens.h"
#include "serve/doors/response_store.h"
#include "tests/fuzz/fuzz.h"
#include "text/template.h"

static const char chat_template[] = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor "
                                    "%}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% if "
                                    "add_generation_prompt %}<a>{% endif %}";

static const char kept[] =
    "{\"id\":\"resp_a\",\"output\":[{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{"
    "\"type\":\"output_text\",\"text\":\"b\"}]}]}";

static void parse(const struct service *sv, enum endpoint endpoint, const char *body, size_t n)
{
    struct request *rq = NULL;
    struct fault f = { 0 };
    struct json_out o = { 0 };
    if (openai_parse(sv, endpoint, body, n, &rq, &f) < 0)
        openai_error(&o, &f);
    else
        openai_answer(&o, rq);
    json_out_free(&o);
    request_release(rq);
}

/* The bytes as the model's text, an event a token where the request streams. What a grammar refuses is left
 * out. */
static void answer(struct request *rq, const char *text, size_t n, struct json_out *events)
{
    static const struct top_entry top[WATCH_MAX];
    struct choice *c = rq->choice;
    struct fault f = { 0 };

    for (size_t i = 0; i <= n && c->finish == FINISH_NONE; i++) {
        if (choice_accept(c, i < n ? (unsigned char)text[i] : 0, 0, top, &f) < 0 && !c->matcher)
            abort();
        if (events)
            front_event(events, c, choice_safe_text(c));
    }
    if (events && c->finish != FINISH_NONE)
        front_end(events, rq);
}

static void try_door(struct service *sv, enum endpoint endpoint, const char *body, size_t n, const char *text,
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

/* body, n bytes: of the request, and what the model writes. */
static void parse_door(struct service *sv, unsigned which, const char *body, size_t n)
{
    static const enum endpoint endpoints[] = { ENDPOINT_RESPONSES, ENDPOINT_MESSAGES, ENDPOINT_COUNT,
                                               ENDPOINT_RESPONSES };
    struct json_out answer = { .p = (char *)(uintptr_t)kept, .n = sizeof kept - 1 };
    size_t n_text = n > 128 ? 128 : n / 2;

    sv->responses = response_store_open(4, 1 << 16);
    response_store_put(sv->responses, 0, "resp_a", &answer, "[]");
    char *text = fuzz_copy((const uint8_t *)body + n - n_text, n_text);
    char *own = fuzz_copy((const uint8_t *)body, n - n_text);
    try_door(sv, endpoints[which], own, n - n_text, text, n_text);
    free(own);
    free(text);
    response_store_close(sv->responses);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct service sv = {
        .state = SERVICE_READY, .model = "m", .vocab = 256, .ctx = 128, .n_eos = 1, .eos = { 0 }
    };
    struct err e;
    struct json_out o = { 0 };
    struct fault f = { 0 };
    if (!n)
        return 0;
    char *body = fuzz_copy(data + 1, n - 1);
    if (!(data[0] & 4) && tokenizer_bytes(&sv.tok, &e) < 0)
        abort();
    if (grammar_cache_open(&sv.grammars, &e) < 0)
        abort();
    if (!(data[0] & 16) &&
        template_open(&sv.chat, chat_template, sizeof chat_template - 1, "template", &e) < 0)
        abort();
    sv.lenient = data[0] >> 3 & 1;
    sv.form = tools_detect("<tool_call> </think>", 20);
    sv.habits = (struct tool_habits){
        .shows_calls = 1, .arguments_object = data[0] & 1, .one_call = 1, .short_ids = 1
    };
    if (data[0] & 64)
        parse_door(&sv, data[0] & 3, body, n - 1);
    switch (data[0] & 64 ? -1 : data[0] & 3) {
    case -1: break;
    case 0: parse(&sv, data[0] & 32 ? ENDPOINT_GENERATE : ENDPOINT_COMPLETION, body, n - 1); break;
    case 1: parse(&sv, ENDPOINT_CHAT, body, n - 1); break;
    case 2: tokens_encode(&sv, body, n - 1, &o, &f); break;
    default: tokens_decode(&sv, body, n - 1, &o, &f);
    }
    json_out_free(&o);
    template_close(sv.chat);
    grammar_cache_close(sv.grammars);
    tokenizer_close(sv.tok);
    free(body);
    return 0;
}
