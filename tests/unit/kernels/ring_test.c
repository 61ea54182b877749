/* ring_test.c - slices reach device memory through the ring: the right bytes, in order, from any thread,
 * with no more on the host than the ring. The fake device sees a buffer that is filled too early, and an
 * op that does not wait. */
#include <pthread.h>

#include "tests/devices/fake/fake_path.h"
#include "tests/unit/model/model_rig.h"

enum { HALF = 4096 };
static struct mem mem;

static struct dev *open_dev(const char *kind)
{
    struct dev *d = NULL;
    struct err e;
    setenv("SHARDLINE_DEVICE", fake_device(), 1);
    CHECK_INT(dev_open(&d, kind, 1, &mem, &e), 0);
    unsetenv("SHARDLINE_DEVICE");
    return d;
}

static const char *complaint(struct dev *d)
{
    static struct err e;
    e.text[0] = 0;
    return dev_check(d, &e) < 0 ? e.text : "";
}

static const struct dev_executor none;

/* Elements of sizes that divide neither a buffer nor each other: each to a place of its own, some side by
 * side. */
static void bring(struct ring *r, float *to, int64_t n)
{
    struct err e;
    static const int64_t size[] = { 1, 700, 3, 5000, 64, 17, 1024 };
    int64_t at = 0, got;
    for (int i = 0; at < n; i++)
        for (int64_t end = at + size[i % 7] < n ? at + size[i % 7] : n; at < end; at += got) {
            void *host;
            got = ring_take(r, to + at, end - at, sizeof(float), &host, &e);
            CHECK(got > 0 && got <= end - at);
            for (int64_t j = 0; j < got; j++)
                ((float *)host)[j] = (float)(at + j) + 0.5f;
        }
}

static void bytes_through_ring_on(const char *kind, size_t half)
{
    enum { N = 40000 };
    static float back[N];
    struct dev *d = open_dev(kind);
    struct ring r;
    struct err e;
    float *p = dev_alloc(d, MEM_WORK, sizeof back), *q = dev_alloc(d, MEM_WORK, sizeof back);
    CHECK_INT(ring_open(&r, d, &none, half, &e), 0);
    bring(&r, p, N);
    CHECK_INT(ring_settle(&r, &e), 0);
    dev_copy(d, q, p, sizeof back);
    bring(&r, p + 100, N - 100); /* again, where it lies already */
    CHECK_INT(ring_settle(&r, &e), 0);
    dev_read(d, back, q, sizeof back);
    for (int i = 0; i < N; i++)
        CHECK_BITS(back[i], (float)i + 0.5f);
    dev_read(d, back, p, sizeof back);
    for (int i = 100; i < N; i++)
        CHECK_BITS(back[i], (float)(i - 100) + 0.5f);
    ring_close(&r);
    CHECK_STR(complaint(d), "");
    dev_free(d, p);
    dev_free(d, q);
    dev_close(d);
    CHECK_INT(mem.total_now, 0);
}

TEST(what_is_filled_arrives_whatever_the_sizes)
{
    bytes_through_ring_on("cpu", HALF);
    for (size_t half = 512; half <= (1 << 20); half *= 4)
        bytes_through_ring_on("cuda", half);
}

TEST(ring_put_is_the_same_for_bytes_that_are_there)
{
    static char in[3 * HALF + 5], out[sizeof in];
    struct dev *d = open_dev("cuda");
    struct ring r;
    struct err e;
    char *p = dev_alloc(d, MEM_WORK, sizeof in);
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (char)(i * 31 + i / 251);
    CHECK_INT(ring_open(&r, d, &none, HALF, &e), 0);
    CHECK_INT(ring_put(&r, p, in, sizeof in, &e), 0);
    CHECK_INT(ring_settle(&r, &e), 0);
    dev_read(d, out, p, sizeof out);
    CHECK_SAME(in, out, sizeof in);
    ring_close(&r);
    CHECK_STR(complaint(d), "");
    dev_close(d);
}

TEST(an_op_before_the_ring_is_settled_is_found)
{
    static float back[HALF];
    struct dev *d = open_dev("cuda");
    struct ring r;
    struct err e;
    float *p = dev_alloc(d, MEM_WORK, 4 * HALF);
    CHECK_INT(ring_open(&r, d, &none, HALF, &e), 0);
    bring(&r, p, HALF); /* more than two halves: some of it is on its way */
    dev_read(d, back, p, sizeof back);
    CHECK_HAS(complaint(d), "without waiting for dev_send, which wrote it in the copy queue");
    CHECK_INT(ring_settle(&r, &e), 0);
    dev_read(d, back, p, sizeof back);
    CHECK_STR(complaint(d), "");
    ring_close(&r);
    dev_close(d);
}

