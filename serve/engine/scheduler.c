/* scheduler.c - see scheduler.h. */
#include "serve/engine/scheduler.h"

#include <stdlib.h>
#include <string.h>
#include "serve/adapters/adapter_limits.h"
#include "serve/engine/carry_over.h"

/* ---- lists ---- */

static void list_remove(struct seq_list *l, struct seq *q)
{
    *(q->prev ? &q->prev->next : &l->first) = q->next;
    *(q->next ? &q->next->prev : &l->last) = q->prev;
    q->prev = q->next = NULL;
    l->n--;
}

/* Does a come after b? */
static int comes_after(const struct seq *a, const struct seq *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->arrival > b->arrival;
}

/* Inserts in order, so that a preempted sequence gets its old place. */
static void list_insert(struct seq_list *l, struct seq *q)
{
    struct seq *before = l->last;
    while (before && comes_after(before, q))
        before = before->prev;
    q->prev = before;
    q->next = before ? before->next : l->first;
    *(q->prev ? &q->prev->next : &l->first) = q;
    *(q->next ? &q->next->prev : &l->last) = q;
    l->n++;
}

/* ---- open and close ---- */

int sched_open(struct sched *s, const struct sched_limits *lim, struct err *e)
{
    int rc = 0;

    memset(s, 0, sizeof *s);
    s->lim = *lim;
    s->item = calloc((size_t)lim->max_seqs, sizeof *s->item);
    s->sorted = calloc((size_t)lim->max_seqs, sizeof *s->sorted);
    if (!s->item || !s->sorted)
        return err_set(e, ERR_MEMORY, "no memory for %d sequences: lower --max-batch", lim->max_seqs);
    for (int g = 0; g < PAGE_GROUPS && lim->pool[g].n_pages && rc >= 0; g++) {
        rc = page_list_open(&s->pages[g], lim->pool[g].n_pages, e);
        s->pages[g].group = g;
        s->n_groups = g + 1;
    }
    return rc;
}

int sched_open_prefix(struct sched *s, const int32_t *(*ids_of)(const struct seq *q), struct err *e)
{
    const int32_t n_pages[PAGE_GROUPS] = { s->pages[0].n_pages, s->pages[1].n_pages };
    int rc = prefix_open(&s->prefix, n_pages, e);
    if (rc < 0)
        return rc;
    s->ids_of = ids_of;
    for (int g = 0; g < s->n_groups; g++)
        s->pages[g].prefix = &s->prefix;
    return 0;
}

/* Releases the pages of a group behind the first n. */
static void release_behind_first(struct sched *s, struct seq *q, int g, int64_t n)
{
    struct seq_pages *in = &q->in[g];
    for (; in->n_pages > n; in->n_pages--)
        if (in->page[in->n_pages - 1] >= 0)
            page_release(&s->pages[g], in->page[in->n_pages - 1]);
}

static void release_pages(struct sched *s, struct seq *q)
{
    for (int g = 0; g < s->n_groups; g++) {
        release_behind_first(s, q, g, 0);
        q->in[g].n_released = 0;
    }
    q->n_kv = q->n_written = q->n_chained = 0;
    q->chain = 0;
}

void sched_release(struct sched *s, struct seq *q)
{
    release_pages(s, q);
    for (int g = 0; g < s->n_groups; g++) {
        free(q->in[g].page);
        q->in[g] = (struct seq_pages){ 0 };
    }
}

void sched_close(struct sched *s)
{
    for (struct seq_list *l = &s->waiting; l; l = l == &s->waiting ? &s->running : NULL)
        while (l->first)
            sched_remove(s, l->first);
    for (int g = 0; g < PAGE_GROUPS; g++)
        page_list_close(&s->pages[g]);
    prefix_close(&s->prefix);
    free(s->item);
    free(s->sorted);
    memset(s, 0, sizeof *s);
}

void sched_add(struct sched *s, struct seq *q)
{
    q->arrival = s->arrivals++;
    q->running = 0;
    q->n_kv = 0;
    list_insert(&s->waiting, q);
}

