/* outputs.h - from the logits of a step to tokens of choices and bytes of answers. Rank 0, the engine's
 * thread. */
#ifndef SHARDLINE_SERVE_ENGINE_OUTPUTS_H
#define SHARDLINE_SERVE_ENGINE_OUTPUTS_H

#include "kernels/kernels.h"
#include "model/model.h"
#include "serve/api/request.h"
#include "serve/engine/scheduler.h"

/* One row that wants logits: what is asked of it, and what came out. */
struct output_row {
    struct choice *c;
    int64_t pos;          /* of the token that was run; the row predicts the token after it */
    int samples;          /* 1: samples the next token; 0: scores ids[pos + 1] of the prompt */
    int pools;            /* neither: its hidden state is pooled */
    int greedy;           /* samples the most likely token, and nothing else is asked of its logits */
    int nth;              /* how many rows before it in the step sample for this choice */
    int n_drafts;         /* how many drafts the step ran for it */
    int32_t id;           /* sampled or scored; negative: no token can be sampled (sample_token()) */
    const uint32_t *mask; /* of a constrained answer: ids that may come; NULL: all */
    int64_t rank;         /* of a scored id, with prompt_logprobs */
    int32_t top[WATCH_MAX];
};
struct outputs {
    double now_s;   /* clock_s() when the step's logits were there */
    int64_t cap, n; /* rows */
    struct output_row *row;
    struct drafts *drafts;             /* borrowed */
    uint32_t *mask;                    /* of rows of constrained answers, one behind the other */
    size_t mask_cap;                   /* words */
    float *pick, *max, *sum, *logprob; /* [cap * (WATCH_MAX + 1)] */

    /* Only where the host cannot read the device's memory, else NULL: */
    float *seen; /* [cap * (vocab + 2)] a step's logits and statistics; greedy rows have no logits there */
    int32_t *there, *best; /* [cap] ids of greedy rows: on the device, on the host */
    struct dev *dev;
};

/* Allocates for steps with max_rows rows with logits; ERR_MEMORY, after which outputs_close() frees what is
 * there. outputs_close() is safe on zeroes. */
int outputs_open(struct outputs *m, struct dev *dev, int64_t max_rows, int64_t vocab, struct err *e);
void outputs_close(struct outputs *m);
/* Notes which rows the step's items want logits of. */
void outputs_expect(struct outputs *m, const struct sched *s);
/* After it, before sched_step_done(): pools hidden states, samples, scores, gives tokens to their choices and
 * events to their streams. Of the rows of drafts it takes those up to the first wrong one. head: [n][vocab]
 * logits, [n] max and sum, [n][hidden] rows, memory of the model's device. A request that fails here has its
 * fault and rq->done, which the caller looks at. */
void outputs_process(struct outputs *m, const struct model *model, const struct head_out *head);
/* Parts of it, for guesses: a step's logits where the host can read them (those of greedy rows are not
 * copied), and then the ids of all rows, to m->row. here: what the first returned, or as many rows of a vocab
 * of the caller's. */
struct head_out outputs_read(struct outputs *m, struct dev *dev, const struct head_out *head, int64_t vocab);
void outputs_sample(struct outputs *m, struct dev *dev, const struct head_out *here, int64_t vocab);
/* Ends a choice before its time, with what it has: FINISH_ABORT. */
void outputs_abort(struct choice *c);
/* Ends a finished or failed request: its last events, its end. */
void outputs_end_request(struct request *rq);

#endif
