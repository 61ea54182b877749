/* mirror.h - a pshare whose source is another pshare: keeps the newest version of a URL in the memory of this
 * machine, from where its programs read it. Each byte comes over the wire once, and where the other end has
 * deltas (--deltas) only the bits that changed. */
#ifndef SHARDLINE_SERVE_SHARE_MIRROR_H
#define SHARDLINE_SERVE_SHARE_MIRROR_H

#include <signal.h>
#include "serve/share/versions.h"

struct mirror;
/* Makes this process a keeper (store/memory.h) for versions of url, which is borrowed. Requests end soon
 * after *stop is not 0. */
int mirror_open(struct mirror **out, const char *url, const volatile sig_atomic_t *stop, struct err *e);
/* Frees the versions that it keeps. A reader that has one open can still read it. NULL is allowed. */
void mirror_close(struct mirror *r);

/* Bytes of the last version, as they came. */
struct mirror_got {
    int64_t received;
    int64_t from;    /* the step that a delta changed; -1: the files came whole */
    char whole[256]; /* why they came whole where an older version was there: one line; or "" */
};
/* Takes a version newer than `now`, the newest one that this process has (NULL: none). 1: *path is it, every
 * byte verified, until the next call; 0: there is none; or an error, after which `now` is whole. */
int mirror_next(struct mirror *r, const struct version *now, char *path, size_t room, int64_t *step,
                struct mirror_got *got, struct err *e);

#endif