void sched_remove(struct sched *s, struct seq *q)
{
    list_remove(q->running ? &s->running : &s->waiting, q);
    carry_leave(q);
    sched_release(s, q);
    q->running = 0;
}

/* ---- pages ---- */

/* Takes q's pages; it goes back to its place in the queue. */
static void preempt(struct sched *s, struct seq *q)
{
    list_remove(&s->running, q);
    carry_leave(q);
    release_pages(s, q);
    q->running = q->n_drafts = 0;
    list_insert(&s->waiting, q);
    s->n_preempted++;
}

/* Releases the pages that no later row can see: those behind the window of a group. */
void sched_release_behind(struct sched *s, struct seq *q)
{
    for (int g = 0; g < s->n_groups; g++) {
        struct seq_pages *in = &q->in[g];
        int64_t first = prefix_first_seen(q->n_kv, s->lim.pool[g].window);
        for (; in->n_released < first && in->n_released < in->n_pages; in->n_released++) {
            page_release(&s->pages[g], in->page[in->n_released]);
            in->page[in->n_released] = -1;
        }
    }
}

/* Pages of a group that q will still acquire for the tokens it has. */
static int64_t pages_to_come(const struct sched *s, const struct seq *q, int g)
{
    int64_t most = kv_pages_most(q->n_ids, s->lim.pool[g].window, s->lim.chunk);
    int64_t held = q->in[g].n_pages - q->in[g].n_released;
    return most > held ? most - held : 0;
}

/* Makes the lists of a sequence's pages large enough for n pages. */
static int reserve_page_lists(const struct sched *s, struct seq *q, int64_t n, struct err *e)
{
    for (int g = 0; g < s->n_groups; g++) {
        struct seq_pages *in = &q->in[g];
        if (n <= in->cap_pages)
            continue;
        int64_t cap = n + n / 2 + 4;
        int32_t *p = realloc(in->page, sizeof *p * (size_t)cap);
        if (!p)
            return err_set(e, ERR_MEMORY, "no memory for a list of %lld pages", (long long)cap);
        in->page = p;
        in->cap_pages = cap;
    }
    return 0;
}

/* Preempts the last running sequence, if it comes after q and is not in this step. 0: there is none. */
static int preempt_later(struct sched *s, const struct seq *q)
{
    struct seq *victim = s->running.last;
    while (victim && victim->step_rows)
        victim = victim->prev;
    if (!victim || !comes_after(victim, q))
        return 0;
    preempt(s, victim);
    return 1;
}

/* Acquires pages of every group for positions 0 .. upto - 1 of q; when none is free, preempts later sequences
 * that are not in this step. Returns the positions that q has pages for (upto, or less). */
static int64_t acquire_pages(struct sched *s, struct seq *q, int64_t upto, struct err *e)
{
    int64_t have = upto, need = kv_pages_for(upto);
    int rc = reserve_page_lists(s, q, need, e);

    if (rc < 0)
        return rc;
    for (int g = 0; g < s->n_groups; g++) {
        struct seq_pages *in = &q->in[g];
        while (in->n_pages < need) {
            int32_t page = page_acquire(&s->pages[g]);
            if (page >= 0)
                in->page[in->n_pages++] = page;
            else if (!(s->carry && carry_drop(s->carry)) && !preempt_later(s, q))
                break;
        }
        have = in->n_pages * KV_PAGE < have ? in->n_pages * KV_PAGE : have;
    }
    return have;
}

int sched_acquire(struct sched *s, struct seq *q, int64_t upto, struct err *e)
{
    int rc = reserve_page_lists(s, q, kv_pages_for(upto), e);
    for (int g = 0; rc >= 0 && g < s->n_groups; g++) {
        struct seq_pages *in = &q->in[g];
        while (in->n_pages < kv_pages_for(upto)) {
            int32_t page = page_acquire(&s->pages[g]);
            if (page < 0)
                return 0;
            in->page[in->n_pages++] = page;
        }
    }
    return rc < 0 ? rc : 1;
}

/* ---- planning a step ---- */

