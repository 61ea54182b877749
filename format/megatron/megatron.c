/* megatron.c - Megatron folders: finds the iteration and the kind; reads the torch_dist kind, a PyTorch DCP
 * with Megatron's names and layouts.
 *
 *     latest_checkpointed_iteration.txt      "10": iter_0000010/; "release": release/
 *     iter_…/metadata.json, common.pt, .metadata, __R_I.distcp    torch_dist: layers stacked in the first
 *                                                                 dim, fc1 is globally [gate; up]
 *     iter_…/mp_rank_TT[_PPP]/model_optim_rng.pt                  legacy (megatron_legacy.c)
 * Optimizer: optimizer.state.{param|fp32_param|exp_avg|exp_avg_sq}.KEY has the layout of the weight; flat
 * buffers: megatron_flat.c. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/megatron/megatron.h"
#include "format/torch/run_state.h"

#define TRACKER "latest_checkpointed_iteration.txt"
#define COMMON_OBJECT "common_state/shard_0_1"

static int has_ranks(const struct ckpt *c, const char *sub)
{
    struct names l;
    struct err e;
    int yes = 0;
    if (names_read(&l, c, sub, &e) < 0)
        return 0;
    for (int i = 0; i < l.n; i++)
        yes |= !strncmp(l.name[i], "mp_rank_", 8) &&
               !strchr(l.name[i], '.'); /* DeepSpeed: mp_rank_00_model_states.pt */
    names_free(&l);
    return yes;
}

static int is_torch_dist(const struct ckpt *c, const char *sub)
{
    char *path = build_text("%smetadata.json", sub), *common = build_text("%scommon.pt", sub);
    int yes = path && common && (build_exists(c, path) || build_exists(c, common));
    free(path);
    free(common);
    return yes;
}

int megatron_probe(const struct ckpt *c, int is_folder)
{
    return is_folder && (build_exists(c, TRACKER) || is_torch_dist(c, "") || has_ranks(c, ""));
}

/* sub: "" when c is the folder of an iteration, else "iter_0000010/"; malloc'd. */
static int find_iteration(const struct ckpt *c, char **sub, struct err *e)
{
    char *text = NULL;
    int rc = 0;

    if (!build_exists(c, TRACKER)) {
        *sub = strdup("");
        return *sub ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    }

    TRY(build_line(c, TRACKER, &text, e));
    size_t digits = strspn(text, "0123456789");
    if (!strcmp(text, "release"))
        *sub = strdup("release/");
    else if (digits && digits < 16 && !text[digits])
        *sub = build_text("iter_%07lld/", strtoll(text, NULL, 10));
    else
        rc = err_set(e, ERR_FORMAT,
                     "%s/" TRACKER
                     ": says \"%.60s\", an iteration or \"release\" is expected: is the file damaged",
                     c->path, text);
    if (rc >= 0 && !*sub)
        rc = err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    if (rc >= 0) {
        char *path = io_join(c->dir, *sub);
        if (!path || !io_is_dir(path))
            rc = err_set(e, ERR_FORMAT,
                         "%s: " TRACKER " names %s, which is not there: give the folder of a whole save",
                         c->path, *sub);
        free(path);
    }
out:
    free(text);
    return rc < 0 ? rc : 0;
}

/* ---- the run's settings: common.pt, or an object of the metadata in newer versions ---- */

static int open_common(struct dcp *d, const char *sub, struct torch_file *t, struct err *e)
{
    struct ckpt *c = d->c;
    char *name = build_text("%scommon.pt", sub);
    const struct dcp_item *x = dcp_find(d, COMMON_OBJECT);
    int rc = 0;
    if (name && build_exists(c, name)) {
        int file = rc = build_file(c, name, e);
        if (rc >= 0)
            rc = torch_open(t, c, file, 0, c->file[file].bytes, e);
    } else if (x) {
        rc = dcp_object(d, x, t, e);
    }
    free(name);
    return rc < 0 ? rc : 0;
}

