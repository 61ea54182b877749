/* codes_two_avx512.h - few rows over two panels side by side, whose chains do not wait for each other: int4
 * in class grp. Part of codes_avx512vnni.c, whose macros it uses. */
#define ROW2_ZERO(i) __m512 p##i = _mm512_setzero_ps(), q##i = p##i, r##i = p##i, s##i = p##i;
#define ROW2_STORE(i) \
    _mm512_storeu_ps(j->out + 32 * (i), p##i), _mm512_storeu_ps(j->out + 32 * (i) + 16, q##i); \
    _mm512_storeu_ps(j->out1 + 32 * (i), r##i), _mm512_storeu_ps(j->out1 + 32 * (i) + 16, s##i);
#define ROW2_STEP(i) \
    { \
        __m512 x; \
        __asm__ volatile("vbroadcastss %5, %4\n\tvdpbf16ps %6, %4, %0\n\tvdpbf16ps %7, %4, %1\n\t" \
                         "vdpbf16ps %8, %4, %2\n\tvdpbf16ps %9, %4, %3" \
                         : "+v"(p##i), "+v"(q##i), "+v"(r##i), "+v"(s##i), "=&v"(x) \
                         : "m"(a[i]), "v"(b0), "v"(b1), "v"(c0), "v"(c1)); \
    }
#define ROW2_SCALE(i) \
    p##i = _mm512_fmadd_ps(f[0], p##i, _mm512_loadu_ps(j->out + 32 * (i))); \
    q##i = _mm512_fmadd_ps(f[1], q##i, _mm512_loadu_ps(j->out + 32 * (i) + 16)); \
    r##i = _mm512_fmadd_ps(f[2], r##i, _mm512_loadu_ps(j->out1 + 32 * (i))); \
    s##i = _mm512_fmadd_ps(f[3], s##i, _mm512_loadu_ps(j->out1 + 32 * (i) + 16));

#define TWO_UNIT(R, code0, code1) \
    { \
        __m512i b0, b1, c0, c1; \
        decode(form, &d0, code0, &b0, &b1); \
        decode(form, &d1, code1, &c0, &c1); \
        ROWS_##R(ROW2_STEP) a += R; \
    }
#define TWO_AHEAD(to) _mm_prefetch((const char *)(to) + AHEAD, _MM_HINT_T0)
/* Adds cut i to the sums of both panels. */
#define TWO_CUT(R) \
    INLINE void two_cut_##R(enum form form, const struct codes_job *j, int i) \
    { \
        const struct codes_cut *c = &j->cut[i]; \
        const int64_t head_bytes = codes_head_bytes(j->codes); \
        const uint8_t *head0 = j->panel + c->head, *head1 = j->panel1 + c->head; \
        const uint8_t *lines0 = head0 + head_bytes, *lines1 = head1 + head_bytes; \
        const uint32_t *a = j->a + c->a * (R); \
        const __m512i nibble = _mm512_set1_epi8(15); \
        struct decoder d0, d1; \
        __m512 f[4]; \
        int64_t u = 0; \
        open_piece(form, &d0, j->codes, head0); \
        open_piece(form, &d1, j->codes, head1); \
        ROWS_##R(ROW2_ZERO) for (; u + 2 <= c->n_units; u += 2) \
        { \
            const __m512i two0 = _mm512_loadu_si512(lines0 + 32 * u), \
                          two1 = _mm512_loadu_si512(lines1 + 32 * u); \
            TWO_AHEAD(lines0 + 32 * u), TWO_AHEAD(lines1 + 32 * u); \
            TWO_UNIT(R, _mm512_and_si512(two0, nibble), _mm512_and_si512(two1, nibble)) \
            TWO_UNIT(R, _mm512_and_si512(_mm512_srli_epi16(two0, 4), nibble), \
                     _mm512_and_si512(_mm512_srli_epi16(two1, 4), nibble)) \
        } \
        for (; u < c->n_units; u++) \
            TWO_UNIT(R, codes_at(form, lines0, u), codes_at(form, lines1, u)) \
        load_scales(j->codes->scale, head0, &f[0], &f[1]); \
        load_scales(j->codes->scale, head1, &f[2], &f[3]); \
        ROWS_##R(ROW2_SCALE) ROWS_##R(ROW2_STORE) \
    } \
    static void two_sums_##R(const struct codes_job *j) \
    { \
        for (int i = 0; i < j->n_cuts; i++) \
            two_cut_##R(FORM_U4, j, i); \
    }
HEIGHTS_4(TWO_CUT)

#define TWO_ENTRY(R) [R] = two_sums_##R,
/* Codes of 8 bits gain nothing by it. */
static int are_two(const struct panel_codes *c)
{
    return c->class == CODES_GRP && c->kind == CODE_U4 && !c->has_mins && ORDER("codes_chain", 1, 0);
}
static void two_sums(const struct codes_job *j)
{
    static void (*const fn[])(const struct codes_job *) = { HEIGHTS_4(TWO_ENTRY) };
    fn[j->rows](j);
}
