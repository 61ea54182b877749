/* delta.h - the bits that changed between two versions of a set of files: for readers behind slow wires, who
 * have the older one. format/FORMAT.md, "Deltas", specifies the bytes. */
#ifndef SHARDLINE_SERVE_SHARE_DELTA_H
#define SHARDLINE_SERVE_SHARE_DELTA_H

#include "serve/share/versions.h"

/* Writes the delta that makes `to` of `from` into a new memfd. Returns it, the caller closes it; *bytes: its
 * length. Stops where it would not be smaller than most bytes: -1 with e->code 0. ERR_MEMORY, ERR_FILE;
 * ERR_STOPPED soon after *stop is not 0 (NULL: never). Any thread. */
int delta_make(const struct version *from, const struct version *to, int64_t most, const _Atomic int *stop,
               int64_t *bytes, struct err *e);

/* Where the files of the newer version go. create: an empty file to write, a descriptor. done: all bytes of
 * it are there; takes the descriptor, also when it returns an error. */
struct delta_out {
    int (*create)(void *arg, const char *name, struct err *e);
    int (*done)(void *arg, int fd, const char *name, struct err *e);
    void *arg;
};
/* Applies n bytes of a delta to the files of `from`. ERR_FORMAT: it is damaged, or of other files. What it
 * makes is to be verified: a delta of another version gives other bytes. Any thread. */
int delta_apply(const struct version *from, const void *delta, int64_t n, const struct delta_out *out,
                struct err *e);

#endif
