/* memplan_sim.h - what memplan does with --simulate: the clock of train/simulate/ over its layouts. */
#ifndef SHARDLINE_TOOLS_MEMPLAN_SIM_H
#define SHARDLINE_TOOLS_MEMPLAN_SIM_H

#include "train/simulate/sim_plan.h"

struct memplan_sim {
    const char *name, *trace, *scale, *calibrate; /* options; name NULL: no clock */
    int64_t reshard_nodes, load, prompt, answer;
    double fit_s, first_s;
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

/* Writes a file, whole or not at all; a file of this name is replaced. */
int memplan_write(const char *path, const char *text, size_t n, struct err *e);
/* --fit: finds the cost of kernels of rows with which the layout's step takes this long, and writes it into
 * the cluster's file. ERR_USAGE: none does, or the cluster is a preset. */
int memplan_sim_fit(struct memplan_sim *s, const struct layout_spec *a, struct err *e);
/* --serve-load. ERR_USAGE: no layout carries it. */
int memplan_sim_serve(const struct memplan_sim *s, const struct model_config *c, double params,
                      struct err *e);
/* --calibrate: measures products of the model's shapes and copies on one thread of this machine, and writes a
 * cluster's file. tokens: of a micro-batch. Errors as dev_open() and io_write_file(). */
int memplan_calibrate(const char *path, const struct model_config *cfg, int64_t tokens, struct err *e);

#endif
