/* codes_avx2.c - sums over quantised panels with AVX2: a leaf is unpacked to bf16 pairs, whose chains are
 * fused multiply-adds under FTZ|DAZ; integer sums are those of 16-bit pairs. */
#include <immintrin.h>
#include <string.h>
#include "kernels/codes/codes_core.h"
#include "kernels/codes/codes_rows.h"
#include "kernels/order.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- a leaf to bf16 pairs ---- */

/* Eight codes that lie side by side are four outputs' units: numbers of a piece in the order of a line. */
struct line_numbers {
    float scale[64];
    int32_t zero[64];
};

static int output_of(int place) { return place / 8 % 2 * 16 + place / 16 * 4 + place % 8 / 2; }

static int zero_at(const struct panel_codes *c, const uint8_t *head, int col)
{
    const uint8_t zero = head[codes_zero_offset(c) + col];
    if (!c->has_zeros)
        return codes_zero(c);
    return c->kind == CODE_S8 ? (int8_t)zero : zero;
}

static void open_piece(struct line_numbers *x, const struct panel_codes *c, const uint8_t *head)
{
    for (int i = 0; i < 64; i++) {
        x->scale[i] = c->class == CODES_DEQ ? code_scale_at(c->scale, head, output_of(i)) : 0;
        x->zero[i] = c->class == CODES_DEQ ? 0 : zero_at(c, head, output_of(i));
    }
}

/* To bf16, in the lower halves: to nearest even, denormals to zero of their sign, NaN quiet. */
INLINE __m256i round_bf16(__m256 x)
{
    const __m256i u = _mm256_castps_si256(x), size = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7fff));
    const __m256i is_nan = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7f800000));
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), size);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
    const __m256i zero = _mm256_and_si256(u, _mm256_set1_epi32((int)0x80000000));
    __m256i r = _mm256_blendv_epi8(sum, quiet, is_nan);
    r = _mm256_blendv_epi8(r, zero, is_small);
    return _mm256_srli_epi32(r, 16);
}

INLINE __m256 e4m3(__m256i code)
{
    const __m256i size = _mm256_and_si256(code, _mm256_set1_epi32(127));
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(128)), 24);
    const __m256i fraction = _mm256_and_si256(code, _mm256_set1_epi32(7));
    /* exponent 1 of e4m3 is 121 of fp32 */
    const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(size, 20), _mm256_set1_epi32(120 << 23));
    const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(fraction), _mm256_set1_ps(0x1p-9f));
    __m256i x = _mm256_blendv_epi8(normal, _mm256_castps_si256(small),
                                   _mm256_cmpgt_epi32(_mm256_set1_epi32(8), size));
    x = _mm256_blendv_epi8(x, _mm256_set1_epi32(0x7fc00000),
                           _mm256_cmpeq_epi32(size, _mm256_set1_epi32(127)));
    return _mm256_castsi256_ps(_mm256_or_si256(x, sign));
}

INLINE __m256 e2m1(__m256i code)
{
    const __m256 numbers = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(8)), 28);
    return _mm256_or_ps(_mm256_permutevar8x32_ps(numbers, code), _mm256_castsi256_ps(sign));
}

/* The bf16 of eight codes, in the lower halves. */
INLINE __m256i decode(enum code_kind k, const struct line_numbers *x, const uint8_t *p, int place, int shift)
{
    __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + place)));
    const __m256 scale = _mm256_loadu_ps(x->scale + place);
    if (k == CODE_U4 || k == CODE_E2M1)
        code = _mm256_and_si256(_mm256_srl_epi32(code, _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(15));
    if (k == CODE_E4M3)
        return round_bf16(_mm256_mul_ps(e4m3(code), scale));
    if (k == CODE_E2M1)
        return round_bf16(_mm256_mul_ps(e2m1(code), scale));
    if (k == CODE_S8)
        code = _mm256_srai_epi32(_mm256_slli_epi32(code, 24), 24);
    code = _mm256_sub_epi32(code, _mm256_loadu_si256((const __m256i *)(x->zero + place)));
    return _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(code)), 16);
}

