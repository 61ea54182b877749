/* door_json.c - see door_json.h. */
#include "serve/doors/door_json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int door_fault(const struct door *d, const char *fmt, ...)
{
    char text[sizeof d->f->text];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fault_set(d->f, 400, d->param, "%s", text);
}

int door_no_memory(const struct door *d)
{
    return fault_set(d->f, 500, d->param, "no memory for %s", d->param);
}

int door_members(const struct door *d, const json_t *v, const char *const *known, const char *what)
{
    const char *key;
    json_t *x;

    if (!json_is_object(v))
        return door_fault(d, "%s must be an object", what);
    json_object_foreach((json_t *)(uintptr_t)v, key, x) {
        int i = 0;
        while (known[i] && strcmp(known[i], key))
            i++;
        if (!known[i] && !json_is_null(x) && !d->sv->lenient)
            return door_fault(d,
                              "%s.%.60s is not known here: leave it out, or start the server with --lenient",
                              what, key);
    }
    return 0;
}

int door_set(const struct door *d, json_t *o, const char *key, json_t *v)
{
    return json_object_set_new(o, key, v) < 0 ? door_no_memory(d) : 0;
}

/* ---- texts ---- */

static int has_type(const json_t *part, const char *const *types)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    for (int i = 0; type && types[i]; i++)
        if (!strcmp(type, types[i]))
            return 1;
    return 0;
}

/* Appends part number i as a chat has it. */
static int add_part(const struct door *d, json_t *all, const json_t *part, const char *const *types,
                    const char *what)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, "text");

    if (!has_type(part, types) || !json_is_string(text))
        return door_fault(
            d, "%s must be {\"type\":\"%s\",\"text\":…}, and is of type '%.60s': this model reads text only",
            what, types[0], type ? type : "none");
    json_t *one = json_pack("{s:s,s:O}", "type", "text", "text", text);
    return json_array_append_new(all, one) < 0 ? door_no_memory(d) : 0;
}

json_t *door_content(const struct door *d, const json_t *v, const char *const *types, const char *what)
{
    char name[160];
    json_t *all, *part;
    size_t i;

    if (json_is_string(v))
        return json_incref((json_t *)(uintptr_t)v);
    if (!json_is_array(v)) {
        door_fault(d, "%s must be a text or a list of parts", what);
        return NULL;
    }

    all = json_array();
    if (!all)
        door_no_memory(d);
    json_array_foreach((json_t *)(uintptr_t)v, i, part) {
        snprintf(name, sizeof name, "%s[%zu]", what, i);
        if (all && add_part(d, all, part, types, name) < 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

json_t *door_text(const struct door *d, json_t *content)
{
    struct json_out text = { 0 };
    json_t *part, *joined;
    size_t i;

    if (json_is_string(content))
        return json_incref(content);
    json_array_foreach(content, i, part) {
        const json_t *t = json_object_get(part, "text");
        json_out_text(&text, i ? "\n" : "");
        json_out_bytes(&text, json_string_value(t), json_string_length(t));
    }
    joined = text.failed ? NULL : json_stringn(text.p ? text.p : "", text.n);
    json_out_free(&text);
    if (!joined)
        door_no_memory(d);
    return joined;
}

/* ---- messages ---- */

json_t *door_message(struct door *d, const char *role, json_t *content)
{
    json_t *m = json_pack("{s:s,s:o?}", "role", role, "content", content);
    if (!m || json_array_append_new(d->messages, m) < 0) {
        door_no_memory(d);
        return NULL;
    }
    return m;
}

int door_result(struct door *d, const char *id, json_t *content)
{
    json_t *m = content ? door_message(d, "tool", content) : NULL;
    return m ? door_set(d, m, "tool_call_id", json_string(id)) : -1;
}

json_t *door_assistant(struct door *d, const char *not_with, const char *nor_with)
{
    json_t *last = json_array_get(d->messages, json_array_size(d->messages) - 1), *v;
    const char *role = json_string_value(json_object_get(last, "role")), *not [] = { not_with, nor_with };
    int fits = role && !strcmp(role, "assistant");

    for (int i = 0; i < 2 && fits; i++) {
        v = not [i] ? json_object_get(last, not [i]) : NULL;
        fits = !v || json_is_null(v);
    }
    return fits ? last : door_message(d, "assistant", NULL);
}

int door_call(struct door *d, json_t *message, const char *id, const char *name, const json_t *arguments)
{
    json_t *calls = json_object_get(message, "tool_calls");

    if (!calls) {
        if (door_set(d, message, "tool_calls", calls = json_array()) < 0)
            return -1;
    }
    json_t *call = json_pack("{s:s,s:s,s:{s:s,s:O}}", "id", id, "type", "function", "function", "name", name,
                             "arguments", arguments);
    return json_array_append_new(calls, call) < 0 ? door_no_memory(d) : 0;
}

json_t *door_tool(const struct door *d, const json_t *tool, const json_t *parameters)
{
    json_t *nested = json_pack("{s:s,s:{s:O*,s:O*,s:O*,s:O*}}", "type", "function", "function", "name",
                               json_object_get(tool, "name"), "description",
                               json_object_get(tool, "description"), "parameters", parameters, "strict",
                               json_object_get(tool, "strict"));
    if (!nested)
        door_no_memory(d);
    return nested;
}

int door_finish(struct door *d)
{
    json_t *m;
    size_t i;

    json_array_foreach(d->messages, i, m)
        if (json_is_null(json_object_get(m, "content")) && !json_object_get(m, "tool_calls") &&
            door_set(d, m, "content", json_string("")) < 0)
            return -1;
    return 0;
}
