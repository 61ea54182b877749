/* connections.h - the open connections: how many there may be, in all and from one address, and by when a
 * request must have arrived (--receive-timeout).
 *
 * libmicrohttpd closes connections that are idle, and at its own limit it accepts no more: a client that
 * sends a byte now and then on many connections locks all others out, an operator's /health too. So here
 *   - a thread watches how long a request takes in all, from its first byte (of a TLS handshake, where that
 *     comes first) to the last byte of its body; not while it is answered. The thread asks the kernel how
 *     many bytes a connection has received, because the library says nothing before the first line is
 *     complete;
 *   - at a limit, a new connection takes the place of the one that has waited longest for its client: a
 *     request that arrives at once is always read. Where all connections are being answered, the new one is
 *     extra: it gets answers that need no work (/health, /metrics), and a 503 for everything else.
 * A connection is closed by shutting its socket down: the library sees the end of the stream. */
#ifndef SHARDLINE_SERVE_HTTP_CONNECTIONS_H
#define SHARDLINE_SERVE_HTTP_CONNECTIONS_H

#include <pthread.h>
#include <sys/socket.h>
#include "base/err.h"
#include "serve/http/body_budget.h"
#include "serve/metrics.h"

#define CONNECTIONS_EXTRA 64 /* beyond the limit, at most */
/* The library's limit is so many above ours: extra ones, and some that it has still to close. */
#define CONNECTIONS_SPARE 256

/* A queue of connections, the oldest first. */
struct connection_queue {
    struct connection *first, **end;
};

/* A client's address: IPv4, or the /64 of IPv6 that usually belongs to one client. */
struct address {
    unsigned char bytes[16]; /* as IPv6 */
    int n_open, n_refs;      /* connections that count, and all that point here */
    struct body_share bodies;
    struct connection_queue waiting; /* for their clients */
    struct address *next, **at;
};

enum connection_state {
    CONNECTION_IDLE,     /* nothing has arrived since it began, or since its last answer */
    CONNECTION_ARRIVING, /* a part of a request, or of a TLS handshake */
    CONNECTION_WORKING   /* the request is complete */
};
struct connection {
    int fd;
    enum connection_state state;
    int is_extra, is_cut;
    double until_s;    /* clock_s() of the deadline; INFINITY: none now */
    uint64_t received; /* bytes, when the state became idle */
    struct address *address;
    struct connection_queue *queue; /* that it stands in: its address's, the extra ones', or NULL */
    struct connection *next, **at;
};

struct connection_limits {
    double receive_s;         /* for a request, from its first byte on; 0: no deadline */
    double idle_s;            /* the library's limit for an idle connection */
    int max, max_per_address; /* max_per_address 0: no limit of its own */
};
struct connections {
    struct connection_limits limits;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t ends;
    struct address *addresses;
    struct connection_queue extra;
    int n_open, n_extra, is_closed;
    struct metrics *metrics;
    pthread_t thread;
};

/* Starts the thread. m, borrowed, counts connections that are closed here; NULL is fine. ERR_MEMORY. */
int connections_open(struct connections *cs, const struct connection_limits *limits, struct metrics *m,
                     struct err *e);
/* Joins the thread, after the library has closed its connections. */
void connections_close(struct connections *cs);

/* The life of a connection; the library's thread. c may be NULL in all others where connection_open() had no
 * memory, and shut the socket down. */
struct connection *connection_open(struct connections *cs, int fd, const struct sockaddr *client);
/* The first line of a request is there; its last byte is; so is the answer, and the next request may come. */
void connection_begin(struct connections *cs, struct connection *c);
void connection_complete(struct connections *cs, struct connection *c);
void connection_answered(struct connections *cs, struct connection *c);
/* Frees c, before fd is closed. */
void connection_closed(struct connections *cs, struct connection *c);

#endif
