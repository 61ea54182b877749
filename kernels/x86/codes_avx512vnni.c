/* codes_avx512vnni.c - sums over quantised panels with AVX-512: codes become bf16 by look-up (vpermi2b), bf16
 * chains by vdpbf16ps, integer sums by vpdpbusd (unsigned codes, signed activations: zero points are taken
 * off with the sum of the activations, exactly). */
#include <immintrin.h>
#include "kernels/codes/codes_core.h"
#include "kernels/codes/codes_rows.h"
#include "kernels/order.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- numbers by bytes ---- */

/* Upper and lower bytes of the bf16 of 128 indices. */
struct table {
    __m512i upper0, upper1, lower0, lower1;
};

/* How codes become bf16. */
enum form {
    FORM_S8,      /* look-up of the magnitude */
    FORM_S8_ZERO, /* by arithmetic */
    FORM_U4,      /* look-up of code + bias, 0..31 */
    FORM_E4M3,    /* look-up in a table that holds round(number * scale), where all outputs have one scale */
    FORM_E4M3_EACH,
    FORM_E2M1, /* the exponent is added */
    FORM_E2M1_EACH
};
/* What a piece needs for it. */
struct decoder {
    struct table t;
    __m512i zero0, zero1;  /* FORM_S8_ZERO: int32 a column; FORM_U4: a byte, in zero0 */
    __m512i add0, add1;    /* FORM_E2M1: exponents, a word each */
    __m512 scale0, scale1; /* FORM_E4M3_EACH, FORM_E2M1_EACH */
};

INLINE __m512i even_bytes(__m512i a, __m512i b)
{
    /* low bytes of the words of a, then of b */
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)), _mm512_cvtepi16_epi8(b), 1);
}
INLINE __m512i words_of(__m512 lower, __m512 upper) { return (__m512i)_mm512_cvtne2ps_pbh(upper, lower); }
/* The table of 128 fp32, rounded to bf16. */
INLINE struct table table_of(const __m512 x[8])
{
    const __m512i a = words_of(x[0], x[1]), b = words_of(x[2], x[3]), c = words_of(x[4], x[5]),
                  d = words_of(x[6], x[7]);
    return (struct table){ even_bytes(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8)),
                           even_bytes(_mm512_srli_epi16(c, 8), _mm512_srli_epi16(d, 8)), even_bytes(a, b),
                           even_bytes(c, d) };
}
INLINE __m512 count_from(int first)
{
    const __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(i, _mm512_set1_epi32(first)));
}
/* 0 to 127: magnitudes of int8. from: what is added to the index. */
INLINE struct table integers(int from)
{
    __m512 x[8];
    for (int i = 0; i < 8; i++)
        x[i] = count_from(16 * i + from);
    return table_of(x);
}
/* Positive e4m3 times a scale. Index bits 3..6 are the exponent. */
INLINE struct table floats(float scale)
{
    __m512 x[8];
    const __m512 s = _mm512_set1_ps(scale);
    for (int i = 0; i < 8; i++) {
        const __m512i index = _mm512_add_epi32(_mm512_set1_epi32(16 * i),
                                               _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,
                                                                 14, 15));
        const __m512i fraction = _mm512_and_si512(index, _mm512_set1_epi32(7));
        const __m512 small = _mm512_mul_ps(_mm512_cvtepi32_ps(fraction), _mm512_set1_ps(0x1p-9f));
        /* exponent 1 of e4m3 is 121 of fp32 */
        const __m512 number = _mm512_castsi512_ps(
            _mm512_add_epi32(_mm512_slli_epi32(index, 20), _mm512_set1_epi32(120 << 23)));
        x[i] = _mm512_mask_mov_ps(number, _mm512_cmplt_epi32_mask(index, _mm512_set1_epi32(8)), small);
        x[i] = _mm512_mul_ps(x[i], s);
    }
    x[7] = _mm512_mask_mov_ps(x[7], 0x8000, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
    return table_of(x);
}
INLINE struct table small_floats(void)
{
    const __m512i upper = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, (char)0x80, (char)0xbf, (char)0xbf,
                      (char)0xbf, (char)0xc0, (char)0xc0, (char)0xc0, (char)0xc0));
    const __m512i lower = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x40,
                                                               (char)0x80, (char)0xc0, 0, 0, (char)0x80,
                                                               (char)0xc0, 0, 0x40, (char)0x80, (char)0xc0));
    return (struct table){ upper, upper, lower, lower };
}

