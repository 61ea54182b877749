/* sim_job.c - see sim_job.h. */
#include "train/simulate/sim_job.h"

#include <math.h>
#include <string.h>

static const double day_s = 86400;

/* Seconds that steps stand still for a save. */
static double save_seconds(const struct sim_job *j, const struct sim_run *run, const struct cluster *c)
{
    double ranks = sim_ranks(run), rate = c->disk_bytes_per_s * ranks;
    if (c->store_bytes_per_s > 0 && c->store_bytes_per_s < rate)
        rate = c->store_bytes_per_s;
    return j->save_async ? j->state_bytes / ranks / c->host_bytes_per_s : j->state_bytes / rate;
}

/* Share of the time that is lost: saves, and for every failure half an interval and the restart. */
static double lost(double save_s, double every_s, double between_s, double restart_s)
{
    double a_failure = between_s > 0 ? (every_s / 2 + restart_s) / between_s : 0;
    return save_s / (every_s + save_s) + a_failure;
}

/* A step's sum over sites: every machine sends its share of the gradients over its wire between them. */
static double site_seconds(const struct sim_job *j, const struct sim_run *run, const struct cluster *c)
{
    double ranks = sim_ranks(run), a_machine = c->level[0].ranks > 0 ? c->level[0].ranks : ranks;
    double machines = ranks / a_machine / j->sites;
    machines = machines < 1 ? 1 : machines;
    return 2 * (1 - 1.0 / j->sites) * 4 * j->params / machines / c->site_bytes_per_s;
}

void sim_job(struct sim_job_result *r, const struct sim_job *j, const struct clock_result *step,
             const struct sim_run *run, const struct cluster *c)
{
    double ranks = sim_ranks(run), busy = 1 - step->share[CLOCK_BUBBLE] / step->step_s;
    memset(r, 0, sizeof *r);
    r->failures_a_day = c->failures_a_day / 1000 * ranks;
    double between_s = r->failures_a_day > 0 ? day_s / r->failures_a_day : 0;
    r->save_s = save_seconds(j, run, c);
    r->save_every_s = j->save_every_s > 0 ? j->save_every_s
                      : between_s > 0     ? sqrt(2 * r->save_s * between_s)
                                          : 3600;
    /* no save is shorter than a step apart */
    r->save_every_s = r->save_every_s < step->step_s ? step->step_s : r->save_every_s;
    r->goodput = 1 - lost(r->save_s, r->save_every_s, between_s, c->restart_s);
    r->goodput = r->goodput < 0 ? 0 : r->goodput;

    r->watts = ranks * (c->idle_watts + (c->watts - c->idle_watts) * busy);
    r->day_tokens = (double)(run->rows * run->seq_len) / step->step_s * day_s * r->goodput;
    r->day_kwh = r->watts * 24 / 1000;
    r->day_price = ranks * c->price_per_hour * 24;
    if (j->sites > 1 && c->site_bytes_per_s > 0)
        r->site_s = site_seconds(j, run, c);
}

static void print_sites(const struct sim_job_result *r, const struct sim_job *j,
                        const struct clock_result *step, FILE *out)
{
    const struct {
        const char *how;
        double share;
    } way[] = { { "every step in fp32", 1 },
                { "every step in 8 bits", 0.25 },
                { "every 100 steps in fp32", 0.01 } };
    if (r->site_s <= 0)
        return;
    fprintf(out, "sites        %d:", j->sites);
    for (int i = 0; i < 3; i++)
        fprintf(out, "%s %s %.3g s more a step (%.0f %%)", i ? "," : "", way[i].how, r->site_s * way[i].share,
                100 * r->site_s * way[i].share / step->step_s);
    fprintf(out, "; ptrain does none of these yet\n");
}

void sim_job_print(const struct sim_job_result *r, const struct sim_job *j, const struct clock_result *step,
                   const struct sim_run *run, FILE *out)
{
    fprintf(out,
            "failures     %.3g a day on %.0f devices; a save stops steps for %.3g s, every %.4g s: goodput "
            "%.1f %%\n",
            r->failures_a_day, sim_ranks(run), r->save_s, r->save_every_s, 100 * r->goodput);
    fprintf(out, "a day        %.4g tokens, %.4g kWh", r->day_tokens, r->day_kwh);
    if (r->day_price > 0)
        fprintf(out, ", %.4g of the price list's money", r->day_price);
    fputc('\n', out);
    if (j->tokens > 0 && r->day_tokens > 0) {
        double days = j->tokens / r->day_tokens;
        fprintf(out, "the job      %.4g tokens: %.4g days, %.4g kWh", j->tokens, days, days * r->day_kwh);
        if (r->day_price > 0)
            fprintf(out, ", %.4g of money", days * r->day_price);
        fputc('\n', out);
    }
    print_sites(r, j, step, out);
}
