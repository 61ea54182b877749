/* attn_bwd.cuh - attention backward on tensor cores, whole sequences (attn_tile.cuh): Dao et al. 2022, with
 * the contract's order.
 *
 *   D of a row: 32 lanes of fma(dout, out, .), folded;  P = exp(scale * (q . k) - lse), masked +0;  dP =
 *   dout . v;  dS = P * (dP - D)
 *   dQ of a row: a key block is a sum of its own, of (bf16 of dS) . k, four mma steps from +0; blocks are
 *   added in order; * scale
 *   dK, dV of a key: likewise over blocks of 64 queries of (bf16 of dS) . q, (bf16 of P) . dout; * scale;
 *   Tree(group) over query heads; where sequences are cut, all that for the queries of a leaf, and a tree
 *   over leaves (attn_cut.h)
 *
 *   attn_row_dots_kernel  D, a warp a row
 *   attn_dq_kernel        64 rows a block of threads, all key blocks in turn
 *   attn_dkv_kernel       64 keys of a kv head: query head after query head, query block after query block.
 *                         A warp has 16 keys and works
 *                         with transposed scores, so that P and dS are the left operands of dV and dK where
 *                         they were made
 *
 * Nobody adds to what another one adds to, so there are no atomics, and one order. */
#ifndef SHARDLINE_KERNELS_CUDA_ATTN_ATTN_BWD_CUH
#define SHARDLINE_KERNELS_CUDA_ATTN_ATTN_BWD_CUH

#include "kernels/attn_cut.h"
#include "kernels/cuda/attn/attn_fwd.cuh"

enum { ROW_DOTS_WARPS = 4 };

static __global__ __launch_bounds__(ROW_DOTS_WARPS *LANES) void attn_row_dots_kernel(
    const __grid_constant__ struct attn_args f, int64_t n)
{
    const int64_t t = (int64_t)blockIdx.x * ROW_DOTS_WARPS + warp_id(), row = t / f.a.n_heads,
                  d = f.a.head_dim, at = t % f.a.n_heads * d;
    const uint16_t *x = (const uint16_t *)f.dout.p + row * f.dout.ld + at,
                   *y = (const uint16_t *)f.out.p + row * f.out.ld + at;
    struct lanes s = { 0.0f };
    if (t >= n)
        return;
    for (int64_t i = lane_id(); i < d; i += LANES)
        s.x.v = fmaf(fn_from_bf16(x[i]), fn_from_bf16(y[i]), s.x.v);
    f.d[t] = lanes_fold(&s);
}

/* P and dS of pairs of which *p holds q . k and *ds holds dP. */
FN void grad_pair(const struct attn *a, float *p, float *ds, int seen, float lse, float d)
{
    float slope = 1.0f;
    *p = seen ? fn_exp(score_of(a, *p, &slope) - lse) : 0.0f;
    *ds = seen ? *p * (*ds - d) : 0.0f;
    *ds = a->softcap > 0 ? *ds * slope : *ds;
}

/* sum += part of 16 columns. */
template <int DIM> FN void add_part(float sum[DIM / 8][4], int n, const float part[2][4])
{
    GPU_UNROLL
    for (int x = 0; x < 8; x++)
        sum[2 * n + x / 4][x % 4] = sum[2 * n + x / 4][x % 4] + part[x / 4][x % 4];
}

template <int DIM> FN void clear_sum(float sum[DIM / 8][4], float zero)
{
    GPU_UNROLL
    for (int x = 0; x < DIM / 2; x++)
        sum[x / 4][x % 4] = zero;
}

/* ---- dQ ---- */
template <int DIM> struct dq_shared {
    uint16_t q[TILE_ROWS * DIM], dout[TILE_ROWS * DIM], k[DIM * KEYS], v[KEYS * DIM];
};

/* A row's D or lse; rows that are not there have those of the last one. */
FN float stat_at(const float *stat, const struct view *v, int i)
{
    return stat[stat_of(v, i < v->n ? i : v->n - 1)];
}

