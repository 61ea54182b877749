/* outputs.c - see outputs.h. */
#include "serve/engine/outputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/test_hooks.h"
#include "serve/api/front.h"
#include "serve/engine/draft.h"
#include "serve/engine/logit_processors.h"
#include "serve/engine/scripted.h"
#include "serve/metrics.h"

#define EACH (WATCH_MAX + 1) /* log-probs of a row */
#define NO_MASK (-4)         /* an id: the grammar has none for this row */

int outputs_open(struct outputs *m, struct dev *dev, int64_t max_rows, int64_t vocab, struct err *e)
{
    size_t n = (size_t)(max_rows * EACH);

    memset(m, 0, sizeof *m);
    m->cap = max_rows;
    m->row = calloc((size_t)max_rows, sizeof *m->row);
    m->pick = calloc(n, sizeof(float));
    m->max = calloc(n, sizeof(float));
    m->sum = calloc(n, sizeof(float));
    m->logprob = calloc(n, sizeof(float));
    if (dev->memory) {
        m->dev = dev;
        m->seen = malloc(sizeof(float) * (size_t)(max_rows * (vocab + 2)));
        m->there = dev_alloc(dev, MEM_WORK, sizeof *m->there * (size_t)max_rows);
        m->best = calloc((size_t)max_rows, sizeof *m->best);
    }

    if (!m->row || !m->pick || !m->max || !m->sum || !m->logprob ||
        (dev->memory && (!m->seen || !m->there || !m->best)))
        return err_set(e, ERR_MEMORY,
                       "no memory for the log-probs of %lld rows: lower --max-batch or --prefill-chunk",
                       (long long)max_rows);
    return 0;
}

void outputs_close(struct outputs *m)
{
    free(m->row);
    free(m->pick);
    free(m->max);
    free(m->sum);
    free(m->logprob);
    free(m->seen);
    free(m->best);
    free(m->mask);
    if (m->there)
        dev_free(m->dev, m->there);
    memset(m, 0, sizeof *m);
}

/* The tokens up to a row; the last of them may be drafts. */
static struct token_history history(const struct choice *c, int64_t pos)
{
    return (struct token_history){ c->ids, c->prompt->n, pos + 1, NULL };
}

/* The choice takes the most likely token behind pos, and nothing else is asked of its logits. */
static int is_greedy(const struct choice *c, int64_t pos)
{
    const struct sampling *how = &c->rq->sampling;
    const struct token_history h = history(c, pos);
    return how->temperature == 0 && c->rq->tops <= 0 && !hook_answer() && !logit_processors_active(how, &h);
}

void outputs_expect(struct outputs *m, const struct sched *s)
{
    m->n = 0;
    for (int i = 0; i < s->n_items; i++) {
        const struct sched_item *it = &s->item[i];
        for (int64_t r = it->skip_want; r < it->n_rows; r++) {
            struct choice *c = it->seq->owner;
            int64_t pos = it->seq->shift + it->pos + r, nth = pos + 1 - c->n_ids;
            int pools = c->rq->endpoint == ENDPOINT_EMBEDDINGS, samples = nth >= 0 && !pools;
            m->row[m->n++] = (struct output_row){ .c = c,
                                                  .pos = pos,
                                                  .samples = samples,
                                                  .pools = pools,
                                                  .greedy = samples && is_greedy(c, pos),
                                                  .nth = nth > 0 ? (int)nth : 0,
                                                  .n_drafts = (int)it->n_drafts };
        }
    }
}

/* ---- masks, parallel over choices ---- */

struct mask_job {
    struct outputs *m;
    size_t words;
    int64_t *first; /* rows with which constrained choices begin */
};

/* The masks of a choice's rows, from the first one that samples on. Those behind drafts stand behind these;
 * behind one that the grammar refuses no mask is needed, as no token is taken there. */
static void do_masks(void *arg, int64_t i, int thread)
{
    struct mask_job *j = arg;
    struct output_row *r = &j->m->row[j->first[i]], *end = j->m->row + j->m->n;
    struct choice *c = r->c;
    struct err e;
    int64_t next = c->n_ids;
    int taken = 1;
    (void)thread;
    for (; r < end && r->c == c; r++) {
        for (; next <= r->pos && taken > 0; next += taken > 0)
            taken = matcher_take(c->matcher, c->ids[next], &e);
        if (taken < 0)
            r->id = NO_MASK;
        if (taken <= 0)
            break;
        uint32_t *bits = j->m->mask + (size_t)(r - j->m->row) * j->words;
        if (matcher_mask(c->matcher, bits, &e) < 0)
            r->id = NO_MASK;
        r->mask = bits;
    }
    matcher_rewind(c->matcher, next - c->n_ids);
}

