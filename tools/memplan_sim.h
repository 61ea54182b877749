/* memplan_sim.h - what memplan does with --simulate: the clock of train/simulate/ over its layouts. */
#ifndef SHARDLINE_TOOLS_MEMPLAN_SIM_H
#define SHARDLINE_TOOLS_MEMPLAN_SIM_H

#include "train/simulate/sim_plan.h"

struct memplan_sim {
    const char *name, *ops, *trace, *scale, *memory_out, *calibrate; /* options; name NULL: no clock */
    const char *second_name;
    int64_t second_gpus;
    int64_t reshard_nodes, load, prompt, answer;
    double fit_s, first_s;
    int64_t tokens, sites, slow_stages;
    double save_every_s, slow_speed;
    struct cluster cluster, second;
    double memory, second_memory; /* of a device of either kind */
};

/* Reads the clusters and --ops, kernels of this dtype and length of sequence. ERR_USAGE: an option without
 * --simulate; otherwise as cluster_open() and memplan_ops_read(). */
int memplan_sim_open(struct memplan_sim *s, enum sim_dtype dtype, int64_t seq_len, struct err *e);
/* --ops: the kernels of a trace of ptrain replace the measured calls of *c. ERR_FORMAT: it is none. */
int memplan_ops_read(struct cluster *c, const char *path, enum sim_dtype dtype, int64_t seq_len,
                     struct err *e);
/* Prints a layout's step, its job, and writes the pictures that are asked for. params: of the model. */
int memplan_sim_show(const struct memplan_sim *s, const struct layout_spec *a, double params, struct err *e);
/* A layout's seconds, MFU and largest loss, for the search. Returns < 0: the clock cannot run it. */
int memplan_sim_judge(const struct memplan_sim *s, const struct layout_spec *a, const struct layout_plan *p,
                      double *step_s, double *mfu, const char **why);

/* Whether it fits the devices of both kinds, whose stages have more or fewer layers than the plan's. */
int memplan_sim_fits(const struct memplan_sim *s, const struct layout_spec *a, const struct layout_plan *p);
/* --memory-out: layouts of a search, best first. */
struct sim_bar;
int memplan_sim_memory(const struct memplan_sim *s, const struct sim_bar *bar, int n, struct err *e);

/* Writes a file, whole or not at all; a file of this name is replaced. */
int memplan_write(const char *path, const char *text, size_t n, struct err *e);
/* --fit: finds how many times its measured calls a step takes (without any: the cost of kernels of rows) with
 * which the layout's step takes this long, and writes it into the cluster's file. ERR_USAGE: none does, or
 * the cluster is a preset. */
int memplan_sim_fit(struct memplan_sim *s, const struct layout_spec *a, struct err *e);
/* --serve-load. ERR_USAGE: no layout carries it. */
int memplan_sim_serve(const struct memplan_sim *s, const struct model_config *c, double params,
                      struct err *e);
/* --calibrate: measures the kernels of a layer, the embedding, the head and the update of a dense model, at
 * the shapes of layouts of tp x dp up to `ranks`, and collectives of as many ranks, and writes a cluster's
 * file. */
struct memplan_calibration {
    const struct model_config *cfg;
    int64_t seq_len, micro, batch; /* micro: sequences of a micro-batch; 0: all that a dp rank has of batch */
    int ranks;                     /* at most; 2 at least */
};
/* ERR_USAGE: another kind of model; errors of lab_measure() and io_write_file(). */
int memplan_calibrate(const char *path, const struct memplan_calibration *a, struct err *e);

#endif
