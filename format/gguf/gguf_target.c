/* gguf_target.c - which tensors a GGUF file has, of which type, and from which tensors of the source. See
 * gguf_write.h; gguf_out.c makes their values. */
#include "format/gguf/gguf_target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/ckpt_view.h"
#include "format/quant_view.h"
#include "format/gguf/gguf_block_encode.h"

#define ROW(id) gguf_type_row(id)

/* Architectures of which llama.cpp wants a head also where it is the embedding. */
static const char *const with_head[] = { "qwen2moe", "gpt-oss", "gptneox" };

const char *gguf_arch(const char *model_type)
{
    const struct gguf_family *f = gguf_family_of_config(model_type);
    return f ? f->arch : NULL;
}

int gguf_is_block_type(const char *name)
{
    const struct gguf_type_row *row = gguf_type_named(name);
    return row && gguf_can_encode(row->id);
}

enum stored_dtype gguf_view_dtype(const struct gguf_out *o)
{
    return o->type->values > 1 ? STORED_U8 : (enum stored_dtype)o->type->dtype;
}

int64_t gguf_out_bytes(const struct gguf_out *o) { return o->n / o->type->values * o->type->bytes; }

/* ---- one tensor ---- */

static struct gguf_out *add_out(struct gguf_target *t, const char *name, int n_src)
{
    if (t->n == t->room) {
        int room = t->room ? t->room * 2 : 64;
        struct gguf_out *grown = realloc(t->out, sizeof *grown * (size_t)room);
        if (!grown)
            return NULL;
        t->out = grown;
        t->room = room;
    }
    struct gguf_out *o = &t->out[t->n];
    *o = (struct gguf_out){ .name = strdup(name),
                            .layer = -1,
                            .n_src = n_src,
                            .src = malloc(sizeof(int) * (size_t)(n_src ? n_src : 1)),
                            .scales = -1,
                            .t = t };
    t->n++; /* freed with the others, whatever is missing */
    if (!o->name || !o->src)
        return NULL;
    for (int i = 0; i < n_src; i++)
        o->src[i] = -1;
    return o;
}

static void set_shape(struct gguf_out *o, int n_dims, const int64_t *shape)
{
    o->n_dims = n_dims;
    o->n = 1;
    for (int i = 0; i < n_dims; i++)
        o->n *= o->shape[i] = shape[i];
    o->row = shape[n_dims - 1];
}

/* Whether the source has the dims that this form needs. */
static int shape_fits(const struct gguf_target *t, enum gguf_form form, const struct ckpt_tensor *s)
{
    int64_t heads = form == GGUF_ROPE_K ? t->n_kv : t->n_heads, rows = s->shape[0];
    switch (form) {
    case GGUF_TRANSPOSED: return 1; /* of one dim: a bias, as it is */
    case GGUF_ROPE_Q:
    case GGUF_ROPE_K: return s->n_dims <= 2 && heads > 0 && rows % (2 * heads) == 0;
    case GGUF_QKV: return s->n_dims <= 2 && heads > 0 && rows % (3 * heads) == 0;
    case GGUF_ROW: return s->n_dims == 1 || (s->n_dims == 2 && s->shape[0] == 1);
    case GGUF_EXPERT: return s->n_dims <= 3;
    case GGUF_EVEN:
    case GGUF_ODD: return s->n_dims >= 2 && s->n_dims <= 3 && s->shape[s->n_dims - 1] % 2 == 0;
    case GGUF_KEY_B:
    case GGUF_VALUE_B: return s->n_dims == 2 && rows == t->n_heads * (t->nope_dim + t->v_dim);
    default: return 1;
    }
}

/* Shape in the file, from that of the source. */
static void shape_of(const struct gguf_target *t, struct gguf_out *o, const struct ckpt_tensor *s)
{
    int64_t shape[GGUF_DIMS + 1];
    int n = s->n_dims;
    memcpy(shape, s->shape, sizeof *shape * (size_t)n);
    if (o->form == GGUF_EXPERT) {
        memmove(shape + 1, shape, sizeof *shape * (size_t)n++);
        shape[0] = o->n_src;
    } else if (o->form == GGUF_TRANSPOSED && n > 1) {
        shape[n - 1] = s->shape[n - 2];
        shape[n - 2] = s->shape[n - 1];
    } else if (o->form == GGUF_EVEN || o->form == GGUF_ODD) {
        shape[n - 1] /= 2;
        if (n == 3) {
            shape[1] = s->shape[2] / 2;
            shape[2] = s->shape[1];
        }
    } else if (o->form == GGUF_KEY_B || o->form == GGUF_VALUE_B) {
        n = 3;
        shape[0] = t->n_heads;
        shape[1] = o->form == GGUF_KEY_B ? s->shape[1] : t->v_dim;
        shape[2] = o->form == GGUF_KEY_B ? t->nope_dim : s->shape[1];
    }
    set_shape(o, n, shape);
}

