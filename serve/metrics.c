/* metrics.c - see metrics.h. */
#include "serve/metrics.h"

#include <string.h>
#include <time.h>
#include "serve/adapters/adapter_names.h"

/* Upper limits of the buckets; the last bucket has none. */
enum scale { SECONDS, TOKENS, SCALES };
static const double limit[SCALES][HIST_BUCKETS - 1] = {
    [SECONDS] = { 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
                  0.75,   1,     2.5,    5,     7.5,  10,   20,   40,   80,   160, 640 },
    [TOKENS] = { 1,    2,    4,     8,     16,    32,     64,     128,    256,     512,     1024,   2048,
                 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152, 4194304 },
};

struct row {
    const char *name, *label, *help;
};
static const struct row gauges[] = {
#define X(id, name, label, help) [GAUGE_##id] = { name, label, help },
    METRIC_GAUGES(X)
#undef X
};
static const struct row counters[] = {
#define X(id, name, label, help) [COUNT_##id] = { name, label, help },
    METRIC_COUNTERS(X)
#undef X
};
static const struct {
    const char *name;
    enum scale scale;
    const char *help;
} hists[] = {
#define X(id, name, scale, help) [HIST_##id] = { name, scale, help },
    METRIC_HISTS(X)
#undef X
};

void metric_set(struct metrics *m, enum gauge g, int64_t value)
{
    if (m)
        atomic_store_explicit(&m->gauge[g], value, memory_order_relaxed);
}

void metric_add(struct metrics *m, enum counter c, int64_t n)
{
    if (m)
        atomic_fetch_add_explicit(&m->counter[c], n, memory_order_relaxed);
}

void metric_observe(struct metrics *m, enum hist h, double value)
{
    int b = 0;
    if (!m)
        return;
    while (b < HIST_BUCKETS - 1 && value > limit[hists[h].scale][b])
        b++;
    atomic_fetch_add_explicit(&m->hist[h].bucket[b], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->hist[h].sum_micro, (int64_t)(value * 1e6), memory_order_relaxed);
}

