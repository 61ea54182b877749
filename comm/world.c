/* world.c - all ranks of the job: opened once, cut into groups by the mesh, closed together. */
#define _GNU_SOURCE
#include "comm/comm_priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/pool.h"
#include "base/trace.h"
#include "comm/launch.h"
#include "comm/bootstrap.h"
#include "comm/nccl/nccl.h"
#include "comm/shm/shm.h"

/* The transport of this name; "auto": the one that fits. */
static int choose(const char *name, const struct topology *at, const struct transport **t, struct err *e)
{
    static const struct transport *const all[] = { &transport_self, &transport_shm, &transport_mpi };
    int one_machine = at->node_size == at->size;
    if (at->size > SUM_RANKS_MAX)
        return err_set(e, ERR_USAGE, "%d ranks: at most %d are possible, start fewer", at->size,
                       SUM_RANKS_MAX);
    *t = at->size == 1 ? &transport_self : one_machine ? &transport_shm : &transport_mpi;
    if (!strcmp(name, "auto"))
        return 0;
    *t = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(name, all[i]->name))
            *t = all[i];
    if (!*t)
        return err_set(e, ERR_USAGE, "no transport is called \"%s\": take auto, self, shm, mpi or nccl",
                       name);
    if (*t == &transport_self && at->size > 1)
        return err_set(e, ERR_USAGE, "transport self has one rank, there are %d: take shm or mpi", at->size);
    if (*t == &transport_shm && !one_machine)
        return err_set(e, ERR_USAGE, "transport shm needs all %d ranks on one machine, %d are here: take mpi",
                       at->size, at->node_size);
    return 0;
}

/* A single rank starts no MPI, unless transport mpi is asked for. */
static int find_topology(const char *name, struct topology *at, struct err *e)
{
    *at = (struct topology){ .size = 1, .node_size = 1 };
    return bootstrap_expected_ranks() == 1 && strcmp(name, "mpi") ? 0 : bootstrap_open(at, e);
}

/* Then every machine has a segment for the groups that lie on it, whatever transport the world has. */
static int several_machines(const struct world *w) { return w->at.node_size < w->at.size; }

static int open_transport(struct world *w, struct err *e)
{
    int rc = 0;
    if (w->t == &transport_shm || several_machines(w))
        TRY(shm_open_world(w, e));
    if (w->t == &transport_mpi)
        TRY(mpi_open_world(w, e));
out:
    return rc;
}

static int open_segment(struct world *w, struct err *e)
{
    int shared = w->t == &transport_shm || several_machines(w), rc;
    size_t head = failure_board_bytes(w->at.node_size) + (shared ? shm_block_bytes(w->at.node_size) : 0);
    TRY(bootstrap_segment(&w->seg, &w->at, segment_size(head, w->at.node_size, shared), e));
    w->board = w->seg.board;
    if (shared)
        TRY(segment_take_region(&w->seg, head, w->at.node_rank, w->mem, e));
    struct failure_board_rank *me = &w->board->rank[w->at.node_rank];
    w->board->n_ranks = w->at.node_size;
    me->world_rank = w->at.rank;
    me->pid = (int)getpid();
    atomic_store(&me->state, BOARD_RUNNING);
out:
    return rc;
}

static int open_all(struct world *w, struct err *e)
{
    int *member = malloc((size_t)w->at.size * sizeof *member);
    for (int i = 0; member && i < w->at.size; i++)
        member[i] = i;
    w->all = member ? comm_new(w, member, w->at.size) : NULL;
    if (!w->all)
        return err_set(e, ERR_MEMORY, "no memory for a group of %d ranks", w->at.size);
    w->all->name = "all";
    return w->all->t->group_join(w->all, 0, e);
}

int world_open(struct world **out, const char *transport, int64_t timeout_s, struct dev *dev, struct mem *mem,
               struct err *e)
{
    const char *preferred = env_get(ENV_SHARDLINE_TRANSPORT), *name = transport ? transport : "auto";
    struct world *w = calloc(1, sizeof *w);
    int rc = 0, found = 0, asked = 0, fits;
    *out = NULL;
    if (!w)
        return err_set(e, ERR_MEMORY, "no memory for the world");
    if (!strcmp(name, "auto") && preferred)
        name = preferred;

