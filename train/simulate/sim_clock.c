/* sim_clock.c - see sim_clock.h. Ranks of one stage differ in nothing, so one of each runs: 16,384 ranks of
 * 16 stages are 16 lists of events. What all stages share (rates, jitter, the end of a step) comes behind. */
#include "train/simulate/sim_clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "train/simulate/op_measured.h"

const char *const clock_share_names[CLOCK_SHARES] = { "compute", "recompute", "tp",     "cp",
                                                      "ep",      "pp",        "bubble", "dp",
                                                      "update",  "offload",   "jitter" };

/* A part of the model on one rank: what a micro-batch takes, and what ZeRO moves. */
struct clock_chunk {
    struct part_times t;
    double forward, backward, backward_input, weight; /* seconds, what ZeRO 3 waits for included */
    double waits;                                     /* of forward and backward, those of ZeRO 3 */
    double sum_s, gather_s;                           /* of all its gradients, of all its weights */
    double last_begin, last_end;                      /* of its last backward */
};
struct clock_stage {
    struct clock_chunk *chunk; /* [chunks] */
    struct pipe_list list;
    int64_t at;
    double now, idle, sends;
    double computed; /* seconds of its actions, longer than they would take alone where stages share cores */
    double link[2];  /* when the wire up and the wire down are free */
    double end_sums;
    double update_s, gather_s;
};
struct clock {
    const struct sim_run *run;
    const struct cluster *c;
    struct clock_timeline *t;
    struct clock_stage *stage; /* [pp] */
    double *x, *dx;            /* [virtual stages][micros]: when a message has arrived; -1: not yet */
    int64_t micros;
    struct pipe_shape shape;
    double events;
};

/* The devices of a virtual stage. */
static const struct cluster *devices(const struct sim_run *run, const struct cluster *c, int64_t virtual)
{
    return run->second && virtual % run->pp >= run->pp - run->slow_stages ? run->second : c;
}

static double stage_speed(const struct sim_run *run, int64_t virtual)
{
    return run->slow_stages > 0 && virtual % run->pp >= run->pp - run->slow_stages ? run->slow_speed : 1;
}

/* Layers that a stage computes in `time` layers of the fast kind: the last one has the head, too. */
static int64_t within(const struct sim_run *run, int64_t stage, double time)
{
    int64_t V = (int64_t)run->pp * sim_chunks(run);
    double speed = stage_speed(run, stage);
    double n = time * speed - (stage == V - 1 ? run->end_layers : 0);
    return n < 1 ? 1 : (int64_t)(n + 1e-9);
}

/* Two kinds of devices: layers below a stage, where the slowest stage is as fast as can be. */
static int64_t cut_by_speed(const struct sim_run *run, int64_t stage, int64_t layers)
{
    int64_t V = (int64_t)run->pp * sim_chunks(run), below = 0;
    double low = 0, high = 2 * (double)layers / (run->slow_speed < 1 ? run->slow_speed : 1) + 1e3;
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        int64_t sum = 0;
        for (int64_t v = 0; v < V; v++)
            sum += within(run, v, middle);
        *(sum >= layers ? &high : &low) = middle;
    }
    for (int64_t v = 0; v < stage; v++) {
        int64_t n = within(run, v, high), left = layers - below - (V - 1 - v); /* a layer for each behind */
        below += n < left ? n : left;
    }
    return stage == V ? layers : below;
}

static double all_s(const struct part_times *t)
{
    return op_sum(&t->forward) + op_sum(&t->backward_input) + op_sum(&t->backward_weight);
}

void clock_second(struct sim_run *run, const struct cluster *c, const struct cluster *second, int stages)
{
    struct part_times layer[2], head;
    for (int i = 0; i < 2; i++)
        op_layer(&layer[i], run, i ? second : c, run->cfg->n_layers / 2);
    op_head(&head, run, second);
    run->second = second;
    run->slow_stages = stages;
    run->slow_speed = all_s(&layer[0]) / all_s(&layer[1]);
    run->end_layers = all_s(&head) / all_s(&layer[1]);
}

