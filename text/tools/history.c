/* history.c - the calls in a conversation's history: what a template expects of them, and making it so. See
 * text/tools.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "text/template.h"
#include "text/tok.h"
#include "text/tools.h"

#define SHORT_ID 9 /* letters and digits that some templates want */

/* ---- what a template expects ---- */

/* A conversation in which the assistant calls n tools, as a list of messages. */
static json_t *probe_messages(const struct tool_habits *h, int n)
{
    json_t *calls = json_array(), *results = json_array();
    json_t *list = json_pack("[{s:s, s:s}]", "role", "user", "content", "probe user");

    for (int i = 0; i < n; i++) {
        char id[32], name[32];
        snprintf(id, sizeof id, h->short_ids ? "probeid0%d" : "call_probe_%d", i);
        snprintf(name, sizeof name, "probe_tool_%d", i);
        json_t *arguments = h->arguments_object ? json_pack("{s:s}", "probe_key", "probe value")
                                                : json_string("{\"probe_key\": \"probe value\"}");
        json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function",
                                               "function", "name", name, "arguments", arguments));
        json_array_append_new(results, json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id", id,
                                                 "content", "probe result"));
    }

    json_array_append_new(list,
                          json_pack("{s:s, s:o, s:o}", "role", "assistant", "content",
                                    h->null_content ? json_null() : json_string(""), "tool_calls", calls));
    json_array_extend(list, results);
    json_decref(results);
    return list;
}

/* Renders messages. NULL: the template refuses them. */
static char *probe(const struct template *t, const json_t *trusted, const json_t *messages)
{
    json_t *tools = json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}]", "type", "function",
                              "function", "name", "other_tool", "description", "other", "parameters", "type",
                              "object", "properties", "other_key", "type", "string", "description", "other",
                              "required", "other_key");
    struct template_request r = {
        .messages = messages, .tools = tools, .trusted = trusted, .max_steps = 1000000, .now = 1
    };
    struct rendered out = { 0 };
    struct err e;
    char *text = NULL;

    if (template_render(t, &r, &out, &e) == 0) {
        text = out.text;
        out.text = NULL;
    }
    rendered_free(&out);
    json_decref(tools);
    return text;
}

/* Are n calls shown as they should be? Their arguments neither as a text in quotes nor in Python's syntax. */
static int probe_calls(const struct template *t, const json_t *trusted, const struct tool_habits *h, int n)
{
    json_t *messages = probe_messages(h, n);
    char *text = messages ? probe(t, trusted, messages) : NULL;
    int shown = text && strstr(text, "probe_key") && strstr(text, "probe value") &&
                !strstr(text, "\\\"probe_key") && !strstr(text, "{'probe_key");

    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "probe_tool_%d", i);
        shown = shown && strstr(text, name);
    }
    free(text);
    json_decref(messages);
    return shown;
}

/* The member of an assistant's message that the template shows as its reasoning; NULL: none. */
static const char *probe_reasoning(const struct template *t, const json_t *trusted,
                                   const struct tool_habits *h)
{
    static const char *const keys[] = { "reasoning_content", "reasoning", "thinking", "thought" };

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *messages = probe_messages(h, 1), *m = json_array_get(messages, 1);
        if (!h->shows_calls)
            json_object_del(m, "tool_calls");
        json_object_set_new(m, keys[i], json_string("probe thought"));
        if (!h->null_content && !h->shows_calls)
            json_object_set_new(m, "content", json_string("probe answer"));
        char *text = probe(t, trusted, messages);
        int shown = text && strstr(text, "probe thought");
        free(text);
        json_decref(messages);
        if (shown)
            return keys[i];
    }
    return NULL;
}

void tools_habits(const struct template *t, const json_t *trusted, struct tool_habits *out)
{
    struct tool_habits h;

    for (int i = 0; i < 8; i++) {
        h = (struct tool_habits){
            .shows_calls = 1, .arguments_object = !(i & 2), .null_content = i & 1, .short_ids = i >> 2
        };
        if (probe_calls(t, trusted, &h, 1)) {
            h.one_call = !probe_calls(t, trusted, &h, 2);
            h.reasoning = probe_reasoning(t, trusted, &h);
            *out = h;
            return;
        }
    }
    h = (struct tool_habits){ 0 };
    h.reasoning = probe_reasoning(t, trusted, &h);
    *out = h;
}

/* ---- messages ---- */

static int no_memory(struct err *e) { return err_set(e, ERR_MEMORY, "no memory for the messages"); }

