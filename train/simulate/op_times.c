/* op_times.c - see op_times.h. A product's time is that of its tiles: what is lost where tiles do not fill
 * the processors is half a round on average, and a tile starts and ends in the time of tile_k terms (the
 * roofline of Williams et al. 2009 bounds it from below). Fused attention: Dao 2023. Rows move their bytes.
 */
#include "train/simulate/op_times.h"

#include <math.h>
#include <string.h>
#include "model/family.h"
#include "train/simulate/op_measured.h"

double op_sum(const struct op_times *t)
{
    double sum = 0;
    for (int i = 0; i < OP_KINDS; i++)
        sum += t->s[i];
    return sum;
}

void op_add(struct op_times *to, const struct op_times *t, double times)
{
    for (int i = 0; i < OP_KINDS; i++)
        to->s[i] += times * t->s[i];
}

void op_part_add(struct part_times *to, const struct part_times *t, double times)
{
    op_add(&to->forward, &t->forward, times);
    op_add(&to->backward_input, &t->backward_input, times);
    op_add(&to->backward_weight, &t->backward_weight, times);
    to->again += times * t->again;
    to->flops += times * t->flops;
    to->scores += times * t->scores;
    to->dense += times * t->dense;
    to->experts += times * t->experts;
    to->units += times * t->units;
}

void op_slow(struct part_times *t, double speed)
{
    struct op_times *part[] = { &t->forward, &t->backward_input, &t->backward_weight };
    for (int i = 0; i < 3; i++)
        for (int k = OP_PRODUCTS; k <= OP_ROWS; k++)
            part[i]->s[k] /= speed;
    t->again /= speed;
}

static double el_bytes(enum sim_dtype d) { return d == SIM_F32 ? 4 : d == SIM_BF16 ? 2 : 1; }
static double row_el(const struct sim_run *r) { return r->dtype == SIM_F32 ? 4 : 2; }

/* Attention, head and router: not in 8 bits. */
static enum sim_dtype wide(const struct sim_run *r) { return r->dtype == SIM_F32 ? SIM_F32 : SIM_BF16; }

static double threads_of(const struct sim_run *r) { return r->threads > 0 ? r->threads : 1; }

double op_speed(const struct sim_run *r, const struct cluster *c)
{
    double threads = threads_of(r);
    return c->cores <= 0 ? 1 : threads < c->cores ? threads : c->cores;
}

double op_at_once(const struct sim_run *r, const struct cluster *c)
{
    double ranks = sim_ranks(r);
    double here = c->level[0].ranks > 0 && c->level[0].ranks < ranks ? c->level[0].ranks : ranks;
    return here / (sim_micros(r) > 1 ? 1 : r->pp);
}

double op_share(const struct sim_run *r, const struct cluster *c, int stages)
{
    double ranks = sim_ranks(r), used = op_speed(r, c);
    double here = c->level[0].ranks > 0 && c->level[0].ranks < ranks ? c->level[0].ranks : ranks;
    used *= here * stages / r->pp;
    return c->cores <= 0 || used <= c->cores ? 1 : c->cores / used;
}

/* ---- products ---- */

/* The measured rate of the nearest n and k, between the two nearest m; 0: nothing is measured. */
static double measured_rate(const struct cluster *c, enum sim_dtype d, double m, double n, double k)
{
    const struct cluster_product *best = NULL, *below = NULL, *above = NULL;
    double least = 0;
    for (int i = 0; i < c->n_products; i++) {
        const struct cluster_product *p = &c->product[i];
        double far = fabs(log(p->n / n)) + fabs(log(p->k / k));
        if (p->dtype == d && (!best || far < least))
            best = p, least = far;
    }
    for (int i = 0; best && i < c->n_products; i++) {
        const struct cluster_product *p = &c->product[i];
        if (p->dtype != d || p->n != best->n || p->k != best->k)
            continue;
        if (p->m <= m && (!below || p->m > below->m))
            below = p;
        if (p->m >= m && (!above || p->m < above->m))
            above = p;
    }
    if (!below || !above || below == above)
        return below ? below->flops_per_s : above ? above->flops_per_s : 0;
    double at = log(m / below->m) / log(above->m / below->m);
    return below->flops_per_s + at * (above->flops_per_s - below->flops_per_s);
}