void clock_layers(const struct sim_run *run, int64_t stage, int64_t *first, int64_t *end)
{
    int64_t L = run->cfg->n_layers + run->mtp, V = (int64_t)run->pp * sim_chunks(run);
    int64_t more = run->engine.ends_count ? 2 : 0, skip = more / 2;
    *first = stage * (L + more) / V - skip;
    *end = (stage + 1) * (L + more) / V - skip;
    if (run->slow_stages > 0) {
        *first = cut_by_speed(run, stage, L);
        *end = cut_by_speed(run, stage + 1, L);
    }
    *first = *first < 0 ? 0 : *first;
    *end = *end > L ? L : *end < 0 ? 0 : *end;
}

static void keep_span(struct clock *k, struct clock_span s)
{
    struct clock_timeline *t = k->t;
    if (!t || t->n >= t->most)
        return;
    if (t->n == t->cap) {
        int64_t cap = t->cap ? 2 * t->cap : 1024;
        void *grown = realloc(t->span, sizeof *t->span * (size_t)cap);
        if (!grown)
            return;
        t->span = grown;
        t->cap = cap;
    }
    t->span[t->n++] = s;
}

/* ---- what a chunk takes ---- */

/* Groups of ranks that divide a state: dense parameters over dp and cp, experts over those with the same
 * ones. */
struct holders {
    struct net_group divide, copies;
};
static struct holders dense_holders(const struct sim_run *r)
{
    double all = (double)r->dp * r->cp, divide = r->shard > 0 && r->shard < all ? r->shard : all;
    return (struct holders){ { divide, r->tp }, { all / divide, r->tp * divide } };
}

static struct holders expert_holders(const struct sim_run *r)
{
    double all = (double)r->dp * r->cp * r->tp / (r->ep > 1 ? r->ep : r->tp);
    double stride = r->ep > 1 ? r->ep : r->tp;
    return (struct holders){ { all < 1 ? 1 : all, stride }, { 1, stride } };
}

static double sum_seconds(const struct sim_run *r, const struct cluster *c, struct holders h, double n)
{
    double el = r->engine.grad_bytes > 0 ? r->engine.grad_bytes : 4;
    double s = r->zero == 0 ? net_all_reduce(c, h.divide, n * el, sim_way(r))
                            : net_reduce_scatter(c, h.divide, n * el, sim_way(r));
    return h.copies.size > 1 ? s + net_all_reduce(c, h.copies, n * el / h.divide.size, sim_way(r)) : s;
}

static double el_weights(const struct sim_run *r)
{
    return r->dtype == SIM_F32 ? 4 : r->zero == 3 && r->dtype == SIM_FP8 ? 1 : 2;
}

static double gather_seconds(const struct sim_run *r, const struct cluster *c, struct holders h, double n)
{
    return net_all_gather(c, h.divide, n * el_weights(r));
}

/* ZeRO 3 fetches a unit while the one before it computes: what is longer than a unit's products is waited
 * for. */
static double not_hidden(double moved, double computed) { return moved > computed ? moved - computed : 0; }

/* Messages of a pass that cross the same shared wire as sums and gathers over dp. */
static double crossing(const struct sim_run *r, const struct cluster *c, const struct op_times *t)
{
    static const enum op_kind of[] = { OP_TP, OP_CP, OP_EP };
    const struct net_group group[] = { { r->tp, 1 }, { r->cp, r->tp }, { r->ep, 1 } };
    int level = net_level(c, dense_holders(r).divide);
    double s = 0;
    for (int i = 0; i < 3 && c->level[level].unit_bytes_per_s > 0; i++)
        s += group[i].size > 1 && net_level(c, group[i]) == level ? t->s[of[i]] : 0;
    return s;
}

/* Seconds that a pass waits for messages that are sent while it computes: the part that takes longer than the
 * pass. Where the pass's own messages cross the same wire, each side gets half of the bytes per second
 * (max-min) while both are on it. */
static double beside(double moved, double pass, double own)
{
    double both = pass > 0 && moved < pass ? own * moved / pass : own;
    return not_hidden(moved, pass) + (moved > 0 ? both : 0);
}

