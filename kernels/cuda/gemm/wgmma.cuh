/* wgmma.cuh - products on Hopper's own tensor-core instructions: a block makes tiles of 64 GROUPS x COLS of
 * the result, one after the other, each group of 4 warps 64 rows of it, through STAGES pieces of 64 elements
 * of the contraction, which one more group of warps loads, also those of the next tile while the last one
 * is written.
 *
 *     bring: wait empty[stage] -> copies of boxes -> full[stage]      multiply: wait full[stage] ->
 *     mma_group x 4 -> wait -> empty[stage]
 *
 * CLUSTER blocks that run side by side have tiles below one another, so the same columns: each loads a
 * share of B for all of them, and waits until all have released the stage.
 *
 * The order is that of gemm_tile.cuh, a step of 16 an mma_group. What mma_group rounds inside of a step
 * need not be what mma does: wgmma.h describes the consequences. Copies of boxes need addresses and rows
 * at multiples of 16 bytes and leaves of whole steps; other operands are loaded by the threads of the
 * loading group, element by element: correct but slow.
 *
 * A stage of A by rows is [rows][64]; what is across lies in boxes of BOX columns, [64][BOX], box after
 * box. Rows of 128 or 64 bytes are swizzled. */
#ifndef SHARDLINE_KERNELS_CUDA_GEMM_WGMMA_CUH
#define SHARDLINE_KERNELS_CUDA_GEMM_WGMMA_CUH

#include "kernels/cuda/gemm/gemm_tile.cuh"
#include "kernels/cuda/gemm/hopper.cuh"
#include "kernels/cuda/gemm/wgmma.h"

/* DEEP: of the contraction in a tile; ATOM: what swizzled tiles begin at */
constexpr int GROUP = 128, DEEP = 64, BOX_A = 64, ATOM = 1024;

struct group_job {
    struct gemm_job j;
    int boxes;        /* 0: threads bring the operands, element by element */
    unsigned n_tiles; /* of CLUSTER blocks together */
    CUtensorMap a[PARTS_MAX], b[PARTS_MAX];
};

/* WAITS, FIRST: of gemm_tile.cuh's fold. */
template <enum form F, int GROUPS_, int COLS_, int STAGES_, int WAITS_, int FIRST_, int CLUSTER_>
struct group_tiling {
    static constexpr bool A_ACROSS = F == FORM_DW;
    static constexpr int GROUPS = GROUPS_, ROWS = GROUPS * 64, COLS = COLS_, STAGES = STAGES_, WAITS = WAITS_,
                         FIRST = FIRST_, CLUSTER = CLUSTER_, THREADS = (GROUPS + 1) * GROUP,
                         NUMBERS = COLS / 2;
    /* packed panels are boxes already; SHARE: columns of B that a block brings */
    static constexpr int BOX_B = F == FORM_LINEAR ? PANEL : 64, SHARE = COLS / CLUSTER;
    static constexpr int TILE_A = ROWS * DEEP, STAGE = TILE_A + COLS * DEEP; /* halves */
    static constexpr int PIPE_BYTES = ATOM + STAGES * STAGE * 2 + STAGES * 16;
    /* blocks whose registers fit on a multiprocessor */
    static constexpr int PER_PROCESSOR = GROUPS > 1 ? 1 : 2;
    static_assert(SHARE % BOX_B == 0);
};

#if HOPPER
template <class T> struct pipe {
    /* [STAGES], behind them the barriers, behind those sums that wait */
    uint16_t *stage;
    int turn, parity;

    GPU_METHOD void begin(unsigned char *memory)
    {
        stage = (uint16_t *)(memory + (0u - window_address(memory)) % ATOM);
        turn = parity = 0;
    }
    GPU_METHOD uint64_t *full(int which) const { return (uint64_t *)(stage + T::STAGES * T::STAGE) + which; }
    GPU_METHOD uint64_t *empty(int which) const { return full(T::STAGES + which); }
    GPU_METHOD uint16_t *tile() const { return stage + turn * T::STAGE; }
    GPU_METHOD void next()
    {
        turn = turn + 1 == T::STAGES ? 0 : turn + 1;
        parity ^= turn == 0;
    }
};

/* The tiles of this block, and where its part of one is. */
template <class T> struct tile_walk {
    unsigned at, step, n;
    int rank; /* of this block in its cluster */
    GPU_METHOD void begin(const struct group_job &g)
    {
        rank = T::CLUSTER > 1 ? (int)(blockIdx.x % T::CLUSTER) : 0;
        at = blockIdx.x / T::CLUSTER;
        step = gridDim.x / T::CLUSTER;
        n = g.n_tiles;
    }
    GPU_METHOD int more() const { return at < n; }
    GPU_METHOD void next() { at += step; }
    GPU_METHOD struct corner corner(const struct gemm_job &j) const
    {
        struct corner c = corner_of<T::ROWS * T::CLUSTER, T::COLS>(at, j);
        c.r += rank * T::ROWS;
        return c;
    }
};

