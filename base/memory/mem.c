/* mem.c - see base/mem.h. Every allocation carries a header in front of it, so that mem_free finds size and
 * category.
 *
 * small:   [ header 64 | data … ]                              one aligned_alloc
 * large:   [ … header 64 | data, 2 MiB aligned … ]             one mapping, trimmed to a page in front and
 *          whole pages behind:
 *                                                              zero costs nothing, huge pages are asked for
 *                                                              */
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/test_hooks.h"

#define ALIGN 64u
#define HUGE ((size_t)2 << 20)
#define PAGE ((size_t)4096)
#define TAIL_MOST 16            /* a body may grow by one part in so many, to end with a whole huge page */
#define LIMIT ((size_t)1 << 60) /* no sum of sizes below can wrap */

struct header {
    size_t bytes;
    enum mem_cat cat;
    void *base;        /* the allocation itself … */
    size_t base_bytes; /* … and its size when it was mapped, 0 when it is freed with free */
};
_Static_assert(sizeof(struct header) <= ALIGN, "the header fits in front of the data");

const char *mem_cat_name(enum mem_cat c)
{
    static const char *const name[MEM_CATS] = {
#define X(name, text) text,
        MEM_LIST(X)
#undef X
    };
    return name[c];
}

static void raise_to(_Atomic int64_t *peak, int64_t now)
{
    int64_t seen = atomic_load_explicit(peak, memory_order_relaxed);
    while (now > seen && !atomic_compare_exchange_weak(peak, &seen, now))
        ;
}

void mem_count(struct mem *m, enum mem_cat c, int64_t bytes)
{
    if (!m)
        return;
    raise_to(&m->peak[c], atomic_fetch_add(&m->now[c], bytes) + bytes);
    raise_to(&m->total_peak, atomic_fetch_add(&m->total_now, bytes) + bytes);
}

int mem_alloc_fault(struct mem *m)
{
    if (hook_fault(HOOK_MALLOC))
        return 1;
    if (!m || atomic_load_explicit(&m->fail_after, memory_order_relaxed) <= 0)
        return 0;
    return atomic_fetch_sub(&m->fail_after, 1) == 1;
}

static void *take_small(size_t bytes, struct header *h)
{
    char *base = aligned_alloc(ALIGN, ALIGN + mem_round_up(bytes, ALIGN));
    if (!base)
        return NULL;
    h->base = base;
    return memset(base + ALIGN, 0, bytes);
}

#ifdef __SANITIZE_ADDRESS__
/* From the heap, so that the sanitizer sees leaks and the byte behind the end. */
static void *take_large(size_t bytes, struct header *h)
{
    if (posix_memalign(&h->base, HUGE, HUGE + bytes) != 0)
        return NULL;
    return memset((char *)h->base + HUGE, 0, bytes);
}
#else
/* Bytes that are mapped for `bytes`. Behind the last whole huge page memory lies on small pages, which
 * threads read at half the speed. */
static size_t body_bytes(size_t bytes)
{
    const size_t whole = mem_round_up(bytes, HUGE);
    return whole - bytes <= bytes / TAIL_MOST ? whole : mem_round_up(bytes, PAGE);
}

static void *take_large(size_t bytes, struct header *h)
{
    size_t body = body_bytes(bytes), all = PAGE + HUGE + body;
    char *map = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    char *p = (char *)mem_round_up((uintptr_t)map + PAGE, HUGE);
    char *keep = p - PAGE;
    if (keep > map)
        munmap(map, (size_t)(keep - map));
    if (map + all > p + body)
        munmap(p + body, (size_t)(map + all - (p + body)));
    madvise(p, body, MADV_HUGEPAGE); /* may be refused: then the memory is only slower */
    h->base = keep;
    h->base_bytes = PAGE + body;
    return p;
}
#endif

void *mem_alloc(struct mem *m, enum mem_cat c, size_t bytes)
{
    struct header h = { .bytes = bytes, .cat = c };
    if (bytes > LIMIT || mem_alloc_fault(m))
        return NULL;
    char *p = bytes >= HUGE ? take_large(bytes, &h) : take_small(bytes, &h);
    if (!p)
        return NULL;
    memcpy(p - ALIGN, &h, sizeof h);
    mem_count(m, c, (int64_t)bytes);
    return p;
}

void mem_free(struct mem *m, void *p)
{
    struct header h;
    if (!p)
        return;
    memcpy(&h, (char *)p - ALIGN, sizeof h);
    mem_count(m, h.cat, -(int64_t)h.bytes);
    if (h.base_bytes)
        munmap(h.base, h.base_bytes);
    else
        free(h.base);
}

void *arena_take(struct arena *a, size_t bytes)
{
    size_t begin = a->used;
    if (bytes > SIZE_MAX / 4 || a->used > SIZE_MAX / 4)
        a->used = SIZE_MAX / 4; /* stays there: no allocation succeeds, none is too small */
    else
        a->used += mem_round_up(bytes, ALIGN);
    return a->base && a->used <= a->size ? a->base + begin : NULL;
}
