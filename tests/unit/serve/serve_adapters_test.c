/* serve_adapters_test.c - names of adapters, what requests and steps make of them. Whole servers:
 * tests/cli/adapters/serve_adapters.sh. */
#include "serve/adapters/adapter_names.h"
#include "serve/api/openai.h"
#include "serve/engine/scheduler.h"
#include "serve/replicas/request_wire.h"
#include "tests/test.h"

static struct adapter_name *add(struct adapter_names *t, const char *name, const char *digest, int replaces)
{
    struct adapter_name *a = NULL;
    struct fault f;
    if (adapter_names_reserve(t, name, "/somewhere", replaces, &a, &f) < 0)
        test_fail(__FILE__, __LINE__, "refused: %s", f.text);
    else
        adapter_names_publish(a, digest);
    return a;
}

static int refused(struct adapter_names *t, const char *name, int replaces)
{
    struct adapter_name *a;
    struct fault f = { 0 };
    return adapter_names_reserve(t, name, "/somewhere", replaces, &a, &f) < 0 ? f.status : 0;
}

TEST(a_name_is_there_from_publication_to_withdrawal_and_its_slot_until_the_last_reference)
{
    struct adapter_names *t;
    struct adapter_name *a, *b;
    struct fault f;
    struct err e;
    CHECK_INT(adapter_names_open(&t, "base", &e), 0);
    CHECK(!adapter_names_were_used(t));
    CHECK_INT(adapter_names_reserve(t, "x", "/p", 0, &a, &f), 0);
    CHECK(!adapter_names_find(t, "x"));
    CHECK_INT(refused(t, "x", 1), 400); /* it is being loaded */
    adapter_names_publish(a, "d1");
    CHECK(adapter_names_find(t, "x") == a);
    CHECK_INT(a->slot, 1);
    CHECK_INT(refused(t, "x", 0), 400);

    /* another one takes the name; the first stays for the reference */
    b = add(t, "x", "d2", 1);
    CHECK_INT(b->slot, 2);
    CHECK(adapter_names_find(t, "x") == b);
    CHECK_INT(a->state, ADAPTER_WITHDRAWN);
    CHECK_INT(add(t, "y", "d3", 0)->slot, 3);
    adapter_name_release(a);
    CHECK(adapter_names_wait_unused(t) == a);
    adapter_names_forget(a);
    CHECK_INT(add(t, "z", "d4", 0)->slot, 1);

    CHECK_INT(adapter_names_withdraw(t, "x", &f), 0);
    CHECK(!adapter_names_find(t, "x"));
    CHECK_INT(adapter_names_withdraw(t, "x", &f), -1);
    CHECK_INT(f.status, 404);
    CHECK_INT(b->state, ADAPTER_WITHDRAWN);
    adapter_name_release(b);
    CHECK_INT(b->state, ADAPTER_UNUSED);
    adapter_names_end(t);
    CHECK(!adapter_names_wait_unused(t));
    adapter_names_close(t);
}

TEST(names_that_no_adapter_can_have_are_refused)
{
    struct adapter_names *t;
    struct err e;
    char name[ADAPTER_NAME_MAX + 2];
    CHECK_INT(adapter_names_open(&t, "base", &e), 0);
    CHECK_INT(refused(t, "", 0), 400);
    CHECK_INT(refused(t, "base", 1), 400);
    CHECK_INT(refused(t, "a\nb", 0), 400);
    memset(name, 'x', sizeof name);
    name[ADAPTER_NAME_MAX + 1] = 0;
    CHECK_INT(refused(t, name, 0), 400);
    for (int i = 0; i < ADAPTERS_MAX; i++) {
        snprintf(name, sizeof name, "n%d", i);
        CHECK_INT(add(t, name, "d", 0)->slot, i + 1);
    }
    CHECK_INT(refused(t, "one more", 0), 400);
    adapter_names_close(t);
}

static struct request *parse(const struct service *sv, const char *body)
{
    struct request *rq = NULL;
    struct fault f;
    if (openai_parse(sv, ENDPOINT_COMPLETION, body, strlen(body), &rq, &f) < 0)
        test_fail(__FILE__, __LINE__, "refused: %s", f.text);
    return rq;
}

