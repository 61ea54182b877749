/* url_cache_list.h - what the cache of URLs holds on this machine, and its removal. */
#ifndef SHARDLINE_STORE_URL_CACHE_LIST_H
#define SHARDLINE_STORE_URL_CACHE_LIST_H

#include <stdint.h>
#include "base/err.h"

struct cache_entry {
    char *url, *path; /* url: without its query; "" where the folder does not say it */
    int64_t bytes;    /* on the disk */
    int64_t used_s;   /* Unix time of the last opening */
    int in_use;       /* by a process of this machine */
    int is_upload;    /* the folder of files on their way to the URL */
};
/* Lists the cache, the folder used last first. *out[*n]: freed by url_cache_list_free. */
int url_cache_list(struct cache_entry **out, int *n, struct err *e);
void url_cache_list_free(struct cache_entry *list, int n);
/* Removes a folder of the list with all it holds. 1; 0: a process uses it, and it stays. */
int url_cache_remove(const struct cache_entry *c, struct err *e);

#endif
