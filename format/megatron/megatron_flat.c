/* megatron_flat.c - reads the optimizer of Megatron's dp_reshardable: one flat buffer for each tensor- and
 * pipeline-parallel rank, in buckets.
 *
 *     optimizer.distributed.dp_group_idx_I.gbuf_idx_0.dtype_(…).bucket_idx_B.{param|exp_avg|exp_avg_sq}
 *
 * Models with experts have two such optimizers: chained_0.optimizer… for the rest, with a group for each rank
 * of tp x pp, and chained_1.optimizer… for the experts, with a group for each rank of etp x ep x pp.
 *
 * Parameters are in reverse order of the model; each starts at a multiple of 64 elements of its bucket.
 * The order is not in the file: it follows from the modules. Both orders that Megatron has are compared
 * with the lengths of the buckets and the starts of the stored chunks. If neither fits, the optimizer
 * state is left out, with a note. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/megatron/megatron.h"

#define FLAT "optimizer.distributed.dp_group_idx_"
#define ALIGN 64
#define BUCKETS_MAX 4096
#define FC1 "mlp.experts.experts.linear_fc1.weight"
#define FC2 "mlp.experts.experts.linear_fc2.weight"
#define STAGE_MOST (1 << 17) /* parameters of a stage */
#define PARAMS_MOST 32       /* parameters of a layer, those of experts apart */

static const char *const kinds[] = { "param", "exp_avg", "exp_avg_sq" };
static const enum ckpt_role roles[] = { ROLE_MASTER, ROLE_EXP_AVG, ROLE_EXP_AVG_SQ };

/* Parameters of a layer in the order in which its modules register them. */
#define REST_OF_LAYER \
    "self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias", \
        "self_attention.linear_q_proj.weight", "self_attention.linear_q_down_proj.weight", \
        "self_attention.linear_q_up_proj.layer_norm_weight", "self_attention.linear_q_up_proj.weight", \
        "self_attention.linear_kv_down_proj.weight", "self_attention.linear_kv_up_proj.layer_norm_weight", \
        "self_attention.linear_kv_up_proj.weight", "self_attention.q_layernorm.weight", \
        "self_attention.k_layernorm.weight", "self_attention.kv_layernorm.weight", \
        "mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc1.layer_norm_bias", "pre_mlp_layernorm.weight", \
        "mlp.linear_fc1.weight", "mlp.linear_fc1.bias", "mlp.linear_fc2.weight", "mlp.linear_fc2.bias", \
        "mlp.router.weight", "mlp.shared_experts.gate_weight", "mlp.shared_experts.linear_fc1.weight", \
        "mlp.shared_experts.linear_fc2.weight", NULL
static const char *const order_local[] = { "input_layernorm.weight",
                                           "self_attention.linear_qkv.layer_norm_weight",
                                           "self_attention.linear_qkv.layer_norm_bias",
                                           "self_attention.linear_proj.weight",
                                           "self_attention.linear_proj.bias",
                                           REST_OF_LAYER };
static const char *const order_te[] = { "input_layernorm.weight",
                                        "self_attention.linear_proj.weight",
                                        "self_attention.linear_proj.bias",
                                        "self_attention.linear_qkv.layer_norm_weight",
                                        "self_attention.linear_qkv.layer_norm_bias",
                                        REST_OF_LAYER };
static const char *const *const orders[] = { order_local, order_te };
#define ORDERS 2 /* without GROUPED */
/* Orders of experts: each with both of its matrices; all of fc1, then all of fc2; GroupedMLP, where all of
 * fc1 are one parameter. */
enum { EXPERT_BY_EXPERT, FC_BY_FC, GROUPED };

/* An optimizer: its prefix "chained_I.", or ""; groups: ranks with buffers of their own. */
struct optimizer {
    const char *prefix;
    int of_experts, groups;
    int64_t tp, ep; /* degrees of its parameters */
};

struct param {
    const struct mg_row *row;
    int layer, n_dims, expert, group; /* group: experts in it, 0: one at most */
    int64_t shape[2], n;
    int bucket;
    int64_t at;
};
struct stage {
    struct param *p;
    int n, capacity;
    int cuts_compressed; /* tp cuts the compressed rows of latent attention */
};

