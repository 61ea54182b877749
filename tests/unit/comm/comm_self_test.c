/* comm_self_test.c - one rank without a launcher: every call works, MPI is not started, signals ask the
 * program to stop. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/pool.h"
#include "comm/comm.h"
#include "comm/launch.h"
#include "comm/watch.h"
#include "tests/test.h"

static struct mem mem;
static struct err e;

TEST(threads_are_tied_to_cpus_unless_that_is_off)
{
    struct world *w;
    struct pool *p;
    cpu_set_t before, now;
    CHECK_INT(sched_getaffinity(0, sizeof before, &before), 0);
    CHECK_INT(world_open(&w, "auto", 0, NULL, &mem, &e), 0);
    CHECK_INT(pool_open(&p, CPU_COUNT(&before), &e), 0);
    setenv("SHARDLINE_PIN", "off", 1);
    CHECK_INT(world_pin(w, p), 0);
    sched_getaffinity(0, sizeof now, &now);
    CHECK(CPU_EQUAL(&before, &now));
    unsetenv("SHARDLINE_PIN");
    CHECK_INT(world_pin(w, p), 1);
    sched_getaffinity(0, sizeof now, &now);
    CHECK_INT(CPU_COUNT(&now), 1);
    pool_close(p);
    world_close(w);
    sched_setaffinity(0, sizeof before, &before);
}

TEST(one_rank_needs_no_mpi_and_every_call_works)
{
    struct world *w;
    struct mesh m;
    const int size[AXIS_COUNT] = { 1, 1, 1, 1 }, two[AXIS_COUNT] = { 2, 1, 1, 1 };
    float x[3] = { 1, -0.0f, 3 }, y[3];
    int64_t k[2] = { 5, -6 };
    void *blob;
    size_t n;
    int started = 1;
    for (int round = 0; round < 3; round++) { /* worlds may come and go */
        CHECK_INT(world_open(&w, "auto", 0, NULL, &mem, &e), 0);
        CHECK_STR(world_transport(w), "self");
        CHECK_INT(world_size(w), 1);
        CHECK_INT(mesh_open(&m, w, two, &e), -ERR_USAGE);
        CHECK_INT(mesh_open(&m, w, size, &e), 0);
        struct comm *c = m.axis[AXIS_PP];
        CHECK_INT(comm_all_reduce(c, x, 3, &e), 0);
        CHECK_BITS(x[1], -0.0f);
        CHECK_INT(comm_all_reduce_max(c, x, 3, &e), 0);
        CHECK_INT(comm_all_reduce_i64(c, k, 2, &e), 0);
        CHECK_INT(k[1], -6);
        CHECK_INT(comm_reduce_scatter(c, y, x, 3, &e), 0);
        CHECK_SAME(x, y, sizeof x);
        CHECK_INT(comm_all_gather(c, x, y, sizeof y, &e), 0);
        CHECK_INT(comm_broadcast(c, x, sizeof x, 0, &e), 0);
        CHECK_INT(comm_gather_blobs(c, "abc", 3, 0, &blob, &n, &e), 0);
        CHECK(n == 3 && !memcmp(blob, "abc", 3));
        free(blob);
        CHECK_INT(comm_barrier(c, &e), 0);
        CHECK_INT(comm_agree(c, 0, &e), 0);
        CHECK_INT(comm_agree(c, err_set(&e, ERR_SPACE, "disk is full"), &e), -ERR_SPACE);
        CHECK_STR(e.text, "disk is full");
        void *p = comm_alloc(c, MEM_GRADS, 1000);
        CHECK_INT(mem.now[MEM_GRADS], 1000);
        comm_free(c, p);
        mesh_close(&m);
        world_close(w);
    }
    MPI_Initialized(&started);
    CHECK_INT(started, 0);
}

TEST(after_a_failure_every_call_says_so)
{
    struct world *w;
    struct mesh m;
    const int size[AXIS_COUNT] = { 1, 1, 1, 1 };
    float x = 1;
    CHECK_INT(world_open(&w, "self", 0, NULL, &mem, &e), 0);
    CHECK_INT(mesh_open(&m, w, size, &e), 0);
    err_set(&e, ERR_FILE, "data.bin: no such file");
    world_fail(w, &e);
    CHECK_INT(comm_all_reduce(m.all, &x, 1, &e), -ERR_PEER);
    CHECK_STR(e.text, "rank 0 failed: data.bin: no such file");
    CHECK_INT(comm_barrier(m.all, &e), -ERR_PEER);
    CHECK_INT(comm_all_reduce(m.all, &x, 0, &e), -ERR_PEER);
    CHECK_INT(world_claim_report(w), 1);
    CHECK_INT(world_claim_report(w), 0);
    mesh_close(&m);
    world_close(w);
}

TEST(a_signal_asks_for_the_end_and_does_not_kill)
{
    static const struct timespec nap = { 0, 1000000 };
    struct world *w;
    CHECK_INT(world_open(&w, "self", 0, NULL, &mem, &e), 0);
    CHECK_INT(world_stop_signal(w), 0);
    kill(getpid(), SIGINT);
    for (int i = 0; i < 2000 && !world_stop_signal(w); i++)
        nanosleep(&nap, NULL);
    CHECK_INT(world_stop_signal(w), SIGINT);
    world_close(w);
}

TEST(unknown_transports_are_refused)
{
    struct world *w;
    CHECK_INT(world_open(&w, "tcp", 0, NULL, &mem, &e), -ERR_USAGE);
    CHECK_HAS(e.text, "no transport is called \"tcp\"");
    CHECK(w == NULL);
}

TEST(the_state_of_a_process_is_read_from_proc)
{
    char s = watch_process_state((int)getpid());
    CHECK(s == 'R' || s == 'S');
    CHECK_INT(watch_process_state(0x3fffffff), 0);
}

TEST(without_a_launcher_one_rank_goes_on)
{
    static char name[] = "x";
    char *argv[] = { name, NULL };
    CHECK_INT(launch_ranks(0, argv, &e), 0);
    CHECK_INT(launch_ranks(1, argv, &e), 0);
    CHECK_INT(launch_under_launcher(), 0);
}
