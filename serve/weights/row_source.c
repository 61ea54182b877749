/* row_source.c - see row_source.h. */
#include "serve/weights/row_source.h"

#include <stdlib.h>
#include <string.h>
#include "base/test_hooks.h"
#include "model/packs.h"
#include "store/mapped.h"

#define RUNS_MOST 4096 /* of a pack: pieces of files that its rows lie in */

struct file {
    const char *path; /* of the checkpoint */
    struct mapped *map;
};
struct row_source {
    struct ckpt *c;
    const struct model *m;
    struct file *file;
    int n_files;
    struct panel_run **runs; /* of all packs, freed with the source */
    int n_runs;
    int64_t bytes;
};

int row_source_open(struct row_source **out, struct ckpt *c, const struct model *m, struct err *e)
{
    *out = NULL;
    if (m->dev->memory || !strcmp(m->dev->isa, "simt") || !hook_maps_weights() || ckpt_cache(c))
        return 0;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return err_set(e, ERR_MEMORY, "no memory to map weights");
    **out = (struct row_source){ .c = c, .m = m };
    return 0;
}

void row_source_close(struct row_source *s)
{
    for (int i = 0; s && i < s->n_files; i++)
        mapped_close(s->file[i].map);
    for (int i = 0; s && i < s->n_runs; i++)
        free(s->runs[i]);
    if (s) {
        free(s->file);
        free(s->runs);
    }
    free(s);
}

void row_source_release(struct row_source *s)
{
    for (int i = 0; i < s->n_files; i++)
        mapped_drop(s->file[i].map, 0, mapped_bytes(s->file[i].map));
}

int64_t row_source_bytes(const struct row_source *s) { return s->bytes; }

/* The tensor of a parameter, when it is stored in the dtype of arithmetic and the right shape; else -1. */
static int tensor_of(const struct row_source *s, const struct param *p)
{
    const enum stored_dtype want = s->m->dt == DT_BF16 ? STORED_BF16 : STORED_F32;
    const int i = ckpt_find(s->c, ROLE_WEIGHT, p->name);
    if (i < 0)
        return -1;
    const struct ckpt_tensor *t = ckpt_tensor(s->c, i);
    return t->dtype == want && param_shape_fits(p, t->n_dims, t->shape) ? i : -1;
}

/* Maps the file of a place. *at: its first row. */
static int map_place(struct row_source *s, const struct ckpt_place *p, const char **at, struct err *e)
{
    int i = 0;
    while (i < s->n_files && strcmp(s->file[i].path, p->path))
        i++;
    if (i == s->n_files) {
        struct file *file = realloc(s->file, sizeof *file * (size_t)(i + 1));
        if (!file)
            return err_set(e, ERR_MEMORY, "no memory to map %s", p->path);
        s->file = file;
        file[i] = (struct file){ p->path, NULL };
        int rc = mapped_open(&file[i].map, p->path, p->file_bytes, e);
        if (rc < 0)
            return rc;
        s->n_files++;
    }
    *at = mapped_at(s->file[i].map) + p->offset;
    return 0;
}

/* Rows of a box, from `first` on, that lie together and are aligned to an element. */
static int locate(const struct row_source *s, int tensor, const struct box *b, int64_t first,
                  struct ckpt_place *p)
{
    return ckpt_locate(s->c, tensor, b, first, p) && p->offset % (int64_t)dtype_size(s->m->dt) == 0;
}

static int64_t rows_of(const struct box *b) { return b->n_dims > 1 ? b->extent[b->n_dims - 2] : 1; }

/* Adds the runs of a matrix. 1; 0 where it cannot be mapped; or an error. */
static int add_runs(struct row_source *s, const struct pack_matrix *x, struct panel_run *run, int *n,
                    int64_t *stride, struct err *e)
{
    const int dims = x->box.n_dims, tensor = tensor_of(s, &s->m->table.p[x->param]);
    if (tensor < 0 || dims < 2 || x->in_dim != dims - 1 || x->out_dim != dims - 2)
        return 0;
    struct ckpt_place p;
    for (int64_t first = 0; first < rows_of(&x->box); first += p.rows) {
        const char *at;
        if (*n == RUNS_MOST || !locate(s, tensor, &x->box, first, &p) || (*stride && *stride != p.row_bytes))
            return 0;
        int rc = map_place(s, &p, &at, e);
        if (rc < 0)
            return rc;
        *stride = p.row_bytes;
        run[(*n)++] = (struct panel_run){ at, p.rows };
    }
    return 1;
}

