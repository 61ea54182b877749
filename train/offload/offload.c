/* offload.c - see offload.h: opening, closing, sizes. */
#include "train/offload/offload.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include "base/io.h"
#include "train/offload/offload_priv.h"

#define PIECE_ELEMENTS ((int64_t)1 << 20)

enum offload_kind offload_kind(const char *option, const char *device)
{
    if (!strcmp(option, "none"))
        return OFFLOAD_NONE;
    if (strcmp(option, "cpu"))
        return OFFLOAD_FILES;
    return strcmp(device, "cpu") ? OFFLOAD_HOST : OFFLOAD_NONE;
}

/* ---- sizes ---- */
/* Memory of the walk: a buffer begins at a multiple of AIO_ALIGN. */
static size_t buffer_bytes(const struct state_pieces *p, const struct model *m)
{
    size_t floats = KIND_STATES + (p->n_levels > 0);
    return state_section_bytes(p->most, sizeof(float)) * floats +
           (p->bytes[FILE_WEIGHTS] ? state_section_bytes(p->most, dtype_size(m->dt)) : 0);
}
static size_t memory_bytes(const struct state_pieces *p, const struct model *m)
{
    return buffer_bytes(p, m) * WALK_BUFFERS + AIO_ALIGN;
}

static struct state_shape shape_of(const struct offload_what *what, int stage)
{
    return (struct state_shape){ .stage = stage,
                                 .run = what->piece_elements ? what->piece_elements : PIECE_ELEMENTS,
                                 .grad_levels = what->grad_levels,
                                 .weights = what->weights };
}

static int64_t file_bytes(const struct state_pieces *p)
{
    int64_t sum = 0;
    for (int i = 0; i < FILES; i++)
        sum += p->bytes[i];
    return sum;
}

void offload_measure(const struct model *m, int stage, const struct offload_what *what,
                     struct offload_bytes *out)
{
    struct state_shape shape = shape_of(what, stage);
    struct state_pieces p;
    struct err ignored;
    memset(out, 0, sizeof *out);
    if (what->kind == OFFLOAD_NONE)
        return;
    if (state_pieces_open(&p, m, &shape, &ignored) >= 0 && what->kind == OFFLOAD_HOST) {
        out->host = (double)p.elements * sizeof(float) * KIND_STATES;
    } else if (p.piece) {
        double weights = (double)p.bytes[FILE_WEIGHTS];
        out->files = (double)file_bytes(&p);
        out->buffers = (double)memory_bytes(&p, m);
        out->grads = (double)side_bytes(&p);
        out->moved = 2 * (double)p.bytes[FILE_A] + weights;
        if (p.n_levels) /* each is written, and read where it joins another one or the update */
            out->moved += 2 * (double)what->supers * (double)p.bytes[FILE_GRADS] / p.n_levels;
        out->fetched = 2 * weights;
    }
    state_pieces_close(&p);
}

/* ---- opening ---- */
static int open_buffers(struct offload *o, struct err *e)
{
    size_t bytes = buffer_bytes(&o->of, o->m), section = state_section_bytes(o->of.most, sizeof(float));
    o->memory = mem_alloc(o->m->dev->mem, MEM_OPTIM, memory_bytes(&o->of, o->m));
    if (!o->memory)
        return err_set(e, ERR_MEMORY, "no memory for the buffers of --offload");
    char *first = o->memory + (AIO_ALIGN - (uintptr_t)o->memory % AIO_ALIGN) % AIO_ALIGN;
    for (int i = 0; i < WALK_BUFFERS; i++)
        o->slot[i].buf = first + bytes * (size_t)i;
    for (int i = 0; i < SECTIONS; i++)
        o->section[i] = (struct section){ .piece = -1, .buf = first + section * (size_t)i };
    return 0;
}

