/* step.c - see step.h. */
#include "train/checkpoint/publisher.h"
#include "train/elastic/relayout.h"
#include "train/step.h"

#include <math.h>
#include <string.h>
#include "base/alter.h"
#include "base/clock.h"
#include "base/fmath.h"
#include "base/jx.h"
#include "train/loss.h"

#define PI 3.14159265358979323846

double schedule_lr(const struct train_opts *o, int64_t step)
{
    double span = (double)(o->steps - o->warmup);
    double x = span > 0 ? (double)(step - o->warmup) / span : 1;
    double down = o->lr - o->min_lr;
    if (step < o->warmup)
        return o->lr * (double)(step + 1) / (double)o->warmup;
    x = x > 1 ? 1 : x;
    switch (o->schedule) {
    case SCHEDULE_COSINE: return o->min_lr + down / 2 * (1 + fm_cos(PI * x));
    case SCHEDULE_LINEAR: return o->lr - down * x;
    case SCHEDULE_WSD: return x < 0.8 ? o->lr : o->lr - down * (x - 0.8) / 0.2;
    default: return o->lr;
    }
}

/* ---- one micro-batch ---- */
static int64_t micros_per_super(const struct work *w) { return w->plan.local / w->plan.micro; }

/* Reads the rows of micro-batch k of this step into ids and targets from element `at` on, and tells the
 * slot where their documents begin. */
static int read_rows(struct work *w, int64_t k, int64_t at, struct train_work *slot, struct err *e)
{
    const struct mesh *mesh = &w->ranks->mesh;
    int64_t per = micros_per_super(w), super = k / per, row = k % per * w->plan.micro;
    int64_t rows = work_rows(w), documents = w->run->o.documents, first = work_sample(w);
    for (int64_t j = 0; j < w->plan.micro; j++) {
        int64_t r = batch_row(&w->plan, mesh->size[AXIS_DP], super, mesh->at[AXIS_DP], row + j);
        int64_t window = data_window(w->data, first + r);
        int rc = work_read(w, w->data, window, at + j * rows, e);
        if (rc >= 0 && documents)
            rc = w->n_documents[j] = data_documents(w->data, window, w->document_begin + j * documents,
                                                    (int)documents, e);
        if (rc < 0)
            return rc;
    }
    if (documents)
        train_work_documents(slot, w->n_documents, w->document_begin);
    return 0;
}

/* Altered: a micro-batch's sum is rounded before it is added. */
static int64_t add_rounded(struct xsum *loss, const float *logprobs, const float *weight, int64_t n)
{
    struct xsum part = { 0 };
    n = loss_add(&part, logprobs, weight, n);
    xsum_add(loss, (double)(float)xsum_double(&part));
    return n;
}

/* Adds the losses of a micro-batch, where this rank has them. */
static void add_losses(const struct work *w, int chunk, int64_t at, struct xsum *loss)
{
    int64_t rows = w->plan.micro * work_rows(w);
    const float *weight = data_weighted(w->data) ? w->weight + at : NULL;
    if (!w->ranks->mesh.at[AXIS_TP] && w->model.chunk[chunk].has_head)
        ORDER("loss_exact", loss_add, add_rounded)(loss, w->logprobs, weight, rows);
}

/* The micro-batch of a step whose gradients are added as number k of n: ascending, as the contract asks. */
static int64_t ascending(int64_t n, int64_t k)
{
    (void)n;
    return k;
}
static int64_t descending(int64_t n, int64_t k) { return n - 1 - k; }

/* ---- actions of the pipeline schedule ---- */
/* What an action works on. Micro-batch k is in slot k % in_flight of its chunk from its forward to its
 * backward, in deferred slot k % late between both halves of its backward. */
struct place {
    struct train_work *slot;
    struct deferred_grads *deferred; /* NULL: the schedule splits no backward of this chunk */
    int64_t at;                      /* first element in ids and targets */
};

