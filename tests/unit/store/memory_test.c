/* memory_test.c - store/memory.h: sets of memfds, their keeper, and what becomes of both when a process is
 * killed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pipe2 */
#endif
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/io.h"
#include "store/memory.h"
#include "store/memory/memory_wire.h"
#include "tests/test.h"

static struct keeper *open_keeper(void)
{
    struct keeper *k = NULL;
    struct err e = { 0 };
    CHECK_INT(keeper_open(&k, NULL, &e), 0);
    return k;
}

static const char *set_of(pid_t pid, const char *name)
{
    static char path[MEMORY_PATH_BYTES];
    snprintf(path, sizeof path, "mem:%ld/%s", (long)pid, name);
    return path;
}

/* Makes a file whose bytes tell file and place, and gives it to the keeper. */
static int put(const char *path, const char *name, size_t n, struct err *e)
{
    int fd = memory_create(path, name, e);
    if (fd < 0)
        return fd;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)(name[0] + i * 31);
        CHECK_INT(io_pwrite(fd, name, &c, 1, (int64_t)i, e), 0);
    }
    return memory_give(fd, path, name, e);
}

static void make_set(const char *path)
{
    struct err e = { 0 };
    CHECK_INT(memory_begin(path, &e), 0);
    CHECK_INT(put(path, "weights", 100, &e), 0);
    CHECK_INT(put(path, MEMORY_LAST, 10, &e), 0);
}

static int check_file(const struct memory_set *m, const char *name, size_t n)
{
    unsigned char *data = NULL;
    size_t have = 0, wrong = 0;
    struct err e = { 0 };
    const char *path = memory_file(m, name);
    if (!path || io_read_file(path, 1000, (void **)&data, &have, &e) < 0)
        return 0;
    for (size_t i = 0; i < have; i++)
        wrong += data[i] != (unsigned char)(name[0] + i * 31);
    free(data);
    return have == n && !wrong;
}

TEST(a_set_is_found_by_its_name_and_the_newest_one_without_a_name)
{
    struct keeper *k = open_keeper();
    struct memory_set *m = NULL;
    struct err e = { 0 };
    char text[MEMORY_PATH_BYTES], (*name)[MEMORY_NAME_BYTES];
    int n;
    make_set(set_of(getpid(), "step-9"));
    make_set(set_of(getpid(), "step-10"));
    CHECK_INT(memory_open(&m, set_of(getpid(), "step-9"), &e), 0);
    CHECK(check_file(m, "weights", 100));
    CHECK(check_file(m, MEMORY_LAST, 10));
    CHECK(!memory_file(m, "other"));
    memory_close(m);

    snprintf(text, sizeof text, "mem:%ld", (long)getpid());
    CHECK_INT(memory_open(&m, text, &e), 0);
    CHECK_STR(memory_path(m), set_of(getpid(), "step-10"));
    memory_close(m);
    CHECK_INT(memory_list(getpid(), &name, &n, &e), 0);
    CHECK_INT(n, 2);
    CHECK_STR(name[0], "step-9");
    CHECK_STR(name[1], "step-10");
    free(name);
    keeper_close(k);
}

TEST(a_set_stays_readable_for_those_who_opened_it_before_it_was_dropped)
{
    struct keeper *k = open_keeper();
    struct memory_set *m = NULL, *again = NULL;
    struct err e = { 0 };
    make_set(set_of(getpid(), "a"));
    CHECK_INT(memory_open(&m, set_of(getpid(), "a"), &e), 0);
    CHECK_INT(memory_drop(set_of(getpid(), "a"), &e), 0);
    CHECK(check_file(m, "weights", 100));
    memory_close(m);
    CHECK_INT(memory_open(&again, set_of(getpid(), "a"), &e), -ERR_FILE);
    make_set(set_of(getpid(), "a"));
    keeper_close(k);
    CHECK_INT(memory_open(&again, set_of(getpid(), "a"), &e), -ERR_FILE);
}

