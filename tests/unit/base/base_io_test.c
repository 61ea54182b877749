/* base_io_test.c - whole reads and writes, messages that name the file, the n-th operation that fails. */
#include "tests/test.h"

#include <fcntl.h>
#include <locale.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/test_hooks.h"
#include "base/io.h"

struct path {
    char text[400];
};

static struct path in_tmp(const char *name)
{
    struct path p;
    snprintf(p.text, sizeof p.text, "%s/%s", test_tmp_dir(), name);
    return p;
}

TEST(what_is_written_is_read)
{
    struct err e;
    struct path p = in_tmp("a");
    void *data;
    size_t n;
    CHECK_INT(io_write_file(p.text, "some\0bytes", 10, &e), 0);
    CHECK_INT(io_read_file(p.text, 10, &data, &n, &e), 0);
    CHECK_INT(n, 10);
    CHECK_SAME(data, "some\0bytes\0", 11);
    free(data);
    CHECK_INT(io_read_file(p.text, 9, &data, &n, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "has 10 bytes, more than the 9");
    CHECK_INT(io_write_file(p.text, "", 0, &e), -ERR_FILE);
    CHECK_HAS(e.text, "cannot create");
}

TEST(offsets_and_short_files)
{
    struct err e;
    struct path p = in_tmp("b");
    char buf[8] = { 0 };
    int fd = io_create(p.text, &e);
    CHECK(fd >= 0);
    CHECK_INT(io_pwrite(fd, p.text, "world", 5, 6, &e), 0);
    CHECK_INT(io_pwrite(fd, p.text, "hello ", 6, 0, &e), 0);
    CHECK_INT(io_sync_close(fd, p.text, &e), 0);
    fd = io_open_read(p.text, &e);
    CHECK_INT(io_size(fd, p.text, &e), 11);
    CHECK_INT(io_pread(fd, p.text, buf, 5, 4, &e), 0);
    CHECK_STR(buf, "o wor");
    CHECK_INT(io_pread(fd, p.text, buf, 8, 7, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "ends at byte 11, 15 are needed");
    CHECK_HAS(e.text, p.text);
    io_close(fd);
    io_close(-1);
}

static void interrupted(const char *fault)
{
    struct err e;
    char buf[5];
    struct path p = in_tmp("interrupted");
    setenv("SHARDLINE_IO_FAULT", fault, 1);
    int fd = io_create(p.text, &e);
    _exit(fd < 0 || io_pwrite(fd, p.text, "world", 5, 0, &e) || io_sync_close(fd, p.text, &e) ||
          (fd = io_open_read(p.text, &e)) < 0 || io_pread(fd, p.text, buf, 5, 0, &e) ||
          memcmp(buf, "world", 5));
}

TEST(a_call_that_a_signal_interrupts_is_made_again)
{
    static const char *const faults[] = { "open:1:EINTR", "open:2:EINTR", "write:1:EINTR", "read:1:EINTR" };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct err e;
        struct path p = in_tmp("interrupted");
        int status = -1;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0)
            interrupted(faults[i]);
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
        if (status)
            test_fail(__FILE__, __LINE__, "%s is not made again", faults[i]);
        CHECK_INT(io_unlink(p.text, &e), 0);
    }
}

TEST(missing_files_and_folders_are_named)
{
    struct err e;
    struct path p = in_tmp("not-here");
    void *data;
    size_t n;
    CHECK_INT(io_open_read(p.text, &e), -ERR_FILE);
    CHECK_HAS(e.text, p.text);
    CHECK_HAS(e.text, "No such file");
    CHECK_INT(io_read_file(test_tmp_dir(), 100, &data, &n, &e), -ERR_FILE);
    CHECK_HAS(e.text, "is a folder");
    CHECK_INT(io_sync_dir(p.text, &e), -ERR_FILE);
    CHECK(!io_exists(p.text));
}

/* Both would wait for the other end for ever. */
TEST(a_pipe_without_another_end_is_refused)
{
    struct err e;
    struct path p = in_tmp("pipe");
    void *data;
    size_t n;
    CHECK(mkfifo(p.text, 0600) == 0);
    CHECK_INT(io_open_read(p.text, &e), -ERR_FILE);
    CHECK_HAS(e.text, "pipe is a pipe or a device: write it to a file first");
    CHECK_INT(io_read_file(p.text, 10, &data, &n, &e), -ERR_FILE);
    CHECK_INT(io_sync_file(p.text, &e), -ERR_FILE);
    CHECK_INT(io_read_file("/dev/zero", 10, &data, &n, &e), -ERR_FILE);
    CHECK_INT(io_open_sink(p.text, 0, 0600, &e), -ERR_FILE);
    CHECK_HAS(e.text, "pipe is a pipe that nobody reads");
    CHECK(io_write_text(p.text, 1, &e) == NULL);
}

