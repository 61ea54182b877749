/* pbench_main.c - load for a server with the OpenAI completions API: measures the time to the first token,
 * the time between two tokens, and tokens a second. Closed loop (a fixed number of requests at a time) or
 * open loop (a fixed number begin each second, whatever the server does). */
#include <curl/curl.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/io.h"
#include "base/fmath.h"
#include "base/log.h"
#include "base/opt.h"
#include "base/rnd.h"
#include "comm/comm.h"

struct bench_opts {
    const char *url, *model, *key, *prompts;
    int64_t requests, concurrency, prompt, output, vocab, shared, seed, timeout, top_k;
    double rate, spread, temperature, top_p;
    int json, chat;
};

#define AT(member) offsetof(struct bench_opts, member)
#define PROMPTS_MOST ((size_t)256 << 20) /* bytes of --prompts */

/* kind, name, member, default, unit; help, smallest and largest value */
/* clang-format off */
static const struct opt table[] = {
    { OPT_GROUP,  "Server" },
    { OPT_TEXT,   "url",           AT(url),         "http://127.0.0.1:8000", "URL",
      "of the server, without /v1" },
    { OPT_TEXT,   "model",         AT(model),       NULL,    "NAME",
      "the model field of requests (default: none is sent)" },
    { OPT_TEXT,   "key",           AT(key),         NULL,    "KEY",
      "for Authorization: Bearer" },
    { OPT_SWITCH, "chat",          AT(chat),        "0",     NULL,
      "ask /v1/chat/completions with text instead of /v1/completions with token ids" },
    { OPT_INT,    "timeout",       AT(timeout),     "600",   "SECONDS",
      "of one request", 1, 1e6 },

    { OPT_GROUP,  "Load" },
    { OPT_INT,    "requests",      AT(requests),    "64",    "N",
      "requests in all", 1, 1e7 },
    { OPT_INT,    "concurrency",   AT(concurrency), "8",     "N",
      "requests at a time, at most", 1, 4096 },
    { OPT_FLOAT,  "rate",          AT(rate),        "0",     "N",
      "requests that begin a second, at random times (0: the next begins when one ends)", 0, 1e6 },
    { OPT_INT,    "prompt-tokens", AT(prompt),      "128",   "N",
      "mean length of prompts", 1, 1e7 },
    { OPT_INT,    "output-tokens", AT(output),      "64",    "N",
      "mean length of answers (end tokens are ignored)", 1, 1e7 },
    { OPT_FLOAT,  "spread",        AT(spread),      "0",     "X",
      "lengths are uniform in mean x (1-X) to mean x (1+X)", 0, 1 },
    { OPT_INT,    "shared-tokens", AT(shared),      "0",     "N",
      "tokens that all prompts begin with", 0, 1e7 },
    { OPT_TEXT,   "prompts",       AT(prompts),     NULL,    "FILE",
      "prompts in place of random ids: a JSON text or list of ids a line, in turn" },
    { OPT_INT,    "vocab",         AT(vocab),       "256",   "N",
      "prompts are random ids from 1 to N-1", 2, 1e9 },
    { OPT_FLOAT,  "temperature",   AT(temperature), "0",     "T",
      "of the answers (0: the most likely tokens)", 0, 1e6 },
    { OPT_FLOAT,  "top-p",         AT(top_p),       "1",     "P",
      "of the answers", 1e-9, 1 },
    { OPT_INT,    "top-k",         AT(top_k),       "0",     "N",
      "of the answers (0: off)", 0, 1e9 },
    { OPT_INT,    "seed",          AT(seed),        "0",     "N",
      "of lengths, ids and times", 0, 9e18 },

    { OPT_GROUP,  "Output" },
    { OPT_SWITCH, "json",          AT(json),        "0",     NULL,
      "one JSON object, with the names of vllm bench serve" },

    { OPT_GROUP,  NULL },
};
/* clang-format on */

static void print_version(FILE *out) { comm_version(out, "pbench", ""); }
static const struct opt_program program = {
    .name = "pbench",
    .summary = "loads a completion server and measures how long its clients wait",
    .usage = "[--url URL] [--rate N]",
    .opts = table,
    .min_args = 0,
    .max_args = 0,
    .print_version = print_version,
    .examples = "# 16 requests, 4 at a time\n"
                "pbench --url http://127.0.0.1:8000 --requests 16 --concurrency 4\n"
                "# two new requests a second, answers of 16 to 48 tokens\n"
                "pbench --rate 2 --requests 8 --output-tokens 32 --spread 0.5 --json\n",
};