/* ---- the head of a piece ---- */

/* 32 scales: outputs 0 to 15, then 16 to 31. */
INLINE void load_scales(enum code_scale s, const uint8_t *p, __m512 *a, __m512 *b)
{
    switch (s) {
    case CODE_SCALE_F32: *a = _mm512_loadu_ps(p), *b = _mm512_loadu_ps(p + 64); return;
    case CODE_SCALE_BF16:
        *a = _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
        *b = _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p + 32))), 16));
        return;
    case CODE_SCALE_F16:
        *a = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
        *b = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p + 32)));
        return;
    default: {
        __m512i e[2] = { _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)),
                         _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p + 16))) };
        for (int i = 0; i < 2; i++) {
            const __m512i none = _mm512_set1_epi32(0x00400000), nan = _mm512_set1_epi32(0x7fc00000);
            const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(e[i], _mm512_set1_epi32(255));
            const __mmask16 is_small = _mm512_testn_epi32_mask(e[i], e[i]);
            e[i] = _mm512_mask_mov_epi32(_mm512_slli_epi32(e[i], 23), is_nan, nan);
            e[i] = _mm512_mask_mov_epi32(e[i], is_small, none);
        }
        *a = _mm512_castsi512_ps(e[0]), *b = _mm512_castsi512_ps(e[1]);
    }
    }
}

/* Zero points as int32, plus `more`. */
INLINE void load_zeros(const struct panel_codes *c, const uint8_t *head, int more, __m512i *a, __m512i *b)
{
    const uint8_t *p = head + codes_zero_offset(c);
    *a = *b = _mm512_set1_epi32(codes_zero(c) + more);
    if (!c->has_zeros)
        return;
    const __m128i x = _mm_loadu_si128((const __m128i *)p), y = _mm_loadu_si128((const __m128i *)(p + 16));
    *a = c->kind == CODE_S8 ? _mm512_cvtepi8_epi32(x) : _mm512_cvtepu8_epi32(x);
    *b = c->kind == CODE_S8 ? _mm512_cvtepi8_epi32(y) : _mm512_cvtepu8_epi32(y);
    *a = _mm512_add_epi32(*a, _mm512_set1_epi32(more)), *b = _mm512_add_epi32(*b, _mm512_set1_epi32(more));
}

/* A byte of every column to its places in a line: 32-bit lanes a (columns 0..15), b (16..31) hold it. */
INLINE __m512i bytes_of_columns(__m512i a, __m512i b)
{
    a = _mm512_or_si512(a, _mm512_slli_epi32(a, 16)), b = _mm512_or_si512(b, _mm512_slli_epi32(b, 16));
    a = _mm512_or_si512(a, _mm512_slli_epi32(a, 8)), b = _mm512_or_si512(b, _mm512_slli_epi32(b, 8));
    /* a line is, in each 128 bits, four columns of a by two bytes, then four of b */
    const __m512i pick = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 0, 1, 4, 5, 8, 9, 12, 13));
    return _mm512_mask_mov_epi8(_mm512_shuffle_epi8(a, pick), 0xff00ff00ff00ff00u,
                                _mm512_shuffle_epi8(b, pick));
}

/* Do all outputs of the piece have one scale? */
INLINE int is_one_scale(__m512 a, __m512 b)
{
    const __m512i first = _mm512_broadcastd_epi32(_mm512_castsi512_si128(_mm512_castps_si512(a)));
    return !(_mm512_cmpneq_epi32_mask(_mm512_castps_si512(a), first) |
             _mm512_cmpneq_epi32_mask(_mm512_castps_si512(b), first));
}

/* Exponents that leave every number of e2m1 normal: 2 to 252. */
INLINE int is_safe(const uint8_t *p)
{
    const __m256i e = _mm256_loadu_si256((const __m256i *)p);
    return !_mm256_cmpgt_epu8_mask(_mm256_sub_epi8(e, _mm256_set1_epi8(2)), _mm256_set1_epi8((char)250));
}