/* Before anything is written: whether the folder has space for the ranks of this machine. Collective. */
static int check_space(const struct offload *o, const struct offload_spec *s, struct err *e)
{
    struct statvfs fs;
    int64_t need = file_bytes(&o->of);
    char text[2][32];
    int rc = comm_all_reduce_i64(s->all, &need, 1, e);
    if (rc < 0)
        return rc;
    double here = (double)need * comm_local_size(s->all) / comm_size(s->all);
    if (statvfs(s->dir, &fs) < 0)
        return err_sys(e, "--offload %s: cannot be read", s->dir);
    double there = (double)fs.f_bavail * (double)fs.f_frsize;
    if (there >= here)
        return 0;
    log_bytes(text[0], here);
    log_bytes(text[1], there);
    return err_set(e, ERR_SPACE,
                   "--offload %s: %s are needed and %s are free: free some space, or "
                   "choose another folder",
                   s->dir, text[0], text[1]);
}

static int open_files(struct offload *o, const struct offload_spec *s, struct err *e)
{
    int rc = state_folder_make(s->dir, e);
    if (rc >= 0)
        state_files_drop(s->dir, s->out);
    TRY(comm_agree(s->all, rc, e)); /* no rank makes files while another one removes them */
    rc = check_space(o, s, e);
    TRY(comm_agree(s->all, rc, e));

    o->files.m = o->m;
    o->files.of = &o->of;
    rc = state_files_open(&o->files, s->dir, s->out, s->rank, e);
    if (rc >= 0)
        rc = aio_open(&o->aio, AIO_BEST, e);
    if (rc >= 0)
        rc = side_open(o, e);
    if (rc >= 0)
        rc = open_buffers(o, e);
    if (rc >= 0)
        rc = walk_open(o, e);
    TRY(comm_agree(s->all, rc, e));
out:
    return rc;
}

int offload_open(struct offload **out, const struct model *m, int stage, const struct offload_spec *s,
                 struct err *e)
{
    struct offload *o = *out = calloc(1, sizeof *o);
    struct state_shape shape = shape_of(&s->what, stage);
    int rc = o ? state_pieces_open(&o->of, m, &shape, e)
               : err_set(e, ERR_MEMORY, "no memory for offloaded state");
    TRY(comm_agree(s->all, rc, e));
    o->m = m;
    o->kind = s->what.kind;
    o->store.ops = s->what.kind == OFFLOAD_FILES ? &offload_in_files : &offload_in_host;
    o->store.has_grads = s->what.grad_levels > 0;
    o->store.has_weights = s->what.weights;
    o->store.run = o->of.run;
    o->store.align = AIO_ALIGN;
    o->store.late = s->what.kind == OFFLOAD_FILES && !m->dev->memory;
    if (s->what.kind == OFFLOAD_FILES) {
        rc = open_files(o, s, e);
    } else {
        rc = host_open(o, e);
        rc = comm_agree(s->all, rc, e);
    }
out:
    return rc < 0 ? rc : 0;
}

void offload_close(struct offload *o)
{
    if (!o)
        return;
    walk_close(o);
    side_close(o);
    aio_close(o->aio);
    if (o->files.of)
        state_files_close(&o->files);
    if (o->m) {
        mem_free(o->m->dev->mem, o->memory);
        host_close(o);
    }
    state_pieces_close(&o->of);
    free(o);
}

struct state_store *offload_store(struct offload *o) { return &o->store; }

struct offload_count offload_count(struct offload *o)
{
    struct offload_count c = { 0 };
    if (o->kind != OFFLOAD_FILES)
        return c;
    pthread_mutex_lock(&o->lock);
    c = o->count;
    c.side_bytes = aio_count(o->side.aio).read_bytes + aio_count(o->side.aio).written_bytes;
    pthread_mutex_unlock(&o->lock);
    return c;
}

void offload_text(const struct offload *o, char out[80])
{
    if (o->kind == OFFLOAD_HOST)
        snprintf(out, 80, "in the host's memory");
    else
        snprintf(out, 80, "by %s, %s", aio_name(o->aio),
                 o->files.file[0].direct ? "past the page cache" : "through the page cache");
}
