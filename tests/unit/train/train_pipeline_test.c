/* train_pipeline_test.c - schedules of every size are checked against each other; the verifier notices wrong
 * ones. */
#include "tests/test.h"
#include "train/pipeline/pipeline.h"

#define RANKS 16

static int make_all(struct pipe_list l[RANKS], const struct pipe_shape *s, struct err *e)
{
    int rc = pipe_check(s, e);
    for (int r = 0; rc >= 0 && r < s->ranks; r++)
        rc = pipe_make(&l[r], s, r, e);
    return rc;
}

static void free_all(struct pipe_list l[RANKS])
{
    for (int r = 0; r < RANKS; r++)
        pipe_free(&l[r]);
}

static struct pipe_report verify(enum pipe_kind kind, int ranks, int chunks, int64_t micros)
{
    struct pipe_shape s = { kind, ranks, chunks, micros };
    struct pipe_list l[RANKS] = { 0 };
    struct pipe_report r = { 0 };
    struct err e = { 0 };
    CHECK_INT(make_all(l, &s, &e), 0);
    if (pipe_verify(l, &s, &r, NULL, &e) < 0)
        test_fail(__FILE__, __LINE__, "kind %d, %d ranks, %d chunks, %lld micro-batches: %s", kind, ranks,
                  chunks, (long long)micros, e.text);
    free_all(l);
    return r;
}

TEST(the_bubble_of_gpipe_and_1f1b_is_stages_less_one_over_all)
{
    for (int ranks = 1; ranks <= 8; ranks++) {
        for (int64_t micros = 1; micros <= 20; micros++) {
            double want = (double)(ranks - 1) / (double)(micros + ranks - 1);
            CHECK_NEAR(verify(PIPE_GPIPE, ranks, 1, micros).bubble, want, 1e-12);
            CHECK_NEAR(verify(PIPE_1F1B, ranks, 1, micros).bubble, want, 1e-12);
            CHECK_NEAR(verify(PIPE_NAIVE, ranks, 1, micros).bubble, (ranks - 1.0) / ranks, 1e-12);
        }
    }
}

TEST(interleaving_divides_the_bubble_by_the_chunks)
{
    for (int ranks = 2; ranks <= 8; ranks++)
        for (int chunks = 1; chunks <= 4; chunks++)
            for (int64_t micros = ranks; micros <= 4 * ranks; micros += ranks)
                CHECK_NEAR(verify(PIPE_INTERLEAVED, ranks, chunks, micros).bubble,
                           (ranks - 1.0) / (double)(chunks * micros + ranks - 1), 1e-12);
}

TEST(zero_bubble_leaves_a_third_of_the_bubble_and_keeps_no_more_than_1f1b_s_first_rank)
{
    for (int ranks = 1; ranks <= 8; ranks++) {
        for (int64_t micros = ranks; micros <= 20; micros++) {
            struct pipe_report r = verify(PIPE_ZERO_BUBBLE, ranks, 1, micros);
            CHECK_NEAR(r.bubble, (ranks - 1.0) / (double)(3 * micros + ranks - 1), 1e-12);
            CHECK_INT(r.in_flight, ranks);
        }
        /* `rank` deferred micro-batches, and the one whose gradients come now */
        for (int r = 0; r < ranks; r++) {
            struct pipe_shape s = { PIPE_ZERO_BUBBLE, ranks, 1, 2 * ranks };
            struct pipe_list l;
            struct err e = { 0 };
            CHECK_INT(pipe_make(&l, &s, r, &e), 0);
            CHECK_INT(l.deferred[0], r + 1);
            pipe_free(&l);
        }
        /* fewer micro-batches than ranks: runs, and is no worse than 1f1b */
        for (int64_t micros = 1; micros < ranks; micros++)
            CHECK_INT(verify(PIPE_ZERO_BUBBLE, ranks, 1, micros).bubble <=
                          verify(PIPE_1F1B, ranks, 1, micros).bubble + 1e-12,
                      1);
    }
}

TEST(one_forward_one_backward_keeps_no_more_micro_batches_than_stages)
{
    CHECK_INT(verify(PIPE_1F1B, 4, 1, 16).in_flight, 4);
    CHECK_INT(verify(PIPE_GPIPE, 4, 1, 16).in_flight, 16);
    CHECK_INT(verify(PIPE_1F1B, 4, 1, 2).in_flight, 2);
    CHECK_INT(verify(PIPE_NAIVE, 4, 1, 16).in_flight, 1);
    /* (P-1) 2 + (V-1) P + 1, and one more: the most of each chunk */
    CHECK_INT(verify(PIPE_INTERLEAVED, 4, 2, 16).in_flight, 12);
}

