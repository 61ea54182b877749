/* opt_near.h - what a user meant by a name that does not exist: the nearest name, or the name that another
 * tool has for the same thing. Private to opt. */
#ifndef SHARDLINE_BASE_OPT_OPT_NEAR_H
#define SHARDLINE_BASE_OPT_OPT_NEAR_H

#include "base/opt.h"

/* The error for --name (without its dashes), which p does not have. Returns -ERR_USAGE. */
int opt_unknown_name(const struct opt_program *p, const char *name, struct err *e);

/* The error for an option with one dash ("-m"). Returns -ERR_USAGE. */
int opt_unknown_short(const struct opt_program *p, const char *arg, struct err *e);

#endif
