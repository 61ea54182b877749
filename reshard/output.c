/* output.c - see output.h. A native or DCP target has a shard for each unit (one file); other targets have
 * one writer for all of their files. */
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/peft.h"
#include "format/quant_view.h"
#include "reshard/gguf/gguf_prepare.h"
#include "reshard/output.h"
#include "reshard/serve/serve_plan.h"

/* The part of the source's state that the target keeps. */
static struct ckpt_state target_state(const struct plan *p)
{
    struct ckpt_state s = { 0 };
    if (!p->req->weights_only)
        s = *ckpt_state(p->src);
    s.grain = p->grain;
    return s;
}

/* ---- native ---- */

int output_is_ours(const struct plan *p, int unit)
{
    return p->unit[unit].n_pieces && p->unit[unit].owner == procs_rank(p->req->procs);
}

/* The pieces of every unit of this process, as the units number them. */
static int list_pieces(const struct plan *p, struct ckpt_piece **list, struct err *e)
{
    for (int u = 0; u < p->n_ranks * UNITS; u++)
        if (output_is_ours(p, u) && !(list[u] = calloc((size_t)p->unit[u].n_pieces, sizeof **list)))
            return err_set(e, ERR_MEMORY, "no memory for %d pieces", p->unit[u].n_pieces);
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->target[i].n_pieces; k++) {
            const struct target_piece *q = &p->target[i].piece[k];
            if (list[q->unit])
                list[q->unit][q->index] = (struct ckpt_piece){ p->target[i].t, q->box, q->lo, q->hi };
        }
    return 0;
}

/* Every unit's file is open at the same time: a plan of many ranks needs more files than a shell usually
 * allows. */
static void raise_file_limit(int n_units) { io_raise_file_limit((int64_t)n_units + 256); }

static int open_native(struct output *o, const char *tmp, struct err *e)
{
    const struct plan *p = o->p;
    int n_units = p->n_ranks * UNITS, rc = 0;
    struct ckpt_piece **list = calloc((size_t)n_units, sizeof *list);
    o->shard = calloc((size_t)n_units, sizeof *o->shard);
    o->table = calloc((size_t)n_units, sizeof *o->table);
    o->table_bytes = calloc((size_t)n_units, sizeof *o->table_bytes);
    if (!list || !o->shard || !o->table || !o->table_bytes) {
        rc = err_set(e, ERR_MEMORY, "no memory for %d ranks", p->n_ranks);
        goto out;
    }

    raise_file_limit(n_units);
    TRY(list_pieces(p, list, e));
    for (int u = 0; u < n_units; u++) {
        if (!list[u])
            continue;
        TRY(ckpt_shard_open(&o->shard[u], tmp, u / UNITS, p->unit[u].n_pieces, list[u], e));
        ckpt_shard_defer(o->shard[u]);
        ckpt_shard_compress(o->shard[u], p->req->codec, p->req->level);
        if (o->watch.arg && !p->req->codec) /* a compressed file is made when the plain one is whole */
            TRY(ckpt_shard_watch(o->shard[u], &o->watch, e));
    }
out:
    for (int u = 0; list && u < n_units; u++)
        free(list[u]);
    free(list);
    return rc < 0 ? rc : 0;
}

static int put_native(struct output *o, int target, const struct target_piece *q, const void *data, int64_t n,
                      struct err *e)
{
    struct ckpt_digest so_far;
    (void)target;
    int rc = ckpt_shard_put(o->shard[q->unit], q->index, data, n, e);
    return rc < 0 ? rc : ckpt_shard_check(o->shard[q->unit], q->index, &so_far, e);
}

static int close_native(struct output *o, int unit, struct err *e)
{
    struct ckpt_shard *shard = o->shard[unit];
    if (!shard)
        return 0;
    o->shard[unit] = NULL;
    return ckpt_shard_close(shard, &o->table[unit], &o->table_bytes[unit], e);
}

/* All tables of this process in one blob: length, text, length, text, … */
static int pack_tables(struct output *o, char **blob, size_t *n, struct err *e)
{
    size_t bytes = 1, at = 0;
    int n_units = o->p->n_ranks * UNITS;
    for (int u = 0; u < n_units; u++)
        bytes += o->table[u] ? sizeof(size_t) + o->table_bytes[u] : 0;
    if (!(*blob = malloc(bytes)))
        return err_set(e, ERR_MEMORY, "no memory for tables of %zu bytes", bytes);
    for (int u = 0; u < n_units; u++) {
        if (!o->table[u])
            continue;
        memcpy(*blob + at, &o->table_bytes[u], sizeof(size_t));
        memcpy(*blob + at + sizeof(size_t), o->table[u], o->table_bytes[u]);
        at += sizeof(size_t) + o->table_bytes[u];
        free(o->table[u]);
        o->table[u] = NULL;
    }
    *n = at;
    return 0;
}

