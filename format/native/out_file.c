/* out_file.c - see out_file.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "format/native/out_file.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/io.h"
#include "base/mem.h"
#include "store/memory.h"

int out_create(const char *dir, const char *name, const char *path, struct err *e)
{
    return memory_is(dir) ? memory_create(dir, name, e) : io_create(path, e);
}

int out_finish(int fd, const char *dir, const char *name, const char *path, struct err *e)
{
    return memory_is(dir) ? memory_give(fd, dir, name, e) : io_sync_close(fd, path, e);
}

int out_put(const char *dir, const char *name, const void *data, size_t n, struct err *e)
{
    char *path = io_join(dir, name);
    int rc = 0, fd = -1;
    if (!path)
        return err_set(e, ERR_MEMORY, "no memory for the path of %s", name);
    if (memory_is(dir)) {
        TRY(fd = memory_create(dir, name, e));
        TRY(io_pwrite(fd, path, data, n, 0, e));
        rc = memory_give(fd, dir, name, e);
        fd = -1;
    } else {
        rc = io_write_file(path, data, n, e);
    }
out:
    io_close(fd);
    free(path);
    return rc < 0 ? rc : 0;
}

int64_t out_size(const char *dir, const char *name, const char *path, struct err *e)
{
    if (memory_is(dir))
        return memory_bytes(dir, name, e);
    int fd = io_open_read(path, e);
    int64_t have = fd < 0 ? fd : io_size(fd, path, e);
    io_close(fd);
    return have;
}

int out_sync(const char *dir, struct err *e) { return memory_is(dir) ? 0 : io_sync_dir(dir, e); }

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define HUGE_PAGE ((size_t)2 << 20)
#define PAGE ((size_t)4096)

/* The file begins on a boundary of large pages: it is mapped inside of a larger reservation. */
int out_map(struct out_memory *m, int fd, const char *dir, const char *path, size_t bytes, struct err *e)
{
    const size_t all = mem_round_up(bytes, PAGE) + HUGE_PAGE;
    if (!memory_is(dir) || bytes < HUGE_PAGE)
        return 0;
    int rc = io_truncate(fd, path, (int64_t)bytes, e);
    if (rc < 0)
        return rc;
    char *base = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return err_sys(e, "%s: no memory", path);
    char *at = (char *)mem_round_up((uintptr_t)base, HUGE_PAGE), *end = at + mem_round_up(bytes, PAGE);
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        err_sys(e, "%s: no memory", path);
        munmap(base, all);
        return -e->code;
    }
    if (at > base)
        munmap(base, (size_t)(at - base));
    munmap(end, (size_t)(base + all - end));
    madvise(at, bytes, MADV_HUGEPAGE); /* may be refused: then it takes longer */
    *m = (struct out_memory){ at, bytes };
    if (madvise(at, PAGE, MADV_POPULATE_WRITE) < 0 && errno == EINVAL) /* a kernel before 5.14 */
        out_unmap(m);
    return 0;
}

int out_fill(const struct out_memory *m, const char *path, const void *data, size_t n, size_t off,
             struct err *e)
{
    const size_t begin = off / PAGE * PAGE, end = mem_round_up(off + n, PAGE);
    /* without it a store ends the process where there is no memory */
    if (madvise(m->at + begin, end - begin, MADV_POPULATE_WRITE) < 0)
        return err_sys(e, "%s: no memory", path);
    memcpy(m->at + off, data, n);
    return 0;
}

void out_unmap(struct out_memory *m)
{
    if (m->at)
        munmap(m->at, m->bytes);
    *m = (struct out_memory){ 0 };
}