/* The first row of a constrained answer that samples. */
static int begins_masks(const struct outputs *m, int64_t i)
{
    const struct output_row *r = &m->row[i];
    return r->samples && r->c->matcher && (!i || r[-1].c != r->c || !r[-1].samples);
}

/* Finds the masks of all rows of constrained answers. */
static void find_masks(struct outputs *m, struct dev *dev, int64_t vocab)
{
    struct mask_job job = { m, ((size_t)vocab + 31) / 32, NULL };
    int64_t n = 0;
    for (int64_t i = 0; i < m->n; i++)
        n += begins_masks(m, i);
    if (!n)
        return;
    if ((size_t)m->n * job.words > m->mask_cap) {
        uint32_t *grown = realloc(m->mask, (size_t)m->n * job.words * sizeof *grown);
        m->mask_cap = grown ? (size_t)m->n * job.words : m->mask_cap;
        m->mask = grown ? grown : m->mask;
    }
    job.first = malloc((size_t)n * sizeof *job.first);
    int failed = !job.first || (size_t)m->n * job.words > m->mask_cap;
    n = 0;
    for (int64_t i = 0; i < m->n; i++) {
        struct output_row *r = &m->row[i];
        if (!r->samples || !r->c->matcher)
            continue;
        if (failed)
            r->id = NO_MASK;
        else if (begins_masks(m, i))
            job.first[n++] = i;
    }
    pool_run(dev->pool, n, do_masks, &job);
    free(job.first);
}

/* ---- sampling and scoring, parallel over rows ---- */

struct row_job {
    struct outputs *m;
    const struct head_out *head;
    int64_t vocab;
};

static int32_t next_token(const struct output_row *r, const float *logits, int64_t vocab, float max)
{
    const struct choice *c = r->c;
    const struct request *rq = c->rq;
    struct token_history h = history(c, r->pos);
    h.mask = r->mask;
    struct end_ids ends = { rq->sv->eos, rq->stop_ids, rq->sv->n_eos, rq->n_stop_ids };
    int32_t told = scripted_token(c, r->pos);
    if (told >= 0 && (!r->mask || r->mask[told / 32] >> told % 32 & 1))
        return told;
    if (!isfinite(max) || !logit_processors_active(&rq->sampling, &h))
        return sample_token(&rq->sampling, c->k, r->pos + 1, logits, vocab, max);
    return logit_processors_sample(&rq->sampling, c->k, &h, &ends, logits, vocab);
}

static int64_t row_tops(const struct output_row *r) { return choice_tops(r->c->rq, r->samples); }

static void do_row(void *arg, int64_t i, int thread)
{
    struct row_job *j = arg;
    struct output_row *r = &j->m->row[i];
    const struct request *rq = r->c->rq;
    const float *logits = j->head->logits + i * j->vocab;
    (void)thread;
    if (r->pools)
        return;
    if (j->m->seen && r->greedy) {
        r->id = isfinite(j->head->max[i]) ? j->m->best[i] : -1;
        return;
    }
    if (r->id == NO_MASK)
        return;
    r->id = r->samples ? next_token(r, logits, j->vocab, j->head->max[i]) : r->c->ids[r->pos + 1];
    r->rank = !r->samples && rq->prompt_logprobs >= 0 ? token_rank(logits, j->vocab, r->id) : 0;
    if (r->samples && rq->n_watch)
        memcpy(r->top, rq->watch, sizeof *r->top * (size_t)rq->n_watch);
    else if (row_tops(r) > 0)
        top_tokens(logits, j->vocab, (int)row_tops(r), r->top);
}

/* Log-probs of the chosen and the top ids of all rows, to m->logprob in the order of rows: one call, the same
 * arithmetic as the trainer's. */
static void find_logprobs(struct outputs *m, struct dev *dev, const struct head_out *head, int64_t vocab)
{
    int64_t n = 0;
    for (int64_t i = 0; i < m->n; i++) {
        const struct output_row *r = &m->row[i];
        const float *logits = head->logits + i * vocab;
        if (r->pools)
            continue;
        for (int64_t j = 0; j <= row_tops(r); j++, n++) {
            int32_t id = j < row_tops(r) ? r->top[j] : r->id;
            m->pick[n] = id < 0 ? 0 : r->greedy ? head->max[i] : logits[id];
            m->max[n] = head->max[i];
            m->sum[n] = head->sum[i];
        }
    }
    if (n)
        KERNEL(dev->host, ce_logprob, m->logprob, m->pick, m->max, m->sum, n);
}

