/* reload_command.h - a command of an operator for one engine, run between two steps: load other weights, swap
 * them in, or drop them; load an adapter, or free one. One command at a time: a
 * thread of HTTP posts it and waits, the engine's thread takes and answers it. */
#ifndef SHARDLINE_SERVE_WEIGHTS_RELOAD_COMMAND_H
#define SHARDLINE_SERVE_WEIGHTS_RELOAD_COMMAND_H

#include <pthread.h>
#include "serve/service.h"

enum reload_op {
    RELOAD_NONE,
    RELOAD_LOAD,
    RELOAD_SWAP,
    RELOAD_DROP,
    RELOAD_ADAPTER,      /* text: "SLOT PATH"; the answer is the adapter's digest */
    RELOAD_ADAPTER_DROP, /* text: "SLOT" */
    RELOAD_PAUSE,        /* text: a mode (reload_order.h); answered when it is complete */
    RELOAD_RESUME
};
#define RELOAD_PATH_MAX 3968 /* bytes of a path or URL with its NUL: fits into one step message */

struct reload_command {
    pthread_mutex_t lock; /* of everything here */
    pthread_cond_t answered;
    enum { COMMAND_IDLE, COMMAND_POSTED, COMMAND_TAKEN, COMMAND_ANSWERED } state;
    enum reload_op what;
    char text[RELOAD_PATH_MAX]; /* with RELOAD_LOAD: the order (reload_order.h); RELOAD_SWAP: a mode; of
                                 * adapters: see above */
    struct fault fault;         /* the answer: status 0 when it was done */
    char fingerprint[64];       /* of the weights after RELOAD_SWAP; the digest of an adapter */
    int closed;                 /* the engine ends: no command is taken any more */
};

/* Initialises and frees the lock; no thread may wait any more. */
void reload_command_open(struct reload_command *o);
void reload_command_close(struct reload_command *o);

/* The caller's side, one thread at a time. post: gives the command what, with its text. is_answered: 1 when
 * wait would not block. wait: blocks until the answer; 0, or -1 with *f; fingerprint is set in both cases. */
void reload_command_post(struct reload_command *o, enum reload_op what, const char *text);
int reload_command_is_answered(struct reload_command *o);
int reload_command_wait(struct reload_command *o, char fingerprint[64], struct fault *f);

/* The engine's side, one thread. take: the posted command, whose text is copied to text, or RELOAD_NONE;
 * every command that was taken must be answered. answer: f NULL when it was done. disable: every command
 * fails with 503 from now on, also the one that is waited for. */
enum reload_op reload_command_take(struct reload_command *o, char text[RELOAD_PATH_MAX]);
void reload_command_answer(struct reload_command *o, const char *fingerprint, const struct fault *f);
void reload_command_disable(struct reload_command *o);

#endif
