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

int same_machine_open(const char *name, int64_t bytes)
{
    unsigned long long dev, ino;
    char path[64];
    struct stat st;
    struct err ignored;
    int pid, number, used = 0;
    if (sscanf(name, "%9d %9d %16llx %16llx%n", &pid, &number, &dev, &ino, &used) != 4 || name[used] ||
        pid <= 0 || number < 0)
        return -1;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, number);
    int fd = io_open_read(path, &ignored); /* whatever the number names by now */
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (unsigned long long)st.st_dev == dev &&
        (unsigned long long)st.st_ino == ino && (int64_t)st.st_size == bytes)
        return fd;
    io_close(fd);
    return -1;
}
