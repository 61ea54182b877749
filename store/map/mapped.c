/* mapped.c - see store/mapped.h.
 *
 *   reserve:  [ …   | 2 MiB multiple: the file, page by page | … ]     PROT_NONE, without memory
 *
 * The reserved space in front and behind is given back. */
#define _GNU_SOURCE /* program_invocation_short_name, MADV_* */
#include "store/mapped.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "base/io.h"
#include "base/mem.h"
#include "base/test_hooks.h"

#define LARGE ((size_t)2 << 20)
#define PAGE ((size_t)4096)
#define PIECE ((int64_t)16 << 20) /* populated at a time */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

struct mapped {
    char *at;
    size_t bytes, mapped_bytes; /* of the file; whole pages */
    int fd;                     /* holds the lock */
    char *path;
};

/* ---- SIGBUS ---- */

/* The open mappings, for the signal's handler. A mapping that finds no place has no line of its own. */
enum { KNOWN_MAX = 1024 };
static struct mapped *_Atomic known[KNOWN_MAX];
static struct sigaction before;
static pthread_once_t handles = PTHREAD_ONCE_INIT;
static atomic_flag ends = ATOMIC_FLAG_INIT; /* a thread writes the line */

/* Who prints the error line of a job of several ranks: arg is stored before fn. */
static struct {
    int (*_Atomic fn)(void *arg);
    void *_Atomic arg;
} claims;
#define OTHER_LINE_S 2 /* so long the thread that prints another line has to end the process */

void mapped_set_claim(int (*claim)(void *arg), void *arg)
{
    atomic_store(&claims.fn, NULL);
    atomic_store(&claims.arg, arg);
    atomic_store(&claims.fn, claim);
}

/* Puts text behind *n bytes of line. Everything here may run inside a signal's handler. */
static void put(char *line, size_t *n, size_t size, const char *text)
{
    while (*text && *n + 1 < size)
        line[(*n)++] = *text++;
}

static void put_number(char *line, size_t *n, size_t size, size_t value)
{
    char digits[24];
    size_t i = sizeof digits - 1;
    digits[i] = 0;
    do
        digits[--i] = (char)('0' + value % 10);
    while (value /= 10);
    put(line, n, size, digits + i);
}

static void end_with_line(const struct mapped *m, size_t offset)
{
    char line[1024];
    size_t n = 0;
    while (atomic_flag_test_and_set(&ends))
        pause(); /* another thread ends the process */

    int (*claim)(void *arg) = atomic_load(&claims.fn);
    if (claim && !claim(atomic_load(&claims.arg))) {
        nanosleep(&(struct timespec){ .tv_sec = OTHER_LINE_S }, NULL);
        _exit(err_exit_status(ERR_FILE));
    }
    put(line, &n, sizeof line, program_invocation_short_name);
    put(line, &n, sizeof line, ": ");
    put(line, &n, sizeof line - 200, m->path);
    put(line, &n, sizeof line, ": byte ");
    put_number(line, &n, sizeof line, offset);
    put(line, &n, sizeof line,
        " cannot be read any more: the file was cut while it was in use, or the disk fails\n");
    ssize_t ignored = write(2, line, n);
    (void)ignored;
    _exit(err_exit_status(ERR_FILE));
}

/* A fault elsewhere is handled as before this handler: the access is repeated. */
static void on_sigbus(int number, siginfo_t *info, void *context)
{
    (void)context;
    for (int i = 0; i < KNOWN_MAX; i++) {
        const struct mapped *m = atomic_load(&known[i]);
        const char *at = info->si_addr;
        if (m && at >= m->at && at < m->at + m->mapped_bytes)
            end_with_line(m, (size_t)(at - m->at));
    }
    sigaction(number, &before, NULL);
}

static void handle_sigbus(void)
{
    struct sigaction act = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK };
    sigemptyset(&act.sa_mask);
    sigaction(SIGBUS, &act, &before);
}

static void make_known(struct mapped *m)
{
    pthread_once(&handles, handle_sigbus);
    for (int i = 0; i < KNOWN_MAX; i++) {
        struct mapped *none = NULL;
        if (atomic_compare_exchange_strong(&known[i], &none, m))
            return;
    }
}

static void forget(struct mapped *m)
{
    for (int i = 0; i < KNOWN_MAX; i++) {
        struct mapped *it = m;
        if (atomic_compare_exchange_strong(&known[i], &it, NULL))
            return;
    }
}

/* ---- mapping ---- */