/* ---- events ---- */

/* Adds an event with what is new in c to its stream. */
static void push_event(struct choice *c)
{
    struct request *rq = c->rq;
    rq->version = rq->sv->served.version;
    pthread_mutex_lock(&rq->lock);
    front_event(&rq->events, c, choice_safe_text(c));
    pthread_mutex_unlock(&rq->lock);
}

void outputs_abort(struct choice *c)
{
    struct request *rq = c->rq;
    if (c->finish != FINISH_NONE)
        return;
    choice_abort(c);
    rq->n_open--;
    if (rq->stream) {
        push_event(c);
        request_begin(rq);
    }
}

void outputs_end_request(struct request *rq)
{
    struct fault none = { .status = 500, .text = "no memory for the answer" };
    struct json_out tail = { 0 };

    rq->version = rq->sv->served.version;
    for (int i = 0; i < rq->n_choices; i++)
        rq->n_generated += rq->choice[i].n_ids - rq->choice[i].prompt->n;
    if (rq->stream && !rq->fault.status) {
        for (int i = 0; i < rq->n_choices && !rq->n_open; i++)
            if (!rq->choice[i].end_sent) /* a choice that needed no step */
                push_event(&rq->choice[i]);
        front_end(&tail, rq);
    }

    if (rq->events.failed || tail.failed)
        request_fail(rq, &none);
    else
        request_finish_stream(rq, &tail);
    json_out_free(&tail);
}

/* Counts a generated token in the metrics. */
static void count_token(struct choice *c, double now_s)
{
    struct metrics *m = c->rq->sv->metrics;
    metric_add(m, COUNT_GENERATED, 1);
    if (c->first_s)
        metric_observe(m, HIST_ITL, now_s - c->last_s);
    else
        metric_observe(m, HIST_TTFT, now_s - c->rq->begin_s);
    c->first_s = c->first_s ? c->first_s : now_s;
    c->last_s = now_s;
}

/* 0, or -1 with *f: the row has no result. logprob: [row_tops() + 1]. */
static int row_fault(const struct output_row *r, const float *logprob, struct fault *f)
{
    long long position = r->pos + 1;
    int bad = r->id == -1;

    for (int64_t j = 0; j <= row_tops(r); j++)
        bad |= isnan(logprob[j]);
    if (bad)
        return fault_set(f, 500, NULL, "the model gives a NaN at position %lld: is the checkpoint whole",
                         position);
    if (r->id == -2)
        return fault_set(f, 500, NULL, "no memory for sampling");
    if (r->id == NO_MASK)
        return fault_set(
            f, 400, "structured_outputs",
            "no token can go on within the grammar at position %lld: the vocabulary lacks a byte, or "
            "the grammar has too many states there",
            position);
    if (r->id == -3 && r->c->matcher)
        return fault_set(
            f, 400, "structured_outputs",
            "the grammar, allowed_token_ids, bad_words and min_tokens together leave no token for "
            "position %lld: allow more",
            position);
    if (r->id == -3)
        return fault_set(f, 400, "allowed_token_ids",
                         "allowed_token_ids, bad_words and min_tokens together leave no token for position "
                         "%lld: allow more",
                         position);
    return 0;
}

/* 1: the choice gets nothing of the row: it is behind a draft that was wrong, or behind the answer's end, or
 * a draft behind it has spoilt it. A draft's values may be Inf or NaN where the answer's own are not; they
 * meet weights of +0 in the rows before it, and make them NaN. Such a row is computed again without drafts:
 * it may be NaN by itself. */
static int is_refused(struct output_row *r, int nan)
{
    struct draft_state *own = &r->c->draft;
    if (r->nth && (!own->right || r->c->finish != FINISH_NONE))
        return 1;
    if (!nan || r->nth == r->n_drafts)
        return 0;
    own->right = 0;
    own->alone = 1;
    return 1;
}

/* Adds a row's hidden state to its choice's vector, which the last one completes. */
static void pool_row(struct output_row *r, const struct model *model, const void *row)
{
    struct choice *c = r->c;
    struct request *rq = c->rq;
    struct fault f = { 0 };

    if (rq->done)
        return;
    if (pooled_add(&c->pooled, model->dev, rq->pooling, row, model->dt, model->hidden, r->pos) < 0)
        fault_set(&f, 500, NULL, "no memory for a vector of %lld elements", (long long)model->hidden);
    else if (r->pos + 1 == c->n_ids && pooled_is_broken(&c->pooled))
        fault_set(&f, 500, NULL, "the model gives a NaN or an infinite value: is the checkpoint whole");
    else if (r->pos + 1 == c->n_ids) {
        c->finish = FINISH_LENGTH;
        rq->n_open--;
    }
    if (f.status)
        request_fail(rq, &f);
}

