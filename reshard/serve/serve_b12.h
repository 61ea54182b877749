/* serve_b12.h - private to reshard/: which packs can be stored in 12 bits. */
#ifndef SHARDLINE_RESHARD_SERVE_B12_H
#define SHARDLINE_RESHARD_SERVE_B12_H

#include "reshard/serve/serve_plan.h"

/* Reads the matrices of the packs of bf16, as the target has them, and stores those in 12 bits that fit:
 * every leaf of a panel has room for its escapes, and a pack has at most one in 200 values. Adds up in
 * s->narrow. ERR_USAGE: there is no pack of bf16. */
int serve_b12_choose(struct plan *p, struct serve_plan *s, struct err *e);

#endif
