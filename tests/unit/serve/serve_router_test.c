/* serve_router_test.c - which replica gets a request, and the wire format of requests to another process. */
#include "serve/replicas/request_wire.h"
#include "serve/api/openai.h"
#include "serve/replicas/router.h"
#include "serve/replicas/socket_frames.h"
#include "tests/test.h"
#include <sys/socket.h>

static void service_bytes(struct service *sv)
{
    struct err e;
    memset(sv, 0, sizeof *sv);
    *sv = (struct service){ .model = "m", .vocab = 256, .ctx = 4096 };
    CHECK_INT(tokenizer_bytes(&sv->tok, &e), 0);
}

static struct request *parse(const struct service *sv, const char *body)
{
    struct request *rq = NULL;
    struct fault f;
    if (openai_parse(sv, ENDPOINT_COMPLETION, body, strlen(body), &rq, &f) < 0)
        test_fail(__FILE__, __LINE__, "refused: %s", f.text);
    return rq;
}

/* A prompt of n letters. */
static struct request *letters(const struct service *sv, char letter, int n, const char *more)
{
    char body[2048];
    int at = sprintf(body, "{\"prompt\":\"");
    memset(body + at, letter, (size_t)n);
    sprintf(body + at + n, "\"%s}", more);
    return parse(sv, body);
}

static int goes_to(struct router *rt, struct request *rq)
{
    int replica = router_choose(rt, rq);
    request_release(rq);
    return replica;
}

TEST(a_request_goes_where_its_beginning_was_computed_unless_that_one_is_busy)
{
    struct service sv;
    struct router rt;
    struct err e;
    service_bytes(&sv);
    CHECK_INT(router_open(&rt, 3, &e), 0);
    int a = goes_to(&rt, letters(&sv, 'a', 200, "")), b = goes_to(&rt, letters(&sv, 'b', 200, "")),
        c = goes_to(&rt, letters(&sv, 'c', 200, ""));
    CHECK(a != b && b != c && a != c); /* idle replicas take turns */
    for (int i = 0; i < 4; i++) {
        CHECK_INT(goes_to(&rt, letters(&sv, 'b', 130 + i, "")), b);
        CHECK_INT(goes_to(&rt, letters(&sv, 'a', 64, "")), a);
    }
    rt.replica[b].inbox.n_live = ROUTER_SLACK;
    CHECK_INT(goes_to(&rt, letters(&sv, 'b', 200, "")), b);
    rt.replica[b].inbox.n_live = ROUTER_SLACK + 1;
    int other = goes_to(&rt, letters(&sv, 'b', 200, ""));
    CHECK(other != b);
    CHECK_INT(goes_to(&rt, letters(&sv, 'b', 200, "")), other); /* it has them now */
    CHECK_INT(router_live(&rt), ROUTER_SLACK + 1);
    router_close(&rt);
    tokenizer_close(sv.tok);
}

TEST(at_the_end_of_a_pause_that_a_server_ends_in_no_command_takes_the_answer_of_another)
{
    struct router rt;
    struct err e;
    struct fault f;
    char answer[64] = "";
    CHECK_INT(router_open(&rt, 2, &e), 0);
    CHECK_INT(router_resume_others(&rt), 1);
    CHECK_INT(rt.replica[1].reload_command.what, RELOAD_RESUME);
    for (int i = 0; i < 2; i++) /* so that nothing here waits for ever */
        reload_command_disable(&rt.replica[i].reload_command);
    CHECK_INT(router_command(&rt, RELOAD_LOAD, "", answer, &f), -1);
    CHECK_INT(f.status, 503);
    CHECK(strcmp(f.text, "the server is stopping") == 0);
    CHECK_INT(rt.replica[1].reload_command.what, RELOAD_RESUME); /* nothing was posted */
    router_close(&rt);
}

TEST(a_salt_is_part_of_a_beginning_and_short_prompts_go_to_the_idlest)
{
    struct service sv;
    struct router rt;
    struct err e;
    int seen[2] = { 0 };
    service_bytes(&sv);
    CHECK_INT(router_open(&rt, 2, &e), 0);
    int plain = goes_to(&rt, letters(&sv, 'a', 100, ""));
    rt.replica[plain].inbox.n_live = 1;
    CHECK_INT(goes_to(&rt, letters(&sv, 'a', 100, "")), plain);
    CHECK_INT(goes_to(&rt, letters(&sv, 'a', 100, ",\"cache_salt\":\"x\"")), 1 - plain);
    CHECK_INT(goes_to(&rt, letters(&sv, 'a', 63, "")), 1 - plain);
    rt.replica[plain].inbox.n_live = 0;
    for (int i = 0; i < 8; i++)
        seen[goes_to(&rt, letters(&sv, 'q', 10, ""))]++;
    CHECK_INT(seen[0], 4);
    router_close(&rt);
    tokenizer_close(sv.tok);
}

TEST(replicas_stop_together_and_only_when_all_are_idle)
{
    struct service sv;
    struct router rt;
    struct err e;
    service_bytes(&sv);
    CHECK_INT(router_open(&rt, 2, &e), 0);
    rt.replica[1].inbox.n_live = 1;
    CHECK_INT(router_stop(&rt, 0), 0);
    struct request *rq = letters(&sv, 'a', 3, "");
    CHECK_INT(router_put(&rt, rq), 0); /* still open */
    rt.replica[1].inbox.n_live = 0;
    CHECK_INT(router_stop(&rt, 0), 0); /* an inbox holds a request */
    CHECK(inbox_take(&rt.replica[0].inbox, 0) == rq);
    inbox_leave(&rt.replica[0].inbox, rq);
    CHECK_INT(router_stop(&rt, 0), 1);
    CHECK_INT(router_put(&rt, rq), -1);
    request_release(rq);
    router_close(&rt);
    tokenizer_close(sv.tok);
}

