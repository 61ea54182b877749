/* router.h - which replica computes a request: the one that has most of its beginning in pages, unless that
 * one has clearly more to do.
 *
 *     http -> router_put -> replica 0: inbox -> this process's engine
 *                           replica r: inbox -> link (front.c) -> socket -> replica r (back.c): inbox -> its
 *                           engine
 *
 * What a replica has in pages is not asked for but remembered: the replica that last got a page of 64 tokens
 * behind the pages before it. */
#ifndef SHARDLINE_SERVE_REPLICAS_ROUTER_H
#define SHARDLINE_SERVE_REPLICAS_ROUTER_H

#include "serve/engine/inbox.h"
#include "serve/metrics.h"
#include "serve/weights/reload_command.h"

#define ROUTER_PAGES 32768 /* that are remembered */
#define ROUTER_SLACK 8     /* requests that the better replica may have more than the idlest */

struct replica {
    struct inbox inbox;
    struct reload_command reload_command;
    struct metrics metrics; /* of a replica in another process, as it last told */
};
struct router {
    int n;
    struct replica *replica; /* [n] */
    pthread_mutex_t lock;    /* of what follows */
    /* [ROUTER_PAGES], by chain */
    struct {
        uint64_t chain;
        int replica;
    } * page;
    int next;              /* where looking for the idlest begins */
    _Atomic int reloading; /* a reload is being worked on */
};
int router_open(struct router *rt, int n, struct err *e);
void router_close(struct router *rt); /* safe on zeroes */
/* Takes over one reference. 0, or -1: closed (the reference is still the caller's). */
int router_put(struct router *rt, struct request *rq);
int router_choose(struct router *rt, const struct request *rq);
int64_t router_live(const struct router *rt), router_live_tokens(const struct router *rt);
/* Nothing is taken any more, if all replicas are idle (or even when not): 1 then. */
int router_stop(struct router *rt, int force);

#endif