/* ---- samples ---- */

struct samples {
    double *v;
    size_t n, cap;
};

static int add_sample(struct samples *s, double x)
{
    if (s->n == s->cap) {
        size_t cap = s->cap * 2 + 256;
        double *v = realloc(s->v, sizeof *v * cap);
        if (!v)
            return -1;
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = x;
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Interpolated between the two neighbours, as numpy does. s must be sorted. */
static double percentile(const struct samples *s, double p)
{
    if (!s->n)
        return 0;
    double at = p / 100 * (double)(s->n - 1);
    size_t i = (size_t)at;
    return i + 1 < s->n ? s->v[i] + (at - (double)i) * (s->v[i + 1] - s->v[i]) : s->v[i];
}

static double mean(const struct samples *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->v[i];
    return s->n ? sum / (double)s->n : 0;
}

static double deviation(const struct samples *s)
{
    double m = mean(s), sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += (s->v[i] - m) * (s->v[i] - m);
    return s->n ? sqrt(sum / (double)s->n) : 0;
}

/* ---- one request ---- */

/* Of speculative decoding, as vLLM counts it; negative: the server does not say. */
enum drafts { N_DRAFTS, DRAFT_TOKENS, ACCEPTED_TOKENS, DRAFTS };
static const char *const draft_metric[DRAFTS] = { "vllm:spec_decode_num_drafts_total",
                                                  "vllm:spec_decode_num_draft_tokens_total",
                                                  "vllm:spec_decode_num_accepted_tokens_total" };

enum measure { TTFT, TPOT, ITL, E2EL, MEASURES };
static const char *const measure_name[MEASURES] = { "ttft", "tpot", "itl", "e2el" };

struct bench {
    struct bench_opts o;
    double begin_s;        /* clock_s() */
    double *start_s;       /* [requests] when each of them begins, after begin_s */
    json_t *prompts;       /* of --prompts; NULL: random ids */
    double drafts[DRAFTS]; /* what the server counted meanwhile */
    _Atomic int64_t next;  /* request */

    /* guarded by lock: */
    pthread_mutex_t lock;
    struct samples sample[MEASURES];
    int64_t done, failed, input, output, late; /* requests, tokens, requests that began too late */
    char why[256];                             /* the first failure */
    int no_memory;
};

struct call {
    double begin_s, first_s, last_s;
    char *line; /* the event that is arriving */
    size_t n, cap;
    int64_t input, output, events;
    int done, no_memory;
    char why[256];
    struct samples itl;
};

/* Number i of a stream of random numbers, 0 to 1. */
static double uniform(const struct bench *b, const char *stream, int64_t i)
{
    return rnd_unit((uint64_t)b->o.seed, rnd_stream(stream), (uint64_t)i);
}

/* Tokens of a prompt or an answer: uniform around `middle`. */
static int64_t length(const struct bench *b, const char *stream, int64_t i, int64_t middle)
{
    double x = (double)middle * (1 + b->o.spread * (2 * uniform(b, stream, i) - 1));
    return x < 1 ? 1 : (int64_t)(x + 0.5);
}

/* One of --prompts. */
static json_t *given_prompt(const struct bench *b, int64_t i)
{
    json_t *p = json_array_get(b->prompts, (size_t)i % json_array_size(b->prompts));
    return b->o.chat ? json_pack("[{s:s, s:O}]", "role", "user", "content", p) : json_incref(p);
}

/* Random token ids; for chats about as many bytes of text. */
static json_t *make_prompt(const struct bench *b, int64_t i)
{
    if (b->prompts)
        return given_prompt(b, i);
    int64_t n = length(b, "prompt", i, b->o.prompt), vocab = b->o.chat ? 27 : b->o.vocab;
    json_t *ids = b->o.chat ? NULL : json_array();
    char *text = b->o.chat ? calloc(1, (size_t)n + 1) : NULL;

    for (int64_t k = 0; k < n && (ids || text); k++) {
        uint64_t r = rnd_u64((uint64_t)b->o.seed,
                             rnd_stream(k < b->o.shared ? "shared" : "ids") +
                                 (k < b->o.shared ? 0 : (uint64_t)i + 1),
                             (uint64_t)k);
        int64_t id = 1 + (int64_t)(r % (uint64_t)(vocab - 1));
        if (text)
            text[k] = (char)('a' + id - 1);
        else
            json_array_append_new(ids, json_integer(id));
    }

    json_t *messages = text ? json_pack("[{s:s, s:s}]", "role", "user", "content", text) : NULL;
    free(text);
    return ids ? ids : messages;
}

static char *make_body(const struct bench *b, int64_t i)
{
    json_t *j = json_pack("{s:o, s:I, s:b, s:b, s:{s:b}, s:f}", b->o.chat ? "messages" : "prompt",
                          make_prompt(b, i), "max_tokens", (json_int_t)length(b, "output", i, b->o.output),
                          "ignore_eos", 1, "stream", 1, "stream_options", "include_usage", 1, "temperature",
                          b->o.temperature);
    if (j && b->o.top_p < 1)
        json_object_set_new(j, "top_p", json_real(b->o.top_p));
    if (j && b->o.top_k)
        json_object_set_new(j, "top_k", json_integer(b->o.top_k));
    if (j && b->o.model)
        json_object_set_new(j, "model", json_string(b->o.model));
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text;
}

/* An event of a stream, or an error body. */
static void take_event(struct call *c, const char *data, double now)
{
    json_t *j = json_loads(data, 0, NULL), *usage = json_object_get(j, "usage"),
           *error = json_object_get(j, "error");

    if (error)
        snprintf(c->why, sizeof c->why, "%s", json_string_value(json_object_get(error, "message")));
    if (json_array_size(json_object_get(j, "choices"))) {
        const json_t *delta = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "delta");
        if (!json_object_get(delta, "role")) { /* the first event of a chat has no token */
            c->no_memory |= c->first_s > 0 && add_sample(&c->itl, now - c->last_s) < 0;
            c->first_s = c->first_s > 0 ? c->first_s : now;
            c->last_s = now;
            c->events++;
        }
    }

    if (json_is_object(usage)) {
        c->input = json_integer_value(json_object_get(usage, "prompt_tokens"));
        c->output = json_integer_value(json_object_get(usage, "completion_tokens"));
    }

    json_decref(j);
}

static void take_line(struct call *c, double now)
{
    if (!strncmp(c->line, "data: [DONE]", 12))
        c->done = 1;
    else if (!strncmp(c->line, "data: ", 6))
        take_event(c, c->line + 6, now);
    else if (c->n && !c->why[0] && c->line[0] == '{') /* not a stream: an error body */
        take_event(c, c->line, now);
}

/* libcurl's write callback: splits what arrives into lines. */
static size_t receive(char *p, size_t size, size_t n, void *arg)
{
    struct call *c = arg;
    double now = clock_s();

    n *= size;
    for (size_t i = 0; i < n; i++) {
        if (c->n + 1 >= c->cap) {
            size_t cap = c->cap * 2 + 1024;
            char *line = realloc(c->line, cap);
            if (!line)
                return 0;
            c->line = line;
            c->cap = cap;
        }
        c->line[c->n] = 0;
        if (p[i] != '\n') {
            c->line[c->n++] = p[i];
            continue;
        }
        take_line(c, now);
        c->n = 0;
    }

    return n;
}

static void count_call(struct bench *b, const struct call *c)
{
    pthread_mutex_lock(&b->lock);
    if (c->why[0] || !c->done) {
        b->failed++;
        if (!b->why[0])
            snprintf(b->why, sizeof b->why, "%s", c->why[0] ? c->why : "the stream ended without [DONE]");
    } else {
        b->done++;
        b->input += c->input;
        b->output += c->output;
        int bad = add_sample(&b->sample[TTFT], c->first_s - c->begin_s) < 0 ||
                  add_sample(&b->sample[E2EL], c->last_s - c->begin_s) < 0;
        if (c->output > 1)
            bad |= add_sample(&b->sample[TPOT], (c->last_s - c->first_s) / (double)(c->output - 1)) < 0;
        for (size_t i = 0; i < c->itl.n; i++)
            bad |= add_sample(&b->sample[ITL], c->itl.v[i]) < 0;
        b->no_memory |= bad || c->no_memory;
    }

    pthread_mutex_unlock(&b->lock);
}

static void do_call(struct bench *b, CURL *curl, int64_t i)
{
    struct call c = { 0 };
    char *body = make_body(b, i);

    if (!body)
        snprintf(c.why, sizeof c.why, "no memory for a request");
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body ? body : "");
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &c);
    c.begin_s = clock_s();
    CURLcode rc = body ? curl_easy_perform(curl) : CURLE_OK;
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    if (body && c.n)
        take_line(&c, clock_s());
    if (rc != CURLE_OK)
        snprintf(c.why, sizeof c.why, "%s", curl_easy_strerror(rc));
    else if (status != 200 && !c.why[0])
        snprintf(c.why, sizeof c.why, "status %ld", status);
    count_call(b, &c);
    free(body);
    free(c.line);
    free(c.itl.v);
}

