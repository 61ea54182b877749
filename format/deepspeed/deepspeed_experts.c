/* deepspeed_experts.c - experts in DeepSpeed's folders: which ranks hold which, their files, their names.
 *
 *     MoE      PREFIX.deepspeed_moe.experts.deepspeed_experts.I.REST    I counts the experts of a rank
 *     AutoEP   PREFIX.experts.w1 (gate), .w2 (down), .w3 (up)           [experts of a rank][out][in]
 *     layer_L_expert_E_mp_rank_00_model_states.pt    the weights of expert E of all, under PREFIX…E.REST or
 *                                                    PREFIX.experts.w1.E
 * Rank r of an expert-parallel group of ep ranks has experts r · E/ep and following, unless AutoEP's
 * placement says otherwise. With ZeRO-3 AutoEP writes no files of experts. Source:
 * deepspeed/runtime/engine.py (_save_moe_checkpoint), deepspeed/module_inject/auto_ep_layer.py (described,
 * not copied). */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/deepspeed/deepspeed.h"

#define MOE ".deepspeed_moe.experts.deepspeed_experts."
#define EXPERTS_MAX (1 << 16)

/* ---- names ---- */

static int starts(const char *name, int n, const char *prefix, int n_prefix)
{
    return n >= n_prefix && !memcmp(name, prefix, (size_t)n_prefix);
}

/* A number at the start of n bytes; returns its digits, 0: none, or too large. */
static int read_number(const char *p, int n, int64_t *out)
{
    int k = 0;
    *out = 0;
    while (k < n && k < 6 && isdigit((unsigned char)p[k]))
        *out = *out * 10 + (p[k++] - '0');
    return *out < EXPERTS_MAX ? k : 0;
}

/* Splits the name of a parameter of MoE: bytes before MOE, the number, the rest from its dot on. 1: it is
 * one. */
static int split_moe(const char *name, int n, int *n_prefix, int64_t *number, int *rest)
{
    const int k = (int)sizeof MOE - 1;
    for (int i = 0; i + k < n; i++) {
        int digits = memcmp(name + i, MOE, (size_t)k) ? 0 : read_number(name + i + k, n - i - k, number);
        if (digits && i + k + digits < n && name[i + k + digits] == '.') {
            *n_prefix = i;
            *rest = i + k + digits;
            return 1;
        }
    }
    return 0;
}

/* 1: the name is PREFIX.w1, .w2 or .w3, at most followed by more. */
static int is_stacked(const struct ds_layer *y, const char *name, int n)
{
    int k = y->n_prefix;
    return y->is_stacked && n >= k + 3 && starts(name, n, y->prefix, k) && name[k] == '.' &&
           name[k + 1] == 'w' && name[k + 2] >= '1' && name[k + 2] <= '3' &&
           (n == k + 3 || name[k + 3] == '.');
}

int ds_expert_file(const char *name, int *layer, int *expert, int *mp)
{
    int used = 0;
    return sscanf(name, "layer_%6d_expert_%6d_mp_rank_%6d_model_states.pt%n", layer, expert, mp, &used) ==
               3 &&
           used && !name[used] && *layer >= 0 && *expert >= 0 && *mp >= 0;
}

/* ---- layers ---- */

static struct ds_layer *add_layer(struct ds_experts *x, const char *prefix, int n_prefix)
{
    struct ds_layer *grown = realloc(x->layer, sizeof *grown * (size_t)(x->n + 1));
    if (!grown)
        return NULL;
    x->layer = grown;
    grown[x->n] = (struct ds_layer){ .prefix = prefix, .n_prefix = n_prefix, .number = -1 };
    return &grown[x->n++];
}

static int no_memory(const char *path, struct err *e)
{
    return err_set(e, ERR_MEMORY, "%s: no memory for its experts", path);
}

/* The expert at place i of rank r; -1: the placement does not say. */
static int64_t expert_at(const struct ds_layer *y, int64_t r, int64_t i)
{
    int64_t rank = 0, id = -1;
    if (!y->placement)
        return r * y->n_local + i;
    for (uint32_t k = 0; pk_at(y->placement, k); k++) {
        const struct pk *one = pk_at(y->placement, k);
        if (pk_int(pk_get(one, "rank"), &rank) && rank == r)
            return pk_int(pk_at(pk_get(one, "experts"), (uint32_t)i), &id) && id >= 0 && id < y->n_experts
                       ? id
                       : -1;
    }
    return -1;
}

