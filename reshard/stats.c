/* stats.c - statistics of tensors: least, greatest and mean of the finite values, how many are NaN or
 * infinite. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/pool.h"
#include "reshard/cast.h"
#include "reshard/report.h"

#define CHUNK ((int64_t)1 << 18) /* elements read at once */

struct sums {
    struct tensor_stats s;
    double sum;
};
struct survey {
    struct ckpt *c;
    struct tensor_stats *out;
    struct log *log;
    double start_s, all_bytes;
    pthread_mutex_t lock;
    double bytes;
    struct err err; /* the first one; code 0: none */
};

static void add_value(struct sums *a, double v)
{
    if (isnan(v)) {
        a->s.n_nan++;
    } else if (isinf(v)) {
        a->s.n_inf++;
    } else {
        a->s.n_finite++;
        a->s.min = v < a->s.min ? v : a->s.min;
        a->s.max = v > a->s.max ? v : a->s.max;
        a->sum += v;
    }
}

/* A loop without branches for chunks of fp32 without NaN and Inf: nearly all there are. */
static void add_floats(struct sums *a, const float *x, int64_t n)
{
    float lo = x[0], hi = x[0];
    double sum = 0;
    uint32_t odd = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        odd |= (u & 0x7f800000u) == 0x7f800000u;
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
        sum += (double)x[i];
    }

    if (odd) {
        for (int64_t i = 0; i < n; i++)
            add_value(a, (double)x[i]);
        return;
    }
    a->s.n_finite += n;
    a->s.min = (double)lo < a->s.min ? (double)lo : a->s.min;
    a->s.max = (double)hi > a->s.max ? (double)hi : a->s.max;
    a->sum += sum;
}

static void add_chunk(struct sums *a, enum stored_dtype t, const void *data, float *floats, int64_t n)
{
    if (t == STORED_F32 || t == STORED_BF16 || t == STORED_F16) {
        cast_run(t, STORED_F32, data, floats, n);
        add_floats(a, floats, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        add_value(a, stored_value(t, data, i));
}

static void add_bytes(struct survey *s, int64_t bytes)
{
    pthread_mutex_lock(&s->lock);
    s->bytes += (double)bytes;
    if (s->log)
        log_rate(s->log, "read", s->bytes, s->all_bytes, s->start_s);
    pthread_mutex_unlock(&s->lock);
}

static int one_tensor(struct survey *s, int i, char *data, float *floats, struct err *e)
{
    const struct ckpt_tensor *t = ckpt_tensor(s->c, i);
    struct box whole = box_whole(t->n_dims, t->shape);
    struct sums a = { .s = { .min = INFINITY, .max = -INFINITY } };
    for (int64_t lo = 0, n = box_count(&whole); lo < n; lo += CHUNK) {
        int64_t hi = lo + CHUNK < n ? lo + CHUNK : n;
        int rc = ckpt_read_range(s->c, i, &whole, lo, hi, data, e);
        if (rc < 0)
            return rc;
        add_chunk(&a, t->dtype, data, floats, hi - lo);
        add_bytes(s, stored_bytes(t->dtype, hi - lo));
    }
    a.s.mean = a.s.n_finite ? a.sum / (double)a.s.n_finite : 0;
    if (!a.s.n_finite)
        a.s.min = a.s.max = 0;
    s->out[i] = a.s;
    return 0;
}

static void survey_task(void *arg, int64_t i, int thread)
{
    struct survey *s = arg;
    struct err e = { 0 };
    (void)thread;
    pthread_mutex_lock(&s->lock);
    int failed = s->err.code;
    pthread_mutex_unlock(&s->lock);
    if (failed)
        return;
    char *data = malloc((size_t)CHUNK * 8);
    float *floats = malloc((size_t)CHUNK * sizeof *floats);
    int rc = data && floats ? one_tensor(s, (int)i, data, floats, &e)
                            : err_set(&e, ERR_MEMORY, "no memory for the buffers of a thread");
    free(data);
    free(floats);
    pthread_mutex_lock(&s->lock);
    if (rc < 0 && !s->err.code)
        s->err = e;
    pthread_mutex_unlock(&s->lock);
}

int stats_of_all(struct ckpt *c, int n_threads, struct log *log, struct tensor_stats *out, struct err *e)
{
    struct survey s = { .c = c, .out = out, .log = log, .start_s = clock_s() };
    struct pool *pool;
    int rc = pool_open(&pool, n_threads, e);
    if (rc < 0)
        return rc;
    for (int i = 0; i < ckpt_n_tensors(c); i++)
        s.all_bytes += (double)tensor_bytes(ckpt_tensor(c, i));
    pthread_mutex_init(&s.lock, NULL);
    pool_run(pool, ckpt_n_tensors(c), survey_task, &s);
    pool_close(pool);
    pthread_mutex_destroy(&s.lock);
    if (s.err.code)
        *e = s.err;
    return -s.err.code;
}
