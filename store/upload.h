/* upload.h - a folder of this machine sent to an s3:// URL while it is written.
 *
 *     upload_open -> upload_file, upload_range … while files grow -> upload_rest -> (the caller reads the
 *     objects back) -> upload_publish
 * A large file is sent in parts, several at once. The space of a part that has arrived is given back to the
 * file system, so the folder needs space for what is not sent yet. Objects that say that the folder is
 * whole (`last`) are put by upload_publish, after all others: a reader finds everything or nothing.
 *
 * What a killed run has sent is used again: parts of unfinished uploads, and objects, whose ETag is that of
 * the bytes to send. */
#ifndef SHARDLINE_STORE_UPLOAD_H
#define SHARDLINE_STORE_UPLOAD_H

#include <signal.h>
#include <stdint.h>
#include "base/err.h"

struct log;
struct store;
struct upload;

#define UPLOAD_PART ((int64_t)8 << 20) /* bytes of a part; more where a file would have over 9000 parts */

struct upload_opts {
    const char *const *last; /* names, in the order in which upload_publish puts them; ends with NULL */
    int (*is_known)(const char *name); /* 1: a file that such a folder may have; NULL: any */
    const char *hidden; /* an entry of the folder that is not sent, besides the marker; or NULL */
    int n_threads;      /* parts sent at once */
    const volatile sig_atomic_t *stop; /* ends requests with ERR_STOPPED; or NULL */
    struct log *log;                   /* remarks and progress; or NULL */
};
/* Starts to send the folder dir to url. Reads what is at the URL. ERR_USAGE: not an s3:// URL. ERR_FILE: a
 * name of `last` is there, or an object that is no file of such a folder: another prefix is needed. */
int upload_open(struct upload **out, const char *url, const char *dir, const struct upload_opts *how,
                struct err *e);

/* A file of the folder that will have so many bytes, before its first upload_range. Thread-safe. */
int upload_file(struct upload *u, const char *name, int64_t bytes, struct err *e);
/* Bytes [off, off + n) of that file are final and will not be read again by the caller. Every byte once.
 * Waits while too much is on the disk that is not sent yet. Returns an error of any part so far.
 * Thread-safe. */
int upload_range(struct upload *u, const char *name, int64_t off, int64_t n, struct err *e);
/* Sends all files of the folder that are not sent yet, but for `last`, and makes objects of all of them. */
int upload_rest(struct upload *u, struct err *e);
/* Puts `last`, those that are in the folder. ERR_FILE: another program has done so meanwhile;
 * upload_is_taken is 1 then. */
int upload_publish(struct upload *u, struct err *e);
int upload_is_taken(const struct upload *u);
/* Removes all that was sent, and what earlier runs had sent of the same files: unfinished uploads and
 * objects. For an orderly end without a result. */
int upload_abort(struct upload *u, struct err *e);
/* Ends the threads and frees u; what was sent stays. NULL is allowed. */
void upload_close(struct upload *u);

/* Bytes that this run has sent, and bytes that were there already. */
int64_t upload_sent(const struct upload *u);
int64_t upload_found(const struct upload *u);

#endif