struct budget { /* what is left of the step's limits */
    int64_t chunk, wants;
};

/* How many of the next n rows of q the budget of logits allows. */
static int64_t rows_within_wants(const struct seq *q, int64_t n, int64_t wants)
{
    int64_t skip = q->first_want > q->n_kv ? q->first_want - q->n_kv : 0;
    return n - skip > wants ? skip + wants : n;
}

/* Adds up to n rows of q to the step. 1: done; 0: there is no budget or no page for them in this step. */
static int add_rows(struct sched *s, struct seq *q, int64_t n, struct budget *b, struct err *e)
{
    n = rows_within_wants(q, n, b->wants);
    if (n <= 0)
        return 0;
    int64_t have = acquire_pages(s, q, q->n_kv + n, e);
    if (have < 0)
        return (int)have;
    n = have - q->n_kv;
    if (n <= 0)
        return 0;
    struct sched_item *it = &s->item[s->n_items++];
    *it = (struct sched_item){ .seq = q,
                               .pos = q->n_kv,
                               .n_rows = n,
                               .skip_want = q->first_want > q->n_kv ? q->first_want - q->n_kv : 0 };
    if (it->skip_want > n)
        it->skip_want = n;
    b->wants -= n - it->skip_want;
    q->step_rows = n;
    return 1;
}

static int add_decode_rows(struct sched *s, struct budget *b, struct err *e)
{
    for (struct seq *q = s->running.first, *next; q; q = next) {
        if (q->n_ids - q->n_kv == 1) {
            int rc = add_rows(s, q, 1, b, e);
            if (rc < 0)
                return rc;
            /* only now: add_rows may have preempted the next one */
            next = q->next;
            if (!rc)
                preempt(s, q); /* no page is left: the last sequence that needs one waits for it */
        } else {
            next = q->next;
        }
    }
    return 0;
}

static int add_prefill_rows(struct sched *s, struct budget *b, struct err *e)
{
    for (struct seq *q = s->running.first; q && b->chunk > 0; q = q->next) {
        int64_t left = q->n_ids - q->n_kv;
        if (q->step_rows || left < 1)
            continue;
        int rc = add_rows(s, q, left < b->chunk ? left : b->chunk, b, e);
        if (rc < 0)
            return rc;
        b->chunk -= q->step_rows;
    }
    return 0;
}

void sched_promised(const struct sched *s, int64_t promised[PAGE_GROUPS])
{
    for (int g = 0; g < s->n_groups; g++) {
        promised[g] = 0;
        for (const struct seq *q = s->running.first; q; q = q->next)
            promised[g] += pages_to_come(s, q, g) + (q->carried ? pages_to_come(s, &q->carried->seq, g) : 0);
    }
}

/* Do the free pages hold q beside what is promised? */
static int fits_beside(const struct sched *s, const struct seq *q, const int64_t promised[PAGE_GROUPS])
{
    for (int g = 0; g < s->n_groups; g++)
        if (promised[g] + pages_to_come(s, q, g) > pages_free(&s->pages[g]))
            return 0;
    return 1;
}

/* Acquires free pages for positions 0 .. upto - 1 of q, none of those that are promised. Returns the
 * positions that q has pages for (upto, or less). */
static int64_t acquire_spare(struct sched *s, struct seq *q, int64_t upto, struct err *e)
{
    int64_t promised[PAGE_GROUPS], have = upto, need = kv_pages_for(upto), least = need;
    int rc = reserve_page_lists(s, q, need, e);

    if (rc < 0)
        return rc;
    for (int g = 0; g < s->n_groups; g++)
        least = q->in[g].n_pages < least ? q->in[g].n_pages : least;
    if (least == need)
        return have;
    sched_promised(s, promised);
    for (int g = 0; g < s->n_groups; g++) {
        struct seq_pages *in = &q->in[g];
        while (in->n_pages < need && pages_free(&s->pages[g]) > promised[g])
            in->page[in->n_pages++] = page_acquire(&s->pages[g]);
        have = in->n_pages * KV_PAGE < have ? in->n_pages * KV_PAGE : have;
    }
    return have;
}

