/* serve_scheduler_test.c - the scheduler alone: every row once, logits once, pages never shared, nothing
 * dropped, no overtaking. */
#include "base/rnd.h"
#include "serve/engine/step_message.h"
#include "serve/engine/scheduler.h"
#include "tests/test.h"

#define MAX_SEQS 256
struct sim_seq {
    struct seq q;
    int64_t n_prompt, n_total; /* it ends with n_total tokens */
    int64_t n_wanted;          /* rows whose logits it got */
    int64_t next_row;          /* rows computed since it got its pages */
    int64_t started, ended;    /* step */
    int scores;
};
struct sim {
    struct sched s;
    struct sim_seq seq[MAX_SEQS];
    int n, n_done;
    int64_t step, most_rows, most_items;
    int32_t n_pages;
};

static void sim_open(struct sim *m, int max_seqs, int64_t chunk, int64_t wants, int32_t pages)
{
    struct err e;
    struct sched_limits lim = { max_seqs, chunk, wants, { { pages, 0 } } };
    memset(m, 0, sizeof *m);
    m->n_pages = pages;
    CHECK_INT(sched_open(&m->s, &lim, &e), 0);
}

static void sim_add(struct sim *m, int64_t n_prompt, int64_t n_gen, int scores)
{
    struct sim_seq *x = &m->seq[m->n++];
    x->n_prompt = n_prompt;
    x->n_total = n_prompt + n_gen;
    x->scores = scores;
    x->started = x->ended = -1;
    x->q.owner = x;
    x->q.n_ids = n_prompt;
    x->q.first_want = scores ? 0 : n_prompt - 1;
    sched_add(&m->s, &x->q);
}

/* Every page is either free or in exactly one list. */
static void check_pages(const struct sim *m)
{
    int held = 0;
    char *seen = calloc((size_t)m->n_pages, 1);
    for (int i = 0; i < m->n; i++)
        for (int64_t p = m->seq[i].q.in[0].n_released; p < m->seq[i].q.in[0].n_pages; p++, held++) {
            CHECK(!seen[m->seq[i].q.in[0].page[p]]);
            seen[m->seq[i].q.in[0].page[p]] = 1;
        }
    CHECK_INT(held + m->s.pages[0].n_free, m->n_pages);
    free(seen);
}

static void check_item(struct sim *m, const struct sched_item *it)
{
    struct sim_seq *x = it->seq->owner;
    CHECK_INT(it->pos, it->seq->n_kv);
    CHECK(it->n_rows >= 1 && it->pos + it->n_rows <= it->seq->n_ids);
    CHECK(it->seq->in[0].n_pages * KV_PAGE >= it->pos + it->n_rows);
    CHECK(it->skip_want >= 0 && it->skip_want <= it->n_rows);
    x->n_wanted += it->n_rows - it->skip_want;
    if (it->skip_want < it->n_rows)
        CHECK_INT(it->pos + it->skip_want, it->seq->first_want > it->pos ? it->seq->first_want : it->pos);
    if (x->started < 0)
        x->started = m->step;
}

/* A step; returns 0 when there was nothing to do. */
static int sim_step(struct sim *m)
{
    struct err e;
    int64_t rows = 0, wants = 0, prefill = 0;
    int n = sched_next_step(&m->s, &e);
    CHECK(n >= 0);
    for (int i = 0; i < n; i++) {
        const struct sched_item *it = &m->s.item[i];
        rows += it->n_rows;
        prefill += it->seq->n_ids - it->pos > 1 ? it->n_rows : 0;
        wants += it->n_rows - it->skip_want;
        check_item(m, it);
    }
    CHECK(n <= m->s.lim.max_seqs && wants <= m->s.lim.max_wants &&
          rows <= m->s.lim.chunk + m->s.lim.max_seqs && prefill <= m->s.lim.chunk);
    m->most_rows = rows > m->most_rows ? rows : m->most_rows;
    m->most_items = n > m->most_items ? n : m->most_items;
    check_pages(m);
    sched_step_done(&m->s);
    m->step++;
    for (int i = 0; i < n; i++) {
        struct sim_seq *x = m->s.item[i].seq->owner;
        if (x->q.n_kv < x->q.n_ids)
            continue;
        if (++x->q.n_ids < x->n_total) /* a token was sampled: it runs in the next step */
            continue;
        x->ended = m->step;
        m->n_done++;
        sched_remove(&m->s, &x->q);
    }
    return n;
}

