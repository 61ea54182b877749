/* adapter_grad_test.c - adapters in training: gradients of A and B against finite differences of the loss and
 * against their definition, the same bits under every policy of memory, the trainer's bits in the server's
 * pass. */
#include <math.h>
#include "tests/unit/model/adapter_rig.h"

enum { RANK = 3, SEQS = 2, LEN = 9, PICKS = 3, PARTS = 256 };

static double forward(struct tuned *t)
{
    struct rig *r = &t->r;
    struct err e = { 0 };
    double sum = 0;
    CHECK_INT(model_train_forward(zero_weights(r->z), t->work, r->ids, r->targets, r->logprobs, &e), 0);
    for (int64_t i = 0; i < SEQS * LEN; i++)
        sum -= (double)r->logprobs[i];
    return sum / (SEQS * LEN);
}

static void backward(struct tuned *t)
{
    struct rig *r = &t->r;
    struct err e = { 0 };
    double norm;
    float scale[SEQS * LEN];
    for (int i = 0; i < SEQS * LEN; i++)
        scale[i] = 1.0f / (SEQS * LEN);
    CHECK_INT(zero_begin_rows(t->z, 0, 0, &e), 0);
    train_work_defer(t->work, t->deferred);
    CHECK_INT(model_train_backward(zero_weights(r->z), t->work, r->ids, r->targets, scale, zero_grads(t->z),
                                   &e),
              0);
    if (t->deferred)
        CHECK_INT(model_train_deferred(t->work, t->deferred, zero_grads(t->z), &e), 0);
    CHECK_INT(zero_norm(t->z, &norm, &e), 0);
    CHECK(norm > 0);
}

/* ---- slopes ---- */
static double loss_at(struct tuned *t, float *w, double value)
{
    *w = (float)value;
    zero_forget_packs(t->z);
    return forward(t);
}

static double slope(struct tuned *t, float *w)
{
    /* a step that makes a router choose others would compare nothing */
    const double step = t->r.m.table.cfg.n_experts ? 0.001 : 0.01, x = (double)*w;
    double a = loss_at(t, w, x + step), b = loss_at(t, w, x - step);
    double c = loss_at(t, w, x + 2 * step), d = loss_at(t, w, x - 2 * step);
    loss_at(t, w, x);
    return (8 * (a - b) - (c - d)) / (12 * step);
}

static void check_part(struct tuned *t, int part, const float *grad)
{
    const struct part *p = &t->f.a.m.local.part[part];
    const char *name = t->f.a.m.table.p[p->param].name;
    int64_t most = 0;
    for (int64_t i = 0; i < p->count; i++)
        most = fabsf(grad[i]) > fabsf(grad[most]) ? i : most;
    /* an expert may have no rows */
    CHECK(fabsf(grad[most]) > 1e-4f || t->f.a.m.table.p[p->param].expert >= 0);
    for (int k = 0; k < (t->f.a.m.table.p[p->param].expert < 0 ? PICKS : 1); k++) {
        int64_t at = k ? (int64_t)(rnd_u64(3, rnd_stream(name), (uint64_t)k) % (uint64_t)p->count) : most;
        double got = (double)grad[at], want = slope(t, tuned_weight(t, part) + at);
        if (fabs(got - want) > 2e-4 + 0.01 * fabs(want))
            test_fail(__FILE__, __LINE__, "%s[%lld]: gradient %g, the loss says %g", name, (long long)at, got,
                      want);
    }
}

static void check_slopes(const struct model_config *c)
{
    struct tuned t;
    tuned_open(&t, c, DT_F32, RANK, (struct work_shape){ SEQS, LEN });
    int n = t.f.a.m.local.n_parts;
    float **grad = calloc((size_t)n, sizeof *grad);
    forward(&t);
    backward(&t);
    for (int i = 0; i < n; i++) {
        size_t bytes = (size_t)t.f.a.m.local.part[i].count * sizeof(float);
        grad[i] = memcpy(malloc(bytes), tuned_grad(&t, i), bytes);
    }
    for (int i = 0; i < n; i++) {
        check_part(&t, i, grad[i]);
        free(grad[i]);
    }
    free(grad);
    tuned_close(&t);
}

TEST(gradients_of_adapters_are_the_slopes_of_the_loss)
{
    struct model_config c = rig_config(1, 0.15);
    check_slopes(&c);
    for (int i = 0; i < RIG_FAMILIES; i++) {
        struct model_config family = rig_family_config(i);
        check_slopes(&family);
    }
}

/* ---- policies of memory ---- */
static void check_policies(const struct model_config *c, enum dtype dt)
{
    float *want[PARTS] = { 0 };
    for (int k = 0; k < 6; k++) {
        struct tuned t;
        tuned_open(&t, c, dt, RANK,
                   (struct work_shape){ .n_seq = SEQS,
                                        .seq_len = LEN,
                                        .recompute = (enum recompute)(k / 2),
                                        .deferred_weights = k % 2 });
        CHECK(t.f.a.m.local.n_parts <= PARTS);
        forward(&t);
        backward(&t);
        for (int i = 0; i < t.f.a.m.local.n_parts; i++) {
            size_t bytes = (size_t)t.f.a.m.local.part[i].count * sizeof(float);
            if (k)
                CHECK_SAME(tuned_grad(&t, i), want[i], bytes);
            else
                want[i] = memcpy(malloc(bytes), tuned_grad(&t, i), bytes);
        }
        tuned_close(&t);
    }
    for (int i = 0; i < PARTS; i++)
        free(want[i]);
}

TEST(gradients_of_adapters_have_the_same_bits_under_every_policy_of_memory)
{
    struct model_config c = rig_config(0, 0.15);
    check_policies(&c, DT_F32);
    for (int i = 0; i < RIG_FAMILIES; i++) {
        struct model_config family = rig_family_config(i);
        check_policies(&family, DT_BF16);
    }
}