static void time_chunk(struct clock_chunk *k, const struct sim_run *r, const struct cluster *all,
                       int64_t virtual)
{
    const struct cluster *c = devices(r, all, virtual);
    struct part_times one;
    int64_t first, end, V = (int64_t)r->pp * sim_chunks(r);
    clock_layers(r, virtual, &first, &end);
    for (int64_t l = first, like = -1; l < end; l++) {
        int same = like >= 0 && l < r->cfg->n_layers &&
                   model_has_experts(r->cfg, l) == model_has_experts(r->cfg, like) &&
                   model_layer_window(r->cfg, l) == model_layer_window(r->cfg, like);
        if (!same)
            op_layer(&one, r, c, l);
        like = l < r->cfg->n_layers ? l : -1;
        op_part_add(&k->t, &one, 1);
    }
    if (virtual == 0) {
        op_embedding(&one, r, c);
        op_part_add(&k->t, &one, 1);
    }
    if (virtual == V - 1) {
        op_head(&one, r, c);
        op_part_add(&k->t, &one, 1 + r->mtp);
    }

    if (!r->second)
        op_slow(&k->t, stage_speed(r, virtual));
    struct holders dense = dense_holders(r), experts = expert_holders(r);
    k->sum_s = sum_seconds(r, c, dense, k->t.dense) + sum_seconds(r, c, experts, k->t.experts);
    k->gather_s = gather_seconds(r, c, dense, k->t.dense) + gather_seconds(r, c, experts, k->t.experts);
    k->forward = op_sum(&k->t.forward);
    k->backward_input = op_sum(&k->t.backward_input);
    k->weight = op_sum(&k->t.backward_weight);
    k->backward = k->backward_input + k->weight;
    if (r->zero == 3 && k->t.units > 0) {
        /* backward gathers too, and sums every micro-batch where weights do not stay */
        double unit = k->gather_s / k->t.units, both = k->gather_s + k->sum_s;
        struct op_times back = k->t.backward_input;
        op_add(&back, &k->t.backward_weight, 1);
        double forward = beside(k->gather_s, k->forward, crossing(r, c, &k->t.forward));
        double backward = beside(both, k->backward, crossing(r, c, &back));
        if (!r->engine.dp_overlap)
            forward = k->gather_s, backward = both;
        if (c->cores > 0) /* a rank's share of the packing, which a gather ends with */
            forward += op_measured_pack(r, c, (k->t.dense + k->t.experts) / ((double)r->dp * r->cp));
        k->waits = forward + backward + unit;
        k->forward += forward + unit;
        k->backward += backward;
        k->backward_input += backward;
    }
}

/* ---- the schedule ---- */
static double *arrival(const struct clock *k, double *of, int64_t virtual, int64_t micro)
{
    return &of[virtual * k->micros + micro];
}

/* Sends a message up or down; the wire takes one at a time. */
static void send(struct clock *k, int stage, int down, double *arrived)
{
    struct clock_stage *s = &k->stage[stage];
    const struct sim_run *r = k->run;
    double el = r->dtype == SIM_F32 ? 4 : 2,
           rows = (double)(r->micro * r->seq_len) / r->cp / (r->sp ? r->tp : 1);
    double stride = (double)r->tp * r->cp * r->dp;
    double bytes = rows * (double)r->cfg->hidden * el;
    int next = (stage + (down ? r->pp - 1 : 1)) % r->pp;
    double took = net_send(devices(r, k->c, stage), stride, bytes);
    double there = net_send(devices(r, k->c, next), stride, bytes); /* the slower end */
    took = there > took ? there : took;
    double begin = s->link[down] > s->now ? s->link[down] : s->now;
    s->link[down] = *arrived = begin + took;
    if (r->engine.wait_sends) {
        s->sends += *arrived - s->now;
        s->now = *arrived;
    }
}

static double seconds_of(const struct clock_chunk *c, enum pipe_op op, char *what)
{
    *what = op == PIPE_FORWARD ? 'F' : op == PIPE_BACKWARD ? 'B' : op == PIPE_BACKWARD_INPUT ? 'I' : 'W';
    return op == PIPE_FORWARD          ? c->forward
           : op == PIPE_BACKWARD       ? c->backward
           : op == PIPE_BACKWARD_INPUT ? c->backward_input
                                       : c->weight;
}

/* An action that computes has ended. */
static void computed(struct clock *k, int stage, const struct pipe_act *a, double begin)
{
    struct clock_stage *s = &k->stage[stage];
    struct clock_chunk *c = &s->chunk[a->chunk];
    char what;
    seconds_of(c, a->op, &what);
    if (a->micro == k->micros - 1 && a->op != PIPE_FORWARD && a->op != PIPE_BACKWARD_INPUT)
        c->last_begin = begin, c->last_end = s->now;
    s->computed += s->now - begin;
    keep_span(k, (struct clock_span){ stage, a->chunk, what, a->micro, begin, s->now });
    k->events++;
}

