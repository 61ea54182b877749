/* responses.c - see responses.h: what a request of /v1/responses says, as a chat says it. */
#include "serve/doors/responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "serve/api/openai_fields.h"
#include "serve/doors/door_json.h"
#include "serve/doors/response_store.h"

#define BAD 400
#define ITEMS_MAX 65536

/* ---- items ---- */

static int take_message(struct door *d, const json_t *item, const char *what)
{
    static const char *const known[] = { "type", "role", "content", "id", "status", "phase", NULL },
                             *const roles[] = { "user", "assistant", "system", "developer", NULL },
                             *const types[] = { "input_text", "output_text", "text", NULL };
    const char *role = json_string_value(json_object_get(item, "role"));
    char name[96];
    int i = 0;

    if (door_members(d, item, known, what) < 0)
        return -1;
    while (role && roles[i] && strcmp(roles[i], role))
        i++;
    if (!role || !roles[i])
        return door_fault(d, "%s.role must be user, assistant, system or developer", what);
    snprintf(name, sizeof name, "%s.content", what);
    json_t *content = door_content(d, json_object_get(item, "content"), types, name);
    if (!content)
        return -1;
    if (strcmp(role, "assistant"))
        return door_message(d, role, content) ? 0 : -1;

    json_t *m = door_assistant(d, "content", "tool_calls");
    if (!m) {
        json_decref(content);
        return -1;
    }
    return door_set(d, m, "content", content);
}

static int take_reasoning(struct door *d, const json_t *item, const char *what)
{
    static const char *const known[] = { "type",   "id", "summary", "content", "encrypted_content",
                                         "status", NULL },
                             *const types[] = { "reasoning_text", NULL };
    const json_t *content = json_object_get(item, "content");
    char name[96];

    if (door_members(d, item, known, what) < 0)
        return -1;
    if (!content || json_is_null(content) || (json_is_array(content) && !json_array_size(content)))
        return 0; /* a summary is not what the model wrote */
    snprintf(name, sizeof name, "%s.content", what);
    json_t *parts = door_content(d, content, types, name), *text = parts ? door_text(d, parts) : NULL,
           *m = text ? door_message(d, "assistant", NULL) : NULL;
    json_decref(parts);
    if (!m) {
        json_decref(text);
        return -1;
    }
    return door_set(d, m, "reasoning_content", text);
}

static int take_call(struct door *d, const json_t *item, const char *what)
{
    static const char *const known[] = { "type", "id", "call_id", "name", "arguments", "status", NULL };
    const char *id = json_string_value(json_object_get(item, "call_id")),
               *name = json_string_value(json_object_get(item, "name"));
    const json_t *arguments = json_object_get(item, "arguments");

    if (door_members(d, item, known, what) < 0)
        return -1;
    if (!id || !name || !json_is_string(arguments))
        return door_fault(d, "%s must have a call_id, a name and arguments, three texts", what);
    json_t *m = door_assistant(d, NULL, NULL);
    return m ? door_call(d, m, id, name, arguments) : -1;
}

static int take_output(struct door *d, const json_t *item, const char *what)
{
    static const char *const known[] = { "type", "id", "call_id", "output", "status", "name", NULL },
                             *const types[] = { "input_text", NULL };
    const char *id = json_string_value(json_object_get(item, "call_id"));
    char name[96];

    if (door_members(d, item, known, what) < 0)
        return -1;
    if (!id)
        return door_fault(d, "%s.call_id must be a text: the call that this is the output of", what);
    snprintf(name, sizeof name, "%s.output", what);
    return door_result(d, id, door_content(d, json_object_get(item, "output"), types, name));
}