INLINE enum form form_of(const struct panel_codes *c, const uint8_t *head)
{
    __m512 a, b;
    switch (c->kind) {
    case CODE_S8: return c->has_zeros ? FORM_S8_ZERO : FORM_S8;
    case CODE_U4: return FORM_U4;
    case CODE_E2M1: return is_safe(head) ? FORM_E2M1 : FORM_E2M1_EACH;
    default: load_scales(c->scale, head, &a, &b); return is_one_scale(a, b) ? FORM_E4M3 : FORM_E4M3_EACH;
    }
}

INLINE void open_piece(enum form f, struct decoder *d, const struct panel_codes *c, const uint8_t *head)
{
    __m512i a, b;
    switch (f) {
    case FORM_S8: d->t = integers(0); return;
    case FORM_S8_ZERO: load_zeros(c, head, 0, &d->zero0, &d->zero1); return;
    case FORM_U4:
        load_zeros(c, head, 0, &a, &b);
        d->t = integers(-16);
        d->zero0 = _mm512_sub_epi8(_mm512_set1_epi8(16), bytes_of_columns(a, b));
        return;
    case FORM_E4M3:
        load_scales(c->scale, head, &d->scale0, &d->scale1);
        d->t = floats(_mm512_cvtss_f32(d->scale0));
        return;
    case FORM_E4M3_EACH:
        d->t = floats(1);
        load_scales(c->scale, head, &d->scale0, &d->scale1);
        return;
    case FORM_E2M1_EACH:
        d->t = small_floats();
        load_scales(c->scale, head, &d->scale0, &d->scale1);
        return;
    case FORM_E2M1:
        d->t = small_floats();
        a = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)head)),
                                               _mm512_set1_epi32(127)),
                              7);
        b = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_cvtepu8_epi32(
                                                   _mm_loadu_si128((const __m128i *)(head + 16))),
                                               _mm512_set1_epi32(127)),
                              7);
        d->add0 = _mm512_mask_mov_epi16(a, 0xaaaaaaaau, _mm512_slli_epi32(a, 16));
        d->add1 = _mm512_mask_mov_epi16(b, 0xaaaaaaaau, _mm512_slli_epi32(b, 16));
        return;
    }
}

/* ---- lines ---- */

/* bf16 pairs times a scale a column, rounded. */
INLINE __m512i scaled(__m512i pairs, __m512 scale)
{
    const __m512 upper = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
    const __m512 lower = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    const __m512i u = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(upper, scale)));
    const __m512i l = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(lower, scale)));
    return _mm512_or_si512(_mm512_slli_epi32(u, 16), l);
}

/* Exact small integers in the four bytes of 32-bit lanes: bytes `shift` bits up, less zero, as the upper half
 * of a pair. */
INLINE __m512i as_upper(__m512i x, int shift, __m512i zero)
{
    const __m512i code = _mm512_srai_epi32(_mm512_slli_epi32(x, 24 - shift), 24);
    return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_sub_epi32(code, zero)));
}