/* ---- the load ---- */

static void sleep_until(double when_s)
{
    double left = when_s - clock_s();
    if (left <= 0)
        return;
    struct timespec t = { (time_t)left, (long)((left - floor(left)) * 1e9) };
    nanosleep(&t, NULL);
}

/* ---- what the server counts ---- */

struct page {
    char *p;
    size_t n;
};
static size_t add_page(char *p, size_t size, size_t n, void *arg)
{
    struct page *x = arg;
    char *more = realloc(x->p, x->n + size * n + 1);
    if (!more)
        return 0;
    memcpy(more + x->n, p, size * n);
    x->p = more;
    x->n += size * n;
    more[x->n] = 0;
    return size * n;
}

/* The sum of a metric over engines; -1: it is not there. */
static double metric(const struct page *x, const char *name)
{
    double sum = -1;
    size_t n = strlen(name);
    for (const char *at = x->p; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
        const char *value = !strncmp(at, name, n) && at[n] == '{' ? strstr(at, "} ") : NULL;
        if (value)
            sum = (sum < 0 ? 0 : sum) + strtod(value + 2, NULL);
    }
    return sum;
}

/* A handle for requests to the server; headers: freed after it. */
static CURL *open_curl(const struct bench *b, const char *path, struct curl_slist **headers)
{
    CURL *curl = curl_easy_init();
    char text[1024];

    *headers = curl_slist_append(NULL, "Content-Type: application/json");
    snprintf(text, sizeof text, "%s%s", b->o.url, path);
    curl_easy_setopt(curl, CURLOPT_URL, text);
    if (b->o.key) {
        snprintf(text, sizeof text, "Authorization: Bearer %s", b->o.key);
        *headers = curl_slist_append(*headers, text);
    }
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, *headers);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)b->o.timeout);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    return curl;
}

