/* fake_device.c - a device for tests that checks what the programs do with device memory: the CPU's ops, over
 * memory that the host cannot touch. A shared library that SHARDLINE_DEVICE names (kernels/dev_library.h).
 *
 * The device's addresses lie in a range without access rights and are never used twice: a host that
 * dereferences one dies by SIGSEGV. Every op and copy looks its arguments up: device memory must belong to
 * the device, be alive and long enough, host memory must be the host's, and the op's queue must be ordered
 * behind the last access to these bytes (fake_order.h). A wrong op is not run; dev_check() names the op
 * and the argument. Results have the CPU's bits.
 *
 * The compute queue runs at once. Sums and library calls in the communication queue, and copies from pinned
 * memory, are deferred until a wait requires them: a missing wait shows as wrong numbers too. */
#include "tests/devices/fake/fake_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define RANGE ((size_t)1 << 42) /* of addresses, which are not used again */
#define GAP ((size_t)4096)      /* between two allocations: an overrun does not hit the next one */

static struct fake *of(const struct dev *d) { return d->back; }

/* ---- mistakes ---- */
void fake_wrong(struct fake *f, const char *arg, const void *p, const char *why)
{
    if (!f->what[0])
        snprintf(f->what, sizeof f->what, "%s: %s (%p) %s", f->op, arg, p, why);
}

static const char *const queue_name[DEV_QUEUES] = { "compute", "communication", "copy" };

static void out_of_order(struct fake *f, const char *arg, const void *p, enum fake_how how,
                         const struct touch *who, int wrote)
{
    char why[160];
    snprintf(why, sizeof why, "is %s in the %s queue without waiting for %s, which %s it in the %s queue",
             how == WRITES ? "written" : "read", queue_name[f->queue], who->op, wrote ? "wrote" : "reads",
             queue_name[who->queue]);
    fake_wrong(f, arg, p, why);
}

/* ---- memory ---- */
static int inside(const struct fake *f, const void *p)
{
    return (const char *)p >= f->base && (const char *)p < f->base + RANGE;
}

