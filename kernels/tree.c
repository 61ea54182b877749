/* tree.c - see tree.h. */
#include "kernels/tree.h"

int64_t tree_run(int64_t n)
{
    while (n > 0 && n % 2 == 0)
        n /= 2;
    return n;
}

int tree_merges(int64_t n, int64_t i)
{
    int64_t m = tree_run(n), run = i / m;
    int merges = i % m != 0; /* chained to the open run */
    if (i % m != m - 1)
        return merges;
    for (; run & 1; run >>= 1)
        merges++;
    return merges;
}

int tree_depth_before(int64_t n, int64_t i)
{
    int64_t m = tree_run(n);
    return __builtin_popcountll((unsigned long long)(i / m)) + (i % m != 0);
}

static int chain_holds_sum(int64_t n, int64_t i)
{
    (void)n;
    return i > 0;
}

const struct sum_order tree_order = { tree_merges, tree_depth_before };
/* each leaf joins the one entry that is there */
const struct sum_order chain_order = { chain_holds_sum, chain_holds_sum };

/* Leaf i of a nested tree is leaf i % inner of a group, which is one entry behind its last leaf. */
static int merges_of(const struct sum_order *o, int64_t n, int64_t inner, int64_t i)
{
    int64_t within = inner > 1 ? i % inner : 0;
    int merges = inner > 1 ? o->merges(inner, within) : 0;
    if (inner < 2)
        return o->merges(n, i);
    return within < inner - 1 ? merges : merges + o->merges(n / inner, i / inner);
}

static int depth_of(const struct sum_order *o, int64_t n, int64_t inner, int64_t i)
{
    if (inner < 2)
        return o->depth_before(n, i);
    return o->depth_before(n / inner, i / inner) + o->depth_before(inner, i % inner);
}

int nest_merges(int64_t n, int64_t inner, int64_t i) { return merges_of(&tree_order, n, inner, i); }

int nest_depth_before(int64_t n, int64_t inner, int64_t i) { return depth_of(&tree_order, n, inner, i); }

int order_merges(const struct sum_order *o, const struct tree_acc *acc, int64_t i)
{
    return merges_of(o, acc->n, acc->inner, i);
}

int order_depth_before(const struct sum_order *o, const struct tree_acc *acc, int64_t i)
{
    return depth_of(o, acc->n, acc->inner, i);
}

int tree_is_node(int64_t n, int64_t first, int64_t count)
{
    int64_t m = tree_run(n);
    if (count == 1)
        return 1;
    if (count % m || count <= 0 || first % count)
        return 0;
    int64_t runs = count / m;
    return (runs & (runs - 1)) == 0;
}

int tree_levels(int64_t n, int64_t per_call)
{
    int most = n > 0;
    /* a bound where counting would take long: an entry for each bit of the number of runs, and an open run */
    if (per_call < 1 || n / per_call > 1 << 16)
        return 64 - __builtin_clzll((unsigned long long)(n / tree_run(n))) + 1;
    for (int64_t i = per_call; i < n; i += per_call) {
        int d = tree_depth_before(n, i);
        most = d > most ? d : most;
    }
    return most;
}

int tree_depth(int64_t n) { return tree_levels(n, 1); }

int64_t block_size(int64_t n, int grain) { return (n + grain - 1) / grain; }

int64_t block_begin(int64_t n, int grain, int g)
{
    int64_t b = block_size(n, grain) * g;
    return b < n ? b : n;
}

struct leaves leaves_of(int64_t n, int grain, int first, int count)
{
    struct leaves l = { .n = count };
    int64_t begin = block_begin(n, grain, first);
    for (int i = 0; i < count; i++)
        l.end[i] = block_begin(n, grain, first + i + 1) - begin;
    return l;
}

float tree_sum(int64_t n, const float *x, int64_t stride)
{
    float stack[TREE_DEPTH_MAX];
    int depth = 0;
    for (int64_t i = 0; i < n; i++) {
        float v = x[i * stride];
        for (int k = tree_merges(n, i); k > 0; k--)
            v = stack[--depth] + v;
        stack[depth++] = v;
    }
    return n ? stack[0] : 0.0f;
}

float chain_sum(int64_t n, const float *x, int64_t stride)
{
    float sum = n ? x[0] : 0.0f;
    for (int64_t i = 1; i < n; i++)
        sum += x[i * stride];
    return sum;
}
