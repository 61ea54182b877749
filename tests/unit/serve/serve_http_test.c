/* serve_http_test.c - the HTTP server without a model: what is answered in every state, and what a suspended
 * connection gets. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/io.h"
#include "serve/http/worker.h"
#include "serve/http/http_server.h"
#include "serve/api/openai.h"
#include "tests/test.h"

struct site {
    struct service sv;
    struct router router;
    struct http_server *h;
    struct metrics metrics;
    struct http_options o;
};

static void site_open_with(struct site *s, int state, struct http_options o)
{
    struct err e = { 0 };
    memset(s, 0, sizeof *s);
    o.host = "127.0.0.1";
    s->sv = (struct service){ .model = "m", .vocab = 256, .ctx = 64 };
    s->sv.state = state;
    CHECK_INT(tokenizer_bytes(&s->sv.tok, &e), 0);
    CHECK_INT(router_open(&s->router, 1, &e), 0);
    s->sv.metrics = &s->metrics;
    CHECK_INT(http_server_open(&s->h, &s->sv, &s->router, &o, &e), 0);
}

static void site_open(struct site *s, int state) { site_open_with(s, state, (struct http_options){ 0 }); }

static void site_close(struct site *s)
{
    http_server_close(s->h, 1);
    router_close(&s->router);
    tokenizer_close(s->sv.tok);
}

static int dial(const struct site *s)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)http_server_port(s->h)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_INT(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void send_text(int fd, const char *text)
{
    CHECK_INT(write(fd, text, strlen(text)), (long long)strlen(text));
}

/* Everything until the server closes. */
static void read_all(int fd, char *buf, size_t max)
{
    size_t n = 0;
    ssize_t got;
    while (n + 1 < max && (got = read(fd, buf + n, max - 1 - n)) > 0)
        n += (size_t)got;
    buf[n] = 0;
    close(fd);
}

static void ask_with(const struct site *s, const char *method, const char *path, const char *headers,
                     const char *body, char *reply, size_t max)
{
    char text[1024];
    int fd = dial(s);
    snprintf(text, sizeof text,
             "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
             "application/json\r\n%sContent-Length: %zu\r\n\r\n%s",
             method, path, headers, strlen(body), body);
    send_text(fd, text);
    read_all(fd, reply, max);
}

static void ask(const struct site *s, const char *method, const char *path, const char *body, char *reply,
                size_t max)
{
    ask_with(s, method, path, "", body, reply, max);
}

TEST(every_state_has_its_answers)
{
    static const struct {
        int state;
        const char *health, *models, *completion;
    } row[] = {
        { SERVICE_LOADING, "HTTP/1.1 503", "HTTP/1.1 503", "loading" },
        { SERVICE_DRAINING, "HTTP/1.1 503", "HTTP/1.1 200", "stopping" },
        { SERVICE_FAILED, "HTTP/1.1 503", "HTTP/1.1 200", "failed" },
    };
    char r[4096];
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct site s;
        site_open(&s, row[i].state);
        ask(&s, "GET", "/health", "", r, sizeof r);
        CHECK_HAS(r, row[i].health);
        CHECK_HAS(r, "Retry-After");
        ask(&s, "GET", "/v1/models", "", r, sizeof r);
        CHECK_HAS(r, row[i].models);
        ask(&s, "POST", "/v1/completions", "{\"prompt\":\"a\"}", r, sizeof r);
        CHECK_HAS(r, "HTTP/1.1 503");
        CHECK_HAS(r, row[i].completion);
        CHECK_HAS(r, "unavailable_error");
        ask(&s, "GET", "/version", "", r, sizeof r);
        CHECK_HAS(r, "HTTP/1.1 200");
        CHECK(!s.router.replica->inbox.first);
        site_close(&s);
    }
}

