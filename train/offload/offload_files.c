/* offload_files.c - the two files of a rank: names, space, checksums. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/io.h"
#include "train/offload/offload_priv.h"

/* ---- names: ptrain-RUN-rank-RRRRR.a, .b; RUN is made of the absolute path of --out ---- */
static void prefix_of(const char *out, char text[32])
{
    char *real = realpath(out, NULL);
    const char *name = real ? real : out;
    snprintf(text, 32, "ptrain-%016llx-", (unsigned long long)XXH3_64bits(name, strlen(name)));
    free(real);
}

/* Opens a file for this run alone: those that another process has open are locked. */
static int open_locked(const char *path, struct err *e)
{
    int fd = io_open_write(path, e);
    if (fd >= 0 && io_try_lock(fd, 0) == IO_BUSY) {
        io_close(fd);
        return err_set(e, ERR_FILE, "%s is in use by another run: choose another folder for --offload", path);
    }
    return fd;
}

void state_files_drop(const char *dir, const char *out)
{
    DIR *d = opendir(dir);
    struct dirent *x;
    char prefix[32], path[4400];
    struct err ignored;
    prefix_of(out, prefix);
    while (d && (x = readdir(d))) {
        if (strncmp(x->d_name, prefix, strlen(prefix)))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, x->d_name);
        int fd = open_locked(path, &ignored);
        if (fd >= 0)
            io_unlink(path, &ignored);
        io_close(fd);
    }
    if (d)
        closedir(d);
}

static int open_one(struct state_files *f, int g, struct err *e)
{
    int fd = open_locked(f->path[g], e), rc = fd < 0 ? fd : 0;
    if (rc < 0)
        return rc;
    f->file[g] = (struct aio_file){ .fd = fd, .path = f->path[g] };
    TRY(io_truncate(fd, f->path[g], f->of->bytes, e));
    TRY(io_reserve(fd, f->path[g], f->of->bytes, e));
    f->file[g] = aio_file_of(fd, f->path[g]);
out:
    return rc;
}

int state_files_open(struct state_files *f, const char *dir, const char *out, int rank, struct err *e)
{
    char prefix[32];
    int rc = 0;
    prefix_of(out, prefix);
    f->file[0].fd = f->file[1].fd = -1;
    for (int g = 0; g < 2; g++) {
        snprintf(f->path[g], sizeof f->path[g], "%s/%srank-%05d.%c", dir, prefix, rank, 'a' + g);
        f->sum[g] = calloc((size_t)f->of->n_pieces * KINDS + 1, sizeof *f->sum[g]);
        if (!f->sum[g])
            return err_set(e, ERR_MEMORY, "no memory for checksums of offloaded state");
    }
    for (int g = 0; rc >= 0 && g < 2; g++)
        rc = open_one(f, g, e);
    if (rc >= 0)
        rc = aio_open(&f->aio, AIO_BEST, e);
    return rc;
}

void state_files_close(struct state_files *f)
{
    struct err ignored;
    aio_close(f->aio);
    for (int g = 0; g < 2; g++) {
        if (f->path[g][0] && f->file[g].fd >= 0)
            io_unlink(f->path[g], &ignored);
        if (f->path[g][0])
            io_close(f->file[g].fd);
        free(f->sum[g]);
    }
}

void state_files_job(const struct state_files *f, struct aio_job *j, int generation, int piece, int k, int n,
                     void *buf, int write)
{
    const struct piece *x = &f->of->piece[piece];
    *j = (struct aio_job){ .file = &f->file[generation],
                           .buf = buf,
                           .bytes = x->section * (size_t)n,
                           .at = x->file_at + (int64_t)x->section * k,
                           .write = write };
}

/* ---- checksums ---- */
static uint64_t sum_of(const struct piece *x, const void *buf)
{
    uint64_t sum = XXH3_64bits(buf, (size_t)x->n * sizeof(float));
    return sum ? sum : 1;
}

void state_files_sum(struct state_files *f, int generation, int piece, int k, int n, const void *buf)
{
    const struct piece *x = &f->of->piece[piece];
    for (int i = 0; i < n; i++)
        f->sum[generation][piece * KINDS + k + i] = sum_of(x, (const char *)buf + x->section * (size_t)i);
}

int state_files_check(const struct state_files *f, int generation, int piece, int k, int n, const void *buf,
                      struct err *e)
{
    static const char *const name[KINDS] = { "masters", "first moments", "second moments" };
    const struct piece *x = &f->of->piece[piece];
    for (int i = 0; i < n; i++) {
        if (sum_of(x, (const char *)buf + x->section * (size_t)i) ==
            f->sum[generation][piece * KINDS + k + i])
            continue;
        return err_set(e, ERR_INTEGRITY,
                       "%s: unit %d, piece %d of %d: the %s at bytes %lld to %lld are not those that were "
                       "written: check the disk, and continue from the last checkpoint with --resume auto",
                       f->path[generation], f->m->local.unit[x->vector].unit,
                       piece - f->of->first[x->vector] + 1, f->of->end[x->vector] - f->of->first[x->vector],
                       name[k + i], (long long)(x->file_at + (int64_t)x->section * (k + i)),
                       (long long)(x->file_at + (int64_t)x->section * (k + i) + x->n * 4 - 1));
    }
    return 0;
}
