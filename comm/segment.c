/* segment.c - see segment.h. Free memory of a region is always zero: segment_free clears it (large pieces
 * return to the machine), so segment_alloc clears nothing. */
#define _GNU_SOURCE
#include "comm/segment.h"
#include "base/mem.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL_ALIGN ((size_t)64)
#define HUGE_ALIGN ((size_t)2 << 20)
#define RETURNED ((size_t)1 << 20) /* freed pieces of this size and more return to the machine */
#define PAGE ((size_t)4096)

/* The machine's memory, or the limit of the control group when that is lower. */
static size_t machine_bytes(void)
{
    size_t bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    unsigned long long limit;
    FILE *f = fopen("/sys/fs/cgroup/memory.max", "r");
    if (f && fscanf(f, "%llu", &limit) == 1 && limit < bytes)
        bytes = (size_t)limit;
    if (f)
        fclose(f);
    return mem_round_up(bytes, HUGE_ALIGN);
}

size_t segment_size(size_t head_bytes, int n_ranks, int regions)
{
    return mem_round_up(head_bytes, HUGE_ALIGN) + (regions ? (size_t)n_ranks * machine_bytes() : 0);
}

/* The base lies on a 2 MiB boundary, so that aligned offsets are aligned addresses: the mapping is placed
 * inside of a larger reservation. */
static int map(struct segment *s, size_t bytes, struct err *e)
{
    char *all = mmap(NULL, bytes + HUGE_ALIGN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *p = all == MAP_FAILED ? MAP_FAILED : (char *)mem_round_up((uintptr_t)all, HUGE_ALIGN),
         *end = all + HUGE_ALIGN;
    if (p != MAP_FAILED)
        p = mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, s->fd, 0);
    if (p == MAP_FAILED) {
        err_sys(e, "cannot map the ranks' shared memory, %zu GiB of address space", bytes >> 30);
        segment_close_fd(s);
        return -e->code;
    }
    if (p > all)
        munmap(all, (size_t)(p - all));
    if (end > p)
        munmap(p + bytes, (size_t)(end - p));
    s->base = p;
    s->bytes = bytes;
    s->board = (struct failure_board *)p;
    return 0;
}

int segment_create(struct segment *s, size_t bytes, const char *name, struct err *e)
{
    *s = (struct segment){ .fd = name ? shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)
                                      : memfd_create("shardline", MFD_CLOEXEC) };
    if (s->fd < 0)
        return err_sys(e, "cannot create shared memory");
    if (ftruncate(s->fd, (off_t)bytes) < 0) {
        err_sys(e, "cannot reserve %zu MiB of shared address space (`ulimit -f unlimited` is needed)",
                bytes >> 20);
        segment_close_fd(s);
        return -e->code;
    }
    int rc = map(s, bytes, e);
    if (rc == 0)
        s->board->limit_bytes = (int64_t)machine_bytes();
    return rc;
}

int segment_open_fd(struct segment *s, size_t bytes, int pid, int fd, struct err *e)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    *s = (struct segment){ .fd = open(path, O_RDWR | O_CLOEXEC) };
    if (s->fd < 0)
        return err_sys(e, "cannot open shared memory %s", path);
    return map(s, bytes, e);
}

int segment_open_name(struct segment *s, size_t bytes, const char *name, struct err *e)
{
    *s = (struct segment){ .fd = shm_open(name, O_RDWR | O_CLOEXEC, 0600) };
    if (s->fd < 0)
        return err_sys(e, "cannot open shared memory %s", name);
    return map(s, bytes, e);
}

int segment_take_region(struct segment *s, size_t head_bytes, int rank, struct mem *mem, struct err *e)
{
    s->region_bytes = machine_bytes();
    s->region = mem_round_up(head_bytes, HUGE_ALIGN) + (size_t)rank * s->region_bytes;
    s->mem = mem;
    s->capacity = 64;
    s->extent = malloc((size_t)s->capacity * sizeof *s->extent);
    if (!s->extent || s->region + s->region_bytes > s->bytes)
        return err_set(e, ERR_MEMORY, "no space for a region of %zu bytes in shared memory of %zu",
                       s->region_bytes, s->bytes);
    s->extent[0] = (struct extent){ .off = s->region, .size = s->region_bytes };
    s->n_extents = 1;
    /* may be refused, which costs nothing */
    madvise(s->base + s->region, s->region_bytes, MADV_HUGEPAGE);
    return 0;
}

