/* fetch.c - see fetch.h: downloaded in parallel to DST.tmp-fetch, verified, then renamed to DST. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/io.h"
#include "base/log.h"
#include "base/tmp_folder.h"
#include "format/fetch.h"
#include "format/ckpt_write.h"
#include "format/remote/remote_list.h"
#include "store/store.h"

#define PATH_BYTES 4096

/* Makes the folder tmp and locks it, or goes on in the one that an interrupted fetch left. Another process
 * must not write into files that this one publishes. */
static int take_folder(const char *tmp, int *lock, struct log *log, struct err *e)
{
    for (int tries = 0; tries < 100; tries++) {
        enum tmp_folder state = tmp_folder_look(tmp, lock);
        int rc;
        if (state == TMP_LEFT)
            return 0;
        if (state == TMP_NO_LOCKS && log)
            log_line(log, "%s: this file system has no locks: let no other process fetch there", tmp);
        if (state == TMP_NO_LOCKS)
            return 0;
        if (state == TMP_WRITTEN || state == TMP_READ)
            return err_set(e, ERR_FILE, "another process has %s: wait until it ends", tmp);
        if (state == TMP_FOREIGN)
            return err_set(e, ERR_FILE,
                           "%s has no " TMP_MARKER ", so no fetch of this version made it: move it away, or "
                           "choose another name",
                           tmp);
        if (state == TMP_EMPTY)
            rmdir(tmp);
        if ((rc = tmp_folder_make(tmp, lock, e)))
            return rc < 0 ? rc : 0;
    }
    return err_set(e, ERR_FILE, "%s is made and removed by other processes: choose another name", tmp);
}

/* The folders in front of a path. */
static int make_parents(const char *path, struct err *e)
{
    char parent[PATH_BYTES];
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return 0;
    snprintf(parent, sizeof parent, "%.*s", (int)(slash - path), path);
    return io_make_dirs(parent, e);
}

/* Removes the lock file of a cache that is closed. 1: the folder has nothing else, so no byte has arrived. */
static int is_empty(const char *tmp)
{
    struct err ignored;
    char *users = io_join(tmp, ".users");
    if (users)
        io_unlink(users, &ignored);
    free(users);
    return tmp_folder_is_unused(tmp);
}

/* Opens what was fetched, the folder or the one file of it, and reads everything. */
static int verify(const char *path, struct err *e)
{
    struct ckpt *c = NULL;
    int rc = ckpt_open(&c, path, NULL, e);
    if (rc >= 0)
        rc = ckpt_verify(c, 0, e);
    ckpt_close(c);
    return rc;
}

int ckpt_fetch(const char *url, const char *dst, struct ckpt_fetch *how, struct err *e)
{
    char tmp[PATH_BYTES];
    struct url_cache_fetch all = { .n_threads = how->n_threads, .log = how->log, .hidden = ".metadata" };
    struct url_cache *r = NULL;
    char *path = NULL;
    size_t n = strlen(dst);
    int rc = 0, lock = -1;
    while (n > 1 && dst[n - 1] == '/')
        n--;
    if (!store_is_url(url) && strncmp(url, "file://", 7))
        return err_set(e, ERR_USAGE,
                       "%s: give a URL: https://, http://, file://, s3://bucket/prefix or hf://owner/name",
                       url);
    if (n == 0 || n + 16 > PATH_BYTES)
        return err_set(e, ERR_USAGE, "a folder's name has %zu bytes: choose another one", n);
    if (io_exists(dst))
        return err_set(e, ERR_FILE, "%s exists: choose another name or remove it", dst);
    snprintf(tmp, sizeof tmp, "%.*s.tmp-fetch", (int)n, dst);
    if ((rc = make_parents(tmp, e)) < 0 || (rc = take_folder(tmp, &lock, how->log, e)) < 0)
        return rc; /* it is not ours to remove */
    TRY(remote_open(&r, url, tmp, &(struct ckpt_open_opts){ .stop = how->stop, .with_cards = 1 }, e));
    if (how->log && url_cache_remark(r))
        log_line(how->log, "%.*s: %s", (int)strcspn(url, "?"), url, url_cache_remark(r));
    TRY(url_cache_fetch_all(r, &all, e));
    how->received = url_cache_bytes(r);
    if (!(path = strdup(url_cache_path(r)))) {
        rc = err_set(e, ERR_MEMORY, "no memory for a path");
        goto out;
    }
    url_cache_close(r);
    r = NULL;
    TRY(verify(path, e));
    free(path);
    rc = ckpt_reveal(tmp, dst, e);
    io_close(lock);
    return rc;
out:
    url_cache_close(r);
    free(path);
    /* wrong bytes: the next attempt begins anew; after other errors it goes on from what has arrived */
    if (e->code == ERR_INTEGRITY || e->code == ERR_FORMAT || is_empty(tmp))
        ckpt_abandon(tmp, -1);
    io_close(lock);
    if (e->code == ERR_STOPPED)
        return err_set(
            e, ERR_STOPPED,
            "%.*s: stopped by a signal: what has arrived is kept, the same command goes on from there",
            (int)strcspn(url, "?"), url);
    return rc;
}
