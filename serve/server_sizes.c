/* server_sizes.c - how long a context, how many pages, how many rows in a step: from options and free memory.
 * See server.h. */
#include "serve/server.h"

#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "comm/memory_place.h"
#include "serve/weights/mapped_weights.h"

#define LOGITS_BYTES ((int64_t)64 << 20) /* of prompt rows that want logits, in one step */

/* ---- memory ---- */

/* Bytes of all weights of a replica: as often as there are ranks with the same ones. */
static int64_t weight_bytes(const struct server *s, struct err *e)
{
    const struct layout lay = server_layout(s);
    struct param_table t;
    int64_t n = 0;
    int rc = param_table_open(&t, &s->loaded.cfg, e);
    if (rc < 0)
        return rc;
    for (int i = 0; i < t.n; i++)
        n += param_count(&t.p[i]) * (lay.dp / (t.p[i].expert < 0 ? 1 : layout_fold(&lay)));
    param_table_close(&t);
    return n * (int64_t)dtype_size(server_dtype(s));
}

/* Bytes of a page of a group on all ranks of a replica together, of which those of cp that share memory have
 * one; 0: there is no such group. */
static int64_t page_bytes(const struct server *s, int group)
{
    const struct model_config *c = &s->loaded.cfg;
    int64_t layers = model_group_layers(c, group, c->n_layers);
    return (int64_t)model_page_bytes_of(c, (int)s->o.tp, server_dtype(s), server_kv_kind(s)) * s->o.tp *
           layers * (s->o.cp / replica_place(&s->ranks));
}

int64_t server_kv_bytes(const struct server *s)
{
    int64_t bytes = 0;
    for (int g = 0; g < PAGE_GROUPS; g++)
        bytes += s->size.pool[g].n_pages * page_bytes(s, g);
    return bytes;
}

/* Sets *bytes to what keys and values of all ranks together may take: half of the machine's free memory after
 * the rest; of GPUs, which other programs are not expected to use, four fifths. The rank with the least
 * counts for all, because pages are cut alike. rest: bytes of all ranks together. Collective. */
static int find_kv_memory(struct server *s, int64_t rest, int64_t *bytes, struct err *e)
{
    const int n = comm_size(s->mesh.all);
    const int64_t none[MEM_CATS] = { 0 };
    struct memory_place *place = NULL;
    int n_places = 0;
    int64_t least = INT64_MAX;
    int rc = memory_places(s->mesh.all, s->dev, none, &place, &n_places, e);

    for (int i = 0; rc >= 0 && i < n_places; i++) {
        int64_t share = place[i].memory.free_bytes / place[i].n_ranks;
        least = share < least ? share : least;
    }
    if (rc >= 0)
        *bytes = place[0].is_gpu ? (least * n - rest) / 5 * 4 : (least * n - rest) / 2;
    free(place);
    return rc;
}

struct layout server_layout(const struct server *s)
{
    return (struct layout){
        .tp = (int)s->o.tp, .pp = (int)s->o.pp, .cp = 1, .dp = (int)s->o.cp, .ep = (int)s->o.ep
    };
}

struct rank_at server_place(const struct server *s)
{
    const struct layout lay = server_layout(s);
    return layout_at(&lay, comm_rank(s->ranks.all));
}

/* Bytes of a step's buffers at contexts of ctx tokens. m: from model_shape(). */
static int64_t work_bytes(const struct server *s, struct model *m, int64_t ctx)
{
    const struct step_limits step = engine_step(&s->size);

    m->tp = s->ranks.tp; /* borrowed: its size is asked for */
    m->adapter_rank = s->adapter_start.rank;
    const int64_t rows = step_model_rows(&s->ranks, &step);
    return (int64_t)(step_work_measure(m, &s->ranks, &step) + model_tables_measure(m, rows, ctx) +
                     adapter_room_measure(m, rows, s->adapter_start.rank));
}

/* The shape of this rank's part of the model, if it were on that stage; the caller closes m. */
static int shape_rank(const struct server *s, int stage, struct model *m, struct err *e)
{
    const struct layout lay = server_layout(s);
    struct rank_at at = server_place(s);
    at.pp = stage;
    int rc = model_shape(m, &s->loaded.cfg, &lay, at, server_dtype(s), s->o.numerics, e);
    m->kv = server_kv_kind(s);
    return rc;
}

