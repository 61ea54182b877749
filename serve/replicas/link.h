/* link.h - connections between rank 0, which speaks HTTP, and replicas in other processes: requests go out,
 * what the replicas answer comes back.
 *
 * Rank 0 is the front end; the first rank of every further tp group connects to it through a Unix socket in a
 * temporary folder, which is removed when all have connected. Each end has a thread of its own; the engines
 * see ordinary requests in their inboxes. */
#ifndef SHARDLINE_SERVE_REPLICAS_LINK_H
#define SHARDLINE_SERVE_REPLICAS_LINK_H

#include "comm/comm.h"
#include "serve/replicas/router.h"

struct link_front; /* rank 0's end: a thread for each of the replicas 1 … */
struct link_back;  /* a replica's end */

/* Connects all replicas. On rank 0: *f gets the front end, whose threads pass the requests of rt's replicas 1
 * … on. On the first rank of every other group: *fd gets a socket to it, for link_back_open(). Elsewhere NULL
 * and -1. replica: the number of this rank's group; first: this rank is its first. ERR_PEER: a replica does
 * not connect within 10 s; ERR_MEMORY; ERR_INTERNAL. Collective over all. */
int link_open(struct link_front **f, int *fd, struct comm *all, int replica, int first, struct router *rt,
              struct err *e);
/* Tells the replicas to end; requests that have no answer yet get a 503. Frees f; NULL is fine. Main
 * thread. */
void link_front_close(struct link_front *f);

/* The replica's end. Requests from fd go to the only replica of rt; when the front end tells it to stop or
 * has disconnected, the state becomes draining. fd is owned by *b from now on, also after an error.
 * ERR_MEMORY. */
int link_back_open(struct link_back **b, int fd, struct router *rt, struct service *sv, struct err *e);
/* Joins the thread and frees b, after the engine has ended; NULL is fine. Main thread. */
void link_back_close(struct link_back *b);

#endif
