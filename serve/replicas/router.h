/* router.h - which replica computes a request: the one that has most of its beginning in pages, unless that
 * one has clearly more to do.
 *
 *     http -> router_put -> lane 0: inbox -> this process's engine
 *                           lane r: inbox -> link (front.c) -> socket -> replica r (back.c): inbox -> its
 *                           engine
 *
 * What a replica has in pages is not asked for but remembered: the lane that last got a page of 64 tokens
 * behind the pages before it. */
#ifndef SHARDLINE_SERVE_REPLICAS_ROUTER_H
#define SHARDLINE_SERVE_REPLICAS_ROUTER_H

#include "serve/engine/inbox.h"
#include "serve/metrics.h"
#include "serve/weights/reload_command.h"

#define ROUTER_PAGES 32768 /* that are remembered */
#define ROUTER_SLACK 8     /* requests that the better replica may have more than the idlest */

struct lane {
    struct inbox inbox;
    struct order order;
    struct metrics metrics; /* of a replica in another process, as it last told */
};
struct router {
    int n;
    struct lane *lane;    /* [n] */
    pthread_mutex_t lock; /* of what follows */
    /* [ROUTER_PAGES], by chain */
    struct {
        uint64_t chain;
        int lane;
    } * page;
    int next;         /* where looking for the idlest begins */
    _Atomic int busy; /* a reload is being worked on */
};
int router_open(struct router *rt, int n, struct err *e);
void router_close(struct router *rt); /* safe on zeroes */
/* Takes over one reference. 0, or -1: closed (the reference is still the caller's). */
int router_put(struct router *rt, struct request *rq);
int router_choose(struct router *rt, const struct request *rq);
int64_t router_live(const struct router *rt), router_live_tokens(const struct router *rt);
/* Nothing is taken any more, if all lanes are idle (or even when not): 1 then. */
int router_shut(struct router *rt, int even_when_full);

#endif
