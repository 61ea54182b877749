/* gguf_remote.c - GGUF files at a URL: the files of a split set, and of each its header, whose length is in
 * no field: it is fetched in parts that double until it is whole. */
#include <stdlib.h>
#include "base/io.h"
#include "format/gguf/gguf_model.h"
#include "format/remote/remote_list.h"

int gguf_list(struct url_cache *c, const char *name, struct err *e)
{
    char one[256];
    int stem, n = gguf_split_count(name, &stem), rc = fmt_file_name_check(name, "the URL", e);
    if (!n && rc >= 0 && (rc = url_cache_large(c, name, e)) == 0)
        return err_set(e, ERR_FILE, "%s is not there: is the name right", name);
    for (int i = 0; i < n && rc >= 0; i++) {
        gguf_split_name(name, stem, i, n, one);
        rc = remote_large(c, one, e);
    }
    return rc < 0 ? rc : 0;
}

/* 1: n bytes are present and the header needs more. 0: it is whole, or wrong, which the reader reports. */
static int needs_more(const char *path, int fd, int64_t n, int64_t bytes, struct err *e)
{
    struct gguf_file f;
    struct err ignored;
    void *p = malloc((size_t)n + 1);
    int rc = p ? io_pread(fd, path, p, (size_t)n, 0, e)
               : err_set(e, ERR_MEMORY, "%s: no memory for its header", path);
    if (rc >= 0) {
        rc = gguf_parse(&f, p, n, bytes, path, &ignored) == 1;
        if (!rc)
            gguf_file_free(&f);
    }
    free(p);
    return rc;
}

int gguf_prepare(struct url_cache *c, const char *name, int64_t bytes, struct err *e)
{
    int64_t n = bytes < GGUF_HEADER_FIRST ? bytes : GGUF_HEADER_FIRST;
    char *path = io_join(url_cache_dir(c), name);
    int fd = path ? io_open_read(path, e) : err_set(e, ERR_MEMORY, "no memory for a path"), rc = fd;
    for (; rc >= 0; n = n * 2 < bytes ? n * 2 : bytes)
        if ((rc = url_cache_need(c, name, 0, n, 1, e)) < 0 || (rc = needs_more(path, fd, n, bytes, e)) <= 0)
            break;
    io_close(fd);
    free(path);
    return rc < 0 ? rc : 0;
}
