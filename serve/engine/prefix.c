/* prefix.c - see prefix.h. */
#include "serve/engine/prefix.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int prefix_open(struct prefix *p, int32_t n_pages, struct err *e)
{
    memset(p, 0, sizeof *p);
    p->n_pages = n_pages;
    p->n_buckets = 1;
    while (p->n_buckets < n_pages && p->n_buckets < 1 << 24)
        p->n_buckets *= 2;
    p->page = calloc((size_t)n_pages, sizeof *p->page);
    p->bucket = malloc(sizeof *p->bucket * (size_t)p->n_buckets);
    if (!p->page || !p->bucket) {
        prefix_close(p);
        return err_set(e, ERR_MEMORY, "no memory for a prefix cache of %d pages: use --prefix-cache off",
                       n_pages);
    }

    for (int32_t i = 0; i < p->n_buckets; i++)
        p->bucket[i] = -1;
    p->oldest = p->newest = -1;
    return 0;
}

void prefix_close(struct prefix *p)
{
    for (int32_t i = 0; p->page && i < p->n_pages; i++)
        free(p->page[i].salt);
    free(p->page);
    free(p->bucket);
    memset(p, 0, sizeof *p);
}

/* ---- the hash table of cached pages ---- */

/* The bucket of a page; is_page() then compares. */
static int32_t *bucket_of(struct prefix *p, uint64_t parent, const char *salt, const int32_t *ids)
{
    uint64_t h = XXH3_64bits_withSeed(ids, sizeof *ids * PREFIX_PAGE, parent);
    if (!parent && salt)
        h ^= XXH3_64bits(salt, strlen(salt));
    return &p->bucket[h & (uint64_t)(p->n_buckets - 1)];
}

static int is_page(const struct prefix_page *x, uint64_t parent, const char *salt, const int32_t *ids)
{
    if (x->parent != parent || memcmp(x->ids, ids, sizeof x->ids) != 0)
        return 0;
    return parent || (!x->salt && !salt) || (x->salt && salt && !strcmp(x->salt, salt));
}

static int32_t find(struct prefix *p, uint64_t parent, const char *salt, const int32_t *ids)
{
    int32_t i = *bucket_of(p, parent, salt, ids);
    while (i >= 0 && !is_page(&p->page[i], parent, salt, ids))
        i = p->page[i].hash_next;
    return i;
}

static void forget(struct prefix *p, int32_t page)
{
    struct prefix_page *x = &p->page[page];
    int32_t *at = bucket_of(p, x->parent, x->salt, x->ids);
    while (*at != page)
        at = &p->page[*at].hash_next;
    *at = x->hash_next;
    free(x->salt);
    x->salt = NULL;
    x->serial = 0;
}

/* ---- the list of cached pages that no sequence holds ---- */

static void idle_remove(struct prefix *p, int32_t page)
{
    struct prefix_page *x = &p->page[page];
    *(x->older >= 0 ? &p->page[x->older].newer : &p->oldest) = x->newer;
    *(x->newer >= 0 ? &p->page[x->newer].older : &p->newest) = x->older;
    p->n_idle--;
}

static void idle_add(struct prefix *p, int32_t page)
{
    struct prefix_page *x = &p->page[page];
    x->older = p->newest;
    x->newer = -1;
    *(x->older >= 0 ? &p->page[x->older].newer : &p->oldest) = page;
    p->newest = page;
    p->n_idle++;
}

/* ---- the functions of prefix.h ---- */

int64_t prefix_match(struct prefix *p, const char *salt, const int32_t *ids, int64_t max, int32_t *page,
                     uint64_t *chain)
{
    int64_t n = 0;
    *chain = 0;
    for (; n < max; n++) {
        int32_t i = find(p, *chain, salt, ids + n * PREFIX_PAGE);
        if (i < 0)
            break;
        if (!p->page[i].refs++)
            idle_remove(p, i);
        page[n] = i;
        *chain = p->page[i].serial;
    }
    return n;
}

void prefix_acquire_new(struct prefix *p, int32_t page) { p->page[page].refs = 1; }

int prefix_release(struct prefix *p, int32_t page)
{
    struct prefix_page *x = &p->page[page];
    if (--x->refs)
        return 0;
    if (!x->serial)
        return 1;
    idle_add(p, page);
    return 0;
}

int32_t prefix_evict(struct prefix *p)
{
    int32_t page = p->oldest;
    if (page < 0)
        return -1;
    idle_remove(p, page);
    forget(p, page);
    return page;
}

uint64_t prefix_add(struct prefix *p, int32_t page, uint64_t chain, const char *salt, const int32_t *ids)
{
    struct prefix_page *x = &p->page[page];
    int32_t same = find(p, chain, salt, ids);
    if (same >= 0)
        return p->page[same].serial;
    if (!chain && salt && !(x->salt = strdup(salt)))
        return 0;
    int32_t *at = bucket_of(p, chain, salt, ids);
    x->serial = ++p->serials;
    x->parent = chain;
    memcpy(x->ids, ids, sizeof x->ids);
    x->hash_next = *at;
    *at = page;
    return x->serial;
}