static void sim_run(struct sim *m)
{
    int64_t limit = m->step + 100000;
    while (!sched_idle(&m->s) && m->step < limit)
        if (!sim_step(m))
            break;
    CHECK_INT(m->n_done, m->n);
    CHECK_INT(m->s.pages[0].n_free, m->n_pages);
    for (int i = 0; i < m->n; i++) {
        const struct sim_seq *x = &m->seq[i];
        /* one row of logits a generated token (the sim generates at least one), and the prompt's rows when
         * scored: never twice */
        int64_t gen = x->n_total > x->n_prompt + 1 ? x->n_total - x->n_prompt : 1;
        CHECK_INT(x->n_wanted, gen + (x->scores ? x->n_prompt - 1 : 0));
    }
}

TEST(one_sequence_is_prefilled_in_chunks_then_decoded)
{
    struct sim m;
    sim_open(&m, 4, 100, 4, 16);
    sim_add(&m, 250, 5, 0);
    sim_run(&m);
    /* 100 + 100 + 50 rows with the first token, then four more tokens */
    CHECK_INT(m.step, 3 + 4);
    CHECK_INT(m.most_rows, 100);
    sched_close(&m.s);
}

TEST(decoding_goes_on_while_a_long_prompt_is_prefilled)
{
    struct sim m;
    sim_open(&m, 4, 64, 4, 64);
    sim_add(&m, 10, 20, 0);
    sim_step(&m);
    sim_add(&m, 640, 2, 0);
    sim_run(&m);
    CHECK(m.seq[0].ended <= 20); /* a token in each step, in spite of the ten chunks beside it */
    CHECK_INT(m.most_rows, 65);
    sched_close(&m.s);
}

TEST(scored_prompts_are_cut_by_the_room_for_logits)
{
    struct sim m;
    sim_open(&m, 2, 100, 7, 16);
    sim_add(&m, 50, 3, 1);
    sim_add(&m, 20, 3, 0);
    sim_run(&m);
    sched_close(&m.s);
}

TEST(when_pages_run_out_the_youngest_waits_and_nothing_is_lost)
{
    struct sim m;
    sim_open(&m, 8, 64, 8, 8); /* 8 pages: one sequence of 512, eight need up to 5 each */
    for (int i = 0; i < 8; i++)
        sim_add(&m, 60 + i, 240, i & 1);
    sim_run(&m);
    CHECK(m.s.n_preempted > 0);
    for (int i = 1; i < 8; i++)
        CHECK(m.seq[i].ended >= m.seq[i - 1].ended - 8); /* roughly in order of arrival */
    sched_close(&m.s);
}

TEST(nobody_overtakes_the_head_of_the_queue)
{
    struct sim m;
    sim_open(&m, 4, 64, 4, 4);
    sim_add(&m, 100, 60, 0); /* two pages, then three */
    sim_add(&m, 200, 2, 0);  /* needs all four pages: waits */
    sim_add(&m, 5, 1, 0);    /* would fit at once, but arrived later */
    sim_run(&m);
    CHECK(m.seq[1].started >= m.seq[0].ended);
    CHECK(m.seq[2].started >= m.seq[1].started);
    sched_close(&m.s);
}

static struct sim_seq *sim_add_priority(struct sim *m, int64_t priority, int64_t n_prompt, int64_t n_gen)
{
    m->seq[m->n].q.priority = priority;
    sim_add(m, n_prompt, n_gen, 0);
    return &m->seq[m->n - 1];
}

