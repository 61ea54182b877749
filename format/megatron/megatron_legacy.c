/* megatron_legacy.c - reads Megatron's first format: one folder with model_optim_rng.pt for each tensor- and
 * pipeline-parallel rank.
 *
 * Tensors are local: the rank's rows or columns. Layers are numbered from 0 in every model chunk ("model",
 * or "model0", "model1", … of virtual stages), experts in every expert-parallel rank: its expert i is number
 * r · n + i of all. What belongs to no expert is the same on all of these ranks.
 *
 * Experts may be cut over fewer tensor-parallel ranks (etp) than the rest (tp). Rank r of the first etp · ep
 * of a stage writes: its folder has the numbers r % tp, stage, r / etp, and its experts are part r % etp.
 *
 * The optimizer is a state_dict by number (matrices first, then vectors, in model order;
 * fp32_from_fp16_params are the masters). The distributed optimizer is distrib_optim.pt: one flat buffer,
 * parameters in reverse order, each at a multiple of 64 elements. With experts there are two optimizers, the
 * second for the experts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/megatron/megatron.h"

#define MODEL_FILE "model_optim_rng.pt"
#define DISTOPT_FILE "distrib_optim.pt"
#define ROUTER_BIAS "mlp.router.expert_bias" /* in the model, but no parameter */
#define ALIGN 64
#define CHUNKS_MAX 64
#define RANKS_MAX 4096

/* A parameter of a rank, in model order. */
struct param {
    const struct mg_row *row;
    int layer, n_dims, chunk, expert; /* expert: its number among all, or the first one's; -1: none */
    int group;                        /* experts in it (GroupedMLP), 0: one at most */
    int64_t shape[2], n;
};
struct rank {
    struct mg *m;
    int tp, pp, ep;
    int etp, copy; /* etp: its part of its experts; copy: what belongs to no expert is in another file, too */
    struct torch_file t;
    struct param *p;
    int n;
};
struct legacy {
    struct mg *m;
    const char *sub;
    int tp, pp, ep, n_chunks; /* degrees by the folders; chunks: virtual stages */
    int etp;                  /* ranks that experts are cut over: at most tp */
    int has_pp, has_ep;       /* numbers in the folders' names */
    int64_t n_experts;        /* 0: none */
    int *layers;              /* [pp][chunk]: layers in it */
    int n_read, n_distopt;    /* ranks read so far, and those with a distributed optimizer */
    int64_t iteration;
};

/* ---- folders ---- */

/* Reads the numbers in a folder's name. Returns how many, 0: it is not the folder of a rank. */
static int parse_folder(const char *name, int v[3])
{
    const char *at = name + strlen("mp_rank");
    int n = 0;
    v[1] = v[2] = 0;
    while (n < 3 && *at == '_' && at[1] >= '0' && at[1] <= '9') {
        char *end;
        long x = strtol(at + 1, &end, 10);
        v[n++] = x < RANKS_MAX ? (int)x : RANKS_MAX;
        at = end;
    }
    return *at || v[0] >= RANKS_MAX || v[1] >= RANKS_MAX || v[2] >= RANKS_MAX ? 0 : n;
}

/* "iter_0000010/mp_rank_00_001_002/" of tensor-, pipeline- and expert-parallel rank; malloc'd. */
static char *folder_of(const struct legacy *g, const int at[3])
{
    char pp[16] = "", ep[16] = "";
    if (g->has_pp)
        snprintf(pp, sizeof pp, "_%03d", at[1]);
    if (g->has_ep)
        snprintf(ep, sizeof ep, "_%03d", at[2]);
    return build_text("%smp_rank_%02d%s%s/", g->sub, at[0], pp, ep);
}

static int open_file(const struct legacy *g, const int at[3], const char *name, struct torch_file *t,
                     struct err *e)
{
    struct ckpt *c = g->m->b->c;
    char *folder = folder_of(g, at), *full = folder ? build_text("%s%s", folder, name) : NULL;
    int file = full ? build_file(c, full, e) : err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    free(folder);
    free(full);
    return file < 0 ? file : torch_open(t, c, file, 0, c->file[file].bytes, e);
}

/* What the options of the run say about its degrees. */
struct saved {
    int64_t tp, pp, ep, etp, experts;
};

