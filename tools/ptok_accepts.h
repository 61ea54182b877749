/* ptok_accepts.h - `ptok accepts`: is a text within a grammar? */
#ifndef SHARDLINE_TOOLS_PTOK_ACCEPTS_H
#define SHARDLINE_TOOLS_PTOK_ACCEPTS_H

#include <jansson.h>
#include "text/grammar.h"

struct accepts_options {
    const char *schema, *regex, *grammar; /* a file, a regex, a file; one of them */
    int compact, in_order;
};
struct accepts {
    struct grammar *g;
    const struct tokenizer *tokenizer; /* or NULL */
    struct token_trie *trie;
};
/* Compiles the grammar of o. tokenizer (borrowed, or NULL): texts are also taken token by token. ERR_USAGE:
 * not one grammar; ERR_CONFIG: it is not honoured; ERR_FILE. accepts_close also after an error. */
int accepts_open(struct accepts *a, const struct accepts_options *o, const struct tokenizer *tokenizer,
                 struct err *e);
/* Puts "accepted" and, where it is false, "at" into out. */
int accepts_text(struct accepts *a, const char *text, size_t n, json_t *out, struct err *e);
void accepts_close(struct accepts *a);

#endif
