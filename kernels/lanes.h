/* lanes.h - the canonical 32 lanes: what makes a sum along a row the same on every machine.
 *
 *   element i is added in lane i mod 32, ascending; then lanes are folded by halves: +16, +8, +4, +2, +1
 *
 * On a CPU a lane is an element of a vector register (the compiler vectorises loops over 32 floats), on a
 * GPU one thread of a warp. Loops go over chunks of 32 elements; in all chunks but the last m is the
 * constant 32. A chunk is computed into a struct lanes first and stored then, so that the output may be an
 * input (same pointer, same dtype).
 *
 * The GPU compiles the same text (cuda/lanes.cuh): a warp runs a task, EACH_LANE is all lanes at once, a
 * struct lanes is a register, and every lane executes what is outside of EACH_LANE. So the body of
 * EACH_LANE touches its own element of a struct lanes only, and arrays that lanes fill together lie in
 * device memory. */
#ifndef SHARDLINE_KERNELS_LANES_H
#define SHARDLINE_KERNELS_LANES_H

#include "kernels/fn.h"
#include "kernels/kernels.h"
#include "kernels/order.h"

#define LANES 32
#ifdef __CUDACC__
#include "kernels/cuda/lanes.cuh"
#else
struct lanes {
    float x[LANES];
} __attribute__((aligned(64)));
/* for (EACH_LANE(j, n)): lanes 0 .. n - 1. */
#define EACH_LANE(j, n) \
    int j = 0; \
    j < (n); \
    j++
/* The value of lane j, for all lanes. */
#define LANE_OF(a, j) ((a)->x[j])

/* A task is [begin, end) of the range that rows_spread divides. */
#define ROW_TASK static void
#define ROW_ARG void *
#define ROW_BOTH FN
/* Host memory that a task reads, uploaded to the device; on a CPU it is the same memory. */
#define UPLOAD(d, p, bytes) (p)
#define UPLOAD_IDS(d, ids, n) (ids)
#define UPLOAD_ATTN(d, a) (*(a))
#define FLAT_PIECE(n) (n)    /* elements of a task */
#define ROPE_PIECE ATTN_PAGE /* positions of a task */
#endif

/* Runs the last argument for chunks [i, i + m) of [0, n). */
#define CHUNKS(n, i, m, ...) \
    do { \
        int64_t i = 0; \
        for (; i + LANES <= (n); i += LANES) { \
            enum { m = LANES }; \
            __VA_ARGS__; \
        } \
        if (i < (n)) { \
            const int m = (int)((n)-i); \
            __VA_ARGS__; \
        } \
    } while (0)

/* The same, and a loop over [0, n), where no iteration needs another one's result. On a GPU the `shares`
 * warps of a task (rows_share) divide these iterations; each of the warps runs all other loops of the
 * task. */
#ifndef OWN_CHUNKS
#define OWN_CHUNKS CHUNKS
#define EACH_OWN(h, n) \
    int h = 0; \
    h < (n); \
    h++
#define SHARES(cols) 1
#define rows_share(d, n, per, shares, task, job) ((void)(shares), rows_spread(d, n, per, task, job))
#endif

/* Where the order of chunks is the order of a sum: first to last; altered: last to first. */
#ifdef SHARDLINE_ALTER
#define CHUNKS_DOWN(n, i, m, ...) \
    do { \
        for (int64_t i = ((n) + LANES - 1) / LANES * LANES - LANES; i >= 0; i -= LANES) { \
            const int m = (n)-i < LANES ? (int)((n)-i) : LANES; \
            __VA_ARGS__; \
        } \
    } while (0)
#define SUM_CHUNKS(n, i, m, ...) \
    do { \
        if (ALTERED("lanes_order")) \
            CHUNKS_DOWN(n, i, m, __VA_ARGS__); \
        else \
            CHUNKS(n, i, m, __VA_ARGS__); \
    } while (0)
#else
#define SUM_CHUNKS CHUNKS
#endif

#ifndef __CUDACC__
FN float fold_halves(struct lanes *a)
{
    for (int j = 0; j < 16; j++)
        a->x[j] = a->x[j] + a->x[j + 16];
    for (int j = 0; j < 8; j++)
        a->x[j] = a->x[j] + a->x[j + 8];
    for (int j = 0; j < 4; j++)
        a->x[j] = a->x[j] + a->x[j + 4];
    float b0 = a->x[0] + a->x[2], b1 = a->x[1] + a->x[3];
    return b0 + b1;
}

FN float fold_chain(struct lanes *a)
{
    for (int j = 1; j < LANES; j++)
        a->x[0] += a->x[j];
    return a->x[0];
}

FN float lanes_fold(struct lanes *a) { return ORDER("lanes_fold", fold_halves, fold_chain)(a); }

/* The maximum. NaN is skipped: the sum of exp shows it. Zeros of both signs give +0, however the row is
 * cut. */
FN float lanes_max(const struct lanes *a)
{
    float m = a->x[0];
    for (int j = 1; j < LANES; j++)
        m = a->x[j] > m ? a->x[j] : m;
    return m + 0.0f;
}
#endif

/* Elements of either dtype. dt must be a constant where these are inlined (BY_DTYPE), or loops are not
 * vectorised. */
FN float get(const void *p, enum dtype dt, int64_t i)
{
    return dt == DT_BF16 ? fn_from_bf16(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}
FN void put(void *p, enum dtype dt, int64_t i, int m, const struct lanes *v)
{
    if (dt == DT_BF16) {
        uint16_t *q = (uint16_t *)p + i;
        for (EACH_LANE(j, m))
            q[j] = fn_to_bf16(v->x[j]);
    } else {
        float *q = (float *)p + i;
        for (EACH_LANE(j, m))
            q[j] = v->x[j];
    }
}
FN float round_as(enum dtype dt, float x) { return dt == DT_BF16 ? fn_round_bf16(x) : x; }

#define BY_DTYPE(dt, ...) \
    do { \
        if ((dt) == DT_BF16) { \
            const enum dtype DT = DT_BF16; \
            __VA_ARGS__; \
        } else { \
            const enum dtype DT = DT_F32; \
            __VA_ARGS__; \
        } \
    } while (0)

#ifndef __CUDACC__
FN void *mat_row(struct mat m, int64_t r) { return (char *)m.p + r * m.ld * (int64_t)dtype_size(m.dt); }
#endif

#endif