int mg_is_flat(const struct dcp_item *x) { return x->is_tensor && mg_starts(x, FLAT); }

/* ---- the buffers ---- */

struct place {
    int group, gbuf, bucket, kind;
};
/* 1: x is a flat buffer of optimizer o; fills its place. */
static int place_of(const struct optimizer *o, const struct dcp_item *x, struct place *p)
{
    char text[256];
    int skip = (int)strlen(o->prefix), left = x->n_key - skip,
        n = left < (int)sizeof text - 1 ? left : (int)sizeof text - 1;
    if (!dcp_starts(x, o->prefix))
        return 0;
    memcpy(text, x->key + skip, (size_t)n);
    text[n] = 0;
    const char *bucket = strstr(text, ".bucket_idx_"), *kind = strrchr(text, '.');
    p->kind = -1;
    if (sscanf(text, FLAT "%d.gbuf_idx_%d", &p->group, &p->gbuf) != 2 || !bucket ||
        sscanf(bucket, ".bucket_idx_%d.", &p->bucket) != 1)
        return 0;
    for (int k = 0; k < 3; k++)
        if (!strcmp(kind + 1, kinds[k]))
            p->kind = k;
    return p->kind >= 0 && p->group >= 0 && p->bucket >= 0 && p->bucket < BUCKETS_MAX;
}

static const struct dcp_item *bucket_at(const struct dcp *d, const struct optimizer *o, int group, int bucket,
                                        int kind)
{
    for (int i = 0; i < d->n_items; i++) {
        struct place p;
        if (mg_is_flat(&d->item[i]) && place_of(o, &d->item[i], &p) && p.group == group &&
            p.bucket == bucket && p.kind == kind && p.gbuf == 0)
            return &d->item[i];
    }
    return NULL;
}

/* Finds the optimizers: one, or that of the rest and that of experts. Returns how many; 0: a buffer belongs
 * to none, is not fp32, or a rank has several or none. */
static int find_optimizers(const struct mg *m, const struct dcp *d, struct optimizer o[2])
{
    int n = 1;
    o[0] = (struct optimizer){ .prefix = "", .tp = m->s.tp };
    o[1] = (struct optimizer){ .prefix = "chained_1.",
                               .of_experts = 1,
                               .tp = m->s.etp > 0 ? m->s.etp : m->s.tp };
    for (int i = 0; i < d->n_items; i++)
        if (mg_is_flat(&d->item[i]) && dcp_starts(&d->item[i], o[1].prefix)) {
            n = 2;
            o[0].prefix = "chained_0.";
        }

    for (int i = 0; i < d->n_items; i++) {
        const struct dcp_item *x = &d->item[i];
        struct place p;
        if (!mg_is_flat(x))
            continue;
        int k = n == 2 && dcp_starts(x, o[1].prefix);
        if (!place_of(&o[k], x, &p) || p.gbuf != 0 || p.group >= 1 << 16 || x->n_dims != 1 ||
            x->dtype != TORCH_F32)
            return 0;
        o[k].groups = p.group >= o[k].groups ? p.group + 1 : o[k].groups;
    }
    for (int k = 0; k < n; k++)
        for (int g = 0; g < o[k].groups; g++)
            if (!bucket_at(d, &o[k], g, 0, 0))
                return 0;
    o[1].ep = o[1].groups / (o[1].tp * m->s.pp);
    return o[0].groups == o[0].tp * m->s.pp && o[1].ep * o[1].tp * m->s.pp == o[1].groups ? n : 0;
}

/* ---- the parameters of a stage ---- */

/* Adds a parameter of a layer (-1: of none), which the model may not have; expert: the number of one of
 * experts, -1: it is none. */