/* ---- the loading group ---- */
/* A box of B: to all blocks of the cluster. */
template <class T>
GPU void bring_shared(uint16_t *to, const CUtensorMap *map, int x, int y, int z, uint64_t *bar)
{
    if constexpr (T::CLUSTER > 1)
        copy_box_to_all(to, map, x, y, z, bar, (1 << T::CLUSTER) - 1);
    else
        copy_box(to, map, x, y, z, bar);
}
template <class T>
GPU void bring_boxes(const pipe<T> &p, const struct group_job &g, const struct corner &at, int rank,
                     const walk<DEEP> &w)
{
    const int share = rank * T::SHARE;
    uint16_t *const a = p.tile(), *const b = a + T::TILE_A + share * DEEP;
    uint64_t *const bar = p.full(p.turn);
    bar_arrive_bytes(bar, T::STAGE * 2); /* the others' shares of B too */
    if (T::A_ACROSS) {
        GPU_UNROLL
        for (int i = 0; i < T::ROWS / BOX_A; i++)
            copy_box(a + i * BOX_A * DEEP, &g.a[w.s], at.r + i * BOX_A, w.k, 0, bar);
    } else {
        copy_box(a, &g.a[w.s], w.k, at.r, 0, bar);
    }
    if (T::BOX_B == PANEL) { /* all panels are one box */
        bring_shared<T>(b, &g.b[w.s], 0, w.k, (at.c + share) / PANEL, bar);
    } else {
        GPU_UNROLL
        for (int i = 0; i < T::SHARE / T::BOX_B; i++)
            bring_shared<T>(b + i * T::BOX_B * DEEP, &g.b[w.s], at.c + share + i * T::BOX_B, w.k, 0, bar);
    }
}

/* Where piece `piece` of a row of a tile lies, in halves; BYTES: of a row. */
template <int BYTES> GPU int swizzled(int row, int piece)
{
    const int at = row * BYTES + piece * 16;
    return (at ^ (at >> 7 & (BYTES / 16 - 1)) << 4) / 2;
}

GPU void bring_rows_slowly(uint16_t *tile, int n_rows, const struct side &x, int r0, int rows, int k,
                           int length, int thread)
{
    for (int i = thread; i < n_rows * (DEEP / 8); i += GROUP) {
        const int r = i / (DEEP / 8), piece = i % (DEEP / 8),
                  n = r0 + r < rows ? clamp8(length - piece * 8) : 0;
        bring_slowly(tile + swizzled<DEEP * 2>(r, piece),
                     (const uint16_t *)x.p + (int64_t)(r0 + r) * x.ld + k + piece * 8, n);
    }
}
template <int BOX>
GPU void bring_across_slowly(uint16_t *tile, int n_cols, const struct side &x, int c0, int cols, int k,
                             int length, int thread)
{
    constexpr int PER = BOX / 8;
    for (int i = thread; i < n_cols / BOX * DEEP * PER; i += GROUP) {
        const int piece = i % PER, row = i / PER % DEEP, box = i / PER / DEEP, c = c0 + box * BOX + piece * 8;
        bring_slowly(tile + box * BOX * DEEP + swizzled<BOX * 2>(row, piece),
                     (const uint16_t *)x.p + c / PANEL * x.panel + c % PANEL + (int64_t)(k + row) * x.ld,
                     row < length ? clamp8(cols - c) : 0);
    }
}
template <class T>
GPU void bring_elements(const pipe<T> &p, const struct gemm_job &j, const struct corner &at,
                        const walk<DEEP> &w, int thread)
{
    uint16_t *const a = p.tile();
    if (T::A_ACROSS)
        bring_across_slowly<BOX_A>(a, T::ROWS, j.a[w.s], at.r, j.rows, w.k, w.length(), thread);
    else
        bring_rows_slowly(a, T::ROWS, j.a[w.s], at.r, j.rows, w.k, w.length(), thread);
    bring_across_slowly<T::BOX_B>(a + T::TILE_A, T::COLS, j.b[w.s], at.c, j.cols, w.k, w.length(), thread);
    writes_ready();
    bar_arrive(p.full(p.turn));
}

template <class T> GPU void bring_all(pipe<T> p, const struct group_job &g, int thread)
{
    tile_walk<T> t;
    walk<DEEP> w;
    if (g.boxes && thread)
        return;
    for (t.begin(g); t.more(); t.next()) {
        const struct corner at = t.corner(g.j);
        for (w.begin(g.j, 0); w.g < g.j.n_leaves; w.next(g.j), p.next()) {
            if (!bar_wait(p.empty(p.turn), p.parity ^ 1, 1))
                return;
            if (g.boxes)
                bring_boxes<T>(p, g, at, t.rank, w);
            else
                bring_elements<T>(p, g.j, at, w, thread);
        }
    }
}