static int read_saved(struct legacy *g, struct saved *s, struct err *e)
{
    static const int first[3];
    struct torch_file t = { 0 };
    int rc = open_file(g, first, MODEL_FILE, &t, e);
    *s = (struct saved){ .pp = 1, .ep = 1 };
    if (rc >= 0) {
        const struct pk *args = pk_get(t.root, "args");
        pk_int(pk_attr(args, "tensor_model_parallel_size"), &s->tp);
        pk_int(pk_attr(args, "pipeline_model_parallel_size"), &s->pp);
        pk_int(pk_attr(args, "expert_model_parallel_size"), &s->ep);
        pk_int(pk_attr(args, "expert_tensor_parallel_size"), &s->etp);
        pk_int(pk_attr(args, "num_experts"), &s->experts);
    }
    torch_close(&t);
    return rc < 0 ? rc : 0;
}

/* Sets g->etp. Refuses degrees at which Megatron does not save every rank. */
static int set_etp(struct legacy *g, const struct saved *s, struct err *e)
{
    const char *path = g->m->b->c->path;
    g->etp = s->experts && s->tp == g->tp && s->etp > 0 && s->etp < RANKS_MAX ? (int)s->etp : g->tp;
    if (g->etp > g->tp || g->tp % g->etp)
        return err_set(
            e, ERR_FORMAT,
            "%s: experts were cut over %d tensor-parallel ranks, the rest over %d: Megatron writes "
            "several ranks to one folder: save it as torch_dist",
            path, g->etp, g->tp);
    if ((int64_t)g->etp * g->ep < g->tp)
        return err_set(e, ERR_FORMAT,
                       "%s: experts were cut over %d x %d ranks, the rest over %d: Megatron saves only the "
                       "first %d of them to folders: save it as torch_dist",
                       path, g->etp, g->ep, g->tp, g->etp * g->ep);
    return 0;
}

static int find_degrees(struct legacy *g, struct err *e)
{
    struct names l;
    struct saved s;
    const char *path = g->m->b->c->path;
    int v[3], most[3] = { 0 }, n = 0, form = 0, rc = names_read(&l, g->m->b->c, g->sub, e);

    if (rc < 0)
        return rc;
    for (int i = 0; i < l.n && rc >= 0; i++) {
        if (strncmp(l.name[i], "mp_rank_", 8))
            continue;
        int k = parse_folder(l.name[i], v);
        if (!k || (form && k != form))
            rc = err_set(e, ERR_FORMAT, "%s: %s is not the folder of a rank: what is it", path, l.name[i]);
        form = k;
        for (int d = 0; d < 3; d++)
            most[d] = rc >= 0 && v[d] >= most[d] ? v[d] + 1 : most[d];
        n++;
    }
    names_free(&l);
    if (rc < 0)
        return rc;

    g->has_pp = form >= 2;
    g->has_ep = form == 3;
    if ((rc = read_saved(g, &s, e)) < 0)
        return rc;
    if (form == 2 && s.pp == 1 && s.ep > 1) { /* the second number is the expert-parallel rank */
        g->has_pp = 0;
        g->has_ep = 1;
    }
    g->tp = most[0];
    g->pp = g->has_pp ? most[1] : 1;
    g->ep = g->has_pp ? most[2] : most[1];
    if ((rc = set_etp(g, &s, e)) < 0)
        return rc;
    if (n == g->etp * g->pp * g->ep)
        return 0;
    return err_set(e, ERR_FORMAT,
                   "%s: has %d folders of ranks, the highest numbers say %d x %d x %d: is one missing", path,
                   n, g->etp, g->pp, g->ep);
}

/* ---- the model file ---- */

/* Model chunk v: "model" if there is one chunk, else "model0", "model1", … NULL: none. */
static const struct pk *chunk_at(const struct torch_file *t, int v)
{
    char key[16];
    const struct pk *only = pk_get(t->root, "model");
    snprintf(key, sizeof key, "model%d", v);
    return only ? (v == 0 ? only : NULL) : pk_get(t->root, key);
}

