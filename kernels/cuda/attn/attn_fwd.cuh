/* attn_fwd.cuh - attention forward on tensor cores (attn_tile.cuh): flash attention (Dao et al. 2022, 2023)
 * with the contract's order.
 *
 * A row, block of 64 keys by block inside its segment of 1024:
 *   s = scale * (q . k, mma steps of 16 over head_dim), capped as attn.inc has it;
 *   m' = max(m, s_j);  c = exp(m - m');  p_j = exp(s_j
 *   - m'), masked +0
 *   l = fma(l, c, sum32(p)), the CPU's sum;  part = (bf16 of p) . v, four mma steps from +0;  o = fma(o, c,
 *   part)
 * Segments, the first one taken as it is: attn.inc. A block that a row sees nothing of leaves its state
 * alone, a segment likewise.
 *
 * A part is a sum of its own, so that blocks can be worked on side by side, too (attn_few.cuh). Here a block
 * of threads has 64 rows (attn_tile.cuh), a warp 16 of them, and takes the tile's key blocks in turn. */
#ifndef SHARDLINE_KERNELS_CUDA_ATTN_ATTN_FWD_CUH
#define SHARDLINE_KERNELS_CUDA_ATTN_ATTN_FWD_CUH

#include "kernels/cuda/attn/attn_tile.cuh"

enum { TILE_ROWS = 64, TILE_WARPS = TILE_ROWS / ROWS_OF_WARP, SEGMENT_PAGES = ATTN_SEGMENT / ATTN_PAGE };

/* The two rows of a 16-row operand that a thread has elements of, and what they see. */
struct two_rows {
    int i[2], pos[2], first[2];
};

FN struct two_rows two_rows_of(const struct view *v, int first_row)
{
    struct two_rows r;
    GPU_UNROLL
    for (int h = 0; h < 2; h++) {
        r.i[h] = first_row + lane_id() / 4 + 8 * h;
        r.pos[h] = pos_of(v, r.i[h]);
        r.first[h] = first_of(v, r.pos[h]);
    }
    return r;
}

/* Does a row see any key of a block? */
FN int sees(int pos, int first, int block) { return block * KEYS <= pos && first < (block + 1) * KEYS; }

/* A warp's 16 rows: some key of the block is seen by some; all keys are seen by all. */
struct span {
    int low_pos, high_pos, low_first, high_first;
};
FN struct span span_of(const struct view *v, int first_row)
{
    const int low = pos_of(v, first_row), high = pos_of(v, first_row + ROWS_OF_WARP - 1);
    struct span s = { low, high, first_of(v, low), first_of(v, high) };
    return s;
}
FN int span_sees(const struct span *s, int block) { return sees(s->high_pos, s->low_first, block); }
FN int span_sees_all(const struct span *s, int block)
{
    return (block + 1) * KEYS - 1 <= s->low_pos && block * KEYS >= s->high_first;
}

/* A score: the dot scaled and, where there is a softcap, capped. slope (may be NULL): of the cap. */
FN float score_of(const struct attn *a, float dot, float *slope)
{
    const float s = a->scale * dot;
    if (!(a->softcap > 0))
        return s;
    const float t = fn_tanh(s / a->softcap);
    if (slope)
        *slope = 1.0f - t * t;
    return a->softcap * t;
}

/* Scores scaled, capped and masked; best[h]: the largest of a row, for all lanes. */
FN void mask_scores(float s[KEY_TILES][4], const struct two_rows *r, int block, const struct attn *a, int all,
                    float best[2])
{
    best[0] = best[1] = -FN_INF;
    GPU_UNROLL
    for (int n = 0; n < KEY_TILES; n++) {
        GPU_UNROLL
        for (int e = 0; e < 4; e++) {
            const int key = block * KEYS + fragment_col(n, e), h = e / 2;
            s[n][e] = !all && (key > r->pos[h] || key < r->first[h]) ? -FN_INF : score_of(a, s[n][e], NULL);
            best[h] = s[n][e] > best[h] ? s[n][e] : best[h];
        }
    }
    GPU_UNROLL
    for (int h = 0; h < 2; h++)
        for (int w = 1; w < 4; w *= 2) {
            const float o = __shfl_xor_sync(WARP_ALL, best[h], w);
            best[h] = o > best[h] ? o : best[h];
        }
}

/* The sum of a row's 64: x[i] + x[i + 32], then halves folded, + 16, 8, 4, 2, 1. */
FN float sum_of_row(const float s[KEY_TILES][4], int h)
{
    float x[KEY_TILES][2];
    GPU_UNROLL
    for (int n = 0; n < KEY_TILES; n++)
        x[n][0] = s[n][2 * h], x[n][1] = s[n][2 * h + 1];
    GPU_UNROLL
    for (int w = KEY_TILES / 2; w > 0; w /= 2) {
        GPU_UNROLL
        for (int n = 0; n < KEY_TILES / 2; n++)
            if (n < w)
                x[n][0] = x[n][0] + x[n + w][0], x[n][1] = x[n][1] + x[n + w][1];
    }
    for (int w = 2; w > 0; w /= 2)
        for (int e = 0; e < 2; e++)
            x[0][e] = x[0][e] + __shfl_xor_sync(WARP_ALL, x[0][e], w);
    return x[0][0] + x[0][1];
}

