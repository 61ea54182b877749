/* block.c - a block's threads as fibers: each has a stack, runs until it waits, and is switched to when what
 * it waits for has come. */
#include "tests/devices/emu/emu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STACK_BYTES ((size_t)256 << 10)

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define FRESH(stack) __asan_unpoison_memory_region(stack, STACK_BYTES)
#define LEAVING(keep, stack, bytes) __sanitizer_start_switch_fiber(keep, stack, bytes)
#define ARRIVED(keep, stack, bytes) __sanitizer_finish_switch_fiber(keep, stack, bytes)
#else
#define FRESH(stack) (void)(stack)
#define LEAVING(keep, stack, bytes) (void)(keep)
#define ARRIVED(keep, stack, bytes) (void)(keep)
#endif

/* ---- switching ---- */
#if defined(__x86_64__)
struct place {
    void *sp;
};
/* Registers that a call keeps are on the stack that is left; the other stack's are taken from it. */
void emu_switch(struct place *from, const struct place *to);
__asm__(
    ".text\n.p2align 4\n.type emu_switch,@function\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq (%rsi), %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n.size emu_switch,.-emu_switch\n");

static void place_begin(struct place *p, char *stack, void (*fn)(void))
{
    void **sp = (void **)(void *)(stack + STACK_BYTES) - 8;
    memset(sp, 0, 8 * sizeof *sp);
    sp[6] = (void *)(uintptr_t)fn; /* behind six registers; the stack is then as after a call */
    p->sp = sp;
}
#else
#include <ucontext.h>
struct place {
    ucontext_t at;
};
static void emu_switch(struct place *from, struct place *to) { swapcontext(&from->at, &to->at); }
static void place_begin(struct place *p, char *stack, void (*fn)(void))
{
    getcontext(&p->at);
    p->at.uc_stack.ss_sp = stack;
    p->at.uc_stack.ss_size = STACK_BYTES;
    makecontext(&p->at, fn, 0);
}
#endif

/* ---- state ---- */
enum state { RUNS, AT_BARRIER, AT_MEETING, AT_WARP, AT_EVENT, ENDED };
/* ready, arg, what: AT_EVENT */
struct fiber {
    struct place place;
    char *stack;
    enum state state;
    struct emu_lane lane;
    const char *file;
    int line;
    void *asan;
    int (*ready)(void *);
    void *arg;
    const char *what;
};
/* waiting: lanes that are AT_WARP */
struct warp {
    unsigned waiting;
    uint32_t clock;
};

struct emu_here emu_here = { .linear = -1 };
static struct {
    struct fiber *fiber; /* [EMU_THREADS_MAX], stacks kept */
    struct warp warp[EMU_THREADS_MAX / 32];
    struct place main;
    void *main_asan;
    const void *main_stack;
    size_t main_stack_bytes;
    /* n: threads of a block, all: of its cluster; stop: a fault in this launch */
    int n, all, at, n_ended, n_met, stop;
    struct {
        int n_barrier, n_ended;
        uint32_t clock;
    } of[EMU_CLUSTER_MAX];
    unsigned first;           /* x of the cluster's first block */
    uint32_t clock, meetings; /* clock: the newest of any block */
    char *shared;             /* a block's behind the other's */
    size_t shared_bytes, apart, arg_bytes;
    void (*call)(void *arg);
    void *arg;
    char fault[512];
} block;

const char *emu_fault(void) { return block.fault; }
void emu_fault_clear(void) { block.fault[0] = 0; }
char *emu_shared_at(size_t *bytes)
{
    *bytes = block.shared_bytes;
    return block.shared ? block.shared + block.apart * (size_t)emu_here.rank : NULL;
}
void *emu_shared(void)
{
    size_t bytes;
    return emu_shared_at(&bytes);
}
int emu_rank_of(int linear) { return linear / block.n; }
void *emu_at_rank(void *p, int rank)
{
    if (rank < 0 || rank >= block.all / block.n || block.of[rank].n_ended == block.n)
        return NULL;
    return (char *)p + (rank - emu_here.rank) * (ptrdiff_t)block.apart;
}
struct emu_clock emu_clock(void)
{
    struct emu_clock c = { block.of[emu_here.rank].clock, block.warp[block.at / 32].clock, block.meetings };
    return c;
}
int emu_on_stack(const void *p)
{
    const char *stack = block.fiber[block.at].stack;
    return (const char *)p >= stack && (const char *)p < stack + STACK_BYTES;
}
int emu_is_param(const void *p)
{
    return (const char *)p >= (const char *)block.arg &&
           (const char *)p < (const char *)block.arg + block.arg_bytes;
}

