/* messages.c - see messages.h: what a request of /v1/messages says, as a chat says it. */
#include "serve/doors/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "serve/api/openai_fields.h"
#include "serve/doors/door_json.h"

#define BAD 400

/* cache_control stands anywhere: beginnings are cached as they are, without being asked */
static const char *const text_types[] = { "text", NULL };

/* ---- blocks ---- */

/* One content block of a message. Text is collected in *text, a list of parts. */
struct blocks {
    struct door *d;
    const char *role;
    json_t *text;
};

static int is_user(const struct blocks *b) { return !strcmp(b->role, "user"); }

static int take_text(struct blocks *b, const json_t *block, const char *what)
{
    static const char *const known[] = { "type", "text", "cache_control", "citations", NULL };
    const json_t *text = json_object_get(block, "text");

    if (door_members(b->d, block, known, what) < 0)
        return -1;
    if (!json_is_string(text))
        return door_fault(b->d, "%s.text must be a text", what);
    json_t *part = json_pack("{s:s,s:O}", "type", "text", "text", text);
    return json_array_append_new(b->text, part) < 0 ? door_no_memory(b->d) : 0;
}

/* Reasoning of an earlier answer. A signature says nothing here. */
static int take_thinking(struct blocks *b, const json_t *block, const char *what)
{
    static const char *const known[] = { "type", "thinking", "signature", "cache_control", NULL };
    json_t *text = json_object_get(block, "thinking");

    if (door_members(b->d, block, known, what) < 0)
        return -1;
    if (!json_is_string(text) || is_user(b))
        return door_fault(b->d, "%s must be a block of the assistant with a text `thinking`", what);
    json_t *m = door_assistant(b->d, "content", "tool_calls");
    return !m ? -1 : json_string_length(text) ? door_set(b->d, m, "reasoning_content", json_incref(text)) : 0;
}

static int take_tool_use(struct blocks *b, const json_t *block, const char *what)
{
    static const char *const known[] = { "type", "id", "name", "input", "cache_control", "caller", NULL };
    const char *id = json_string_value(json_object_get(block, "id")),
               *name = json_string_value(json_object_get(block, "name"));
    const json_t *input = json_object_get(block, "input");

    if (door_members(b->d, block, known, what) < 0)
        return -1;
    if (!id || !name || !json_is_object(input) || is_user(b))
        return door_fault(b->d,
                          "%s must be a block of the assistant with an id, a name and an object `input`",
                          what);
    char *text = json_dumps(input, JSON_COMPACT);
    json_t *arguments = text ? json_string(text) : NULL, *m = door_assistant(b->d, NULL, NULL);
    free(text);
    int rc = m && arguments ? door_call(b->d, m, id, name, arguments) : door_no_memory(b->d);
    json_decref(arguments);
    return rc;
}

static int take_tool_result(struct blocks *b, const json_t *block, const char *what)
{
    static const char *const known[] = {
        "type", "tool_use_id", "content", "is_error", "cache_control", NULL
    };
    const char *id = json_string_value(json_object_get(block, "tool_use_id"));
    const json_t *content = json_object_get(block, "content");
    char name[96];

    if (door_members(b->d, block, known, what) < 0)
        return -1;
    if (!id || !is_user(b))
        return door_fault(b->d, "%s must be a block of the user with a text tool_use_id", what);
    snprintf(name, sizeof name, "%s.content", what);
    json_t *text = content && !json_is_null(content) ? door_content(b->d, content, text_types, name)
                                                     : json_string("");
    return door_result(b->d, id, text);
}

static int take_block(struct blocks *b, const json_t *block, const char *what)
{
    static const struct {
        const char *type;
        int (*take)(struct blocks *b, const json_t *block, const char *what);
    } kinds[] = { { "text", take_text },
                  { "thinking", take_thinking },
                  { "tool_use", take_tool_use },
                  { "tool_result", take_tool_result } };
    const char *type = json_string_value(json_object_get(block, "type"));

    for (size_t i = 0; type && i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(type, kinds[i].type))
            return kinds[i].take(b, block, what);
    return door_fault(b->d,
                      "%s.type '%.60s' is not supported here: blocks are text, thinking, tool_use and "
                      "tool_result",
                      what, type ? type : "");
}

