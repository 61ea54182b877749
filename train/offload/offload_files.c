/* offload_files.c - the files of a rank: names, space, places, checksums. */
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

/* ---- names: ptrain-RUN-rank-RRRRR.a, .b, .grads, .weights; RUN is made of the absolute path of --out
 * ---- */
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

int state_folder_make(const char *dir, struct err *e)
{
    int rc = io_make_dirs(dir, e);
    if (rc >= 0 && access(dir, R_OK | W_OK | X_OK) < 0)
        rc = err_sys(e, "files cannot be written there");
    return rc < 0 ? err_add(e, "--offload %s", dir) : 0;
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

void state_file_path(char path[4300], const char *dir, const char *out, int rank, const char *what)
{
    char prefix[32];
    prefix_of(out, prefix);
    snprintf(path, 4300, "%s/%srank-%05d.%s", dir, prefix, rank, what);
}

int state_file_open(const char *path, int64_t bytes, struct err *e)
{
    struct err ignored;
    int fd = open_locked(path, e), rc = fd < 0 ? fd : 0;
    if (rc < 0)
        return rc;
    TRY(io_truncate(fd, path, bytes, e));
    TRY(io_reserve(fd, path, bytes, e));
    return fd;
out:
    io_unlink(path, &ignored);
    io_close(fd);
    return rc;
}

/* Places in a file. */
static size_t count_places(const struct state_files *f, int i)
{
    const size_t a_piece[FILES] = { KIND_STATES, KIND_STATES, (size_t)f->of->n_levels, 1 };
    return a_piece[i] * (size_t)f->of->n_pieces;
}

int state_files_open(struct state_files *f, const char *dir, const char *out, int rank, struct err *e)
{
    static const char *const name[FILES] = { "a", "b", "grads", "weights" };
    int rc = 0;
    for (int i = 0; i < FILES; i++)
        f->file[i].fd = -1;
    for (int i = 0; rc >= 0 && i < FILES; i++) {
        if (!f->of->bytes[i])
            continue;
        state_file_path(f->path[i], dir, out, rank, name[i]);
        f->sum[i] = calloc(count_places(f, i) + 1, sizeof *f->sum[i]);
        rc = f->sum[i] ? state_file_open(f->path[i], f->of->bytes[i], e)
                       : err_set(e, ERR_MEMORY, "no memory for checksums of offloaded state");
        if (rc >= 0)
            f->file[i] = aio_file_of(rc, f->path[i]);
    }
    return rc < 0 ? rc : 0;
}

void state_files_close(struct state_files *f)
{
    struct err ignored;
    for (int i = 0; i < FILES; i++) {
        if (f->path[i][0] && f->file[i].fd >= 0)
            io_unlink(f->path[i], &ignored);
        if (f->path[i][0])
            io_close(f->file[i].fd);
        free(f->sum[i]);
    }
}

/* ---- places ---- */
struct state_place state_place_of(const struct state_files *f, enum kind kind, int generation, int piece)
{
    const struct state_pieces *of = f->of;
    const struct piece *x = &of->piece[piece];
    struct state_place p = { .piece = piece,
                             .kind = kind,
                             .bytes = (size_t)x->n *
                                      (kind == KIND_WEIGHTS ? dtype_size(f->m->dt) : sizeof(float)),
                             .padded = kind == KIND_WEIGHTS ? x->weights : x->section };
    int file = kind == KIND_WEIGHTS ? FILE_WEIGHTS : kind == KIND_GRADS ? FILE_GRADS : generation;
    size_t place = (size_t)piece;
    if (kind == KIND_WEIGHTS) {
        p.at = x->weight_at;
    } else if (kind == KIND_GRADS) {
        p.at = of->bytes[FILE_GRADS] / of->n_levels * generation + x->grad_at;
        place += (size_t)of->n_pieces * (size_t)generation;
    } else {
        p.at = x->state_at + (int64_t)x->section * (int64_t)kind;
        place = place * KIND_STATES + (size_t)kind;
    }
    p.file = &f->file[file];
    p.sum = &f->sum[file][place];
    return p;
}

struct aio_job state_place_job(const struct state_place *p, int n, void *buf, int write)
{
    return (struct aio_job){
        .file = p->file, .buf = buf, .bytes = p->padded * (size_t)n, .at = p->at, .write = write
    };
}

static uint64_t sum_of(const struct state_place *p, const void *buf)
{
    uint64_t sum = XXH3_64bits(buf, p->bytes);
    return sum ? sum : 1; /* 0: never written */
}

void state_place_sum(const struct state_place *p, const void *buf) { *p->sum = sum_of(p, buf); }

int state_place_check(const struct state_files *f, const struct state_place *p, const void *buf,
                      struct err *e)
{
    static const char *const name[KINDS] = { "masters", "first moments", "second moments", "gradients",
                                             "weights" };
    int v = f->of->piece[p->piece].vector;
    if (sum_of(p, buf) == *p->sum)
        return 0;
    return err_set(e, ERR_INTEGRITY,
                   "%s: unit %d, piece %d of %d: the %s at bytes %lld to %lld are not those that were "
                   "written: check the disk, and continue from the last checkpoint with --resume auto",
                   p->file->path, f->m->local.unit[v < f->of->n_vectors ? v : 0].unit,
                   p->piece - f->of->first[v] + 1, f->of->end[v] - f->of->first[v], name[p->kind],
                   (long long)p->at, (long long)(p->at + (int64_t)p->bytes - 1));
}
