/* scheduler.h - who computes how many rows in the next step: pure logic, without a model, a clock or a
 * thread.
 *
 * A sequence has n_ids tokens to run through the model, of which n_kv have their keys in pages. While n_ids
 * - n_kv is more than one it is being prefilled, in chunks; then it is decoded, a row a step. Both are mixed
 * in one step:
 *
 *     decode:   every sequence that lacks one row                       } together at most max_seqs + chunk
 *               rows
 *     prefill:  in order, at most `chunk` rows in all                   }
 *     admit:    the head of the queue, when the free pages hold all its tokens and those promised to the
 *               running ones
 *
 * The order is that of priority, then of arrival, in the queue as among the running. Out of pages: a
 * sequence takes those of the last one, which goes back to its place in the queue and is computed again
 * later (its tokens and log-probs are kept); and the head of the queue takes place and pages of running
 * sequences of lower priority (not of later arrival). The pool holds at least one sequence of the longest
 * context, so the first always gets on, and nothing is ever dropped. Nobody overtakes the head of the queue.
 * */
#ifndef SHARDLINE_SERVE_ENGINE_SCHEDULER_H
#define SHARDLINE_SERVE_ENGINE_SCHEDULER_H

#include <stdint.h>
#include "base/err.h"
#include "serve/engine/kv.h"

struct seq {
    /* the owner's: */
    /* tokens to run through the model, grows by one with every token sampled */
    int64_t n_ids;
    /* rows from here on need logits (earlier ones have theirs, or need none) */
    int64_t first_want;
    const char *salt; /* prefixes are shared under the same salt only; NULL: none */
    int64_t priority; /* lower ones come first; equal ones in order of arrival */
    void *owner;
    /* the scheduler's: */
    int64_t n_kv; /* tokens whose keys and values are in the pages */
    /* page numbers, in order of positions; -1: behind the window, and given back */
    int32_t *page;
    int64_t n_pages, cap_pages;
    int64_t n_released; /* the first of them that are -1 */
    uint64_t arrival;
    int64_t step_rows; /* in the plan that is being made */
    int running;
    int64_t n_cached; /* tokens that were found in the prefix cache when it was first admitted */
    int admitted;     /* it was, once */
    uint64_t chain;   /* of the first n_chained pages, in the prefix cache */
    int64_t n_chained;
    struct seq *prev, *next; /* of the waiting or running list, in order */
};
struct seq_list {
    struct seq *first, *last;
    int n;
};

struct sched_limits {
    int max_seqs;      /* running at once */
    int64_t chunk;     /* prefill rows in a step */
    int64_t max_wants; /* rows with logits in a step; at least max_seqs */
    /* > 0: a row sees that many positions, its own included, in every layer: pages behind are given back */
    int64_t window;
};
/* rows [pos, pos + n_rows) of seq; those from pos + skip_want on want logits */
struct sched_item {
    struct seq *seq;
    int64_t pos, n_rows, skip_want;
};
struct sched {
    struct sched_limits lim;
    struct page_list pages;
    struct seq_list waiting, running;
    uint64_t arrivals;
    struct prefix prefix;                          /* with ids_of */
    const int32_t *(*ids_of)(const struct seq *q); /* tokens of a sequence; NULL: no prefix cache */
    /* so link; tokens looked up in the cache, and found */
    int64_t n_preempted, n_looked_up, n_found;
    struct sched_item *item; /* the plan: [max_seqs], of the last sched_next_step */
    int n_items;
};

int sched_open(struct sched *s, const struct sched_limits *lim, int32_t n_pages, struct err *e);
/* Behind sched_open: prompts are looked up from now on. */
int sched_open_prefix(struct sched *s, const int32_t *(*ids_of)(const struct seq *q), struct err *e);
/* frees pages of sequences that are still in; not the sequences */
void sched_close(struct sched *s);
void sched_add(struct sched *s, struct seq *q); /* to the end of the queue */
/* finished or given up: its pages are free again */
void sched_remove(struct sched *s, struct seq *q);
/* Makes the next plan in s->item; returns how many items (0: nothing to do). ERR_MEMORY: no memory for a
 * list of pages. */
int sched_next_step(struct sched *s, struct err *e);
/* The plan was computed: its rows have their keys. Rows that wanted logits have got them. */
void sched_step_done(struct sched *s);
/* Keys and values that were computed until now do not count any more: running sequences go back to the
 * queue, nothing is found in the prefix cache. Between two steps. */
void sched_requeue_all(struct sched *s);
static inline int sched_idle(const struct sched *s) { return !s->waiting.n && !s->running.n; }

#endif
