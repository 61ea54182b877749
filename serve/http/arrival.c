/* arrival.c - see arrival.h. */
#include "serve/http/arrival.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "base/clock.h"
#include "base/log.h"

#define CHECKS 8        /* of the deadlines, in the time of the limit */
#define CHECK_MAX_S 1.0 /* between two of them at most */

/* Shuts down the connections whose deadline has passed. */
static void cut_off(struct arrivals *a)
{
    double now = clock_s();
    for (struct arrival *c = a->first; c; c = c->next)
        if (c->until_s <= now) {
            c->until_s = INFINITY;
            shutdown(c->fd, SHUT_RDWR);
        }
}

static void *watch(void *arg)
{
    struct arrivals *a = arg;
    double each_s = a->limit_s / CHECKS < CHECK_MAX_S ? a->limit_s / CHECKS : CHECK_MAX_S;
    struct timespec t;
    pthread_mutex_lock(&a->lock);
    while (!a->closed) {
        t = clock_in((int64_t)(each_s * 1e9));
        pthread_cond_timedwait(&a->ends, &a->lock, &t);
        cut_off(a);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

int arrivals_open(struct arrivals *a, double limit_s, double idle_s, struct err *e)
{
    pthread_condattr_t how;

    memset(a, 0, sizeof *a);
    a->limit_s = limit_s;
    a->idle_s = idle_s;
    if (limit_s <= 0)
        return 0;
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_cond_init(&a->ends, &how);
    pthread_condattr_destroy(&how);
    if (pthread_create(&a->thread, NULL, watch, a) == 0)
        return 0;
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->ends);
    a->limit_s = 0;
    return err_set(e, ERR_MEMORY, "no thread for watching connections: raise the limit of processes");
}

void arrivals_close(struct arrivals *a)
{
    if (a->limit_s <= 0)
        return;
    pthread_mutex_lock(&a->lock);
    a->closed = 1;
    pthread_cond_signal(&a->ends);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->ends);
    a->limit_s = 0;
}

struct arrival *arrival_new(struct arrivals *a, int fd)
{
    struct arrival *c = a->limit_s > 0 ? calloc(1, sizeof *c) : NULL;
    if (!c)
        return NULL;
    c->fd = fd;
    c->until_s = clock_s() + a->idle_s + a->limit_s;
    pthread_mutex_lock(&a->lock);
    c->next = a->first;
    c->at = &a->first;
    if (c->next)
        c->next->at = &c->next;
    a->first = c;
    pthread_mutex_unlock(&a->lock);
    return c;
}

/* Sets a connection's deadline. */
static void set(struct arrivals *a, struct arrival *c, double until_s)
{
    if (!c)
        return;
    pthread_mutex_lock(&a->lock);
    c->until_s = until_s;
    pthread_mutex_unlock(&a->lock);
}

void arrival_begin(struct arrivals *a, struct arrival *c) { set(a, c, clock_s() + a->limit_s); }
void arrival_complete(struct arrivals *a, struct arrival *c) { set(a, c, INFINITY); }
void arrival_answered(struct arrivals *a, struct arrival *c)
{
    set(a, c, clock_s() + a->idle_s + a->limit_s);
}

void arrival_closed(struct arrivals *a, struct arrival *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&a->lock);
    *c->at = c->next;
    if (c->next)
        c->next->at = c->at;
    pthread_mutex_unlock(&a->lock);
    free(c);
}
