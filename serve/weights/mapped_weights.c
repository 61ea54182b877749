/* mapped_weights.c - see mapped_weights.h. */
#include "serve/weights/mapped_weights.h"

#include <stdlib.h>
#include <string.h>
#include "base/machine.h"
#include "format/panels_file.h"
#include "model/packs.h"
#include "serve/weights/behind.h"
#include "serve/weights/verify.h"
#include "store/mapped.h"

#define PANEL 32 /* outputs */

struct file {
    const char *path; /* of the checkpoint */
    struct mapped *map;
};
/* Bytes of a file that weights point at. */
struct range {
    struct mapped *map;
    int64_t begin, end;
};
struct mapped_weights {
    struct ckpt *c;
    const struct model *m;
    int n_files;
    struct file *file; /* [n_files] */
    int n_ranges, cap_ranges;
    struct range *range; /* in the order of use */
    int n_lists, cap_lists;
    struct panel_run **list; /* [n_lists]: the runs of packs that have several */
    int64_t bytes;
    int refused;
    int n_here;
    int is_brought_in, copies; /* of the thread of behind */
    struct behind *behind;
    struct verify *verify;
};

/* The kinds of panels that files have, as products name them; PANEL_KINDS: none reads them where they lie. */
static enum panel_kind kind_of(const struct ckpt_pack *k)
{
    static const enum panel_kind kinds[] = {
        [CKPT_PANELS_PLAIN] = PANEL_PLAIN, [CKPT_PANELS_B12] = PANEL_B12
    };
    return (size_t)k->kind < sizeof kinds / sizeof *kinds ? kinds[k->kind] : PANEL_KINDS;
}

static int has_dtype(enum stored_dtype stored, enum dtype dt)
{
    return dt == DT_F32 ? stored == STORED_F32 : dt == DT_BF16 && stored == STORED_BF16;
}

/* ---- lists ---- */

static int add_range(struct mapped_weights *w, struct mapped *map, int64_t begin, int64_t end, struct err *e)
{
    if (w->n_ranges == w->cap_ranges) {
        int cap = 2 * w->cap_ranges + 64;
        struct range *more = realloc(w->range, (size_t)cap * sizeof *more);
        if (!more)
            return err_set(e, ERR_MEMORY, "no memory for the table of %d mapped ranges", cap);
        w->range = more;
        w->cap_ranges = cap;
    }
    w->range[w->n_ranges++] = (struct range){ map, begin, end };
    return 0;
}

/* Keeps a copy of runs until w is closed. NULL: no memory. */
static struct panel_run *keep_runs(struct mapped_weights *w, const struct panel_run *run, int n)
{
    struct panel_run *copy = malloc((size_t)n * sizeof *copy);
    if (w->n_lists == w->cap_lists) {
        int cap = 2 * w->cap_lists + 16;
        struct panel_run **more = realloc(w->list, (size_t)cap * sizeof *more);
        if (!more) {
            free(copy);
            return NULL;
        }
        w->list = more;
        w->cap_lists = cap;
    }
    if (copy)
        w->list[w->n_lists++] = memcpy(copy, run, (size_t)n * sizeof *copy);
    return copy;
}

/* ---- where a rank's part of a pack lies ---- */

/* A pack of this rank, put together from runs of one of the file's packs. */
struct found {
    const struct pack_info *info;
    const struct ckpt_pack *pack;
    int which;          /* its index; -1: not known yet */
    int64_t first_leaf; /* bytes from a panel's beginning to the rank's first leaf */
    int n, cap;
    struct panel_run *run;
    int64_t outputs;
    int64_t begin, end; /* of the file */
};

/* Do the rank's leaves end where some neighbouring leaves of the file do? *first: the first of them. */
static int leaves_fit(const struct ckpt_pack *k, const struct leaves *l, int64_t start, int *first)
{
    int g = 0;
    while (g < k->n_leaves && (g ? k->leaf_end[g - 1] : 0) < start)
        g++;
    *first = g;
    if ((g ? k->leaf_end[g - 1] : 0) != start || g + l->n > k->n_leaves)
        return 0;
    for (int i = 0; i < l->n; i++)
        if (k->leaf_end[g + i] != start + l->end[i])
            return 0;
    return 1;
}

/* Does the run hold output `at` of a matrix? */
static int run_has(const struct ckpt_run *r, const struct pack_matrix *x, int64_t at, int copy)
{
    if (r->out_dim != x->out_dim || r->in_dim != x->in_dim || r->is_copy != copy ||
        at < r->box.start[r->out_dim] || at >= r->box.start[r->out_dim] + r->n)
        return 0;
    for (int d = 0; d < r->box.n_dims; d++)
        if (d != r->out_dim && d != r->in_dim && r->box.start[d] != x->box.start[d])
            return 0;
    return 1;
}