/* The last block that begins at or before p; NULL: none. */
static struct block *block_of(const struct fake *f, const void *p)
{
    int lo = 0, hi = f->n_blocks;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (f->block[mid].at <= (const char *)p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo ? &f->block[lo - 1] : NULL;
}

static int in_order(struct fake *f, struct block *b, const char *arg, size_t begin, size_t bytes,
                    enum fake_how how)
{
    struct touch who = { 0 };
    int wrote = 0, rc = spans_touch(&b->spans, &f->order, f->queue, f->op, begin, begin + bytes,
                                    how == WRITES, &who, &wrote);
    if (rc < 0)
        fake_wrong(f, arg, b->at + begin, "cannot be recorded: no memory");
    if (rc > 0)
        out_of_order(f, arg, b->at + begin, how, &who, wrote);
    return rc == 0;
}

void *fake_at(struct fake *f, const char *arg, const void *p, size_t bytes, enum fake_how how)
{
    struct block *b = block_of(f, p);
    if (!p)
        return NULL;
    if (!inside(f, p))
        return fake_wrong(f, arg, p, "is memory of the host"), NULL;
    if (!b || (size_t)((const char *)p - b->at) + bytes > b->bytes)
        return fake_wrong(f, arg, p, "runs over the end of its memory"), NULL;
    if (!b->real)
        return fake_wrong(f, arg, p, "was freed"), NULL;
    const size_t begin = (size_t)((const char *)p - b->at);
    return in_order(f, b, arg, begin, bytes, how) ? b->real + begin : NULL;
}

const void *fake_hosts(struct fake *f, const char *arg, const void *p)
{
    if (p && inside(f, p))
        return fake_wrong(f, arg, p, "is memory of the device"), NULL;
    return p;
}

static void begin_in(struct fake *f, enum dev_queue q, const char *op)
{
    f->op = op;
    f->queue = q;
    fake_order_op(&f->order, q);
}

void fake_begin(struct dev *d, const char *op) { begin_in(of(d), d->queue, op); }

/* ---- deferred ops ---- */
static void drop(struct deferred_list *l, int n)
{
    l->n -= n;
    if (n)
        memmove(l->work, l->work + n, sizeof *l->work * (size_t)l->n);
}

/* Runs queue q's deferred ops up to that number. */
static void run_deferred(struct fake *f, enum dev_queue q, int64_t number)
{
    struct deferred_list *l = &f->deferred[q];
    int n = 0;
    for (; n < l->n && l->work[n].number <= number; n++) {
        if (!f->what[0])
            l->work[n].run(l->work[n].arg);
        free(l->work[n].arg);
    }
    drop(l, n);
}

/* Runs the deferred ops that clock c is ordered behind. */
static void run_behind(struct fake *f, const struct clock *c)
{
    for (int q = 0; q < DEV_QUEUES; q++)
        run_deferred(f, (enum dev_queue)q, c->at[q]);
}

void fake_catch_up(struct dev *d) { run_deferred(of(d), d->queue, INT64_MAX); }

static int defer(struct fake *f, struct deferred_list *l, struct deferred x)
{
    if (l->n == l->cap) {
        int cap = l->cap ? 2 * l->cap : 16;
        struct deferred *more = realloc(l->work, sizeof *more * (size_t)cap);
        if (!more)
            return fake_wrong(f, "its work", x.arg, "cannot be deferred: no memory"), 0;
        l->work = more;
        l->cap = cap;
    }
    l->work[l->n++] = x;
    return 1;
}

void fake_run(struct dev *d, enum dev_queue q, void (*task)(void *), void *arg)
{
    struct fake *f = of(d);
    if (!f->what[0] && q != DEV_COMPUTE &&
        defer(f, &f->deferred[q], (struct deferred){ task, arg, f->order.of[q].at[q] }))
        return;
    if (!f->what[0])
        task(arg);
    free(arg);
}

static int64_t fake_mark(struct dev *d, enum dev_queue q)
{
    struct fake *f = of(d);
    int mark = fake_order_mark(&f->order, q);
    if (!mark)
        fake_wrong(f, "a mark", NULL, "has no memory");
    return mark;
}

/* A deferring queue runs the ops that it waits for early, which no reader can notice. Its own ops stay
 * deferred. */
static void fake_wait(struct dev *d, enum dev_queue q, int64_t mark)
{
    struct fake *f = of(d);
    fake_order_wait(&f->order, q, (int)mark);
    struct clock c = f->order.of[q];
    c.at[q] = 0;
    run_behind(f, &c);
}

static int fake_reached(struct dev *d, int64_t mark)
{
    struct fake *f = of(d);
    for (int q = 0; q < DEV_QUEUES; q++)
        if (f->deferred[q].n && f->deferred[q].work[0].number <= f->order.mark[mark - 1].at[q])
            return 0;
    fake_order_sync_mark(&f->order, (int)mark);
    return 1;
}

static void fake_await(struct dev *d, int64_t mark)
{
    struct fake *f = of(d);
    const struct clock c = f->order.mark[mark - 1];
    run_behind(f, &c);
    fake_order_sync_mark(&f->order, (int)mark);
}

static void fake_sync_queue(struct fake *f, enum dev_queue q)
{
    run_behind(f, &f->order.of[q]);
    fake_order_sync(&f->order, q);
}

static void fake_sync(struct dev *d)
{
    for (int q = 0; q < DEV_QUEUES; q++)
        fake_sync_queue(of(d), (enum dev_queue)q);
}

/* ---- device memory ---- */
static void *fake_alloc(struct dev *d, enum mem_cat cat, size_t bytes)
{
    struct fake *f = of(d);
    if (f->n_blocks == f->cap) {
        int cap = f->cap ? 2 * f->cap : 256;
        struct block *more = realloc(f->block, sizeof *more * (size_t)cap);
        if (!more)
            return NULL;
        f->block = more;
        f->cap = cap;
    }
    size_t span = (bytes + 2 * GAP - 1) / GAP * GAP;
    if ((size_t)(f->base + RANGE - f->next) < span)
        return NULL;
    struct block b = { .at = f->next, .real = f->program->mem_alloc(d->mem, cat, bytes), .bytes = bytes };
    if (!b.real)
        return NULL;
    f->block[f->n_blocks++] = b;
    f->next += span;
    fake_begin(d, "dev_alloc");
    in_order(f, &f->block[f->n_blocks - 1], "its memory", 0, bytes, WRITES);
    return b.at;
}

static void fake_free(struct dev *d, void *p)
{
    struct fake *f = of(d);
    struct block *b = block_of(f, p);
    fake_begin(d, "dev_free");
    if (!inside(f, p) || !b || b->at != p || !b->real) {
        fake_wrong(f, "its argument", p, "is no memory of the device that is in use");
        return;
    }
    in_order(f, b, "its argument", 0, b->bytes, WRITES);
    /* no deferred op may touch it later */
    for (int q = 0; q < DEV_QUEUES; q++)
        if (q == (int)d->queue || f->what[0])
            run_deferred(f, (enum dev_queue)q, INT64_MAX);
    spans_close(&b->spans);
    f->program->mem_free(d->mem, b->real);
    b->real = NULL;
}

static int fake_owns(const struct dev *d, const void *p) { return inside(of(d), p); }

static void fake_read(struct dev *d, void *host, const void *p, size_t bytes)
{
    struct fake *f = of(d);
    fake_begin(d, "dev_read");
    const void *from = fake_at(f, "source", p, bytes, READS);
    fake_sync_queue(f, d->queue);
    if (from && bytes && fake_hosts(f, "target", host) && !f->what[0])
        memcpy(host, from, bytes);
}

static void fake_write(struct dev *d, void *p, const void *host, size_t bytes)
{
    struct fake *f = of(d);
    fake_begin(d, "dev_write");
    void *to = fake_at(f, "target", p, bytes, WRITES);
    fake_catch_up(d);
    if (to && bytes && fake_hosts(f, "source", host))
        memcpy(to, host, bytes);
}

static void fake_copy(struct dev *d, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                      size_t bytes, int64_t rows)
{
    struct fake *f = of(d);
    fake_begin(d, "dev_copy");
    if (!bytes || rows < 1)
        return;
    const char *src = fake_at(f, "source", from, (size_t)(rows - 1) * from_pitch + bytes, READS);
    char *dst = fake_at(f, "target", to, (size_t)(rows - 1) * to_pitch + bytes, WRITES);
    fake_catch_up(d);
    for (int64_t i = 0; dst && src && i < rows; i++)
        memcpy(dst + (size_t)i * to_pitch, src + (size_t)i * from_pitch, bytes);
}

static void fake_fill(struct dev *d, void *p, int byte, size_t bytes)
{
    struct fake *f = of(d);
    fake_begin(d, "dev_fill");
    void *to = fake_at(f, "target", p, bytes, WRITES);
    fake_catch_up(d);
    if (to && bytes)
        memset(to, byte, bytes);
}

/* ---- pinned host memory ---- */
static struct pinned *pin_of(struct fake *f, const char *p, size_t bytes)
{
    for (int i = 0; i < FAKE_PINS; i++)
        if (f->pinned[i].p && p >= f->pinned[i].p && p + bytes <= f->pinned[i].p + f->pinned[i].bytes)
            return &f->pinned[i];
    return NULL;
}

static void *fake_pin(struct dev *d, size_t bytes)
{
    struct fake *f = of(d);
    for (struct pinned *x = f->pinned; x < f->pinned + FAKE_PINS; x++)
        if (!x->p) {
            x->bytes = bytes;
            x->p = f->program->mem_alloc(d->mem, MEM_WORK, bytes);
            return x->p;
        }
    return NULL;
}

struct sent {
    char *to;
    const char *from;
    size_t bytes;
};
static void run_sent(void *arg)
{
    const struct sent *s = arg;
    memcpy(s->to, s->from, s->bytes);
}

static void fake_unpin(struct dev *d, void *p, size_t bytes)
{
    struct fake *f = of(d);
    struct pinned *x = pin_of(f, p, bytes);
    f->op = "dev_unpin";
    if (!x || x->p != p || x->bytes != bytes) {
        fake_wrong(f, "its argument", p, "is not what was pinned");
        return;
    }
    for (int q = 0; q < DEV_QUEUES; q++)
        for (int i = 0; i < f->deferred[q].n; i++)
            if (f->deferred[q].work[i].run == run_sent &&
                pin_of(f, ((struct sent *)f->deferred[q].work[i].arg)->from, 0) == x)
                fake_wrong(f, "its argument", p, "is still read by the device");
    if (f->what[0])
        for (int q = 0; q < DEV_QUEUES; q++)
            run_deferred(f, (enum dev_queue)q, INT64_MAX);
    f->program->mem_free(d->mem, p);
    x->p = NULL;
}

static void fake_send(struct dev *d, void *p, const void *pinned, size_t bytes)
{
    struct fake *f = of(d);
    fake_begin(d, "dev_send");
    struct sent *s = malloc(sizeof *s);
    char *to = fake_at(f, "target", p, bytes, WRITES);
    if (!pin_of(f, pinned, bytes))
        fake_wrong(f, "source", pinned, "is not pinned");
    if (!s)
        fake_wrong(f, "source", pinned, "cannot be recorded: no memory");
    if (s)
        *s = (struct sent){ to, pinned, bytes };
    fake_run(d, d->queue, run_sent, s);
}

static size_t fake_free_bytes(struct dev *d)
{
    const char *bytes = getenv("SHARDLINE_FAKE_ROOM");
    (void)d;
    return bytes ? (size_t)atoll(bytes) : (size_t)1 << 34;
}

static int fake_check(struct dev *d, struct err *e)
{
    struct fake *f = of(d);
    const int code = f->code ? f->code : ERR_INTERNAL;
    char text[sizeof f->what];
    if (!f->what[0])
        return 0;

    memcpy(text, f->what, sizeof text);
    const char *prefix = f->code ? "" : "fake device: ";
    f->what[0] = 0;
    f->code = 0;
    return f->program->err_set(e, code, "%s%s", prefix, text);
}

static void close_queue(struct deferred_list *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->work[i].arg);
    free(l->work);
}