static int read_autoep(struct ds_experts *x, const struct pk *one, const char *path, struct err *e)
{
    const struct pk *prefix = pk_get(one, "expert_key_prefix");
    struct ds_layer *y;
    int64_t n = 0;

    if (!prefix || prefix->kind != PK_TEXT || !prefix->n || prefix->n > FMT_NAME_MAX)
        return err_set(e, ERR_FORMAT,
                       "%s: ds_autoep_layers has a layer without expert_key_prefix: is the file damaged",
                       path);
    if (!(y = add_layer(x, prefix->text, (int)prefix->n)))
        return no_memory(path, e);
    y->is_stacked = 1;
    y->is_cut = pk_is_text(pk_get(one, "checkpoint_format"), "zero3_partitioned");
    y->placement = pk_get(pk_get(one, "expert_placement"), "ranks");
    pk_int(pk_get(one, "num_experts"), &y->n_experts);
    pk_int(pk_get(one, "num_local_experts"), &y->n_local);
    pk_int(pk_get(one, "ep_size"), &y->ep);
    if (y->n_experts < 1 || y->n_experts > EXPERTS_MAX || y->n_local < 1 || y->ep < 1 ||
        y->ep > EXPERTS_MAX || y->n_local > EXPERTS_MAX || y->n_local * y->ep != y->n_experts)
        return err_set(e, ERR_FORMAT,
                       "%s: %.*s has %lld experts, %lld on each of %lld ranks: is the file damaged", path,
                       y->n_prefix, y->prefix, (long long)y->n_experts, (long long)y->n_local,
                       (long long)y->ep);
    for (int64_t r = 0; r < y->ep; r++) /* every expert has one place: there are as many as places */
        for (int64_t i = 0; i < y->n_local; i++, n++)
            if (expert_at(y, r, i) < 0)
                return err_set(e, ERR_FORMAT, "%s: the placement of %.*s has no expert %lld of rank %lld",
                               path, y->n_prefix, y->prefix, (long long)i, (long long)r);
    return 0;
}

/* Finds the layer of a parameter, or adds that of a new prefix of MoE. */
static int find_layer(struct ds_experts *x, struct ds_param *p, const char *path, struct err *e)
{
    int n_prefix, rest, at = 0;
    int64_t number;
    p->layer = p->local = -1;
    if (split_moe(p->name, p->n_name, &n_prefix, &number, &rest)) {
        while (at < x->n && (x->layer[at].is_stacked || x->layer[at].n_prefix != n_prefix ||
                             memcmp(x->layer[at].prefix, p->name, (size_t)n_prefix)))
            at++;
        if (at == x->n && !add_layer(x, p->name, n_prefix))
            return no_memory(path, e);
        p->layer = at;
        p->local = (int)number;
        if (number >= x->layer[at].n_local)
            x->layer[at].n_local = number + 1;
        return 0;
    }

    for (at = 0; at < x->n && p->layer < 0; at++)
        if (is_stacked(&x->layer[at], p->name, p->n_name) && p->n_name == x->layer[at].n_prefix + 3)
            p->layer = at;
    if (p->layer >= 0 && (p->n_dims < 2 || p->shape[0] != x->layer[p->layer].n_local))
        return err_set(e, ERR_FORMAT, "%s: %.*s has %lld experts, ds_autoep_layers says %lld on a rank", path,
                       p->n_name, p->name, (long long)(p->n_dims ? p->shape[0] : 0),
                       (long long)x->layer[p->layer].n_local);
    return 0;
}

int ds_experts_find(struct ds_experts *x, struct ds_params *l, const struct pk *layers, const char *path,
                    struct err *e)
{
    int rc = 0;
    for (uint32_t i = 0; pk_at(layers, i) && rc >= 0; i++)
        rc = read_autoep(x, pk_at(layers, i), path, e);
    for (int i = 0; i < l->n && rc >= 0; i++)
        rc = find_layer(x, &l->p[i], path, e);
    return rc;
}

void ds_experts_free(struct ds_experts *x)
{
    for (int i = 0; i < x->n; i++)
        free(x->layer[i].sample);
    free(x->layer);
    memset(x, 0, sizeof *x);
}

