/* same_machine.c - see same_machine.h. */
#include "store/same_machine.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/io.h"

int same_machine_name(int fd, char out[SAME_MACHINE_BYTES])
{
    struct stat st;
    *out = 0;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    snprintf(out, SAME_MACHINE_BYTES, "%ld %d %llx %llx", (long)getpid(), fd, (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    return 1;
}

struct wanted {
    unsigned long long dev, ino;
    int64_t bytes;
};

static int is_wanted(const struct stat *st, const struct wanted *w)
{
    return S_ISREG(st->st_mode) && (unsigned long long)st->st_dev == w->dev &&
           (unsigned long long)st->st_ino == w->ino && (int64_t)st->st_size == w->bytes;
}

int same_machine_open(const char *name, int64_t bytes)
{
    unsigned long long dev, ino;
    char process[32], path[64];
    struct stat st;
    struct err ignored;
    int pid, number, used = 0;
    if (sscanf(name, "%9d %9d %16llx %16llx%n", &pid, &number, &dev, &ino, &used) != 4 || name[used] ||
        pid <= 0 || number < 0)
        return -1;
    const struct wanted want = { dev, ino, bytes };
    snprintf(process, sizeof process, "/proc/%d", pid);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, number);
    if (stat(process, &st) < 0 || st.st_uid != geteuid()) /* root could open any process's files */
        return -1;
    if (stat(path, &st) < 0 || !is_wanted(&st, &want)) /* to open a pipe or a device may change it */
        return -1;
    int fd = io_open_read(path, &ignored);
    if (fd < 0 || (fstat(fd, &st) == 0 && is_wanted(&st, &want))) /* the number may name another one by now */
        return fd < 0 ? -1 : fd;
    io_close(fd);
    return -1;
}
