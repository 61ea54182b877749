/* chat_tools.c - the tools that a chat's request offers; see chat_tools.h. */
#include "serve/api/chat_tools.h"

#include <stdlib.h>
#include <string.h>
#include "text/text.h"

#define BAD 400
#define TOOLS_MAX 128
#define NAME_MAX_BYTES 64

/* ---- the list ---- */

static int is_name(const char *s)
{
    size_t n = strlen(s);
    return n && n <= NAME_MAX_BYTES &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == n;
}

static const char *name_of(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static int check_tool(const json_t *tools, size_t i, struct fault *f)
{
    const json_t *tool = json_array_get(tools, i), *fn = json_object_get(tool, "function"),
                 *parameters = json_object_get(fn, "parameters"),
                 *description = json_object_get(fn, "description"), *strict = json_object_get(fn, "strict");
    const char *type = json_string_value(json_object_get(tool, "type")), *name = name_of(tool);

    if (!type || strcmp(type, "function"))
        return fault_set(f, BAD, "tools", "tools[%zu].type must be \"function\"", i);
    if (!name || !is_name(name))
        return fault_set(f, BAD, "tools",
                         "tools[%zu].function.name must have 1 to %d letters, digits, _ and -", i,
                         NAME_MAX_BYTES);
    if (description && !json_is_null(description) && !json_is_string(description))
        return fault_set(f, BAD, "tools", "tools[%zu].function.description must be a text", i);
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
        return fault_set(f, BAD, "tools", "tools[%zu].function.parameters must be a JSON schema, an object",
                         i);
    if (strict && !json_is_null(strict) && !json_is_boolean(strict))
        return fault_set(f, BAD, "tools", "tools[%zu].function.strict must be true or false", i);
    for (size_t k = 0; k < i; k++)
        if (!strcmp(name, name_of(json_array_get(tools, k))))
            return fault_set(f, BAD, "tools",
                             "tools[%zu] and tools[%zu] are both named %s: names must differ", k, i, name);
    return 0;
}

int tools_check(const json_t *tools, struct fault *f)
{
    if (!json_is_array(tools))
        return fault_set(f, BAD, "tools", "tools must be a list of {\"type\":\"function\",\"function\":{…}}");
    if (json_array_size(tools) > TOOLS_MAX)
        return fault_set(f, BAD, "tools", "tools has %zu tools, at most %d are taken", json_array_size(tools),
                         TOOLS_MAX);
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (check_tool(tools, i, f) < 0)
            return -1;
    return 0;
}

json_t *tools_described(const json_t *tools)
{
    json_t *all = json_deep_copy(tools), *tool;
    size_t i;

    json_array_foreach(all, i, tool) {
        json_t *fn = json_object_get(tool, "function"), *parameters = json_object_get(fn, "parameters");
        if (!json_is_string(json_object_get(fn, "description")))
            json_object_set_new(fn, "description", json_string(""));
        if (!json_is_object(parameters))
            json_object_set_new(fn, "parameters", parameters = json_object());
        if (!json_object_get(parameters, "type"))
            json_object_set_new(parameters, "type", json_string("object"));
        if (!json_object_get(parameters, "properties"))
            json_object_set_new(parameters, "properties", json_object());
    }
    return all;
}

/* ---- which of them may be called ---- */

static int has_tool(const json_t *tools, const char *name)
{
    const json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool)
        if (!strcmp(name_of(tool), name))
            return 1;
    return 0;
}

