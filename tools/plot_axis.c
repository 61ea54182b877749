/* plot_axis.c - see plot_axis.h. */
#include "tools/plot_axis.h"

#include <math.h>

#define SLACK 1e-9 /* of a step: a value that is a multiple but for rounding */

/* The smallest of 1, 2, 5 times a power of ten that is not below x. */
static double round_up(double x)
{
    double power = pow(10, floor(log10(x) + SLACK));
    for (int i = 0; i < 3; i++) {
        static const double factor[] = { 1, 2, 5 };
        if (factor[i] * power >= x * (1 - SLACK))
            return factor[i] * power;
    }
    return 10 * power;
}

static void linear(struct axis *a, int widen, int about)
{
    const double step = round_up((a->hi - a->lo) / about);
    if (widen) {
        a->lo = floor(a->lo / step + SLACK) * step;
        a->hi = ceil(a->hi / step - SLACK) * step;
    }
    for (double k = ceil(a->lo / step - SLACK); k * step <= a->hi + SLACK * step && a->n < AXIS_TICKS; k++)
        a->tick[a->n++] = k * step + 0.0; /* no -0 */
}

/* The value number k of 1, 2, 5, 10, 20, … */
static double mark_at(int k)
{
    static const double factor[] = { 1, 2, 5 };
    int power = (k >= 0 ? k : k - 2) / 3;
    return factor[k - 3 * power] * pow(10, power);
}

static void logarithmic(struct axis *a, double lo, double hi, int widen, int about)
{
    int first = 3 * ((int)floor(log10(lo)) - 1), last;
    while (mark_at(first + 1) <= lo * (1 + SLACK))
        first++;
    for (last = first; mark_at(last) < hi * (1 - SLACK);)
        last++;
    if (widen) {
        a->lo = log10(mark_at(first));
        a->hi = log10(mark_at(last));
    }

    /* over many decades only powers of ten, or every so many of them */
    int decades = (last - first + 2) / 3,
        each = last - first <= 2 * about ? 1 : 3 * (decades / (2 * about) + 1);
    for (int k = first; k <= last && a->n < AXIS_TICKS; k++) {
        double at = log10(mark_at(k));
        if (at >= a->lo - SLACK && at <= a->hi + SLACK && (each == 1 || (k % each + each) % each == 0))
            a->tick[a->n++] = mark_at(k);
    }
}

void axis_make(struct axis *a, double lo, double hi, int log, int widen, int about)
{
    if (hi <= lo)
        hi = log ? lo * 10 : lo + (lo != 0 ? fabs(lo) : 1);
    *a = (struct axis){ .log = log, .lo = log ? log10(lo) : lo, .hi = log ? log10(hi) : hi };
    if (log)
        logarithmic(a, lo, hi, widen, about);
    else
        linear(a, widen, about);
}

double axis_place(const struct axis *a, double value)
{
    return ((a->log ? log10(value) : value) - a->lo) / (a->hi - a->lo);
}