/* Puts the collected text into the conversation: into the assistant's open message, or into a message of the
 * user's. */
static int flush_text(struct blocks *b)
{
    json_t *text = b->text, *m;

    b->text = NULL;
    if (!json_array_size(text)) {
        json_decref(text);
        return 0;
    }
    if (is_user(b))
        return door_message(b->d, "user", text) ? 0 : -1;
    m = door_assistant(b->d, "content", "tool_calls");
    if (!m) {
        json_decref(text);
        return -1;
    }
    return door_set(b->d, m, "content", text);
}

/* Blocks in their order; a text before another kind of block is put first. */
static int take_blocks(struct door *d, const char *role, const json_t *content, const char *what)
{
    struct blocks b = { d, role, NULL };
    char name[96];
    json_t *block;
    size_t i;
    int rc = 0;

    json_array_foreach((json_t *)(uintptr_t)content, i, block) {
        const char *type = json_string_value(json_object_get(block, "type"));
        snprintf(name, sizeof name, "%s[%zu]", what, i);
        if (rc >= 0 && b.text && (!type || strcmp(type, "text")))
            rc = flush_text(&b);
        if (rc >= 0 && !b.text && !(b.text = json_array()))
            rc = door_no_memory(d);
        if (rc >= 0)
            rc = take_block(&b, block, name);
    }
    if (rc >= 0 && b.text)
        rc = flush_text(&b);
    json_decref(b.text);
    return rc;
}

/* ---- the conversation ---- */

static int take_message(struct door *d, const json_t *m, const char *what)
{
    static const char *const known[] = { "role", "content", NULL };
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content");
    char name[64];

    if (door_members(d, m, known, what) < 0)
        return -1;
    if (!role || (strcmp(role, "user") && strcmp(role, "assistant") && strcmp(role, "system")))
        return door_fault(d, "%s.role must be user, assistant or system", what);
    snprintf(name, sizeof name, "%s.content", what);
    if (json_is_array(content) && strcmp(role, "system")) {
        /* one message of the assistant's, in whatever blocks it is */
        if (!strcmp(role, "assistant") && !door_message(d, role, NULL))
            return -1;
        return take_blocks(d, role, content, name);
    }
    json_t *text = door_content(d, content, text_types, name);
    return text && door_message(d, role, text) ? 0 : -1;
}

/* An answer that the client has begun, the last message, is gone on with. */
static void continue_last(struct request *rq, const struct door *d)
{
    const json_t *last = json_array_get(d->messages, json_array_size(d->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));

    if (!role || strcmp(role, "assistant") || json_object_get(last, "tool_calls"))
        return;
    rq->continue_final = 1;
    rq->add_generation = 0;
}

/* The system's text: one, or blocks of text. */
static int take_system(struct door *d, const json_t *system)
{
    static const char *const known[] = { "type", "text", "cache_control", "citations", NULL };
    json_t *block, *text;
    char name[32];
    size_t i;

    if (!system || json_is_null(system))
        return 0;
    json_array_foreach((json_t *)(uintptr_t)system, i, block) {
        snprintf(name, sizeof name, "system[%zu]", i);
        if (door_members(d, block, known, name) < 0)
            return -1;
    }
    text = door_content(d, system, text_types, "system");
    return text && door_message(d, "system", text) ? 0 : -1;
}

/* A new reference. */
static json_t *read_messages(struct request *rq, const json_t *body, struct fault *f)
{
    struct door d = { rq->sv, "system", json_array(), f };
    json_t *list = json_object_get(body, "messages"), *m;
    char name[48];
    size_t i;
    int rc = d.messages ? take_system(&d, json_object_get(body, "system")) : door_no_memory(&d);

    d.param = "messages";
    if (rc >= 0 && (!json_is_array(list) || !json_array_size(list)))
        rc = door_fault(&d, "messages must be a list of messages: the conversation");
    json_array_foreach(list, i, m) {
        snprintf(name, sizeof name, "messages[%zu]", i);
        if (rc >= 0)
            rc = take_message(&d, m, name);
    }
    if (rc >= 0 && door_finish(&d) >= 0) {
        continue_last(rq, &d);
        return d.messages;
    }
    json_decref(d.messages);
    return NULL;
}