/* Adds outputs that lie one behind the other from `p` on; lengthens the run before where they follow it. */
static int add_run(struct found *f, const char *p, int64_t n)
{
    struct panel_run *last = f->n ? &f->run[f->n - 1] : NULL;
    f->outputs += n;
    if (last && last->n % PANEL == 0 && (const char *)last->p + last->n / PANEL * f->pack->stride == p) {
        last->n += n;
        return 1;
    }
    if (f->n == f->cap) {
        int cap = 2 * f->cap + 8;
        struct panel_run *more = realloc(f->run, (size_t)cap * sizeof *more);
        if (!more)
            return 0;
        f->run = more;
        f->cap = cap;
    }
    f->run[f->n++] = (struct panel_run){ p, n };
    return 1;
}

/* Takes outputs of a matrix from run r, from `at` to `end` at most. Returns how many; 0: it does not fit. */
static int64_t take_run(struct found *f, const struct ckpt *c, const struct ckpt_run *r,
                        const struct pack_matrix *x, int64_t at, int64_t end, const char *file)
{
    const int64_t in = at - r->box.start[r->out_dim], n = r->n - in < end - at ? r->n - in : end - at;
    int g;
    if (f->which < 0) {
        f->which = r->pack;
        f->pack = ckpt_pack(c, r->pack);
        f->begin = INT64_MAX;
    }
    if (r->pack != f->which || in % PANEL ||
        !leaves_fit(f->pack, &f->info->leaves, x->box.start[x->in_dim], &g))
        return 0;

    const int64_t panels = (n + PANEL - 1) / PANEL, from = r->offset + in / PANEL * f->pack->stride;
    f->first_leaf = f->pack->leaf_offset[g];
    f->begin = from < f->begin ? from : f->begin;
    f->end = from + panels * f->pack->stride > f->end ? from + panels * f->pack->stride : f->end;
    return add_run(f, file + from + f->first_leaf, n) ? n : 0;
}

/* Finds a matrix of the pack in runs of its tensor. 0: the file has it otherwise. */
static int take_matrix(struct found *f, struct ckpt *c, const struct model *m, const struct pack_matrix *x,
                       const char *file)
{
    const struct ckpt_run *const *run;
    const int tensor = ckpt_find(c, ROLE_WEIGHT, m->table.p[x->param].name);
    const int n_runs = tensor < 0 ? 0 : ckpt_runs_of(c, tensor, &run);
    const int64_t end = x->box.start[x->out_dim] + x->box.extent[x->out_dim];
    int64_t at = x->box.start[x->out_dim];
    for (int i = 0; at < end && i < n_runs; i++) {
        if (!run_has(run[i], x, at, f->info->tied))
            continue;
        int64_t n = take_run(f, c, run[i], x, at, end, file);
        if (!n)
            return 0;
        at += n;
    }
    return at == end;
}

/* Finds a pack; file: where the first byte of the file is mapped. 0: the file has it otherwise. The caller
 * frees f->run. */
static int find_pack(struct found *f, const struct pack_info *info, struct ckpt *c, const struct model *m,
                     const char *file)
{
    *f = (struct found){ .info = info, .which = -1 };
    for (int i = 0; i < info->n; i++)
        if (!take_matrix(f, c, m, &info->matrix[i], file))
            return 0;
    return f->outputs == info->outputs && has_dtype(f->pack->dtype, m->dt) && kind_of(f->pack) != PANEL_KINDS;
}

/* ---- mapping ---- */

static int file_of(struct mapped_weights *w, const char *path, struct mapped **out, struct err *e)
{
    for (int i = 0; i < w->n_files; i++)
        if (!strcmp(w->file[i].path, path)) {
            *out = w->file[i].map;
            return 0;
        }
    return err_set(e, ERR_INTERNAL, "%s is not a file of the checkpoint: please report it", path);
}

static int can_map(struct ckpt *c, const struct model *m)
{
    return ckpt_n_packs(c) > 0 && ckpt_cache(c) == 0 && !*ckpt_version(c) && !m->fast;
}

