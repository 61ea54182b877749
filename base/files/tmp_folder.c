/* tmp_folder.c - see tmp_folder.h. */
#include "base/tmp_folder.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/io.h"

static char *marker_of(const char *path) { return io_join(path, TMP_MARKER); }

/* Number of entries of a folder; -1: it cannot be read. */
static int count_entries(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *x;
    int n = 0;
    if (!d)
        return -1;
    while ((x = readdir(d)))
        n += strcmp(x->d_name, ".") && strcmp(x->d_name, "..");
    closedir(d);
    return n;
}

/* State of a folder whose marker is open as fd. Keeps the exclusive lock for TMP_LEFT. */
static enum tmp_folder state_of(int fd, const char *marker)
{
    enum io_lock got = io_try_lock(fd, 0);
    if (got == IO_LOCKED) /* the name may have been removed, or renamed, before the lock was taken */
        return io_is_at(fd, marker) ? TMP_LEFT : TMP_ABSENT;
    if (got == IO_NO_LOCKS)
        return TMP_NO_LOCKS;
    return io_try_lock(fd, 1) == IO_LOCKED ? TMP_READ : TMP_WRITTEN;
}

enum tmp_folder tmp_folder_look(const char *path, int *lock)
{
    enum tmp_folder state;
    char *marker = marker_of(path);
    struct err e;
    *lock = -1;
    if (!marker || !io_exists(path)) {
        free(marker);
        return marker ? TMP_ABSENT : TMP_FOREIGN;
    }
    int fd = io_is_file(marker) ? io_open_write(marker, &e) : -1;
    if (fd < 0) {
        free(marker);
        return count_entries(path) == 0 ? TMP_EMPTY : TMP_FOREIGN;
    }

    state = state_of(fd, marker);
    free(marker);
    if (state == TMP_LEFT)
        *lock = fd;
    else
        io_close(fd);
    return state;
}

int tmp_folder_make(const char *path, int *lock, struct err *e)
{
    char *marker = marker_of(path);
    int fd = -1, rc = marker ? io_mkdir(path, e) : err_set(e, ERR_MEMORY, "no memory for a path");
    *lock = -1;
    if (rc < 0) {
        rc = marker && io_exists(path) ? 0 : rc;
        goto out;
    }

    fd = io_create(marker, e);
    if (fd < 0 || io_try_lock(fd, 0) == IO_BUSY || !io_is_at(fd, marker)) {
        /* another process found the folder before it was marked and locked, and removes it */
        rc = fd < 0 && io_exists(path) ? fd : 0;
        if (rc < 0)
            rmdir(path);
        goto out;
    }

    /* no file may be there after a crash of the machine without the marker */
    rc = io_sync_dir(path, e);
    if (rc < 0) {
        struct err ignored;
        io_remove_tree(path, &ignored);
        goto out;
    }

    *lock = fd;
    fd = -1;
    rc = 1;
out:
    io_close(fd);
    free(marker);
    return rc;
}

int tmp_folder_hold(const char *path)
{
    char *marker = marker_of(path);
    struct err e;
    int fd = marker && io_is_file(marker) ? io_open_read(marker, &e) : -1;
    if (fd >= 0 && (io_try_lock(fd, 1) != IO_LOCKED || !io_is_at(fd, marker))) {
        io_close(fd);
        fd = -1;
    }
    free(marker);
    return fd;
}

int tmp_folder_is_at(int lock, const char *path)
{
    char *marker = marker_of(path);
    int same = marker && io_is_at(lock, marker);
    free(marker);
    return same;
}

int tmp_folder_is_unused(const char *path)
{
    char *marker = marker_of(path);
    int unused = marker && io_is_file(marker) && count_entries(path) == 1;
    free(marker);
    return unused;
}

int tmp_folder_remove(const char *path, struct err *e)
{
    int rc = io_remove_but(path, TMP_MARKER, e);
    return rc < 0 ? rc : io_remove_tree(path, e);
}

int tmp_folder_finish(const char *path, struct err *e)
{
    char *marker = marker_of(path);
    int rc = marker ? io_unlink(marker, e) : err_set(e, ERR_MEMORY, "no memory for a path");
    free(marker);
    return rc;
}
