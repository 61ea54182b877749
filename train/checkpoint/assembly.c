/* assembly.c - see assembly.h. */
#include "train/checkpoint/assembly.h"

#include <stdlib.h>
#include <string.h>
#include "base/buf.h"

int assembly_open(struct assembly *a, struct ranks *ranks, int on_thread, const struct assembly_ops *ops,
                  void *arg, struct err *e)
{
    *a = (struct assembly){ .ops = ops, .arg = arg, .ranks = ranks, .on_thread = on_thread };
    a->sizes = calloc((size_t)world_size(ranks->world), sizeof *a->sizes);
    return a->sizes ? 0 : err_set(e, ERR_MEMORY, "no memory for the tables of a checkpoint");
}

void assembly_close(struct assembly *a)
{
    struct err ignored;
    if (a->board) /* other ranks may have ended */
        board_stop(a->board);
    assembly_wait(a, &ignored);
    assembly_forget(a);
    free(a->sizes);
    a->sizes = NULL;
}

/* ---- phases: what a thread may do ---- */

/* Rank 0: the tables of the ranks that have files, to the seal. */
static int seal(struct assembly *a, struct err *e)
{
    int n = world_size(a->ranks->world), used = 0, rc;
    void **table = calloc((size_t)n, sizeof *table);
    size_t *bytes = calloc((size_t)n, sizeof *bytes);
    char *at = a->blobs;
    if (!table || !bytes) {
        rc = err_set(e, ERR_MEMORY, "no memory for the manifest");
        goto out;
    }
    for (int r = 0; r < n; at += a->sizes[r++]) {
        if (!a->sizes[r]) /* a rank without files */
            continue;
        table[used] = at;
        bytes[used++] = a->sizes[r];
    }
    rc = a->ops->seal(a->arg, used, table, bytes, e);
out:
    free(table);
    free(bytes);
    return rc;
}

static int write_files(struct assembly *a, struct err *e)
{
    return a->ops->write(a->arg, &a->table, &a->table_bytes, e);
}

/* Rank 0: the tables of all ranks over the board, as comm_gather_blobs brings them. */
static int collect(struct assembly *a, struct err *e)
{
    struct buf all = { 0 };
    int rc = 0;
    for (int r = 0; r < world_size(a->ranks->world); r++) {
        void *taken = NULL;
        a->sizes[r] = a->table_bytes;
        if (r)
            TRY(board_take(a->board, r, &taken, &a->sizes[r], e));
        if (a->sizes[r])
            buf_add(&all, taken ? taken : a->table, a->sizes[r]);
        free(taken);
    }
    if (all.failed)
        rc = err_set(e, ERR_MEMORY, "no memory for the tables of a checkpoint");
out:
    if (rc < 0)
        buf_free(&all);
    else
        a->blobs = all.p;
    return rc < 0 ? rc : 0;
}

/* Both phases: the tables go over the board. */
static int write_and_seal(struct assembly *a, struct err *e)
{
    struct err ignored;
    int rc = write_files(a, e);
    if (!ranks_is_first(a->ranks)) {
        const void *text = rc < 0 ? NULL : a->table ? a->table : "";
        int put = board_put(a->board, text, a->table_bytes, rc < 0 ? &ignored : e);
        return rc < 0 ? rc : put;
    }
    TRY(rc);
    TRY(collect(a, e));
    rc = seal(a, e);
out:
    return rc < 0 ? rc : 0;
}

static void *run_phase(void *arg)
{
    struct assembly *a = arg;
    int (*work)(struct assembly * a, struct err * e) = a->phase == ASSEMBLY_SEALING ? seal
                                                       : a->board                   ? write_and_seal
                                                                                    : write_files;
    if (a->on_thread) /* not on the CPU that computes */
        pool_unpin_self(a->ranks->dev->pool);
    a->rc = work(a, &a->err);
    atomic_store(&a->running, 0);
    return NULL;
}

static void start_phase(struct assembly *a, enum assembly_phase phase)
{
    a->phase = phase;
    a->rc = 0;
    if (!a->on_thread) {
        run_phase(a);
        return;
    }
    atomic_store(&a->running, 1);
    int rc = pthread_create(&a->thread, NULL, run_phase, a);
    a->has_thread = rc == 0;
    if (rc) {
        atomic_store(&a->running, 0);
        a->rc = err_set(&a->err, ERR_MEMORY, "cannot start the thread that writes: %s", strerror(rc));
    }
}

/* ---- the main thread ---- */

int assembly_wait(struct assembly *a, struct err *e)
{
    if (a->has_thread)
        pthread_join(a->thread, NULL);
    a->has_thread = 0;
    if (a->rc < 0)
        *e = a->err;
    return a->rc;
}

void assembly_forget(struct assembly *a)
{
    free(a->table);
    free(a->blobs);
    a->table = a->blobs = NULL;
    a->table_bytes = 0;
    a->rc = 0;
    a->phase = ASSEMBLY_IDLE;
}

void assembly_start(struct assembly *a) { start_phase(a, ASSEMBLY_WRITING); }

int assembly_is_busy(struct assembly *a, int64_t *busy, struct err *e)
{
    *busy = atomic_load(&a->running);
    return comm_all_reduce_i64(a->ranks->mesh.all, busy, 1, e);
}

/* Rank 0's thread waits for what the others pass on, so they say first how they ended. */
static int end_both(struct assembly *a, struct err *e)
{
    struct comm *all = a->ranks->mesh.all;
    struct err own = { 0 };
    int first = ranks_is_first(a->ranks), rc = comm_agree(all, first ? 0 : assembly_wait(a, e), e), ended;
    if (rc < 0) /* what rank 0 still takes from those that have gone on is not used */
        board_stop(a->board);
    ended = first ? assembly_wait(a, &own) : 0;
    if (rc < 0)
        return rc;
    if (ended < 0)
        *e = own;
    rc = comm_agree(all, ended, e);
    return rc < 0 ? rc : 1;
}

int assembly_advance(struct assembly *a, struct err *e)
{
    struct comm *all = a->ranks->mesh.all;
    if (a->board)
        return end_both(a, e);
    int rc = assembly_wait(a, e);
    TRY(comm_agree(all, rc, e));
    if (a->phase == ASSEMBLY_SEALING)
        return 1;
    TRY(comm_gather_blobs(all, a->table, a->table_bytes, 0, &a->blobs, a->sizes, e));
    a->phase = ASSEMBLY_SEALING;
    if (ranks_is_first(a->ranks))
        start_phase(a, ASSEMBLY_SEALING);
    rc = 0;
out:
    return rc < 0 ? rc : 0;
}
