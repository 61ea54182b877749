/* serve_carry_test.c - sequences carried over to new weights: a step reads keys of its own weights only, no
 * page has two users, none is lost, whatever ends meanwhile. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/rnd.h"
#include "serve/engine/carry_over.h"
#include "serve/engine/scheduler.h"
#include "tests/test.h"

enum { SEQS = 24, TOKENS = 1200, PAGES = 256, LAYERS = 5 };
struct sim_seq {
    struct seq q;
    int32_t ids[TOKENS];
    char salt[16];
    int64_t n_total;
    int added;
};
struct cell { /* a position of a page: the weights that computed it, and the token */
    int64_t weights;
    int32_t id;
};
struct sim {
    struct sched s;
    struct carry c;
    struct sim_seq seq[SEQS];
    struct cell cell[PAGE_GROUPS][PAGES][KV_PAGE];
    int64_t weights;                        /* of steps */
    int64_t n_swaps, n_slices, most_behind; /* rows of a sequence that the step behind a swap computes */
    int32_t n_pages[PAGE_GROUPS];
};

static const int32_t *ids_of(const struct seq *q) { return ((const struct sim_seq *)q->owner)->ids; }

static struct sim *sim_open(int max_seqs, int64_t chunk, int32_t pages, int32_t grouped, int64_t window)
{
    struct err e;
    struct sim *m = calloc(1, sizeof *m);
    struct sched_limits lim = { max_seqs, chunk, max_seqs, { { pages, 0 }, { grouped, window } }, 0 };
    m->n_pages[0] = pages;
    m->n_pages[1] = grouped;
    CHECK_INT(sched_open(&m->s, &lim, &e), 0);
    CHECK_INT(sched_open_prefix(&m->s, ids_of, &e), 0);
    CHECK_INT(carry_open(&m->c, &m->s, ids_of, LAYERS, 64, &e), 0);
    return m;
}

static void sim_close(struct sim *m)
{
    carry_close(&m->c);
    sched_close(&m->s);
    free(m);
}

static struct sim_seq *sim_add(struct sim *m, int i, int64_t n_prompt, int64_t n_total)
{
    struct sim_seq *x = &m->seq[i];
    memset(x, 0, sizeof *x);
    snprintf(x->salt, sizeof x->salt, "%d", i);
    for (int64_t t = 0; t < TOKENS; t++)
        x->ids[t] = (int32_t)(t * SEQS + i);
    x->n_total = n_total;
    x->added = 1;
    x->q.owner = x;
    x->q.salt = x->salt;
    x->q.n_ids = n_prompt;
    x->q.first_want = n_prompt - 1;
    sched_add(&m->s, &x->q);
    return x;
}

static void sim_remove(struct sim *m, struct sim_seq *x)
{
    sched_remove(&m->s, &x->q);
    x->added = 0;
}

/* Every page is held by one sequence (the salts differ), or it is free. */
static void check_pages(const struct sim *m)
{
    for (int g = 0; g < m->s.n_groups; g++) {
        char seen[PAGES] = { 0 };
        int held = 0;
        for (const struct carried *x = m->c.first; x; x = x->next)
            for (int64_t p = x->seq.in[g].n_released; p < x->seq.in[g].n_pages; p++, held++)
                CHECK(!seen[x->seq.in[g].page[p]]++);
        for (int i = 0; i < SEQS; i++)
            for (int64_t p = m->seq[i].q.in[g].n_released; p < m->seq[i].q.in[g].n_pages; p++, held++)
                CHECK(!seen[m->seq[i].q.in[g].page[p]]++);
        CHECK_INT(held + pages_free(&m->s.pages[g]), m->n_pages[g]);
    }
}

/* Rows of an item with some weights: pages that it enters are cleared, the keys before it are read, its own
 * are written. */