static int check_head(struct legacy *g, const struct torch_file *t, int first, struct err *e)
{
    const char *path = t->c->file[t->file].path;
    const struct pk *args = pk_get(t->root, "args"), *version = pk_get(t->root, "checkpoint_version");
    int64_t tp = g->tp, pp = g->pp, ep = g->ep, iteration = 0;
    double v = version && version->kind == PK_FLOAT ? version->f
               : version && version->kind == PK_INT ? (double)version->i
                                                    : 0;

    pk_int(pk_attr(args, "tensor_model_parallel_size"), &tp);
    pk_int(pk_attr(args, "pipeline_model_parallel_size"), &pp);
    pk_int(pk_attr(args, "expert_model_parallel_size"), &ep);
    pk_int(pk_get(t->root, "iteration"), &iteration);
    if (tp != g->tp || pp != g->pp)
        return err_set(e, ERR_FORMAT,
                       "%s: was saved with tensor parallel %lld and pipeline %lld, the folders say %d and "
                       "%d: is a folder missing, or of another run",
                       path, (long long)tp, (long long)pp, g->tp, g->pp);
    if (ep != g->ep)
        return err_set(
            e, ERR_FORMAT,
            "%s: was saved with expert parallel %lld, the folders say %d: is a folder missing, or of "
            "another run",
            path, (long long)ep, g->ep);
    if (v < 2)
        return err_set(e, ERR_FORMAT,
                       "%s: checkpoint_version %g keeps queries, keys and values in another order: save it "
                       "again with Megatron 2.0 or newer",
                       path, v);
    if (!first && iteration != g->iteration)
        return err_set(e, ERR_FORMAT,
                       "%s: is of iteration %lld, rank 0 of %lld: are files of two saves mixed", path,
                       (long long)iteration, (long long)g->iteration);
    g->iteration = iteration;
    return chunk_at(t, 0) ? 0
                          : err_set(e, ERR_FORMAT, "%s: has no model: is it a checkpoint of Megatron", path);
}

static int count_layers(const struct pk *model)
{
    int n = 0, layer, expert;
    for (uint32_t i = 0; model && model->kind == PK_DICT && i < model->n; i++) {
        const struct pk *key = model->item[2 * i];
        if (key->kind == PK_TEXT && mg_find_expert(key->text, (int)key->n, &layer, &expert) && layer >= n)
            n = layer + 1;
    }
    return n;
}

/* Counts the layers of every stage and chunk, in the files of tensor-parallel rank 0. */
static int count_stages(struct legacy *g, struct err *e)
{
    int rc = 0, total = 0;
    g->layers = calloc((size_t)g->pp * CHUNKS_MAX, sizeof *g->layers);
    if (!g->layers)
        return err_set(e, ERR_MEMORY, "%s: no memory for %d stages", g->m->b->c->path, g->pp);
    for (int p = 0; p < g->pp && rc >= 0; p++) {
        struct torch_file t = { 0 };
        if ((rc = open_file(g, (int[3]){ 0, p, 0 }, MODEL_FILE, &t, e)) < 0 ||
            (rc = check_head(g, &t, p == 0, e)) < 0) {
            torch_close(&t);
            return rc;
        }
        if (p == 0)
            rc = mg_shape_read(g->m, pk_get(t.root, "args"), t.c->file[t.file].path, e);
        if (p == 0)
            pk_int(pk_attr(pk_get(t.root, "args"), "num_experts"), &g->n_experts);
        int n = 0;
        while (n < CHUNKS_MAX && chunk_at(&t, n))
            n++;
        if (rc >= 0 && p && n != g->n_chunks)
            rc = err_set(e, ERR_FORMAT,
                         "%s: has %d model chunks, the first stage %d: is a file of another run",
                         t.c->file[t.file].path, n, g->n_chunks);
        g->n_chunks = n;
        for (int v = 0; v < n; v++)
            total += g->layers[p * CHUNKS_MAX + v] = count_layers(chunk_at(&t, v));
        torch_close(&t);
    }

    if (rc >= 0 && total != g->m->s.layers)
        rc = err_set(e, ERR_FORMAT, "%s: its stages have %d layers, the model %lld: is a stage missing",
                     g->m->b->c->path, total, (long long)g->m->s.layers);
    return rc < 0 ? rc : 0;
}

/* Layers are in the order: chunk 0 of every stage, then chunk 1 of every stage, … */
static int first_layer(const struct legacy *g, int pp, int chunk)
{
    int n = 0;
    for (int v = 0; v <= chunk; v++)
        for (int p = 0; p < (v < chunk ? g->pp : pp); p++)
            n += g->layers[p * CHUNKS_MAX + v];
    return n;
}

