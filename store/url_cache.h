/* url_cache.h - a folder at a URL as a folder of this machine: small files come whole, large ones are sparse
 * files that are filled where they are read.
 *
 *     CACHE/<hash of the URL>/
 *         config.json, …           small files; transferred anew when no other process has the folder open,
 *                                  so that a changed file is noticed
 *         model.safetensors        a large file: the parts that were needed
 *         .model.safetensors.have  which parts are present: a byte each, memory that all processes share
 *         .opened                  the files and versions that the first process found; processes that open
 *                                  the folder meanwhile take them over: all read one version and ask once
 *         .users                   locked by every process that has the folder open
 *
 * A server lists no folders: the caller says by a function which files there are. Thread-safe: url_cache_need
 * and the functions that take a const struct url_cache. */
#ifndef SHARDLINE_STORE_URL_CACHE_H
#define SHARDLINE_STORE_URL_CACHE_H

#include <signal.h>
#include <stdint.h>
#include "base/err.h"

struct log;
struct url_cache;

struct url_cache_opts {
    /* The folder to use. NULL: one in $SHARDLINE_CACHE, or in shardline/ in the user's cache folder, which
     * all processes of the machine share. */
    const char *dir;
    /* A folder of this machine: a small file that the URL does not have is taken from it. For a folder at a
     * URL whose last files are not there yet. NULL: none. */
    const char *unpublished;
    /* Requests end with ERR_STOPPED soon after *stop is not 0; must outlive the cache. NULL: none. */
    const volatile sig_atomic_t *stop;
    /* The last part of the URL is the name of a file: the folder is what comes before it (url_split), and
     * url_cache_path is that file. */
    int is_file;
    /* dir NULL: the folder is in memory (/dev/shm, readable by this user only), shared by this user's
     * processes, and the last of them removes it: for a URL whose files change every few seconds. */
    int in_memory;
    /* All files come whole and are checked before url_cache_open returns. Such a folder of the cache is not
     * that of the same URL without `whole`. */
    int whole;
    /* Says what files there are, with url_cache_small and url_cache_large. file: the name of the file
     * (is_file), or NULL. Not called when another process has the folder open: its list is taken over. */
    int (*list)(struct url_cache *c, const char *file, const void *arg, struct err *e);
    const void *arg;
    /* Called for every large file when it is opened, also for one that is taken over: makes present, with
     * url_cache_need, what is read of it at the path without asking (a header). NULL: nothing. */
    int (*prepare)(struct url_cache *c, const char *name, int64_t bytes, struct err *e);
};

/* Opens the folder or file at url. ERR_USAGE: the URL cannot be understood. ERR_FILE: the server refuses, or
 * has not the file. Messages begin with the URL without its query. */
int url_cache_open(struct url_cache **out, const char *url, const struct url_cache_opts *how, struct err *e);
/* Releases the folder. NULL is allowed. */
void url_cache_close(struct url_cache *c);

/* Fills path with the folder that holds the folders of all URLs ($SHARDLINE_CACHE, or shardline/ in the
 * user's cache folder). ERR_USAGE: its name is too long. */
int url_cache_root(char path[4096], struct err *e);

/* ---- for the function that lists the files; NAME may have folders in front ("TAG/file") ---- */

/* The folder on this machine. */
const char *url_cache_dir(const struct url_cache *c);
/* 1: the folder above the URL may be asked for files ("../config.json"): neither the hub nor S3. */
int url_cache_has_parent(const struct url_cache *c);
/* The number of large files listed so far. */
int url_cache_n_large(const struct url_cache *c);
/* Transfers a small file (256 MiB at most): 1: it is present, 0: there is none. */
int url_cache_small(struct url_cache *c, const char *name, struct err *e);
/* The same, stored under another name in the folder. */
int url_cache_small_as(struct url_cache *c, const char *name, const char *as, struct err *e);
/* Adds a large file. 1: the server has it, 0: it has not. Adding a file twice is allowed. */
int url_cache_large(struct url_cache *c, const char *name, struct err *e);

/* ---- reading ---- */

/* What to open: the folder, or the file (is_file). */
const char *url_cache_path(const struct url_cache *c);
/* The same number, never 0, for all processes that share the folder. */
uint64_t url_cache_id(const struct url_cache *c);
/* A line to print about how it is read (the commit, a server without ranges); or NULL. */
const char *url_cache_remark(const struct url_cache *c);
/* Bytes that this process has received. */
int64_t url_cache_bytes(const struct url_cache *c);
/* Makes bytes [off, off + n) of a file present. Waits for what other processes are fetching instead of
 * fetching it again; fetches large ranges by several requests. exact: asks for nothing around them, because
 * what is needed next lies elsewhere. A small file is always present. */
int url_cache_need(struct url_cache *c, const char *name, int64_t off, int64_t n, int exact, struct err *e);
/* Forgets whole units of [off, off + n) and releases their space on the disk, for a caller that alone reads
 * these bytes, and once. */
void url_cache_drop(struct url_cache *c, const char *name, int64_t off, int64_t n);
/* After reading: ERR_INTEGRITY names a file that changed at the URL since it was opened, a small one too, or
 * that is whole here and has not the SHA-256 that the server promised. One process of a machine asks the
 * server, the others compare with what it found. */
int url_cache_check(struct url_cache *c, struct err *e);

struct url_cache_fetch {
    int n_threads;
    struct log *log;    /* progress; or NULL */
    const char *hidden; /* a file of the folder whose name begins with a dot: it is kept; or NULL */
};
/* Fetches all files and checks them (url_cache_check). Then removes everything else from the folder, which is
 * the caller's own (dir), and fsyncs it. */
int url_cache_fetch_all(struct url_cache *c, const struct url_cache_fetch *how, struct err *e);

#endif
