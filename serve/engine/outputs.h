/* outputs.h - from the logits of a step to tokens of choices and bytes of answers. Rank 0 only. */
#ifndef SHARDLINE_SERVE_ENGINE_OUTPUTS_H
#define SHARDLINE_SERVE_ENGINE_OUTPUTS_H

#include "kernels/kernels.h"
#include "model/model.h"
#include "serve/api/request.h"
#include "serve/engine/scheduler.h"

/* One wanted row: what is to be known of it, and what came out. */
struct output_row {
    struct choice *c;
    int64_t pos; /* of the token that was run; the row says what comes behind it */
    int samples; /* else it scores ids[pos + 1] of the prompt */
    /* it samples what is most likely, and nothing else is asked of its logits */
    int greedy;
    int32_t id;   /* sampled or scored; negative: no token can be sampled */
    int64_t rank; /* of a scored id, with prompt_logprobs */
    int32_t top[LOGPROBS_MAX];
};
struct outputs {
    double now_s;   /* when the step's logits were there */
    int64_t cap, n; /* rows */
    struct output_row *row;
    float *pick, *max, *sum, *logprob; /* [cap * (LOGPROBS_MAX + 1)] */
    /* Where the host cannot read the device's memory, else NULL: a step's logits and statistics, [cap *
     * (vocab + 2)], of which rows that only want the most likely token get none; their ids are found there.
     * */
    float *seen;
    struct dev *dev;
    int32_t *there, *best; /* [cap] ids: on the device, here */
};
int outputs_open(struct outputs *m, struct dev *dev, int64_t max_rows, int64_t vocab, struct err *e);
void outputs_close(struct outputs *m);
/* Before sched_step_done: which rows the plan asks for. */
void outputs_expect(struct outputs *m, const struct sched *s);
/* Behind it: samples, scores, hands tokens to their choices and events to their streams. A request that a
 * row makes fail has failed then (the caller looks at rq->done). */
void outputs_process(struct outputs *m, struct dev *dev, const struct head_out *head, int64_t vocab);
/* A finished or failed request: its last events, its end. */
void outputs_end_request(struct request *rq);

#endif