/* Adds `sign` times what the server has counted so far. */
static void count_drafts(struct bench *b, double sign)
{
    struct page x = { 0 };
    struct curl_slist *headers;
    CURL *curl = open_curl(b, "/metrics", &headers);

    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, add_page);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &x);
    if (!curl || curl_easy_perform(curl) != CURLE_OK)
        x.n = 0;
    for (int i = 0; i < DRAFTS; i++) {
        double now = x.n ? metric(&x, draft_metric[i]) : -1;
        b->drafts[i] = now < 0 || b->drafts[i] < 0 ? -1 : now + (sign > 0 ? -b->drafts[i] : 0);
    }
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    free(x.p);
}

/* A client: sends one request after the other. */
static void *client(void *arg)
{
    struct bench *b = arg;
    struct curl_slist *headers;
    CURL *curl = open_curl(b, b->o.chat ? "/v1/chat/completions" : "/v1/completions", &headers);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive);
    curl_easy_setopt(curl, CURLOPT_TCP_NODELAY, 1L);

    for (int64_t i; curl && (i = atomic_fetch_add(&b->next, 1)) < b->o.requests;) {
        double when = b->begin_s + b->start_s[i];
        if (b->o.rate > 0 && clock_s() > when + 0.01) {
            pthread_mutex_lock(&b->lock);
            b->late++;
            pthread_mutex_unlock(&b->lock);
        }
        if (b->o.rate > 0)
            sleep_until(when);
        do_call(b, curl, i);
    }

    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return NULL;
}

