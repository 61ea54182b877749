/* read_bench.c - how fast threads read memory: what a step of decoding cannot go below.
 *
 * usage: read_bench [THREADS]
 * Without arguments: one line each for 1 and 2 threads. With THREADS: reads a number of seconds a line from
 * stdin, reads memory for so long, and prints GB/s; decode_bench.py calls it, so that its turns lie between
 * those of others. Every thread reads a part of its own of 512 MiB on 2 MB pages, 64 bytes a load, four
 * loads at a time: the fastest form found (gemm_bench's). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define MEMORY ((size_t)512 << 20)
#define PIECE ((size_t)1 << 20) /* between two looks at the clock */
#define THREADS_MAX 256

/* Four vectors of 64 bytes; gcc makes of them what the machine has. */
typedef float vec __attribute__((vector_size(64)));

struct reader {
    const char *p;
    size_t bytes, done; /* its part; read in the last turn */
    int64_t until_ns;
    pthread_t id;
};

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static void
read_piece(const vec *x)
{
    vec a = { 0 }, b = a, c = a, d = a;
    for (size_t i = 0; i < PIECE / sizeof *x; i += 4) {
        a += x[i];
        b += x[i + 1];
        c += x[i + 2];
        d += x[i + 3];
    }
    a += b + c + d;
    __asm__ volatile("" ::"m"(a));
}

static void *read_part(void *arg)
{
    struct reader *r = arg;
    size_t at = 0;
    for (r->done = 0; clock_ns() < r->until_ns; r->done += PIECE) {
        read_piece((const vec *)(const void *)(r->p + at));
        at = at + 2 * PIECE > r->bytes ? 0 : at + PIECE;
    }
    return NULL;
}

/* GB/s of all threads together over `seconds`. */
static double turn(struct reader *r, int n, double seconds)
{
    const int64_t begin = clock_ns();
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        r[i].until_ns = begin + (int64_t)(seconds * 1e9);
    for (int i = 1; i < n; i++)
        if (pthread_create(&r[i].id, NULL, read_part, &r[i]))
            return 0;
    read_part(&r[0]);
    for (int i = 1; i < n; i++)
        pthread_join(r[i].id, NULL);
    for (int i = 0; i < n; i++)
        bytes += r[i].done;
    return (double)bytes / (double)(clock_ns() - begin);
}

static struct reader *open_readers(int n)
{
    struct reader *r = calloc((size_t)n, sizeof *r);
    char *memory = mem_alloc(NULL, MEM_WORK, MEMORY);
    if (!r || !memory) {
        fprintf(stderr, "read_bench: no memory\n");
        exit(1);
    }
    for (size_t i = 0; i < MEMORY / sizeof(float); i++)
        ((float *)(void *)memory)[i] = 1;
    for (int i = 0; i < n; i++) {
        r[i].bytes = MEMORY / (size_t)n / PIECE * PIECE;
        r[i].p = memory + (size_t)i * r[i].bytes;
    }
    return r;
}

int main(int argc, char **argv)
{
    const int n = argc > 1 ? atoi(argv[1]) : 0;
    char line[64];
    if (argc > 2 || n < 0 || n > THREADS_MAX || (argc > 1 && n < 1)) {
        fprintf(stderr, "usage: read_bench [THREADS (1 to %d)]\n", THREADS_MAX);
        return 2;
    }
    if (n == 0) {
        for (int threads = 1; threads <= 2; threads++)
            printf("%d threads read %.1f GB/s\n", threads, turn(open_readers(threads), threads, 1));
        printf("{\"rows\":[]}\n");
        return 0;
    }
    struct reader *r = open_readers(n);
    for (printf("ready\n"); fflush(stdout) == 0 && fgets(line, sizeof line, stdin);)
        printf("%.3f\n", turn(r, n, atof(line)));
    return 0;
}