TEST(a_lower_priority_number_comes_first_in_the_queue_and_takes_a_running_ones_place)
{
    struct sim m;
    sim_open(&m, 2, 64, 2, 32);
    struct sim_seq *late[2] = { sim_add_priority(&m, 5, 10, 40), sim_add_priority(&m, 3, 10, 40) };
    sim_step(&m);
    CHECK_INT(m.s.running.n, 2);
    struct sim_seq *same = sim_add_priority(&m, 3, 10, 4), *first = sim_add_priority(&m, -1, 10, 4);
    sim_step(&m);
    CHECK_INT(first->started, 1); /* at once, in place of the least urgent sequence */
    CHECK(!late[0]->q.running && late[1]->q.running);
    CHECK_INT(m.s.n_preempted, 1);
    sim_run(&m);
    /* 3 does not displace 3, but goes before 5 */
    CHECK(same->started >= first->ended && same->ended < late[0]->ended);
    CHECK(late[1]->ended < late[0]->ended);
    sched_close(&m.s);
}

TEST(a_lower_priority_number_takes_pages_of_running_ones_but_no_more_than_it_needs)
{
    struct sim m;
    sim_open(&m, 8, 512, 8, 8);
    struct sim_seq *low[3];
    for (int i = 0; i < 3; i++)
        low[i] = sim_add_priority(&m, 1 + i, 100, 20); /* two pages each */
    sim_step(&m);
    struct sim_seq *first = sim_add_priority(&m, 0, 250, 4); /* four pages: two are free */
    sim_step(&m);
    CHECK_INT(first->started, 1);
    CHECK(low[0]->q.running && low[1]->q.running && !low[2]->q.running);
    sim_run(&m);
    sched_close(&m.s);
}

TEST(the_longest_sequence_gets_through_a_pool_that_just_holds_it)
{
    struct sim m;
    sim_open(&m, 4, 32, 4, 4);
    for (int i = 0; i < 6; i++)
        sim_add(&m, 1 + 40 * i, 256 - (1 + 40 * i), i % 3 == 0);
    sim_run(&m);
    sched_close(&m.s);
}

TEST(a_sequence_that_is_given_up_frees_its_pages_and_its_place)
{
    struct sim m;
    sim_open(&m, 2, 64, 2, 8);
    sim_add(&m, 200, 100, 0);
    sim_add(&m, 200, 100, 0);
    sim_add(&m, 10, 4, 0);
    for (int i = 0; i < 5; i++)
        sim_step(&m);
    CHECK_INT(m.s.running.n, 2);
    sched_remove(&m.s, &m.seq[0].q); /* running */
    sched_remove(&m.s, &m.seq[2].q); /* waiting */
    check_pages(&m);
    CHECK_INT(m.s.running.n, 1);
    CHECK_INT(m.s.waiting.n, 0);
    sched_remove(&m.s, &m.seq[1].q);
    CHECK_INT(m.s.pages[0].n_free, 8);
    CHECK(sched_idle(&m.s));
    sched_close(&m.s);
}

struct dice {
    uint64_t run, at;
};
static int64_t roll(struct dice *d, int64_t n)
{
    return (int64_t)(rnd_u64(d->run, 7, d->at++) % (uint64_t)n);
}

TEST(random_loads_in_random_pools_all_end)
{
    for (uint64_t run = 0; run < 60; run++) {
        struct sim m;
        struct dice d = { run, 0 };
        int max_seqs = 1 + (int)roll(&d, 12);
        int32_t pages = 4 + (int32_t)roll(&d, 20);
        int64_t chunk = 1 + roll(&d, 150), wants = max_seqs + roll(&d, 40);
        sim_open(&m, max_seqs, chunk, wants, pages);
        for (int i = 0; i < 40; i++) {
            int64_t prompt = 1 + roll(&d, pages * KV_PAGE - 40), gen = 1 + roll(&d, pages * KV_PAGE - prompt);
            m.seq[m.n].q.priority = run & 1 ? roll(&d, 3) - 1 : 0;
            sim_add(&m, prompt, gen < 60 ? gen : 60, (int)roll(&d, 2));
            for (int64_t k = roll(&d, 4); k > 0; k--)
                sim_step(&m);
        }
        sim_run(&m);
        sched_close(&m.s);
    }
}

