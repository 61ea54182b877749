/* rnd.c - see rnd.h. Philox 4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2,
 * 3", SC 2011. */
#include "base/rnd.h"

#include <math.h>
#include "base/fmath.h"
#include "base/math/fmath_inline.h"

#define ROUNDS 10

void rnd_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u; /* golden ratio */
        k1 += 0xbb67ae85u; /* sqrt(3) - 1 */
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

struct pair {
    uint64_t a, b;
};

static struct pair draw(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t counter[4] = { (uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
                            (uint32_t)(stream >> 32) };
    uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) }, out[4];
    rnd_philox(counter, key, out);
    return (struct pair){ out[0] | (uint64_t)out[1] << 32, out[2] | (uint64_t)out[3] << 32 };
}

uint64_t rnd_u64(uint64_t seed, uint64_t stream, uint64_t index) { return draw(seed, stream, index).a; }

static double unit(uint64_t u) { return (double)(u >> 11) * 0x1p-53; }

double rnd_unit(uint64_t seed, uint64_t stream, uint64_t index) { return unit(draw(seed, stream, index).a); }

double rnd_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    struct pair u = draw(seed, stream, index);
    double radius = sqrt(-2 * fm_log(unit(u.a) + 0x1p-53)); /* (0, 1]: the logarithm is finite */
    return radius * fm_cos(0x1.921fb54442d18p+2 * unit(u.b));
}

/* When the program is loaded it picks the widest registers of the machine; the numbers are the same. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

/* As rnd_normal, step by step over `n` <= MANY numbers: loops without branches, which vectorise. */
#define MANY 256

CLONES
static void normals(uint64_t seed, uint64_t stream, uint64_t first, int n, double *out)
{
    double a[MANY], b[MANY];
    for (int i = 0; i < MANY; i++) {
        uint64_t index = first + (uint64_t)i, word = 0xffffffffu, k0 = seed & word, k1 = seed >> 32;
        uint64_t c0 = index & word, c1 = index >> 32, c2 = stream & word, c3 = stream >> 32;
        for (int r = 0; r < ROUNDS; r++) {
            uint64_t p0 = 0xd2511f53u * c0, p1 = 0xcd9e8d57u * c2;
            c0 = p1 >> 32 ^ c1 ^ k0;
            c2 = p0 >> 32 ^ c3 ^ k1;
            c1 = p1 & word;
            c3 = p0 & word;
            k0 = (k0 + 0x9e3779b9u) & word;
            k1 = (k1 + 0xbb67ae85u) & word;
        }
        a[i] = unit(c0 | c1 << 32) + 0x1p-53;
        b[i] = 0x1.921fb54442d18p+2 * unit(c2 | c3 << 32);
    }
    for (int i = 0; i < MANY; i++)
        a[i] = sqrt(-2 * log_normal(a[i], 0).hi);
    for (int i = 0; i < MANY; i++) {
        double q;
        struct two r = quarter_turn(b[i], &q);
        double s = sine(r), c = cosine(r), y = q == 1 || q == 3 ? s : c;
        b[i] = q == 1 || q == 2 ? -y : y;
    }
    for (int i = 0; i < n; i++)
        out[i] = a[i] * b[i];
}

void rnd_normals(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, double *out)
{
    for (int64_t i = 0; i < n; i += MANY)
        normals(seed, stream, first + (uint64_t)i, (int)(n - i < MANY ? n - i : MANY), out + i);
}

/* FNV-1a, then mixed so that names that differ in one letter give streams that differ everywhere. */
uint64_t rnd_stream(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 27) * 0x94d049bb133111ebu;
    return h ^ h >> 31;
}

#define FEISTEL_ROUNDS 6

uint64_t rnd_permute(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n)
{
    /* a permutation of [0, 4^half), less than 4 n: the walk takes 4 steps at most on average */
    int half = 1;
    while (half < 32 && UINT64_C(1) << 2 * half < n)
        half++;
    uint64_t mask = (UINT64_C(1) << half) - 1;
    if (n < 2)
        return 0;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
            uint64_t mixed = left ^ (rnd_u64(seed, stream, round << 32 | right) & mask);
            left = right;
            right = mixed;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}
