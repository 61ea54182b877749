/* attn_tile.h - the product of attention: C[rows][cols] = (C or 0) + A . B, one ascending chain of fused multiply-adds an element.
 *
 * An operand is fp32 values, or (CHAIN_PAIRS) pairs of bf16 along the contraction, 32 bits each, the lower index in the upper half,
 * kept in arrays of float that nobody looks at as floats; k counts pairs then. CHAIN_DIRECT reads B as natural bf16 rows. It and
 * CHAIN_STREAM (fp32) are for few rows, whose B comes from memory: what lies `ahead` of it is asked for.
 *
 * Included by attn_text.h, once a CPU class, after these macros are defined:
 *   V, VW                     a vector of VW floats (VW divides 16)
 *   V_LOAD(p) V_STORE(p, v) V_SET1(x) V_ZERO() V_ADD(a, b) V_MUL(a, b) V_FMA(a, b, c)
 *   V_KEEP(x, n, y)           the first n lanes of x (none or all too), then those of y
 *   V_HAS_MINUS_ZERO(x)       whether a lane is -0
 *   V_FMA_FLUSH(a, b, c)      as V_FMA, inside FLUSH_BEGIN/FLUSH_END: inputs and result flushed to signed zero
 *   FLUSH_BEGIN() FLUSH_END() flushing on, off, for this thread (nothing where V_FMA_FLUSH does it itself)
 *   TILE_LIST(kind, T)        the tiles of a kind: T(kind, rows, vectors); TILES_OF(kind, T, n) are those of 1..6 rows
 *   TILE_TABLE                the same as struct tile_set, widest first
 *   HAVE_PAIRS                there is V_FMA_PAIRS(a, b, c): two flushed steps in one, the upper halves first
 *   HAVE_DIRECT               there are CHAIN_DIRECT and CHAIN_STREAM, and V_LOAD_DIRECT(p, next): a vector of B from bf16 at p (and
 *                             of the next row, for pairs)
 *
 *        b: [k][cols], cols a multiple of 16      Accumulators are named variables, not an array: gcc 12 would keep an array
 *        |  |  |  |                               in memory. A is read at a[i * a_row + k * a_k], so that a matrix and its
 *   a -- c  c  c  c   up to 6 rows                transpose serve alike.
 *   a -- c  c  c  c
 */

#define VECS_1(M, i) M(i, 0)
#define VECS_2(M, i) VECS_1(M, i) M(i, 1)
#define VECS_4(M, i) VECS_2(M, i) M(i, 2) M(i, 3)
#define VECS_8(M, i) VECS_4(M, i) M(i, 4) M(i, 5) M(i, 6) M(i, 7)
#define ROWS_1(M, n) M(0, n)
#define ROWS_2(M, n) ROWS_1(M, n) M(1, n)
#define ROWS_3(M, n) ROWS_2(M, n) M(2, n)
#define ROWS_4(M, n) ROWS_3(M, n) M(3, n)
#define ROWS_5(M, n) ROWS_4(M, n) M(4, n)
#define ROWS_6(M, n) ROWS_5(M, n) M(5, n)
#define TILE_ROWS 6

/* A chain starts at +0, or at C, or at +0 and is added to C (not where chains run in another mode: the addition must not). */
enum start { FROM_ZERO, FROM_C, ADD_TO_C };
enum chain { CHAIN_PLAIN, CHAIN_FLUSH, CHAIN_PAIRS, CHAIN_DIRECT, CHAIN_STREAM, CHAINS };

struct prod {
    float *c; int64_t ldc;                  /* [rows][cols] */
    const float *a; int64_t a_row, a_k;
    const float *b; int64_t ldb;            /* [k][cols] */
    int64_t rows, cols, k;
    enum start start;
    enum chain chain;                       /* CHAIN_FLUSH: an odd k ends with a zero pair half */
    const float *scale;                     /* [rows]: C is multiplied by these before it is started from; or NULL */
    int64_t ahead;                          /* bytes; from B here to what comes after it */
    const char *next; int64_t next_bytes;   /* memory that is asked for while the product runs, an equal part a tile; or NULL */
};
typedef void (*tile_fn)(const struct prod *p, float *c, const float *a, const float *b, const float *scale);