static int seal_native(struct output *o, const char *tmp, char *blob, size_t n, const struct ckpt_meta *meta,
                       struct err *e)
{
    const struct plan *p = o->p;
    size_t most = (size_t)p->n_ranks * UNITS, *bytes = calloc(most, sizeof *bytes);
    void **table = calloc(most, sizeof *table);
    int used = 0, rc;
    if (!table || !bytes) {
        rc = err_set(e, ERR_MEMORY, "no memory for the tables of %d ranks", p->n_ranks);
        goto out;
    }
    for (size_t at = 0; at < n; at += sizeof(size_t) + bytes[used++]) {
        memcpy(&bytes[used], blob + at, sizeof(size_t));
        table[used] = blob + at + sizeof(size_t);
    }
    rc = ckpt_seal(tmp, used, table, bytes, meta, NULL, e);
out:
    free(table);
    free(bytes);
    return rc;
}

/* ---- Hugging Face ---- */

int output_list(struct output *o, struct err *e)
{
    const struct plan *p = o->p;
    o->list = calloc((size_t)p->n + 1, sizeof *o->list);
    if (!o->list)
        return err_set(e, ERR_MEMORY, "no memory for %d tensors", p->n);
    for (int i = 0; i < p->n; i++)
        o->list[i] = p->target[i].t;
    return 0;
}

static int open_hf(struct output *o, const char *tmp, struct err *e)
{
    const struct request *req = o->p->req;
    struct hf_write_opts how = { .shard_bytes = req->shard_bytes,
                                 .experts = req->experts,
                                 .config = o->p->config,
                                 .is_adapter = peft_is(o->p->src),
                                 .watch = o->watch.arg ? &o->watch : NULL };
    int rc = output_list(o, e);
    return rc < 0 ? rc : hf_write_open(&o->hf, tmp, o->p->n, o->list, &how, e);
}

static int put_hf(struct output *o, int target, const struct target_piece *q, const void *data, int64_t n,
                  struct err *e)
{
    (void)q;
    return hf_write_put(o->hf, target, data, n, e);
}

static int seal_hf(struct output *o, const char *tmp, char *blob, size_t n, const struct ckpt_meta *meta,
                   struct err *e)
{
    struct hf_write *w = o->hf;
    (void)tmp, (void)blob, (void)n;
    o->hf = NULL;
    return hf_write_seal(w, meta, e);
}

/* ---- PyTorch DCP ---- */

static int open_dcp(struct output *o, const char *tmp, struct err *e)
{
    const struct plan *p = o->p;
    int n_units = p->n_ranks * UNITS, rc = output_list(o, e),
        *n_items = calloc((size_t)n_units, sizeof *n_items);
    char *ours = calloc((size_t)n_units, 1);
    if (rc >= 0 && (!n_items || !ours))
        rc = err_set(e, ERR_MEMORY, "no memory for %d ranks", p->n_ranks);
    TRY(rc);

    for (int u = 0; u < n_units; u++) {
        n_items[u] = p->unit[u].n_pieces;
        ours[u] = (char)output_is_ours(p, u);
    }
    raise_file_limit(n_units);

    TRY(dcp_write_open(&o->dcp, tmp, p->n, o->list, n_units, n_items, ours, e));
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->target[i].n_pieces; k++)
            dcp_write_item(o->dcp, p->target[i].piece[k].unit, p->target[i].piece[k].index, i,
                           &p->target[i].piece[k].box);
    TRY(dcp_write_start(o->dcp, e));
out:
    free(n_items);
    free(ours);
    return rc < 0 ? rc : 0;
}

static int put_dcp(struct output *o, int target, const struct target_piece *q, const void *data, int64_t n,
                   struct err *e)
{
    (void)target;
    return dcp_write_put(o->dcp, q->unit, q->index, data, n, e);
}

static int close_dcp(struct output *o, int unit, struct err *e) { return dcp_write_close(o->dcp, unit, e); }

static int seal_dcp(struct output *o, const char *tmp, char *blob, size_t n, const struct ckpt_meta *meta,
                    struct err *e)
{
    (void)tmp, (void)blob, (void)n;
    return dcp_write_seal(o->dcp, meta, e);
}

/* ---- DeepSpeed universal ---- */

static int open_universal(struct output *o, const char *tmp, struct err *e)
{
    int rc = output_list(o, e);
    o->state = target_state(o->p);
    return rc < 0 ? rc : universal_write_open(&o->universal, tmp, o->p->n, o->list, &o->state, e);
}

