/* ranks.h - the ranks of the job, and this rank's place and device. */
#ifndef SHARDLINE_TRAIN_RANKS_H
#define SHARDLINE_TRAIN_RANKS_H

#include "base/log.h"
#include "base/trace.h"
#include "comm/comm.h"
#include "model/params.h"
#include "train/train_options.h"

struct ranks {
    struct mem mem;
    struct dev *dev;
    struct world *world;
    struct mesh mesh;
    struct comm *ep, *edp; /* ranks that divide the experts; ranks that hold the same ones. NULL: ep is 1 */
    struct comm *dp_cp;    /* NULL: cp is 1 */
    struct layout layout;
    struct trace *trace; /* --trace, else NULL */
};

/* Starts the ranks where no launcher did (the parent process never returns), opens device, world and mesh,
 * and `term`, which prints on rank 0 only. given: as opt_parse() filled it. With --dry-run, where no
 * launcher started this process, the mesh has one rank and `layout` is the planned one. *r zeroed before;
 * ranks_close() also after an error. ERR_USAGE: the number of ranks is not a multiple of tp x pp x cp. */
int ranks_open(struct ranks *r, const struct train_opts *o, const unsigned char *given, char **argv,
               struct log *term, struct err *e);
void ranks_close(struct ranks *r);

/* The layout that options name, with dp ranks for data. */
struct layout ranks_layout(const struct train_opts *o, int dp);

/* The ranks that divide dense parameters: those of dp and cp, cp fastest. */
static inline struct comm *ranks_zero(const struct ranks *r)
{
    return r->dp_cp ? r->dp_cp : r->mesh.axis[AXIS_DP];
}

static inline int ranks_is_first(const struct ranks *r) { return world_rank(r->world) == 0; }

#endif
