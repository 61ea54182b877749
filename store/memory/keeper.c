/* keeper.c - the process that keeps sets of memfds. See store/memory.h.
 *
 * One thread waits for connections, and for the end of processes that have given files to a set which is not
 * whole yet (pidfd): such a set is dropped, because no process can complete it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/io.h"
#include "store/memory/memory_wire.h"

#define REQUEST_S 5 /* a writer sends its request at once */

struct kept_file {
    char name[MEMORY_NAME_BYTES];
    int fd;
};
struct writer {
    pid_t pid;
    int pidfd;
};
struct kept_set {
    char name[MEMORY_NAME_BYTES];
    int whole, n, n_writers;
    struct kept_file *file;
    struct writer *writer; /* of a set that is not whole */
};
struct keeper {
    struct keeper_opts how;
    int listen, wake; /* wake: an eventfd that ends the thread */
    pthread_t thread;
    pthread_mutex_t lock;
    int n;
    struct kept_set *set;
};

/* ---- sets; under the lock ---- */

static void forget_writers(struct kept_set *s)
{
    for (int i = 0; i < s->n_writers; i++)
        io_close(s->writer[i].pidfd);
    free(s->writer);
    s->writer = NULL;
    s->n_writers = 0;
}

static void drop_set(struct keeper *k, int i)
{
    struct kept_set *s = &k->set[i];
    forget_writers(s);
    for (int f = s->n - 1; f >= 0; f--) /* the manifest first: readers look whether it is still there */
        io_close(s->file[f].fd);
    free(s->file);
    *s = k->set[--k->n];
}

static int find_set(const struct keeper *k, const char *name)
{
    for (int i = 0; i < k->n; i++)
        if (!strcmp(k->set[i].name, name))
            return i;
    return -1;
}

/* The number of a new set. -1: no memory. */
static int new_set(struct keeper *k, const char *name)
{
    struct kept_set *grown = realloc(k->set, sizeof *grown * (size_t)(k->n + 1));
    if (!grown)
        return -1;
    k->set = grown;
    grown[k->n] = (struct kept_set){ 0 };
    snprintf(grown[k->n].name, MEMORY_NAME_BYTES, "%s", name);
    return k->n++;
}

/* Drops the set when process pid ends before it is whole. 0: no memory, or it has ended. */
static int add_writer(struct kept_set *s, pid_t pid)
{
    for (int i = 0; i < s->n_writers; i++)
        if (s->writer[i].pid == pid)
            return 1;
    struct writer *grown = realloc(s->writer, sizeof *grown * (size_t)(s->n_writers + 1));
    if (!grown)
        return 0;
    s->writer = grown;
    grown[s->n_writers] = (struct writer){ pid, (int)syscall(SYS_pidfd_open, pid, 0) };
    return grown[s->n_writers++].pidfd >= 0;
}

static int add_file(struct kept_set *s, const char *name, int fd)
{
    struct kept_file *grown = realloc(s->file, sizeof *grown * (size_t)(s->n + 1));
    if (!grown)
        return 0;
    s->file = grown;
    snprintf(grown[s->n].name, MEMORY_NAME_BYTES, "%s", name);
    grown[s->n++].fd = fd;
    return 1;
}

static int has_file(const struct kept_set *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->file[i].name, name))
            return 1;
    return 0;
}

/* ---- requests; under the lock ---- */

static void refuse(struct memory_answer *a, int code, const char *text)
{
    a->code = code;
    snprintf(a->text, sizeof a->text, "%s", text);
}

static void begin(struct keeper *k, const struct memory_message *m, pid_t writer, struct memory_answer *a)
{
    int i = find_set(k, m->set);
    if (i >= 0 && k->set[i].whole) {
        refuse(a, ERR_FILE, "is there already: choose another name, or drop it first");
        return;
    }
    if (i >= 0)
        drop_set(k, i);
    i = new_set(k, m->set);
    if (i < 0 || !add_writer(&k->set[i], writer))
        refuse(a, ERR_MEMORY, "its keeper has no memory or descriptors left");
}

