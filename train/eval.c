/* eval.c - see eval.h. */
#include "train/eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/jx.h"
#include "train/loss.h"

/* Runs the forward pass of the first slot's rows through this rank's chunks. */
static int forward_chunks(struct work *w, struct err *e)
{
    struct comm *pp = w->ranks->mesh.axis[AXIS_PP];
    int n = w->ranks->layout.pp, me = w->ranks->mesh.at[AXIS_PP], rc = 0;
    for (int c = 0; c < w->model.n_chunks; c++) {
        struct train_work *slot = w->slot[w->first_slot[c]];
        size_t bytes = train_work_bytes(slot);
        train_work_documents(slot, NULL, NULL);
        if (!w->model.chunk[c].has_embed)
            TRY(comm_recv(pp, train_work_input(slot), bytes, (me + n - 1) % n, e));
        TRY(model_train_forward(w->weights, slot, w->ids, w->targets, w->logprobs, e));
        if (!w->model.chunk[c].has_head)
            TRY(comm_send(pp, train_work_output(slot), bytes, (me + 1) % n, e));
    }
out:
    return rc;
}

/* Losses times weights, and the targets whose weight is not 0. */
struct eval_sum {
    struct xsum loss;
    int64_t n;
};

/* One round: dp rank d takes the windows first + d * M ..; those past the end are computed on the last
 * window and not counted. */
static int eval_round(struct work *w, int64_t first, int64_t n, struct eval_sum *sum, struct err *e)
{
    const struct mesh *mesh = &w->ranks->mesh;
    int64_t rows = work_rows(w), M = w->slot_seqs, mine = first + mesh->at[AXIS_DP] * M;
    int rc = 0;
    for (int64_t j = 0; j < M; j++) {
        int64_t window = mine + j < n ? mine + j : n - 1;
        TRY(work_read(w, w->eval, window, j * rows, e));
    }
    TRY(forward_chunks(w, e));

    int64_t counted = n - mine < M ? n - mine : M;
    if (mesh->at[AXIS_TP] || !w->model.has_head)
        counted = 0; /* another rank of the group has the losses */
    sum->n += loss_add(&sum->loss, w->logprobs, data_weighted(w->eval) ? w->weight : NULL, counted * rows);
out:
    return rc;
}

/* {"ids":[…],"logprobs":[null,…]}: n + 1 ids of a window, the log-prob of each given those before it. */
static void write_window(FILE *f, const int32_t *ids, int32_t last, const float *logprobs, int64_t n)
{
    char number[32];
    fputs("{\"ids\":[", f);
    for (int64_t i = 0; i < n; i++)
        fprintf(f, "%d,", ids[i]);
    fprintf(f, "%d],\"logprobs\":[null", last);
    for (int64_t i = 0; i < n; i++)
        fprintf(f, ",%s", jx_float32(logprobs[i], number));
    fputs("]}\n", f);
}

/* The log-probs of a window whose sequences are cut, from the order of its rows into that of its tokens.
 * Rank 0's rows are the first of a sequence, and those of the other cp ranks follow. */
static const float *by_token(struct work *w, const float *of_rows)
{
    for (int64_t row = 0; row < w->run->o.seq_len; row++)
        w->by_token[model_row_token(&w->model, w->run->o.seq_len, row)] = of_rows[row];
    return w->by_token;
}

/* Gathers the log-probs of a round; rank 0 (f not NULL) writes them window by window. */
static int write_round(struct work *w, int64_t first, int64_t n, FILE *f, struct err *e)
{
    const struct mesh *mesh = &w->ranks->mesh;
    int64_t T = w->run->o.seq_len, M = w->slot_seqs;
    size_t *sizes = calloc((size_t)world_size(w->ranks->world), sizeof *sizes);
    size_t mine = mesh->at[AXIS_TP] || !w->model.has_head ? 0 : (size_t)(M * work_rows(w)) * sizeof(float);
    void *all = NULL;
    int rc;
    if (!sizes)
        return err_set(e, ERR_MEMORY, "no memory for log-probs");
    TRY(comm_gather_blobs(mesh->all, w->logprobs, mine, 0, &all, sizes, e));
    for (int64_t i = 0; f && i < mesh->size[AXIS_DP] * M && first + i < n; i++) {
        TRY(data_read(w->eval, first + i, w->ids, w->targets, e));
        const float *of_rows = (const float *)all + i * T;
        int64_t n_targets = data_targets(w->eval, first + i);
        write_window(f, w->ids, n_targets ? w->targets[n_targets - 1] : w->ids[0],
                     w->by_token ? by_token(w, of_rows) : of_rows, n_targets);
    }
out:
    free(all);
    free(sizes);
    return rc;
}

