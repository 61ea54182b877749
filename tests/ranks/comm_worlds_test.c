/* ranks: 2 3 4 6 8 */
/* comm_worlds_test.c - worlds one after the other in one process, over either transport, with threads:
 * always the same bits. */
#include <math.h>

#include "base/pool.h"
#include "comm/comm.h"
#include "tests/test.h"

#define N 300011

static float value(int rank, int64_t i)
{
    uint64_t h = ((uint64_t)rank * 1000003u + (uint64_t)i) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    return ldexpf((float)(h >> 40) / 16777216.0f - 0.5f, (int)(h >> 36 & 15) - 8);
}

/* The sum of N elements over all ranks, by a world of its own. */
static void sum_once(const char *transport, struct dev *dev, float *out)
{
    struct world *w;
    struct mesh m;
    struct mem mem = { 0 };
    struct err e = { 0 };
    int size[AXIS_COUNT] = { 1, 1, 1, 1 };
    if (world_open(&w, transport, 0, dev, &mem, &e) < 0) {
        test_fail(__FILE__, __LINE__, "%s", e.text);
        return;
    }
    CHECK_STR(world_transport(w), transport);
    size[AXIS_CP] = world_size(w);
    CHECK_INT(mesh_open(&m, w, size, &e), 0);
    float *x = comm_alloc(m.axis[AXIS_CP], MEM_GRADS, N * 4);
    for (int64_t i = 0; i < N; i++)
        x[i] = value(world_rank(w), i);
    CHECK_INT(comm_all_reduce(m.axis[AXIS_CP], x, N, &e), 0);
    memcpy(out, x, N * 4);
    comm_free(m.axis[AXIS_CP], x);
    CHECK_INT(mem.now[MEM_GRADS], 0);
    mesh_close(&m);
    world_close(w);
    CHECK_INT(mem.total_now, 0);
}

TEST(every_transport_and_number_of_threads_gives_the_same_bits)
{
    static float a[N], b[N];
    struct dev dev = { .kind = "cpu" };
    struct err e;
    CHECK_INT(pool_open(&dev.pool, 3, &e), 0);
    sum_once("shm", NULL, a);
    sum_once("mpi", NULL, b);
    CHECK_SAME(a, b, sizeof a);
    sum_once("shm", &dev, b);
    CHECK_SAME(a, b, sizeof a);
    pool_close(dev.pool);
}

TEST(twenty_worlds_leave_nothing_behind)
{
    static float a[N], b[N];
    sum_once("shm", NULL, a);
    for (int i = 0; i < 20; i++) {
        sum_once(i % 2 ? "mpi" : "shm", NULL, b);
        CHECK_SAME(a, b, sizeof a);
    }
}
