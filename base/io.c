/* io.c - see io.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* renameat2 */
#endif
#include "base/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/test_hooks.h"

#define CHUNK ((size_t)1 << 30) /* one call moves at most 2 GiB - 4 KiB on Linux */

/* ---- the process ---- */

/* Reading from /dev/null opened for writing fails, and writing to it opened for reading, as on a closed
 * descriptor. Writing to stderr succeeds: its text is lost. */
void io_begin(void)
{
    static const int flags[] = { O_WRONLY, O_RDONLY, O_RDWR };
    for (int fd = 0; fd < 3; fd++)
        while (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", flags[fd]) >= 0)
            ; /* the lowest free number, which is fd */
    signal(SIGXFSZ, SIG_IGN);
    setlocale(LC_ALL, "C");
}

int io_flush_stdout(struct err *e)
{
    return fflush(stdout) || ferror(stdout) ? err_sys(e, "cannot write to stdout") : 0;
}

int io_end(int rc, struct err *e, const char *program)
{
    if (rc >= 0)
        rc = io_flush_stdout(e);
    return rc < 0 ? err_print(e, program) : 0;
}

/* ---- one file ---- */

static int open_at(const char *path, int flags, const char *verb, struct err *e)
{
    int fd = -1;
    do
        fd = hook_fault(HOOK_OPEN) ? -1 : open(path, flags | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return err_sys(e, "cannot %s %s", verb, path);
    if (flags & O_CREAT)
        hook_note(HOOK_OPEN, path, NULL, 0, NULL, 0);
    return fd;
}

static int not_regular(const char *path, struct err *e)
{
    return err_set(e, ERR_FILE, "%s is a pipe or a device: write it to a file first", path);
}

/* O_NONBLOCK: the open of a pipe that has no writer would not return, not even for SIGTERM. It changes
 * nothing for a regular file. */
int io_open_read(const char *path, struct err *e)
{
    struct stat st;
    int fd = open_at(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, "open", e);
    if (fd < 0 || (fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))))
        return fd;
    io_close(fd);
    return not_regular(path, e);
}

int io_create(const char *path, struct err *e)
{
    return open_at(path, O_RDWR | O_CREAT | O_EXCL, "create", e);
}

int io_open_write(const char *path, struct err *e) { return open_at(path, O_RDWR | O_CREAT, "open", e); }

int io_open_sink(const char *path, int append, mode_t mode, struct err *e)
{
    int flags = O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (append ? O_APPEND : O_TRUNC), fd;
    do
        fd = open(path, flags, mode);
    while (fd < 0 && errno == EINTR);
    if (fd < 0 && errno == ENXIO)
        return err_set(e, ERR_FILE, "%s is a pipe that nobody reads: start its reader first, or name a file",
                       path);
    return fd < 0 ? err_sys(e, "cannot write %s", path) : fd;
}

