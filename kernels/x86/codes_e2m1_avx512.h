/* codes_e2m1_avx512.h - few rows over panels of e2m1, whose scales are powers of two. Part of
 * codes_avx512vnni.c, whose macros it uses.
 *
 * The contract's chain adds activation * (number * 2^e), where e changes from piece to piece. Here the chain
 * adds activation * number, and its sum is multiplied by 2^(e of the last piece - e) where a piece begins:
 * a step less for every weight. Both give the same bits as long as nothing is rounded to a denormal, flushed
 * or infinite in either, which these bounds prove. Numbers are multiples of 2^-1 and at most 6.
 *
 *     2^CALM_LOW <= |activation| < 2^CALM_HIGH, or zero     e in [EXP_LOW, EXP_HIGH]
 *
 * An activation is a multiple of 2^(CALM_LOW - 7). So all products and sums are multiples of
 * 2^(CALM_LOW - 8 + EXP_LOW), and in the terms of another piece of 2^(CALM_LOW - 8 + EXP_LOW - EXP_HIGH),
 * which must be normal: at least 2^-126. Sums are below elements * 6 * 2^(CALM_HIGH + EXP_HIGH - EXP_LOW).
 * From a piece out of bounds on, and where an activation is, the leaf is added as it is defined. */
#define CALM_LOW (-84)
#define CALM_HIGH 40
#define EXP_LOW (-26)
#define EXP_HIGH 8
_Static_assert(CALM_LOW - 8 + EXP_LOW - EXP_HIGH >= -126, "sums are normal");
_Static_assert(CALM_HIGH + EXP_HIGH - EXP_LOW + 3 + 40 < 127, "sums are finite");

/* Are the activations of the leaf within the bounds? */
static int are_calm(const struct codes_job *j)
{
    const struct codes_cut *first = j->cut, *last = &j->cut[j->n_cuts - 1];
    const uint32_t *a = j->a + first->a * j->rows;
    const int64_t n = (last->a + last->n_units - first->a) * j->rows;
    const __m512i size = _mm512_set1_epi16(0x7fff), one = _mm512_set1_epi16(1);
    __m512i most = _mm512_setzero_si512(), least = _mm512_set1_epi16(-1); /* least: less one, without zeros */
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 here = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        const __m512i x = _mm512_and_si512(_mm512_maskz_loadu_epi32(here, a + i), size);
        most = _mm512_max_epu16(most, x);
        least = _mm512_min_epu16(least, _mm512_sub_epi16(x, one));
    }
    return !(_mm512_cmpge_epu16_mask(most, _mm512_set1_epi16((127 + CALM_HIGH) << 7)) |
             _mm512_cmplt_epu16_mask(least, _mm512_set1_epi16(((127 + CALM_LOW) << 7) - 1)));
}

/* Are a piece's scales? */
INLINE int is_calm(const uint8_t *head)
{
    const __m256i e = _mm256_loadu_si256((const __m256i *)head);
    return !_mm256_cmpgt_epu8_mask(_mm256_sub_epi8(e, _mm256_set1_epi8(127 + EXP_LOW)),
                                   _mm256_set1_epi8(EXP_HIGH - EXP_LOW));
}

#define ROW_TIMES(i) p##i = _mm512_mul_ps(p##i, f0), q##i = _mm512_mul_ps(q##i, f1);
/* One unit, whose codes are the bytes of `code`. */
#define E2M1_UNIT(R, code) \
    { \
        const __m512i index = code, up = _mm512_shuffle_epi8(upper, index), \
                      low = _mm512_shuffle_epi8(lower, index); \
        const __m512i b0 = _mm512_unpacklo_epi8(low, up), b1 = _mm512_unpackhi_epi8(low, up); \
        ROWS_##R(ROW_STEP) a += R; \
    }
#define E2M1_SUMS(R) \
    static int e2m1_sums_##R(const struct codes_job *j) \
    { \
        const struct table t = small_floats(); \
        const __m512i upper = t.upper0, lower = t.lower0, nibble = _mm512_set1_epi8(15); \
        const __m512i bias = _mm512_set1_epi32(127 << 23); \
        const int64_t head_bytes = codes_head_bytes(j->codes); \
        __m512i e0 = bias, e1 = bias; /* exponents of the piece, as fp32 */ \
        __m512 f0, f1; \
        float *out = j->out; \
        int i = 0; \
        ROWS_##R(ROW_ZERO) for (; i < j->n_cuts && is_calm(j->panel + j->cut[i].head); i++) \
        { \
            const struct codes_cut *c = &j->cut[i]; \
            const uint8_t *head = j->panel + c->head, *line = head + head_bytes; \
            const uint32_t *a = j->a + c->a * (R); \
            const __m512i was0 = _mm512_add_epi32(e0, bias), was1 = _mm512_add_epi32(e1, bias); \
            e0 = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)head)), 23); \
            e1 = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(head + 16))), 23); \
            f0 = _mm512_castsi512_ps(_mm512_sub_epi32(was0, e0)); \
            f1 = _mm512_castsi512_ps(_mm512_sub_epi32(was1, e1)); \
            ROWS_##R(ROW_TIMES) int64_t u = 0; \
            for (; u + 2 <= c->n_units; u += 2, line += 64) { \
                const __m512i two = _mm512_loadu_si512(line); \
                E2M1_UNIT(R, _mm512_and_si512(two, nibble)) \
                E2M1_UNIT(R, _mm512_and_si512(_mm512_srli_epi16(two, 4), nibble)) \
            } \
            if (u < c->n_units) \
                E2M1_UNIT(R, _mm512_and_si512(_mm512_loadu_si512(line), nibble)) \
        } \
        f0 = _mm512_castsi512_ps(e0), f1 = _mm512_castsi512_ps(e1); \
        ROWS_##R(ROW_TIMES) ROWS_##R(ROW_STORE) return i; \
    }
