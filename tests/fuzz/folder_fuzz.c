/* folder_fuzz.c - the texts beside a model's weights: tokenizer and its config, special tokens, chat
 * templates by name (text/tokenizer.c, text/jinja/template.c). */
#include <stdlib.h>
#include "tests/fuzz/fuzz.h"
#include "text/template.h"

static void render(const struct template *t)
{
    struct rendered out = { 0 };
    struct err e;
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "a <s>");
    const struct template_request r = { .messages = messages,
                                        .add_generation_prompt = 1,
                                        .now = 1700000000,
                                        .max_steps = 20000,
                                        .max_bytes = 8 << 20 };
    if (template_render(t, &r, &out, &e) >= 0)
        rendered_free(&out);
    json_decref(messages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = {
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "additional_chat_templates/rag.jinja",
    };
    static const char *const chosen[] = { NULL, "rag", "tool_use", "default" };
    struct tokenizer *t;
    struct template *chat = NULL;
    struct err e;
    if (!n)
        return 0;
    fuzz_write_parts(names, sizeof names / sizeof *names, data + 1, n - 1);
    if (tokenizer_open_dir(&t, fuzz_dir(), &e) >= 0)
        tokenizer_close(t);
    if (template_open_dir(&chat, fuzz_dir(), chosen[data[0] & 3], &e) > 0)
        render(chat);
    template_close(chat);
    return 0;
}