/* ---- tools ---- */

static json_t *nested_tool(struct door *d, const json_t *tool, const char *what)
{
    static const char *const known[] = { "name",   "description",   "input_schema",   "type",
                                         "strict", "cache_control", "input_examples", "eager_input_streaming",
                                         NULL };
    const char *type = json_string_value(json_object_get(tool, "type"));
    const json_t *schema = json_object_get(tool, "input_schema");

    if (type && strcmp(type, "custom")) {
        door_fault(d, "%s.type '%.60s' is not supported here: only \"custom\", which the client calls", what,
                   type);
        return NULL;
    }
    if (door_members(d, tool, known, what) < 0)
        return NULL;
    if (!json_is_object(schema)) {
        door_fault(d, "%s.input_schema must be a JSON schema, an object", what);
        return NULL;
    }
    return door_tool(d, tool, schema);
}

static int take_tools(struct door *d, const json_t *tools, json_t *chat)
{
    json_t *all, *tool;
    char what[32];
    size_t i;

    if (!tools || json_is_null(tools))
        return 0;
    d->param = "tools";
    if (!json_is_array(tools))
        return door_fault(d, "tools must be a list of {\"name\":…,\"input_schema\":{…}}");
    if (!(all = json_array()))
        return door_no_memory(d);
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

static int take_choice(struct door *d, struct request *rq, const json_t *choice, json_t *chat)
{
    static const char *const known[] = { "type", "name", "disable_parallel_tool_use", NULL };
    static const char *const words[][2] = { { "auto", "auto" }, { "any", "required" }, { "none", "none" } };
    const char *type = json_string_value(json_object_get(choice, "type")),
               *name = json_string_value(json_object_get(choice, "name"));

    if (!choice || json_is_null(choice))
        return 0;
    d->param = "tool_choice";
    if (door_members(d, choice, known, "tool_choice") < 0)
        return -1;
    if (json_is_true(json_object_get(choice, "disable_parallel_tool_use")))
        rq->parallel_tools = 0;
    if (type && name && !strcmp(type, "tool"))
        return door_set(d, chat, "tool_choice",
                        json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name", name));
    for (size_t i = 0; type && i < sizeof words / sizeof *words; i++)
        if (!strcmp(type, words[i][0]))
            return door_set(d, chat, "tool_choice", json_string(words[i][1]));
    return door_fault(d, "tool_choice.type must be auto, any, none, or tool with a name");
}

/* ---- fields that are objects ---- */

/* Whether the model thinks: a variable of the templates that ask for it. How long is up to the model. */
static int take_thinking_field(struct door *d, const json_t *v, json_t *variables)
{
    static const char *const known[] = { "type", "budget_tokens", "display", NULL };
    const char *type = json_string_value(json_object_get(v, "type")),
               *display = json_string_value(json_object_get(v, "display"));
    int off = type && !strcmp(type, "disabled");

    if (!v || json_is_null(v))
        return 0;
    d->param = "thinking";
    if (door_members(d, v, known, "thinking") < 0)
        return -1;
    if (!type || (!off && strcmp(type, "enabled") && strcmp(type, "adaptive")))
        return door_fault(d, "thinking.type must be enabled, adaptive or disabled");
    if (display && strcmp(display, "summarized") && !d->sv->lenient)
        return door_fault(d, "thinking.display '%.40s' is not supported here: leave it out", display);
    return door_set(d, variables, "enable_thinking", json_boolean(!off)) < 0 ||
                   door_set(d, variables, "thinking", json_boolean(!off)) < 0
               ? -1
               : 0;
}

static int take_output_config(struct door *d, struct request *rq, const json_t *v, json_t *chat)
{
    static const char *const known[] = { "effort", "format", NULL }, *const members[] = { "type", "schema",
                                                                                          NULL };
    json_t *effort = json_object_get(v, "effort"), *format = json_object_get(v, "format"), *nested;

    if (!v || json_is_null(v))
        return 0;
    d->param = "output_config";
    if (door_members(d, v, known, "output_config") < 0)
        return -1;
    if (effort && !json_is_null(effort) &&
        (openai_read_chat_field(rq, "reasoning_effort", effort, d->f) < 0 ||
         door_set(d, chat, "reasoning_effort", json_incref(effort)) < 0))
        return -1;
    if (!format || json_is_null(format))
        return 0;
    if (door_members(d, format, members, "output_config.format") < 0)
        return -1;
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!type || strcmp(type, "json_schema") || !json_is_object(json_object_get(format, "schema")))
        return door_fault(d, "output_config.format must be {\"type\":\"json_schema\",\"schema\":{…}}");
    nested = json_pack("{s:s,s:{s:s,s:O,s:b}}", "type", "json_schema", "json_schema", "name", "answer",
                       "schema", json_object_get(format, "schema"), "strict", 1);
    return door_set(d, chat, "response_format", nested) < 0
               ? -1
               : openai_read_chat_field(rq, "response_format", nested, d->f);
}

static int take_metadata(struct door *d, const json_t *v)
{
    static const char *const known[] = { "user_id", NULL };
    d->param = "metadata";
    return !v || json_is_null(v) ? 0 : door_members(d, v, known, "metadata");
}

/* chat_template_kwargs, and what is set here besides; a new reference. */
static json_t *variables_of(struct door *d, const json_t *body)
{
    json_t *own = json_object_get(body, "chat_template_kwargs"), *all;

    if (own && !json_is_null(own) && !json_is_object(own)) {
        d->param = "chat_template_kwargs";
        door_fault(d, "chat_template_kwargs must be an object");
        return NULL;
    }
    all = json_is_object(own) ? json_copy(own) : json_object();
    if (!all)
        door_no_memory(d);
    return all;
}

json_t *messages_chat(struct request *rq, const json_t *body, struct fault *f)
{
    struct door d = { .sv = rq->sv, .param = "messages", .f = f };
    json_t *chat = json_object(), *messages = NULL, *variables = NULL;
    int rc = !chat ? door_no_memory(&d) : (variables = variables_of(&d, body)) ? 0 : -1;

    if (rc >= 0 && rq->endpoint == ENDPOINT_MESSAGES && !rq->max_tokens_given)
        rc = fault_set(f, BAD, "max_tokens", "max_tokens is missing: the tokens of the answer, at most");
    if (rc < 0 || take_tools(&d, json_object_get(body, "tools"), chat) < 0 ||
        take_choice(&d, rq, json_object_get(body, "tool_choice"), chat) < 0 ||
        take_thinking_field(&d, json_object_get(body, "thinking"), variables) < 0 ||
        take_output_config(&d, rq, json_object_get(body, "output_config"), chat) < 0 ||
        take_metadata(&d, json_object_get(body, "metadata")) < 0 ||
        !(messages = read_messages(rq, body, f)) || door_set(&d, chat, "messages", messages) < 0)
        rc = -1;
    if (rc >= 0 && door_set(&d, chat, "chat_template_kwargs", json_incref(variables)) < 0)
        rc = -1;
    json_decref(variables);
    if (rc >= 0)
        return chat;
    json_decref(chat);
    return NULL;
}

int messages_count(const struct service *sv, const char *body, size_t n, struct json_out *o, struct fault *f)
{
    struct request *rq;

    if (openai_parse_of(sv, ENDPOINT_COUNT, -1, body, n, &rq, f) < 0)
        return -1;
    json_out_fmt(o, "{\"input_tokens\":%lld}", (long long)rq->prompt->n);
    request_release(rq);
    return 0;
}
