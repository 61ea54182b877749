/* experts_route_test.c - which experts a router chooses, with which weights, and the gradient of its logits:
 * the bits of plain definitions, written again here, for every CPU class; gradients against differences. */
#include <stdlib.h>

#include "tests/unit/kernels/rows_rig.h"

enum { ROWS = 13, E_MOST = 256 };

struct router_case {
    int n_experts, k;
    enum router_weights weights;
    int norm, n_groups, groups_kept, has_bias;
};
static const struct router_case cases[] = {
    { 8, 2, ROUTER_CHOSEN, 0, 1, 1, 0 },    { 128, 8, ROUTER_CHOSEN, 0, 1, 1, 0 },
    { 32, 4, ROUTER_CHOSEN, 0, 1, 1, 0 },   { 1, 1, ROUTER_CHOSEN, 0, 1, 1, 0 },
    { 33, 33, ROUTER_CHOSEN, 0, 1, 1, 0 },  { 60, 4, ROUTER_ALL, 0, 1, 1, 0 },
    { 6, 6, ROUTER_ALL, 0, 1, 1, 0 },       { 64, 64, ROUTER_ALL, 0, 1, 1, 0 },
    { 256, 8, ROUTER_SIGMOID, 1, 8, 4, 1 }, { 16, 3, ROUTER_SIGMOID, 0, 4, 2, 1 },
    { 12, 12, ROUTER_SIGMOID, 1, 1, 1, 0 }, { 8, 5, ROUTER_SIGMOID, 1, 8, 3, 1 },
    { 24, 7, ROUTER_SIGMOID, 0, 6, 1, 0 },
};

/* ---- the definition ---- */
struct scored {
    float score;
    int id;
};

/* Larger first, equal by id, NaN last. */
static int comes_first(const void *x, const void *y)
{
    const struct scored *a = x, *b = y;
    const int a_nan = isnan(a->score) != 0, b_nan = isnan(b->score) != 0;
    if (a_nan != b_nan)
        return a_nan - b_nan;
    if (!a_nan && a->score != b->score)
        return a->score > b->score ? -1 : 1;
    return a->id - b->id;
}

static float score_of(const struct expert_router *r, const float *l, int e)
{
    if (r->weights != ROUTER_SIGMOID)
        return l[e];
    return r->bias ? fn_sigmoid(l[e]) + r->bias[e] : fn_sigmoid(l[e]);
}

static void mask_groups(const struct expert_router *r, struct scored *s)
{
    struct scored group[ROUTER_GROUPS_MAX], in[E_MOST];
    const int per = r->n_experts / r->n_groups;
    for (int g = 0; g < r->n_groups; g++) {
        memcpy(in, s + g * per, sizeof *in * (size_t)per);
        qsort(in, (size_t)per, sizeof *in, comes_first);
        group[g] = (struct scored){ per == 1 ? in[0].score : in[0].score + in[1].score, g };
    }
    qsort(group, (size_t)r->n_groups, sizeof *group, comes_first);
    for (int k = r->groups_kept; k < r->n_groups; k++)
        for (int e = 0; e < per; e++)
            s[group[k].id * per + e].score = -INFINITY;
}

