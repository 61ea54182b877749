/* model_grad_test.c - the backward pass against finite differences of the loss, for every kind of
 * parameter. */
#include <math.h>
#include "base/rnd.h"
#include "model/units.h"
#include "tests/unit/model/model_rig.h"

enum { PICKS = 5 };

/* ---- losses of routers ---- */

/* Counts of a step before, which no step of the differences changes: other ones for every layer and
 * expert. */
#define COUNTS 64
static int32_t counts[COUNTS];

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Of one token, with p the softmax, or the share of a sigmoid: sum of counts times p; and lse squared. */
static double token_loss(const struct router_losses *l, const struct expert_router *r, const float *logits,
                         const int32_t *count)
{
    double exps = 0, sigmoids = 0, dot = 0, lse;
    for (int x = 0; x < r->n_experts; x++) {
        double logit = (double)logits[x];
        exps += exp(logit);
        sigmoids += sigmoid(logit);
    }
    for (int x = 0; x < r->n_experts; x++) {
        double logit = (double)logits[x];
        dot += count[x] * (r->weights == ROUTER_SIGMOID ? sigmoid(logit) / sigmoids : exp(logit) / exps);
    }
    lse = log(exps);
    return (double)l->sequence * dot + (double)l->z / 2 * lse * lse;
}

/* What the routers of the last forward add to the loss. */
static double router_loss(struct rig *r)
{
    const struct router_losses *l = &r->m.losses;
    double sum = 0;
    for (int u = 1; l->counts && u <= r->m.n_layers; u++)
        for (int i = 0; i < r->m.unit[u].n_branches; i++) {
            const struct sublayer *body = &r->m.unit[u].branch[i].body;
            const float *logits = train_unit(r->work, u)->branch[i].experts.logits;
            int n = body->experts.router.n_experts;
            for (int64_t row = 0; body->kind == &sublayer_experts && row < r->n_seq * r->T; row++)
                sum += token_loss(l, &body->experts.router, logits + row * n, l->counts + (u - 1) * n);
        }
    return sum;
}

/* ---- differences ---- */

static double loss_at(struct rig *r, float *w, float value)
{
    *w = value;
    zero_forget_packs(r->z);
    double loss = rig_forward(r);
    return loss + router_loss(r);
}

/* d loss / d w by central differences of fourth order; what the fp32 forward cannot resolve is about 1e-7 /
 * step. */
static double slope(struct rig *r, float *w, double step)
{
    float x = *w;
    double a = loss_at(r, w, (float)(x + step)), b = loss_at(r, w, (float)(x - step));
    double c = loss_at(r, w, (float)(x + 2 * step)), d = loss_at(r, w, (float)(x - 2 * step));
    *w = x;
    zero_forget_packs(r->z);
    return (8 * (a - b) - (c - d)) / (12 * step);
}

static void check_part(struct rig *r, int part, const float *grad)
{
    const struct part *p = &r->m.local.part[part];
    const char *name = r->m.table.p[p->param].name;
    int64_t pick[PICKS], most = 0;
    for (int64_t i = 0; i < p->count; i++)
        most = fabsf(grad[i]) > fabsf(grad[most]) ? i : most;
    for (int k = 0; k < PICKS; k++)
        pick[k] = k ? (int64_t)(rnd_u64(3, rnd_stream(name), (uint64_t)k) % (uint64_t)p->count) : most;
    /* else nothing would be compared; a bias of k adds the same to all scores of a query, where nothing
     * turns it */
    CHECK(fabsf(grad[most]) > 1e-4f ||
          (r->m.table.cfg.features & F_POSITIONS && r->m.table.p[p->param].kind == P_K_BIAS));
    for (int k = 0; k < PICKS; k++) {
        double got = grad[pick[k]], want = slope(r, rig_weight(r, part) + pick[k], 0.01);
        if (fabs(got - want) > 1e-4 + 0.01 * fabs(want))
            test_fail(__FILE__, __LINE__, "%s[%lld]: gradient %g, the loss says %g", name, (long long)pick[k],
                      got, want);
    }
}

/* Returns the kinds of parameters that were compared, bits. losses: of routers, or NULL. */
static int64_t check_model(const struct model_config *c, const struct router_losses *losses)
{
    struct rig r;
    rig_open(&r, c, DT_F32, 2, 9);
    rig_shake(&r);
    if (losses)
        r.m.losses = *losses;
    rig_forward(&r);
    rig_backward(&r);
    int n = r.m.local.n_parts;
    int64_t kinds = 0;
    float **grad = calloc((size_t)n, sizeof *grad);
    for (int i = 0; i < n; i++) {
        size_t bytes = (size_t)r.m.local.part[i].count * sizeof(float);
        if (!rig_grad(&r, i))
            continue;
        grad[i] = memcpy(malloc(bytes), rig_grad(&r, i), bytes);
        kinds |= (int64_t)1 << r.m.table.p[r.m.local.part[i].param].kind;
    }
    for (int i = 0; i < n; i++) {
        if (grad[i])
            check_part(&r, i, grad[i]);
        free(grad[i]);
    }
    free(grad);
    rig_close(&r);
    return kinds;
}

