/* link.h - replicas in processes of their own: the front sends them requests and passes on what they answer.
 *
 * Rank 0 is the front; the first rank of every further tp group connects to it through a socket in a folder
 * of its own, which is gone when all are there. A thread at each end; the engines know nothing of it. */
#ifndef SHARDLINE_SERVE_REPLICAS_LINK_H
#define SHARDLINE_SERVE_REPLICAS_LINK_H

#include "comm/comm.h"
#include "serve/replicas/router.h"

struct link_front; /* threads of replicas 1 … */
/* Collective over all; the front gets *f, the others' first ranks *fd, a socket to it (else -1). replica: of
 * this rank; first: of its group. */
int link_open(struct link_front **f, int *fd, struct comm *all, int replica, int first, struct router *rt,
              struct service *sv, struct err *e);
/* Lets the replicas end; requests that are still there get a 503. NULL is fine. */
void link_front_close(struct link_front *f);

struct link_back;
/* The other end: requests go into rt's only replica; when the front says so, or is gone, the state becomes
 * draining. fd is taken over. */
int link_back_open(struct link_back **b, int fd, struct router *rt, struct service *sv, struct err *e);
void link_back_close(struct link_back *b); /* the engine has ended; NULL is fine */

#endif