static int by_id(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void define_choice(const struct expert_router *r, const float *l, int *id)
{
    struct scored s[E_MOST];
    for (int e = 0; e < r->n_experts; e++)
        s[e] = (struct scored){ score_of(r, l, e), e };
    if (r->n_groups > 1)
        mask_groups(r, s);
    qsort(s, (size_t)r->n_experts, sizeof *s, comes_first);
    for (int j = 0; j < r->k; j++)
        id[j] = s[j].id;
    qsort(id, (size_t)r->k, sizeof *id, by_id);
}

/* Of all experts: exp(l - max) and the sums of a softmax and of sigmoids. */
struct shares {
    float max, exp[E_MOST], sigmoid[E_MOST], sum, sigmoids;
};
static struct shares shares_of(int n, const float *l)
{
    struct shares s = { .max = -INFINITY };
    for (int e = 0; e < n; e++)
        s.max = l[e] > s.max ? l[e] : s.max;
    for (int e = 0; e < n; e++) {
        s.exp[e] = fn_exp(l[e] - s.max);
        s.sigmoid[e] = fn_sigmoid(l[e]);
    }
    s.sum = by_lanes(n, s.exp, NULL);
    s.sigmoids = by_lanes(n, s.sigmoid, NULL);
    return s;
}

/* sum of the chosen ones' sigmoids, and 1e-20 */
static float sigmoid_total(const struct expert_router *r, const float *l, const int *id)
{
    float total = 0;
    for (int j = 0; j < r->k; j++)
        total += fn_sigmoid(l[id[j]]);
    return total + 1e-20f;
}

static void define_weights(const struct expert_router *r, const float *l, const int *id, float *w)
{
    const struct shares s = shares_of(r->n_experts, l);
    float max = -INFINITY, sum = 0;
    for (int j = 0; j < r->k; j++)
        max = l[id[j]] > max ? l[id[j]] : max;
    for (int j = 0; j < r->k; j++)
        sum += fn_exp(l[id[j]] - max);
    for (int j = 0; j < r->k; j++) {
        const float part = fn_sigmoid(l[id[j]]);
        if (r->weights == ROUTER_CHOSEN)
            w[j] = fn_exp(l[id[j]] - max) / sum;
        else if (r->weights == ROUTER_ALL)
            w[j] = s.exp[id[j]] / s.sum;
        else
            w[j] = (r->norm ? part / sigmoid_total(r, l, id) : part) * r->factor;
    }
}

static float slope(float s) { return s * (1.0f - s); }

/* The part of the gradient that comes by the weights. */
static void define_gate(const struct expert_router *r, const float *l, const int *id, const float *w,
                        const float *dw, float *out)
{
    const struct shares s = shares_of(r->n_experts, l);
    const float total = r->weights == ROUTER_SIGMOID ? sigmoid_total(r, l, id) : 1;
    float c = 0;
    for (int j = 0; j < r->k; j++)
        if (r->weights == ROUTER_SIGMOID)
            c = fmaf(dw[j] * r->factor, s.sigmoid[id[j]] / total, c);
        else
            c = fmaf(dw[j], w[j], c);
    for (int e = 0; e < r->n_experts; e++)
        out[e] = r->weights == ROUTER_ALL ? s.exp[e] / s.sum * (0.0f - c) : 0.0f;
    for (int j = 0; j < r->k; j++) {
        const int e = id[j];
        const float g = dw[j] * r->factor;
        if (r->weights == ROUTER_CHOSEN)
            out[e] = w[j] * (dw[j] - c);
        else if (r->weights == ROUTER_ALL)
            out[e] = s.exp[e] / s.sum * (dw[j] - c);
        else
            out[e] = (r->norm ? (g - c) / total : g) * slope(s.sigmoid[e]);
    }
}

static void define_dx(const struct expert_router *r, const float *l, const int *id, const float *w,
                      const float *dw, const struct balance *b, const int32_t *count, float *out)
{
    const struct shares s = shares_of(r->n_experts, l);
    const int is_sigmoid = r->weights == ROUTER_SIGMOID, n = r->n_experts;
    float q[E_MOST], p[E_MOST];
    define_gate(r, l, id, w, dw, out);
    for (int e = 0; e < n && b; e++) {
        q[e] = b->sequence * (float)count[e];
        p[e] = is_sigmoid ? s.sigmoid[e] / s.sigmoids : s.exp[e] / s.sum;
    }
    const float mean = b ? by_lanes(n, q, p) : 0, lse = s.max + fn_log(s.sum);
    for (int e = 0; e < n && b; e++) {
        if (b->sequence != 0)
            out[e] += is_sigmoid ? (q[e] - mean) / s.sigmoids * slope(s.sigmoid[e]) : p[e] * (q[e] - mean);
        if (b->z != 0)
            out[e] += b->z * lse * (s.exp[e] / s.sum);
    }
}

/* ---- data ---- */
enum data { PLAIN, TIES, EQUAL, ZEROS, NANS, ALL_NAN, INFS, N_DATA };

static float logit(enum data kind, int64_t i)
{
    const float x = value(11, i);
    switch (kind) {
    case TIES: return roundf(x * 2) / 2;
    case EQUAL: return 0.25f;
    case ZEROS: return i % 3 ? 0.0f : -0.0f;
    case NANS: return i % 3 == 0 ? NAN : roundf(x * 2);
    case ALL_NAN: return NAN;
    case INFS: return i % 5 == 0 ? INFINITY : i % 2 ? -INFINITY : x;
    default: return x;
    }
}

static struct mat logits_of(enum data kind, int n)
{
    struct mat m = new_mat(DT_F32, ROWS, n, 0);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = 0; c < n; c++)
            set_elem(m, r, c, logit(kind, r * 1009 + c));
    return m;
}