void metrics_write_head(struct json_out *o, const char *name, const char *type, const char *help)
{
    json_out_fmt(o, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* model_name="…",engine="0": the text of a label escapes as JSON does (backslash, quote, line feed). */
static void write_labels(struct json_out *o, const char *model, int engine)
{
    json_out_text(o, "model_name=");
    json_out_string(o, model);
    json_out_fmt(o, ",engine=\"%d\"", engine);
}

static void write_row(struct json_out *o, const struct row *r, const char *model, int engine)
{
    json_out_fmt(o, "%s{", r->name);
    write_labels(o, model, engine);
    json_out_fmt(o, "%s} ", r->label);
}

static void write_hist(struct json_out *o, const struct metrics *m, int h, const char *model, int engine)
{
    const double *top = limit[hists[h].scale];
    int64_t n = 0;

    for (int b = 0; b < HIST_BUCKETS; b++) {
        n += m->hist[h].bucket[b];
        json_out_fmt(o, "%s_bucket{", hists[h].name);
        write_labels(o, model, engine);
        if (b < HIST_BUCKETS - 1)
            json_out_fmt(o, ",le=\"%g\"} %lld\n", top[b], (long long)n);
        else
            json_out_fmt(o, ",le=\"+Inf\"} %lld\n", (long long)n);
    }

    for (int k = 0; k < 2; k++) {
        json_out_fmt(o, "%s_%s{", hists[h].name, k ? "count" : "sum");
        write_labels(o, model, engine);
        if (k)
            json_out_fmt(o, "} %lld\n", (long long)n);
        else
            json_out_fmt(o, "} %.6f\n", (double)m->hist[h].sum_micro * 1e-6);
    }
}

/* The members are one array of numbers: all have the same type. */
void metrics_copy(struct metrics *to, const void *from)
{
    _Atomic int64_t *x = (_Atomic int64_t *)(void *)to;
    int64_t v;
    for (size_t i = 0; i < sizeof *to / sizeof v; i++) {
        memcpy(&v, (const char *)from + i * sizeof v, sizeof v);
        atomic_store_explicit(&x[i], v, memory_order_relaxed);
    }
}

/* A gauge of 1 whose labels say how the key-value cache is cut, as vLLM's does. */
static void write_cache_config(struct json_out *o, const struct metrics *m, const struct metrics_labels *l,
                               int engine)
{
    long long pages = m->gauge[GAUGE_KV_PAGES];

    json_out_text(o, "vllm:cache_config_info{");
    write_labels(o, l->model, engine);
    json_out_fmt(o, ",block_size=\"%d\",num_gpu_blocks=\"%lld\",kv_cache_size_tokens=\"%lld\"",
                 l->page_tokens, pages, pages * l->page_tokens);
    json_out_fmt(o, ",cache_dtype=\"%s\",enable_prefix_caching=\"%s\"} 1\n",
                 l->cache_dtype ? l->cache_dtype : "auto", l->prefix_cache ? "True" : "False");
}

/* vLLM's gauge of adapters: names in labels, all engines together; the value is the time. */
static void write_adapters(struct json_out *o, const struct metrics *const *m, int n, struct adapter_names *t)
{
    static const char *const label[METRIC_ADAPTERS] = { "running_lora_adapters", "waiting_lora_adapters" };
    struct timespec now;
    if (!adapter_names_were_used(t))
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    metrics_write_head(o, "vllm:lora_requests_info", "gauge",
                       "adapters of running and waiting requests, in labels; the value is the time");
    json_out_fmt(o, "vllm:lora_requests_info{max_lora=\"%d\"", ADAPTERS_MAX);
    for (int k = 0; k < METRIC_ADAPTERS; k++) {
        uint64_t bits[ADAPTERS_MAX / 64] = { 0 };
        for (int i = 0; i < n; i++)
            for (int j = 0; j < ADAPTERS_MAX / 64; j++)
                bits[j] |= (uint64_t)m[i]->adapters[k][j];
        json_out_fmt(o, ",%s=", label[k]);
        adapter_names_write(t, bits, o);
    }
    json_out_fmt(o, "} %lld.%03ld\n", (long long)now.tv_sec, now.tv_nsec / 1000000);
}

void metrics_write(struct json_out *o, const struct metrics *const *m, int n, const struct metrics_labels *l)
{
    const char *before = "", *model = l->model;

    metrics_write_head(o, "vllm:cache_config_info", "gauge", "the key-value cache, in labels; always 1");
    for (int k = 0; k < n; k++)
        write_cache_config(o, m[k], l, k);

    write_adapters(o, m, n, l->adapters);

    for (int i = 0; i < GAUGE_COUNT; i++) {
        metrics_write_head(o, gauges[i].name, "gauge", gauges[i].help);
        for (int k = 0; k < n; k++) {
            write_row(o, &gauges[i], model, k);
            if (i == GAUGE_KV_USAGE_PPM)
                json_out_fmt(o, "%.6f\n", (double)m[k]->gauge[i] * 1e-6);
            else
                json_out_fmt(o, "%lld\n", (long long)m[k]->gauge[i]);
        }
    }

    for (int i = 0; i < COUNT_COUNT; i++) {
        if (i >= COUNT_DRAFTS && i <= COUNT_ACCEPTED_15 && (!l->drafts || i >= COUNT_ACCEPTED_0 + l->drafts))
            continue;
        if (strcmp(before, counters[i].name))
            metrics_write_head(o, counters[i].name, "counter", counters[i].help);
        before = counters[i].name;
        for (int k = 0; k < n; k++) {
            write_row(o, &counters[i], model, k);
            json_out_fmt(o, "%lld\n", (long long)m[k]->counter[i]);
        }
    }

    for (int h = 0; h < HIST_COUNT; h++) {
        metrics_write_head(o, hists[h].name, "histogram", hists[h].help);
        for (int k = 0; k < n; k++)
            write_hist(o, m[k], h, model, k);
    }
}