const struct pk *mg_optimizer(const struct pk *optimizer, uint32_t i)
{
    const struct pk *first = optimizer && optimizer->kind == PK_DICT ? pk_get_int(optimizer, 0) : NULL;
    if (first)
        return pk_get_int(optimizer, i);
    if (optimizer && optimizer->kind == PK_LIST)
        return pk_at(optimizer, i);
    return i == 0 && optimizer && optimizer->kind == PK_DICT ? optimizer : NULL;
}

static int step_of(struct build *b, struct torch_file *t, const struct pk *optimizer, struct err *e)
{
    const struct pk *inner = pk_get(optimizer, "optimizer"), *state = pk_get(optimizer, "state"), *group;
    double step;
    int rc;
    if ((rc = torch_number(t, pk_get(state, "common_step"), "common_step", &step, e)) > 0)
        rc = build_step(b, step, "common_step", e);
    for (uint32_t i = 0; state && state->kind == PK_DICT && i < state->n && rc >= 0; i++)
        if ((rc = torch_number(t, pk_get(state->item[2 * i + 1], "step"), "step", &step, e)) > 0)
            rc = build_step(b, step, "the optimizer's state", e);
    for (uint32_t i = 0; (group = pk_at(pk_get(optimizer, "param_groups"), i)) && rc >= 0; i++)
        if ((rc = torch_number(t, pk_get(group, "step"), "step", &step, e)) > 0)
            rc = build_step(b, step, "param_groups", e);
    return rc >= 0 && inner && inner != optimizer && inner->kind == PK_DICT && !pk_get(inner, "optimizer")
               ? step_of(b, t, inner, e)
           : rc < 0 ? rc
                    : 0;
}

int mg_step(struct build *b, struct torch_file *t, const struct pk *optimizer, struct err *e)
{
    const struct pk *one;
    int rc = 0;
    for (uint32_t i = 0; (one = mg_optimizer(optimizer, i)) && rc >= 0; i++)
        rc = step_of(b, t, one, e);
    return rc;
}

void mg_run(struct build *b, struct torch_file *t, const struct pk *optimizer)
{
    const struct pk *one, *group;
    int64_t iteration = 0;
    pk_int(pk_get(t->root, "iteration"), &iteration);
    for (uint32_t k = 0; (one = mg_optimizer(optimizer, k)); k++) {
        const struct pk *groups = pk_get(pk_get(one, "optimizer"), "param_groups");
        for (uint32_t i = 0; (group = pk_at(groups ? groups : pk_get(one, "param_groups"), i)); i++)
            run_group(&b->run, t, group);
    }
    run_megatron(&b->run, t, pk_get(t->root, "args"), pk_get(t->root, "opt_param_scheduler"), iteration);
}

/* ---- torch_dist ---- */

static const struct {
    const char *prefix;
    enum ckpt_role role;
} state_prefixes[] = {
    { "optimizer.state.exp_avg.", ROLE_EXP_AVG },
    { "optimizer.state.exp_avg_sq.", ROLE_EXP_AVG_SQ },
    { "optimizer.state.param.", ROLE_MASTER },
    { "optimizer.state.fp32_param.", ROLE_MASTER },
};

/* Which tensors an item holds; -1: all of them, in its first dims. */
struct where {
    const struct mg_row *row;
    int layer, expert, half; /* half: 0 the gate alone, 1 the up part alone, -1 both */
    enum ckpt_role role;
};

/* The chunk must be stored row by row. */
static int check_dense(const struct mg *m, const struct dcp_item *x, const struct chunk *k, struct err *e)
{
    int64_t dense = 1;
    for (int d = k->box.n_dims - 1; d >= 0; d--) {
        if (k->box.extent[d] > 1 && k->stride[d] != dense)
            return err_set(e, ERR_FORMAT, "%s: a chunk of %.*s is not stored row by row: save it contiguous",
                           m->b->c->path, x->n_key, x->key);
        dense *= k->box.extent[d];
    }
    return 0;
}