/* ---- the prefix cache ---- */

struct token_seq {
    struct seq q;
    int32_t ids[512];
    int64_t n_prompt, n_total;
};
static const int32_t *ids_of(const struct seq *q) { return ((const struct token_seq *)q->owner)->ids; }

/* What lies in the pages: the token of every position, with the salt it was written under and the
 * position. */
struct page_memory {
    int32_t id[KV_PAGE];
    int64_t pos[KV_PAGE];
    const char *salt[KV_PAGE];
};
struct memory {
    struct page_memory page[PAGE_GROUPS][32];
    struct dice *guess; /* drafts are made; NULL: none */
    int64_t n_drafts, n_right, n_stale;
};

enum { SAMPLED = 1000, WRONG = 7777 };
/* Guesses for the sequences that decode, of which the first ones are right. */
static void guess(struct sched *s, struct memory *m)
{
    for (struct seq *q = s->running.first; q && m->guess; q = q->next) {
        struct token_seq *t = q->owner;
        int64_t most = t->n_total - q->n_ids - 1, right = roll(m->guess, 9);
        q->n_drafts = 0;
        if (q->n_ids - q->n_kv != 1 || most < 1)
            continue;
        q->n_drafts = (int)(roll(m->guess, 9) < most ? roll(m->guess, most < 8 ? most : 8) + 1 : most);
        for (int64_t k = 0; k < q->n_drafts; k++)
            t->ids[q->n_ids + k] = k < right ? SAMPLED : WRONG;
    }
}

/* Takes a token, and as many as were guessed right. */
static void take_guessed(struct memory *m, const struct sched_item *it)
{
    struct token_seq *t = it->seq->owner;
    int64_t right = 0;
    while (right < it->n_drafts && t->ids[it->seq->n_ids + right] == SAMPLED)
        right++;
    t->ids[it->seq->n_ids + right] = SAMPLED;
    it->seq->n_ids += right + 1;
    m->n_drafts += it->n_drafts;
    m->n_right += right;
}

/* The step's clearing: pages that are entered, and positions that drafts have left stale. */
static void clear_rows(struct memory *m, const struct sched *s, const struct sched_item *it)
{
    int64_t end = it->pos + it->n_rows;
    m->n_stale += it->n_stale;
    for (int g = 0; g < s->n_groups; g++) {
        const int32_t *page = it->seq->in[g].page;
        for (int64_t i = kv_pages_for(it->pos); i < kv_pages_for(end); i++)
            memset(m->page[g][page[i]].id, 0xff, sizeof m->page[g][page[i]].id);
        for (int64_t p = end; p < end + it->n_stale; p++)
            m->page[g][page[p / KV_PAGE]].id[p % KV_PAGE] = -1;
    }
}

static void write_rows(struct memory *m, const struct sched *s, const struct sched_item *it)
{
    const struct token_seq *t = it->seq->owner;
    for (int g = 0; g < s->n_groups; g++)
        for (int64_t p = it->pos, end = p + it->n_rows; p < kv_pages_for(end) * KV_PAGE; p++) {
            struct page_memory *x = &m->page[g][it->seq->in[g].page[p / KV_PAGE]];
            if (p >= end) { /* the kernel reads a page whole: nothing may be left there */
                CHECK_INT(x->id[p % KV_PAGE], -1);
                continue;
            }
            x->id[p % KV_PAGE] = t->ids[p];
            x->pos[p % KV_PAGE] = p;
            x->salt[p % KV_PAGE] = it->seq->salt;
        }
}