static struct place place_of(const struct work *w, const struct pipe_act *a)
{
    int64_t slot = w->first_slot[a->chunk] + a->micro % w->schedule.in_flight[a->chunk];
    int64_t n_deferred = w->schedule.deferred[a->chunk];
    struct place p = { w->slot[slot], NULL, slot * w->slot_seqs * work_rows(w) };
    if (n_deferred)
        p.deferred = w->deferred[w->first_deferred[a->chunk] + a->micro % n_deferred];
    return p;
}

/* Pipeline ranks are a ring: the last rank sends to the first one's next chunk. */
static int exchange(struct work *w, const struct pipe_act *a, struct train_work *slot, struct err *e)
{
    struct comm *x = w->ranks->mesh.axis[AXIS_PP], *dx = w->pp_back;
    int n = w->ranks->layout.pp, me = w->ranks->mesh.at[AXIS_PP];
    int before = (me + n - 1) % n, behind = (me + 1) % n, rc;
    size_t bytes = train_work_bytes(slot);
    double began = clock_s();
    switch (a->op) {
    case PIPE_SEND_X: return comm_send(x, train_work_output(slot), bytes, behind, e);
    case PIPE_SEND_DX: return comm_send(dx, train_work_grad(slot), bytes, before, e);
    case PIPE_RECV_X: rc = comm_recv(x, train_work_input(slot), bytes, before, e); break;
    default: rc = comm_recv(dx, train_work_grad(slot), bytes, behind, e); break;
    }
    w->waited_s += clock_s() - began;
    return rc;
}

static int forward(struct work *w, const struct pipe_act *a, struct place p, struct xsum *loss, struct err *e)
{
    int64_t n = w->plan.supers * micros_per_super(w);
    int64_t micro = (ALTERED("micro_order") ? descending : ascending)(n, a->micro);
    int rc;
    TRY(read_rows(w, micro, p.at, p.slot, e));
    TRY(model_train_forward(w->weights, p.slot, w->ids + p.at, w->targets + p.at, w->logprobs, e));
    add_losses(w, a->chunk, p.at, loss);
out:
    return rc;
}

/* What the weighted sum of the losses of a step is divided by. */
static double divisor_of(const struct work *w)
{
    int64_t asked = w->run->o.loss_divisor;
    return (double)(asked ? asked : w->n_targets);
}

/* Backward of the loss's mean over the global batch: one rounding a target. */
static int backward(struct work *w, struct place p, struct err *e)
{
    const float *weight = data_weighted(w->data) ? w->weight + p.at : NULL;
    loss_scales(w->scale, weight, divisor_of(w), w->plan.micro * work_rows(w));
    return model_train_backward(w->weights, p.slot, w->ids + p.at, w->targets + p.at, w->scale,
                                zero_grads(w->zero), e);
}

/* The gradients of micro-batch `micro` are the next ones to be added. */
static int begin_rows(struct work *w, int64_t micro, struct err *e)
{
    int64_t per = micros_per_super(w);
    return zero_begin_rows(w->zero, micro / per, micro % per * w->plan.micro, e);
}

static int run_action(struct work *w, const struct pipe_act *a, struct xsum *loss, struct err *e)
{
    struct place p = place_of(w, a);
    int rc = 0;
    switch (a->op) {
    case PIPE_RECV_X:
    case PIPE_RECV_DX:
    case PIPE_SEND_X:
    case PIPE_SEND_DX: return exchange(w, a, p.slot, e);
    case PIPE_FORWARD: return forward(w, a, p, loss, e);
    case PIPE_BACKWARD: TRY(begin_rows(w, a->micro, e)); return backward(w, p, e);
    case PIPE_BACKWARD_INPUT: train_work_defer(p.slot, p.deferred); return backward(w, p, e);
    case PIPE_BACKWARD_WEIGHT:
        TRY(begin_rows(w, a->micro, e));
        return model_train_deferred(p.slot, p.deferred, zero_grads(w->zero), e);
    }
out:
    return rc;
}