static int put_universal(struct output *o, int target, const struct target_piece *q, const void *data,
                         int64_t n, struct err *e)
{
    (void)q;
    return universal_write_put(o->universal, target, data, n, e);
}

static int seal_universal(struct output *o, const char *tmp, char *blob, size_t n,
                          const struct ckpt_meta *meta, struct err *e)
{
    (void)tmp, (void)blob, (void)n;
    return universal_write_seal(o->universal, meta, e);
}

/* ---- GGUF: the source is a view that has the file's tensors ---- */

static int open_gguf(struct output *o, const char *tmp, struct err *e)
{
    char *path = io_join(tmp, GGUF_FILE);
    int rc = path ? gguf_write_open(&o->gguf, path, o->p->gguf, e)
                  : err_set(e, ERR_MEMORY, "no memory for a path");
    free(path);
    return rc;
}

static int put_gguf(struct output *o, int target, const struct target_piece *q, const void *data, int64_t n,
                    struct err *e)
{
    (void)q;
    return gguf_write_put(o->gguf, o->p->target[target].t.name, data, n, e);
}

static int seal_gguf(struct output *o, const char *tmp, char *blob, size_t n, const struct ckpt_meta *meta,
                     struct err *e)
{
    struct gguf_write *w = o->gguf;
    (void)tmp, (void)blob, (void)n, (void)meta;
    o->gguf = NULL;
    return gguf_write_seal(w, e);
}

/* ---- the serve format: native, in panels ---- */

static int open_serve(struct output *o, const char *tmp, struct err *e)
{
    return panels_write_open(&o->serve, tmp, &o->p->serve->layout, o->watch.arg ? &o->watch : NULL, e);
}

static int put_serve(struct output *o, int target, const struct target_piece *q, const void *data, int64_t n,
                     struct err *e)
{
    (void)target;
    return panels_write_put(o->serve, q->index, data, n, e);
}

static int seal_serve(struct output *o, const char *tmp, char *blob, size_t n, const struct ckpt_meta *meta,
                      struct err *e)
{
    struct panels_write *w = o->serve;
    void *table = NULL;
    size_t bytes = 0;
    (void)blob, (void)n;
    o->serve = NULL;
    int rc = panels_write_close(w, &table, &bytes, e);
    if (rc >= 0)
        rc = ckpt_seal(tmp, 1, &table, &bytes, meta, NULL, e);
    free(table);
    return rc;
}

/* ---- any ---- */

static const struct sink sinks[] = {
    [TARGET_NATIVE] = { 1, 1, open_native, put_native, close_native, pack_tables, seal_native },
    [TARGET_HF] = { 0, 0, open_hf, put_hf, NULL, NULL, seal_hf },
    [TARGET_DCP] = { 1, 0, open_dcp, put_dcp, close_dcp, NULL, seal_dcp },
    [TARGET_UNIVERSAL] = { 0, 0, open_universal, put_universal, NULL, NULL, seal_universal },
    [TARGET_GGUF] = { 0, 0, open_gguf, put_gguf, NULL, NULL, seal_gguf },
    [TARGET_SERVE] = { 0, 0, open_serve, put_serve, NULL, NULL, seal_serve },
    [TARGET_MEGATRON] = { 1, 0, megatron_sink_open, megatron_sink_put, megatron_sink_close, NULL,
                          megatron_sink_seal },
};

int output_open(struct output *o, const struct plan *p, const struct dest *d, struct err *e)
{
    if (d->upload)
        dest_watch(&o->watch, d->upload);
    o->p = p;
    o->sink = &sinks[p->req->format];
    return o->sink->open(o, d->tmp, e);
}

void output_free(struct output *o)
{
    int n_units = o->p ? o->p->n_ranks * UNITS : 0;
    for (int u = 0; o->shard && u < n_units; u++)
        ckpt_shard_abort(o->shard[u]);
    for (int u = 0; o->table && u < n_units; u++)
        free(o->table[u]);
    hf_write_abort(o->hf);
    dcp_write_free(o->dcp);
    universal_write_free(o->universal);
    gguf_write_abort(o->gguf);
    panels_write_abort(o->serve);
    megatron_sink_free(o);
    free(o->shard);
    free(o->table);
    free(o->table_bytes);
    free(o->list);
}

int output_owns(const struct output *o, const struct target_piece *q)
{
    return !o->sink->by_unit || output_is_ours(o->p, q->unit);
}

int output_put(struct output *o, int target, const struct target_piece *q, const void *data, int64_t n,
               struct err *e)
{
    return o->sink->put(o, target, q, data, n, e);
}

int output_digest(struct output *o, const struct target_piece *q, struct ckpt_digest *d, struct err *e)
{
    return ckpt_shard_check(o->shard[q->unit], q->index, d, e);
}

