/* rope.c - tables of cos and sin by position: frequencies as configs scale them, in double, rounded once. */
#include <math.h>
#include "base/fmath.h"
#include "model/units.h"

#define PI 3.14159265358979323846

/* Llama-3 scaling of one inverse frequency (Llama 3.1 report; transformers' rope_type "llama3"). */
static double llama3_frequency(const struct model_config *c, double f)
{
    double wave = 2 * PI / f, low = (double)c->rope_original_max_pos / c->rope_low_freq,
           high = (double)c->rope_original_max_pos / c->rope_high_freq;
    if (wave < high)
        return f;
    if (wave > low)
        return f / c->rope_factor;
    double smooth = ((double)c->rope_original_max_pos / wave - c->rope_low_freq) /
                    (c->rope_high_freq - c->rope_low_freq);
    return (1 - smooth) * f / c->rope_factor + smooth * f;
}

static double clip01(double x) { return x < 0 ? 0 : x > 1 ? 1 : x; }

/* YaRN (Peng et al. 2023, section 3.2; transformers' rope_type "yarn"): component i turns `fast` times
 * within the original length at bound 0 and `slow` times at bound 1; below them frequencies stay, above they
 * are divided by the factor, between is a ramp. */
static double yarn_frequency(const struct model_config *c, int64_t i, double f)
{
    double dim = (double)c->rope_dim, turns[2] = { c->yarn_fast, c->yarn_slow }, bound[2];
    for (int k = 0; k < 2; k++)
        bound[k] = dim * fm_log((double)c->rope_original_max_pos / (turns[k] * 2 * PI)) /
                   (2 * fm_log(c->rope_theta));
    double low = c->yarn_exact ? bound[0] : floor(bound[0]), high = c->yarn_exact ? bound[1] : ceil(bound[1]);
    low = low < 0 ? 0 : low;
    high = high > dim - 1 ? dim - 1 : high;
    double ramp = clip01(((double)i - low) / (high > low ? high - low : 0.001));
    return f / c->rope_factor * ramp + f * (1 - ramp);
}

/* Factor on cos and sin. */
static double yarn_attention(const struct model_config *c)
{
    if (c->rope != ROPE_YARN || c->yarn_attention > 0)
        return c->rope == ROPE_YARN ? c->yarn_attention : 1;
    return c->rope_factor > 1 ? 0.1 * fm_log(c->rope_factor) + 1 : 1;
}

/* cos, sin: [to - from][rope_dim / 2] */
static void rope_fill(const struct model_config *c, int64_t from, int64_t to, float *cos, float *sin)
{
    int64_t half = c->rope_dim / 2;
    double scale = yarn_attention(c);
    for (int64_t i = 0; i < half; i++) {
        double f = 1.0 / fm_pow(c->rope_theta, (double)(2 * i) / (double)c->rope_dim);
        if (c->rope == ROPE_LINEAR)
            f /= c->rope_factor;
        if (c->rope == ROPE_LLAMA3)
            f = llama3_frequency(c, f);
        if (c->rope == ROPE_YARN)
            f = yarn_frequency(c, i, f);
        for (int64_t p = from; p < to; p++) {
            cos[(p - from) * half + i] = (float)(fm_cos((double)p * f) * scale);
            sin[(p - from) * half + i] = (float)(fm_sin((double)p * f) * scale);
        }
    }
}

/* The config as layers with a window have it: a theta of their own, no scaling. */
static struct model_config local_config(const struct model_config *c)
{
    struct model_config local = *c;
    local.rope_theta = c->rope_local_theta;
    local.rope = ROPE_DEFAULT;
    return local;
}

static int table_extend(struct model *m, const struct model_config *c, struct rope_table *t, int64_t to,
                        struct err *e)
{
    int64_t from = m->rope_n, half = c->rope_dim / 2;
    size_t bytes = sizeof(float) * (size_t)((to - from) * half);
    float *cos = dev_stage(m->dev, t->cos + from * half, bytes),
          *sin = dev_stage(m->dev, t->sin + from * half, bytes);

    if (cos && sin)
        rope_fill(c, from, to, cos, sin);
    dev_unstage(m->dev, t->cos + from * half, cos, bytes);
    dev_unstage(m->dev, t->sin + from * half, sin, bytes);
    if (!cos || !sin)
        return err_set(e, ERR_MEMORY, "no memory for the turns of %lld positions", (long long)to);
    return 0;
}

int rope_extend(struct model *m, int64_t n, struct err *e)
{
    int64_t from = m->rope_n, to = n > 2 * from ? n : 2 * from;
    struct model_config of[ROPE_TABLES] = { m->table.cfg, local_config(&m->table.cfg) };
    int rc = 0;

    if (n <= from)
        return 0;
    to = to < m->max_pos ? to : m->max_pos;
    for (int i = 0; rc >= 0 && i < ROPE_TABLES; i++)
        if (m->rope[i].cos)
            rc = table_extend(m, &of[i], &m->rope[i], to, e);
    if (rc >= 0)
        m->rope_n = to;
    return rc;
}
