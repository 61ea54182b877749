/* step.c - one update: rows of the global batch through forward and backward, gradients summed, norm, clip,
 * AdamW. */
#include <math.h>
#include <string.h>
#include "base/alter.h"
#include "base/clock.h"
#include "base/fmath.h"
#include "base/jx.h"
#include "train/trainer.h"

#define PI 3.14159265358979323846

/* Learning rate of update `step` (from 0). Warm-up lr (s+1)/warmup; then by schedule down to min_lr at the
 * last step. */
double schedule_lr(const struct train_opts *o, int64_t step)
{
    double span = (double)(o->steps - o->warmup), x = span > 0 ? (double)(step - o->warmup) / span : 1,
           down = o->lr - o->min_lr;
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

/* The rows of micro-batch k of this step, into ids and targets from `at` on; their documents. */
static int read_rows(struct trainer *t, int64_t k, int64_t at, struct train_work *w, struct err *e)
{
    int64_t per = t->plan.local / t->plan.micro, super = k / per, row = k % per * t->plan.micro;
    int64_t T = t->o.seq_len, G = t->plan.rows, step = t->first_sample + (t->step - t->first_step) * G;
    for (int64_t j = 0; j < t->plan.micro; j++) {
        int64_t window = data_window(t->data, step + batch_row(&t->plan, t->mesh.size[AXIS_DP], super,
                                                               t->mesh.at[AXIS_DP], row + j));
        int rc = data_read(t->data, window, t->ids + at + j * T, t->targets + at + j * T, e);
        if (rc >= 0 && t->o.documents)
            rc = t->n_documents[j] = data_documents(t->data, window, t->document_begin + j * t->o.documents,
                                                    (int)t->o.documents, e);
        if (rc < 0)
            return rc;
    }
    if (t->o.documents)
        train_work_documents(w, t->n_documents, t->document_begin);
    return 0;
}

static void add_losses(struct trainer *t, int chunk, struct xsum *loss)
{
    int64_t rows = t->plan.micro * t->o.seq_len;
    struct xsum part = { 0 };
    if (t->mesh.at[AXIS_TP] || !t->model.chunk[chunk].has_head)
        return;
    for (int64_t i = 0; i < rows; i++)
        xsum_add(ALTERED("loss_exact") ? &part : loss, -(double)t->logprobs[i]);
    if (ALTERED("loss_exact")) /* a micro-batch's sum rounded before it is added */
        xsum_add(loss, (double)(float)xsum_double(&part));
}

/* Where a micro-batch's weight gradients are between both halves of its backward. */
static struct train_late *late_of(const struct trainer *t, const struct pipe_act *a)
{
    return t->late[t->first_late[a->chunk] + a->micro % t->schedule.late[a->chunk]];
}

/* One action of the pipeline schedule. Micro-batch k lives in slot k % in_flight of its chunk from its
 * forward to its backward. The
 * neighbours are those of a ring: behind the last rank comes the first one's next chunk. */
static int run_action(struct trainer *t, const struct pipe_act *a, struct xsum *loss, struct err *e)
{
    int64_t slot = t->first_work[a->chunk] + a->micro % t->schedule.in_flight[a->chunk];
    int64_t at = slot * t->work_seqs * t->o.seq_len, per = t->plan.local / t->plan.micro;
    struct train_work *w = t->work[slot];
    struct comm *x = t->mesh.axis[AXIS_PP], *dx = t->pipe_back;
    int n = t->layout.pp, before = (t->mesh.at[AXIS_PP] + n - 1) % n, behind = (t->mesh.at[AXIS_PP] + 1) % n,
        rc;
    size_t bytes = train_work_bytes(w);
    float scale = (float)(1.0 / (double)(t->plan.rows * t->o.seq_len));
    double began = clock_s();
    switch (a->op) {
    case PIPE_RECV_X:
    case PIPE_RECV_DX:
        rc = a->op == PIPE_RECV_X ? comm_recv(x, train_work_input(w), bytes, before, e)
                                  : comm_recv(dx, train_work_grad(w), bytes, behind, e);
        t->waited_s += clock_s() - began;
        return rc;
    case PIPE_SEND_X: return comm_send(x, train_work_output(w), bytes, behind, e);
    case PIPE_SEND_DX: return comm_send(dx, train_work_grad(w), bytes, before, e);
    case PIPE_FORWARD:
        TRY(read_rows(t, ALTERED("micro_order") ? t->plan.supers * per - 1 - a->micro : a->micro, at, w, e));
        TRY(model_train_forward(&t->model, t->weights, w, t->ids + at, t->targets + at, t->logprobs, e));
        add_losses(t, a->chunk, loss);
        return 0;
    case PIPE_BACKWARD:
        TRY(zero_begin_rows(t->zero, a->micro / per, a->micro % per * t->plan.micro, e));
        return model_train_backward(&t->model, t->weights, w, t->ids + at, t->targets + at, scale,
                                    zero_grads(t->zero), e);
    case PIPE_BACKWARD_INPUT:
        train_work_leave(w, late_of(t, a));
        return model_train_backward(&t->model, t->weights, w, t->ids + at, t->targets + at, scale,
                                    zero_grads(t->zero), e);
    case PIPE_BACKWARD_WEIGHT:
        TRY(zero_begin_rows(t->zero, a->micro / per, a->micro % per * t->plan.micro, e));
        return model_train_late_weights(&t->model, w, late_of(t, a), zero_grads(t->zero), e);
    }
    rc = 0;
out:
    return rc;
}

/* The exact mean over the global batch, the same on every rank; a signal seen by one rank stops all. */
static int reduce_loss(struct trainer *t, struct xsum *loss, int64_t n, struct step_result *r, struct err *e)
{
    int64_t all[XSUM_LIMBS + 3];
    int rc;
    xsum_carry(loss);
    memcpy(all, loss->limb, sizeof loss->limb);
    all[XSUM_LIMBS] = loss->n_nan;
    all[XSUM_LIMBS + 1] = loss->n_inf;
    all[XSUM_LIMBS + 2] = world_stop_signal(t->world);
    TRY(comm_all_reduce_i64(t->mesh.all, all, XSUM_LIMBS + 3, e));
    memcpy(loss->limb, all, sizeof loss->limb);
    loss->n_nan = all[XSUM_LIMBS];
    loss->n_inf = all[XSUM_LIMBS + 1];
    r->stop = all[XSUM_LIMBS + 2] != 0;
    r->loss = (float)(xsum_double(loss) / (double)n);
out:
    return rc;
}

static struct adamw adamw_of(const struct train_opts *o, int64_t step, double lr, double norm)
{
    double c = o->clip > 0 ? o->clip / (norm + 1e-6) : 1;
    struct adamw h = { .lr = (float)lr, .beta1 = o->beta1, .beta2 = o->beta2, .eps = (float)o->eps };
    h.bias1 = (float)(1 - fm_pow(o->beta1, (double)(step + 1)));
    h.bias2 = (float)sqrt(1 - fm_pow(o->beta2, (double)(step + 1)));
    h.clip = c < 1 ? (float)c : 1.0f;
    return h;
}

/* A step without a finite loss and norm changes nothing; so many in a row are no accident of the data. */
static int skip_update(struct trainer *t, const struct step_result *r, double norm, struct err *e)
{
    enum { MOST_SKIPS = 10 };
    char loss[32], size[32];
    if (++t->skipped > MOST_SKIPS)
        return err_set(e, ERR_NUMBER,
                       "step %lld: loss %g, gradient norm %g, the %dth such step in a row: lower --lr or "
                       "lengthen --warmup",
                       (long long)t->step + 1, (double)r->loss, norm, t->skipped);
    log_line(&t->log, "step %lld: loss %g, gradient norm %g: the update is skipped", (long long)t->step + 1,
             (double)r->loss, norm);
    runlog_event(t, "skip", "\"loss\":%s,\"grad_norm\":%s", jx_float32(r->loss, loss),
                 jx_float32((float)norm, size));
    return 0;
}

int step_run(struct trainer *t, struct step_result *r, struct err *e)
{
    struct xsum loss = { 0 };
    double began = clock_s(), norm;
    int64_t traced = trace_now(t->trace);
    int rc;
    runlog_begin_step(t);
    t->waited_s = 0;
    for (int64_t i = 0; i < t->schedule.n; i++)
        TRY(run_action(t, &t->schedule.act[i], &loss, e));
    TRY(reduce_loss(t, &loss, t->plan.rows * t->o.seq_len, r, e));
    TRY(zero_norm(t->zero, &norm, e));
    r->norm = (float)norm;
    r->lr = schedule_lr(&t->o, t->step);
    if (isfinite(r->loss) && isfinite(norm)) {
        struct adamw h = adamw_of(&t->o, t->step, r->lr, norm);
        TRY(zero_update(t->zero, &h, t->o.weight_decay, e));
        t->skipped = 0;
    } else {
        TRY(skip_update(t, r, norm, e));
    }
    t->step++;
    r->seconds = clock_s() - began;
    trace_span(t->trace, TRACE_PHASE, "step", NULL, traced, (struct trace_args){ 0 });
    r->bubble = t->waited_s / r->seconds;
    if (t->step > t->first_step + 1) { /* the first one waits for memory and for ranks that start */
        t->all_waited_s += t->waited_s;
        t->all_steps_s += r->seconds;
    }
out:
    return rc;
}