/* Gives a row's result to its choice. logprob: of the top ids, then of r->id. */
static void deliver_row(struct outputs *m, struct output_row *r, const float *logprob)
{
    struct choice *c = r->c;
    struct request *rq = c->rq;
    struct top_entry top[WATCH_MAX];
    struct fault f = { 0 };
    int64_t n = row_tops(r) < 0 ? 0 : row_tops(r);

    if (rq->done || c->finish != FINISH_NONE)
        return;

    for (int64_t j = 0; j < n; j++)
        top[j] = (struct top_entry){ r->top[j], logprob[j] };
    int nan = row_fault(r, logprob, &f) < 0 && r->id >= -1;
    if (r->samples && is_refused(r, nan))
        return;
    if (f.status) {
        request_fail(rq, &f);
        return;
    }

    if (!r->samples) {
        choice_score(c, r->pos + 1, logprob[n], top, r->rank);
        c->finish = rq->max_tokens == 0 && r->pos + 2 == c->n_ids ? FINISH_LENGTH : FINISH_NONE;
    } else {
        drafts_compare(m->drafts, c, r->nth, r->n_drafts, r->id);
        if (choice_accept(c, r->id, logprob[n], top, &f) < 0) {
            request_fail(rq, &f);
            return;
        }
    }

    if (r->samples)
        count_token(c, m->now_s);
    if (c->finish != FINISH_NONE)
        rq->n_open--;
    if (rq->stream && (r->samples || c->finish != FINISH_NONE)) {
        push_event(c);
        request_begin(rq);
    }
}

/* The most likely token of every row to m->best, found on the device. */
static void find_best(struct outputs *m, struct dev *dev, const struct head_out *head, int64_t vocab)
{
    const struct mat logits = mat_of((void *)(uintptr_t)head->logits, DT_F32, m->n, vocab, vocab);
    KERNEL(dev, ce_first, m->there, logits, head->max);
    dev_read(dev, m->best, m->there, (size_t)m->n * sizeof *m->best);
}

/* Logits of greedy rows are not copied: a row of a large vocabulary takes as long as a small model's step. */
struct head_out outputs_read(struct outputs *m, struct dev *dev, const struct head_out *head, int64_t vocab)
{
    size_t n = (size_t)m->n;

    if (!m->seen)
        return *head;
    float *logits = m->seen, *max = logits + n * (size_t)vocab, *sum = max + n;
    for (int64_t i = 0, end; i < m->n; i = end + 1) {
        for (end = i; end < m->n && !m->row[end].greedy; end++)
            ;
        if (end > i)
            dev_read(dev, logits + i * vocab, head->logits + i * vocab,
                     (size_t)((end - i) * vocab) * sizeof *logits);
    }

    for (int64_t i = 0; i < m->n; i++)
        if (m->row[i].greedy) {
            find_best(m, dev, head, vocab);
            break;
        }
    dev_read(dev, max, head->max, n * sizeof *max);
    dev_read(dev, sum, head->sum, n * sizeof *sum);
    return (struct head_out){ logits, max, sum };
}

void outputs_sample(struct outputs *m, struct dev *dev, const struct head_out *here, int64_t vocab)
{
    struct row_job job = { m, here, vocab };
    find_masks(m, dev, vocab);
    pool_run(dev->pool, m->n, do_row, &job);
}

void outputs_process(struct outputs *m, const struct model *model, const struct head_out *head)
{
    size_t row_bytes = (size_t)model->hidden * dtype_size(model->dt);
    struct dev *dev = model->dev;
    int64_t vocab = model->vocab;
    struct head_out here;
    int64_t at = 0;
    if (!m->n)
        return;
    here = outputs_read(m, dev, head, vocab);
    outputs_sample(m, dev, &here, vocab);
    find_logprobs(m, dev, &here, vocab);
    for (int64_t i = 0; i < m->n; i++) {
        if (m->row[i].pools) {
            pool_row(&m->row[i], model, (const char *)head->rows + (size_t)i * row_bytes);
            continue;
        }
        int64_t n = row_tops(&m->row[i]);
        deliver_row(m, &m->row[i], m->logprob + at);
        at += n + 1;
    }
}