template <int DIM>
FN void dq_block(const struct dq_shared<DIM> *t, float sum[DIM / 8][4], const struct view *v,
                 const struct two_rows *r, const float lse[2], const float d[2], int b)
{
    const int m0 = warp_id() * ROWS_OF_WARP;
    float p[KEY_TILES][4], ds[KEY_TILES][4];
    uint32_t operand[KEY_STEPS][4];
    dot_keys<DIM>(p, t->q, m0, t->k, v->steps);
    dots<DIM>(
        ds, v->steps, [=](uint32_t *a, int k0) { ldmatrix<4>(a, near_cell<DIM>(t->dout, m0, k0)); },
        [=](uint32_t *x, int n0, int k0) { ldmatrix<4>(x, far_cell<DIM>(t->v, n0, k0)); });
    GPU_UNROLL
    for (int n = 0; n < KEY_TILES; n++) {
        GPU_UNROLL
        for (int e = 0; e < 4; e++) {
            const int key = b * KEYS + fragment_col(n, e), h = e / 2;
            grad_pair(v->a, &p[n][e], &ds[n][e], key <= r->pos[h] && key >= r->first[h], lse[h], d[h]);
        }
    }
    as_operand(operand, ds);
    times<DIM, 0>(operand, t->k, v->steps, [&](int n, float part[2][4]) { add_part<DIM>(sum, n, part); });
}

/* item: row: the first of the tile. */
template <int DIM>
static __global__ __launch_bounds__(TILE_ROWS * 2,
                                    2) void attn_dq_kernel(const __grid_constant__ struct attn_args f)
{
    SHARED(memory);
    struct dq_shared<DIM> *t = (struct dq_shared<DIM> *)memory;
    const struct attn_item it = f.item[blockIdx.x];
    const struct view v = view_of(&f.a, it.seq, (int)blockIdx.y);
    const int mine = it.row + warp_id() * ROWS_OF_WARP;
    const struct span span = span_of(&v, mine);
    const struct two_rows rows = two_rows_of(&v, mine);
    const int low = first_of(&v, pos_of(&v, it.row)) / KEYS, last = pos_of(&v, it.row + TILE_ROWS - 1) / KEYS;
    float sum[DIM / 8][4], lse[2], d[2];

    GPU_UNROLL
    for (int h = 0; h < 2; h++) {
        lse[h] = stat_at(f.lse, &v, rows.i[h]);
        d[h] = stat_at(f.d, &v, rows.i[h]);
    }
    clear_sum<DIM>(sum, 0.0f);
    clear_tiles(t->q, (2 * TILE_ROWS + 2 * KEYS) * DIM, &v);
    copy_queries<DIM>(t->q, &v, f.q, it.row, TILE_ROWS, f.aligned);
    copy_queries<DIM>(t->dout, &v, f.dout, it.row, TILE_ROWS, f.aligned);
    for (int b = low; b <= last; b++) {
        copy_keys(t->k, &v, b, (int)threadIdx.x, TILE_ROWS * 2);
        copy_values<DIM>(t->v, &v, b, (int)threadIdx.x, TILE_ROWS * 2);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        if (mine < v.n && span_sees(&span, b))
            dq_block(t, sum, &v, &rows, lse, d, b);
        __syncthreads();
    }
    GPU_UNROLL
    for (int h = 0; h < 2; h++) {
        GPU_UNROLL
        for (int n = 0; n < DIM / 8; n++)
            if (rows.i[h] < v.n && n * 8 < v.d) {
                float *to = (float *)f.dq.p + row_of(&v, rows.i[h]) * f.dq.ld +
                            (int64_t)head_of(&v, rows.i[h]) * v.d + fragment_col(n, 0);
                to[0] = sum[n][2 * h] * f.a.scale;
                to[1] = sum[n][2 * h + 1] * f.a.scale;
            }
    }
}

/* ---- dK, dV ---- */
template <int DIM> struct dkv_shared {
    uint16_t k[DIM * KEYS], v[KEYS * DIM], q[KEYS * DIM], dout[KEYS * DIM];
    float lse[KEYS], d[KEYS];
};

