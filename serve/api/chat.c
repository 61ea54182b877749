/* chat.c - see chat.h. */
#include "serve/api/chat.h"

#include <stdlib.h>
#include <string.h>
#include "serve/api/json_out.h"
#include "serve/api/prompt_text.h"
#include "serve/api/chat_tools.h"
#include "text/template.h"

#define BAD 400
#define MESSAGES_MAX 65536

/* Joins a list of text parts, a line each, for templates that expect one text. i: the message. NULL: *f says
 * why. */
static json_t *join_parts(const json_t *parts, size_t i, struct fault *f)
{
    struct json_out text = { 0 };
    json_t *joined = NULL, *part;
    size_t k;

    json_array_foreach(parts, k, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *t = json_object_get(part, "text");
        if (!type || strcmp(type, "text") || !json_is_string(t)) {
            fault_set(f, BAD, "messages",
                      "messages[%zu].content[%zu] must be {\"type\":\"text\",\"text\":…}: this model reads "
                      "text only",
                      i, k);
            json_out_free(&text);
            return NULL;
        }
        json_out_text(&text, k ? "\n" : "");
        json_out_bytes(&text, json_string_value(t), json_string_length(t));
    }

    joined = text.failed ? NULL : json_stringn(text.p ? text.p : "", text.n);
    if (!joined)
        fault_set(f, 500, "messages", "no memory for the messages");
    json_out_free(&text);
    return joined;
}

/* A copy of message i as templates expect it. NULL: *f says why. */
static json_t *read_message(const json_t *m, size_t i, struct fault *f)
{
    const json_t *content = json_object_get(m, "content");

    if (!json_is_object(m) || !json_is_string(json_object_get(m, "role"))) {
        fault_set(f, BAD, "messages", "messages[%zu] must be an object with a role and a content", i);
        return NULL;
    }

    if (content && !json_is_null(content) && !json_is_string(content) && !json_is_array(content)) {
        fault_set(f, BAD, "messages", "messages[%zu].content must be a text or a list of text parts", i);
        return NULL;
    }

    json_t *copy = json_copy((json_t *)(uintptr_t)m), *joined = NULL;
    if (!copy)
        fault_set(f, 500, "messages", "no memory for the messages");
    else if (json_is_array(content) &&
             (!(joined = join_parts(content, i, f)) || json_object_set_new(copy, "content", joined) < 0)) {
        json_decref(copy);
        copy = NULL;
    }

    return copy;
}

static json_t *read_messages(const json_t *list, struct fault *f)
{
    size_t i;
    json_t *m, *all;

    if (!json_is_array(list) || !json_array_size(list) || json_array_size(list) > MESSAGES_MAX) {
        fault_set(f, BAD, "messages", "messages must be a list of 1 to %d messages", MESSAGES_MAX);
        return NULL;
    }

    all = json_array();
    if (!all)
        fault_set(f, 500, "messages", "no memory for the messages");
    json_array_foreach(list, i, m) {
        json_t *one = all ? read_message(m, i, f) : NULL;
        if (!one || json_array_append_new(all, one) < 0) {
            json_decref(all);
            return NULL;
        }
    }

    return all;
}

static int render(const struct service *sv, const json_t *messages, const json_t *user,
                  const struct chat_options *o, struct rendered *r, struct fault *f)
{
    const struct work_limit limit = prompt_work_limit(sv, o->begin_s);
    struct template_request q = { .messages = messages,
                                  .tools = o->tools,
                                  .user = user,
                                  .trusted = sv->chat_tokens,
                                  .add_generation_prompt = o->add_generation,
                                  .continue_final = o->continue_final,
                                  .limit = &limit };
    struct err e;
    int rc = template_render(sv->chat, &q, r, &e);

    if (rc == -ERR_USAGE && o->tools) { /* some templates read every member that a tool may have */
        json_t *whole = tools_described(o->tools);
        q.tools = whole;
        rc = whole && !json_equal(whole, o->tools) ? template_render(sv->chat, &q, r, &e) : rc;
        json_decref(whole);
    }
    return rc < 0 ? prompt_fault(sv, rc, &e, "messages", f) : 0;
}

