/* gemm_tile.cuh - what the products on tensor cores are made of: operands, the walk along a contraction, tiles in shared memory, fragments.
 *
 * The order of a bf16 product, for every number of rows, tile and kernel:
 *   leaf g: its parts in turn (linear_dx: one a matrix), each cut in steps of 16 from its own beginning, the last one filled with zeros;
 *           acc = mma(step, acc), ascending, from +0                              then Tree over leaves, as everywhere
 * What mma rounds inside of a step is the GPU's; rows and columns of it know nothing of each other.
 *
 * Operands: A by rows (elements of the contraction are neighbours) or across (elements of the result are), B always across: packed panels of
 * 32 columns, or a matrix as it is. In shared memory a tile keeps its operand's form, 16-byte pieces of a row exchanged so that neither copies in
 * nor ldmatrix out meet in a bank. */
#ifndef SHARDLINE_KERNELS_CUDA_GEMM_TILE_CUH
#define SHARDLINE_KERNELS_CUDA_GEMM_TILE_CUH

#include "kernels/cuda/tree.cuh"
#include "kernels/cuda/warp.cuh"

#define GPU static __device__ __forceinline__
#define GPU_AND_HOST static __host__ __device__ __forceinline__
constexpr int PARTS_MAX = 4, DEPTH_STEP = 16, DEPTH = 32, PANEL = 32;  /* DEPTH: of the contraction in a tile */

/* Element (i, k): by rows at i * ld + k, across at (i / PANEL) * panel + k * ld + i % PANEL. */
struct side { const void *p; int64_t ld, panel; };
/* The whole of a product: y = level[0] of a tree that begins here, or entries of a tree that goes on. */
struct gemm_job {
    int rows, cols;                      /* of the result */
    int64_t ld;
    int n_parts, n_leaves, leaf;         /* leaf > 0: all are that long */
    struct side a[PARTS_MAX], b[PARTS_MAX];
    struct leaves l[PARTS_MAX];
    struct tree_acc acc;
};

GPU_AND_HOST int leaf_end(const struct gemm_job &j, int g, int s) { return g < 0 ? 0 : j.leaf ? (g + 1) * j.leaf : (int)j.l[s].end[g]; }

/* Pieces of at most STEP elements of the contraction, leaf after leaf, part after part. */
template <int STEP> struct walk {
    int g, s, k, end;
    GPU_METHOD void settle(const struct gemm_job &j)
    {
        while (k >= end) {
            if (++s == j.n_parts) {
                s = 0;
                if (++g >= j.n_leaves)
                    return;
            }
            k = leaf_end(j, g - 1, s);
            end = leaf_end(j, g, s);
        }
    }
    /* From leaf g on. */
    GPU_METHOD void begin(const struct gemm_job &j, int first)
    {
        g = first;
        s = 0;
        k = leaf_end(j, g - 1, 0);
        end = leaf_end(j, g, 0);
        settle(j);
    }
    GPU_METHOD void next(const struct gemm_job &j)
    {
        k += STEP;
        settle(j);
    }
    GPU_METHOD int length() const { return end - k < STEP ? end - k : STEP; }
};

/* ---- tiles: PER pieces of 16 bytes a row ---- */
template <int PER> GPU int piece_at(int row, int piece) { return (row * PER + (PER == 4 ? piece ^ (row >> 1 & 3) : piece ^ (row & 7))) * 8; }

GPU int clamp8(int n) { return n < 0 ? 0 : n > 8 ? 8 : n; }
GPU_AND_HOST int aligned16(const void *p, int64_t ld) { return (((uintptr_t)p | (uintptr_t)(ld * 2)) & 15) == 0; }

/* 8 halves of which n are there, wherever they lie. */
GPU void bring_slowly(uint16_t *to, const uint16_t *from, int n)
{
    GPU_LOOP
    for (int i = 0; i < 8; i++)
        to[i] = i < n ? from[i] : 0;
}

/* Rows [r0, r0 + ROWS) of `rows`, elements [k, k + length) of the contraction: tile [ROWS][DEPTH]. A thread's pieces lie DOWN rows apart, in the
 * same place of an exchanged row: one addition each. Addresses where n is 0 may lie outside and are not read. */
template <int ROWS, int THREADS> GPU void bring_rows(uint16_t *tile, const struct side &x, int r0, int rows, int k, int length, int thread)
{
    constexpr int DOWN = THREADS / 4;
    static_assert(DOWN % 8 == 0 && ROWS * 4 % THREADS == 0);
    const int fast = aligned16(x.p, x.ld) && (k & 7) == 0, piece = thread % 4, n = clamp8(length - piece * 8);
    const uint16_t *from = (const uint16_t *)x.p + (int64_t)(r0 + thread / 4) * x.ld + k + piece * 8;
    uint16_t *to = tile + piece_at<4>(thread / 4, piece);
    int left = rows - r0 - thread / 4;
    if (!fast) {
        GPU_LOOP
        for (int i = 0; i < ROWS * 4 / THREADS; i++, from += DOWN * x.ld, left -= DOWN)
            bring_slowly(to + i * DOWN * DEPTH, from, left > 0 ? n : 0);
        return;
    }
    GPU_UNROLL
    for (int i = 0; i < ROWS * 4 / THREADS; i++, from += DOWN * x.ld, left -= DOWN)
        cp_async16(to + i * DOWN * DEPTH, from, left > 0 ? 2 * n : 0);
}