static void run_item(struct sim *m, const struct sched_item *it, const int32_t *ids, int64_t weights,
                     int clears)
{
    for (int g = 0; g < m->s.n_groups; g++) {
        const struct seq_pages *in = &it->seq->in[g];
        const int64_t first = prefix_first_seen(it->pos, m->s.lim.pool[g].window) * KV_PAGE;
        CHECK(in->n_pages * KV_PAGE >= it->pos + it->n_rows);
        for (int64_t p = kv_pages_for(it->pos); clears && p < kv_pages_for(it->pos + it->n_rows); p++)
            memset(m->cell[g][in->page[p]], 0, sizeof m->cell[g][0]);
        for (int64_t i = first; i < it->pos + it->n_rows; i++) {
            struct cell *at = &m->cell[g][in->page[i / KV_PAGE]][i % KV_PAGE];
            if (i >= it->pos)
                *at = (struct cell){ weights, ids[i] };
            CHECK(at->weights == weights && at->id == ids[i]);
        }
        for (int64_t i = it->pos + it->n_rows; i % KV_PAGE; i++) /* nothing lies behind them */
            CHECK_INT(m->cell[g][in->page[i / KV_PAGE]][i % KV_PAGE].weights, 0);
    }
}

static void sim_slice(struct sim *m, double seconds)
{
    CHECK(m->c.first_unit <= m->c.last_unit && m->c.last_unit <= LAYERS);
    for (int i = 0; i < m->c.plan.n_items; i++) {
        const struct sched_item *it = &m->c.plan.item[i];
        run_item(m, it, carry_ids(it->seq), m->weights + 1, m->c.first_unit == 0);
    }
    carry_slice_done(&m->c, seconds);
    m->n_slices++;
    check_pages(m);
}

static void sim_step(struct sim *m)
{
    struct err e;
    carry_step(&m->c);
    CHECK(sched_next_step(&m->s, &e) >= 0);
    check_pages(m);
    for (int i = 0; i < m->s.n_items; i++) {
        const struct sched_item *it = &m->s.item[i];
        run_item(m, it, ids_of(it->seq), m->weights, 1);
        if (it->pos > it->seq->n_ids / 2 && it->n_rows > m->most_behind)
            m->most_behind = it->n_rows;
    }
    sched_step_done(&m->s);
    for (int i = 0; i < m->s.n_items; i++) {
        struct sim_seq *x = m->s.item[i].seq->owner;
        if (x->q.n_kv == x->q.n_ids && ++x->q.n_ids >= x->n_total)
            sim_remove(m, x);
    }
    check_pages(m);
}

static void sim_swap(struct sim *m)
{
    sched_requeue_all(&m->s);
    m->weights++;
    m->n_swaps++;
    CHECK(!m->c.first && !m->c.n && !m->c.plan.n_items);
    check_pages(m);
}

/* What the engine does between two messages. 0: there is nothing to do. */
static int sim_turn(struct sim *m, double seconds)
{
    if (carry_is_due(&m->c))
        sim_swap(m);
    else if (carry_slice(&m->c))
        sim_slice(m, seconds);
    else if (!sched_idle(&m->s))
        sim_step(m);
    else
        return m->c.is_on;
    return 1;
}

/* Steps until every sequence decodes. */
static void sim_decode(struct sim *m)
{
    for (int prefills = 1; prefills;) {
        sim_step(m);
        prefills = m->s.waiting.n;
        for (const struct seq *q = m->s.running.first; q; q = q->next)
            prefills |= q->n_ids - q->n_kv != 1;
    }
    m->most_behind = 0;
}

/* Turns until the swap, in slices of a model that takes 2 ms a layer and 0.3 ms a row of it. */
static void sim_carry(struct sim *m)
{
    const int64_t swaps = m->n_swaps;
    double most_s = 0;
    while (m->n_swaps == swaps) {
        double seconds = 0;
        if (!carry_is_due(&m->c) && carry_slice(&m->c)) {
            for (int i = 0; i < m->c.plan.n_items; i++)
                seconds += 0.0003 * (double)m->c.plan.item[i].n_rows;
            seconds = (seconds + 0.002) * (m->c.last_unit - m->c.first_unit + (m->c.first_unit > 0));
        }
        most_s = seconds > most_s ? seconds : most_s;
        sim_turn(m, seconds);
    }
    CHECK(most_s < 0.05);
}

