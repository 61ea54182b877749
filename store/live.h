/* live.h - which version of a checkpoint a server has now, for a checkpoint that changes while it is read: a
 * trainer publishes one after the other at the same URL (pshare).
 *
 *     GET URL/version                       -> 200 {"version":STEP,"weights_digest":HEX,"etag":TEXT}
 *     GET URL/version?after=STEP&timeout=S  -> the same as soon as there is a newer one; 204: not in time
 *     GET URL/version?after=STEP&hold=1     -> the same, and that version stays while it is read
 *
 * Every file at the URL has that etag; a read of another version is refused (412). */
#ifndef SHARDLINE_STORE_LIVE_H
#define SHARDLINE_STORE_LIVE_H

#include <signal.h>
#include <stdint.h>
#include "base/err.h"

struct live_version {
    int64_t version;
    char digest[33]; /* 32 lower-case hex digits */
};

/* Asks the server at url. after -1: what it has; else a newer one than that, for which it may wait wait_s
 * seconds. 1: *v is set; 0: there is none yet; ERR_FILE: the server cannot be reached, or refuses;
 * ERR_FORMAT: its answer is no version; ERR_STOPPED: *stop is set, soon after. Any thread; a connection of
 * its own. */
int live_version_get(const char *url, int64_t after, int wait_s, const volatile sig_atomic_t *stop,
                     struct live_version *v, struct err *e);

/* The same without a wait, for a reader that may be slower than the trainer: a pshare keeps this version
 * while requests name it, also when there is a newer one. after: the version that the reader has, or -1. */
int live_version_hold(const char *url, int64_t after, const volatile sig_atomic_t *stop,
                      struct live_version *v, struct err *e);

#endif
