/* attn_tile.cuh - what attention's kernels on tensor cores have in common: tiles in shared memory, the
 * products of a warp, masks.
 *
 * A tile is bf16, rows of COLS (a multiple of 64) elements. A row's pieces of 16 bytes lie in the order
 * piece ^ (row mod 8), so that eight rows' pieces of one column, which ldmatrix takes at once, lie in
 * different banks.
 *
 * Rows of queries are numbered over the positions of a sequence and the query heads of one kv head: row i is
 * position i / group, head i mod group. So all heads of a kv head share the keys that a block loads, and a
 * sequence that decodes fills one 16-row operand.
 *
 * A row of a 16-row operand is on its own: what mma makes of it depends on no other row, nor on which of the
 * sixteen it is. Every kernel here runs the same products over the same 64 keys in the same order, so a
 * row's bits are the same alone, in any tile of any call, in decode and in prefill. */
#ifndef SHARDLINE_KERNELS_CUDA_ATTN_ATTN_TILE_CUH
#define SHARDLINE_KERNELS_CUDA_ATTN_ATTN_TILE_CUH

#include "kernels/cuda/warp.cuh"
#include "kernels/lanes.h"

enum { KEYS = ATTN_PAGE, KEY_TILES = KEYS / 8, KEY_STEPS = KEYS / 16, ROWS_OF_WARP = 16, PIECE = 8 };

/* a block's work: rows from `row` on; attn_fwd.cuh, attn_bwd.cuh */
struct attn_item {
    int32_t seq, row, segment, part;
};
struct attn_args {
    struct attn a;
    const struct attn_item *item;
    struct mat q, out, dout, dq, dk, dv;
    /* d: D, [rows][n_heads] as lse; part: sums of pieces of the work (attn_few.cuh, attn_bwd.cuh) */
    float *lse, *d, *part;
    int part_rows; /* of the sequences that attn_few.cuh has, the most */
    int aligned;   /* rows of q and dout begin at multiples of 16 bytes */
};

FN int lane_id() { return (int)(threadIdx.x % LANES); }
FN int warp_id() { return (int)(threadIdx.x / LANES); }

/* ---- one sequence and one kv head ---- */
/* steps: of 16 over head_dim; n: rows */
struct view {
    const struct attn *a;
    const struct attn_seq *seq;
    int kv, group, d, steps, n;
};

FN struct view view_of_seq(const struct attn *a, const struct attn_seq *s, int kv)
{
    const int group = a->n_heads / a->n_kv;
    struct view v = { a, s, kv, group, a->head_dim, (a->head_dim + 15) / 16, (int)s->n_rows * group };
    return v;
}
FN struct view view_of(const struct attn *a, int seq, int kv) { return view_of_seq(a, a->seq + seq, kv); }
FN int pos_of(const struct view *v, int i) { return (int)v->seq->pos + (i < v->n ? i : v->n - 1) / v->group; }
FN int first_of(const struct view *v, int pos)
{
    return v->a->window > 0 && pos >= v->a->window ? pos - (int)v->a->window + 1 : 0;
}
FN int64_t row_of(const struct view *v, int i) { return v->seq->row + i / v->group; }
FN int head_of(const struct view *v, int i) { return v->kv * v->group + i % v->group; }
FN int64_t stat_of(const struct view *v, int i) { return row_of(v, i) * v->a->n_heads + head_of(v, i); }
FN const uint16_t *page_of(const struct view *v, int block)
{
    return (const uint16_t *)(v->seq->page[block] + v->a->page_off) + (size_t)v->kv * 2 * KEYS * (size_t)v->d;
}

/* ---- tiles ---- */
template <int COLS> FN int cell(int row, int piece) { return row * COLS + (piece ^ (row & 7)) * PIECE; }

/* Rows [first, first + n) of m as the view numbers them; zeros behind the last. */
template <int DIM>
FN void copy_queries(uint16_t *t, const struct view *v, struct mat m, int first, int n, int aligned)
{
    const int piece = (int)threadIdx.x % (DIM / PIECE), step = (int)blockDim.x / (DIM / PIECE);
    for (int r = (int)threadIdx.x / (DIM / PIECE); r < n && piece < v->d / PIECE; r += step) {
        const int i = first + r, there = i < v->n;
        const uint16_t *from = (const uint16_t *)m.p +
                               (there ? row_of(v, i) * m.ld + (int64_t)head_of(v, i) * v->d + piece * PIECE
                                      : 0);
        uint16_t *to = t + cell<DIM>(r, piece);
        if (aligned)
            cp_async16(to, from, there ? 16 : 0);
        else
            for (int e = 0; e < PIECE; e++)
                to[e] = there ? from[e] : (uint16_t)0;
    }
}

