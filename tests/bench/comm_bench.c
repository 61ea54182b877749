/* comm_bench.c - collectives against MPI's own, A and B in turn: median microseconds. usage: comm_bench [RANKS] (4) */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/comm.h"
#include "comm/launch.h"

#define ROUNDS 15

struct bench { struct comm *c; float *in, *out; int64_t n; struct err e; };      /* n: elements of the whole buffer */

static int ours_ar(struct bench *b) { return comm_all_reduce(b->c, b->in, b->n, &b->e); }
static int ours_rs(struct bench *b) { return comm_reduce_scatter(b->c, b->in + comm_rank(b->c) * (b->n / comm_size(b->c)), b->in, b->n / comm_size(b->c), &b->e); }
static int ours_ag(struct bench *b)
{
    int64_t each = b->n / comm_size(b->c);
    return comm_all_gather(b->c, b->in, b->in + comm_rank(b->c) * each, (size_t)each * 4, &b->e);
}
static int ours_barrier(struct bench *b) { return comm_barrier(b->c, &b->e); }

static int mpi_ar(struct bench *b) { return MPI_Allreduce(MPI_IN_PLACE, b->in, (int)b->n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static int mpi_rs(struct bench *b) { return MPI_Reduce_scatter_block(b->in, b->out, (int)(b->n / comm_size(b->c)), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static int mpi_ag(struct bench *b)
{
    int each = (int)(b->n / comm_size(b->c));
    return MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b->in, each, MPI_FLOAT, MPI_COMM_WORLD);
}
static int mpi_barrier(struct bench *b) { (void)b; return MPI_Barrier(MPI_COMM_WORLD); }

static const struct { const char *name; int (*ours)(struct bench *), (*peer)(struct bench *); int64_t n; } rows[] = {
    { "barrier", ours_barrier, mpi_barrier, 0 },
    { "all-reduce 1 kB", ours_ar, mpi_ar, 256 },
    { "all-reduce 64 kB", ours_ar, mpi_ar, 16384 },
    { "all-reduce 1 MB", ours_ar, mpi_ar, 262144 },
    { "all-reduce 16 MB", ours_ar, mpi_ar, 4194304 },
    { "reduce-scatter 1 MB", ours_rs, mpi_rs, 262144 },
    { "reduce-scatter 16 MB", ours_rs, mpi_rs, 4194304 },
    { "all-gather 1 MB", ours_ag, mpi_ag, 262144 },
    { "all-gather 16 MB", ours_ag, mpi_ag, 4194304 },
};
#define N_ROWS ((int)(sizeof rows / sizeof *rows))

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of one call, over as many as make a few milliseconds. */
static double sample(struct bench *b, int (*call)(struct bench *), int calls)
{
    comm_barrier(b->c, &b->e);
    double begin = log_now_s();
    for (int i = 0; i < calls; i++)
        if (call(b) < 0)
            return -1;
    comm_barrier(b->c, &b->e);
    return (log_now_s() - begin) * 1e6 / calls;
}

static void measure(struct bench *b, int row, double median[2])
{
    double t[2][ROUNDS];
    int calls = rows[row].n >= 262144 ? 2 : 100;
    b->n = rows[row].n / comm_size(b->c) * comm_size(b->c);
    memset(b->in, 0, 4 * (size_t)b->n);
    for (int i = -1; i < ROUNDS; i++) {                /* the first pair warms up */
        t[0][i < 0 ? 0 : i] = sample(b, rows[row].ours, calls);
        t[1][i < 0 ? 0 : i] = sample(b, rows[row].peer, calls);
    }
    for (int k = 0; k < 2; k++) {
        qsort(t[k], ROUNDS, sizeof **t, by_size);
        median[k] = t[k][ROUNDS / 2];
    }
}

static int run(struct world *w, struct err *e)
{
    const int size[AXIS_COUNT] = { 1, 1, world_size(w), 1 };
    struct mesh m;
    struct bench b = { 0 };
    double median[2];
    int rc = mesh_open(&m, w, size, e);
    if (rc < 0)
        return rc;
    b.c = m.axis[AXIS_DP];
    b.in = comm_alloc(b.c, MEM_COMM, 16 << 20);
    b.out = malloc(16 << 20);
    char json[4096] = "";
    for (int r = 0; r < N_ROWS; r++) {
        size_t at = strlen(json);
        measure(&b, r, median);
        if (world_rank(w) == 0)
            printf("%-22s %10.1f us   MPI %10.1f us   %5.2f\n", rows[r].name, median[0], median[1], median[1] / median[0]);
        snprintf(json + at, sizeof json - at, "%s{\"name\":\"%s, %d ranks, %s\",\"ours\":%.2f,\"peer\":%.2f,\"peer_name\":\"Open MPI\",\"unit\":\"us\",\"ratio\":%.3f}",
                 at ? "," : "", rows[r].name, world_size(w), world_transport(w), median[0], median[1], median[1] / median[0]);
    }
    if (world_rank(w) == 0)
        printf("{\"rows\":[%s]}\n", json);
    free(b.out);
    comm_free(b.c, b.in);
    mesh_close(&m);
    return 0;
}

int main(int argc, char **argv)
{
    struct world *w = NULL;
    struct mem mem = { 0 };
    struct err e = { 0 };
    int status = 0;
    if (launch_ranks(argc > 1 ? atoi(argv[1]) : 4, argv, &e) < 0 || world_open(&w, "auto", NULL, &mem, &e) < 0)
        return err_print(&e, "comm_bench");
    if (run(w, &e) < 0)
        status = world_report(w, &e, "comm_bench");
    world_close(w);
    return status;
}
