/* plot_axis.h - an axis of plot: its range and round ticks, linear or logarithmic. */
#ifndef SHARDLINE_TOOLS_PLOT_AXIS_H
#define SHARDLINE_TOOLS_PLOT_AXIS_H

enum { AXIS_TICKS = 24 };
struct axis {
    int log;       /* positions are log10 of values */
    double lo, hi; /* of positions */
    int n;
    double tick[AXIS_TICKS]; /* values, ascending, all in the range */
};

/* Values lo .. hi (of a logarithmic axis above 0) with about `about` round ticks, 1, 2 or 5 times a power
 * of ten. widen: the range grows to the next ticks. */
void axis_make(struct axis *a, double lo, double hi, int log, int widen, int about);
/* Where a value lies: 0 at lo, 1 at hi. */
double axis_place(const struct axis *a, double value);

#endif
