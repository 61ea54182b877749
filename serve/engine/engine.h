/* engine.h - the loop that all ranks run: rank 0 of a replica plans a step and broadcasts it, every rank
 * computes it, rank 0 turns the logits into tokens.
 *
 * The engine runs in the main thread of every rank. Threads of HTTP (rank 0 only) hand requests over through
 * the inbox (inbox.h); answers go back through the request itself. Nothing polls in a busy loop: rank 0
 * sleeps until a request comes, the other ranks in the broadcast of the next step message. An empty message a
 * few times a second lets every rank notice a dead peer, and rank 0 a signal. */
#ifndef SHARDLINE_SERVE_ENGINE_ENGINE_H
#define SHARDLINE_SERVE_ENGINE_ENGINE_H

#include <pthread.h>
#include "comm/comm.h"
#include "model/model.h"
#include "serve/engine/carry_over.h"
#include "serve/engine/draft.h"
#include "serve/engine/outputs.h"
#include "serve/kv/kv.h"
#include "serve/kv/kv_disk.h"
#include "serve/kv/kv_plan.h"
#include "serve/metrics.h"
#include "serve/engine/step_message.h"
#include "serve/engine/step_run.h"
#include "serve/weights/reload.h"
#include "serve/weights/repack.h"
#include "serve/api/request.h"
#include "serve/replicas/router.h"
#include "serve/engine/scheduler.h"
#include "serve/service.h"

struct engine_size {
    int max_seqs;      /* sequences running at once */
    int64_t chunk;     /* prefill rows in a step */
    int64_t drafts;    /* rows of drafts in a step; 0: there are none */
    int64_t max_wants; /* rows with logits in a step: max_seqs + drafts at least, chunk more at most */
    int prefix_cache;  /* 1: pages are kept for prompts with the same beginning */
    struct kv_pool pool[PAGE_GROUPS];
};
static inline struct step_limits engine_step(const struct engine_size *s)
{
    return (struct step_limits){ .max_seqs = s->max_seqs,
                                 .rows = s->max_seqs + s->chunk + s->drafts,
                                 .max_wants = s->max_wants,
                                 .carried = s->chunk < CARRY_ROWS ? s->chunk : CARRY_ROWS };
}

/* What an engine works with. Everything is borrowed and outlives the engine. */
struct engine_setup {
    struct service *sv;
    struct world *world;
    struct replica_ranks ranks;
    struct model_info *loaded; /* its model and weights, which a reload replaces */
    struct adapter_set *adapters;
    int n_here; /* ranks on this machine that load at the same time */
    struct engine_size size;
    struct draft_spec drafts; /* where size.drafts is not 0 */
    struct comm *draft_ranks; /* those that run a draft model, where this one does; else NULL */
    struct router
        *router;         /* its first replica is this engine's; NULL on ranks that are not the first of it */
    int is_follower;     /* another process decides when this engine ends */
    int is_pushed;       /* newer weights come often (--follow) */
    struct log *log;     /* or NULL */
    const char *kv_disk; /* --kv-disk: the folder, NULL: there is none; and its size */
    int64_t kv_disk_bytes;
};

struct engine {
    struct engine_setup in;
    struct reload reload; /* other weights, read beside the present ones */
    struct kv kv[PAGE_GROUPS];
    struct kv_disk disk;
    struct step_message message;
    struct step_work work;
    struct drafts drafts; /* on the ranks that run a draft model */

    /* rank 0 only: */
    struct inbox *inbox; /* of the router's first replica; NULL on the other ranks */
    struct sched sched;
    struct carry carry; /* without cp and pp; else zeroes */
    struct kv_plan plan;
    struct outputs outputs;
    struct request *active;              /* requests in work, one reference each */
    int64_t n_steps, n_rows, n_answered; /* so far */
    int64_t n_preempted_reported, n_looked_up_reported,
        n_found_reported;      /* of these, in the metrics already */
    double disconnect_check_s; /* clock_s() when disconnected clients were last looked for */
    double synced_s;           /* clock_s() when the ranks last synchronised about a reload */
    int synced;                /* and there was no step since */
    int swap_waits;            /* weights are swapped when all that has begun has ended */
    int pause_waits;           /* the same of the answer to a pause */
    int frozen;                /* a pause keeps what has begun: no step is run */
};

/* Allocates all of the rank's memory for serving: pages, work area, messages. ERR_MEMORY. Main thread;
 * collective over the replica. After an error engine_close() frees what is there. */
int engine_open(struct engine *en, const struct engine_setup *in, struct err *e);
/* Frees it. Safe on zeroes. Collective over the ranks that share pages. */
void engine_close(struct engine *en);
/* engine_hold.c: rank 0, requests beside a swap of weights and a pause. A new request, which starts, or is
 * held until the swap or the end of the pause. */
void engine_start(struct engine *en, struct request *rq);
/* The fingerprint of a request's answer with the present weights. */
void engine_fingerprint(const struct engine *en, const struct request *rq, char out[FINGERPRINT_MAX]);
/* 1: a request is in work that is not held. */
int engine_has_begun(const struct engine *en);
/* 1: requests are in work, and no step can be run for them. */
int engine_is_held(const struct engine *en);
/* RELOAD_SWAP, RELOAD_PAUSE, RELOAD_RESUME; text: the word of a mode. 1: the ranks swap now; 0: later, or the
 * command was answered or will be. */
int engine_hold_command(struct engine *en, enum reload_op what, const char *text);
/* Before every step: answers a pause that is complete. 1: the swap that was waited for is due. */
int engine_hold_over(struct engine *en);
/* Rank 0, before every step: makes the message of a slice with the new weights, where one is next. 1: it has;
 * 0: a step is next. ERR_MEMORY. */
int engine_make_slice(struct engine *en, struct err *e);
/* Computes it. Collective. */
int engine_run_slice(struct engine *en, struct err *e);
/* The weights are new: what was held starts. And at the end of a pause (nothing to do where there is
 * none). */
void engine_swapped(struct engine *en);
void engine_resume(struct engine *en);
/* engine_pages.c: pages that go to the folder of --kv-disk and come from it. Opens it; errors of
 * kv_disk_open(). Collective over the replica. */
int engine_open_pages(struct engine *en, struct err *e);
/* Rank 0, on fresh weights: names of pages begin anew. */
void engine_name_pages(struct engine *en);
/* Rank 0, before a step is planned: loads pages of sequences that wait. Behind it: saves those that were
 * evicted. At the end: saves all that are cached. The other ranks meet these in engine_obey_pages(). */
int engine_load_pages(struct engine *en, struct err *e);
int engine_save_evicted(struct engine *en, struct err *e);
int engine_save_cached(struct engine *en, struct err *e);
/* Runs the orders of the message. */
int engine_obey_pages(struct engine *en, struct err *e);
/* Runs until a signal asks for the end and every request has its answer, or until `limit` requests have been
 * answered (0: no limit): returns 0. Or until something fails: then every request in work has been answered
 * with a 503. Collective over the replica, main thread. */
int engine_run(struct engine *en, int64_t limit, struct err *e);

#endif
