/* arrival.h - connections whose request does not come to its end: a byte now and then keeps a connection
 * from being idle, not from being cut off.
 *
 * libmicrohttpd closes connections that nothing comes from; what a request may take in all is watched here,
 * by a thread of its own that shuts the socket down (the library sees the end of the stream and closes). A
 * connection is looked at from its beginning, or its last answer, to the last byte of the body; while it is
 * being answered it has all the time. */
#ifndef SHARDLINE_SERVE_HTTP_ARRIVAL_H
#define SHARDLINE_SERVE_HTTP_ARRIVAL_H

#include <pthread.h>
#include "base/err.h"

struct arrival { /* a connection */
    int fd;
    double until_s; /* clock_s when it is cut off; INFINITY: not now */
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
/* limit_s: for a request, from its first line on; idle_s: how long a connection may say nothing before it
 * (the library's own limit). */
int arrivals_open(struct arrivals *a, double limit_s, double idle_s, struct err *e);
void arrivals_close(struct arrivals *a); /* when the library has closed its connections */
/* NULL: no memory; fine in all that follows. */
struct arrival *arrival_new(struct arrivals *a, int fd);
/* the request's first line is there */
void arrival_begin(struct arrivals *a, struct arrival *c);
void arrival_complete(struct arrivals *a, struct arrival *c); /* … and its last byte */
void arrival_answered(struct arrivals *a, struct arrival *c);
void arrival_closed(struct arrivals *a, struct arrival *c); /* before fd is closed */

#endif
