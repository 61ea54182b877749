/* eval.c - loss over held-out windows, log-probs of every token, and a sample of what the model says. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "train/trainer.h"

/* One round: dp rank d takes the windows first + d * M ..; those past the end are computed on the last
 * window and not counted. */
static int eval_round(struct trainer *t, int64_t first, int64_t n, struct xsum *sum, struct err *e)
{
    int64_t T = t->o.seq_len, M = t->work_seqs, mine = first + t->mesh.at[AXIS_DP] * M;
    int rc = 0;
    for (int64_t j = 0; j < M; j++) {
        int64_t w = mine + j < n ? mine + j : n - 1;
        TRY(data_read(t->eval, w, t->ids + j * T, t->targets + j * T, e));
    }
    for (int c = 0; c < t->model.n_chunks; c++) {
        struct train_work *w = t->work[t->first_work[c]];
        train_work_documents(w, NULL, NULL);
        int ranks = t->layout.pp, me = t->mesh.at[AXIS_PP];
        if (!t->model.chunk[c].has_embed)
            TRY(comm_recv(t->mesh.axis[AXIS_PP], train_work_input(w), train_work_bytes(w),
                          (me + ranks - 1) % ranks, e));
        TRY(model_train_forward(&t->model, t->weights, w, t->ids, t->targets, t->logprobs, e));
        if (!t->model.chunk[c].has_head)
            TRY(comm_send(t->mesh.axis[AXIS_PP], train_work_output(w), train_work_bytes(w), (me + 1) % ranks,
                          e));
    }
    for (int64_t j = 0; j < M && mine + j < n && t->mesh.at[AXIS_TP] == 0 && t->model.has_head; j++)
        for (int64_t i = 0; i < T; i++)
            xsum_add(sum, -(double)t->logprobs[j * T + i]);
out:
    return rc;
}

/* {"ids":[…],"logprobs":[null,…]}: T + 1 ids of a window, the log-prob of each given those before it. */
static void write_window(FILE *f, const int32_t *ids, int32_t last, const float *logprobs, int64_t T)
{
    char number[32];
    fputs("{\"ids\":[", f);
    for (int64_t i = 0; i < T; i++)
        fprintf(f, "%d,", ids[i]);
    fprintf(f, "%d],\"logprobs\":[null", last);
    for (int64_t i = 0; i < T; i++)
        fprintf(f, ",%s", jx_float32(logprobs[i], number));
    fputs("]}\n", f);
}

static int write_round(struct trainer *t, int64_t first, int64_t n, FILE *f, struct err *e)
{
    int64_t T = t->o.seq_len, M = t->work_seqs;
    size_t *sizes = calloc((size_t)world_size(t->world), sizeof *sizes);
    void *all = NULL;
    int rc;
    if (!sizes)
        return err_set(e, ERR_MEMORY, "no memory for log-probs");
    TRY(comm_gather_blobs(t->mesh.all, t->logprobs,
                          t->mesh.at[AXIS_TP] || !t->model.has_head ? 0 : (size_t)(M * T) * sizeof(float), 0,
                          &all, sizes, e));
    for (int d = 0; f && d < t->mesh.size[AXIS_DP]; d++) {
        for (int64_t j = 0; j < M && first + d * M + j < n; j++) {
            TRY(data_read(t->eval, first + d * M + j, t->ids, t->targets, e));
            write_window(f, t->ids, t->targets[T - 1], (float *)all + (d * M + j) * T, T);
        }
    }
out:
    free(all);
    free(sizes);
    return rc;
}

int trainer_eval(struct trainer *t, double *loss, FILE *logprobs, struct err *e)
{
    int64_t n = data_windows(t->eval), each = t->work_seqs * t->mesh.size[AXIS_DP], all[XSUM_LIMBS + 2];
    struct xsum sum = { 0 };
    int rc = 0;
    for (int64_t first = 0; first < n; first += each) {
        TRY(eval_round(t, first, n, &sum, e));
        if (t->o.eval_logprobs)
            TRY(write_round(t, first, n, logprobs, e));
    }
    xsum_carry(&sum);
    memcpy(all, sum.limb, sizeof sum.limb);
    all[XSUM_LIMBS] = sum.n_nan;
    all[XSUM_LIMBS + 1] = sum.n_inf;
    TRY(comm_all_reduce_i64(t->mesh.all, all, XSUM_LIMBS + 2, e));
    memcpy(sum.limb, all, sizeof sum.limb);
    sum.n_nan = all[XSUM_LIMBS];
    sum.n_inf = all[XSUM_LIMBS + 1];
    *loss = xsum_double(&sum) / (double)(n * t->o.seq_len);
    rc = isfinite(*loss) ? 0
                         : err_set(e, ERR_NUMBER,
                                   "the evaluation loss is %g: weights or activations are not finite, start "
                                   "from an earlier checkpoint",
                                   *loss);
out:
    return rc;
}