/* ---- the update ---- */
/* Targets of the global batch whose weight is not 0: every rank needs them before its first backward. Each
 * window is counted by one rank. */
static int count_targets(struct work *w, struct err *e)
{
    const struct mesh *mesh = &w->ranks->mesh;
    int64_t per = micros_per_super(w), n_micros = w->plan.supers * per, first = work_sample(w), n = 0;
    int mine = !mesh->at[AXIS_TP] && !mesh->at[AXIS_CP] && !mesh->at[AXIS_PP], rc = 0;

    w->n_targets = w->plan.rows * w->run->o.seq_len;
    if (!data_weighted(w->data))
        return 0;
    for (int64_t i = 0; mine && i < n_micros * w->plan.micro; i++) {
        int64_t k = i / w->plan.micro, row = k % per * w->plan.micro + i % w->plan.micro;
        int64_t r = batch_row(&w->plan, mesh->size[AXIS_DP], k / per, mesh->at[AXIS_DP], row);
        TRY(data_weights(w->data, data_window(w->data, first + r), w->window_weight, e));
        for (int64_t t = 0; t < w->run->o.seq_len; t++)
            n += w->window_weight[t] != 0;
    }
    if (!ALTERED("loss_divisor"))
        TRY(comm_all_reduce_i64(mesh->all, &n, 1, e));
    w->n_targets = n;
out:
    return rc;
}

/* The exact sum of the global batch's losses by the divisor, the same on every rank. A signal that one rank
 * received stops all. */
static int reduce_loss(const struct work *w, struct xsum *loss, double divisor, struct step_result *r,
                       struct err *e)
{
    enum { ASKS = 1 << 24 }; /* above the sum of all ranks' signals */
    const struct ranks *ranks = w->ranks;
    int64_t all[XSUM_LIMBS + 3];
    int rc;
    xsum_carry(loss);
    memcpy(all, loss->limb, sizeof loss->limb);
    all[XSUM_LIMBS] = loss->n_nan;
    all[XSUM_LIMBS + 1] = loss->n_inf;
    all[XSUM_LIMBS + 2] = world_stop_signal(ranks->world) + (relayout_is_asked(w->relayout) ? ASKS : 0);
    TRY(comm_all_reduce_i64(ranks->mesh.all, all, XSUM_LIMBS + 3, e));

    memcpy(loss->limb, all, sizeof loss->limb);
    loss->n_nan = all[XSUM_LIMBS];
    loss->n_inf = all[XSUM_LIMBS + 1];
    r->stop = all[XSUM_LIMBS + 2] % ASKS != 0;
    r->relayout = all[XSUM_LIMBS + 2] >= ASKS;
    r->loss = divisor > 0 ? (float)(xsum_double(loss) / divisor) : 0;
out:
    return rc;
}

/* AdamW's constants of update `step`; the gradients are scaled down where their norm is above --clip. */
static struct adamw adamw_of(const struct train_opts *o, int64_t step, double lr, double norm)
{
    double c = o->clip > 0 ? o->clip / (norm + 1e-6) : 1;
    struct adamw h = { .lr = (float)lr, .beta1 = o->beta1, .beta2 = o->beta2, .eps = (float)o->eps };
    h.bias1 = (float)(1 - fm_pow(o->beta1, (double)(step + 1)));
    h.bias2 = (float)sqrt(1 - fm_pow(o->beta2, (double)(step + 1)));
    h.clip = c < 1 ? (float)c : 1.0f;
    return h;
}

/* A step without a finite loss and norm changes nothing. More than MOST_SKIPS in a row are no accident of the
 * data. */
