/* io.c - see io.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE              /* renameat2 */
#endif
#include "base/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK ((size_t)1 << 30)  /* one call moves at most 2 GiB - 4 KiB on Linux */

/* ---- SHARDLINE_IO_FAULT=op:N:ERRNO makes the N-th call of an operation fail ---- */

enum io_op { IO_OPEN, IO_READ, IO_WRITE, IO_FSYNC, IO_CLOSE, IO_RENAME, IO_OPS };
static const char *const op_name[IO_OPS] = { "open", "read", "write", "fsync", "close", "rename" };
static const struct { const char *name; int value; } errno_name[] = {
    { "ENOSPC", ENOSPC }, { "EDQUOT", EDQUOT }, { "EIO", EIO }, { "ENOENT", ENOENT }, { "EACCES", EACCES },
    { "EMFILE", EMFILE }, { "EROFS", EROFS }, { "ENOMEM", ENOMEM },
};

static int errno_of(const char *name)
{
    for (size_t i = 0; i < sizeof errno_name / sizeof *errno_name; i++)
        if (!strcmp(name, errno_name[i].name))
            return errno_name[i].value;
    return EIO;
}

/* 1, with errno set, when this call was chosen to fail. The counters are process-wide on purpose: the hook counts the calls
 * of a whole run. */
static int fault(enum io_op op)
{
    static _Atomic long n_calls[IO_OPS];
    const char *text = getenv("SHARDLINE_IO_FAULT");
    char name[16], code[16];
    long nth;
    if (!text || sscanf(text, "%15[^:]:%ld:%15s", name, &nth, code) != 3 || strcmp(name, op_name[op]))
        return 0;
    if (atomic_fetch_add(&n_calls[op], 1) + 1 != nth)
        return 0;
    errno = errno_of(code);
    return 1;
}

/* ---- one file ---- */

static int open_at(const char *path, int flags, const char *verb, struct err *e)
{
    int fd = -1;
    if (!fault(IO_OPEN))
        do
            fd = open(path, flags | O_CLOEXEC, 0666);
        while (fd < 0 && errno == EINTR);
    return fd < 0 ? err_sys(e, "cannot %s %s", verb, path) : fd;
}

int io_open_read(const char *path, struct err *e)
{
    return open_at(path, O_RDONLY, "open", e);
}

int io_create(const char *path, struct err *e)
{
    return open_at(path, O_RDWR | O_CREAT | O_EXCL, "create", e);
}

int64_t io_size(int fd, const char *path, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, "cannot read the size of %s", path);
    if (S_ISDIR(st.st_mode))
        return err_set(e, ERR_FILE, "%s is a folder: a file is needed", path);
    return st.st_size;
}

