/* kv_plan.h - which pages of a waiting sequence are loaded from the second level of the prefix cache
 * (kv_disk.h). Rank 0 of a replica, the engine's thread.
 *
 * Loaded pages go into the prefix cache; the sequence finds them there when it is admitted. Where pages take
 * longer to load than to compute, they are computed (and loaded once in a while, in case that changes): only
 * time depends on it. */
#ifndef SHARDLINE_SERVE_KV_KV_PLAN_H
#define SHARDLINE_SERVE_KV_KV_PLAN_H

#include "serve/engine/scheduler.h"
#include "serve/kv/kv_disk.h"

/* A page of a beginning. */
struct kv_wanted {
    struct kv_key name;
    int32_t page[PAGE_GROUPS];  /* held; -1: none */
    int64_t order[PAGE_GROUPS]; /* that loads it; -1: it is cached, or not seen */
};
struct kv_plan {
    struct kv_disk *disk; /* borrowed; NULL: there is no second level */
    struct kv_orders orders;
    struct kv_wanted *want; /* [n] of the sequence at hand */
    int64_t n, n_cached;
    struct seq *seq;
    double load_s, compute_s; /* of a page, lately; 0: not known */
    int n_skipped;
};

/* From now on s names its pages, and notes those that it evicts in p->orders. */
void kv_plan_open(struct kv_plan *p, struct sched *s, struct kv_disk *disk, struct kv_key root);
/* Safe on zeroes. */
void kv_plan_close(struct kv_plan *p);
/* Asks the machine to read q's pages ahead. */
void kv_plan_ask_ahead(struct kv_plan *p, struct sched *s, const struct seq *q);
/* The next waiting sequence that may be admitted and was not looked up yet: takes pages for what the folder
 * has of its beginning, and adds orders. Returns the pages that they load; 0: none, -1: no such sequence is
 * left. *missed: tokens that were looked up. */
int64_t kv_plan_next(struct kv_plan *p, struct sched *s, int64_t *missed);
/* The orders were run in `seconds`, ok as kv_disk_run() gave it: what was loaded is in the prefix cache.
 * Returns the tokens. */
int64_t kv_plan_loaded(struct kv_plan *p, struct sched *s, const int64_t *ok, double seconds);
/* A step of so many rows took so long. */
void kv_plan_timed(struct kv_plan *p, int64_t rows, double seconds);
/* Orders that save all cached pages, those that were released first at first. */
void kv_plan_save_all(struct kv_plan *p, const struct sched *s);

#endif
