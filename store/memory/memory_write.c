/* memory_write.c - files of a set made and passed to its keeper. See store/memory.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/io.h"
#include "store/memory/memory_wire.h"

#define ANSWER_S 60 /* the keeper may free gigabytes before it answers */

socklen_t memory_address(pid_t keeper, struct sockaddr_un *a)
{
    *a = (struct sockaddr_un){ .sun_family = AF_UNIX };
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "shardline-keeper-%ld", (long)keeper);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* A connection to the keeper; another process may have taken the address: PID and user are compared. */
static int connect_keeper(pid_t pid, const char *path, struct err *e)
{
    struct sockaddr_un a;
    struct ucred who;
    socklen_t n = memory_address(pid, &a), n_who = sizeof who;
    const struct timeval limit = { .tv_sec = ANSWER_S };
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (s < 0)
        return err_sys(e, "%s: cannot make a socket", path);
    if (connect(s, (struct sockaddr *)&a, n) < 0) {
        io_close(s);
        return err_set(e, ERR_FILE, "%s: process %ld keeps no sets: has it ended", path, (long)pid);
    }
    if (getsockopt(s, SOL_SOCKET, SO_PEERCRED, &who, &n_who) < 0 || who.pid != pid || who.uid != geteuid()) {
        io_close(s);
        return err_set(e, ERR_FILE,
                       "%s: process %ld does not answer, another one does: choose another keeper", path,
                       (long)pid);
    }
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return s;
}

int keeper_is_at(pid_t pid)
{
    struct err ignored;
    int s = connect_keeper(pid, "", &ignored);
    io_close(s);
    return s >= 0;
}

/* Sends m, with descriptor fd unless it is -1, and reads the answer. */
static int ask(pid_t pid, const char *path, const struct memory_message *m, int fd, struct err *e)
{
    struct memory_answer got = { 0 };
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = { 0 };
    struct iovec data = { (void *)m, sizeof *m };
    struct msghdr h = { .msg_iov = &data, .msg_iovlen = 1 };
    if (fd >= 0) {
        h.msg_control = control.room;
        h.msg_controllen = sizeof control.room;
        control.head = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)),
                                         .cmsg_level = SOL_SOCKET,
                                         .cmsg_type = SCM_RIGHTS };
        memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    }
    int rc = 0, s = connect_keeper(pid, path, e);
    if (s < 0)
        return s;
    ssize_t n = sendmsg(s, &h, MSG_NOSIGNAL);
    while (n == sizeof *m && (n = recv(s, &got, sizeof got, 0)) < 0 && errno == EINTR)
        n = sizeof *m;
    if (n != sizeof got)
        rc = err_set(e, ERR_FILE, "%s: process %ld, which keeps it, does not answer: has it ended", path,
                     (long)pid);
    else if (got.code)
        rc = err_set(e, got.code, "%s: %.255s", path, got.text);
    io_close(s);
    return rc;
}

static int fill(struct memory_message *m, enum memory_request request, const char *path, const char *file,
                pid_t *pid, struct err *e)
{
    *m = (struct memory_message){ .request = request };
    int rc = memory_parse(path, pid, m->set, e);
    if (rc < 0)
        return rc;
    if (!*m->set || strlen(m->set) + strlen(file) + 20 > 249) /* of a memfd's name */
        return err_set(e, ERR_USAGE, "%s: give mem:PID/SET with a short name for the set", path);
    if (*file && !memory_name_is_good(file))
        return err_set(e, ERR_USAGE, "%s/%s: in memory names have letters, digits and ._- only", path, file);
    snprintf(m->file, sizeof m->file, "%s", file);
    return 0;
}

int memory_begin(const char *path, struct err *e)
{
    struct memory_message m;
    pid_t pid;
    int rc = fill(&m, REQUEST_BEGIN, path, "", &pid, e);
    return rc < 0 ? rc : ask(pid, path, &m, -1, e);
}

int memory_drop(const char *path, struct err *e)
{
    struct memory_message m;
    pid_t pid;
    int rc = fill(&m, REQUEST_DROP, path, "", &pid, e);
    return rc < 0 ? rc : ask(pid, path, &m, -1, e);
}

int memory_create(const char *path, const char *name, struct err *e)
{
    struct memory_message m;
    char full[2 * MEMORY_NAME_BYTES + 20];
    pid_t pid;
    int rc = fill(&m, REQUEST_PUT, path, name, &pid, e);
    if (rc < 0)
        return rc;
    snprintf(full, sizeof full, MEMORY_PREFIX "%s/%s", m.set, m.file);
    int fd = memfd_create(full, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return err_set(e, ERR_MEMORY, "%s/%s: cannot make a file in memory: %s", path, name, strerror(errno));
    return fd;
}

int memory_give(int fd, const char *path, const char *name, struct err *e)
{
    struct memory_message m;
    pid_t pid;
    int rc = fill(&m, REQUEST_PUT, path, name, &pid, e);
    const int sealed = fcntl(fd, F_GET_SEALS);
    if (rc >= 0 && !(sealed > 0 && sealed & F_SEAL_WRITE) &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
        rc = err_sys(e, "%s/%s: cannot seal it", path, name);
    if (rc >= 0)
        rc = ask(pid, path, &m, fd, e);
    io_close(fd);
    return rc < 0 ? rc : 0;
}