#define T_DECL(i, j) V c##i##j;
#define T_ZERO(i, j) c##i##j = V_ZERO();
#define T_LOAD(i, j) c##i##j = V_LOAD(c + i * p->ldc + j * VW);
#define T_LOAD_SCALED(i, j) c##i##j = V_MUL(V_LOAD(c + i * p->ldc + j * VW), x##i);
#define T_ADD_C(i, j) c##i##j = V_ADD(V_LOAD(c + i * p->ldc + j * VW), c##i##j);
#define T_STORE(i, j) V_STORE(c + i * p->ldc + j * VW, c##i##j);
#define T_ADD_ZERO(i, j) c##i##j = V_ADD(c##i##j, V_ZERO());
#define T_B(i, j) const V b##j = B_NOW(j);
#define T_FMA(i, j) c##i##j = FMA_NOW(x##i, b##j, c##i##j);
#define R_DECL(i, n) VECS_##n(T_DECL, i)
#define R_ZERO(i, n) VECS_##n(T_ZERO, i)
#define R_LOAD(i, n) VECS_##n(T_LOAD, i)
#define R_LOAD_SCALED(i, n) { const V x##i = V_SET1(scale[i]); VECS_##n(T_LOAD_SCALED, i) }
#define R_ADD_C(i, n) VECS_##n(T_ADD_C, i)
#define R_STORE(i, n) VECS_##n(T_STORE, i)
#define R_ADD_ZERO(i, n) VECS_##n(T_ADD_ZERO, i)
#define R_STEP(i, n) { const V x##i = V_SET1(a[i * p->a_row]); VECS_##n(T_FMA, i) }

/* One tile of r rows and n vectors; the text is the same for both kinds of chain, FMA_NOW says which. */
#define TILE_BODY(r, n)                                                                                                  \
    ROWS_##r(R_DECL, n)                                                                                                  \
    if (p->start != FROM_C) {                                                                                            \
        ROWS_##r(R_ZERO, n)                                                                                              \
    } else if (scale) {                                                                                                  \
        ROWS_##r(R_LOAD_SCALED, n)                                                                                       \
    } else {                                                                                                             \
        ROWS_##r(R_LOAD, n)                                                                                              \
    }                                                                                                                    \
    for (int64_t k = p->k; k > 0; k--) {                                                                                 \
        VECS_##n(T_B, 0)                                                                                                 \
        ROWS_##r(R_STEP, n)                                                                                              \
        a += p->a_k;                                                                                                     \
        b += p->ldb;                                                                                                     \
    }                                                                                                                    \
    if (p->start == ADD_TO_C) {                                                                                          \
        ROWS_##r(R_ADD_C, n)                                                                                             \
    }
#define TILE_ARGS const struct prod *p, float *c, const float *a, const float *b, const float *scale
#define TILE(kind, r, n)                                                                                                 \
    static void tile_##kind##_##r##x##n(TILE_ARGS) { TILE_BODY(r, n) ROWS_##r(R_STORE, n) }
/* fma(+0, +0, s) = s + 0: only the sign of a zero may change */
#define TILE_PAIR_END(kind, r, n)                                                                                        \
    static void tile_##kind##_##r##x##n(TILE_ARGS)                                                                       \
    {                                                                                                                    \
        TILE_BODY(r, n)                                                                                                  \
        if (p->k & 1) {                                                                                                  \
            ROWS_##r(R_ADD_ZERO, n)                                                                                      \
        }                                                                                                                \
        ROWS_##r(R_STORE, n)                                                                                             \
    }
