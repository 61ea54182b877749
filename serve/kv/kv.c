/* kv.c - see kv.h. */
#include "serve/kv/kv.h"

#include <stdlib.h>
#include <string.h>

int page_list_open(struct page_list *l, int32_t n_pages, struct err *e)
{
    l->free = malloc(sizeof *l->free * (size_t)n_pages);
    if (!l->free)
        return err_set(e, ERR_MEMORY, "no memory for a list of %d pages", n_pages);
    l->n_pages = l->n_free = n_pages;
    for (int32_t i = 0; i < n_pages; i++)
        l->free[i] = n_pages - 1 - i; /* low numbers first: memory that was touched is used again first */
    return 0;
}

void page_list_close(struct page_list *l)
{
    free(l->free);
    memset(l, 0, sizeof *l);
}

void page_list_drop_cached(struct page_list *l)
{
    for (int32_t page; l->prefix && (page = prefix_evict(l->prefix, l->group)) >= 0;)
        l->free[l->n_free++] = page;
}

int32_t pages_free(const struct page_list *l)
{
    return l->n_free + (l->prefix ? l->prefix->idle[l->group].n : 0);
}

int32_t page_acquire(struct page_list *l)
{
    int32_t page = -1;
    if (l->n_free)
        page = l->free[--l->n_free];
    else if (l->prefix)
        page = prefix_evict(l->prefix, l->group);
    if (page >= 0 && l->prefix)
        prefix_acquire_new(l->prefix, l->group, page);
    return page;
}

void page_release(struct page_list *l, int32_t page)
{
    if (!l->prefix || prefix_release(l->prefix, l->group, page))
        l->free[l->n_free++] = page;
}

int kv_open(struct kv *kv, struct dev *dev, struct comm *cp, int32_t n_pages, size_t page_bytes,
            struct err *e)
{
    size_t bytes = page_bytes ? page_bytes * (size_t)n_pages : 1; /* a stage may have no layer of a group */
    void *base = NULL;

    *kv = (struct kv){ .page_bytes = page_bytes, .n_pages = n_pages, .dev = dev, .n_shares = 1 };
    if (cp && comm_alloc_shared(&base, cp, MEM_KV, bytes, e) >= 0) {
        kv->cp = cp;
        comm_shared_group(cp, &kv->rank, &kv->n_shares);
    } else if (!cp) {
        base = dev_alloc(dev, MEM_KV, bytes);
    }
    kv->base = base;
    if (!kv->base)
        return err_set(
            e, ERR_MEMORY,
            "no memory for %d key-value pages of %zu bytes: lower --kv-memory, --ctx or --max-batch", n_pages,
            page_bytes);
    return 0;
}

void kv_close(struct kv *kv)
{
    struct err ignored;
    if (kv->cp)
        comm_free_shared(kv->cp, kv->base, &ignored);
    else if (kv->dev)
        dev_free(kv->dev, kv->base);
    if (kv->zeros)
        dev_free(kv->dev, kv->zeros);
    memset(kv, 0, sizeof *kv);
}

void kv_clear_new(const struct kv *kv, const int32_t *page, int64_t n_released, int64_t pos, int64_t n_rows)
{
    for (int64_t i = kv_pages_for(pos); i < kv_pages_for(pos + n_rows); i++)
        if (i % kv->n_shares == kv->rank)
            dev_fill(kv->dev, kv_page(kv, page[i - n_released]), 0, kv->page_bytes);
}

int kv_open_clear(struct kv *kv, const struct page_values *v, struct err *e)
{
    kv->values = *v;
    kv->zeros = dev_alloc(kv->dev, MEM_WORK, kv->page_bytes ? kv->page_bytes : 1);
    return kv->zeros ? 0
                     : err_set(e, ERR_MEMORY, "no memory for drafts (%zu bytes): leave --speculate",
                               kv->page_bytes);
}

