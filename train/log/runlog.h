/* runlog.h - what a run reports: lines on the terminal (term), and the file of --log, a JSON object a line.
 * Rank 0 writes; other ranks take part where a call is collective. */
#ifndef SHARDLINE_TRAIN_RUNLOG_H
#define SHARDLINE_TRAIN_RUNLOG_H

#include <stdio.h>
#include "base/log.h"
#include "train/log/facts.h"
#include "train/work.h"

/* Groups whose collectives are counted: the axes, all ranks, and the pipeline's way back. */
enum { RUN_GROUPS = AXIS_COUNT + 4 }; /* the axes, all, pp_back, ep, edp */

struct step_result {
    float loss, norm;
    double lr, seconds;
    double bubble;   /* share of the step that this rank waited for other pipeline stages */
    int stop;        /* a rank received a signal: save and end */
    int relayout;    /* another layout is asked for */
    int64_t targets; /* of the global batch that count; -1: all do */
    /* [n_layers][n_experts]: rows of the step that chose an expert, of all ranks; NULL: no experts */
    const int64_t *loads;
    const float *rounds; /* [n_layers]: the most rounds of experts' rows in a micro-step; NULL: ep is 1 */
    const struct offload_count *offload; /* of this rank so far; NULL: nothing is offloaded */
};

struct runlog {
    struct log term; /* opened by ranks_open() */
    const struct run *run;
    const struct ranks *ranks;
    FILE *file; /* NULL: no --log, or not rank 0 */
    int n_lost; /* lines that could not be written */
    struct comm *group[RUN_GROUPS];
    struct comm_count seen[RUN_GROUPS][COMM_OPS]; /* at the start of the step */
    double flops_per_token;                       /* of the job, forward and backward */
    double tokens_per_step;
    int64_t first_step;
    int n_peaks;                  /* how often peak_flops was measured */
    double peak_flops;            /* of this rank's products: MFU is a share of it */
    struct offload_count offload; /* at the last line */
    double step_s;                /* seconds a step takes, smoothed over the last ones */
};

/* Opens the file of --log and writes what the run is (f: of rank 0) as its next line; a resumed run first
 * cuts the lines after w->at.step. */
int runlog_open(struct runlog *l, const struct work *w, const struct facts *f, struct err *e);
void runlog_close(struct runlog *l);

/* Starts counting the time in collectives. */
void runlog_begin_step(struct runlog *l);
/* The line of finished step number `step`, and the live line. Every rank calls it: all measure their peak
 * at the same time. */
void runlog_step(struct runlog *l, int64_t step, const struct step_result *r);
/* Every rank's memory by category. Collective over the job. */
int runlog_memory(struct runlog *l, int64_t step, const char *when, struct err *e);
/* {"event":EVENT,"step":STEP,...}: fmt prints the members after those two. */
void runlog_event(struct runlog *l, int64_t step, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* text as a JSON string, malloc'd; NULL: no memory, or text is not UTF-8. */
char *runlog_quote(const char *text);

/* Bytes of MEM_WORK that measuring the peak takes for a moment. */
size_t runlog_peak_bytes(enum dtype dt);

#endif
