/* write.c - calls as a model of a family writes them. See text/tools.h. */
#include "text/tools/parse.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(struct buf *out, const char *text)
{
    if (text)
        buf_add(out, text, strlen(text));
}

/* Appends JSON as Python writes it. */
static void add_json(struct buf *out, const json_t *v)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY);
    add(out, text ? text : "null");
    free(text);
}

/* Appends a value as Gemma writes it, or Python. */
static void add_literal(struct buf *out, const json_t *v, int gemma)
{
    const char *key, *comma = "";
    const json_t *one;
    size_t i;

    if (json_is_string(v) && gemma) {
        add(out, "<|\"|>");
        buf_add(out, json_string_value(v), json_string_length(v));
        add(out, "<|\"|>");
    } else if (json_is_array(v)) {
        add(out, "[");
        json_array_foreach(v, i, one) {
            add(out, i ? gemma ? "," : ", " : "");
            add_literal(out, one, gemma);
        }
        add(out, "]");
    } else if (json_is_object(v)) {
        add(out, "{");
        json_object_foreach((json_t *)(uintptr_t)v, key, one) {
            add(out, comma);
            comma = gemma ? "," : ", ";
            add(out, gemma ? "" : "\"");
            json_add_escaped(out, key, strlen(key));
            add(out, gemma ? ":" : "\": ");
            add_literal(out, one, gemma);
        }
        add(out, "}");
    } else if (!gemma && (json_is_boolean(v) || json_is_null(v))) {
        add(out, json_is_null(v) ? "None" : json_is_true(v) ? "True" : "False");
    } else {
        add_json(out, v);
    }
}

static void write_object(const struct tool_family *f, const char *name, const json_t *arguments,
                         struct buf *out)
{
    add(out, "{\"");
    if (f->flags & CALL_KEYED) {
        add(out, name);
        add(out, "\": ");
    } else {
        add(out, f->keys[0] ? f->keys[0] : "name");
        add(out, "\": \"");
        add(out, name);
        add(out, "\", \"");
        add(out, f->keys[1] ? f->keys[1] : "arguments");
        add(out, "\": ");
    }
    add_json(out, arguments);
    add(out, "}");
}

static void write_params(const struct tool_family *f, const json_t *arguments, struct buf *out)
{
    const char *key, *line = f->flags & CALL_LINES ? "\n" : "";
    const json_t *v;

    add(out, "\n");
    json_object_foreach((json_t *)(uintptr_t)arguments, key, v) {
        add(out, f->param[0]);
        add(out, key);
        if (f->flags & CALL_TYPED)
            add(out, json_is_string(v) ? "\" string=\"true\"" : "\" string=\"false\"");
        add(out, f->param[1]);
        add(out, f->param[2] ? "\n" : "");
        add(out, f->param[2]);
        add(out, line);
        if (json_is_string(v))
            buf_add(out, json_string_value(v), json_string_length(v));
        else
            add_json(out, v);
        add(out, line);
        add(out, f->param[3]);
        add(out, "\n");
    }
}

static void write_literal(const struct tool_family *f, const char *name, const json_t *arguments,
                          struct buf *out)
{
    int gemma = f->form == FORM_GEMMA;
    const char *key, *comma = "";
    const json_t *v;

    add(out, name);
    add(out, gemma ? "{" : "(");
    json_object_foreach((json_t *)(uintptr_t)arguments, key, v) {
        add(out, comma);
        add(out, key);
        add(out, gemma ? ":" : "=");
        add_literal(out, v, gemma);
        comma = gemma ? "," : ", ";
    }
    add(out, gemma ? "}" : ")");
}

/* Call number i without the marks around all of them. */
static void write_call(const struct tool_family *f, const json_t *call, size_t i, struct buf *out)
{
    const json_t *fn = json_object_get(call, "function"), *arguments = json_object_get(fn, "arguments");
    const char *name = json_string_value(json_object_get(fn, "name"));
    const char *id = json_string_value(json_object_get(call, "id"));
    char number[24];

    add(out, f->begin);
    switch (f->form) {
    case FORM_JSON: write_object(f, name, arguments, out); return;
    case FORM_PYTHON:
    case FORM_GEMMA: write_literal(f, name, arguments, out); return;
    default: break;
    }

    if (f->flags & CALL_ID) {
        add(out, id ? id : "0");
        add(out, f->id_end);
    }
    add(out, f->flags & CALL_COUNTED ? "functions." : "");
    add(out, name);
    if (f->flags & CALL_COUNTED) {
        snprintf(number, sizeof number, ":%zu", i);
        add(out, number);
    }
    add(out, f->name_end);
    if (f->fence) {
        add(out, f->fence);
        add(out, "\n");
    }
    if (f->form == FORM_PARAMS)
        write_params(f, arguments, out);
    else
        add_json(out, arguments);
    add(out, f->fence ? "\n```" : "");
    add(out, f->end);
}

static void write_channel(const json_t *call, struct buf *out)
{
    const json_t *fn = json_object_get(call, "function");
    add(out, "<|channel|>commentary to=functions.");
    add(out, json_string_value(json_object_get(fn, "name")));
    add(out, " <|constrain|>json<|message|>");
    add_json(out, json_object_get(fn, "arguments"));
    add(out, "<|call|>");
}

int tools_write(const struct tool_family *f, const json_t *calls, struct buf *out, struct err *e)
{
    /* one opening for all calls: in a list, or where each has a mark of its own behind it */
    int list = !!(f->flags & CALL_LIST), line = f->flags & CALL_LINES || (f->form == FORM_PARAMS && f->begin);
    int together = list || (f->begin && f->form == FORM_NAMED);
    const json_t *call;
    size_t i, n = json_array_size(calls);

    json_array_foreach(calls, i, call) {
        int first = i == 0 || !together, last = i + 1 == n || !together;
        if (f->form == FORM_CHANNELS) {
            write_channel(call, out);
            continue;
        }
        add(out, i && !together && line ? "\n" : "");
        if (first) {
            add(out, f->flags & CALL_BARE && f->form == FORM_JSON ? i ? "; " : "" : f->open[0]);
            add(out, line ? "\n" : "");
            add(out, list ? "[" : "");
        }
        add(out, list && i ? ", " : "");
        write_call(f, call, i, out);
        if (last) {
            add(out, list ? "]" : "");
            add(out, line ? "\n" : "");
            add(out, f->close);
        }
    }
    return out->failed ? err_set(e, ERR_MEMORY, "no memory for the calls of a message") : 0;
}
