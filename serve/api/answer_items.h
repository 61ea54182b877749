/* answer_items.h - an answer as a list of items: reasoning, text, calls, in the order in which the model
 * wrote them. What /v1/responses calls output items, and /v1/messages content blocks.
 *
 * The list is made of the text byte by byte, so that it is the same however the tokens and the events of a
 * stream cut the text. */
#ifndef SHARDLINE_SERVE_API_ANSWER_ITEMS_H
#define SHARDLINE_SERVE_API_ANSWER_ITEMS_H

#include "serve/api/request.h"

/* Are items noted? Of answers that are lists of them, and of chats whose reasoning is counted. */
int items_are_noted(const struct request *rq);
/* Notes items that have begun since the last call. The answer's parser has just read a byte, or the end. An
 * answer that ends without any gets an empty text. */
void items_note(struct choice *c, struct json_out *o);

struct item_text {
    const char *p;
    size_t n;
};
/* The text of item i as far as it is certain: of a call, its arguments. Borrowed. */
struct item_text item_text(const struct choice *c, size_t i);
/* The name of a call. */
struct item_text item_name(const struct choice *c, size_t i);
/* Is item i complete? */
int item_is_whole(const struct choice *c, size_t i);
/* Tokens [*first, *last) of c->ids that item i consists of, as far as that is certain. Every generated token
 * is in one item: tags are in the reasoning or the call that they enclose, end tokens in the last item. */
void item_tokens(const struct choice *c, size_t i, int64_t *first, int64_t *last);
/* Generated tokens in all items of the kind. */
int64_t items_count_tokens(const struct choice *c, enum item_kind kind);

#endif