/* Every position that the rows see must hold what this sequence itself would have written. */
static void check_group(const struct memory *m, const struct sched_item *it, int g, int64_t window)
{
    const struct token_seq *t = it->seq->owner;
    for (int64_t p = window && it->pos >= window ? it->pos - window + 1 : 0; p < it->pos; p++) {
        int32_t page = it->seq->in[g].page[p / KV_PAGE];
        const struct page_memory *x = &m->page[g][page < 0 ? 0 : page];
        if (page < 0 || x->id[p % KV_PAGE] != t->ids[p] || x->pos[p % KV_PAGE] != p ||
            x->salt[p % KV_PAGE] != it->seq->salt) {
            test_fail(__FILE__, __LINE__,
                      "position %lld is in page %d of group %d, which holds something else", (long long)p,
                      page, g);
            return;
        }
    }
}

/* No page is held by two sequences, but for those that the cache shares; what is held and what is free is
 * all. */
static void check_counts(const struct sched *s)
{
    for (int g = 0; g < s->n_groups; g++) {
        char held[32] = { 0 };
        int n = 0;
        for (const struct seq *q = s->running.first; q; q = q->next)
            for (int64_t i = q->in[g].n_released; i < q->in[g].n_pages; i++) {
                n += !held[q->in[g].page[i]];
                held[q->in[g].page[i]] = 1;
            }
        CHECK_INT(n + pages_free(&s->pages[g]), s->pages[g].n_pages);
    }
}

static int run_and_check(struct sched *s, struct memory *m)
{
    struct err e;
    int64_t drafts = 0, wants = 0;
    guess(s, m);
    int n = sched_next_step(s, &e);
    CHECK(n >= 0);
    for (int i = 0; i < n; i++) {
        for (int g = 0; g < s->n_groups; g++)
            check_group(m, &s->item[i], g, s->lim.pool[g].window);
        drafts += s->item[i].n_drafts;
        wants += s->item[i].n_rows - s->item[i].skip_want;
    }
    CHECK(drafts <= s->lim.drafts && wants <= s->lim.max_wants);
    check_counts(s);
    for (int i = 0; i < n; i++) {
        clear_rows(m, s, &s->item[i]);
        write_rows(m, s, &s->item[i]);
        if (s->item[i].n_drafts)
            take_guessed(m, &s->item[i]);
    }
    sched_step_done(s);
    for (int i = 0; i < n; i++) {
        struct token_seq *t = s->item[i].seq->owner;
        if (t->q.n_kv < t->q.n_ids && !(s->item[i].n_drafts && t->q.n_ids >= t->n_total))
            continue;
        if (t->q.n_ids < t->n_total)
            t->ids[t->q.n_ids++] = SAMPLED; /* the same for equal prompts, as greedy tokens are */
        else
            sched_remove(s, &t->q);
    }
    return n;
}

static void add_seq(struct sched *s, struct token_seq *t, const char *salt, int64_t n_prompt, int64_t n_gen,
                    int64_t first_want)
{
    t->n_prompt = n_prompt;
    t->n_total = n_prompt + n_gen;
    t->q = (struct seq){ .n_ids = n_prompt, .first_want = first_want, .salt = salt, .owner = t };
    sched_add(s, &t->q);
}

static void count_up(struct token_seq *t, int64_t same, int32_t other)
{
    for (int64_t i = 0; i < 512; i++)
        t->ids[i] = (int32_t)i + (i >= same ? other : 0);
}

