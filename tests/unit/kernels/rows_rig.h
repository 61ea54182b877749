/* rows_rig.h - for tests of row ops: devices of every CPU class on one and two threads, matrices of values
 * whose sums show their order, the orders by definition, levels of a tree. */
#ifndef SHARDLINE_TESTS_UNIT_KERNELS_ROWS_RIG_H
#define SHARDLINE_TESTS_UNIT_KERNELS_ROWS_RIG_H

#include <math.h>

#include "kernels/dev.h"
#include "kernels/fn.h"
#include "kernels/kernels.h"
#include "tests/test.h"

/* ---- devices: all classes, 1 and 2 threads ---- */
#define MAX_DEVS 10
struct rig {
    struct mem mem;
    struct dev *dev[MAX_DEVS];
    int n;
};

static inline struct rig *rig_open(void)
{
    static const char *const isa[] = { "portable", "avx2", "avx512", "avx512bf16", "simt" };
    struct rig *r = calloc(1, sizeof *r);
    for (int i = 0; i < MAX_DEVS; i++) {
        struct err e = { 0 };
        setenv("SHARDLINE_ISA", isa[i / 2], 1);
        if (dev_open(&r->dev[r->n], "cpu", 1 + i % 2, &r->mem, &e) == 0)
            r->n++;
        else
            CHECK_INT(e.code, ERR_DEVICE);
    }
    unsetenv("SHARDLINE_ISA");
    CHECK(r->n >= 2);
    return r;
}

static inline void rig_close(struct rig *r)
{
    for (int i = 0; i < r->n; i++)
        dev_close(r->dev[i]);
    CHECK_INT(r->mem.total_now, 0);
    free(r);
}
#define EACH_DEV(r, d) \
    for (int i_##d = 0; i_##d < (r)->n; i_##d++) \
        for (struct dev *d = (r)->dev[i_##d]; d; d = NULL)

/* ---- data: every element another value, sizes mixed so that the order of a sum shows in its bits ---- */
static inline uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185u;
    x ^= x >> 27;
    x *= 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}
static inline float value(uint64_t stream, int64_t i)
{
    uint64_t r = mix(stream * 0x9e3779b97f4a7c15u + (uint64_t)i + 1);
    float f = (float)((double)(r >> 40) / 8388608.0 - 1.0);
    return f * (r & 7 ? 1.0f : 6.0f);
}

__attribute__((unused)) static const enum dtype dts[2] = { DT_F32, DT_BF16 };
__attribute__((unused)) static const int64_t sizes[] = { 1, 31, 32, 33, 63, 701 };
#define EACH(i, a) for (size_t i = 0; i < sizeof(a) / sizeof *(a); i++)

static inline float round_to(enum dtype dt, float x) { return dt == DT_BF16 ? fn_round_bf16(x) : x; }
static inline float elem(struct mat m, int64_t r, int64_t c)
{
    int64_t i = r * m.ld + c;
    return m.dt == DT_BF16 ? fn_from_bf16(((uint16_t *)m.p)[i]) : ((float *)m.p)[i];
}
static inline void set_elem(struct mat m, int64_t r, int64_t c, float x)
{
    int64_t i = r * m.ld + c;
    if (m.dt == DT_BF16)
        ((uint16_t *)m.p)[i] = fn_to_bf16(x);
    else
        ((float *)m.p)[i] = x;
}
static inline size_t mat_bytes(struct mat m) { return (size_t)(m.rows * m.ld) * dtype_size(m.dt); }

/* A matrix with gaps between its rows, filled from a stream (stream 0: a pattern that nothing computes, for
 * outputs). */
static inline struct mat new_mat(enum dtype dt, int64_t rows, int64_t cols, uint64_t stream)
{
    struct mat m = { NULL, rows, cols, cols + 3, dt };
    m.p = malloc(mat_bytes(m) + 1);
    memset(m.p, 0x5a, mat_bytes(m));
    for (int64_t r = 0; stream && r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            set_elem(m, r, c, value(stream, r * 1009 + c));
    return m;
}
static inline struct mat copy_mat(struct mat m)
{
    struct mat n = m;
    n.p = malloc(mat_bytes(m) + 1);
    memcpy(n.p, m.p, mat_bytes(m));
    return n;
}
#define FREE(...) \
    do { \
        struct mat m_[] = { __VA_ARGS__ }; \
        for (size_t i_ = 0; i_ < sizeof m_ / sizeof *m_; i_++) \
            free(m_[i_].p); \
    } while (0)
/* Gaps included: an op that writes beside its rows shows. */
#define CHECK_MAT(got, want, d, n) \
    do { \
        if (memcmp((got).p, (want).p, mat_bytes(want))) \
            test_fail(__FILE__, __LINE__, "%s, %d threads, n %d, %s: %s is not its definition", (d)->isa, \
                      pool_threads((d)->pool), (int)(n), dtype_name((want).dt), #got); \
    } while (0)

/* ---- the orders, by definition ---- */
/* fma(a, b, .), or a added when b is NULL */
static inline float by_lanes(int64_t n, const float *a, const float *b)
{
    float lane[32] = { 0 };
    for (int64_t i = 0; i < n; i++)
        lane[i % 32] = b ? fmaf(a[i], b[i], lane[i % 32]) : lane[i % 32] + a[i];
    for (int h = 16; h; h /= 2)
        for (int i = 0; i < h; i++)
            lane[i] += lane[i + h];
    return lane[0];
}
/* halves until odd, then in order */
static inline float by_tree(int64_t n, const float *x, int64_t step)
{
    if (n > 0 && n % 2 == 0)
        return by_tree(n / 2, x, step) + by_tree(n / 2, x + n / 2 * step, step);
    float s = n ? x[0] : 0.0f;
    for (int64_t i = 1; i < n; i++)
        s += x[i * step];
    return s;
}

/* Levels of a tree_acc as the caller of an op keeps them. */
struct levels {
    struct tree_acc acc;
    int n;
    size_t bytes;
};
static inline struct levels levels_open(int64_t n_leaves, int64_t per_call, size_t elements)
{
    struct levels l = { .acc = { .n = n_leaves },
                        .n = tree_levels(n_leaves, per_call),
                        .bytes = elements * sizeof(float) };
    for (int i = 0; i < l.n; i++) {
        l.acc.level[i] = malloc(l.bytes);
        memset(l.acc.level[i], 0x5a, l.bytes);
    }
    return l;
}
static inline void levels_close(struct levels *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->acc.level[i]);
}

struct dw_case {
    int leaves, per_call, grain;
    int64_t seq_len, n;
};
__attribute__((unused)) static const struct dw_case dw_cases[] = {
    { 1, 1, 1, 5, 33 },  { 2, 1, 8, 13, 31 }, { 3, 1, 4, 16, 1 },  { 6, 2, 8, 16, 300 }, { 8, 1, 8, 13, 257 },
    { 8, 8, 8, 24, 63 }, { 8, 2, 2, 7, 64 },  { 12, 4, 8, 9, 40 }, { 12, 3, 8, 8, 600 }, { 4, 4, 8, 3, 17 },
};

#endif