double op_product_s(const struct cluster *c, enum sim_dtype d, double groups, double m, double n, double k)
{
    if (groups <= 0 || m <= 0 || n <= 0 || k <= 0)
        return 0;
    enum sim_dtype in = c->peak[d] > 0 ? d : c->peak[SIM_BF16] > 0 ? SIM_BF16 : SIM_F32;
    double rate = measured_rate(c, in, m, n, k);
    if (rate > 0)
        return 2 * groups * m * n * k / rate + c->kernel_s;

    /* the last tile of a group is half full on average */
    double rows = groups > 1 ? m + c->tile_m / 2 : ceil(m / c->tile_m) * c->tile_m;
    double columns = ceil(n / c->tile_n) * c->tile_n, tiles = groups * rows / c->tile_m * columns / c->tile_n;
    double full = tiles / (tiles + (c->units - 1) / 2) * k / (k + c->tile_k);
    double computed = 2 * groups * rows * columns * k / (c->peak[in] * c->clock * c->efficiency * full);
    double moved = groups * ((m + n) * k * el_bytes(in) + 2 * m * n) / c->hbm_bytes_per_s;
    return (computed > moved ? computed : moved) + c->kernel_s;
}

/* ---- one part of the model ---- */
struct op_part {
    struct part_times *t;
    const struct sim_run *r;
    const struct cluster *c;
    double tokens;   /* of a micro-batch on the ranks of one tp group */
    double own_rows; /* of them, those whose norms and residuals this rank computes */
    double speed;
};

static struct op_part begin(struct part_times *t, const struct sim_run *r, const struct cluster *c)
{
    double tokens = (double)(r->micro * r->seq_len) / r->cp;
    memset(t, 0, sizeof *t);
    return (struct op_part){ t, r, c, tokens, r->sp ? tokens / r->tp : tokens, op_speed(r, c) };
}

/* A product of `rows` rows in each of `groups`, cut n ways or k ways already. whole: flops of all tp ranks.
 */
static void add_product(struct op_part *p, enum sim_dtype d, double groups, double rows, double n, double k,
                        double all)
{
    struct part_times *t = p->t;
    t->forward.s[OP_PRODUCTS] += op_product_s(p->c, d, groups, rows, n, k) / p->speed;
    t->backward_input.s[OP_PRODUCTS] += op_product_s(p->c, d, groups, rows, k, n) / p->speed;
    if (!p->r->frozen)
        t->backward_weight.s[OP_PRODUCTS] += op_product_s(p->c, d, groups, n, k, rows) / p->speed;
    t->flops += all * 2 * groups * rows * n * k * p->r->cp;
    /* 8-bit operands are made from 16-bit ones, row by row and column by column, in both passes */
    if (d == SIM_FP8) {
        t->forward.s[OP_ROWS] += 4 * groups * rows * k / p->c->hbm_bytes_per_s;
        t->backward_input.s[OP_ROWS] += 4 * groups * rows * n / p->c->hbm_bytes_per_s;
    }
}

static void add_dense(struct op_part *p, enum sim_dtype d, double n, double k, double all)
{
    add_product(p, d, 1, p->tokens, n, k, all);
    p->t->dense += n * k;
}

/* Bytes of rows, forward and backward. */
static void add_rows(struct op_part *p, double forward, double backward)
{
    double share = p->r->engine.row_bytes > 0 ? p->r->engine.row_bytes : 1;
    double rate = p->c->hbm_bytes_per_s * p->speed / share;
    p->t->forward.s[OP_ROWS] += forward / rate + 2 * p->c->kernel_s;
    p->t->backward_input.s[OP_ROWS] += backward / rate + 2 * p->c->kernel_s;
}

/* Sums over tp of one sublayer: behind it forward, in front of it backward. With sp they are a reduce-scatter
 * and a gather, and backward gathers the rows once more for weight gradients. */
