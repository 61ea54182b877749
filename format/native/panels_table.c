/* panels_table.c - see panels_table.h: packs and runs of a manifest, checked. Nothing in it is trusted: a
 * pack lies in its file, its leaves and stride are what its kind makes of them, its runs fill it, and no byte
 * of a file belongs to two of its parts. */
#include "format/native/panels_table.h"

#include <stdlib.h>
#include <string.h>
#include "format/fmt.h"
#include "format/native/manifest.h"
#include "format/native/panel_bytes.h"

static int damaged(struct err *e, const char *path, const char *what, int64_t have, int64_t want)
{
    return err_set(e, ERR_FORMAT,
                   "%s: a pack of panels: %s is %lld, not %lld: is it written by another program", path, what,
                   (long long)have, (long long)want);
}

/* ---- packs ---- */

/* Memory for n leaves, which c->panels owns. */
static int64_t *new_leaves(struct fmt_panels *x, size_t n)
{
    int64_t **grown = buf_grow((void *)x->leaves, &x->leaves_room, (size_t)x->n_leaves + 1, sizeof *grown);
    if (!grown)
        return NULL;
    x->leaves = grown;
    int64_t *end = calloc(2 * n + 1, sizeof *end);
    if (end)
        x->leaves[x->n_leaves++] = end;
    return end;
}

/* Most packs have the leaves of one that was read: takes that one's, or keeps those of k. */
static void share_leaves(struct fmt_panels *x, struct ckpt_pack *k)
{
    size_t bytes = (2 * (size_t)k->n_leaves + 1) * sizeof(int64_t);
    for (int i = x->n_packs - 1; i >= 0 && i >= x->n_packs - 16; i--) {
        const struct ckpt_pack *was = &x->pack[i];
        if (was->n_leaves != k->n_leaves || memcmp(was->leaf_end, k->leaf_end, bytes))
            continue;
        free(x->leaves[--x->n_leaves]);
        k->leaf_end = was->leaf_end;
        k->leaf_offset = was->leaf_offset;
        return;
    }
}

/* The ends of the leaves, ascending up to the length of the contraction, and where the leaves begin in a
 * panel. */
static int read_leaves(struct ckpt *c, struct ckpt_pack *k, const json_t *o, const char *path, struct err *e)
{
    const json_t *list = json_object_get(o, MANIFEST_LEAVES);
    size_t n = json_array_size(list);
    if (n < 1 || n > PANELS_LEAVES)
        return damaged(e, path, "the number of leaves", (int64_t)n, 1);
    int64_t *end = new_leaves(c->panels, n), last = 0;
    if (!end)
        return err_set(e, ERR_MEMORY, "%s: no memory for its packs", path);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        end[i] = json_is_integer(v) ? json_integer_value(v) : -1;
        if (end[i] < last || end[i] >= (int64_t)1 << 40)
            return damaged(e, path, "the end of a leaf", end[i], last);
        if (end[i] - last >= panel_kind_most(k->kind))
            return damaged(e, path, "the elements of a leaf", end[i] - last, panel_kind_most(k->kind) - 1);
        last = end[i];
    }
    if (!last)
        return damaged(e, path, "the length of the contraction", last, 1);
    panel_leaves(k->kind, k->dtype, (int)n, end, end + n);
    k->n_leaves = (int)n;
    k->leaf_end = end;
    k->leaf_offset = end + n;
    k->k = last;
    share_leaves(c->panels, k);
    return 0;
}