FILE *io_write_text(const char *path, int append, struct err *e)
{
    int fd = io_open_sink(path, append, 0666, e);
    if (fd < 0)
        return NULL;
    /* without O_NONBLOCK: a slow reader of a pipe loses no line */
    FILE *f = fcntl(fd, F_SETFL, append ? O_APPEND : 0) < 0 ? NULL : fdopen(fd, append ? "a" : "w");
    if (!f) {
        err_sys(e, "cannot write %s", path);
        io_close(fd);
    }
    return f;
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

static struct io_mark mark_of(const struct stat *st)
{
    int64_t ns = (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec;
    return (struct io_mark){ st->st_dev, st->st_ino, st->st_size, ns };
}

int io_mark(int fd, const char *path, struct io_mark *m, struct err *e)
{
    struct stat st;
    int64_t size = io_size(fd, path, e);
    if (size < 0)
        return (int)size;
    if (fstat(fd, &st) < 0)
        return err_sys(e, "cannot read the size of %s", path);
    *m = mark_of(&st);
    return 0;
}

void io_mark_path(const char *path, struct io_mark *m)
{
    struct stat st;
    *m = stat(path, &st) < 0 ? (struct io_mark){ 0 } : mark_of(&st);
}

int io_check_same(const char *path, const struct io_mark *m, struct err *e)
{
    struct io_mark now;
    io_mark_path(path, &now);
    if (!m->ino || !now.ino || !memcmp(m, &now, sizeof now))
        return 0;
    return err_set(e, ERR_INTEGRITY, "%s: changed while it was read: start again", path);
}

int io_check_mark(const char *path, const struct io_mark *m, struct err *e)
{
    struct stat st;
    if (stat(path, &st) < 0 || st.st_dev != m->dev || st.st_ino != m->ino || st.st_size >= m->bytes)
        return 0;
    return err_set(e, ERR_INTEGRITY, "%s was cut from %lld to %lld bytes while it was read: restore it", path,
                   (long long)m->bytes, (long long)st.st_size);
}

int io_reserve(int fd, const char *path, int64_t bytes, struct err *e)
{
    int rc;
    do
        rc = bytes ? fallocate(fd, 0, 0, bytes) : 0;
    while (rc < 0 && errno == EINTR);
    return rc < 0 && errno != EOPNOTSUPP && errno != ENOSYS
               ? err_sys(e, "cannot reserve %lld bytes for %s", (long long)bytes, path)
               : 0;
}

void io_punch(int fd, int64_t off, int64_t n)
{
    if (n > 0)
        (void)!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, n);
}

int io_pread(int fd, const char *path, void *buf, size_t n, int64_t off, struct err *e)
{
    char *p = buf;
    for (size_t done = 0; done < n;) {
        size_t want = n - done < CHUNK ? n - done : CHUNK;
        ssize_t got = hook_fault(HOOK_READ) ? -1 : pread(fd, p + done, want, off + (int64_t)done);
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
        ssize_t put = hook_fault(HOOK_WRITE) ? -1 : pwrite(fd, p + done, want, off + (int64_t)done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            errno = put ? errno : ENOSPC;
            return err_sys(e, "cannot write %s at byte %lld", path, (long long)off + (long long)done);
        }
        hook_note(HOOK_WRITE, path, NULL, off + (int64_t)done, p + done, (size_t)put);
        done += (size_t)put;
    }
    return 0;
}

int io_truncate(int fd, const char *path, int64_t bytes, struct err *e)
{
    if (hook_fault(HOOK_TRUNCATE) || ftruncate(fd, bytes) < 0)
        return err_sys(e, "cannot make %s %lld bytes long", path, (long long)bytes);
    hook_note(HOOK_TRUNCATE, path, NULL, bytes, NULL, 0);
    return 0;
}

static int sync_fd(int fd, const char *what, const char *path, struct err *e)
{
    if (hook_fault(HOOK_FSYNC) || fsync(fd) < 0)
        return err_sys(e, "cannot fsync %s%s", what, path);
    hook_note(HOOK_FSYNC, path, NULL, 0, NULL, 0);
    return 0;
}

int io_sync_close(int fd, const char *path, struct err *e)
{
    int rc = sync_fd(fd, "", path, e);
    /* Linux releases the descriptor even when close fails: never close it again */
    int closed = close(fd) == 0;
    if (rc == 0 && (hook_fault(HOOK_CLOSE) || !closed))
        rc = err_sys(e, "cannot close %s", path);
    if (closed)
        hook_note(HOOK_CLOSE, path, NULL, 0, NULL, 0);
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
        rc = err_set(e, ERR_FORMAT, "%s has %lld bytes, more than the %zu allowed here: is it the right file",
                     path, (long long)size, limit);
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
    int rc = sync_fd(fd, "folder ", path, e);
    io_close(fd);
    return rc;
}

int io_sync_file(const char *path, struct err *e)
{
    int fd = io_open_read(path, e);
    if (fd < 0)
        return fd;
    int rc = sync_fd(fd, "", path, e);
    io_close(fd);
    return rc;
}

int io_rename(const char *from, const char *to, struct err *e)
{
    int rc = hook_fault(HOOK_RENAME) ? -1 : renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
    /* a file system without RENAME_NOREPLACE (NFS): look first; another process may still come between */
    if (rc < 0 && errno == EINVAL) {
        struct stat st;
        errno = EEXIST;
        rc = lstat(to, &st) == 0 ? -1 : rename(from, to);
    }
    if (rc < 0 && errno == EEXIST)
        return err_set(e, ERR_FILE, "%s exists: choose another name or remove it", to);
    if (rc < 0)
        return err_sys(e, "cannot rename %s to %s", from, to);
    hook_note(HOOK_RENAME, from, to, 0, NULL, 0);
    return 0;
}

int io_replace(const char *from, const char *to, struct err *e)
{
    if (hook_fault(HOOK_RENAME) || rename(from, to) < 0)
        return err_sys(e, "cannot rename %s to %s", from, to);
    hook_note(HOOK_RENAME, from, to, 0, NULL, 0);
    return 0;
}

int io_mkdir(const char *path, struct err *e)
{
    if (hook_fault(HOOK_MKDIR) || mkdir(path, 0777) < 0)
        return err_sys(e, "cannot make folder %s", path);
    hook_note(HOOK_MKDIR, path, NULL, 0, NULL, 0);
    return 0;
}

int io_make_dirs(const char *path, struct err *e)
{
    char *part = strdup(path);
    struct stat st;
    int rc = 0;
    if (!part)
        return err_set(e, ERR_MEMORY, "no memory to make %s", path);
    for (char *at = *part ? part : NULL; rc == 0 && at;) {
        at = strchr(at + 1, '/');
        if (at)
            *at = 0;
        /* two ranks may create it at once: it only has to exist */
        if (*part && !io_exists(part) && (rc = io_mkdir(part, e)) < 0 && io_exists(part))
            rc = 0;
        if (at)
            *at = '/';
    }
    if (rc == 0 && (stat(path, &st) < 0 || !S_ISDIR(st.st_mode)))
        rc = err_set(e, ERR_FILE, "%s is not a folder: name another one", *path ? path : "\"\"");
    free(part);
    return rc;
}

/* unlink or rmdir; missing is fine */
static int remove_one(const char *path, int (*how)(const char *), const char *what, struct err *e)
{
    int rc = hook_fault(HOOK_UNLINK) ? -1 : how(path);
    if (rc < 0)
        return errno == ENOENT ? 0 : err_sys(e, "cannot remove %s%s", what, path);
    hook_note(HOOK_UNLINK, path, NULL, 0, NULL, 0);
    return 0;
}

int io_unlink(const char *path, struct err *e) { return remove_one(path, unlink, "", e); }

static int remove_entry(const char *path, const char *name, struct err *e);

/* keep: a name that stays, or NULL */
static int remove_entries(const char *path, const char *keep, struct err *e)
{
    int rc = 0;
    struct dirent *entry;
    DIR *d = opendir(path);
    if (!d)
        return errno == ENOENT ? 0 : err_sys(e, "cannot open folder %s", path);
    while (rc == 0 && (entry = readdir(d)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") &&
            (!keep || strcmp(entry->d_name, keep)))
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
    if (lstat(path, &st) < 0) /* lstat: a link is removed, never followed */
        return errno == ENOENT ? 0 : err_sys(e, "cannot look at %s", path);
    if (!S_ISDIR(st.st_mode))
        return io_unlink(path, e);
    int rc = remove_entries(path, NULL, e);
    return rc < 0 ? rc : remove_one(path, rmdir, "folder ", e);
}

int io_remove_but(const char *path, const char *keep, struct err *e) { return remove_entries(path, keep, e); }

int io_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

int io_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

int io_is_file(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode);
}

int io_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *io_join(const char *dir, const char *name)
{
    size_t n_dir = strcmp(dir, ".") ? strlen(dir) : 0, n_name = strlen(name);
    char *path = malloc(n_dir + n_name + 2);
    int has_slash = n_dir == 0 || dir[n_dir - 1] == '/';
    if (path)
        snprintf(path, n_dir + n_name + 2, "%.*s%s%s", (int)n_dir, dir, has_slash ? "" : "/", name);
    return path;
}

int io_is_at(int fd, const char *path)
{
    struct stat open_one, named;
    return fstat(fd, &open_one) == 0 && lstat(path, &named) == 0 && open_one.st_dev == named.st_dev &&
           open_one.st_ino == named.st_ino;
}

enum io_lock io_try_lock(int fd, int shared)
{
    if (flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0)
        return IO_LOCKED;
    return errno == EWOULDBLOCK ? IO_BUSY : IO_NO_LOCKS;
}

int64_t io_raise_file_limit(int64_t n)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0)
        return n;
    if (r.rlim_cur < (rlim_t)n) {
        rlim_t before = r.rlim_cur;
        r.rlim_cur = (rlim_t)n < r.rlim_max ? (rlim_t)n : r.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &r) < 0)
            r.rlim_cur = before;
    }
    return r.rlim_cur < (rlim_t)INT64_MAX ? (int64_t)r.rlim_cur : INT64_MAX;
}
