/* request_fuzz.c - bodies of requests (serve/api/openai.c, chat.c, tokens.c). The first byte: which
 * endpoint (two bits, and bit 5), a model with tokenizer or without, strict or lenient. An accepted request
 * is answered as if it had been cancelled at once. */
#include <stdlib.h>
#include <string.h>
#include "serve/api/openai.h"
#include "serve/api/tokens.h"
#include "tests/fuzz/fuzz.h"
#include "text/template.h"

static const char chat_template[] = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor "
                                    "%}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% if "
                                    "add_generation_prompt %}<a>{% endif %}";

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
    if (!(data[0] & 16) &&
        template_open(&sv.chat, chat_template, sizeof chat_template - 1, "template", &e) < 0)
        abort();
    sv.lenient = data[0] >> 3 & 1;
    sv.form = tools_detect("<tool_call> </think>", 20);
    sv.habits = (struct tool_habits){
        .shows_calls = 1, .arguments_object = data[0] & 1, .one_call = 1, .short_ids = 1
    };
    switch (data[0] & 3) {
    case 0: parse(&sv, data[0] & 32 ? ENDPOINT_GENERATE : ENDPOINT_COMPLETION, body, n - 1); break;
    case 1: parse(&sv, ENDPOINT_CHAT, body, n - 1); break;
    case 2: tokens_encode(&sv, body, n - 1, &o, &f); break;
    default: tokens_decode(&sv, body, n - 1, &o, &f);
    }
    json_out_free(&o);
    template_close(sv.chat);
    tokenizer_close(sv.tok);
    free(body);
    return 0;
}