/* MXFP4 of Hugging Face: NAME_blocks [experts, rows, blocks, 16] and NAME_scales [experts, rows, blocks]. */
static int mxfp4_shape(struct gguf_out *o, const struct ckpt_tensor *blocks, const struct ckpt_tensor *scales,
                       struct err *e)
{
    const int64_t *s = blocks->shape;
    int halves = o->form == GGUF_EVEN || o->form == GGUF_ODD ? 2 : 1;
    if (!scales || blocks->n_dims != 4 || scales->n_dims != 3 || blocks->dtype != STORED_U8 ||
        scales->dtype != STORED_U8 || s[3] != 16 || s[1] % halves ||
        memcmp(s, scales->shape, sizeof *s * 3) != 0)
        return err_set(e, ERR_CONFIG, "%s and its _scales are no MXFP4 blocks of 16 bytes and scales of one",
                       blocks->name);
    int64_t shape[3] = { s[0], s[1] / halves, s[2] * 32 };
    set_shape(o, 3, shape);
    o->type = ROW(GGUF_MXFP4);
    return 0;
}

/* ---- types ---- */

/* The type of the file for values of the source's dtype; NULL: GGUF has none. */
static const struct gguf_type_row *plain_type(enum stored_dtype in, int wanted)
{
    enum stored_dtype dtype = wanted >= 0 ? (enum stored_dtype)wanted : in;
    if (in != STORED_F32 && in != STORED_BF16 && in != STORED_F16 && in != STORED_F64)
        return NULL;
    return ROW(dtype == STORED_BF16 ? GGUF_BF16 : dtype == STORED_F16 ? GGUF_F16 : GGUF_F32);
}

static int choose_type(struct gguf_target *t, struct gguf_out *o, const struct gguf_target_opts *how,
                       const char *source, struct err *e)
{
    const struct gguf_type_row *blocks = how->quantize ? gguf_type_named(how->quantize) : NULL;
    int is_f32 = gguf_is_f32(o->name, o->n_dims);
    o->type = plain_type(o->in, is_f32 ? STORED_F32 : how->dtype);
    if (!o->type)
        return err_set(e, ERR_USAGE,
                       "%s is %s: GGUF has no such type: add --dequantize bf16 where it is quantised", source,
                       stored_dtype_name(o->in));
    if (!blocks || is_f32)
        return 0;
    if (o->row % blocks->values && blocks->values > 32)
        blocks = ROW(GGUF_Q8_0);
    if (o->row % blocks->values == 0)
        o->type = blocks;
    t->not_quantized += o->type != gguf_type_named(how->quantize);
    return 0;
}

/* ---- all tensors ---- */

static int no_memory(struct err *e)
{
    return err_set(e, ERR_MEMORY, "no memory for the tensors of a GGUF file");
}

static int wrong_shape(const struct gguf_target *t, const struct ckpt_tensor *s, struct err *e)
{
    return err_set(e, ERR_CONFIG,
                   "%s has %lld rows and %d dims, which its place in llama.cpp's %s does not allow", s->name,
                   (long long)s->shape[0], s->n_dims, t->family->arch);
}

/* A new tensor of the file for source i. */
static int begin_out(struct gguf_target *t, const struct ckpt *src, int i, const struct gguf_name *row,
                     const int number[2], const struct gguf_target_opts *how, struct err *e)
{
    const struct ckpt_tensor *s = ckpt_tensor(src, i);
    char name[GGUF_NAME_MAX];
    int is_mxfp4 = strlen(s->name) > 7 && !strcmp(s->name + strlen(s->name) - 7, "_blocks");
    struct gguf_out *o = add_out(t, gguf_fill(row->file, number[0], number[1], name),
                                 row->form == GGUF_EXPERT ? (int)t->n_experts : 1);
    if (!o)
        return no_memory(e);
    if (row->form != GGUF_EXPERT)
        o->src[0] = i;
    o->form = row->form;
    o->layer = number[0];
    o->in = s->dtype;
    o->src_dims = s->n_dims;
    memcpy(o->src_shape, s->shape, sizeof o->src_shape);

    if (is_mxfp4) {
        snprintf(name, sizeof name, "%.*s_scales", (int)(strlen(s->name) - 7), s->name);
        o->scales = ckpt_find(src, ROLE_WEIGHT, name);
        return mxfp4_shape(o, s, o->scales < 0 ? NULL : ckpt_tensor(src, o->scales), e);
    }
    if (!shape_fits(t, o->form, s))
        return wrong_shape(t, s, e);
    shape_of(t, o, s);
    return choose_type(t, o, how, s->name, e);
}