static int read_choice(struct request *rq, const json_t *v, struct fault *f)
{
    static const char *const words[] = {
        [TOOLS_AUTO] = "auto", [TOOLS_NONE] = "none", [TOOLS_REQUIRED] = "required"
    };
    const char *word = json_string_value(v), *type = json_string_value(json_object_get(v, "type")),
               *name = json_string_value(json_object_get(json_object_get(v, "function"), "name"));

    if (!v || json_is_null(v))
        return 0;
    for (size_t i = 0; word && i < sizeof words / sizeof *words; i++)
        if (!strcmp(word, words[i])) {
            rq->tool_choice = (enum tool_choice)i;
            word = NULL;
            type = "function";
            name = words[i];
        }
    if (!type || strcmp(type, "function") || !name)
        return fault_set(f, BAD, "tool_choice",
                         "tool_choice must be \"none\", \"auto\", \"required\" or "
                         "{\"type\":\"function\",\"function\":{\"name\":…}}");
    if (json_is_object(v))
        rq->tool_choice = TOOLS_NAMED;
    if (rq->tool_choice != TOOLS_REQUIRED && rq->tool_choice != TOOLS_NAMED)
        return 0;
    if (!json_array_size(rq->tools))
        return fault_set(f, BAD, "tool_choice", "tool_choice asks for a call, but there are no tools");
    if (rq->tool_choice == TOOLS_NAMED && !has_tool(rq->tools, name))
        return fault_set(f, BAD, "tool_choice", "tool_choice names %.64s, which is none of the tools", name);
    return 0;
}

/* Must the arguments of a tool follow its schema? */
static int any_strict(const struct request *rq)
{
    const json_t *tool;
    size_t i;
    json_array_foreach(rq->tools, i, tool)
        if (json_is_true(json_object_get(json_object_get(tool, "function"), "strict")))
            return 1;
    return 0;
}

/* Notes where the answer must have a call, or may have one by its tool's schema only. */
static int constrain(struct request *rq, const char *name, struct fault *f)
{
    int required = rq->tool_choice == TOOLS_REQUIRED || rq->tool_choice == TOOLS_NAMED;

    if (required && !rq->calls && rq->sv->lenient)
        return 0;
    if (required && !rq->calls)
        return fault_set(
            f, BAD, "tool_choice",
            "tool_choice can be \"none\" or \"auto\" here: the chat template writes calls in no form "
            "that is known (--tool-parser names one)");
    if (required && rq->structured.kind)
        return fault_set(
            f, BAD, "tool_choice",
            "tool_choice asks for a call, response_format or structured_outputs for another answer: "
            "leave one of them out");
    if (!rq->calls || !(required || rq->structured.kind || any_strict(rq)))
        return 0;
    return structured_set_tools(rq, rq->tool_choice == TOOLS_NAMED ? name : NULL, required, f);
}

/* Texts that end a turn of calls are stop tokens, where they are tokens. */
static int add_stops(struct request *rq, struct fault *f)
{
    for (int i = 0; tools_stop(rq->sv->form.calls, i); i++) {
        const char *text = tools_stop(rq->sv->form.calls, i);
        int32_t id = tokenizer_id(rq->sv->tok, text, strlen(text));
        if (id < 0 || id >= rq->sv->vocab)
            continue;
        int32_t *q = realloc(rq->stop_ids, sizeof *q * (size_t)(rq->n_stop_ids + 1));
        if (!q)
            return fault_set(f, 500, "tools", "no memory for the tools");
        rq->stop_ids = q;
        rq->stop_ids[rq->n_stop_ids++] = id;
    }
    return 0;
}

int tools_read(struct request *rq, const json_t *body, struct fault *f)
{
    const struct service *sv = rq->sv;
    const json_t *tools = json_object_get(body, "tools");

    if (tools && !json_is_null(tools)) {
        int rc = tools_check(tools, f);
        if (rc < 0 && !sv->lenient)
            return -1;
        if (rc == 0 && json_array_size(tools))
            rq->tools = json_incref((json_t *)(uintptr_t)tools);
    }
    if (read_choice(rq, json_object_get(body, "tool_choice"), f) < 0) {
        if (!sv->lenient)
            return -1;
        rq->tool_choice = TOOLS_AUTO;
    }
    memset(f, 0, sizeof *f);

    rq->calls = rq->tools && rq->tool_choice != TOOLS_NONE && sv->form.calls;
    rq->divided = rq->calls || tools_always(&sv->form) || (rq->separate_reasoning && sv->form.reasoning);
    const json_t *named = json_object_get(json_object_get(body, "tool_choice"), "function");
    if (constrain(rq, json_string_value(json_object_get(named, "name")), f) < 0)
        return -1;
    return sv->tok && (rq->calls || tools_always(&sv->form)) ? add_stops(rq, f) : 0;
}
