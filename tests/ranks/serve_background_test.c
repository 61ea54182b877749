/* ranks: 1 2 4 */
/* serve_background_test.c - tasks beside the main threads: their collective calls in order, one rank's
 * failure reaches all ranks, an abort does not wait. */
#include <time.h>
#include "serve/weights/background.h"
#include "tests/test.h"

static struct dev dev = { .kind = "cpu" };
static struct mem mem;
static struct world *world;
static struct mesh mesh;

static void begin(void)
{
    struct err e = { 0 };
    int size[AXIS_COUNT] = { 1, 1, 1, 1 };
    CHECK_INT(pool_open(&dev.pool, 1, &e), 0);
    CHECK_INT(world_open(&world, "auto", 0, &dev, &mem, &e), 0);
    size[AXIS_TP] = world_size(world);
    CHECK_INT(mesh_open(&mesh, world, size, &e), 0);
}

static void end(void)
{
    mesh_close(&mesh);
    world_close(world);
    pool_close(dev.pool);
}

static int n_ranks(void) { return world_size(world); }

/* What a task does: sums over the ranks, of different numbers in every round. */
struct job {
    int rounds, fails_at, hangs_at;
    int64_t sum[8];
    int n_device;
    pthread_t main;
    struct background *background;
    int round;
};

static int add(void *arg, struct err *e)
{
    struct job *j = arg;
    j->sum[j->round] = 100 * j->round + world_rank(world);
    CHECK(pthread_equal(pthread_self(), j->main));
    return comm_all_reduce_i64(mesh.axis[AXIS_TP], &j->sum[j->round], 1, e);
}

static int touch(void *arg, struct err *e)
{
    struct job *j = arg;
    (void)e;
    CHECK(pthread_equal(pthread_self(), j->main));
    return j->n_device++;
}

static void nap(int ms) { nanosleep(&(struct timespec){ 0, ms * 1000000L }, NULL); }

static int work(struct background *a, void *arg, struct err *e)
{
    struct job *j = arg;
    for (j->round = 0; j->round < j->rounds; j->round++) {
        /* no two ranks are ready at the same time */
        nap(1 + (world_rank(world) * 7 + j->round * 3) % 5);
        if (j->round == j->fails_at)
            return err_set(e, ERR_INTEGRITY, "byte %d is wrong", j->round);
        while (j->round == j->hangs_at)
            if (nap(1), a->stop)
                return err_set(e, ERR_STOPPED, "stopped");
        CHECK_INT(background_on_device(a, touch, j, e), j->round);
        int rc = background_collective(a, add, j, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int run(struct job *j, struct err *e)
{
    struct background a;
    int rc;
    j->main = pthread_self();
    background_start(&a, work, j, dev.pool);
    while ((rc = background_sync(&a, mesh.axis[AXIS_TP], mesh.all, e)) == 0)
        background_wait(&a, 5);
    CHECK_INT(rc, 1);
    return background_finish(&a, mesh.all, e);
}

TEST(collective_calls_of_the_threads_are_made_by_the_main_threads_in_their_order)
{
    struct job j = { .rounds = 8, .fails_at = -1, .hangs_at = -1 };
    struct err e = { 0 };
    begin();
    CHECK_INT(run(&j, &e), 0);
    for (int i = 0; i < 8; i++)
        CHECK_INT(j.sum[i], (int64_t)n_ranks() * 100 * i + n_ranks() * (n_ranks() - 1) / 2);
    CHECK_INT(j.n_device, 8);
    end();
}

TEST(the_error_of_one_rank_ends_all_whatever_they_wait_for)
{
    struct err e = { 0 };
    begin();
    int last = n_ranks() - 1, me = world_rank(world);
    struct job j = { .rounds = 8, .fails_at = me == last ? 3 : -1, .hangs_at = me == 0 && last ? 3 : -1 };
    CHECK_INT(run(&j, &e), -ERR_INTEGRITY);
    CHECK(strstr(e.text, "byte 3 is wrong") != NULL);
    CHECK(last == 0 || strstr(e.text, "rank") != NULL);
    /* nothing is left over */
    struct job again = { .rounds = 2, .fails_at = -1, .hangs_at = -1 };
    CHECK_INT(run(&again, &e), 0);
    end();
}

TEST(a_rank_that_wants_no_more_ends_all)
{
    struct background a;
    struct err e = { 0 };
    int rc;
    begin();
    struct job j = { .rounds = 8, .fails_at = -1, .hangs_at = 2, .main = pthread_self() };
    background_start(&a, work, &j, NULL);
    for (int i = 0; (rc = background_sync(&a, mesh.axis[AXIS_TP], mesh.all, &e)) == 0; i++) {
        if (i == 40 && world_rank(world) == 0)
            background_cancel(&a);
        nap(1);
    }
    CHECK_INT(rc, 1);
    CHECK_INT(background_finish(&a, mesh.all, &e), -ERR_STOPPED);
    end();
}

TEST(it_can_be_abandoned_at_any_time_without_the_others)
{
    begin();
    for (int ms = 0; ms < 12; ms += 3) {
        struct background a;
        struct job j = { .rounds = 8, .fails_at = -1, .hangs_at = ms == 9 ? 0 : -1, .main = pthread_self() };
        background_start(&a, work, &j, NULL);
        nap(ms);
        background_abort(&a);
        CHECK_INT(a.state, BACKGROUND_NONE);
    }
    struct background none = { 0 };
    background_abort(&none);
    end();
}

static int touch_only(struct background *a, void *arg, struct err *e)
{
    struct job *j = arg;
    for (int i = 0; i < j->rounds; i++)
        CHECK_INT(background_on_device(a, touch, j, e), i);
    return 0;
}

/* One slice after the other goes to the device: no rank waits for the others. */
TEST(what_concerns_one_rank_is_done_while_its_main_thread_rests)
{
    struct background a;
    struct err e = { 0 };
    int rc;
    begin();
    struct job j = { .rounds = 100, .main = pthread_self() };
    background_start(&a, touch_only, &j, NULL);
    for (int i = 0; i < 50 && j.n_device < 100; i++)
        background_wait(&a, 100);
    CHECK_INT(j.n_device, 100);
    while ((rc = background_sync(&a, mesh.axis[AXIS_TP], mesh.all, &e)) == 0)
        background_wait(&a, 5);
    CHECK_INT(rc, 1);
    CHECK_INT(background_finish(&a, mesh.all, &e), 0);
    end();
}
