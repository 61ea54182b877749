/* memory_set.c - sets of memfds found and opened through /proc/PID/fd. See store/memory.h.
 *
 * The link of a memfd is "/memfd:shardline:SET/FILE (deleted)". Between reading a link and opening it the
 * keeper may close the file and reuse its number, so the link of what was opened is compared again. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/io.h"
#include "store/memory/memory_wire.h"

#define LINK_BYTES 512
#define LINK_BEGIN "/memfd:" MEMORY_PREFIX
#define LINK_END " (deleted)"

struct memory_file {
    char name[MEMORY_NAME_BYTES], path[40];
    int fd;
};
struct memory_set {
    char path[1024];
    int n;
    struct memory_file *file;
};

/* ---- names ---- */

int memory_is(const char *path) { return !strncmp(path, MEMORY_SCHEME, strlen(MEMORY_SCHEME)); }

int memory_name_is_good(const char *name)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return *name && strlen(name) < MEMORY_NAME_BYTES && strspn(name, good) == strlen(name);
}

int memory_parse(const char *path, pid_t *pid, char set[MEMORY_NAME_BYTES], struct err *e)
{
    int n = 0, ok = 0;
    *set = 0;
    if (memory_is(path) && sscanf(path, MEMORY_SCHEME "%9d%n", pid, &n) == 1 && *pid > 0) {
        ok = !path[n];
        if (path[n] == '/' && memory_name_is_good(path + n + 1)) {
            snprintf(set, MEMORY_NAME_BYTES, "%s", path + n + 1);
            ok = 1;
        }
    }
    return ok ? 0
              : err_set(e, ERR_USAGE, "%s: give mem:PID or mem:PID/SET, with a set of letters, digits, ._-",
                        path);
}

/* Splits the link of a memfd of ours into set and file. 0: it is another one. */
static int split_link(const char *link, char set[MEMORY_NAME_BYTES], char file[MEMORY_NAME_BYTES])
{
    size_t n = strlen(link), n_begin = strlen(LINK_BEGIN), n_end = strlen(LINK_END);
    if (strncmp(link, LINK_BEGIN, n_begin) || n < n_begin + n_end || strcmp(link + n - n_end, LINK_END))
        return 0;
    const char *name = link + n_begin, *end = link + n - n_end,
               *slash = memchr(name, '/', (size_t)(end - name));
    if (!slash || slash - name >= MEMORY_NAME_BYTES || end - slash > MEMORY_NAME_BYTES)
        return 0;
    snprintf(set, MEMORY_NAME_BYTES, "%.*s", (int)(slash - name), name);
    snprintf(file, MEMORY_NAME_BYTES, "%.*s", (int)(end - slash - 1), slash + 1);
    return memory_name_is_good(set) && memory_name_is_good(file);
}

/* ---- the links of a process ---- */

static DIR *open_links(pid_t pid, const char *path, struct err *e)
{
    char name[40];
    snprintf(name, sizeof name, "/proc/%ld/fd", (long)pid);
    DIR *d = opendir(name);
    if (!d)
        err_set(e, ERR_FILE,
                "%s: process %ld has ended or is another user's: what it keeps in memory ends with it", path,
                (long)pid);
    return d;
}

/* The next file of ours; *number: its name in the folder. 0: no more. */
static int next_file(DIR *d, const char **number, char set[MEMORY_NAME_BYTES], char file[MEMORY_NAME_BYTES])
{
    char link[LINK_BYTES];
    struct dirent *x;
    while ((x = readdir(d))) {
        ssize_t n = readlinkat(dirfd(d), x->d_name, link, sizeof link - 1);
        link[n > 0 ? n : 0] = 0;
        *number = x->d_name;
        if (n > 0 && split_link(link, set, file))
            return 1;
    }
    return 0;
}

/* A whole set, and when its last file was made. */
struct whole {
    char name[MEMORY_NAME_BYTES];
    struct timespec made;
    uint64_t ino; /* of two made in the same tick the later one has the larger number */
};

static int compare_whole(const void *pa, const void *pb)
{
    const struct whole *a = pa, *b = pb;
    if (a->made.tv_sec != b->made.tv_sec)
        return a->made.tv_sec < b->made.tv_sec ? -1 : 1;
    if (a->made.tv_nsec != b->made.tv_nsec)
        return a->made.tv_nsec < b->made.tv_nsec ? -1 : 1;
    return (a->ino > b->ino) - (a->ino < b->ino);
}