TEST(a_pipe_with_a_reader_is_written)
{
    struct err e;
    struct path p = in_tmp("read-pipe");
    char got[8] = { 0 };
    CHECK(mkfifo(p.text, 0600) == 0);
    int reader = open(p.text, O_RDONLY | O_NONBLOCK);
    FILE *f = io_write_text(p.text, 0, &e);
    CHECK(reader >= 0 && f);
    CHECK(!(fcntl(fileno(f), F_GETFL) & O_NONBLOCK));
    fputs("line\n", f);
    CHECK(fclose(f) == 0);
    CHECK_INT(read(reader, got, sizeof got), 5);
    CHECK_STR(got, "line\n");
    io_close(reader);
}

static void without_standard_files(void)
{
    struct err e;
    struct path p = in_tmp("fourth");
    close(0);
    close(1);
    close(2);
    setlocale(LC_ALL, "C.UTF-8");
    io_begin();
    char c;
    int fd = io_create(p.text, &e);
    _exit(strcmp(setlocale(LC_ALL, NULL), "C") || fd != 3 || read(0, &c, 1) >= 0 || write(1, "x", 1) >= 0 ||
          write(2, "x", 1) != 1);
}

/* Otherwise a message would be written into a checkpoint. */
TEST(no_file_gets_the_number_of_a_closed_standard_file)
{
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        without_standard_files();
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
}

TEST(rename_never_replaces)
{
    struct err e;
    struct path a = in_tmp("from"), b = in_tmp("to");
    CHECK_INT(io_mkdir(a.text, &e), 0);
    CHECK_INT(io_mkdir(a.text, &e), -ERR_FILE);
    CHECK_INT(io_mkdir(b.text, &e), 0);
    CHECK_INT(io_rename(a.text, b.text, &e), -ERR_FILE);
    CHECK_HAS(e.text, "to exists");
    CHECK(io_exists(a.text));
    CHECK_INT(io_remove_tree(b.text, &e), 0);
    CHECK_INT(io_rename(a.text, b.text, &e), 0);
    CHECK(!io_exists(a.text) && io_exists(b.text));
    CHECK_INT(io_sync_dir(test_tmp_dir(), &e), 0);
}

TEST(a_tree_is_removed_links_are_not_followed)
{
    struct err e;
    struct path top = in_tmp("tree"), sub = in_tmp("tree/sub"), file = in_tmp("tree/sub/file"),
                link = in_tmp("tree/link"), kept = in_tmp("kept"), inside = in_tmp("kept/file");
    CHECK_INT(io_mkdir(kept.text, &e), 0);
    CHECK_INT(io_write_file(inside.text, "x", 1, &e), 0);
    CHECK_INT(io_mkdir(top.text, &e), 0);
    CHECK_INT(io_mkdir(sub.text, &e), 0);
    CHECK_INT(io_write_file(file.text, "x", 1, &e), 0);
    CHECK_INT(symlink(kept.text, link.text), 0);
    CHECK_INT(io_remove_tree(top.text, &e), 0);
    CHECK(!io_exists(top.text) && io_exists(inside.text));
    CHECK_INT(io_remove_tree(top.text, &e), 0);
}

TEST(folders_are_made_with_those_above)
{
    struct err e, ignored;
    struct path top = in_tmp("dirs"), deep = in_tmp("dirs/a/b"), file = in_tmp("dirs/file"),
                below = in_tmp("dirs/file/x");
    CHECK_INT(io_make_dirs(deep.text, &e), 0);
    CHECK_INT(io_make_dirs(deep.text, &e), 0);
    CHECK(io_exists(deep.text));
    CHECK_INT(io_write_file(file.text, "", 0, &e), 0);
    CHECK_INT(io_make_dirs(below.text, &e), -ERR_FILE);
    CHECK_HAS(e.text, below.text);
    CHECK_INT(io_make_dirs(file.text, &e), -ERR_FILE);
    CHECK_INT(io_make_dirs("", &e), -ERR_FILE);
    io_remove_tree(top.text, &ignored);
}

/* One run of a save: a folder, open, truncate, write, fsync, close, rename, fsync of the folder, something
 * old removed. */
