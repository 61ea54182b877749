/* kv_plan.c - see kv_plan.h. */
#include "serve/kv/kv_plan.h"

#include <stdlib.h>
#include <string.h>

#define TRY_AGAIN 16 /* beginnings that are computed before one is loaded again */

void kv_plan_open(struct kv_plan *p, struct sched *s, struct kv_disk *disk, struct kv_key root)
{
    p->disk = disk;
    p->orders.n = 0;
    s->prefix.evicted = &p->orders;
    s->prefix.root = root;
}

void kv_plan_close(struct kv_plan *p)
{
    kv_orders_free(&p->orders);
    free(p->want);
    memset(p, 0, sizeof *p);
}

/* The name of page i, behind `before`, the name of page i - 1. */
static struct kv_key name_of(const struct sched *s, const struct seq *q, int64_t i, struct kv_key before)
{
    return kv_name_next(i ? before : kv_name_first(s->prefix.root, q->salt), s->ids_of(q) + i * KV_PAGE);
}

void kv_plan_ask_ahead(struct kv_plan *p, struct sched *s, const struct seq *q)
{
    struct kv_key name = { { 0 } };
    for (int64_t i = 0; p->disk && i < sched_cacheable(q); i++) {
        name = name_of(s, q, i, name);
        if (!kv_disk_has(p->disk, 0, name))
            return;
        kv_disk_ask_ahead(p->disk, 0, name);
    }
}

/* ---- a sequence's beginning ---- */

/* Whether page i has its page of group 1: in the cache, or in the folder. */
static int has_grouped(const struct kv_plan *p, const struct sched *s, int64_t i)
{
    return (i < p->n_cached && s->prefix.page[p->want[i].page[0]].grouped >= 0) ||
           kv_disk_has(p->disk, 1, p->want[i].name);
}

/* How many of the n pages of group 0 can be used: those behind which the pages of group 1 that a row sees are
 * there, too. */
static int64_t usable(const struct kv_plan *p, const struct sched *s, int64_t n)
{
    for (; n > 0 && s->n_groups > 1; n--) {
        int64_t i = prefix_first_seen(n * KV_PAGE, s->lim.pool[1].window);
        while (i < n && has_grouped(p, s, i))
            i++;
        if (i == n)
            break;
    }
    return n;
}

/* Whether page i of the beginning must be loaded in a group. */
static int is_missing(const struct kv_plan *p, const struct sched *s, int64_t i, int g)
{
    if (!g)
        return i >= p->n_cached;
    return i >= prefix_first_seen(p->n * KV_PAGE, s->lim.pool[1].window) &&
           (i >= p->n_cached || s->prefix.page[p->want[i].page[0]].grouped < 0);
}

/* Whether the pools have free pages for them. */
static int fits(const struct kv_plan *p, const struct sched *s)
{
    int64_t promised[PAGE_GROUPS];
    sched_promised(s, promised);
    for (int g = 0; g < s->n_groups; g++) {
        int64_t need = 0;
        for (int64_t i = 0; i < p->n; i++)
            need += is_missing(p, s, i, g);
        if (promised[g] + need > pages_free(&s->pages[g]))
            return 0;
    }
    return 1;
}

static void release_held(struct kv_plan *p, struct sched *s)
{
    for (int64_t i = p->n - 1; i >= 0; i--)
        for (int g = 0; g < s->n_groups; g++)
            if (p->want[i].page[g] >= 0)
                page_release(&s->pages[g], p->want[i].page[g]);
    p->n = 0;
}

/* Takes pages and adds the orders. */
static void order_loads(struct kv_plan *p, struct sched *s)
{
    for (int64_t i = 0; i < p->n; i++)
        for (int g = 0; g < s->n_groups; g++) {
            struct kv_wanted *w = &p->want[i];
            if (!is_missing(p, s, i, g))
                continue;
            w->page[g] = page_acquire(&s->pages[g]);
            w->order[g] = w->page[g] < 0 ? -1 : kv_orders_add(&p->orders, KV_LOAD, g, w->page[g], w->name);
        }
}

/* Whether loading pays. */
static int pays(struct kv_plan *p)
{
    if (p->load_s <= p->compute_s || !p->compute_s)
        return 1;
    p->n_skipped = (p->n_skipped + 1) % TRY_AGAIN;
    return !p->n_skipped;
}