/* ---- tensors ---- */

/* Its tensor-parallel rank for a parameter. */
static int rank_for(const struct rank *r, const struct param *p) { return p->expert < 0 ? r->tp : r->etp; }

static int add_tensor(struct rank *r, const struct param *p, enum ckpt_role role, struct torch_file *t,
                      const struct pk *value, struct err *e)
{
    struct torch_tensor x;
    int rc = torch_tensor(t, value, p->row->key, &x, e);

    if (rc < 0)
        return rc;
    if (x.n_dims != p->n_dims || x.n != p->n ||
        memcmp(x.shape, p->shape, sizeof *p->shape * (size_t)p->n_dims) || !x.contiguous ||
        torch_dtype_known(x.dtype) < 0)
        return err_set(e, ERR_FORMAT,
                       "%s: the %s of layer %d is %s with %lld elements, not contiguous or of another shape "
                       "than its weight",
                       t->c->file[t->file].path, p->row->key, p->layer, torch_dtype_name(x.dtype),
                       (long long)x.n);
    struct mg_extent whole = { t->file, x.offset, 0, x.n };
    struct mg_flat f = { &whole, 1, (enum stored_dtype)torch_dtype_known(x.dtype) };
    const struct mg_name name = { p->row, p->layer, role, p->expert, p->group };
    return mg_local(r->m, &name, rank_for(r, p), p->n_dims, p->shape, &f, 0, e);
}

/* The number among all of expert i of a rank. */
static int number_expert(const struct legacy *g, const struct rank *r, int i, int *expert, struct err *e)
{
    int64_t own = g->n_experts / g->ep;
    *expert = (int)(r->ep * own + i);
    return own * g->ep == g->n_experts && i < own
               ? 0
               : err_set(e, ERR_FORMAT,
                         "%s: has expert %d, the run had %lld on %d ranks: is it of another run",
                         r->t.c->file[r->t.file].path, i, (long long)g->n_experts, g->ep);
}

static int list_param(struct legacy *g, struct rank *r, int chunk, const struct pk *key,
                      const struct pk *value, struct err *e)
{
    struct param *p = &r->p[r->n];
    struct torch_tensor x;
    const char *path = r->t.c->file[r->t.file].path;
    int layer, expert, group = 0, rc;

    if (key->kind != PK_TEXT || !torch_is_tensor(value) || pk_ends_with(key, "_extra_state"))
        return 0;
    const struct mg_row *row = mg_find_expert(key->text, (int)key->n, &layer, &expert);
    if (!row && (row = mg_find_group(key->text, (int)key->n, &layer))) {
        group = (int)(g->n_experts / g->ep);
        expert = 0;
    }
    if (!row || (row->in_layer && layer < 0) || (row->of_experts && expert < 0))
        return err_set(e, ERR_FORMAT,
                       "%s: %.*s is not a tensor of a model known here (Llama-like, GPT-2, experts, latent "
                       "attention): only "
                       "those can be named yet",
                       path, key->n < 200 ? (int)key->n : 200, key->text);
    if ((rc = torch_tensor(&r->t, value, row->key, &x, e)) < 0 ||
        (row->of_experts && (rc = number_expert(g, r, expert, &expert, e)) < 0))
        return rc;
    if (x.n_dims < 1 || x.n_dims > 2)
        return err_set(e, ERR_FORMAT, "%s: %s has %d dims: is the file damaged", path, row->key, x.n_dims);
    *p = (struct param){ .row = row,
                         .layer = row->in_layer ? first_layer(g, r->pp, chunk) + layer : -1,
                         .n_dims = x.n_dims,
                         .chunk = chunk,
                         .expert = expert,
                         .group = group,
                         .shape = { x.shape[0], x.shape[1] },
                         .n = x.n };
    r->n += strcmp(row->key, ROUTER_BIAS) != 0;
    return r->copy && !row->of_experts ? 0 : add_tensor(r, p, ROLE_WEIGHT, &r->t, value, e);
}

