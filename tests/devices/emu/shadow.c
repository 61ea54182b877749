/* shadow.c - which thread accessed shared memory since the last barrier, and whether other memory may be
 * accessed at all. The compiler calls for every access of kernels' text (-fsanitize=thread puts the calls
 * in; its library is not linked, these functions are what it would bring).
 *
 * A pair of bytes has two records: the last write, and the last read, which becomes "several" when threads
 * differ. Threads of a block are parted by __syncthreads, those of a warp also by __syncwarp. */
#include "tests/devices/emu/emu.h"

/* lanes, warps: several of them */
struct record {
    uint32_t block, warp;
    int16_t thread;
    int8_t lanes, warps;
};
struct cell {
    struct record write, read;
};
static struct cell dynamic_cell[EMU_CLUSTER_MAX][EMU_SHARED_MAX / 2], static_cell[EMU_SHARED_STATIC_MAX / 2];

/* What is declared __shared__, by the linker (words.h puts it there); not there where nothing is. */
extern char __start_emu_static[] __attribute__((weak)), __stop_emu_static[] __attribute__((weak));
extern char __executable_start[], _end[];

static struct cell *cell_of(const char *p)
{
    size_t bytes;
    const char *shared = emu_shared_at(&bytes);
    if (shared && p >= shared && p < shared + bytes)
        return &dynamic_cell[emu_here.rank][(p - shared) / 2];
    if (__start_emu_static && p >= __start_emu_static && p < __stop_emu_static &&
        p - __start_emu_static < EMU_SHARED_STATIC_MAX)
        return &static_cell[(p - __start_emu_static) / 2];
    return 0;
}

/* May the running thread, at this time, come after r without a barrier between? */
static int parted(const struct record *r, struct emu_clock now, int me)
{
    if (!r->block || r->block != now.block || (r->thread == me && !r->lanes && !r->warps))
        return 1;
    return !r->warps && r->thread / 32 == me / 32 && r->warp != now.warp;
}

static void race(const struct cell *c, const char *p, int is_write, const struct record *r)
{
    size_t bytes;
    const char *shared = emu_shared_at(&bytes);
    const long at = p >= shared && p < shared + bytes ? p - shared : p - __start_emu_static;
    emu_wrong("%s shared memory at byte %ld that thread %d %s before, with no barrier between",
              is_write ? "writes" : "reads", at, r->thread, r == &c->write ? "wrote" : "read");
}

static void remember(struct record *r, struct emu_clock now, int me)
{
    if (r->block == now.block && r->thread != me) {
        r->warps |= r->thread / 32 != me / 32;
        r->lanes = r->warp == now.warp || r->warps ? 1 : 0;
    } else if (r->block != now.block) {
        r->lanes = r->warps = 0;
    }
    r->block = now.block;
    r->warp = now.warp;
    r->thread = (int16_t)me;
}

static void touch_shared(struct cell *c, const char *p, int is_write)
{
    const struct emu_clock now = emu_clock();
    const int me = emu_here.linear;
    if (!parted(&c->write, now, me))
        race(c, p, is_write, &c->write);
    if (is_write && !parted(&c->read, now, me))
        race(c, p, is_write, &c->read);
    if (is_write) {
        c->write = (struct record){ now.block, now.warp, (int16_t)me, 0, 0 };
        c->read.block = 0;
    } else {
        remember(&c->read, now, me);
    }
}

void emu_touch(const void *at, size_t bytes, int is_write)
{
    const char *p = (const char *)at;
    if (emu_here.linear < 0 || emu_on_stack(p))
        return;
    struct cell *c = cell_of(p);
    if (c) {
        size_t n;
        const char *shared = emu_shared_at(&n);
        for (size_t i = 0; i < bytes; i += 2)
            touch_shared(cell_of(p + i) ? cell_of(p + i) : c, p + i, is_write);
        if (shared && p >= shared && p + bytes <= shared + n)
            emu_touch_async((size_t)(p - shared), is_write);
        return;
    }
    if (emu_owns(p, bytes) || (!is_write && emu_is_param(p)) || (p >= __executable_start && p < _end))
        return;
    emu_wrong("%s %zu bytes at %p, which is no memory of the device, or beyond its end",
              is_write ? "writes" : "reads", bytes, at);
}

/* ---- what -fsanitize=thread calls ---- */
#if !defined(__SANITIZE_ADDRESS__)
static void touch_aligned(void *p, size_t bytes, int is_write)
{
    if (emu_here.linear >= 0 && (uintptr_t)p & (bytes - 1) && !emu_on_stack(p))
        emu_wrong("%s %zu bytes at %p, which is no multiple of that", is_write ? "writes" : "reads", bytes,
                  p);
    emu_touch(p, bytes, is_write);
}
#define HOOK(name, bytes, is_write, touch) \
    void __tsan_##name(void *p); \
    void __tsan_##name(void *p) { touch(p, bytes, is_write); } \
    void __tsan_##name(void *p)
#define HOOKS(kind, bytes, touch) \
    HOOK(kind##read##bytes, bytes, 0, touch); \
    HOOK(kind##write##bytes, bytes, 1, touch)
HOOKS(, 1, touch_aligned);
HOOKS(, 2, touch_aligned);
HOOKS(, 4, touch_aligned);
HOOKS(, 8, touch_aligned);
HOOKS(, 16, touch_aligned);
HOOKS(volatile_, 1, touch_aligned);
HOOKS(volatile_, 2, touch_aligned);
HOOKS(volatile_, 4, touch_aligned);
HOOKS(volatile_, 8, touch_aligned);
HOOKS(unaligned_, 2, emu_touch);
HOOKS(unaligned_, 4, emu_touch);
HOOKS(unaligned_, 8, emu_touch);
HOOKS(unaligned_, 16, emu_touch);
void __tsan_read_range(void *p, size_t bytes);
void __tsan_read_range(void *p, size_t bytes) { emu_touch(p, bytes, 0); }
void __tsan_write_range(void *p, size_t bytes);
void __tsan_write_range(void *p, size_t bytes) { emu_touch(p, bytes, 1); }
void __tsan_init(void);
void __tsan_init(void) {}
void __tsan_func_entry(void *pc);
void __tsan_func_entry(void *pc) { (void)pc; }
void __tsan_func_exit(void);
void __tsan_func_exit(void) {}
#endif