int ds_experts_degree(struct ds_experts *x, const struct ds_param *p, int64_t ep, const char *path,
                      struct err *e)
{
    struct ds_layer *y = p->layer < 0 ? NULL : &x->layer[p->layer];
    if (!y && ep != 1)
        return err_set(e, ERR_FORMAT,
                       "%s: %.*s is shared by a part of the ranks, but is no expert: was it saved by another "
                       "DeepSpeed",
                       path, p->n_name, p->name);
    if (!y)
        return 0;
    if (y->ep && y->ep != ep)
        return err_set(
            e, ERR_FORMAT,
            "%s: the optimizer files say that %lld ranks share the experts of %.*s, the others %lld: are "
            "files of two runs mixed",
            path, (long long)ep, y->n_prefix, y->prefix, (long long)y->ep);
    y->ep = ep;
    y->n_experts = y->n_local * ep;
    return 0;
}

/* ---- parameters of a rank as parts of tensors ---- */

int64_t ds_experts_parts(const struct ds_experts *x, const struct ds_param *p)
{
    return p->layer >= 0 && p->local < 0 ? x->layer[p->layer].n_local : 1;
}

int ds_experts_part(const struct ds_experts *x, const struct ds_param *p, int64_t r, int64_t k,
                    struct ds_part *out, const char *path, struct err *e)
{
    const struct ds_layer *y = p->layer < 0 ? NULL : &x->layer[p->layer];
    int n_prefix, rest, n;
    int64_t number;

    out->n_dims = p->n_dims;
    memcpy(out->shape, p->shape, sizeof out->shape);
    if (y && p->local >= 0 && split_moe(p->name, p->n_name, &n_prefix, &number, &rest))
        n = snprintf(out->name, sizeof out->name, "%.*s.experts.%lld%.*s", n_prefix, p->name,
                     (long long)expert_at(y, r, number), p->n_name - rest, p->name + rest);
    else
        n = snprintf(out->name, sizeof out->name, "%.*s", p->n_name, p->name);
    if (n >= (int)sizeof out->name)
        return err_set(e, ERR_FORMAT, "%s: %.40s…: a tensor's name has more than %d bytes", path, out->name,
                       FMT_NAME_MAX);
    out->lo = 0;
    out->hi = p->n;
    if (y && y->is_stacked)
        out->shape[0] = y->n_experts;
    if (!out->n_dims) {
        out->n_dims = 1;
        out->shape[0] = 1;
    }
    out->box = box_whole(out->n_dims, out->shape);
    if (y && y->is_stacked) {
        out->box.start[0] = expert_at(y, r, k);
        out->box.extent[0] = 1;
        out->lo = p->n / y->n_local * k;
        out->hi = out->lo + p->n / y->n_local;
    }
    return 0;
}

/* ---- files of experts ---- */

struct reader {
    struct ds_experts *x;
    struct build *b;
    const char *file; /* its name */
    int number, expert, add;
    struct torch_file t;
};

static void note_sample(struct ds_sample *s, const char *end, int n, const struct torch_tensor *v, int file)
{
    if (s->file >= 0)
        return;
    *s = (struct ds_sample){ .file = file, .dtype = v->dtype, .offset = v->offset };
    if (n < (int)sizeof s->end && v->n > 0)
        memcpy(s->end, end, (size_t)n);
}

