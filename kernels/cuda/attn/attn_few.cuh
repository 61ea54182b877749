/* attn_few.cuh - attention of sequences that have few rows, decode above all: up to 16 rows of a kv head
 * (attn_tile.cuh). The bits of attn_fwd.cuh, in another distribution of the work:
 *
 *   attn_few_kernel    a block of threads has one segment. Its warps take the next key blocks side by side:
 *                      maxima first, then every warp knows the
 *                      maximum before its block, makes its part of o, and the parts are added in order
 *   attn_merge_kernel  the segments, in order
 *
 *   warp 0   scores b    | p, part b    |                 warp 0   scores b+2
 *   warp 1   scores b+1  | p, part b+1  | o, l += b, b+1  warp 1   scores b+3      |: all threads meet */
#ifndef SHARDLINE_KERNELS_CUDA_ATTN_ATTN_FEW_CUH
#define SHARDLINE_KERNELS_CUDA_ATTN_ATTN_FEW_CUH

#include "kernels/cuda/attn/attn_fwd.cuh"

/* as many as fit into 99 KiB with their keys and values */
template <int DIM> constexpr int few_warps = 256 / DIM;
template <int DIM> struct few_shared {
    uint16_t q[ROWS_OF_WARP * DIM], kv[few_warps<DIM>][2][DIM * KEYS];
    float part[few_warps<DIM>][ROWS_OF_WARP * DIM];
    float best[few_warps<DIM>][ROWS_OF_WARP], c[few_warps<DIM>][ROWS_OF_WARP],
        sum[few_warps<DIM>][ROWS_OF_WARP], m[ROWS_OF_WARP], l[ROWS_OF_WARP];
    int on[few_warps<DIM>][ROWS_OF_WARP]; /* the row sees something of the block */
};

/* A segment's sums of a row: m, l, o [d]. */
FN float *part_of(const struct attn_args *f, const struct view *v, int part, int row)
{
    return f->part + (((int64_t)part * v->a->n_kv + v->kv) * f->part_rows + row) * (v->d + 2);
}

/* This warp's block b: maxima into shared memory before the barrier, its part of o, c and the sum behind it.
 * m: the rows' maxima before the round. */
template <int DIM>
FN void few_maxima(struct few_shared<DIM> *t, float x[KEY_TILES][4], const struct view *v,
                   const struct two_rows *r, const struct span *span, int b)
{
    const int w = warp_id();
    float best[2];
    dot_keys<DIM>(x, t->q, 0, t->kv[w][0], v->steps);
    mask_scores(x, r, b, v->a, span_sees_all(span, b), best);
    GPU_UNROLL
    for (int h = 0; h < 2; h++)
        if (lane_id() % 4 == 0)
            t->best[w][lane_id() / 4 + 8 * h] = best[h];
}
template <int DIM>
FN void few_part(struct few_shared<DIM> *t, float x[KEY_TILES][4], const struct view *v,
                 const struct two_rows *r, const float m[2], int b)
{
    const int w = warp_id();
    uint32_t p[KEY_STEPS][4];
    GPU_UNROLL
    for (int h = 0; h < 2; h++) {
        const int row = lane_id() / 4 + 8 * h;
        float before = m[h], c, sum;
        for (int i = 0; i < w; i++)
            before = t->best[i][row] > before ? t->best[i][row] : before;
        soften(x, h, t->best[w][row], &before, &c, &sum);
        if (lane_id() % 4 == 0) {
            t->c[w][row] = c;
            t->sum[w][row] = sum;
            t->on[w][row] = sees(r->pos[h], r->first[h], b);
        }
    }
    as_operand(p, x);
    times<DIM, 1>(p, t->kv[w][1], v->steps, [&](int n, float part[2][4]) {
        GPU_UNROLL
        for (int e = 0; e < 8; e++)
            t->part[w][(lane_id() / 4 + e % 4 / 2 * 8) * DIM + fragment_col(2 * n + e / 4, e % 4)] =
                part[e / 4][e % 4];
    });
}

/* The n parts of a round, in order, onto o: a thread has elements thread, thread + threads, ... of
 * [16][DIM]. l of a row is its thread's. */
template <int DIM> FN void few_add(const struct few_shared<DIM> *t, float o[], float *l, int n)
{
    enum { THREADS = few_warps<DIM> * LANES };
    const int mine = (int)threadIdx.x % ROWS_OF_WARP;
    for (int w = 0; w < n; w++) {
        GPU_UNROLL
        for (int e = 0; e < ROWS_OF_WARP * DIM / THREADS; e++) {
            const int at = e * THREADS + (int)threadIdx.x, row = at / DIM;
            o[e] = t->on[w][row] ? fmaf(o[e], t->c[w][row], t->part[w][at]) : o[e];
        }
        *l = t->on[w][mine] ? fmaf(*l, t->c[w][mine], t->sum[w][mine]) : *l;
    }
}

