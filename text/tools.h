/* tools.h - tool calls and reasoning in the text that a model writes.
 *
 * A family is a way to write calls: a row of the table in text/tools/families.c, found by strings of the chat
 * template. A parser takes the text in pieces of any size and gives content, reasoning, and calls with their
 * names and arguments; where the text was cut changes nothing. The other way, tools_history() turns the calls
 * of a conversation's history into what the template expects. text/tools/README.md describes the room. */
#ifndef SHARDLINE_TEXT_TOOLS_H
#define SHARDLINE_TEXT_TOOLS_H

#include <jansson.h>
#include <stddef.h>
#include "base/buf.h"
#include "base/err.h"
#include "base/work_limit.h"

struct tool_family;
struct reasoning_marks;
struct template;

/* What is known of a model's text; NULL: it writes no calls that are known, or no reasoning. */
struct tool_form {
    const struct tool_family *calls;
    const struct reasoning_marks *reasoning;
};
/* The form of the models that a chat template of n bytes is for. */
struct tool_form tools_detect(const char *source, size_t n);
/* The family of this name, or NULL; its name. tools_name(NULL): "none". */
const struct tool_family *tools_find(const char *name);
const char *tools_name(const struct tool_family *f);
/* Writes the names of all families, separated by commas, into out[n]. */
void tools_names(char *out, size_t n);
/* Must the text be parsed where a request has no tools, too? */
int tools_always(const struct tool_form *form);
/* Is the text of a special token part of what a form is written with? Then the parser must see it. */
int tools_reads_token(const struct tool_form *form, const char *token, size_t n);
/* Text number i of those that end a turn of calls, besides the model's end tokens; NULL: there is none. */
const char *tools_stop(const struct tool_family *f, int i);
/* Does a prompt of n bytes, which a template ended, leave the model inside its reasoning? continued: it ends
 * with the beginning of the answer, which the model goes on with. */
int tools_opens_reasoning(const struct tool_form *form, const char *prompt, size_t n, int continued);

/* ---- from the model's text ---- */

/* The tools of a request, by which names are known and values have types. */
struct tool_set;
/* tools: a list of {"type": "function", "function": {"name", "parameters": a JSON schema}}. The set keeps a
 * reference. NULL: no memory. Immutable: any number of parsers may share it. */
struct tool_set *tool_set_open(const json_t *tools);
void tool_set_close(struct tool_set *s); /* NULL is allowed */

struct tool_call {
    struct buf name, arguments; /* arguments: JSON, as far as the model has written it */
};
struct tool_text {
    struct buf content, reasoning;
    struct tool_call *call; /* [n_calls] */
    size_t n_calls, cap;
};
struct tool_parse {
    struct tool_form form; /* calls NULL: calls stay in the content; reasoning NULL: so does reasoning */
    const struct tool_set *tools;
    int in_reasoning; /* the prompt opened the reasoning */
    size_t max_calls; /* later ones are left out; 0: none are */
};
struct tool_parser;
/* One parser belongs to one thread; what *how points to must outlive it. tool_parser_feed() takes the next n
 * bytes of the text; tool_parser_finish() says that there are no more; cut: the answer was too long, so a
 * call may be incomplete. tool_parser_text(): what is certain so far, borrowed; it only grows.
 * 0, or ERR_MEMORY. */
int tool_parser_open(struct tool_parser **out, const struct tool_parse *how, struct err *e);
int tool_parser_feed(struct tool_parser *p, const char *text, size_t n, struct err *e);
int tool_parser_finish(struct tool_parser *p, int cut, struct err *e);
const struct tool_text *tool_parser_text(const struct tool_parser *p);
void tool_parser_close(struct tool_parser *p); /* NULL is allowed */

/* Appends the calls, a list as OpenAI's messages have it, as a model of the family writes them. */
int tools_write(const struct tool_family *f, const json_t *calls, struct buf *out, struct err *e);

/* ---- what the model may write ---- */

struct grammar;
struct grammar_spec;
struct tool_constraint {
    const json_t *tools;               /* the request's */
    const char *name;                  /* only this one may be called, or NULL */
    int required;                      /* there is a call */
    int parallel;                      /* there may be several */
    int in_reasoning;                  /* the prompt opened the reasoning */
    const struct grammar_spec *answer; /* of an answer without calls; NULL: any text */
};
/* The grammar (text/grammar.h) of an answer with calls in this form, form->calls not NULL. Arguments follow
 * the tool's schema. ERR_CONFIG: the schema of a strict tool has a part that is not honoured; the message
 * names tool and keyword. ERR_STOPPED, ERR_MEMORY. */
int tools_grammar(struct grammar **out, const struct tool_form *form, const struct tool_constraint *how,
                  const struct work_limit *limit, struct err *e);
/* The grammar of an answer that follows another grammar behind its reasoning, which it may have. Errors as
 * grammar_open(). */
int tools_grammar_answer(struct grammar **out, const struct tool_form *form, int in_reasoning,
                         const struct grammar_spec *answer, const struct work_limit *limit, struct err *e);

/* ---- into the template ---- */

/* What a template expects of messages with calls, found by rendering small conversations. */
struct tool_habits {
    int shows_calls;       /* it renders tool_calls; else they are written into the content */
    int arguments_object;  /* arguments are an object; else a text */
    int null_content;      /* a message with calls alone has content null; else an empty text */
    int one_call;          /* it renders the first call of a message only */
    int short_ids;         /* ids have 9 letters and digits */
    const char *reasoning; /* the member that it shows as reasoning, or NULL */
};
/* trusted: its special tokens, as in struct template_request. */
void tools_habits(const struct template *t, const json_t *trusted, struct tool_habits *out);
/* Turns a list of messages of OpenAI's form into what the template expects; a new reference. ERR_USAGE: the
 * arguments of a call are no JSON object; ERR_MEMORY. */
json_t *tools_history(const struct tool_habits *h, const struct tool_form *form, const json_t *messages,
                      struct err *e);

#endif