/* Lengthens the items that decode by their drafts. */
static int add_drafts(struct sched *s, struct budget *b, struct err *e)
{
    int64_t left = s->lim.drafts < b->wants ? s->lim.drafts : b->wants;
    for (int i = 0; i < s->n_items && left > 0; i++) {
        struct sched_item *it = &s->item[i];
        int64_t n = it->seq->n_drafts < left ? it->seq->n_drafts : left, end = it->seq->n_ids;
        if (n <= 0 || it->pos + 1 != end || it->skip_want)
            continue;
        int64_t have = acquire_spare(s, it->seq, end + n, e);
        if (have < 0)
            return (int)have;
        n = have - end < n ? have - end : n;
        it->n_drafts = n;
        it->n_rows += n;
        left -= n;
    }
    return 0;
}

/* What drafts of earlier steps have left behind the rows of this one, in the page of the last row. */
static void find_stale(struct sched *s)
{
    for (int i = 0; i < s->n_items; i++) {
        struct sched_item *it = &s->item[i];
        int64_t end = it->pos + it->n_rows, page_end = kv_pages_for(end) * KV_PAGE;
        int64_t written = it->seq->n_written < page_end ? it->seq->n_written : page_end;
        it->n_stale = written > end ? written - end : 0;
        it->seq->n_written = end;
    }
}

int64_t sched_cacheable(const struct seq *q)
{
    return (q->n_ids - 1 < q->first_want ? q->n_ids - 1 : q->first_want) / KV_PAGE;
}

/* Gives q the cached pages of its beginning. */
static int look_up(struct sched *s, struct seq *q, struct err *e)
{
    int64_t max = sched_cacheable(q), n;
    struct seq_pages *all = &q->in[0], *grouped = &q->in[1];
    if (!s->ids_of)
        return 0;
    int rc = reserve_page_lists(s, q, max, e);
    if (rc < 0)
        return rc;

    n = all->n_pages = prefix_match(&s->prefix, q->salt, s->ids_of(q), max, all->page);
    if (s->n_groups > 1) {
        n = grouped->n_pages = prefix_match_grouped(&s->prefix, all->page, n, s->lim.pool[1].window,
                                                    grouped->page, &grouped->n_released);
        release_behind_first(s, q, 0, n);
    }
    q->n_chained = n;
    q->chain = n ? s->prefix.page[all->page[n - 1]].serial : 0;
    if (n)
        q->chain_name = s->prefix.page[all->page[n - 1]].name;
    q->n_kv = q->n_written = n * KV_PAGE;
    sched_release_behind(s, q);
    return 0;
}

/* Counts a look-up in the prefix cache, once a sequence. */
static void count_found(struct sched *s, struct seq *q)
{
    if (q->admitted)
        return;
    q->admitted = 1;
    q->n_cached = q->n_kv;
    s->n_looked_up += s->ids_of ? q->n_ids : 0;
    s->n_found += q->n_kv;
}

/* Moves sequences from the queue to the running ones as long as they fit. */
static int admit(struct sched *s, struct err *e)
{
    int64_t promised[PAGE_GROUPS];

    sched_promised(s, promised);
    while (s->waiting.n && s->running.n < s->lim.max_seqs) {
        struct seq *q = s->waiting.first;
        int rc = look_up(s, q, e);
        if (rc < 0)
            return rc;
        if (s->running.n && !fits_beside(s, q, promised)) {
            release_pages(s, q);
            return 0;
        }
        count_found(s, q);
        list_remove(&s->waiting, q);
        q->running = 1;
        list_insert(&s->running, q);
        for (int g = 0; g < s->n_groups; g++)
            promised[g] += pages_to_come(s, q, g);
    }

    return 0;
}

/* While the head of the queue has a higher priority than the last running sequence and does not fit beside
 * the running ones, preempts that last one. */
