/* reload_all.h - a reload of all replicas: every one reads the weights beside its own; when all have, each
 * swaps them in between two steps; when one refuses, all keep what they have. */
#ifndef SHARDLINE_SERVE_REPLICAS_RELOAD_ALL_H
#define SHARDLINE_SERVE_REPLICAS_RELOAD_ALL_H

#include "serve/replicas/router.h"
#include "serve/weights/reload_order.h"

struct reload_times {
    double read_s, swap_s; /* until all had read them; until all had swapped */
};

/* Blocks until it is done: any thread but the library's of HTTP and the engine's. 0: fingerprint is the new
 * weights'; or -1 with *f (409: another reload is running). */
int reload_all(struct router *rt, const struct reload_order *o, char fingerprint[64], struct reload_times *t,
               struct fault *f);

#endif