int64_t eval_windows(const struct work *w)
{
    const struct train_opts *o = &w->run->o;
    int64_t n = data_windows(w->eval), most = o->eval_batches * o->global_batch;
    return o->eval_batches && most < n ? most : n;
}

/* 1: a rank of the job received a signal to stop. Collective. */
static int is_stopped(const struct work *w, struct err *e)
{
    int64_t stop = world_stop_signal(w->ranks->world) != 0;
    int rc = comm_all_reduce_i64(w->ranks->mesh.all, &stop, 1, e);
    return rc < 0 ? rc : stop != 0;
}

int eval_run(struct work *w, struct log *term, double *loss, FILE *logprobs, struct err *e)
{
    const struct mesh *mesh = &w->ranks->mesh;
    const struct train_opts *o = &w->run->o;
    int64_t n = eval_windows(w), each = w->slot_seqs * mesh->size[AXIS_DP], all[XSUM_LIMBS + 3];
    struct eval_sum total = { 0 };
    struct xsum sum;
    double began = clock_s();
    int rc = 0;
    for (int64_t first = 0; first < n; first += each) {
        TRY(eval_round(w, first, n, &total, e));
        if (o->eval_logprobs)
            TRY(write_round(w, first, n, logprobs, e));

        int64_t done = first + each < n ? first + each : n;
        log_progress(term, 0, "evaluated %lld/%lld windows  left %.0f s", (long long)done, (long long)n,
                     (clock_s() - began) * (double)(n - done) / (double)done);
        TRY(is_stopped(w, e));
        if (rc && done < n)
            return 1;
    }

    xsum_carry(&total.loss);
    sum = total.loss;
    memcpy(all, sum.limb, sizeof sum.limb);
    all[XSUM_LIMBS] = sum.n_nan;
    all[XSUM_LIMBS + 1] = sum.n_inf;
    all[XSUM_LIMBS + 2] = total.n;
    TRY(comm_all_reduce_i64(mesh->all, all, XSUM_LIMBS + 3, e));
    memcpy(sum.limb, all, sizeof sum.limb);
    sum.n_nan = all[XSUM_LIMBS];
    sum.n_inf = all[XSUM_LIMBS + 1];

    *loss = xsum_double(&sum) / (double)all[XSUM_LIMBS + 2];
    if (!all[XSUM_LIMBS + 2])
        rc = err_set(e, ERR_USAGE,
                     "no target of --eval-data has a weight: use data with answers, or a longer --seq-len");
    else if (!isfinite(*loss))
        rc = err_set(e, ERR_NUMBER,
                     "the evaluation loss is %g: weights or activations are not finite, start from an "
                     "earlier checkpoint",
                     *loss);
out:
    return rc;
}

/* ---- a sample: greedy, from the start of the data, through the server's forward, stage by stage ---- */
enum { SAMPLE_PROMPT = 16, SAMPLE_TOKENS = 64 };

int64_t sample_positions(int64_t seq_len, const struct model_config *c)
{
    int64_t n = seq_len > SAMPLE_TOKENS ? seq_len : SAMPLE_TOKENS;
    return n < c->max_pos ? n : c->max_pos;
}

struct sampler {
    struct work *w;
    struct forward_work fw;
    void *memory;  /* of fw */
    char *page;    /* keys and values of all layers */
    float *logits; /* [vocab], of the host */
};

static int sampler_open(struct sampler *s, struct work *w, struct err *e)
{
    struct model *m = &w->model;
    struct arena a = { 0 };
    *s = (struct sampler){ .w = w };
    s->page = dev_alloc(m->dev, MEM_WORK, model_page_bytes(m) * (size_t)m->n_layers);
    forward_work_carve(m, &a, SAMPLE_PROMPT, 1, &s->fw);
    s->memory = dev_alloc(m->dev, MEM_WORK, a.used);
    s->logits = malloc(sizeof *s->logits * (size_t)m->vocab);
    if (!s->page || !s->memory || !s->logits)
        return err_set(e, ERR_MEMORY, "no memory for a sample: leave --sample-every out");
    a = (struct arena){ s->memory, 0, a.used };
    forward_work_carve(m, &a, SAMPLE_PROMPT, 1, &s->fw);
    return 0;
}