TEST(a_ring_that_is_given_up_leaves_its_memory_free_to_give_back)
{
    struct dev *d = open_dev("cuda");
    struct ring r;
    struct err e;
    float *p = dev_alloc(d, MEM_WORK, 4 * HALF);
    CHECK_INT(ring_open(&r, d, &none, HALF, &e), 0);
    bring(&r, p, HALF);
    ring_close(&r);
    dev_free(d, p);
    CHECK_STR(complaint(d), "");
    ring_close(&(struct ring){ 0 });
    dev_close(d);
    CHECK_INT(mem.total_now, 0);
}

TEST(no_pinned_memory_is_an_error_and_loses_none)
{
    struct dev *d = open_dev("cuda");
    struct ring r;
    struct err e;
    for (int n = 1; n <= 2; n++) {
        mem.fail_after = n;
        CHECK_INT(ring_open(&r, d, &none, HALF, &e), -ERR_MEMORY);
        CHECK_HAS(e.text, "pinned");
    }
    mem.fail_after = 0;
    CHECK_INT(mem.total_now, 0);
    dev_close(d);
}

/* ---- the fake device: what it is there to find ---- */
TEST(a_slot_that_is_filled_again_too_early_shows)
{
    struct dev *d = open_dev("cuda");
    char *pin = dev_pin(d, 8), out[8];
    void *p = dev_alloc(d, MEM_WORK, 8);
    memcpy(pin, "too soon", 8);
    dev_wait(d, DEV_COPY, dev_mark(d, DEV_COMPUTE));
    dev_use(d, DEV_COPY);
    dev_send(d, p, pin, 8);
    memcpy(pin, "mistaken", 8);
    dev_read(d, out, p, 8);
    CHECK_SAME(out, "mistaken", 8);
    dev_send(d, p, pin, 8);
    dev_await(d, dev_mark(d, DEV_COPY));
    memcpy(pin, "in time!", 8);
    dev_read(d, out, p, 8);
    CHECK_SAME(out, "mistaken", 8);
    CHECK_STR(complaint(d), "");
    dev_send(d, p, pin, 8);
    dev_unpin(d, pin, 8);
    CHECK_HAS(complaint(d), "is still read by the device");
    dev_use(d, DEV_COMPUTE);
    dev_close(d);
    CHECK_INT(mem.total_now, 0);
}

TEST(what_is_sent_is_pinned_and_waits_for_who_reads_there)
{
    struct dev *d = open_dev("cuda");
    char own[8] = "not here", *pin = dev_pin(d, 8);
    void *p = dev_alloc(d, MEM_WORK, 8);
    dev_send(d, p, own, 8);
    CHECK_HAS(complaint(d), "dev_send: source");
    dev_send(d, p, pin + 1, 8);
    CHECK_HAS(complaint(d), "dev_send: source");
    dev_use(d, DEV_COPY);
    dev_send(d, p, pin, 8);
    CHECK_HAS(
        complaint(d),
        "is written in the copy queue without waiting for dev_send, which wrote it in the compute queue");
    dev_unpin(d, pin, 4);
    CHECK_HAS(complaint(d), "is not what was pinned");
    dev_use(d, DEV_COMPUTE);
    dev_unpin(d, pin, 8);
    dev_close(d);
    CHECK_INT(mem.total_now, 0);
}

/* ---- a model's weights ---- */
static float value(const struct param *p, int64_t row, int64_t col)
{
    return (float)((row * 131 + col * 7 + (int64_t)strlen(p->name) * 1009) % 997) / 997 - 0.4f;
}

static int read_values(void *ctx, const struct param *p, const struct box *b, struct ring *ring, void *dst,
                       enum dtype dt, struct err *e)
{
    int64_t cols = b->n_dims == 2 ? b->extent[1] : 1, n = box_count(b), got;
    (void)ctx;
    for (int64_t lo = 0; lo < n; lo += got) {
        void *host;
        got = ring_take(ring, (char *)dst + (size_t)lo * dtype_size(dt), n - lo, dtype_size(dt), &host, e);
        if (got < 0)
            return (int)got;
        for (int64_t i = 0; i < got; i++)
            ((float *)host)[i] = value(p, b->start[0] + (lo + i) / cols, (lo + i) % cols);
    }
    return 0;
}

struct served {
    struct dev *d;
    struct world *world;
    struct mesh mesh;
    struct model m;
    struct resident r;
};
static void open_served(struct served *s, const char *kind)
{
    const struct model_config c = rig_config(0, 0.15);
    const int size[AXIS_COUNT] = { 1, 1, 1, 1 };
    const struct layout lay = { 1, 1, 1, 1, 1, 0 };
    struct err e;
    s->d = open_dev(kind);
    CHECK_INT(world_open(&s->world, "self", 0, s->d, &mem, &e), 0);
    CHECK_INT(mesh_open(&s->mesh, s->world, size, &e), 0);
    struct model_open how = {
        .layout = lay, .dev = s->d, .tp = s->mesh.axis[AXIS_TP], .dt = DT_F32, .max_rows = 8, .max_pos = 64
    };
    CHECK_INT(model_open(&s->m, &c, &how, &e), 0);
}

