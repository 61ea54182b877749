/* attn_bench.c - speed of attention: useful operations of the causal half as a share of the multiply-add peak
 * of the same seconds; decode as a share of what one thread reads from memory in the same seconds.
 * usage: attn_bench [THREADS [PART OF A CASE'S NAME]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <immintrin.h>

#include "kernels/attn.h"

/* One thread is timed by its own CPU clock, which other programs do not advance. */
static clockid_t clock_used = CLOCK_THREAD_CPUTIME_ID;
static double now_s(void)
{
    struct timespec t;
    clock_gettime(clock_used, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- what the machine can do ---- */
#define PEAK_STEPS 400000
__attribute__((target("avx2,fma"), noinline)) static float fma_steps(void)
{
    __m256 x[12], s = _mm256_setzero_ps();
    const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
    for (int j = 0; j < 12; j++)
        x[j] = _mm256_set1_ps((float)j);
    for (int i = 0; i < PEAK_STEPS; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++)
            x[j] = _mm256_fmadd_ps(x[j], a, b);
    }
    for (int j = 0; j < 12; j++)
        s = _mm256_add_ps(s, x[j]);
    return _mm256_cvtss_f32(s);
}
__attribute__((target("avx512f,avx512bf16"), noinline)) static float dot_steps(void)
{
    __m512 x[12], s = _mm512_setzero_ps();
    const __m512bh a = (__m512bh)_mm512_set1_ps(0.001f);
    for (int j = 0; j < 12; j++)
        x[j] = _mm512_set1_ps((float)j);
    for (int i = 0; i < PEAK_STEPS; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++)
            x[j] = _mm512_dpbf16_ps(x[j], a, a);
    }
    for (int j = 0; j < 12; j++)
        s = _mm512_add_ps(s, x[j]);
    return _mm512_cvtss_f32(s);
}
static volatile float sink;
/* bf16 in a class with the dot instruction: of that, else of the fused multiply-add */
static double peak_gflops(int has_dot)
{
    const double t = now_s();
    if (has_dot) {
        sink = dot_steps();
        return PEAK_STEPS * 12.0 * 64 / (now_s() - t) * 1e-9;
    }
    sink = fma_steps();
    return PEAK_STEPS * 12 * 8 * 2 / (now_s() - t) * 1e-9;
}

#define RING_BYTES ((size_t)512 << 20) /* far above the last cache */
__attribute__((target("avx2"), noinline)) static double read_gbytes(void *arg)
{
    const char *ring = arg;
    const size_t n = RING_BYTES / 4, part = n / 4;
    __m256i s[4] = { 0 };
    const double t = now_s();
    for (size_t i = 0; i < part; i += 64) /* four streams: what the prefetchers like best */
        for (size_t j = 0; j < 4; j++) {
            s[j] = _mm256_xor_si256(s[j], _mm256_load_si256((const __m256i *)(ring + j * part + i)));
            s[j] = _mm256_xor_si256(s[j], _mm256_load_si256((const __m256i *)(ring + j * part + i + 32)));
        }
    const double took = now_s() - t;
    s[0] = _mm256_xor_si256(_mm256_xor_si256(s[0], s[1]), _mm256_xor_si256(s[2], s[3]));
    sink = (float)_mm256_extract_epi32(s[0], 0);
    return (double)n / took * 1e-9;
}

/* ---- one case ---- */
enum kind { FORWARD, BACKWARD, DECODE };
struct bench {
    const char *name;
    enum kind kind;
    enum dtype dt;
    int64_t T;
    int d, n_heads, n_kv;
    /* 0: one, its pages hold one layer; else pages of LAYERS layers, as a server's */
    int n_seq;
    enum kv_kind kv; /* of its pages */
};
#define LAYERS 12
struct run {
    const struct bench *b;
    const struct attn_ops *ops;
    struct dev *dev;
    char *ring;
    char **page;
    struct attn_seq *seq;
    struct mat q, out, dout, dq, dk, dv;
    float *lse;
    int64_t next_page, n_pages, ring_pages; /* n_pages: of a sequence */
    int layer;
};

static struct mat mat_random(enum dtype dt, int64_t rows, int64_t cols)
{
    struct mat m = mat_of(aligned_alloc(64, (size_t)(rows * cols * 4 + 64) & ~(size_t)63), dt, rows, cols,
                          cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        const float x = (float)rand() / (float)RAND_MAX - 0.5f;
        uint32_t u;
        memcpy(&u, &x, 4);
        if (dt == DT_F32)
            ((float *)m.p)[i] = x;
        else
            ((uint16_t *)m.p)[i] = (uint16_t)(u >> 16);
    }
    return m;
}

/* Of one layer. */
static size_t page_bytes(const struct bench *b)
{
    const struct attn a = { .head_dim = b->d, .dt = b->dt, .kv = b->kv };
    return (size_t)b->n_kv * attn_head_bytes(&a);
}

