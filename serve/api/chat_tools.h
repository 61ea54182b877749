/* chat_tools.h - private to serve/api: the tools of a chat, and the parts that its answers' texts are
 * divided into: content, reasoning, calls. */
#ifndef SHARDLINE_SERVE_API_CHAT_TOOLS_H
#define SHARDLINE_SERVE_API_CHAT_TOOLS_H

#include <jansson.h>
#include "serve/api/json_out.h"
#include "serve/api/request.h"

/* Reads tools and tool_choice of a chat's body, and decides whether its answers are divided. 0, or -1 with
 * *f. Any thread. */
int tools_read(struct request *rq, const json_t *body, struct fault *f);
/* Checks a list of tools as clients send it. 0, or -1 with *f. */
int tools_check(const json_t *tools, struct fault *f);
/* The tools with a description and parameters where they have none; a new reference. NULL: no memory. */
json_t *tools_described(const json_t *tools);

/* The parts of a choice; the engine's thread. parts_open: 0, or -1: no memory. parts_feed: text up to byte
 * text_end is certain; does nothing where the text is not divided. */
int parts_open(struct choice *c);
void parts_feed(struct choice *c, size_t text_end, struct json_out *o);
int parts_have_calls(const struct choice *c);
/* The id of call number i without its prefix: the same for the same request, another one for another
 * prompt. */
#define CALL_ID_SIZE 25
void parts_call_id(const struct choice *c, size_t i, char id[CALL_ID_SIZE]);
/* Append the members of a message from the content's value on; what is new in a delta. echo: stands before
 * the content. */
void parts_write_message(struct json_out *o, const struct choice *c, const struct json_out *echo);
void parts_write_delta(struct json_out *o, struct choice *c, const struct json_out *echo);

#endif
