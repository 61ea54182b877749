/* aio_ring.c - blocks by io_uring, through the kernel's own interface: two rings in shared memory, one of
 * blocks to start, one of those that have ended (io_uring(7)). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/aio/aio_way.h"

struct ring {
    int fd;
    void *memory; /* both rings */
    size_t bytes, entry_bytes;
    struct io_uring_sqe *entry;
    unsigned *sq_tail, *sq_mask, *sq_array;
    unsigned *cq_head, *cq_tail, *cq_mask;
    struct io_uring_cqe *ended;
};

static void ring_close(void *state)
{
    struct ring *r = state;
    if (r->entry)
        munmap(r->entry, r->entry_bytes);
    if (r->memory)
        munmap(r->memory, r->bytes);
    if (r->fd >= 0)
        close(r->fd);
    free(r);
}

static int refused(struct err *e, struct ring *r, const char *what)
{
    int rc = err_sys(e, "io_uring: %s", what);
    ring_close(r);
    return rc == -ERR_MEMORY ? err_set(e, ERR_FILE, "io_uring: no locked memory") : rc;
}

static void *map(int fd, size_t bytes, off_t what)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
    return p == MAP_FAILED ? NULL : p;
}

static int ring_open(void **state, struct err *e)
{
    /* one map for both rings (5.4); reads and writes without iovec came with Linux 5.6 */
    const unsigned needed = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_RW_CUR_POS;
    struct io_uring_params p = { 0 };
    struct ring *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_MEMORY, "no memory for io_uring");
    r->fd = (int)syscall(SYS_io_uring_setup, AIO_BLOCKS, &p);
    if (r->fd < 0)
        return refused(e, r, "cannot set it up");
    if ((p.features & needed) != needed) {
        errno = ENOSYS;
        return refused(e, r, "the kernel's is too old");
    }

    size_t sq = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    size_t cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    r->bytes = sq > cq ? sq : cq;
    r->entry_bytes = p.sq_entries * sizeof(struct io_uring_sqe);
    r->memory = map(r->fd, r->bytes, IORING_OFF_SQ_RING);
    r->entry = map(r->fd, r->entry_bytes, IORING_OFF_SQES);
    if (!r->memory || !r->entry)
        return refused(e, r, "cannot map its rings");

    char *m = r->memory;
    r->sq_tail = (unsigned *)(m + p.sq_off.tail);
    r->sq_mask = (unsigned *)(m + p.sq_off.ring_mask);
    r->sq_array = (unsigned *)(m + p.sq_off.array);
    r->cq_head = (unsigned *)(m + p.cq_off.head);
    r->cq_tail = (unsigned *)(m + p.cq_off.tail);
    r->cq_mask = (unsigned *)(m + p.cq_off.ring_mask);
    r->ended = (struct io_uring_cqe *)(m + p.cq_off.cqes);
    *state = r;
    return 0;
}

/* The kernel takes the entry during the call, so that the ring of entries is always empty here. */
static void ring_submit(void *state, int i, struct aio_block *b)
{
    struct ring *r = state;
    unsigned tail = *r->sq_tail, at = tail & *r->sq_mask;
    struct aio_job *j = b->job;
    r->entry[at] = (struct io_uring_sqe){ .opcode = j->write ? IORING_OP_WRITE : IORING_OP_READ,
                                          .fd = j->file->fd,
                                          .off = (uint64_t)(j->at + (int64_t)b->at),
                                          .addr = (uint64_t)(uintptr_t)((char *)j->buf + b->at),
                                          .len = (uint32_t)b->bytes,
                                          .user_data = (uint64_t)i };
    r->sq_array[at] = at;
    __atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
    while (syscall(SYS_io_uring_enter, r->fd, 1, 0, 0, NULL, 0) < 0 &&
           (errno == EINTR || errno == EAGAIN || errno == EBUSY))
        ;
}

static int ring_reap(void *state, struct aio_block *blocks)
{
    struct ring *r = state;
    unsigned head = *r->cq_head;
    while (__atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) == head)
        syscall(SYS_io_uring_enter, r->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
    const struct io_uring_cqe *c = &r->ended[head & *r->cq_mask];
    int i = (int)c->user_data;
    blocks[i].result = c->res;
    __atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
    return i;
}

const struct aio_way_ops aio_ring = { "io_uring", ring_open, ring_submit, ring_reap, ring_close };