/* The whole sets of a process, the oldest first; *list is malloc'd. */
static int find_whole(pid_t pid, const char *path, struct whole **list, int *n, struct err *e)
{
    char set[MEMORY_NAME_BYTES], file[MEMORY_NAME_BYTES];
    const char *number;
    struct stat st;
    DIR *d = open_links(pid, path, e);
    *list = NULL;
    *n = 0;
    if (!d)
        return -e->code;
    while (next_file(d, &number, set, file)) {
        if (strcmp(file, MEMORY_LAST) || fstatat(dirfd(d), number, &st, 0) < 0)
            continue;
        struct whole *grown = realloc(*list, sizeof *grown * (size_t)(*n + 1));
        if (!grown) {
            closedir(d);
            free(*list);
            *list = NULL;
            return err_set(e, ERR_MEMORY, "%s: no memory for a list", path);
        }
        *list = grown;
        grown[*n] = (struct whole){ .made = st.st_mtim, .ino = st.st_ino };
        memcpy(grown[(*n)++].name, set, sizeof set);
    }
    closedir(d);
    if (*n)
        qsort(*list, (size_t)*n, sizeof **list, compare_whole);
    return 0;
}

int memory_list(pid_t pid, char (**name)[MEMORY_NAME_BYTES], int *n, struct err *e)
{
    char path[40];
    struct whole *list;
    snprintf(path, sizeof path, MEMORY_SCHEME "%ld", (long)pid);
    int rc = find_whole(pid, path, &list, n, e);
    if (rc < 0)
        return rc;
    *name = malloc(sizeof **name * (size_t)(*n + 1));
    for (int i = 0; *name && i < *n; i++)
        memcpy((*name)[i], list[i].name, sizeof **name);
    free(list);
    return *name ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for a list", path);
}

int64_t memory_bytes(const char *path, const char *name, struct err *e)
{
    char want[MEMORY_NAME_BYTES], set[MEMORY_NAME_BYTES], file[MEMORY_NAME_BYTES];
    const char *number;
    struct stat st;
    pid_t pid;
    int64_t bytes = -1;
    int rc = memory_parse(path, &pid, want, e);
    DIR *d = rc < 0 ? NULL : open_links(pid, path, e);
    if (!d)
        return -e->code;
    while (bytes < 0 && next_file(d, &number, set, file))
        if (!strcmp(set, want) && !strcmp(file, name) && fstatat(dirfd(d), number, &st, 0) == 0)
            bytes = st.st_size;
    closedir(d);
    return bytes >= 0 ? bytes : err_set(e, ERR_FILE, "%s has no %s: did its writer end", path, name);
}

/* ---- a set ---- */

int memory_add_open(struct memory_set *m, const char *name, int fd, struct err *e)
{
    struct memory_file *grown = realloc(m->file, sizeof *grown * (size_t)(m->n + 1));
    if (!grown) {
        io_close(fd);
        return err_set(e, ERR_MEMORY, "%s: no memory for the names of its files", m->path);
    }
    m->file = grown;
    struct memory_file *f = &grown[m->n++];
    f->fd = fd;
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->path, sizeof f->path, "/proc/self/fd/%d", fd);
    return 0;
}

void memory_take_out(struct memory_set *m, const char *name)
{
    for (int i = m->n - 1; i >= 0; i--) {
        if (strcmp(m->file[i].name, name))
            continue;
        io_close(m->file[i].fd);
        m->file[i] = m->file[--m->n];
    }
}

int memory_private(struct memory_set **out, const char *path, struct err *e)
{
    struct memory_set *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_MEMORY, "%s: no memory", path);
    snprintf(m->path, sizeof m->path, "%s", path);
    *out = m;
    return 0;
}

int memory_add(struct memory_set *m, const char *name, const void *data, int64_t n, int64_t bytes,
               struct err *e)
{
    int rc = 0, fd = memfd_create("shardline", MFD_CLOEXEC);
    if (fd < 0)
        return err_set(e, ERR_MEMORY, "%s: cannot make a file in memory: %s", m->path, strerror(errno));
    TRY(io_pwrite(fd, name, data, (size_t)n, 0, e));
    TRY(io_truncate(fd, name, bytes, e));
    return memory_add_open(m, name, fd, e);
out:
    io_close(fd);
    return rc;
}