static void sampler_close(struct sampler *s)
{
    dev_free(s->w->model.dev, s->memory);
    dev_free(s->w->model.dev, s->page);
    free(s->logits);
}

/* *next: the token after ids[0 .. n), of which those from `at` on are new. The same on every rank. */
static int sample_token(struct sampler *s, const int32_t *ids, int at, int n, int32_t *next, struct err *e)
{
    struct work *w = s->w;
    struct model *m = &w->model;
    struct attn_seq seq = { 0, n - at, at, &s->page };
    int32_t want = n - at - 1;
    const struct adapter_run all = { &w->adapter, 0, n - at };
    const struct adapter_rows adapters = { 1, &all };
    struct batch b = { .n_rows = n - at,
                       .ids = ids + at,
                       .n_seq = 1,
                       .seq = &seq,
                       .adapters = w->run->lora.n ? &adapters : NULL,
                       .n_want = 1,
                       .want = &want };
    struct comm *pp = w->ranks->mesh.axis[AXIS_PP];
    int ranks = w->ranks->layout.pp, me = w->ranks->mesh.at[AXIS_PP], rc = 0;
    size_t bytes = (size_t)(b.n_rows * m->hidden) * dtype_size(m->dt);
    struct head_out h = { 0 };
    for (int c = 0; c < m->n_chunks; c++) {
        if (!m->chunk[c].has_embed)
            TRY(comm_recv(pp, s->fw.x, bytes, (me + ranks - 1) % ranks, e));
        TRY(model_forward_part(m, w->weights, c, &b, &s->fw, &h, e));
        if (!m->chunk[c].has_head)
            TRY(comm_send(pp, s->fw.x, bytes, (me + 1) % ranks, e));
    }

    *next = 0;
    if (h.logits) {
        dev_read(m->dev, s->logits, h.logits, sizeof *s->logits * (size_t)m->vocab);
        for (int64_t v = 1; v < m->vocab; v++)
            if (s->logits[v] > s->logits[*next])
                *next = (int32_t)v;
    }
    rc = comm_broadcast(pp, next, sizeof *next, ranks - 1, e);
out:
    return rc;
}

static int print_sample(const struct work *w, struct log *term, const int32_t *ids, int n, struct err *e)
{
    char *text = NULL;
    size_t bytes = 0;
    int rc = tokenizer_decode(w->tokenizer, ids, (size_t)n, 1, &text, &bytes, e);
    for (size_t i = 0; i < bytes; i++)
        text[i] = (unsigned char)text[i] < ' ' ? ' ' : text[i];
    if (rc >= 0)
        log_line(term, "sample at step %lld: %s", (long long)w->at.step, text);
    free(text);
    return rc;
}

int sample_run(struct work *w, struct log *term, struct err *e)
{
    int32_t ids[SAMPLE_TOKENS];
    int64_t positions = sample_positions(w->run->o.seq_len, &w->run->cfg), seq_len = w->run->o.seq_len;
    int most = positions < SAMPLE_TOKENS ? (int)positions : SAMPLE_TOKENS;
    int n = seq_len < SAMPLE_PROMPT ? (int)seq_len : SAMPLE_PROMPT;
    struct sampler s;
    int rc = sampler_open(&s, w, e);
    TRY(comm_agree(w->ranks->mesh.all, rc, e));

    TRY(data_read(w->data, 0, w->ids, w->targets, e));
    n = n > (most + 1) / 2 ? (most + 1) / 2 : n;
    memcpy(ids, w->ids, (size_t)n * sizeof *ids);
    for (int at = 0; n < most; n++) {
        TRY(sample_token(&s, ids, at, n, &ids[n], e));
        at = n;
    }
    if (ranks_is_first(w->ranks))
        TRY(print_sample(w, term, ids, most, e));
out:
    sampler_close(&s);
    return rc;
}
