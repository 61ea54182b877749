/* weights.h - this rank's slices of a checkpoint's weights, read beside the main thread. */
#ifndef SHARDLINE_SERVE_WEIGHTS_WEIGHTS_H
#define SHARDLINE_SERVE_WEIGHTS_WEIGHTS_H

#include "serve/weights/background.h"
#include "serve/weights/model_info.h"

/* Bytes of weights that this rank of m reads, in the dtype of arithmetic. */
int64_t weights_bytes(const struct model *m);
/* Reads l->weights from l's checkpoint, packed for m. host: a CPU that no other thread uses meanwhile.
 * progress: counts the bytes that are there; may be NULL. In the thread of background task a, on every rank
 * of m->tp (it makes collective calls). An error is this rank's own; a brings it to the others. */
int weights_read(struct background *a, struct model_info *l, struct model *m, struct dev *host,
                 struct load_progress *progress, struct err *e);
/* The weights_digest of l's checkpoint: all of its weights that the model has, read by this thread. Any
 * thread; not collective. ERR_STOPPED: *stop is set. */
int weights_digest(const struct model_info *l, const volatile sig_atomic_t *stop, struct ckpt_digest *out,
                   struct err *e);
/* After weights_read: sets l->identity (the weights_digest), unless l->late.digest is set. all: the ranks
 * of the replica. ERR_CONFIG: their files list other tensors, or store digests of other values. Main thread,
 * collective over all; an error is the same on all. */
int weights_identify(struct model_info *l, const struct model *m, struct comm *all, struct err *e);

#endif
