/* io.h - files: whole reads and writes, fsync, rename. EINTR and short counts are handled, and every error
 * names the file. All file traffic of checkpoints goes through here, so that tests can make the n-th
 * operation fail and can record all of them (base/test_hooks.h).
 *
 * Functions that return int give 0 (those that open: a descriptor) or a negative code: ERR_SPACE when the
 * disk is full, ERR_FILE for all other failures of the kernel. Any thread may call them. */
#ifndef SHARDLINE_BASE_IO_H
#define SHARDLINE_BASE_IO_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include "base/err.h"

/* ---- the process ---- */

/* main calls it first. Gives the closed ones of descriptors 0, 1 and 2 an end that fails, so that no file
 * opened later gets their number and messages in it; a write past RLIMIT_FSIZE is an error, not a signal.
 * Numbers are read and written with a point, whatever locale a library has set before main. */
void io_begin(void);

/* Flushes stdout. ERR_FILE, ERR_SPACE: it cannot be written. */
int io_flush_stdout(struct err *e);

/* main calls it last, with what its work returned: flushes stdout, prints an error. Returns the exit
 * status. */
int io_end(int rc, struct err *e, const char *program);

/* ---- one open file; path is for messages ---- */

/* Opens for reading. The one way to open a file whose name a user or another file gives. ERR_FILE for a pipe,
 * a device or a socket: pipes wait for a writer, and every reader here needs a size and offsets. A folder
 * opens; io_size and io_pread refuse it. */
int io_open_read(const char *path, struct err *e);

/* Creates a file for writing; fails when it exists. */
int io_create(const char *path, struct err *e);

/* Opens for reading and writing; creates the file when it is missing. */
int io_open_write(const char *path, struct err *e);

/* Opens a log or a result for writing, a pipe too: creates the file, empties it unless append. mode: less the
 * umask. ERR_FILE for a pipe without a reader, which the open would wait for. A write to a full pipe fails
 * with EAGAIN. */
int io_open_sink(const char *path, int append, mode_t mode, struct err *e);

/* As io_open_sink, for stdio: a write to a full pipe waits for its reader. NULL: *e is set. The caller closes
 * it by fclose. */
FILE *io_write_text(const char *path, int append, struct err *e);

/* Size in bytes. */
int64_t io_size(int fd, const char *path, struct err *e);

/* Which file a path names, its size, and when it was changed last: ctime, which no program can set back. */
struct io_mark {
    uint64_t dev, ino;
    int64_t bytes, changed_ns;
};
/* Marks the open file. ERR_FILE: a folder. */
int io_mark(int fd, const char *path, struct io_mark *m, struct err *e);
/* Marks the file at path; one that is not there gets a mark that any file fits. */
void io_mark_path(const char *path, struct io_mark *m);
/* ERR_INTEGRITY: the path names another file, or the file was written to. A file that is gone is fine: a
 * reader that has it open reads on. */
int io_check_same(const char *path, const struct io_mark *m, struct err *e);

/* ERR_INTEGRITY: the file has been cut since it was marked. Called before a mapped file is read, where a byte
 * that is gone is a SIGBUS and not an error. A file that was removed or replaced stays mapped as it was. */
int io_check_mark(const char *path, const struct io_mark *m, struct err *e);

/* Gives [0, bytes) of a file space on the disk, so that a write through a map cannot fail, which would be a
 * SIGBUS. Nothing on file systems that cannot. */
int io_reserve(int fd, const char *path, int64_t bytes, struct err *e);

/* Reads all n bytes at off. ERR_FORMAT: the file ends before. */
int io_pread(int fd, const char *path, void *buf, size_t n, int64_t off, struct err *e);

/* Writes all n bytes at off. */
int io_pwrite(int fd, const char *path, const void *buf, size_t n, int64_t off, struct err *e);

/* Sets the size. */
int io_truncate(int fd, const char *path, int64_t bytes, struct err *e);

/* Gives the space of [off, off + n) back to the file system: these bytes read as zeros from then on. Nothing
 * on file systems that cannot. */
void io_punch(int fd, int64_t off, int64_t n);

/* fsync and close; both are checked. The descriptor is closed in any case. */
int io_sync_close(int fd, const char *path, struct err *e);

/* Closes a file that was only read; -1 is allowed. */
void io_close(int fd);

/* ---- whole files ---- */

/* Reads a file of at most `limit` bytes. *data: malloc'd, with one NUL behind the *n bytes. ERR_FORMAT:
 * larger. */
int io_read_file(const char *path, size_t limit, void **data, size_t *n, struct err *e);

/* Creates, writes, fsyncs and closes; fails when the file exists. */
int io_write_file(const char *path, const void *data, size_t n, struct err *e);

/* fsync of a closed file. */
int io_sync_file(const char *path, struct err *e);

/* fsync of a folder. */
int io_sync_dir(const char *path, struct err *e);

/* ---- names ---- */

/* Renames; fails when `to` exists (RENAME_NOREPLACE). */
int io_rename(const char *from, const char *to, struct err *e);

/* Renames; replaces `to` when it exists. */
int io_replace(const char *from, const char *to, struct err *e);

/* Creates one folder. */
int io_mkdir(const char *path, struct err *e);

/* Creates a folder and its parents. An existing folder is fine, an existing file is an error. */
int io_make_dirs(const char *path, struct err *e);

/* Removes a file; a missing one is fine. */
int io_unlink(const char *path, struct err *e);

/* Removes a file or a folder with all it contains; links are not followed, a missing path is fine. */
int io_remove_tree(const char *path, struct err *e);

/* Removes all that a folder contains, but for the file `keep` directly in it. A missing folder is fine. */
int io_remove_but(const char *path, const char *keep, struct err *e);

/* 1 when the path exists; a dangling link does. */
int io_exists(const char *path);

/* 1 when the path is a regular file, not a link to one. */
int io_is_file(const char *path);

/* 1 when the path is a folder, or a link to one. */
int io_is_dir(const char *path);

/* Joins dir/name; the caller frees it. NULL: out of memory. dir "." is left out, so that messages print "x"
 * and not "./x". */
char *io_join(const char *dir, const char *name);

/* 1 when both paths name one regular file. */
int io_same_file(const char *a, const char *b);

/* Tries to lock an open file; does not wait. The kernel releases the lock when the descriptor and all its
 * copies are closed, at the latest with the end of the process. An exclusive lock needs a descriptor that may
 * write: NFS turns it into a lock of the server. Locking again changes the kind of the lock, not in one step:
 * another process may get the lock between. */
enum io_lock { IO_LOCKED, IO_BUSY, IO_NO_LOCKS /* the file system has none */ };
enum io_lock io_try_lock(int fd, int shared);

/* Raises the process's limit of open files to n, or to what the system allows. Returns the limit now. */
int64_t io_raise_file_limit(int64_t n);

/* 1 when the path still names the open file or folder. */
int io_is_at(int fd, const char *path);

#endif
