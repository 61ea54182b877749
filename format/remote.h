/* remote.h - private to the room: a checkpoint at a URL as a folder of sparse files, filled where they are
 * read. */
#ifndef SHARDLINE_FORMAT_REMOTE_H
#define SHARDLINE_FORMAT_REMOTE_H

#include <signal.h>
#include <stdint.h>
#include "base/err.h"
#include "base/log.h"

struct remote;
/* log: progress, or NULL */
struct remote_fetch {
    int n_threads;
    struct log *log;
};
/* Asks for the tables and headers of the checkpoint at url; the folder (remote_path) then has its small
 * files whole and its large ones with their length. dir NULL: a folder of the cache that all processes share
 * ($SHARDLINE_CACHE, or shardline in the user's cache folder). */
int remote_open(struct remote **out, const char *url, const char *dir, const volatile sig_atomic_t *stop,
                struct err *e);
/* No checkpoint: the file at url, whole and checked (what NULL), or a folder of which small files are
 * wanted, the first of them for certain. */
struct remote_plain {
    const char *const *names;
    int n;
};
int remote_open_plain(struct remote **out, const char *url, const struct remote_plain *what, struct err *e);
void remote_close(struct remote *r);
/* what to open: the folder, or the one file a URL of a file means */
const char *remote_path(const struct remote *r);
/* the same number for those who share the folder, never 0 */
uint64_t remote_cache(const struct remote *r);
const char *remote_remark(const struct remote *r); /* a line for people about how it is read, or NULL */
/* Bytes [off, off + n) of a file are there afterwards; other processes' work is waited for, not repeated;
 * many are asked for in parallel. exact: nothing around them is asked for too, because what is needed next
 * lies elsewhere. Thread-safe. */
int remote_need(struct remote *r, const char *name, int64_t off, int64_t n, int exact, struct err *e);
/* At the end of reading: the files at the URL are still those that were opened, and files that came whole
 * have the SHA-256 that the server promised. One process of a machine asks, the others compare.
 * ERR_INTEGRITY names the file. */
int remote_check(struct remote *r, struct err *e);
/* All files, checked as by remote_check; every file fsynced, nothing but the files is left in the folder. */
int remote_fetch_all(struct remote *r, const struct remote_fetch *how, struct err *e);
int64_t remote_bytes(const struct remote *r); /* received so far */

#endif
