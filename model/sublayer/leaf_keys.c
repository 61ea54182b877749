/* leaf_keys.c - attention over sequences that are cut into leaves (kernels/attn_cut.h), whose rows the ranks
 * of cp divide: keys and values come together in pages, gradients by keys go back to the ranks of the keys.
 *
 *     pages of a sequence, cp 2:  [ rank 0's | rank 1's ]      see key_pages.c
 *
 * Every rank computes its queries over all keys, so nothing is passed round and no sum changes its order
 * (Grattafiori et al. 2024, section 3.3.2). */
#include "base/alter.h"
#include "model/units.h"

static int has_cp(const struct pass *p) { return p->m->cp && p->w; }

int keys_begin(const struct pass *p, const struct attn *a, struct attn *store, struct err *e)
{
    *store = *a;
    if (!has_cp(p))
        return 0;
    int rc = comm_barrier(p->m->cp, e);
    if (rc >= 0)
        train_clean_own_pages(p);
    store->seq = p->own_seq;
    return rc;
}

/* A page holds, for every kv head, keys [head_dim][64], then values [64][head_dim], or keys alone. */
static void join_page(const struct pass *p, const struct attn *a, char *kv, const struct joined_page *j)
{
    struct dev *d = p->m->dev;
    size_t el = dtype_size(a->dt), page = model_page_bytes(p->m), row = ATTN_PAGE * el;
    size_t head = attn_head_bytes(a), of_first = (size_t)j->n_first * el;
    char *to = kv + page * (size_t)j->to;
    const char *first = kv + page * (size_t)j->first, *second = kv + page * (size_t)j->second;

    dev_copy(d, to, second, page);
    dev_copy_rows(d, to, row, first, row, of_first, (int64_t)(page / row));
    if (a->v_dim > 0)
        return;
    size_t keys = row * (size_t)a->head_dim;
    dev_copy_rows(d, to + keys, head, second + keys, head, keys, a->n_kv);
    dev_copy_rows(d, to + keys, head, first + keys, head, of_first * (size_t)a->head_dim, a->n_kv);
}

/* The blocks of two ranks, once a machine. */
static int join_pages(const struct pass *p, const struct attn *a, char *kv, struct err *e)
{
    const struct page_map *map = &p->w->map;
    int rank, size;
    if (!map->n_joined)
        return 0;
    comm_shared_group(p->m->cp, &rank, &size);
    for (int i = rank; i < map->n_joined; i += size)
        join_page(p, a, kv, &map->joined[i]);
    return size > 1 ? comm_barrier(p->m->cp, e) : 0;
}

int keys_gather(const struct pass *p, const struct page_place *at, const struct attn *a, char *kv,
                struct err *e)
{
    struct attn place = { 0 };
    if (p->exchange) {
        page_point(p, at, &place);
        return p->exchange->stored(p->exchange, at->group && p->grouped, place.page_off, e);
    }
    if (!has_cp(p))
        return 0;
    struct comm *cp = p->m->cp;
    size_t each = model_page_bytes(p->m) * (size_t)p->w->map.each;
    int rc = comm_all_gather_shared(cp, kv, kv + each * (size_t)comm_rank(cp), each, e);
    return rc < 0 ? rc : join_pages(p, a, kv, e);
}

void key_grads_carve(const struct model *m, const struct call_shape *c, const struct carver *from,
                     const struct key_sizes *s, struct key_grads *g)
{
    int cp = m->local.layout.cp, by_head = cp > 1 && s->n_kv > 1;
    int64_t of_head = c->rows * (s->key + s->value);

    *g = (struct key_grads){ .n = cp * of_head * (by_head ? 1 : s->n_kv) };
    g->all = carve(from, LIFE_COMM, g->n, sizeof(float));
    if (by_head) {
        g->own = carve(from, LIFE_SCRATCH, of_head * s->n_kv, sizeof(float));
        g->lse = carve(from, LIFE_SCRATCH, c->rows * (s->n_heads / s->n_kv), sizeof(float));
    }
    if (!s->apart || c->inner < 2)
        return;
    g->leaf = carve(from, LIFE_COMM, g->n, sizeof(float));
    for (int i = 1; i < tree_levels(c->inner, 1); i++)
        g->level[i] = carve(from, LIFE_SCRATCH, g->n, sizeof(float));
}

