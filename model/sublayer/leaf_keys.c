/* leaf_keys.c - attention over sequences that are cut into leaves (kernels/attn_cut.h), whose rows the ranks
 * of cp divide: keys and values come together in pages, gradients by keys go back to the ranks of the keys.
 *
 *     pages of a sequence, cp 2:  [ rank 0's | rank 1's ]      a rank's rows leaf by leaf, 64 a page
 *
 * Every rank computes its queries over all keys, so nothing is passed round and no sum changes its order
 * (Grattafiori et al. 2024, section 3.3.2). */
#include "base/alter.h"
#include "model/units.h"

static int has_cp(const struct pass *p) { return p->m->cp && p->w; }

int keys_begin(const struct pass *p, struct err *e) { return has_cp(p) ? comm_barrier(p->m->cp, e) : 0; }

int keys_gather(const struct pass *p, const struct page_place *at, char *kv, struct err *e)
{
    struct attn a = { 0 };
    if (p->exchange) {
        page_point(p, at, &a);
        return p->exchange->stored(p->exchange, at->group && p->grouped, a.page_off, e);
    }
    if (!has_cp(p))
        return 0;
    struct comm *cp = p->m->cp;
    size_t each = model_page_bytes(p->m) * (size_t)(p->w->shape.pages / comm_size(cp));
    return comm_all_gather_shared(cp, kv, kv + each * (size_t)comm_rank(cp), each, e);
}

void leaf_sums_carve(const struct call_shape *c, const struct carver *from, int64_t n, int apart,
                     struct leaf_sums *s)
{
    *s = (struct leaf_sums){ .n = n };
    if (!apart || c->inner < 2)
        return;
    s->leaf = carve(from, LIFE_COMM, n, sizeof(float));
    for (int i = 1; i < tree_levels(c->inner, 1); i++)
        s->level[i] = carve(from, LIFE_SCRATCH, n, sizeof(float));
}

/* Leaf by leaf: complete over the ranks of the group, then the tree over leaves, in k->dk and k->dv. */
static int by_leaf(const struct pass *p, const struct keys_back *k, struct err *e)
{
    struct model *m = p->m;
    struct leaf_sums *s = k->leaves;
    struct tree_acc acc = { .n = k->a->cut.count };
    struct attn a = *k->a;
    struct mat dk = k->dk, dv = k->dv;
    int rc = 0;

    acc.level[0] = k->dk.p;
    for (int i = 1; i < tree_levels(acc.n, 1); i++)
        acc.level[i] = s->level[i];
    dk.p = s->leaf;
    dv.p = s->leaf + dk.rows * dk.cols;
    for (; acc.next < acc.n; acc.next++) {
        a.cut.one = (int)acc.next + 1;
        KERNEL(m->dev, attn_dx, &a, k->dq, dk, dv, k->dout, k->kept);
        TRY(comm_all_reduce(k->group, s->leaf, s->n, e));
        KERNEL(m->dev, add_leaves, &acc, s->leaf, s->n, s->n, 1);
    }
out:
    return rc;
}

static int all_leaves(const struct pass *p, const struct keys_back *k, struct err *e)
{
    KERNEL(p->m->dev, attn_dx, k->a, k->dq, k->dk, k->dv, k->dout, k->kept);
    return k->group ? comm_all_reduce(k->group, k->dk.p, k->leaves->n, e) : 0;
}

/* This rank's rows of the sum over cp of x. */
static int own_rows(const struct pass *p, struct mat *x, struct err *e)
{
    struct comm *cp = p->m->cp;
    int64_t rows = x->rows / comm_size(cp);
    struct mat own = mat_rows(*x, rows * comm_rank(cp), rows);
    int rc = comm_reduce_scatter(cp, own.p, x->p, rows * x->cols, e);
    *x = own;
    return rc;
}

int keys_backward(const struct pass *p, struct keys_back *k, struct err *e)
{
    int apart = k->group && comm_size(k->group) > 1 && k->a->cut.count > 1;
    int rc = (apart && !ALTERED("cp_group_last") ? by_leaf : all_leaves)(p, k, e);

    if (rc >= 0 && has_cp(p))
        rc = own_rows(p, &k->dk, e);
    return rc >= 0 && has_cp(p) ? own_rows(p, &k->dv, e) : rc;
}