static int skip_update(struct work *w, struct runlog *log, float step_loss, double norm, struct err *e)
{
    enum { MOST_SKIPS = 10 };
    int64_t step = w->at.step + 1;
    char loss[32], size[32];
    if (++w->n_skipped > MOST_SKIPS)
        return err_set(e, ERR_NUMBER,
                       "step %lld: loss %g, gradient norm %g, the %dth such step in a row: lower --lr or "
                       "lengthen --warmup",
                       (long long)step, (double)step_loss, norm, w->n_skipped);
    log_line(&log->term, "step %lld: loss %g, gradient norm %g: the update is skipped", (long long)step,
             (double)step_loss, norm);
    runlog_event(log, w->at.step, "skip", "\"loss\":%s,\"grad_norm\":%s", jx_float32(step_loss, loss),
                 jx_float32((float)norm, size));
    return 0;
}

static int update(struct work *w, struct runlog *log, struct step_result *r, struct err *e)
{
    const struct train_opts *o = &w->run->o;
    double norm;
    int rc;
    TRY(zero_norm(w->zero, &norm, e));
    TRY(publish_release(w->publish, e));
    r->norm = (float)norm;
    r->lr = schedule_lr(o, w->at.step);
    if (!w->n_targets) {
        TRY(zero_discard(w->zero, e));
        log_line(&log->term, "step %lld: no target of the batch has a weight: the update is skipped",
                 (long long)w->at.step + 1);
        runlog_event(log, w->at.step + 1, "skip", "\"targets\":0");
    } else if (isfinite(r->loss) && isfinite(norm)) {
        struct adamw h = adamw_of(o, w->at.step, r->lr, norm);
        TRY(zero_update(w->zero, &h, o->weight_decay, e));
        w->n_skipped = 0;
    } else {
        TRY(zero_discard(w->zero, e));
        TRY(skip_update(w, log, r->loss, norm, e));
    }
    w->at.step++;
out:
    return rc;
}

/* The most rounds of the step on any rank; the model counts from 0 again. */
static int most_rounds(struct work *w, struct step_result *r, struct err *e)
{
    struct model *m = &w->model;
    if (!w->rounds)
        return 0;
    size_t bytes = sizeof *m->rounds * (size_t)m->n_layers;
    int rc;

    memcpy(w->rounds, m->rounds, bytes);
    memset(m->rounds, 0, bytes);
    TRY(comm_all_reduce_max(w->ranks->mesh.all, w->rounds, m->n_layers, e));
    r->rounds = w->rounds;
out:
    return rc;
}

int step_run(struct work *w, struct runlog *log, struct step_result *r, struct err *e)
{
    struct trace *trace = w->ranks->trace;
    struct xsum loss = { 0 };
    double began = clock_s();
    int64_t traced = trace_now(trace);
    int rc;
    runlog_begin_step(log);
    w->waited_s = 0;

    balance_begin_step(w);
    struct adamw expected = adamw_of(&w->run->o, w->at.step, schedule_lr(&w->run->o, w->at.step), 0);
    zero_expect(w->zero, &expected, w->run->o.weight_decay);
    TRY(count_targets(w, e));
    for (int64_t i = 0; i < w->schedule.n; i++)
        TRY(run_action(w, &w->schedule.act[i], &loss, e));
    TRY(reduce_loss(w, &loss, divisor_of(w), r, e));
    TRY(update(w, log, r, e));
    TRY(balance_sum(w, e));
    if (!w->n_skipped)
        balance_update(w);
    r->targets = data_weighted(w->data) ? w->n_targets : -1;
    r->loads = w->balance.loads;
    TRY(most_rounds(w, r, e));
    if (w->offload) {
        w->offloaded = offload_count(w->offload);
        r->offload = &w->offloaded;
    }

    r->seconds = clock_s() - began;
    trace_span(trace, TRACE_PHASE, "step", NULL, traced, (struct trace_args){ 0 });
    r->bubble = w->waited_s / r->seconds;
    if (w->at.step > w->at.first_step + 1) { /* the first one waits for memory and for ranks that start */
        w->all_waited_s += w->waited_s;
        w->all_steps_s += r->seconds;
    }
out:
    return rc;
}