/* The two halves of a page by `n` threads, this one the thread'th: keys [d][64], values [64][d]. */
FN void copy_keys(uint16_t *t, const struct view *v, int block, int thread, int n)
{
    const uint16_t *k = page_of(v, block);
    for (int i = thread; i < v->d * (KEYS / PIECE); i += n)
        cp_async16(t + cell<KEYS>(i / (KEYS / PIECE), i % (KEYS / PIECE)), k + (int64_t)i * PIECE, 16);
}
template <int DIM> FN void copy_values(uint16_t *t, const struct view *v, int block, int thread, int n)
{
    const uint16_t *x = page_of(v, block) + (int64_t)KEYS * v->d;
    const int piece = thread % (DIM / PIECE);
    for (int r = thread / (DIM / PIECE); r < KEYS && piece < v->d / PIECE; r += n / (DIM / PIECE))
        cp_async16(t + cell<DIM>(r, piece), x + (int64_t)r * v->d + piece * PIECE, 16);
}

/* What is not copied to must be zero where head_dim is no multiple of 16: 0 * NaN. */
FN void clear_tiles(uint16_t *t, int n, const struct view *v)
{
    if (v->d % 16 == 0)
        return;
    for (int i = (int)threadIdx.x; i < n / 2; i += (int)blockDim.x)
        ((uint32_t *)t)[i] = 0;
    __syncthreads();
}

/* Operands of 16 x 16 at (row, col) of a tile. near: [m][k] as A, or transposed [k][n] as two B; far: [n][k]
 * as two B, or transposed [k][m] as A. */
template <int COLS> FN const uint16_t *near_cell(const uint16_t *t, int row, int col)
{
    return t + cell<COLS>(row + (lane_id() & 15), col / PIECE + (lane_id() >> 4));
}
template <int COLS> FN const uint16_t *far_cell(const uint16_t *t, int row, int col)
{
    return t + cell<COLS>(row + (lane_id() >> 4) * 8 + (lane_id() & 7), col / PIECE + (lane_id() >> 3 & 1));
}

/* ---- products of a warp; element e of a fragment is row lane / 4 + 8 (e / 2), column 2 (lane mod 4) + e
 * mod 2 ---- */
FN int fragment_col(int n, int e) { return n * 8 + lane_id() % 4 * 2 + (e & 1); }

/* s[16 rows][64] = rows of x over head_dim with columns of y, chained in steps of 16. load_a(a, k0) and
 * load_b(b, n0, k0) load the operands. */
template <int DIM, class A, class B> FN void dots(float s[KEY_TILES][4], int steps, A load_a, B load_b)
{
    GPU_UNROLL
    for (int n = 0; n < KEY_TILES; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    GPU_UNROLL
    for (int k = 0; k < DIM / 16; k++)
        if (k < steps) {
            uint32_t a[4];
            load_a(a, k * 16);
            GPU_UNROLL
            for (int n = 0; n < KEY_TILES; n += 2) {
                uint32_t b[4];
                load_b(b, n * 8, k * 16);
                mma_bf16(s[n], a, b);
                mma_bf16(s[n + 1], a, b + 2);
            }
        }
}

/* Scores, unscaled: rows m0.. of q [rows][DIM] with keys [DIM][64]. */
template <int DIM>
FN void dot_keys(float s[KEY_TILES][4], const uint16_t *q, int m0, const uint16_t *k, int steps)
{
    dots<DIM>(
        s, steps, [=](uint32_t *a, int k0) { ldmatrix<4>(a, near_cell<DIM>(q, m0, k0)); },
        [=](uint32_t *b, int n0, int k0) { ldmatrix_trans<4>(b, near_cell<KEYS>(k, k0, n0)); });
}

/* The fragments of a 16 x 64 operand, rounded to bf16. */
FN void as_operand(uint32_t p[KEY_STEPS][4], const float s[KEY_TILES][4])
{
    GPU_UNROLL
    for (int k = 0; k < KEY_STEPS; k++) {
        p[k][0] = bf16_pair(s[2 * k][0], s[2 * k][1]);
        p[k][1] = bf16_pair(s[2 * k][2], s[2 * k][3]);
        p[k][2] = bf16_pair(s[2 * k + 1][0], s[2 * k + 1][1]);
        p[k][3] = bf16_pair(s[2 * k + 1][2], s[2 * k + 1][3]);
    }
}

/* p [16][64] times y, a chain from +0 over the 64: use(n, part) gets 16 columns at a time, n of them before.
 * TRANSPOSED: y is [64][DIM], else
 * [DIM][64]. */
template <int DIM, int TRANSPOSED, class Use>
FN void times(const uint32_t p[KEY_STEPS][4], const uint16_t *y, int steps, Use use)
{
    GPU_UNROLL
    for (int n = 0; n < DIM / 16; n++)
        if (n < steps) {
            float part[2][4] = { { 0 } };
            GPU_UNROLL
            for (int k = 0; k < KEY_STEPS; k++) {
                uint32_t b[4];
                if (TRANSPOSED)
                    ldmatrix_trans<4>(b, near_cell<DIM>(y, k * 16, n * 16));
                else
                    ldmatrix<4>(b, far_cell<KEYS>(y, n * 16, k * 16));
                mma_bf16(part[0], p[k], b);
                mma_bf16(part[1], p[k], b + 2);
            }
            use(n, part);
        }
}

#endif