/* Checks chat_template_kwargs, the template's other variables. Names that the server sets itself are refused:
 * they would have no effect. */
static int check_user(const struct service *sv, const json_t *user, struct fault *f)
{
    static const char *const own[] = { "messages", "tools", "add_generation_prompt" };
    if (user && !json_is_null(user) && !json_is_object(user))
        return fault_set(f, BAD, "chat_template_kwargs", "chat_template_kwargs must be an object");
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        const json_t *v = json_object_get(user, own[i]);
        if (v && !json_is_null(v) && !sv->lenient)
            return fault_set(f, BAD, "chat_template_kwargs",
                             "chat_template_kwargs.%s is not taken: %s is a field of the request", own[i],
                             own[i]);
    }
    return 0;
}

/* The template's other variables, a new reference: those of chat_template_kwargs, and reasoning_effort, as in
 * vLLM: some templates read it. NULL: no memory. */
static json_t *template_variables(const json_t *body)
{
    json_t *kwargs = json_object_get(body, "chat_template_kwargs"),
           *effort = json_object_get(body, "reasoning_effort"),
           *all = json_is_object(kwargs) ? json_copy(kwargs) : json_object();

    if (all && json_is_string(effort) && !json_object_get(all, "reasoning_effort") &&
        json_object_set(all, "reasoning_effort", effort) < 0) {
        json_decref(all);
        return NULL;
    }
    return all;
}

int chat_encode(const struct service *sv, const json_t *body, const struct chat_options *o, int32_t **ids,
                int64_t *n, struct fault *f)
{
    struct rendered r = { 0 };

    *ids = NULL;
    if (!sv->tok || !sv->chat)
        return fault_set(f, BAD, "messages", "this model has no %s: use /v1/completions",
                         sv->tok ? "chat template" : "tokenizer");
    if (check_user(sv, json_object_get(body, "chat_template_kwargs"), f) < 0)
        return -1;
    if (o->add_generation && o->continue_final)
        return fault_set(f, BAD, "continue_final_message",
                         "continue_final_message goes with add_generation_prompt false only");
    json_t *messages = read_messages(json_object_get(body, "messages"), f);
    if (!messages)
        return -1;
    json_t *told = messages;
    struct err e;
    messages = tools_history(&sv->habits, &sv->form, told, &e);
    json_decref(told);
    if (!messages)
        return fault_set(f, e.code == ERR_MEMORY ? 500 : BAD, "messages", "%s", e.text);
    json_t *user = template_variables(body);
    int rc = user ? render(sv, messages, user, o, &r, f)
                  : fault_set(f, 500, "messages", "no memory for the template's variables");
    json_decref(user);
    json_decref(messages);
    if (rc < 0)
        return -1;

    const struct work_limit limit = prompt_work_limit(sv, o->begin_s);
    const struct prompt_text text = { .text = r.text,
                                      .n = r.n,
                                      .user = r.user,
                                      .n_user = r.n_user,
                                      .param = "messages",
                                      .what = "the conversation",
                                      .add_special = o->add_special,
                                      .within_context = o->within_context,
                                      .limit = &limit };
    rc = prompt_encode(sv, &text, ids, n, f);
    if (o->in_reasoning)
        *o->in_reasoning = tools_opens_reasoning(&sv->form, r.text, r.n, o->continue_final);
    rendered_free(&r);
    return rc;
}

int chat_last_text(const json_t *body, char **text, size_t *n, struct fault *f)
{
    const json_t *list = json_object_get(body, "messages");
    const json_t *last = json_array_get(list, json_array_size(list) - 1);
    const json_t *content = json_object_get(last, "content");
    json_t *joined = json_is_array(content) ? join_parts(content, json_array_size(list) - 1, f) : NULL;
    int echoes = !strcmp(json_string_value(json_object_get(last, "role")), "assistant");

    content = joined ? joined : content;
    *n = echoes ? json_string_length(content) : 0;
    *text = malloc(*n + 1);
    if (*text && *n)
        memcpy(*text, json_string_value(content), *n);
    if (*text)
        (*text)[*n] = 0;
    json_decref(joined);
    return *text ? 0 : fault_set(f, 500, "messages", "no memory for the last message");
}
