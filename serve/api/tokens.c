/* tokens.c - see tokens.h. */
#include "serve/api/tokens.h"

#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/jx.h"
#include "serve/adapters/adapter_names.h"
#include "serve/api/chat.h"
#include "serve/api/openai.h"
#include "serve/api/prompt_text.h"
#include "serve/api/chat_tools.h"

#define BAD 400

/* Refuses a field that is not in the list, as openai_fields.c does, and a model that is not served. */
static int check_fields(const struct service *sv, const json_t *body, const char *const *known,
                        struct fault *f)
{
    const char *key;
    json_t *v;

    if (!json_is_object(body))
        return fault_set(f, BAD, NULL, "the body must be a JSON object");
    json_object_foreach((json_t *)(uintptr_t)body, key, v) {
        int i = 0;
        while (known[i] && strcmp(known[i], key))
            i++;
        if (!known[i] && !json_is_null(v) && !sv->lenient)
            return fault_set(f, BAD, key, "field '%.60s' is not known here: leave it out", key);
    }

    const json_t *model = json_object_get(body, "model");
    if (model && !json_is_null(model) && !json_is_string(model))
        return fault_set(f, BAD, "model", "model must be a text");
    if (json_is_string(model) && !adapter_names_serve(sv, json_string_value(model)))
        return adapter_names_unknown(sv, json_string_value(model), f);
    return sv->tok
               ? 0
               : fault_set(f, BAD, NULL, "this model has no tokenizer: it takes and gives token ids only");
}

static int read_bool(const json_t *body, const char *key, int *out, struct fault *f)
{
    struct err e;
    return jx_bool(body, "the body", key, out, &e) < 0
               ? fault_set(f, BAD, key, "%s must be true or false", key)
               : 0;
}

static void write_tokens(const struct service *sv, const int32_t *ids, size_t n, int strings,
                         struct json_out *o)
{
    json_out_fmt(o, "{\"count\":%zu,\"max_model_len\":%lld,\"tokens\":[", n, (long long)sv->ctx);
    for (size_t i = 0; i < n; i++)
        json_out_fmt(o, "%s%d", i ? "," : "", ids[i]);
    json_out_text(o, strings ? "],\"token_strs\":[" : "],\"token_strs\":null}");
    for (size_t i = 0; strings && i < n; i++) {
        size_t len = 0;
        const char *p = tokenizer_token_text(sv->tok, ids[i], &len);
        json_out_text(o, i ? "," : "");
        json_out_string_n(o, p ? p : "", len);
    }
    json_out_text(o, strings ? "]}" : "");
}

/* A prompt is not rendered: chat_template_kwargs has no effect on it, but its type is checked as well. */
static int check_kwargs(const json_t *j, struct fault *f)
{
    const json_t *kwargs = json_object_get(j, "chat_template_kwargs");
    if (!kwargs || json_is_null(kwargs) || json_is_object(kwargs))
        return 0;
    return fault_set(f, BAD, "chat_template_kwargs", "chat_template_kwargs must be an object");
}

static int encode_text(const struct service *sv, const json_t *text, int special, int32_t **ids, int64_t *n,
                       struct fault *f)
{
    if (!json_is_string(text))
        return fault_set(f, BAD, "prompt", "prompt must be a text (or give messages)");

    const struct work_limit limit = prompt_work_limit(sv, clock_s());
    const struct prompt_text p = { .text = json_string_value(text),
                                   .n = json_string_length(text),
                                   .param = "prompt",
                                   .what = "prompt",
                                   .add_special = special,
                                   .within_context = 1,
                                   .limit = &limit };
    return prompt_encode(sv, &p, ids, n, f);
}