TEST(a_prompt_uses_the_pages_of_an_earlier_one_as_far_as_they_are_equal)
{
    static struct token_seq t[6];
    static struct memory m;
    struct sched s;
    struct err e;
    struct sched_limits lim = { 4, 1000, 1000, { { 32, 0 } } };
    const char *const a = "a", *const b = "b";
    CHECK_INT(sched_open(&s, &lim, &e), 0);
    CHECK_INT(sched_open_prefix(&s, ids_of, &e), 0);
    static const struct {
        const char *salt;
        int64_t same, n, first_want, found;
    } row[] = {
        { "a", 512, 200, 199, 0 }, /* the first sequence: three full pages stay */
        { "a", 512, 200, 199, 192 },
        { "a", 100, 200, 199, 64 },  /* the second page differs */
        { "a", 512, 192, 191, 128 }, /* the last token is computed: its page is not taken */
        /* log-probs of the prompt from position 71 on: those rows are computed */
        { "a", 512, 200, 70, 64 },
        { "b", 512, 200, 199, 0 }, /* another salt */
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        count_up(&t[i], row[i].same, 5000);
        add_seq(&s, &t[i], row[i].salt[0] == 'a' ? a : b, row[i].n, 3, row[i].first_want);
        while (!sched_idle(&s))
            run_and_check(&s, &m);
        CHECK_INT(t[i].q.n_cached, row[i].found);
        CHECK_INT(pages_free(&s.pages[0]), 32);
    }
    sched_close(&s);
}

TEST(pages_in_the_cache_are_given_up_oldest_and_last_first)
{
    static struct token_seq t[4];
    static struct memory m;
    struct sched s;
    struct err e;
    struct sched_limits lim = { 4, 1000, 1000, { { 8, 0 } } };
    CHECK_INT(sched_open(&s, &lim, &e), 0);
    CHECK_INT(sched_open_prefix(&s, ids_of, &e), 0);
    for (int i = 0; i < 2; i++) { /* 4 + 4 pages */
        count_up(&t[i], 0, 10000 * i);
        add_seq(&s, &t[i], NULL, 256, 0, 255);
        while (!sched_idle(&s))
            run_and_check(&s, &m);
    }
    CHECK_INT(s.prefix.idle[0].n, 8);
    count_up(&t[2], 0, 70000);
    add_seq(&s, &t[2], NULL, 120, 1, 119); /* two pages: the last two of the first sequence go */
    while (!sched_idle(&s))
        run_and_check(&s, &m);
    for (int i = 0; i < 2; i++) {
        add_seq(&s, &t[3], NULL, 256, 0, 255);
        count_up(&t[3], 0, 10000 * (1 - i));
        run_and_check(&s, &m);
        CHECK_INT(t[3].q.n_cached, i ? 128 : 192);
        while (!sched_idle(&s))
            run_and_check(&s, &m);
    }
    sched_close(&s);
}

/* Opens s with two sequences of 500 tokens: prompts of 300, all different. */
static void open_with_two(struct sched *s, const struct sched_limits *lim, struct token_seq *t)
{
    struct err e;
    CHECK_INT(sched_open(s, lim, &e), 0);
    CHECK_INT(sched_open_prefix(s, ids_of, &e), 0);
    for (int i = 0; i < 2; i++) {
        count_up(&t[i], 0, 10000 * i);
        add_seq(s, &t[i], NULL, 300, 200, 299);
    }
}

TEST(pages_behind_the_window_are_given_back)
{
    static struct token_seq t[4];
    static struct memory m;
    struct sched s;
    struct sched_limits lim = { 4, 64, 64, { { 5, 100 } } }; /* a sequence of 512 would need 8 pages */
    CHECK_INT(kv_pages_most(512, 100, 64), 4);
    open_with_two(&s, &lim, t);
    for (int64_t k = 0; !sched_idle(&s) && k < 5000; k++) {
        run_and_check(&s, &m);
        for (int i = 0; i < 2; i++)
            CHECK(t[i].q.in[0].n_pages - t[i].q.in[0].n_released <= 4);
    }
    CHECK(sched_idle(&s));
    CHECK_INT(pages_free(&s.pages[0]), 5);
    sched_close(&s);
}

TEST(only_layers_with_a_window_give_pages_back_behind_it)
{
    static struct token_seq t[2];
    static struct memory m;
    struct sched s;
    struct sched_limits lim = { 4, 64, 64, { { 16, 0 }, { 5, 100 } } };
    open_with_two(&s, &lim, t);
    for (int64_t k = 0; !sched_idle(&s) && k < 5000; k++) {
        run_and_check(&s, &m);
        for (int i = 0; i < 2; i++) {
            CHECK_INT(t[i].q.in[0].n_released, 0);
            CHECK(t[i].q.in[1].n_pages - t[i].q.in[1].n_released <= 4);
        }
    }
    CHECK(sched_idle(&s));
    CHECK_INT(pages_free(&s.pages[0]), 16);
    CHECK_INT(pages_free(&s.pages[1]), 5);
    sched_close(&s);
}