static int add_one(const struct mg *m, const struct dcp *d, struct stage *s, const char *key, int layer,
                   int expert)
{
    char name[FMT_NAME_MAX];
    int stacked = 0, at_layer, at_expert;

    snprintf(name, sizeof name, layer < 0 ? "%s" : "decoder.layers.%s", key);
    const struct dcp_item *x = dcp_find(d, name);
    if (layer >= 0 && x)
        stacked = 1;
    if (layer >= 0 && !x) {
        snprintf(name, sizeof name, "decoder.layers.%d.%s", layer, key);
        x = dcp_find(d, name);
    }

    if (!x)
        return 0; /* the model does not have it */
    if (s->n >= s->capacity)
        return -1;
    struct param *p = &s->p[s->n];
    stacked += expert >= 0;
    *p = (struct param){ .row = mg_find_expert(name, (int)strlen(name), &at_layer, &at_expert),
                         .layer = layer,
                         .expert = expert,
                         .n_dims = x->n_dims - stacked,
                         .n = 1 };
    if (!p->row || p->n_dims < 1 || p->n_dims > 2 || (expert >= 0 && expert >= x->shape[stacked - 1]))
        return -1;
    for (int i = 0; i < p->n_dims; i++) {
        int cut = s->cuts_compressed && mg_compressed_rows(m, p->row) ? 0 : p->row->tp_dim;
        int64_t size = x->shape[i + stacked], parts = i == cut ? mg_ranks(m, p->row) : 1;
        if (size % parts)
            return -1;
        p->shape[i] = size / parts;
        p->n *= p->shape[i];
    }

    s->n++;
    return 0;
}

static int add_param(const struct mg *m, const struct dcp *d, struct stage *s, const char *key, int layer)
{
    return add_one(m, d, s, key, layer, -1);
}

/* The number of experts of a layer, which are stacked in one tensor; 0: it has none. */
static int64_t count_experts(const struct dcp *d, int layer)
{
    char name[FMT_NAME_MAX];
    const struct dcp_item *x = dcp_find(d, "decoder.layers." FC1);
    if (x)
        return x->n_dims > 1 ? x->shape[1] : 0;
    snprintf(name, sizeof name, "decoder.layers.%d." FC1, layer);
    x = dcp_find(d, name);
    return x && x->n_dims ? x->shape[0] : 0;
}

/* Makes one parameter of n experts out of the first. Returns -1: its size is no number. */
static int group_experts(struct param *p, int n)
{
    int64_t out = p->shape[0], in = p->shape[1];
    int gated = p->row->cut == MG_GATED;
    if (p->n > INT64_MAX / n)
        return -1;
    p->group = n;
    p->shape[0] = gated ? in : n * in;
    p->shape[1] = gated ? n * out : out;
    p->n *= n;
    return 0;
}

/* Lists the experts of a layer that rank r of o->ep has. */
static int list_experts(const struct mg *m, const struct dcp *d, struct stage *s, const struct optimizer *o,
                        int layer, int64_t r, int order)
{
    static const char *const keys[] = { FC1, FC2 };
    int64_t n = count_experts(d, layer), own = n / o->ep;
    int rc = 0;
    if (own * o->ep != n || n > 1 << 16)
        return -1;
    for (int64_t i = 0; i < 2 * own; i++) {
        int64_t e = order == EXPERT_BY_EXPERT ? i / 2 : i % own,
                k = order == EXPERT_BY_EXPERT ? i % 2 : i / own;
        if (order == GROUPED && e)
            continue;
        int before = s->n;
        rc |= add_one(m, d, s, keys[k], layer, (int)(r * own + e));
        if (order == GROUPED && s->n > before)
            rc |= group_experts(&s->p[s->n - 1], (int)own);
    }
    return rc;
}

/* With a tied head the last stage has a copy of the embedding, which is stored once among the weights. */
static int add_tied_copy(const struct mg *m, const struct dcp *d, struct stage *s)
{
    static const char head[] = "output_layer.weight";
    int n = s->n, layer, rc = add_param(m, d, s, "embedding.word_embeddings.weight", -1);
    if (s->n > n)
        s->p[n].row = mg_find(head, (int)strlen(head), &layer);
    return rc;
}

/* Lists the parameters of group `group` of an optimizer, in one of the orders. Returns -1: the model is not
 * cut evenly. */