/* Takes fd over where *a says so. */
static void put(struct keeper *k, const struct memory_message *m, pid_t writer, int fd,
                struct memory_answer *a)
{
    int i = find_set(k, m->set);
    struct kept_set *s = i < 0 ? NULL : &k->set[i];
    if (fd < 0)
        refuse(a, ERR_FILE, "its keeper has too many open files (ulimit -n)");
    else if (!s) /* a new one would lack the files that were dropped */
        refuse(a, ERR_FILE, "is not there: a process that wrote to it has ended");
    else if (s->whole || has_file(s, m->file))
        refuse(a, ERR_FILE, "has that file already: choose another name for the set");
    else if (!add_writer(s, writer) || !add_file(s, m->file, fd))
        refuse(a, ERR_MEMORY, "its keeper has no memory or descriptors left");
    if (a->code)
        return;
    if (!strcmp(m->file, MEMORY_LAST)) {
        s->whole = 1;
        forget_writers(s);
    }
}

static int is_sane(struct memory_message *m)
{
    m->set[MEMORY_NAME_BYTES - 1] = m->file[MEMORY_NAME_BYTES - 1] = 0;
    return memory_name_is_good(m->set) && (m->request != REQUEST_PUT || memory_name_is_good(m->file));
}

/* Does what the writer asks for. Returns 1 when a set has become whole. */
static int answer(struct keeper *k, struct memory_message *m, pid_t writer, int fd, struct memory_answer *a)
{
    int is_whole = 0;
    pthread_mutex_lock(&k->lock);
    if (!is_sane(m)) {
        refuse(a, ERR_USAGE, "its keeper does not understand the request: is it of another version");
    } else if (m->request == REQUEST_BEGIN) {
        begin(k, m, writer, a);
    } else if (m->request == REQUEST_PUT) {
        put(k, m, writer, fd, a);
        is_whole = !a->code && !strcmp(m->file, MEMORY_LAST);
    } else if (m->request == REQUEST_DROP) {
        int i = find_set(k, m->set);
        if (i >= 0)
            drop_set(k, i);
    } else {
        refuse(a, ERR_USAGE, "its keeper does not know the request: is it of another version");
    }
    if (fd >= 0 && (a->code || m->request != REQUEST_PUT))
        io_close(fd);
    pthread_mutex_unlock(&k->lock);
    return is_whole;
}

/* ---- the thread ---- */

/* The first descriptor of a message, -1: none; the others are closed. */
static int take_descriptor(struct msghdr *h)
{
    int first = -1, fd;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof fd <= c->cmsg_len - CMSG_LEN(0); at += sizeof fd) {
            memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
            if (first < 0)
                first = fd;
            else
                io_close(fd);
        }
    }
    return first;
}

/* Receives a request and the descriptor in it (-1: none). 0: it is none. */
static int receive(int s, struct memory_message *m, int *fd)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec data = { m, sizeof *m };
    struct msghdr h = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room
    };
    const ssize_t n = recvmsg(s, &h, MSG_CMSG_CLOEXEC);
    *fd = n < 0 ? -1 : take_descriptor(&h);
    if (n == sizeof *m)
        return 1;
    io_close(*fd);
    return 0;
}