TEST(a_beginning_is_found_without_the_pages_behind_the_window)
{
    static struct token_seq t[4];
    static struct memory m;
    struct sched s;
    struct err e;
    struct sched_limits lim = { 2, 512, 512, { { 32, 0 }, { 11, 100 } } };
    CHECK_INT(sched_open(&s, &lim, &e), 0);
    CHECK_INT(sched_open_prefix(&s, ids_of, &e), 0);
    count_up(&t[0], 0, 0);
    add_seq(&s, &t[0], NULL, 448, 0, 447);
    while (!sched_idle(&s))
        run_and_check(&s, &m);
    CHECK_INT(s.prefix.idle[0].n, 7);
    CHECK_INT(s.prefix.idle[1].n, 7);

    /* another sequence takes the four free pages for windows, and one of those that were released first */
    count_up(&t[1], 0, 20000);
    add_seq(&s, &t[1], NULL, 300, 0, 299);
    while (!sched_idle(&s))
        run_and_check(&s, &m);
    CHECK_INT(s.prefix.idle[0].n, 7 + 4);
    count_up(&t[2], 0, 0);
    add_seq(&s, &t[2], NULL, 448, 0, 447);
    while (!sched_idle(&s))
        run_and_check(&s, &m);
    CHECK_INT(t[2].q.n_cached, 384);

    /* of a beginning whose window is gone nothing is used */
    for (int32_t page = prefix_evict(&s.prefix, 1); page >= 0; page = prefix_evict(&s.prefix, 1))
        s.pages[1].free[s.pages[1].n_free++] = page;
    add_seq(&s, &t[2], NULL, 448, 0, 447);
    while (!sched_idle(&s))
        run_and_check(&s, &m);
    CHECK_INT(t[2].q.n_cached, 0);
    sched_close(&s);
}

TEST(a_plan_of_many_sequences_with_a_common_beginning_is_larger_than_the_pool)
{
    enum { SEQS = 64 };
    static struct token_seq t[SEQS];
    static struct memory m;
    struct sched s;
    struct step_message p;
    struct err e;
    struct sched_limits lim = { SEQS, 2000, 2000, { { 31, 0 } } };
    CHECK_INT(sched_open(&s, &lim, &e), 0);
    CHECK_INT(sched_open_prefix(&s, ids_of, &e), 0);
    CHECK_INT(step_message_open(&p, SEQS, &e), 0);
    for (int i = 0; i < SEQS; i++) {
        count_up(&t[i], 512, 0);
        add_seq(&s, &t[i], NULL, 500, i ? 0 : 200, 499);
        if (!i)
            run_and_check(&s, &m);
    }
    CHECK(sched_next_step(&s, &e) > 20);
    CHECK_INT(step_message_make(&p, STEP_RUN, &s, ids_of, &e), 0);
    CHECK_INT(p.n_seq, s.n_items);
    CHECK(p.word[5] > 31 * 4); /* pages in the message */
    CHECK_INT(p.ids[0], s.item[0].seq == &t[0].q ? t[0].ids[s.item[0].pos] : t[1].ids[s.item[0].pos]);
    CHECK(p.word[1] <= p.cap);
    step_message_close(&p);
    sched_close(&s);
}