/* The tensor of the file with that name, one of the last; NULL: none yet. Names of one layer are neighbours
 * in the source. */
static struct gguf_out *find_out(const struct gguf_target *t, const char *name)
{
    for (int i = t->n - 1; i >= 0 && i >= t->n - 8; i--)
        if (!strcmp(t->out[i].name, name))
            return &t->out[i];
    return NULL;
}

static int add_expert(struct gguf_target *t, const struct ckpt *src, int i, const struct gguf_name *row,
                      const int number[2], const struct gguf_target_opts *how, struct err *e)
{
    const struct ckpt_tensor *s = ckpt_tensor(src, i);
    char name[GGUF_NAME_MAX];
    struct gguf_out *o = find_out(t, gguf_fill(row->file, number[0], 0, name));
    if (number[1] >= t->n_experts)
        return err_set(e, ERR_CONFIG, "%s: config.json has %lld experts: is it the config of another model",
                       s->name, (long long)t->n_experts);
    if (!o) {
        int rc = begin_out(t, src, i, row, number, how, e);
        if (rc < 0)
            return rc;
        o = &t->out[t->n - 1];
    }
    if (s->dtype != o->in || s->n_dims != o->src_dims ||
        memcmp(s->shape, o->src_shape, sizeof *s->shape * (size_t)s->n_dims) != 0)
        return err_set(e, ERR_CONFIG, "%s has not the shape and dtype of the other experts", s->name);
    o->src[number[1]] = i;
    return 0;
}

/* The name of the weight that MXFP4's blocks or scales make; others as they are. 1: scales, which the blocks
 * take with them. */
static int weight_name(const char *name, char out[GGUF_NAME_MAX])
{
    size_t n = strlen(name);
    int blocks = n > 7 && !strcmp(name + n - 7, "_blocks"),
        scales = n > 7 && !strcmp(name + n - 7, "_scales");
    snprintf(out, GGUF_NAME_MAX, "%.*s", (int)(blocks || scales ? n - 7 : n), name);
    return scales;
}

/* What belongs to no layer of the model (prediction of further tokens), or follows from the config. */
static int is_left_out(const struct gguf_target *t, const char *name)
{
    static const char *const ends[] = { ".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                        ".attention.bias", ".attention.masked_bias" };
    size_t n = strlen(name);
    const char *layers = strstr(name, "layers.");
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n >= strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i]))
            return 1;
    return layers && strtol(layers + 7, NULL, 10) >= t->n_layers;
}

static int leave_out(struct gguf_target *t, const char *name)
{
    if (!t->left_out++)
        t->first_left_out = strdup(name);
    return 0;
}

static int wants_head(const struct gguf_target *t)
{
    for (size_t i = 0; i < sizeof with_head / sizeof *with_head; i++)
        if (!strcmp(t->family->arch, with_head[i]))
            return 1;
    return 0;
}

/* All tensors of the file that hold values of source i. */
static int place_one(struct gguf_target *t, const struct ckpt *src, int i, const struct gguf_target_opts *how,
                     struct err *e)
{
    static const struct gguf_name head = { "", "output.weight", GGUF_SAME };
    const char *name = ckpt_tensor(src, i)->name;
    char weight[GGUF_NAME_MAX];
    int number[2], rc = 0, split = 0, is_scales = weight_name(name, weight);
    const struct gguf_name *row = gguf_find_hf(t->family->names, weight, &number[0], &number[1]);
    if (!strncmp(name, QUANT_KEPT_PREFIX, strlen(QUANT_KEPT_PREFIX)))
        return 0; /* what --requantize would need */
    if (is_left_out(t, name))
        return leave_out(t, name);
    if (!row)
        return err_set(e, ERR_CONFIG,
                       "%s: llama.cpp's architecture %s has no such tensor: add --dequantize bf16 where it "
                       "belongs to a quantised one",
                       name, t->family->arch);
    if (is_scales || (how->tied && !strcmp(row->file, "output.weight")))
        return 0;

    for (; row && rc >= 0; row = gguf_find_hf(row + 1, weight, &number[0], &number[1])) {
        /* one form alone of what old files hold otherwise */
        split |= row->form == GGUF_KEY_B || row->form == GGUF_VALUE_B;
        if (split && row->form == GGUF_SAME)
            break;
        rc = row->form == GGUF_EXPERT ? add_expert(t, src, i, row, number, how, e)
                                      : begin_out(t, src, i, row, number, how, e);
        if (rc >= 0 && how->tied && !strcmp(row->file, "token_embd.weight") && wants_head(t))
            rc = begin_out(t, src, i, &head, number, how, e);
    }
    return rc;
}