static int take_item(struct door *d, const json_t *item, const char *what)
{
    static const struct {
        const char *type;
        int (*take)(struct door *d, const json_t *item, const char *what);
    } kinds[] = { { "message", take_message },
                  { "reasoning", take_reasoning },
                  { "function_call", take_call },
                  { "function_call_output", take_output } };
    const json_t *type = json_object_get(item, "type");

    if (!json_is_object(item))
        return door_fault(d, "%s must be an object", what);
    if (!type || json_is_null(type))
        return take_message(d, item, what);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && json_is_string(type); i++)
        if (!strcmp(json_string_value(type), kinds[i].type))
            return kinds[i].take(d, item, what);
    return door_fault(
        d,
        "%s.type '%.60s' is not supported here: items are message, reasoning, function_call and "
        "function_call_output",
        what, json_is_string(type) ? json_string_value(type) : "");
}

static int take_items(struct door *d, const json_t *list, const char *what)
{
    char name[64];
    json_t *item;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)list, i, item) {
        snprintf(name, sizeof name, "%s[%zu]", what, i);
        if (take_item(d, item, name) < 0)
            return -1;
    }
    return 0;
}

/* ---- the conversation ---- */

/* Appends the items of a kept response, those before it and its own, to all. */
static int add_previous(const struct request *rq, const char *id, json_t *all, struct fault *f)
{
    struct json_out answer = { 0 }, history = { 0 };
    int rc = response_store_get(rq->sv->responses, rq->key, id, &answer, &history);

    if (!rc) {
        fault_set(f, 404, "previous_response_id", "Previous response with id '%.90s' not found.", id);
        snprintf(f->code, sizeof f->code, "previous_response_not_found");
        return -1;
    }
    json_t *j = answer.failed ? NULL : json_loadb(answer.p, answer.n, JSON_ALLOW_NUL, NULL),
           *items = history.failed || !history.n ? NULL
                                                 : json_loadb(history.p, history.n, JSON_ALLOW_NUL, NULL);
    rc = j && items && json_array_extend(all, items) == 0 &&
                 json_array_extend(all, json_object_get(j, "output")) == 0
             ? 0
             : fault_set(f, 500, "previous_response_id", "no memory for the previous response");
    json_decref(j);
    json_decref(items);
    json_out_free(&answer);
    json_out_free(&history);
    return rc;
}

/* All items of the conversation. A new reference. */
static json_t *collect_items(const struct request *rq, const json_t *body, struct fault *f)
{
    json_t *input = json_object_get(body, "input"), *previous = json_object_get(body, "previous_response_id"),
           *all = json_array();
    int rc = all ? 0 : fault_set(f, 500, "input", "no memory for the input");

    if (rc >= 0 && previous && !json_is_null(previous))
        rc = json_is_string(previous)
                 ? add_previous(rq, json_string_value(previous), all, f)
                 : fault_set(f, BAD, "previous_response_id",
                             "previous_response_id must be a text: the id of a response");
    if (rc >= 0 && json_is_string(input)) {
        json_t *one = json_pack("{s:s,s:s,s:O}", "type", "message", "role", "user", "content", input);
        rc = json_array_append_new(all, one) < 0 ? fault_set(f, 500, "input", "no memory for the input") : 0;
    } else if (rc >= 0 && json_is_array(input)) {
        rc = json_array_extend(all, input) < 0 ? fault_set(f, 500, "input", "no memory for the input") : 0;
    } else if (rc >= 0) {
        rc = fault_set(f, BAD, "input", "input must be a text or a list of items: the conversation");
    }
    if (rc >= 0 && (!json_array_size(all) || json_array_size(all) > ITEMS_MAX))
        rc = fault_set(f, BAD, "input", "input has %zu items, must have 1 to %d", json_array_size(all),
                       ITEMS_MAX);
    if (rc < 0) {
        json_decref(all);
        return NULL;
    }
    return all;
}

static int is_instruction(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && (!strcmp(role, "system") || !strcmp(role, "developer"));
}

/* Templates have one place for what stands before a conversation: instructions, system and developer messages
 * at its beginning become one message. A later one of the developer is the system's where the template does
 * not know developers. */
