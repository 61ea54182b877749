/* kv.h - the pool of key-value pages: who holds which page, and (on every rank) where its bytes are.
 *
 * A page is 64 positions of one sequence: keys and values of all layers for the kv heads of this rank, one
 * behind the other,
 *
 *     page p:  [ layer 0: head 0 K V | head 1 K V | … ] [ layer 1: … ] …        (the inside of a layer:
 *              kernels.h, attn_seq)
 *
 * so tp 2 halves a page. Page numbers are the same on all ranks; rank 0 alone gives them out (the
 * scheduler's page_list), the others are told in the step plan. */
#ifndef SHARDLINE_SERVE_ENGINE_KV_H
#define SHARDLINE_SERVE_ENGINE_KV_H

#include <stddef.h>
#include <stdint.h>
#include "kernels/dev.h"
#include "serve/engine/prefix.h"

#define KV_PAGE 64
static inline int64_t kv_pages_for(int64_t positions) { return (positions + KV_PAGE - 1) / KV_PAGE; }

/* Which pages are free: a stack of numbers. With a prefix cache those that nobody holds can be taken, too. */
struct page_list {
    int32_t *free;
    int32_t n_free, n_pages;
    struct prefix *prefix; /* NULL: every page that is given back is free */
};
int page_list_open(struct page_list *l, int32_t n_pages, struct err *e);
void page_list_close(struct page_list *l);
/* What the prefix cache knows is no longer so: its pages that nobody holds are free. */
void page_list_drop_cached(struct page_list *l);
int32_t page_acquire(struct page_list *l);     /* -1: none left */
int32_t pages_free(const struct page_list *l); /* how often page_acquire would succeed */
void page_release(struct page_list *l, int32_t page);

/* The bytes of the pages on this rank. */
/* Pages that a sequence of that many positions holds at most, in chunks of `chunk`, when pages behind a
 * window (0: none) are given back. */
static inline int64_t kv_pages_most(int64_t positions, int64_t window, int64_t chunk)
{
    int64_t all = kv_pages_for(positions), seen = kv_pages_for(window + chunk) + 1;
    return window > 0 && seen < all ? seen : all;
}

/* base: memory of the device */
struct kv {
    char *base;
    size_t page_bytes;
    int32_t n_pages;
    struct dev *dev;
};
int kv_open(struct kv *kv, struct dev *dev, int32_t n_pages, size_t page_bytes, struct err *e);
void kv_close(struct kv *kv);
static inline char *kv_page(const struct kv *kv, int32_t page)
{
    return kv->base + (size_t)page * kv->page_bytes;
}
/* Zeroes the pages whose first position is written by rows [pos, pos + n_rows) of a sequence: what an
 * earlier owner left behind the last key would meet the zero weight of a masked key, and -0 + 0 changes bits
 * (NaN * 0 more than that). */
void kv_clear_new(const struct kv *kv, const int32_t *page, int64_t pos, int64_t n_rows);

/* How many pages: all that `max_seqs` sequences of `ctx` can need, or as many as `bytes` hold (all ranks
 * together, 0: not said) or, unsaid, `room` bytes; ERR_MEMORY when one sequence of ctx does not fit.
 * page_bytes: of one page on all ranks. */
struct kv_sizing {
    int64_t ctx, max_seqs, bytes, room, page_bytes, window, chunk;
};
int kv_count_pages(const struct kv_sizing *w, int32_t *n_pages, struct err *e);

#endif