static void close_served(struct served *s)
{
    resident_close(&s->r);
    model_close(&s->m);
    mesh_close(&s->mesh);
    world_close(s->world);
    dev_close(s->d);
    CHECK_INT(mem.total_now, 0);
}

/* All that is resident, unit after unit. */
static char *bytes_of(const struct served *s, size_t *n)
{
    char *all = NULL;
    *n = 0;
    for (int u = 0; u < s->m.local.n_units; u++) {
        size_t bytes = model_pack_bytes(&s->m, u);
        all = realloc(all, *n + bytes + 1);
        dev_read(s->d, all + *n, (char *)s->r.memory[u], bytes);
        *n += bytes;
    }
    return all;
}

/* A reader in a thread of its own, and the thread that it asks. */
struct handover {
    pthread_mutex_t lock;
    pthread_cond_t turn;
    int (*fn)(void *arg, struct err *e);
    void *arg;
    struct err *e;
    int rc, over, n;
};
static int hand_over(void *ctx, int (*fn)(void *arg, struct err *e), void *arg, struct err *e)
{
    struct handover *x = ctx;
    pthread_mutex_lock(&x->lock);
    x->fn = fn;
    x->arg = arg;
    x->e = e;
    pthread_cond_broadcast(&x->turn);
    while (x->fn)
        pthread_cond_wait(&x->turn, &x->lock);
    pthread_mutex_unlock(&x->lock);
    return x->rc;
}

struct reading {
    struct served *s;
    struct handover handover;
    size_t half;
    int rc;
};
static void *read_beside(void *arg)
{
    struct reading *x = arg;
    struct err e;
    x->rc = resident_fill(&x->s->r, &x->s->m,
                          &(struct resident_source){
                              .read = read_values, .executor = { hand_over, &x->handover }, .ring = x->half },
                          &e);
    pthread_mutex_lock(&x->handover.lock);
    x->handover.over = 1;
    pthread_cond_broadcast(&x->handover.turn);
    pthread_mutex_unlock(&x->handover.lock);
    return NULL;
}

/* The device's thread uses it all the while. */
static void serve(struct reading *x)
{
    struct handover *handover = &x->handover;
    float *busy = dev_alloc(x->s->d, MEM_WORK, 64);
    pthread_mutex_lock(&handover->lock);
    while (!handover->over) {
        if (handover->fn) {
            handover->rc = handover->fn(handover->arg, handover->e);
            handover->fn = NULL;
            handover->n++;
            pthread_cond_broadcast(&handover->turn);
        }
        dev_fill(x->s->d, busy, 0, 64);
        pthread_cond_wait(&handover->turn, &handover->lock);
    }
    pthread_mutex_unlock(&handover->lock);
    dev_free(x->s->d, busy);
}

TEST(weights_read_beside_the_device_s_thread_are_those_of_a_cpu_and_the_host_holds_the_ring)
{
    struct served cpu = { 0 }, dev = { 0 };
    struct reading x = { .s = &dev,
                         .half = HALF,
                         .handover = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, NULL, NULL,
                                       0, 0, 0 } };
    struct err e;
    size_t n, n_cpu;
    pthread_t t;
    open_served(&cpu, "cpu");
    CHECK_INT(resident_open(&cpu.r, &cpu.m, read_values, NULL, &e), 0);
    char *want = bytes_of(&cpu, &n_cpu);
    close_served(&cpu);

    open_served(&dev, "cuda");
    int64_t before = mem.total_now, most = 0;
    mem.total_peak = before;
    pthread_create(&t, NULL, read_beside, &x);
    serve(&x);
    pthread_join(t, NULL);
    CHECK_INT(x.rc, 0);
    CHECK_STR(complaint(dev.d), "");
    char *got = bytes_of(&dev, &n);
    CHECK_INT(n, n_cpu);
    CHECK_SAME(got, want, n);
    for (int u = 0; u < dev.m.local.n_units; u++)
        most = dev.m.local.unit[u].flat > most ? dev.m.local.unit[u].flat : most;
    int64_t device = (mem.total_now - before) + most * 4, host = mem.total_peak - before - device;
    /* so many halves and doors, or this shows nothing */
    CHECK(device > 50 * HALF && x.handover.n > 50);
    CHECK(host <= 2 * HALF + 512);
    close_served(&dev);
    free(want);
    free(got);
}