TEST(a_set_without_its_last_file_is_not_found)
{
    struct keeper *k = open_keeper();
    struct memory_set *m = NULL;
    struct err e = { 0 };
    const char *path = set_of(getpid(), "part");
    CHECK_INT(memory_begin(path, &e), 0);
    CHECK_INT(put(path, "weights", 100, &e), 0);
    CHECK_INT(memory_bytes(path, "weights", &e), 100);
    CHECK_INT(memory_open(&m, path, &e), -ERR_FILE);
    CHECK_HAS(e.text, "keeps no whole checkpoint");
    CHECK_INT(memory_begin(path, &e), 0); /* begins again without the file */
    CHECK(memory_bytes(path, "weights", &e) < 0);
    keeper_close(k);
}

TEST(a_whole_set_takes_no_other_file_and_its_bytes_do_not_change)
{
    struct keeper *k = open_keeper();
    struct memory_set *m = NULL;
    struct err e = { 0 };
    char path[MEMORY_PATH_BYTES], text[MEMORY_PATH_BYTES];
    snprintf(path, sizeof path, "%s", set_of(getpid(), "b"));
    make_set(path);
    CHECK_INT(put(path, "more", 5, &e), -ERR_FILE);
    CHECK_INT(put(path, "weights", 5, &e), -ERR_FILE);
    CHECK_INT(memory_begin(path, &e), -ERR_FILE);
    CHECK_HAS(e.text, "is there already");
    CHECK_INT(memory_open(&m, path, &e), 0);
    snprintf(text, sizeof text, "%s", memory_file(m, "weights"));
    int fd = open(text, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        CHECK(pwrite(fd, "x", 1, 0) < 0);
        CHECK(ftruncate(fd, 0) < 0);
        close(fd);
    }
    CHECK(check_file(m, "weights", 100));
    memory_close(m);
    keeper_close(k);
}

/* Runs f in a child, which is killed when it has written a byte. */
static void run_and_kill(void (*f)(const char *path), const char *path)
{
    int done[2];
    char c;
    CHECK_INT(pipe(done), 0);
    pid_t p = fork();
    if (p == 0) {
        f(path);
        if (write(done[1], "x", 1) == 1)
            pause();
        _exit(0);
    }
    close(done[1]);
    CHECK_INT(read(done[0], &c, 1), 1);
    close(done[0]);
    kill(p, SIGKILL);
    waitpid(p, NULL, 0);
}

static void put_part(const char *path)
{
    struct err e = { 0 };
    if (memory_begin(path, &e) < 0 || put(path, "weights", 100, &e) < 0)
        _exit(1);
}

TEST(a_killed_writer_leaves_whole_sets_whole_and_its_unfinished_one_is_dropped)
{
    struct keeper *k = open_keeper();
    struct memory_set *m = NULL;
    struct err e = { 0 };
    char whole[MEMORY_PATH_BYTES], part[MEMORY_PATH_BYTES];
    snprintf(whole, sizeof whole, "%s", set_of(getpid(), "whole"));
    snprintf(part, sizeof part, "%s", set_of(getpid(), "part"));
    run_and_kill(make_set, whole);
    CHECK_INT(memory_open(&m, whole, &e), 0);
    CHECK(check_file(m, "weights", 100));
    memory_close(m);

    /* the keeper has dropped it when it answers the next request */
    run_and_kill(put_part, part);
    CHECK_INT(memory_drop(set_of(getpid(), "none"), &e), 0);
    CHECK(memory_bytes(part, "weights", &e) < 0);
    CHECK_INT(memory_open(&m, whole, &e), 0);
    memory_close(m);
    keeper_close(k);
}

TEST(a_set_that_lost_a_writer_takes_no_other_file)
{
    struct keeper *k = open_keeper();
    struct memory_set *m = NULL;
    struct err e = { 0 };
    char part[MEMORY_PATH_BYTES];
    snprintf(part, sizeof part, "%s", set_of(getpid(), "part"));
    run_and_kill(put_part, part);
    CHECK_INT(put(part, "more", 10, &e), -ERR_FILE);
    CHECK_HAS(e.text, "is not there: a process that wrote to it has ended");
    CHECK_INT(put(part, MEMORY_LAST, 10, &e), -ERR_FILE);
    CHECK_INT(memory_open(&m, part, &e), -ERR_FILE);
    make_set(part);
    CHECK_INT(memory_open(&m, part, &e), 0);
    memory_close(m);
    keeper_close(k);
}