TEST(health_says_how_much_of_the_weights_is_read)
{
    struct site s;
    char r[4096];
    site_open(&s, SERVICE_LOADING);
    ask(&s, "GET", "/health", "", r, sizeof r);
    CHECK_HAS(r, "\"progress\":0.0000}");
    s.sv.load.total = 4000;
    s.sv.load.done = 1500;
    ask(&s, "GET", "/health", "", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 503");
    CHECK_HAS(r, "37 % of the weights");
    CHECK_HAS(r, "\"code\":503},\"progress\":0.3750}");
    site_close(&s);
}

/* The engine's part, by hand: waits for the request. */
static struct request *next_request(struct site *s)
{
    struct request *rq;
    pthread_mutex_lock(&s->router.replica->inbox.lock);
    while (!s->router.replica->inbox.first)
        pthread_cond_wait(&s->router.replica->inbox.filled, &s->router.replica->inbox.lock);
    rq = s->router.replica->inbox.first;
    s->router.replica->inbox.first = NULL;
    s->router.replica->inbox.end = &s->router.replica->inbox.first;
    pthread_mutex_unlock(&s->router.replica->inbox.lock);
    return rq;
}

static void say(struct request *rq, const char *text)
{
    pthread_mutex_lock(&rq->lock);
    json_out_text(&rq->events, text);
    pthread_mutex_unlock(&rq->lock);
}

static int post(const struct site *s, const char *body)
{
    char text[1024];
    int fd = dial(s);
    snprintf(text, sizeof text,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
             "application/json\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    send_text(fd, text);
    return fd;
}

TEST(a_stream_gets_what_is_said_when_it_is_said)
{
    struct site s;
    char r[4096];
    site_open(&s, SERVICE_READY);
    int fd = post(&s, "{\"prompt\":\"a\",\"stream\":true}");
    struct request *rq = next_request(&s);
    say(rq, "data: one\n\n");
    request_begin(rq);
    usleep(30000);
    say(rq, "data: two\n\n");
    request_begin(rq);
    usleep(30000);
    say(rq, "data: [DONE]\n\n");
    request_finish(rq);
    read_all(fd, r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 200");
    CHECK_HAS(r, "text/event-stream");
    CHECK_HAS(r, "data: one\n\n");
    CHECK(strstr(r, "data: two") > strstr(r, "data: one") && strstr(r, "[DONE]") > strstr(r, "data: two"));
    request_release(rq);
    site_close(&s);
}

TEST(an_error_before_the_first_token_is_a_status_and_later_an_event)
{
    struct fault f;
    for (int begun = 0; begun < 2; begun++) {
        struct site s;
        char r[4096];
        site_open(&s, SERVICE_READY);
        int fd = post(&s, "{\"prompt\":\"a\",\"stream\":true}");
        struct request *rq = next_request(&s);
        if (begun) {
            say(rq, "data: one\n\n");
            request_begin(rq);
            usleep(30000);
        }
        fault_set(&f, 503, NULL, "rank 3 died");
        request_fail(rq, &f);
        read_all(fd, r, sizeof r);
        CHECK_HAS(r, begun ? "HTTP/1.1 200" : "HTTP/1.1 503");
        CHECK_HAS(r, begun ? "data: {\"error\":{\"message\":\"rank 3 died\""
                           : "\r\n\r\n{\"error\":{\"message\":\"rank 3 died\"");
        CHECK(!begun == !strstr(r, "data: [DONE]"));
        request_release(rq);
        site_close(&s);
    }
}

TEST(a_client_that_hangs_up_is_seen_while_it_waits)
{
    struct site s;
    site_open(&s, SERVICE_READY);
    int fd = post(&s, "{\"prompt\":\"a\"}"), seen = 0;
    struct request *rq = next_request(&s);
    usleep(20000);
    CHECK_INT(rq->disconnected(rq), 0);
    close(fd);
    for (int i = 0; i < 200 && !seen; i++) {
        usleep(5000);
        seen = rq->disconnected(rq);
    }
    CHECK(seen);
    request_finish(rq);
    request_release(rq);
    site_close(&s);
}

TEST(a_server_that_ends_takes_nothing_more)
{
    struct site s;
    char r[4096];
    site_open(&s, SERVICE_READY);
    s.router.replica->inbox.closed = 1;
    ask(&s, "POST", "/v1/completions", "{\"prompt\":\"a\"}", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 503");
    site_close(&s);
}

TEST(a_port_that_is_taken_is_an_error_that_names_it)
{
    struct site s;
    struct err e = { 0 };
    struct http_server *h;
    char port[16];
    site_open(&s, SERVICE_READY);
    snprintf(port, sizeof port, "%d", http_server_port(s.h));
    CHECK_INT(http_server_open(&h, &s.sv, &s.router,
                               &(struct http_options){ .host = "127.0.0.1", .port = http_server_port(s.h) },
                               &e),
              -ERR_FILE);
    CHECK_HAS(e.text, port);
    CHECK_INT(http_server_open(&h, &s.sv, &s.router, &(struct http_options){ .host = "no.such.host.invalid" },
                               &e),
              -ERR_USAGE);
    site_close(&s);
}

TEST(only_one_of_the_keys_opens_the_doors_and_what_is_open_needs_none)
{
    struct site s;
    struct keys k = { 0 };
    struct err e = { 0 };
    char r[4096], path[512];
    static const char text[] = "# keys\n\n  alpha-1 \r\nbeta-22\n";
    snprintf(path, sizeof path, "%s/keys", test_tmp_dir());
    CHECK_INT(io_write_file(path, text, sizeof text - 1, &e), 0);
    CHECK_INT(keys_open(&k, path, &e), 0);
    CHECK_INT(k.n, 2);
    CHECK_INT(keys_find(&k, "Bearer alpha-1", NULL), 0);
    CHECK_INT(keys_find(&k, "bearer  beta-22", NULL), 1);
    CHECK_INT(keys_find(&k, NULL, "beta-22"), 1);
    const char *const wrong[] = { "Bearer alpha-",  "Bearer alpha-11", "Bearer ",      "alpha-1",
                                  "Bearer ALPHA-1", "Basic alpha-1",   "Bearer # keys" };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK_INT(keys_find(&k, wrong[i], NULL), -1);
    CHECK_INT(keys_find(&k, NULL, NULL), -1);
    site_open_with(&s, SERVICE_READY, (struct http_options){ .keys = &k });
    ask(&s, "GET", "/v1/models", "", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 401");
    CHECK_HAS(r, "authentication_error");
    ask_with(&s, "GET", "/v1/models", "Authorization: Bearer alpha-2\r\n", "", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 401");
    ask_with(&s, "GET", "/v1/models", "Authorization: Bearer alpha-1\r\n", "", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 200");
    ask_with(&s, "POST", "/tokenize", "X-Api-Key: beta-22\r\n", "{\"prompt\":\"ab\"}", r, sizeof r);
    CHECK_HAS(r, "\"tokens\":[97,98]");
    ask(&s, "POST", "/tokenize", "{\"prompt\":\"ab\"}", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 401");
    ask(&s, "GET", "/metrics", "", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 401");
    ask(&s, "GET", "/nothing", "", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 401");
    for (int i = 0; i < 3; i++) {
        ask(&s, "GET", (const char *const[]){ "/health", "/version", "/" }[i], "", r, sizeof r);
        CHECK_HAS(r, "HTTP/1.1 200");
    }
    site_close(&s);
    keys_close(&k);
}

TEST(a_key_file_without_keys_or_with_one_twice_is_refused_without_showing_it)
{
    static const struct {
        const char *text, *part;
    } row[] = { { "# none\n\n", "no key" }, { "a\nsecret\nsecret", "line 3" } };
    for (size_t i = 0; i < 2; i++) {
        struct keys k;
        struct err e = { 0 };
        char path[512];
        snprintf(path, sizeof path, "%s/keys-%zu", test_tmp_dir(), i);
        CHECK_INT(io_write_file(path, row[i].text, strlen(row[i].text), &e), 0);
        CHECK_INT(keys_open(&k, path, &e), -ERR_CONFIG);
        CHECK_HAS(e.text, row[i].part);
        CHECK(!strstr(e.text, "secret"));
    }
}

TEST(a_full_server_answers_503_and_a_full_key_429_and_both_say_when_to_come_back)
{
    struct key one = { .text = "k" };
    struct keys k = { 1, &one };
    struct site s;
    char r[4096];
    site_open_with(&s, SERVICE_READY,
                   (struct http_options){
                       .keys = &k, .max_requests = 2, .max_waiting_tokens = 5, .max_per_key = 1 });
    s.router.replica->inbox.n_live = 2;
    ask_with(&s, "POST", "/v1/completions", "X-Api-Key: k\r\n", "{\"prompt\":\"a\"}", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 503");
    CHECK_HAS(r, "Retry-After: 1");
    s.router.replica->inbox.n_live = 1;
    s.router.replica->inbox.n_live_tokens = 5;
    ask_with(&s, "POST", "/v1/completions", "X-Api-Key: k\r\n", "{\"prompt\":\"a\"}", r, sizeof r);
    CHECK_HAS(r, "prompt tokens");
    s.router.replica->inbox.n_live_tokens = 4;
    one.n_active = 1;
    ask_with(&s, "POST", "/v1/completions", "X-Api-Key: k\r\n", "{\"prompt\":\"a\"}", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 429");
    CHECK_HAS(r, "Retry-After: 1");
    CHECK_HAS(r, "rate_limit_error");
    CHECK_INT(one.n_active, 1);
    CHECK_INT(s.metrics.counter[COUNT_REJECTED], 3);
    one.n_active = 0;
    ask_with(&s, "POST", "/tokenize", "X-Api-Key: k\r\n", "{\"prompt\":\"a\"}", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 200");
    for (int i = 0; i < 100 && one.n_active; i++)
        usleep(2000);
    CHECK_INT(one.n_active, 0); /* given back */
    site_close(&s);
}

TEST(request_ids_go_in_and_out_and_browsers_are_told_who_may_ask)
{
    struct site s;
    char r[4096];
    site_open_with(&s, SERVICE_READY,
                   (struct http_options){ .cors_origin = "https://a.example,https://b.example" });
    ask_with(&s, "GET", "/version", "X-Request-Id: trace-7\r\nOrigin: https://b.example\r\n", "", r,
             sizeof r);
    CHECK_HAS(r, "x-request-id: trace-7\r\n");
    CHECK_HAS(r, "Access-Control-Allow-Origin: https://b.example\r\n");
    ask_with(&s, "GET", "/version", "X-Request-Id: bad id\r\nOrigin: https://a.exampl\r\n", "", r, sizeof r);
    CHECK_HAS(r, "x-request-id: req-");
    CHECK(!strstr(r, "Access-Control"));
    ask_with(&s, "OPTIONS", "/v1/completions",
             "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n", "", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 204");
    CHECK_HAS(r, "Access-Control-Allow-Methods: POST");
    CHECK_HAS(r, "Access-Control-Allow-Headers: authorization");
    site_close(&s);
    site_open(&s, SERVICE_READY);
    ask_with(&s, "OPTIONS", "/v1/completions", "Origin: https://a.example\r\n", "", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 405");
    site_close(&s);
}

TEST(a_long_body_is_read_by_a_worker_and_answers_the_same)
{
    struct site s;
    size_t n = 8000; /* more than the library's thread parses, less than is refused unread */
    char *text = malloc(n + 512), *r = malloc(4 * n + 4096);
    site_open(&s, SERVICE_READY);
    int k = snprintf(text, 512,
                     "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
                     "application/json\r\n"
                     "Content-Length: %zu\r\n\r\n{\"prompt\":\"",
                     n + 13);
    memset(text + k, 'x', n);
    strcpy(text + k + n, "\"}");
    int fd = dial(&s);
    send_text(fd, text);
    read_all(fd, r, 4 * n + 4096);
    CHECK_HAS(r, "HTTP/1.1 200");
    CHECK_HAS(r, "\"count\":8000,");
    memcpy(strstr(text, "prompt"), "pramps", 6);
    fd = dial(&s);
    send_text(fd, text);
    read_all(fd, r, 4 * n + 4096);
    CHECK_HAS(r, "HTTP/1.1 400");
    CHECK_HAS(r, "'pramps'");
    free(text);
    free(r);
    site_close(&s);
}

struct held_job {
    struct job job;
    pthread_mutex_t *gate;
    _Atomic int *n_run;
};

static void run_held(struct job *j)
{
    struct held_job *h = (struct held_job *)(void *)j;
    if (h->gate) {
        pthread_mutex_lock(h->gate);
        pthread_mutex_unlock(h->gate);
    }
    atomic_fetch_add(h->n_run, 1);
}

TEST(long_jobs_hold_up_no_short_one)
{
    static const struct timespec nap = { 0, 1000000 };
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    _Atomic int n_long = 0, n_short = 0;
    struct held_job longs[4], shorts[8];
    struct worker w;
    struct err e;
    CHECK_INT(worker_open(&w, &e), 0);
    pthread_mutex_lock(&gate);
    for (int i = 0; i < 4; i++) {
        longs[i] = (struct held_job){ { .run = run_held }, &gate, &n_long };
        worker_put(&w, &longs[i].job);
    }
    for (int i = 0; i < 8; i++) {
        shorts[i] = (struct held_job){ { .run = run_held, .is_short = 1 }, NULL, &n_short };
        worker_put(&w, &shorts[i].job);
    }
    for (int i = 0; i < 60000 && n_short < 8; i++)
        nanosleep(&nap, NULL);
    CHECK_INT(n_short, 8);
    CHECK_INT(n_long, 0);
    pthread_mutex_unlock(&gate);
    worker_close(&w);
    CHECK_INT(n_long, 4);
}

TEST(every_exchange_is_one_line_of_the_access_log)
{
    struct site s;
    struct err e = { 0 };
    char r[4096], path[512];
    void *log;
    size_t n;
    snprintf(path, sizeof path, "%s/access", test_tmp_dir());
    site_open_with(&s, SERVICE_READY, (struct http_options){ .access_log = path });
    ask_with(&s, "GET", "/v1/models/\"x", "X-Request-Id: one\r\n", "", r, sizeof r);
    ask_with(&s, "POST", "/detokenize", "X-Request-Id: two\r\n", "{\"tokens\":[104,105]}", r, sizeof r);
    CHECK_HAS(r, "{\"prompt\":\"hi\"}");
    site_close(&s);
    CHECK_INT(io_read_file(path, 1 << 20, &log, &n, &e), 0);
    CHECK_HAS(log, "\"id\":\"one\",\"method\":\"GET\",\"path\":\"/v1/models/\\\"x\",\"status\":404,");
    CHECK_HAS(log, "\"id\":\"two\",\"method\":\"POST\",\"path\":\"/detokenize\",\"status\":200,");
    free(log);
}

TEST(metrics_are_text_that_prometheus_reads)
{
    struct site s;
    static char r[65536];
    site_open(&s, SERVICE_READY);
    metric_add(&s.metrics, COUNT_GENERATED, 7);
    metric_set(&s.metrics, GAUGE_KV_USAGE_PPM, 250000);
    metric_observe(&s.metrics, HIST_ITL, 0.003);
    metric_observe(&s.metrics, HIST_ITL, 1e9);
    ask(&s, "GET", "/metrics", "", r, sizeof r);
    CHECK_HAS(r, "text/plain; version=0.0.4");
    CHECK_HAS(r, "vllm:generation_tokens_total{model_name=\"m\",engine=\"0\"} 7\n");
    CHECK_HAS(r, "vllm:kv_cache_usage_perc{model_name=\"m\",engine=\"0\"} 0.250000\n");
    CHECK_HAS(r, "vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"length\"} 0\n");
    CHECK_HAS(r, "vllm:inter_token_latency_seconds_bucket{model_name=\"m\",engine=\"0\",le=\"0.0025\"} 0\n");
    CHECK_HAS(r, "vllm:inter_token_latency_seconds_bucket{model_name=\"m\",engine=\"0\",le=\"0.005\"} 1\n");
    CHECK_HAS(r, "vllm:inter_token_latency_seconds_bucket{model_name=\"m\",engine=\"0\",le=\"+Inf\"} 2\n");
    CHECK_HAS(r, "vllm:inter_token_latency_seconds_count{model_name=\"m\",engine=\"0\"} 2\n");
    metric_set(&s.metrics, GAUGE_KV_PAGES, 9);
    ask(&s, "GET", "/metrics", "", r, sizeof r);
    CHECK_HAS(r, "vllm:cache_config_info{model_name=\"m\",engine=\"0\",block_size=\"64\",num_gpu_blocks="
                 "\"9\",kv_cache_"
                 "size_tokens=\"576\",cache_dtype=\"auto\",enable_prefix_caching=\"False\"} 1\n");
    CHECK_HAS(r, "# TYPE process_cpu_seconds_total counter\n");
    const char *bytes = strstr(r, "\nprocess_resident_memory_bytes "), *max = strstr(r, "\nprocess_max_fds "),
               *open = strstr(r, "\nprocess_open_fds "), *start = strstr(r, "\nprocess_start_time_seconds ");
    CHECK(bytes && strtod(strchr(bytes, ' '), NULL) > 1e5);
    CHECK(open && max && strtod(strchr(open, ' '), NULL) > 3 &&
          strtod(strchr(open, ' '), NULL) < strtod(strchr(max, ' '), NULL));
    /* the clock of the machine's start has whole seconds */
    double age_s = start ? (double)time(NULL) - strtod(strchr(start, ' '), NULL) : -9;
    CHECK(age_s > -60 && age_s < 86400);
    /* once */
    CHECK(strstr(strstr(r, "# TYPE vllm:request_success_total") + 1, "# TYPE vllm:request_success_total") ==
          NULL);
    site_close(&s);
}
