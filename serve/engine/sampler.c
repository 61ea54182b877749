/* sampler.c - see sampler.h. A token's weight is exp((l - max) / temperature) in float, with an exp of our
 * own; weights are added in double, in blocks of ids: the same token on every machine. A filter sets weights
 * to 0; only the few ids at its edge are sorted. */
#include "serve/engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include "base/rnd.h"
#include "kernels/fn.h"

/* Is a more likely than b? */
static int before(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* Insertion into a short sorted list: most ids cost one comparison. */
void top_tokens(const float *logits, int64_t vocab, int n, int32_t *ids)
{
    int have = 0;
    for (int32_t v = 0; v < vocab; v++) {
        if (have == n && (!n || !before(logits, v, ids[n - 1])))
            continue;
        int at = have < n ? have++ : n - 1;
        for (; at > 0 && before(logits, v, ids[at - 1]); at--)
            ids[at] = ids[at - 1];
        ids[at] = v;
    }
}

int64_t token_rank(const float *logits, int64_t vocab, int32_t id)
{
    int64_t rank = 1;
    for (int32_t v = 0; v < vocab; v++)
        rank += logits[v] > logits[id] || (logits[v] == logits[id] && v < id);
    return rank;
}

static int32_t argmax(const float *logits, int64_t vocab, float max)
{
    for (int32_t v = 0; v < vocab; v++)
        if (logits[v] == max)
            return v;
    return -1;
}

/* ---- weights ---- */

enum { BLOCK = 512 };

/* e^x for x <= 0, 0 below -87, error 2 ulp. No fused operations: loops over it become vector code on any
 * machine, with the same bits on all. */
static inline float weight_of(float x)
{
    const float magic = 0x1.8p23f;
    /* ln 2 in two parts: n times the first is exact */
    const float t = x * 0x1.715476p+0f + magic, n = t - magic,
                r = (x - n * 0x1.62ep-1f) - n * 0x1.0bfbe8p-15f;
    float q = 0x1.6a2434p-10f;
    q = q * r + 0x1.1239e2p-7f;
    q = q * r + 0x1.5558f2p-5f;
    q = q * r + 0x1.555492p-3f;
    q = q * r + 0x1.fffffcp-2f;
    const float y = fn_float(fn_bits(1.0f + (r * r * q + r)) + ((fn_bits(t) - fn_bits(magic)) << 23));
    return fn_or_nan(x, fn_select(x < -87.0f, 0.0f, y));
}

static void weigh(float *w, const float *logits, int64_t vocab, float max, double temperature)
{
    const float t = temperature > 1e-30 ? (float)temperature : 1e-30f;
    for (int64_t v = 0; v < vocab; v++)
        w[v] = weight_of((logits[v] - max) / t);
}

static double sum_of(const float *w, int64_t n)
{
    double sum[4] = { 0 };
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++)
            sum[j] += (double)w[i + j];
    for (; i < n; i++)
        sum[0] += (double)w[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The sum of all weights; that of every BLOCK ids goes to block. */
static double add_up(const float *w, int64_t vocab, double *block)
{
    double total = 0;
    for (int64_t b = 0; b * BLOCK < vocab; b++)
        total += block[b] = sum_of(w + b * BLOCK, vocab - b * BLOCK < BLOCK ? vocab - b * BLOCK : BLOCK);
    return total;
}

/* ---- filters: an excluded id weighs 0 ---- */

/* Buckets of weights by their upper bits: every weight in a higher bucket is larger. */
enum { BUCKETS = (0x3f800000 >> 19) + 2 };
static int bucket_of(float w)
{
    const int b = (int)(fn_bits(w) >> 19);
    return b < BUCKETS ? b : BUCKETS - 1;
}

struct ranked {
    float logit;
    int32_t id;
};
static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Keeps the most likely ids: at most `count`, and none after those that weigh `mass` together. Only the
 * bucket at the edge is sorted. list: [vocab] work area. */
static void keep_first(float *w, const float *logits, int64_t vocab, int64_t count, double mass,
                       struct ranked *list)
{
    int64_t number[BUCKETS] = { 0 }, have = 0, n = 0, kept = 0;
    double weight[BUCKETS] = { 0 }, sum = 0;
    int edge = BUCKETS;

    /* the bucket in which the limit is reached */
    for (int64_t v = 0; v < vocab; v++) {
        number[bucket_of(w[v])]++;
        weight[bucket_of(w[v])] += (double)w[v];
    }

    while (edge > 0 && (have + number[edge - 1] < count && sum + weight[edge - 1] < mass)) {
        edge--;
        have += number[edge];
        sum += weight[edge];
    }

    if (--edge < 0)
        return;

    /* ids below it are excluded, ids in it are sorted */
    for (int32_t v = 0; v < vocab; v++) {
        const int at = bucket_of(w[v]);
        if (at == edge)
            list[n++] = (struct ranked){ logits[v], v };
        else if (at < edge)
            w[v] = 0;
    }

    qsort(list, (size_t)n, sizeof *list, by_rank);
    for (; kept < n && have + kept < count && (sum < mass || have + kept == 0); kept++)
        sum += (double)w[list[kept].id];
    for (; kept < n; kept++)
        w[list[kept].id] = 0;
}

/* Applies top_k, top_p, min_p, in this order, each to what the one before kept. Returns the sum of
 * weights. */
static double filter(const struct sampling *s, float *w, const float *logits, int64_t vocab, double total,
                     double *block, struct ranked *list)
{
    if (s->top_k && s->top_k < vocab) {
        keep_first(w, logits, vocab, s->top_k, INFINITY, list);
        total = add_up(w, vocab, block);
    }
    if (s->top_p < 1)
        keep_first(w, logits, vocab, vocab + 1, s->top_p * total, list);
    for (int64_t v = 0; s->min_p > 0 && v < vocab; v++)
        w[v] = (double)w[v] < s->min_p ? 0 : w[v]; /* the most likely weighs 1 */
    return add_up(w, vocab, block);
}

/* ---- drawing ---- */

/* The id at which the sum of weights, in the order of ids, exceeds `at`; where rounding keeps the sum below,
 * the last id with a weight. */
static int32_t find(const float *w, int64_t vocab, const double *block, double at)
{
    double sum = 0;
    int64_t b = 0, v;
    for (; (b + 1) * BLOCK < vocab && sum + block[b] <= at; b++)
        sum += block[b];
    for (v = b * BLOCK; v < vocab; v++) {
        sum += (double)w[v];
        if (w[v] > 0 && sum > at)
            return (int32_t)v;
    }
    while (v > 0 && !(w[v - 1] > 0))
        v--;
    return (int32_t)(v - 1);
}

int32_t sample_token(const struct sampling *s, int choice, int64_t position, const float *logits,
                     int64_t vocab, float max)
{
    if (!isfinite(max))
        return -1;
    if (s->temperature == 0)
        return argmax(logits, vocab, max);

    const int filtered = s->top_k || s->top_p < 1 || s->min_p > 0;
    float *w = malloc(sizeof *w * (size_t)vocab);
    double *block = malloc(sizeof *block * (size_t)(vocab / BLOCK + 1));
    struct ranked *list = filtered ? malloc(sizeof *list * (size_t)vocab) : NULL;
    int32_t id = -2;
    if (w && block && (list || !filtered)) {
        weigh(w, logits, vocab, max, s->temperature);
        double total = add_up(w, vocab, block);
        if (filtered && total == total)
            total = filter(s, w, logits, vocab, total, block, list);
        id = total == total
                 ? find(w, vocab, block,
                        rnd_unit(s->seed, rnd_stream("sample") + (uint64_t)choice, (uint64_t)position) *
                            total)
                 : -1;
    }

    free(w);
    free(block);
    free(list);
    return id;
}