HEIGHTS_8(E2M1_SUMS)

/* The same of two panels side by side. */
#define ROW2_TIMES(i) \
    p##i = _mm512_mul_ps(p##i, f[0]), q##i = _mm512_mul_ps(q##i, f[1]); \
    r##i = _mm512_mul_ps(r##i, f[2]), s##i = _mm512_mul_ps(s##i, f[3]);
#define E2M1_UNIT2(R, code0, code1) \
    { \
        const __m512i first = code0, second = code1; \
        const __m512i up0 = _mm512_shuffle_epi8(upper, first), low0 = _mm512_shuffle_epi8(lower, first); \
        const __m512i up1 = _mm512_shuffle_epi8(upper, second), low1 = _mm512_shuffle_epi8(lower, second); \
        const __m512i b0 = _mm512_unpacklo_epi8(low0, up0), b1 = _mm512_unpackhi_epi8(low0, up0); \
        const __m512i c0 = _mm512_unpacklo_epi8(low1, up1), c1 = _mm512_unpackhi_epi8(low1, up1); \
        ROWS_##R(ROW2_STEP) a += R; \
    }
/* Exponents of a piece's outputs at their place in fp32. */
INLINE __m512i exponents(const uint8_t *head)
{
    return _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)head)), 23);
}
#define E2M1_SUMS2(R) \
    static int e2m1_two_##R(const struct codes_job *j) \
    { \
        const struct table t = small_floats(); \
        const __m512i upper = t.upper0, lower = t.lower0, nibble = _mm512_set1_epi8(15); \
        const __m512i bias = _mm512_set1_epi32(127 << 23); \
        const int64_t head_bytes = codes_head_bytes(j->codes); \
        __m512i e[4] = { bias, bias, bias, bias }; \
        __m512 f[4]; \
        int i = 0; \
        ROWS_##R(ROW2_ZERO) for (; i < j->n_cuts; i++) \
        { \
            const struct codes_cut *c = &j->cut[i]; \
            const uint8_t *head0 = j->panel + c->head, *head1 = j->panel1 + c->head; \
            const uint8_t *line0 = head0 + head_bytes, *line1 = head1 + head_bytes; \
            const uint32_t *a = j->a + c->a * (R); \
            if (!is_calm(head0) || !is_calm(head1)) \
                break; \
            const __m512i now[4] = { exponents(head0), exponents(head0 + 16), exponents(head1), \
                                     exponents(head1 + 16) }; \
            for (int k = 0; k < 4; k++) { \
                f[k] = _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_add_epi32(e[k], bias), now[k])); \
                e[k] = now[k]; \
            } \
            ROWS_##R(ROW2_TIMES) int64_t u = 0; \
            for (; u + 2 <= c->n_units; u += 2, line0 += 64, line1 += 64) { \
                _mm_prefetch((const char *)line0 + AHEAD, _MM_HINT_T0); \
                _mm_prefetch((const char *)line1 + AHEAD, _MM_HINT_T0); \
                const __m512i two0 = _mm512_loadu_si512(line0), two1 = _mm512_loadu_si512(line1); \
                E2M1_UNIT2(R, _mm512_and_si512(two0, nibble), _mm512_and_si512(two1, nibble)) \
                E2M1_UNIT2(R, _mm512_and_si512(_mm512_srli_epi16(two0, 4), nibble), \
                           _mm512_and_si512(_mm512_srli_epi16(two1, 4), nibble)) \
            } \
            if (u < c->n_units) \
                E2M1_UNIT2(R, _mm512_and_si512(_mm512_loadu_si512(line0), nibble), \
                           _mm512_and_si512(_mm512_loadu_si512(line1), nibble)) \
        } \
        for (int k = 0; k < 4; k++) \
            f[k] = _mm512_castsi512_ps(e[k]); \
        ROWS_##R(ROW2_TIMES) ROWS_##R(ROW2_STORE) return i; \
    }
HEIGHTS_4(E2M1_SUMS2)

#define E2M1_ENTRY(R) [R] = e2m1_sums_##R,
#define E2M1_ENTRY2(R) [R] = e2m1_two_##R,
/* The sums of a leaf of class deq, of up to 8 rows (two panels: 4), as far as its pieces are within the
 * bounds. Returns the first piece that is not added. */
static int e2m1_sums(const struct codes_job *j, int n_panels)
{
    static int (*const one[])(const struct codes_job *) = { HEIGHTS_8(E2M1_ENTRY) };
    static int (*const two[])(const struct codes_job *) = { HEIGHTS_4(E2M1_ENTRY2) };
    if (!ORDER("codes_chain", 1, 0) || !are_calm(j))
        return 0;
    return (n_panels == 2 ? two : one)[j->rows](j);
}