static void run_open(struct run *r, const struct bench *b, const struct attn_ops *ops, struct dev *dev,
                     char *ring)
{
    const int64_t n = b->n_seq ? b->n_seq : 1, each = b->kind == DECODE ? 1 : b->T, rows = n * each;
    const int64_t cols = (int64_t)b->n_heads * b->d, kv = (int64_t)b->n_kv * b->d;
    const size_t bytes = page_bytes(b);
    *r = (struct run){ .b = b,
                       .ops = ops,
                       .dev = dev,
                       .ring = ring,
                       .n_pages = (b->T + 63) / 64,
                       .ring_pages = (int64_t)(RING_BYTES / bytes) };
    r->page = calloc((size_t)(n * r->n_pages), sizeof(char *));
    r->seq = calloc((size_t)n, sizeof *r->seq);
    for (int64_t i = 0; i < n; i++)
        r->seq[i] = (struct attn_seq){ i * each, each, b->T - each, r->page + i * r->n_pages };
    for (int64_t i = 0; b->n_seq && i < n * r->n_pages; i++)
        r->page[i] = ring + (size_t)i * LAYERS * bytes;
    r->q = mat_random(b->dt, rows, cols), r->out = mat_random(b->dt, rows, cols),
    r->dout = mat_random(b->dt, rows, cols);
    r->dq = mat_random(DT_F32, rows, cols), r->dk = mat_random(DT_F32, rows, kv),
    r->dv = mat_random(DT_F32, rows, kv);
    r->lse = calloc((size_t)(rows * b->n_heads), 4);
    struct mat fill = mat_random(b->dt, (int64_t)(bytes / dtype_size(b->dt)), 1);
    for (int64_t i = 0; i < r->ring_pages; i++)
        memcpy(ring + (size_t)i * bytes, fill.p, bytes);
    free(fill.p);
}
static void run_close(struct run *r)
{
    free(r->page), free(r->seq), free(r->q.p), free(r->out.p), free(r->dout.p), free(r->dq.p), free(r->dk.p),
        free(r->dv.p), free(r->lse);
}

/* One call; decode takes pages it has not touched for long. Returns GFLOP/s or GB/s. */
static double run_once(struct run *r)
{
    const struct bench *b = r->b;
    const size_t bytes = page_bytes(b);
    struct attn a = { b->n_heads, b->n_kv, b->d, b->dt, 0.125f, 0, b->n_seq ? b->n_seq : 1, r->seq, 0 };
    a.kv = b->kv;
    if (b->n_seq)
        a.page_off = bytes * (size_t)(r->layer++ % LAYERS);
    for (int64_t i = 0; i < r->n_pages && !b->n_seq; i++) {
        const int64_t at = b->kind == DECODE ? r->next_page++ % r->ring_pages : i;
        r->page[i] = r->ring + (size_t)at * bytes;
    }
    const double t = now_s();
    if (b->kind == BACKWARD)
        r->ops->attn_dx(r->dev, &a, r->dq, r->dk, r->dv, r->dout, (struct attn_kept){ r->out, r->q, r->lse });
    else
        r->ops->attn(r->dev, &a, r->out, r->lse, r->q);
    const double took = now_s() - t;
    if (b->kind == DECODE)
        return (double)a.n_seq * (double)r->n_pages * (double)bytes / took * 1e-9;
    /* pairs of the causal half, two (forward) or five (backward) products of head_dim multiply-adds each */
    const double pairs = (double)b->T * ((double)b->T + 1) / 2 * b->n_heads;
    return pairs * (b->kind == FORWARD ? 2 : 5) * b->d * 2 / took * 1e-9;
}

