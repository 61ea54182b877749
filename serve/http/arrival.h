/* arrival.h - the deadline for a request to arrive (--receive-timeout): a client that sends a byte now and
 * then keeps its connection from being idle, but not from being disconnected.
 *
 * libmicrohttpd closes idle connections only. A thread of this file watches how long a request takes in all,
 * and shuts the socket down at the deadline (the library sees the end of the stream and closes the
 * connection). The time counts from the start of the connection, or its last answer, to the last byte of the
 * body; not while it is answered. */
#ifndef SHARDLINE_SERVE_HTTP_ARRIVAL_H
#define SHARDLINE_SERVE_HTTP_ARRIVAL_H

#include <pthread.h>
#include "base/err.h"

struct arrival { /* of one connection */
    int fd;
    double until_s; /* clock_s() of the deadline; INFINITY: none now */
    struct arrival *next, **at;
};
struct arrivals {
    double limit_s, idle_s;
    pthread_mutex_t lock;
    pthread_cond_t ends;
    struct arrival *first;
    int closed;
    pthread_t thread;
};

/* Starts the thread. limit_s: for a request, from its first line on; 0: no deadline, all that follows does
 * nothing. idle_s: the library's own limit for an idle connection before it. ERR_MEMORY. */
int arrivals_open(struct arrivals *a, double limit_s, double idle_s, struct err *e);
/* Joins the thread, after the library has closed its connections. Safe after a failed arrivals_open(). */
void arrivals_close(struct arrivals *a);

/* The life of a connection; the library's thread. arrival_new: it has begun; NULL (no memory, no deadline) is
 * fine in all others. arrival_begin: the first line of a request is there. arrival_complete: its last byte is
 * there. arrival_answered: so is the answer, the next request may come. arrival_closed: frees c, before fd is
 * closed. */
struct arrival *arrival_new(struct arrivals *a, int fd);
void arrival_begin(struct arrivals *a, struct arrival *c);
void arrival_complete(struct arrivals *a, struct arrival *c);
void arrival_answered(struct arrivals *a, struct arrival *c);
void arrival_closed(struct arrivals *a, struct arrival *c);

#endif
