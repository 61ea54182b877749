/* kv.c - see kv.h. */
#include "serve/engine/kv.h"

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
    for (int32_t page; l->prefix && (page = prefix_evict(l->prefix)) >= 0;)
        l->free[l->n_free++] = page;
}

int32_t pages_free(const struct page_list *l) { return l->n_free + (l->prefix ? l->prefix->n_idle : 0); }

int32_t page_acquire(struct page_list *l)
{
    int32_t page = -1;
    if (l->n_free)
        page = l->free[--l->n_free];
    else if (l->prefix)
        page = prefix_evict(l->prefix);
    if (page >= 0 && l->prefix)
        prefix_acquire_new(l->prefix, page);
    return page;
}

void page_release(struct page_list *l, int32_t page)
{
    if (!l->prefix || prefix_release(l->prefix, page))
        l->free[l->n_free++] = page;
}

int kv_open(struct kv *kv, struct dev *dev, int32_t n_pages, size_t page_bytes, struct err *e)
{
    *kv = (struct kv){ .page_bytes = page_bytes, .n_pages = n_pages, .dev = dev };
    kv->base = dev_alloc(dev, MEM_KV, page_bytes * (size_t)n_pages);
    if (!kv->base)
        return err_set(
            e, ERR_MEMORY,
            "no memory for %d key-value pages of %zu bytes: lower --kv-memory, --ctx or --max-batch", n_pages,
            page_bytes);
    return 0;
}

void kv_close(struct kv *kv)
{
    if (kv->dev)
        dev_free(kv->dev, kv->base);
    memset(kv, 0, sizeof *kv);
}

void kv_clear_new(const struct kv *kv, const int32_t *page, int64_t pos, int64_t n_rows)
{
    for (int64_t i = kv_pages_for(pos); i < kv_pages_for(pos + n_rows); i++)
        dev_fill(kv->dev, kv_page(kv, page[i]), 0, kv->page_bytes);
}

int kv_count_pages(const struct kv_sizing *w, int32_t *n_pages, struct err *e)
{
    int64_t one = kv_pages_most(w->ctx, w->window, w->chunk);
    int64_t all = kv_pages_for(w->ctx) * w->max_seqs;
    int64_t limit = w->bytes ? w->bytes : w->free_bytes;
    int64_t fit = limit / w->page_bytes, n = fit < all ? fit : all;

    if (limit <= 0)
        return err_set(e, ERR_MEMORY,
                       "the weights leave no memory for keys and values: use --dtype bf16, more GPUs or "
                       "machines (--tp), or give --kv-memory");
    if (n < one)
        return err_set(e, ERR_MEMORY,
                       "one sequence of %lld tokens needs %lld bytes of keys and values, %s %lld: %s",
                       (long long)w->ctx, (long long)(one * w->page_bytes),
                       w->bytes ? "--kv-memory is" : "free are", (long long)limit,
                       w->bytes ? "raise it or lower --ctx" : "lower --ctx");
    *n_pages = (int32_t)(n < INT32_MAX / 2 ? n : INT32_MAX / 2);
    return 0;
}
