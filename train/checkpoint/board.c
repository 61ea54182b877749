/* board.c - see board.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "train/checkpoint/board.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "base/io.h"

enum { NOTHING, THERE, NEVER }; /* of a text */
struct line {
    _Atomic int state;
    int pid, fd;
    int64_t bytes;
};
struct board {
    int rank, n, fd; /* fd: of this rank's text, -1: none */
    size_t bytes;
    struct line *line; /* [n], shared */
    _Atomic int stop;
};

/* Where the page of rank 0 is. */
struct address {
    int pid, fd;
};

static int map(struct board *b, int fd, struct err *e)
{
    void *p = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return err_sys(e, "cannot map the page that ranks share for a checkpoint");
    b->line = p;
    return 0;
}

int board_open(struct board **out, struct comm *all, struct err *e)
{
    struct board *b = *out = calloc(1, sizeof *b);
    struct address at = { getpid(), -1 };
    char path[64];
    int fd = -1, rc = b ? 0 : err_set(e, ERR_MEMORY, "no memory for a page that ranks share");
    TRY(comm_agree(all, rc, e));
    *b = (struct board){ .rank = comm_rank(all), .n = comm_size(all), .fd = -1 };
    b->bytes = sizeof *b->line * (size_t)b->n;
    if (b->rank == 0) {
        fd = memfd_create("shardline", MFD_CLOEXEC);
        rc = fd < 0 ? err_sys(e, "cannot make a page that ranks share")
                    : io_truncate(fd, "a page in memory", (int64_t)b->bytes, e);
        at.fd = fd;
    }
    TRY(comm_agree(all, rc, e));
    TRY(comm_broadcast(all, &at, sizeof at, 0, e));
    if (b->rank) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", at.pid, at.fd);
        if ((fd = io_open_write(path, e)) < 0)
            rc = err_set(e, ERR_USAGE, "rank %d cannot reach rank 0's memory: is it on another machine",
                         b->rank);
    }
    if (rc >= 0)
        rc = map(b, fd, e);
    rc = comm_agree(all, rc, e); /* rank 0 closes fd when all have opened it */
out:
    io_close(fd);
    return rc < 0 ? rc : 0;
}

void board_close(struct board *b)
{
    if (!b)
        return;
    io_close(b->fd);
    if (b->line)
        munmap(b->line, b->bytes);
    free(b);
}

void board_clear(struct board *b)
{
    io_close(b->fd);
    b->fd = -1;
    atomic_store(&b->stop, 0);
    atomic_store(&b->line[b->rank].state, NOTHING);
}

int board_put(struct board *b, const void *data, size_t bytes, struct err *e)
{
    struct line *l = &b->line[b->rank];
    int rc = 0;
    if (data) {
        b->fd = memfd_create("shardline", MFD_CLOEXEC);
        rc = b->fd < 0 ? err_sys(e, "no memory for the table of a rank's files")
                       : io_pwrite(b->fd, "a table in memory", data, bytes, 0, e);
    }
    l->pid = getpid();
    l->fd = b->fd;
    l->bytes = (int64_t)bytes;
    atomic_store(&l->state, data && rc >= 0 ? THERE : NEVER);
    return rc < 0 ? rc : 0;
}

void board_stop(struct board *b) { atomic_store(&b->stop, 1); }

int board_take(struct board *b, int r, void **out, size_t *bytes, struct err *e)
{
    static const struct timespec nap = { 0, 1000000 };
    const struct line *l = &b->line[r];
    char path[64];
    int state, fd, rc = 0;
    while (!(state = atomic_load(&l->state)) && !atomic_load(&b->stop))
        nanosleep(&nap, NULL);
    if (state != THERE)
        return err_set(e, ERR_FILE,
                       state == NEVER ? "rank %d has written no files" : "rank %d is not waited for any more",
                       r);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", l->pid, l->fd);
    *bytes = (size_t)l->bytes;
    *out = malloc(*bytes + 1);
    fd = io_open_read(path, e);
    rc = !*out ? err_set(e, ERR_MEMORY, "no memory for the table of rank %d", r) : fd < 0 ? fd : 0;
    if (rc >= 0)
        rc = io_pread(fd, path, *out, *bytes, 0, e);
    io_close(fd);
    if (rc >= 0)
        return 0;
    free(*out);
    *out = NULL;
    return rc;
}
