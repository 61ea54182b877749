/* megatron_write_meta.c - writes .metadata and the file of objects.
 *
 * An array can have several keys. A norm in front of a layer is one of the projection behind it
 * (linear_qkv.layer_norm_weight: local layers of 0.16, Transformer Engine) or a module of its own
 * (input_layernorm: latent attention; pre_mlp_layernorm: experts of Transformer Engine). The masters are
 * optimizer.state.param (fully_reshardable) and optimizer.state.fp32_param (the optimizer that is not
 * distributed); without masters the weights stand for them. All keys of an array name the same bytes.
 *
 * Layers have an extra state, which is None without FP8. Megatron loads it by name: one stored object has all
 * of these names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/megatron/megatron_write_priv.h"
#include "format/dcp/dcp_put.h"

struct table {
    const struct megatron_write *w;
    struct dcp_chunks chunks;
    struct pkw p;
    int64_t object_bytes;
};

/* ---- keys of arrays ---- */

#define PREFIXES 3
static const char *const prefixes[ROLE_COUNT][PREFIXES] = {
    [ROLE_WEIGHT] = { "", "optimizer.state.param.", "optimizer.state.fp32_param." },
    [ROLE_MASTER] = { "optimizer.state.param.", "optimizer.state.fp32_param." },
    [ROLE_EXP_AVG] = { "optimizer.state.exp_avg." },
    [ROLE_EXP_AVG_SQ] = { "optimizer.state.exp_avg_sq." },
};

/* Weights are their own masters where the optimizer has moments for them and no masters. */
static int n_prefixes(const struct megatron_write *w, int array)
{
    const struct mgw_array *a = &w->array[array];
    enum ckpt_role role = w->list[array].role;
    int n = 0;
    if (role == ROLE_WEIGHT &&
        (!mgw_find(w, ROLE_EXP_AVG, a->row, a->layer) || mgw_find(w, ROLE_MASTER, a->row, a->layer)))
        return 1;
    while (n < PREFIXES && prefixes[role][n])
        n++;
    return n;
}

/* The keys of an array, one after the other; starts with {0, 0}. */
struct keys {
    int prefix, row;
};
static int next_key(const struct megatron_write *w, int array, struct keys *k, char key[MGW_KEY_ROOM])
{
    const struct mgw_array *a = &w->array[array];
    char plain[MGW_KEY_ROOM];
    for (int n = n_prefixes(w, array); k->prefix < n; k->prefix++, k->row = 0)
        for (; k->row < mg_n_rows; k->row++) {
            const struct mg_row *r = &mg_rows[k->row];
            if (!r->hf[w->m.s.family][0] || r->in_layer != a->row->in_layer || !mgw_same_row(w, r, a->row))
                continue;
            mgw_key(r, a->layer, plain);
            snprintf(key, MGW_KEY_ROOM, "%s%.*s", prefixes[w->list[array].role][k->prefix], FMT_NAME_MAX,
                     plain);
            k->row++;
            return 1;
        }
    return 0;
}

/* ---- keys of extra states ---- */

/* Modules without parameters that have one. */
#define CORE_ATTENTION "self_attention.core_attention."

/* The module of a row that has an extra state: the length of its key up to the last dot; 0: none. */
static int module_of(const struct mg_row *r)
{
    static const char *const without[] = { "embedding.", "output_layer.", "mlp.router.",
                                           "mlp.shared_experts.gate_weight" };
    int n = (int)strlen(r->key);
    for (size_t i = 0; i < sizeof without / sizeof *without; i++)
        if (!strncmp(r->key, without[i], strlen(without[i])))
            return 0;
    return n > 7 && !strcmp(r->key + n - 7, ".weight") ? n - 6 : 0;
}

typedef void put_extra(struct table *b, const char *key);

/* Calls put for the extra states of one module; layer as in struct mgw_array. */
static void each_shard(struct table *b, const char *module, const struct mgw_array *a, put_extra *put)
{
    const struct megatron_write *w = b->w;
    int by_layer = a->row->in_layer && a->layer < 0;
    int64_t n_layers = by_layer ? w->n_layers : 1, n_experts = a->row->of_experts ? w->n_experts : 1;
    char key[MGW_KEY_ROOM + 96];

    for (int64_t i = 0; i < n_layers * n_experts; i++) {
        long long l = i / n_experts, x = i % n_experts, n_l = n_layers, n_x = n_experts;
        if (by_layer && a->row->of_experts)
            snprintf(key, sizeof key, "%s_extra_state/shard_%lld.%lld_%lld.%lld", module, l, x, n_l, n_x);
        else
            snprintf(key, sizeof key, "%s_extra_state/shard_%lld_%lld", module, (long long)i,
                     (long long)(n_layers * n_experts));
        put(b, key);
    }
}