/* ---- fibers ---- */
static void leave(int for_ever)
{
    struct fiber *f = &block.fiber[block.at];
    LEAVING(for_ever ? NULL : &f->asan, block.main_stack, block.main_stack_bytes);
    emu_switch(&f->place, &block.main);
    ARRIVED(f->asan, &block.main_stack, &block.main_stack_bytes);
}

static void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *fmt, ...)
{
    va_list ap;
    if (block.fault[0])
        return;
    va_start(ap, fmt);
    vsnprintf(block.fault, sizeof block.fault, fmt, ap);
    va_end(ap);
}

void emu_wrong(const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    note("block (%u,%u,%u) thread %d: %s", emu_here.block.x, emu_here.block.y, emu_here.block.z,
         block.at % block.n, text);
    block.stop = 1;
    leave(1);
}

static void fiber_main(void)
{
    ARRIVED(NULL, &block.main_stack, &block.main_stack_bytes);
    block.call(block.arg);
    block.fiber[block.at].state = ENDED;
    block.n_ended++;
    block.of[emu_here.rank].n_ended++;
    leave(1);
    abort(); /* no fiber is resumed here */
}

static void go_to(int t)
{
    struct fiber *f = &block.fiber[t];
    const unsigned in = (unsigned)(t % block.n);
    block.at = t;
    emu_here.linear = t;
    emu_here.lane = t % 32;
    emu_here.rank = t / block.n;
    emu_here.block.x = block.first + (unsigned)emu_here.rank;
    emu_here.thread.x = in % emu_here.threads.x;
    emu_here.thread.y = in / emu_here.threads.x % emu_here.threads.y;
    emu_here.thread.z = in / (emu_here.threads.x * emu_here.threads.y);
    LEAVING(&block.main_asan, f->stack, STACK_BYTES);
    emu_switch(&block.main, &f->place);
    ARRIVED(block.main_asan, NULL, NULL);
    emu_here.linear = -1;
}

static void wait_as(enum state s, const char *file, int line)
{
    struct fiber *f = &block.fiber[block.at];
    f->state = s;
    f->file = file;
    f->line = line;
    leave(0);
}

void emu_wait_for(int (*ready)(void *), void *arg, const char *what, const char *file, int line)
{
    struct fiber *f = &block.fiber[block.at];
    f->ready = ready;
    f->arg = arg;
    f->what = what;
    if (!ready(arg))
        wait_as(AT_EVENT, file, line);
}

static void wake(int first, int n, enum state those)
{
    block.clock++;
    for (int t = first; t < first + n; t++) {
        block.of[t / block.n].clock = block.clock;
        if (block.fiber[t].state == those)
            block.fiber[t].state = RUNS;
    }
}

void emu_barrier(const char *file, int line)
{
    if (++block.of[emu_here.rank].n_barrier < block.n) {
        wait_as(AT_BARRIER, file, line);
        return;
    }
    block.of[emu_here.rank].n_barrier = 0;
    wake(emu_here.rank * block.n, block.n, AT_BARRIER);
}

void emu_cluster_sync(const char *file, int line)
{
    if (++block.n_met < block.all) {
        wait_as(AT_MEETING, file, line);
        return;
    }
    block.n_met = 0;
    block.meetings++;
    wake(0, block.all, AT_MEETING);
}

