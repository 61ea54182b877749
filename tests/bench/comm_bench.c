/* comm_bench.c - our collectives against MPI's, in turn: median microseconds, sizes of the whole buffer. A
 * row of one collective and size ends after TIME_S. "one result": the gather into memory that the ranks of
 * the machine share.
 * usage: comm_bench [RANKS (4)] [MOST BYTES (64 MiB)] [LEAST BYTES (0)] */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/comm.h"
#include "comm/launch.h"

#define ROUNDS 15 /* at most */
#define ROUNDS_MIN 3
#define TIME_S 1.5 /* for one row */

/* n: elements of the whole buffer */
struct bench {
    struct comm *c;
    float *in, *out, *shared;
    int64_t n;
    struct err e;
};

static int ours_ar(struct bench *b) { return comm_all_reduce(b->c, b->in, b->n, &b->e); }
static int ours_rs(struct bench *b)
{
    return comm_reduce_scatter(b->c, b->in + comm_rank(b->c) * (b->n / comm_size(b->c)), b->in,
                               b->n / comm_size(b->c), &b->e);
}
static int ours_ag(struct bench *b)
{
    int64_t each = b->n / comm_size(b->c);
    return comm_all_gather(b->c, b->in, b->in + comm_rank(b->c) * each, (size_t)each * 4, &b->e);
}
static int ours_shared(struct bench *b)
{
    int64_t each = b->n / comm_size(b->c);
    return comm_all_gather_shared(b->c, b->shared, b->in, (size_t)each * 4, &b->e);
}
static int ours_in_place(struct bench *b)
{
    int64_t each = b->n / comm_size(b->c);
    return comm_all_gather_shared(b->c, b->shared, b->shared + comm_rank(b->c) * each, (size_t)each * 4,
                                  &b->e);
}
static int ours_barrier(struct bench *b) { return comm_barrier(b->c, &b->e); }