static int list_params(struct legacy *g, struct rank *r, struct err *e)
{
    int rc = 0;
    for (int v = 0; v < g->n_chunks && rc >= 0; v++) {
        const struct pk *model = chunk_at(&r->t, v);
        if (!model || model->kind != PK_DICT)
            return err_set(e, ERR_FORMAT, "%s: model chunk %d is missing: is a file of another run",
                           r->t.c->file[r->t.file].path, v);
        struct param *grown = realloc(r->p, sizeof *grown * ((size_t)r->n + model->n + 1));
        if (!grown)
            return err_set(e, ERR_MEMORY, "%s: no memory for its parameters", r->t.c->file[r->t.file].path);
        r->p = grown;
        for (uint32_t i = 0; i < model->n && rc >= 0; i++)
            rc = list_param(g, r, v, model->item[2 * i], model->item[2 * i + 1], e);
    }
    return rc;
}

/* ---- optimizer by number ---- */

/* The parameters that an optimizer has: ALL, those of no expert, those of experts. */
enum set { ALL, DENSE, EXPERTS };
static int in_set(const struct param *p, enum set set)
{
    return set == ALL || (p->expert >= 0) == (set == EXPERTS);
}

/* The set of optimizer k of a run. */
static enum set set_of(const struct pk *optimizer, uint32_t k)
{
    const struct pk *one = mg_optimizer(optimizer, k), *inner = pk_get(one, "optimizer"),
                    *groups = pk_get(one, "param_groups"),
                    *flag = pk_get(pk_at(groups ? groups : pk_get(inner, "param_groups"), 0),
                                   "is_expert_parallel");
    if (!mg_optimizer(optimizer, 1))
        return ALL;
    return flag && flag->kind == PK_BOOL ? (flag->i ? EXPERTS : DENSE) : k == 1 ? EXPERTS : DENSE;
}

/* Finds by_id[i], the parameter with the optimizer's number i, from the sizes of its groups. Returns how
 * many, -1: the sizes do not tell. */
static int number_params(const struct rank *r, enum set set, const struct pk *groups,
                         const struct param **by_id)
{
    int matrices = 0, all = 0, at = 0;
    uint32_t n[2] = { 0, 0 };

    for (int i = 0; i < r->n; i++) {
        all += in_set(&r->p[i], set);
        matrices += in_set(&r->p[i], set) && r->p[i].n_dims > 1;
    }
    for (uint32_t k = 0; pk_at(groups, k); k++) {
        const struct pk *ids = pk_get(pk_at(groups, k), "params");
        if (k > 1 || !ids || ids->kind != PK_LIST)
            return -1;
        n[k] = ids->n;
    }

    int first = (int)n[0] == matrices && (int)n[1] == all - matrices   ? 1
                : (int)n[0] == all - matrices && (int)n[1] == matrices ? 0
                                                                       : -1;
    if ((int)(n[0] + n[1]) != all || (n[1] && first < 0))
        return -1;
    for (int pass = 0; pass < (n[1] ? 2 : 1); pass++)
        for (int i = 0; i < r->n; i++)
            if (in_set(&r->p[i], set) && (!n[1] || (r->p[i].n_dims > 1) == (pass == 0 ? first : !first)))
                by_id[at++] = &r->p[i];
    return at == all ? all : -1;
}

/* Adds one state of a parameter, unless another file has the same. */
static int add_state(struct rank *r, const struct param *p, enum ckpt_role role, const struct pk *value,
                     struct err *e)
{
    return r->copy && p->expert < 0 ? 0 : add_tensor(r, p, role, &r->t, value, e);
}

static int add_numbered(struct rank *r, const struct pk *optimizer, enum set set, struct err *e)
{
    const struct pk *masters = pk_get(optimizer, "fp32_from_fp16_params"),
                    *inner = masters ? pk_get(optimizer, "optimizer") : optimizer;
    const struct pk *state = pk_get(inner, "state");
    const struct param **by_id = calloc((size_t)r->n + 1, sizeof *by_id);
    int rc = 0, id = 0, n;

    if (!by_id)
        return err_set(e, ERR_MEMORY, "%s: no memory for its parameters", r->m->b->c->path);
    if ((n = number_params(r, set, pk_get(inner, "param_groups"), by_id)) < 0) {
        free(by_id);
        return mg_note(
            r->m->b->c,
            "optimizer state left out: the sizes of its groups do not tell which parameter is which", e);
    }

    for (int i = 0; i < n && rc >= 0; i++) {
        const struct pk *s = pk_get_int(state, i);
        if (s && (rc = add_state(r, by_id[i], ROLE_EXP_AVG, pk_get(s, "exp_avg"), e)) >= 0)
            rc = add_state(r, by_id[i], ROLE_EXP_AVG_SQ, pk_get(s, "exp_avg_sq"), e);
    }

    for (uint32_t k = 0; pk_at(masters, k) && rc >= 0; k++)
        for (uint32_t i = 0; pk_at(pk_at(masters, k), i) && id < n && rc >= 0; i++, id++)
            rc = add_state(r, by_id[id], ROLE_MASTER, pk_at(pk_at(masters, k), i), e);
    free(by_id);
    return rc < 0 ? rc : mg_step(r->m->b, &r->t, optimizer, e);
}