static int read_pack(struct ckpt *c, struct ckpt_pack *k, const json_t *o, const char *path, struct err *e)
{
    const struct fmt_file *f = &c->file[k->file];
    const char *kind = "", *dtype = "";
    int64_t unit = 0;
    int rc = 0;
    TRY(manifest_need_text(o, path, "kind", &kind, e));
    TRY(manifest_need_text(o, path, "dtype", &dtype, e));
    TRY(manifest_need_int(o, path, MANIFEST_UNIT, 0, &unit, e));
    TRY(manifest_need_int(o, path, "offset", 8, &k->offset, e));
    TRY(manifest_need_int(o, path, "bytes", 1, &k->bytes, e));
    TRY(manifest_need_int(o, path, "stride", 1, &k->stride, e));
    int known = panel_kind_find(kind), stored = stored_dtype_find(dtype);
    if (known < 0 || stored < 0 || !panel_kind_takes((enum ckpt_panel_kind)known, (enum stored_dtype)stored))
        return err_set(e, ERR_FORMAT,
                       "%s: panels of kind \"%.40s\" of %.40s, which this program does not know: use a newer "
                       "program",
                       path, kind, dtype);
    k->unit = unit > 1 << 24 ? 1 << 24 : (int)unit;
    k->kind = (enum ckpt_panel_kind)known;
    k->dtype = (enum stored_dtype)stored;
    TRY(read_leaves(c, k, o, path, e));
    if (k->stride != k->leaf_offset[k->n_leaves])
        TRY(damaged(e, path, "the stride", k->stride, k->leaf_offset[k->n_leaves]));
    if (k->offset % PANELS_ALIGN)
        TRY(damaged(e, path, "the offset behind a multiple of 64", k->offset % PANELS_ALIGN, 0));
    if (k->bytes % k->stride)
        TRY(damaged(e, path, "what is left behind whole panels", k->bytes % k->stride, 0));
    if (k->offset > f->bytes || k->bytes > f->bytes - k->offset)
        rc = err_set(e, ERR_FORMAT, "%s: a pack of %lld bytes at %lld passes the end of %s at %lld", path,
                     (long long)k->bytes, (long long)k->offset, f->name, (long long)f->bytes);
out:
    return rc < 0 ? rc : 0;
}

int panels_read_packs(struct ckpt *c, struct jx_slice list, const char *path, struct err *e)
{
    struct jx_walk w = jx_walk(list);
    json_t *o = NULL;
    size_t n = jx_count(list);
    int rc = 0;
    if (!n)
        return 0;
    if (c->file[c->n_files - 1].frame)
        return err_set(e, ERR_FORMAT,
                       "%s: %s is compressed and has packs of panels: is it written by another program", path,
                       c->file[c->n_files - 1].name);
    if (!c->panels && !(c->panels = calloc(1, sizeof *c->panels)))
        return err_set(e, ERR_MEMORY, "%s: no memory for its packs", path);
    struct fmt_panels *x = c->panels;
    struct ckpt_pack *grown = buf_grow(x->pack, &x->pack_room, (size_t)x->n_packs + n, sizeof *grown);
    if (!grown)
        return err_set(e, ERR_MEMORY, "%s: no memory for %zu packs", path, n);
    x->pack = grown;
    for (size_t i = 0; i < n; i++) {
        struct ckpt_pack *k = &x->pack[x->n_packs];
        *k = (struct ckpt_pack){ .file = c->n_files - 1 };
        TRY(jx_walk_parse(&w, path, &o, e));
        TRY(read_pack(c, k, o, path, e));
        json_decref(o);
        o = NULL;
        x->n_packs++;
    }
out:
    json_decref(o);
    return rc < 0 ? rc : 0;
}

/* ---- runs ---- */

json_t *panels_run_json(const json_t *piece)
{
    static const char *const key[] = { MANIFEST_PACK, MANIFEST_OUTPUTS, MANIFEST_INPUTS, MANIFEST_COPY };
    json_t *run = json_object_get(piece, MANIFEST_PACK) ? json_object() : NULL;
    for (size_t i = 0; run && i < sizeof key / sizeof *key; i++)
        if (json_object_get(piece, key[i]))
            json_object_set(run, key[i], json_object_get(piece, key[i]));
    return run;
}

/* Two dims of the box, and one index of each of the others. */
static int check_dims(const struct ckpt_run *r, const struct ckpt_pack *k, const char *path, struct err *e)
{
    const struct box *b = &r->box;
    int ok = r->out_dim != r->in_dim && r->out_dim < b->n_dims && r->in_dim < b->n_dims;
    for (int d = 0; d < b->n_dims && ok; d++)
        ok = d == r->out_dim || d == r->in_dim || b->extent[d] == 1;
    if (!ok)
        return err_set(e, ERR_FORMAT, "%s: a run of panels is no matrix: is it written by another program",
                       path);
    if (b->extent[r->in_dim] != k->k)
        return damaged(e, path, "the contraction of a run", b->extent[r->in_dim], k->k);
    return r->n > 0 && r->n < (int64_t)1 << 48 ? 0 : damaged(e, path, "the outputs of a run", r->n, 1);
}

