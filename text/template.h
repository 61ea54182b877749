/* template.h - chat templates: render messages to the text format that a model was trained on.
 *
 * A template is Jinja as transformers renders it (ImmutableSandboxedEnvironment with trim_blocks,
 * lstrip_blocks, loop controls and Python's JSON filter); text/TEMPLATES.md lists what is supported. A parsed
 * template is immutable: any number of threads may render it at the same time. Steps, memory, output and
 * nesting depth are limited, so rendering always ends.
 *
 * The result records which spans came from untrusted input (messages, tools, documents, user variables).
 * tokenizer_encode_marked (text.h) reads special tokens written in those spans as plain text. */
#ifndef SHARDLINE_TEXT_TEMPLATE_H
#define SHARDLINE_TEXT_TEMPLATE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/work_limit.h"
#include "text/text.h"

struct template;

/* text, n: the template (UTF-8), which the caller may free afterwards. what: its source, for messages.
 * ERR_CONFIG: it does not parse; the message has the source, the line and the reason. */
int template_open(struct template **out, const char *text, size_t n, const char *what, struct err *e);
/* Adds the one to use for requests with tools. Errors as template_open. */
int template_add_tools(struct template *t, const char *text, size_t n, struct err *e);
/* Opens the template in a model's folder: DIR/chat_template.jinja, else chat_template in
 * DIR/tokenizer_config.json, which is a text or a list of named templates ("default", and "tool_use" for
 * requests with tools). bos_token, eos_token and the other special tokens of tokenizer_config.json become
 * variables of every rendering.
 * name: use this named template (also DIR/additional_chat_templates/NAME.jinja) for every request; NULL: as
 * above. Returns 1: opened; 0: the folder has no template and *out is NULL. ERR_CONFIG: no such name. */
int template_open_dir(struct template **out, const char *dir, const char *name, struct err *e);
/* The files of such a folder in memory; data NULL: there is no such file. */
struct template_part {
    const void *data;
    size_t n;
};
struct template_parts {
    const char *what; /* where they are from, for messages */
    struct template_part jinja, config,
        map; /* chat_template.jinja, tokenizer_config.json, special_tokens_map.json */
};
/* The same of these. */
int template_open_parts(struct template **out, const struct template_parts *p, struct err *e);
void template_close(struct template *t); /* NULL is allowed */

/* All JSON values are borrowed during the call and not changed. */
struct template_request {
    const json_t *messages;          /* a list of objects */
    const json_t *tools, *documents; /* NULL: none */
    const json_t *user;              /* further variables (chat_template_kwargs), or NULL */
    /* variables whose text may contain special tokens (bos_token, …), or NULL; user overrides them */
    const json_t *trusted;
    int add_generation_prompt;
    int continue_final;             /* end the text inside the last message, which the model then continues */
    int64_t now;                    /* seconds since 1970 for strftime_now (local time); 0: the clock */
    int64_t max_steps;              /* 0: 20 million */
    size_t max_bytes;               /* memory for values, 0: 512 MiB; the text may take a quarter of it */
    const struct work_limit *limit; /* ends the rendering early; NULL: steps alone do */
};
struct rendered {
    char *text; /* malloc'd, n bytes and a NUL; valid UTF-8 */
    size_t n;
    struct text_span *user; /* malloc'd: the untrusted spans, ascending, not adjacent */
    size_t n_user;
    struct text_span *model; /* malloc'd, likewise: what blocks {% generation %} wrote */
    size_t n_model;
};

/* The text of the template, n bytes: that for requests with tools, where it is another one. Borrowed. */
const char *template_source(const struct template *t, size_t *n);
/* 1: the template that this request selects has blocks {% generation %}, which mark what a model writes. */
int template_marks_model(const struct template *t, const struct template_request *r);
/* Fills *out on success only; the caller frees it with rendered_free.
 * ERR_USAGE: the request's fault (HTTP 400): the template rejects the messages (raise_exception), a value has
 * the wrong type, or a limit is reached. ERR_MEMORY: out of memory. ERR_STOPPED: r->limit is reached.
 * Messages name the template's line and no path, because clients may see them. */
int template_render(const struct template *t, const struct template_request *r, struct rendered *out,
                    struct err *e);
/* The same from a JSON text: {"messages": […], "tools", "documents", "add_generation_prompt",
 * "continue_final_message", "extra": {…} (user), "bos_token", "eos_token" (trusted)}. Other keys are ignored.
 * ERR_USAGE: not such a text. */
int template_render_json(const struct template *t, const char *json, size_t n, struct rendered *out,
                         struct err *e);
void rendered_free(struct rendered *r); /* allowed on a zeroed struct, and twice */

#endif