/* The pairs of one unit. code: a byte a code, at its place in a line. */
INLINE void decode(enum form f, const struct decoder *d, __m512i code, __m512i *a, __m512i *b)
{
    __m512i index = code, upper, lower;
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    if (f == FORM_S8_ZERO) {
        const __m512i x = _mm512_unpacklo_epi8(code, code), y = _mm512_unpackhi_epi8(code, code);
        *a = _mm512_or_si512(as_upper(x, 16, d->zero0), _mm512_srli_epi32(as_upper(x, 0, d->zero0), 16));
        *b = _mm512_or_si512(as_upper(y, 16, d->zero1), _mm512_srli_epi32(as_upper(y, 0, d->zero1), 16));
        return;
    }
    if (f == FORM_S8)
        index = _mm512_abs_epi8(code);
    if (f == FORM_U4)
        index = _mm512_add_epi8(code, d->zero0);
    if (f == FORM_U4) {
        upper = _mm512_permutexvar_epi8(index, d->t.upper0);
        lower = _mm512_permutexvar_epi8(index, d->t.lower0);
    } else if (f == FORM_E2M1 || f == FORM_E2M1_EACH) {
        upper = _mm512_shuffle_epi8(d->t.upper0, index);
        lower = _mm512_shuffle_epi8(d->t.lower0, index);
    } else {
        upper = _mm512_permutex2var_epi8(d->t.upper0, index, d->t.upper1);
        lower = _mm512_permutex2var_epi8(d->t.lower0, index, d->t.lower1);
        upper = _mm512_ternarylogic_epi32(upper, code, sign, 0x78); /* upper ^ (code & sign) */
    }
    if (f == FORM_S8) /* -128 has no index; its lower byte is that of 0 */
        upper = _mm512_mask_mov_epi8(upper, _mm512_cmpeq_epi8_mask(code, sign), _mm512_set1_epi8((char)0xc3));
    *a = _mm512_unpacklo_epi8(lower, upper), *b = _mm512_unpackhi_epi8(lower, upper);
    if (f == FORM_E2M1) {
        const __m512i size = _mm512_set1_epi16(0x7fff);
        *a = _mm512_mask_add_epi16(*a, _mm512_test_epi16_mask(*a, size), *a, d->add0);
        *b = _mm512_mask_add_epi16(*b, _mm512_test_epi16_mask(*b, size), *b, d->add1);
    }
    if (f == FORM_E4M3_EACH || f == FORM_E2M1_EACH)
        *a = scaled(*a, d->scale0), *b = scaled(*b, d->scale1);
}

INLINE int is_nibbles(enum form f) { return f == FORM_U4 || f == FORM_E2M1 || f == FORM_E2M1_EACH; }

/* The codes of unit u, a byte each. */
INLINE __m512i codes_at(enum form f, const uint8_t *lines, int64_t u)
{
    if (!is_nibbles(f))
        return _mm512_loadu_si512(lines + 64 * u);
    const __m512i line = _mm512_loadu_si512(lines + 64 * (u / 2));
    return _mm512_and_si512(u % 2 ? _mm512_srli_epi16(line, 4) : line, _mm512_set1_epi8(15));
}

/* ---- a leaf to bf16 pairs ---- */

INLINE void unpack_cut(enum form f, const struct codes_job *j, const struct codes_cut *c, uint32_t *to)
{
    const uint8_t *head = j->panel + c->head, *lines = head + codes_head_bytes(j->codes);
    struct decoder d;
    open_piece(f, &d, j->codes, head);
    for (int64_t u = 0; u < c->n_units; u++, to += CODES_COLS) {
        __m512i a, b;
        decode(f, &d, codes_at(f, lines, u), &a, &b);
        _mm512_store_si512(to, a), _mm512_store_si512(to + 16, b);
    }
}

static void unpack(const struct codes_job *j, uint32_t *plain)
{
    for (int i = 0; i < j->n_cuts; i++) {
        const struct codes_cut *c = &j->cut[i];
        uint32_t *to = plain + (c->a - j->first_a) * CODES_COLS;
        switch (form_of(j->codes, j->panel + c->head)) {
        case FORM_S8: unpack_cut(FORM_S8, j, c, to); break;
        case FORM_S8_ZERO: unpack_cut(FORM_S8_ZERO, j, c, to); break;
        case FORM_U4: unpack_cut(FORM_U4, j, c, to); break;
        case FORM_E4M3: unpack_cut(FORM_E4M3, j, c, to); break;
        case FORM_E4M3_EACH: unpack_cut(FORM_E4M3_EACH, j, c, to); break;
        case FORM_E2M1: unpack_cut(FORM_E2M1, j, c, to); break;
        case FORM_E2M1_EACH: unpack_cut(FORM_E2M1_EACH, j, c, to); break;
        }
    }
}

/* ---- bf16 chains ---- */

