/* url_cache_list.c - see url_cache_list.h. A folder is removed under its lock, after it has lost its name: a
 * process that opens the URL meanwhile makes a new folder (url_cache.c). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "store/url_cache_list.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/io.h"
#include "base/tmp_folder.h"
#include "store/url_cache_priv.h"

#define UPLOAD ".tmp-upload"
#define REMOVED ".removed"

static int has_end(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n > k && !strcmp(name + n - k, end);
}

/* 1: a name that this program gives to folders of the cache: hex digits, and an ending. */
static int is_ours(const char *name)
{
    size_t n = strspn(name, "0123456789abcdef");
    return (n == 32 && (!name[32] || !strcmp(name + 32, REMOVED))) || (n == 16 && !strcmp(name + 16, UPLOAD));
}

/* Bytes on the disk of a folder and all below. */
static int64_t disk_bytes(const char *path)
{
    DIR *d = opendir(path);
    const struct dirent *x;
    struct stat st;
    int64_t sum = 0;
    while (d && (x = readdir(d))) {
        char *full = strcmp(x->d_name, ".") && strcmp(x->d_name, "..") ? io_join(path, x->d_name) : NULL;
        if (full && lstat(full, &st) == 0)
            sum += S_ISDIR(st.st_mode) ? disk_bytes(full) : (int64_t)st.st_blocks * 512;
        free(full);
    }
    if (d)
        closedir(d);
    return sum;
}

/* The lock of a folder that no process uses, or -1. */
static int lock_of(const struct cache_entry *c)
{
    struct err ignored;
    char *path = io_join(c->path, c->is_upload ? TMP_MARKER : CACHE_USERS);
    int fd = path ? io_open_write(path, &ignored) : -1;
    if (fd >= 0 && io_try_lock(fd, 0) == IO_BUSY) {
        io_close(fd);
        fd = -1;
    }
    free(path);
    return fd;
}

static int look(struct cache_entry *c, const char *root, const char *name, struct err *e)
{
    struct err ignored;
    struct stat st = { 0 };
    void *text = NULL;
    size_t n = 0;
    *c = (struct cache_entry){ .path = io_join(root, name), .is_upload = has_end(name, UPLOAD) };
    char *url = c->path ? io_join(c->path, CACHE_URL) : NULL,
         *users = c->path ? io_join(c->path, c->is_upload ? TMP_MARKER : CACHE_USERS) : NULL;
    if (url && io_exists(url) && io_read_file(url, 8192, &text, &n, &ignored) >= 0)
        c->url = strdup(text);
    else
        c->url = strdup("");
    if (users && stat(users, &st) == 0)
        c->used_s = st.st_mtime;
    free(text);
    free(url);
    free(users);
    if (!c->path || !c->url)
        return err_set(e, ERR_MEMORY, "no memory to list the cache");
    int fd = lock_of(c);
    c->in_use = fd < 0;
    io_close(fd);
    c->bytes = disk_bytes(c->path);
    return 0;
}

static int compare_use(const void *pa, const void *pb)
{
    const struct cache_entry *a = pa, *b = pb;
    return a->used_s != b->used_s ? (a->used_s < b->used_s ? 1 : -1) : strcmp(a->path, b->path);
}

int url_cache_list(struct cache_entry **out, int *n, struct err *e)
{
    char root[4096];
    struct cache_entry *list = NULL;
    const struct dirent *x;
    int rc = url_cache_root(root, e), found = 0;
    DIR *d = rc < 0 ? NULL : opendir(root); /* no folder: nothing was cached */
    while (rc >= 0 && d && (x = readdir(d))) {
        if (!is_ours(x->d_name))
            continue;
        struct cache_entry *grown = realloc(list, sizeof *list * (size_t)(found + 1));
        if (grown)
            list = grown;
        rc = grown ? look(&list[found++], root, x->d_name, e)
                   : err_set(e, ERR_MEMORY, "no memory to list the cache");
    }
    if (d)
        closedir(d);
    if (rc < 0) {
        url_cache_list_free(list, found);
        return rc;
    }
    if (found)
        qsort(list, (size_t)found, sizeof *list, compare_use);
    *out = list;
    *n = found;
    return 0;
}

void url_cache_list_free(struct cache_entry *list, int n)
{
    for (int i = 0; i < n; i++) {
        free(list[i].url);
        free(list[i].path);
    }
    free(list);
}

int url_cache_remove(const struct cache_entry *c, struct err *e)
{
    char away[4200];
    int rc = 0, fd = lock_of(c);
    if (fd < 0)
        return 0;
    if (c->is_upload || has_end(c->path, REMOVED))
        snprintf(away, sizeof away, "%s", c->path);
    else
        snprintf(away, sizeof away, "%s" REMOVED, c->path);
    if (strcmp(away, c->path) && io_exists(away))
        rc = io_remove_tree(away, e); /* of a removal that was killed */
    if (rc >= 0 && strcmp(away, c->path))
        rc = io_rename(c->path, away, e);
    if (rc >= 0)
        rc = c->is_upload ? tmp_folder_remove(away, e) : io_remove_tree(away, e);
    io_close(fd);
    return rc < 0 ? rc : 1;
}