static int encode(const struct service *sv, const json_t *j, struct json_out *o, struct fault *f)
{
    static const char *const known[] = { "model",
                                         "prompt",
                                         "add_special_tokens",
                                         "return_token_strs",
                                         "messages",
                                         "add_generation_prompt",
                                         "continue_final_message",
                                         "chat_template_kwargs",
                                         "tools",
                                         NULL };
    const json_t *text = json_object_get(j, "prompt"), *list = json_object_get(j, "messages"),
                 *messages = json_is_null(list) ? NULL : list, *tools = json_object_get(j, "tools");
    struct chat_options chat = { .add_generation = 1, .within_context = 1, .begin_s = clock_s() };
    int special = !messages, strings = 0;
    int32_t *ids = NULL;
    int64_t n = 0;

    if (check_fields(sv, j, known, f) < 0 || read_bool(j, "add_special_tokens", &special, f) < 0 ||
        read_bool(j, "return_token_strs", &strings, f) < 0)
        return -1;
    if (read_bool(j, "add_generation_prompt", &chat.add_generation, f) < 0 ||
        read_bool(j, "continue_final_message", &chat.continue_final, f) < 0)
        return -1;
    if (messages && text && !json_is_null(text))
        return fault_set(f, BAD, "prompt", "prompt and messages exclude each other: leave one of them out");
    if (messages) {
        chat.add_special = special;
        if (tools && !json_is_null(tools) && tools_check(tools, f) < 0)
            return -1;
        chat.tools = json_array_size(tools) ? tools : NULL;
        if (chat_encode(sv, j, &chat, &ids, &n, f) < 0)
            return -1;
    } else if (check_kwargs(j, f) < 0 || encode_text(sv, text, special, &ids, &n, f) < 0) {
        return -1;
    }

    write_tokens(sv, ids, (size_t)n, strings, o);
    free(ids);
    return 0;
}

static int decode(const struct service *sv, const json_t *j, struct json_out *o, struct fault *f)
{
    static const char *const known[] = { "model", "tokens", NULL };
    const json_t *list = json_object_get(j, "tokens");
    size_t n = json_array_size(list), n_text;
    char *text;
    struct err e;

    if (check_fields(sv, j, known, f) < 0)
        return -1;
    if (!json_is_array(list))
        return fault_set(f, BAD, "tokens", "tokens must be a list of token ids");
    if (n / PROMPT_FAR_TOO_LONG > (size_t)sv->ctx)
        return fault_set_context(f, sv->ctx, "tokens", "tokens has %zu ids, at most %lld are taken here", n,
                                 (long long)sv->ctx * PROMPT_FAR_TOO_LONG);
    int32_t *ids = malloc(sizeof *ids * (n + 1));
    if (!ids)
        return fault_set(f, 500, "tokens", "no memory for %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, i);
        if (!json_is_integer(x) || json_integer_value(x) < 0 || json_integer_value(x) >= sv->vocab) {
            free(ids);
            return fault_set(f, BAD, "tokens", "tokens[%zu] is not a token id: they are 0 to %lld", i,
                             (long long)sv->vocab - 1);
        }
        ids[i] = (int32_t)json_integer_value(x);
    }

    int rc = tokenizer_decode(sv->tok, ids, n, 0, &text, &n_text, &e);
    free(ids);
    if (rc < 0)
        return fault_set(f, 500, "tokens", "%s", e.text);
    json_out_text(o, "{\"prompt\":");
    json_out_string_n(o, text, n_text);
    json_out_text(o, "}");
    free(text);
    return 0;
}

static int with_body(int (*fn)(const struct service *, const json_t *, struct json_out *, struct fault *),
                     const struct service *sv, const char *body, size_t n, struct json_out *o,
                     struct fault *f)
{
    json_t *j = openai_body(body, n, f);
    if (!j)
        return -1;
    int rc = fn(sv, j, o, f);
    json_decref(j);
    return rc;
}

int tokens_encode(const struct service *sv, const char *body, size_t n, struct json_out *o, struct fault *f)
{
    return with_body(encode, sv, body, n, o, f);
}
int tokens_decode(const struct service *sv, const char *body, size_t n, struct json_out *o, struct fault *f)
{
    return with_body(decode, sv, body, n, o, f);
}

static void write_special(const struct service *sv, const char *name, int32_t id, struct json_out *o)
{
    size_t n = 0;
    const char *p = id >= 0 ? tokenizer_token_text(sv->tok, id, &n) : NULL;
    json_out_fmt(o, "\"%s\":", name);
    if (p)
        json_out_string_n(o, p, n);
    else
        json_out_text(o, "null");
}

int tokens_info(const struct service *sv, struct json_out *o, struct fault *f)
{
    if (!sv->tok)
        return fault_set(f, 404, NULL, "this model has no tokenizer: it takes and gives token ids only");
    json_out_text(o, "{");
    write_special(sv, "bos_token", tokenizer_bos(sv->tok), o);
    json_out_text(o, ",");
    write_special(sv, "eos_token", tokenizer_eos(sv->tok), o);
    json_out_fmt(o, ",\"pad_token\":null,\"vocab_size\":%lld,\"model_max_length\":%lld,\"chat_template\":",
                 (long long)sv->vocab, (long long)sv->ctx);
    json_out_string(o, sv->chat_template);
    json_out_text(o, "}");
    return 0;
}
