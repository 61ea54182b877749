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
 * first. A sequence releases its last page first, so that beginnings outlive what came after them.
 *
 * Two page groups (model/config.h): a cached page of group 0 knows the page of group 1 with the same
 * positions. The latter may be evicted alone: a beginning is found as far as its pages of group 0 are there,
 * and behind its end those of group 1 that the next row sees.
 *
 * A second level keeps what is evicted: a page has a name then (kv_name.h), its eviction is noted. */
#ifndef SHARDLINE_SERVE_KV_PREFIX_H
#define SHARDLINE_SERVE_KV_PREFIX_H

#include <stdint.h>
#include "base/err.h"
#include "model/config.h"
#include "serve/kv/kv_name.h"

#define PREFIX_PAGE 64 /* tokens */
struct prefix_page {
    uint64_t serial; /* 0: not in the cache */
    uint64_t parent; /* serial of the page before; 0: it is the first of a sequence */
    char *salt;      /* of a first page, or NULL */
    int32_t ids[PREFIX_PAGE];
    int32_t hash_next;  /* -1: none */
    int32_t grouped;    /* the page of group 1 with the same positions; -1: it is not in the cache */
    struct kv_key name; /* with a second level */
};
/* A page of either group. */
struct prefix_hold {
    int32_t refs;         /* sequences that hold it */
    int32_t older, newer; /* of pages that no sequence holds; -1: none */
};
/* Pages of a group that no sequence holds, in the order of their release. */
struct prefix_idle {
    int32_t n, oldest, newest;
};
struct prefix {
    struct prefix_page *page; /* [n_pages[0]] */
    int32_t *bucket;          /* [n_buckets] first page of the hash chain, or -1 */
    int32_t
        *beside; /* [n_pages[1]] the cached page of group 0 that names this one; -1: it is not in the cache
                      */
    struct prefix_hold *hold[PAGE_GROUPS]; /* [n_pages] */
    struct prefix_idle idle[PAGE_GROUPS];
    int32_t n_pages[PAGE_GROUPS], n_buckets;
    uint64_t serials; /* assigned so far */
    /* With a second level (kv_disk.h): evicted pages are added here, to be saved; NULL: there is none. */
    struct kv_orders *evicted;
    struct kv_key root; /* of names */
};

/* An empty cache for pools of n_pages pages (0: there is no such group); ERR_MEMORY. prefix_close() is safe
 * on zeroes. */
int prefix_open(struct prefix *p, const int32_t n_pages[PAGE_GROUPS], struct err *e);
void prefix_close(struct prefix *p);
/* The longest known beginning of ids, at most max pages. Returns how many; their numbers go to page[], and
 * the caller holds them. */
int64_t prefix_match(struct prefix *p, const char *salt, const int32_t *ids, int64_t max, int32_t *page);
/* Of a beginning of n pages of group 0: how many of them can be used, because the pages of group 1 that a row
 * behind them sees, within `window` positions, are in the cache. Those go to grouped[], and the caller holds
 * them; the ones before them are -1. *first: how many those are. */
int64_t prefix_match_grouped(struct prefix *p, const int32_t *page, int64_t n, int64_t window,
                             int32_t *grouped, int64_t *first);
/* A sequence holds a page that is not in the cache. */
void prefix_acquire_new(struct prefix *p, int group, int32_t page);
/* One holder less. 1: the page is free now; 0: others hold it, or it stays in the cache. */
int prefix_release(struct prefix *p, int group, int32_t page);
/* Takes the page out of the cache that was released first; returns it, or -1: none is idle. */
int32_t prefix_evict(struct prefix *p, int group);
/* Puts a held page of group 0 into the cache, full of the tokens ids, computed after the page of serial
 * `chain` (0: it is the first). Returns it, or an equal page that is there already; -1: no memory for the
 * salt. */
int32_t prefix_add(struct prefix *p, int32_t page, uint64_t chain, const char *salt, const int32_t *ids);
/* Puts a held page of group 1 beside `page`, a cached page of group 0, unless there is one already. */
void prefix_add_grouped(struct prefix *p, int32_t page, int32_t grouped);
/* The first page of a sequence that a row at position pos sees through a window (0: all positions). */
static inline int64_t prefix_first_seen(int64_t pos, int64_t window)
{
    return window > 0 && pos >= window ? (pos - window + 1) / PREFIX_PAGE : 0;
}

#endif
