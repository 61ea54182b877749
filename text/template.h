/* template.h - chat templates: messages to the text that a model was trained on.
 *
 * A template is Jinja, as transformers renders it (ImmutableSandboxedEnvironment with trim_blocks,
 * lstrip_blocks, loop controls and the json filter of Python); what is supported is listed in
 * text/TEMPLATES.md. A template is read once and never changes: any number of threads may render it at once.
 * Rendering ends: steps, memory, output and depth have limits.
 *
 * Text that came from outside stays known: rendering gives the spans of the text that were taken from
 * messages, tools, documents and user variables, and tokenizer_encode_marked (text.h) reads special tokens
 * written there as plain text. */
#ifndef SHARDLINE_TEXT_TEMPLATE_H
#define SHARDLINE_TEXT_TEMPLATE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "text/text.h"

struct template;

/* text, n: a template (UTF-8). what: where it came from, for messages. May be freed afterwards.
 * ERR_CONFIG: no template; the message names what, line and the reason. */
int template_open(struct template **out, const char *text, size_t n, const char *what, struct err *e);
/* From a model's folder: DIR/chat_template.jinja, else chat_template of DIR/tokenizer_config.json, a text or
 * a list of named ones (then "default", and "tool_use" where tools are given). bos_token, eos_token and the
 * other special tokens of tokenizer_config.json become variables of every rendering. Returns 1: opened, 0:
 * the folder has no template (*out is NULL).
 * name: one of the named templates (DIR/additional_chat_templates/NAME.jinja too), NULL: as above;
 * ERR_CONFIG: no such name. */
int template_open_dir(struct template **out, const char *dir, const char *name, struct err *e);
void template_close(struct template *t); /* NULL is fine */

struct template_request {
    /* a list of objects; all values are lent for the call and never changed */
    const json_t *messages;
    const json_t *tools, *documents; /* NULL: none */
    const json_t *user;              /* further variables (chat_template_kwargs), or NULL */
    /* variables whose text may hold special tokens (bos_token …), or NULL; user ones win */
    const json_t *trusted;
    int add_generation_prompt;
    /* the text ends inside the last message, which the model goes on with */
    int continue_final;
    /* seconds since 1970 for strftime_now (local time); 0: the clock */
    int64_t now;
    int64_t max_steps; /* 0: 20 million */
    /* memory for values, 0: 512 MiB; the text may have a quarter of it */
    size_t max_bytes;
};
struct rendered {
    char *text; /* malloc'd, one NUL behind n bytes; valid UTF-8 */
    size_t n;
    struct text_span *user; /* malloc'd: what came from outside; ascending, not touching */
    size_t n_user;
};

/* ERR_USAGE: the template refuses these messages (raise_exception) or cannot work with them (a wrong type, a
 * limit): a request's fault, HTTP 400. ERR_MEMORY: no memory. Messages name the line (no path: a client may
 * see them). *out is filled on success only. */
int template_render(const struct template *t, const struct template_request *r, struct rendered *out,
                    struct err *e);
/* The same from a JSON text: {"messages": […], "tools", "documents", "add_generation_prompt",
 * "continue_final_message", "extra": {…} (user), "bos_token", "eos_token" (trusted)}; further keys are
 * passed over. ERR_USAGE: not that. */
int template_render_json(const struct template *t, const char *json, size_t n, struct rendered *out,
                         struct err *e);
void rendered_free(struct rendered *r); /* safe on zeroes, and twice */

#endif