/* Runs one action. Returns 0: its message is not there yet. */
static int act(struct clock *k, int stage, const struct pipe_act *a)
{
    struct clock_stage *s = &k->stage[stage];
    int64_t virtual = (int64_t)a->chunk * k->run->pp + stage;
    double *from;
    char what;
    switch (a->op) {
    case PIPE_RECV_X:
    case PIPE_RECV_DX:
        from = arrival(k, a->op == PIPE_RECV_X ? k->x : k->dx, virtual, a->micro);
        if (*from < 0)
            return 0;
        if (*from > s->now) {
            s->idle += *from - s->now;
            s->now = *from;
        }
        break;
    case PIPE_SEND_X: send(k, stage, 0, arrival(k, k->x, virtual + 1, a->micro)); break;
    case PIPE_SEND_DX: send(k, stage, 1, arrival(k, k->dx, virtual - 1, a->micro)); break;
    default: {
        double begin = s->now;
        s->now += seconds_of(&s->chunk[a->chunk], a->op, &what);
        computed(k, stage, a, begin);
    }
    }
    return 1;
}

/* Every stage runs until it waits for a message; round and round until all are at their end. */
static int run_schedule(struct clock *k, struct err *e)
{
    int left = k->run->pp;
    while (left) {
        int moved = 0;
        left = 0;
        for (int i = 0; i < k->run->pp; i++) {
            struct clock_stage *s = &k->stage[i];
            while (s->at < s->list.n && act(k, i, &s->list.act[s->at])) {
                s->at++;
                moved = 1;
            }
            left += s->at < s->list.n;
        }
        if (left && !moved)
            return err_set(e, ERR_INTERNAL, "a simulated schedule waits for ever");
    }
    return 0;
}

/* ---- stages that share cores ---- */

static int is_message(enum pipe_op op)
{
    return op == PIPE_RECV_X || op == PIPE_RECV_DX || op == PIPE_SEND_X || op == PIPE_SEND_DX;
}

/* Where a stage stands: at an action that computes, with so much of it left, or waiting. */
struct sharer {
    double left, begin; /* left < 0: it waits */
};

/* A stage goes on until it computes, or waits for a message that is on its way until *arrives (0: not yet).
 */
static void go_on(struct clock *k, int stage, double now, struct sharer *x, double *arrives)
{
    struct clock_stage *s = &k->stage[stage];
    char what;
    s->now = s->now > now ? s->now : now;
    for (; s->at < s->list.n; s->at++) {
        if (s->now > now) { /* wait_sends: the stage waits until its message is sent */
            *arrives = *arrives <= 0 || s->now < *arrives ? s->now : *arrives;
            return;
        }
        const struct pipe_act *a = &s->list.act[s->at];
        int64_t virtual = (int64_t)a->chunk * k->run->pp + stage;
        if (!is_message(a->op)) {
            *x = (struct sharer){ seconds_of(&s->chunk[a->chunk], a->op, &what), now };
            return;
        }
        double *of = a->op == PIPE_RECV_X ? k->x : k->dx;
        double at = a->op == PIPE_RECV_X || a->op == PIPE_RECV_DX ? *arrival(k, of, virtual, a->micro) : now;
        if (at < 0 || at > now) {
            if (at > now && (*arrives <= 0 || at < *arrives))
                *arrives = at;
            return;
        }
        act(k, stage, a);
    }
}

/* All stages go on as far as they can: what one of them sends may let another go on. Returns how many are not
 * at their end. */
static int go_all_on(struct clock *k, double now, struct sharer *x, double *arrives)
{
    int left, moved;
    do {
        left = moved = 0;
        *arrives = 0;
        for (int i = 0; i < k->run->pp; i++) {
            struct clock_stage *s = &k->stage[i];
            int64_t was = s->at;
            if (x[i].left < 0)
                go_on(k, i, now, &x[i], arrives);
            moved |= s->at != was;
            left += s->at < s->list.n;
        }
    } while (moved);
    return left;
}

