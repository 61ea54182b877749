/* sim_plan.h - the clock for the plans of this project's engine: what memplan --simulate and ptrain --dry-run
 * --simulate print. Pure functions but for the printing. */
#ifndef SHARDLINE_TRAIN_SIMULATE_SIM_PLAN_H
#define SHARDLINE_TRAIN_SIMULATE_SIM_PLAN_H

#include "train/layout_plan.h"
#include "train/simulate/sim_clock.h"

/* The run that a plan describes. *run borrows a->cfg. The engine is the cluster's [engine] where it has one,
 * else this project's. */
void sim_plan_run(struct sim_run *run, const struct layout_spec *a, const struct layout_plan *p,
                  const struct cluster *c);
/* Fills *r and *run. Errors as clock_step(). */
int sim_plan_step(struct clock_result *r, struct sim_run *run, const struct layout_spec *a,
                  const struct layout_plan *p, const struct cluster *c, struct clock_timeline *t,
                  struct err *e);
/* Prints "step S s, MFU P %" and where the time goes. */
void sim_plan_print(const struct clock_result *r, const struct sim_run *run, const struct cluster *c,
                    FILE *out);
/* All of it: opens the cluster, plans, prints. out NULL: prints nothing. Errors as cluster_open(),
 * layout_plan_make() and clock_step(). */
int sim_plan_show(const char *cluster, const struct layout_spec *a, FILE *out, struct err *e);
/* The share that a step loses most to, jitter apart, which every layout has; NULL: none. */
const char *sim_plan_loss(const struct clock_result *r, double *seconds);

#endif
