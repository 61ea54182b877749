/* local.c - file:// URLs: files of this machine behind the functions of store.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/io.h"
#include "store/store_priv.h"

#define SCHEME "file://"
#define HOST "localhost/"

int url_local_path(const char *url, char path[URL_LOCAL_BYTES])
{
    size_t n = 0;
    if (strncmp(url, SCHEME, strlen(SCHEME)))
        return 0;
    url += strlen(SCHEME);
    if (!strncmp(url, HOST, strlen(HOST)))
        url += strlen(HOST) - 1;

    for (; *url && n + 1 < URL_LOCAL_BYTES; url++) {
        unsigned c;
        int is_coded = *url == '%' && url[1] && strspn(url + 1, "0123456789abcdefABCDEF") >= 2 &&
                       sscanf(url + 1, "%2x", &c) == 1 && c;
        path[n++] = (char)(is_coded ? c : (unsigned char)*url);
        url += is_coded ? 2 : 0;
    }
    path[n] = 0;
    return !*url;
}

int local_open(struct store *s, const char *url, struct err *e)
{
    char path[URL_LOCAL_BYTES];
    if (!url_local_path(url, path) || !*path || strlen(path) >= sizeof s->base)
        return err_set(e, ERR_USAGE, "give file:///path/of/a/folder or file:///path/of/a/file");
    memcpy(s->base, path, strlen(path) + 1);
    s->local = 1;
    return 0;
}

/* The path of file `name`; malloc'd. */
static char *path_of(const struct store *s, const char *name, struct err *e)
{
    char *path = *name ? io_join(s->base, name) : strdup(s->base);
    if (!path)
        err_set(e, ERR_MEMORY, "no memory for a path");
    return path;
}

/* A version of a local file: a write changes its time or length, a replacement its inode. */
static void fill_info(const struct stat *st, struct store_info *info)
{
    *info = (struct store_info){ .bytes = st->st_size, .ranges = 1 };
    snprintf(info->etag, sizeof info->etag, "\"%lld-%lld-%lld.%09ld\"", (long long)st->st_ino,
             (long long)st->st_size, (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
}

int local_stat(struct store *s, const char *name, struct store_info *info, struct err *e)
{
    struct stat st;
    char *path = path_of(s, name, e);
    if (!path)
        return -ERR_MEMORY;
    int found = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    free(path);
    if (found)
        fill_info(&st, info);
    return found;
}

int local_read(struct store *s, const char *name, const struct store_info *info, int64_t off, int64_t n,
               void *dst, struct err *e)
{
    struct store_info now;
    struct stat st;
    int rc = 0, fd = -1;
    char *path = path_of(s, name, e);
    if (!path)
        return -ERR_MEMORY;
    if (store_is_stopped(s)) {
        rc = err_set(e, ERR_STOPPED, "%s: stopped by a signal", path);
        goto out;
    }

    TRY(fd = io_open_read(path, e));
    if (fstat(fd, &st) < 0) {
        rc = err_sys(e, "cannot read %s", path);
        goto out;
    }
    fill_info(&st, &now);
    if (strcmp(now.etag, info->etag)) {
        rc = err_set(e, ERR_INTEGRITY, "%s: changed while it was read: start again", path);
        goto out;
    }
    TRY(io_pread(fd, path, dst, (size_t)n, off, e));
    atomic_fetch_add(&s->received, n);
out:
    io_close(fd);
    free(path);
    return rc < 0 ? rc : 0;
}