static int make_way(struct sched *s, struct err *e)
{
    struct seq *q = s->waiting.first;
    int64_t promised[PAGE_GROUPS];

    while (q && s->running.n && s->running.last->priority > q->priority) {
        int rc = look_up(s, q, e);
        if (rc < 0)
            return rc;
        sched_promised(s, promised);
        int fits = s->running.n < s->lim.max_seqs && fits_beside(s, q, promised);
        release_pages(s, q);
        if (fits)
            break;
        if (!(s->carry && carry_drop(s->carry)))
            preempt(s, s->running.last);
    }
    return 0;
}

/* Puts the items of equal adapters side by side, in the order that they have: a counting sort. */
static void sort_by_adapter(struct sched *s)
{
    int first[ADAPTERS_MAX + 2] = { 0 }, sorted = 1;
    struct sched_item *from = s->item;

    for (int i = 0; i < s->n_items; i++) {
        first[from[i].seq->adapter + 1]++;
        sorted &= !i || from[i - 1].seq->adapter <= from[i].seq->adapter;
    }
    if (sorted)
        return;
    for (int a = 0; a <= ADAPTERS_MAX; a++)
        first[a + 1] += first[a];
    for (int i = 0; i < s->n_items; i++)
        s->sorted[first[from[i].seq->adapter]++] = from[i];
    s->item = s->sorted;
    s->sorted = from;
}

int sched_next_step(struct sched *s, struct err *e)
{
    struct budget b = { s->lim.chunk, s->lim.max_wants };
    s->n_items = 0;
    for (struct seq *q = s->running.first; q; q = q->next)
        q->step_rows = 0;
    int rc = make_way(s, e);
    if (rc < 0)
        return rc;
    rc = add_decode_rows(s, &b, e);
    if (rc < 0)
        return rc;
    rc = admit(s, e);
    if (rc < 0)
        return rc;
    rc = add_prefill_rows(s, &b, e);
    if (rc < 0)
        return rc;
    rc = add_drafts(s, &b, e);
    find_stale(s);
    sort_by_adapter(s);
    return rc < 0 ? rc : s->n_items;
}

/* Puts pages that are full now into the prefix cache. */
static void share_pages(struct sched *s, struct seq *q)
{
    struct prefix *p = &s->prefix;
    for (; s->ids_of && (q->n_chained + 1) * KV_PAGE <= q->n_kv && q->n_chained >= q->in[0].n_released;
         q->n_chained++) {
        int64_t i = q->n_chained;
        const int32_t *ids = s->ids_of(q) + i * KV_PAGE;
        int32_t page = prefix_add(p, q->in[0].page[i], q->chain, q->salt, ids);
        if (page < 0) /* no memory: this sequence is not shared */
            return;
        if (p->evicted) {
            q->chain_name = kv_name_next(i ? q->chain_name : kv_name_first(p->root, q->salt), ids);
            p->page[page].name = q->chain_name;
        }
        if (s->n_groups > 1 && i >= q->in[1].n_released)
            prefix_add_grouped(p, page, q->in[1].page[i]);
        q->chain = p->page[page].serial;
    }
}

void sched_step_done(struct sched *s)
{
    for (int i = 0; i < s->n_items; i++) {
        struct sched_item *it = &s->item[i];
        it->seq->n_kv = it->n_drafts ? it->seq->n_ids - 1 : it->pos + it->n_rows;
        it->seq->n_drafts = 0;
        if (it->seq->first_want < it->seq->n_kv)
            it->seq->first_want = it->seq->n_kv;
        share_pages(s, it->seq);
        sched_release_behind(s, it->seq);
    }
}

void sched_requeue_all(struct sched *s)
{
    for (struct seq *q = s->running.last, *before; q; q = before) {
        const int64_t n_kv = q->n_kv;
        before = q->prev;
        if (carry_is_ready(q)) {
            release_pages(s, q);
            carry_take(q);
        } else {
            preempt(s, q);
        }
        s->n_recomputed += n_kv - q->n_kv;
    }
    if (s->carry)
        carry_end(s->carry);
    for (int g = 0; g < s->n_groups; g++)
        page_list_drop_cached(&s->pages[g]);
}
