/* digest.c - the digest of a tensor, which any rank can compute for its part: slin128-v1 (FORMAT.md,
 * "Digests").
 *
 * A tensor is R rows of C columns, C being its last dim. With x the bit pattern of an element, zero-extended
 * to 64 bits,
 *     digest_k = sum over r, c of  x[r][c] * A_k[c] * B_k[r]   mod 2^64,   k = 0 (lo), 1 (hi)
 * A and B are odd numbers of splitmix64 streams. Integer sums do not depend on an order: parts of any shape
 * add up to the whole. */
#include "format/ckpt_proof.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* for a hash state on the stack: digests must not fail when memory is short */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

/* columns whose keys are made at once: 16 KiB of stack, stays in the first cache */
#define KEYS 1024

/* "shardlA0", "shardlA1" */
static const uint64_t seed_a[2] = { 0x73686172646c4130u, 0x73686172646c4131u };
/* "shardlB0", "shardlB1" */
static const uint64_t seed_b[2] = { 0x73686172646c4230u, 0x73686172646c4231u };

/* Number i of the splitmix64 stream (Steele, Lea, Flood 2014), made odd so that no single change can
 * vanish. */
static inline __attribute__((always_inline)) uint64_t key(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) | 1;
}

static inline __attribute__((always_inline)) void keys_body(uint64_t *a0, uint64_t *a1, uint64_t first, int n)
{
    for (int i = 0; i < n; i++)
        a0[i] = key(seed_a[0], first + (uint64_t)i);
    for (int i = 0; i < n; i++)
        a1[i] = key(seed_a[1], first + (uint64_t)i);
}

/* Sums of n elements of x times the keys; s[0] is lo, s[1] is hi. */
typedef void dot_fn(const void *x, int n, const uint64_t *a0, const uint64_t *a1, uint64_t *s);
struct isa {
    dot_fn *dot[4]; /* by log2 of the element's bytes */
    void (*keys)(uint64_t *a0, uint64_t *a1, uint64_t first, int n);
};

/* clang-format off */
#define DOT(name, type, attr) \
    attr static void name(const void *x, int n, const uint64_t *a0, const uint64_t *a1, uint64_t *s) \
    { \
        uint64_t s0 = 0, s1 = 0; \
        for (int i = 0; i < n; i++) { \
            type v; \
            memcpy(&v, (const char *)x + sizeof v * (size_t)i, sizeof v); /* files are not aligned */ \
            s0 += (uint64_t)v * a0[i]; \
            s1 += (uint64_t)v * a1[i]; \
        } \
        s[0] = s0, s[1] = s1; \
    }