TEST(a_file_that_cannot_be_opened_is_an_error_and_no_file_that_is_gone)
{
    struct keeper *k = open_keeper();
    struct memory_set *m = NULL;
    struct err e = { 0 };
    struct rlimit before, few;
    make_set(set_of(getpid(), "a"));
    int next = dup(0); /* the lowest free one: the folder's; the first file is next + 1 */
    close(next);
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){ (rlim_t)next + 2, before.rlim_max };
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
    int rc = memory_open(&m, set_of(getpid(), "a"), &e);
    setrlimit(RLIMIT_NOFILE, &before);
    CHECK(rc < 0);
    CHECK_HAS(e.text, "Too many open files");
    keeper_close(k);
}

/* Sends n bytes that are no request, with a descriptor. */
static void send_nonsense(int fd, size_t n)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof fd)];
    } control = { 0 };
    char bytes[32] = { 0 };
    struct sockaddr_un a;
    socklen_t n_a = memory_address(getpid(), &a);
    struct iovec data = { bytes, n };
    struct msghdr h = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room
    };
    control.head = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof fd),
                                     .cmsg_level = SOL_SOCKET,
                                     .cmsg_type = SCM_RIGHTS };
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK_INT(connect(s, (struct sockaddr *)&a, n_a), 0);
    CHECK_INT(sendmsg(s, &h, 0), (int64_t)n);
    CHECK_INT(recv(s, bytes, sizeof bytes, 0), 0); /* closed without an answer */
    close(s);
}

TEST(the_descriptor_of_what_is_no_request_is_closed)
{
    struct keeper *k = open_keeper();
    int end[2];
    char c;
    CHECK_INT(pipe2(end, O_CLOEXEC | O_NONBLOCK), 0);
    send_nonsense(end[1], 5);
    close(end[1]);
    CHECK_INT(read(end[0], &c, 1), 0); /* no process can write into it */
    close(end[0]);
    keeper_close(k);
}

TEST(a_killed_keeper_is_one_clear_line_and_its_sets_live_on_with_their_readers)
{
    struct memory_set *m = NULL, *none = NULL;
    struct err e = { 0 };
    int ready[2];
    char c, path[MEMORY_PATH_BYTES];
    CHECK_INT(pipe(ready), 0);
    pid_t p = fork();
    if (p == 0) {
        open_keeper();
        make_set(set_of(getpid(), "x"));
        if (write(ready[1], "x", 1) == 1)
            pause();
        _exit(0);
    }
    close(ready[1]);
    CHECK_INT(read(ready[0], &c, 1), 1);
    close(ready[0]);
    snprintf(path, sizeof path, "%s", set_of(p, "x"));
    CHECK_INT(memory_open(&m, path, &e), 0);
    kill(p, SIGKILL);
    waitpid(p, NULL, 0);
    CHECK(check_file(m, "weights", 100));
    memory_close(m);
    CHECK_INT(memory_open(&none, path, &e), -ERR_FILE);
    CHECK_HAS(e.text, "has ended");
    CHECK_INT(memory_begin(path, &e), -ERR_FILE);
    CHECK_HAS(e.text, "keeps no sets");
}

TEST(names_that_would_be_paths_and_files_that_do_not_fit_are_refused)
{
    static const char *const bad[] = { "mem:",   "mem:x",     "mem:-4/a", "mem:0/a",
                                       "mem:1/", "mem:1/a/b", "mem:1/a b" };
    struct memory_set *m = NULL;
    struct err e = { 0 };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_INT(memory_open(&m, bad[i], &e), -ERR_USAGE);
    CHECK_INT(memory_create(set_of(getpid(), "a"), "../x", &e), -ERR_USAGE);

    struct rlimit before, none = { 0, 0 };
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &before), 0);
    none.rlim_max = before.rlim_max;
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = memory_create(set_of(getpid(), "a"), "x", &e);
    setrlimit(RLIMIT_NOFILE, &before);
    CHECK_INT(rc, -ERR_MEMORY);
    CHECK_HAS(e.text, "cannot make a file in memory");
}