static void add_tp(struct op_part *p)
{
    const struct sim_run *r = p->r;
    struct net_group g = { r->tp, 1 };
    double el = p->tokens * (double)r->cfg->hidden, exposed = 1 - r->engine.tp_hidden;
    double sum = el * (r->engine.sum_bytes > 0 ? r->engine.sum_bytes : 4);
    double gather = net_all_gather(p->c, g, el * row_el(r));
    double one = r->sp ? net_reduce_scatter(p->c, g, sum, sim_way(r)) + gather
                       : net_all_reduce(p->c, g, sum, sim_way(r));
    one += net_wait(p->c, g, op_at_once(r, p->c));
    p->t->forward.s[OP_TP] += one * exposed;
    p->t->backward_input.s[OP_TP] += (one + (r->sp && !r->engine.ring ? gather : 0)) * exposed;
}

/* ---- attention ---- */

/* Keys that a query sees on average. */
static double mean_keys(const struct sim_run *r, int64_t layer)
{
    double s = (double)r->seq_len,
           w = (double)model_layer_window(r->cfg, layer < r->cfg->n_layers ? layer : 0);
    return w > 0 && w < s ? w - w * (w - 1) / 2 / s : (s + 1) / 2;
}

static void add_scores(struct op_part *p, int64_t layer, double heads, double key_dim, double value_dim)
{
    const struct sim_run *r = p->r;
    double keys = mean_keys(r, layer), s = (double)r->seq_len;
    double flops = 2 * p->tokens * keys * heads * (key_dim + value_dim);
    enum sim_dtype d = wide(r);
    double peak = (p->c->peak[d] > 0 ? p->c->peak[d] : p->c->peak[SIM_F32]) * p->c->clock;
    double fit = key_dim / (key_dim + 32) / (128.0 / 160); /* narrow heads fill the units less */

    p->t->flops += flops * r->tp * r->cp;
    p->t->scores += flops * r->tp * r->cp;
    if (r->engine.unfused) {
        /* products of all pairs; scores written, read and written by softmax (and dropout), read again */
        double pairs = p->tokens * s * heads / p->speed, more = r->engine.unfused > 1 ? 5 : 0;
        double product = 2 * pairs * (key_dim + value_dim) / (peak * p->c->efficiency) * 1.3;
        p->t->forward.s[OP_ATTENTION] += product + (8 + more) * pairs / p->c->hbm_bytes_per_s;
        p->t->backward_input.s[OP_ATTENTION] += 2 * product + (14 + more / 5) * pairs / p->c->hbm_bytes_per_s;
        return;
    }
    peak *= (fit > 1.1 ? 1.1 : fit) * (r->engine.attention > 0 ? r->engine.attention : 1);
    if (r->engine.cp_contiguous) /* the last of the ranks sees 2 - 1 / cp times the mean */
        peak /= 2 - 1.0 / r->cp;
    p->t->forward.s[OP_ATTENTION] += flops / (peak * p->c->attention) / p->speed + p->c->kernel_s;
    p->t->backward_input.s[OP_ATTENTION] += 2.5 * flops / (peak * p->c->attention_backward) / p->speed +
                                            p->c->kernel_s;
}

/* Keys and values of whole sequences come together over cp; their gradients are summed. */
static void add_cp(struct op_part *p, double key_floats)
{
    const struct sim_run *r = p->r;
    struct net_group g = { r->cp, r->tp };
    double el = (double)(r->micro * r->seq_len) * key_floats, exposed = 1 - r->engine.cp_hidden;
    double sum = r->engine.ring ? row_el(r) : 4;
    double gather = net_all_gather(p->c, g, el * row_el(r));
    if (r->cp == 1)
        return;
    p->t->forward.s[OP_CP] += gather * exposed;
    p->t->backward_input.s[OP_CP] += (net_reduce_scatter(p->c, g, el * sum, sim_way(r)) +
                                      (r->engine.ring ? gather : 0)) *
                                     exposed;
}