/* ---- the multiplying groups ---- */
/* Step `step` of 16 of a tile, rows from 64 group. */
template <class T> GPU void multiply_step(float *acc, const uint16_t *tile, int group, int step)
{
    constexpr int ROW_B = T::BOX_B * 2;
    const uint16_t *const a = tile + group * 64 * DEEP +
                              (T::A_ACROSS ? step * DEPTH_STEP * BOX_A : step * DEPTH_STEP);
    const uint16_t *const b = tile + T::TILE_A + step * DEPTH_STEP * T::BOX_B;
    mma_group<T::COLS, T::A_ACROSS, 1>(acc, operand(a, BOX_A * 2 * DEEP, 8 * DEEP * 2, SWIZZLE_128),
                                       operand(b, ROW_B * DEEP, 8 * ROW_B,
                                               ROW_B == 128 ? SWIZZLE_128 : SWIZZLE_64));
}
/* Broken tiles step by step: a fence and a group each, which the compiler would put in. */
template <class T> GPU void multiply_tile(float *acc, const uint16_t *tile, int group, int length)
{
    if (length == DEEP) {
        const struct index_order steps = ORDER("gpu_group_steps", forward_order(),
                                               backward_order(DEEP / DEPTH_STEP));
        group_fence();
        GPU_UNROLL
        for (int i = 0; i < DEEP / DEPTH_STEP; i++)
            multiply_step<T>(acc, tile, group, (int)index_at(steps, i));
        group_commit();
    } else {
        GPU_LOOP
        for (int i = 0; i * DEPTH_STEP < length; i++) {
            group_fence();
            multiply_step<T>(acc, tile, group, i);
            group_commit();
        }
    }
}

/* Releases a stage to all blocks that load into it: a lane of the warp for each. */
template <class T> GPU void release_stage(const pipe<T> &p, int stage, int lane)
{
    if (stage < 0 || lane >= T::CLUSTER)
        return;
    if constexpr (T::CLUSTER > 1)
        bar_arrive_at(p.empty(stage), lane);
    else
        bar_arrive(p.empty(stage));
}

/* A leaf. The newest tile is under way while the one before it is released. well: every tile arrived; without
 * a branch, because wgmma must not be in one. */
template <class T>
GPU void multiply_leaf(float *acc, pipe<T> &p, walk<DEEP> &w, int &well, const struct gemm_job &j, int leaf,
                       int group, int lane)
{
    int before = -1;
    group_hold<T::NUMBERS>(acc);
    for (; w.g == leaf; w.next(j), p.next()) {
        well &= bar_wait(p.full(p.turn), p.parity, well);
        multiply_tile<T>(acc, p.tile(), group, w.length());
        group_wait<1>();
        release_stage<T>(p, before, lane);
        before = p.turn;
    }
    group_wait<0>();
    group_hold<T::NUMBERS>(acc);
    release_stage<T>(p, before, lane);
}

template <class T> GPU void multiply_all(pipe<T> p, const struct group_job &g, int slots, int group)
{
    const struct gemm_job &j = g.j;
    const int thread = (int)threadIdx.x, lane = thread % 32;
    float acc[T::NUMBERS];
    fold<T::NUMBERS, T::GROUPS * GROUP, T::FIRST, T::WAITS> sum;
    tile_walk<T> t;
    walk<DEEP> w;
    int well = 1;
    for (t.begin(g); t.more(); t.next()) {
        const struct corner at = t.corner(j);
        GPU_UNROLL
        for (int i = 0; i < T::NUMBERS; i++)
            acc[i] = 0.0f;
        const struct spot<T::NUMBERS> where = {
            j, at.r + group * 64 + thread % GROUP / 32 * 16 + lane / 4, at.c + lane % 4 * 2
        };
        sum.begin(j, p.empty(T::STAGES), slots, thread);
        w.begin(j, 0);
        for (int leaf = 0; leaf < (T::WAITS ? j.n_leaves : 1); leaf++) {
            multiply_leaf<T>(acc, p, w, well, j, leaf, group, lane);
            if (!well) { /* NaN shows the fault; the GPU does not hang */
                GPU_UNROLL
                for (int i = 0; i < T::NUMBERS; i++)
                    acc[i] = __uint_as_float(0x7fffffffu);
            }
            sum.push(j, acc, where);
        }
        sum.end(j, acc, where);
    }
}
#endif

template <class T>
static __global__ void __launch_bounds__(T::THREADS, T::PER_PROCESSOR)
    group_kernel(const __grid_constant__ struct group_job g, int slots)
{
#if HOPPER
    SHARED(memory);
    /* so that the compiler sees that a warp has one */
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0);
    pipe<T> p;
    p.begin(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < T::STAGES; i++) {
            bar_init(p.full(i), g.boxes ? 1 : GROUP);
            bar_init(p.empty(i), T::GROUPS * 4 * T::CLUSTER);
        }
        bars_ready();
    }
    if constexpr (T::CLUSTER > 1) /* other blocks write to this one's barriers */
        cluster_sync();
    else
        __syncthreads();
    if (group == T::GROUPS) {
        if constexpr (T::GROUPS == 2) /* 3 groups begin with 168 */
            registers_release<40>();
        bring_all<T>(p, g, (int)threadIdx.x % GROUP);
    } else {
        if constexpr (T::GROUPS == 2)
            registers_take<232>();
        multiply_all<T>(p, g, slots, group);
    }
    if constexpr (T::CLUSTER > 1) /* no block ends while others may access its memory */
        cluster_sync();
#endif
}

#endif
