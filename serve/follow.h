/* follow.h - --follow: a thread that takes every newer version of a checkpoint that a trainer publishes.
 *
 * It asks the URL for a version newer than the one that is served (store/live.h), and has all replicas reload
 * it. A version that changes while it is read is begun again; one that is refused is tried again, after a
 * longer pause each time; so is a URL that cannot be reached, because trainers end and begin. One line of the
 * log a version, and one when the URL stops answering and when it answers again. */
#ifndef SHARDLINE_SERVE_FOLLOW_H
#define SHARDLINE_SERVE_FOLLOW_H

#include "serve/replicas/reload_all.h"
#include "serve/service.h"

struct follow;

/* Starts the thread, on rank 0. url, and the rest, are borrowed and outlive it. ERR_MEMORY. Main thread. */
int follow_open(struct follow **out, const char *url, enum reload_mode mode, struct service *sv,
                struct router *rt, struct err *e);
/* Tells the thread to end. NULL is fine. Any thread. */
void follow_stop(struct follow *f);
/* Joins it, after the engines have ended; frees f. NULL is fine. Main thread. */
void follow_close(struct follow *f);

#endif
