/* load.c - see load.h. */
#include "serve/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "model/family.h"
#include "text/template.h"
#include "serve/columns.h"

#define CHUNK_ELEMENTS ((int64_t)4 << 20)        /* of a read that must be converted */

static const struct { enum ckpt_dtype stored; enum dtype dt; } readable[] = { { CK_F32, DT_F32 }, { CK_BF16, DT_BF16 }, { CK_F16, DT_F16 } };

/* The dtype of a stored tensor, as kernels know it; -1: none that weights can have. */
static int stored_dtype(const struct ckpt_tensor *t)
{
    for (size_t i = 0; i < sizeof readable / sizeof readable[0]; i++)
        if (readable[i].stored == t->dtype)
            return (int)readable[i].dt;
    return -1;
}

int load_open(struct loaded *l, const char *path, struct err *e)
{
    int rc, i;
    memset(l, 0, sizeof *l);
    TRY(ckpt_open(&l->ckpt, path, e));
    if (!ckpt_config_json(l->ckpt)) {
        rc = err_set(e, ERR_CONFIG, "%s has no config.json, which says what the model is: serve the folder that has one", path);
        goto out;
    }
    TRY(model_config_parse(&l->cfg, ckpt_config_json(l->ckpt), "config.json", e));
    i = ckpt_find(l->ckpt, ROLE_WEIGHT, l->cfg.family->first->name);
    l->stored = i >= 0 && ckpt_tensor(l->ckpt, i)->dtype == CK_BF16 ? DT_BF16 : DT_F32;
    rc = 0;
out:
    if (rc < 0) {
        load_close(l);
        return err_add(e, "opening %s", path);
    }
    return 0;
}

void load_close(struct loaded *l)
{
    if (l->has_weights)
        resident_close(&l->weights);
    if (l->has_model)
        model_close(&l->m);
    ckpt_close(l->ckpt);
    memset(l, 0, sizeof *l);
}

/* ---- texts ---- */

/* A small file beside the weights; 1: found, *data malloc'd. */
static int read_extra(const struct loaded *l, const char *name, char **data, size_t *n, struct err *e)
{
    *data = NULL;
    *n = 0;
    for (int i = 0; i < ckpt_n_extra(l->ckpt); i++) {
        void *p;
        if (strcmp(ckpt_extra_name(l->ckpt, i), name))
            continue;
        int rc = ckpt_extra_read(l->ckpt, i, &p, n, e);
        if (rc < 0)
            return rc;
        *data = p;
        return 1;
    }
    return 0;
}

int load_parse_eos(const char *text, size_t n, const char *what, int32_t *eos, int max, struct err *e)
{
    json_t *j = jx_parse(text, n, what, e);
    const json_t *v = json_object_get(j, "eos_token_id");
    size_t count = json_is_array(v) ? json_array_size(v) : v && !json_is_null(v);
    int rc = 0;
    if (!j)
        return -e->code;
    if (count > (size_t)max)
        rc = err_set(e, ERR_CONFIG, "%s: eos_token_id lists %zu tokens, at most %d are taken", what, count, max);
    for (size_t i = 0; rc >= 0 && i < count; i++) {
        const json_t *x = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(x) || json_integer_value(x) < 0 || json_integer_value(x) > INT32_MAX)
            rc = err_set(e, ERR_CONFIG, "%s: eos_token_id must be a token id or a list of token ids", what);
        else
            eos[rc++] = (int32_t)json_integer_value(x);
    }
    json_decref(j);
    return rc;
}

static int load_eos(const struct loaded *l, struct service *sv, struct err *e)
{
    char *text;
    size_t n;
    int rc = read_extra(l, "generation_config.json", &text, &n, e);
    if (rc > 0)
        rc = load_parse_eos(text, n, "generation_config.json", sv->eos, SERVICE_EOS_MAX, e);
    free(text);
    if (rc < 0)
        return rc;
    sv->n_eos = rc;
    for (int i = 0; !rc && i < l->cfg.n_eos; i++)
        sv->eos[sv->n_eos++] = (int32_t)l->cfg.eos[i];
    return 0;
}

/* bos_token and the like, a text or {"content": text}, as variables for the template. */
static int load_chat_tokens(const json_t *config, struct service *sv)
{
    static const char *const names[] = { "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token" };
    sv->chat_tokens = json_object();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *v = json_object_get(config, names[i]);
        v = json_is_object(v) ? json_object_get(v, "content") : v;
        if (json_is_string(v) && json_object_set(sv->chat_tokens, names[i], v) < 0)
            return -1;
    }
    return sv->chat_tokens ? 0 : -1;
}