/* 60 loads; drafts: each with guesses, of which `total` counts what came of them. */
static void random_loads(int drafts, struct memory *total)
{
    static struct token_seq t[60];
    static const char *const salts[3] = { NULL, "x", "y" };
    int64_t found = 0, preempted = 0;
    for (uint64_t run = 0; run < 60; run++) {
        static struct memory m;
        struct sched s;
        struct err e;
        struct dice d = { run + 500, 0 }, guesses = { run + 900, 0 };
        struct sched_limits lim = { .max_seqs = 1 + (int)roll(&d, 8), .chunk = 1 + roll(&d, 200) };
        int64_t window = 1 + roll(&d, 300);
        lim.pool[0] = (struct kv_pool){ 8 + (int32_t)roll(&d, 24), run % 3 ? 0 : window };
        int64_t most = kv_pages_most(512, window, lim.chunk);
        if (run % 3 == 1) /* two groups: all positions, and a window */
            lim.pool[1] = (struct kv_pool){ (int32_t)(most + roll(&d, 25 - most)), window };
        lim.max_wants = lim.max_seqs + roll(&d, 50);
        lim.drafts = drafts ? 1 + roll(&guesses, 30) : 0;
        m.guess = drafts ? &guesses : NULL;
        CHECK_INT(sched_open(&s, &lim, &e), 0);
        CHECK_INT(sched_open_prefix(&s, ids_of, &e), 0);
        for (int i = 0; i < 60; i++) {
            int64_t n = 1 + roll(&d, 400);
            count_up(&t[i], 64 * roll(&d, 7) + roll(&d, 2), (int32_t)roll(&d, 3) * 600);
            add_seq(&s, &t[i], salts[roll(&d, 3)], n, roll(&d, 100), roll(&d, 4) ? n - 1 : roll(&d, n));
            for (int64_t k = roll(&d, 6); k > 0; k--)
                run_and_check(&s, &m);
            if (i > 3 && !roll(&d, 10) &&
                (t[i - 1].q.running || t[i - 1].q.prev || s.waiting.first == &t[i - 1].q))
                sched_remove(&s, &t[i - 1].q); /* a client that disconnected */
            if (!roll(&d, 40))
                sched_requeue_all(&s); /* other weights */
        }
        for (int64_t k = 0; !sched_idle(&s) && k < 100000; k++)
            run_and_check(&s, &m);
        CHECK(sched_idle(&s));
        for (int g = 0; g < s.n_groups; g++)
            CHECK_INT(pages_free(&s.pages[g]), s.pages[g].n_pages);
        found += s.n_found;
        preempted += s.n_preempted;
        sched_close(&s);
        *total = m; /* its counters go on from run to run */
    }
    CHECK(found > 10000);
    CHECK(preempted > 100);
}

TEST(random_loads_with_common_beginnings_never_read_a_wrong_page)
{
    struct memory total;
    random_loads(0, &total);
}

TEST(keys_of_wrong_drafts_are_neither_read_nor_shared_nor_left_behind)
{
    struct memory total;
    random_loads(1, &total);
    CHECK(total.n_drafts > 5000 && total.n_right > 1000 && total.n_stale > 1000);
}

TEST(drafts_take_no_page_and_no_row_from_others)
{
    static struct token_seq t[2];
    static struct memory m;
    struct sched s;
    struct err e;
    struct sched_limits lim = { 4, 64, 8, { { 3, 0 } }, .drafts = 5 };
    CHECK_INT(sched_open(&s, &lim, &e), 0);
    add_seq(&s, &t[0], NULL, 62, 60, 61);
    run_and_check(&s, &m);
    add_seq(&s, &t[1], NULL, 128, 0, 127); /* it is promised the other two pages */
    t[0].q.n_drafts = 8;
    CHECK_INT(sched_next_step(&s, &e), 2);
    CHECK_INT(s.item[0].n_drafts, 1); /* as far as the first page goes */
    CHECK_INT(s.item[1].n_rows, 64);
    sched_remove(&s, &t[1].q);
    t[0].q.n_drafts = 8;
    CHECK_INT(sched_next_step(&s, &e), 1);
    CHECK_INT(s.item[0].n_drafts, 5); /* as many as a step has */
    CHECK_INT(s.item[0].n_rows, 6);
    sched_close(&s);
}
