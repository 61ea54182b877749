/* out_file.c - see out_file.h. */
#include "format/native/out_file.h"

#include <stdlib.h>
#include "base/io.h"
#include "store/memory.h"

int out_create(const char *dir, const char *name, const char *path, struct err *e)
{
    return memory_is(dir) ? memory_create(dir, name, e) : io_create(path, e);
}

int out_finish(int fd, const char *dir, const char *name, const char *path, struct err *e)
{
    return memory_is(dir) ? memory_give(fd, dir, name, e) : io_sync_close(fd, path, e);
}

int out_put(const char *dir, const char *name, const void *data, size_t n, struct err *e)
{
    char *path = io_join(dir, name);
    int rc = 0, fd = -1;
    if (!path)
        return err_set(e, ERR_MEMORY, "no memory for the path of %s", name);
    if (memory_is(dir)) {
        TRY(fd = memory_create(dir, name, e));
        TRY(io_pwrite(fd, path, data, n, 0, e));
        rc = memory_give(fd, dir, name, e);
        fd = -1;
    } else {
        rc = io_write_file(path, data, n, e);
    }
out:
    io_close(fd);
    free(path);
    return rc < 0 ? rc : 0;
}

int64_t out_size(const char *dir, const char *name, const char *path, struct err *e)
{
    if (memory_is(dir))
        return memory_bytes(dir, name, e);
    int fd = io_open_read(path, e);
    int64_t have = fd < 0 ? fd : io_size(fd, path, e);
    io_close(fd);
    return have;
}

int out_sync(const char *dir, struct err *e) { return memory_is(dir) ? 0 : io_sync_dir(dir, e); }