static int list_group(const struct mg *m, const struct dcp *d, const struct optimizer *o, int group,
                      int order, struct stage *s)
{
    int64_t per = m->s.layers / m->s.pp, rank = group / o->tp, pp = o->of_experts ? rank / o->ep : rank;
    const char *const *names = o->of_experts ? NULL : orders[order % ORDERS];
    int rc = 0;

    s->n = 0;
    s->cuts_compressed = !o->of_experts && order >= ORDERS;
    if (per * m->s.pp != m->s.layers)
        return -1;
    for (int64_t l = pp * per; l < (pp + 1) * per && o->of_experts; l++)
        rc |= list_experts(m, d, s, o, (int)l, rank % o->ep, order);
    if (o->of_experts)
        return rc;
    if (pp == 0)
        rc |= add_param(m, d, s, "embedding.word_embeddings.weight", -1) |
              add_param(m, d, s, "embedding.position_embeddings.weight", -1);
    for (int64_t l = pp * per; l < (pp + 1) * per; l++)
        for (int i = 0; names[i]; i++)
            rc |= add_param(m, d, s, names[i], (int)l);
    if (pp == m->s.pp - 1) {
        rc |= add_param(m, d, s, "decoder.final_layernorm.weight", -1) |
              add_param(m, d, s, "decoder.final_layernorm.bias", -1);
        rc |= dcp_find(d, "output_layer.weight") || m->s.pp == 1
                  ? add_param(m, d, s, "output_layer.weight", -1)
                  : add_tied_copy(m, d, s);
    }
    return rc;
}