int panels_read_run(struct ckpt *c, int first, struct fmt_piece *p, const json_t *o, const char *path,
                    struct err *e)
{
    struct fmt_panels *x = c->panels;
    const struct ckpt_tensor *t = &c->tensor[p->tensor];
    int64_t pack = 0, out = 0, in = 0;
    int copy = 0, rc = 0;
    TRY(manifest_need_int(o, path, MANIFEST_PACK, 0, &pack, e));
    TRY(manifest_need_int(o, path, MANIFEST_OUTPUTS, 0, &out, e));
    TRY(manifest_need_int(o, path, MANIFEST_INPUTS, 0, &in, e));
    TRY(jx_bool(o, path, MANIFEST_COPY, &copy, e));
    if (!x || pack >= x->n_packs - first)
        return err_set(e, ERR_FORMAT, "%s: a piece of %s is in pack %lld, its file has %d", path, t->name,
                       (long long)pack, x ? x->n_packs - first : 0);
    struct ckpt_run *grown = buf_grow(x->run, &x->run_room, (size_t)x->n_runs + 1, sizeof *grown);
    if (!grown)
        return err_set(e, ERR_MEMORY, "%s: no memory for the runs of its packs", path);
    x->run = grown;
    struct ckpt_run *r = &x->run[x->n_runs++];
    *r = (struct ckpt_run){ p->tensor,
                            first + (int)pack,
                            p->box,
                            out < BOX_DIMS ? (int)out : BOX_DIMS - 1,
                            in < BOX_DIMS ? (int)in : BOX_DIMS - 1,
                            p->offset,
                            0,
                            copy };
    r->n = r->box.extent[r->out_dim];
    TRY(check_dims(r, &x->pack[r->pack], path, e));
    if (t->dtype != x->pack[r->pack].dtype || p->lo != 0 || p->hi != box_count(&p->box))
        return err_set(e, ERR_FORMAT, "%s: a run of %s has another dtype than its pack, or is cut", path,
                       t->name);
    p->run = x->n_runs;
out:
    return rc < 0 ? rc : !copy;
}

/* ---- all of them ---- */