static void serve(struct keeper *k, int s)
{
    struct memory_message m;
    struct memory_answer a = { 0 };
    struct ucred who;
    socklen_t n_who = sizeof who;
    const struct timeval limit = { .tv_sec = REQUEST_S };
    int fd;
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (getsockopt(s, SOL_SOCKET, SO_PEERCRED, &who, &n_who) < 0 || who.uid != geteuid())
        return;
    if (!receive(s, &m, &fd))
        return;
    if (answer(k, &m, who.pid, fd, &a) && k->how.whole)
        k->how.whole(k->how.arg, m.set);
    while (send(s, &a, sizeof a, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

/* Fills p with the writers of sets that are not whole, behind its first n entries. */
static int list_writers(struct keeper *k, struct pollfd **p, int n)
{
    int need = n;
    pthread_mutex_lock(&k->lock);
    for (int i = 0; i < k->n; i++)
        need += k->set[i].n_writers;
    struct pollfd *grown = realloc(*p, sizeof *grown * (size_t)need);
    *p = grown ? grown : *p;
    for (int i = 0; grown && i < k->n; i++)
        for (int w = 0; w < k->set[i].n_writers; w++)
            grown[n++] = (struct pollfd){ k->set[i].writer[w].pidfd, POLLIN, 0 };
    pthread_mutex_unlock(&k->lock);
    return n;
}

/* 1: a process that has given files to the set has ended. */
static int has_lost_writer(const struct kept_set *s)
{
    for (int w = 0; w < s->n_writers; w++) {
        struct pollfd p = { s->writer[w].pidfd, POLLIN, 0 };
        if (poll(&p, 1, 0) > 0)
            return 1;
    }
    return 0;
}

static void drop_lost(struct keeper *k)
{
    pthread_mutex_lock(&k->lock);
    for (int i = k->n - 1; i >= 0; i--)
        if (!k->set[i].whole && has_lost_writer(&k->set[i]))
            drop_set(k, i);
    pthread_mutex_unlock(&k->lock);
}

static void *run(void *arg)
{
    static const struct timespec nap = { 0, 50000000 };
    struct keeper *k = arg;
    struct pollfd *p = malloc(2 * sizeof *p);
    while (p) {
        int n = list_writers(k, &p, 2);
        p[0] = (struct pollfd){ k->listen, POLLIN, 0 };
        p[1] = (struct pollfd){ k->wake, POLLIN, 0 };
        if (poll(p, (nfds_t)n, -1) < 0)
            continue;
        if (p[1].revents)
            break;
        drop_lost(k);
        int s = p[0].revents ? accept4(k->listen, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (s >= 0)
            serve(k, s);
        else if (p[0].revents) /* no descriptor is free: the connection waits, and poll does not */
            nanosleep(&nap, NULL);
        io_close(s);
    }
    free(p);
    return NULL;
}

/* ---- opening and closing ---- */

/* The thread takes no signals: those of the process are the main thread's. */
static int start_thread(struct keeper *k, struct err *e)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&k->thread, NULL, run, k);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc ? err_set(e, ERR_MEMORY, "cannot start the thread that keeps checkpoints in memory: %s",
                        strerror(rc))
              : 0;
}

int keeper_open(struct keeper **out, const struct keeper_opts *o, struct err *e)
{
    struct sockaddr_un a;
    socklen_t n = memory_address(getpid(), &a);
    int rc = 0;
    struct keeper *k = calloc(1, sizeof *k);
    if (!k)
        return err_set(e, ERR_MEMORY, "no memory to keep checkpoints");
    k->how = o ? *o : (struct keeper_opts){ 0 };
    pthread_mutex_init(&k->lock, NULL);
    k->wake = eventfd(0, EFD_CLOEXEC);
    k->listen = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (k->wake < 0 || k->listen < 0)
        rc = err_sys(e, "cannot keep checkpoints in memory");
    else if (bind(k->listen, (struct sockaddr *)&a, n) < 0 || listen(k->listen, 128) < 0)
        rc = err_sys(e, "cannot listen for checkpoints in memory at @%s", a.sun_path + 1);
    if (rc >= 0)
        rc = start_thread(k, e);
    if (rc < 0) {
        io_close(k->listen);
        io_close(k->wake);
        pthread_mutex_destroy(&k->lock);
        free(k);
        return rc;
    }
    *out = k;
    return 0;
}

void keeper_close(struct keeper *k)
{
    if (!k)
        return;
    const uint64_t one = 1;
    if (write(k->wake, &one, sizeof one) == sizeof one)
        pthread_join(k->thread, NULL);
    while (k->n)
        drop_set(k, k->n - 1);
    io_close(k->listen);
    io_close(k->wake);
    pthread_mutex_destroy(&k->lock);
    free(k->set);
    free(k);
}

void keeper_drop_unfinished(struct keeper *k)
{
    pthread_mutex_lock(&k->lock);
    for (int i = k->n - 1; i >= 0; i--)
        if (!k->set[i].whole)
            drop_set(k, i);
    pthread_mutex_unlock(&k->lock);
}