/* All functions for one kind of processor. */
#define VARIANT(name, attr) \
    DOT(dot8_##name, uint8_t, attr) \
    DOT(dot16_##name, uint16_t, attr) \
    DOT(dot32_##name, uint32_t, attr) \
    DOT(dot64_##name, uint64_t, attr) \
    attr static void keys_##name(uint64_t *a0, uint64_t *a1, uint64_t first, int n) \
    { \
        keys_body(a0, a1, first, n); \
    } \
    static const struct isa isa_##name = { \
        { dot8_##name, dot16_##name, dot32_##name, dot64_##name }, keys_##name \
    };
/* clang-format on */

VARIANT(portable, )
#ifdef __x86_64__
/* AVX2 has no products of 64 bits. An element of 32 bits or fewer needs none: x * A = x * low(A) + (x *
 * high(A) << 32), summed apart. */
#define AVX2 __attribute__((target("avx2")))
AVX2 static uint64_t sum_of(__m256i low, __m256i high)
{
    uint64_t t[4];
    _mm256_storeu_si256((__m256i *)(void *)t, _mm256_add_epi64(low, _mm256_slli_epi64(high, 32)));
    return t[0] + t[1] + t[2] + t[3];
}
#define AVX2_DOT(name, rest, size, widen) \
    AVX2 static void name(const void *x, int n, const uint64_t *a0, const uint64_t *a1, uint64_t *s) \
    { \
        const char *p = x; \
        __m256i low0 = _mm256_setzero_si256(), low1 = low0, high0 = low0, high1 = low0; \
        int i = 0; \
        for (; i + 4 <= n; i += 4) { \
            const __m256i v = widen, k0 = _mm256_loadu_si256((const __m256i *)(const void *)(a0 + i)); \
            const __m256i k1 = _mm256_loadu_si256((const __m256i *)(const void *)(a1 + i)); \
            low0 = _mm256_add_epi64(low0, _mm256_mul_epu32(v, k0)); \
            low1 = _mm256_add_epi64(low1, _mm256_mul_epu32(v, k1)); \
            high0 = _mm256_add_epi64(high0, _mm256_mul_epu32(v, _mm256_srli_epi64(k0, 32))); \
            high1 = _mm256_add_epi64(high1, _mm256_mul_epu32(v, _mm256_srli_epi64(k1, 32))); \
        } \
        rest(p + size * i, n - i, a0 + i, a1 + i, s); \
        s[0] += sum_of(low0, high0), s[1] += sum_of(low1, high1); \
    }
AVX2_DOT(dot16_avx2, dot16_portable, 2,
         _mm256_cvtepu16_epi64(_mm_loadl_epi64((const __m128i *)(const void *)(p + 2 * i))))
AVX2_DOT(dot32_avx2, dot32_portable, 4,
         _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)(const void *)(p + 4 * i))))
static const struct isa isa_avx2 = { { dot8_portable, dot16_avx2, dot32_avx2, dot64_portable },
                                     keys_portable };

VARIANT(avx512, __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512"))))
#endif

static const struct isa *isa_here(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return &isa_avx512;
    if (__builtin_cpu_supports("avx2"))
        return &isa_avx2;
#endif
    return &isa_portable;
}

/* The row of the whole tensor that row i of box b is. */
static int64_t row_of(int n_dims, const int64_t *shape, const struct box *b, int64_t i)
{
    int64_t row = 0, step = 1;
    for (int d = n_dims - 2; d >= 0; d--) {
        int64_t at = d ? i % b->extent[d] : i;
        i = d ? i / b->extent[d] : 0;
        row += (b->start[d] + at) * step;
        step *= shape[d];
    }
    return row;
}

/* A part of a tensor: `data` holds the elements of box b from element lo on. */
struct rows {
    enum stored_dtype dtype;
    int n_dims;
    const int64_t *shape;
    const struct box *b;
    const char *data;
    int64_t lo;
    const struct isa *isa;
};

/* s: the two sums over m elements of x, from element `at` of x->data on. */
static void add_elements(const struct rows *x, int64_t at, int m, const uint64_t *a0, const uint64_t *a1,
                         uint64_t *s)
{
    int size = stored_dtype_bits(x->dtype) / 8;
    if (size) {
        x->isa->dot[__builtin_ctz((unsigned)size)](x->data + at * size, m, a0, a1, s);
        return;
    }

    /* Elements smaller than a byte are unpacked first. */
    uint8_t wide[KEYS];
    for (int i = 0; i < m; i++)
        wide[i] = (uint8_t)stored_pattern(x->dtype, x->data, at + i);
    x->isa->dot[0](wide, m, a0, a1, s);
}

/* Adds n columns from column `col` of the box, in `count` of its rows from row `first` on. */
static void add_rows(struct ckpt_digest *d, const struct rows *x, int64_t first, int64_t count, int64_t col,
                     int64_t n)
{
    uint64_t a0[KEYS], a1[KEYS], s[2];
    int last = x->n_dims - 1;
    int64_t width = x->b->extent[last];
    for (int64_t c = 0; c < n; c += KEYS) {
        int m = n - c < KEYS ? (int)(n - c) : KEYS;
        x->isa->keys(a0, a1, (uint64_t)(x->b->start[last] + col + c), m);
        for (int64_t i = first; i < first + count; i++) {
            uint64_t r = (uint64_t)row_of(x->n_dims, x->shape, x->b, i);
            add_elements(x, i * width + col + c - x->lo, m, a0, a1, s);
            d->lo += s[0] * key(seed_b[0], r);
            d->hi += s[1] * key(seed_b[1], r);
        }
    }
}

void ckpt_digest_add(struct ckpt_digest *d, enum stored_dtype t, int n_dims, const int64_t *shape,
                     const struct box *b, int64_t lo, int64_t hi, const void *data)
{
    const struct rows rows = { t, n_dims, shape, b, data, lo, isa_here() };
    int64_t width = b->extent[n_dims - 1];
    while (lo < hi) {
        int64_t row = lo / width, col = lo % width, n = width - col, count = 1;
        if (n > hi - lo)
            n = hi - lo;
        else if (col == 0)
            count = (hi - lo) / width; /* whole rows share their keys */
        add_rows(d, &rows, row, count, col, n);
        lo += n * count;
    }
}

/* ---- the whole checkpoint ---- */

static int compare_tensors(const void *pa, const void *pb)
{
    const struct ckpt_tensor *a = *(const struct ckpt_tensor *const *)pa,
                             *b = *(const struct ckpt_tensor *const *)pb;
    return a->role != b->role ? (a->role > b->role) - (a->role < b->role) : strcmp(a->name, b->name);
}

void ckpt_digest_hex(struct ckpt_digest d, char out[33])
{
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)d.hi, (unsigned long long)d.lo);
}