/* ---- a sample: greedy, from the start of the data, through the server's forward, stage by stage ---- */
enum { SAMPLE_PROMPT = 16, SAMPLE_TOKENS = 64 };

int64_t train_positions(int64_t seq_len, const struct model_config *c)
{
    int64_t n = seq_len > SAMPLE_TOKENS ? seq_len : SAMPLE_TOKENS;
    return n < c->max_pos ? n : c->max_pos;
}

struct sampler {
    struct trainer *t;
    struct forward_work w;
    void *memory;
    char *page;
    size_t layer;
    float *logits; /* of the host */
};

static int sampler_open(struct sampler *s, struct trainer *t, struct err *e)
{
    struct model *m = &t->model;
    struct arena a = { 0 };
    *s = (struct sampler){ .t = t, .layer = model_page_bytes(m) };
    s->page = dev_alloc(t->dev, MEM_WORK, s->layer * (size_t)m->n_layers);
    forward_work_carve(m, &a, SAMPLE_PROMPT, 1, &s->w);
    s->memory = dev_alloc(t->dev, MEM_WORK, a.used);
    s->logits = malloc(sizeof *s->logits * (size_t)m->vocab);
    if (!s->page || !s->memory || !s->logits)
        return err_set(e, ERR_MEMORY, "no memory for a sample: leave --sample-every out");
    a = (struct arena){ s->memory, 0, a.used };
    forward_work_carve(m, &a, SAMPLE_PROMPT, 1, &s->w);
    return 0;
}

static void sampler_close(struct sampler *s)
{
    dev_free(s->t->dev, s->memory);
    dev_free(s->t->dev, s->page);
    free(s->logits);
}

/* The token behind ids[0 .. n), of which those from `at` on are new, the same on every rank: *next. */
static int sample_token(struct sampler *s, const int32_t *ids, int at, int n, int32_t *next, struct err *e)
{
    struct trainer *t = s->t;
    struct model *m = &t->model;
    struct attn_seq seq = { 0, n - at, at, &s->page };
    struct batch b = { n - at, ids + at, 1, &seq, s->layer };
    struct comm *pp = t->mesh.axis[AXIS_PP];
    int ranks = t->layout.pp, me = t->mesh.at[AXIS_PP], rc = 0;
    size_t bytes = (size_t)(b.n_rows * m->hidden) * dtype_size(m->dt);
    int32_t want = n - at - 1;
    struct head_out h = { 0 };
    for (int c = 0; c < m->n_chunks; c++) {
        if (!m->chunk[c].has_embed)
            TRY(comm_recv(pp, s->w.x, bytes, (me + ranks - 1) % ranks, e));
        TRY(model_forward_part(m, t->weights, c, &b, &s->w, &want, 1, &h, e));
        if (!m->chunk[c].has_head)
            TRY(comm_send(pp, s->w.x, bytes, (me + 1) % ranks, e));
    }
    *next = 0;
    if (h.logits)
        dev_read(t->dev, s->logits, h.logits, sizeof *s->logits * (size_t)m->vocab);
    for (int64_t v = 1; h.logits && v < m->vocab; v++)
        if (s->logits[v] > s->logits[*next])
            *next = (int32_t)v;
    rc = comm_broadcast(pp, next, sizeof *next, ranks - 1, e);
out:
    return rc;
}

int trainer_sample(struct trainer *t, struct err *e)
{
    int32_t ids[SAMPLE_TOKENS];
    int64_t positions = train_positions(t->o.seq_len, &t->cfg);
    int most = positions < SAMPLE_TOKENS ? (int)positions : SAMPLE_TOKENS,
        n = t->o.seq_len < SAMPLE_PROMPT ? (int)t->o.seq_len : SAMPLE_PROMPT;
    struct sampler s;
    char *text = NULL;
    size_t bytes = 0;
    int rc = sampler_open(&s, t, e);
    TRY(comm_agree(t->mesh.all, rc, e));
    TRY(data_read(t->data, 0, t->ids, t->targets, e));
    n = n > (most + 1) / 2 ? (most + 1) / 2 : n;
    memcpy(ids, t->ids, (size_t)n * sizeof *ids);
    for (int at = 0; n < most; n++) {
        TRY(sample_token(&s, ids, at, n, &ids[n], e));
        at = n;
    }
    if (world_rank(t->world))
        goto out;
    TRY(tokenizer_decode(t->tokenizer, ids, (size_t)most, 1, &text, &bytes, e));
    for (size_t i = 0; i < bytes; i++)
        text[i] = (unsigned char)text[i] < ' ' ? ' ' : text[i];
    log_line(&t->log, "sample at step %lld: %s", (long long)t->step, text);
out:
    sampler_close(&s);
    free(text);
    return rc;
}