/* The stages that compute share the cores evenly, until the first of them ends its action or a message
 * arrives. */
static int run_shared(struct clock *k, struct err *e)
{
    int pp = k->run->pp, left;
    double now = 0, arrives;
    struct sharer *x = malloc(sizeof *x * (size_t)pp);
    if (!x)
        return err_set(e, ERR_MEMORY, "no memory for %d stages", pp);
    for (int i = 0; i < pp; i++)
        x[i].left = -1;
    while ((left = go_all_on(k, now, x, &arrives))) {
        double least = -1;
        int busy = 0;
        for (int i = 0; i < pp; i++) {
            busy += x[i].left >= 0;
            least = x[i].left >= 0 && (least < 0 || x[i].left < least) ? x[i].left : least;
        }
        if (!busy && arrives <= 0)
            break;
        double share = busy ? op_share(k->run, k->c, busy) : 1, end = now + least / share;
        double then = !busy || (arrives > 0 && arrives < end) ? arrives : end;
        for (int i = 0; i < pp; i++) {
            struct clock_stage *s = &k->stage[i];
            double was = x[i].left;
            if (was < 0)
                continue;
            x[i].left = was <= least && then >= end ? 0 : was - (then - now) * share;
            if (x[i].left > 1e-12 * was)
                continue;
            s->now = then;
            computed(k, i, &s->list.act[s->at++], x[i].begin);
            x[i].left = -1;
        }
        now = then;
    }
    free(x);
    return left ? err_set(e, ERR_INTERNAL, "a simulated schedule waits for ever") : 0;
}

/* Sums over dp: units become ready one after the other in a chunk's last backward, and queue. */
static void end_of_stage(struct clock *k, int stage)
{
    const struct sim_run *r = k->run;
    struct clock_stage *s = &k->stage[stage];
    const struct cluster *at = devices(r, k->c, stage);
    double queue = 0, params = 0, all = 0, counted = 0, gathers = 0, slower = 0, slices;
    double share = op_share(r, at, r->pp);
    for (int i = sim_chunks(r) - 1; i >= 0; i--) {
        struct clock_chunk *c = &s->chunk[i];
        double units = c->t.units > 0 ? c->t.units : 1, took = r->zero == 3 ? 0 : c->sum_s / units / share;
        double begin = r->engine.dp_overlap ? c->last_begin : s->now;
        double each = r->engine.dp_overlap ? (c->last_end - c->last_begin) / units : 0;
        if (r->engine.dp_overlap && took > 0)
            slower += beside(took * units, c->last_end - c->last_begin,
                             crossing(r, at, &c->t.backward_input)) -
                      not_hidden(took * units, c->last_end - c->last_begin);
        for (double u = 1; u <= units && took > 0; u++) {
            double ready = begin + u * each;
            queue = (queue > ready ? queue : ready) + took;
        }
        if (took > 0)
            keep_span(k, (struct clock_span){ stage, i, 'S', 0, queue - took * units, queue });
        gathers += r->zero == 1 || r->zero == 2 ? c->gather_s / share : 0;
        slices = dense_holders(r).divide.size;
        counted += c->t.dense / slices;
        params += c->t.dense / (r->zero ? slices : 1);
        slices = expert_holders(r).divide.size;
        counted += c->t.experts / slices;
        params += c->t.experts / (r->zero ? slices : 1);
        all += c->t.dense + c->t.experts;
    }
    /* all ranks wait for each other at the norm of the gradients */
    double wait = net_wait(at, (struct net_group){ sim_ranks(r), 1 }, sim_ranks(r)) / share;
    s->end_sums = (queue > s->now ? queue : s->now) + slower + wait;
    /* gradients, masters and two moments are read, masters, moments and weights written: 4 bytes each */
    s->update_s = (r->frozen ? 0.01 : 1) * params * (16 + 14) / at->hbm_bytes_per_s / op_speed(r, at);
    /* ranks of a machine share what they pack; stage 3 packs what it gathers */
    double packed = r->zero == 3 ? 0 : all / ((double)r->dp * r->cp);
    double measured = op_measured_update(r, at, params, counted, packed);
    s->update_s = (measured > 0 && !r->frozen ? measured : s->update_s) / share;
    /* beside the first forward pass there is as much time as it takes on the way up */
    s->gather_s = r->engine.gather_overlap ? not_hidden(gathers, s->chunk[0].forward) : gathers;
    s->gather_s += wait; /* and at the end of the step */
}

