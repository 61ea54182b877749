/* base_trace_test.c - the trace: valid JSON with the events that were recorded, oldest first; a full ring
 * keeps the newest. */
#include <jansson.h>
#include <stdlib.h>

#include "base/pool.h"
#include "base/trace.h"
#include "kernels/kernels.h"
#include "tests/test.h"

static struct err err;

/* The events of t as they come out of a file. */
static json_t *written(const struct trace *t, int rank)
{
    char *text = NULL, path[4200];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/trace.json", test_tmp_dir());
    CHECK_INT(trace_json(t, rank, &text, &bytes, &err), 0);
    CHECK_INT(trace_write(path, text, bytes, &err), 0);
    free(text);
    json_error_t why;
    json_t *all = json_load_file(path, 0, &why), *events = json_incref(json_object_get(all, "traceEvents"));
    if (!events)
        test_fail(__FILE__, __LINE__, "line %d: %s", why.line, why.text);
    json_decref(all);
    return events;
}

static const char *text_of(json_t *event, const char *key)
{
    return json_string_value(json_object_get(event, key));
}
static const char *arg_of(json_t *event, const char *key)
{
    return json_string_value(json_object_get(json_object_get(event, "args"), key));
}

/* The k-th event named so, or NULL. */
static json_t *find(json_t *events, const char *name, int k)
{
    size_t i;
    json_t *x;
    json_array_foreach(events, i, x)
        if (!strcmp(text_of(x, "name"), name) && k-- == 0)
            return x;
    return NULL;
}

TEST(a_trace_that_is_off_costs_nothing_and_records_nothing)
{
    CHECK_INT(trace_now(NULL), 0);
    trace_span(NULL, TRACE_WAIT, "wait", NULL, 0, (struct trace_args){ 0 });
    trace_span_of(NULL, 3, TRACE_WORK, "x", 0);
    trace_label(NULL, "x");
    trace_close(NULL);
}

TEST(events_keep_name_kind_thread_bytes_group_and_shape)
{
    struct trace *t;
    CHECK_INT(trace_open(&t, 2, &err), 0);
    int64_t begin = trace_now(t);
    CHECK(begin >= 0);
    trace_span(t, TRACE_COMM, "all_reduce", "dp", begin, (struct trace_args){ .bytes = 4096, .n_ranks = 4 });
    trace_span(t, TRACE_KERNEL, "linear", NULL, begin, (struct trace_args){ .shape = { 7, 8, 9 } });
    trace_span(t, TRACE_PHASE, "say \"no\" \\ and\nno more than 47 bytes of any name, please", NULL, begin,
               (struct trace_args){ 0 });
    trace_span_of(t, 1, TRACE_WORK, "linear", begin);
    trace_span_of(t, 2, TRACE_WORK, "nobody", begin); /* the trace has two threads */
    json_t *events = written(t, 5), *a = find(events, "all_reduce", 0), *k = find(events, "linear", 0),
           *w = find(events, "linear", 1);
    CHECK(a && k && w && !find(events, "nobody", 0));
    CHECK_STR(text_of(a, "cat"), "comm");
    CHECK_INT(json_integer_value(json_object_get(a, "pid")), 5);
    CHECK_INT(json_integer_value(json_object_get(json_object_get(a, "args"), "bytes")), 4096);
    CHECK_STR(arg_of(a, "group"), "dp");
    CHECK_INT(json_integer_value(json_object_get(json_object_get(a, "args"), "ranks")), 4);
    CHECK_STR(arg_of(k, "shape"), "7x8x9");
    CHECK_INT(json_integer_value(json_object_get(w, "tid")), 1);
    CHECK(json_real_value(json_object_get(a, "dur")) >= 0);
    CHECK(find(events, "say \"no\" \\ andno more than 47 bytes of any name,", 0) ||
          find(events, "say \"no\" \\ andno more than 47 bytes of any nam", 0));
    json_decref(events);
    trace_close(t);
}

TEST(a_full_ring_keeps_the_newest_in_order_and_says_how_many_went)
{
    struct trace *t;
    char name[16];
    int n = (1 << 16) + 10;
    CHECK_INT(trace_open(&t, 1, &err), 0);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "e%d", i);
        trace_span(t, TRACE_WAIT, name, NULL, 0, (struct trace_args){ 0 });
    }
    CHECK_INT(trace_dropped(t), 10);
    json_t *events = written(t, 0);
    CHECK_INT(json_array_size(events), (1 << 16) + 2); /* and the names of process and thread */
    CHECK_STR(text_of(json_array_get(events, 2), "name"), "e10");
    snprintf(name, sizeof name, "e%d", n - 1);
    CHECK_STR(text_of(json_array_get(events, (1 << 16) + 1), "name"), name);
    json_decref(events);
    trace_close(t);
}

TEST(ops_come_with_their_shapes_and_threads_with_the_op_they_work_on)
{
    struct trace *t;
    struct dev *d;
    struct mem mem = { 0 };
    enum { N = 1 << 20 };
    CHECK_INT(dev_open(&d, "cpu", 3, &mem, &err), 0);
    CHECK_INT(trace_open(&t, 3, &err), 0);
    float *x = dev_alloc(d, MEM_WORK, N * 4), *y = dev_alloc(d, MEM_WORK, N * 4),
          *rstd = dev_alloc(d, MEM_WORK, 1024 * 4);
    int64_t n = N;
    KERNEL(d, round_to, y, DT_F32, x, n); /* off: not recorded */
    d->trace = t;
    pool_trace(d->pool, t);
    KERNEL(d, round_to, y, DT_F32, x, n);
    for (int i = 0; i < 50; i++)
        KERNEL(d, rms_norm, mat_of(y, DT_F32, 1024, 1024, 1024), rstd, mat_of(x, DT_F32, 1024, 1024, 1024), x,
               0, 1e-5f);
    json_t *events = written(t, 0), *r = find(events, "round_to", 0), *m = find(events, "rms_norm", 49);
    CHECK(r && m);
    CHECK_STR(arg_of(r, "shape"), "1048576");
    CHECK_STR(arg_of(m, "shape"), "1024x1024");
    int workers = 0;
    for (int k = 0; (m = find(events, "rms_norm", k)); k++)
        workers += json_integer_value(json_object_get(m, "tid")) > 0;
    CHECK(workers > 0);
    json_decref(events);
    dev_free(d, x);
    dev_free(d, y);
    dev_free(d, rstd);
    dev_close(d);
    trace_close(t);
}

TEST(a_trace_that_cannot_be_written_names_the_file)
{
    CHECK_INT(trace_write("/nowhere/t.json", "", 0, &err), -ERR_FILE);
    CHECK_HAS(err.text, "cannot write /nowhere/t.json: ");
}
