/* attn_definition_test.c - is the definition attention, and its gradient? Compared with plain sums and finite
 * differences in double. */
#include "tests/test.h"

#include "tests/unit/kernels/attn_definition.h"

static double naive_loss(const struct world *w, const double *q, const double *k, const double *v)
{
    double loss = 0;
    for (int64_t p = 0; p < w->T; p++)
        for (int h = 0; h < heads(w); h++) {
            const int g = h / w->group, d = w->d;
            double s[64], sum = 0, top = -1e300;
            for (int64_t j = 0; j <= p; j++) {
                if (!sees(w, p, j)) {
                    s[j] = -1e300;
                    continue;
                }
                s[j] = 0;
                for (int x = 0; x < d; x++)
                    s[j] += q[(p * heads(w) + h) * d + x] * k[(j * w->n_kv + g) * d + x];
                s[j] *= (double)w->scale;
                if (w->softcap > 0)
                    s[j] = (double)w->softcap * tanh(s[j] / (double)w->softcap);
                top = s[j] > top ? s[j] : top;
            }
            if (w->sink) {
                top = (double)w->sink[h] > top ? (double)w->sink[h] : top;
                sum = exp((double)w->sink[h] - top);
            }
            for (int64_t j = 0; j <= p; j++)
                sum += s[j] = exp(s[j] - top);
            for (int64_t j = 0; j <= p; j++)
                for (int x = 0; x < d; x++)
                    loss += s[j] / sum * v[(j * w->n_kv + g) * d + x] *
                            (double)w->dout[(p * heads(w) + h) * d + x];
        }
    return loss;
}
static double *as_double(const float *x, int64_t n)
{
    double *y = malloc((size_t)n * 8);
    for (int64_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    return y;
}
/* The sinks' gradients; in: q, k, v. */
static void check_sinks(struct world *w, double *in[3])
{
    for (int h = 0; h < heads(w); h++) {
        const float s = w->sink[h], step = 0x1p-7f;
        w->sink[h] = s + step;
        const double up = naive_loss(w, in[0], in[1], in[2]);
        w->sink[h] = s - step;
        const double down = naive_loss(w, in[0], in[1], in[2]);
        w->sink[h] = s;
        CHECK_NEAR(ref_dsink(w, h, 8), (up - down) / (2 * (double)step), 1e-3);
    }
}

static void check_gradients(int64_t window, int sinks, float softcap)
{
    struct world *w = world_of(DT_F32, 2, 2, 8, 40);
    w->window = window;
    w->sink = sinks ? random_values(DT_F32, heads(w), 4) : NULL;
    w->softcap = softcap;
    const int64_t nq = w->T * heads(w) * w->d, nk = w->T * w->n_kv * w->d;
    ref_forward(w);
    ref_backward(w);
    double *in[3] = { as_double(w->q, nq), as_double(w->k, nk), as_double(w->v, nk) }, loss = 0;
    const float *grad[3] = { w->dq, w->dk, w->dv };
    for (int64_t i = 0; i < nq; i++)
        loss += (double)w->out[i] * (double)w->dout[i];
    CHECK_NEAR(loss, naive_loss(w, in[0], in[1], in[2]), 1e-4);
    for (int t = 0; t < 3; t++)
        for (int64_t i = t; i < (t ? nk : nq); i += 23) {
            const double x = in[t][i], h = 1e-5;
            in[t][i] = x + h;
            const double up = naive_loss(w, in[0], in[1], in[2]);
            in[t][i] = x - h;
            const double down = naive_loss(w, in[0], in[1], in[2]);
            in[t][i] = x;
            CHECK_NEAR(grad[t][i], (up - down) / (2 * h), 2e-5);
        }
    if (sinks)
        check_sinks(w, in);
    for (int t = 0; t < 3; t++)
        free(in[t]);
    world_free(w);
}
TEST(gradients_are_those_of_finite_differences) { check_gradients(0, 0, 0); }
TEST(gradients_in_a_window_are_those_of_finite_differences) { check_gradients(7, 0, 0); }
TEST(gradients_with_sinks_are_those_of_finite_differences)
{
    check_gradients(0, 1, 0);
    check_gradients(7, 1, 0);
}
TEST(gradients_through_a_softcap_are_those_of_finite_differences) { check_gradients(7, 1, 2.5f); }
