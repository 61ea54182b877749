/* fake_test.c - the fake device finds the mistakes that it is for: the host in the device's memory, the
 * device in the host's, memory that was freed or is too short, a queue that does not wait for another. Its
 * ops give the CPU's bits. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/dev.h"
#include "kernels/kernels.h"
#include "tests/devices/fake/fake_path.h"
#include "tests/test.h"

enum { ROWS = 3, COLS = 40 };

static struct dev *open_fake(struct mem *mem)
{
    struct dev *d = NULL;
    struct err e;
    setenv("SHARDLINE_DEVICE", fake_device(), 1);
    CHECK_INT(dev_open(&d, "cuda", 1, mem, &e), 0);
    unsetenv("SHARDLINE_DEVICE");
    return d;
}

/* The signal that ends a process which touches p. */
static int signal_of_touch(char *p, int write)
{
    pid_t child = fork();
    int status = 0;
    if (child == 0) {
        struct rlimit none = { 0, 0 };
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGSEGV, SIG_DFL);
        if (write)
            *(volatile char *)p = 1;
        else
            (void)*(volatile char *)p;
        _exit(0);
    }
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(the_host_cannot_touch_the_device_s_memory)
{
    struct mem mem = { 0 };
    struct dev *d = open_fake(&mem);
    char *p = dev_alloc(d, MEM_WORK, 100), own = 0;
    CHECK(p && dev_owns(d, p) && !dev_owns(d, &own) && !dev_owns(d, NULL));
    CHECK_INT(signal_of_touch(p, 0), SIGSEGV);
    CHECK_INT(signal_of_touch(p + 99, 1), SIGSEGV);
    CHECK_INT(signal_of_touch(&own, 1), 0);
    dev_close(d);
    CHECK_INT(mem.total_now, 0);
}

TEST(bytes_go_in_and_out_through_the_doors)
{
    struct mem mem = { 0 };
    struct dev *d = open_fake(&mem);
    struct err e;
    char in[12] = "abcdefghijkl", out[12] = { 0 };
    char *p = dev_alloc(d, MEM_WORK, 12), *q = dev_alloc(d, MEM_WORK, 12);
    dev_write(d, p, in, 12);
    dev_copy_rows(d, q, 6, p, 4, 3, 2); /* abc, efg */
    dev_fill(d, q + 3, 'x', 3);
    dev_read(d, out, q, 12);
    CHECK_SAME(out, "abcxxxefg\0\0", 12);
    char *host = dev_stage(d, p, 12);
    CHECK(host && host != p && !dev_owns(d, host));
    memcpy(host, "stagestages!", 12);
    dev_unstage(d, p, host, 12);
    dev_read(d, out, p, 12);
    CHECK_SAME(out, "stagestages!", 12);
    CHECK_INT(dev_check(d, &e), 0);
    dev_close(d);
    CHECK_INT(mem.total_now, 0);
}

/* The error of dev_check; "": none. */
static const char *complaint(struct dev *d)
{
    static struct err e;
    e.text[0] = 0;
    return dev_check(d, &e) < 0 ? e.text : "";
}

TEST(a_wrong_pointer_is_named_and_nothing_is_run)
{
    struct mem mem = { 0 };
    struct dev *d = open_fake(&mem);
    float host[ROWS * COLS] = { 1 }, back[1];
    int32_t ids[ROWS] = { 0 };
    float *x = dev_alloc(d, MEM_WORK, sizeof host), *y = dev_alloc(d, MEM_WORK, sizeof host),
          *gone = dev_alloc(d, MEM_WORK, sizeof host);
    struct mat m = mat_of(x, DT_F32, ROWS, COLS, COLS), long_mat = mat_of(y, DT_F32, ROWS + 1, COLS, COLS);
    dev_write(d, x, host, sizeof host);
    KERNEL(d, add_rounded, m, mat_of(host, DT_F32, ROWS, COLS, COLS));
    CHECK_HAS(complaint(d), "add_rounded: o");
    KERNEL(d, add_rounded, long_mat, m);
    CHECK_HAS(complaint(d), "add_rounded: x");
    dev_free(d, gone);
    KERNEL(d, widen, y, gone, DT_F32, 1);
    CHECK_HAS(complaint(d), "was freed");
    KERNEL(d, embed, m, mat_of(y, DT_F32, ROWS, COLS, COLS), 0, (const int32_t *)(const void *)y);
    CHECK_HAS(complaint(d), "embed: ids");
    dev_write(d, host, host, 4);
    CHECK_HAS(complaint(d), "dev_write: target");
    dev_read(d, y, x, 4);
    CHECK_HAS(complaint(d), "dev_read: target");
    dev_free(d, y + 1);
    CHECK_HAS(complaint(d), "dev_free");
    dev_read(d, back, x, 4);
    CHECK_BITS(back[0], 1.0f); /* not what add_rounded would have made of it */
    KERNEL(d, embed, m, mat_of(y, DT_F32, ROWS, COLS, COLS), 0, ids);
    CHECK_STR(complaint(d), "");
    dev_close(d);
    CHECK_INT(mem.total_now, 0);
}