static int run(struct bench *b, struct err *e)
{
    int64_t n = b->o.concurrency < b->o.requests ? b->o.concurrency : b->o.requests, started = 0;
    pthread_t *thread = calloc((size_t)n, sizeof *thread);
    int rc = thread ? 0 : err_set(e, ERR_MEMORY, "no memory for %lld clients", (long long)n);

    b->begin_s = clock_s();
    for (; rc >= 0 && started < n; started++)
        if (pthread_create(&thread[started], NULL, client, b) != 0) {
            rc = err_set(e, ERR_MEMORY, "client %lld of %lld does not start: lower --concurrency",
                         (long long)started, (long long)n);
            atomic_store(&b->next, b->o.requests);
            break;
        }
    for (int64_t i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    free(thread);
    return rc;
}

/* ---- the report ---- */

/* Were tokens guessed and checked? */
static int has_drafts(const struct bench *b)
{
    return b->drafts[N_DRAFTS] > 0 && b->drafts[DRAFT_TOKENS] > 0;
}
/* Tokens of a step with drafts; of 100 drafts, those that were right. */
static double accepted_length(const struct bench *b)
{
    return 1 + b->drafts[ACCEPTED_TOKENS] / b->drafts[N_DRAFTS];
}
static double accepted_percent(const struct bench *b)
{
    return 100 * b->drafts[ACCEPTED_TOKENS] / b->drafts[DRAFT_TOKENS];
}

static void report_drafts(const struct bench *b, json_t *j)
{
    json_object_set_new(j, "spec_decode_acceptance_rate", json_real(accepted_percent(b)));
    json_object_set_new(j, "spec_decode_acceptance_length", json_real(accepted_length(b)));
    json_object_set_new(j, "spec_decode_num_drafts", json_integer((json_int_t)b->drafts[N_DRAFTS]));
    json_object_set_new(j, "spec_decode_draft_tokens", json_integer((json_int_t)b->drafts[DRAFT_TOKENS]));
    json_object_set_new(j, "spec_decode_accepted_tokens",
                        json_integer((json_int_t)b->drafts[ACCEPTED_TOKENS]));
}

static json_t *report(struct bench *b, double wall_s)
{
    json_t *j = json_pack("{s:s, s:f, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:I}", "endpoint_type",
                          b->o.chat ? "openai-chat" : "openai", "duration", wall_s, "completed",
                          (json_int_t)b->done, "failed", (json_int_t)b->failed, "total_input_tokens",
                          (json_int_t)b->input, "total_output_tokens", (json_int_t)b->output,
                          "request_throughput", (double)b->done / wall_s, "output_throughput",
                          (double)b->output / wall_s, "total_token_throughput",
                          (double)(b->input + b->output) / wall_s, "max_concurrency",
                          (json_int_t)b->o.concurrency, "request_rate", b->o.rate, "late",
                          (json_int_t)b->late);
    static const struct {
        const char *name;
        double p;
    } point[] = { { "median", 50 }, { "p90", 90 }, { "p95", 95 }, { "p99", 99 } };

    for (int m = 0; m < MEASURES && j; m++) {
        struct samples *s = &b->sample[m];
        char name[64];
        if (s->n)
            qsort(s->v, s->n, sizeof *s->v, by_value);
        snprintf(name, sizeof name, "mean_%s_ms", measure_name[m]);
        json_object_set_new(j, name, json_real(mean(s) * 1e3));
        snprintf(name, sizeof name, "std_%s_ms", measure_name[m]);
        json_object_set_new(j, name, json_real(deviation(s) * 1e3));
        for (size_t k = 0; k < sizeof point / sizeof point[0]; k++) {
            snprintf(name, sizeof name, "%s_%s_ms", point[k].name, measure_name[m]);
            json_object_set_new(j, name, json_real(percentile(s, point[k].p) * 1e3));
        }
    }
    if (j && has_drafts(b))
        report_drafts(b, j);

    return j;
}

static void print_table(const struct bench *b, double wall_s)
{
    printf(
        "%lld requests done, %lld failed, in %.2f s: %.2f requests/s, %.1f tokens/s out, %.1f in and out\n",
        (long long)b->done, (long long)b->failed, wall_s, (double)b->done / wall_s,
        (double)b->output / wall_s, (double)(b->input + b->output) / wall_s);
    if (b->late)
        printf("%lld requests began late: raise --concurrency, or the server cannot keep this rate\n",
               (long long)b->late);
    if (has_drafts(b))
        printf("%.0f tokens guessed, %.1f %% right, %.2f tokens a step with guesses\n",
               b->drafts[DRAFT_TOKENS], accepted_percent(b), accepted_length(b));
    printf("%-6s %10s %10s %10s %10s  ms\n", "", "mean", "median", "p90", "p99");
    for (int m = 0; m < MEASURES; m++) {
        const struct samples *s = &b->sample[m];
        printf("%-6s %10.2f %10.2f %10.2f %10.2f\n", measure_name[m], mean(s) * 1e3, percentile(s, 50) * 1e3,
               percentile(s, 90) * 1e3, percentile(s, 99) * 1e3);
    }
}

/* --prompts: a JSON text or list of ids a line. */
static int read_prompts(struct bench *b, struct err *e)
{
    void *text;
    size_t n;
    int rc = io_read_file(b->o.prompts, PROMPTS_MOST, &text, &n, e), lines = 0;

    if (rc < 0)
        return rc;
    b->prompts = json_array();
    for (const char *at = text, *end = at + n, *next; rc >= 0 && at < end; at = next) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        next = stop ? stop + 1 : end;
        json_t *p = json_loadb(at, (size_t)(next - at), JSON_DECODE_ANY, NULL);
        lines++;
        if (!json_is_string(p) && !(json_is_array(p) && !b->o.chat))
            rc = err_set(e, ERR_USAGE, "%s: line %d is no JSON text%s", b->o.prompts, lines,
                         b->o.chat ? "" : " or list of ids");
        json_array_append_new(b->prompts, p);
    }
    free(text);
    return rc < 0 || lines ? rc : err_set(e, ERR_USAGE, "%s has no prompt", b->o.prompts);
}