static void add_attention(struct op_part *p, int64_t layer)
{
    const struct sim_run *r = p->r;
    const struct model_config *c = r->cfg;
    double tp = r->tp, h = (double)c->hidden, heads = (double)c->n_heads / tp, d = (double)c->head_dim;
    double kv = (double)c->n_kv / tp < 1 ? 1 : (double)c->n_kv / tp;
    double el = row_el(r);
    if (family_has(c, F_LATENT)) {
        double rope = (double)c->latent.rope_dim, nope = (double)c->latent.nope_dim;
        double v = (double)c->latent.v_dim, q_rank = (double)c->latent.q_rank;
        double kv_rank = (double)c->latent.kv_rank;
        if (q_rank > 0)
            add_dense(p, r->dtype, q_rank, h, 1);
        add_dense(p, r->dtype, heads * (nope + rope), q_rank > 0 ? q_rank : h, tp);
        add_dense(p, r->dtype, kv_rank + rope, h, 1);
        add_dense(p, r->dtype, heads * (nope + v), kv_rank, tp);
        add_scores(p, layer, heads, nope + rope, v);
        add_dense(p, r->dtype, h, heads * v, tp);
        /* latent rows are written and normed; keys and queries put together */
        add_rows(p, el * p->tokens * (6 * (q_rank + kv_rank) + 6 * heads * (nope + rope)),
                 el * p->tokens * (9 * (q_rank + kv_rank) + 8 * heads * (nope + rope)));
        add_cp(p, heads * (nope + rope + v));
        return;
    }
    add_dense(p, r->dtype, (heads + 2 * kv) * d, h, tp);
    add_scores(p, layer, heads, d, d);
    add_dense(p, r->dtype, h, heads * d, tp);
    add_rows(p, el * p->tokens * 2 * (heads + kv) * d, el * p->tokens * 2 * (heads + kv) * d);
    add_cp(p, 2 * kv * d);
}

/* ---- MLP and experts ---- */
static void add_mlp(struct op_part *p, double inter)
{
    const struct sim_run *r = p->r;
    double gated = family_has(r->cfg, F_GATE) ? 2 : 1, n = inter / r->tp, h = (double)r->cfg->hidden;
    add_dense(p, r->dtype, gated * n, h, r->tp);
    add_dense(p, r->dtype, h, n, r->tp);
    add_rows(p, row_el(r) * p->tokens * (gated + 1) * n, row_el(r) * p->tokens * (2 * gated + 2) * n);
}

/* Rows go to their experts and come back, forward and backward. */
static void add_dispatch(struct op_part *p, double rows)
{
    const struct sim_run *r = p->r;
    const struct sim_engine *g = &r->engine;
    struct net_group group = { r->ep, 1 };
    double bytes = rows * (double)r->cfg->hidden, chosen = (double)r->cfg->experts_per_token;
    double exposed = 1 - g->ep_hidden;
    double out = net_all_to_all(p->c, group, bytes * (g->ep_fp8 ? 1 : row_el(r)), g->ep_nodes, chosen);
    double back = net_all_to_all(p->c, group, bytes * row_el(r), g->ep_nodes, chosen);
    if (r->ep == 1)
        return;
    p->t->forward.s[OP_EP] += (out + back) * exposed;
    p->t->backward_input.s[OP_EP] += 2 * back * exposed;
}

static void add_experts(struct op_part *p)
{
    const struct sim_run *r = p->r;
    const struct model_config *c = r->cfg;
    double h = (double)c->hidden, all = (double)c->n_experts, chosen = (double)c->experts_per_token;
    double whole = r->ep > 1, uneven = r->imbalance > 1 ? r->imbalance : 1, el = row_el(r);
    double tokens = whole ? p->tokens / r->tp : p->tokens; /* whose rows this rank has, of an even load */
    double here = whole ? all / r->ep : all, inter = (double)c->expert_inter / (whole ? 1 : r->tp);
    double rows = tokens * chosen * uneven, gated = 2;

    add_product(p, wide(r), 1, r->sp ? tokens : p->tokens, all, h, r->sp ? r->tp : 1);
    p->t->dense += all * h;
    add_product(p, r->dtype, here, rows / here, gated * inter, h, r->tp / uneven);
    add_product(p, r->dtype, here, rows / here, h, inter, r->tp / uneven);
    p->t->experts += here * (gated + 1) * inter * h;
    /* scores and choices; rows sorted on both sides of the messages, weighted and added up */
    add_rows(p, el * rows * (8 * h + 3 * inter) + 12 * tokens * all,
             el * rows * (10 * h + 6 * inter) + 12 * tokens * all);
    add_dispatch(p, tokens * chosen * uneven);
    if (c->shared_inter)
        add_mlp(p, (double)c->shared_inter);
}