TEST(its_ops_are_the_cpu_s)
{
    struct mem mem = { 0 };
    struct dev *d = open_fake(&mem);
    struct panels p = { .n = 37, .k = COLS, .dt = DT_F32, .leaves = leaves_of(COLS, 4, 0, 4) };
    float x[ROWS * COLS], w[37 * COLS], out[2][ROWS * 37];
    for (int i = 0; i < 37 * COLS; i++)
        w[i] = (float)(i * 7919 % 1009) / 1009 - 0.4f;
    memcpy(x, w + 100, sizeof x);
    for (int k = 0; k < 2; k++) {
        struct dev *at = k ? d : d->host;
        struct panels q = p;
        float *dx = dev_alloc(at, MEM_WORK, sizeof x), *dw = dev_alloc(at, MEM_WORK, sizeof w),
              *dy = dev_alloc(at, MEM_WORK, sizeof out[0]);
        struct mat wm = mat_of(dw, DT_F32, 37, COLS, COLS);
        q.p = dev_alloc(at, MEM_WORK, panels_bytes(q.n, q.k, q.dt, &q.leaves));
        dev_write(at, dx, x, sizeof x);
        dev_write(at, dw, w, sizeof w);
        KERNEL(at, linear_pack, &q, 1, &wm);
        KERNEL(at, linear, mat_of(dy, DT_F32, ROWS, 37, 37), mat_of(dx, DT_F32, ROWS, COLS, COLS), &q);
        dev_read(at, out[k], dy, sizeof out[0]);
        dev_free(at, q.p);
        dev_free(at, dy);
        dev_free(at, dw);
        dev_free(at, dx);
    }
    CHECK_STR(complaint(d), "");
    CHECK_SAME(out[0], out[1], sizeof out[0]);
    dev_close(d);
    CHECK_INT(mem.total_now, 0);
}

/* ---- the order between the queues ---- */
enum { N = 8 };
struct rig {
    struct dev *d;
    float *x, *y;
};
static struct mem rig_mem;
static struct rig open_rig(void)
{
    static const float ones[N] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    struct rig r = { .d = open_fake(&rig_mem) };
    r.x = dev_alloc(r.d, MEM_WORK, sizeof ones);
    r.y = dev_alloc(r.d, MEM_WORK, sizeof ones);
    dev_write(r.d, r.x, ones, sizeof ones);
    dev_sync(r.d);
    return r;
}

static void close_rig(struct rig *r) { dev_close(r->d); }

/* out = in + in, in that queue */
static void twice(struct rig *r, enum dev_queue q, float *out, const float *in)
{
    const float *from[2] = { in, in };
    enum dev_queue before = dev_use(r->d, q);
    KERNEL(r->d, tree_add, out, from, 2, N);
    dev_use(r->d, before);
}

static void pass(struct rig *r, enum dev_queue from, enum dev_queue to)
{
    dev_wait(r->d, to, dev_mark(r->d, from));
}

TEST(queues_that_wait_for_each_other_are_in_order)
{
    struct rig r = open_rig();
    float out[N];
    twice(&r, DEV_COMPUTE, r.y, r.x);
    pass(&r, DEV_COMPUTE, DEV_COMM);
    twice(&r, DEV_COMM, r.x, r.y);
    int64_t mark = dev_mark(r.d, DEV_COMM);
    CHECK_INT(dev_reached(r.d, mark), 0); /* deferred until a wait */
    dev_wait(r.d, DEV_COMPUTE, mark);
    CHECK_INT(dev_reached(r.d, mark), 1);
    twice(&r, DEV_COMPUTE, r.y, r.x);
    dev_read(r.d, out, r.y, sizeof out);
    CHECK_STR(complaint(r.d), "");
    CHECK_BITS(out[7], 64.0f);
    close_rig(&r);
}

