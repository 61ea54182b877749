/* fetch.c - see fetch.h: downloaded in parallel to DST.tmp-fetch, verified, then renamed to DST. */
#include <stdio.h>
#include <string.h>
#include "base/io.h"
#include "base/log.h"
#include "format/fetch.h"
#include "format/ckpt_write.h"
#include "format/remote_list.h"
#include "store/store.h"

#define PATH_BYTES 4096

int ckpt_fetch(const char *url, const char *dst, struct ckpt_fetch *how, struct err *e)
{
    char tmp[PATH_BYTES];
    struct url_cache_fetch all = { .n_threads = how->n_threads, .log = how->log, .hidden = ".metadata" };
    struct url_cache *r = NULL;
    struct ckpt *c = NULL;
    size_t n = strlen(dst);
    int rc = 0, lock = -1, busy;
    while (n > 1 && dst[n - 1] == '/')
        n--;
    if (!store_is_url(url))
        return err_set(e, ERR_USAGE,
                       "%s: give a URL: https://, http://, s3://bucket/prefix or hf://owner/name", url);
    if (n == 0 || n + 16 > PATH_BYTES)
        return err_set(e, ERR_USAGE, "a folder's name has %zu bytes: choose another one", n);
    if (io_exists(dst))
        return err_set(e, ERR_FILE, "%s exists: choose another name or remove it", dst);
    snprintf(tmp, sizeof tmp, "%.*s.tmp-fetch", (int)n, dst);
    TRY(io_make_dirs(tmp, e));
    /* otherwise another process could write into files that this one publishes */
    TRY(lock = io_lock_dir(tmp, &busy, e));
    TRY(remote_open(&r, url, tmp, how->stop, e));
    if (how->log && url_cache_remark(r))
        log_line(how->log, "%.*s: %s", (int)strcspn(url, "?"), url, url_cache_remark(r));
    TRY(url_cache_fetch_all(r, &all, e));
    how->received = url_cache_bytes(r);
    url_cache_close(r);
    r = NULL;
    TRY(ckpt_open(&c, tmp, NULL, e));
    TRY(ckpt_verify(c, 0, e));
    ckpt_close(c);
    rc = ckpt_reveal(tmp, dst, e);
    io_close(lock);
    return rc;
out:
    url_cache_close(r);
    ckpt_close(c);
    if (lock >= 0 && (e->code == ERR_INTEGRITY || e->code == ERR_FORMAT))
        ckpt_abandon(tmp, -1); /* these bytes are wrong: the next attempt begins anew, others keep theirs */
    else if (lock >= 0)
        remove(tmp); /* only when it is empty */
    io_close(lock);
    if (e->code == ERR_STOPPED)
        return err_set(
            e, ERR_STOPPED,
            "%.*s: stopped by a signal: what has arrived is kept, the same command goes on from there",
            (int)strcspn(url, "?"), url);
    return rc;
}
