/* door_json.h - private to serve/doors: requests of other forms become the body of a chat, as chat.c reads
 * it. After an error a function returns NULL, or -1, and *f is set. */
#ifndef SHARDLINE_SERVE_DOORS_DOOR_JSON_H
#define SHARDLINE_SERVE_DOORS_DOOR_JSON_H

#include <jansson.h>
#include "serve/api/request.h"
#include "serve/service.h"

/* A conversation that grows. */
struct door {
    const struct service *sv;
    const char *param; /* the field that it is read from */
    json_t *messages;  /* of a chat */
    struct fault *f;
};

/* Is v an object, and every member of it known? known ends with NULL; null values and --lenient pass. what:
 * its name in messages, with an index. */
int door_members(const struct door *d, const json_t *v, const char *const *known, const char *what);
/* Sets the fault of what is not supported, or malformed; returns -1. */
int door_fault(const struct door *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int door_no_memory(const struct door *d);

/* A text, or the content of a chat's message: a list of parts {"type":"text","text":…}. v: a text, or a list
 * of objects whose type is one of types, which end with NULL, and whose text is in the member `text`. A new
 * reference. */
json_t *door_content(const struct door *d, const json_t *v, const char *const *types, const char *what);
/* The text of such a content: its parts, a line each. A new reference. */
json_t *door_text(const struct door *d, json_t *content);

/* Appends a message; takes over content, which may be NULL. Returns the message, borrowed. */
json_t *door_message(struct door *d, const char *role, json_t *content);
/* Appends what a tool has answered to the call of this id; takes over content. NULL: what made it has set the
 * fault. */
int door_result(struct door *d, const char *id, json_t *content);
/* The last message if it is the assistant's and has none of the members, else a new one. Borrowed. */
json_t *door_assistant(struct door *d, const char *not_with, const char *nor_with);
/* Appends a call to the calls of a message. */
int door_call(struct door *d, json_t *message, const char *id, const char *name, const json_t *arguments);
/* A tool as chats have it, its members in the order in which templates show them; a new reference. parameters
 * may be NULL. */
json_t *door_tool(const struct door *d, const json_t *tool, const json_t *parameters);
/* The conversation is complete: a message of the assistant's without a text and calls gets an empty text. */
int door_finish(struct door *d);
/* Sets member key of o to v, a new reference that is taken over. */
int door_set(const struct door *d, json_t *o, const char *key, json_t *v);

#endif