/* Adds one chunk, layer by layer and expert by expert where these are stacked in its first dims. */
static int add_chunk(struct mg *m, const struct where *w, const struct dcp_item *x, const struct chunk *k,
                     struct err *e)
{
    int by_layer = w->row->in_layer && w->layer < 0, by_expert = w->row->of_experts && w->expert < 0,
        lead = by_layer + by_expert, rc = check_dense(m, x, k, e);
    int64_t layer = by_layer ? k->box.start[0] : w->layer, n_layers = by_layer ? k->box.extent[0] : 1,
            expert = by_expert ? k->box.start[by_layer] : w->expert,
            n_experts = by_expert ? k->box.extent[by_layer] : 1;
    int64_t shape[BOX_DIMS] = { 0 };
    struct box box = { .n_dims = k->box.n_dims - lead };
    struct mg_extent whole = { k->file, k->offset, 0, box_count(&k->box) };
    struct mg_flat f = { &whole, 1, k->dtype };

    if (rc >= 0 && (box.n_dims < 1 || box.n_dims > 2 || (by_layer && m->s.layers != x->shape[0]) ||
                    layer + n_layers > m->s.layers))
        return err_set(e, ERR_CONFIG,
                       "%s: %.*s has %d dims and goes to layer %lld, the model has %lld: is it the config of "
                       "another model",
                       m->b->c->path, x->n_key, x->key, x->n_dims, (long long)(layer + n_layers - 1),
                       (long long)m->s.layers);
    for (int d = 0; d < box.n_dims && rc >= 0; d++) {
        box.start[d] = k->box.start[d + lead];
        box.extent[d] = k->box.extent[d + lead];
        shape[d] = x->shape[d + lead];
    }
    if (w->half >= 0) {
        box.start[0] += w->half * shape[0];
        shape[0] *= 2;
    }

    for (int64_t i = 0; i < n_layers * n_experts && rc >= 0; i++) {
        const struct mg_name name = { w->row, (int)(layer + i / n_experts), w->role,
                                      (int)(expert + i % n_experts) };
        rc = mg_block(m, &name, &box, shape, &f, i * box_count(&box), e);
    }
    return rc;
}

static int add_item(struct mg *m, struct dcp *d, const struct dcp_item *x, const struct where *w,
                    struct err *e)
{
    struct chunk k;
    int rc = 0;
    for (int i = 0; i < x->n && rc >= 0; i++) {
        const struct dcp_part *p = &d->part[x->first + i];
        int empty = 0;
        for (int j = 0; j < x->n_dims; j++)
            empty |= p->size[j] == 0;
        if (!empty && (rc = dcp_chunk(d, x, p, &k, e)) >= 0)
            rc = add_chunk(m, w, x, &k, e);
    }
    return rc;
}

/* The places of first chunks that were added. One key may be another name of the same bytes: norms have two
 * names in Megatron, and fp32 weights are their own masters. */
struct places {
    struct place {
        int64_t at;
        int file;
    } * p;
    int n;
};

static int compare_places(const void *pa, const void *pb)
{
    const struct place *a = pa, *b = pb;
    return a->file != b->file ? (a->file > b->file) - (a->file < b->file) : (a->at > b->at) - (a->at < b->at);
}

static struct place place_of(const struct dcp *d, const struct dcp_item *x)
{
    const struct dcp_part *p = &d->part[x->first];
    return (struct place){ p->at, p->file };
}

/* same[i] 1: item i is at the place of an earlier tensor, or of a weight. */
static int find_same(const struct dcp *d, char *same, struct err *e)
{
    struct places l = { calloc((size_t)d->n_items + 1, sizeof *l.p), 0 };
    char *used = calloc((size_t)d->n_items + 1, 1);
    if (!l.p || !used) {
        free(l.p);
        free(used);
        return err_set(e, ERR_MEMORY, "%s: no memory for %d tensors", d->name, d->n_items);
    }

    for (int i = 0; i < d->n_items; i++)
        if (d->item[i].is_tensor && d->item[i].n)
            l.p[l.n++] = place_of(d, &d->item[i]);
    qsort(l.p, (size_t)l.n, sizeof *l.p, compare_places);

    for (int i = 0; i < 2 * d->n_items; i++) { /* weights first: they may be masters too */
        const struct dcp_item *x = &d->item[i % d->n_items];
        if (!x->is_tensor || !x->n || dcp_starts(x, "optimizer.") != (i >= d->n_items))
            continue;
        struct place key = place_of(d, x), *at = bsearch(&key, l.p, (size_t)l.n, sizeof key, compare_places);
        while (at > l.p && !compare_places(at - 1, &key))
            at--;
        same[i % d->n_items] = used[at - l.p];
        used[at - l.p] = 1;
    }
    free(l.p);
    free(used);
    return 0;
}