/* Bytes of this rank's keys and values. */
static int64_t rank_kv_bytes(const struct server *s, const struct model *m)
{
    int64_t layers = 0;
    for (int g = 0; g < PAGE_GROUPS; g++)
        layers += s->size.pool[g].n_pages * model_page_layers(m, g, m->n_layers);
    return layers * (int64_t)model_page_bytes(m) / replica_place(&s->ranks);
}

/* A server that follows reads the next version beside the present one, into memory that it keeps. */
static int keeps_two(const struct server *s) { return s->o.follow && !s->dev->memory; }

/* Bytes that all ranks hold besides keys and values: weights, and a step's buffers at the longest context
 * that may be chosen. Negative: an error. */
static int64_t rest_bytes(const struct server *s, struct err *e)
{
    const struct model_config *c = &s->loaded.cfg;
    struct model m;
    int64_t weights = weight_bytes(s, e), work = 0;
    size_t reading;

    if (weights < 0)
        return weights;
    for (int stage = 0; stage < s->o.pp; stage++) {
        int rc = shape_rank(s, stage, &m, e);
        if (rc < 0)
            return rc;
        work += work_bytes(s, &m, s->o.ctx && s->o.ctx < c->max_pos ? s->o.ctx : c->max_pos);
        resident_measure(&m, &reading);
        work += keeps_two(s) ? (int64_t)reading : 0;
        model_close(&m);
    }
    weights *= keeps_two(s) ? 2 : 1;
    return (weights + work * s->o.tp * s->o.cp) * s->o.replicas;
}

/* What a rank will hold: weights and packs, keys and values, a step's buffers; what reading the weights needs
 * besides is free again when the latter two are taken, unless the server follows. */
static int measure_rank(const struct server *s, int64_t bytes[MEM_CATS], struct err *e)
{
    struct model m;
    size_t reading;
    int rc = shape_rank(s, replica_pp_rank(&s->ranks), &m, e);
    if (rc < 0)
        return rc;
    int64_t kv = rank_kv_bytes(s, &m), work = work_bytes(s, &m, s->service.ctx),
            adapters = server_measure_adapters(s, &m, e);
    const int64_t weights = (int64_t)resident_measure(&m, &reading);
    bytes[MEM_PARAMS] = weights + adapters;
    bytes[MEM_PARAMS] -= mapped_weights_measure(s->loaded.ckpt, &m, s->dev);
    bytes[MEM_PARAMS] += keeps_two(s) ? weights : 0;
    bytes[MEM_KV] = kv;
    bytes[MEM_WORK] = (int64_t)reading > kv + work ? (int64_t)reading - kv : work;
    if (keeps_two(s)) /* the next version is read while steps run */
        bytes[MEM_WORK] = work + (int64_t)reading;
    model_close(&m);
    return adapters < 0 ? (int)adapters : 0;
}

/* Refuses weights and pages that the machine, or a GPU, does not hold. Collective. */
static int check_memory(struct server *s, struct err *e)
{
    int64_t bytes[MEM_CATS] = { 0 };
    struct memory_place *place = NULL;
    char need[MEMORY_PLACE_TEXT], kv[32];
    int n = 0, rc = measure_rank(s, bytes, e);
    TRY(comm_agree(s->mesh.all, rc, e));
    TRY(memory_places(s->mesh.all, s->dev, bytes, &place, &n, e));
    memory_place_text(place, need);
    if (!memory_place_is_full(place)) {
        if (s->o.verbose)
            log_line(&s->log, "%s", need);
        goto out;
    }

    /* every rank sees the same places, so all refuse alike */
    int64_t left = place->memory.free_bytes - (place->total_bytes - place->bytes[MEM_KV]);
    log_bytes(kv, (double)left * comm_size(s->mesh.all) / place->n_ranks);
    rc = left > 0
             ? err_set(e, ERR_USAGE, "%s: use --kv-memory %s or less, or more ranks on more machines (--tp)",
                       need, kv)
             : err_set(e, ERR_USAGE, "%s: use --dtype bf16, or more ranks on more machines (--tp)", need);
out:
    free(place);
    return rc < 0 ? rc : 0;
}

/* ---- sizes ---- */