    w->dev = dev;
    w->device = dev && dev->memory ? &transport_staged : NULL;
    if ((asked = !strcmp(name, transport_nccl.name))) /* for device memory; host memory goes over what fits */
        name = "auto";
    fits = w->device && !strcmp(name, "auto");
    w->mem = mem ? mem : &w->own_mem;
    w->seg.fd = -1;

    /* from here on every rank takes part in each step, and all stop when one fails */
    watch_block_signals();
    TRY(find_topology(name, &w->at, e));
    found = 1;
    TRY(choose(name, &w->at, &w->t, e));
    TRY(bootstrap_agree(&w->at, open_segment(w, e), e));
    TRY(bootstrap_agree(&w->at, watch_open(&w->watch, w->board, w->at.node_rank, e), e));
    TRY(bootstrap_agree(&w->at, open_transport(w, e), e));
    TRY(bootstrap_agree(&w->at, open_all(w, e), e));
    if (asked || (fits && w->at.size > 1))
        TRY(bootstrap_agree(&w->at, nccl_open_world(w, asked, timeout_s, e), e));
    *out = w;
    return 0;

out:
    if (w->all)
        comm_close(w->all);
    nccl_close_world(w);
    watch_close(w->watch);
    if (found && w->t)
        w->t->close(w, 0);
    segment_close(&w->seg);
    if (found)
        bootstrap_close(&w->at, 1); /* orderly: all ranks fail here together (bootstrap_agree) */
    free(w);
    return err_add(e, "starting the ranks");
}

void world_limit_waits(struct world *w, int64_t seconds) { w->wait_limit_ns = seconds * SECOND_NS; }

int world_check(struct world *w, struct err *e) { return failure_board_check(w->board, e); }

static void nap(void)
{
    static const struct timespec t = { 0, 200000 };
    nanosleep(&t, NULL);
}

/* Waits until all ranks of this machine close the world: until then they may still use this one's memory. */
static int wait_for_all(struct world *w, struct err *e)
{
    for (int r = 0; r < w->board->n_ranks; r++)
        while (atomic_load(&w->board->rank[r].state) < BOARD_CLOSING) {
            int rc = world_check(w, e);
            if (rc < 0)
                return rc;
            nap();
        }
    return 0;
}

/* 1: all ranks have come to the end. Else one line says what failed, if no rank has printed it. */
static int end_together(struct world *w)
{
    struct err e;
    int rc = comm_barrier(w->all, &e);
    if (rc >= 0) {
        atomic_store(&w->board->rank[w->at.node_rank].state, BOARD_CLOSING);
        rc = wait_for_all(w, &e);
    }
    if (rc < 0 && world_claim_report(w))
        err_print(&e, program_invocation_short_name);
    return rc >= 0;
}

void world_close(struct world *w)
{
    if (!w)
        return;
    int orderly = end_together(w);
    atomic_store(&w->board->rank[w->at.node_rank].state, BOARD_CLOSED);
    comm_close(w->all);
    nccl_close_world(w);
    staged_close_world(w);
    w->t->close(w, orderly);
    watch_close(w->watch);
    segment_close(&w->seg);
    bootstrap_close(&w->at, orderly);
    free(w);
}

int world_rank(const struct world *w) { return w->at.rank; }
int world_size(const struct world *w) { return w->at.size; }
int world_node_size(const struct world *w) { return w->at.node_size; }

const char *world_transport(const struct world *w) { return w->nccl ? transport_nccl.name : w->t->name; }

const char *world_device_route(const struct world *w)
{
    if (w->at.size == 1 || !w->device)
        return NULL;
    return w->device_route[0] ? w->device_route : "through the host";
}

int world_pin(const struct world *w, struct pool *p)
{
    const char *pin = env_get(ENV_SHARDLINE_PIN);
    /* a machine that is treated as several: all its ranks share its CPUs */
    int is_divided = several_machines(w) && env_get(ENV_SHARDLINE_RANKS_PER_NODE);
    if ((pin && !strcmp(pin, "off")) || is_divided || !launch_is_ours())
        return 0;
    return pool_pin(p, w->at.node_rank, w->at.node_size);
}

int world_stop_signal(const struct world *w) { return atomic_load(&w->board->stop_signal); }

void world_end_on_stop(struct world *w, const char *line) { watch_end_on_stop(w->watch, line); }

