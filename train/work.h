/* work.h - what this rank computes with: data, model, weights, the pipeline schedule and its memory, and the
 * position of the run. */
#ifndef SHARDLINE_TRAIN_WORK_H
#define SHARDLINE_TRAIN_WORK_H

#include "model/adapter.h"
#include "model/model.h"
#include "text/text.h"
#include "train/data/data.h"
#include "train/experts/balance.h"
#include "train/offload/offload.h"
#include "train/offload/offload_inputs.h"
#include "train/pipeline/pipeline.h"
#include "train/ranks.h"
#include "train/run.h"
#include "train/zero/zero.h"

struct position {
    int64_t step;         /* finished updates */
    int64_t first_step;   /* of them before this process */
    int64_t first_sample; /* data position at first_step */
};

/* Slots hold the activations of micro-batches between their forward and their backward. Those of chunk c
 * begin at first_slot[c]; micro-batch k uses slot k modulo the chunk's number of slots. Deferred slots
 * hold what a backward leaves for its weight gradients, in the same way. */
struct work {
    const struct run *run;
    struct ranks *ranks;
    struct data *data, *eval;
    struct tokenizer *tokenizer; /* rank 0's, with --sample-every */

    struct model model;
    struct balance_counts balance;
    float *rounds;                   /* [n_layers]: of struct step_result; NULL: ep is 1 */
    struct adapter adapter;          /* --lora: its parameters are what is trained; else zeroed */
    struct zero *frozen;             /* training with it: the weights of `model`; else NULL */
    struct resident adapter_weights; /* evaluation with it */
    struct zero *zero;               /* training: weights, gradients, moments */
    struct offload_count offloaded;  /* for the log */
    struct offload *offload;         /* --offload: where masters and moments are; NULL: the device's memory */
    struct resident resident;        /* evaluation only: weights */
    struct weights *weights;         /* of one of the two */

    struct batch_plan plan;
    struct pipe_list schedule; /* of this rank */
    struct comm *pp_back;      /* gradients between pipeline ranks; activations use the pp axis of the mesh */
    struct train_work **slot;
    struct inputs *inputs; /* --offload-activations: of the slots; NULL: memory has them */
    int64_t *first_slot, n_slots;
    int64_t slot_seqs; /* sequences in a slot: of a micro-batch */
    struct deferred_grads **deferred;
    int64_t *first_deferred, n_deferred;

    int32_t *ids, *targets;  /* [n_slots][slot_seqs][work_rows()] */
    float *weight;           /* the same, of targets; NULL: each counts as 1 */
    float *scale;            /* [slot_seqs][work_rows()]: of the gradient of each target's loss */
    int64_t n_targets;       /* of the step's global batch, those with a weight that is not 0 */
    int32_t *window;         /* [2][seq_len]: a window's, before this rank's rows are taken; NULL: all are */
    float *window_weight;    /* [seq_len]: of a window's targets; NULL as weight */
    int *n_documents;        /* [slot_seqs], with --documents */
    int64_t *document_begin; /* [slot_seqs][documents] */
    float *logprobs;         /* [slot_seqs][seq_len] */
    float *by_token;         /* [seq_len]: of a window, in the order of tokens; NULL: rows have it */

    struct relayout *relayout; /* of an elastic run (elastic/relayout.h), else NULL */
    struct publish *publish;   /* --publish (checkpoint/publisher.h), else NULL */
    struct position at;
    int n_skipped;                    /* updates skipped in a row */
    double waited_s;                  /* of this step, for other pipeline stages */
    double all_waited_s, all_steps_s; /* of the steps of this process but the first */
};

/* The model whose parameters are trained: the adapter's, where there is one. */
static inline const struct model *work_trained(const struct work *w)
{
    return w->run->lora.n ? &w->adapter.m : &w->model;
}

/* Opens the data of --data and --eval-data. */
int work_open_data(struct work *w, struct err *e);
/* --sample-every: rank 0's tokenizer, in memory, because --keep may remove the checkpoint that its files
 * lie in. */
int work_open_tokenizer(struct work *w, struct err *e);
/* Model, schedule, activations: no state yet. Messages go to term. Collective over the job. */
int work_open(struct work *w, struct log *term, struct err *e);
/* Weights, and for training gradients and moments, without values (restore_load() brings them; for evaluation
 * they are read here). Collective; every rank must have opened its work (comm_agree before). */
int work_open_state(struct work *w, struct log *term, struct err *e);
/* Also after an error, or when nothing was opened; closes what run and ranks still serve. */
void work_close(struct work *w);

/* Rows of a sequence that this rank has. */
int64_t work_rows(const struct work *w);
/* This rank's rows of a window's inputs and targets, into element `at` of ids and targets on, and of weight
 * where w has it. Errors as data_read(). */
int work_read(struct work *w, const struct data *d, int64_t window, int64_t at, struct err *e);
/* The next sample to be read: counted from the start of the run. */
int64_t work_sample(const struct work *w);

#endif