/* ---- operations of a warp ---- */
static const char *const kind_name[] = { "__syncwarp",       "__shfl_sync",     "__shfl_up_sync",
                                         "__shfl_down_sync", "__shfl_xor_sync", "a vote",
                                         "ldmatrix",         "ldmatrix.trans",  "mma" };

/* Mine and the lanes I wait for: are they at the same operation? */
static void check_same(const struct emu_lane *mine, const struct emu_lane *other, int lane)
{
    /* .aligned: the very same instruction */
    const int registers = mine->kind >= EMU_LDMATRIX;
    if (mine->kind == other->kind && mine->mask == other->mask && (!registers || mine->line == other->line))
        return;
    emu_wrong("it meets %s of lanes %08x at %s:%d, lane %d of its warp %s of lanes %08x at %s:%d",
              kind_name[mine->kind], mine->mask, mine->file, mine->line, lane, kind_name[other->kind],
              other->mask, other->file, other->line);
}

static void warp_go(struct fiber *first, struct warp *w, unsigned mask)
{
    struct emu_lane *lane[32] = { NULL };
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1)
            lane[i] = &first[i].lane;
    emu_warp_run(lane, mask);
    if (lane[block.at % 32]->kind == EMU_SYNC)
        w->clock++;
    w->waiting &= ~mask;
    for (int i = 0; i < 32; i++)
        if (lane[i])
            first[i].state = RUNS;
}

uint64_t emu_warp_op(enum emu_kind kind, unsigned mask, uint64_t v, int other, const char *file, int line)
{
    struct fiber *f = &block.fiber[block.at], *first = &block.fiber[block.at / 32 * 32];
    struct warp *w = &block.warp[block.at / 32];
    const unsigned me = 1u << (block.at % 32);
    f->lane = (struct emu_lane){ kind, mask, v, other, file, line, 0 };
    if (!(mask & me))
        emu_wrong("it is not among the lanes %08x of its own %s at %s:%d", mask, kind_name[kind], file, line);
    w->waiting |= me;
    for (int i = 0; i < 32; i++)
        if ((w->waiting & mask) >> i & 1)
            check_same(&f->lane, &first[i].lane, i);
    if ((w->waiting & mask) == mask)
        warp_go(first, w, mask);
    else
        wait_as(AT_WARP, file, line);
    return f->lane.result;
}

/* ---- blocks ---- */
static void describe(char *to, size_t size, int t)
{
    const struct fiber *f = &block.fiber[t];
    if (f->state == ENDED)
        snprintf(to, size, "thread %d has ended", t);
    else
        snprintf(to, size, "thread %d waits in %s at %s:%d", t,
                 f->state == AT_BARRIER   ? "__syncthreads"
                 : f->state == AT_MEETING ? "a cluster's barrier"
                 : f->state == AT_EVENT   ? f->what
                                          : kind_name[f->lane.kind],
                 f->file, f->line);
}

/* Nobody can go on: one that waits, and the first that is somewhere else. */
static void note_stuck(void)
{
    char one[200], two[200];
    int a = 0, b;
    while (block.fiber[a].state == ENDED)
        a++;
    for (b = 0; b < block.all - 1; b++)
        if (block.fiber[b].state != block.fiber[a].state || block.fiber[b].line != block.fiber[a].line)
            break;
    describe(one, sizeof one, a);
    describe(two, sizeof two, b);
    note("block (%u,%u,%u): %s for ever, %s", emu_here.block.x, emu_here.block.y, emu_here.block.z, one, two);
}