TEST(schedules_that_cannot_be_are_refused_with_what_to_change)
{
    static const struct {
        struct pipe_shape s;
        const char *say;
    } bad[] = {
        { { PIPE_1F1B, 4, 2, 8 }, "interleaved" },
        { { PIPE_INTERLEAVED, 1, 2, 8 }, "--pp" },
        { { PIPE_INTERLEAVED, 4, 2, 6 }, "multiple of 4" },
        { { PIPE_ZERO_BUBBLE, 4, 2, 8 }, "interleaved" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err e = { 0 };
        CHECK_INT(pipe_check(&bad[i].s, &e), -ERR_USAGE);
        CHECK_HAS(e.text, bad[i].say);
    }
}

/* The first action of this kind from the back, and the one before it. */
static struct pipe_act *last_act(struct pipe_list *l, enum pipe_op op)
{
    for (int64_t i = l->n - 1; i >= 0; i--)
        if (l->act[i].op == op)
            return &l->act[i];
    return NULL;
}

static void drop(struct pipe_list *l, struct pipe_act *a)
{
    memmove(a, a + 1, sizeof *a * (size_t)(l->act + l->n - a - 1));
    l->n--;
}

static void swap_micros(struct pipe_list *l, enum pipe_op op)
{
    struct pipe_act *last = last_act(l, op);
    for (struct pipe_act *a = l->act; a < last; a++)
        if (a->op == op) {
            int64_t x = a->micro;
            a->micro = last->micro;
            last->micro = x;
            return;
        }
}

TEST(the_verifier_notices_a_swapped_pair_a_missing_message_and_a_wrong_bound)
{
    static const struct {
        struct pipe_shape s;
        const char *say;
    } fault[] = {
        { { PIPE_1F1B, 3, 1, 6 }, "backward is out of order" },
        { { PIPE_1F1B, 3, 1, 6 }, "waits for another" },
        { { PIPE_1F1B, 3, 1, 6 }, "more micro-batches are kept" },
        { { PIPE_ZERO_BUBBLE, 3, 1, 6 }, "weight gradient is out of order" },
        { { PIPE_ZERO_BUBBLE, 3, 1, 6 }, "does not run all" },
        { { PIPE_INTERLEAVED, 2, 2, 4 }, "another message comes before" },
        { { PIPE_INTERLEAVED, 2, 2, 4 }, "there is none such" },
        { { PIPE_ZERO_BUBBLE, 3, 1, 6 }, "more weight gradients are deferred" },
        { { PIPE_GPIPE, 2, 1, 4 }, "sent more than once" },
    };
    for (size_t i = 0; i < sizeof fault / sizeof fault[0]; i++) {
        struct pipe_list l[RANKS] = { 0 };
        struct pipe_report r;
        struct err e = { 0 };
        CHECK_INT(make_all(l, &fault[i].s, &e), 0);
        switch (i) {
        case 0: swap_micros(&l[2], PIPE_BACKWARD); break;
        case 1: drop(&l[0], last_act(&l[0], PIPE_SEND_X)); break;
        case 2: l[0].in_flight[0] = 2; break;
        case 3: swap_micros(&l[2], PIPE_BACKWARD_WEIGHT); break;
        case 4: drop(&l[1], last_act(&l[1], PIPE_BACKWARD_WEIGHT)); break;
        case 5: last_act(&l[1], PIPE_RECV_X)->chunk ^= 1; break;
        case 6: last_act(&l[1], PIPE_BACKWARD)->chunk = 2; break;
        case 7: l[2].deferred[0]--; break;
        default: /* one message too many, and the receiver takes it */
            l[1].n = 0;
            for (int64_t k = 0; k < 5; k++)
                l[0].act[k] = (struct pipe_act){ PIPE_SEND_X, 0, 0 };
            l[0].n = 5;
        }
        CHECK_INT(pipe_verify(l, &fault[i].s, &r, NULL, &e) < 0, 1);
        CHECK_HAS(e.text, fault[i].say);
        free_all(l);
    }
}
