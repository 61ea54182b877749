/* router.h - which replica computes a request: the one that has most of its beginning in pages, unless
 * another one has clearly less to do.
 *
 *     http -> router_put -> replica 0: inbox -> this process's engine
 *                           replica r: inbox -> link_front.c -> socket -> link_back.c: inbox -> its engine
 *
 * The router does not ask what a replica has in its pages. It remembers, for every page of 64 tokens after
 * the pages before it, the replica that last got it. */
#ifndef SHARDLINE_SERVE_REPLICAS_ROUTER_H
#define SHARDLINE_SERVE_REPLICAS_ROUTER_H

#include "serve/engine/inbox.h"
#include "serve/metrics.h"
#include "serve/weights/reload_command.h"

#define ROUTER_PAGES 32768 /* pages that are remembered */
#define ROUTER_SLACK 8     /* requests that the better replica may have more than the idlest */

struct replica {
    struct inbox inbox;
    struct reload_command reload_command;
    struct metrics metrics; /* of a replica in another process, as it last sent them */
};
struct router {
    int n;
    struct replica *replica; /* [n] */
    pthread_mutex_t lock;    /* of page and next */
    struct {
        uint64_t chain; /* hash of the page and all before it */
        int replica;
    } * page;                 /* [ROUTER_PAGES], by chain */
    int next;                 /* where the search for the idlest begins */
    _Atomic int reloading;    /* a reload is in progress */
    pthread_mutex_t commands; /* held while the replicas do a command; and of ends */
    int ends;                 /* no command is taken any more: the answer of the last one is not waited for */
};

/* A router of n replicas, whose inboxes are open. ERR_MEMORY. router_close() is safe on zeroes; the replicas'
 * threads must have ended. Main thread. */
int router_open(struct router *rt, int n, struct err *e);
void router_close(struct router *rt);
/* Gives rq to the replica that router_choose() chooses. 0: one reference is taken over; -1: the server ends,
 * the reference is still the caller's. Any thread. */
int router_put(struct router *rt, struct request *rq);
/* Has all replicas do the same command, and waits for it. 0 with the answer of the last one, or -1 with the
 * first fault: some may have done it. Any thread; commands wait for each other. */
int router_command(struct router *rt, enum reload_op what, const char *text, char answer[64],
                   struct fault *f);
/* Has the replicas of other processes end a pause, without waiting for it, at the end of the server: later
 * commands fail with 503. 0: not now, another command is in work. The engine's thread of rank 0. */
int router_resume_others(struct router *rt);
/* The number of the replica for rq, which is remembered as the one that has rq's pages. Any thread. */
int router_choose(struct router *rt, const struct request *rq);
/* Requests without an answer yet, and the tokens of their prompts, of all replicas. Any thread. */
int64_t router_live(const struct router *rt), router_live_tokens(const struct router *rt);
/* Closes all inboxes if all replicas are idle, or in any case (force). 1: they are closed. Any thread. */
int router_stop(struct router *rt, int force);

#endif