/* chat_template of the config: a text, or a list of named ones, of which "default" is meant. */
static const char *template_in(const json_t *config)
{
    const json_t *t = json_object_get(config, "chat_template"), *one;
    size_t i;
    json_array_foreach(t, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && !strcmp(name, "default"))
            return json_string_value(json_object_get(one, "template"));
    }
    return json_string_value(t);
}

/* The chat template: chat_template.jinja, else the one in tokenizer_config.json. A model may have none. */
static int load_chat(const struct loaded *l, struct service *sv, const char *config, size_t n_config, struct err *e)
{
    const char *what = "chat_template.jinja", *inside;
    json_t *j = NULL;
    size_t n;
    int rc;
    if (config && !(j = jx_parse(config, n_config, "tokenizer_config.json", e)))
        return -e->code;
    TRY(read_extra(l, what, &sv->chat_template, &n, e));
    if (!rc && (inside = template_in(j))) {
        what = "chat_template of tokenizer_config.json";
        rc = (sv->chat_template = strdup(inside)) ? 1 : err_set(e, ERR_MEMORY, "no memory for the chat template");
        n = rc > 0 ? strlen(inside) : 0;
    }
    if (rc > 0 && load_chat_tokens(j, sv) < 0)
        rc = err_set(e, ERR_MEMORY, "no memory for the chat template");
    if (rc > 0)
        rc = template_open(&sv->chat, sv->chat_template, n, what, e);
out:
    json_decref(j);
    return rc < 0 ? rc : 0;
}

int load_texts(const struct loaded *l, struct service *sv, struct err *e)
{
    char *json = NULL, *config = NULL;
    size_t n, n_config;
    int rc;
    TRY(load_eos(l, sv, e));
    TRY(read_extra(l, "tokenizer_config.json", &config, &n_config, e));
    TRY(load_chat(l, sv, config, n_config, e));
    TRY(read_extra(l, "tokenizer.json", &json, &n, e));
    if (!rc) {
        rc = l->cfg.vocab == 256 ? tokenizer_bytes(&sv->tok, e) : 0;
        goto out;
    }
    rc = tokenizer_open(&sv->tok, json, n, config, n_config, "tokenizer.json", e);
out:
    free(json);
    free(config);
    return rc < 0 ? err_add(e, "reading %s", ckpt_path(l->ckpt)) : 0;
}

void load_fingerprint(const struct loaded *l, enum dtype dt, char out[64])
{
    char hex[33];
    ckpt_digest_hex(l->identity, hex);
    snprintf(out, 64, "contract1-%s-%s", dtype_name(dt), hex);
}

/* ---- weights ---- */

struct reader {
    struct loaded *l;
    const struct model *m;
    void *raw;
    float *wide;
    struct comm *tp;
    int pass_on;
    struct ckpt_digest *seen;        /* [tensors] of what was read, each element by one rank; NULL: the files say their digests */
    int counts;                      /* what is read now goes into seen */
    struct load_progress *progress;
};

static void look_at(struct reader *r, int i, const struct box *b, int64_t lo, int64_t hi, const void *data)
{
    const struct ckpt_tensor *t = ckpt_tensor(r->l->ckpt, i);
    if (r->counts)
        ckpt_digest_add(&r->seen[i], t->dtype, t->n_dims, t->shape, b, lo, hi, data);
}

/* Elements [lo, hi) of box b of tensor i, converted from dtype `from` on their way. fp16 goes through fp32: widening is exact. */
static int read_converted(struct reader *r, int i, const struct box *b, int64_t lo, int64_t hi, enum dtype from, void *dst, enum dtype dt, struct err *e)
{
    float *wide = dt == DT_F32 ? dst : r->wide;
    void *stored = from == DT_F32 ? (void *)wide : r->raw;
    int rc = ckpt_read_range(r->l->ckpt, i, b, lo, hi, stored, e);
    if (rc < 0)
        return rc;
    look_at(r, i, b, lo, hi, stored);
    if (from != DT_F32)
        KERNEL(r->m->dev->host, widen, wide, r->raw, from, hi - lo);
    if (dt != DT_F32)
        KERNEL(r->m->dev->host, round_to, dst, dt, wide, hi - lo);
    return 0;
}

