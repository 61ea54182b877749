/* response_store.h - the last responses of /v1/responses, in the memory of the process that speaks HTTP, so
 * that a conversation can go on with previous_response_id.
 *
 * Each key sees its own only. Beyond the limits the key that holds most loses the one that it has not used
 * for longest. Any thread. */
#ifndef SHARDLINE_SERVE_DOORS_RESPONSE_STORE_H
#define SHARDLINE_SERVE_DOORS_RESPONSE_STORE_H

#include "serve/api/json_out.h"

#define RESPONSE_ID_MAX 96

struct response_store;
/* An empty store for at most n responses of at most `bytes` together; NULL: no memory. */
struct response_store *response_store_open(int64_t n, int64_t bytes);
void response_store_close(struct response_store *s); /* NULL is allowed */

/* Copies an answer and the list of items before it, both JSON. One of the same key and id is replaced. Where
 * it alone is too large, or there is no memory, it is not kept. s NULL: nothing is kept. */
void response_store_put(struct response_store *s, int key, const char *id, const struct json_out *answer,
                        const char *history);
/* Appends what was kept; history may be NULL. 1, or 0: there is none. */
int response_store_get(struct response_store *s, int key, const char *id, struct json_out *answer,
                       struct json_out *history);
/* 1: it was there, and is no more. */
int response_store_delete(struct response_store *s, int key, const char *id);

#endif