static int join_instructions(struct door *d)
{
    json_t *all = d->messages, *m;
    int knows = d->sv->chat_template && strstr(d->sv->chat_template, "developer");
    size_t n = 0, i;
    struct json_out text = { 0 };

    while (is_instruction(json_array_get(all, n)))
        n++;
    json_array_foreach(all, i, m)
        if (is_instruction(m) && (i < n || !knows) && door_set(d, m, "role", json_string("system")) < 0)
            return -1;
    for (i = 0; n > 1 && i < n; i++) {
        json_t *part = door_text(d, json_object_get(json_array_get(all, i), "content"));
        text.failed |= !part;
        json_out_text(&text, i ? "\n\n" : "");
        json_out_bytes(&text, json_string_value(part), json_string_length(part));
        json_decref(part);
    }

    int rc = text.failed ? door_no_memory(d) : 0;
    for (; rc >= 0 && n > 1; n--)
        json_array_remove(all, 1);
    if (rc >= 0 && text.n)
        rc = door_set(d, json_array_get(all, 0), "content", json_stringn(text.p, text.n));
    json_out_free(&text);
    return rc;
}

/* The conversation as messages; a new reference. */
static json_t *read_messages(const struct request *rq, const json_t *body, const json_t *items,
                             struct fault *f)
{
    const json_t *told = json_object_get(body, "instructions");
    struct door d = { rq->sv, "input", json_array(), f };
    int rc = d.messages ? 0 : door_no_memory(&d);

    if (rc >= 0 && told && !json_is_null(told)) {
        d.param = "instructions";
        rc = !json_is_string(told) ? door_fault(&d, "instructions must be a text")
             : door_message(&d, "system", json_incref((json_t *)(uintptr_t)told)) ? 0
                                                                                  : -1;
        d.param = "input";
    }
    if (rc < 0 || take_items(&d, items, "input") < 0 || join_instructions(&d) < 0 || door_finish(&d) < 0) {
        json_decref(d.messages);
        return NULL;
    }
    return d.messages;
}

/* ---- tools ---- */

/* A tool of the flat form as chats have it, a new reference. */
static json_t *nested_tool(struct door *d, const json_t *tool, const char *what)
{
    static const char *const known[] = { "type", "name", "description", "parameters", "strict", NULL };
    const char *type = json_string_value(json_object_get(tool, "type"));

    if (!type || strcmp(type, "function")) {
        door_fault(d, "%s.type '%.60s' is not supported here: only \"function\", which the client calls",
                   what, type ? type : "");
        return NULL;
    }
    if (door_members(d, tool, known, what) < 0)
        return NULL;
    return door_tool(d, tool, json_object_get(tool, "parameters"));
}

static int take_tools(struct door *d, const json_t *tools, json_t *chat)
{
    json_t *all = json_array(), *tool;
    char what[32];
    size_t i;

    if (!json_is_array(tools)) {
        json_decref(all);
        return door_fault(d, "tools must be a list of {\"type\":\"function\",\"name\":…}");
    }
    json_array_foreach((json_t *)(uintptr_t)tools, i, tool) {
        snprintf(what, sizeof what, "tools[%zu]", i);
        json_t *one = nested_tool(d, tool, what);
        if (!one || json_array_append_new(all, one) < 0) {
            json_decref(all);
            return -1;
        }
    }
    return door_set(d, chat, "tools", all);
}

