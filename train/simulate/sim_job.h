/* sim_job.h - a whole job from a step: failures and saves, energy, money, several sites. Pure functions but
 * for the printing. */
#ifndef SHARDLINE_TRAIN_SIMULATE_SIM_JOB_H
#define SHARDLINE_TRAIN_SIMULATE_SIM_JOB_H

#include "train/simulate/sim_clock.h"

struct sim_job {
    double params;       /* of the model */
    double state_bytes;  /* that a save writes, all ranks together */
    double save_every_s; /* 0: as often as loses least */
    int save_async;      /* a step waits for the copy to memory alone */
    int sites;           /* that dp ranks are divided over; 0 and 1: one */
    double tokens;       /* of the whole job; 0: not known */
};
struct sim_job_result {
    double failures_a_day, save_s, save_every_s;
    double goodput; /* share of the time that makes steps which stay */
    double watts;   /* of all devices, mean */
    double day_tokens, day_kwh, day_price;
    double site_s; /* of sums between sites, every step, in fp32 */
};

/* The best interval of saves: Young 1974, section 2; what is lost: Daly 2006, equation 3 at first order. */
void sim_job(struct sim_job_result *r, const struct sim_job *j, const struct clock_result *step,
             const struct sim_run *run, const struct cluster *c);
/* A line a fact. */
void sim_job_print(const struct sim_job_result *r, const struct sim_job *j, const struct clock_result *step,
                   const struct sim_run *run, FILE *out);

#endif