/* Adds (or only checks) one tensor of a file. */
static int read_tensor(struct reader *g, const struct pk *key, const struct pk *value, struct err *e)
{
    struct ds_layer *y = NULL;
    char name[FMT_NAME_MAX + 1];
    struct torch_tensor v;
    struct chunk k;
    int n_prefix = 0, rest = 0, n, rc, digits = 0, at = 0;
    int64_t id = -1, start[BOX_DIMS] = { 0 }, shape[BOX_DIMS] = { 0 };

    if (key->kind != PK_TEXT || !torch_is_tensor(value))
        return 0;
    n = (int)key->n;
    int moe = split_moe(key->text, n, &n_prefix, &id, &rest);
    for (; at < g->x->n && !y; at++) {
        struct ds_layer *z = &g->x->layer[at];
        if (moe ? !z->is_stacked && z->n_prefix == n_prefix && !memcmp(z->prefix, key->text, (size_t)n_prefix)
                : is_stacked(z, key->text, n))
            y = z;
    }
    if (y && !moe && n > y->n_prefix + 4)
        digits = read_number(key->text + y->n_prefix + 4, n - y->n_prefix - 4, &id);
    if (!y || (!moe && digits != n - y->n_prefix - 4))
        return err_set(e, ERR_FORMAT,
                       "%s: %.*s is no tensor of an expert of this model: is the file of another run",
                       g->file, n, key->text);
    if (id != g->expert || id >= y->n_experts || (y->number >= 0 && y->number != g->number))
        return err_set(e, ERR_FORMAT,
                       "%s: holds expert %lld of %lld of %.*s: is it the file of another expert or layer",
                       g->file, (long long)id, (long long)y->n_experts, y->n_prefix, y->prefix);
    y->number = g->number;
    if (moe)
        snprintf(name, sizeof name, "%.*s.experts.%lld%.*s", n_prefix, key->text, (long long)id, n - rest,
                 key->text + rest);
    else
        snprintf(name, sizeof name, "%.*s", y->n_prefix + 3, key->text);
    if ((rc = torch_tensor(&g->t, value, name, &v, e)) < 0)
        return rc;
    note_sample(&y->sample[id], moe ? key->text + rest : name + y->n_prefix, moe ? n - rest : 3, &v,
                g->t.file);
    if (!g->add)
        return 0;
    if (moe)
        return build_whole(g->b, ROLE_WEIGHT, name, (int)strlen(name), &g->t, &v, e);
    start[0] = id;
    if ((rc = build_chunk(&k, &g->t, &v, v.n_dims + 1, start, name, e)) < 0)
        return rc;
    memcpy(shape, k.box.extent, sizeof shape);
    shape[0] = y->n_experts;
    int i = rc = build_tensor(g->b, ROLE_WEIGHT, name, (int)strlen(name), k.dtype, k.box.n_dims, shape, e);
    return rc < 0 ? rc : build_map(g->b, i, &k, &k.box, start, e);
}

static int read_file(struct reader *g, const char *sub, struct err *e)
{
    struct ckpt *c = g->b->c;
    char *full = build_text("%s%s", sub, g->file);
    int file = full ? build_file(c, full, e) : no_memory(c->path, e), rc = file;
    free(full);
    if (rc >= 0)
        rc = torch_open(&g->t, c, file, 0, c->file[file].bytes, e);
    if (rc < 0)
        return rc;
    if (g->t.root->kind != PK_DICT || !g->t.root->n)
        rc = err_set(e, ERR_FORMAT, "%s: holds no tensors: is the file damaged", c->file[file].path);
    for (uint32_t i = 0; rc >= 0 && i < g->t.root->n; i++)
        rc = read_tensor(g, g->t.root->item[2 * i], g->t.root->item[2 * i + 1], e);
    torch_close(&g->t);
    return rc;
}

static int check_all(const struct ds_experts *x, const char *path, struct err *e)
{
    for (int i = 0; i < x->n; i++) {
        const struct ds_layer *y = &x->layer[i];
        for (int64_t k = 0; k < y->n_experts && !y->is_cut; k++)
            if (y->sample[k].file < 0 && y->number >= 0)
                return err_set(
                    e, ERR_FORMAT,
                    "%s: layer_%d_expert_%lld_mp_rank_00_model_states.pt is missing: expert %lld of %lld "
                    "of %.*s: restore it",
                    path, y->number, (long long)k, (long long)k, (long long)y->n_experts, y->n_prefix,
                    y->prefix);
            else if (y->sample[k].file < 0)
                return err_set(e, ERR_FORMAT, "%s: has no layer_…_expert_… files of %.*s: is the save whole",
                               path, y->n_prefix, y->prefix);
    }
    return 0;
}

int ds_experts_read(struct ds_experts *x, struct build *b, const char *sub, const struct names *files,
                    int add, struct err *e)
{
    struct reader g = { .x = x, .b = b, .add = add };
    int mp, rc = 0;

    for (int i = 0; i < x->n; i++) {
        struct ds_layer *y = &x->layer[i];
        if (!(y->sample = calloc((size_t)y->n_experts + 1, sizeof *y->sample)))
            return no_memory(b->c->path, e);
        for (int64_t k = 0; k < y->n_experts; k++)
            y->sample[k].file = -1;
    }
    for (int i = 0; i < files->n && rc >= 0; i++) {
        g.file = files->name[i];
        if (!ds_expert_file(g.file, &g.number, &g.expert, &mp))
            continue;
        if (mp)
            return err_set(e, ERR_FORMAT,
                           "%s: %s is of model-parallel rank %d, and how experts were cut is not in the "
                           "files: convert with ds_to_universal",
                           b->c->path, g.file, mp);
        rc = read_file(&g, sub, e);
    }
    return rc < 0 ? rc : check_all(x, b->c->path, e);
}