TEST(gradients_are_the_slopes_of_the_loss)
{
    struct model_config c = rig_config(0, 0.15);
    CHECK_INT(check_model(&c, NULL), (2 << P_HEAD) - 1);
}

TEST(gradients_of_a_tied_model_are_the_slopes_of_the_loss)
{
    struct model_config c = rig_config(1, 0.15);
    CHECK_INT(check_model(&c, NULL), (1 << P_HEAD) - 1);
}

TEST(gradients_of_every_family_are_the_slopes_of_the_loss)
{
    int64_t kinds = 0;
    for (int i = 0; i < RIG_FAMILIES; i++) {
        struct model_config c = rig_family_config(i);
        c.groups_kept = c.n_groups;
        c.experts_per_token = c.n_experts; /* a step of the differences must not change the choice, */
        c.swiglu_limit *= 100;             /* and not meet the end of a clamp */
        kinds |= check_model(&c, NULL);
    }
    int64_t dense = ((int64_t)2 << P_NORM_MLP_POST) - 1, experts = (int64_t)1 << P_ROUTER;
    for (int k = P_ROUTER_BIAS; k <= P_SINKS; k++)
        experts |= (int64_t)1 << k;
    for (int k = P_Q_A; k <= P_KV_B; k++)
        experts |= (int64_t)1 << k;
    CHECK_INT(kinds, dense | experts); /* other kinds are not computed yet */
}

TEST(gradients_of_a_loss_of_the_step_before_s_counts_are_its_slopes)
{
    static const struct router_losses losses = { .sequence = 0.003f, .z = 0.02f, .counts = counts };
    int n = 0;
    for (int i = 0; i < COUNTS; i++)
        counts[i] = i * 7 % 19;
    for (int i = 0; i < RIG_FAMILIES; i++) {
        struct model_config c = rig_family_config(i);
        if (!c.n_experts)
            continue;
        c.groups_kept = c.n_groups;
        c.experts_per_token = c.n_experts;
        c.swiglu_limit *= 100;
        CHECK(c.n_layers * c.n_experts <= COUNTS);
        check_model(&c, &losses);
        n++;
    }
    CHECK(n >= 5);
}

TEST(the_norm_counts_every_gradient_once)
{
    for (int tied = 0; tied < 2; tied++) {
        struct rig r;
        struct model_config c = rig_config(tied, 0.15);
        double sum = 0;
        rig_open(&r, &c, DT_F32, 2, 9);
        rig_forward(&r);
        double norm = rig_backward(&r);
        for (int i = 0; i < r.m.local.n_parts; i++)
            for (int64_t k = 0; k < r.m.local.part[i].count; k++)
                sum += (double)rig_grad(&r, i)[k] * rig_grad(&r, i)[k];
        CHECK_NEAR(norm, sqrt(sum), 1e-12 * norm);
        rig_close(&r);
    }
}

/* ---- weights of targets ---- */
/* The gradients of one batch, in a copy that the caller frees. */
static float *gradients(enum dtype dt, int masked_target, float masked_weight, size_t *n)
{
    struct model_config c = rig_config(0, 0.1);
    struct rig r;
    rig_open(&r, &c, dt, 2, 70);
    int64_t rows = 2 * 70;
    for (int64_t i = 0; i < rows; i++) {
        int masked = i % 3 == 1;
        r.scale[i] *= masked ? masked_weight : (float)(i % 5) - 1.5f;
        if (masked)
            r.targets[i] = masked_target;
    }
    rig_forward(&r);
    rig_backward(&r);
    *n = 0;
    for (int i = 0; i < r.m.local.n_parts; i++)
        *n += (size_t)r.m.local.part[i].count;
    float *all = malloc(*n * sizeof *all);
    size_t at = 0;
    for (int i = 0; i < r.m.local.n_parts; i++) {
        const struct part *p = &r.m.local.part[i];
        memcpy(all + at, zero_grads(r.z)->level(zero_grads(r.z), p->vector, 0) + p->offset,
               (size_t)p->count * sizeof *all);
        at += (size_t)p->count;
    }
    rig_close(&r);
    return all;
}

TEST(a_target_of_weight_0_has_no_effect_on_any_gradient)
{
    static const enum dtype dts[] = { DT_F32, DT_BF16 };
    for (int k = 0; k < 2; k++) {
        size_t n, m;
        float *a = gradients(dts[k], 3, 0, &n), *b = gradients(dts[k], 17, 0, &m),
              *c = gradients(dts[k], 17, 0.01f, &m);
        CHECK_SAME(a, b, n * sizeof *a);
        CHECK(memcmp(a, c, n * sizeof *a));
        for (size_t i = 0; i < n; i++)
            CHECK(isfinite(a[i]));
        free(a);
        free(b);
        free(c);
    }
}
