/* io.h - files without surprises: whole reads and writes, EINTR and short counts handled, fsync, rename,
 * errors that name the file. All file traffic of checkpoints goes through here, so that tests can make the
 * n-th operation fail, and know them all (base/test_hooks.h). */
#ifndef SHARDLINE_BASE_IO_H
#define SHARDLINE_BASE_IO_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

/* fd or negative code */
int io_open_read(const char *path, struct err *e);
/* fd; fails when it exists */
int io_create(const char *path, struct err *e);
/* fd, for reading too; made when missing */
int io_open_write(const char *path, struct err *e);
int64_t io_size(int fd, const char *path, struct err *e);
/* all of n, or ERR_FORMAT "ends at …" */
int io_pread(int fd, const char *path, void *buf, size_t n, int64_t off, struct err *e);
int io_pwrite(int fd, const char *path, const void *buf, size_t n, int64_t off, struct err *e);
int io_truncate(int fd, const char *path, int64_t bytes, struct err *e);
/* fsync, close; both checked */
int io_sync_close(int fd, const char *path, struct err *e);
/* for reading: nothing to lose; -1 is fine */
void io_close(int fd);
/* malloc'd, one NUL behind; limit: ERR_FORMAT */
int io_read_file(const char *path, size_t limit, void **data, size_t *n, struct err *e);
/* create, write, fsync, close */
int io_write_file(const char *path, const void *data, size_t n, struct err *e);
/* of one that is closed */
int io_sync_file(const char *path, struct err *e);
int io_sync_dir(const char *path, struct err *e);
/* to must not exist (RENAME_NOREPLACE) */
int io_rename(const char *from, const char *to, struct err *e);
int io_replace(const char *from, const char *to, struct err *e); /* to may exist */
int io_mkdir(const char *path, struct err *e);
/* with those above; existing is fine, but as a file */
int io_make_dirs(const char *path, struct err *e);
int io_unlink(const char *path, struct err *e);      /* missing is fine */
int io_remove_tree(const char *path, struct err *e); /* missing is fine */
int io_exists(const char *path);
/* both names are those of one regular file */
int io_same_file(const char *a, const char *b);
/* An exclusive lock on the folder, held as long as the descriptor is open: the kernel gives it up when the
 * process ends, however it ends. *busy: 1 when the error
 * is that another process has it, or took the name away. A file system that knows no locks grants it to
 * everybody. */
int io_lock_dir(const char *path, int *busy, struct err *e);
/* 1: the name stands for the open file or folder */
int io_is_at(int fd, const char *path);

#endif