static void fake_close(struct dev *d)
{
    struct fake *f = of(d);
    for (int i = 0; i < f->n_blocks; i++) {
        f->program->mem_free(d->mem, f->block[i].real);
        spans_close(&f->block[i].spans);
    }
    for (int i = 0; i < FAKE_PINS; i++)
        f->program->mem_free(d->mem, f->pinned[i].p);
    for (int q = 0; q < DEV_QUEUES; q++)
        close_queue(&f->deferred[q]);
    fake_order_close(&f->order);
    free(f->block);
    munmap(f->base, RANGE);
    free(f);
}

/* ---- streams ---- */
static void stream_begin(struct fake_stream *s, const char *op) { begin_in(of(s->d), s->queue, op); }

static void *stream_touch(struct fake_stream *s, const char *arg, const void *p, size_t bytes, int writes)
{
    return fake_at(of(s->d), arg, p, bytes, writes ? WRITES : READS);
}

static void stream_run(struct fake_stream *s, void (*task)(void *), void *arg)
{
    fake_run(s->d, s->queue, task, arg);
}

static int stream_idle(struct fake_stream *s)
{
    struct fake *f = of(s->d);
    struct err e = { 0 };
    int rc = s->d->idle.look ? s->d->idle.look(s->d->idle.arg, &e) : 0;
    if (rc < 0 && !f->what[0]) {
        f->code = e.code;
        snprintf(f->what, sizeof f->what, "%.255s", e.text);
    }
    return rc < 0;
}