/* out, or the sums of the segment for attn_merge_kernel. */
template <int DIM>
FN void few_put(const struct attn_args *f, const struct view *v, int part, const struct few_shared<DIM> *t,
                const float o[])
{
    enum { THREADS = few_warps<DIM> * LANES };
    GPU_UNROLL
    for (int e = 0; e < ROWS_OF_WARP * DIM / THREADS; e++) {
        const int at = e * THREADS + (int)threadIdx.x, row = at / DIM, col = at % DIM;
        if (row >= v->n || col >= v->d)
            continue;
        if (part >= 0)
            part_of(f, v, part, row)[2 + col] = o[e];
        else
            *out_of(f, v, row, col) = fn_to_bf16(o[e] / t->l[row]);
    }
    const int row = (int)threadIdx.x;
    if (row >= ROWS_OF_WARP || row >= v->n)
        return;
    if (part >= 0)
        part_of(f, v, part, row)[0] = t->m[row], part_of(f, v, part, row)[1] = t->l[row];
    else
        put_lse(f, v, row, t->m[row], t->l[row]);
}

/* item: segment; part: where its sums go, -1: it is the only one. */
template <int DIM>
static __global__ __launch_bounds__(few_warps<DIM> *LANES) void attn_few_kernel(
    const __grid_constant__ struct attn_args f)
{
    enum { WARPS = few_warps<DIM>, THREADS = WARPS * LANES };
    SHARED(memory);
    struct few_shared<DIM> *t = (struct few_shared<DIM> *)memory;
    const struct attn_item it = f.item[blockIdx.x];
    const struct view v = view_of(&f.a, it.seq, (int)blockIdx.y);
    const struct span span = span_of(&v, 0);
    const struct two_rows rows = two_rows_of(&v, 0);
    const int w = warp_id(), from = it.segment * SEGMENT_PAGES, low = span.low_first / KEYS,
              high = span.high_pos / KEYS;
    const int begin = low > from ? low : from,
              end = high < from + SEGMENT_PAGES ? high + 1 : from + SEGMENT_PAGES;
    float x[KEY_TILES][4], m[2] = { -FN_INF, -FN_INF }, o[ROWS_OF_WARP * DIM / THREADS] = { 0 }, l = 0.0f;

    clear_tiles(t->q, ROWS_OF_WARP * DIM + WARPS * 2 * DIM * KEYS, &v);
    copy_queries<DIM>(t->q, &v, f.q, 0, ROWS_OF_WARP, f.aligned);
    for (int half = 0; half < 2; half++) {
        if (begin + w < end && half == 0)
            copy_keys(t->kv[w][0], &v, begin + w, lane_id(), LANES);
        if (begin + w < end && half == 1)
            copy_values<DIM>(t->kv[w][1], &v, begin + w, lane_id(), LANES);
        cp_async_commit();
    }
    for (int b = begin; b < end; b += WARPS) {
        const int n = end - b < WARPS ? end - b : WARPS, next = b + WARPS + w;
        cp_async_wait<1>();
        if (b == begin)
            __syncthreads();
        __syncwarp();
        if (w < n)
            few_maxima(t, x, &v, &rows, &span, b + w);
        __syncwarp();
        if (next < end)
            copy_keys(t->kv[w][0], &v, next, lane_id(), LANES);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        if (w < n)
            few_part(t, x, &v, &rows, m, b + w);
        GPU_UNROLL
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < n; i++) {
                const float best = t->best[i][lane_id() / 4 + 8 * h];
                m[h] = best > m[h] ? best : m[h];
            }
        __syncwarp();
        if (next < end)
            copy_values<DIM>(t->kv[w][1], &v, next, lane_id(), LANES);
        cp_async_commit();
        __syncthreads();
        few_add(t, o, &l, n);
    }
    if (w == 0 && lane_id() % 4 == 0)
        GPU_UNROLL
    for (int h = 0; h < 2; h++)
        t->m[lane_id() / 4 + 8 * h] = m[h];
    if (threadIdx.x < ROWS_OF_WARP)
        t->l[threadIdx.x] = l;
    __syncthreads();
    few_put(&f, &v, it.part, t, o);
}

/* item: part: the first of `segment` parts. A warp a row, a lane every 32nd component. */
static __global__ void attn_merge_kernel(const __grid_constant__ struct attn_args f)
{
    const struct attn_item it = f.item[blockIdx.x];
    const struct view v = view_of(&f.a, it.seq, (int)blockIdx.y);
    for (int row = warp_id(); row < v.n; row += (int)blockDim.x / LANES) {
        float m = -FN_INF, l = 0.0f;
        for (int s = 0; s < it.segment; s++) {
            const float *p = part_of(&f, &v, it.part + s, row);
            merge_state(&m, &l, p[0], p[1]);
        }
        for (int col = lane_id(); col < v.d; col += LANES) {
            float tm = -FN_INF, tl = 0.0f, o = 0.0f;
            for (int s = 0; s < it.segment; s++) {
                const float *p = part_of(&f, &v, it.part + s, row);
                const struct weights w = merge_state(&tm, &tl, p[0], p[1]);
                o = merge_value(&w, o, p[2 + col]);
            }
            *out_of(&f, &v, row, col) = fn_to_bf16(o / l);
        }
        if (lane_id() == 0)
            put_lse(&f, &v, row, m, l);
    }
}

#endif
