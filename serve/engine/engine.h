/* engine.h - the loop of all ranks: rank 0 plans a step and shares it, every rank runs it, rank 0 makes
 * tokens of the logits.
 *
 * The engine is the main thread of every rank. HTTP threads (rank 0 only) hand requests over with
 * engine_submit(); answers go back through the request itself. Nothing waits in a busy loop: rank 0 sleeps
 * until a request comes, the others in the broadcast of the next plan; an empty plan a few times a second
 * lets every rank notice a dead peer, and rank 0 a signal. */
#ifndef SHARDLINE_SERVE_ENGINE_ENGINE_H
#define SHARDLINE_SERVE_ENGINE_ENGINE_H

#include <pthread.h>
#include "comm/comm.h"
#include "model/model.h"
#include "serve/engine/outputs.h"
#include "serve/engine/kv.h"
#include "serve/metrics.h"
#include "serve/engine/step_message.h"
#include "serve/weights/reload.h"
#include "serve/api/request.h"
#include "serve/replicas/router.h"
#include "serve/engine/scheduler.h"
#include "serve/service.h"

struct engine_size {
    int max_seqs;  /* sequences running at once */
    int64_t chunk; /* prefill rows a step */
    /* rows with logits a step: max_seqs at least, max_seqs + chunk at most */
    int64_t max_wants;
    int32_t n_pages;
    int prefix_cache;
    int64_t window; /* of all layers; 0: none */
};
static inline int64_t engine_max_rows(const struct engine_size *s) { return s->max_seqs + s->chunk; }

struct engine {
    struct service *sv;
    struct world *world;
    struct comm *tp;
    struct model *m;
    struct weights *ws;
    struct model_info *loaded; /* NULL: weights stay what they are */
    struct reload reload;      /* other weights beside them */
    int n_here;                /* ranks on this machine that load at the same time */
    struct engine_size size;
    struct kv kv;
    struct step_message message;
    struct forward_work work;
    void *work_memory;

    /* rank 0: */
    struct router *router; /* its first replica is this engine's */
    struct inbox *inbox;
    int is_follower; /* another process decides when it ends */
    struct log *log; /* or NULL */
    struct sched sched;
    struct outputs outputs;
    struct request *active;                                               /* in work */
    int64_t n_steps, n_rows, n_answered;                                  /* so far */
    int64_t n_preempted_reported, n_looked_up_reported, n_found_reported; /* that the metrics know of */
    /* when clients that hung up were last looked for */
    double disconnect_check_s;
    double synced_s; /* when the ranks last met about a reload */
    int synced;      /* there was no step since */
};

/* All of the rank's memory for serving: pages, work, plans. router: NULL on ranks that are not the first of
 * their group. */
int engine_open(struct engine *en, struct service *sv, struct world *w, struct comm *tp, struct model *m,
                struct weights *ws, const struct engine_size *size, struct router *router, struct err *e);
void engine_close(struct engine *en);
/* Runs until a signal asks for the end and every request has its answer, or `limit` requests have been
 * answered (0: no limit): 0. Or
 * until something fails: then every request in work has been answered with a 503. Collective over tp. */
int engine_run(struct engine *en, int64_t limit, struct err *e);

#endif