static void run_cluster(int backwards)
{
    block.n_ended = block.n_met = 0;
    memset(block.of, 0, sizeof block.of);
    memset(block.warp, 0, sizeof block.warp);
    wake(0, block.all, ENDED); /* a time of its own */
    emu_copies_forget(block.all);
    emu_async_begin();
    for (int t = 0; t < block.all; t++) {
        block.fiber[t].state = RUNS;
        FRESH(block.fiber[t].stack);
        place_begin(&block.fiber[t].place, block.fiber[t].stack, fiber_main);
    }
    if (block.shared_bytes)
        memset(block.shared, 0xff, block.apart * (size_t)(block.all / block.n));
    while (block.n_ended < block.all) {
        int ran = 0;
        for (int i = 0; i < block.all; i++) {
            const int t = backwards ? block.all - 1 - i : i;
            struct fiber *f = &block.fiber[t];
            if (f->state == AT_EVENT && f->ready(f->arg))
                f->state = RUNS;
            if (f->state != RUNS)
                continue;
            go_to(t);
            ran = 1;
            if (block.stop)
                return;
        }
        if (!ran && !emu_run_deferred(backwards) && !emu_give_up()) {
            note_stuck();
            block.stop = 1;
            return;
        }
    }
    if (emu_async_left()) {
        note("block (%u,%u,%u): %s", emu_here.block.x, emu_here.block.y, emu_here.block.z, emu_async_left());
        block.stop = 1;
    }
}

static int make_fibers(int n)
{
    if (!block.fiber && !(block.fiber = calloc(EMU_THREADS_MAX, sizeof *block.fiber)))
        return 0;
    for (int t = 0; t < n; t++) {
        if (block.fiber[t].stack)
            continue;
        char *p = mmap(NULL, STACK_BYTES + 4096, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            return 0;
        mprotect(p, 4096, PROT_NONE); /* below it: an overflow ends here */
        block.fiber[t].stack = p + 4096;
    }
    return 1;
}

size_t emu_shared_limit(void)
{
    const char *kib = getenv("SHARDLINE_EMU_SHARED");
    const size_t limit = kib ? (size_t)atoi(kib) * 1024 : 99 * 1024;
    return limit < EMU_SHARED_MAX ? limit : EMU_SHARED_MAX;
}

struct emu_calls emu_calls;
int emu_launch(struct emu_dim blocks, unsigned cluster, struct emu_dim threads, size_t shared,
               void (*call)(void *arg), void *arg, size_t arg_bytes)
{
    const size_t n = (size_t)threads.x * threads.y * threads.z;
    block.stop = 0;
    emu_calls.launches++;
    if (block.fault[0])
        return 0;
    if (n < 1 || n > EMU_THREADS_MAX || shared > emu_shared_limit() || !blocks.x || !blocks.y || !blocks.z ||
        blocks.y > 65535 || blocks.z > 65535 || cluster < 1 || cluster > EMU_CLUSTER_MAX ||
        blocks.x % cluster || (cluster > 1 && (n % 32 || n * cluster > EMU_THREADS_MAX))) {
        note("a launch of (%u,%u,%u) blocks, %u a cluster, of %zu threads with %zu bytes of shared memory: a "
             "GPU takes 1 to %d and up to %zu",
             blocks.x, blocks.y, blocks.z, cluster, n, shared, EMU_THREADS_MAX, emu_shared_limit());
        return 0;
    }
    block.apart = (shared + 1023) / 1024 * 1024;
    char *memory = shared ? aligned_alloc(1024, block.apart * cluster) : NULL;
    if ((shared && !memory) || !make_fibers((int)(n * cluster))) {
        note("no memory for a block's threads");
        free(memory);
        return 0;
    }
    block.n = (int)n;
    block.all = (int)(n * cluster);
    block.shared = memory;
    block.shared_bytes = shared;
    block.call = call;
    block.arg = arg;
    block.arg_bytes = arg_bytes;
    emu_async_launch();
    emu_here.threads = threads;
    emu_here.blocks = blocks;
    const size_t all = (size_t)blocks.x * blocks.y * blocks.z;
    for (size_t i = 0; i < all && !block.stop; i += cluster) {
        block.first = (unsigned)(i % blocks.x);
        emu_here.rank = 0;
        emu_here.block = (struct emu_dim){ (unsigned)(i % blocks.x), (unsigned)(i / blocks.x % blocks.y),
                                           (unsigned)(i / blocks.x / blocks.y) };
        run_cluster(i / cluster % 2);
    }
    free(memory);
    return !block.stop;
}
