/* megatron_write.c - see megatron_write.h: the arrays of a target, from the names of its tensors.
 * megatron_write_pieces.c writes their elements, megatron_write_meta.c and megatron_common.c what is around
 * them. */
#include "format/megatron_write.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/megatron/megatron_write_priv.h"
#include "format/torch/pickle_write.h"

#define FORMAT "--format megatron-dist"
#define LAYERS "model.layers."

/* The models whose layers Megatron-Core has and mg_rows names. */
static const char *const written[] = { "llama",     "mistral",   "qwen2",       "qwen3",      "mixtral",
                                       "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3" };

static int check_model(const char *config, struct err *e)
{
    json_t *o = jx_parse(config ? config : "{}", config ? strlen(config) : 2, FMT_CONFIG, e);
    const char *type = json_string_value(json_object_get(o, "model_type"));
    int known = 0, rc = 0;
    for (size_t i = 0; type && i < sizeof written / sizeof *written; i++)
        known |= !strcmp(type, written[i]);
    if (!o)
        rc = -e->code;
    else if (!known)
        rc = err_set(e, ERR_USAGE,
                     FORMAT
                     ": Megatron's layers are those of llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, "
                     "qwen3_moe and deepseek, not of %.60s: use --format dcp",
                     type ? type : "a model without config.json");
    json_decref(o);
    return rc;
}

/* ---- names ---- */

/* A number and a dot at s: the text behind them, and the number; NULL: there is none. */
static const char *number_in(const char *s, int64_t *number)
{
    char *end;
    if (!isdigit((unsigned char)*s))
        return NULL;
    *number = strtoll(s, &end, 10);
    return *end == '.' && *number < 1 << 20 ? end + 1 : NULL;
}

/* The row that names tensor `name`, and which part of it; NULL: none does. layer, expert -1: none. */
static const struct mg_row *row_of(enum mg_family family, const char *name, int *hf, int64_t *layer,
                                   int64_t *expert)
{
    char plain[FMT_NAME_MAX];
    const char *rest = NULL, *at, *tail;

    *layer = *expert = -1;
    if (!strncmp(name, LAYERS, sizeof LAYERS - 1))
        rest = number_in(name + sizeof LAYERS - 1, layer);
    if (!rest)
        *layer = -1;
    snprintf(plain, sizeof plain, "%s", rest ? rest : name);
    at = strstr(plain, "experts.");
    if (at && (tail = number_in(at + 8, expert))) {
        char behind[FMT_NAME_MAX];
        snprintf(behind, sizeof behind, "%s", tail);
        snprintf(plain + (at + 8 - plain), sizeof plain - (size_t)(at + 8 - plain), "#.%s", behind);
    }

    for (int i = 0; i < mg_n_rows; i++)
        for (*hf = 0; *hf < 3 && mg_rows[i].in_layer == (rest != NULL); ++*hf)
            if (mg_rows[i].hf[family][*hf] && !strcmp(mg_rows[i].hf[family][*hf], plain))
                return &mg_rows[i];
    return NULL;
}

void mgw_key(const struct mg_row *r, int layer, char out[MGW_KEY_ROOM])
{
    if (!r->in_layer)
        snprintf(out, MGW_KEY_ROOM, "%s", r->key);
    else if (layer < 0)
        snprintf(out, MGW_KEY_ROOM, "decoder.layers.%s", r->key);
    else
        snprintf(out, MGW_KEY_ROOM, "decoder.layers.%d.%s", layer, r->key);
}

int mgw_same_row(const struct megatron_write *w, const struct mg_row *a, const struct mg_row *b)
{
    for (int i = 0; i < 3; i++) {
        const char *x = a->hf[w->m.s.family][i], *y = b->hf[w->m.s.family][i];
        if (!x != !y || (x && strcmp(x, y)))
            return 0;
    }
    return 1;
}

/* ---- which tensors ---- */