#define TILES_OF(kind, T, n) T(kind, 1, n) T(kind, 2, n) T(kind, 3, n) T(kind, 4, n) T(kind, 5, n) T(kind, 6, n)
#define TILE_NAMES(kind, n)                                                                                              \
    { tile_##kind##_1x##n, tile_##kind##_2x##n, tile_##kind##_3x##n, tile_##kind##_4x##n, tile_##kind##_5x##n, tile_##kind##_6x##n }

#define B_NOW(j) V_LOAD(b + j * VW)
#define FMA_NOW V_FMA
TILE_LIST(plain, TILE)
#undef FMA_NOW
#define FMA_NOW V_FMA_FLUSH
TILE_LIST(flush, TILE_PAIR_END)
#if HAVE_PAIRS
#undef FMA_NOW
#define FMA_NOW V_FMA_PAIRS
TILE_LIST(pairs, TILE)
#endif
#if HAVE_DIRECT
#undef B_NOW
/* half of the lines of a row (of both, for pairs) are asked for here, half at the next j: a vector of bf16 is half a line */
#define B_NOW(j)                                                                                                         \
    (__builtin_prefetch((const char *)(b + j * VW / 2 + (HAVE_PAIRS && j % 2 ? p->ldb / 2 : 0)) + p->ahead, 0, 2),       \
     V_LOAD_DIRECT(b + j * VW / 2, p->ldb / 2))
TILE_LIST(direct, TILE)
#undef FMA_NOW
#undef B_NOW
#define B_NOW(j) (__builtin_prefetch((const char *)(b + j * VW) + p->ahead, 0, 2), V_LOAD(b + j * VW))
#define FMA_NOW V_FMA
TILE_LIST(stream, TILE)
#endif
#undef FMA_NOW
#undef B_NOW

/* Widest first; the last one serves 16 columns of a product of any height. */
#define ANY_ROWS (1 << 30)
struct tile_set { int cols, rows_max; tile_fn fn[CHAINS][TILE_ROWS]; };
static const struct tile_set tile_sets[] = TILE_TABLE;

static const struct tile_set *tile_pick(int64_t rows, int64_t cols)
{
    const struct tile_set *t = tile_sets;
    while (t->cols > cols || t->rows_max < rows)
        t++;
    return t;
}

/* Whether the chains run in the flushing mode; the dot instruction flushes by itself. */
static int flushes(enum chain c) { return c == CHAIN_FLUSH || (c == CHAIN_DIRECT && !HAVE_PAIRS); }

/* Part i of n of what will be read after this product. */
static inline void ask_for(const struct prod *p, int64_t i, int64_t n)
{
    const int64_t lines = p->next_bytes / 64;
    for (int64_t x = i * lines / n; x < (i + 1) * lines / n; x++)
        __builtin_prefetch(p->next + x * 64, 0, 2);
}

/* Not inlined: the flushing mode must hold for these chains and for no other arithmetic of the caller. */
__attribute__((noinline)) static void product(const struct prod *p)
{
    const int64_t n_tiles = (p->rows + TILE_ROWS - 1) / TILE_ROWS;        /* of nearly equal height: 5 + 5, not 6 + 4 */
    const int flush = flushes(p->chain);
    if (flush)
        FLUSH_BEGIN();
    for (int64_t col = 0; col < p->cols;) {
        const struct tile_set *t = tile_pick(p->rows, p->cols - col);
        const float *b = p->b + (p->chain == CHAIN_DIRECT ? col / 2 : col);
        for (int64_t i = 0; i < n_tiles; i++) {
            const int64_t r0 = i * p->rows / n_tiles, r1 = (i + 1) * p->rows / n_tiles;
            if (p->next)
                ask_for(p, col / t->cols * n_tiles + i, p->cols / t->cols * n_tiles);
            t->fn[p->chain][r1 - r0 - 1](p, p->c + r0 * p->ldc + col, p->a + r0 * p->a_row, b, p->scale ? p->scale + r0 : NULL);
        }
        col += t->cols;
    }
    if (flush)
        FLUSH_END();
}

/* The product of one line of the contract; `order` names it in the altered build: there the later half of the chain comes first. */
static void product_in(const struct prod *p, const char *order)
{
    struct prod half = *p;
    (void)order;
    if (!ALTERED(order) || p->k < 2) {
        product(p);
        return;
    }
    half.k = p->k - p->k / 2;
    half.a = p->a + p->k / 2 * p->a_k;
    half.b = p->b + p->k / 2 * p->ldb;
    product(&half);
    half = *p;
    half.k = p->k / 2;
    half.start = FROM_C;
    half.scale = NULL;
    product(&half);
}

/* The columns of row i before live[i], and what else the tiles cover: nobody looks at the others. */
static void product_below(const struct prod *p, const int64_t *live, const char *order)
{
    for (int64_t row = 0; row < p->rows; row += TILE_ROWS) {
        struct prod part = *p;
        part.rows = p->rows - row < TILE_ROWS ? p->rows - row : TILE_ROWS;
        part.c += row * p->ldc;
        part.a += row * p->a_row;
        part.cols = 0;
        for (int64_t i = row; i < row + part.rows; i++)
            part.cols = live[i] > part.cols ? live[i] : part.cols;
        part.cols = (part.cols + 15) & ~(int64_t)15;
        product_in(&part, order);
    }
}

static int has_minus_zero(const struct prod *p)
{
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t x = 0; x < p->cols; x += VW)
            if (V_HAS_MINUS_ZERO(V_LOAD(p->c + i * p->ldc + x)))
                return 1;
    return 0;
}

