/* prefix.c - see prefix.h. */
#include "serve/kv/prefix.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int prefix_open(struct prefix *p, const int32_t n_pages[PAGE_GROUPS], struct err *e)
{
    int ok;

    memset(p, 0, sizeof *p);
    p->n_buckets = 1;
    while (p->n_buckets < n_pages[0] && p->n_buckets < 1 << 24)
        p->n_buckets *= 2;
    p->page = calloc((size_t)n_pages[0], sizeof *p->page);
    p->bucket = malloc(sizeof *p->bucket * (size_t)p->n_buckets);
    p->beside = malloc(sizeof *p->beside * (size_t)(n_pages[1] + 1));
    ok = p->page && p->bucket && p->beside;
    for (int g = 0; g < PAGE_GROUPS; g++) {
        p->n_pages[g] = n_pages[g];
        p->hold[g] = calloc((size_t)n_pages[g] + 1, sizeof *p->hold[g]);
        p->idle[g].oldest = p->idle[g].newest = -1;
        ok = ok && p->hold[g];
    }
    if (!ok) {
        prefix_close(p);
        return err_set(e, ERR_MEMORY, "no memory for a prefix cache of %d pages: use --prefix-cache off",
                       n_pages[0]);
    }

    for (int32_t i = 0; i < p->n_buckets; i++)
        p->bucket[i] = -1;
    for (int32_t i = 0; i < n_pages[1]; i++)
        p->beside[i] = -1;
    return 0;
}

void prefix_close(struct prefix *p)
{
    for (int32_t i = 0; p->page && i < p->n_pages[0]; i++)
        free(p->page[i].salt);
    for (int g = 0; g < PAGE_GROUPS; g++)
        free(p->hold[g]);
    free(p->page);
    free(p->bucket);
    free(p->beside);
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
    if (x->grouped >= 0)
        p->beside[x->grouped] = -1;
}

/* ---- the lists of pages that no sequence holds ---- */

static void idle_remove(struct prefix *p, int group, int32_t page)
{
    struct prefix_hold *hold = p->hold[group], *x = &hold[page];
    struct prefix_idle *idle = &p->idle[group];
    *(x->older >= 0 ? &hold[x->older].newer : &idle->oldest) = x->newer;
    *(x->newer >= 0 ? &hold[x->newer].older : &idle->newest) = x->older;
    idle->n--;
}

static void idle_add(struct prefix *p, int group, int32_t page)
{
    struct prefix_hold *hold = p->hold[group], *x = &hold[page];
    struct prefix_idle *idle = &p->idle[group];
    x->older = idle->newest;
    x->newer = -1;
    *(x->older >= 0 ? &hold[x->older].newer : &idle->oldest) = page;
    idle->newest = page;
    idle->n++;
}

/* A sequence more holds a cached page. */
static void acquire(struct prefix *p, int group, int32_t page)
{
    if (!p->hold[group][page].refs++)
        idle_remove(p, group, page);
}

/* ---- the functions of prefix.h ---- */

int64_t prefix_match(struct prefix *p, const char *salt, const int32_t *ids, int64_t max, int32_t *page)
{
    uint64_t chain = 0;
    int64_t n = 0;
    for (; n < max; n++) {
        int32_t i = find(p, chain, salt, ids + n * PREFIX_PAGE);
        if (i < 0)
            break;
        acquire(p, 0, i);
        page[n] = i;
        chain = p->page[i].serial;
    }
    return n;
}

int64_t prefix_match_grouped(struct prefix *p, const int32_t *page, int64_t n, int64_t window,
                             int32_t *grouped, int64_t *first)
{
    int64_t usable = 0, from = 0; /* pages [from, i] of group 1 are there */
    for (int64_t i = 0; i < n; i++) {
        if (p->page[page[i]].grouped < 0)
            from = i + 1;
        if (from <= prefix_first_seen((i + 1) * PREFIX_PAGE, window))
            usable = i + 1;
    }

    *first = prefix_first_seen(usable * PREFIX_PAGE, window);
    for (int64_t i = 0; i < usable; i++) {
        grouped[i] = i < *first ? -1 : p->page[page[i]].grouped;
        if (grouped[i] >= 0)
            acquire(p, 1, grouped[i]);
    }
    return usable;
}

void prefix_acquire_new(struct prefix *p, int group, int32_t page) { p->hold[group][page].refs = 1; }

int prefix_release(struct prefix *p, int group, int32_t page)
{
    if (--p->hold[group][page].refs)
        return 0;
    if (group ? p->beside[page] < 0 : !p->page[page].serial)
        return 1;
    idle_add(p, group, page);
    return 0;
}

/* Notes that a page is about to leave, and the page of group 1 that is found through it. */
static void note_evicted(struct prefix *p, int group, int32_t page)
{
    const int32_t first = group ? p->beside[page] : page;
    if (!p->evicted || first < 0)
        return;
    kv_orders_add(p->evicted, KV_SAVE, group, page, p->page[first].name);
    if (!group && p->page[first].grouped >= 0)
        kv_orders_add(p->evicted, KV_SAVE, 1, p->page[first].grouped, p->page[first].name);
}

int32_t prefix_evict(struct prefix *p, int group)
{
    int32_t page = p->idle[group].oldest;
    if (page < 0)
        return -1;
    idle_remove(p, group, page);
    note_evicted(p, group, page);
    if (!group) {
        forget(p, page);
    } else if (p->beside[page] >= 0) {
        p->page[p->beside[page]].grouped = -1;
        p->beside[page] = -1;
    }
    return page;
}

int32_t prefix_add(struct prefix *p, int32_t page, uint64_t chain, const char *salt, const int32_t *ids)
{
    struct prefix_page *x = &p->page[page];
    int32_t same = find(p, chain, salt, ids);
    if (same >= 0)
        return same;
    if (!chain && salt && !(x->salt = strdup(salt)))
        return -1;
    int32_t *at = bucket_of(p, chain, salt, ids);
    x->serial = ++p->serials;
    x->parent = chain;
    x->grouped = -1;
    memcpy(x->ids, ids, sizeof x->ids);
    x->hash_next = *at;
    *at = page;
    return page;
}

void prefix_add_grouped(struct prefix *p, int32_t page, int32_t grouped)
{
    if (p->page[page].grouped >= 0 || p->beside[grouped] >= 0)
        return;
    p->page[page].grouped = grouped;
    p->beside[grouped] = page;
}
