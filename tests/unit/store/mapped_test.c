/* mapped_test.c - store/mapped.h: where a file is mapped, and what becomes of one that is cut meanwhile. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/io.h"
#include "store/mapped.h"
#include "tests/test.h"

#define LARGE ((int64_t)2 << 20)
#define BYTES (3 * LARGE + 1234)

/* Makes a file whose bytes tell their places. */
static const char *make_file(const char *name, int64_t bytes)
{
    static char path[512];
    struct err e;
    snprintf(path, sizeof path, "%s/%s", test_tmp_dir(), name);
    int fd = io_create(path, &e);
    CHECK(fd >= 0);
    int64_t *data = calloc((size_t)bytes / 8 + 1, 8);
    for (int64_t i = 0; i <= bytes / 8; i++)
        data[i] = i * 7919;
    CHECK_INT(io_pwrite(fd, path, data, (size_t)bytes, 0, &e), 0);
    CHECK_INT(io_sync_close(fd, path, &e), 0);
    free(data);
    return path;
}

TEST(a_file_is_mapped_whole_at_a_multiple_of_2_mib_and_holds_its_bytes)
{
    struct mapped *m;
    struct err e;
    const char *path = make_file("whole", BYTES);
    CHECK_INT(mapped_open(&m, path, BYTES, &e), 0);
    CHECK_INT((uintptr_t)mapped_at(m) % (uintptr_t)LARGE, 0);
    CHECK_INT(mapped_bytes(m), BYTES);
    CHECK_INT(mapped_populate(m, 0, BYTES, NULL, &e), 0);
    int64_t wrong = 0;
    for (int64_t i = 0; i < BYTES / 8; i++)
        wrong += ((const int64_t *)mapped_at(m))[i] != i * 7919;
    CHECK_INT(wrong, 0);
    mapped_drop(m, 0, BYTES);
    CHECK_INT(((const int64_t *)mapped_at(m))[1000], 7919000);

    CHECK(mapped_large_bytes(m) >= 0);
    setenv("SHARDLINE_LARGE_FOLIOS", "off", 1);
    CHECK_INT(mapped_large_bytes(m), 0);
    unsetenv("SHARDLINE_LARGE_FOLIOS");
    mapped_close(m);
}

TEST(a_file_that_is_too_short_or_being_written_is_refused_by_name)
{
    struct mapped *m;
    struct err e;
    const char *path = make_file("short", 5000);
    CHECK_INT(mapped_open(&m, path, 5001, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "short has 5000 bytes, its tables say 5001");
    CHECK(!m);
    CHECK_INT(mapped_open(&m, "/nowhere/at/all", 0, &e), -ERR_FILE);

    int fd = io_open_write(path, &e);
    CHECK_INT(io_try_lock(fd, 0), IO_LOCKED);
    CHECK_INT(mapped_open(&m, path, 0, &e), -ERR_FILE);
    CHECK_HAS(e.text, "another process is writing it");
    io_close(fd);
    CHECK_INT(mapped_open(&m, path, 0, &e), 0);
    fd = io_open_write(path, &e);
    CHECK_INT(io_try_lock(fd, 0), IO_BUSY);
    io_close(fd);
    mapped_close(m);
}

/* Runs fn in a child; returns its wait status and the line that it printed. */
static int in_child(void (*fn)(const char *path), const char *path, char line[1024])
{
    int ends[2], status = 0;
    ssize_t n;
    CHECK_INT(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        dup2(ends[1], 2);
        fn(path);
        _exit(77);
    }
    close(ends[1]);
    n = read(ends[0], line, 1023);
    line[n > 0 ? n : 0] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    return status;
}

static void read_cut_file(const char *path)
{
    struct mapped *m;
    struct err e;
    if (mapped_open(&m, path, BYTES, &e) < 0 || truncate(path, LARGE) != 0)
        _exit(78);
    if (*(volatile const char *)(mapped_at(m) + LARGE - 1) == 0 && errno == 12345)
        _exit(79);
    (void)*(volatile const char *)(mapped_at(m) + 2 * LARGE + 17);
}

TEST(reading_a_file_that_was_cut_ends_the_process_with_one_line_that_names_it)
{
    char line[1024];
    const char *path = make_file("cut", BYTES);
    int status = in_child(read_cut_file, path, line);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    CHECK_HAS(line, "mapped_test: ");
    CHECK_HAS(line, "/cut: byte 4194321 cannot be read any more: the file was cut while it was in use");
    CHECK(strchr(line, '\n') == line + strlen(line) - 1);
}

static int claim_nothing(void *calls)
{
    ++*(int *)calls;
    return 0;
}

static void read_cut_file_after_another_line(const char *path)
{
    static int calls;
    mapped_set_claim(claim_nothing, &calls);
    read_cut_file(path);
}

TEST(a_cut_file_prints_nothing_where_the_job_has_printed_its_line)
{
    char line[1024];
    int status = in_child(read_cut_file_after_another_line, make_file("silent", BYTES), line);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    CHECK_INT(line[0], 0);
}

static void fault_elsewhere(const char *path)
{
    struct mapped *m;
    struct err e;
    if (mapped_open(&m, path, 0, &e) < 0)
        _exit(78);
    FILE *f = fopen(path, "re");
    volatile const char *other = f ? mmap(NULL, (size_t)BYTES, PROT_READ, MAP_SHARED, fileno(f), 0)
                                   : MAP_FAILED;
    if (other == MAP_FAILED || truncate(path, 4096) != 0)
        _exit(79);
    (void)other[8192];
}

TEST(a_fault_in_other_memory_is_not_taken_for_one_of_a_mapped_file)
{
    char line[1024];
    int status = in_child(fault_elsewhere, make_file("elsewhere", BYTES), line);
#ifdef __SANITIZE_ADDRESS__
    CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 77);
#else
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    CHECK_STR(line, "");
#endif
}

TEST(populating_a_cut_file_is_an_error_with_its_name)
{
    struct mapped *m;
    struct err e = { 0 };
    const char *path = make_file("populate", BYTES);
    volatile sig_atomic_t stop = 1;
    CHECK_INT(mapped_open(&m, path, BYTES, &e), 0);
    CHECK_INT(truncate(path, LARGE), 0);
    CHECK_INT(mapped_populate(m, 0, LARGE, NULL, &e), 0);
    CHECK_INT(mapped_populate(m, 0, BYTES, &stop, &e), 0); /* stopped: it reads nothing */
    CHECK_INT(mapped_populate(m, 0, BYTES, NULL, &e), -ERR_FILE);
    CHECK_HAS(e.text, "/populate: bytes 0 to 6292690 cannot be read any more");
    mapped_close(m);
}