/* Up to 64 queries of one head, all rows of a view: their rows and their statistics. */
template <int DIM>
FN void dkv_load(struct dkv_shared<DIM> *t, const struct attn_args *f, const struct view *head)
{
    copy_queries<DIM>(t->q, head, f->q, 0, KEYS, f->aligned);
    copy_queries<DIM>(t->dout, head, f->dout, 0, KEYS, f->aligned);
    if (threadIdx.x < KEYS) {
        t->lse[threadIdx.x] = stat_at(f->lse, head, (int)threadIdx.x);
        t->d[threadIdx.x] = stat_at(f->d, head, (int)threadIdx.x);
    }
}

/* What these queries add to the keys of this warp: scores are [16 keys][64 queries]. */
template <int DIM>
FN void dkv_block(const struct dkv_shared<DIM> *t, float dk[DIM / 8][4], float dv[DIM / 8][4],
                  const struct view *head, int key0)
{
    const int m0 = warp_id() * ROWS_OF_WARP;
    float p[KEY_TILES][4], ds[KEY_TILES][4];
    uint32_t operand[KEY_STEPS][4];
    dots<DIM>(
        p, head->steps, [=](uint32_t *a, int k0) { ldmatrix_trans<4>(a, far_cell<KEYS>(t->k, k0, m0)); },
        [=](uint32_t *x, int n0, int k0) { ldmatrix<4>(x, far_cell<DIM>(t->q, n0, k0)); });
    dots<DIM>(
        ds, head->steps, [=](uint32_t *a, int k0) { ldmatrix<4>(a, near_cell<DIM>(t->v, m0, k0)); },
        [=](uint32_t *x, int n0, int k0) { ldmatrix<4>(x, far_cell<DIM>(t->dout, n0, k0)); });
    GPU_UNROLL
    for (int n = 0; n < KEY_TILES; n++) {
        GPU_UNROLL
        for (int e = 0; e < 4; e++) {
            const int col = fragment_col(n, e), key = key0 + m0 + lane_id() / 4 + e / 2 * 8;
            const int pos = (int)head->seq->pos + col;
            const int seen = col < head->n && key <= pos && key >= first_of(head, pos);
            grad_pair(head->a, &p[n][e], &ds[n][e], seen, t->lse[col], t->d[col]);
        }
    }
    as_operand(operand, p);
    times<DIM, 1>(operand, t->dout, head->steps,
                  [&](int n, float part[2][4]) { add_part<DIM>(dv, n, part); });
    as_operand(operand, ds);
    times<DIM, 1>(operand, t->q, head->steps, [&](int n, float part[2][4]) { add_part<DIM>(dk, n, part); });
}

/* Joins sums with the `merges` entries of the stack on top, then puts them there, or (to: a matrix) out. A
 * thread has its own elements. */
template <int DIM>
FN void dkv_push(float sum[DIM / 8][4], float *stack, size_t entry, int depth, int merges, int push)
{
    for (int x = 1; x <= merges; x++) {
        const float *older = stack + (size_t)(depth - x) * entry;
        GPU_UNROLL
        for (int n = 0; n < DIM / 2; n++)
            sum[n / 4][n % 4] = older[n * TILE_ROWS * 2] + sum[n / 4][n % 4];
    }
    GPU_UNROLL
    for (int n = 0; n < DIM / 2; n++)
        if (push)
            (stack + (size_t)(depth - merges) * entry)[n * TILE_ROWS * 2] = sum[n / 4][n % 4];
}

template <int DIM> FN void dkv_put(struct mat m, const struct view *kv, int key0, const float sum[DIM / 8][4])
{
    GPU_UNROLL
    for (int h = 0; h < 2; h++) {
        const int key = key0 + warp_id() * ROWS_OF_WARP + lane_id() / 4 + 8 * h;
        GPU_UNROLL
        for (int n = 0; n < DIM / 8; n++)
            if (key < (int)kv->seq->n_rows && n * 8 < kv->d) {
                float *to = (float *)m.p + attn_key_row(kv->a, kv->seq, key) * m.ld +
                            (int64_t)kv->kv * kv->d + fragment_col(n, 0);
                to[0] = sum[n][2 * h];
                to[1] = sum[n][2 * h + 1];
            }
    }
}

/* Query blocks of a document from `own` on, before this one, see keys of block `own`. */
FN int64_t query_blocks_end(const struct attn *a, const struct attn_seq *doc, int64_t own)
{
    const int64_t n = (doc->n_rows + KEYS - 1) / KEYS, end = (own * KEYS + KEYS - 2 + a->window) / KEYS + 1;
    return a->window > 0 && end < n ? end : n;
}