/* What the cache has of q's beginning, and behind it the folder. 0: no memory. */
static int find_beginning(struct kv_plan *p, struct sched *s, struct seq *q)
{
    const int64_t max = sched_cacheable(q);
    struct kv_wanted *want = realloc(p->want, sizeof *want * (size_t)(max + 1));
    int32_t *held = malloc(sizeof *held * (size_t)(max + 1));
    struct kv_key name = { { 0 } };

    p->want = want ? want : p->want;
    p->n = p->n_cached = want && held ? prefix_match(&s->prefix, q->salt, s->ids_of(q), max, held) : 0;
    for (int64_t i = 0; want && held && i < max; i++) {
        p->want[i] = (struct kv_wanted){ { { 0 } }, { -1, -1 }, { -1, -1 } };
        name = i < p->n_cached ? s->prefix.page[held[i]].name : name_of(s, q, i, name);
        p->want[i].name = name;
        if (i < p->n_cached)
            p->want[i].page[0] = held[i];
        else if (kv_disk_has(p->disk, 0, name))
            p->n = i + 1;
        else
            break;
    }
    free(held);
    return want != NULL;
}

int64_t kv_plan_next(struct kv_plan *p, struct sched *s, int64_t *missed)
{
    struct seq *q = s->waiting.first;
    int64_t place = s->lim.max_seqs - s->running.n;
    for (; q && q->sought && place > 1; place--)
        q = q->next;
    if (!p->disk || !q || q->sought || place < 1)
        return -1;

    q->sought = 1;
    p->seq = q;
    *missed = 0;
    if (!sched_cacheable(q) || !find_beginning(p, s, q))
        return 0;
    *missed = (sched_cacheable(q) - p->n_cached) * KV_PAGE;
    const int64_t all = p->n, n = usable(p, s, all);
    /* those that are of no use are not held any longer */
    for (int64_t i = p->n_cached - 1; i >= n; i--)
        page_release(&s->pages[0], p->want[i].page[0]);
    p->n_cached = p->n_cached < n ? p->n_cached : n;
    p->n = n;
    if (!n || !fits(p, s) || !pays(p)) {
        release_held(p, s);
        return 0;
    }
    order_loads(p, s);
    int64_t loads = 0;
    for (int64_t i = 0; i < n; i++)
        loads += p->want[i].order[0] >= 0 || p->want[i].order[1] >= 0;
    if (!loads)
        release_held(p, s);
    return loads;
}

/* How many pages of the beginning are whole now; *n_loads: how many were loaded. */
static int64_t whole_pages(const struct kv_plan *p, const int64_t *ok, int64_t *n_loads)
{
    int64_t n = -1;
    *n_loads = 0;
    for (int64_t i = 0; i < p->n; i++)
        for (int g = 0; g < PAGE_GROUPS; g++) {
            const struct kv_wanted *w = &p->want[i];
            *n_loads += w->order[g] >= 0;
            if (n < 0 && ((w->order[g] >= 0 && !ok[w->order[g]]) || (!g && w->page[0] < 0)))
                n = i;
        }
    return n < 0 ? p->n : n;
}

int64_t kv_plan_loaded(struct kv_plan *p, struct sched *s, const int64_t *ok, double seconds)
{
    struct prefix *x = &s->prefix;
    uint64_t chain = 0;
    int64_t n_loads, whole = whole_pages(p, ok, &n_loads), i = 0;

    for (; i < whole; i++) {
        const struct kv_wanted *w = &p->want[i];
        int32_t page = w->page[0];
        if (i >= p->n_cached)
            page = prefix_add(x, page, chain, p->seq->salt, s->ids_of(p->seq) + i * KV_PAGE);
        if (page < 0)
            break;
        x->page[page].name = w->name;
        chain = x->page[page].serial;
        if (w->order[1] >= 0)
            prefix_add_grouped(x, page, w->page[1]);
    }
    if (n_loads)
        p->load_s = (p->load_s ? 3 * p->load_s + seconds / (double)n_loads : 4 * seconds / (double)n_loads) /
                    4;
    whole = i > p->n_cached ? (i - p->n_cached) * KV_PAGE : 0;
    release_held(p, s);
    return whole;
}

void kv_plan_timed(struct kv_plan *p, int64_t rows, double seconds)
{
    const double page_s = seconds * KV_PAGE / (double)(rows ? rows : 1);
    if (rows >= KV_PAGE)
        p->compute_s = p->compute_s ? 0.75 * p->compute_s + 0.25 * page_s : page_s;
}

void kv_plan_save_all(struct kv_plan *p, const struct sched *s)
{
    const struct prefix *x = &s->prefix;
    for (int32_t i = x->idle[0].oldest; p->disk && i >= 0; i = x->hold[0][i].newer) {
        kv_orders_add(&p->orders, KV_SAVE, 0, i, x->page[i].name);
        if (x->page[i].grouped >= 0)
            kv_orders_add(&p->orders, KV_SAVE, 1, x->page[i].grouped, x->page[i].name);
    }
}
