/* train_pipeline_test.c - schedules of every size are checked against each other; the verifier notices wrong ones. */
#include "tests/test.h"
#include "train/pipeline.h"

static struct pipe_report verify(enum pipe_kind kind, int stages, int64_t micros)
{
    struct pipe_list l[16];
    struct pipe_report r = { 0 };
    struct err e = { 0 };
    for (int s = 0; s < stages; s++)
        CHECK_INT(pipe_make(&l[s], kind, stages, s, micros, &e), 0);
    if (pipe_verify(l, stages, micros, &r, NULL, &e) < 0)
        test_fail(__FILE__, __LINE__, "kind %d, %d stages, %lld micro-batches: %s", kind, stages, (long long)micros, e.text);
    for (int s = 0; s < stages; s++)
        pipe_free(&l[s]);
    return r;
}

TEST(the_bubble_of_gpipe_and_1f1b_is_stages_less_one_over_all)
{
    for (int stages = 1; stages <= 8; stages++) {
        for (int64_t micros = 1; micros <= 20; micros++) {
            double want = (double)(stages - 1) / (double)(micros + stages - 1);
            CHECK_NEAR(verify(PIPE_GPIPE, stages, micros).bubble, want, 1e-12);
            CHECK_NEAR(verify(PIPE_1F1B, stages, micros).bubble, want, 1e-12);
        }
    }
}

TEST(one_forward_one_backward_keeps_no_more_micro_batches_than_stages)
{
    CHECK_INT(verify(PIPE_1F1B, 4, 16).in_flight, 4);
    CHECK_INT(verify(PIPE_GPIPE, 4, 16).in_flight, 16);
    CHECK_INT(verify(PIPE_1F1B, 4, 2).in_flight, 2);
}

TEST(the_verifier_notices_a_swapped_pair_a_missing_message_and_a_wrong_bound)
{
    for (int fault = 0; fault < 3; fault++) {
        struct pipe_list l[3];
        struct pipe_report r;
        struct err e = { 0 };
        for (int s = 0; s < 3; s++)
            CHECK_INT(pipe_make(&l[s], PIPE_1F1B, 3, s, 6, &e), 0);
        if (fault == 0) {                /* two backwards of the last stage change places */
            struct pipe_act *first = NULL;
            for (int64_t i = 0; i < l[2].n; i++) {
                if (l[2].act[i].op != PIPE_BACKWARD)
                    continue;
                if (first) {
                    struct pipe_act x = *first;
                    *first = l[2].act[i];
                    l[2].act[i] = x;
                    break;
                }
                first = &l[2].act[i];
            }
        }
        if (fault == 1) {                /* stage 0 never sends its last activations */
            for (int64_t i = l[0].n - 1; i >= 0; i--)
                if (l[0].act[i].op == PIPE_SEND_X) {
                    memmove(&l[0].act[i], &l[0].act[i + 1], sizeof l[0].act[0] * (size_t)(l[0].n - i - 1));
                    l[0].n--;
                    break;
                }
        }
        if (fault == 2)
            l[0].in_flight = 2;
        CHECK_INT(pipe_verify(l, 3, 6, &r, NULL, &e) < 0, 1);
        CHECK_HAS(e.text, fault == 0 ? "out of order" : fault == 1 ? "waits for another" : "more micro-batches are kept");
        for (int s = 0; s < 3; s++)
            pipe_free(&l[s]);
    }
}
