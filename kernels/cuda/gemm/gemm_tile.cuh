/* gemm_tile.cuh - what the products on tensor cores are made of: operands, the walk along a contraction,
 * tiles in shared memory, fragments.
 *
 * The order of a bf16 product, for every number of rows, tile and kernel:
 *   leaf g: its parts in turn (linear_dx: one a matrix), each cut in steps of 16 from its own beginning, the
 *           last one filled with zeros;
 *           acc = mma(step, acc), ascending, from +0                              then Tree over leaves, as
 *           everywhere
 * What mma rounds inside of a step is the GPU's; rows and columns of it know nothing of each other.
 *
 * Operands: A by rows (elements of the contraction are neighbours) or across (elements of the result are), B
 * always across: packed panels of 32 columns, or a matrix as it is. In shared memory a tile keeps its
 * operand's form, 16-byte pieces of a row exchanged so that neither copies in nor ldmatrix out meet in a
 * bank. */
#ifndef SHARDLINE_KERNELS_CUDA_GEMM_GEMM_TILE_CUH
#define SHARDLINE_KERNELS_CUDA_GEMM_GEMM_TILE_CUH

#include "kernels/order.h"
#include "kernels/cuda/tree.cuh"
#include "kernels/cuda/warp.cuh"

#define GPU static __device__ __forceinline__
#define GPU_AND_HOST static __host__ __device__ __forceinline__
constexpr int PARTS_MAX = 4, DEPTH_STEP = 16, DEPTH = 32,
              PANEL = 32; /* DEPTH: of the contraction in a tile */

/* Element (i, k): by rows at i * ld + k, across at (i / PANEL) * panel + k * ld + i % PANEL. */
struct side {
    const void *p;
    int64_t ld, panel;
};
/* The whole of a product: y = level[0] of a tree that begins here, or entries of a tree that goes on. */
struct gemm_job {
    int rows, cols; /* of the result */
    int64_t ld;
    int n_parts, n_leaves, leaf; /* leaf > 0: all are that long */
    /* leaf 0, not NULL: leaf g ends at ends[g] - ends_from (gemm_experts.cuh) */
    const int64_t *ends;
    int64_t ends_from;
    struct side a[PARTS_MAX], b[PARTS_MAX];
    struct leaves l[PARTS_MAX];
    struct tree_acc acc;
    /* of acc's tree (tree.h): leaves of a run, of the first leaf's run those before it, and runs before. A
     * nested tree: groups instead of leaves, of `group` leaves, of which `begun` are before the first. */
    struct gemm_run {
        int length, within, before, group, begun;
    } run;
};
static inline void set_run(struct gemm_job *j)
{
    const int64_t group = j->acc.inner > 1 ? j->acc.inner : 1, all = j->acc.n / group,
                  next = j->acc.next / group;
    const int64_t n = ORDER("gpu_gemm_tree", tree_run(all), all); /* altered: all leaves are one run */
    j->run.length = (int)n;
    j->run.within = (int)(next % n);
    j->run.before = (int)(next / n);
    j->run.group = (int)group;
    j->run.begun = (int)(j->acc.next % group);
}

GPU_AND_HOST int leaf_end(const struct gemm_job &j, int g, int s)
{
    return g < 0    ? 0
           : j.leaf ? (g + 1) * j.leaf
           : j.ends ? (int)(j.ends[g] - j.ends_from)
                    : (int)j.l[s].end[g];
}

/* The sum of a leaf without rows: -0, the identity of every sum. */
template <int N> GPU void leaf_of_none(float *acc, const struct gemm_job &j, int g)
{
    if (!j.ends || leaf_end(j, g, 0) > leaf_end(j, g - 1, 0))
        return;
    GPU_UNROLL
    for (int i = 0; i < N; i++)
        acc[i] = -0.0f;
}

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
template <int PER> GPU int piece_at(int row, int piece)
{
    return (row * PER + (PER == 4 ? piece ^ (row >> 1 & 3) : piece ^ (row & 7))) * 8;
}

GPU int clamp8(int n) { return n < 0 ? 0 : n > 8 ? 8 : n; }
GPU_AND_HOST int aligned16(const void *p, int64_t ld)
{
    return (((uintptr_t)p | (uintptr_t)(ld * 2)) & 15) == 0;
}

/* 8 halves of which n are there, wherever they lie. */
GPU void bring_slowly(uint16_t *to, const uint16_t *from, int n)
{
    GPU_LOOP
    for (int i = 0; i < 8; i++)
        to[i] = i < n ? from[i] : 0;
}

/* Rows [r0, r0 + ROWS) of `rows`, elements [k, k + length) of the contraction: tile [ROWS][DEPTH]. A
 * thread's pieces lie DOWN rows apart, in the
 * same place of an exchanged row: one addition each. Addresses where n is 0 may lie outside and are not
 * read. */
