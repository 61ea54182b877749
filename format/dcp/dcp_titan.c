/* dcp_titan.c - attention of torchtitan's models: rows of queries and keys in pairs, and queries, keys and
 * values in one tensor (see titan_names.h). A piece is the part of a head, or of half of it, that a chunk
 * has. */
#include <string.h>
#include "format/dcp/dcp.h"

/* A head of a stored tensor: of which logical tensor it is, and which head there. */
struct head {
    int part;
    int64_t number;
};

static struct head head_at(const struct titan *t, const struct titan_name *name, int64_t i)
{
    int64_t per = t->heads / t->groups, group = i / (per + 2), k = i % (per + 2);
    if (name->n == 1)
        return (struct head){ 0, i };
    return k < per ? (struct head){ 0, group * per + k } : (struct head){ (int)(k - per) + 1, group };
}

/* Heads of logical tensor `part` in n heads of the stored one. */
static int64_t heads_of(const struct titan *t, const struct titan_name *name, int part, int64_t n)
{
    return name->n == 1 ? n : part == 0 ? t->heads : t->groups;
}

static int check_rows(const struct titan *t, const struct dcp *d, const struct dcp_item *x,
                      const struct titan_name *name, struct err *e)
{
    int64_t h = t->head_dim, rows = x->n_dims ? x->shape[0] : 0,
            most = (int64_t)1 << 24; /* no product below overflows */
    if (t->heads < 1 || t->groups < 1 || h < 2 || t->heads > most || t->groups > most || h > most ||
        t->heads % t->groups || h % 2)
        return err_set(e, ERR_CONFIG,
                       "%s: %.*s needs the heads of the model, config.json says %lld in %lld groups of %lld",
                       d->name, x->n_key, x->key, (long long)t->heads, (long long)t->groups, (long long)h);
    if (x->n_dims != 2 || (name->n == 3 ? rows != (t->heads + 2 * t->groups) * h
                                        : rows != t->heads * h && rows != t->groups * h))
        return err_set(e, ERR_CONFIG,
                       "%s: %.*s has %d dims and %lld rows, config.json says %lld heads in %lld groups of "
                       "%lld: is it the config of another model",
                       d->name, x->n_key, x->key, x->n_dims, (long long)rows, (long long)t->heads,
                       (long long)t->groups, (long long)h);
    return 0;
}

/* Adds rows [lo, hi) of chunk k, which are of head `from` of the stored tensor, as head `to`. */
static int add_head(struct build *b, int tensor, const struct chunk *k, int64_t h, int64_t from, int64_t to,
                    enum titan_order order, struct err *e)
{
    int64_t end = k->box.start[0] + k->box.extent[0],
            lo = from * h > k->box.start[0] ? from * h : k->box.start[0],
            hi = (from + 1) * h < end ? (from + 1) * h : end, step = order == TITAN_PAIRS ? 2 : 1;
    int rc = 0;

    for (int64_t half = 0; half < step && rc >= 0; half++) {
        int64_t first = lo + ((lo - from * h) % step == half ? 0 : 1), n = (hi - first + step - 1) / step;
        int64_t start[BOX_DIMS] = { to * h + half * (h / step) + (first - from * h) / step, k->box.start[1] };
        struct chunk rows = *k;
        if (n < 1)
            continue;
        rows.offset += (first - k->box.start[0]) * k->stride[0] * stored_bytes(k->dtype, 1);
        rows.stride[0] *= step;
        rows.box.start[0] = rows.box.start[1] = 0;
        rows.box.extent[0] = n;
        rc = build_map(b, tensor, &rows, &rows.box, start, e);
    }
    return rc < 0 ? rc : 0;
}

int dcp_titan_follows(const struct dcp *d, const char *name, int n)
{
    static const char *const heads[] = { "output.weight", "lm_head.weight" };
    if (!d->is_titan || d->titan.family < 0)
        return 0;
    for (int i = 0; i < 2; i++)
        if (d->titan.tied && (int)strlen(heads[i]) == n && !memcmp(heads[i], name, (size_t)n))
            return 1;
    return n == 9 && !memcmp(name, "freqs_cis", 9);
}

int dcp_titan_add(struct build *b, struct dcp *d, const struct dcp_item *x, enum ckpt_role role,
                  const struct titan_name *name, struct err *e)
{
    const struct titan *t = &d->titan;
    int known = torch_dtype_known(x->dtype), tensor[3], rc = check_rows(t, d, x, name, e);
    struct chunk k;

    for (int i = 0; i < name->n && rc >= 0; i++) {
        int64_t shape[2] = { heads_of(t, name, i, x->shape[0] / t->head_dim) * t->head_dim, x->shape[1] };
        rc = tensor[i] = build_tensor(b, role, name->to[i], (int)strlen(name->to[i]),
                                      (enum stored_dtype)known, 2, shape, e);
    }
    for (int i = 0; i < x->n && rc >= 0; i++) {
        const struct dcp_part *p = &d->part[x->first + i];
        if (p->size[0] == 0 || p->size[1] == 0)
            continue; /* a rank without rows */
        if ((rc = dcp_chunk(d, x, p, &k, e)) < 0)
            break;
        int64_t h = t->head_dim, end = k.box.start[0] + k.box.extent[0];
        for (int64_t from = k.box.start[0] / h; from * h < end && rc >= 0; from++) {
            struct head to = head_at(t, name, from);
            rc = add_head(b, tensor[to.part], &k, h, from, to.number, name->order[to.part], e);
        }
    }
    return rc < 0 ? rc : 0;
}