/* An id as the template takes it; a new reference. */
static json_t *short_id(const json_t *id)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    const char *s = json_string_value(id);
    char made[SHORT_ID + 1] = "";
    size_t n = json_string_length(id);

    if (n == SHORT_ID && strspn(s, letters) == n)
        return json_incref((json_t *)(uintptr_t)id);
    XXH64_hash_t x = XXH3_64bits(s ? s : "", n);
    for (int i = 0; i < SHORT_ID; i++, x /= 36)
        made[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[x % 36];
    return json_string(made);
}

static int set_short_id(json_t *o, const char *key)
{
    const json_t *id = json_object_get(o, key);
    return json_is_string(id) ? json_object_set_new(o, key, short_id(id)) : 0;
}

/* The arguments of a call as an object; a new reference. NULL: *e says why. where: the call's place. */
static json_t *arguments_object(const json_t *v, const char *where, struct err *e)
{
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);

    if (!v || json_is_null(v) || (s && strspn(s, " \t\r\n") == n))
        return json_object();
    json_t *j = s ? json_loadb(s, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
                  : json_incref((json_t *)(uintptr_t)v);
    if (json_is_object(j))
        return j;
    json_decref(j);
    err_set(e, ERR_USAGE, "%s.function.arguments must be a JSON object, written as a text", where);
    return NULL;
}

/* A copy of a call as the template expects it. NULL: *e says why. */
static json_t *read_call(const struct tool_habits *h, const json_t *call, const char *where, struct err *e)
{
    json_t *fn = json_object_get(call, "function");

    if (!json_is_object(call) || !json_is_string(json_object_get(fn, "name"))) {
        err_set(e, ERR_USAGE,
                "%s must be {\"id\",\"type\":\"function\",\"function\":{\"name\",\"arguments\"}}", where);
        return NULL;
    }

    json_t *arguments = arguments_object(json_object_get(fn, "arguments"), where, e), *copy = NULL;
    if (!arguments)
        return NULL;
    if (h->shows_calls && !h->arguments_object) {
        const json_t *own = json_object_get(fn, "arguments");
        char *text = json_is_string(own) && json_string_length(own) ? NULL : json_dumps(arguments, 0);
        json_decref(arguments);
        arguments = text ? json_string(text) : json_incref((json_t *)(uintptr_t)own);
        free(text);
    }

    copy = json_copy((json_t *)(uintptr_t)call);
    fn = json_copy(fn);
    if (!copy || !fn || json_object_set_new(fn, "arguments", arguments) < 0 ||
        json_object_set_new(copy, "function", fn) < 0 || (h->short_ids && set_short_id(copy, "id") < 0) ||
        (!json_object_get(copy, "type") && json_object_set_new(copy, "type", json_string("function")) < 0)) {
        json_decref(copy);
        no_memory(e);
        return NULL;
    }
    return copy;
}

/* All calls of message number i. NULL: *e says why. */
static json_t *read_calls(const struct tool_habits *h, const json_t *list, size_t i, struct err *e)
{
    json_t *calls = json_array(), *one;
    const json_t *call;
    size_t k;

    json_array_foreach(list, k, call) {
        char where[64];
        snprintf(where, sizeof where, "messages[%zu].tool_calls[%zu]", i, k);
        one = read_call(h, call, where, e);
        if (!one || json_array_append_new(calls, one) < 0) {
            json_decref(calls);
            return NULL;
        }
    }
    return calls;
}

/* Moves the reasoning of an assistant's message to the member that the template shows. */
static int place_reasoning(const struct tool_habits *h, json_t *m)
{
    static const char *const keys[] = { "reasoning_content", "reasoning", "thinking" };
    json_t *text = NULL, *content = json_object_get(m, "content");

    for (size_t i = 0; i < sizeof keys / sizeof *keys && !json_string_length(text); i++)
        text = json_object_get(m, keys[i]);
    if (!h->reasoning || !json_string_length(text))
        return 0;
    /* gpt-oss: a call stands behind one message, which is its reasoning */
    if (!strcmp(h->reasoning, "thinking") && json_string_length(content) &&
        json_object_get(m, "tool_calls")) {
        json_t *both = json_sprintf("%s\n%s", json_string_value(text), json_string_value(content));
        return json_object_set_new(m, "thinking", both) < 0 ||
               json_object_set_new(m, "content", json_string(""));
    }
    return json_object_set(m, h->reasoning, text);
}

/* Writes the calls of a message into its content, for a template that does not show them. */
static int write_calls(const struct tool_form *form, json_t *m, const json_t *calls, struct err *e)
{
    const json_t *content = json_object_get(m, "content");
    struct buf text = { 0 };
    int rc;

    buf_add(&text, json_string_value(content), json_string_length(content));
    if (text.n)
        buf_add(&text, "\n", 1);
    rc = form->calls ? tools_write(form->calls, calls, &text, e) : 0;
    buf_add(&text, "", 1);
    if (rc == 0 && (text.failed || json_object_set_new(m, "content", json_stringn(text.p, text.n - 1)) < 0))
        rc = no_memory(e);
    json_object_del(m, "tool_calls");
    buf_free(&text);
    return rc;
}