TEST(a_request_carries_its_adapter_and_no_salt_stands_for_one)
{
    static const char *const bodies[] = { "{\"prompt\":\"p\"}",
                                          "{\"prompt\":\"p\",\"cache_salt\":\"adig\"}",
                                          "{\"prompt\":\"p\",\"cache_salt\":\"dig\"}",
                                          "{\"prompt\":\"p\",\"model\":\"x\"}",
                                          "{\"prompt\":\"p\",\"model\":\"x\",\"cache_salt\":\"s\"}",
                                          "{\"prompt\":\"p\",\"model\":\"y\"}" };
    enum { N = sizeof bodies / sizeof *bodies };
    struct service sv = { .model = "base", .vocab = 256, .ctx = 64 };
    struct request *rq[N];
    struct json_out bytes = { 0 };
    struct err e;
    struct fault f;
    CHECK_INT(tokenizer_bytes(&sv.tok, &e), 0);
    CHECK_INT(adapter_names_open(&sv.adapters, "base", &e), 0);
    struct adapter_name *x = add(sv.adapters, "x", "dig", 0);
    adapter_names_unknown(&sv, "z", &f);
    CHECK_STR(f.text, "model 'z' is not served here: use one of 'base', 'x'");
    add(sv.adapters, "y", "other", 0);
    for (int i = 0; i < N; i++)
        rq[i] = parse(&sv, bodies[i]);
    CHECK(!rq[0]->cache_key && !rq[0]->adapter);
    for (int i = 1; i < N; i++)
        for (int k = 1; k < i; k++)
            CHECK(strcmp(rq[i]->cache_key, rq[k]->cache_key) != 0);
    CHECK_INT(x->refs, 2);
    CHECK_INT(rq[3]->choice[0].seq.adapter, 1);

    /* in another process */
    request_wire_write(&bytes, rq[4]);
    struct request *there =
        request_wire_read(&(struct service){ .model = "base", .tok = sv.tok, .vocab = 256 }, bytes.p, bytes.n,
                          &(struct fault){ 0 });
    CHECK(there && !there->adapter_name);
    CHECK_STR(there->cache_key, rq[4]->cache_key);
    CHECK_STR(request_model(there), "x");
    CHECK_INT(there->choice[0].seq.adapter, 1);
    request_release(there);
    json_out_free(&bytes);
    for (int i = 0; i < N; i++)
        request_release(rq[i]);
    CHECK_INT(x->refs, 0);
    adapter_names_close(sv.adapters);
    tokenizer_close(sv.tok);
}

TEST(lists_of_names_have_no_cut_name)
{
    enum { N = 40, LONG = 250 };
    struct service sv = { .model = "base" };
    uint64_t all[ADAPTERS_MAX / 64];
    struct json_out o = { 0 };
    struct fault f;
    struct err e;
    char name[LONG + 1];

    CHECK_INT(adapter_names_open(&sv.adapters, "base", &e), 0);
    adapter_names_unknown(&sv, "z", &f);
    CHECK_INT(f.status, 404);
    CHECK_STR(f.text, "model 'z' is not served here: use 'base'");
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "\"%0*d", LONG - 1, i);
        add(sv.adapters, name, "d", 0);
    }
    memset(all, 0xff, sizeof all);
    adapter_names_write(sv.adapters, all, &o);
    CHECK_INT(o.n, N * (LONG + 2) + 1); /* a quote is two bytes; N - 1 commas, two quotes */
    CHECK_STR(o.p + o.n - 4, "039\"");

    adapter_names_unknown(&sv, "z", &f);
    snprintf(name, sizeof name, "\"%0*d", LONG - 1, 1);
    CHECK_HAS(f.text, name);
    CHECK_STR(strstr(f.text, ", …"), ", … (GET /v1/models has all)");
    json_out_free(&o);
    adapter_names_close(sv.adapters);
}

TEST(the_items_of_a_step_are_sorted_by_adapter)
{
    static const int32_t adapter[6] = { 2, 0, 1, 2, 0, 1 }, order[6] = { 1, 4, 2, 5, 0, 3 };
    struct sched_limits lim = { 6, 100, 100, { { 32, 0 } } };
    struct seq q[6] = { 0 };
    struct sched s;
    struct err e;
    CHECK_INT(sched_open(&s, &lim, &e), 0);
    for (int i = 0; i < 6; i++) {
        q[i] = (struct seq){ .n_ids = 3 + i, .first_want = 2 + i, .adapter = adapter[i] };
        sched_add(&s, &q[i]);
    }
    CHECK_INT(sched_next_step(&s, &e), 6);
    for (int i = 0; i < 6; i++)
        CHECK(s.item[i].seq == &q[order[i]]);
    sched_step_done(&s);
    sched_close(&s);
}
