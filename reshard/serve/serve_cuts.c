/* serve_cuts.c - see serve_cuts.h. The model of every rank of every tp says where its matrices begin. */
#include "reshard/serve/serve_cuts.h"

#include <stdlib.h>
#include "base/buf.h"

static int add_cut(struct serve_cuts *x, const struct pack_matrix *m, struct err *e)
{
    struct serve_cut *grown = x->cut;
    if ((size_t)x->n + 1 > x->room)
        grown = buf_grow(x->cut, &x->room, (size_t)x->n + 1, sizeof *grown);
    if (!grown)
        return err_set(e, ERR_MEMORY, "no memory for the cuts of %lld matrices", (long long)x->n);
    x->cut = grown;
    x->cut[x->n++] = (struct serve_cut){ m->param, m->out_dim, m->box.start[m->out_dim] };
    return 0;
}

static int add_rank(struct serve_cuts *x, const struct model_config *cfg, const struct layout *l, int rank,
                    struct err *e)
{
    struct model m;
    struct pack_info info;
    int rc = model_shape(&m, cfg, l, (struct rank_at){ .tp = rank }, DT_F32, 0, e);
    if (rc < 0)
        return rc;
    for (int u = 0; u < m.table.n_units && rc >= 0; u++)
        for (int k = 0; k < model_n_packs(&m, u) && rc >= 0; k++) {
            model_pack_info(&m, u, k, &info);
            for (int i = 0; i < info.n && rc >= 0; i++)
                rc = add_cut(x, &info.matrix[i], e);
        }
    model_close(&m);
    return rc;
}

static int compare_cuts(const void *pa, const void *pb)
{
    const struct serve_cut *a = pa, *b = pb;
    if (a->param != b->param)
        return a->param < b->param ? -1 : 1;
    return a->dim != b->dim ? a->dim - b->dim : (a->at > b->at) - (a->at < b->at);
}

static void sort_cuts(struct serve_cuts *x)
{
    int64_t n = 0;
    if (x->n)
        qsort(x->cut, (size_t)x->n, sizeof *x->cut, compare_cuts);
    for (int64_t i = 0; i < x->n; i++)
        if (!n || compare_cuts(&x->cut[n - 1], &x->cut[i]))
            x->cut[n++] = x->cut[i];
    x->n = n;
}

int serve_cuts_find(struct serve_cuts *x, const struct model_config *cfg, struct err *e)
{
    struct err ignored;
    int rc = 0;
    *x = (struct serve_cuts){ 0 };
    for (int tp = 2; tp <= cfg->grain && rc >= 0; tp++) {
        const struct layout l = { .tp = tp, .pp = 1, .cp = 1, .dp = 1, .ep = 1 };
        if (cfg->grain % tp || layout_check(&l, cfg, &ignored) < 0 || layout_grain(&l, cfg) != cfg->grain)
            continue;
        for (int rank = 0; rank < tp && rc >= 0; rank++)
            rc = add_rank(x, cfg, &l, rank, e);
        sort_cuts(x);
    }
    return rc < 0 ? rc : 0;
}

void serve_cuts_free(struct serve_cuts *x)
{
    free(x->cut);
    *x = (struct serve_cuts){ 0 };
}

/* The first cut behind this one. */
static int64_t find_behind(const struct serve_cuts *x, struct serve_cut key)
{
    int64_t lo = 0, hi = x->n;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (compare_cuts(&x->cut[mid], &key) <= 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int serve_cuts_runs(const struct serve_cuts *x, const struct pack_matrix *m, int unit, int64_t *out, int most)
{
    int64_t start = m->box.start[m->out_dim], n = m->box.extent[m->out_dim];
    int count = 0, even = 1;
    for (int64_t i = find_behind(x, (struct serve_cut){ m->param, m->out_dim, start }); i < x->n; i++) {
        const struct serve_cut *c = &x->cut[i];
        if (c->param != m->param || c->dim != m->out_dim || c->at >= start + n)
            break;
        if (count == most - 1)
            return 0;
        out[count++] = c->at - start;
        even &= (c->at - start) % unit == 0;
    }
    if (even)
        count = 0;
    out[count++] = n;
    return count;
}