TEST(a_read_that_does_not_wait_for_the_writer_is_found)
{
    struct rig r = open_rig();
    twice(&r, DEV_COMM, r.y, r.x);
    twice(&r, DEV_COMPUTE, r.x, r.y);
    CHECK_HAS(complaint(r.d), "tree_add: in");
    close_rig(&r);
    r = open_rig();
    twice(&r, DEV_COMPUTE, r.y, r.x);
    twice(&r, DEV_COMM, r.x, r.y);
    CHECK_HAS(complaint(r.d), "is read in the communication queue without waiting for tree_add, which wrote "
                              "it in the compute queue");
    close_rig(&r);
}

TEST(a_write_that_does_not_wait_for_the_readers_is_found)
{
    struct rig r = open_rig();
    twice(&r, DEV_COMM, r.y, r.x);
    dev_fill(r.d, r.x, 0, sizeof(float)); /* x is only read there */
    CHECK_HAS(complaint(r.d), "is written in the compute queue without waiting for tree_add, which reads it "
                              "in the communication queue");
    close_rig(&r);
}

TEST(a_free_that_does_not_wait_is_found)
{
    struct rig r = open_rig();
    twice(&r, DEV_COMM, r.y, r.x);
    dev_free(r.d, r.x);
    CHECK_HAS(complaint(r.d), "dev_free");
    close_rig(&r);
}

TEST(a_mark_that_was_made_too_early_is_found)
{
    struct rig r = open_rig();
    int64_t early = dev_mark(r.d, DEV_COMM);
    twice(&r, DEV_COMM, r.y, r.x);
    dev_wait(r.d, DEV_COMPUTE, early);
    twice(&r, DEV_COMPUTE, r.x, r.y);
    CHECK_HAS(complaint(r.d), "without waiting for");
    close_rig(&r);
}

TEST(a_mark_carries_what_its_queue_waited_for)
{
    struct rig r = open_rig();
    twice(&r, DEV_COMM, r.y, r.x);
    pass(&r, DEV_COMM, DEV_COMPUTE);
    pass(&r, DEV_COMPUTE, DEV_COMM);
    twice(&r, DEV_COMM, r.y, r.x);
    dev_sync(r.d);
    dev_fill(r.d, r.x, 0, sizeof(float) * N);
    dev_fill(r.d, r.y, 0, sizeof(float) * N);
    CHECK_STR(complaint(r.d), "");
    close_rig(&r);
}

/* Neighbours in one piece of memory are no reason to wait; one shared element is. */
TEST(the_order_is_that_of_bytes_not_of_pieces)
{
    struct rig r = open_rig();
    const float *in[1] = { r.x };
    dev_use(r.d, DEV_COMM);
    KERNEL(r.d, tree_add, r.y, in, 1, N / 2);
    dev_use(r.d, DEV_COMPUTE);
    dev_fill(r.d, r.y + N / 2, 0, sizeof(float) * N / 2);
    dev_fill(r.d, r.x + N / 2, 0, sizeof(float) * N / 2);
    CHECK_STR(complaint(r.d), "");
    dev_fill(r.d, r.y + N / 2 - 1, 0, sizeof(float));
    CHECK_HAS(complaint(r.d), "dev_fill: target");
    close_rig(&r);
}

TEST(a_read_by_the_host_waits_for_its_own_queue_alone)
{
    struct rig r = open_rig();
    float out[N];
    twice(&r, DEV_COMM, r.y, r.x);
    dev_read(r.d, out, r.y, sizeof out);
    CHECK_HAS(complaint(r.d), "dev_read: source");
    close_rig(&r);
    r = open_rig();
    twice(&r, DEV_COMM, r.y, r.x);
    dev_use(r.d, DEV_COMM);
    dev_read(r.d, out, r.y, sizeof out);
    dev_use(r.d, DEV_COMPUTE);
    dev_read(r.d, out, r.y, sizeof out);
    CHECK_STR(complaint(r.d), "");
    CHECK_BITS(out[2], 6.0f);
    close_rig(&r);
}

TEST(scratch_of_the_two_queues_is_not_the_same)
{
    struct rig r = open_rig();
    void *one = dev_scratch(r.d, 5, 100);
    dev_use(r.d, DEV_COMM);
    CHECK(dev_scratch(r.d, 5, 100) != one);
    dev_use(r.d, DEV_COMPUTE);
    CHECK(dev_scratch(r.d, 5, 100) == one);
    close_rig(&r);
    CHECK_INT(rig_mem.total_now, 0);
}