/* ---- distributed optimizer ---- */

static const struct {
    const char *key;
    enum ckpt_role role;
} buffers[] = {
    { "param", ROLE_MASTER },
    { "exp_avg", ROLE_EXP_AVG },
    { "exp_avg_sq", ROLE_EXP_AVG_SQ },
};

static int64_t place_param(int64_t at) { return (at + ALIGN - 1) / ALIGN * ALIGN; }

/* Elements of the buffer that the parameters of a set in a chunk need. */
static int64_t buffer_needs(const struct rank *r, enum set set, int chunk)
{
    int64_t at = 0;
    for (int i = r->n - 1; i >= 0; i--)
        if (r->p[i].chunk == chunk && in_set(&r->p[i], set))
            at = place_param(at) + r->p[i].n;
    return at;
}

/* The flat buffer of a model chunk of a set. */
struct flat_buffer {
    struct torch_file *t;
    enum set set;
    int chunk;
};

static int add_buffer(struct rank *r, const struct flat_buffer *b, const struct pk *value,
                      enum ckpt_role role, struct err *e)
{
    struct torch_file *t = b->t;
    struct torch_tensor x;
    int64_t at = 0;
    int rc = torch_tensor(t, value, "a flat buffer", &x, e);

    if (rc < 0)
        return rc;
    if (x.n_dims != 1 || !x.contiguous || x.dtype != TORCH_F32 || x.n < buffer_needs(r, b->set, b->chunk))
        return err_set(e, ERR_FORMAT,
                       "%s: a flat buffer is %s with %lld elements, the parameters need %lld of float32",
                       t->c->file[t->file].path, torch_dtype_name(x.dtype), (long long)x.n,
                       (long long)buffer_needs(r, b->set, b->chunk));
    struct mg_extent whole = { t->file, x.offset, 0, x.n };
    struct mg_flat f = { &whole, 1, STORED_F32 };
    for (int i = r->n - 1; i >= 0 && rc >= 0; i--) {
        const struct param *p = &r->p[i];
        const struct mg_name name = { p->row, p->layer, role, p->expert, p->group };
        if (p->chunk != b->chunk || !in_set(p, b->set))
            continue;
        at = place_param(at);
        rc = mg_local(r->m, &name, rank_for(r, p), p->n_dims, p->shape, &f, at, e);
        at += p->n;
    }
    return rc;
}

static int is_fp32(const struct rank *r)
{
    const struct pk *model = chunk_at(&r->t, 0);
    struct torch_tensor x;
    struct err e;
    for (uint32_t i = 0; model && i < model->n; i++)
        if (torch_is_tensor(model->item[2 * i + 1]))
            return torch_tensor((struct torch_file *)&r->t, model->item[2 * i + 1], "model", &x, &e) >= 0 &&
                   x.dtype == TORCH_F32;
    return 0;
}

/* Adds the buffers of one optimizer; chunks: its part of the file. */
static int add_buffers(struct legacy *g, struct rank *r, struct torch_file *t, const struct pk *chunks,
                       enum set set, struct err *e)
{
    int rc = 0, narrow = !is_fp32(r);
    for (int v = 0; v < g->n_chunks && rc >= 0; v++) {
        const struct flat_buffer b = { t, set, v };
        const struct pk *dtypes = pk_get_int(chunks, v),
                        *buf = dtypes && dtypes->kind == PK_DICT && dtypes->n == 1 ? dtypes->item[1] : NULL;
        int64_t n = 0, need = buffer_needs(r, set, v);
        if (!need)
            continue; /* a stage without experts */
        if (!buf || !pk_int(pk_get(buf, "numel_unpadded"), &n) || n != need)
            return mg_note(
                r->m->b->c,
                "optimizer state left out: the parameters do not fill the flat buffer of " DISTOPT_FILE
                " as one bucket would, and where others "
                "begin is not in the file",
                e);
        for (size_t k = narrow ? 0 : 1; k < sizeof buffers / sizeof *buffers && rc >= 0; k++)
            rc = add_buffer(r, &b, pk_get(buf, buffers[k].key), buffers[k].role, e);
    }
    return rc;
}

