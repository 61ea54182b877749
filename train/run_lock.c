/* run_lock.c - see run_lock.h.
 *
 * Rank 0 takes the exclusive lock, writes its name into the file and makes the lock a shared one; then the
 * other ranks take a shared lock each. Another run needs the exclusive lock, so it waits for all of them.
 * Between the exclusive and the shared lock another run may take it: then rank 0 tries again. */
#include "train/run_lock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/io.h"

#define LOCK_NAME ".ptrain.lock"
#define WAIT_S 30
#define SAID_S 0.5
#define HOLDER_BYTES 200

/* Opens the file; one of another user, which this one may not write, for reading. */
static int open_lock(struct run *r, char path[4200], struct err *e)
{
    struct err ignored;
    snprintf(path, 4200, "%s/" LOCK_NAME, r->o.out);
    r->lock = io_open_write(path, e);
    int rc = r->lock < 0 ? r->lock : 0;
    if (rc < 0 && (r->lock = io_open_read(path, &ignored)) >= 0)
        rc = 0;
    return rc < 0 ? err_add(e, "--out %s: checkpoints cannot be written there", r->o.out) : 0;
}

/* 1: OUT is there, and no checkpoint itself (which run_check_target refuses). */
static int can_lock(const struct run *r)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/manifest.json", r->o.out);
    return io_is_dir(r->o.out) && !io_exists(path);
}

/* Who has the lock, as that run wrote it. */
static void read_holder(int fd, char text[HOLDER_BYTES])
{
    ssize_t n = pread(fd, text, HOLDER_BYTES - 1, 0);
    text[n > 0 ? n : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    for (char *p = text; *p; p++)
        if (*p < ' ' || *p > '~')
            *p = '?';
    if (!*text)
        snprintf(text, HOLDER_BYTES, "unknown");
}

static void write_holder(int fd)
{
    char text[HOLDER_BYTES], host[100] = "";
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "process %ld on %s\n", (long)getpid(), host);
    /* only for messages: what cannot be written is missing there */
    if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n, 0) < 0)
        return;
}

/* Rank 0: one try. */
static enum io_lock try_lock(int fd)
{
    enum io_lock got = io_try_lock(fd, 0);
    if (got != IO_LOCKED)
        return got;
    write_holder(fd);
    return io_try_lock(fd, 1);
}

/* Rank 0. */
static int take(struct run *r, struct log *term, struct err *e)
{
    static const struct timespec nap = { 0, 20000000 };
    const double began = clock_s(), wait_s = r->o.resume ? WAIT_S : 0;
    char path[4200], holder[HOLDER_BYTES];
    enum io_lock got;
    int said = 0, rc = open_lock(r, path, e);
    if (rc < 0)
        return rc;

    while ((got = try_lock(r->lock)) == IO_BUSY && clock_s() - began < wait_s) {
        read_holder(r->lock, holder);
        if (clock_s() - began > SAID_S && !said++) /* ranks that end may have it for a moment */
            log_line(term, "--out %s: another run (%s) has not ended: waiting for it, up to %d s", r->o.out,
                     holder, WAIT_S);
        nanosleep(&nap, NULL);
    }
    if (got == IO_NO_LOCKS)
        log_line(term, "--out %s: the file system has no locks: let no other run write there", r->o.out);
    if (got != IO_BUSY)
        return 0;

    read_holder(r->lock, holder);
    return err_set(e, ERR_FILE,
                   "--out %s: another run (%s) writes there: wait until it ends, or choose another --out",
                   r->o.out, holder);
}

/* The other ranks. */
static int share(struct run *r, struct err *e)
{
    char path[4200];
    int rc = open_lock(r, path, e);
    if (rc >= 0 && io_try_lock(r->lock, 1) == IO_BUSY)
        rc = err_set(e, ERR_FILE, "%s: another run took the folder: start again, or choose another --out",
                     path);
    return rc;
}

int run_lock(struct run *r, const struct ranks *ranks, struct log *term, struct err *e)
{
    struct comm *all = ranks->mesh.all;
    const int first = ranks_is_first(ranks);
    int64_t there = 0;
    int rc = 0;
    if (r->o.eval_only || r->o.dry_run || r->lock >= 0)
        return 0;

    if (first && (there = can_lock(r)))
        rc = take(r, term, e);
    TRY(comm_agree(all, rc, e));
    TRY(comm_broadcast(all, &there, sizeof there, 0, e));
    if (there)
        TRY(comm_agree(all, first ? 0 : share(r, e), e));
out:
    if (rc < 0)
        run_unlock(r);
    return rc;
}

void run_unlock(struct run *r)
{
    io_close(r->lock);
    r->lock = -1;
}
