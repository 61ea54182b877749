/* relay.h - a page of memory that the first process of a job shares with its ranks on the same machine: they
 * tell each other what the other one's end would lose. */
#ifndef SHARDLINE_COMM_RELAY_H
#define SHARDLINE_COMM_RELAY_H

#include <stddef.h>
#include "base/err.h"

/* The first process: makes zeroed memory that lives as long as this process. ERR_MEMORY. */
int relay_make(void **page, size_t bytes, struct err *e);
/* A rank: the same memory; NULL: the first process made none, or is on another machine. */
void *relay_open(size_t bytes);

#endif
