/* reduce.h - element by element over the ranks' arrays: the tree sum of the contract, the maximum, the
 * integer sum. */
#ifndef SHARDLINE_COMM_REDUCE_H
#define SHARDLINE_COMM_REDUCE_H

#include <stddef.h>
#include <stdint.h>

enum sum_kind { SUM_TREE, SUM_MAX, SUM_I64, SUM_KINDS };

size_t sum_size(enum sum_kind kind); /* bytes of one element: 4 or 8 */
/* out[i] = over in[0][i], in[1][i] … in[n_in-1][i]; out may be one of them. SUM_TREE: Tree(n_in),
 * kernels/tree.h. SUM_MAX: of floats, a NaN wins (and comes out as the one quiet NaN), +0 is above -0.
 * SUM_I64: modulo 2^64. n_in <= SUM_RANKS_MAX. */
#define SUM_RANKS_MAX 4096
void sum_over(enum sum_kind kind, void *out, void *const *in, int n_in, int64_t n);

#endif
