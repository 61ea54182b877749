/* aio.c - see aio.h: jobs, their blocks, and what is the same for both ways. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/aio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "base/aio/aio_way.h"
#include "base/clock.h"
#include "base/test_hooks.h"

#define BLOCK ((size_t)1 << 20)

struct aio {
    const struct aio_way_ops *way;
    void *state;
    struct aio_block block[AIO_BLOCKS];
    int free_block; /* head of the list of blocks that are not under way */
    int n_jobs;     /* under way */
    double began;   /* when n_jobs became 1 */
    struct aio_count count;
};

struct aio_file aio_file_of(int fd, const char *path)
{
    int flags = fcntl(fd, F_GETFL);
    int direct = flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) >= 0;
    return (struct aio_file){ fd, direct, path };
}

static int open_way(struct aio *a, const struct aio_way_ops *way, struct err *e)
{
    a->way = way;
    return way->open(&a->state, e);
}

int aio_open(struct aio **out, enum aio_way way, struct err *e)
{
    struct aio *a = *out = calloc(1, sizeof *a);
    int rc = -ERR_FILE;
    if (!a)
        return err_set(e, ERR_MEMORY, "no memory for reading and writing files");
    for (int i = 0; i < AIO_BLOCKS; i++)
        a->block[i].next = i + 1 < AIO_BLOCKS ? i + 1 : -1;
    if (way == AIO_BEST && hook_aio_threads())
        way = AIO_THREADS;
    if (way != AIO_THREADS)
        rc = open_way(a, &aio_ring, e);
    if (rc == -ERR_FILE && way != AIO_RING)
        rc = open_way(a, &aio_threads, e);
    if (rc < 0) {
        free(a);
        *out = NULL;
    }
    return rc;
}

const char *aio_name(const struct aio *a) { return a->way->name; }

struct aio_count aio_count(const struct aio *a) { return a->count; }

/* ---- blocks ---- */
/* Starts what is left of a block. A test may let it fail, or ask for less than is left. */
static void submit(struct aio *a, int i)
{
    struct aio_block *b = &a->block[i], part = *b;
    if (hook_short_counts() && b->bytes > AIO_ALIGN)
        part.bytes = b->bytes / 2 / AIO_ALIGN * AIO_ALIGN;
    a->way->submit(a->state, i, &part);
}

static void fail(struct aio_job *j, int why, int64_t at)
{
    if (j->failed)
        return;
    j->failed = why;
    j->failed_at = at;
}

static void end_block(struct aio *a, int i)
{
    struct aio_block *b = &a->block[i];
    if (--b->job->n_left == 0 && --a->n_jobs == 0)
        a->count.busy_s += clock_s() - a->began;
    b->next = a->free_block;
    a->free_block = i;
}

/* Waits for a block, and starts again what is left of it. */
static void reap(struct aio *a)
{
    int i = a->way->reap(a->state, a->block);
    struct aio_block *b = &a->block[i];
    struct aio_job *j = b->job;
    int64_t at = j->at + (int64_t)b->at;

    if (b->result == -EINTR || b->result == -EAGAIN) {
        submit(a, i);
        return;
    }
    if (b->result <= 0) {
        fail(j, b->result < 0 ? (int)-b->result : j->write ? ENOSPC : -1, at);
        end_block(a, i);
        return;
    }
    *(j->write ? &a->count.written_bytes : &a->count.read_bytes) += b->result;
    b->at += (size_t)b->result;
    b->bytes -= (size_t)b->result;
    if (b->bytes)
        submit(a, i);
    else
        end_block(a, i);
}

static int take_block(struct aio *a)
{
    while (a->free_block < 0)
        reap(a);
    int i = a->free_block;
    a->free_block = a->block[i].next;
    return i;
}

/* ---- jobs ---- */
void aio_start(struct aio *a, struct aio_job *j)
{
    j->n_left = (int)((j->bytes + BLOCK - 1) / BLOCK);
    j->failed = 0;
    if (!j->bytes)
        return;
    if (a->n_jobs++ == 0)
        a->began = clock_s();
    for (size_t at = 0; at < j->bytes; at += BLOCK) {
        int i = take_block(a);
        struct aio_block *b = &a->block[i];
        *b = (struct aio_block){ j, at, j->bytes - at < BLOCK ? j->bytes - at : BLOCK, 0, -1 };
        if (hook_fault(j->write ? HOOK_AIO_WRITE : HOOK_AIO_READ)) {
            fail(j, errno, j->at + (int64_t)at);
            end_block(a, i);
        } else {
            submit(a, i);
        }
    }
}

int aio_wait(struct aio *a, struct aio_job *j, struct err *e)
{
    while (j->n_left)
        reap(a);
    if (!j->failed)
        return 0;
    if (j->failed < 0)
        return err_set(e, ERR_FORMAT, "%s ends at byte %lld: was it cut while it was in use", j->file->path,
                       (long long)j->failed_at);
    errno = j->failed;
    return err_sys(e, "cannot %s %s at byte %lld", j->write ? "write" : "read", j->file->path,
                   (long long)j->failed_at);
}

void aio_close(struct aio *a)
{
    if (!a)
        return;
    while (a->n_jobs)
        reap(a);
    a->way->close(a->state);
    free(a);
}
