/* sampler.c - see sampler.h. Weights are exp((l - max) / temperature) in double with our own exp, added in the order of the ids
 * (of the rank, when a filter sorts them): the same token on every machine. */
#include "serve/sampler.h"

#include <math.h>
#include <stdlib.h>
#include "base/fmath.h"
#include "base/rnd.h"

static int before(const float *logits, int32_t a, int32_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); }

/* Insertion into a short sorted list: the common row of the scan is one comparison. */
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

static int32_t argmax(const float *logits, int64_t vocab, float max)
{
    for (int32_t v = 0; v < vocab; v++)
        if (logits[v] == max)
            return v;
    return -1;
}

struct candidate { double weight; int32_t id; };

static int by_weight(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Leaves out the far tail before sorting: whole bands of exp(-b-1) .. exp(-b) whose sum is below half of what top_p cuts off
 * cannot be among the kept ones. Returns how many are left. */
static int64_t drop_tail(const struct sampling *s, struct candidate *c, int64_t n, double total)
{
    enum { BANDS = 64 };
    double sum[BANDS] = { 0 }, tail = 0;
    int64_t kept = 0;
    int last = BANDS;
    if (s->top_p >= 1)
        return n;
    for (int64_t i = 0; i < n; i++) {
        double band = c[i].weight > 0 ? -fm_log(c[i].weight) : BANDS;
        sum[band < BANDS - 1 ? (int)band : BANDS - 1] += c[i].weight;
    }
    while (last > 1 && tail + sum[last - 1] < 0.5 * (1 - s->top_p) * total)
        tail += sum[--last];
    double least = last < BANDS ? fm_exp(-(double)last) * (1 - 1e-9) : 0;
    for (int64_t i = 0; i < n; i++)
        if (c[i].weight >= least)
            c[kept++] = c[i];
    return kept;
}

/* Sorts the candidates and applies top_k, top_p, min_p in this order. Returns how many stay, *total their sum. */
static int64_t filter(const struct sampling *s, struct candidate *c, int64_t n, double *total)
{
    double limit, sum = 0;
    int64_t kept = 0;
    if (!s->top_k)
        n = drop_tail(s, c, n, *total);
    qsort(c, (size_t)n, sizeof *c, by_weight);
    if (s->top_k && s->top_k < n) {
        n = s->top_k;
        *total = 0;
        for (int64_t i = 0; i < n; i++)
            *total += c[i].weight;
    }
    limit = s->top_p < 1 ? s->top_p * *total : INFINITY;
    while (kept < n && (!kept || (sum < limit && c[kept].weight >= s->min_p * c[0].weight)))
        sum += c[kept++].weight;
    *total = sum;
    return kept;
}

static int32_t draw(const struct candidate *c, int64_t n, double total, double unit)
{
    double sum = 0, at = unit * total;
    int32_t last = -1;
    for (int64_t i = 0; i < n; i++) {
        if (!(c[i].weight > 0))
            continue;
        sum += c[i].weight;
        last = c[i].id;
        if (sum > at)
            break;
    }
    return last;
}

int32_t sample_token(const struct sampling *s, int choice, int64_t position, const float *logits, int64_t vocab, float max)
{
    if (!isfinite(max))
        return -1;
    if (s->temperature == 0)
        return argmax(logits, vocab, max);
    struct candidate *c = malloc(sizeof *c * (size_t)vocab);
    if (!c)
        return -2;
    double total = 0;
    int64_t n = vocab;
    for (int32_t v = 0; v < vocab; v++) {
        double x = ((double)logits[v] - (double)max) / s->temperature;
        c[v] = (struct candidate){ x < -700 ? 0 : fm_exp(x), v };
        total += c[v].weight;
    }
    if (s->top_k || s->top_p < 1 || s->min_p > 0)
        n = filter(s, c, n, &total);
    int32_t id = total == total ? draw(c, n, total, rnd_unit(s->seed, rnd_stream("sample") + (uint64_t)choice, (uint64_t)position)) : -1;
    free(c);
    return id;
}