static void *fake_stream(struct dev *d, enum dev_queue q) { return &of(d)->stream[q]; }

static const char *fake_identity(const struct dev *d) { return of(d)->identity; }

/* SHARDLINE_FAKE_GPUS: GPUs of this machine; without it every process has one of its own. */
static void name_gpu(struct fake *f)
{
    const char *n = getenv("SHARDLINE_FAKE_GPUS"), *rank = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    if (n && atoi(n) > 0)
        snprintf(f->identity, sizeof f->identity, "fake-%d", rank ? atoi(rank) % atoi(n) : 0);
    else
        snprintf(f->identity, sizeof f->identity, "fake-process-%d", (int)getpid());
}

static const struct dev_memory fake_memory = {
    .alloc = fake_alloc,
    .free = fake_free,
    .owns = fake_owns,
    .read = fake_read,
    .write = fake_write,
    .copy = fake_copy,
    .fill = fake_fill,
    .sync = fake_sync,
    .free_bytes = fake_free_bytes,
    .check = fake_check,
    .close = fake_close,
    .mark = fake_mark,
    .wait = fake_wait,
    .reached = fake_reached,
    .stream = fake_stream,
    .identity = fake_identity,
    .await = fake_await,
    .pin = fake_pin,
    .unpin = fake_unpin,
    .send = fake_send,
};

__attribute__((visibility("default"))) int dev_library_open(struct dev *d, const struct dev_program *program,
                                                            struct err *e)
{
    struct fake *f = calloc(1, sizeof *f);
    void *base = f ? mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                   : MAP_FAILED;
    if (base == MAP_FAILED) {
        free(f);
        return program->err_set(e, ERR_MEMORY, "no addresses for the fake device");
    }

    f->program = program;
    f->base = f->next = base;
    f->op = "";
    for (int q = 0; q < DEV_QUEUES; q++)
        f->stream[q] = (struct fake_stream){ .d = d,
                                             .queue = (enum dev_queue)q,
                                             .begin = stream_begin,
                                             .touch = stream_touch,
                                             .run = stream_run,
                                             .idle = stream_idle };
    name_gpu(f);

    d->kind = "fake";
    d->back = f;
    d->memory = &fake_memory;
    d->ops = &fake_ops;
    d->isa = d->host->isa;
    return 0;
}