INLINE void unpack_cut(enum code_kind k, const struct codes_job *j, const struct codes_cut *c, uint32_t *to)
{
    const uint8_t *head = j->panel + c->head, *lines = head + codes_head_bytes(j->codes);
    const int is_bytes = codes_are_bytes(k);
    struct line_numbers x;
    open_piece(&x, j->codes, head);
    for (int64_t u = 0; u < c->n_units; u++, to += CODES_COLS) {
        const uint8_t *p = lines + 64 * (is_bytes ? u : u / 2);
        for (int place = 0; place < 64; place += 8) {
            const __m256i words = decode(k, &x, p, place, 4 * (int)(u % 2));
            const __m128i pairs = _mm_packus_epi32(_mm256_castsi256_si128(words),
                                                   _mm256_extracti128_si256(words, 1));
            _mm_storeu_si128((__m128i *)(to + output_of(place)), pairs);
        }
    }
}

static void unpack(const struct codes_job *j, uint32_t *plain)
{
    for (int i = 0; i < j->n_cuts; i++) {
        const struct codes_cut *c = &j->cut[i];
        uint32_t *to = plain + (c->a - j->first_a) * CODES_COLS;
        switch (j->codes->kind) {
        case CODE_S8: unpack_cut(CODE_S8, j, c, to); break;
        case CODE_U4: unpack_cut(CODE_U4, j, c, to); break;
        case CODE_E4M3: unpack_cut(CODE_E4M3, j, c, to); break;
        default: unpack_cut(CODE_E2M1, j, c, to); break;
        }
    }
}

/* ---- bf16 chains ---- */

#define ROW_LOAD(i) __m256 p##i = _mm256_loadu_ps(sum + 32 * (i)), q##i = _mm256_loadu_ps(sum + 32 * (i) + 8);
#define ROW_STORE(i) _mm256_storeu_ps(sum + 32 * (i), p##i), _mm256_storeu_ps(sum + 32 * (i) + 8, q##i);
#define UPPER(x) _mm256_and_ps((x), mask)
#define LOWER(x) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 16))
#define ROW_UPPER(i) \
    { \
        const __m256 x = UPPER(_mm256_broadcast_ss((const float *)(const void *)(a + (i)))); \
        p##i = _mm256_fmadd_ps(x, b0, p##i), q##i = _mm256_fmadd_ps(x, b1, q##i); \
    }
#define ROW_LOWER(i) \
    { \
        const __m256 x = LOWER(_mm256_broadcast_ss((const float *)(const void *)(a + (i)))); \
        p##i = _mm256_fmadd_ps(x, b0, p##i), q##i = _mm256_fmadd_ps(x, b1, q##i); \
    }
/* sum [R][32]: n units more of the chains of 16 columns. Not inlined: the caller has changed the mode. */
#define CHAIN(R) \
    static __attribute__((noinline)) void chain_##R(float *sum, const uint32_t *first, \
                                                    const uint32_t *plain, int64_t n) \
    { \
        const struct index_order order = ORDER("codes_chain", forward_order(), backward_order(n)); \
        const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)); \
        ROWS_##R(ROW_LOAD) for (int64_t k = 0; k < n; k++) \
        { \
            const int64_t u = index_at(order, k); \
            const uint32_t *a = first + u * (R); \
            const __m256 w0 = _mm256_loadu_ps((const float *)(const void *)(plain + u * CODES_COLS)); \
            const __m256 w1 = _mm256_loadu_ps((const float *)(const void *)(plain + u * CODES_COLS + 8)); \
            __m256 b0 = UPPER(w0), b1 = UPPER(w1); \
            ROWS_##R(ROW_UPPER) b0 = LOWER(w0), b1 = LOWER(w1); \
            ROWS_##R(ROW_LOWER) \
        } \
        ROWS_##R(ROW_STORE) \
    }
HEIGHTS_6(CHAIN)

typedef void chain_fn(float *sum, const uint32_t *first, const uint32_t *plain, int64_t n);
#define CHAIN_ENTRY(R) [R] = chain_##R,
static chain_fn *const chains[] = { HEIGHTS_6(CHAIN_ENTRY) };