/* Every rank has the buffers of its experts, the first tp ones those of the rest, too. */
static int add_distributed(struct legacy *g, struct rank *r, const struct pk *optimizer, struct err *e)
{
    struct torch_file t = { 0 };
    int rc = open_file(g, (int[3]){ r->tp, r->pp, r->ep }, DISTOPT_FILE, &t, e);
    for (uint32_t k = 0; rc >= 0 && mg_optimizer(optimizer, k); k++) {
        const struct pk *chunks = t.root->kind == PK_LIST ? pk_at(t.root, k) : k == 0 ? t.root : NULL;
        enum set set = set_of(optimizer, k);
        if (r->copy && set != EXPERTS)
            continue;
        rc = add_buffers(g, r, &t, chunks, set, e);
    }
    torch_close(&t);
    return rc < 0 ? rc : mg_step(r->m->b, &r->t, optimizer, e);
}

/* ---- ranks ---- */

/* Fills *yes: the rank has a file of the distributed optimizer. ERR_FORMAT: other ranks differ. */
static int has_distopt(struct legacy *g, const int at[3], int *yes, struct err *e)
{
    char *folder = folder_of(g, at), *path = folder ? build_text("%s" DISTOPT_FILE, folder) : NULL;
    int rc = path ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for a path", g->m->b->c->path);
    if (rc >= 0) {
        *yes = build_exists(g->m->b->c, path);
        g->n_distopt += *yes;
        g->n_read++;
    }
    if (rc >= 0 && g->n_distopt && g->n_distopt != g->n_read)
        rc = err_set(e, ERR_FORMAT, "%s/%s: has %s " DISTOPT_FILE ", other ranks have %s: restore it",
                     g->m->b->c->path, folder, *yes ? "a" : "no", *yes ? "none" : "one");
    free(folder);
    free(path);
    return rc;
}

static int read_rank(struct legacy *g, const int at[3], struct err *e)
{
    struct rank r = { .m = g->m, .tp = at[0], .pp = at[1], .ep = at[2], .etp = at[0] % g->etp };
    const struct pk *optimizer;
    int rc = 0, distopt = 0;

    r.copy = at[2] >= g->tp / g->etp;
    TRY(open_file(g, at, MODEL_FILE, &r.t, e));
    TRY(check_head(g, &r.t, 0, e));
    TRY(list_params(g, &r, e));
    optimizer = pk_get(r.t.root, "optimizer");
    TRY(has_distopt(g, at, &distopt, e));
    if (distopt)
        TRY(add_distributed(g, &r, optimizer, e));
    else if (mg_optimizer(optimizer, 2))
        TRY(mg_note(g->m->b->c,
                    "optimizer state left out: more than two optimizers in one file cannot be taken apart",
                    e));
    else
        for (uint32_t k = 0; mg_optimizer(optimizer, k); k++)
            TRY(add_numbered(&r, mg_optimizer(optimizer, k), set_of(optimizer, k), e));
    if (at[0] == 0 && at[1] == 0 && at[2] == 0)
        mg_run(g->m->b, &r.t, optimizer);
out:
    torch_close(&r.t);
    free(r.p);
    return rc < 0 ? rc : 0;
}

int mg_legacy_open(struct mg *m, const char *sub, struct err *e)
{
    struct legacy g = { .m = m, .sub = sub };
    int rc = 0;
    TRY(find_degrees(&g, e));
    TRY(count_stages(&g, e));
    m->s.tp = g.tp;
    m->s.pp = g.pp;
    m->s.etp = g.etp;
    for (int t = 0; t < g.tp; t++)
        for (int p = 0; p < g.pp; p++)
            for (int x = 0; x < g.ep; x++)
                if (t / g.etp == x % (g.tp / g.etp))
                    TRY(read_rank(&g, (int[3]){ t, p, x }, e));
out:
    free(g.layers);
    return rc < 0 ? rc : 0;
}
