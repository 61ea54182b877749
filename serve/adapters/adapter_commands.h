/* adapter_commands.h - adapters loaded into a running server and taken away, on all replicas or on none. In
 * the process that speaks HTTP; any thread, but for open and close. */
#ifndef SHARDLINE_SERVE_ADAPTERS_ADAPTER_COMMANDS_H
#define SHARDLINE_SERVE_ADAPTERS_ADAPTER_COMMANDS_H

#include "serve/adapters/adapter_names.h"
#include "serve/replicas/router.h"

/* A thread that frees withdrawn adapters on all ranks when their last request has ended. */
struct adapter_reaper;
/* Starts it; both are borrowed. ERR_MEMORY. */
int adapter_reaper_open(struct adapter_reaper **r, struct adapter_names *names, struct router *rt,
                        struct err *e);
/* Ends it; the engines take no commands any more. NULL is fine. */
void adapter_reaper_close(struct adapter_reaper *r);

/* Loads the adapter at path on all replicas, and publishes it under its name. replaces: one that has the name
 * is withdrawn then. Blocks until that is done. 0, or -1 with *f: nothing has changed. */
int adapter_load(struct adapter_names *names, struct router *rt, const char *name, const char *path,
                 int replaces, struct fault *f);

#endif