static struct expert_router router_of(const struct router_case *c, float *bias)
{
    for (int e = 0; e < c->n_experts; e++)
        bias[e] = value(5, e) * 0.3f;
    return (struct expert_router){ .n_experts = c->n_experts,
                                   .k = c->k,
                                   .weights = c->weights,
                                   .norm = c->norm,
                                   .n_groups = c->n_groups,
                                   .groups_kept = c->groups_kept,
                                   .factor = 2.5f,
                                   .bias = c->has_bias ? bias : NULL };
}

/* NaN of any sign is one. */
static int same_number(float a, float b) { return (isnan(a) && isnan(b)) || !memcmp(&a, &b, sizeof a); }

/* ---- tests ---- */
static void check_route(struct dev *d, const struct expert_router *r, struct mat logits, enum data kind)
{
    int32_t expert[ROWS * ROUTER_CHOSEN_MAX];
    float weight[ROWS * ROUTER_CHOSEN_MAX];
    KERNEL(d, route, r, expert, weight, logits);
    for (int64_t row = 0; row < ROWS; row++) {
        const float *l = (float *)logits.p + row * logits.ld;
        int id[ROUTER_CHOSEN_MAX];
        float w[ROUTER_CHOSEN_MAX];
        define_choice(r, l, id);
        define_weights(r, l, id, w);
        for (int j = 0; j < r->k; j++)
            if (expert[row * r->k + j] != id[j] || !same_number(weight[row * r->k + j], w[j])) {
                test_fail(__FILE__, __LINE__, "%s, E %d, k %d, data %d: chosen %d is %d by %a, not %d by %a",
                          d->isa, r->n_experts, r->k, (int)kind, j, expert[row * r->k + j],
                          (double)weight[row * r->k + j], id[j], (double)w[j]);
                return;
            }
    }
}

static void route_with(int from, int to)
{
    struct rig *rig = rig_open();
    float bias[E_MOST];
    EACH(c, cases)
        for (int kind = from; kind < to; kind++) {
            const struct expert_router r = router_of(&cases[c], bias);
            struct mat logits = logits_of((enum data)kind, r.n_experts);
            EACH_DEV(rig, d) { check_route(d, &r, logits, (enum data)kind); }
            FREE(logits);
        }
    rig_close(rig);
}

TEST(route_is_its_definition) { route_with(PLAIN, TIES); }
TEST(equal_scores_go_to_the_lower_id) { route_with(TIES, NANS); }
TEST(nan_comes_after_every_number_and_infinities_are_numbers) { route_with(NANS, N_DATA); }

TEST(all_weights_zero_choose_the_first_k)
{
    struct rig *rig = rig_open();
    float l[8] = { 0 }, w[2];
    int32_t id[2];
    const struct expert_router r = { .n_experts = 8, .k = 2, .n_groups = 1, .groups_kept = 1 };
    EACH_DEV(rig, d)
    {
        KERNEL(d, route, &r, id, w, mat_of(l, DT_F32, 1, 8, 8));
        CHECK_INT(id[0], 0);
        CHECK_INT(id[1], 1);
        CHECK_BITS(w[0], 0.5f);
        CHECK_BITS(w[1], 0.5f);
    }
    rig_close(rig);
}

/* sequence and z of both terms; count by sequence of 5 rows, or one for all. */
struct terms {
    float sequence, z;
    int by_sequence;
};
static const struct terms terms[] = { { 0, 0, 0 }, { 0.003f, 0, 1 }, { 0, 0.02f, 0 }, { 0.003f, 0.02f, 0 } };

static void check_dx(struct rig *rig, const struct expert_router *r, const struct terms *t, enum dtype dt)
{
    struct mat logits = logits_of(PLAIN, r->n_experts), want = new_mat(dt, ROWS, r->n_experts, 0);
    int32_t expert[ROWS * ROUTER_CHOSEN_MAX], count[3 * E_MOST];
    float w[ROWS * ROUTER_CHOSEN_MAX], dw[ROWS * ROUTER_CHOSEN_MAX], out[E_MOST];
    struct balance b = { t->sequence, t->z, count, seqs_of(t->by_sequence ? 3 : 0, 5, 1) };
    for (int i = 0; i < 3 * E_MOST; i++)
        count[i] = (int32_t)(mix((uint64_t)i) % 100);
    for (int64_t row = 0; row < ROWS; row++) {
        const float *l = (float *)logits.p + row * logits.ld;
        const int64_t at = row * r->k;
        define_choice(r, l, expert + at);
        define_weights(r, l, expert + at, w + at);
        for (int j = 0; j < r->k; j++)
            dw[at + j] = value(3, at + j);
        define_dx(r, l, expert + at, w + at, dw + at, t->sequence != 0 || t->z != 0 ? &b : NULL,
                  count + (t->by_sequence ? row / 5 * r->n_experts : 0), out);
        for (int e = 0; e < r->n_experts; e++)
            set_elem(want, row, e, out[e]);
    }
    EACH_DEV(rig, d)
    {
        struct mat got = new_mat(dt, ROWS, r->n_experts, 0);
        KERNEL(d, route_dx, r, got, logits, expert, w, dw, t->sequence != 0 || t->z != 0 ? &b : NULL);
        CHECK_MAT(got, want, d, r->n_experts);
        FREE(got);
    }
    FREE(logits, want);
}

