/* machines.c - see machines.h. A keeper's set is whole when its manifest has come, behind all its files.
 * A set of the job is whole when the keepers that are left have all its files. Two neighbouring machines
 * that are lost at once take it with them. */
#define _GNU_SOURCE
#include "train/elastic/machines.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "comm/leash.h"
#include "format/ckpt_proof.h"
#include "train/checkpoint/restore.h"

#define SET_BYTES (MEMORY_PATH_BYTES + 64)

static void set_path(char path[SET_BYTES], long pid, int64_t step)
{
    snprintf(path, SET_BYTES, "mem:%ld/" NOTE_SET "%lld", pid, (long long)step);
}

/* ---- keepers ---- */

/* The child: keeps, and ends with the first process. */
static void keep(pid_t parent)
{
    struct keeper *k;
    struct err e;
    setsid(); /* a Ctrl-C is for the ranks */
    prctl(PR_SET_NAME, "keeper");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close_range(3, ~0u, 0);
    if (getppid() != parent || keeper_open(&k, NULL, &e) < 0)
        _exit(1);
    for (;;)
        pause();
}

static int start(struct note *note, int m, struct err *e)
{
    static const struct timespec nap = { 0, 5000000 };
    const pid_t self = getpid(), pid = fork();
    if (pid < 0)
        return err_sys(e, "cannot start the keeper of machine %d", m);
    if (pid == 0)
        keep(self);
    for (int i = 0; i < 1000; i++) {
        if (keeper_is_at(pid)) {
            note->keeper[m] = pid;
            return 0;
        }
        if (waitpid(pid, NULL, WNOHANG) == pid)
            return err_set(e, ERR_MEMORY, "the keeper of machine %d ended when it was started", m);
        nanosleep(&nap, NULL);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return err_set(e, ERR_MEMORY, "the keeper of machine %d does not answer", m);
}

int machines_count(int64_t ranks, int64_t per_machine, struct err *e)
{
    const int64_t n = per_machine > 0 ? (ranks + per_machine - 1) / per_machine : 1;
    if (n > NOTE_MACHINES)
        return err_set(e, ERR_USAGE, "%lld machines: state in memory is copied among %d at most",
                       (long long)n, NOTE_MACHINES);
    return (int)n;
}

int machines_lack(const struct note *note)
{
    int lack = 0;
    for (int m = 0; m < note->n_machines && note->n_machines > 1; m++)
        lack += !note->keeper[m];
    return lack;
}

int machines_start(struct note *note, int n, struct err *e)
{
    int rc = 0;
    note->n_machines = n;
    for (int m = 0; m < n && n > 1; m++)
        if (!note->keeper[m] || !keeper_is_at((pid_t)note->keeper[m]))
            TRY(start(note, m, e));
out:
    return rc;
}

/* ---- putting a set together ---- */

/* The highest step below `below` that process pid has a whole set of; -1: none. */
static int64_t step_below(long pid, int64_t below)
{
    char(*name)[MEMORY_NAME_BYTES] = NULL;
    struct err ignored;
    int64_t best = -1;
    int n = 0;
    if (!pid || memory_list((pid_t)pid, &name, &n, &ignored) < 0)
        return -1;
    for (int i = 0; i < n; i++) {
        int64_t s = checkpoint_step(name[i]);
        best = s > best && s < below ? s : best;
    }
    free(name);
    return best;
}

/* Takes file i of a keeper's set; one that is there already stays as it is. */
static void take(const struct memory_set *from, int i, const char *to)
{
    const char *name = memory_file_name(from, i);
    struct err ignored;
    int fd = io_open_read(memory_file(from, name), &ignored);
    if (fd >= 0)
        memory_give(fd, to, name, &ignored);
}

/* Takes what the keepers have of a set; the manifest last. */
static void take_all(const struct note *note, int64_t step, const char *to, int last)
{
    struct memory_set *from;
    struct err ignored;
    char path[SET_BYTES];
    for (int m = 0; m < NOTE_MACHINES; m++) {
        set_path(path, note->keeper[m], step);
        if (!note->keeper[m] || memory_open(&from, path, &ignored) < 0)
            continue;
        for (int i = 0; i < memory_n_files(from); i++)
            if ((strcmp(memory_file_name(from, i), MEMORY_LAST) == 0) == last)
                take(from, i, to);
        memory_close(from);
    }
}

/* 1: this process now keeps the whole set. */
static int assemble(const struct note *note, int64_t step)
{
    char path[SET_BYTES];
    struct ckpt *c = NULL;
    struct err ignored;
    set_path(path, (long)getpid(), step);
    if (memory_begin(path, &ignored) < 0)
        return 0;
    take_all(note, step, path, 0);
    take_all(note, step, path, 1);
    int rc = ckpt_open(&c, path, NULL, &ignored);
    ckpt_close(c);
    if (rc < 0)
        memory_drop(path, &ignored);
    return rc >= 0;
}

/* 1: the set that this process keeps is whole; else it is dropped. */
static int is_whole(int64_t step)
{
    char path[SET_BYTES];
    struct ckpt *c = NULL;
    struct err why, ignored;
    set_path(path, (long)getpid(), step);
    int rc = ckpt_open(&c, path, NULL, &why);
    ckpt_close(c);
    if (rc < 0 && why.code != ERR_MEMORY)
        memory_drop(path, &ignored);
    return rc >= 0;
}

int64_t machines_collect(const struct note *note)
{
    for (int64_t below = INT64_MAX, best; below > 0; below = best) {
        const int64_t own = step_below((long)getpid(), below);
        best = own;
        for (int m = 0; m < NOTE_MACHINES; m++) {
            int64_t s = step_below((long)note->keeper[m], below);
            best = s > best ? s : best;
        }
        if (best < 0 || (best == own && is_whole(own)) || assemble(note, best))
            return best;
    }
    return -1;
}

/* ---- spreading one ---- */

static int copy(const struct memory_set *from, const char *name, long keeper, int64_t step, struct err *e)
{
    char path[SET_BYTES];
    struct stat st;
    int in = io_open_read(memory_file(from, name), e), out = -1, rc = 0;
    set_path(path, keeper, step);
    if (in < 0 || fstat(in, &st) < 0) {
        rc = err_sys(e, "%s/%s: cannot read", memory_path(from), name);
        goto out;
    }
    TRY(out = memory_create(path, name, e));
    for (off_t left = st.st_size; left > 0;) {
        ssize_t n = sendfile(out, in, NULL, (size_t)left);
        if (n <= 0) {
            io_close(out);
            rc = err_sys(e, "%s/%s: cannot copy", path, name);
            goto out;
        }
        left -= n;
    }
    rc = memory_give(out, path, name, e);
out:
    io_close(in);
    return rc < 0 ? rc : 0;
}

/* The rank whose file it is; -1: all machines need it. */
static int rank_of(const char *name)
{
    int rank, n = 0;
    if ((sscanf(name, "weights-%5d.safetensors%n", &rank, &n) == 1 && n) ||
        (sscanf(name, "optim-%5d.safetensors%n", &rank, &n) == 1 && n))
        return rank;
    return -1;
}

/* Copies the files of one rank (rank -1: small ones; last: the manifest alone) to a keeper. */
static int copy_files(const struct memory_set *from, int rank, int last, long keeper, int64_t step,
                      struct err *e)
{
    int rc = 0;
    for (int i = 0; i < memory_n_files(from); i++) {
        const char *name = memory_file_name(from, i);
        if (rank_of(name) == rank && (strcmp(name, MEMORY_LAST) == 0) == last)
            TRY(copy(from, name, keeper, step, e));
    }
out:
    return rc;
}

int machines_spread(struct note *note, const struct ranks *ranks, int per_machine, const char *dir,
                    int64_t step, struct err *e)
{
    struct comm *all = ranks->mesh.all;
    const int rank = world_rank(ranks->world), n = world_size(ranks->world);
    const int machines = machines_count(n, per_machine, e);
    const int m = per_machine > 0 ? rank / per_machine : 0,
              leads = per_machine > 0 && rank % per_machine == 0;
    int64_t keeper[NOTE_MACHINES] = { 0 };
    struct memory_set *from = NULL;
    char path[SET_BYTES];
    int rc = 0;
    if (machines < 2)
        return machines < 0 ? machines : 0;
    if (note)
        memcpy(keeper, note->keeper, sizeof keeper);
    TRY(comm_broadcast(all, keeper, sizeof keeper, 0, e));
    for (int i = 0; i < machines; i++)
        if (!keeper[i])
            return err_set(e, ERR_FILE, "machine %d has no keeper", i);
    set_path(path, (long)keeper[m], step);
    if (leads)
        rc = memory_begin(path, e);
    TRY(comm_agree(all, rc, e));

    snprintf(path, sizeof path, "%s/" NOTE_SET "%lld", dir, (long long)step);
    rc = memory_open(&from, path, e);
    if (rc >= 0)
        rc = copy_files(from, rank, 0, (long)keeper[m], step, e);
    if (rc >= 0)
        rc = copy_files(from, rank, 0, (long)keeper[(m + 1) % machines], step, e);
    if (rc >= 0 && leads)
        rc = copy_files(from, -1, 0, (long)keeper[m], step, e);
    TRY(comm_agree(all, rc, e));
    if (leads)
        rc = copy_files(from, -1, 1, (long)keeper[m], step, e);
    TRY(comm_agree(all, rc, e));
out:
    memory_close(from);
    return rc < 0 ? rc : 0;
}

void machines_drop(const struct note *note, int64_t step, int older)
{
    const long first = leash_holder();
    char(*name)[MEMORY_NAME_BYTES], path[SET_BYTES + MEMORY_NAME_BYTES];
    struct err ignored;
    for (int m = -1; m < NOTE_MACHINES; m++) {
        const long pid = m < 0 ? first : (long)note->keeper[m];
        const int spread = m < 0 && note->n_machines > 1; /* the keepers have it */
        int n = 0;
        if (!pid || memory_list((pid_t)pid, &name, &n, &ignored) < 0)
            continue;
        for (int i = 0; i < n; i++) {
            const int64_t s = checkpoint_step(name[i]);
            snprintf(path, sizeof path, "mem:%ld/%s", pid, name[i]);
            if (s < 0) /* a version that --publish keeps there */
                continue;
            if (s > step || (older && (s < step || spread)))
                memory_drop(path, &ignored);
        }
        free(name);
    }
}