/* ---- whole parts ---- */

static double computing(const struct op_times *t)
{
    return t->s[OP_PRODUCTS] + t->s[OP_ATTENTION] + t->s[OP_ROWS];
}

/* Forward again in front of backward: all of it, or norms and activations. */
static void add_recompute(struct part_times *t, const struct sim_run *r)
{
    double before = computing(&t->backward_input);
    if (r->recompute == RECOMPUTE_FULL)
        op_add(&t->backward_input, &t->forward, 1);
    if (r->recompute == RECOMPUTE_SELECTIVE) {
        t->backward_input.s[OP_ROWS] += t->forward.s[OP_ROWS];
        t->backward_input.s[OP_ATTENTION] += r->engine.unfused ? t->forward.s[OP_ATTENTION] : 0;
        t->backward_input.s[OP_PRODUCTS] += r->engine.recompute_products * t->forward.s[OP_PRODUCTS];
    }
    t->again = computing(&t->backward_input) - before;
}

void op_layer(struct part_times *t, const struct sim_run *r, const struct cluster *c, int64_t layer)
{
    struct op_part p = begin(t, r, c);
    double h = (double)r->cfg->hidden, el = row_el(r);
    int64_t like = layer < r->cfg->n_layers ? layer : r->cfg->n_layers - 1;
    int sparse = model_has_experts(r->cfg, like), parallel = family_has(r->cfg, F_PARALLEL);
    /* two norms, two residuals (a parallel block: one each) */
    double sublayers = parallel ? 1 : 2;
    add_rows(&p, el * p.own_rows * h * 5 * sublayers, el * p.own_rows * h * 8 * sublayers);
    add_attention(&p, layer);
    if (sparse)
        add_experts(&p);
    else
        add_mlp(&p, (double)r->cfg->inter);

    add_tp(&p);
    if (!parallel && (!sparse || r->ep == 1 || r->cfg->shared_inter))
        add_tp(&p);
    t->units = 1;
    if (sparse) {
        t->forward.s[OP_ROWS] += r->engine.sync_s;
        t->backward_input.s[OP_ROWS] += r->engine.sync_s;
    }
    op_measure(t, r, c, OP_LAYER);
    add_recompute(t, r);
}

void op_embedding(struct part_times *t, const struct sim_run *r, const struct cluster *c)
{
    struct op_part p = begin(t, r, c);
    double h = (double)r->cfg->hidden, el = row_el(r);
    add_rows(&p, el * p.tokens * h * 2, (el + 4) * p.tokens * h * 2);
    t->dense = h * (double)r->cfg->vocab / r->tp;
    t->units = 1;
    add_tp(&p);
    if (!r->engine.ring && !r->sp) /* backward every rank has all rows */
        t->backward_input.s[OP_TP] = 0;
    op_measure(t, r, c, OP_EMBEDDING);
}

void op_head(struct part_times *t, const struct sim_run *r, const struct cluster *c)
{
    struct op_part p = begin(t, r, c);
    double h = (double)r->cfg->hidden, n = (double)r->cfg->vocab / r->tp;
    add_dense(&p, wide(r), n, h, r->tp);
    /* logits are read for the largest, for the sum, and turned into gradients, in fp32 */
    add_rows(&p, p.tokens * n * 10, p.tokens * n * 8);
    if (r->cfg->tied)
        t->dense = r->pp > 1 ? t->dense : 0;
    t->units = 1;
    add_tp(&p);
    if (!r->engine.ring && !r->sp) /* forward only largest logits and sums come together */
        t->forward.s[OP_TP] = r->tp > 1 ? 2 * net_all_reduce(c, (struct net_group){ r->tp, 1 }, 4 * p.tokens,
                                                             sim_way(r))
                                        : 0;
    op_measure(t, r, c, OP_HEAD);
}
