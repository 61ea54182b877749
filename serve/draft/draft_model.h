/* draft_model.h - what the drafters that run a model share: its weights and pages, a scheduler, and rounds of
 * guesses (draft_model.c). A form says what differs: a model of its own, or a layer of the served model's
 * checkpoint (mtp.c). */
#ifndef SHARDLINE_SERVE_DRAFT_DRAFT_MODEL_H
#define SHARDLINE_SERVE_DRAFT_DRAFT_MODEL_H

#include "serve/draft/drafters.h"
#include "serve/engine/outputs.h"
#include "serve/engine/step_run.h"
#include "serve/weights/background.h"
#include "serve/weights/model_info.h"

struct draft_model;
/* A choice's sequence here: its tokens from seq.shift on. */
struct guessed {
    struct seq seq;
    struct draft_ask *ask; /* of this step; NULL: none */
    int queued;            /* it is in the scheduler */
};
/* NULL: there is nothing to do. */
struct draft_form {
    /* The checkpoint is open: sets x->info.cfg. */
    int (*config)(struct draft_model *x, struct err *e);
    /* x->info.m is open: may rename its parameters, which are then read under those names. */
    void (*opened)(struct draft_model *x);
    /* The sequence of an ask, calloc'd as c->draft.own; NULL: it cannot guess now. */
    struct guessed *(*find)(struct draft_model *x, const struct draft_ask *a);
    /* A step is planned: fills x->states with the states of its rows. */
    void (*before)(struct draft_model *x);
    /* Row i of x->outputs has become a guess of g, the last one of g->ask. */
    void (*guessed)(struct draft_model *x, struct guessed *g, int64_t i);
    /* Frees what g has besides itself. */
    void (*end)(struct guessed *g);
};

struct draft_model {
    const struct draft_form *form;
    struct model_info info;
    struct background background;
    struct draft_open how;
    struct replica_ranks ranks; /* those of how.ranks */
    struct sched sched;
    struct step_message message;
    struct step_work work;
    struct kv kv[PAGE_GROUPS];
    struct outputs outputs; /* on the rank that plans, as sched and message; and … */
    float *padded; /* [max_seqs][vocab of the model that is served], where the two differ; else NULL */
    void *states;  /* device, dt [rows of a step][hidden]; NULL: the form has no `before` */
    int64_t ctx;
};

/* Members of a struct drafter; the first one with a form, borrowed. */
int draft_model_open(void **state, const struct draft_open *how, const struct draft_form *form,
                     struct err *e);
void draft_model_close(void *state);
int draft_model_propose(void *state, struct draft_ask *ask, int n, struct err *e);
void draft_model_end(void *state, struct choice *c);

#endif
