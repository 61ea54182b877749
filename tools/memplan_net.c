/* memplan_net.c - see memplan_lab.h: collectives of this machine's ranks. They need processes of their own,
 * so --calibrate starts this program again (--calibrate-ranks N), which starts its ranks as ptrain does. */
#define _GNU_SOURCE /* pipe2 */
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "comm/comm.h"
#include "comm/launch.h"
#include "tools/memplan_lab.h"

enum { TURNS = 9, MOST = 32 << 20 };
static const int64_t sizes[] = { 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, MOST };
enum { N_SIZES = sizeof sizes / sizeof *sizes, WITH_ONE = 2 };
static const char *const names[] = { "all-reduce", "reduce-scatter", "gather" };

/* ---- a rank ---- */
struct net {
    struct comm *c, *all;
    float *buffer, *shared;
};

static int call(const struct net *b, enum sim_collective kind, int64_t n, struct err *e)
{
    int64_t each = n / comm_size(b->c), first = each * comm_rank(b->c);
    switch (kind) {
    case SIM_ALL_REDUCE: return comm_all_reduce(b->c, b->buffer, each * comm_size(b->c), e);
    case SIM_REDUCE_SCATTER: return comm_reduce_scatter(b->c, b->buffer + first, b->buffer, each, e);
    default: return comm_all_gather_shared(b->c, b->shared, b->buffer + first, (size_t)each * 4, e);
    }
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Seconds of one call, as rank 0's clock has it from barrier to barrier. */
static int sample(const struct net *b, enum sim_collective kind, int64_t n, double *s, struct err *e)
{
    int calls = n < 64 << 10 ? 20 : 2, rc = 0;
    TRY(comm_barrier(b->all, e));
    double begin = clock_s();
    for (int i = 0; i < calls; i++)
        TRY(call(b, kind, n, e));
    *s = (clock_s() - begin) / calls;
out:
    return rc;
}

static int measure_kind(const struct net *b, enum sim_collective kind, struct err *e)
{
    double s[TURNS];
    int rc = 0;
    for (int i = 0; i < N_SIZES; i++) {
        for (int turn = -1; turn < TURNS; turn++) /* the first one warms up */
            TRY(sample(b, kind, sizes[i] / 4, &s[turn < 0 ? 0 : turn], e));
        qsort(s, TURNS, sizeof *s, by_value);
        if (comm_rank(b->all) == 0)
            printf("%s %d %lld %.9g\n", names[kind], comm_size(b->c), (long long)sizes[i],
                   s[TURNS / 4]); /* others disturb upwards */
    }
out:
    return rc;
}

static int measure(struct world *w, struct err *e)
{
    const int axes[AXIS_COUNT] = { 1, 1, world_size(w), 1 };
    struct mesh m;
    struct net b = { 0 };
    void *shared = NULL;
    int rc = mesh_open(&m, w, axes, e);
    if (rc < 0)
        return rc;
    b.c = b.all = m.axis[AXIS_DP];
    b.buffer = comm_alloc(b.c, MEM_COMM, MOST);
    TRY(comm_alloc_shared(&shared, b.c, MEM_COMM, MOST, e));
    TRY(comm_agree(b.c, b.buffer ? 0 : err_set(e, ERR_MEMORY, "no memory for %d bytes on every rank", MOST),
                   e));
    b.shared = shared;
    memset(b.buffer, 0, MOST);
    for (int kind = 0; kind < SIM_COLLECTIVES; kind++)
        TRY(measure_kind(&b, (enum sim_collective)kind, e));
    b.c = m.axis[AXIS_TP]; /* of one, as every sum of a run with tp 1 or dp 1 */
    if (world_size(w) == WITH_ONE)
        TRY(measure_kind(&b, SIM_ALL_REDUCE, e));
    b.c = b.all;
    rc = comm_free_shared(b.c, shared, e);
out:
    comm_free(b.c, b.buffer);
    mesh_close(&m);
    return rc < 0 ? rc : 0;
}

int lab_rank(int ranks, char **argv, struct err *e)
{
    struct world *w = NULL;
    struct mem mem = { 0 };
    int rc = 0;
    TRY(launch_ranks(ranks, argv, e));
    TRY(world_open(&w, "auto", 0, NULL, &mem, e));
    rc = measure(w, e);
    if (rc >= 0)
        rc = lab_waits(w, &mem, e);
    fflush(stdout);
    if (rc < 0)
        world_report(w, e, "memplan");
    world_close(w);
out:
    return rc;
}

/* ---- who starts them ---- */
/* Returns how many lines did not fit. */
static int read_lines(struct cluster *c, FILE *f)
{
    int more = 0;
    char line[128], kind[32];
    struct cluster_collective x;
    struct cluster_wait y;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "wait %lf %lf %lf", &y.ranks, &y.at_once, &y.seconds) == 3 &&
            c->n_waits < CLUSTER_WAITS)
            c->wait[c->n_waits++] = y;
        if (sscanf(line, "%31s %lf %lf %lf", kind, &x.ranks, &x.bytes, &x.seconds) != 4)
            continue;
        for (int i = 0; i < SIM_COLLECTIVES; i++)
            if (!strcmp(kind, names[i]) && c->n_collectives < CLUSTER_COLLECTIVES) {
                x.kind = (enum sim_collective)i;
                c->collective[c->n_collectives++] = x;
            } else
                more += !strcmp(kind, names[i]);
    }
    return more;
}

static int start(pid_t *pid, int out, int ranks, struct err *e)
{
    char path[4096], number[16], option[] = "--calibrate-ranks";
    char *argv[] = { path, option, number, NULL };
    posix_spawn_file_actions_t files;
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return err_sys(e, "/proc/self/exe cannot be read");
    path[n] = 0;
    snprintf(number, sizeof number, "%d", ranks);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, out, 1);
    int failed = posix_spawn(pid, path, &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    return failed ? err_set(e, ERR_FILE, "%s cannot be started: %s", path, strerror(failed)) : 0;
}

int lab_collectives(struct cluster *c, int ranks, struct err *e)
{
    int pipes[2], status = 0, before = c->n_collectives, waits = c->n_waits, more = 0;
    int want = SIM_COLLECTIVES * N_SIZES + (ranks == WITH_ONE ? N_SIZES : 0);
    pid_t pid;
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return err_sys(e, "no pipe to measure collectives");
    int rc = start(&pid, pipes[1], ranks, e);
    close(pipes[1]);
    FILE *f = fdopen(pipes[0], "r");
    if (rc >= 0) {
        if (f)
            more = read_lines(c, f);
        waitpid(pid, &status, 0);
        int lines = c->n_collectives - before + more;
        if (status || more || lines != want) {
            c->n_collectives = before;
            c->n_waits = waits;
            rc = more ? err_set(e, ERR_FILE,
                                "%d measured collectives of %d ranks do not fit %d: measure fewer", lines,
                                ranks, CLUSTER_COLLECTIVES)
                      : err_set(e, ERR_FILE, "%d ranks measured %d of their %d collectives: status %d", ranks,
                                lines, want, status);
        }
    }
    if (f)
        fclose(f);
    else
        close(pipes[0]);
    return rc < 0 ? rc : 0;
}