static const char everything[] =
    "{\"prompt\":[\"ab\\u00e9\",[1,2,3]],\"max_tokens\":7,\"temperature\":0.5,\"top_p\":0.9,\"top_k\":11,"
    "\"min_p\":0.1,\"n\":3,\"seed\":5,\"stop\":[\"x\",\"yz\"],"
    "\"stop_token_ids\":[7,8],\"logit_bias\":{\"3\":1.5,\"9\":-100},\"cache_salt\":\"salt\",\"priority\":-4,"
    "\"prompt_logprobs\":2,\"logprobs\":4,\"echo\":true,"
    "\"ignore_eos\":true,\"min_tokens\":2,\"presence_penalty\":0.5,\"frequency_penalty\":-0.5,\"repetition_"
    "penalty\":1.5,\"return_token_ids\":true}";

TEST(a_request_arrives_as_it_was)
{
    struct service sv;
    struct json_out a = { 0 }, b = { 0 };
    service_bytes(&sv);
    struct request *rq = parse(&sv, everything);
    request_wire_write(&a, rq);
    struct fault f;
    struct request *got = request_wire_read(&sv, a.p, a.n, &f);
    CHECK(got != NULL);
    CHECK_STR(got->id, rq->id);
    CHECK_INT(got->n_choices, 6);
    CHECK_INT(got->n_open, rq->n_open);
    CHECK_INT(got->priority, -4);
    CHECK_STR(got->salt, "salt");
    CHECK_STR(got->stop[1], "yz");
    CHECK_INT(got->stop_ids[1], 8);
    CHECK_INT(got->sampling.bias[1].id, rq->sampling.bias[1].id);
    CHECK_INT(got->prompt[0].n_text, 4);
    CHECK(!memcmp(got->prompt[0].text, "ab\xc3\xa9", 4) && !got->prompt[1].text);
    CHECK_INT(got->choice[5].ids[2], 3);
    CHECK_INT(got->choice[5].seq.first_want, rq->choice[5].seq.first_want);
    request_wire_write(&b, got); /* the same bytes again, but for pointers */
    CHECK_INT(a.n, b.n);
    request_release(rq);
    request_release(got);
    json_out_free(&a);
    json_out_free(&b);
    tokenizer_close(sv.tok);
}

TEST(a_cut_request_is_none)
{
    struct service sv;
    struct json_out a = { 0 };
    struct fault f;
    service_bytes(&sv);
    struct request *rq = parse(&sv, everything);
    request_wire_write(&a, rq);
    for (size_t n = 0; n < a.n; n++)
        CHECK(request_wire_read(&sv, a.p, n, &f) == NULL);
    json_out_bytes(&a, "x", 1);
    CHECK(request_wire_read(&sv, a.p, a.n, &f) == NULL);
    request_release(rq);
    json_out_free(&a);
    tokenizer_close(sv.tok);
}

TEST(a_constraint_that_does_not_compile_at_a_replica_is_refused_with_its_reason)
{
    struct service sv;
    struct json_out a = { 0 };
    struct fault f = { 0 };
    struct err e;
    service_bytes(&sv);
    CHECK_INT(grammar_cache_open(&sv.grammars, &e), 0);
    struct request *rq = parse(&sv, "{\"prompt\":\"a\",\"structured_outputs\":{\"regex\":\"ab+\"}}");
    rq->structured.text[1] = '('; /* the front end took another one */
    request_wire_write(&a, rq);
    CHECK(request_wire_read(&sv, a.p, a.n, &f) == NULL);
    CHECK_INT(f.status, 400);
    CHECK_HAS(f.text, "regex");
    CHECK_STR(f.param, "structured_outputs");
    request_release(rq);
    json_out_free(&a);
    grammar_cache_close(sv.grammars);
    tokenizer_close(sv.tok);
}

struct got {
    int n;
    uint64_t id[64];
    size_t bytes;
};
static void count(void *arg, const struct frame_head *h, const char *p)
{
    struct got *g = arg;
    for (uint64_t i = 0; i < h->n; i++)
        CHECK_INT((unsigned char)p[i], (unsigned char)(h->id + i));
    g->id[g->n++ % 64] = h->id;
    g->bytes += h->n;
}

TEST(messages_larger_than_the_sockets_buffers_pass_both_ways_at_once)
{
    struct frames w[2];
    struct got got[2] = { 0 };
    struct err e;
    int fd[2];
    static char data[1 << 20];
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    for (int i = 0; i < 2; i++)
        CHECK_INT(frames_open(&w[i], fd[i], &e), 0);
    for (uint64_t k = 0; k < 6; k++)
        for (int i = 0; i < 2; i++) {
            for (size_t b = 0; b < sizeof data; b++)
                data[b] = (char)(k + b);
            frames_put(&w[i], FRAME_EVENTS, 0, k, data, k == 3 ? 0 : sizeof data - k);
        }
    for (int turn = 0; turn < 2000 && (got[0].n < 6 || got[1].n < 6); turn++)
        for (int i = 0; i < 2; i++)
            CHECK_INT(frames_exchange(&w[i], -1, 1, count, &got[i]), 0);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(got[i].n, 6);
        for (uint64_t k = 0; k < 6; k++)
            CHECK_INT(got[i].id[k], k);
        CHECK_INT(got[i].bytes, 5 * (1 << 20) - (1 + 2 + 4 + 5));
    }
    frames_close(&w[0]);
    CHECK_INT(frames_exchange(&w[1], -1, 100, count, &got[1]), -1); /* the other end has disconnected */
    frames_close(&w[1]);
}
