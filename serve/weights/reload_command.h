/* reload_command.h - what an operator wants of an engine, between two steps: other weights are loaded beside
 * the present ones, and then taken or dropped. One order at a time: given and waited for by a thread of
 * HTTP, taken and answered by the engine's. */
#ifndef SHARDLINE_SERVE_WEIGHTS_RELOAD_COMMAND_H
#define SHARDLINE_SERVE_WEIGHTS_RELOAD_COMMAND_H

#include <pthread.h>
#include "serve/service.h"

enum order_what { ORDER_NONE, ORDER_LOAD, ORDER_SWAP, ORDER_DROP };
#define ORDER_TEXT 3968 /* a path or URL, with its NUL: fits into one step plan */

struct order {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    enum { ORDER_IDLE, ORDER_GIVEN, ORDER_TAKEN, ORDER_ANSWERED } state;
    enum order_what what;
    char text[ORDER_TEXT];
    struct fault fault;   /* the answer: status 0 when it was done */
    char fingerprint[64]; /* of the weights behind ORDER_SWAP */
    int closed;           /* the engine ends: nothing is taken any more */
};
void order_open(struct order *o);
void order_close(struct order *o);
void order_give(struct order *o, enum order_what what, const char *text);
int order_answered(struct order *o); /* order_wait would not wait */
/* Waits for the answer: 0, or -1 with *f. */
int order_wait(struct order *o, char fingerprint[64], struct fault *f);
/* The engine: what is given, or ORDER_NONE; text gets its text. Every order that was taken is answered. */
enum order_what order_take(struct order *o, char text[ORDER_TEXT]);
/* f NULL: done. */
void order_answer(struct order *o, const char *fingerprint, const struct fault *f);
void order_shut(struct order *o); /* every order fails from now on, also the one that waits */

#endif
