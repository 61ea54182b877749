/* aio.h - reads and writes of file ranges that go on while the caller computes: by io_uring, or by
 * threads where the kernel refuses that (seccomp, an old kernel).
 *
 *     aio_start(a, &read) -> compute -> aio_wait(a, &read)
 *
 * A job is cut into blocks of 1 MiB, so that a disk always has several. Short counts and EINTR are
 * handled. One thread at a time calls the functions of a struct aio. Those that return int give 0 or a
 * negative code. */
#ifndef SHARDLINE_BASE_AIO_H
#define SHARDLINE_BASE_AIO_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

/* Offsets, sizes and memory of jobs are multiples of this: what O_DIRECT asks for. */
#define AIO_ALIGN 4096

/* A file that jobs read and write. path is for messages, borrowed. */
struct aio_file {
    int fd;
    int direct; /* reads and writes pass by the page cache */
    const char *path;
};
/* Turns off the page cache for an open file, where its file system can do so. */
struct aio_file aio_file_of(int fd, const char *path);

enum aio_way { AIO_BEST, AIO_RING, AIO_THREADS };
struct aio;
/* AIO_BEST: io_uring, else threads. ERR_MEMORY; ERR_FILE: the way that was asked for is not there. */
int aio_open(struct aio **out, enum aio_way way, struct err *e);
/* Waits for what is under way. NULL: nothing. */
void aio_close(struct aio *a);
/* "io_uring" or "threads". */
const char *aio_name(const struct aio *a);

/* One range. The caller fills the first members and keeps the struct and buf until aio_wait() returns. */
struct aio_job {
    const struct aio_file *file;
    void *buf;
    size_t bytes;
    int64_t at;
    int write;
    /* private */
    int n_left; /* blocks that are not finished */
    int failed; /* errno of the first block that failed; -1: the file ends before */
    int64_t failed_at;
};
/* Starts a job; may wait for blocks of other jobs. Its errors come from aio_wait(). */
void aio_start(struct aio *a, struct aio_job *j);
/* Waits for a job. ERR_FORMAT: the file ends before. ERR_SPACE, ERR_FILE: as io.h; the text names file and
 * byte. */
int aio_wait(struct aio *a, struct aio_job *j, struct err *e);

/* What was transferred since aio_open(). */
struct aio_count {
    int64_t read_bytes, written_bytes;
    double busy_s; /* time in which a job was under way */
};
/* Of all jobs; those under way in part. */
struct aio_count aio_count(const struct aio *a);

#endif