static int place_all(struct gguf_target *t, const struct ckpt *src, const struct gguf_target_opts *how,
                     struct err *e)
{
    int rc = 0;
    for (int i = 0; i < ckpt_n_tensors(src) && rc >= 0; i++)
        if (ckpt_tensor(src, i)->role == ROLE_WEIGHT)
            rc = place_one(t, src, i, how, e);
    for (int i = 0; i < t->n && rc >= 0; i++)
        for (int k = 0; k < t->out[i].n_src && rc >= 0; k++)
            if (t->out[i].src[k] < 0)
                rc = err_set(e, ERR_CONFIG, "%s would lack expert %d: is a tensor missing", t->out[i].name,
                             k);
    if (rc < 0 || !how->n_factors)
        return rc;

    struct gguf_out *o = add_out(t, "rope_freqs.weight", 0);
    t->factor = malloc(sizeof(float) * (size_t)how->n_factors);
    if (!o || !t->factor)
        return no_memory(e);
    memcpy(t->factor, how->factor, sizeof(float) * (size_t)how->n_factors);
    o->in = STORED_F32;
    o->type = ROW(GGUF_F32);
    set_shape(o, 1, &(int64_t){ how->n_factors });
    return 0;
}

/* ---- the view ---- */

static void free_target(void *arg)
{
    struct gguf_target *t = arg;
    for (int i = 0; i < t->n; i++) {
        free(t->out[i].name);
        free(t->out[i].src);
    }
    free(t->out);
    free(t->factor);
    free(t->first_left_out);
    gguf_keys_free(&t->keys);
    free(t);
}

/* A tensor of the view. What has the bytes of its source is passed on. */
static struct ckpt_view_tensor view_of(struct gguf_out *o)
{
    struct ckpt_view_tensor v = { .t = { .name = o->name, .role = ROLE_WEIGHT, .dtype = gguf_view_dtype(o) },
                                  .from = -1,
                                  .compute = gguf_out_compute,
                                  .arg = o };
    v.t.n_dims = o->n_dims;
    memcpy(v.t.shape, o->shape, sizeof o->shape);
    if (o->type->values > 1)
        v.t.shape[o->n_dims - 1] = o->row / o->type->values * o->type->bytes;
    if (o->form == GGUF_SAME && o->n_src == 1 && o->scales < 0 && o->in == v.t.dtype)
        v.from = o->src[0];
    return v;
}

int gguf_target_open(struct ckpt **view, struct gguf_target **out, struct ckpt *src,
                     const struct gguf_target_opts *how, struct err *e)
{
    struct gguf_target *t = calloc(1, sizeof *t);
    struct ckpt_view_tensor *list = NULL;
    int rc = 0;
    if (!t) {
        ckpt_close(src);
        return no_memory(e);
    }
    t->family = gguf_family_of_config(how->model_type);
    t->n_layers = how->n_layers;
    t->n_heads = how->n_heads;
    t->n_kv = how->n_kv;
    t->n_experts = how->n_experts;
    t->nope_dim = how->nope_dim;
    t->v_dim = how->v_dim;
    if (!t->family)
        TRY(err_set(e, ERR_CONFIG, "llama.cpp has no architecture for the family %s", how->model_type));
    TRY(place_all(t, src, how, e));

    if (!(list = calloc((size_t)t->n + 1, sizeof *list)))
        TRY(no_memory(e));
    for (int i = 0; i < t->n; i++)
        list[i] = view_of(&t->out[i]);
    *out = t;
    rc = ckpt_view_open(view, src, t->n, list,
                        &(struct ckpt_view_opts){ .owned = t, .free_owned = free_target }, e);
    src = NULL; /* both are the view's, also after an error */
    t = NULL;
out:
    free(list);
    if (t)
        free_target(t);
    ckpt_close(src);
    return rc < 0 ? rc : 0;
}

struct gguf_keys *gguf_target_keys(struct gguf_target *t) { return &t->keys; }
int gguf_target_not_quantized(const struct gguf_target *t) { return t->not_quantized; }

int64_t gguf_target_rounded(const struct gguf_target *t) { return atomic_load(&t->rounded); }

int gguf_target_left_out(const struct gguf_target *t, const char **first)
{
    *first = t->first_left_out ? t->first_left_out : "";
    return t->left_out;
}

int gguf_target_file_type(const struct gguf_target *t)
{
    int64_t values[64] = { 0 };
    enum gguf_type most = GGUF_F32;
    for (int i = 0; i < t->n; i++) {
        const struct gguf_out *o = &t->out[i];
        if (gguf_is_f32(o->name, o->n_dims))
            continue;
        values[o->type->id] += o->n;
        most = values[o->type->id] > values[most] ? o->type->id : most;
    }
    return gguf_type_row(most)->file_type;
}