/* Names every tensor, and finds the numbers of layers and experts. */
static int name_tensors(struct megatron_write *w, const struct mg_row **row, struct err *e)
{
    for (int i = 0; i < w->what.n; i++) {
        const struct ckpt_tensor *t = &w->what.t[i];
        struct mgw_tensor *x = &w->tensor[i];
        int rc = pkw_check_dtype(t, "megatron-dist", e);
        if (rc < 0)
            return rc;
        row[i] = row_of(w->m.s.family, t->name, &x->hf, &x->layer, &x->expert);
        if (!row[i] || t->n_dims > 2 || (row[i]->of_experts && x->expert < 0))
            return err_set(e, ERR_USAGE,
                           FORMAT ": %s is not a tensor that Megatron's layers have: use --format dcp",
                           t->name);
        if (x->layer >= w->m.s.layers)
            return err_set(e, ERR_CONFIG, FORMAT ": %s is of layer %lld, config.json says %lld layers",
                           t->name, (long long)x->layer, (long long)w->m.s.layers);
        w->n_experts = x->expert >= w->n_experts ? x->expert + 1 : w->n_experts;
    }
    w->n_layers = w->m.s.layers;
    return 0;
}

/* Layers are stacked when each has the same rows: weights decide. */
static int are_alike(const struct megatron_write *w, const struct mg_row *const *row, struct err *e)
{
    int64_t *count = calloc((size_t)mg_n_rows, sizeof *count);
    int alike = 1;
    if (!count)
        return err_set(e, ERR_MEMORY, "no memory for the names of a model");
    for (int i = 0; i < w->what.n && w->what.t[i].role == ROLE_WEIGHT; i++)
        if (w->tensor[i].layer >= 0 && w->tensor[i].hf == 0 && w->tensor[i].expert <= 0)
            count[row[i] - mg_rows]++;
    for (int i = 0; i < mg_n_rows; i++)
        alike &= count[i] == 0 || count[i] == w->n_layers;
    free(count);
    return alike;
}

/* ---- arrays ---- */

static int *slot_of(const struct megatron_write *w, enum ckpt_role role, const struct mg_row *r,
                    int64_t layer)
{
    int64_t of = w->stacked || layer < 0 ? 0 : layer, each = w->stacked ? 1 : w->n_layers;
    return &w->slot[((int64_t)role * mg_n_rows + (r - mg_rows)) * each + of];
}

const struct mgw_array *mgw_find(const struct megatron_write *w, enum ckpt_role role, const struct mg_row *r,
                                 int layer)
{
    int slot = *slot_of(w, role, r, layer);
    return slot ? &w->array[slot - 1] : NULL;
}

int mgw_has_state(const struct megatron_write *w)
{
    return w->what.n && w->what.t[w->what.n - 1].role != ROLE_WEIGHT; /* tensors are sorted by role */
}

/* Rows of the whole array, of which t is one part. */
static int64_t whole_rows(const struct megatron_write *w, const struct mg_row *r, const struct ckpt_tensor *t)
{
    const struct mg_shape *s = &w->m.s;
    return r->cut == MG_QKV     ? (s->heads + 2 * s->groups) * s->head_dim
           : r->cut == MG_GATED ? 2 * t->shape[0]
                                : t->shape[0];
}

static int add_array(struct megatron_write *w, const struct mg_row *r, const struct ckpt_tensor *t, int layer,
                     struct err *e)
{
    static const char *const prefix[ROLE_COUNT] = { "", "optimizer.state.param.", "optimizer.state.exp_avg.",
                                                    "optimizer.state.exp_avg_sq." };
    struct ckpt_tensor *y = &w->list[w->n_arrays];
    char key[MGW_KEY_ROOM], name[MGW_KEY_ROOM + 32];

    mgw_key(r, layer, key);
    snprintf(name, sizeof name, "%s%s", prefix[t->role], key);
    *y = (struct ckpt_tensor){ .name = strdup(name), .role = t->role, .dtype = t->dtype };
    if (!y->name)
        return err_set(e, ERR_MEMORY, "no memory for the names of %d tensors", w->what.n);
    if (r->in_layer && layer < 0)
        y->shape[y->n_dims++] = w->n_layers;
    if (r->of_experts)
        y->shape[y->n_dims++] = w->n_experts;
    y->shape[y->n_dims++] = whole_rows(w, r, t);
    if (t->n_dims > 1)
        y->shape[y->n_dims++] = t->shape[1];
    w->array[w->n_arrays++] = (struct mgw_array){
        .row = r, .layer = layer, .rows = whole_rows(w, r, t), .cols = t->n_dims > 1 ? t->shape[1] : 1
    };
    return 0;
}

