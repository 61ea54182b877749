/* test_hooks.c - see test_hooks.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/test_hooks.h"
#include "base/alter.h"
#include "base/env.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static const struct {
    const char *name;
    int value;
} errno_name[] = {
    { "ENOSPC", ENOSPC }, { "EDQUOT", EDQUOT }, { "EIO", EIO },
    { "ENOENT", ENOENT }, { "EACCES", EACCES }, { "EMFILE", EMFILE },
    { "EROFS", EROFS },   { "ENOMEM", ENOMEM }, { "EINTR", EINTR },
};

static int errno_of(const char *name)
{
    for (size_t i = 0; i < sizeof errno_name / sizeof *errno_name; i++)
        if (!strcmp(name, errno_name[i].name))
            return errno_name[i].value;
    return EIO;
}

static const char *const op_name[HOOK_OPS] = {
#define X(name, text) text,
    HOOK_LIST(X)
#undef X
};

static void sleep_ms(long n)
{
    struct timespec t = { n / 1000, n % 1000 * 1000000 };
    if (n > 0)
        nanosleep(&t, NULL);
}

/* A disk that is slow. */
static void be_slow(enum hook_op op)
{
    int slow = op == HOOK_WRITE || op == HOOK_FSYNC || op == HOOK_AIO_WRITE;
    const char *ms = slow ? env_get(ENV_SHARDLINE_IO_SLOW) : NULL;
    sleep_ms(ms ? atol(ms) : 0);
}

/* A disk that does not answer for a while. */
static void stall(enum hook_op op)
{
    static _Atomic long n_calls[HOOK_OPS];
    const char *text = env_get(ENV_SHARDLINE_IO_STALL);
    char name[16];
    long nth, ms;
    if (text && sscanf(text, "%15[^:]:%ld:%ld", name, &nth, &ms) == 3 && !strcmp(name, op_name[op]) &&
        atomic_fetch_add(&n_calls[op], 1) + 1 == nth)
        sleep_ms(ms);
}

int hook_fault(enum hook_op op)
{
    static _Atomic long n_calls[HOOK_OPS];
    const char *text = env_get(ENV_SHARDLINE_IO_FAULT);
    char name[16], code[16];
    long nth;
    be_slow(op);
    stall(op);
    if (!text || sscanf(text, "%15[^:]:%ld:%15s", name, &nth, code) != 3 || strcmp(name, op_name[op]))
        return 0;
    if (atomic_fetch_add(&n_calls[op], 1) + 1 != nth)
        return 0;
    hook_note(op, HOOK_FAILED, NULL, 0, NULL, 0);
    errno = errno_of(code);
    return 1;
}

void hook_note(enum hook_op op, const char *path, const char *to, int64_t off, const void *data, size_t bytes)
{
    const char *log = env_get(ENV_SHARDLINE_IO_RECORD);
    int saved = errno;
    if (!log)
        return;
    struct hook_record r = { .op = op,
                             .path_bytes = (uint32_t)strlen(path),
                             .to_bytes = to ? (uint32_t)strlen(to) : 0,
                             .off = off,
                             .bytes = (int64_t)bytes };
    struct iovec part[] = { { &r, sizeof r },
                            { (void *)(uintptr_t)path, r.path_bytes },
                            { (void *)(uintptr_t)to, r.to_bytes },
                            { (void *)(uintptr_t)data, bytes } };
    ssize_t all = (ssize_t)(sizeof r + r.path_bytes + r.to_bytes + bytes);
    /* one append a record: those of several threads and ranks do not mix */
    int fd = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || writev(fd, part, 4) != all)
        fprintf(stderr, "cannot record in %s: %s\n", log, strerror(errno));
    if (fd >= 0)
        close(fd);
    errno = saved;
}

int hook_short_counts(void) { return env_get(ENV_SHARDLINE_IO_SHORT) != NULL; }

int hook_aio_threads(void)
{
    const char *way = env_get(ENV_SHARDLINE_AIO);
    return way && !strcmp(way, "threads");
}

int hook_no_large_folios(void)
{
    const char *large = env_get(ENV_SHARDLINE_LARGE_FOLIOS);
    return large && !strcmp(large, "off");
}

int hook_maps_weights(void)
{
    const char *how = env_get(ENV_SHARDLINE_MAP);
    return !how || strcmp(how, "off");
}

int hook_packs_every_ms(void)
{
    const char *how = env_get(ENV_SHARDLINE_MAP);
    return how ? !strcmp(how, "rows") ? -1 : atoi(how) : 0;
}

int64_t hook_free_memory(void)
{
    const char *bytes = env_get(ENV_SHARDLINE_MEMORY_ROOM);
    return bytes ? atoll(bytes) : -1;
}

const char *hook_machine_root(void)
{
    const char *root = env_get(ENV_SHARDLINE_MACHINE_ROOT);
    return root ? root : "";
}

const char *hook_device_library(void) { return env_get(ENV_SHARDLINE_DEVICE); }
const char *hook_drafter(void) { return env_get(ENV_SHARDLINE_DRAFTER); }

const char *hook_answer(void) { return env_get(ENV_SHARDLINE_ANSWER); }

#ifdef SHARDLINE_ALTER
int alter_is(const char *name)
{
    const char *chosen = env_get(ENV_SHARDLINE_ALTER);
    return chosen && !strcmp(chosen, name);
}
#endif