TEST(route_dx_is_its_definition)
{
    struct rig *rig = rig_open();
    float bias[E_MOST];
    EACH(c, cases)
        EACH(t, terms)
            EACH(dt, dts) {
                const struct expert_router r = router_of(&cases[c], bias);
                check_dx(rig, &r, &terms[t], dts[dt]);
            }
    rig_close(rig);
}

/* What route_dx differentiates, in double: sum of dw w, sequence sum of count p, z / 2 lse^2. */
static double loss_of(const struct expert_router *r, const double *l, const int *id, const float *dw,
                      const struct balance *b)
{
    double sum = 0, sigmoids = 0, chosen = 0, loss = 0;
    for (int e = 0; e < r->n_experts; e++)
        sum += exp(l[e]), sigmoids += 1 / (1 + exp(-l[e]));
    for (int j = 0; j < r->k; j++)
        chosen += r->weights == ROUTER_SIGMOID ? 1 / (1 + exp(-l[id[j]])) : exp(l[id[j]]);
    for (int j = 0; j < r->k; j++) {
        const double s = 1 / (1 + exp(-l[id[j]]));
        const double w = r->weights == ROUTER_CHOSEN ? exp(l[id[j]]) / chosen
                         : r->weights == ROUTER_ALL  ? exp(l[id[j]]) / sum
                                                     : (r->norm ? s / chosen : s) * (double)r->factor;
        loss += (double)dw[j] * w;
    }
    for (int e = 0; e < r->n_experts; e++)
        loss += (double)b->sequence * b->count[e] *
                (r->weights == ROUTER_SIGMOID ? 1 / (1 + exp(-l[e])) / sigmoids : exp(l[e]) / sum);
    return loss + (double)b->z / 2 * log(sum) * log(sum);
}

static void check_differences(struct dev *d, const struct router_case *c)
{
    float bias[E_MOST], l[E_MOST], dl[E_MOST], w[ROUTER_CHOSEN_MAX], dw[ROUTER_CHOSEN_MAX];
    double at[E_MOST];
    int32_t id[ROUTER_CHOSEN_MAX], count[E_MOST];
    const struct expert_router r = router_of(c, bias);
    const struct balance b = { 0.01f, 0.05f, count, seqs_of(0, 0, 1) };
    const int n = r.n_experts;
    for (int e = 0; e < n; e++) {
        at[e] = (double)(l[e] = value(21, e));
        count[e] = (int32_t)(mix((uint64_t)e) % 50);
    }
    for (int j = 0; j < r.k; j++)
        dw[j] = value(22, j);
    struct mat logits = mat_of(l, DT_F32, 1, n, n);
    KERNEL(d, route, &r, id, w, logits);
    KERNEL(d, route_dx, &r, mat_of(dl, DT_F32, 1, n, n), logits, id, w, dw, &b);
    for (int e = 0; e < n; e++) {
        const double h = 1e-5;
        at[e] += h;
        const double up = loss_of(&r, at, id, dw, &b);
        at[e] -= 2 * h;
        const double slope_at = (up - loss_of(&r, at, id, dw, &b)) / (2 * h);
        at[e] += h;
        if (fabs(slope_at - (double)dl[e]) > 2e-5 * (1 + fabs(slope_at)))
            test_fail(__FILE__, __LINE__, "E %d, k %d, logit %d: gradient %g, difference %g", n, r.k, e,
                      (double)dl[e], slope_at);
    }
}

TEST(route_dx_is_near_differences)
{
    struct rig *rig = rig_open();
    EACH(c, cases)
        check_differences(rig->dev[0], &cases[c]);
    rig_close(rig);
}