int output_close(struct output *o, int unit, struct err *e)
{
    return o->sink->close && output_is_ours(o->p, unit) ? o->sink->close(o, unit, e) : 0;
}

/* ---- the small files ---- */

struct extras {
    int n;
    const char **name;
    const void **data;
    size_t *bytes;
};

static int add_extra(struct extras *x, const char *name, void *data, size_t bytes, struct err *e)
{
    if (!data)
        return err_set(e, ERR_MEMORY, "no memory for %s", name);
    x->name[x->n] = name;
    x->data[x->n] = data;
    x->bytes[x->n++] = bytes;
    return 0;
}

static int add_text(struct extras *x, const char *name, char *text, struct err *e)
{
    for (int i = 0; i < x->n; i++)
        if (!strcmp(x->name[i], name)) {
            free(text);
            return 0; /* SRC has its own */
        }
    return add_extra(x, name, text, text ? strlen(text) : 0, e);
}

static int has_tokenizer(const struct extras *x)
{
    for (int i = 0; i < x->n; i++)
        if (!strcmp(x->name[i], "tokenizer.json") || !strcmp(x->name[i], "tokenizer.model"))
            return 1;
    return 0;
}

static int collect_extras(const struct plan *p, struct extras *x, struct err *e)
{
    int n = ckpt_n_extra(p->src), rc = 0;
    size_t most = (size_t)n + 5;
    x->name = calloc(most, sizeof *x->name);
    x->data = calloc(most, sizeof *x->data);
    x->bytes = calloc(most, sizeof *x->bytes);
    if (!x->name || !x->data || !x->bytes)
        return err_set(e, ERR_MEMORY, "no memory for %d small files", n);

    if (p->cuts)
        TRY(add_text(x, CKPT_CUTS, strdup(p->cuts), e));
    for (int i = 0; i < n; i++) {
        void *data = NULL;
        size_t bytes = 0;
        if ((p->cuts && !strcmp(ckpt_extra_name(p->src, i), CKPT_CUTS)) ||
            (p->req->format == TARGET_MEGATRON && !strcmp(ckpt_extra_name(p->src, i), QUANT_KEPT_FILE)))
            continue; /* the table is there already; of what --requantize needs nothing is kept */
        TRY(ckpt_extra_read(p->src, i, &data, &bytes, e));
        TRY(add_extra(x, ckpt_extra_name(p->src, i), data, bytes, e));
    }

    if (p->req->format == TARGET_HF && p->has_model && p->cfg.vocab == 256 && !has_tokenizer(x)) {
        TRY(add_text(x, "tokenizer.json", byte_tokenizer_json(), e));
        TRY(add_text(x, "tokenizer_config.json", byte_tokenizer_config_json(p->cfg.max_pos), e));
        TRY(add_text(x, "generation_config.json", byte_generation_config_json(&p->cfg), e));
    }
out:
    return rc < 0 ? rc : 0;
}

/* ---- sealing: rank 0 makes one checkpoint of all tables ---- */

static int seal(struct output *o, const char *tmp, char *blob, size_t n, struct err *e)
{
    const struct plan *p = o->p;
    const struct layout *l = &p->req->layout;
    struct extras x = { 0 };
    struct ckpt_meta meta = { .layout = { l->tp, l->pp, l->cp, l->dp, l->ep, l->zero },
                              .state = target_state(p),
                              /* an adapter is no model: transformers would take its folder for one */
                              .config_json = p->req->format == TARGET_HF && peft_is(p->src) ? NULL
                                                                                            : p->config };
    int rc = 0;
    TRY(collect_extras(p, &x, e));

    meta.n_extra = x.n;
    meta.extra_name = x.name;
    meta.extra_data = x.data;
    meta.extra_bytes = x.bytes;
    TRY(o->sink->seal(o, tmp, blob, n, &meta, e));
out:
    for (int i = 0; x.data && i < x.n; i++)
        free((void *)x.data[i]);
    free(x.name);
    free(x.data);
    free(x.bytes);
    return rc < 0 ? rc : 0;
}

int output_seal(struct output *o, const char *tmp, struct err *e)
{
    const struct procs *procs = o->p->req->procs;
    char *blob = NULL;
    void *all = NULL;
    size_t n = 0;
    int rc = o->sink->pack ? o->sink->pack(o, &blob, &n, e) : 0;
    TRY(procs_agree(procs, rc, e));
    TRY(procs_gather(procs, blob, n, &all, &n, e));
    free(blob);
    blob = NULL;
    rc = procs_agree(procs, procs_rank(procs) ? 0 : seal(o, tmp, all, n, e), e);
out:
    free(blob);
    free(all);
    return rc < 0 ? rc : 0;
}
