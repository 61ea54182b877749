/* reduce.c - see reduce.h. The tree of one element is a chain of dependent additions, so 16 elements are
 * summed side by side. */
#include "comm/reduce.h"

#include <math.h>
#include <string.h>

#include "base/alter.h"
#include "kernels/tree.h"

#define LANES 16
typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* merges after leaf i (tree_merges, nest_merges) */
struct order {
    int n_in;
    unsigned char merges[SUM_RANKS_MAX];
};

static void order_set(struct order *o, const struct sum_order *sum, int n_in, int inner)
{
    const struct tree_acc nested = { .n = n_in, .inner = inner };
    o->n_in = n_in;
    for (int i = 0; i < n_in; i++)
        o->merges[i] = (unsigned char)order_merges(sum, &nested, i);
}

static void load(vec *v, const float *p, int64_t count)
{
    if (count >= LANES) {
        *v = *(const vec *)p;
    } else {
        *v = (vec){ 0 };
        memcpy(v, p, (size_t)count * 4);
    }
}

/* Up to LANES elements: the stack of partial sums of tree.h. */
static void tree_lanes(const struct order *o, float *out, float *const *in, int64_t at, int64_t count)
{
    vec stack[TREE_DEPTH_MAX], v;
    int depth = 0;
    for (int k = 0; k < o->n_in; k++) {
        load(&v, in[k] + at, count);
        for (int m = o->merges[k]; m > 0; m--)
            v = stack[--depth] + v;
        stack[depth++] = v;
    }
    if (count >= LANES)
        *(vec *)(out + at) = stack[0];
    else
        memcpy(out + at, stack, (size_t)count * 4);
}

/* The common cases without a stack; the same tree. */
#define AT(k) (*(const vec *)(in[k] + i))
static int64_t tree_2(float *out, float *const *in, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(vec *)(out + i) = AT(0) + AT(1);
    return i;
}

static int64_t tree_4(float *out, float *const *in, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(vec *)(out + i) = (AT(0) + AT(1)) + (AT(2) + AT(3));
    return i;
}

static int64_t tree_8(float *out, float *const *in, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(vec *)(out + i) = ((AT(0) + AT(1)) + (AT(2) + AT(3))) + ((AT(4) + AT(5)) + (AT(6) + AT(7)));
    return i;
}
#undef AT

static int64_t (*const quick[])(float *, float *const *,
                                int64_t) = { [2] = tree_2, [4] = tree_4, [8] = tree_8 };

static void tree(void *out, void *const *in, int n_in, int inner, int64_t n)
{
    float *const *x = (float *const *)in;
    const struct sum_order *sum = ORDER("comm_tree", &tree_order, &chain_order);
    int64_t i = 0;
    if (sum == &tree_order && !inner && n_in < (int)(sizeof quick / sizeof *quick) && quick[n_in])
        i = quick[n_in](out, x, n);
    if (i == n)
        return;
    struct order o;
    order_set(&o, sum, n_in, inner);
    for (; i < n; i += LANES)
        tree_lanes(&o, out, x, i, n - i);
}

static float max_of(float a, float b)
{
    if (isnan(a) || isnan(b))
        return NAN;
    if (a == b)
        return signbit(a) ? b : a;
    return a > b ? a : b;
}

static void max(void *out, void *const *in, int n_in, int inner, int64_t n)
{
    (void)inner;
    float *y = out, *const *x = (float *const *)in;
    for (int64_t i = 0; i < n; i++) {
        float m = x[0][i];
        for (int k = 1; k < n_in; k++)
            m = max_of(m, x[k][i]);
        y[i] = m;
    }
}

static void i64(void *out, void *const *in, int n_in, int inner, int64_t n)
{
    (void)inner;
    uint64_t *y = out, *const *x = (uint64_t *const *)in;
    for (int64_t i = 0; i < n; i++) {
        uint64_t s = x[0][i];
        for (int k = 1; k < n_in; k++)
            s += x[k][i];
        y[i] = s;
    }
}

static const struct {
    size_t size;
    void (*over)(void *, void *const *, int, int, int64_t);
} kinds[SUM_KINDS] = {
    [SUM_TREE] = { 4, tree },
    [SUM_MAX] = { 4, max },
    [SUM_I64] = { 8, i64 },
};

size_t sum_size(enum sum_kind kind) { return kinds[kind].size; }

void sum_over(enum sum_kind kind, void *out, void *const *in, int n_in, int inner, int64_t n)
{
    kinds[kind].over(out, in, n_in, inner, n);
}
