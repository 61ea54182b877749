/* bootstrap.c - see bootstrap.h. MPI may be started once in a process and ended once; worlds may come and go
 * in between. */
#define _GNU_SOURCE
#include "comm/bootstrap.h"
#include "base/clock.h"
#include "base/env.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* MPI is a state of the process, and so is how it ends. */
static int finalize_at_exit;

/* All ranks have the error of one that could not start. */
static int has_agreed;

int bootstrap_expected_ranks(void)
{
    static const enum env name[] = { ENV_OMPI_COMM_WORLD_SIZE, ENV_PMI_SIZE, ENV_SLURM_STEP_NUM_TASKS,
                                     ENV_SLURM_NTASKS };
    if (!env_get(ENV_PMIX_RANK) && !env_get(ENV_OMPI_COMM_WORLD_SIZE) && !env_get(ENV_PMI_RANK))
        return 1;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        const char *v = env_get(name[i]);
        if (v && atoi(v) > 0)
            return atoi(v);
    }
    return 0;
}

static void finalize(void)
{
    int done = 0;
    MPI_Finalized(&done);
    if (finalize_at_exit && !done)
        MPI_Finalize();
}

static int start_mpi(struct err *e)
{
    int started = 0, ended = 0, level;
    MPI_Initialized(&started);
    MPI_Finalized(&ended);
    if (ended)
        return err_set(e, ERR_INTERNAL, "MPI has been ended in this process: open the world before");
    if (!started) {
        if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
            return err_set(e, ERR_PEER, "MPI does not start: does `mpirun -n 2 hostname` work");
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        atexit(finalize);
    }
    finalize_at_exit = 0;
    return 0;
}

/* The ranks of this machine. SHARDLINE_RANKS_PER_NODE treats it as several machines. */
static int node_comm(MPI_Comm *node)
{
    const char *n = env_get(ENV_SHARDLINE_RANKS_PER_NODE);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (n && atoi(n) > 0)
        return MPI_Comm_split(MPI_COMM_WORLD, rank / atoi(n), rank, node);
    return MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, node);
}

/* Which ranks share a machine: node_of[r] is the lowest rank on the machine of rank r. */
static int know_nodes(struct topology *p, MPI_Comm node, struct err *e)
{
    int first = p->rank;
    p->node_of = malloc((size_t)p->size * sizeof *p->node_of);
    if (!p->node_of)
        return err_set(e, ERR_MEMORY, "no memory for the places of %d ranks", p->size);
    MPI_Bcast(&first, 1, MPI_INT, 0, node);
    MPI_Allgather(&first, 1, MPI_INT, p->node_of, 1, MPI_INT, MPI_COMM_WORLD);
    return 0;
}

int bootstrap_open(struct topology *p, struct err *e)
{
    MPI_Comm node;
    int rc = start_mpi(e);
    if (rc < 0)
        return rc;
    *p = (struct topology){ .with_mpi = 1 };
    MPI_Comm_rank(MPI_COMM_WORLD, &p->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p->size);
    if (node_comm(&node) != MPI_SUCCESS)
        return err_set(e, ERR_PEER, "MPI cannot tell which ranks share this machine");
    MPI_Comm_rank(node, &p->node_rank);
    MPI_Comm_size(node, &p->node_size);
    rc = know_nodes(p, node, e);
    MPI_Comm_free(&node);
    return rc;
}

int bootstrap_has_agreed(void) { return has_agreed; }

int bootstrap_agree(const struct topology *p, int rc, struct err *e)
{
    int mine = rc < 0 ? p->rank : p->size, first = mine;
    char text[sizeof e->text] = "";

    if (p->with_mpi)
        MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!p->with_mpi || first == p->size)
        return rc < 0 ? rc : 0;
    if (p->rank == first)
        snprintf(text, sizeof text, "%s", e->text);
    MPI_Bcast(text, sizeof text, MPI_CHAR, first, MPI_COMM_WORLD);
    has_agreed = 1;
    return rc < 0 ? rc : err_set(e, ERR_PEER, "rank %d: %s", first, text);
}

/* 1 when all ranks of the node have the segment; else closes it on all. */
static int all_have(MPI_Comm node, struct segment *s, int rc)
{
    int mine = rc == 0, all;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, node);
    if (!all && mine)
        segment_close(s);
    return all;
}

/* Opens the segment through /proc, without a name: works where the ranks share process ids (no containers in
 * between). */
static int by_fd(MPI_Comm node, struct segment *s, int first, size_t bytes, struct err *e)
{
    int rc = first ? segment_create(s, bytes, NULL, e) : 0;
    int where[3] = { rc, (int)getpid(), s->fd };
    MPI_Bcast(where, 3, MPI_INT, 0, node);
    if (!first)
        rc = where[0] < 0 ? where[0] : segment_open_fd(s, bytes, where[1], where[2], e);
    return all_have(node, s, rc) ? 0 : -1;
}

/* Opens the segment by a name, which exists only until all ranks have opened it. */
static int by_name(MPI_Comm node, struct segment *s, int first, size_t bytes, struct err *e)
{
    char name[SEGMENT_NAME];
    int rc = 0, all;
    snprintf(name, sizeof name, "/shardline-%d-%lld", (int)getpid(), (long long)clock_ns());
    MPI_Bcast(name, sizeof name, MPI_CHAR, 0, node);
    if (first)
        rc = segment_create(s, bytes, name, e);
    MPI_Barrier(node);
    if (!first)
        rc = segment_open_name(s, bytes, name, e);
    all = all_have(node, s, rc);
    if (first)
        shm_unlink(name);
    if (!all && rc == 0)
        err_set(e, ERR_PEER, "the ranks of this machine cannot share memory: use --transport mpi");
    return all ? 0 : -e->code;
}

int bootstrap_segment(struct segment *s, const struct topology *p, size_t bytes, struct err *e)
{
    MPI_Comm node;
    int rc;
    *s = (struct segment){ .fd = -1 };
    if (!p->with_mpi) {
        rc = segment_create(s, bytes, NULL, e);
        segment_close_fd(s);
        return rc;
    }
    if (node_comm(&node) != MPI_SUCCESS)
        return err_set(e, ERR_PEER, "MPI cannot tell which ranks share this machine");
    rc = by_fd(node, s, p->node_rank == 0, bytes, e);
    if (rc < 0)
        rc = by_name(node, s, p->node_rank == 0, bytes, e);
    if (rc == 0)
        segment_close_fd(s);
    MPI_Comm_free(&node);
    return rc;
}

void bootstrap_close(struct topology *p, int orderly)
{
    free(p->node_of);
    p->node_of = NULL;
    if (p->with_mpi)
        finalize_at_exit = orderly;
}