TEST(carried_sequences_lack_a_few_rows_behind_the_swap)
{
    struct sim *m = sim_open(4, 64, PAGES, 0, 0);
    for (int i = 0; i < 3; i++)
        sim_add(m, i, 300 + 70 * i, TOKENS);
    sim_decode(m);
    CHECK_INT(carry_begin(&m->c), 1);
    CHECK_INT(m->c.n, 3);
    sim_carry(m);
    CHECK_INT(m->s.running.n, 3);
    CHECK(m->s.n_recomputed > 0 && m->s.n_recomputed <= 2 * 3);
    CHECK_INT(m->c.n_rows >= 300 + 370 + 440, 1);
    sim_step(m);
    CHECK(m->most_behind > 1 && m->most_behind <= 4);
    for (int i = 0; i < 3; i++)
        CHECK_INT(m->seq[i].q.n_ids - m->seq[i].q.n_kv, 1);
    sim_close(m);
}

TEST(a_slice_is_never_followed_by_a_slice)
{
    struct sim *m = sim_open(4, 64, PAGES, 0, 0);
    sim_add(m, 0, 500, TOKENS);
    sim_decode(m);
    CHECK_INT(carry_begin(&m->c), 1);
    while (!m->n_swaps) {
        const int64_t slices = m->n_slices, ids = m->seq[0].q.n_ids;
        sim_turn(m, 0.02);
        if (m->n_slices == slices)
            continue;
        CHECK(!carry_is_due(&m->c) && !carry_slice(&m->c));
        sim_turn(m, 0.02);
        CHECK_INT(m->seq[0].q.n_ids, ids + 1);
    }
    sim_close(m);
}

TEST(slices_have_as_many_layers_and_rows_as_their_time_allows)
{
    struct sim *m = sim_open(4, 64, PAGES, 0, 0);
    sim_add(m, 0, 900, TOKENS);
    sim_decode(m);
    CHECK_INT(carry_begin(&m->c), 1);
    CHECK(carry_slice(&m->c));
    CHECK_INT(m->c.last_unit, 1); /* nothing is known yet */
    CHECK_INT(m->c.plan.item[0].n_rows, 16);
    sim_slice(m, 0.001);
    sim_step(m);
    CHECK(carry_slice(&m->c));
    CHECK_INT(m->c.last_unit, LAYERS);
    sim_slice(m, 0.001 * (LAYERS - 1));
    sim_step(m);
    CHECK(carry_slice(&m->c));
    CHECK_INT(m->c.plan.item[0].n_rows, 32); /* a layer took less than half of the time */
    sim_slice(m, 1);
    sim_step(m);
    CHECK(carry_slice(&m->c));
    CHECK_INT(m->c.last_unit, 1); /* a layer is too long, even of the fewest rows */
    CHECK_INT(m->c.plan.item[0].n_rows, 16);
    sim_slice(m, 1);
    sim_step(m);
    CHECK(carry_slice(&m->c));
    CHECK(m->c.first_unit == 2 && m->c.last_unit == 2);
    sim_close(m);
}

TEST(without_pages_for_a_second_set_nothing_is_carried)
{
    struct sim *m = sim_open(2, 64, 11, 0, 0);
    sim_add(m, 0, 330, TOKENS / 2); /* six pages; a second set needs six */
    sim_decode(m);
    CHECK_INT(carry_begin(&m->c), 0);
    sim_swap(m);
    CHECK_INT(m->s.running.n, 0);
    CHECK_INT(m->s.n_recomputed, m->seq[0].q.n_ids - 1);
    sim_close(m);

    m = sim_open(2, 64, 12, 0, 0);
    sim_add(m, 0, 330, TOKENS / 2);
    sim_decode(m);
    CHECK_INT(carry_begin(&m->c), 1);
    sim_close(m);
}

TEST(a_page_that_a_sequence_needs_ends_the_carrying_and_preempts_nobody)
{
    struct sim *m = sim_open(2, 64, 12, 0, 0);
    sim_add(m, 0, 380, TOKENS / 2);
    sim_decode(m);
    CHECK_INT(carry_begin(&m->c), 1);
    m->c.rows = 64;
    while (m->c.n && !m->n_swaps)
        sim_turn(m, 0.03);
    CHECK_INT(m->seq[0].q.in[0].n_pages, 7);
    CHECK_INT(m->n_swaps, 0);
    CHECK(!m->c.first);
    CHECK_INT(m->s.n_preempted, 0);
    CHECK_INT(carry_is_due(&m->c), 1);
    sim_swap(m);
    sim_close(m);
}