/* Runs in the order of packs fill each of them, from its first byte to its last. */
static int check_fill(struct fmt_panels *x, const char *path, struct err *e)
{
    int64_t r = 0;
    for (int i = 0; i < x->n_packs; i++) {
        struct ckpt_pack *k = &x->pack[i];
        int64_t at = k->offset, end = k->offset + k->bytes;
        if (i && k[-1].file == k->file && k->offset < k[-1].offset)
            return damaged(e, path, "the offset in order", k->offset, k[-1].offset);
        k->run = x->run + r;
        for (; r < x->n_runs && x->run[r].pack == i; r++, k->n_runs++) {
            int64_t panels = (x->run[r].n + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS;
            if (x->run[r].offset != at)
                return damaged(e, path, "the offset of a run", x->run[r].offset, at);
            if (panels > (end - at) / k->stride)
                return damaged(e, path, "the panels of a run", panels, (end - at) / k->stride);
            at += panels * k->stride;
        }
        if (at != end)
            return damaged(e, path, "the end of the runs", at, end);
    }
    return r == x->n_runs ? 0 : damaged(e, path, "the number of runs in order", r, x->n_runs);
}

struct region {
    int file;
    int64_t begin, end;
};
static int compare_region(const void *pa, const void *pb)
{
    const struct region *a = pa, *b = pb;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->begin != b->begin ? (a->begin < b->begin ? -1 : 1) : (a->end > b->end) - (a->end < b->end);
}

/* Packs and natural pieces of a file lie apart. */
static int check_apart(const struct ckpt *c, const char *path, struct err *e)
{
    struct region *v = malloc(sizeof *v * (size_t)(c->n_pieces + c->panels->n_packs + 1));
    int64_t n = 0;
    int rc = v ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for its packs", path);
    for (int64_t i = 0; v && i < c->n_pieces; i++) {
        const struct fmt_piece *p = &c->piece[i];
        int64_t bytes = stored_bytes(c->tensor[p->tensor].dtype, p->hi - p->lo);
        if (!p->run && bytes)
            v[n++] = (struct region){ p->file, p->offset, p->offset + bytes };
    }
    for (int i = 0; v && i < c->panels->n_packs; i++) {
        const struct ckpt_pack *k = &c->panels->pack[i];
        v[n++] = (struct region){ k->file, k->offset, k->offset + k->bytes };
    }
    if (v)
        qsort(v, (size_t)n, sizeof *v, compare_region);
    for (int64_t i = 1; i < n && rc >= 0; i++)
        if (v[i].file == v[i - 1].file && v[i].begin < v[i - 1].end)
            rc = err_set(e, ERR_FORMAT, "%s: bytes %lld to %lld of %s belong to two parts of it", path,
                         (long long)v[i].begin, (long long)v[i - 1].end, c->file[v[i].file].name);
    free(v);
    return rc;
}

static int compare_run(const void *pa, const void *pb)
{
    const struct ckpt_run *a = *(const struct ckpt_run *const *)pa, *b = *(const struct ckpt_run *const *)pb;
    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    if (a->is_copy != b->is_copy)
        return a->is_copy - b->is_copy;
    for (int d = 0; d < a->box.n_dims && d < b->box.n_dims; d++)
        if (a->box.start[d] != b->box.start[d])
            return a->box.start[d] < b->box.start[d] ? -1 : 1;
    return 0;
}

static int index_runs(struct ckpt *c, const char *path, struct err *e)
{
    struct fmt_panels *x = c->panels;
    x->of = malloc(sizeof *x->of * (size_t)(x->n_runs + 1));
    x->first_of = malloc(sizeof *x->first_of * ((size_t)c->n_tensors + 1));
    if (!x->of || !x->first_of)
        return err_set(e, ERR_MEMORY, "%s: no memory for its packs", path);
    for (int64_t i = 0; i < x->n_runs; i++)
        x->of[i] = &x->run[i];
    qsort((void *)x->of, (size_t)x->n_runs, sizeof *x->of, compare_run);
    int64_t at = 0;
    for (int t = 0; t <= c->n_tensors; t++) {
        while (at < x->n_runs && x->of[at]->tensor < t)
            at++;
        x->first_of[t] = at;
    }
    return 0;
}

/* Copies of a tensor cover it exactly once, too. */
static int check_copies(const struct ckpt *c, const char *path, struct err *e)
{
    const struct fmt_panels *x = c->panels;
    int rc = 0;
    for (int t = 0; t < c->n_tensors && rc >= 0; t++) {
        int64_t n = x->first_of[t + 1] - x->first_of[t], kept = 0;
        struct fmt_piece *p = n ? calloc((size_t)n, sizeof *p) : NULL;
        if (n && !p)
            return err_set(e, ERR_MEMORY, "%s: no memory for its packs", path);
        for (int64_t i = x->first_of[t]; i < x->first_of[t + 1]; i++)
            if (x->of[i]->is_copy)
                p[kept++] = (struct fmt_piece){ .tensor = t,
                                                .box = x->of[i]->box,
                                                .hi = box_count(&x->of[i]->box) };
        if (kept)
            rc = fmt_cover(&c->tensor[t], p, kept, path, e);
        free(p);
    }
    return rc;
}

int panels_finish(struct ckpt *c, const char *path, struct err *e)
{
    int rc = 0;
    if (!c->panels)
        return 0;
    TRY(check_fill(c->panels, path, e));
    TRY(check_apart(c, path, e));
    TRY(index_runs(c, path, e));
    TRY(check_copies(c, path, e));
out:
    return rc < 0 ? rc : 0;
}

void panels_free(struct fmt_panels *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_leaves; i++)
        free(p->leaves[i]);
    free((void *)p->leaves);
    free(p->pack);
    free(p->run);
    free((void *)p->of);
    free(p->first_of);
    free(p);
}