/* The files that packs lie in: neighbours in the list of packs. */
static int open_files(struct mapped_weights *w, struct err *e)
{
    const int n = ckpt_n_packs(w->c);
    w->file = calloc((size_t)n, sizeof *w->file);
    if (!w->file)
        return err_set(e, ERR_MEMORY, "no memory for the table of %d packs", n);
    for (int i = 0; i < n; i++) {
        const int f = ckpt_pack(w->c, i)->file;
        const char *path = ckpt_file_path(w->c, f);
        struct mapped *map;
        struct err ignored;
        if (file_of(w, path, &map, &ignored) == 0)
            continue;
        int rc = mapped_open(&map, path, ckpt_file_bytes(w->c, f), e);
        if (rc < 0)
            return rc;
        w->file[w->n_files++] = (struct file){ path, map };
    }
    return 0;
}

int mapped_weights_open(struct mapped_weights **out, struct ckpt *c, const struct model *m, struct err *e)
{
    *out = NULL;
    if (m->dev->memory || !can_map(c, m))
        return 0;
    struct mapped_weights *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_MEMORY, "no memory to map weights");
    w->c = c;
    w->m = m;
    int rc = open_files(w, e);
    if (rc < 0) {
        mapped_weights_close(w);
        return rc;
    }
    *out = w;
    return 0;
}

void mapped_weights_close(struct mapped_weights *w)
{
    if (!w)
        return;
    mapped_weights_stop(w);
    for (int i = 0; i < w->n_files; i++)
        mapped_close(w->file[i].map);
    for (int i = 0; i < w->n_lists; i++)
        free(w->list[i]);
    free(w->file);
    free(w->list);
    free(w->range);
    free(w);
}

/* ---- pointing ---- */

int mapped_weights_pack(void *ctx, int unit, int pack, struct panels *p, struct err *e)
{
    struct mapped_weights *w = ctx;
    struct pack_info info;
    struct found f = { 0 };
    int rc;

    model_pack_info(w->m, unit, pack, &info);
    /* one file has all packs of the format */
    struct mapped *map = w->file[0].map;
    if (!dev_file_panels(w->m->dev) || !find_pack(&f, &info, w->c, w->m, mapped_at(map))) {
        w->refused++;
        rc = 0;
        goto out;
    }
    TRY(add_range(w, map, f.begin, f.end, e));
    p->kind = kind_of(f.pack);
    p->stride = f.pack->stride;
    p->n_runs = f.n > 1 ? f.n : 0;
    p->p = f.n > 1 ? NULL : (void *)f.run[0].p;
    p->run = f.n > 1 ? keep_runs(w, f.run, f.n) : NULL;
    TRY(f.n > 1 && !p->run ? err_set(e, ERR_MEMORY, "no memory for %d runs of panels", f.n) : 0);
    struct panels own = *p; /* this rank's leaves alone */
    own.stride = 0;
    w->bytes += (int64_t)panels_size(&own);
    rc = 1;
out:
    free(f.run);
    return rc;
}

/* 1: box b of tensor i lies in a file as the model reads it, in one piece. */
static int locate(struct ckpt *c, const struct model *m, int part, struct ckpt_place *at)
{
    const struct part *p = &m->local.part[part];
    const struct param *q = &m->table.p[p->param];
    const struct box *b = &p->box;
    const int i = ckpt_find(c, ROLE_WEIGHT, q->name);
    const size_t size = dtype_size(m->dt);
    if (i < 0 || !has_dtype(ckpt_tensor(c, i)->dtype, m->dt) || q->dtype || b->n_dims < 1 ||
        !ckpt_locate(c, i, b, 0, at) || at->offset % (int64_t)size)
        return 0;
    const int64_t row = b->extent[b->n_dims - 1], rows = box_count(b) / row;
    return at->rows >= rows && (rows == 1 || at->row_bytes == row * (int64_t)size);
}

int mapped_weights_part(void *ctx, int part, const void **at, struct err *e)
{
    struct mapped_weights *w = ctx;
    struct ckpt_place place;
    struct mapped *map = NULL;
    int64_t bytes = w->m->local.part[part].count * (int64_t)dtype_size(w->m->dt);
    if (!locate(w->c, w->m, part, &place))
        return 0;
    int rc = file_of(w, place.path, &map, e);
    if (rc < 0 || (rc = add_range(w, map, place.offset, place.offset + bytes, e)) < 0)
        return rc;
    *at = mapped_at(map) + place.offset;
    w->bytes += bytes;
    return 1;
}

int64_t mapped_weights_bytes(const struct mapped_weights *w) { return w->bytes; }
int mapped_weights_refused(const struct mapped_weights *w) { return w->refused; }