static int save(struct err *e)
{
    int rc = 0, fd = -1;
    struct path dir = in_tmp("save.tmp"), file = in_tmp("save.tmp/file"), dst = in_tmp("save"),
                old = in_tmp("save/old");
    TRY(io_mkdir(dir.text, e));
    TRY(fd = io_open_write(file.text, e));
    TRY(io_truncate(fd, file.text, 9, e));
    TRY(io_pwrite(fd, file.text, "12345", 5, 4, e));
    rc = io_sync_close(fd, file.text, e);
    fd = -1;
    TRY(rc);
    TRY(io_rename(dir.text, dst.text, e));
    TRY(io_sync_dir(test_tmp_dir(), e));
    TRY(io_write_file(old.text, "", 0, e));
    TRY(io_unlink(old.text, e));
out:
    io_close(fd);
    return rc;
}

/* In a process of its own, since the counters of the hook live as long as the process. Returns minus the
 * status. */
static int save_with(const char *name, const char *value)
{
    struct err e, ignored;
    struct path tmp = in_tmp("save.tmp"), dst = in_tmp("save");
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv(name, value, 1);
        _exit(-save(&e));
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    io_remove_tree(tmp.text, &ignored);
    io_remove_tree(dst.text, &ignored);
    return -WEXITSTATUS(status);
}

TEST(the_n_th_operation_can_be_made_to_fail)
{
    static const struct {
        const char *fault;
        int rc;
    } cases[] = {
        { "write:1:ENOSPC", -ERR_SPACE },
        { "write:1:EDQUOT", -ERR_SPACE },
        { "write:2:ENOSPC", 0 },
        { "open:1:EACCES", -ERR_FILE },
        { "open:2:EMFILE", -ERR_FILE },
        { "open:3:EMFILE", -ERR_FILE },
        { "open:4:EMFILE", 0 },
        { "fsync:1:EIO", -ERR_FILE },
        { "fsync:2:EIO", -ERR_FILE },
        { "fsync:3:EIO", -ERR_FILE },
        { "fsync:4:EIO", 0 },
        { "close:1:EIO", -ERR_FILE },
        { "rename:1:ENOSPC", -ERR_SPACE },
        { "mkdir:1:ENOSPC", -ERR_SPACE },
        { "mkdir:2:EIO", 0 },
        { "truncate:1:ENOSPC", -ERR_SPACE },
        { "truncate:2:EIO", 0 },
        { "unlink:1:EROFS", -ERR_FILE },
        { "unlink:2:EIO", 0 },
        { "nothing of this", 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_INT(save_with("SHARDLINE_IO_FAULT", cases[i].fault), cases[i].rc);
}

TEST(what_changes_a_file_or_a_folder_is_recorded_in_order)
{
    static const enum hook_op want[] = { HOOK_MKDIR, HOOK_OPEN,  HOOK_TRUNCATE, HOOK_WRITE,
                                         HOOK_FSYNC, HOOK_CLOSE, HOOK_RENAME,   HOOK_FSYNC,
                                         HOOK_OPEN,  HOOK_FSYNC, HOOK_CLOSE,    HOOK_UNLINK };
    struct err e;
    struct path log = in_tmp("log"), file = in_tmp("save.tmp/file"), from = in_tmp("save.tmp"),
                to = in_tmp("save");
    void *data;
    size_t n, at = 0;
    CHECK_INT(save_with("SHARDLINE_IO_RECORD", log.text), 0);
    CHECK_INT(io_read_file(log.text, 1 << 16, &data, &n, &e), 0);
    for (size_t i = 0; i < sizeof want / sizeof *want && at < n; i++) {
        struct hook_record r;
        const char *body = (char *)data + at + sizeof r;
        memcpy(&r, (char *)data + at, sizeof r);
        CHECK_INT(r.op, want[i]);
        if (r.op == HOOK_WRITE) {
            CHECK_INT(r.off, 4);
            CHECK_INT(r.path_bytes, strlen(file.text));
            CHECK_SAME(body, file.text, strlen(file.text));
            CHECK_SAME(body + r.path_bytes, "12345", 5);
        }
        if (r.op == HOOK_TRUNCATE)
            CHECK_INT(r.off, 9);
        if (r.op == HOOK_RENAME) {
            CHECK_SAME(body, from.text, strlen(from.text));
            CHECK_SAME(body + r.path_bytes, to.text, strlen(to.text));
        }
        at += sizeof r + r.path_bytes + r.to_bytes + (size_t)r.bytes;
    }
    CHECK_INT(at, n);
    free(data);
}
