/* url_cache_priv.h - private to url_cache.c (the folder), url_cache_file.c (a large file of it) and
 * url_cache_fetch.c (all of it). */
#ifndef SHARDLINE_STORE_URL_CACHE_PRIV_H
#define SHARDLINE_STORE_URL_CACHE_PRIV_H

#include <pthread.h>
#include "store/store.h"
#include "store/url_cache.h"

#define CACHE_URL ".url"                /* the file that says which URL a folder is of */
#define CACHE_USERS ".users"            /* its lock */
#define CACHE_UNIT ((int64_t)64 << 10)  /* bytes that are present or absent together */
#define CACHE_BLOCK ((int64_t)1 << 20)  /* small reads fetch whole blocks */
#define CACHE_REQUEST (8 * CACHE_BLOCK) /* the most bytes of one request */

struct presence; /* of a file's units: a mapped file, shared by processes */
struct cache_file {
    char *name, *path; /* in the URL's folder; on this machine */
    struct store_info info;
    int fd;
    struct presence *presence;
    size_t map_bytes;
};
/* A file that was read whole when the folder was opened; info.bytes -1: the URL had none. */
struct cache_small {
    char *name;
    struct store_info info;
};
struct url_cache {
    struct store *store;
    char *dir, *path;
    char remark[400];
    int users_fd;
    int alone;               /* no other process had the folder open when this one opened it */
    int in_memory;           /* the last user removes the folder */
    int one_stream;          /* the server has no ranges: a file came whole */
    const char *unpublished; /* as the options have it, borrowed while files are listed */
    int (*prepare)(struct url_cache *c, const char *name, int64_t bytes, struct err *e);
    int n;
    struct cache_file *file;
    int n_small;
    struct cache_small *small;
};

/* Joins dir and sub/.NAME.ENDING, for sub/NAME: the name of a hidden file beside it. The caller frees it. */
char *cache_hidden_path(const char *dir, const char *name, const char *ending);
/* The id of this boot of this machine. */
void cache_boot_id(char out[40]);

/* name, path and info are set. */
int cache_file_open(struct url_cache *c, struct cache_file *f, struct err *e);
void cache_file_close(struct cache_file *f);
/* As url_cache_need and url_cache_check. */
int cache_file_need(struct url_cache *c, struct cache_file *f, int64_t off, int64_t n, int exact,
                    struct err *e);
int cache_file_check(struct url_cache *c, struct cache_file *f, struct err *e);
/* As url_cache_drop. */
void cache_file_drop(struct cache_file *f, int64_t off, int64_t n);
int64_t cache_file_units_present(const struct cache_file *f);
/* fsync, close. */
int cache_file_sync(struct cache_file *f, struct err *e);

#endif