/* Adds a cut's chains to the leaf's sums: of class grp. */
#define ROW_ZERO(i) __m512 p##i = _mm512_setzero_ps(), q##i = p##i;
#define ROW_LOAD(i) p##i = _mm512_loadu_ps(out + 32 * (i)), q##i = _mm512_loadu_ps(out + 32 * (i) + 16);
#define ROW_STORE(i) _mm512_storeu_ps(out + 32 * (i), p##i), _mm512_storeu_ps(out + 32 * (i) + 16, q##i);
/* one statement: gcc 12 moves single ones, and spills */
#define ROW_STEP(i) \
    { \
        __m512 x; \
        __asm__ volatile("vbroadcastss %3, %2\n\tvdpbf16ps %4, %2, %0\n\tvdpbf16ps %5, %2, %1" \
                         : "+v"(p##i), "+v"(q##i), "=&v"(x) \
                         : "m"(a[i]), "v"(b0), "v"(b1)); \
    }
#define ROW_SCALE(i) \
    p##i = _mm512_fmadd_ps(s0, p##i, _mm512_loadu_ps(out + 32 * (i))); \
    q##i = _mm512_fmadd_ps(s1, q##i, _mm512_loadu_ps(out + 32 * (i) + 16));
#define ROW_MIN(i) \
    { \
        const __m512 x = _mm512_set1_ps(sum[i]); \
        p##i = _mm512_fnmadd_ps(m0, x, p##i), q##i = _mm512_fnmadd_ps(m1, x, q##i); \
    }

/* The chains of one cut. UNITS: reads b0, b1 of unit u. */
#define CUT_SUMS(R, UNITS) \
    { \
        const struct codes_cut *c = &j->cut[i]; \
        const uint8_t *head = j->panel + c->head; \
        const uint32_t *first = j->a + c->a * (R); \
        float *out = j->out; \
        ROWS_##R(ROW_ZERO) if (is_deq){ ROWS_##R(ROW_LOAD) } UNITS(R) if (!is_deq) \
        { \
            __m512 s0, s1; \
            load_scales(j->codes->scale, head, &s0, &s1); \
            ROWS_##R(ROW_SCALE) if (j->codes->has_mins) \
            { \
                const float *sum = j->sum + i * (R); \
                __m512 m0, m1; \
                load_scales(j->codes->scale, head + codes_min_offset(j->codes), &m0, &m1); \
                ROWS_##R(ROW_MIN) \
            } \
        } \
        ROWS_##R(ROW_STORE) \
    }

#define PLAIN_UNITS(R) \
    const uint32_t *plain = j->plain + (c->a - j->first_a) * CODES_COLS; \
    const struct index_order order = ORDER("codes_chain", forward_order(), backward_order(c->n_units)); \
    for (int64_t k = 0; k < c->n_units; k++) { \
        const int64_t u = index_at(order, k); \
        const uint32_t *a = first + u * (R); \
        const __m512 b0 = _mm512_loadu_ps(plain + u * CODES_COLS), \
                     b1 = _mm512_loadu_ps(plain + u * CODES_COLS + 16); \
        ROWS_##R(ROW_STEP) \
    }
#define PLAIN_SUMS(R) \
    static void plain_sums_##R(const struct codes_job *j) \
    { \
        const int is_deq = j->codes->class == CODES_DEQ; \
        for (int i = 0; i < j->n_cuts; i++) \
            CUT_SUMS(R, PLAIN_UNITS) \
    }
HEIGHTS_14(PLAIN_SUMS)

#define LINE_UNIT(R, code) \
    { \
        __m512i b0, b1; \
        decode(f, &d, code, &b0, &b1); \
        ROWS_##R(ROW_STEP) \
    }
/* Two units of a line side by side where codes are nibbles. */
#define LINE_UNITS(R) \
    const uint8_t *lines = head + codes_head_bytes(j->codes); \
    const struct index_order order = ORDER("codes_chain", forward_order(), backward_order(c->n_units)); \
    struct decoder d; \
    open_piece(f, &d, j->codes, head); \
    int64_t k = 0; \
    if (is_nibbles(f) && ORDER("codes_chain", 1, 0)) \
        for (const uint32_t *a = first; k + 2 <= c->n_units; k += 2) { \
            const __m512i line = _mm512_loadu_si512(lines + 32 * k), nibble = _mm512_set1_epi8(15); \
            LINE_UNIT(R, _mm512_and_si512(line, nibble)) \
            a += R; \
            LINE_UNIT(R, _mm512_and_si512(_mm512_srli_epi16(line, 4), nibble)) \
            a += R; \
        } \
    for (; k < c->n_units; k++) { \
        const int64_t u = index_at(order, k); \
        const uint32_t *a = first + u * (R); \
        LINE_UNIT(R, codes_at(f, lines, u)) \
    }
#define LINE_CUT(R) \
    INLINE void line_cut_##R(enum form f, const struct codes_job *j, int i, int is_deq) \
        CUT_SUMS(R, LINE_UNITS) static void line_sums_##R(const struct codes_job *j) \
    { \
        for (int i = 0; i < j->n_cuts; i++) \
            switch (form_of(j->codes, j->panel + j->cut[i].head)) { \
            case FORM_S8: line_cut_##R(FORM_S8, j, i, 0); break; \
            case FORM_S8_ZERO: line_cut_##R(FORM_S8_ZERO, j, i, 0); break; \
            case FORM_U4: line_cut_##R(FORM_U4, j, i, 0); break; \
            case FORM_E4M3: line_cut_##R(FORM_E4M3, j, i, 1); break; \
            case FORM_E4M3_EACH: line_cut_##R(FORM_E4M3_EACH, j, i, 1); break; \
            case FORM_E2M1: line_cut_##R(FORM_E2M1, j, i, 1); break; \
            case FORM_E2M1_EACH: line_cut_##R(FORM_E2M1_EACH, j, i, 1); break; \
            } \
    }
HEIGHTS_8(LINE_CUT)

#define AHEAD 2048 /* bytes that two panels side by side are asked for ahead */
#include "kernels/x86/codes_two_avx512.h"
#include "kernels/x86/codes_e2m1_avx512.h"

typedef void sums_fn(const struct codes_job *j);
#define PLAIN_ENTRY(R) [R] = plain_sums_##R,
#define LINE_ENTRY(R) [R] = line_sums_##R,
static void zero_out(const struct codes_job *j)
{
    for (int i = 0; i < 2 * j->rows; i++)
        _mm512_storeu_ps(j->out + 16 * i, _mm512_setzero_ps());
}
/* Adds the pieces of j from `done` on. */
static void sums_from(const struct codes_job *j, int done)
{
    static sums_fn *const plain[] = { HEIGHTS_14(PLAIN_ENTRY) };
    static sums_fn *const line[] = { HEIGHTS_8(LINE_ENTRY) };
    struct codes_job rest = *j;
    rest.cut += done, rest.n_cuts -= done;
    (j->plain ? plain : line)[j->rows](&rest);
}
static void sums(const struct codes_job *j)
{
    zero_out(j);
    sums_from(j, !j->plain && j->codes->kind == CODE_E2M1 ? e2m1_sums(j, 1) : 0);
}
static int rows_two(const struct panel_codes *c) { return are_two(c) || c->kind == CODE_E2M1 ? 4 : 0; }
static void sums_two(const struct codes_job *j)
{
    struct codes_job second = *j;
    second.panel = j->panel1, second.out = j->out1;
    zero_out(j);
    zero_out(&second);
    if (are_two(j->codes)) {
        two_sums(j);
        return;
    }
    const int done = e2m1_sums(j, 2);
    sums_from(j, done);
    sums_from(&second, done);
}

/* ---- integer sums ---- */

#define INT_ZERO(i) __m512i p##i = _mm512_setzero_si512(), q##i = p##i;
#define INT_STEP(i) \
    { \
        __m512i x; \
        __asm__ volatile("vpbroadcastd %3, %2\n\tvpdpbusd %2, %4, %0\n\tvpdpbusd %2, %5, %1" \
                         : "+v"(p##i), "+v"(q##i), "=&v"(x) \
                         : "m"(a[i]), "v"(b0), "v"(b1)); \
    }
/* Takes the zero points off and adds the piece to the leaf. */
#define INT_SCALE(i) \
    { \
        const __m512i sum = _mm512_set1_epi32(isum[i]); \
        const __m512 x = _mm512_set1_ps(factor[i]); \
        p##i = _mm512_sub_epi32(p##i, _mm512_mullo_epi32(sum, z0)); \
        q##i = _mm512_sub_epi32(q##i, _mm512_mullo_epi32(sum, z1)); \
        __m512 u = _mm512_fmadd_ps(_mm512_cvtepi32_ps(p##i), _mm512_mul_ps(x, s0), \
                                   _mm512_loadu_ps(out + 32 * (i))); \
        __m512 v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(q##i), _mm512_mul_ps(x, s1), \
                                   _mm512_loadu_ps(out + 32 * (i) + 16)); \
        if (j->codes->has_mins) { \
            const __m512 n = _mm512_cvtepi32_ps(sum); \
            u = _mm512_fnmadd_ps(n, _mm512_mul_ps(x, m0), u); \
            v = _mm512_fnmadd_ps(n, _mm512_mul_ps(x, m1), v); \
        } \
        _mm512_storeu_ps(out + 32 * (i), u), _mm512_storeu_ps(out + 32 * (i) + 16, v); \
    }

/* The unsigned codes of units u and u + 1: four a column, in its lane of 32 bits. */
INLINE void quads_at(int is_bytes, const uint8_t *lines, int64_t u, __m512i *b0, __m512i *b1)
{
    __m512i x, y;
    if (is_bytes) {
        const __m512i half = _mm512_set1_epi8((char)0x80); /* -128 becomes 0 */
        x = _mm512_xor_si512(_mm512_loadu_si512(lines + 64 * u), half);
        y = _mm512_xor_si512(_mm512_loadu_si512(lines + 64 * u + 64), half);
    } else {
        const __m512i line = _mm512_loadu_si512(lines + 32 * u), low = _mm512_set1_epi8(15);
        x = _mm512_and_si512(line, low);
        y = _mm512_and_si512(_mm512_srli_epi16(line, 4), low);
    }
    *b0 = _mm512_unpacklo_epi16(x, y), *b1 = _mm512_unpackhi_epi16(x, y);
}

#define INT_CUT(R) \
    INLINE void int_cut_##R(int is_bytes, const struct codes_job *j, int i) \
    { \
        const struct codes_cut *c = &j->cut[i]; \
        const uint8_t *head = j->panel + c->head, *lines = head + codes_head_bytes(j->codes); \
        const uint32_t *a = j->a + c->a * (R); \
        const float *factor = j->factor + i * (R); \
        const int32_t *isum = j->isum + i * (R); \
        float *out = j->out; \
        ROWS_##R(INT_ZERO) for (int64_t u = c->unit; u < c->unit + c->n_units; u += 2, a += (R)) \
        { \
            __m512i b0, b1; \
            quads_at(is_bytes, lines, u, &b0, &b1); \
            ROWS_##R(INT_STEP) \
        } \
        __m512 s0, s1, m0 = _mm512_setzero_ps(), m1 = m0; \
        __m512i z0, z1; \
        load_scales(j->codes->scale, head, &s0, &s1); \
        if (j->codes->has_mins) \
            load_scales(j->codes->scale, head + codes_min_offset(j->codes), &m0, &m1); \
        load_zeros(j->codes, head, is_bytes ? 128 : 0, &z0, &z1); \
        ROWS_##R(INT_SCALE) \
    } \
    static void int_sums_##R(const struct codes_job *j) \
    { \
        for (int i = 0; i < j->n_cuts; i++) \
            if (j->codes->kind == CODE_S8) \
                int_cut_##R(1, j, i); \
            else \
                int_cut_##R(0, j, i); \
    }
HEIGHTS_12(INT_CUT)
#define INT_ENTRY(R) [R] = int_sums_##R,
static void sums_int(const struct codes_job *j)
{
    static sums_fn *const fn[] = { HEIGHTS_12(INT_ENTRY) };
    zero_out(j);
    fn[j->rows](j);
}

static void add(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(to + i, _mm512_add_ps(_mm512_loadu_ps(to + i), _mm512_loadu_ps(from + i)));
}

static int here(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512vnni");
}

const struct codes_ops codes_avx512vnni = { .name = "avx512vnni",
                                            .here = here,
                                            .step = 4,
                                            .rows = 14,
                                            .rows_few = 8,
                                            .rows_int = 12,
                                            .rows_two = rows_two,
                                            .unpack = unpack,
                                            .sums = sums,
                                            .sums_two = sums_two,
                                            .sums_int = sums_int,
                                            .add = add };
