/* prefix.h - the prefix cache: full pages of keys and values that a later prompt with the same beginning can
 * use.
 *
 * The keys and values of a position depend on the tokens up to it and on nothing else (numerics contract:
 * not on the batch, the chunk, the layout), so a page found here has the very bits that would be computed.
 * What is found is compared, not only hashed: a page is the one looked for when its 64 tokens are equal and
 * it was computed behind the page that was found before it (by the serial number of that one, which is never
 * given twice), the first one under the same salt.
 *
 * A page that nobody holds stays until its memory is needed; the one that was let go first is given up
 * first. A sequence lets go of its last page first, so that beginnings outlive what came behind them. */
#ifndef SHARDLINE_SERVE_ENGINE_PREFIX_H
#define SHARDLINE_SERVE_ENGINE_PREFIX_H

#include <stdint.h>
#include "base/err.h"

#define PREFIX_PAGE 64
struct prefix_page {
    uint64_t serial; /* 0: not in the cache */
    uint64_t parent; /* serial of the page before; 0: it is the first of a sequence */
    char *salt;      /* of a first page, or NULL */
    int32_t ids[PREFIX_PAGE];
    int32_t refs;                    /* sequences that hold it */
    int32_t hash_next, older, newer; /* -1: none; the last two of pages that nobody holds */
};
struct prefix {
    struct prefix_page *page; /* [n_pages] */
    int32_t *bucket, n_pages, n_buckets, n_idle, oldest, newest;
    uint64_t serials;
};
int prefix_open(struct prefix *p, int32_t n_pages, struct err *e);
void prefix_close(struct prefix *p); /* safe on zeroes */
/* The longest known beginning of ids, at most max pages: their numbers, which are held from now on. *chain:
 * what prefix_add needs. */
int64_t prefix_match(struct prefix *p, const char *salt, const int32_t *ids, int64_t max, int32_t *page,
                     uint64_t *chain);
/* a page that is not in the cache gets its owner */
void prefix_acquire_new(struct prefix *p, int32_t page);
/* One holder less. 1: it is free now; 0: held by others or kept in the cache. */
int prefix_release(struct prefix *p, int32_t page);
/* a page that nobody holds, out of the cache; -1: none */
int32_t prefix_evict(struct prefix *p);
/* A held page was computed to its end behind the page `chain` (0: the first). Returns its chain: that of an
 * equal page when there is one already; chain 0 again when there was no memory for the salt. */
uint64_t prefix_add(struct prefix *p, int32_t page, uint64_t chain, const char *salt, const int32_t *ids);

#endif