void world_answer_stop(struct world *w, const char *line) { watch_answer_stop(w->watch, line); }

void world_fail(struct world *w, const struct err *e)
{
    char text[sizeof e->text + 32];
    if (e->code == ERR_PEER && atomic_load(&w->board->failed))
        return; /* the board has it already */
    snprintf(text, sizeof text, "rank %d failed: %s", w->at.rank, e->text);
    if (failure_board_fail(w->board, text) && w->t->report_failure)
        w->t->report_failure(w, text);
}

int world_claim_report(struct world *w) { return failure_board_claim_report(w->board); }

int world_report(struct world *w, const struct err *e, const char *program)
{
    struct err line = *e;
    world_fail(w, e);
    if (!world_claim_report(w))
        return err_exit_status(e->code);
    if (w->at.size > 1 && e->code != ERR_USAGE && e->code != ERR_CONFIG && e->code != ERR_PEER)
        comm_name_rank(&line, w->at.rank);
    return err_print(&line, program);
}

/* ---- the trace ---- */
void world_trace(struct world *w, struct trace *t)
{
    struct err e;
    if (t && !w->trace && comm_barrier(w->all, &e) == 0)
        trace_begin(t); /* at the same moment on all ranks: one clock for all machines */
    w->trace = t;
}

int world_trace_write(struct world *w, const struct trace *t, const char *path, struct err *e)
{
    char *mine = NULL;
    void *all = NULL;
    size_t bytes = 0, sum = 0, *sizes = calloc((size_t)w->at.size, sizeof *sizes);
    int rc = sizes ? trace_json(t, w->at.rank, &mine, &bytes, e)
                   : err_set(e, ERR_MEMORY, "no memory for the trace");
    TRY(comm_agree(w->all, rc, e));

    TRY(comm_gather_blobs(w->all, mine, bytes, 0, &all, sizes, e));
    for (int r = 0; r < w->at.size; r++)
        sum += sizes[r];
    rc = w->at.rank == 0 ? trace_write(path, all, sum, e) : 0;
    rc = comm_agree(w->all, rc, e);
out:
    free(all);
    free(mine);
    free(sizes);
    return rc;
}

/* ---- mesh ---- */
/* Ranks with the same coordinates on every axis but `axis` have the same colour. */
static int colour_of(const struct mesh *m, int axis)
{
    int colour = 0;
    for (int a = AXIS_COUNT - 1; a >= 0; a--)
        colour = colour * m->size[a] + (a == axis ? 0 : m->at[a]);
    return colour;
}

int mesh_open(struct mesh *m, struct world *w, const int size[AXIS_COUNT], struct err *e)
{
    static const char *const names[AXIS_COUNT] = {
        [AXIS_TP] = "tp", [AXIS_CP] = "cp", [AXIS_DP] = "dp", [AXIS_PP] = "pp"
    };
    int rc = 0, rest = w->at.rank;
    long long product = 1;
    *m = (struct mesh){ .all = w->all };

    for (int a = 0; a < AXIS_COUNT; a++)
        product *= size[a] > 0 && product <= w->at.size ? size[a] : 0;
    if (product != w->at.size)
        return err_set(e, ERR_USAGE,
                       "tp %d x cp %d x dp %d x pp %d is not the number of ranks, %d: choose degrees that "
                       "multiply to it",
                       size[AXIS_TP], size[AXIS_CP], size[AXIS_DP], size[AXIS_PP], w->at.size);

    for (int a = 0; a < AXIS_COUNT; a++) {
        m->size[a] = size[a];
        m->at[a] = rest % size[a];
        rest /= size[a];
    }

    for (int a = 0; a < AXIS_COUNT; a++) {
        TRY(comm_split(&m->axis[a], w->all, colour_of(m, a), e));
        m->axis[a]->name = names[a];
    }
    return 0;
out:
    mesh_close(m);
    return rc;
}

/* m->all belongs to the world. */
void mesh_close(struct mesh *m)
{
    for (int a = 0; a < AXIS_COUNT; a++) {
        comm_close(m->axis[a]);
        m->axis[a] = NULL;
    }
    m->all = NULL;
}

size_t comm_group_bytes(int size) { return size > 1 ? shm_block_bytes(size) : 0; }