/* The chains of cut c, on sum [rows][32], with denormals flushed as the bf16 instruction does. */
static void flushed_chains(const struct codes_job *j, const struct codes_cut *c, float *sum)
{
    const uint32_t *plain = j->plain + (c->a - j->first_a) * CODES_COLS, *a = j->a + c->a * j->rows;
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    __asm__ volatile("" : : : "memory");
    chains[j->rows](sum, a, plain, c->n_units);
    chains[j->rows](sum + 16, a, plain + 16, c->n_units);
    __asm__ volatile("" : : : "memory");
    _mm_setcsr(mode);
}

/* leaf = fma(scale, piece, leaf), then the minima's part. */
static void add_piece(const struct codes_job *j, int cut, const float *piece, const float *scale,
                      const float *min)
{
    for (int r = 0; r < j->rows; r++)
        for (int col = 0; col < CODES_COLS; col += 8) {
            float *out = j->out + r * CODES_COLS + col;
            __m256 x = _mm256_fmadd_ps(_mm256_loadu_ps(scale + col),
                                       _mm256_loadu_ps(piece + r * CODES_COLS + col), _mm256_loadu_ps(out));
            if (min)
                x = _mm256_fnmadd_ps(_mm256_loadu_ps(min + col), _mm256_set1_ps(j->sum[cut * j->rows + r]),
                                     x);
            _mm256_storeu_ps(out, x);
        }
}

static void load_scales(enum code_scale s, const uint8_t *p, float *out)
{
    for (int col = 0; col < CODES_COLS; col++)
        out[col] = code_scale_at(s, p, col);
}

static void sums(const struct codes_job *j)
{
    const struct panel_codes *c = j->codes;
    memset(j->out, 0, (size_t)(j->rows * CODES_COLS) * sizeof *j->out);
    for (int i = 0; i < j->n_cuts; i++) {
        float piece[6 * CODES_COLS] = { 0 }, scale[CODES_COLS], min[CODES_COLS];
        const uint8_t *head = j->panel + j->cut[i].head;
        if (c->class == CODES_DEQ) {
            flushed_chains(j, &j->cut[i], j->out);
            continue;
        }
        flushed_chains(j, &j->cut[i], piece);
        load_scales(c->scale, head, scale);
        if (c->has_mins)
            load_scales(c->scale, head + codes_min_offset(c), min);
        add_piece(j, i, piece, scale, c->has_mins ? min : NULL);
    }
}

/* ---- integer sums ---- */

/* Registers p q r s of a row hold outputs 4 i to 4 i + 3, then 16 + 4 i … */
#define INT_ZERO(i) __m256i p##i = _mm256_setzero_si256(), q##i = p##i, r##i = p##i, s##i = p##i;
#define INT_ADD(sum) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x, w));
#define INT_STEP(i, sum) \
    { \
        const __m256i x = _mm256_set1_epi32((int)a[i]); \
        INT_ADD(sum) \
    }
#define INT_P(i) INT_STEP(i, p##i)
#define INT_Q(i) INT_STEP(i, q##i)
#define INT_R(i) INT_STEP(i, r##i)
#define INT_S(i) INT_STEP(i, s##i)
#define INT_STORE_ONE(i, sum, q) \
    _mm_storeu_si128((__m128i *)(out + 32 * (i) + 4 * (q)), _mm256_castsi256_si128(sum)); \
    _mm_storeu_si128((__m128i *)(out + 32 * (i) + 16 + 4 * (q)), _mm256_extracti128_si256(sum, 1));