/* Scores become p; *m goes from the maximum before the block to the one with it. */
FN void soften(float s[KEY_TILES][4], int h, float best, float *m, float *c, float *sum)
{
    const float top = best > *m ? best : *m, from = top == -FN_INF ? 0.0f : top;
    *c = fn_exp(*m - from);
    *m = top;
    GPU_UNROLL
    for (int n = 0; n < KEY_TILES; n++) {
        s[n][2 * h] = fn_exp(s[n][2 * h] - from);
        s[n][2 * h + 1] = fn_exp(s[n][2 * h + 1] - from);
    }
    *sum = sum_of_row(s, h);
}

/* A later segment (m, l) onto a total: the weights of o, or which of both is taken as it is. l == 0: nothing
 * was seen. */
struct weights {
    int keep, take;
    float x, y;
};
FN struct weights merge_state(float *total_m, float *total_l, float m, float l)
{
    struct weights w = { l == 0.0f, *total_l == 0.0f, 0.0f, 0.0f };
    const float top = *total_m > m ? *total_m : m;
    w.x = fn_exp(*total_m - top);
    w.y = fn_exp(m - top);
    *total_l = w.keep ? *total_l : w.take ? l : fmaf(*total_l, w.x, l * w.y);
    *total_m = w.keep ? *total_m : w.take ? m : top;
    return w;
}
FN float merge_value(const struct weights *w, float total, float o)
{
    return w->keep ? total : w->take ? o : fmaf(total, w->x, o * w->y);
}

FN uint16_t *out_of(const struct attn_args *f, const struct view *v, int i, int col)
{
    return (uint16_t *)f->out.p + row_of(v, i) * f->out.ld + (int64_t)head_of(v, i) * v->d + col;
}

/* Two neighbours of a row of `out`, which may lie at odd elements. */
FN void put_pair(const struct attn_args *f, const struct view *v, int i, int col, float a, float b)
{
    uint16_t *to = out_of(f, v, i, col);
    const uint32_t x = fn_to_bf16(a), y = fn_to_bf16(b);
    if ((uintptr_t)to % 4 == 0) {
        *(uint32_t *)to = x | y << 16;
    } else {
        to[0] = (uint16_t)x;
        to[1] = (uint16_t)y;
    }
}

FN void put_lse(const struct attn_args *f, const struct view *v, int i, float m, float l)
{
    if (f->lse)
        f->lse[stat_of(v, i)] = m + fn_log(l);
}

/* ---- many rows ---- */
/* total: [DIM / 8][128][4] */
template <int DIM> struct tile_shared {
    uint16_t q[TILE_ROWS * DIM], k[DIM * KEYS], v[KEYS * DIM];
    float total[];
};
template <int DIM> FN size_t tile_shared_bytes(int segments)
{
    return sizeof(struct tile_shared<DIM>) + (segments > 1 ? sizeof(float) * TILE_ROWS * DIM : 0);
}

template <int DIM> struct soft_rows {
    float m[2], l[2], o[DIM / 8][4];
};

template <int DIM> FN void soft_begin(struct soft_rows<DIM> *s)
{
    s->m[0] = s->m[1] = -FN_INF;
    s->l[0] = s->l[1] = 0.0f;
    GPU_UNROLL
    for (int n = 0; n < DIM / 8; n++)
        s->o[n][0] = s->o[n][1] = s->o[n][2] = s->o[n][3] = 0.0f;
}

/* o = fma(o, c, part) for rows that see something of the block. */
template <int DIM>
FN void soft_add(struct soft_rows<DIM> *s, const uint32_t p[KEY_STEPS][4], const uint16_t *values,
                 const struct view *v, const float c[2], const int on[2])
{
    times<DIM, 1>(p, values, v->steps, [&](int n, float part[2][4]) {
        GPU_UNROLL
        for (int x = 0; x < 8; x++) {
            float *o = &s->o[2 * n + x / 4][x % 4];
            *o = on[x % 4 / 2] ? fmaf(*o, c[x % 4 / 2], part[x / 4][x % 4]) : *o;
        }
    });
}

/* The end of a segment: total and s become one, in s at the last one, else in `total` of shared memory, and
 * s begins again. */