void kv_clear_stale(const struct kv *kv, const int32_t *page, int64_t n_released, int64_t pos, int64_t n)
{
    const struct page_values *v = &kv->values;
    const int64_t i = pos / KV_PAGE;
    if (i % kv->n_shares != kv->rank)
        return;
    for (int64_t b = 0; b < v->n; b++)
        for (const struct page_part *p = v->part; p < v->part + 2 && p->rows; p++) {
            char *block = kv_page(kv, page[i - n_released]) + (size_t)b * v->block;
            char *to = block + p->first + (size_t)(pos % KV_PAGE) * p->each;
            dev_copy_rows(kv->dev, to, p->pitch, kv->zeros, p->pitch, (size_t)n * p->each, p->rows);
        }
}

/* ---- how many pages there are ---- */

static int64_t limit_of(const struct kv_sizing *w) { return w->bytes ? w->bytes : w->free_bytes; }

/* Bytes of a sequence of that many tokens, at most. */
static int64_t sequence_bytes(const struct kv_sizing *w, int64_t tokens)
{
    int64_t bytes = 0;
    for (int g = 0; g < PAGE_GROUPS; g++)
        bytes += kv_pages_most(tokens, w->group[g].window, w->chunk) * w->group[g].page_bytes;
    return bytes;
}

int64_t kv_longest(const struct kv_sizing *w, int64_t max)
{
    int64_t fits = 0, above = kv_pages_for(max) + 1; /* pages */
    while (above - fits > 1) {
        int64_t half = fits + (above - fits) / 2;
        if (sequence_bytes(w, half * KV_PAGE) <= limit_of(w))
            fits = half;
        else
            above = half;
    }
    return fits * KV_PAGE < max ? fits * KV_PAGE : max;
}

/* Pages of group 1, where both groups together do not fit into the memory for max_seqs sequences. */
static int64_t second_pool(const struct kv_sizing *w)
{
    int64_t limit = limit_of(w), page_bytes = w->group[1].page_bytes;
    int64_t each = kv_pages_most(w->ctx, w->group[1].window, w->chunk);
    int64_t most = (limit - kv_pages_for(w->ctx) * w->group[0].page_bytes) / page_bytes;
    int64_t n = each * (limit / sequence_bytes(w, w->ctx)), eighth = limit / 8 / page_bytes;

    n = n < eighth ? eighth : n;
    n = n < each * w->max_seqs ? n : each * w->max_seqs;
    return n < most ? n : most;
}

/* Pages of both groups, when one sequence fits. */
static void share_memory(const struct kv_sizing *w, int64_t n[PAGE_GROUPS])
{
    int64_t all = kv_pages_for(w->ctx) * w->max_seqs, left = limit_of(w);
    n[1] = 0;
    if (w->group[1].page_bytes) {
        n[1] = kv_pages_most(w->ctx, w->group[1].window, w->chunk) * w->max_seqs;
        if (all * w->group[0].page_bytes + n[1] * w->group[1].page_bytes > left)
            n[1] = second_pool(w);
        left -= n[1] * w->group[1].page_bytes;
    }
    n[0] = left / w->group[0].page_bytes < all ? left / w->group[0].page_bytes : all;
}

int kv_count_pages(const struct kv_sizing *w, int32_t n_pages[PAGE_GROUPS], struct err *e)
{
    int64_t limit = limit_of(w), one = sequence_bytes(w, w->ctx), n[PAGE_GROUPS];

    if (limit <= 0)
        return err_set(e, ERR_MEMORY,
                       "the weights leave no memory for keys and values: use --dtype bf16, more GPUs or "
                       "machines (--tp), or give --kv-memory");
    if (limit < one)
        return err_set(e, ERR_MEMORY,
                       "one sequence of %lld tokens needs %lld bytes of keys and values, %s %lld: %s",
                       (long long)w->ctx, (long long)one, w->bytes ? "--kv-memory is" : "free are",
                       (long long)limit, w->bytes ? "raise it or lower --ctx" : "lower --ctx");
    share_memory(w, n);
    for (int g = 0; g < PAGE_GROUPS; g++)
        n_pages[g] = (int32_t)(n[g] < INT32_MAX / 2 ? n[g] : INT32_MAX / 2);
    return 0;
}