/* ---- the result ---- */

/* Deviations of the slowest of n machines above their mean (the expected largest of n normal values). */
static double slowest_of(double n) { return n > 1 ? sqrt(2 * log(n)) : 0; }

/* The end of a stage's step in the timeline. */
static void keep_end(struct clock *k, int stage)
{
    const struct clock_stage *s = &k->stage[stage];
    double at = s->end_sums;
    if (s->update_s > 0)
        keep_span(k, (struct clock_span){ stage, 0, 'U', 0, at, at + s->update_s });
    at += s->update_s;
    if (s->gather_s > 0)
        keep_span(k, (struct clock_span){ stage, 0, 'G', 0, at, at + s->gather_s });
}

static void share_out(struct clock_result *r, const struct clock *k, double end)
{
    const struct sim_run *run = k->run;
    static const enum clock_share of[OP_KINDS] = { CLOCK_COMPUTE, CLOCK_COMPUTE, CLOCK_COMPUTE,
                                                   CLOCK_TP,      CLOCK_CP,      CLOCK_EP };
    for (int i = 0; i < run->pp; i++) {
        const struct clock_stage *s = &k->stage[i];
        double used = 0, alone = 0;
        for (int j = 0; j < sim_chunks(run); j++) {
            const struct clock_chunk *c = &s->chunk[j];
            alone += (c->forward + c->backward_input + c->weight) * (double)k->micros;
        }
        double longer = alone > 0 && s->computed > alone ? s->computed / alone : 1,
               n = longer * (double)k->micros;
        for (int j = 0; j < sim_chunks(run); j++) {
            const struct part_times *t = &s->chunk[j].t;
            struct op_times sum = t->forward;
            op_add(&sum, &t->backward_input, 1);
            op_add(&sum, &t->backward_weight, 1);
            for (int o = 0; o < OP_KINDS; o++)
                r->share[of[o]] += sum.s[o] * n / run->pp;
            r->share[CLOCK_COMPUTE] -= t->again * n / run->pp;
            r->share[CLOCK_AGAIN] += t->again * n / run->pp;
            r->share[CLOCK_DP] += s->chunk[j].waits * n / run->pp;
            used += (op_sum(&sum) + s->chunk[j].waits) * n;
        }
        r->share[CLOCK_PP] += s->sends / run->pp;
        r->share[CLOCK_DP] += (s->end_sums - s->now + s->gather_s) / run->pp;
        r->share[CLOCK_UPDATE] += s->update_s / run->pp;
        used += s->sends + s->end_sums - s->now + s->gather_s + s->update_s;
        r->share[CLOCK_BUBBLE] += (end - used) / run->pp;
    }
}

/* What a disk or the host's bus takes longer than what it may hide behind: the last backward and the next
 * forward; of weights that are fetched, each micro-batch. */
static double offload_seconds(const struct clock *k)
{
    const struct sim_run *r = k->run;
    double one = 0;
    for (int i = 0; i < sim_chunks(r); i++)
        one += k->stage[0].chunk[i].forward + k->stage[0].chunk[i].backward;
    return not_hidden(r->disk_bytes / k->c->disk_bytes_per_s, one) +
           (double)k->micros * not_hidden(r->disk_fetched / k->c->disk_bytes_per_s, one) +
           r->host_bytes / k->c->host_bytes_per_s;
}