/* Columns [c0, c0 + COLS) of `cols`, the same elements: tile [DEPTH][COLS]. */
template <int COLS, int THREADS> GPU void bring_across(uint16_t *tile, const struct side &x, int c0, int cols, int k, int length, int thread)
{
    constexpr int PER = COLS / 8, DOWN = THREADS / PER;
    static_assert(DOWN % 8 == 0 && DEPTH * PER % THREADS == 0);
    const int fast = aligned16(x.p, x.ld | x.panel), piece = thread % PER;
    const int c = c0 + piece * 8, n = clamp8(cols - c);
    const uint16_t *from = (const uint16_t *)x.p + c / PANEL * x.panel + c % PANEL + (k + thread / PER) * x.ld;
    uint16_t *to = tile + piece_at<PER>(thread / PER, piece);
    length -= thread / PER;
    if (!fast) {
        GPU_LOOP
        for (int i = 0; i < DEPTH * PER / THREADS; i++, from += DOWN * x.ld, length -= DOWN)
            bring_slowly(to + i * DOWN * COLS, from, length > 0 ? n : 0);
        return;
    }
    GPU_UNROLL
    for (int i = 0; i < DEPTH * PER / THREADS; i++, from += DOWN * x.ld, length -= DOWN)
        cp_async16(to + i * DOWN * COLS, from, length > 0 ? 2 * n : 0);
}

/* ---- fragments of step `step` of a tile: 16 rows from r, 16 columns from c ---- */
GPU void a_by_rows(uint32_t *a, const uint16_t *tile, int r, int step, int lane) { ldmatrix<4>(a, tile + piece_at<4>(r + lane % 16, step * 2 + lane / 16)); }
template <int ROWS> GPU void a_across(uint32_t *a, const uint16_t *tile, int r, int step, int lane)
{
    ldmatrix_trans<4>(a, tile + piece_at<ROWS / 8>(step * DEPTH_STEP + lane / 16 * 8 + lane % 8, r / 8 + lane / 8 % 2));
}
/* b[0..1] of columns c .. c + 7, b[2..3] of the next 8. */
template <int COLS> GPU void b_across(uint32_t *b, const uint16_t *tile, int c, int step, int lane)
{
    ldmatrix_trans<4>(b, tile + piece_at<COLS / 8>(step * DEPTH_STEP + lane % 16, c / 8 + lane / 16));
}

/* ---- partial sums: N numbers a thread; the newest in registers, older ones in shared memory of this thread alone, those of calls before
 * in the accumulator's levels ---- */
template <int N, int THREADS> struct fold {
    float top[N];
    float *slot;                         /* [slots][N][THREADS] */
    int slots, thread, depth, kept, pushed;

    GPU_METHOD void begin(const struct gemm_job &j, void *memory, int n_slots, int t)
    {
        slot = (float *)memory;
        slots = n_slots;
        thread = t;
        pushed = 0;
        depth = kept = gpu_tree_depth_before(j.acc.n, j.acc.next);
    }
    GPU_METHOD float &at(int entry, int i) { return slot[((entry % slots) * N + i) * THREADS + thread]; }

    /* where(i): the element's offset in a level, < 0: none. */
    template <class Where> GPU_METHOD void push(const struct gemm_job &j, float *acc, Where where)
    {
        int merges = ALTERED("gpu_gemm_tree") ? depth > 0 : gpu_tree_merges(j.acc.n, j.acc.next + pushed);
        pushed++;
        if (depth > kept) {
            if (merges > 0) {
                GPU_UNROLL
                for (int i = 0; i < N; i++)
                    acc[i] = top[i] + acc[i];
                depth--;
                merges--;
            } else {
                GPU_UNROLL
                for (int i = 0; i < N; i++)
                    at(depth - 1, i) = top[i];
            }
        }
        for (; merges > 0; merges--) {
            const float *level = j.acc.level[--depth];
            GPU_UNROLL
            for (int i = 0; i < N; i++) {
                if (depth >= kept)
                    acc[i] = at(depth, i) + acc[i];
                else if (where(i) >= 0)
                    acc[i] = level[where(i)] + acc[i];
            }
        }
        kept = depth < kept ? depth : kept;
        depth++;
        GPU_UNROLL
        for (int i = 0; i < N; i++) {
            top[i] = acc[i];
            acc[i] = 0.0f;
        }
    }

    template <class Where> GPU_METHOD void end(const struct gemm_job &j, Where where)
    {
        for (int entry = kept; entry < depth; entry++) {
            float *level = j.acc.level[entry];
            GPU_UNROLL
            for (int i = 0; i < N; i++)
                if (where(i) >= 0)
                    level[where(i)] = entry == depth - 1 ? top[i] : at(entry, i);
        }
    }
};

/* Which tile block `task` makes: 8 rows of tiles before the next column, so that blocks that run together share both operands. */
struct corner { int r, c; };
template <int ROWS, int COLS> GPU struct corner corner_of(unsigned task, const struct gemm_job &j)
{
    constexpr unsigned BAND = 8;
    const unsigned n_r = (unsigned)(j.rows + ROWS - 1) / ROWS, n_c = (unsigned)(j.cols + COLS - 1) / COLS, first = task / (BAND * n_c) * BAND;
    const unsigned high = n_r - first < BAND ? n_r - first : BAND, in = task - first * n_c;
    struct corner at = { (int)(first + in % high) * ROWS, (int)(in / high) * COLS };
    return at;
}
static inline unsigned tiles_of(const struct gemm_job &j, int rows, int cols) { return (unsigned)((j.rows + rows - 1) / rows) * (unsigned)((j.cols + cols - 1) / cols); }

#endif
