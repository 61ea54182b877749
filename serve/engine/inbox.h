/* inbox.h - requests on their way from HTTP to an engine, or to the link that brings them to another
 * process's. */
#ifndef SHARDLINE_SERVE_ENGINE_INBOX_H
#define SHARDLINE_SERVE_ENGINE_INBOX_H

#include <pthread.h>
#include "serve/api/request.h"

struct inbox { /* any thread of its process */
    pthread_mutex_t lock;
    pthread_cond_t filled;
    int wake_fd; /* an eventfd that is told, too, or -1 */
    struct request *first, **end;
    /* requests that were taken and have no answer yet, tokens of their prompts */
    _Atomic int64_t n_live, n_live_tokens;
    int closed; /* nothing is taken any more */
};
void inbox_open(struct inbox *in);
void inbox_close(struct inbox *in);
/* Takes over one reference. 0, or -1: closed, the server ends (the reference is still the caller's). */
int inbox_put(struct inbox *in, struct request *rq);
/* Everything in it; waits up to wait_ms for something to come. */
struct request *inbox_take(struct inbox *in, int wait_ms);
/* A request that was taken has its answer. */
void inbox_leave(struct inbox *in, const struct request *rq);

#endif