/* One query head's queries of a leaf that see keys of the loaded block, in dk and dv, from the sums as they
 * are. Returns whether the leaf has a query at or behind that block. */
template <int DIM>
FN int dkv_leaf(struct dkv_shared<DIM> *t, const struct attn_args *f, const struct view *kv, int key0,
                int leaf, int g, float dk[DIM / 8][4], float dv[DIM / 8][4])
{
    const int64_t own = key0 / KEYS, end = query_blocks_end(kv->a, kv->seq, own),
                  n = (kv->seq->n_rows + KEYS - 1) / KEYS;
    int there = 0;
    for (int half = 0; half < 2; half++) {
        const struct attn_run run = attn_run_of(kv->a, kv->seq, leaf, half);
        int64_t first;
        there |= attn_run_blocks(&run, own, n, &first) > 0;
        const int64_t blocks = attn_run_blocks(&run, own, end, &first);
        for (int64_t b = first; b < first + blocks; b++) {
            int64_t t0;
            const int64_t rows = attn_run_block(&run, b, &t0);
            const struct attn_seq queries = { run.row + t0 - run.begin, rows, t0, kv->seq->page };
            const struct view head = {
                kv->a, &queries, kv->kv * kv->group + g, 1, kv->d, kv->steps, (int)rows
            };
            dkv_load(t, f, &head);
            cp_async_commit();
            cp_async_wait<0>();
            __syncthreads();
            dkv_block(t, dk, dv, &head, key0);
            __syncthreads();
        }
    }
    return there;
}

/* Floats of a block of threads' entry of the stack of query heads and leaves, dK or dV. */
template <int DIM> constexpr size_t dkv_entry = (size_t)DIM *KEYS;

/* item: seq: the document; row: the first key. part: [depth][kv heads][items][2][DIM * 64]. */
template <int DIM>
static __global__ __launch_bounds__(TILE_ROWS * 2,
                                    2) void attn_dkv_kernel(const __grid_constant__ struct attn_args f)
{
    SHARED(memory);
    struct dkv_shared<DIM> *t = (struct dkv_shared<DIM> *)memory;
    const struct attn_item it = f.item[blockIdx.x];
    const struct view kv = view_of_seq(&f.a, attn_doc(&f.a) + it.seq, (int)blockIdx.y);
    const size_t entry = 2 * dkv_entry<DIM> * gridDim.x * gridDim.y;
    float *stack = f.part + 2 * dkv_entry<DIM> * (blockIdx.x + (size_t)gridDim.x * blockIdx.y) + threadIdx.x,
          dk[DIM / 8][4], dv[DIM / 8][4];
    const int n = attn_leaves(&f.a) * kv.group;
    int depth = 0;

    clear_tiles(t->k, 4 * KEYS * DIM, &kv);
    copy_keys(t->k, &kv, it.row / KEYS, (int)threadIdx.x, TILE_ROWS * 2);
    copy_values<DIM>(t->v, &kv, it.row / KEYS, (int)threadIdx.x, TILE_ROWS * 2);
    for (int i = 0; i < n; i++) {
        const int merges = nest_merges(n, kv.group, i), push = i < n - 1;
        clear_sum<DIM>(dk, 0.0f);
        clear_sum<DIM>(dv, 0.0f);
        if (!dkv_leaf(t, &f, &kv, it.row, i / kv.group, i % kv.group, dk, dv)) {
            clear_sum<DIM>(dk, -0.0f);
            clear_sum<DIM>(dv, -0.0f);
        }
        GPU_UNROLL
        for (int x = 0; x < DIM / 2; x++)
            dk[x / 4][x % 4] = dk[x / 4][x % 4] * f.a.scale;
        dkv_push<DIM>(dk, stack, entry, depth, merges, push);
        dkv_push<DIM>(dv, stack + dkv_entry<DIM>, entry, depth, merges, push);
        depth += 1 - merges;
    }
    dkv_put<DIM>(f.dk, &kv, it.row, dk);
    dkv_put<DIM>(f.dv, &kv, it.row, dv);
}

#endif
