/* adapter_set.h - the adapters that a rank holds, by slot, and the reading of one more in a background task.
 *
 * Every function but adapter_set_close() is called on all ranks of a replica, in the
 * same order, by their main threads. Between adapter_begin() and adapter_end() the ranks synchronise in
 * adapter_sync(); steps with the other adapters go on meanwhile. */
#ifndef SHARDLINE_SERVE_ADAPTERS_ADAPTER_SET_H
#define SHARDLINE_SERVE_ADAPTERS_ADAPTER_SET_H

#include "serve/adapters/adapter_file.h"
#include "serve/adapters/adapter_limits.h"
#include "serve/weights/background.h"
#include "serve/weights/model_info.h"

struct adapter_slot {
    struct adapter adapter;
    struct resident weights;
    int n_matrices;
    int64_t rank, bytes;
};
struct adapter_set {
    struct adapter_slot *slot[ADAPTERS_MAX + 1]; /* [0]: NULL, the model itself */
    struct model_info *model;                    /* borrowed */
    struct comm *all;                            /* ranks of the replica; borrowed */
    int n_here;                                  /* ranks of this machine that do the same */

    /* the one that is being read: */
    struct background background;
    int running;
    int32_t into;
    struct adapter_slot *fresh;
    struct adapter_file file;
    struct ckpt_digest *seen; /* [tensors of the file] */
    char path[4096];
    double begin_s; /* clock_s() */
};

/* An empty set for a model that is open. Not collective. */
void adapter_set_open(struct adapter_set *s, struct model_info *model, struct comm *all, int n_here);
/* Stops a running task and frees everything. Safe at any time and on zeroes; not collective. */
void adapter_set_close(struct adapter_set *s);

/* Begins to read the adapter at path (folder or URL), for an empty slot. file: it is open already, and is the
 * set's from now on; or NULL. */
void adapter_begin(struct adapter_set *s, int32_t slot, const char *path, struct adapter_file *file);
/* 1: the task has ended on all ranks; 0: not yet; or an error of the transport. Collective. */
int adapter_sync(struct adapter_set *s, struct err *e);
/* After adapter_sync() returned 1. 0: the adapter is in its slot, digest is its. An error is the same on all
 * ranks and leaves everything as it was. Collective. */
int adapter_end(struct adapter_set *s, char digest[ADAPTER_DIGEST_MAX], struct err *e);
/* Frees the adapter of a slot; nothing to do where there is none. */
void adapter_drop(struct adapter_set *s, int32_t slot);
/* Bytes of this rank's parts of a file's adapter, or an error. base: from model_shape() too. */
int64_t adapter_measure(const struct adapter_file *f, const struct model *base, struct err *e);

#endif