template <int DIM>
FN void soft_end_segment(struct soft_rows<DIM> *s, float total_m[2], float total_l[2], float *total,
                         int is_last)
{
    struct weights w[2];
    GPU_UNROLL
    for (int h = 0; h < 2; h++)
        w[h] = merge_state(&total_m[h], &total_l[h], s->m[h], s->l[h]);
    GPU_UNROLL
    for (int n = 0; n < DIM / 8; n++) {
        float *t = total + ((size_t)n * TILE_ROWS * 2 + threadIdx.x) * 4;
        GPU_UNROLL
        for (int e = 0; e < 4; e++) {
            s->o[n][e] = merge_value(&w[e / 2], t[e], s->o[n][e]);
            if (!is_last)
                t[e] = s->o[n][e];
        }
    }
    if (!is_last)
        soft_begin(s);
    for (int h = 0; h < 2 && is_last; h++)
        s->m[h] = total_m[h], s->l[h] = total_l[h];
}

template <int DIM>
FN void soft_put(const struct attn_args *f, const struct view *v, const struct two_rows *r,
                 const struct soft_rows<DIM> *s)
{
    GPU_UNROLL
    for (int h = 0; h < 2; h++) {
        if (r->i[h] >= v->n)
            continue;
        GPU_UNROLL
        for (int n = 0; n < DIM / 8; n++)
            if (n * 8 < v->d)
                put_pair(f, v, r->i[h], fragment_col(n, 0), s->o[n][2 * h] / s->l[h],
                         s->o[n][2 * h + 1] / s->l[h]);
        if (lane_id() % 4 == 0)
            put_lse(f, v, r->i[h], s->m[h], s->l[h]);
    }
}

/* item: row: the first of the tile. While a warp works on scores the values arrive, while on values the next
 * keys. */
template <int DIM>
static __global__ __launch_bounds__(TILE_ROWS * 2,
                                    2) void attn_tile_kernel(const __grid_constant__ struct attn_args f)
{
    SHARED(memory);
    struct tile_shared<DIM> *t = (struct tile_shared<DIM> *)memory;
    const struct attn_item it = f.item[blockIdx.x];
    const struct view v = view_of(&f.a, it.seq, (int)blockIdx.y);
    const int mine = it.row + warp_id() * ROWS_OF_WARP, works = mine < v.n;
    const struct span span = span_of(&v, mine);
    const struct two_rows rows = two_rows_of(&v, mine);
    const int low = first_of(&v, pos_of(&v, it.row)) / KEYS, last = pos_of(&v, it.row + TILE_ROWS - 1) / KEYS;
    const int one_segment = low / SEGMENT_PAGES == last / SEGMENT_PAGES;
    float total_m[2] = { -FN_INF, -FN_INF }, total_l[2] = { 0 };
    struct soft_rows<DIM> s;

    soft_begin(&s);
    clear_tiles(t->q, (TILE_ROWS + 2 * KEYS) * DIM, &v);
    copy_queries<DIM>(t->q, &v, f.q, it.row, TILE_ROWS, f.aligned);
    copy_keys(t->k, &v, low, (int)threadIdx.x, TILE_ROWS * 2);
    cp_async_commit();
    copy_values<DIM>(t->v, &v, low, (int)threadIdx.x, TILE_ROWS * 2);
    cp_async_commit();
    for (int b = low; b <= last; b++) {
        const int on = works && span_sees(&span, b);
        const int sees_block[2] = { sees(rows.pos[0], rows.first[0], b),
                                    sees(rows.pos[1], rows.first[1], b) };
        float x[KEY_TILES][4], best[2], c[2], sum;
        cp_async_wait<1>();
        __syncthreads();
        if (on)
            dot_keys<DIM>(x, t->q, warp_id() * ROWS_OF_WARP, t->k, v.steps);
        __syncthreads();
        if (b < last)
            copy_keys(t->k, &v, b + 1, (int)threadIdx.x, TILE_ROWS * 2);
        cp_async_commit();
        if (on) {
            mask_scores(x, &rows, b, &f.a, span_sees_all(&span, b), best);
            GPU_UNROLL
            for (int h = 0; h < 2; h++) {
                soften(x, h, best[h], &s.m[h], &c[h], &sum);
                s.l[h] = sees_block[h] ? fmaf(s.l[h], c[h], sum) : s.l[h];
            }
        }
        cp_async_wait<1>();
        __syncthreads();
        if (on) {
            uint32_t p[KEY_STEPS][4];
            as_operand(p, x);
            soft_add(&s, p, t->v, &v, c, sees_block);
        }
        __syncthreads();
        if (b < last)
            copy_values<DIM>(t->v, &v, b + 1, (int)threadIdx.x, TILE_ROWS * 2);
        cp_async_commit();
        if (!one_segment && (b == last || b % SEGMENT_PAGES == SEGMENT_PAGES - 1))
            soft_end_segment(&s, total_m, total_l, t->total, b == last);
    }
    if (works)
        soft_put(&f, &v, &rows, &s);
}

#endif