static int starts_chunk(const struct dcp *d, const struct dcp_item *x, int64_t at)
{
    int lo = 0, hi = x->n;
    const struct dcp_part *p = d->part + x->first;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (p[mid].start[0] < at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < x->n && p[lo].start[0] == at;
}

/* 1: the bucket ends at element `at`, or after the padding if a shared embedding is its last parameter. */
static int ends_at(const struct dcp_item *x, int64_t at)
{
    return x->shape[0] == at || x->shape[0] == (at + ALIGN - 1) / ALIGN * ALIGN;
}

/* Assigns a place to every parameter. Returns 1: the buffers are filled exactly, and every parameter
 * starts a chunk. */
static int place_params(const struct dcp *d, const struct optimizer *o, int group, struct stage *s)
{
    int bucket = 0;
    int64_t at = 0;
    const struct dcp_item *x = bucket_at(d, o, group, 0, 0);

    for (int i = s->n - 1; i >= 0 && x; i--) {
        struct param *p = &s->p[i];
        int64_t start = (at + ALIGN - 1) / ALIGN * ALIGN;
        if (start + p->n > x->shape[0]) {
            if (!ends_at(x, at) || !(x = bucket_at(d, o, group, ++bucket, 0)) || p->n > x->shape[0])
                return 0;
            start = 0;
        }
        if (!starts_chunk(d, x, start))
            return 0;
        p->bucket = bucket;
        p->at = start;
        at = start + p->n;
    }
    return x && ends_at(x, at) && !bucket_at(d, o, group, bucket + 1, 0);
}

/* ---- adding ---- */

static int read_extents(struct dcp *d, const struct dcp_item *x, struct mg_flat *f, struct mg_extent *out,
                        struct err *e)
{
    int rc = 0;
    struct chunk k;

    *f = (struct mg_flat){ out, 0, STORED_F32 };
    for (int i = 0; i < x->n && rc >= 0; i++) {
        const struct dcp_part *p = &d->part[x->first + i];
        if (p->size[0] == 0)
            continue;
        if ((rc = dcp_chunk(d, x, p, &k, e)) < 0)
            break;
        if (k.dtype != STORED_F32 || k.stride[0] != 1)
            return err_set(e, ERR_FORMAT,
                           "%s: a chunk of a flat buffer is %s, or not stored in order: is the file damaged",
                           d->name, stored_dtype_name(k.dtype));
        out[f->n++] = (struct mg_extent){ k.file, k.offset, p->start[0], p->size[0] };
    }
    return rc < 0 ? rc : 0;
}

/* A bucket of a group of an optimizer. */
struct bucket {
    const struct optimizer *o;
    int group, bucket;
};

static int add_bucket(struct mg *m, struct dcp *d, const struct stage *s, const struct bucket *b, int kind,
                      struct err *e)
{
    const struct dcp_item *x = bucket_at(d, b->o, b->group, b->bucket, kind);
    struct mg_flat f;
    int rc;

    if (!x)
        return err_set(e, ERR_FORMAT, "%s: group %d has no %s of bucket %d: is the save whole", d->name,
                       b->group, kinds[kind], b->bucket);
    struct mg_extent *ext = malloc(sizeof *ext * ((size_t)x->n + 1));
    rc = ext ? read_extents(d, x, &f, ext, e)
             : err_set(e, ERR_MEMORY, "%s: no memory for %d chunks", d->name, x->n);
    for (int i = 0; i < s->n && rc >= 0; i++) {
        const struct param *p = &s->p[i];
        const struct mg_name name = { p->row, p->layer, roles[kind], p->expert, p->group };
        if (p->bucket == b->bucket)
            rc = mg_local(m, &name, b->group % b->o->tp, p->n_dims, p->shape, &f, p->at, e);
    }

    free(ext);
    return rc;
}

static int add_group(struct mg *m, struct dcp *d, struct stage *s, const struct optimizer *o, int group,
                     struct err *e)
{
    const struct dcp_item *embed = dcp_find(d, "embedding.word_embeddings.weight");
    int rc = 0, last = 0, with_masters = !embed || embed->dtype != TORCH_F32;
    for (int i = 0; i < s->n; i++)
        last = s->p[i].bucket > last ? s->p[i].bucket : last;
    for (int b = 0; b <= last; b++)
        for (int k = with_masters ? 0 : 1; k < 3 && rc >= 0; k++)
            rc = add_bucket(m, d, s, &(struct bucket){ o, group, b }, k, e);
    return rc;
}

static int fits_order(const struct mg *m, const struct dcp *d, const struct optimizer *o, int order,
                      struct stage *s)
{
    int fits = 1;
    for (int g = 0; g < o->groups && fits; g++)
        fits = list_group(m, d, o, g, order, s) == 0 && place_params(d, o, g, s);
    return fits;
}

/* The order that fits all groups of an optimizer; -1: none, or GroupedMLP's and another. Latent attention
 * may have its compressed rows cut: ORDERS and more. */
static int find_order(const struct mg *m, const struct dcp *d, const struct optimizer *o, struct stage *s)
{
    int found = -1, n = o->of_experts ? m->s.grouped == 1 ? 0 : ORDERS : m->s.kv_rank ? 2 * ORDERS : ORDERS;
    for (int order = 0; order < n && found < 0; order++)
        if (fits_order(m, d, o, order, s))
            found = order;
    if (!o->of_experts || !m->s.grouped || !fits_order(m, d, o, GROUPED, s))
        return found;
    return found < 0 ? GROUPED : -1;
}

int mg_flat_open(struct mg *m, struct dcp *d, struct err *e)
{
    struct optimizer o[2];
    struct stage s = { 0 };
    int n = 0, order[2] = { 0 }, rc = 0;

    if (m->s.tp >= 1 && m->s.pp >= 1 && m->s.tp <= 4096 && m->s.pp <= 4096 && m->s.etp <= 4096)
        n = find_optimizers(m, d, o);
    if (!n)
        return mg_note(m->b->c,
                       "optimizer state left out: buffers of dp_reshardable in more than one model chunk or "
                       "dtype cannot be taken apart",
                       e);
    int64_t experts = n == 2 ? count_experts(d, (int)m->s.layers - 1) : 0,
            most = m->s.layers * (PARAMS_MOST + (experts < 1 << 16 ? 2 * experts : 0)) + 5;
    s.capacity = most < STAGE_MOST ? (int)most : STAGE_MOST;
    s.p = calloc((size_t)s.capacity, sizeof *s.p);
    if (!s.p)
        return err_set(e, ERR_MEMORY, "%s: no memory for its parameters", d->name);
    for (int k = 0; k < n && rc >= 0; k++) {
        order[k] = find_order(m, d, &o[k], &s);
        if (order[k] < 0)
            rc = mg_note(m->b->c,
                         "optimizer state left out: it is dp_reshardable, a flat buffer in the order of the "
                         "model's parameters, and no known order fits it (save "
                         "it with --dist-ckpt-optim-fully-reshardable)",
                         e);
    }

    int fits = order[0] >= 0 && order[1] >= 0;
    for (int k = 0; k < n && fits; k++)
        for (int g = 0; g < o[k].groups && rc >= 0; g++) {
            list_group(m, d, &o[k], g, order[k], &s);
            place_params(d, &o[k], g, &s);
            rc = add_group(m, d, &s, &o[k], g, e);
        }

    free(s.p);
    return rc < 0 ? rc : fits;
}
