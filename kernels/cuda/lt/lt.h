/* lt.h - products by cuBLASLt, with fixed algorithms: the same for every number of rows, no split-K.
 *
 * The op's matrices are row-major, the library's column-major: y[m][n] is its n x m matrix D = op(A) op(B),
 * as it lies.
 *
 *     form       D          A (op)         B (op)        fixed by
 *     linear     n x rows   w  (T) n x k   x  (N)        n, k
 *     dx         k x rows   w  (N) k x n   dy (N)        k, n
 *     dw         k x n      x  (N) k x T   dy (T)        k, n, T (a sequence)
 *
 * The library lists its algorithms for a fixed number of rows; the first one without split-K that fits the
 * fixed workspace is taken. So the same library on the same GPU makes the same choice, whatever was
 * computed before. A table (lt_table.h) may name another one of that list. Rows are run in multiples of
 * LT_ROWS; the rest goes through scratch. Leaves (numerics contract): a strided batch over leaves of one
 * length into fp32 partials, then the op tree_add.
 *
 * Weights are packed as rows, [n][ld], a row as long as panels_bytes gives it. */
#ifndef SHARDLINE_KERNELS_CUDA_LT_LT_H
#define SHARDLINE_KERNELS_CUDA_LT_LT_H

#include "kernels/kernels.h"

#define LT_ROWS 64

struct lt;

/* Opens the library: $SHARDLINE_CUBLASLT, or libcublasLt.so.13, .12. stream: the device's. ERR_DEVICE: it
 * was not found, or is too old. */
int lt_open(struct lt **out, struct dev *d, void *stream, struct err *e);
/* NULL: nothing. */
void lt_close(struct lt *l);
/* The file that was opened and the library's version: "libcublasLt.so.13 130100". */
const char *lt_name(const struct lt *l);
/* The device that it was opened for. */
struct dev *lt_dev(const struct lt *l);
/* The first thing that failed since the last call: ERR_DEVICE. */
int lt_check(struct lt *l, struct err *e);

/* The ops of kernels.h. A shape that no algorithm fits gives NaN and an error for lt_check. */
void lt_linear_pack(struct lt *l, struct panels *p, int n_w, const struct mat *w);
void lt_linear(struct lt *l, struct mat y, struct mat x, const struct panels *w);
void lt_linear_dx(struct lt *l, struct mat dx, int n_w, const struct mat *dy, const struct mat *w,
                  const struct leaves *leaves);
void lt_linear_dw(struct lt *l, const struct tree_acc *acc, int64_t ld, struct mat dy, struct mat x,
                  int n_seq, int64_t seq_len);

/* ---- one call of the library, for lt_ops.c and benches ---- */
enum lt_form { LT_LINEAR, LT_DX, LT_DW };
/* row-major; step: elements from one of the batch to the next */
struct lt_operand {
    const void *p;
    int64_t ld, step;
};
struct lt_product {
    enum lt_form form;
    enum dtype dt;             /* of a and b; d is fp32 */
    int64_t rows, cols, inner; /* of the row-major result, and of the contraction */
    int batch;
    struct lt_operand a, b; /* a: w, w, x; b: x, dy, dy */
    float *d;
    int64_t ld, step;
    int add; /* to what d holds */
};
/* Starts it. 0: failed, recorded for lt_check. */
int lt_run(struct lt *l, const struct lt_product *p);
/* The same with the n-th algorithm of the library's list, fit or not, for comparisons. 0: the list is
 * shorter or the algorithm cannot run; nothing is recorded. */
int lt_run_nth(struct lt *l, const struct lt_product *p, int n);
/* The number of choices so far, and the i-th as a line "product linear bf16 cols 4096 inner 4096 batch 1
 * rows 64 algo 21 tile 20 stages 4 …". */
int lt_n_choices(const struct lt *l);
void lt_choice_text(const struct lt *l, int i, char *text, size_t bytes);

#endif
