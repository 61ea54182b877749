/* fmath.h - our own double functions, the same bits on every machine: for tables and schedules, not for
 * inner loops.
 *
 * Only + - * / sqrt and fma of IEEE 754 are used. Error below 1 ulp of double for |x| < 1e8 (sin, cos), all
 * x (exp, log). */
#ifndef SHARDLINE_BASE_FMATH_H
#define SHARDLINE_BASE_FMATH_H

double fm_exp(double x);
double fm_log(double x);           /* x > 0; 0 -> -inf, < 0 -> NaN */
double fm_pow(double x, double y); /* x > 0 */
double fm_sin(double x);
double fm_cos(double x);
double fm_tanh(double x);

#endif