static int mpi_ar(struct bench *b)
{
    return MPI_Allreduce(MPI_IN_PLACE, b->in, (int)b->n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static int mpi_rs(struct bench *b)
{
    return MPI_Reduce_scatter_block(b->in, b->out, (int)(b->n / comm_size(b->c)), MPI_FLOAT, MPI_SUM,
                                    MPI_COMM_WORLD);
}
static int mpi_ag(struct bench *b)
{
    int each = (int)(b->n / comm_size(b->c));
    return MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b->in, each, MPI_FLOAT, MPI_COMM_WORLD);
}
static int mpi_barrier(struct bench *b)
{
    (void)b;
    return MPI_Barrier(MPI_COMM_WORLD);
}

static const struct kind {
    const char *name;
    int (*ours)(struct bench *), (*peer)(struct bench *);
} kinds[] = {
    { "all-reduce", ours_ar, mpi_ar },
    { "reduce-scatter", ours_rs, mpi_rs },
    { "all-gather", ours_ag, mpi_ag },
    { "all-gather, one result", ours_shared, mpi_ag },
    { "all-gather, in place", ours_in_place, mpi_ag },
};
static const struct {
    const char *name;
    int64_t bytes;
} sizes[] = {
    { "1 kB", 1 << 10 }, { "8 kB", 8 << 10 },   { "64 kB", 64 << 10 }, { "512 kB", 512 << 10 },
    { "4 MB", 4 << 20 }, { "16 MB", 16 << 20 }, { "64 MB", 64 << 20 }, { "256 MB", 256 << 20 },
};
#define N_KINDS ((int)(sizeof kinds / sizeof *kinds))
#define N_SIZES ((int)(sizeof sizes / sizeof *sizes))

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of one call, over as many as make a few milliseconds. */
static double sample(struct bench *b, int (*call)(struct bench *), int calls)
{
    comm_barrier(b->c, &b->e);
    double begin = clock_s();
    for (int i = 0; i < calls; i++)
        if (call(b) < 0)
            return -1;
    comm_barrier(b->c, &b->e);
    return (clock_s() - begin) * 1e6 / calls;
}

/* All ranks stop after the same round: rank 0's clock decides. */
static int over(struct bench *b, double begin)
{
    int64_t is = comm_rank(b->c) == 0 && clock_s() - begin > TIME_S;
    comm_broadcast(b->c, &is, sizeof is, 0, &b->e);
    return (int)is;
}

static void measure(struct bench *b, const struct kind *k, int64_t bytes, double median[2])
{
    double t[2][ROUNDS], begin = clock_s();
    int calls = bytes > 1 << 20 ? 1 : bytes > 64 << 10 ? 8 : 50, n = 0;
    b->n = bytes / 4 / comm_size(b->c) * comm_size(b->c);
    memset(b->in, 0, 4 * (size_t)b->n);
    sample(b, k->ours, calls); /* warms up */
    sample(b, k->peer, calls);
    while (n < ROUNDS && (n < ROUNDS_MIN || !over(b, begin))) {
        t[0][n] = sample(b, k->ours, calls);
        t[1][n++] = sample(b, k->peer, calls);
    }
    for (int i = 0; i < 2; i++) {
        qsort(t[i], (size_t)n, sizeof **t, by_size);
        median[i] = t[i][n / 2];
    }
}

static void row(struct bench *b, struct world *w, const struct kind *k, const char *size, int64_t bytes,
                char **json)
{
    double median[2];
    char *before = *json;
    measure(b, k, bytes, median);
    if (world_rank(w) == 0)
        printf("%-24s %6s %10.1f us   MPI %10.1f us   %6.2f\n", k->name, size, median[0], median[1],
               median[1] / median[0]);
    if (asprintf(json,
                 "%s%s{\"name\":\"%s %s, %d ranks, %s\",\"ours\":%.2f,\"peer\":%.2f,\"peer_name\":\"Open "
                 "MPI\",\"unit\":\"us\",\"ratio\":%.3f}",
                 before, *before ? "," : "", k->name, size, world_size(w), world_transport(w), median[0],
                 median[1], median[1] / median[0]) < 0)
        *json = before;
    else
        free(before);
}

static int run(struct world *w, int64_t most, int64_t least, struct err *e)
{
    const int size[AXIS_COUNT] = { 1, 1, world_size(w), 1 };
    static const struct kind barrier = { "barrier", ours_barrier, mpi_barrier };
    struct mesh m;
    struct bench b = { 0 };
    void *shared = NULL;
    int rc = mesh_open(&m, w, size, e);
    if (rc < 0)
        return rc;
    char *json = strdup("");
    b.c = m.axis[AXIS_DP];
    b.in = comm_alloc(b.c, MEM_COMM, (size_t)most);
    b.out = malloc((size_t)most);
    TRY(comm_alloc_shared(&shared, b.c, MEM_COMM, (size_t)most, e));
    b.shared = shared;
    if (!b.in || !b.out || !json) {
        rc = err_set(e, ERR_MEMORY, "no memory for %lld bytes on every rank: give a smaller size",
                     (long long)most);
        goto out;
    }
    row(&b, w, &barrier, "", 0, &json);
    for (int k = 0; k < N_KINDS; k++)
        for (int s = 0; s < N_SIZES && sizes[s].bytes <= most; s++)
            if (sizes[s].bytes >= least)
                row(&b, w, &kinds[k], sizes[s].name, sizes[s].bytes, &json);
    if (world_rank(w) == 0)
        printf("{\"rows\":[%s]}\n", json);
    rc = comm_free_shared(b.c, shared, e);
out:
    free(json);
    free(b.out);
    comm_free(b.c, b.in);
    mesh_close(&m);
    return rc < 0 ? rc : 0;
}

int main(int argc, char **argv)
{
    struct world *w = NULL;
    struct mem mem = { 0 };
    struct err e = { 0 };
    int status = 0;
    if (launch_ranks(argc > 1 ? atoi(argv[1]) : 4, argv, &e) < 0 ||
        world_open(&w, "auto", 0, NULL, &mem, &e) < 0)
        return err_print(&e, "comm_bench");
    if (run(w, argc > 2 ? atoll(argv[2]) : 64 << 20, argc > 3 ? atoll(argv[3]) : 0, &e) < 0)
        status = world_report(w, &e, "comm_bench");
    world_close(w);
    return status;
}
