/* inbox.h - a queue of requests on their way from HTTP to an engine, or to the link to another process's
 * engine. */
#ifndef SHARDLINE_SERVE_ENGINE_INBOX_H
#define SHARDLINE_SERVE_ENGINE_INBOX_H

#include <pthread.h>
#include "serve/api/request.h"

struct inbox {
    pthread_mutex_t lock; /* of first, end, closed and woken */
    pthread_cond_t filled;
    int wake_fd; /* an eventfd that is written to when a request comes, or -1 */
    struct request *first, **end;
    _Atomic int64_t n_live, n_live_tokens; /* requests without an answer yet; tokens of their prompts */
    int closed;                            /* 1: no request is accepted any more */
    int woken;                             /* 1: the next inbox_take() does not wait */
};

/* An empty, open inbox. inbox_close() frees the lock when no thread uses it any more. */
void inbox_open(struct inbox *in);
void inbox_close(struct inbox *in);
/* Adds rq. 0: one reference is taken over; -1: the inbox is closed, the reference is still the caller's. Any
 * thread. */
int inbox_put(struct inbox *in, struct request *rq);
/* Takes everything out, a list by `next`, with its references; waits up to wait_ms milliseconds for a first
 * request. NULL: none came. The engine's or the link's thread. */
struct request *inbox_take(struct inbox *in, int wait_ms);
/* There is something else to do: a taker that waits, or the next one, returns at once. Any thread. */
void inbox_wake(struct inbox *in);
/* A request that was taken has its answer: it does not count as live any more. */
void inbox_leave(struct inbox *in, const struct request *rq);

#endif
