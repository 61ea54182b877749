/* serve_embeddings_test.c - what a model of embeddings says about its vectors, and which rows of a step are
 * pooled. */
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "serve/api/openai.h"
#include "serve/engine/outputs.h"
#include "serve/engine/step_message.h"
#include "serve/weights/embedding_info.h"
#include "tests/test.h"

/* ---- sentence-transformers' files ---- */

#define TRANSFORMER "{\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"}"
#define POOLING "{\"path\":\"1_Pooling\",\"type\":\"sentence_transformers.models.Pooling\"}"
#define NORMALIZE "{\"path\":\"2_Normalize\",\"type\":\"sentence_transformers.models.Normalize\"}"

static int parse(struct embedding_habits *h, const char *modules, const char *pooling, struct err *e)
{
    return embedding_info_parse(h, modules, modules ? strlen(modules) : 0, pooling,
                                pooling ? strlen(pooling) : 0, e);
}

TEST(the_pooling_is_what_the_folder_says)
{
    static const struct {
        const char *modules, *pooling;
        enum pooling want;
        int raw;
    } cases[] = {
        { NULL, NULL, POOLING_LAST, 0 },
        { NULL, "{}", POOLING_MEAN, 0 },
        { NULL, "{\"pooling_mode_mean_tokens\":true,\"pooling_mode_cls_token\":false}", POOLING_MEAN, 0 },
        { NULL, "{\"pooling_mode_mean_tokens\":false,\"pooling_mode_lasttoken\":true}", POOLING_LAST, 0 },
        { NULL, "{\"embedding_dimension\":8,\"pooling_mode\":\"lasttoken\"}", POOLING_LAST, 0 },
        { NULL, "{\"pooling_mode\":[\"mean\"],\"pooling_mode_cls_token\":true}", POOLING_MEAN, 0 },
        { "[" TRANSFORMER "," POOLING "]", "{\"pooling_mode\":\"mean\"}", POOLING_MEAN, 1 },
        { "[" TRANSFORMER "," POOLING "," NORMALIZE "]", "{\"pooling_mode\":\"mean\"}", POOLING_MEAN, 0 },
    };
    struct embedding_habits h;
    struct err e;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_INT(parse(&h, cases[i].modules, cases[i].pooling, &e), 0);
        CHECK_INT(h.pooling, cases[i].want);
        CHECK_INT(h.raw, cases[i].raw);
        CHECK_STR(h.refused, "");
    }
}

TEST(what_is_not_done_here_is_named)
{
    static const char *const cases[][3] = {
        { NULL, "{\"pooling_mode_cls_token\":true}", "1_Pooling/config.json: the mode of pooling is cls" },
        { NULL, "{\"pooling_mode\":\"weightedmean\"}",
          "1_Pooling/config.json: the mode of pooling is weightedmean" },
        { NULL, "{\"pooling_mode\":[\"mean\",\"max\"]}",
          "1_Pooling/config.json: vectors are joined from several modes of pooling" },
        { NULL, "{\"pooling_mode_mean_tokens\":true,\"pooling_mode_lasttoken\":true}",
          "1_Pooling/config.json: vectors are joined from several modes, the second is lasttoken" },
        { "[" TRANSFORMER "," POOLING ",{\"path\":\"2_Dense\",\"type\":\"x.models.Dense\"}]", NULL,
          "modules.json: has a module that is not computed here, Dense" },
        { "[{\"path\":\"3_Pooling\",\"type\":\"x.Pooling\"}]", NULL,
          "modules.json: its pooling is not in 1_Pooling, but in 3_Pooling" },
    };
    struct embedding_habits h;
    struct err e;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_INT(parse(&h, cases[i][0], cases[i][1], &e), 0);
        CHECK_STR(h.refused, cases[i][2]);
    }
}

TEST(files_that_are_damaged_are_named)
{
    static const char *const cases[][3] = {
        { "[", NULL, "modules.json" },
        { "{}", NULL, "modules.json: must be a list" },
        { "[{\"type\":5}]", NULL, "type" },
        { NULL, "[]", "1_Pooling/config.json: must be an object" },
        { NULL, "{\"pooling_mode\":5}", "pooling_mode must be" },
        { NULL, "{\"pooling_mode_cls_token\":5}", "pooling_mode_cls_token" },
    };
    struct embedding_habits h;
    struct err e;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(parse(&h, cases[i][0], cases[i][1], &e) < 0);
        CHECK(strstr(e.text, cases[i][2]) != NULL);
    }
}

TEST(a_request_that_chooses_no_pooling_is_refused_where_the_models_is_not_done)
{
    struct service sv = { .state = SERVICE_READY, .model = "m", .vocab = 256, .hidden = 8, .ctx = 64 };
    static const char plain[] = "{\"input\":[1,2]}", chosen[] = "{\"input\":[1,2],\"pooling\":\"mean\"}";
    struct request *rq = NULL;
    struct fault f = { 0 };
    struct err e;

    CHECK_INT(parse(&sv.embeddings, NULL, "{\"pooling_mode\":\"max\"}", &e), 0);
    CHECK(openai_parse_of(&sv, ENDPOINT_EMBEDDINGS, -1, plain, sizeof plain - 1, &rq, &f) < 0);
    CHECK_INT(f.status, 400);
    CHECK_STR(f.param, "pooling");
    CHECK(strstr(f.text, "the mode of pooling is max: set pooling") != NULL);
    CHECK_INT(openai_parse_of(&sv, ENDPOINT_EMBEDDINGS, -1, chosen, sizeof chosen - 1, &rq, &f), 0);
    CHECK_INT(rq->pooling, POOLING_MEAN);
    request_release(rq);
}

