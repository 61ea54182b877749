/* prefix.h - the prefix cache: full pages of keys and values that a later prompt with the same beginning can
 * use. Rank 0, the engine's thread.
 *
 * The keys and values of a position depend on the tokens up to it and on nothing else (numerics contract: not
 * on the batch, the chunk, the layout), so a page found here has the very bits that would be computed. Pages
 * are compared, not only hashed: a page is found when its 64 tokens are equal and it was computed after the
 * page found before it (by that page's serial number, which is never used twice); the first page, when it has
 * the same salt.
 *
 * A page that no sequence holds stays until its memory is needed; the one that was released first is evicted
 * first. A sequence releases its last page first, so that beginnings outlive what came after them. */
#ifndef SHARDLINE_SERVE_ENGINE_PREFIX_H
#define SHARDLINE_SERVE_ENGINE_PREFIX_H

#include <stdint.h>
#include "base/err.h"

#define PREFIX_PAGE 64 /* tokens */
struct prefix_page {
    uint64_t serial; /* 0: not in the cache */
    uint64_t parent; /* serial of the page before; 0: it is the first of a sequence */
    char *salt;      /* of a first page, or NULL */
    int32_t ids[PREFIX_PAGE];
    int32_t refs;                    /* sequences that hold it */
    int32_t hash_next, older, newer; /* -1: none; older and newer: of pages that no sequence holds */
};
struct prefix {
    struct prefix_page *page; /* [n_pages] */
    int32_t *bucket;          /* [n_buckets] first page of the hash chain, or -1 */
    int32_t n_pages, n_buckets;
    int32_t n_idle, oldest, newest; /* cached pages that no sequence holds, in the order of their release */
    uint64_t serials;               /* assigned so far */
};

/* An empty cache for a pool of n_pages pages; ERR_MEMORY. prefix_close() is safe on zeroes. */
int prefix_open(struct prefix *p, int32_t n_pages, struct err *e);
void prefix_close(struct prefix *p);
/* The longest known beginning of ids, at most max pages. Returns how many; their numbers go to page[], and
 * the caller holds them. *chain: what prefix_add() needs for the page after them. */
int64_t prefix_match(struct prefix *p, const char *salt, const int32_t *ids, int64_t max, int32_t *page,
                     uint64_t *chain);
/* A sequence holds a page that is not in the cache. */
void prefix_acquire_new(struct prefix *p, int32_t page);
/* One holder less. 1: the page is free now; 0: others hold it, or it stays in the cache. */
int prefix_release(struct prefix *p, int32_t page);
/* Takes the page out of the cache that was released first; returns it, or -1: none is idle. */
int32_t prefix_evict(struct prefix *p);
/* Puts a held page into the cache, full of the tokens ids, computed after the page `chain` (0: it is the
 * first). Returns its chain: that of an equal page when there is one already; 0 when there was no memory for
 * the salt. */
uint64_t prefix_add(struct prefix *p, int32_t page, uint64_t chain, const char *salt, const int32_t *ids);

#endif