void segment_close_fd(struct segment *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

void segment_close(struct segment *s)
{
    for (int i = 0; i < s->n_extents; i++)
        if (s->extent[i].used)
            mem_count(s->mem, s->extent[i].cat, -(int64_t)s->extent[i].bytes);
    if (s->base)
        munmap(s->base, s->bytes);
    segment_close_fd(s);
    free(s->extent);
    *s = (struct segment){ .fd = -1 };
}

/* Inserts an extent behind extent i. Returns -1: out of memory. */
static int insert(struct segment *s, int i, struct extent x)
{
    if (s->n_extents == s->capacity) {
        struct extent *p = realloc(s->extent, 2 * (size_t)s->capacity * sizeof *p);
        if (!p)
            return -1;
        s->extent = p;
        s->capacity *= 2;
    }
    memmove(s->extent + i + 2, s->extent + i + 1, (size_t)(s->n_extents - i - 1) * sizeof x);
    s->extent[i + 1] = x;
    s->n_extents++;
    return 0;
}

static void erase(struct segment *s, int i)
{
    memmove(s->extent + i, s->extent + i + 1, (size_t)(s->n_extents - i - 1) * sizeof *s->extent);
    s->n_extents--;
}

/* Splits free extent i so that [off, off + size) of it is an extent of its own; returns its index, or -1. */
static int carve(struct segment *s, int i, size_t off, size_t size)
{
    struct extent x = s->extent[i];
    size_t end = x.off + x.size;
    if (off + size < end) {
        if (insert(s, i, (struct extent){ .off = off + size, .size = end - off - size }) < 0)
            return -1;
        s->extent[i].size = off + size - x.off;
    }
    if (off > x.off) {
        if (insert(s, i, (struct extent){ .off = off, .size = size }) < 0)
            return -1;
        s->extent[i].size = off - x.off;
        i++;
    }
    return i;
}

/* Counts bytes of all ranks together. Returns -1 when they would exceed the machine's memory: the kernel
 * would kill a process then. */
static int count(struct segment *s, int64_t bytes)
{
    if (atomic_fetch_add(&s->board->used_bytes, bytes) + bytes <= s->board->limit_bytes || bytes < 0)
        return 0;
    atomic_fetch_sub(&s->board->used_bytes, bytes);
    return -1;
}

void *segment_alloc(struct segment *s, enum mem_cat cat, size_t bytes)
{
    size_t align = bytes >= HUGE_ALIGN ? HUGE_ALIGN : SMALL_ALIGN;
    if (bytes > s->region_bytes || mem_alloc_fault(s->mem))
        return NULL;
    size_t size = mem_round_up(bytes ? bytes : 1, SMALL_ALIGN);
    if (count(s, (int64_t)size) < 0)
        return NULL;
    for (int i = 0; i < s->n_extents; i++) {
        struct extent *x = &s->extent[i];
        size_t off = mem_round_up(x->off, align);
        if (x->used || off + size > x->off + x->size)
            continue;
        if ((i = carve(s, i, off, size)) < 0)
            break;
        s->extent[i].used = 1;
        s->extent[i].cat = cat;
        s->extent[i].bytes = bytes;
        mem_count(s->mem, cat, (int64_t)bytes);
        return s->base + off;
    }
    count(s, -(int64_t)size);
    return NULL;
}

/* Zeroes a piece: whole pages of a large one return to the machine. */
static void clear(char *p, size_t size)
{
    char *a = (char *)mem_round_up((uintptr_t)p, PAGE), *b = (char *)((uintptr_t)(p + size) / PAGE * PAGE);
    if (size < RETURNED || madvise(a, (size_t)(b - a), MADV_REMOVE) < 0) {
        memset(p, 0, size);
        return;
    }
    memset(p, 0, (size_t)(a - p));
    memset(b, 0, (size_t)(p + size - b));
}

/* Index of the extent that contains off. */
static int find(const struct segment *s, size_t off)
{
    int lo = 0, hi = s->n_extents - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (s->extent[mid].off <= off)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

void segment_free(struct segment *s, void *p)
{
    if (!p)
        return;
    int i = find(s, (size_t)((char *)p - s->base));
    struct extent *x = &s->extent[i];
    mem_count(s->mem, x->cat, -(int64_t)x->bytes);
    count(s, -(int64_t)x->size);
    clear(s->base + x->off, x->size);
    x->used = 0;
    if (i + 1 < s->n_extents && !s->extent[i + 1].used) {
        x->size += s->extent[i + 1].size;
        erase(s, i + 1);
    }
    if (i > 0 && !s->extent[i - 1].used) {
        s->extent[i - 1].size += s->extent[i].size;
        erase(s, i);
    }
}

int64_t segment_offset(const struct segment *s, const void *p, size_t bytes)
{
    uintptr_t at = (uintptr_t)p, begin = (uintptr_t)s->base + s->region;
    return at >= begin && at + bytes <= begin + s->region_bytes ? (int64_t)(at - (uintptr_t)s->base) : -1;
}
