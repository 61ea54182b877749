/* memplan_sim.h - what memplan does with --simulate: the clock of train/simulate/ over its layouts. */
#ifndef SHARDLINE_TOOLS_MEMPLAN_SIM_H
#define SHARDLINE_TOOLS_MEMPLAN_SIM_H

#include "train/simulate/sim_plan.h"

struct memplan_sim {
    const char *name, *trace, *scale; /* options; name NULL: no clock */
    int64_t tokens, sites, slow_stages;
    double save_every_s, slow_speed;
    struct cluster cluster;
};

/* Reads the cluster. ERR_USAGE: an option without --simulate; otherwise as cluster_open(). */
int memplan_sim_open(struct memplan_sim *s, struct err *e);
/* Prints a layout's step, its job, and writes the pictures that are asked for. params: of the model. */
int memplan_sim_show(const struct memplan_sim *s, const struct layout_spec *a, double params, struct err *e);
/* A layout's seconds, MFU and largest loss, for the search. Returns < 0: the clock cannot run it. */
int memplan_sim_judge(const struct memplan_sim *s, const struct layout_spec *a, const struct layout_plan *p,
                      double *step_s, double *mfu, const char **why);

#endif