#define INT_STORE(i) \
    INT_STORE_ONE(i, p##i, 0) INT_STORE_ONE(i, q##i, 1) INT_STORE_ONE(i, r##i, 2) INT_STORE_ONE(i, s##i, 3)

/* 16 codes of a line as 16-bit numbers. */
INLINE __m256i words_at(int is_bytes, const uint8_t *p, int shift)
{
    const __m128i line = _mm_loadu_si128((const __m128i *)p);
    if (is_bytes)
        return _mm256_cvtepi8_epi16(line);
    return _mm256_and_si256(_mm256_srl_epi16(_mm256_cvtepu8_epi16(line), _mm_cvtsi32_si128(shift)),
                            _mm256_set1_epi16(15));
}

#define INT_CUT(R) \
    INLINE void int_cut_##R(int is_bytes, const struct codes_job *j, const struct codes_cut *c, \
                            int32_t *out) \
    { \
        const uint8_t *lines = j->panel + c->head + codes_head_bytes(j->codes); \
        const uint32_t *a = j->a + c->a * (R); \
        ROWS_##R(INT_ZERO) for (int64_t u = c->unit; u < c->unit + c->n_units; u++, a += (R)) \
        { \
            const uint8_t *line = lines + 64 * (is_bytes ? u : u / 2); \
            const int shift = 4 * (int)(u % 2); \
            __m256i w = words_at(is_bytes, line, shift); \
            ROWS_##R(INT_P) w = words_at(is_bytes, line + 16, shift); \
            ROWS_##R(INT_Q) w = words_at(is_bytes, line + 32, shift); \
            ROWS_##R(INT_R) w = words_at(is_bytes, line + 48, shift); \
            ROWS_##R(INT_S) \
        } \
        ROWS_##R(INT_STORE) \
    }
INT_CUT(1)
INT_CUT(2)
INT_CUT(3)

static void int_cut(const struct codes_job *j, const struct codes_cut *c, int32_t *out)
{
    const int is_bytes = j->codes->kind == CODE_S8;
    switch (j->rows * 2 + is_bytes) {
    case 2: int_cut_1(0, j, c, out); break;
    case 3: int_cut_1(1, j, c, out); break;
    case 4: int_cut_2(0, j, c, out); break;
    case 5: int_cut_2(1, j, c, out); break;
    case 6: int_cut_3(0, j, c, out); break;
    default: int_cut_3(1, j, c, out); break;
    }
}

/* One row's integer sums of a cut, less the zero points' part, times the scales, onto the leaf. */
struct int_numbers {
    float scale[CODES_COLS], min[CODES_COLS];
    int32_t zero[CODES_COLS];
};
static void add_int(const struct codes_job *j, const struct int_numbers *x, const int32_t *piece,
                    float factor, int32_t isum, float *out)
{
    const __m256 f = _mm256_set1_ps(factor);
    for (int col = 0; col < CODES_COLS; col += 8) {
        const __m256i zero = _mm256_mullo_epi32(_mm256_loadu_si256((const __m256i *)(x->zero + col)),
                                                _mm256_set1_epi32(isum));
        const __m256i sum = _mm256_sub_epi32(_mm256_loadu_si256((const __m256i *)(piece + col)), zero);
        __m256 leaf = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum),
                                      _mm256_mul_ps(f, _mm256_loadu_ps(x->scale + col)),
                                      _mm256_loadu_ps(out + col));
        if (j->codes->has_mins)
            leaf = _mm256_fnmadd_ps(_mm256_set1_ps((float)isum),
                                    _mm256_mul_ps(f, _mm256_loadu_ps(x->min + col)), leaf);
        _mm256_storeu_ps(out + col, leaf);
    }
}

static void sums_int(const struct codes_job *j)
{
    const struct panel_codes *c = j->codes;
    memset(j->out, 0, (size_t)(j->rows * CODES_COLS) * sizeof *j->out);
    for (int i = 0; i < j->n_cuts; i++) {
        int32_t piece[3 * CODES_COLS];
        struct int_numbers x;
        const uint8_t *head = j->panel + j->cut[i].head;
        load_scales(c->scale, head, x.scale);
        if (c->has_mins)
            load_scales(c->scale, head + codes_min_offset(c), x.min);
        for (int col = 0; col < CODES_COLS; col++)
            x.zero[col] = zero_at(c, head, col);
        int_cut(j, &j->cut[i], piece);
        for (int r = 0; r < j->rows; r++)
            add_int(j, &x, piece + r * CODES_COLS, j->factor[i * j->rows + r], j->isum[i * j->rows + r],
                    j->out + r * CODES_COLS);
    }
}

static void add(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_add_ps(_mm256_loadu_ps(to + i), _mm256_loadu_ps(from + i)));
}

static int here(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

const struct codes_ops codes_avx2 = { .name = "avx2",
                                      .here = here,
                                      .step = 2,
                                      .rows = 6,
                                      .rows_few = 0,
                                      .rows_int = 3,
                                      .unpack = unpack,
                                      .sums = sums,
                                      .sums_int = sums_int,
                                      .add = add };