int64_t mapped_weights_measure(struct ckpt *c, const struct model *m, const struct dev *dev)
{
    const char *const somewhere = (const char *)4096; /* not read */
    int64_t bytes = 0;
    for (int v = 0; !dev->memory && can_map(c, m) && v < m->local.n_trained; v++) {
        const int unit = m->local.unit[v].unit;
        for (int i = -1; dev_file_panels(dev) && (i = model_vector_packs(m, v, i + 1)) >= 0;) {
            struct pack_info info;
            struct panels shape;
            struct found f;
            const int64_t size = (int64_t)model_pack_shape(m, unit, i, &shape);
            model_pack_info(m, unit, i, &info);
            bytes += find_pack(&f, &info, c, m, somewhere) ? size : 0;
            free(f.run);
        }
    }
    return bytes;
}

/* ---- beside serving ---- */

/* Brings the pages in, in the order of use, and decides whether packs are copied: where less than half of
 * them is mapped with 2 MB entries and the machine has memory for copies. */
static int bring_in(struct mapped_weights *w, const volatile sig_atomic_t *stop, struct err *e)
{
    int64_t large = 0;
    for (int i = 0; i < w->n_ranges; i++) {
        const struct range *r = &w->range[i];
        int rc = mapped_populate(r->map, r->begin, r->end, stop, e);
        if (rc < 0)
            return rc;
    }
    for (int i = 0; i < w->n_files; i++)
        large += mapped_large_bytes(w->file[i].map);
    w->copies = large < w->bytes / 2 && machine_memory_free() / 2 > w->bytes * w->n_here;
    return 0;
}

/* Copies n outputs of panels, which lie one behind the other at `to`. */
static char *copy_run(char *to, const struct panels *p, const char *from, int64_t n)
{
    const struct panels one = { .n = PANEL, .k = p->k, .dt = p->dt, .leaves = p->leaves, .kind = p->kind };
    const size_t bytes = panels_size(&one);
    for (int64_t i = 0; i < n; i += PANEL, to += bytes)
        memcpy(to, from + i / PANEL * panels_stride(p), bytes);
    return to;
}

/* Copies a pack: its runs, then its panels. */
static int copy_pack(void *ctx, int unit, int pack, const struct panels *now, struct panels *made,
                     void **memory, const volatile sig_atomic_t *stop, struct err *e)
{
    struct mapped_weights *w = ctx;
    int rc = w->is_brought_in ? 0 : bring_in(w, stop, e);
    (void)unit, (void)pack;
    w->is_brought_in = 1;
    if (rc < 0 || !w->copies || !now->stride || *stop)
        return rc;

    const struct panel_run whole = { now->p, now->n };
    const struct panel_run *run = now->n_runs ? now->run : &whole;
    const int n = now->n_runs ? now->n_runs : 1;
    const size_t lists = ((size_t)n * sizeof *run + 63) / 64 * 64;
    size_t bytes = lists;
    *made = *now;
    made->stride = 0;
    for (int i = 0; i < n; i++) {
        made->n = run[i].n;
        bytes += panels_size(made);
    }
    made->n = now->n;
    *memory = mem_alloc(w->m->dev->mem, MEM_PARAMS, bytes); /* as dev_alloc of a CPU, by any thread */
    if (!*memory)
        return 0; /* the mapped ones do, too */

    struct panel_run *own = *memory;
    char *to = (char *)*memory + lists;
    for (int i = 0; i < n; i++) {
        own[i] = (struct panel_run){ to, run[i].n };
        to = copy_run(to, now, run[i].p, run[i].n);
    }
    made->run = now->n_runs ? own : NULL;
    made->p = now->n_runs ? NULL : (void *)own[0].p;
    return 1;
}

int mapped_weights_begin(struct mapped_weights *w, struct resident *r, struct load_progress *progress,
                         int n_here, struct err *e)
{
    w->m = r->m;
    w->n_here = n_here;
    int rc = behind_open(&w->behind, r, copy_pack, w, e);
    if (rc >= 0 && progress)
        rc = verify_open(&w->verify, w->c, progress, w->m->dev->pool, e);
    return rc;
}

int mapped_weights_step(struct mapped_weights *w, struct err *e)
{
    int rc = w->behind ? behind_switch(w->behind, e) : 0;
    return rc < 0 || !w->verify ? rc : verify_result(w->verify, e);
}

void mapped_weights_stop(struct mapped_weights *w)
{
    if (!w)
        return;
    behind_close(w->behind);
    verify_close(w->verify);
    w->behind = NULL;
    w->verify = NULL;
}