/* The bits of a weight that a master becomes; 0: not known. */
static int narrowed(uint32_t master, enum torch_dtype to, uint32_t *out)
{
    *out = to == TORCH_BF16 ? (master + 0x7fff + (master >> 16 & 1)) >> 16 : master;
    return (to == TORCH_BF16 || to == TORCH_F32) && (master & 0x7f800000u) != 0x7f800000u;
}

int ds_experts_compare(const struct ds_experts *x, struct ckpt *c, const struct ds_param *p,
                       const int64_t place[2], int file, int64_t offset, struct err *e)
{
    const struct ds_layer *y = p->layer < 0 ? NULL : &x->layer[p->layer];
    int64_t id = y ? expert_at(y, place[0], p->local < 0 ? place[1] : p->local) : -1;
    const struct ds_sample *s = y && y->sample && id >= 0 ? &y->sample[id] : NULL;
    uint32_t master = 0, weight = 0, want;
    int n = s ? (int)strlen(s->end) : 0, rc;

    if (!n || s->file < 0 || p->n_name < n || memcmp(p->name + p->n_name - n, s->end, (size_t)n))
        return 0;
    if ((rc = fmt_pread(c, file, &master, 4, offset, e)) < 0 ||
        (rc = fmt_pread(c, s->file, &weight, s->dtype == TORCH_F32 ? 4 : 2, s->offset, e)) < 0)
        return rc;
    if (!narrowed(master, s->dtype, &want) || want == weight)
        return 0;
    return err_set(
        e, ERR_FORMAT,
        "%s: holds other values for expert %lld of %.*s than %s: is it the file of another rank, or of a "
        "run with another expert parallel degree",
        c->file[file].path, (long long)id, y->n_prefix, y->prefix, c->file[s->file].name);
}

int ds_experts_universal(const struct pk *state, const struct torch_tensor *x, const char *path,
                         struct err *e)
{
    const struct pk *is_expert = pk_get(state, "is_expert_param");
    int64_t n = 0;
    if (!is_expert || is_expert->kind != PK_BOOL || !is_expert->i)
        return 0;
    if (pk_int(pk_get(state, "ep_num_experts"), &n) && x->n_dims > 0 && x->shape[0] == n)
        return 0;
    return err_set(e, ERR_FORMAT, "%s: holds %lld experts, ep_num_experts says %lld: is the file damaged",
                   path, (long long)(x->n_dims ? x->shape[0] : 0), (long long)n);
}

/* ---- routers ---- */

/* Modules that DeepSpeed puts around a router, and Hugging Face's name for it. */
static const struct {
    const char *theirs, *ours;
} routers[] = {
    { ".deepspeed_moe.gate.wg.", ".gate." },
    { ".mlp.router.gate.", ".mlp.gate." },
    { ".mlp.gate.gate.", ".mlp.gate." },
    { ".mlp.router.e_score_correction_bias", ".mlp.gate.e_score_correction_bias" },
};

int ds_router_copy(const char *name, int n, char of[FMT_NAME_MAX + 8])
{
    static const char copy[] = ".mlp.gate.gate.";
    const int k = (int)sizeof copy - 1;
    for (int i = 0; n < FMT_NAME_MAX && i + k <= n; i++)
        if (!memcmp(name + i, copy, (size_t)k)) {
            snprintf(of, FMT_NAME_MAX + 8, "%.*s.mlp.router.gate.%.*s", i, name, n - i - k, name + i + k);
            return 1;
        }
    return 0;
}

int ds_router_names(struct ckpt *c, struct err *e)
{
    for (int i = 0; i < c->n_tensors; i++)
        for (size_t k = 0; k < sizeof routers / sizeof *routers; k++) {
            const char *name = c->tensor[i].name, *at = strstr(name, routers[k].theirs);
            char *to = at ? build_text("%.*s%s%s", (int)(at - name), name, routers[k].ours,
                                       at + strlen(routers[k].theirs))
                          : NULL;
            if (at && !to)
                return no_memory(c->path, e);
            if (!to)
                continue;
            free((char *)name);
            c->tensor[i].name = to;
            break;
        }
    return 0;
}
