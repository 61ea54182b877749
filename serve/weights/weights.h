/* weights.h - this rank's slices of a checkpoint's weights, read beside the main thread. */
#ifndef SHARDLINE_SERVE_WEIGHTS_WEIGHTS_H
#define SHARDLINE_SERVE_WEIGHTS_WEIGHTS_H

#include "serve/weights/background.h"
#include "serve/weights/model_info.h"

/* Bytes of weights that this rank of m reads. */
int64_t weights_bytes(const struct model *m);
/* l->weights and l->identity out of l's checkpoint, packed for m; host: a CPU that nobody else uses
 * meanwhile. Called in a's thread, on every rank of m->tp; an error is this rank's own (aside.h brings it to
 * the others). progress may be NULL. */
int weights_read(struct background *a, struct model_info *l, struct model *m, struct dev *host,
                 struct load_progress *progress, struct err *e);

#endif
