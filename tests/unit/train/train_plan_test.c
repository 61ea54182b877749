/* train_plan_test.c - the planned memory besides weights: activations under each recompute policy, buffers of
 * ZeRO. */
#include "tests/test.h"
#include "train/layout_plan.h"

enum { H = 64, LAYERS = 6, HEADS = 4, INTER = 192, VOCAB = 256, ROWS = 128 };

static struct model shaped(enum dtype dt)
{
    static const char text[] = "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":6,\"num_"
                               "attention_heads\":4,\"num_key_value_heads\":4,"
                               "\"intermediate_size\":192,\"vocab_size\":256,\"max_position_embeddings\":256,"
                               "\"tie_word_embeddings\":false}";
    struct layout one = { 1, 1, 1, 1, 1, 0, 1 };
    struct model_config c;
    struct model m;
    struct err e = { 0 };
    CHECK_INT(model_config_parse(&c, text, "a config", &e), 0);
    CHECK_INT(model_shape(&m, &c, &one, (struct rank_at){ 0 }, dt, 0, &e), 0);
    return m;
}

static int64_t measured(const struct model *m, enum recompute again, int late)
{
    return (int64_t)train_work_measure(m, 0, &(struct work_shape){ 2, ROWS / 2, 1, again, late });
}

TEST(selective_keeps_norms_and_the_activation_of_one_layer_full_one_layer_and_every_input)
{
    for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++) {
        struct model m = shaped(dt);
        int64_t el = (int64_t)dtype_size(dt), none = measured(&m, RECOMPUTE_NONE, 0),
                selective = measured(&m, RECOMPUTE_SELECTIVE, 0);
        /* h1, h2, act; q, o, xm, lse, two roots of norms, gate and up; keys and values */
        int64_t cheap = ROWS * el * (2 * H + INTER),
                rest = ROWS * (el * 3 * H + 4 * (HEADS + 2 + 2 * INTER)) + 2 * (int64_t)model_page_bytes(&m);
        CHECK_INT(none - selective, (LAYERS - 1) * cheap);
        CHECK_INT(selective - measured(&m, RECOMPUTE_FULL, 0), (LAYERS - 1) * rest);
        model_close(&m);
    }
}

TEST(late_weight_gradients_keep_the_logits_gradient_and_are_planned_with_their_copies)
{
    struct model m = shaped(DT_F32);
    struct work_shape s = { 2, ROWS / 2, 1, RECOMPUTE_NONE, 1 };
    int64_t copies[3];
    CHECK(measured(&m, RECOMPUTE_NONE, 1) > measured(&m, RECOMPUTE_NONE, 0));
    for (s.recompute = RECOMPUTE_NONE; s.recompute <= RECOMPUTE_FULL; s.recompute++)
        copies[s.recompute] = (int64_t)deferred_grads_measure(&m, 0, &s);
    /* what layers share is copied: h1, h2, act; then o, xm, two roots, and the last layer's output for the
     * last norm */
    CHECK_INT(copies[1] - copies[0], LAYERS * ROWS * 4 * (2 * H + INTER));
    CHECK_INT(copies[2] - copies[1], LAYERS * ROWS * 4 * (2 * H + 2) + ROWS * 4 * H);
    model_close(&m);
}

static double bubble(enum pipe_kind kind, int pp, int chunks, int64_t micros)
{
    struct pipe_report r = { 0 };
    struct err e;
    CHECK_INT(layout_plan_pipeline(&r, &(struct pipe_shape){ kind, pp, chunks, micros }, NULL, &e), 0);
    return r.bubble;
}

TEST(the_plan_s_bubble_is_that_of_the_schedule)
{
    CHECK_NEAR(bubble(PIPE_GPIPE, 4, 1, 8), 3.0 / 11, 1e-12);
    CHECK_NEAR(bubble(PIPE_1F1B, 4, 1, 8), 3.0 / 11, 1e-12);
    CHECK_NEAR(bubble(PIPE_INTERLEAVED, 4, 2, 8), 3.0 / 19, 1e-12);
    CHECK_NEAR(bubble(PIPE_ZERO_BUBBLE, 4, 1, 8), 3.0 / 27, 1e-12);
}