/* dk, then dv of so many rows and kv heads, at x. */
static void mats_at(float *x, const struct attn *a, int64_t rows, int64_t n_kv, struct mat *dk,
                    struct mat *dv)
{
    *dk = rows_of(x, DT_F32, rows, n_kv * a->head_dim);
    *dv = rows_of(x + rows * dk->cols, DT_F32, rows, n_kv * attn_value_dim(a));
}

void keys_all(const struct pass *p, const struct attn *a, const struct key_grads *grads, struct mat *dk,
              struct mat *dv)
{
    mats_at(grads->all, a, rows_all(&p->r) * p->m->local.layout.cp, grads->own ? 1 : a->n_kv, dk, dv);
}

/* Leaf by leaf: complete over the ranks of the group, then the tree over leaves, in k->dk and k->dv. */
static int by_leaf(const struct pass *p, const struct keys_back *k, struct err *e)
{
    struct model *m = p->m;
    struct key_grads *s = k->grads;
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
    return k->group ? comm_all_reduce(k->group, k->dk.p, k->grads->n, e) : 0;
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

/* attn_dx's arguments for one kv head and its query heads. */
static void take_head(const struct pass *p, const struct keys_back *k, int kv, struct attn *a,
                      struct keys_back *one)
{
    const int64_t group = k->a->n_heads / k->a->n_kv, first = kv * group, d = k->a->head_dim,
                  v = attn_value_dim(k->a);
    *a = *k->a;
    a->n_heads = (int)group;
    a->n_kv = 1;
    a->page_off += (size_t)kv * attn_head_bytes(a);

    *one = *k;
    one->a = a;
    one->dq = mat_cols(k->dq, first * d, group * d);
    one->dout = mat_cols(k->dout, first * v, group * v);
    one->kept.q = mat_cols(k->kept.q, first * d, group * d);
    one->kept.out = mat_cols(k->kept.out, first * v, group * v);
    one->kept.lse = k->grads->lse;
    dev_copy_rows(p->m->dev, k->grads->lse, (size_t)group * sizeof(float), k->kept.lse + first,
                  (size_t)k->a->n_heads * sizeof(float), (size_t)group * sizeof(float), k->dq.rows);
    keys_all(p, a, k->grads, &one->dk, &one->dv);
}

static void put_head(const struct pass *p, struct mat all, int kv, struct mat one)
{
    size_t bytes = (size_t)one.cols * sizeof(float);
    dev_copy_rows(p->m->dev, (float *)all.p + kv * one.cols, (size_t)all.ld * sizeof(float), one.p, bytes,
                  bytes, one.rows);
}

/* One kv head after the other. */
static int by_head(const struct pass *p, struct keys_back *k, struct err *e)
{
    struct keys_back one;
    struct attn a;
    int rc = 0;

    mats_at(k->grads->own, k->a, k->dq.rows, k->a->n_kv, &k->dk, &k->dv);
    for (int kv = 0; kv < k->a->n_kv; kv++) {
        take_head(p, k, kv, &a, &one);
        TRY(all_leaves(p, &one, e));
        TRY(own_rows(p, &one.dk, e));
        TRY(own_rows(p, &one.dv, e));
        put_head(p, k->dk, kv, one.dk);
        put_head(p, k->dv, kv, one.dv);
    }
out:
    return rc;
}

int keys_backward(const struct pass *p, struct keys_back *k, struct err *e)
{
    int apart = k->group && comm_size(k->group) > 1 && k->a->cut.count > 1;
    int rc;
    if (k->grads->own)
        return by_head(p, k, e);

    keys_all(p, k->a, k->grads, &k->dk, &k->dv);
    rc = (apart && !ALTERED("cp_group_last") ? by_leaf : all_leaves)(p, k, e);
    if (rc >= 0 && has_cp(p))
        rc = own_rows(p, &k->dk, e);
    return rc >= 0 && has_cp(p) ? own_rows(p, &k->dv, e) : rc;
}
