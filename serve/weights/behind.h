/* behind.h - packs that are made anew while the server answers: of the same weights, in other memory or
 * another kind. A thread makes them, and the main thread switches to each between two steps. Since every kind
 * gives the same bits, no answer shows when that was. */
#ifndef SHARDLINE_SERVE_WEIGHTS_BEHIND_H
#define SHARDLINE_SERVE_WEIGHTS_BEHIND_H

#include <signal.h>
#include "model/model.h"

struct behind;

/* Makes other panels of a unit's pack: *made, in *memory of dev_alloc. now: the present ones. *stop: not 0
 * when it must end soon. Called in the thread, for every pack in the order of use. 1: made; 0: the pack stays
 * as it is; or an error. */
typedef int (*behind_make)(void *ctx, int unit, int pack, const struct panels *now, struct panels *made,
                           void **memory, const volatile sig_atomic_t *stop, struct err *e);

/* Starts the thread, which calls make for the packs of r (borrowed). *out is owned by the caller. Main
 * thread, not collective. */
int behind_open(struct behind **out, struct resident *r, behind_make make, void *ctx, struct err *e);
/* Puts what is ready into r, between two steps; cheap where nothing is. An error of make. Main thread. */
int behind_switch(struct behind *b, struct err *e);
/* Stops the thread and frees what was not switched to. NULL: nothing. Main thread. */
void behind_close(struct behind *b);

#endif