/* Row i of A is +0 from live[i] on (never 0). Such a step changes a sum that is -0, and no other: the chains of a tile end behind its
 * last live one unless one of them is -0 there. By twos: a chain of odd length has an end of its own. */
static void product_live(const struct prod *p, const int64_t *live, const char *order)
{
    const int pair = p->chain == CHAIN_PAIRS || (p->chain == CHAIN_DIRECT && HAVE_PAIRS);
    for (int64_t row = 0; row < p->rows; row += TILE_ROWS) {
        struct prod part = *p;
        part.rows = p->rows - row < TILE_ROWS ? p->rows - row : TILE_ROWS;
        part.c += row * p->ldc;
        part.a += row * p->a_row;
        part.scale = p->scale ? p->scale + row : NULL;
        part.k = 0;
        for (int64_t i = row; i < row + part.rows; i++)
            part.k = live[i] > part.k ? live[i] : part.k;
        part.k = pair ? (part.k + 1) / 2 : (part.k + 1) & ~(int64_t)1;
        product_in(&part, order);
        if (part.k < p->k && has_minus_zero(&part) && !ALTERED("attn_masked_blocks")) {
            part.a += part.k * p->a_k;
            part.b += part.k * p->ldb;
            part.k = p->k - part.k;
            part.start = FROM_C;
            part.scale = NULL;
            product_in(&part, order);
        }
    }
}

/* Row i of A is +0 before i. Such steps leave a chain that starts at +0 as it is: a tile's chains start at its first row, which is
 * even. */
static void product_after(const struct prod *p, const char *order)
{
    const int pair = p->chain == CHAIN_PAIRS;
    for (int64_t row = 0; row < p->rows; row += TILE_ROWS) {
        const int64_t k = pair ? row / 2 : row, from = k < p->k ? k : p->k;
        struct prod part = *p;
        part.rows = p->rows - row < TILE_ROWS ? p->rows - row : TILE_ROWS;
        part.c += row * p->ldc;
        part.a += row * p->a_row + from * p->a_k;
        part.b += from * p->ldb;
        part.k -= from;
        product_in(&part, order);
    }
}