static void finish(struct clock_result *r, const struct clock *k)
{
    const struct sim_run *run = k->run;
    double end = 0, flops = 0, ranks = sim_ranks(run);
    for (int i = 0; i < run->pp; i++) {
        const struct clock_stage *s = &k->stage[i];
        double at = s->end_sums + s->update_s + s->gather_s;
        end = at > end ? at : end;
        for (int j = 0; j < sim_chunks(run); j++)
            flops += s->chunk[j].t.flops;
    }
    share_out(r, k, end);

    double per_machine = k->c->level[0].ranks > 0 ? k->c->level[0].ranks : ranks;
    r->share[CLOCK_OFFLOAD] = offload_seconds(k);
    r->step_s = end + r->share[CLOCK_OFFLOAD];
    r->share[CLOCK_JITTER] = r->step_s * k->c->jitter * slowest_of(ranks / per_machine);
    if (run->slow > 0 && run->slow < 1) /* all wait for it at every sum */
        r->share[CLOCK_JITTER] += r->share[CLOCK_COMPUTE] * (1 / run->slow - 1);
    r->step_s += r->share[CLOCK_JITTER];

    double peak = 0;
    for (int i = 0; i < run->pp; i++) {
        const double *of = devices(run, k->c, i)->peak;
        peak += (run->dtype == SIM_F32 && of[SIM_F32] > 0 ? of[SIM_F32] : of[SIM_BF16]) / run->pp;
    }
    r->flops = (run->frozen ? 2 : 3) * flops * (double)(k->micros * run->dp);
    r->flops_per_s = r->flops / r->step_s / ranks;
    r->mfu = peak > 0 ? r->flops_per_s / peak : 0;
    r->tokens_per_s = (double)(run->rows * run->seq_len) / r->step_s / ranks;
    r->events = k->events;
}

static int check(const struct sim_run *r, struct err *e)
{
    if (r->tp < 1 || r->pp < 1 || r->cp < 1 || r->dp < 1 || r->micro < 1 || r->seq_len < 1)
        return err_set(e, ERR_USAGE,
                       "a simulated layout needs degrees, a micro-batch and a sequence of 1 or more");
    if (r->rows < 1 || r->rows % ((int64_t)r->dp * r->micro))
        return err_set(e, ERR_USAGE,
                       "a batch of %lld sequences does not divide by dp %d times a micro-batch of %lld",
                       (long long)r->rows, r->dp, (long long)r->micro);
    if ((int64_t)r->pp * sim_chunks(r) > r->cfg->n_layers + r->mtp + (r->engine.ends_count ? 2 : 0))
        return err_set(e, ERR_USAGE, "%d stages for %lld layers: use at most one stage a layer",
                       r->pp * sim_chunks(r), (long long)r->cfg->n_layers);
    return 0;
}

static int open_stages(struct clock *k, struct err *e)
{
    const struct sim_run *r = k->run;
    int chunks = sim_chunks(r), rc = pipe_check(&k->shape, e);
    size_t n = (size_t)r->pp * (size_t)chunks * (size_t)k->micros;
    if (rc < 0)
        return rc;
    k->stage = calloc((size_t)r->pp, sizeof *k->stage);
    k->x = malloc(sizeof *k->x * n);
    k->dx = malloc(sizeof *k->dx * n);
    if (!k->stage || !k->x || !k->dx)
        return err_set(e, ERR_MEMORY, "no memory for the events of %lld micro-batches", (long long)k->micros);
    for (size_t i = 0; i < n; i++)
        k->x[i] = k->dx[i] = -1;
    for (int i = 0; i < r->pp && rc >= 0; i++) {
        struct clock_stage *s = &k->stage[i];
        if (!(s->chunk = calloc((size_t)chunks, sizeof *s->chunk)))
            return err_set(e, ERR_MEMORY, "no memory for %d chunks", chunks);
        for (int j = 0; j < chunks; j++)
            time_chunk(&s->chunk[j], r, k->c, (int64_t)j * r->pp + i);
        rc = pipe_make(&s->list, &k->shape, i, e);
    }
    return rc;
}

int clock_step(struct clock_result *r, const struct sim_run *run, const struct cluster *c,
               struct clock_timeline *t, struct err *e)
{
    struct clock k = { .run = run, .c = c, .t = t };
    int rc;
    memset(r, 0, sizeof *r);
    TRY(check(run, e));
    k.micros = sim_micros(run);
    k.shape = (struct pipe_shape){ run->schedule, run->pp, sim_chunks(run), k.micros };
    TRY(open_stages(&k, e));
    TRY(c->cores > 0 ? run_shared(&k, e) : run_schedule(&k, e));
    for (int i = 0; i < run->pp; i++) {
        end_of_stage(&k, i);
        keep_end(&k, i);
    }
    finish(r, &k);
out:
    for (int i = 0; k.stage && i < run->pp; i++) {
        pipe_free(&k.stage[i].list);
        free(k.stage[i].chunk);
    }
    free(k.stage);
    free(k.x);
    free(k.dx);
    return rc < 0 ? rc : 0;
}