/* Opens the link `number` and adds it as file `name` of set `set`, if that is what was opened. */
static int add_file(struct memory_set *m, pid_t pid, const char *number, const char *set, const char *name,
                    struct err *e)
{
    char path[64], link[LINK_BYTES], set_now[MEMORY_NAME_BYTES], name_now[MEMORY_NAME_BYTES];
    struct err gone;
    snprintf(path, sizeof path, "/proc/%ld/fd/%.20s", (long)pid, number);
    errno = 0;
    int fd = io_open_read(path, &gone);
    if (fd < 0 && errno && errno != ENOENT)
        return err_set(e, gone.code, "%s: cannot open its file %s: %s", m->path, name, strerror(errno));
    if (fd < 0)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, link, sizeof link - 1);
    link[n > 0 ? n : 0] = 0;
    if (!split_link(link, set_now, name_now) || strcmp(set, set_now) || strcmp(name, name_now)) {
        io_close(fd);
        return 0;
    }
    return memory_add_open(m, name, fd, e);
}

/* Opens all files of the set. */
static int add_files(struct memory_set *m, pid_t pid, const char *want, struct err *e)
{
    char set[MEMORY_NAME_BYTES], file[MEMORY_NAME_BYTES];
    const char *number;
    DIR *d = open_links(pid, m->path, e);
    int rc = d ? 0 : -e->code;
    while (rc >= 0 && next_file(d, &number, set, file))
        if (!strcmp(set, want))
            rc = add_file(m, pid, number, set, file, e);
    if (d)
        closedir(d);
    return rc < 0 ? rc : 0;
}

/* Says what the process has in place of the set. */
static int no_such_set(const char *path, const struct whole *list, int n, pid_t pid, struct err *e)
{
    char have[300] = "";
    for (int i = n - 1, at = 0; i >= 0 && at < 200; i--)
        at += snprintf(have + at, sizeof have - (size_t)at, "%s%.80s", at ? ", " : "", list[i].name);
    return n ? err_set(e, ERR_FILE, "%s: process %ld keeps no such set: it has %s", path, (long)pid, have)
             : err_set(e, ERR_FILE, "%s: process %ld keeps no whole checkpoint in memory", path, (long)pid);
}

/* 1: process pid still has the manifest that *was names. A set is dropped manifest first, so that it had all
 * files until now. */
static int is_still_there(pid_t pid, const struct whole *was)
{
    struct whole *list;
    struct err ignored;
    int n, found = 0;
    if (find_whole(pid, "", &list, &n, &ignored) < 0)
        return 0;
    for (int i = 0; i < n; i++)
        found |= list[i].ino == was->ino && !strcmp(list[i].name, was->name);
    free(list);
    return found;
}

int memory_open(struct memory_set **out, const char *path, struct err *e)
{
    pid_t pid;
    char want[MEMORY_NAME_BYTES];
    struct whole *list = NULL;
    int n = 0, i, rc;
    struct memory_set *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_MEMORY, "%s: no memory", path);
    TRY(memory_parse(path, &pid, want, e));
    TRY(find_whole(pid, path, &list, &n, e));
    for (i = n - 1; *want && i >= 0 && strcmp(list[i].name, want); i--)
        ;
    if (i < 0) {
        rc = no_such_set(path, list, n, pid, e);
        goto out;
    }
    snprintf(m->path, sizeof m->path, MEMORY_SCHEME "%ld/%s", (long)pid, list[i].name);
    TRY(add_files(m, pid, list[i].name, e));
    if (!memory_file(m, MEMORY_LAST) || !is_still_there(pid, &list[i]))
        rc = err_set(e, ERR_FILE, "%s: was dropped while it was opened: open the newest one", m->path);
out:
    free(list);
    if (rc < 0) {
        memory_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void memory_close(struct memory_set *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n; i++)
        io_close(m->file[i].fd);
    free(m->file);
    free(m);
}

const char *memory_path(const struct memory_set *m) { return m->path; }

int memory_n_files(const struct memory_set *m) { return m->n; }

const char *memory_file_name(const struct memory_set *m, int i) { return m->file[i].name; }

const char *memory_file(const struct memory_set *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (!strcmp(m->file[i].name, name))
            return m->file[i].path;
    return NULL;
}