static void each_extra(struct table *b, put_extra *put)
{
    const struct megatron_write *w = b->w;
    char key[MGW_KEY_ROOM], module[MGW_KEY_ROOM];
    for (int i = 0; i < w->n_arrays && w->list[i].role == ROLE_WEIGHT; i++) {
        const struct mgw_array *a = &w->array[i];
        for (int k = 0; k < mg_n_rows; k++) {
            const struct mg_row *r = &mg_rows[k];
            if (!r->hf[w->m.s.family][0] || r->in_layer != a->row->in_layer || !mgw_same_row(w, r, a->row) ||
                !module_of(r))
                continue;
            mgw_key(r, a->layer, key);
            snprintf(module, sizeof module, "%.*s", (int)strlen(key) - 6, key);
            each_shard(b, module, a, put);
        }
        if (!strcmp(a->row->key, "self_attention.linear_proj.weight")) {
            mgw_key(&(struct mg_row){ .key = CORE_ATTENTION, .in_layer = 1 }, a->layer, key);
            each_shard(b, key, a, put);
        }
    }
}

/* ---- sections ---- */

static void put_extra_object(struct table *b, const char *key)
{
    pkw_text(&b->p, key);
    dcp_put_object(&b->p);
}

static void put_contents(void *arg)
{
    struct table *b = arg;
    char key[MGW_KEY_ROOM];
    for (int i = 0; i < b->w->n_arrays; i++)
        for (struct keys k = { 0, 0 }; next_key(b->w, i, &k, key);) {
            pkw_text(&b->p, key);
            dcp_put_tensor(&b->p, b->w->dcp, &b->chunks, i);
        }
    each_extra(b, put_extra_object);
}

static void put_extra_place(struct table *b, const char *key)
{
    dcp_put_place(&b->p, key, -1, NULL, DCP_OBJECTS, 0, b->object_bytes);
}

static void put_places(void *arg)
{
    struct table *b = arg;
    char key[MGW_KEY_ROOM];
    for (int i = 0; i < b->w->n_arrays; i++)
        for (struct keys k = { 0, 0 }; next_key(b->w, i, &k, key);)
            dcp_put_tensor_places(&b->p, b->w->dcp, &b->chunks, i, key);
    each_extra(b, put_extra_place);
}

/* The value of every extra state: a list of one None. */
static int write_object(struct table *b, struct err *e)
{
    char *path = io_join(b->w->what.dir, DCP_OBJECTS);
    struct pkw p = { 0 };
    struct torch_out z = { .root = "archive" };
    int fd = -1, rc = path ? 0 : err_set(e, ERR_MEMORY, "no memory for the path of " DCP_OBJECTS);
    TRY(rc);
    pkw_begin(&p);
    pkw_op(&p, PKW_LIST);
    pkw_op(&p, PKW_MARK);
    pkw_op(&p, PKW_NONE);
    pkw_op(&p, PKW_APPENDS);
    TRY(pkw_end(&p, e));
    z.pickle = p.b.p;
    z.n_pickle = p.b.n;
    TRY(torch_out_plan(&z, e));
    TRY(fd = io_create(path, e));
    TRY(torch_out_frame(&z, fd, path, 0, e));
    b->object_bytes = z.length;
    rc = io_sync_close(fd, path, e);
    fd = -1;
out:
    io_close(fd);
    pkw_free(&p);
    free(path);
    return rc < 0 ? rc : 0;
}

int mgw_write_metadata(struct megatron_write *w, struct err *e)
{
    struct table b = { .w = w };
    int rc = 0;
    TRY(write_object(&b, e));
    TRY(dcp_chunks_sort(&b.chunks, w->dcp, e));
    TRY(dcp_put_metadata(&b.p, w->what.dir, &(struct dcp_sections){ &b, put_contents, NULL, put_places }, e));
out:
    dcp_chunks_free(&b.chunks);
    pkw_free(&b.p);
    return rc < 0 ? rc : 0;
}
