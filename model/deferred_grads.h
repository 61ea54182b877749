/* deferred_grads.h - inside model/: records of weight gradients that wait for their turn. */
#ifndef SHARDLINE_MODEL_DEFERRED_GRADS_H
#define SHARDLINE_MODEL_DEFERRED_GRADS_H

#include "model/units.h"

/* Adds a record, with a copy of its dy where something overwrites it. */
void deferred_add(struct deferred_grads *d, struct gradient g);
/* A copy of x that lives until the records are made. */
struct mat deferred_copy(struct deferred_grads *d, struct mat x);

#endif
