/* remote.h - private to the room: a checkpoint at a URL as a folder of sparse files, filled where they are read. */
#ifndef SHARDLINE_FORMAT_REMOTE_H
#define SHARDLINE_FORMAT_REMOTE_H

#include <stdint.h>
#include "base/err.h"

struct remote;
/* Asks for the tables and headers of the checkpoint at url; the folder (remote_dir) then has its small files whole and its large ones with
 * their length. dir NULL: a folder of the cache that all processes share ($SHARDLINE_CACHE, or shardline in the user's cache folder). */
int remote_open(struct remote **out, const char *url, const char *dir, struct err *e);
void remote_close(struct remote *r);
const char *remote_path(const struct remote *r);    /* what to open: the folder, or the one file a URL of a file means */
/* Bytes [off, off + n) of a file are there afterwards; other processes' work is waited for, not repeated. Thread-safe. */
int remote_need(struct remote *r, const char *name, int64_t off, int64_t n, struct err *e);
/* All files, by n_threads; SHA-256 where the server says one; every file fsynced, nothing but the files is left in the folder. */
int remote_fetch_all(struct remote *r, int n_threads, struct err *e);
int64_t remote_bytes(const struct remote *r);       /* received so far */
int64_t remote_total(const struct remote *r);       /* of the large files */
int remote_one_stream(const struct remote *r);      /* 1: the server has no ranges, files came whole */

/* SHA-256 of a file, 64 hex digits (sha256.c). */
int sha256_file(const char *path, char hex[65], struct err *e);

#endif