int io_pread(int fd, const char *path, void *buf, size_t n, int64_t off, struct err *e)
{
    char *p = buf;
    for (size_t done = 0; done < n;) {
        size_t want = n - done < CHUNK ? n - done : CHUNK;
        ssize_t got = fault(IO_READ) ? -1 : pread(fd, p + done, want, off + (int64_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_sys(e, "cannot read %s at byte %lld", path, (long long)off + (long long)done);
        if (got == 0)
            return err_set(e, ERR_FORMAT, "%s ends at byte %lld, %lld are needed: is it a whole file", path,
                           (long long)off + (long long)done, (long long)off + (long long)n);
        done += (size_t)got;
    }
    return 0;
}

int io_pwrite(int fd, const char *path, const void *buf, size_t n, int64_t off, struct err *e)
{
    const char *p = buf;
    for (size_t done = 0; done < n;) {
        size_t want = n - done < CHUNK ? n - done : CHUNK;
        ssize_t put = fault(IO_WRITE) ? -1 : pwrite(fd, p + done, want, off + (int64_t)done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            errno = put ? errno : ENOSPC;
            return err_sys(e, "cannot write %s at byte %lld", path, (long long)off + (long long)done);
        }
        done += (size_t)put;
    }
    return 0;
}

int io_sync_close(int fd, const char *path, struct err *e)
{
    int rc = 0;
    if (fault(IO_FSYNC) || fsync(fd) < 0)
        rc = err_sys(e, "cannot fsync %s", path);
    /* after a failed close the descriptor is gone on Linux: never close it again */
    int closed = close(fd) == 0;
    if (rc == 0 && (fault(IO_CLOSE) || !closed))
        rc = err_sys(e, "cannot close %s", path);
    return rc;
}

void io_close(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* ---- whole files ---- */

int io_read_file(const char *path, size_t limit, void **data, size_t *n, struct err *e)
{
    int rc = 0, fd;
    char *text = NULL;
    TRY(fd = io_open_read(path, e));
    int64_t size = io_size(fd, path, e);
    if (size < 0)
        rc = (int)size;
    else if ((uint64_t)size > limit)
        rc = err_set(e, ERR_FORMAT, "%s has %lld bytes, more than the %zu allowed here: is it the right file", path, (long long)size, limit);
    else if (!(text = malloc((size_t)size + 1)))
        rc = err_set(e, ERR_MEMORY, "no memory for the %lld bytes of %s", (long long)size, path);
    else
        rc = io_pread(fd, path, text, (size_t)size, 0, e);
    io_close(fd);
    if (rc < 0)
        goto out;
    text[size] = 0;
    *data = text;
    *n = (size_t)size;
    text = NULL;
out:
    free(text);
    return rc;
}

int io_write_file(const char *path, const void *data, size_t n, struct err *e)
{
    int fd = io_create(path, e);
    if (fd < 0)
        return fd;
    int rc = io_pwrite(fd, path, data, n, 0, e);
    if (rc == 0)
        return io_sync_close(fd, path, e);
    io_close(fd);
    return rc;
}

/* ---- folders ---- */

int io_sync_dir(const char *path, struct err *e)
{
    int fd = open_at(path, O_RDONLY | O_DIRECTORY, "open", e);
    if (fd < 0)
        return fd;
    int rc = fault(IO_FSYNC) || fsync(fd) < 0 ? err_sys(e, "cannot fsync folder %s", path) : 0;
    io_close(fd);
    return rc;
}

int io_rename(const char *from, const char *to, struct err *e)
{
    int rc = fault(IO_RENAME) ? -1 : renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
    if (rc < 0 && errno == EINVAL) {     /* a file system without RENAME_NOREPLACE (NFS): look first, as well as it goes */
        struct stat st;
        errno = EEXIST;
        rc = lstat(to, &st) == 0 ? -1 : rename(from, to);
    }
    if (rc < 0 && errno == EEXIST)
        return err_set(e, ERR_FILE, "%s exists: choose another name or remove it", to);
    return rc < 0 ? err_sys(e, "cannot rename %s to %s", from, to) : 0;
}

int io_mkdir(const char *path, struct err *e)
{
    if (mkdir(path, 0777) < 0)
        return err_sys(e, "cannot make folder %s", path);
    return 0;
}

static int remove_entry(const char *path, const char *name, struct err *e);

static int remove_entries(const char *path, struct err *e)
{
    int rc = 0;
    struct dirent *entry;
    DIR *d = opendir(path);
    if (!d)
        return errno == ENOENT ? 0 : err_sys(e, "cannot open folder %s", path);
    while (rc == 0 && (entry = readdir(d)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            rc = remove_entry(path, entry->d_name, e);
    closedir(d);
    return rc;
}

static int remove_entry(const char *path, const char *name, struct err *e)
{
    char *full = NULL;
    if (asprintf(&full, "%s/%s", path, name) < 0)
        return err_set(e, ERR_MEMORY, "no memory to remove %s", path);
    int rc = io_remove_tree(full, e);
    free(full);
    return rc;
}

int io_remove_tree(const char *path, struct err *e)
{
    struct stat st;
    if (lstat(path, &st) < 0)            /* lstat: a link is removed, never followed */
        return errno == ENOENT ? 0 : err_sys(e, "cannot look at %s", path);
    if (!S_ISDIR(st.st_mode))
        return unlink(path) < 0 && errno != ENOENT ? err_sys(e, "cannot remove %s", path) : 0;
    int rc = remove_entries(path, e);
    if (rc < 0)
        return rc;
    return rmdir(path) < 0 && errno != ENOENT ? err_sys(e, "cannot remove folder %s", path) : 0;
}

int io_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}