static int check_shape(const struct megatron_write *w, const struct ckpt_tensor *t,
                       const struct mgw_tensor *x, struct err *e)
{
    const struct mgw_array *a = &w->array[x->array];
    const struct ckpt_tensor *y = &w->list[x->array];
    int64_t rows = mg_rows_of(&w->m, a->row, a->rows, x->hf), cols = t->n_dims > 1 ? t->shape[1] : 1;
    if (t->shape[0] != rows || cols != a->cols)
        return err_set(e, ERR_CONFIG,
                       FORMAT ": %s is [%lld,%lld], its place in %s is [%lld,%lld]: is it the config of "
                              "another model",
                       t->name, (long long)t->shape[0], (long long)cols, y->name, (long long)rows,
                       (long long)a->cols);
    if (t->dtype != y->dtype)
        return err_set(e, ERR_USAGE, FORMAT ": %s is %s, other parts of %s are %s: give one --dtype", t->name,
                       stored_dtype_name(t->dtype), y->name, stored_dtype_name(y->dtype));
    return 0;
}

static int add_arrays(struct megatron_write *w, const struct mg_row *const *row, struct err *e)
{
    size_t n = (size_t)w->what.n + 1,
           slots = (size_t)ROLE_COUNT * (size_t)mg_n_rows * (size_t)(w->stacked ? 1 : w->n_layers);
    int rc = 0;
    w->list = calloc(n, sizeof *w->list);
    w->array = calloc(n, sizeof *w->array);
    w->slot = calloc(slots, sizeof *w->slot);
    if (!w->list || !w->array || !w->slot)
        return err_set(e, ERR_MEMORY, "no memory for a plan of %d tensors", w->what.n);

    for (int i = 0; i < w->what.n; i++) {
        struct mgw_tensor *x = &w->tensor[i];
        const struct ckpt_tensor *t = &w->what.t[i];
        int *slot = slot_of(w, t->role, row[i], x->layer);
        if (!*slot) {
            TRY(add_array(w, row[i], t, w->stacked || x->layer < 0 ? -1 : (int)x->layer, e));
            *slot = w->n_arrays;
        }
        x->array = *slot - 1;
        TRY(check_shape(w, t, x, e));
    }
out:
    return rc < 0 ? rc : 0;
}

static int make_room(struct megatron_write *w, struct err *e)
{
    w->tensor = calloc((size_t)w->what.n + 1, sizeof *w->tensor);
    w->piece = calloc((size_t)w->what.n_files + 1, sizeof *w->piece);
    int ok = w->tensor && w->piece;
    for (int f = 0; ok && f < w->what.n_files; f++)
        ok = (w->piece[f] = calloc((size_t)w->what.n_pieces[f] + 1, sizeof **w->piece)) != NULL;
    return ok ? 0 : err_set(e, ERR_MEMORY, "no memory for a plan of %d tensors", w->what.n);
}

int megatron_write_open(struct megatron_write **out, const struct megatron_target *what, struct err *e)
{
    const struct mg_row **row = calloc((size_t)what->n + 1, sizeof *row);
    struct megatron_write *w = calloc(1, sizeof *w);
    int rc = 0, alike;

    if (!w || !row) {
        rc = err_set(e, ERR_MEMORY, "no memory for a plan of %d tensors", what->n);
        goto out;
    }
    w->what = *what;
    TRY(check_model(what->config, e));
    w->ckpt = (struct ckpt){ .path = (char *)what->dir, .config = (char *)what->config };
    w->build.c = &w->ckpt;
    w->m.b = &w->build;
    TRY(mg_shape_read(&w->m, NULL, FORMAT, e));
    TRY(make_room(w, e));
    TRY(name_tensors(w, row, e));
    TRY(alike = are_alike(w, row, e));
    w->stacked = alike;
    TRY(add_arrays(w, row, e));
out:
    free(row);
    if (rc < 0)
        megatron_write_free(w);
    else
        *out = w;
    return rc < 0 ? rc : 0;
}

void megatron_write_free(struct megatron_write *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->n_arrays; i++)
        free((char *)w->list[i].name);
    for (int f = 0; w->piece && f < w->what.n_files; f++)
        free(w->piece[f]);
    dcp_write_free(w->dcp);
    free(w->piece);
    free(w->tensor);
    free(w->list);
    free(w->array);
    free(w->slot);
    free(w->segment);
    free(w);
}
