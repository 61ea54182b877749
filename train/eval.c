/* eval.c - loss over held-out windows, log-probs of every token, and a sample of what the model says. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "train/trainer.h"

/* One round: dp rank d takes the windows first + d * M ..; those past the end are computed on the last window and not counted. */
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
            TRY(comm_recv(t->mesh.axis[AXIS_PP], train_work_input(w), train_work_bytes(w), (me + ranks - 1) % ranks, e));
        TRY(model_train_forward(&t->model, t->weights, w, t->ids, t->targets, t->logprobs, e));
        if (!t->model.chunk[c].has_head)
            TRY(comm_send(t->mesh.axis[AXIS_PP], train_work_output(w), train_work_bytes(w), (me + 1) % ranks, e));
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
    TRY(comm_gather_blobs(t->mesh.all, t->logprobs, t->mesh.at[AXIS_TP] || !t->model.has_head ? 0 : (size_t)(M * T) * sizeof(float), 0, &all, sizes, e));
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
    rc = isfinite(*loss) ? 0 : err_set(e, ERR_NUMBER, "the evaluation loss is %g: weights or activations are not finite, start from an earlier checkpoint", *loss);
out:
    return rc;
}

/* ---- a sample: greedy, from the start of the data, through the server's forward ---- */
#define SAMPLE_PROMPT 16
#define SAMPLE_NEW 48

static int greedy(struct trainer *t, int32_t *ids, struct err *e)
{
    struct model *m = &t->model;
    int total = SAMPLE_PROMPT + SAMPLE_NEW, rc = 0;
    size_t layer = model_page_bytes(m);
    char *page = dev_alloc(t->dev, MEM_WORK, layer * (size_t)(m->n_layers + 1));
    struct arena a = { 0 };
    struct forward_work w;
    forward_work_carve(m, &a, SAMPLE_PROMPT, 1, &w);
    void *memory = dev_alloc(t->dev, MEM_WORK, a.used);
    if (!page || !memory) {
        rc = err_set(e, ERR_MEMORY, "no memory for a sample");
        goto out;
    }
    a = (struct arena){ memory, 0, a.used };
    forward_work_carve(m, &a, SAMPLE_PROMPT, 1, &w);
    for (int at = 0, next = SAMPLE_PROMPT; next < total; at = next++) {
        struct attn_seq seq = { 0, next - at, at, &page };
        struct batch b = { next - at, ids + at, 1, &seq, layer };
        int32_t want = (int32_t)(next - at - 1);
        struct head_out h;
        TRY(model_forward(m, t->weights, &b, &w, &want, 1, &h, e));
        ids[next] = 0;
        for (int64_t v = 1; v < m->vocab; v++)
            if (h.logits[v] > h.logits[ids[next]])
                ids[next] = (int32_t)v;
    }
out:
    dev_free(t->dev, memory);
    dev_free(t->dev, page);
    return rc;
}

int trainer_sample(struct trainer *t, struct err *e)
{
    int32_t ids[SAMPLE_PROMPT + SAMPLE_NEW];
    struct tokenizer *tok = NULL;
    char *text = NULL;
    size_t n = 0;
    int rc;
    if (t->o.seq_len < SAMPLE_PROMPT || t->model.max_pos < SAMPLE_PROMPT + SAMPLE_NEW)
        return 0;
    TRY(data_read(t->data, 0, t->ids, t->targets, e));
    memcpy(ids, t->ids, SAMPLE_PROMPT * sizeof *ids);
    TRY(greedy(t, ids, e));
    if (world_rank(t->world))
        return 0;
    TRY(tokenizer_open_named(&tok, t->o.tokenizer, e));
    TRY(tokenizer_decode(tok, ids, SAMPLE_PROMPT + SAMPLE_NEW, 1, &text, &n, e));
    for (size_t i = 0; i < n; i++)
        text[i] = (unsigned char)text[i] < ' ' ? ' ' : text[i];
    log_line(&t->log, "sample at step %lld: %s", (long long)t->step, text);
out:
    free(text);
    tokenizer_close(tok);
    return rc;
}