/* The tokens of a context: --ctx, else the model's, else as many as the memory of w holds. */
static int choose_context(struct server *s, struct kv_sizing *w, struct err *e)
{
    const int64_t max_pos = s->loaded.cfg.max_pos, fits = kv_longest(w, max_pos);

    if (s->o.ctx > max_pos)
        return err_set(e, ERR_USAGE,
                       "--ctx %lld is longer than the model's %lld positions (max_position_embeddings)",
                       (long long)s->o.ctx, (long long)max_pos);

    if (s->o.ctx)
        w->ctx = s->o.ctx;
    else
        w->ctx = fits ? fits : max_pos; /* kv_count_pages() refuses the latter */
    if (!s->o.ctx && w->ctx < max_pos)
        log_line(&s->log,
                 "the context is %lld of the model's %lld tokens: more does not fit into the memory for keys "
                 "and values",
                 (long long)w->ctx, (long long)max_pos);
    s->service.ctx = w->ctx;
    return 0;
}

/* How many rows a step has, from the options. */
static void set_rows(struct server *s)
{
    int64_t logit_rows = LOGITS_BYTES / (s->loaded.cfg.vocab * (int64_t)sizeof(float));

    logit_rows = logit_rows < 1 ? 1 : logit_rows;
    s->size.max_seqs = (int)s->o.max_batch;
    s->size.chunk = s->o.prefill_chunk;
    s->size.prefix_cache = !s->o.prefix_cache; /* the option's index: on, off */
    if (s->o.speculate) {
        int64_t most = (s->drafts.most ? s->drafts.most : DRAFT_MOST) * s->o.max_batch;
        s->size.drafts = most < DRAFT_ROWS ? most : DRAFT_ROWS;
    }
    s->size.max_wants = s->size.max_seqs + s->size.drafts +
                        (logit_rows < s->size.chunk ? logit_rows : s->size.chunk);
}

/* Rank 0 alone: free memory may be different elsewhere. kv_bytes: of all replicas. */
static int decide_sizes(struct server *s, int64_t kv_bytes, struct err *e)
{
    const struct model_config *c = &s->loaded.cfg;
    const int64_t replicas = s->o.replicas;
    struct kv_sizing w = { .max_seqs = s->o.max_batch,
                           .bytes = (s->o.kv_memory + replicas - 1) / replicas, /* 0 stays: not given */
                           .free_bytes = kv_bytes / replicas,
                           .chunk = s->o.prefill_chunk };
    int32_t n_pages[PAGE_GROUPS] = { 0 };
    int rc;

    for (int g = 0; g < PAGE_GROUPS; g++) {
        w.group[g].page_bytes = page_bytes(s, g);
        w.group[g].window = model_group_window(c, g);
    }
    const int64_t drafts = draft_page_bytes(&s->drafts, &s->loaded, (int)s->o.speculate_tp, server_dtype(s),
                                            server_kv_kind(s), e);
    if (drafts < 0)
        return (int)drafts;
    w.group[0].page_bytes += drafts;
    rc = choose_context(s, &w, e);
    if (rc < 0)
        return rc;

    rc = kv_count_pages(&w, n_pages, e);
    for (int g = 0; g < PAGE_GROUPS; g++)
        s->size.pool[g] = (struct kv_pool){ n_pages[g], w.group[g].window };
    if (rc < 0 && drafts)
        err_add(e, "with the pages of a draft model");
    return rc < 0 && replicas > 1 ? err_add(e, "each of %lld replicas", (long long)replicas) : rc;
}

int server_share_sizes(struct server *s, struct err *e)
{
    int64_t ctx, kv_bytes, rest;
    int rc;
    if (server_kv_kind(s) != KV_OWN && strcmp(s->o.device, "cpu"))
        return err_set(e, ERR_USAGE,
                       "--kv-dtype %s runs on --device cpu: --device %s has no kernels for such pages",
                       kv_kind_name(server_kv_kind(s), server_dtype(s)), s->o.device);
    set_rows(s);
    rest = rest_bytes(s, e);
    TRY(comm_agree(s->mesh.all, rest < 0 ? (int)rest : 0, e));
    TRY(find_kv_memory(s, rest, &kv_bytes, e));

    rc = server_is_first(s) ? decide_sizes(s, kv_bytes, e) : 0;
    TRY(comm_agree(s->mesh.all, rc, e));
    TRY(comm_broadcast(s->mesh.all, &s->size, sizeof s->size, 0, e));
    ctx = s->service.ctx;
    TRY(comm_broadcast(s->mesh.all, &ctx, sizeof ctx, 0, e));
    s->service.ctx = ctx;
    s->service.prefix_cache = s->size.prefix_cache;
    rc = check_memory(s, e);
out:
    return rc;
}