/* Box b of tensor i, whatever its dtype is there. */
static int read_here(struct reader *r, int i, const struct box *b, void *dst, enum dtype dt, struct err *e)
{
    enum dtype from = (enum dtype)stored_dtype(ckpt_tensor(r->l->ckpt, i));
    int64_t n = box_count(b);
    if (from == dt) {
        int rc = ckpt_read(r->l->ckpt, i, b, dst, e);
        if (rc >= 0)
            look_at(r, i, b, 0, n, dst);
        return rc;
    }
    for (int64_t lo = 0; lo < n; lo += CHUNK_ELEMENTS) {
        int64_t hi = lo + CHUNK_ELEMENTS < n ? lo + CHUNK_ELEMENTS : n;
        int rc = read_converted(r, i, b, lo, hi, from, (char *)dst + (size_t)lo * dtype_size(dt), dt, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

struct rows { struct reader *r; int tensor; enum dtype dt; };
static int read_rows(void *ctx, const struct box *b, void *dst, struct err *e)
{
    const struct rows *x = ctx;
    return read_here(x->r, x->tensor, b, dst, x->dt, e);
}

/* Is this rank the one that counts its box of p? Of rows that ranks pass on, each is read once by one of them, for every parameter in the tensor. */
static int counts_box(const struct reader *r, const struct param *p, int rows)
{
    const struct params_local *l = &r->m->local;
    for (int i = 0; !rows && i < l->n_parts; i++)
        if (&l->table->p[l->part[i].param] == p)
            return l->part[i].owner;
    return rows && p->n_sharing;
}

static int read_param(struct reader *r, const struct param *p, const struct box *b, void *dst, enum dtype dt, struct err *e)
{
    int i = ckpt_find(r->l->ckpt, ROLE_WEIGHT, p->name);
    const struct ckpt_tensor *t = i < 0 ? NULL : ckpt_tensor(r->l->ckpt, i);
    if (!t)
        return err_set(e, ERR_FORMAT, "there is no tensor %s, which this config.json needs: is the checkpoint whole", p->name);
    if (t->n_dims != p->n_dims || memcmp(t->shape, p->shape, sizeof *t->shape * (size_t)p->n_dims))
        return err_set(e, ERR_FORMAT, "%s is [%lld,%lld], config.json says [%lld,%lld]: do they belong together", p->name, (long long)t->shape[0],
                       (long long)(t->n_dims > 1 ? t->shape[1] : 1), (long long)p->shape[0], (long long)p->shape[1]);
    if (stored_dtype(t) < 0)
        return err_set(e, ERR_FORMAT, "%s is stored as %s, weights are F32, BF16 or F16: convert it first", p->name, ckpt_dtype_name(t->dtype));
    int rows = r->pass_on && p->n_dims == 2 && p->split != SPLIT_COPY && p->split_dim == 1;
    r->counts = r->seen && counts_box(r, p, rows);
    if (rows) {
        struct rows ctx = { r, i, dt };
        return columns_read(r->tp, p, b, dtype_size(dt), read_rows, &ctx, dst, e);
    }
    return read_here(r, i, b, dst, dt, e);
}

static int read_box(void *ctx, const struct param *p, const struct box *b, void *dst, enum dtype dt, struct err *e)
{
    struct reader *r = ctx;
    int rc = read_param(r, p, b, dst, dt, e);
    if (rc >= 0 && r->progress)
        atomic_fetch_add(&r->progress->done, box_count(b) * (int64_t)dtype_size(dt));
    return rc;
}

/* What read_box will count. */
static int64_t local_bytes(const struct model *m)
{
    int64_t n = 0;
    for (int i = 0; i < m->local.n_parts; i++)
        n += m->local.part[i].count;
    return n * (int64_t)dtype_size(m->dt);
}

/* Room for the digests of what will be read, where a tensor's digest is not in the files. */
static int watch(struct reader *r, struct err *e)
{
    int n = ckpt_n_tensors(r->l->ckpt), known = 1;
    for (int i = 0; i < n; i++)
        known &= ckpt_tensor(r->l->ckpt, i)->has_digest || ckpt_tensor(r->l->ckpt, i)->role != ROLE_WEIGHT;
    r->seen = known ? NULL : calloc((size_t)n, sizeof *r->seen);
    return known || r->seen ? 0 : err_set(e, ERR_MEMORY, "no memory for the digests of %d tensors", n);
}

/* The weights_digest: from the files where they say it, else of what all ranks have read. Then tensors that the model does not use stay out. */
static int identify(struct reader *r, struct err *e)
{
    struct ckpt *c = r->l->ckpt;
    int n = 0, rc;
    struct ckpt_tensor *t = calloc((size_t)ckpt_n_tensors(c) + 1, sizeof *t);
    TRY(comm_agree(r->tp, t ? 0 : err_set(e, ERR_MEMORY, "no memory for the digests of %d tensors", ckpt_n_tensors(c)), e));
    if (r->seen)
        TRY(comm_all_reduce_i64(r->tp, (int64_t *)r->seen, 2 * ckpt_n_tensors(c), e));
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        if (r->seen && (ckpt_tensor(c, i)->role != ROLE_WEIGHT || param_find(&r->m->table, ckpt_tensor(c, i)->name) < 0))
            continue;
        t[n] = *ckpt_tensor(c, i);
        if (!t[n].has_digest)
            t[n].digest = r->seen[i];
        n++;
    }
    r->l->identity = ckpt_digest_all(n, t, NULL).weights;
    rc = 0;
out:
    free(t);
    return rc;
}

/* This rank's weights out of l's checkpoint, for the model m. */
static int read_weights(struct loaded *l, struct model *m, struct comm *tp, struct load_progress *progress, struct err *e)
{
    struct reader r = { .l = l, .m = m, .tp = tp, .progress = progress };
    int rc = watch(&r, e);
    r.raw = dev_alloc(m->dev->host, MEM_WORK, sizeof(float) * CHUNK_ELEMENTS);
    r.wide = dev_alloc(m->dev->host, MEM_WORK, sizeof(float) * CHUNK_ELEMENTS);
    if (!r.raw || !r.wide)
        rc = err_set(e, ERR_MEMORY, "no memory to read weights");
    TRY(comm_agree(tp, rc, e));
    TRY(r.pass_on = columns_wanted(tp, ckpt_cache(l->ckpt), e));
    rc = resident_open(&l->weights, m, read_box, &r, e);
    l->has_weights = rc >= 0;
    if (rc >= 0)
        rc = ckpt_check_rest(l->ckpt, comm_rank(tp), comm_size(tp), e);      /* damage in a part that no rank needs is damage too */
    TRY(comm_agree(tp, rc, e));
    TRY(identify(&r, e));
    rc = 0;
out:
    free(r.seen);
    dev_free(m->dev->host, r.raw);
    dev_free(m->dev->host, r.wide);
    return rc < 0 ? err_add(e, "loading %s", ckpt_path(l->ckpt)) : 0;
}

int load_weights(struct loaded *l, struct dev *dev, struct comm *tp, enum dtype dt, int fast, int64_t max_rows, int64_t ctx,
                 struct load_progress *progress, struct err *e)
{
    struct layout lay = { .tp = comm_size(tp), .pp = 1, .cp = 1, .dp = 1, .ep = 1, .zero = 0 };
    int rc = model_open(&l->m, &l->cfg, &lay, dev, tp, comm_rank(tp), 0, dt, fast, max_rows, ctx, e);
    l->has_model = rc >= 0;
    TRY(comm_agree(tp, rc, e));
    if (progress)
        atomic_store(&progress->total, local_bytes(&l->m));
    rc = read_weights(l, &l->m, tp, progress, e);
out:
    return rc;
}

int load_beside(struct loaded *fresh, struct loaded *l, const char *path, struct err *e)
{
    struct comm *tp = l->m.tp;
    int rc = load_open(fresh, path, e);
    if (rc >= 0 && (rc = model_config_same(&fresh->cfg, &l->cfg, "the model that is served", e)) < 0)
        err_add(e, "%s", path);
    TRY(comm_agree(tp, rc, e));
    rc = read_weights(fresh, &l->m, tp, NULL, e);
    TRY(comm_agree(tp, rc, e));
out:
    if (rc < 0)
        load_close(fresh);
    return rc;
}

void load_swap(struct loaded *l, struct loaded *fresh, char fingerprint[64])
{
    struct resident weights = l->weights;
    struct ckpt *ckpt = l->ckpt;
    l->weights = fresh->weights;
    l->ckpt = fresh->ckpt;
    l->identity = fresh->identity;
    fresh->weights = weights;
    fresh->ckpt = ckpt;
    load_close(fresh);
    ckpt_done(l->ckpt);
    if (!l->m.fast && l->m.grain == l->cfg.grain)
        load_fingerprint(l, l->m.dt, fingerprint);
}
