/* fmath.h - functions of doubles that give the same bits on every machine. For tables and schedules, not for
 * inner loops.
 *
 * They use only + - * / sqrt and fma of IEEE 754. The error is below 1 ulp: for |x| < 1e8 (sin, cos), for all
 * x (the others). */
#ifndef SHARDLINE_BASE_FMATH_H
#define SHARDLINE_BASE_FMATH_H

/* e^x, natural logarithm, power; then sine, cosine and hyperbolic tangent. */
double fm_exp(double x);
double fm_log(double x);           /* log(0) is -inf, x < 0 gives NaN */
double fm_pow(double x, double y); /* x > 0 */
double fm_sin(double x);           /* in radians */
double fm_cos(double x);
double fm_tanh(double x);

#endif
