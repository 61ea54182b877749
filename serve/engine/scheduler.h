/* scheduler.h - which sequences compute how many rows in the next step: pure logic, without a model, a clock
 * or a thread. Rank 0, the engine's thread.
 *
 * A sequence has n_ids tokens to run through the model, n_kv of which have their keys in pages. While n_ids -
 * n_kv is more than one, it is prefilled, in chunks; then it is decoded, a row a step. A step mixes both:
 *
 *     decode:   every sequence that lacks one row           } together at most max_seqs + chunk rows
 *     prefill:  in order, at most `chunk` rows in all       }
 *     admit:    the head of the queue, when the free pages hold all its tokens and those promised to the
 *               running sequences
 *
 *     drafts:   behind the decode rows, as far as limits and pages that no one waits for allow
 *
 * The items of a step are sorted by the adapters of their sequences: an adapter's rows are neighbours.
 *
 * A draft is a guess at a token that has not been sampled yet (draft.h). It is run as if it were one; the
 * owner keeps the rows whose inputs were guessed right. The keys of the other rows are stale: the next step
 * overwrites them, or clears those that lie in pages that it reads.
 *
 * The order is that of priority, then of arrival, in the queue as among the running. When no page is left, a
 * sequence takes those of the last running one, which goes back to its place in the queue and is computed
 * again later (its tokens and log-probs are kept). The head of the queue takes place and pages of running
 * sequences of lower priority (not of later arrival). The pool holds at least one sequence of the longest
 * context, so the first sequence always makes progress, and no sequence is ever dropped. No sequence
 * overtakes the head of the queue. */
#ifndef SHARDLINE_SERVE_ENGINE_SCHEDULER_H
#define SHARDLINE_SERVE_ENGINE_SCHEDULER_H

#include <stdint.h>
#include "base/err.h"
#include "serve/kv/kv.h"

/* A sequence's pages of one page group. */
struct seq_pages {
    int32_t *page; /* [n_pages] page numbers in the order of positions; -1: behind the window, and released */
    int64_t n_pages, cap_pages;
    int64_t n_released; /* how many of them are -1, the first ones */
};
struct seq {
    /* set by the owner: */
    int64_t n_ids;      /* tokens to run through the model; grows by one with every sampled token */
    int64_t first_want; /* rows from here on want logits (earlier ones have theirs, or want none) */
    const char *salt;   /* prefixes are shared under the same salt only; NULL: none */
    int32_t adapter;    /* slot of its adapter (adapter_set.h), 0: none; the salt tells adapters apart */
    int64_t priority;   /* lower ones come first; equal ones in order of arrival */
    int wants_rows;     /* the hidden states of rows that want logits are wanted, too */
    void *owner;
    int64_t shift; /* the owner's tokens in front of the first one here */
    int n_drafts;  /* guesses behind the n_ids tokens; used in a step that decodes */

    /* the scheduler's: */
    int64_t n_kv;      /* tokens whose keys and values are in the pages */
    int64_t n_written; /* from n_kv up to here the pages may hold keys of drafts that were wrong */
    struct seq_pages in[PAGE_GROUPS];
    uint64_t arrival;
    int64_t step_rows; /* in the step that is being planned */
    int running;
    int64_t n_cached;         /* tokens that were found in the prefix cache when it was first admitted */
    int admitted;             /* it has been admitted once */
    int sought;               /* its beginning was looked up in the second level of the prefix cache */
    uint64_t chain;           /* of the first n_chained pages, in the prefix cache */
    struct kv_key chain_name; /* of the last of them, with a second level */
    int64_t n_chained;
    struct carried *carried; /* its pages with weights that come (carry_over.h); NULL: none */
    struct seq *prev, *next; /* of the waiting or running list, in order */
};
struct carry;
struct seq_list {
    struct seq *first, *last;
    int n;
};

struct sched_limits {
    int max_seqs;      /* running at once */
    int64_t chunk;     /* prefill rows in a step */
    int64_t max_wants; /* rows with logits in a step; at least max_seqs + drafts */
    struct kv_pool pool[PAGE_GROUPS];
    int64_t drafts; /* rows of drafts in a step */
};
/* Rows [pos, pos + n_rows) of seq; those from pos + skip_want on want logits. The last n_drafts of them are
 * drafts. n_stale: positions behind the rows, in the page of the last one, whose keys must be cleared. */
struct sched_item {
    struct seq *seq;
    int64_t pos, n_rows, skip_want, n_drafts, n_stale;
};
struct sched {
    struct sched_limits lim;
    int n_groups;
    struct page_list pages[PAGE_GROUPS];
    struct seq_list waiting, running;
    uint64_t arrivals;
    struct prefix prefix;                          /* with ids_of */
    const int32_t *(*ids_of)(const struct seq *q); /* tokens of a sequence; NULL: no prefix cache */
    int64_t n_preempted;                           /* so far */
    int64_t n_looked_up, n_found; /* so far: tokens looked up in the prefix cache, and found there */
    struct sched_item *item;      /* [max_seqs], the step that was planned last */
    struct sched_item *sorted;    /* [max_seqs], room to sort */
    int n_items;
    struct carry *carry;  /* borrowed; NULL: no sequence is carried over to new weights */
    int64_t n_recomputed; /* so far: rows of running sequences that sched_requeue_all() made invalid */
};

/* An empty scheduler over the pages of lim->pool; ERR_MEMORY. */
int sched_open(struct sched *s, const struct sched_limits *lim, struct err *e);
/* After sched_open(): prompts are looked up in a prefix cache from now on; ERR_MEMORY. */
int sched_open_prefix(struct sched *s, const int32_t *(*ids_of)(const struct seq *q), struct err *e);
/* Frees it, and the pages of sequences that are still there; not the sequences, which are the owner's. Safe
 * on zeroes. */
void sched_close(struct sched *s);
/* Cached pages that q could begin with: rows that want logits are computed all the same, and one row always
 * is. */
int64_t sched_cacheable(const struct seq *q);
/* Pages of each group that running sequences will still acquire for the tokens they have. */
void sched_promised(const struct sched *s, int64_t promised[PAGE_GROUPS]);
/* Puts q into the queue: behind those of its priority. */
void sched_add(struct sched *s, struct seq *q);
/* Takes q out, finished or not: its pages are free again. */
void sched_remove(struct sched *s, struct seq *q);
/* Plans the next step in s->item. Returns the number of items (0: nothing to do). ERR_MEMORY: no memory for a
 * list of pages. */
int sched_next_step(struct sched *s, struct err *e);
/* The step was computed: its rows have their keys, and rows that want logits have got them. Of an item with
 * drafts the owner has set n_ids before: the rows of its tokens but the last are kept. */
void sched_step_done(struct sched *s);
/* Keys and values that were computed until now are invalid: running sequences go back to the queue, or take
 * their second pages (carry_over.h); the prefix cache is emptied. Between two steps. */
void sched_requeue_all(struct sched *s);
/* For carry_over.h, of a sequence that is in no list. Acquires pages for its first `upto` positions: 1; 0: no
 * page is left; ERR_MEMORY. Releases those behind the window; all of them. */
int sched_acquire(struct sched *s, struct seq *q, int64_t upto, struct err *e);
void sched_release_behind(struct sched *s, struct seq *q);
void sched_release(struct sched *s, struct seq *q);
/* No sequence waits or runs. */
static inline int sched_idle(const struct sched *s) { return !s->waiting.n && !s->running.n; }

#endif
