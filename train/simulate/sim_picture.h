/* sim_picture.h - a simulated step as a picture: a Chrome trace (chrome://tracing, Perfetto) or SVG; and step
 * time against ranks. */
#ifndef SHARDLINE_TRAIN_SIMULATE_SIM_PICTURE_H
#define SHARDLINE_TRAIN_SIMULATE_SIM_PICTURE_H

#include "base/mem.h"
#include "train/simulate/sim_clock.h"

/* JSON: a thread a stage, an event a span, microseconds. ERR_MEMORY. */
int sim_picture_trace(const struct clock_timeline *t, char **text, size_t *n, struct err *e);
/* A row a stage, as wide as the step. Spans narrower than a tenth of a pixel are left out. ERR_MEMORY. */
int sim_picture_svg(const struct clock_timeline *t, int stages, double step_s, char **text, size_t *n,
                    struct err *e);

struct sim_point {
    double ranks, step_s, mfu;
};
/* Step time against ranks, both logarithmic, with the line of a perfect speed-up. ERR_MEMORY. */
int sim_picture_scale(const struct sim_point *p, int n_points, char **text, size_t *n, struct err *e);

/* A layout: its name, seconds of its step, bytes by category. */
struct sim_bar {
    char name[64];
    double step_s, bytes[MEM_CATS];
};
/* Memory of a rank against layouts: stacked bars, with the memory of a device as a line, and step times
 * beside them. ERR_MEMORY. */
int sim_picture_memory(const struct sim_bar *bar, int n_bars, double memory, char **text, size_t *n,
                       struct err *e);

#endif
