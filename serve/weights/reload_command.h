/* reload_command.h - what an operator wants of an engine, between two steps: other weights are loaded beside
 * the present ones, and then taken or dropped. One order at a time: given and waited for by a thread of
 * HTTP, taken and answered by the engine's. */
#ifndef SHARDLINE_SERVE_WEIGHTS_RELOAD_COMMAND_H
#define SHARDLINE_SERVE_WEIGHTS_RELOAD_COMMAND_H

#include <pthread.h>
#include "serve/service.h"

enum reload_op { RELOAD_NONE, RELOAD_LOAD, RELOAD_SWAP, RELOAD_DROP };
#define RELOAD_PATH_MAX 3968 /* a path or URL, with its NUL: fits into one step plan */

struct reload_command {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    enum { COMMAND_IDLE, COMMAND_POSTED, COMMAND_TAKEN, COMMAND_ANSWERED } state;
    enum reload_op what;
    char text[RELOAD_PATH_MAX];
    struct fault fault;   /* the answer: status 0 when it was done */
    char fingerprint[64]; /* of the weights behind RELOAD_SWAP */
    int closed;           /* the engine ends: nothing is taken any more */
};
void reload_command_open(struct reload_command *o);
void reload_command_close(struct reload_command *o);
void reload_command_post(struct reload_command *o, enum reload_op what, const char *text);
int reload_command_is_answered(struct reload_command *o); /* reload_command_wait would not wait */
/* Waits for the answer: 0, or -1 with *f. */
int reload_command_wait(struct reload_command *o, char fingerprint[64], struct fault *f);
/* The engine: what is given, or RELOAD_NONE; text gets its text. Every order that was taken is answered. */
enum reload_op reload_command_take(struct reload_command *o, char text[RELOAD_PATH_MAX]);
/* f NULL: done. */
void reload_command_answer(struct reload_command *o, const char *fingerprint, const struct fault *f);
void reload_command_disable(
    struct reload_command *o); /* every order fails from now on, also the one that waits */

#endif