/* 1: the weights are fp32, so that masters would be copies of them. */
static int weights_are_fp32(const struct dcp *d)
{
    const struct dcp_item *x = dcp_find(d, "embedding.word_embeddings.weight");
    return x && x->dtype == TORCH_F32;
}

int mg_starts(const struct dcp_item *x, const char *prefix)
{
    static const char word[] = "chained_";
    int n = (int)strlen(prefix), k = (int)sizeof word - 1, digits = 0, first = 0;
    if (dcp_starts(x, word)) {
        while (k + digits < x->n_key && isdigit((unsigned char)x->key[k + digits]))
            digits++;
        first = digits && k + digits < x->n_key && x->key[k + digits] == '.' ? k + digits + 1 : 0;
    }
    return x->n_key >= first + n && !memcmp(x->key + first, prefix, (size_t)n) ? first + n : 0;
}

/* The role of an item, and the length of the prefix that says so. */
static enum ckpt_role role_of(const struct dcp_item *x, int *skip)
{
    for (size_t k = 0; k < sizeof state_prefixes / sizeof *state_prefixes; k++)
        if ((*skip = mg_starts(x, state_prefixes[k].prefix)))
            return state_prefixes[k].role;
    return ROLE_WEIGHT;
}

/* With singleton_local_shards gate and up are tensors of their own, KEY_w and KEY_v. Returns the length of
 * KEY. */
static int split_half(const char *key, int n, int *half)
{
    static const char *const ends[] = { ".weight_w", ".weight_v" };
    *half = -1;
    for (int i = 0; i < 2 && n > 9; i++)
        if (!memcmp(key + n - 9, ends[i], 9))
            *half = i;
    return *half < 0 ? n : n - 2;
}

static int add_items(struct mg *m, struct dcp *d, int *has_flat, struct err *e)
{
    char *same = calloc((size_t)d->n_items + 1, 1);
    int rc = same ? find_same(d, same, e)
                  : err_set(e, ERR_MEMORY, "%s: no memory for %d tensors", d->name, d->n_items),
        fp32 = weights_are_fp32(d);
    for (int i = 0; i < d->n_items && rc >= 0; i++) {
        const struct dcp_item *x = &d->item[i];
        int skip;
        struct where w = { .role = role_of(x, &skip) };
        *has_flat |= mg_is_flat(x);
        if (!x->is_tensor || mg_is_flat(x) || same[i])
            continue;
        int n = split_half(x->key + skip, x->n_key - skip, &w.half);
        w.row = mg_find_expert(x->key + skip, n, &w.layer, &w.expert);
        if (!w.row || (w.half >= 0 && w.row->cut != MG_GATED))
            rc = err_set(e, ERR_FORMAT,
                         "%s: %.*s is not a tensor of a model known here (Llama-like, GPT-2, experts, latent "
                         "attention): only those can be named yet",
                         d->name, x->n_key < 200 ? x->n_key : 200, x->key);
        else if (w.role != ROLE_MASTER || !fp32)
            rc = add_item(m, d, x, &w, e);
    }
    free(same);
    return rc < 0 ? rc : 0;
}

int mg_key_has(const struct dcp_item *x, const char *part)
{
    int n = (int)strlen(part);
    for (int i = 0; i + n <= x->n_key; i++)
        if (!memcmp(x->key + i, part, (size_t)n))
            return 1;
    return 0;
}

