/* step_run.h - one step of a replica on one of its ranks: its stage of the model (--pp), its rows of the step
 * (--cp), its part of every matrix (tp).
 *
 *     stage 0 ranks   layers 0 …  ── rows, rounded ──>  stage 1 ranks   layers …, head ── logits ──> rank 0
 *
 * Step messages and rows go from stage to stage, rows to the rank with the same place in tp and cp. A stage
 * goes on when they are sent: it computes the next chunk of a prompt while the stage behind it computes this
 * one, and is at most STEPS_AHEAD steps ahead. Only rank 0 waits for a step, one whose logits it wants. The
 * rows that want logits come together on the first rank of cp, whose tp group computes the head. */
#ifndef SHARDLINE_SERVE_ENGINE_STEP_RUN_H
#define SHARDLINE_SERVE_ENGINE_STEP_RUN_H

#include "model/model.h"
#include "serve/adapters/adapter_set.h"
#include "serve/engine/page_gather.h"
#include "serve/engine/step_message.h"
#include "serve/engine/step_share.h"

/* The ranks of a replica, as one of them sees them; tp fastest, then cp, then pp. Borrowed. */
struct replica_ranks {
    struct comm *all, *tp;
    struct comm *cp, *pp; /* NULL: the degree is 1 */
    struct comm *stage;   /* those of this rank's stage */
    struct comm *ep;      /* those that divide the experts of a layer; NULL: tp cuts them */
};
static inline int replica_cp(const struct replica_ranks *r) { return r->cp ? comm_size(r->cp) : 1; }
/* The ranks of cp that share memory, and so pages, with this one. */
static inline int replica_place(const struct replica_ranks *r)
{
    int rank, n = 1;
    if (r->cp)
        comm_shared_group(r->cp, &rank, &n);
    return n;
}
static inline int replica_cp_rank(const struct replica_ranks *r) { return r->cp ? comm_rank(r->cp) : 0; }
static inline int replica_pp(const struct replica_ranks *r) { return r->pp ? comm_size(r->pp) : 1; }
static inline int replica_pp_rank(const struct replica_ranks *r) { return r->pp ? comm_rank(r->pp) : 0; }

/* Steps whose rows are sent and not taken yet, at most. */
enum { STEPS_AHEAD = 2 };

/* Rows of a step, and rows with logits in it, at most. */
struct step_limits {
    int max_seqs;
    int64_t rows, max_wants;
    int64_t carried; /* rows of a slice (step_run_slice()); 0: there are none */
};
struct step_work {
    struct key_exchange exchange; /* the first member: it is passed alone */
    struct replica_ranks ranks;
    struct step_share share;            /* with cp … */
    struct page_gather gather;          /* … of several places */
    const struct adapter_set *adapters; /* borrowed; NULL: there are none */
    struct adapter_run *run;            /* [cap_runs] */
    struct adapter_rows adapted;        /* of the present step */
    int64_t cap_runs;
    const struct step_message *message; /* of the present step; borrowed */
    const void *states;                 /* struct batch: set by the caller; borrowed */
    struct forward_work forward;        /* in … */
    void *memory;                       /* … this device memory */
    struct dev *dev;
    float *logits, *stat; /* the first rank of several stages: [max_wants][vocab], [2][max_wants], */
    void *rows;           /* dt [max_wants][hidden] */
    void *carried;        /* dt [limits.carried][hidden]: rows between two slices; NULL with cp or pp */
    int n_ahead;          /* steps whose rows the next stage has not taken */
};
/* Bytes of the device and of messages that step_work_open() and step_run() take on a rank that holds m, whose
 * m->tp is set. */
size_t step_work_measure(const struct model *m, const struct replica_ranks *r, const struct step_limits *lim);
/* The most rows that model_open() has to expect on this rank. */
int64_t step_model_rows(const struct replica_ranks *r, const struct step_limits *lim);
/* Allocates. ERR_MEMORY. step_work_close() is safe on zeroes and after an error. Not collective. */
int step_work_open(struct step_work *w, struct model *m, const struct replica_ranks *r,
                   const struct step_limits *lim, struct err *e);
void step_work_close(struct step_work *w);

/* Sends the first rank's message to every rank: from stage to stage, then to all ranks of each stage. */
int step_message_pass(struct step_message *p, const struct replica_ranks *r, struct err *e);
/* Computes the step of message p, whose pages are those of kv. *head: on the first rank of all, logits of the
 * wanted rows. Collective over all. ERR_MEMORY, ERR_PEER. */
int step_run(struct step_work *w, struct model *m, struct weights *ws, struct step_message *p,
             const struct kv kv[PAGE_GROUPS], struct head_out *head, struct err *e);
/* Computes a slice of message p (STEP_CARRY) with other weights of the same model. Its rows wait in memory of
 * their own for the next slice, so that steps may come between. Without cp and pp. Collective over all.
 * ERR_MEMORY, ERR_PEER. */
int step_run_slice(struct step_work *w, struct model *m, struct weights *ws, struct step_message *p,
                   const struct kv kv[PAGE_GROUPS], struct err *e);

#endif