static const struct bench benches[] = {
    { "forward fp32 T=512 d=64", FORWARD, DT_F32, 512, 64, 8, 8 },
    { "forward fp32 T=512 d=128", FORWARD, DT_F32, 512, 128, 4, 4 },
    { "forward fp32 T=2048 d=64", FORWARD, DT_F32, 2048, 64, 2, 2 },
    { "forward fp32 T=2048 d=128", FORWARD, DT_F32, 2048, 128, 2, 2 },
    { "forward bf16 T=512 d=64", FORWARD, DT_BF16, 512, 64, 8, 8 },
    { "forward bf16 T=2048 d=128", FORWARD, DT_BF16, 2048, 128, 2, 2 },
    { "backward fp32 T=512 d=64", BACKWARD, DT_F32, 512, 64, 4, 4 },
    { "backward fp32 T=512 d=128", BACKWARD, DT_F32, 512, 128, 4, 4 },
    { "backward bf16 T=512 d=64", BACKWARD, DT_BF16, 512, 64, 4, 4 },
    { "decode fp32 T=2048 d=64", DECODE, DT_F32, 2048, 64, 8, 8 },
    { "decode fp32 T=2048 d=128", DECODE, DT_F32, 2048, 128, 8, 8 },
    { "decode fp32 T=2048 d=128 group 4", DECODE, DT_F32, 2048, 128, 8, 2 },
    { "decode bf16 T=2048 d=64", DECODE, DT_BF16, 2048, 64, 8, 8 },
    { "decode bf16 T=2048 d=128", DECODE, DT_BF16, 2048, 128, 8, 8 },
    { "decode bf16 T=2048 d=128 group 4", DECODE, DT_BF16, 2048, 128, 8, 2 },
    { "decode bf16 T=2048 d=64 fp8 pages", DECODE, DT_BF16, 2048, 64, 8, 8, 0, KV_FP8 },
    { "decode bf16 T=2048 d=64 int8 pages", DECODE, DT_BF16, 2048, 64, 8, 8, 0, KV_INT8 },
    { "decode bf16 T=2048 d=128 group 4 fp8 pages", DECODE, DT_BF16, 2048, 128, 8, 2, 0, KV_FP8 },
    { "decode bf16 T=2048 d=128 group 4 int8 pages", DECODE, DT_BF16, 2048, 128, 8, 2, 0, KV_INT8 },
    { "decode bf16 32 x T=96 d=64", DECODE, DT_BF16, 96, 64, 12, 12, 32 },
    { "decode bf16 32 x T=256 d=64", DECODE, DT_BF16, 256, 64, 12, 12, 32 },
    { "decode fp32 32 x T=96 d=64", DECODE, DT_F32, 96, 64, 12, 12, 32 },
    { "decode bf16 32 x T=256 d=64 group 8", DECODE, DT_BF16, 256, 64, 32, 4, 32 },
    { "decode fp32 T=8192 d=128 one head", DECODE, DT_F32, 8192, 128, 1, 1 }, /* for two threads */
    { "backward fp32 T=512 d=64 one head", BACKWARD, DT_F32, 512, 64, 1, 1 },
};
#define N_BENCHES (sizeof benches / sizeof *benches)
#define ROUNDS 32

struct isa {
    const char *name;
    const struct attn_ops *ops;
};

static int open_all(struct dev **dev, char **ring, struct isa isa[3], int threads)
{
    static struct mem mem;
    struct err e;
    int n = 0;
    if (dev_open(dev, "cpu", threads, &mem, &e) < 0) {
        err_print(&e, "attn_bench");
        return 0;
    }
    *ring = mem_alloc(&mem, MEM_OTHER, RING_BYTES);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        isa[n++] = (struct isa){ "avx2", &attn_avx2 };
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        isa[n++] = (struct isa){ "avx512", &attn_avx512 };
    if (__builtin_cpu_supports("avx512bf16"))
        isa[n++] = (struct isa){ "avx512bf16", &attn_avx512bf16 };
    return *ring ? n : 0;
}

int main(int argc, char **argv)
{
    struct isa isa[3];
    struct dev *dev;
    char *ring, json[16384] = "", *at = json;
    const char *only = argc > 2 ? argv[2] : "";
    const int threads = argc > 1 ? atoi(argv[1]) : 1, n_isa = open_all(&dev, &ring, isa, threads);
    clock_used = threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    printf("%-36s %10s %10s %10s %6s\n", "case", "class", "ours", "peak", "share");
    for (size_t i = 0; i < N_BENCHES; i++)
        for (int c = 0; c < n_isa && strstr(benches[i].name, only); c++) {
            const int decode = benches[i].kind == DECODE,
                      dot = benches[i].dt == DT_BF16 && isa[c].ops == &attn_avx512bf16;
            double ours = 0, peer = 0;
            struct run r;
            run_open(&r, &benches[i], isa[c].ops, dev, ring);
            for (int round = 0; round < ROUNDS; round++) { /* both sides within the same seconds */
                const double x = run_once(&r), y = decode ? read_gbytes(ring) : peak_gflops(dot) * threads;
                ours = x > ours ? x : ours;
                peer = y > peer ? y : peer;
            }
            run_close(&r);
            printf("%-36s %10s %10.1f %10.1f %5.0f%%\n", benches[i].name, isa[c].name, ours, peer,
                   100 * ours / peer);
            at += snprintf(
                at, sizeof json - (size_t)(at - json),
                "%s{\"name\":\"%s "
                "%s\",\"ours\":%.2f,\"peer\":%.2f,\"peer_name\":\"%s\",\"unit\":\"%s\",\"ratio\":%.3f}",
                at == json ? "" : ",", benches[i].name, isa[c].name, ours, peer,
                decode ? "read, 1 thread"
                : dot  ? "bf16 dot peak"
                       : "fma peak",
                decode ? "GB/s" : "GFLOP/s", ours / peer);
        }
    printf("{\"rows\":[%s]}\n", json);
    return n_isa == 0;
}
