/* draft.h - speculative decoding: guesses at the next tokens of a sequence (drafts), which one step checks
 * together. Rank 0, the engine's thread; other ranks only follow a draft model.
 *
 *     tokens   t0 t1 t2 | d0 d1 d2       a step runs t2 d0 d1 d2: four rows
 *     samples           | s0 s1 s2 s3    s0 == d0, s1 != d1: the answer goes on with s0 s1
 *
 * A row's logits do not depend on the rows beside it (kernels/NUMERICS.md), and a token is a pure function of
 * logits, request and position. So s0 is the token of a step without drafts, s1 is it where s0 == d0, and so
 * on: any guess, and any rule for how many there are, gives the same answer.
 *
 * A drafter guesses (drafters.h), but where a grammar forces the next bytes of an answer: their tokens are
 * the guesses there. Here is what all of them share: which sequences get how many drafts. Each sequence knows
 * how often its drafts were right, the engine how long a row more makes a step; a draft is run where that
 * promises more tokens a second. With few rows a step waits for the weights, and a row costs little; with
 * many it does not pay, and drafts end by themselves. Drafts that are not run are still compared with the
 * token that comes. */
#ifndef SHARDLINE_SERVE_ENGINE_DRAFT_H
#define SHARDLINE_SERVE_ENGINE_DRAFT_H

#include <stdint.h>
#include "base/err.h"
#include "kernels/kernels.h"

struct choice;
struct comm;
struct drafter;
struct metrics;
struct model_info;
struct outputs;
struct sched;
struct step_message;
struct world;

#define DRAFT_MOST 16              /* tokens ahead of a sequence */
#define DRAFT_ROWS 64              /* of all sequences in a step */
#define DRAFT_CLASSES 4            /* how sure a drafter is: 0 the least */
#define DRAFT_FORCED DRAFT_CLASSES /* a class of its own: a grammar leaves no other bytes */

/* What a choice keeps; zero at first. */
struct draft_state {
    int n;                         /* guesses behind its tokens, of which the next step runs some or none */
    int class;                     /* of these */
    int right;                     /* while rows are delivered: all guesses so far */
    int alone;                     /* the next step must run it without drafts */
    int known;                     /* rate is set */
    float rate[DRAFT_CLASSES + 1]; /* how often the next guess is right */
    void *own;                     /* the drafter's */
};

/* How long steps that decode take, by their rows: what three quarters of the latest ones take longer than.
 * Other programs make single steps longer, never shorter. */
#define COST_ROWS 96
struct draft_cost {
    double time_s[COST_ROWS + 1];
    int n[COST_ROWS + 1]; /* steps of so many rows that count; fewer while there are none */
};

struct drafts {
    const struct drafter *kind;    /* NULL: there are none */
    void *state;                   /* of it */
    int most;                      /* tokens ahead, at most */
    int always;                    /* for tests: as many as there are */
    float rate[DRAFT_CLASSES + 1]; /* of all sequences: what a new one begins with */
    struct draft_cost cost;
    struct draft_ask *ask; /* [max_seqs] */
    int n_asks;
    int64_t n_steps;
    double guess_s; /* that one guess of a costly drafter takes, for all sequences together */
    char path[4096];
    struct metrics *metrics; /* borrowed */
};
/* What --speculate says. */
struct draft_spec {
    const char *kind; /* a drafter's name, or a checkpoint */
    int n_kind;       /* bytes of it */
    int most;         /* 0: not given */
};

/* Reads ngram[:K], suffix[:K], mtp[:K] or CKPT[:K]; the text is borrowed. ERR_USAGE: K is not 1 to
 * DRAFT_MOST. */
int draft_spec_parse(struct draft_spec *spec, const char *text, struct err *e);
/* It runs a model, which needs a group of ranks. */
int draft_needs_ranks(const struct draft_spec *spec);
/* ERR_USAGE: --speculate-tp tp is not 1, and this is no draft model, or tp does not divide the n ranks of a
 * stage. */
int draft_check_tp(const struct draft_spec *spec, int64_t tp, int64_t n, struct err *e);
/* What drafts are opened for. Everything is borrowed and outlives them. */
struct draft_open {
    int max_seqs;       /* of a step */
    int64_t vocab;      /* guesses are below it */
    int64_t ctx, chunk; /* tokens of a sequence; rows of prompts in a step */
    int32_t n_pages;    /* pages of keys and values that sequences have together */
    int64_t kv_bytes;   /* that they will take of the machine's memory */
    struct dev *dev;
    struct comm *ranks;              /* those that run a draft model: the first ones of … */
    struct comm *stage;              /* … these, which meet its steps; both have the planning rank first */
    int tp;                          /* the size of ranks */
    const struct model_info *served; /* the model that drafts are for, */
    enum dtype dt;                   /* and its arithmetic; … */
    enum kv_kind kv;                 /* what both models' pages store */
    struct world *world;
    int (*stopped)(const struct world *w); /* a signal asks for the end; may be NULL */
    int most;                              /* drafts_open() sets it … */
    const char *path;                      /* … and this: what --speculate names */
};
/* Bytes of keys and values that the drafter will keep for each page of the served model; negative: an error
 * of opening a draft model. tp: of the draft model; dt: of the served model's arithmetic; kv: what its pages
 * store. */
int64_t draft_page_bytes(const struct draft_spec *spec, const struct model_info *served, int tp,
                         enum dtype dt, enum kv_kind kv, struct err *e);
/* ERR_MEMORY, and the errors of a draft model: those of reading it, ERR_USAGE: another tokenizer.
 * drafts_close() is safe on zeroes and after an error. */
int drafts_open(struct drafts *d, const struct draft_spec *spec, const struct draft_open *in, struct err *e);
void drafts_close(struct drafts *d);
/* Before sched_next_step(): guesses for the running sequences that decode. */
int drafts_propose(struct drafts *d, struct sched *s, struct err *e);
/* Token number nth of a step, `id`, is about to be taken by c, which has agreed with the guesses before. ran:
 * guesses that the step ran. Sets c->draft.right. */
void drafts_compare(struct drafts *d, struct choice *c, int nth, int ran, int32_t id);
/* A step of the scheduler's items took so long. */
void drafts_timed(struct drafts *d, const struct sched *s, double seconds);
/* Does it need final hidden states of rows? */
int drafts_want_rows(const struct drafts *d);
/* A step's final hidden states, row_bytes each, of the device, whose tokens have been taken: of the rows
 * o->row; or, where all ranks are of one tp group, of all rows of the scheduler's items. */
void drafts_took(struct drafts *d, const struct outputs *o, const void *rows, size_t row_bytes);
void drafts_took_all(struct drafts *d, const struct sched *s, const void *rows, size_t row_bytes);
/* Another rank than the first: runs its part of a step of the draft model, if it has one. */
int drafts_follow(struct drafts *d, struct step_message *p, struct err *e);
/* The choice gets no more tokens. */
void drafts_end(struct drafts *d, struct choice *c);

#endif
