/* inbox.c - see inbox.h. */
#include "serve/engine/inbox.h"
#include "base/clock.h"

#include <string.h>
#include <sys/eventfd.h>

void inbox_open(struct inbox *in)
{
    pthread_condattr_t a;
    memset(in, 0, sizeof *in);
    in->end = &in->first;
    in->wake_fd = -1;
    pthread_mutex_init(&in->lock, NULL);
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&in->filled, &a);
    pthread_condattr_destroy(&a);
}

void inbox_close(struct inbox *in)
{
    pthread_mutex_destroy(&in->lock);
    pthread_cond_destroy(&in->filled);
}

static int64_t prompt_tokens(const struct request *rq)
{
    int64_t n = 0;
    for (int i = 0; i < rq->n_prompts; i++)
        n += rq->prompt[i].n;
    return n;
}

int inbox_put(struct inbox *in, struct request *rq)
{
    pthread_mutex_lock(&in->lock);
    int closed = in->closed;
    if (!closed) {
        atomic_fetch_add(&in->n_live, 1);
        atomic_fetch_add(&in->n_live_tokens, prompt_tokens(rq));
        rq->next = NULL;
        *in->end = rq;
        in->end = &rq->next;
        pthread_cond_signal(&in->filled);
        if (in->wake_fd >= 0)
            eventfd_write(in->wake_fd, 1);
    }
    pthread_mutex_unlock(&in->lock);
    return closed ? -1 : 0;
}

struct request *inbox_take(struct inbox *in, int wait_ms)
{
    struct timespec t = clock_in(wait_ms * (SECOND_NS / 1000));
    pthread_mutex_lock(&in->lock);
    while (!in->first && !in->woken && wait_ms && pthread_cond_timedwait(&in->filled, &in->lock, &t) == 0)
        ;
    struct request *first = in->first;
    in->woken = 0;
    in->first = NULL;
    in->end = &in->first;
    pthread_mutex_unlock(&in->lock);
    return first;
}

void inbox_wake(struct inbox *in)
{
    pthread_mutex_lock(&in->lock);
    in->woken = 1;
    pthread_cond_signal(&in->filled);
    if (in->wake_fd >= 0)
        eventfd_write(in->wake_fd, 1);
    pthread_mutex_unlock(&in->lock);
}

void inbox_leave(struct inbox *in, const struct request *rq)
{
    atomic_fetch_sub(&in->n_live, 1);
    atomic_fetch_sub(&in->n_live_tokens, prompt_tokens(rq));
}