template <int ROWS, int THREADS>
GPU void bring_rows(uint16_t *tile, const struct side &x, int r0, int rows, int k, int length, int thread)
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
template <int COLS, int THREADS>
GPU void bring_across(uint16_t *tile, const struct side &x, int c0, int cols, int k, int length, int thread)
{
    constexpr int PER = COLS / 8, DOWN = THREADS / PER;
    static_assert(DOWN % 8 == 0 && DEPTH * PER % THREADS == 0);
    const int fast = aligned16(x.p, x.ld | x.panel), piece = thread % PER;
    const int c = c0 + piece * 8, n = clamp8(cols - c);
    const uint16_t *from = (const uint16_t *)x.p + c / PANEL * x.panel + c % PANEL +
                           (k + thread / PER) * x.ld;
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
GPU void a_by_rows(uint32_t *a, const uint16_t *tile, int r, int step, int lane)
{
    ldmatrix<4>(a, tile + piece_at<4>(r + lane % 16, step * 2 + lane / 16));
}
template <int ROWS> GPU void a_across(uint32_t *a, const uint16_t *tile, int r, int step, int lane)
{
    ldmatrix_trans<4>(a, tile + piece_at<ROWS / 8>(step * DEPTH_STEP + lane / 16 * 8 + lane % 8,
                                                   r / 8 + lane / 8 % 2));
}
/* b[0..1] of columns c .. c + 7, b[2..3] of the next 8. */
template <int COLS> GPU void b_across(uint32_t *b, const uint16_t *tile, int c, int step, int lane)
{
    ldmatrix_trans<4>(b, tile + piece_at<COLS / 8>(step * DEPTH_STEP + lane % 16, c / 8 + lane / 16));
}

/* ---- a thread's numbers in a level; where(i): the element's offset there, < 0: none ---- */
template <int N, class Where> GPU void level_join(float *acc, const float *level, const Where &where)
{
    GPU_UNROLL
    for (int i = 0; i < N; i++)
        if (where(i) >= 0)
            acc[i] = level[where(i)] + acc[i];
}
template <int N, class Where> GPU void level_set(float *level, const float *x, const Where &where)
{
    GPU_UNROLL
    for (int i = 0; i < N; i++)
        if (where(i) >= 0)
            level[where(i)] = x[i];
}

/* Of a tile of fragments: number i in row r + i / 2 % 2 * 8, column c + i / 4 * 8 + i % 2, c even. Two of a
 * row are one access of 8 bytes where all are inside, 4 threads' of them 32 bytes, which is a whole sector,
 * with nothing exchanged between threads before. */
template <int N> struct spot {
    const struct gemm_job &j;
    int r, c;
    GPU_METHOD float *line(const float *level, int half) const
    {
        return (float *)level + (r + half * 8) * j.ld + c;
    }
    GPU_METHOD int left(int half) const { return r + half * 8 < j.rows ? j.cols - c : 0; }
    GPU_METHOD int whole(const float *level) const
    {
        return left(1) > (N / 4 - 1) * 8 + 1 && j.ld % 2 == 0 && ((uintptr_t)level & 7) == 0;
    }
};
template <int N> GPU void level_join(float *acc, const float *level, const struct spot<N> &where)
{
    const int whole = where.whole(level);
    GPU_UNROLL
    for (int half = 0; half < 2; half++) {
        const float *const from = where.line(level, half);
        const int left = where.left(half);
        GPU_UNROLL
        for (int i = half * 2; i < N; i += 4) {
            float2 x = make_float2(0.0f, 0.0f);
            if (whole) {
                x = *(const float2 *)(from + i / 4 * 8);
            } else {
                x.x = i / 4 * 8 < left ? from[i / 4 * 8] : 0.0f;
                x.y = i / 4 * 8 + 1 < left ? from[i / 4 * 8 + 1] : 0.0f;
            }
            acc[i] = x.x + acc[i];
            acc[i + 1] = x.y + acc[i + 1];
        }
    }
}
template <int N> GPU void level_set(float *level, const float *x, const struct spot<N> &where)
{
    const int whole = where.whole(level);
    GPU_UNROLL
    for (int half = 0; half < 2; half++) {
        float *const to = where.line(level, half);
        const int left = where.left(half);
        GPU_UNROLL
        for (int i = half * 2; i < N; i += 4) {
            if (whole) {
                *(float2 *)(to + i / 4 * 8) = make_float2(x[i], x[i + 1]);
            } else {
                if (i / 4 * 8 < left)
                    to[i / 4 * 8] = x[i];
                if (i / 4 * 8 + 1 < left)
                    to[i / 4 * 8 + 1] = x[i + 1];
            }
        }
    }
}

/* ---- partial sums: N numbers a thread; the newest in registers, older ones in shared memory of this thread
 * alone (but FIRST of the first slot's, in registers too), those of calls before in the accumulator's
 * levels. WAITS 0: calls of one leaf, whose sum waits for nothing here ---- */
static inline size_t slots_bytes(int slots, int n, int first, int threads)
{
    return slots > 0 ? (size_t)(slots * n - first) * (size_t)threads * 4 : 0;
}

template <int N, int THREADS, int FIRST = 0, int WAITS = 1> struct fold {
    float top[WAITS ? N : 1], first[FIRST ? FIRST : 1];
    float *slot; /* [slots][N][THREADS], less the first FIRST */
    /* begun, within, runs: of the next leaf; no division, which would be a call */
    int slots, thread, depth, kept, begun, within, runs;

    GPU_METHOD void begin(const struct gemm_job &j, void *memory, int n_slots, int t)
    {
        slot = (float *)memory;
        slots = n_slots;
        thread = t;
        within = j.run.within;
        runs = j.run.before;
        begun = j.run.begun;
        depth = kept = __popc((unsigned)runs) + (within != 0) + __popc((unsigned)begun);
    }
    /* Sums that the next leaf's meets: gpu_nest_merges. */
    GPU_METHOD int merges_of_next(const struct gemm_job::gemm_run &run)
    {
        /* as many as the number of leaves, or runs, ends in ones */
        int merges = __ffs((int)~(unsigned)begun) - 1;
        if (++begun < run.group)
            return merges;
        begun = 0;
        merges += within != 0;
        if (++within < run.length)
            return merges;
        within = 0;
        return merges + __ffs((int)~(unsigned)runs++) - 1;
    }
    GPU_METHOD float &at(int entry, int i)
    {
        return slot[(entry % slots * N + i - FIRST) * THREADS + thread];
    }
    GPU_METHOD void put(int entry, const float *x)
    {
        GPU_UNROLL
        for (int i = 0; i < N; i++) {
            if (i < FIRST && entry % slots == 0)
                first[i < FIRST ? i : 0] = x[i];
            else
                at(entry, i) = x[i];
        }
    }
    /* x = what waits there + x, as it is */
    GPU_METHOD void join(float *x, int entry)
    {
        GPU_UNROLL
        for (int i = 0; i < N; i++)
            x[i] = (i < FIRST && entry % slots == 0 ? first[i < FIRST ? i : 0] : at(entry, i)) + x[i];
    }
    GPU_METHOD void get(float *x, int entry)
    {
        GPU_UNROLL
        for (int i = 0; i < N; i++)
            x[i] = i < FIRST && entry % slots == 0 ? first[i < FIRST ? i : 0] : at(entry, i);
    }

    /* The sum so far is the newest entry; acc is +0 then (WAITS 0: the entry itself). */
    template <class Where> GPU_METHOD void push(const struct gemm_job &j, float *acc, const Where &where)
    {
        int merges = merges_of_next(j.run);
        if (WAITS && depth > kept) {
            if (merges > 0) {
                GPU_UNROLL
                for (int i = 0; i < N; i++)
                    acc[i] = top[WAITS ? i : 0] + acc[i];
                depth--;
                merges--;
            } else {
                put(depth - 1, top);
            }
        }
        for (; merges > 0; merges--) {
            depth--;
            if (WAITS && depth >= kept)
                join(acc, depth);
            else
                level_join<N>(acc, j.acc.level[depth], where);
        }
        kept = depth < kept ? depth : kept;
        depth++;
        if constexpr (WAITS) {
            GPU_UNROLL
            for (int i = 0; i < N; i++) {
                top[i] = acc[i];
                acc[i] = 0.0f;
            }
        }
    }

    /* acc is lost. */
    template <class Where> GPU_METHOD void end(const struct gemm_job &j, float *acc, const Where &where)
    {
        level_set<N>(j.acc.level[depth - 1], WAITS ? top : acc, where);
        for (int entry = kept; WAITS && entry < depth - 1; entry++) {
            get(acc, entry);
            level_set<N>(j.acc.level[entry], acc, where);
        }
    }
};

/* Which tile is the task-th: 8 rows of tiles before the next column, so that blocks that run together share
 * both operands. */
struct corner {
    int r, c;
};
template <int ROWS, int COLS> GPU struct corner corner_of(unsigned task, const struct gemm_job &j)
{
    constexpr unsigned BAND = 8;
    const unsigned n_r = (unsigned)(j.rows + ROWS - 1) / ROWS, n_c = (unsigned)(j.cols + COLS - 1) / COLS,
                   first = task / (BAND * n_c) * BAND;
    const unsigned high = n_r - first < BAND ? n_r - first : BAND, in = task - first * n_c;
    struct corner at = { (int)(first + in % high) * ROWS, (int)(in / high) * COLS };
    return at;
}
static inline unsigned tiles_of(const struct gemm_job &j, int rows, int cols)
{
    return (unsigned)((j.rows + rows - 1) / rows) * (unsigned)((j.cols + cols - 1) / cols);
}

#endif