/* Maps the file at a multiple of 2 MiB. */
static int map_file(struct mapped *m, struct err *e)
{
    m->mapped_bytes = mem_round_up(m->bytes, PAGE);
    size_t all = m->mapped_bytes + LARGE;
    char *space = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return err_sys(e, "%s: no address space to map %zu MiB", m->path, m->bytes >> 20);

    char *at = (char *)mem_round_up((size_t)space, LARGE), *end = at + m->mapped_bytes;
    if (at > space)
        munmap(space, (size_t)(at - space));
    if (space + all > end)
        munmap(end, (size_t)(space + all - end));
    if (mmap(at, m->bytes, PROT_READ, MAP_SHARED | MAP_FIXED, m->fd, 0) == MAP_FAILED) {
        int rc = err_sys(e, "%s: cannot be mapped", m->path);
        munmap(at, m->mapped_bytes);
        return rc;
    }
    m->at = at;
    madvise(at, m->mapped_bytes, MADV_HUGEPAGE); /* may be refused: then the kernel chooses */
    return 0;
}

int mapped_open(struct mapped **out, const char *path, int64_t want_bytes, struct err *e)
{
    struct mapped *m = calloc(1, sizeof *m);
    int64_t size;
    int rc;

    *out = NULL;
    if (!m || !(m->path = strdup(path))) {
        free(m);
        return err_set(e, ERR_MEMORY, "no memory to map a file");
    }
    rc = m->fd = io_open_read(path, e);
    if (rc < 0)
        goto out;
    TRY(io_try_lock(m->fd, 1) == IO_BUSY
            ? err_set(e, ERR_FILE, "%s: another process is writing it: wait until it has ended", path)
            : 0);
    TRY((size = io_size(m->fd, path, e)) < 0 ? (int)size : 0);
    if (size < want_bytes || !size) {
        rc = err_set(e, ERR_FORMAT, "%s has %lld bytes, its tables say %lld: is the file still being copied",
                     path, (long long)size, (long long)want_bytes);
        goto out;
    }
    m->bytes = (size_t)size;
    TRY(map_file(m, e));
    make_known(m);
    *out = m;
    m = NULL;
    rc = 0;
out:
    mapped_close(m);
    return rc;
}

void mapped_close(struct mapped *m)
{
    if (!m)
        return;
    forget(m);
    if (m->at)
        munmap(m->at, m->mapped_bytes);
    if (m->fd >= 0)
        io_close(m->fd);
    free(m->path);
    free(m);
}

const char *mapped_at(const struct mapped *m) { return m->at; }
int64_t mapped_bytes(const struct mapped *m) { return (int64_t)m->bytes; }

/* ---- pages ---- */

/* Reads a byte of every page, where the kernel cannot populate (before 5.14). */
static void touch(const char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += PAGE)
        (void)*(const volatile char *)(at + i);
}

int mapped_populate(struct mapped *m, int64_t begin, int64_t end, const volatile sig_atomic_t *stop,
                    struct err *e)
{
    int64_t n;
    begin = begin / (int64_t)PAGE * (int64_t)PAGE;
    end = end < (int64_t)m->mapped_bytes ? end : (int64_t)m->mapped_bytes;
    for (; begin < end && !(stop && *stop); begin += n) {
        n = end - begin < PIECE ? end - begin : PIECE;
        if (madvise(m->at + begin, (size_t)n, MADV_POPULATE_READ) == 0)
            continue;
        if (errno == EFAULT || errno == EHWPOISON)
            return err_set(e, ERR_FILE,
                           "%s: bytes %lld to %lld cannot be read any more: the file was cut while it was in "
                           "use, or the disk fails",
                           m->path, (long long)begin, (long long)(begin + n));
        touch(m->at + begin, (size_t)n);
    }
    return 0;
}

int64_t mapped_large_bytes(const struct mapped *m)
{
    FILE *f = hook_no_large_folios() ? NULL : fopen("/proc/self/smaps", "re");
    char line[512];
    int inside = 0;
    long long kib = 0, sum = 0;

    while (f && fgets(line, sizeof line, f)) {
        size_t from, to;
        if (sscanf(line, "%zx-%zx ", &from, &to) == 2)
            inside = from >= (size_t)m->at && to <= (size_t)m->at + m->mapped_bytes;
        else if (inside && sscanf(line, "FilePmdMapped: %lld", &kib) == 1)
            sum += kib << 10;
    }
    if (f)
        fclose(f);
    return sum;
}

void mapped_drop(struct mapped *m, int64_t begin, int64_t end)
{
    begin = (int64_t)mem_round_up((size_t)begin, PAGE);
    end = end / (int64_t)PAGE * (int64_t)PAGE;
    if (begin < end)
        madvise(m->at + begin, (size_t)(end - begin), MADV_DONTNEED);
}