int row_source_pack(void *source, int unit, int pack, struct panels *p, struct err *e)
{
    struct row_source *s = source;
    struct panel_run run[RUNS_MOST];
    struct pack_info info;
    int64_t stride = 0;
    int n = 0, rc = 1;

    model_pack_info(s->m, unit, pack, &info);
    for (int i = 0; rc == 1 && i < info.n; i++)
        rc = add_runs(s, &info.matrix[i], run, &n, &stride, e);
    if (rc < 1 || n == 0)
        return rc < 0 ? rc : 0;

    struct panel_run **runs = realloc(s->runs, sizeof *runs * (size_t)(s->n_runs + 1));
    struct panel_run *kept = runs ? malloc(sizeof *kept * (size_t)n) : NULL;
    s->runs = runs ? runs : s->runs;
    if (!kept)
        return err_set(e, ERR_MEMORY, "no memory to map weights");
    s->runs[s->n_runs++] = kept;
    memcpy(kept, run, sizeof *kept * (size_t)n);
    p->kind = PANEL_ROWS;
    p->stride = stride;
    p->n_runs = n;
    p->run = kept;
    s->bytes += p->n * p->k * (int64_t)dtype_size(p->dt);
    return 1;
}

int row_source_part(void *source, int part, const void **at, struct err *e)
{
    struct row_source *s = source;
    const struct part *x = &s->m->local.part[part];
    const struct param *p = &s->m->table.p[x->param];
    const int tensor = tensor_of(s, p), dims = x->box.n_dims;
    struct ckpt_place place;
    const char *first;
    if (param_is_vector(p) || tensor < 0 || dims != 2 || !locate(s, tensor, &x->box, 0, &place) ||
        place.rows != rows_of(&x->box) || place.row_bytes != x->box.extent[1] * (int64_t)dtype_size(s->m->dt))
        return 0;
    int rc = map_place(s, &place, &first, e);
    if (rc < 0)
        return rc;
    *at = first;
    s->bytes += x->count * (int64_t)dtype_size(s->m->dt);
    return 1;
}

int row_source_walk(struct row_source *s, int part, row_source_fn fn, void *arg, struct err *e)
{
    const struct part *x = &s->m->local.part[part];
    const int dims = x->box.n_dims, tensor = tensor_of(s, &s->m->table.p[x->param]);
    const int64_t columns = x->box.extent[dims - 1], rows = x->count / (columns ? columns : 1);
    struct box b = x->box;
    struct ckpt_place p;
    int rc = 0;

    /* stacked matrices one by one: ckpt_locate takes one */
    for (int64_t row = 0; rc >= 0 && row < rows; row += p.rows) {
        int64_t rest = row / rows_of(&x->box);
        const char *at;
        for (int d = dims - 3; d >= 0; d--) {
            b.start[d] = x->box.start[d] + rest % x->box.extent[d];
            b.extent[d] = 1;
            rest /= x->box.extent[d];
        }
        if (tensor < 0 || !locate(s, tensor, &b, row % rows_of(&x->box), &p))
            return err_set(e, ERR_INTERNAL, "%s is not mapped: please report it",
                           s->m->table.p[x->param].name);
        rc = map_place(s, &p, &at, e);
        const int together = p.row_bytes == columns * (int64_t)dtype_size(s->m->dt);
        if (rc >= 0 && together)
            rc = fn(arg, row * columns, (row + p.rows) * columns, at, e);
        for (int64_t r = 0; rc >= 0 && !together && r < p.rows; r++)
            rc = fn(arg, (row + r) * columns, (row + r + 1) * columns, at + r * p.row_bytes, e);
    }
    return rc;
}

int row_source_repack(struct dev *d, const struct panels *rows, struct panels *made, void **memory,
                      struct err *e)
{
    struct mat *w = calloc((size_t)rows->n_runs, sizeof *w);
    *made = (struct panels){ .n = rows->n, .k = rows->k, .dt = rows->dt, .leaves = rows->leaves };
    *memory = w ? dev_alloc(d, MEM_PARAMS, panels_size(made)) : NULL;
    if (!*memory) {
        free(w);
        return err_set(e, ERR_MEMORY, "no memory to pack a matrix of %lld x %lld", (long long)rows->n,
                       (long long)rows->k);
    }
    for (int i = 0; i < rows->n_runs; i++)
        w[i] = mat_of((void *)(uintptr_t)rows->run[i].p, rows->dt, rows->run[i].n, rows->k,
                      rows->stride / (int64_t)dtype_size(rows->dt));
    made->p = *memory;
    KERNEL(d, linear_pack, made, rows->n_runs, w);
    free(w);
    return 0;
}