static int take_choice(struct door *d, json_t *choice, json_t *chat)
{
    const char *type = json_string_value(json_object_get(choice, "type")),
               *name = json_string_value(json_object_get(choice, "name"));

    if (json_is_string(choice))
        return door_set(d, chat, "tool_choice", json_incref(choice));
    if (!type || strcmp(type, "function") || !name)
        return door_fault(d, "tool_choice must be \"none\", \"auto\", \"required\" or "
                             "{\"type\":\"function\",\"name\":…}");
    return door_set(d, chat, "tool_choice",
                    json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name", name));
}

/* ---- fields that are objects or lists ---- */

static int take_reasoning_field(struct door *d, struct request *rq, const json_t *v, json_t *chat)
{
    static const char *const known[] = { "effort", "summary", "generate_summary", NULL };
    json_t *effort = json_object_get(v, "effort");

    if (door_members(d, v, known, "reasoning") < 0)
        return -1;
    if (!effort || json_is_null(effort))
        return 0;
    return openai_read_chat_field(rq, "reasoning_effort", effort, d->f) < 0
               ? -1
               : door_set(d, chat, "reasoning_effort", json_incref(effort));
}

/* text.format, as response_format of a chat says it; chat gets it, too. */
static int take_text(struct door *d, struct request *rq, const json_t *v, json_t *chat)
{
    static const char *const known[] = { "format", "verbosity", NULL }, *const members[] = {
        "type", "name", "schema", "strict", "description", NULL
    };
    json_t *format = json_object_get(v, "format"), *verbosity = json_object_get(v, "verbosity"), *nested;
    const char *type = json_string_value(json_object_get(format, "type"));

    if (door_members(d, v, known, "text") < 0)
        return -1;
    if (verbosity && openai_read_chat_field(rq, "verbosity", verbosity, d->f) < 0)
        return -1;
    if (!format || json_is_null(format))
        return 0;
    if (door_members(d, format, members, "text.format") < 0)
        return -1;

    nested = json_incref(format);
    if (type && !strcmp(type, "json_schema")) {
        json_t *schema = json_copy(format);
        json_decref(nested);
        json_object_del(schema, "type");
        nested = schema ? json_pack("{s:s,s:o}", "type", "json_schema", "json_schema", schema) : NULL;
    }
    if (door_set(d, chat, "response_format", nested) < 0)
        return -1;
    return openai_read_chat_field(rq, "response_format", nested, d->f);
}

static int take_include(struct door *d, struct request *rq, const json_t *v)
{
    size_t i;
    json_t *x;

    if (!json_is_array(v))
        return door_fault(d, "include must be a list of texts");
    json_array_foreach((json_t *)(uintptr_t)v, i, x) {
        const char *word = json_is_string(x) ? json_string_value(x) : "";
        if (!strcmp(word, "message.output_text.logprobs"))
            rq->want_logprobs = 1;
        else if (strcmp(word, "reasoning.encrypted_content") && !rq->sv->lenient)
            return door_fault(d,
                              "include[%zu] '%.60s' is not supported here: only message.output_text.logprobs "
                              "and reasoning.encrypted_content (reasoning is sent as it is)",
                              i, word);
    }
    return 0;
}

/* Reads one field where the body has it. */
static int take_field(struct door *d, struct request *rq, const json_t *body, const char *name, json_t *chat)
{
    json_t *v = json_object_get(body, name);

    if (!v || json_is_null(v))
        return 0;
    d->param = name;
    if (!strcmp(name, "tools"))
        return take_tools(d, v, chat);
    if (!strcmp(name, "tool_choice"))
        return take_choice(d, v, chat);
    if (!strcmp(name, "reasoning"))
        return take_reasoning_field(d, rq, v, chat);
    if (!strcmp(name, "text"))
        return take_text(d, rq, v, chat);
    if (!strcmp(name, "include"))
        return take_include(d, rq, v);
    return door_set(d, chat, name, json_incref(v)); /* chat_template_kwargs */
}

static int take_fields(struct request *rq, const json_t *body, json_t *chat, struct fault *f)
{
    static const char *const names[] = { "tools", "tool_choice", "reasoning",
                                         "text",  "include",     "chat_template_kwargs" };
    const json_t *truncation = json_object_get(body, "truncation"),
                 *about = json_object_get(body, "metadata");
    const char *word = json_is_string(truncation) ? json_string_value(truncation) : "";
    struct door d = { .sv = rq->sv, .f = f };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (take_field(&d, rq, body, names[i], chat) < 0)
            return -1;
    if (rq->top_logprobs > 0 && !rq->want_logprobs)
        return fault_set(f, BAD, "top_logprobs",
                         "top_logprobs go with include [\"message.output_text.logprobs\"] only");
    if (truncation && !json_is_null(truncation) && strcmp(word, "disabled") && !rq->sv->lenient)
        return fault_set(f, BAD, "truncation", "truncation '%.40s' is not supported here: only \"disabled\"",
                         word);
    if (about && !json_is_null(about) && !json_is_object(about))
        return fault_set(f, BAD, "metadata", "metadata must be an object");
    return 0;
}

/* ---- what the answer says about the request ---- */

/* A member of the request, or else_value, which is taken over. */
static void tell(json_t *about, const json_t *body, const char *name, json_t *else_value)
{
    json_t *v = json_object_get(body, name);
    if (v && !json_is_null(v)) {
        json_object_set(about, name, v);
        json_decref(else_value);
    } else {
        json_object_set_new(about, name, else_value);
    }
}

/* A list, or an object, as text without its brackets; malloc'd. */
static char *dump(const json_t *v, int bare)
{
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    size_t n = text ? strlen(text) : 0;
    if (text && bare) {
        memmove(text, text + 1, n - 2);
        text[n - 2] = 0;
    }
    return text;
}

static int note_request(struct request *rq, const json_t *body, const json_t *items, struct fault *f)
{
    json_t *about = json_object();

    tell(about, body, "instructions", json_null());
    json_object_set_new(about, "max_output_tokens",
                        rq->max_completion_tokens < 0 ? json_null()
                                                      : json_integer(rq->max_completion_tokens));
    tell(about, body, "max_tool_calls", json_null());
    tell(about, body, "metadata", json_object());
    tell(about, body, "parallel_tool_calls", json_true());
    tell(about, body, "previous_response_id", json_null());
    tell(about, body, "prompt_cache_key", json_null());
    tell(about, body, "reasoning", json_pack("{s:n,s:n}", "effort", "summary"));
    tell(about, body, "safety_identifier", json_null());
    json_object_set_new(about, "store", json_boolean(rq->store));
    json_object_set_new(about, "temperature", json_real(rq->sampling.temperature));
    tell(about, body, "text", json_pack("{s:{s:s}}", "format", "type", "text"));
    tell(about, body, "tool_choice", json_string("auto"));
    tell(about, body, "tools", json_array());
    json_object_set_new(about, "top_logprobs", json_integer(rq->top_logprobs < 0 ? 0 : rq->top_logprobs));
    json_object_set_new(about, "top_p", json_real(rq->sampling.top_p));
    json_object_set_new(about, "truncation", json_string("disabled"));
    tell(about, body, "user", json_null());

    rq->about = dump(about, 1);
    if (rq->store)
        rq->history = dump(items, 0);
    json_decref(about);
    return rq->about && (!rq->store || rq->history) ? 0
                                                    : fault_set(f, 500, "input", "no memory for the input");
}

json_t *responses_chat(struct request *rq, const json_t *body, struct fault *f)
{
    json_t *chat = json_object(), *items = NULL, *messages = NULL;
    int rc = chat ? take_fields(rq, body, chat, f) : fault_set(f, 500, "input", "no memory for the input");

    rq->store = rq->store && rq->sv->responses;
    if (rc >= 0)
        rc = (items = collect_items(rq, body, f)) ? note_request(rq, body, items, f) : -1;
    if (rc >= 0)
        rc = (messages = read_messages(rq, body, items, f)) ? 0 : -1;
    json_decref(items);
    if (rc >= 0 && json_object_set_new(chat, "messages", messages) < 0)
        rc = fault_set(f, 500, "input", "no memory for the input");
    if (rc >= 0)
        return chat;
    json_decref(chat);
    return NULL;
}

/* ---- what is kept ---- */

static int not_there(const char *id, struct fault *f)
{
    return fault_set(f, 404, "response_id", "Response with id '%.90s' not found.", id);
}

int responses_read(const struct service *sv, int key, const char *id, struct json_out *o, struct fault *f)
{
    return response_store_get(sv->responses, key, id, o, NULL) ? 0 : not_there(id, f);
}

int responses_delete(const struct service *sv, int key, const char *id, struct json_out *o, struct fault *f)
{
    if (!response_store_delete(sv->responses, key, id))
        return not_there(id, f);
    json_out_text(o, "{\"id\":");
    json_out_string(o, id);
    json_out_text(o, ",\"object\":\"response\",\"deleted\":true}");
    return 0;
}
