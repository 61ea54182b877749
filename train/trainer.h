/* trainer.h - a run of ptrain on one rank: everything it has open, and the rooms' parts that work on it. */
#ifndef SHARDLINE_TRAIN_TRAINER_H
#define SHARDLINE_TRAIN_TRAINER_H

#include <stdio.h>
#include "base/log.h"
#include "base/trace.h"
#include "comm/comm.h"
#include "format/ckpt.h"
#include "format/sidecar.h"
#include "model/model.h"
#include "text/text.h"
#include "train/data/data.h"
#include "train/train_options.h"
#include "train/pipeline/pipeline.h"
#include "train/zero/zero.h"

/* of ranks, whose collectives are counted (runlog.c) */
enum { RUN_GROUPS = AXIS_COUNT + 2 };

struct trainer {
    struct train_opts o;
    unsigned char given[GIVEN_MAX]; /* which options the command line named */
    /* the resumed run's options as a command line, from item 1 on: o's texts point into it */
    char **inherited;
    int n_inherited;
    char *run_json;    /* stored options, as the checkpoint keeps them */
    struct nears near; /* what the command line named by URL */
    struct log log;
    struct trace *trace; /* --trace, else NULL */
    struct mem mem;
    struct dev *dev;
    struct world *world;
    struct mesh mesh;
    struct layout layout;
    struct model_config cfg;
    enum dtype dt;
    struct batch_plan plan;
    struct model model;
    struct zero *zero;         /* training */
    struct resident resident;  /* evaluation only */
    struct weights *weights;   /* of one of the two */
    struct pipe_list schedule; /* of this rank */
    /* gradients between pipeline ranks; activations go along mesh.axis[AXIS_PP] */
    struct comm *pipe_back;
    /* [n_work]: micro-batches between their forward and backward, chunk by chunk … */
    struct train_work **work;
    int64_t *first_work;       /* … [chunks]: where a chunk's begin */
    int64_t n_work, work_seqs; /* work_seqs: sequences in each */
    /* [n_late]: weight gradients that are late; their chunks are as those of work */
    struct train_late **late;
    int64_t *first_late, n_late;
    struct data *data, *eval;
    struct ckpt *source;              /* --resume or --init, while loading */
    int resume_auto;                  /* --resume auto found a checkpoint */
    int64_t step;                     /* finished updates */
    int skipped;                      /* the last so many had no finite loss or norm */
    int64_t first_sample, first_step; /* data position at the start of this process */
    int n_extra;                      /* tokenizer files and the like, carried into checkpoints */
    const char **extra_name;
    struct tokenizer *tokenizer; /* rank 0's, with --sample-every */
    const void **extra_data;
    size_t *extra_bytes;
    int32_t *ids, *targets;           /* [n_work][work_seqs][seq_len] */
    int *n_documents;                 /* [work_seqs], with --documents … */
    int64_t *document_begin;          /* … [work_seqs][documents] */
    float *logprobs;                  /* [work_seqs][seq_len] */
    double waited_s;                  /* of this step, for other pipeline stages */
    double all_waited_s, all_steps_s; /* of the steps of this process but the first */
    FILE *log_file;                   /* rank 0 */
    int log_lost;                     /* lines of it that could not be written */
    int n_peaks;                      /* how often peak_flops was measured */
    double peak_flops, step_s;        /* step_s: what a step takes, smoothed over the last ones */
    struct comm_count comm_seen[RUN_GROUPS][COMM_OPS]; /* at the start of the step, by group */
    struct save *save;                                 /* save.c */
    struct ckpt_digests digests;                       /* of the last checkpoint */
    char last_checkpoint[4096];
};

struct step_result {
    float loss, norm;
    double lr, seconds, bubble;
    int stop;
};

/* setup.c */
int trainer_open(struct trainer *t, int argc, char **argv, struct err *e);
void trainer_close(struct trainer *t);
/* check.c */
int trainer_check_options(const struct trainer *t, struct err *e);
/* that OUT can take this run's checkpoints */
int trainer_check_target(const struct trainer *t, struct err *e);
/* rank 0: OUT is there and can be written, so can --trace */
int trainer_make_target(const struct trainer *t, struct err *e);
/* load.c: the checkpoint of --resume / --init, or initial values */
int trainer_find_source(struct trainer *t, struct err *e); /* opens t->source, reads its config */
int64_t trainer_step_of(const char *name);                 /* N of "step-N"; -1: another name */
int trainer_load(struct trainer *t, struct err *e);
int trainer_read_param(void *ctx, const struct param *p, const struct box *b, struct ring *ring, void *dst,
                       enum dtype dt, struct err *e);
/* step.c */
double schedule_lr(const struct train_opts *o, int64_t step);
int step_run(struct trainer *t, struct step_result *r, struct err *e);
/* save.c */
int trainer_save_open(struct trainer *t, struct err *e);
/* waits for the thread; what is not published is gone */
void trainer_save_close(struct trainer *t);
/* OUT/step-N, or with --save-async its beginning; waits for the one before. must: the run fails when it
 * fails, else --on-save-error says. All three are collective. */
int trainer_save(struct trainer *t, int must, struct err *e);
/* between steps: goes on with a save where all ranks are ready */
int trainer_save_poll(struct trainer *t, struct err *e);
int trainer_save_wait(struct trainer *t, struct err *e); /* ends it */
/* eval.c */
int trainer_eval(struct trainer *t, double *loss, FILE *logprobs, struct err *e);
int trainer_sample(struct trainer *t, struct err *e);
/* that a model is opened for: a sample may be longer than a sequence */
int64_t train_positions(int64_t seq_len, const struct model_config *c);
/* runlog.c */
int runlog_open(struct trainer *t, struct err *e); /* cuts lines past t->step */
/* of MEM_WORK for a moment, to measure what MFU is a share of */
size_t runlog_peak_bytes(enum dtype dt);
void runlog_begin_step(struct trainer *t); /* time in collectives counts from here */
void runlog_step(struct trainer *t, const struct step_result *r);
/* every rank's memory by category; collective */
int runlog_memory(struct trainer *t, const char *when, struct err *e);
/* as a JSON string; malloc'd, NULL: no memory or no UTF-8 */
char *runlog_quote(const char *text);
void runlog_event(struct trainer *t, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void runlog_event_at(struct trainer *t, int64_t step, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* loop.c */
int64_t trainer_end(const struct trainer *t); /* the step this process ends at */
int trainer_run(struct trainer *t, struct err *e);
int trainer_plan(struct trainer *t, struct err *e); /* --dry-run */

#endif