TEST(the_models_defaults_hold_where_the_request_says_nothing)
{
    struct service sv = { .state = SERVICE_READY, .model = "m", .vocab = 256, .hidden = 8, .ctx = 64 };
    static const char plain[] = "{\"input\":[1,2]}",
                      chosen[] = "{\"input\":[1,2],\"pooling\":\"last\",\"normalize\":true}";
    struct request *rq = NULL;
    struct fault f = { 0 };

    sv.embeddings = (struct embedding_habits){ .pooling = POOLING_MEAN, .raw = 1 };
    CHECK_INT(openai_parse_of(&sv, ENDPOINT_EMBEDDINGS, -1, plain, sizeof plain - 1, &rq, &f), 0);
    CHECK_INT(rq->pooling, POOLING_MEAN);
    CHECK_INT(rq->normalize, 0);
    request_release(rq);
    CHECK_INT(openai_parse_of(&sv, ENDPOINT_EMBEDDINGS, -1, chosen, sizeof chosen - 1, &rq, &f), 0);
    CHECK_INT(rq->pooling, POOLING_LAST);
    CHECK_INT(rq->normalize, 1);
    request_release(rq);
}

TEST(a_model_without_a_head_is_asked_for_vectors_only)
{
    struct service sv = {
        .state = SERVICE_READY, .model = "m", .vocab = 256, .hidden = 8, .ctx = 64, .headless = 1
    };
    static const char prompt[] = "{\"prompt\":[1,2]}", input[] = "{\"input\":[1,2]}";
    struct request *rq = NULL;
    struct fault f = { 0 };

    CHECK(openai_parse_of(&sv, ENDPOINT_COMPLETION, -1, prompt, sizeof prompt - 1, &rq, &f) < 0);
    CHECK_INT(f.status, 400);
    CHECK(strstr(f.text, "/v1/embeddings") != NULL);
    CHECK_INT(openai_parse_of(&sv, ENDPOINT_EMBEDDINGS, -1, input, sizeof input - 1, &rq, &f), 0);
    request_release(rq);
}

/* ---- rows of a step ---- */

static const int32_t *ids_of(const struct seq *q) { return ((const struct choice *)q->owner)->ids; }

static struct request *ask(const struct service *sv, enum endpoint endpoint, const char *body)
{
    struct request *rq = NULL;
    struct fault f = { 0 };
    if (openai_parse_of(sv, endpoint, -1, body, strlen(body), &rq, &f) < 0)
        CHECK_STR(f.text, "");
    return rq;
}

/* Makes the message of the next step, notes its rows, and ends it. */
static void step(struct sched *s, struct step_message *m, struct outputs *out)
{
    struct err e;
    CHECK(sched_next_step(s, &e) > 0);
    CHECK_INT(step_message_make(m, STEP_RUN, s, ids_of, &e), 0);
    outputs_expect(out, s);
    sched_step_done(s);
}

TEST(hidden_states_are_asked_for_where_a_text_is_pooled_and_nowhere_else)
{
    struct service sv = { .state = SERVICE_READY, .model = "m", .vocab = 256, .hidden = 8, .ctx = 64 };
    struct sched_limits lim = { 4, 8, 16, { { 8, 0 } } };
    struct request *said = ask(&sv, ENDPOINT_COMPLETION, "{\"prompt\":[1,2],\"max_tokens\":9}"),
                   *mean = ask(&sv, ENDPOINT_EMBEDDINGS, "{\"input\":[3,4,5,6,7],\"pooling\":\"mean\"}"),
                   *last = ask(&sv, ENDPOINT_EMBEDDINGS, "{\"input\":[8,9,10],\"pooling\":\"last\"}");
    static const struct top_entry top[WATCH_MAX];
    struct output_row row[16];
    struct outputs out = { .row = row };
    struct step_message m;
    struct sched s;
    struct fault f;
    struct err e;

    CHECK_INT(sched_open(&s, &lim, &e), 0);
    CHECK_INT(step_message_open(&m, 4, &e), 0);
    sched_add(&s, &said->choice->seq);
    step(&s, &m, &out);
    CHECK_INT(m.wants_rows, 0);
    CHECK_INT(choice_accept(said->choice, 7, 0, top, &f), 0);

    sched_add(&s, &mean->choice->seq);
    sched_add(&s, &last->choice->seq);
    step(&s, &m, &out);
    CHECK_INT(m.wants_rows, 1);
    CHECK_INT(out.n, 1 + 5 + 1);
    for (int64_t i = 0; i < out.n; i++) {
        const struct output_row *r = &row[i];
        CHECK_INT(r->pools, r->c->rq != said);
        CHECK_INT(r->samples, r->c->rq == said);
        CHECK_INT(r->pos, r->c->rq == mean ? i - 1 : 2);
    }

    CHECK_INT(choice_accept(said->choice, 7, 0, top, &f), 0);
    sched_remove(&s, &mean->choice->seq);
    sched_remove(&s, &last->choice->seq);
    step(&s, &m, &out);
    CHECK_INT(m.wants_rows, 0);
    CHECK_INT(out.n, 1);
    step_message_close(&m);
    sched_close(&s);
    request_release(said);
    request_release(mean);
    request_release(last);
}
