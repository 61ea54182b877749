/* base_aio_test.c - asynchronous reads and writes, by io_uring and by threads: bytes, short counts,
 * errors that name file and byte. */
#include "tests/test.h"

#include <unistd.h>
#include "base/aio.h"
#include "base/io.h"
#include "base/mem.h"

enum { MIB = 1 << 20, BYTES = 5 * MIB + 3 * AIO_ALIGN };

struct place {
    struct aio *aio;
    struct aio_file file;
    char path[400];
    char *memory[3];
};

static int open_place(struct place *p, enum aio_way way, const char *name)
{
    struct err e;
    snprintf(p->path, sizeof p->path, "%s/%s", test_tmp_dir(), name);
    p->aio = NULL;
    if (aio_open(&p->aio, way, &e) < 0) {
        test_skip("%s", e.text);
        return 0;
    }
    p->file = aio_file_of(io_open_write(p->path, &e), p->path);
    for (int i = 0; i < 3; i++)
        p->memory[i] = mem_alloc(NULL, MEM_OTHER, BYTES);
    return 1;
}

static void close_place(struct place *p)
{
    aio_close(p->aio);
    io_close(p->file.fd);
    for (int i = 0; i < 3; i++)
        mem_free(NULL, p->memory[i]);
}

/* Values that no other offset has. */
static void fill(char *p, uint64_t seed)
{
    for (size_t i = 0; i < BYTES; i += 8) {
        uint64_t x = (seed + i) * 0x9e3779b97f4a7c15u;
        memcpy(p + i, &x, 8);
    }
}

static struct aio_job job(struct place *p, int memory, int64_t at, int write)
{
    return (struct aio_job){
        .file = &p->file, .buf = p->memory[memory], .bytes = BYTES, .at = at, .write = write
    };
}

static void write_and_read(enum aio_way way, const char *name)
{
    struct place p;
    struct err e;
    if (!open_place(&p, way, name))
        return;
    CHECK_STR(aio_name(p.aio), way == AIO_RING ? "io_uring" : "threads");
    for (int turn = 0; turn < 3; turn++) {
        struct aio_job a = job(&p, 0, 0, 1), b = job(&p, 1, BYTES, 1), c = job(&p, 2, BYTES, 0);
        fill(p.memory[0], 1 + (uint64_t)turn);
        fill(p.memory[1], 100 + (uint64_t)turn);
        aio_start(p.aio, &a);
        aio_start(p.aio, &b);
        CHECK_INT(aio_wait(p.aio, &b, &e), 0);
        aio_start(p.aio, &c);
        CHECK_INT(aio_wait(p.aio, &c, &e), 0);
        CHECK_SAME(p.memory[2], p.memory[1], BYTES);
        CHECK_INT(aio_wait(p.aio, &a, &e), 0);
        c.at = 0;
        aio_start(p.aio, &c);
        CHECK_INT(aio_wait(p.aio, &c, &e), 0);
        CHECK_SAME(p.memory[2], p.memory[0], BYTES);
    }
    struct aio_count n = aio_count(p.aio);
    CHECK_INT(n.read_bytes, 6 * (int64_t)BYTES);
    CHECK_INT(n.written_bytes, 6 * (int64_t)BYTES);
    CHECK(n.busy_s > 0);
    close_place(&p);
}

TEST(io_uring_reads_what_it_wrote) { write_and_read(AIO_RING, "ring"); }
TEST(threads_read_what_they_wrote) { write_and_read(AIO_THREADS, "threads"); }

TEST(short_counts_are_completed)
{
    setenv("SHARDLINE_IO_SHORT", "1", 1);
    write_and_read(AIO_RING, "short_ring");
    write_and_read(AIO_THREADS, "short_threads");
    unsetenv("SHARDLINE_IO_SHORT");
}

static void errors(enum aio_way way, const char *name)
{
    struct place p;
    struct err e;
    if (!open_place(&p, way, name))
        return;
    struct aio_job a = job(&p, 0, 0, 1), b = job(&p, 1, MIB, 0);
    aio_start(p.aio, &a);
    CHECK_INT(aio_wait(p.aio, &a, &e), 0);
    aio_start(p.aio, &b);
    CHECK_INT(aio_wait(p.aio, &b, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "ends at byte");
    CHECK_HAS(e.text, p.path);

    /* a job that fails leaves the next one alone */
    close(p.file.fd);
    aio_start(p.aio, &a);
    CHECK_INT(aio_wait(p.aio, &a, &e), -ERR_FILE);
    CHECK_HAS(e.text, "cannot write");
    p.file = aio_file_of(io_open_write(p.path, &e), p.path);
    aio_start(p.aio, &a);
    CHECK_INT(aio_wait(p.aio, &a, &e), 0);
    close_place(&p);
}

TEST(errors_of_io_uring_name_file_and_byte) { errors(AIO_RING, "errors_ring"); }
TEST(errors_of_threads_name_file_and_byte) { errors(AIO_THREADS, "errors_threads"); }

TEST(a_chosen_block_fails)
{
    struct place p;
    struct err e;
    if (!open_place(&p, AIO_THREADS, "chosen"))
        return;
    struct aio_job a = job(&p, 0, 0, 1);
    setenv("SHARDLINE_IO_FAULT", "aio_write:3:ENOSPC", 1);
    aio_start(p.aio, &a);
    CHECK_INT(aio_wait(p.aio, &a, &e), -ERR_SPACE);
    CHECK_HAS(e.text, "at byte 2097152");
    unsetenv("SHARDLINE_IO_FAULT");
    close_place(&p);
}

TEST(the_best_way_may_be_threads)
{
    struct aio *a;
    struct err e;
    setenv("SHARDLINE_AIO", "threads", 1);
    CHECK_INT(aio_open(&a, AIO_BEST, &e), 0);
    CHECK_STR(aio_name(a), "threads");
    aio_close(a);
    unsetenv("SHARDLINE_AIO");
}