/* Appends a message with calls; where the template shows one call of a message, one for each call, with the
 * results in messages[i + 1 …] behind it, which are then marked in `used`. */
static int add_calls(const struct tool_habits *h, const json_t *messages, size_t i, json_t *m, json_t *calls,
                     char *used, json_t *out)
{
    size_t n = h->one_call ? json_array_size(calls) : 1, last = i + 1, k, j;

    while (!strcmp(json_string_value(json_object_get(json_array_get(messages, last), "role"))
                       ? json_string_value(json_object_get(json_array_get(messages, last), "role"))
                       : "",
                   "tool"))
        last++;
    for (k = 0; k < n; k++) {
        json_t *own = json_copy(m), *list = h->one_call ? json_array() : json_incref(calls);
        const json_t *call = json_array_get(calls, k);
        if (h->one_call && json_array_append(list, (json_t *)(uintptr_t)call) < 0)
            return -1;
        if (k > 0) { /* what the model said stands before the first call */
            json_object_set_new(own, "content", h->null_content ? json_null() : json_string(""));
            if (h->reasoning)
                json_object_del(own, h->reasoning);
        }
        if (json_object_set_new(own, "tool_calls", list) < 0 || json_array_append_new(out, own) < 0)
            return -1;
        for (j = i + 1; n > 1 && j < last; j++) {
            json_t *result = json_copy(json_array_get(messages, j));
            if (h->short_ids)
                set_short_id(result, "tool_call_id");
            int fits = !used[j] &&
                       json_equal(json_object_get(result, "tool_call_id"), json_object_get(call, "id"));
            if (fits && json_array_append(out, result) < 0)
                return -1;
            used[j] |= (char)fits;
            json_decref(result);
        }
    }
    return 0;
}

/* Appends message i as the template expects it. used: of messages that were appended already. */
static int add_message(const struct tool_habits *h, const struct tool_form *form, const json_t *messages,
                       size_t i, char *used, json_t *out, struct err *e)
{
    json_t *m = json_copy(json_array_get(messages, i)), *calls = json_object_get(m, "tool_calls");
    const char *role = json_string_value(json_object_get(m, "role"));
    int rc = 0;

    if (!m)
        return no_memory(e);
    if (h->short_ids && role && !strcmp(role, "tool"))
        set_short_id(m, "tool_call_id");
    if (!role || strcmp(role, "assistant")) {
        rc = json_array_append(out, m) < 0 ? no_memory(e) : 0;
        goto out;
    }

    if (calls && !json_is_null(calls) && !json_is_array(calls)) {
        rc = err_set(e, ERR_USAGE, "messages[%zu].tool_calls must be a list", i);
        goto out;
    }
    if (!json_array_size(calls)) /* an empty list is no list to a template */
        json_object_del(m, "tool_calls");
    if (place_reasoning(h, m) < 0) {
        rc = no_memory(e);
        goto out;
    }
    /* calls that are not shown, in a form that is not known, are the template's business */
    if (!json_object_get(m, "tool_calls") || (!h->shows_calls && !form->calls)) {
        rc = json_array_append(out, m) < 0 ? no_memory(e) : 0;
        goto out;
    }

    json_t *own = read_calls(h, calls, i, e);
    if (!own) {
        rc = -e->code;
        goto out;
    }
    if (!json_string_length(json_object_get(m, "content")))
        json_object_set_new(m, "content", h->null_content ? json_null() : json_string(""));
    if (!h->shows_calls)
        rc = write_calls(form, m, own, e) < 0 ? -e->code : json_array_append(out, m) < 0 ? no_memory(e) : 0;
    else
        rc = add_calls(h, messages, i, m, own, used, out) < 0 ? no_memory(e) : 0;
    json_decref(own);
out:
    json_decref(m);
    return rc;
}

json_t *tools_history(const struct tool_habits *h, const struct tool_form *form, const json_t *messages,
                      struct err *e)
{
    size_t n = json_array_size(messages);
    json_t *out = json_array();
    char *used = calloc(n + 1, 1);
    int rc = out && used ? 0 : no_memory(e);

    for (size_t i = 0; i < n && rc == 0; i++)
        if (!used[i])
            rc = add_message(h, form, messages, i, used, out, e);
    free(used);
    if (rc == 0)
        return out;
    json_decref(out);
    return NULL;
}