/* Finds the step in the optimizer's own objects (dp_reshardable), else takes the iteration. */
static int find_step(struct mg *m, struct dcp *d, const struct pk *common, struct err *e)
{
    int64_t iteration;
    int rc = 0;
    for (int i = 0; i < d->n_items && rc >= 0 && !m->b->has_step; i++) {
        struct torch_file t = { 0 };
        if (d->item[i].is_tensor || !mg_starts(&d->item[i], "optimizer.distributed.") ||
            !mg_key_has(&d->item[i], ".optimizer/shard_"))
            continue;
        if ((rc = dcp_object(d, &d->item[i], &t, e)) >= 0)
            rc = mg_step(m->b, &t, t.root, e);
        torch_close(&t);
    }
    if (rc >= 0 && !m->b->has_step && pk_int(pk_get(common, "iteration"), &iteration))
        rc = build_step(m->b, (double)iteration, "iteration", e);
    return rc < 0 ? rc : 0;
}

static int check_backend(const struct ckpt *c, const char *sub, struct err *e)
{
    char *name = build_text("%smetadata.json", sub), *path = name ? io_join(c->dir, name) : NULL;
    const char *backend = "";
    json_t *o = NULL;
    int rc = 0;

    if (!path)
        rc = err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    else if (!build_exists(c, name))
        rc = err_set(e, ERR_FORMAT, "%s is missing: the save was not finished: take an older checkpoint",
                     path);
    else if (!(o = jx_load(path, (size_t)1 << 20, e)))
        rc = -e->code;
    else if ((rc = jx_text(o, path, "sharded_backend", &backend, e)) >= 0 && strcmp(backend, "torch_dist"))
        rc = err_set(
            e, ERR_FORMAT,
            "%s: sharded_backend is \"%.40s\", this program reads torch_dist: convert it with Megatron", path,
            backend);
    json_decref(o);
    free(path);
    free(name);
    return rc < 0 ? rc : 0;
}

static int open_torch_dist(struct mg *m, const char *sub, struct err *e)
{
    struct ckpt *c = m->b->c;
    struct dcp d = { 0 };
    struct torch_file common = { 0 };
    const struct pk *state;
    int has_flat = 0, rc = 0;

    TRY(check_backend(c, sub, e));
    TRY(dcp_open(&d, c, sub, e));
    TRY(open_common(&d, sub, &common, e));
    TRY(mg_shape_read(m, pk_get(common.root, "args"), c->path, e));
    TRY(add_items(m, &d, &has_flat, e));
    TRY(mg_step(m->b, &common, pk_get(common.root, "optimizer"), e));
    TRY(find_step(m, &d, common.root, e));
    if (has_flat)
        TRY(mg_flat_open(m, &d, e));
    state = pk_get(common.root, RUN_STATE_KEY);
    if (common.root && !state)
        mg_run(m->b, &common, pk_get(common.root, "optimizer"));
    TRY(build_finish(m->b, e));
    TRY(run_state_read(c, state, e));
out:
    torch_close(&common);
    dcp_close(&d);
    return rc < 0 ? rc : 0;
}

int megatron_open(struct ckpt *c, int is_folder, struct err *e)
{
    struct build b = { .c = c };
    struct mg m = { .b = &b };
    char *sub = NULL;
    int rc = 0;
    (void)is_folder;

    TRY(build_config(c, e));
    TRY(find_iteration(c, &sub, e));
    if (has_ranks(c, sub)) {
        c->driver = "megatron-legacy";
        TRY(mg_legacy_open(&m, sub, e));
        TRY(build_finish(&b, e));
    } else {
        c->driver = "megatron-dist";
        TRY(open_torch_dist(&m, sub, e));
    }

    c->layout.tp = m.s.tp > 0 && m.s.tp < 1 << 16 ? (int)m.s.tp : 1;
    c->layout.pp = m.s.pp > 0 && m.s.pp < 1 << 16 ? (int)m.s.pp : 1;
    TRY(build_writer(c, "Megatron", NULL, 0, e));
out:
    free(sub);
    build_free(&b);
    return rc < 0 ? rc : 0;
}