static int bench_main(struct bench *b, struct err *e)
{
    double at = 0;
    int rc;

    b->start_s = calloc((size_t)b->o.requests, sizeof *b->start_s);
    if (!b->start_s)
        return err_set(e, ERR_MEMORY, "no memory for %lld requests", (long long)b->o.requests);
    for (int64_t i = 0; i < b->o.requests && b->o.rate > 0; i++) {
        b->start_s[i] = at;
        at -= fm_log(1 - uniform(b, "times", i)) / b->o.rate; /* a Poisson process */
    }

    if (b->o.prompts)
        TRY(read_prompts(b, e));
    count_drafts(b, -1);
    TRY(run(b, e));
    double wall_s = clock_s() - b->begin_s;
    count_drafts(b, 1);

    json_t *j = report(b, wall_s);
    char *text = j ? json_dumps(j, JSON_REAL_PRECISION(9)) : NULL;
    if (!text || b->no_memory)
        rc = err_set(e, ERR_MEMORY, "no memory for the samples: ask for fewer --requests");
    else if (b->o.json)
        puts(text);
    else
        print_table(b, wall_s);
    free(text);
    json_decref(j);
    if (rc >= 0 && b->failed)
        rc = err_set(e, ERR_PEER, "%lld of %lld requests to %s failed, the first with: %.200s",
                     (long long)b->failed, (long long)b->o.requests, b->o.url, b->why);
out:
    free(b->start_s);
    json_decref(b->prompts);
    for (int m = 0; m < MEASURES; m++)
        free(b->sample[m].v);
    return rc;
}

int main(int argc, char **argv)
{
    struct bench b = { 0 };
    struct err e = { 0 };
    struct opt_args args = { 0 };
    io_begin();
    int rc = opt_parse(&program, argc, argv, &b.o, &args, NULL, &e);
    if (rc == 0) {
        curl_global_init(CURL_GLOBAL_DEFAULT);
        pthread_mutex_init(&b.lock, NULL);
        rc = bench_main(&b, &e);
        pthread_mutex_destroy(&b.lock);
        curl_global_cleanup();
    }
    opt_free(&program, &b.o, &args);
    return io_end(rc, &e, "pbench");
}
