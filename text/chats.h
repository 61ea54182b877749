/* chats.h - conversations to train on: a line of JSON becomes tokens and a weight for each of them.
 *
 * A weight multiplies the loss of its token; 0: the loss does not count. Only what an assistant writes has a
 * weight other than 0. The forms of a line and the rules for weights are in text/CHATS.md. */
#ifndef SHARDLINE_TEXT_CHATS_H
#define SHARDLINE_TEXT_CHATS_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "text/carry.h"
#include "text/template.h"
#include "text/text.h"
#include "text/tools.h"

/* Which answers of a conversation have weights. */
enum chat_turns { CHAT_TURNS_ALL, CHAT_TURNS_LAST };

/* How a template shows calls and reasoning. */
struct chat_style {
    struct tool_habits habits;
    struct tool_form form;
};
/* How lines become tokens: borrowed, any number of threads may share it. */
struct chat_coder {
    const struct tokenizer *t;
    const struct template *form;    /* NULL: lines with messages are refused */
    const struct chat_style *style; /* of the form; NULL: messages are rendered as they are */
    enum chat_turns turns;
    int64_t vocab; /* that ids of a line must be below; 0: the tokenizer's */
};
/* Arrays of n, malloc'd. */
struct chat_tokens {
    int32_t *ids;
    float *weight;
    size_t n;
};

/* 1: the file's name ends in .jsonl or .ndjson (.zst may follow). */
int chats_is_lines(const char *path);
/* 1: so it does, and its first line is a conversation that has no text `field` (NULL: whatever else it has).
 * 0: it is not. ERR_FORMAT, without a field alone: the first line begins as an object and is no JSON. */
int chats_is_path(const char *path, const char *field, struct err *e);
/* What --chat-template names, else the template of the tokenizer: a folder, or a token file that carries one.
 * The special tokens are the tokenizer's; *style is the template's. *out: NULL where there is none, which is
 * no error. name: NULL or a file. */
int chats_open_template(struct template **out, struct chat_style *style, const char *name,
                        const char *tokenizer, struct err *e);
void chats_find_style(const struct template *t, struct chat_style *out);
/* Puts the file into *x as chat_template.jinja: what carries *x renders chats with it. ERR_CONFIG: it is no
 * template. */
int chats_carry_template(struct carried *x, const char *file, struct err *e);
/* Fills *out on success only; chat_tokens_free() frees it. ERR_FORMAT: the line is no conversation;
 * ERR_USAGE: the template refuses it, or does not show where an answer begins or ends; ERR_CONFIG: the
 * tokenizer refuses it. */
int chats_encode(const struct chat_coder *c, const char *line, size_t n, struct chat_tokens *out,
                 struct err *e);
void chat_tokens_free(struct chat_tokens *x); /* allowed on a zeroed struct */

#endif
