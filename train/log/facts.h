/* facts.h - what a run is, for a reader: lines at the start, and the first line of --log. Rank 0 only. */
#ifndef SHARDLINE_TRAIN_FACTS_H
#define SHARDLINE_TRAIN_FACTS_H

#include <stdio.h>
#include "base/log.h"
#include "train/work.h"

struct facts {
    const struct work *work;
    double params;          /* of the model */
    double bytes[MEM_CATS]; /* planned memory of a rank of the fullest pipeline stage */
    double total_bytes;     /* their sum */
};

/* w is open; borrowed. sharers: dp ranks that share this machine's memory. ERR_USAGE, ERR_MEMORY. */
int facts_collect(struct facts *f, const struct work *w, int sharers, struct err *e);
/* Three lines on term: the model; layout, numbers, device and memory; steps and tokens. */
void facts_show(const struct facts *f, struct log *term);
/* {"event":"run",…} without its closing brace. */
void facts_write(const struct facts *f, FILE *out);

#endif
