/* chats_priv.h - private to text/chats: a line's conversation, the spans of its text that have weights. */
#ifndef SHARDLINE_TEXT_CHATS_PRIV_H
#define SHARDLINE_TEXT_CHATS_PRIV_H

#include <jansson.h>
#include "text/chats.h"

/* An answer: which message, and the weight of its tokens. */
struct answer {
    size_t message;
    float weight;
};
/* A line with messages. The JSON values are borrowed, but `messages`. */
struct conversation {
    json_t *messages;      /* owned: as templates expect them */
    struct answer *answer; /* owned: what the assistant writes */
    size_t n_answers;
    const json_t *tools, *documents, *kwargs; /* NULL: none */
};
/* Bytes [begin, end) of a text, and the weight of their tokens. */
struct chat_span {
    size_t begin, end;
    float weight;
};
/* Ascending. */
struct chat_spans {
    struct chat_span *v;
    size_t n;
};

/* Renders the conversation and finds its answers: by the template's blocks {% generation %}, else by
 * rendering what comes before each answer, and then the answer too. *text: rendered_free(); x->v: free(). */
int chat_render(const struct chat_coder *c, const struct conversation *talk, struct rendered *text,
                struct chat_spans *x, struct err *e);
/* Tokens of a text, and their weights: a token has that of a span in which it has a byte. whole: the text is
 * no chat: with the tokens that the post-processor adds, which have weight 0. */
int chat_tokens_of(const struct tokenizer *t, const struct marked_text *text, const struct chat_spans *x,
                   int whole, struct chat_tokens *out, struct err *e);

#endif
