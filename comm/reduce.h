/* reduce.h - sums element by element over the arrays of several ranks: the tree sum of the numerics contract,
 * the maximum, the sum of integers. Pure functions. */
#ifndef SHARDLINE_COMM_REDUCE_H
#define SHARDLINE_COMM_REDUCE_H

#include <stddef.h>
#include <stdint.h>

enum sum_kind {
    SUM_TREE, /* floats: Tree(n_in), kernels/tree.h */
    SUM_MAX,  /* floats: NaN wins, as the one quiet NaN; +0 is above -0 */
    SUM_I64,  /* int64_t, modulo 2^64 */
    SUM_KINDS
};

#define SUM_RANKS_MAX 4096

/* Bytes of one element: 4 or 8. */
size_t sum_size(enum sum_kind kind);

/* out[i] = sum over in[0][i], in[1][i] … in[n_in - 1][i] for i < n. out may be one of the arrays.
 * n_in <= SUM_RANKS_MAX. inner: the tree is nested (kernels/tree.h); 0: it is not. */
void sum_over(enum sum_kind kind, void *out, void *const *in, int n_in, int inner, int64_t n);

#endif
