/* adapters.h - private to reshard/: adapters of PEFT merged into the source of a conversion (format/peft.h),
 * and what cannot be done with an adapter itself. */
#ifndef SHARDLINE_RESHARD_ADAPTERS_H
#define SHARDLINE_RESHARD_ADAPTERS_H

#include "reshard/reshard.h"

/* Adapters that are merged. Zero it first. */
struct adapters {
    int n;
    struct peft_merge **merge; /* they live as long as the source */
};
/* The views that a conversion asks for, in their order: dequantised, adapters merged, quantised. *n_narrow:
 * as quant_views says. log: remarks, or NULL. *src is NULL after an error of format/. Refuses what is asked
 * of an adapter that only a model has. Not collective. */
int source_views(struct ckpt **src, struct adapters *a, int *n_narrow, const struct request *req,
                 struct log *log, struct err *e);
/* After the stream: each adapter must have changed something. Collective over procs. */
int adapters_check(const struct adapters *a, const struct procs *procs, struct err *e);
void adapters_free(struct adapters *a);

#endif