TEST(a_sequence_that_ends_in_a_chunk_keeps_its_second_pages_until_the_chunk_is_done)
{
    struct sim *m = sim_open(4, 64, PAGES, 0, 0);
    sim_add(m, 0, 100, TOKENS);
    sim_add(m, 1, 100, TOKENS);
    sim_decode(m);
    m->c.rows = 64;
    CHECK_INT(carry_begin(&m->c), 1);
    CHECK(carry_slice(&m->c));
    sim_slice(m, 0.03);
    CHECK_INT(m->c.plan.n_items, 1);
    sim_remove(m, &m->seq[0]); /* it is in the chunk, … */
    sim_remove(m, &m->seq[1]); /* … this one is not */
    CHECK(m->c.first && !m->c.first->next && m->c.n == 0);
    check_pages(m);
    CHECK_INT(carry_is_due(&m->c), 1); /* nothing runs any more */
    sim_swap(m);
    CHECK_INT(pages_free(&m->s.pages[0]), PAGES);

    sim_add(m, 0, 100, TOKENS);
    sim_add(m, 1, 100, TOKENS);
    sim_decode(m);
    CHECK_INT(carry_begin(&m->c), 1);
    CHECK(carry_slice(&m->c));
    sim_slice(m, 0.03);
    sim_remove(m, &m->seq[0]);
    while (m->c.plan.n_items)
        sim_turn(m, 0.03);
    CHECK(m->c.first && m->c.first->of == &m->seq[1].q && !m->c.first->next);
    while (m->n_swaps < 2)
        sim_turn(m, 0.03);
    sim_step(m);
    sim_close(m);
}

static int64_t below(uint64_t seed, uint64_t *n, uint64_t limit)
{
    return (int64_t)(rnd_u64(seed, 0, (*n)++) % limit);
}

/* Sequences come, end and are given up at random, and so do swaps. */
static void random_load(struct sim *m, uint64_t seed, int64_t n_turns)
{
    uint64_t n = 0;
    int64_t carried = 0;
    for (int64_t turn = 0; turn < n_turns; turn++) {
        const int i = (int)below(seed, &n, SEQS);
        struct sim_seq *x = &m->seq[i];
        if (below(seed, &n, 8) == 0 && !x->added)
            sim_add(m, i, 1 + below(seed, &n, 300), 302 + 2 * i);
        else if (below(seed, &n, 40) == 0 && x->added)
            sim_remove(m, x);
        if (below(seed, &n, 30) == 0 && !m->c.is_on && !carry_begin(&m->c))
            sim_swap(m);
        carried = m->c.n_rows;
        sim_turn(m, 0.001 * (double)(1 + below(seed, &n, 60)));
    }
    for (int i = 0; i < SEQS; i++)
        if (m->seq[i].added)
            sim_remove(m, &m->seq[i]);
    while (sim_turn(m, 0.001))
        continue;
    CHECK(!m->c.first && !m->c.is_on);
    for (int g = 0; g < m->s.n_groups; g++)
        CHECK_INT(pages_free(&m->s.pages[g]), m->n_pages[g]);
    CHECK(m->n_swaps > 10 && carried > 1000);
    sim_close(m);
}

TEST(random_loads_and_swaps_never_read_keys_of_other_weights)
{
    random_load(sim_open(8, 64, PAGES, 0, 0), 1, 6000);
    random_load(sim_open(8, 64, 60, 0, 0), 2, 6000);
    random_load(sim_open(3, 32, 24, 0, 0), 3, 6000);
}

TEST(nor_do_they_with_windows)
{
    random_load(sim_open(8, 64, PAGES, 64, 100), 4, 6000);
    random_load(sim_open(4, 64, 80, 20, 150), 5, 6000);
}