/* One line a tensor: NAME tab DTYPE tab 4096,4096 tab DIGEST newline. */
static void hash_line(XXH3_state_t *h, const struct ckpt_tensor *t)
{
    char text[256], hex[33];
    int n = snprintf(text, sizeof text, "\t%s\t", stored_dtype_name(t->dtype));
    for (int i = 0; i < t->n_dims; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%lld", i ? "," : "", (long long)t->shape[i]);
    ckpt_digest_hex(t->digest, hex);
    n += snprintf(text + n, sizeof text - (size_t)n, "\t%s\n", hex);
    XXH3_128bits_update(h, ckpt_role_prefix[t->role], strlen(ckpt_role_prefix[t->role]));
    XXH3_128bits_update(h, t->name, strlen(t->name));
    XXH3_128bits_update(h, text, (size_t)n);
}

/* One line a layer: counts LAYER 12,0,7 newline. */
static void hash_counts(XXH3_state_t *h, const struct ckpt_counts *c)
{
    char text[64];
    for (int64_t l = 0; c->count && l < c->n_layers; l++) {
        int n = snprintf(text, sizeof text, "counts %lld ", (long long)l);
        XXH3_128bits_update(h, text, (size_t)n);
        for (int64_t x = 0; x < c->n_experts; x++) {
            const char *end = x + 1 < c->n_experts ? "," : "\n";
            n = snprintf(text, sizeof text, "%lld%s", (long long)c->count[l * c->n_experts + x], end);
            XXH3_128bits_update(h, text, (size_t)n);
        }
    }
}

static struct ckpt_digest hash_end(XXH3_state_t *h)
{
    XXH128_hash_t r = XXH3_128bits_digest(h);
    return (struct ckpt_digest){ r.low64, r.high64 };
}

/* The first tensor behind `prev` in order, found without a sorted list: used when there is no memory for
 * one. */
static const struct ckpt_tensor *next_tensor(int n, const struct ckpt_tensor *t,
                                             const struct ckpt_tensor *prev)
{
    const struct ckpt_tensor *best = NULL;
    for (const struct ckpt_tensor *c = t; c < t + n; c++)
        if ((!prev || compare_tensors(&c, &prev) > 0) && (!best || compare_tensors(&c, &best) < 0))
            best = c;
    return best;
}

struct ckpt_digests ckpt_digest_all(int n, const struct ckpt_tensor *t, const struct ckpt_state *s)
{
    struct ckpt_digests out = { { 0, 0 }, { 0, 0 }, s && s->has_state };
    XXH3_state_t weights, all;
    XXH3_128bits_reset(&weights);
    XXH3_128bits_reset(&all);
    const struct ckpt_tensor **sorted = malloc(sizeof *sorted * (size_t)(n ? n : 1)), *c = NULL;
    for (int i = 0; sorted && i < n; i++)
        sorted[i] = &t[i];
    if (sorted)
        qsort(sorted, (size_t)n, sizeof *sorted, compare_tensors);
    for (int i = 0; i < n; i++) {
        c = sorted ? sorted[i] : next_tensor(n, t, c);
        if (!c)
            break;
        if (c->role == ROLE_WEIGHT)
            hash_line(&weights, c);
        hash_line(&all, c);
    }
    free(sorted);
    out.weights = hash_end(&weights);
    if (out.has_state) {
        char text[160];
        int len = snprintf(text, sizeof text, "step %lld\nseed %016llx\nepoch %lld\nsample %lld\n",
                           (long long)s->step, (unsigned long long)s->seed, (long long)s->epoch,
                           (long long)s->sample);
        XXH3_128bits_update(&all, text, (size_t)len);
        hash_counts(&all, &s->counts);
        out.state = hash_end(&all);
    }
    return out;
}
