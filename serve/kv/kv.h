/* kv.h - the pool of key-value pages: which pages are free, and (on every rank) where their bytes are.
 *
 * A page is 64 positions of one sequence: keys and values of all layers of a page group (model/config.h) for
 * the kv heads of this rank, in this order (inside a layer: kernels.h, attn_seq):
 *
 *     page p:  [ layer 0: head 0 K V | head 1 K V | … ] [ layer 1: … ] …
 *
 * so tp 2 halves a page. Each group has a pool of its own: where some layers have a window and others see all
 * positions, a sequence keeps all its pages in the one and releases those behind the window in the other.
 * Page numbers are the same on all ranks. Rank 0 alone assigns them (the scheduler's
 * page_list); the other ranks get them in the step message. */
#ifndef SHARDLINE_SERVE_KV_KV_H
#define SHARDLINE_SERVE_KV_KV_H

#include <stddef.h>
#include <stdint.h>
#include "comm/comm.h"
#include "kernels/dev.h"
#include "model/config.h"
#include "serve/kv/prefix.h"

#define KV_PAGE 64 /* positions */
/* Pages for that many positions. */
static inline int64_t kv_pages_for(int64_t positions) { return (positions + KV_PAGE - 1) / KV_PAGE; }
/* Pages that a sequence of that many positions holds at most, computed in chunks of `chunk` rows, when pages
 * behind a window (positions; 0: none) are released. */
static inline int64_t kv_pages_most(int64_t positions, int64_t window, int64_t chunk)
{
    int64_t all = kv_pages_for(positions), seen = kv_pages_for(window + chunk) + 1;
    return window > 0 && seen < all ? seen : all;
}
/* The pool of a page group. */
struct kv_pool {
    int32_t n_pages; /* 0: there is no such group */
    int64_t window;  /* positions that every layer of the group sees; pages behind it are released. 0: all */
};

/* ---- which pages are free (rank 0, the engine's thread) ---- */

/* A stack of free page numbers. With a prefix cache, pages that no sequence holds count as free, too. */
struct page_list {
    int32_t *free;
    int32_t n_free, n_pages;
    int group;
    struct prefix *prefix; /* borrowed; NULL: every released page is free at once */
};
/* A list of n_pages pages of group 0, all free; ERR_MEMORY. page_list_close() is safe on zeroes. */
int page_list_open(struct page_list *l, int32_t n_pages, struct err *e);
void page_list_close(struct page_list *l);
/* Empties the prefix cache, whose contents are no longer valid: its pages that no sequence holds are free. */
void page_list_drop_cached(struct page_list *l);
/* A page for a sequence; -1: none is left. */
int32_t page_acquire(struct page_list *l);
/* How often page_acquire() would succeed. */
int32_t pages_free(const struct page_list *l);
/* One holder less. */
void page_release(struct page_list *l, int32_t page);

/* ---- where their bytes are (every rank) ---- */

struct kv {
    char *base; /* device memory, n_pages * page_bytes */
    size_t page_bytes;
    int32_t n_pages;
    struct dev *dev;    /* borrowed */
    struct comm *cp;    /* borrowed; NULL: the pages are this rank's alone */
    int rank, n_shares; /* of the ranks that share the pages */
    struct page_values values;
    char *zeros; /* [page_bytes] device memory, from kv_open_clear(); else NULL */
};
/* Allocates the pages on dev; cp: once for all its ranks that share memory; NULL: for this rank.
 * ERR_MEMORY. kv_close() is safe on zeroes. Main thread; both are collective over cp. */
int kv_open(struct kv *kv, struct dev *dev, struct comm *cp, int32_t n_pages, size_t page_bytes,
            struct err *e);
void kv_close(struct kv *kv);
/* After kv_open(): kv_clear_stale() will be called. v: where a page has its values. ERR_MEMORY. */
int kv_open_clear(struct kv *kv, const struct page_values *v, struct err *e);
/* Address of a page on this rank; device memory. */
static inline char *kv_page(const struct kv *kv, int32_t page)
{
    return kv->base + (size_t)page * kv->page_bytes;
}
/* Zeroes the pages whose first position is written by rows [pos, pos + n_rows) of a sequence whose pages
 * behind the first n_released ones are page[]. What an earlier sequence left after the last key would meet
 * the zero weight of a masked key, and -0 + 0 changes bits (NaN * 0 even more). Ranks that share the pages
 * each zero some of them. */
void kv_clear_new(const struct kv *kv, const int32_t *page, int64_t n_released, int64_t pos, int64_t n_rows);
/* Zeroes the values of positions [pos, pos + n), which lie in one page, after drafts that were wrong. Their
 * scores are masked whatever their keys are, but the weight +0 of a masked key meets its value. */
void kv_clear_stale(const struct kv *kv, const int32_t *page, int64_t n_released, int64_t pos, int64_t n);

/* ---- how many pages there are ---- */

struct kv_sizing {
    int64_t ctx, max_seqs;     /* tokens of a sequence, sequences at once */
    int64_t bytes, free_bytes; /* --kv-memory (0: not given), and what it is without: of all ranks together */
    int64_t chunk;             /* as for kv_pages_most() */
    struct {
        int64_t page_bytes; /* of one page, on all ranks together; 0: there is no such group */
        int64_t window;     /* as for kv_pages_most() */
    } group[PAGE_GROUPS];
};
/* The longest sequence that fits into the memory, in tokens: a multiple of KV_PAGE, or max; 0: none does. */
int64_t kv_longest(const struct kv_sizing *w, int64_t max);
/* n_pages of each group: as many as max_seqs sequences of ctx tokens can need, or as fit into the memory.
 * ERR_MEMORY when one sequence of ctx tokens does not fit.
 *
 * Two groups that do not fit share the memory as sequences of ctx tokens need it. Shorter ones need more of
 * group 1, so that it gets an eighth of the memory, if max_seqs sequences can use that. */
int kv_count_pages(const struct kv_sizing *w, int32_t n_pages[PAGE_GROUPS], struct err *e);

#endif
