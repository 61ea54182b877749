/* model_memory_test.c - what a step asks of the machine: no allocation once it runs, no call of the kernel
 * by the thread that waits for nobody, and an error when there is no memory for scratch.
 *
 * The C library's functions are replaced in this program by ones that count while `counting` is set. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "tests/unit/model/model_rig.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#define COUNTED 0 /* the sanitizer has replaced them already */
#else
#define COUNTED 1
static _Atomic int counting, n_allocations;
static _Thread_local int n_calls; /* of this thread: system calls of the pool, locks */

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
static void allocation(void) { atomic_fetch_add(&n_allocations, atomic_load(&counting)); }
void *malloc(size_t n)
{
    allocation();
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    allocation();
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    allocation();
    return __libc_realloc(p, n);
}
void *aligned_alloc(size_t align, size_t n)
{
    allocation();
    return __libc_memalign(align, n);
}
/* The function that this program's own one hides. */
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    allocation();
    return REAL(mmap)(at, n, prot, flags, fd, offset);
}
long syscall(long number, ...)
{
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    n_calls++;
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
int sched_yield(void)
{
    n_calls++;
    return REAL(sched_yield)();
}
int pthread_mutex_lock(pthread_mutex_t *m)
{
    n_calls++;
    return REAL(pthread_mutex_lock)(m);
}
#endif

/* ---- no memory for scratch ---- */
TEST(a_step_without_memory_says_so_wherever_it_is_missing)
{
    int n_failed = 0, reached = 1;
    for (int nth = 1; reached && nth < 100; nth++) {
        struct model_config c = rig_config(0, 0.1);
        struct err e = { 0 };
        struct rig r;
        rig_open(&r, &c, nth % 2 ? DT_BF16 : DT_F32, 2, 70);
        CHECK_INT(zero_begin_rows(r.z, 0, 0, &e), 0);
        r.mem.fail_after = nth;
        int rc = model_train_forward(zero_weights(r.z), r.work, r.ids, r.targets, r.logprobs, &e);
        if (rc >= 0)
            rc = model_train_backward(zero_weights(r.z), r.work, r.ids, r.targets, r.scale, zero_grads(r.z),
                                      &e);
        reached = r.mem.fail_after <= 0;
        r.mem.fail_after = 0;
        CHECK_INT(rc, reached ? -ERR_MEMORY : 0);
        if (reached)
            CHECK_HAS(e.text, "no memory");
        n_failed += reached;
        rig_close(&r);
    }
    CHECK(n_failed > 3 && !reached);
}

/* ---- nothing allocated ---- */
TEST(a_training_step_allocates_nothing_once_it_runs)
{
    struct model_config c = rig_config(0, 0.1);
    struct err e = { 0 };
    struct rig r;
    rig_open(&r, &c, DT_BF16, 2, 70);
    for (int step = 1; COUNTED && step <= 10; step++) {
        rig_forward(&r);
        rig_backward(&r);
        struct adamw h = {
            .lr = 1e-3f, .eps = 1e-8f, .beta1 = 0.9, .beta2 = 0.95, .bias1 = 0.1f, .bias2 = 0.2f, .clip = 1
        };
        CHECK_INT(zero_update(r.z, &h, 0, &e), 0);
#if COUNTED
        if (step == 3)
            counting = 1;
#endif
    }
#if COUNTED
    counting = 0;
    CHECK_INT(n_allocations, 0);
    n_allocations = 0;
#endif
    rig_close(&r);
}

/* ---- a decode step ---- */
/* Steps behind a prompt of 20. With two threads the caller may have to wait for the other one, or to wake
 * it: the machine decides; a step that does neither asks nothing. Returns the calls of the step that made
 * most of them; of several threads: fewest. */
static int calls_of_steps(int threads, int *allocations)
{
    struct model_config c = rig_config(0, 0.1);
    struct rig_decode d;
    int calls = threads > 1 ? 1 << 30 : 0;
    rig_decode_open(&d, &c, DT_BF16, threads);
#if COUNTED
    counting = 1;
#endif
    rig_decode_rows(&d, 0, 20);
    *allocations = 0;
#if COUNTED
    CHECK(atomic_exchange(&n_allocations, 0) > 0); /* the first call takes scratch: the counters count */
    for (int repeat = 0; repeat < (threads > 1 ? 40 : 1); repeat++)
        for (int64_t pos = 20; pos < 120; pos++) {
            counting = pos > 22;
            n_calls = 0;
            rig_decode_rows(&d, pos, 1);
            calls = (n_calls < calls) == (threads > 1) ? n_calls : calls;
        }
    counting = 0;
    *allocations = atomic_exchange(&n_allocations, 0);
#endif
    rig_decode_close(&d);
    return calls;
}

TEST(a_decode_step_asks_nothing_of_the_kernel_and_allocates_nothing)
{
    for (int threads = 1; COUNTED && threads <= 2; threads++) {
        int allocations = -1;
        CHECK_INT(calls_of_steps(threads, &allocations), 0);
        CHECK_INT(allocations, 0);
    }
}
