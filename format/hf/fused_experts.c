/* fused_experts.c - see fused_experts.h. */
#include "format/hf/fused_experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"

#define EXPERTS_MAX (1 << 16)
#define TENSORS_MAX (1 << 22)
#define GATE_UP "mlp.experts.gate_up_proj"
#define DOWN "mlp.experts.down_proj"
#define RENAMES_MAX 3

/* The tensors that hold all experts of a layer: which parts of struct expert_form, and the tensor whose shape
 * must go with theirs. w1, w2, w3 are those of trainers (AutoEP, torchtitan). */
static const struct stack {
    const char *end;
    int first, n_parts;
    const char *pair;
} stacks[] = {
    { GATE_UP, 0, 2, DOWN },
    { DOWN, 2, 1, GATE_UP },
    { "mlp.experts.w1", 0, 1, "mlp.experts.w2" },
    { "mlp.experts.w3", 1, 1, "mlp.experts.w2" },
    { "mlp.experts.w2", 2, 1, "mlp.experts.w1" },
};

/* What stands behind a fused tensor's name where it holds the scales of FP8 blocks; that of an expert's own
 * tensor comes first. */
static const char *const scale_ends[] = { "_scale_inv", "_scales_inv" };
#define SCALE_END scale_ends[0]

/* ---- names ---- */

struct expert_form {
    const char *model_types; /* with spaces between them */
    const char *each;        /* in front of the number of an expert */
    const char *part[3];     /* behind the number: gate, up, down */
    int is_published;        /* published checkpoints of the family are fused */
    /* Words of other names: where experts have tensors of their own, and in the fused form. */
    struct {
        const char *each, *fused;
    } rename[RENAMES_MAX];
};
#define QWEN_NAMES \
    "mlp.experts.", { ".gate_proj.weight", ".up_proj.weight", ".down_proj.weight" }
#define W_NAMES \
    { \
        ".w1.weight", ".w3.weight", ".w2.weight" \
    }
#define MIXTRAL_NAMES "block_sparse_moe.experts.", W_NAMES

/* clang-format off */
static const struct expert_form forms[] = {
    { "qwen2_moe qwen3_moe qwen3_next deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 glm4_moe glm4_moe_lite "
      "glm_moe_dsa glm4v_moe_text dots1 olmoe flex_olmo hunyuan_v1_moe longcat_flash solar_open mellum "
      "cohere2_moe afmoe qwen3_omni_moe_text axk2 glm5_next_text", QWEN_NAMES },
    { "qwen3_5_moe qwen3_5_moe_text", QWEN_NAMES, .is_published = 1 },
    { "ernie4_5_moe", QWEN_NAMES, .rename = { { "mlp.moe_statics.", "mlp.gate.moe_statics." } } },
    { "exaone_moe", QWEN_NAMES,
      .rename = { { "mlp.e_score_correction_bias", "mlp.gate.e_score_correction_bias" } } },
    { "mimo_v2_flash", QWEN_NAMES, .rename = { { "self_attn.attention_sink_bias", "self_attn.sinks" } } },
    { "axk1", QWEN_NAMES, .rename = { { "post_mlp_layernorm", "mlp.post_mlp_layernorm" } } },
    { "hy_v3", QWEN_NAMES,
      .rename = { { "mlp.router.gate.weight", "mlp.gate.weight" },
                  { "mlp.expert_bias", "mlp.e_score_correction_bias" },
                  { "mlp.shared_mlp.", "mlp.shared_experts." } } },
    { "laguna", QWEN_NAMES,
      .rename = { { "mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias" },
                  { "mlp.shared_expert.", "mlp.shared_experts." } } },
    { "mixtral minimax", MIXTRAL_NAMES, .rename = { { "block_sparse_moe.gate.", "mlp.gate." } } },
    { "phimoe", MIXTRAL_NAMES, .rename = { { "block_sparse_moe.gate.", "mlp.router." } } },
    { "minimax_m2", MIXTRAL_NAMES,
      .rename = { { "block_sparse_moe.gate.", "mlp.gate." },
                  { "block_sparse_moe.e_score_correction_bias", "mlp.e_score_correction_bias" } } },
    { "kimi_linear", MIXTRAL_NAMES,
      .rename = { { "block_sparse_moe.gate.", "mlp.gate." },
                  { "block_sparse_moe.shared_experts.", "mlp.shared_experts." } } },
};
/* clang-format on */

static const struct expert_form *form_of_type(const char *type)
{
    size_t n = strlen(type);
    for (size_t i = 0; n && i < sizeof forms / sizeof *forms; i++)
        for (const char *s = forms[i].model_types; *s;) {
            size_t each = strcspn(s, " ");
            if (each == n && !memcmp(s, type, n))
                return &forms[i];
            s += each + strspn(s + each, " ");
        }
    return NULL;
}

const struct expert_form *expert_form_of(const char *config)
{
    static const char *const inner[] = { "text_config", "language_config", "llm_config" };
    struct err ignored = { 0 };
    const struct expert_form *found = NULL;
    json_t *root = config ? jx_parse(config, strlen(config), FMT_CONFIG, &ignored) : NULL;
    const json_t *type = json_object_get(root, "model_type");

    if (json_is_string(type))
        found = form_of_type(json_string_value(type));
    for (size_t i = 0; !found && i < sizeof inner / sizeof *inner; i++) {
        type = json_object_get(json_object_get(root, inner[i]), "model_type");
        if (json_is_string(type))
            found = form_of_type(json_string_value(type));
    }
    json_decref(root);
    return found;
}

int expert_form_is_published(const struct expert_form *f) { return f && f->is_published; }

int64_t expert_block_rows(const char *config)
{
    struct err ignored = { 0 };
    json_t *root = config ? jx_parse(config, strlen(config), FMT_CONFIG, &ignored) : NULL;
    const json_t *quant = json_object_get(root, "quantization_config");
    const json_t *block = json_object_get(quant, "weight_block_size");
    int64_t rows = json_integer_value(json_array_get(block, 0));
    json_decref(root);
    return rows > 0 ? rows : 128;
}

/* The length of what stands in front of `end` where the name ends with it as a word of its own; -1: it does
 * not. */
static int prefix_of(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    if (n < m || strcmp(name + n - m, end) || (n > m && name[n - m - 1] != '.'))
        return -1;
    return (int)(n - m);
}

/* Expert and part (0 gate, 1 up, 2 down) of a tensor of one expert, and whether it holds the part's scales;
 * returns the length of what stands in front of form.each, or -1: it is none. */
static int parse_expert(const struct expert_form *f, const char *name, int *expert, int *part, int *is_scale)
{
    const char *at = strstr(name, f->each);
    char *end;
    if (!at || (at > name && at[-1] != '.') || at[strlen(f->each)] < '0' || at[strlen(f->each)] > '9')
        return -1;
    long n = strtol(at + strlen(f->each), &end, 10);
    for (*part = 0; *part < 3; ++*part) {
        size_t size = strlen(f->part[*part]);
        if (n >= EXPERTS_MAX || strncmp(end, f->part[*part], size))
            continue;
        *is_scale = !strcmp(end + size, SCALE_END);
        *expert = (int)n;
        if (!end[size] || *is_scale)
            return (int)(at - name);
    }
    return -1;
}

/* Writes the name with the word `from`, where it stands behind a dot or at the start, replaced by `to`. 0: it
 * does not have the word. */
static int replace_word(const char *name, const char *from, const char *to, char *out, size_t room)
{
    const char *at = strstr(name, from);
    if (!at || (at > name && at[-1] != '.'))
        return 0;
    return snprintf(out, room, "%.*s%s%s", (int)(at - name), name, to, at + strlen(from));
}

int fused_experts_place(const struct expert_form *f, const char *name, struct fused_place *out, struct err *e)
{
    int part = 0, prefix = parse_expert(f, name, &out->expert, &part, &out->is_scale), n;

    if (prefix >= 0) {
        out->part = part % 2;
        out->n_parts = part == 2 ? 1 : 2;
        n = snprintf(out->name, sizeof out->name, "%.*s%s%s", prefix, name, part == 2 ? DOWN : GATE_UP,
                     out->is_scale ? SCALE_END : "");
    } else {
        out->expert = -1;
        out->is_scale = 0;
        n = 0;
        for (int i = 0; !n && i < RENAMES_MAX && f->rename[i].each; i++)
            n = replace_word(name, f->rename[i].each, f->rename[i].fused, out->name, sizeof out->name);
        n = n ? n : snprintf(out->name, sizeof out->name, "%s", name);
    }
    return n < (int)sizeof out->name
               ? 0
               : err_set(e, ERR_FORMAT, "%.40s…: a tensor's name has more than %d bytes", name, FMT_NAME_MAX);
}

int fused_experts_module(const struct expert_form *f, const char *fused, int x, int k,
                         char out[FMT_NAME_MAX + 1])
{
    static const char *const ends[] = { GATE_UP, DOWN };
    int n = -1, module = (int)strlen(".weight");
    for (int i = 0; i < 2; i++) {
        int prefix = prefix_of(fused, ends[i]), part = i ? 2 : k;
        if (prefix >= 0 && k < 2 - i)
            n = snprintf(out, FMT_NAME_MAX + 1, "%.*s%s%d%.*s", prefix, fused, f->each, x,
                         (int)strlen(f->part[part]) - module, f->part[part]);
    }

    char word[FMT_NAME_MAX + 2];
    snprintf(word, sizeof word, "%s.", fused); /* words of renames end with a dot */
    for (int i = 0; !x && !k && n < 0 && i < RENAMES_MAX && f->rename[i].each; i++) {
        int len = replace_word(word, f->rename[i].fused, f->rename[i].each, out, FMT_NAME_MAX + 1);
        n = len ? len - 1 : -1;
        if (len && len <= FMT_NAME_MAX)
            out[n] = 0;
    }
    return n >= 0 && n <= FMT_NAME_MAX;
}

int fused_experts_quantised(const struct expert_form *f, const char *name)
{
    const char *at = strstr(name, f->each), *end = at ? at + strlen(f->each) : NULL;
    if (!at || (at > name && at[-1] != '.') || *end < '0' || *end > '9')
        return 0;
    end += strspn(end, "0123456789");
    for (int k = 0; k < 3; k++) {
        size_t module = strlen(f->part[k]) - strlen(".weight");
        if (!strncmp(end, f->part[k], module) && end[module] == '.')
            return strcmp(end + module, ".bias") != 0;
    }
    return 0;
}

/* ---- the fused tensors of a checkpoint ---- */

/* The values of split tensor k of expert e lie in rows [k * rows, (k + 1) * rows) of index e. */
struct fused {
    int tensor, prefix;
    int first, n_parts; /* parts of struct expert_form: [first, first + n_parts) */
    int is_scale;
    int64_t rows;
};

/* What the checkpoint becomes. */
struct split {
    struct ckpt *c;
    const struct expert_form *form;
    int64_t block_rows; /* of FP8 */
    int n_fused;
    struct fused *fused; /* [n_fused] */
    int *fused_of;       /* [c->n_tensors]: an index in fused, or -1 */
    int n;
    struct ckpt_tensor *tensor; /* names of fused ones are new */
    int *first;                 /* [c->n_tensors]: the first new tensor of each */
    int64_t n_pieces;
    struct fmt_piece *piece;
};

static int shape_wrong(const struct ckpt *c, const struct ckpt_tensor *up, const struct ckpt_tensor *down,
                       int parts, const char *why, struct err *e)
{
    char text[2][64];
    const struct ckpt_tensor *both[] = { up, down };
    for (int k = 0; k < 2; k++)
        snprintf(text[k], sizeof text[k], "[%lld,%lld,%lld]", (long long)both[k]->shape[0],
                 (long long)both[k]->shape[1], (long long)both[k]->shape[2]);
    return err_set(e, ERR_CONFIG,
                   "%s: %s%s is %s and %s %s, which are [experts, %sI, H] and "
                   "[experts, H, I] in this family: %s",
                   c->path, ckpt_role_prefix[up->role], up->name, text[0], strrchr(down->name, '.') + 1,
                   text[1], parts == 2 ? "2 " : "", why);
}

/* Shapes of two tensors of a layer: `up` has `parts` matrices of each expert. Where one of them is square it
 * alone shows nothing; the other one is not square then, and shows whether both are turned round. */
static int check_pair(const struct ckpt *c, const struct ckpt_tensor *up, const struct ckpt_tensor *down,
                      int parts, struct err *e)
{
    if (up->n_dims != 3 || down->n_dims != 3)
        return err_set(e, ERR_FORMAT, "%s: %s has %d dimensions and %s %d: 3 and 3 are fused experts",
                       c->path, up->name, up->n_dims, strrchr(down->name, '.') + 1, down->n_dims);
    const int64_t *u = up->shape, *d = down->shape;
    if (u[0] != d[0] || u[0] < 1 || u[0] > EXPERTS_MAX || up->dtype != down->dtype)
        return shape_wrong(c, up, down, parts, "are they of one save", e);
    if (u[2] == d[1] && u[1] == parts * d[2])
        return 0;
    if (u[1] == d[2] && u[2] == parts * d[1])
        return shape_wrong(c, up, down, parts, "their matrices are [in][out], this family stores [out][in]",
                           e);
    return shape_wrong(c, up, down, parts, "is one of them turned round", e);
}

static const struct ckpt_tensor *find_other(const struct ckpt *c, const struct ckpt_tensor *t, int prefix,
                                            const char *end)
{
    char name[FMT_NAME_MAX + 32];
    snprintf(name, sizeof name, "%.*s%s", prefix, t->name, end);
    return fmt_find_tensor(c->tensor, c->n_tensors, t->role, name);
}

/* The row of stacks whose name the tensor ends with, the bytes in front of it, and whether it holds the
 * scales of that tensor; NULL: none. */
static const struct stack *stack_of(const char *name, int *prefix, int *is_scale)
{
    char end[64];
    for (size_t k = 0; k < sizeof stacks / sizeof *stacks; k++) {
        *is_scale = 0;
        if ((*prefix = prefix_of(name, stacks[k].end)) >= 0)
            return &stacks[k];
        for (size_t i = 0; i < sizeof scale_ends / sizeof *scale_ends; i++) {
            snprintf(end, sizeof end, "%s%s", stacks[k].end, scale_ends[i]);
            *is_scale = 1;
            if ((*prefix = prefix_of(name, end)) >= 0)
                return &stacks[k];
        }
    }
    return NULL;
}

/* The scales of the layer's tensor that ends so, or NULL. */
static const struct ckpt_tensor *find_scales(const struct ckpt *c, const struct ckpt_tensor *t, int prefix,
                                             const char *end)
{
    const struct ckpt_tensor *found = NULL;
    char name[64];
    for (size_t i = 0; i < sizeof scale_ends / sizeof *scale_ends && !found; i++) {
        snprintf(name, sizeof name, "%s%s", end, scale_ends[i]);
        found = find_other(c, t, prefix, name);
    }
    return found;
}

/* 1: the scales of the layer's gate and up lie in rows of their own, or there are none. FP8 blocks that hold
 * rows of both cannot be given to either: such a layer stays fused. */
static int scales_part(const struct split *s, const struct ckpt_tensor *t, int prefix)
{
    const struct ckpt_tensor *up = find_other(s->c, t, prefix, GATE_UP),
                             *scales = find_scales(s->c, t, prefix, GATE_UP);
    if (!up || !scales)
        return 1;
    return up->n_dims == 3 && scales->n_dims == 3 && scales->shape[0] == up->shape[0] &&
           (scales->shape[1] == up->shape[1] ||
            (up->shape[1] / 2 % s->block_rows == 0 && scales->shape[1] == up->shape[1] / s->block_rows));
}

/* Fills *f where tensor i is fused: 1, or 0. */
static int look_at(const struct split *split, int i, struct fused *f, struct err *e)
{
    const struct ckpt *c = split->c;
    const struct ckpt_tensor *t = &c->tensor[i];
    int prefix, is_scale, rc;
    const struct stack *s = stack_of(t->name, &prefix, &is_scale);
    if (!s || !scales_part(split, t, prefix))
        return 0;
    if (is_scale) {
        *f = (struct fused){ i, prefix, s->first, s->n_parts, 1, t->shape[1] / s->n_parts };
        return t->n_dims == 3 && find_other(c, t, prefix, s->end);
    }

    const struct ckpt_tensor *other = find_other(c, t, prefix, s->pair);
    if (!other)
        return err_set(e, ERR_FORMAT, "%s: has %s%s but not the layer's %s: is a file missing", c->path,
                       ckpt_role_prefix[t->role], t->name, strrchr(s->pair, '.') + 1);
    if ((rc = s->first == 2 ? check_pair(c, other, t, prefix_of(other->name, GATE_UP) >= 0 ? 2 : 1, e)
                            : check_pair(c, t, other, s->n_parts, e)) < 0)
        return rc;
    if (stored_dtype_bits(t->dtype) < 8)
        return err_set(e, ERR_FORMAT, "%s: %s is %s: fused experts of %d bits are not read", c->path, t->name,
                       stored_dtype_name(t->dtype), stored_dtype_bits(t->dtype));
    *f = (struct fused){ i, prefix, s->first, s->n_parts, 0, t->shape[1] / s->n_parts };
    return 1;
}

/* Lists the fused tensors and counts what comes of all. */
static int list_fused(struct split *s, struct err *e)
{
    struct ckpt *c = s->c;
    for (int i = 0; i < c->n_tensors; i++) {
        struct fused *f = &s->fused[s->n_fused];
        int64_t n_pieces = c->first_piece[i + 1] - c->first_piece[i], parts;
        int rc = look_at(s, i, f, e);
        if (rc < 0)
            return rc;
        s->fused_of[i] = rc ? s->n_fused++ : -1;
        s->first[i] = s->n;
        parts = rc ? c->tensor[i].shape[0] * f->n_parts : 1;
        if (parts > TENSORS_MAX - s->n)
            return err_set(e, ERR_FORMAT, "%s: its fused experts are more than %d tensors", c->path,
                           TENSORS_MAX);
        s->n += (int)parts;
        s->n_pieces += n_pieces * parts; /* at most */
    }
    return 0;
}

/* ---- new tables ---- */

static int add_tensors(struct split *s, int i, struct err *e)
{
    const struct ckpt_tensor *t = &s->c->tensor[i];
    struct ckpt_tensor *to = &s->tensor[s->first[i]];
    if (s->fused_of[i] < 0) {
        *to = *t;
        return 0;
    }

    const struct fused *f = &s->fused[s->fused_of[i]];
    for (int x = 0; x < (int)t->shape[0]; x++)
        for (int k = 0; k < f->n_parts; k++, to++) {
            size_t bytes = strlen(t->name) + 64;
            char *name = malloc(bytes);
            if (!name)
                return err_set(e, ERR_MEMORY, "%s: no memory for the names of its experts", s->c->path);
            snprintf(name, bytes, "%.*s%s%d%s%s", f->prefix, t->name, s->form->each, x,
                     s->form->part[f->first + k], f->is_scale ? SCALE_END : "");
            *to = *t;
            to->name = name;
            to->has_digest = 0;
            to->n_dims = 2;
            memset(to->shape, 0, sizeof to->shape);
            to->shape[0] = f->rows;
            to->shape[1] = t->shape[2];
        }
    return 0;
}

/* What part k of expert x has of a piece of its fused tensor. 0: nothing. */
static int cut_piece(const struct fused *f, const struct fmt_piece *p, int64_t x, int k, int64_t size,
                     struct fmt_piece *out)
{
    const int64_t *start = p->box.start, *extent = p->box.extent;
    int64_t low = start[1] > k * f->rows ? start[1] : k * f->rows;
    int64_t high = start[1] + extent[1] < (k + 1) * f->rows ? start[1] + extent[1] : (k + 1) * f->rows;
    if (low >= high)
        return 0;

    *out = *p;
    out->box = (struct box){ .n_dims = 2,
                             .start = { low - k * f->rows, start[2] },
                             .extent = { high - low, extent[2] } };
    if (p->stride) {
        int64_t skip = (x - start[0]) * p->stride[0] + (low - start[1]) * p->stride[1];
        out->offset += skip * size;
        out->stride = p->stride + 1;
        out->hi = box_count(&out->box);
        return 1;
    }

    /* The rows are neighbours in the piece's order: elements [first, first + n) of its box. */
    int64_t first = ((x - start[0]) * extent[1] + low - start[1]) * extent[2], n = box_count(&out->box);
    int64_t from = p->lo > first ? p->lo : first, to = p->hi < first + n ? p->hi : first + n;
    out->lo = from - first;
    out->hi = to - first;
    out->offset += (from - p->lo) * size;
    return from < to;
}

static void add_pieces(struct split *s, int i)
{
    const struct ckpt *c = s->c;
    const struct fused *f = s->fused_of[i] < 0 ? NULL : &s->fused[s->fused_of[i]];
    int64_t size = stored_bytes(c->tensor[i].dtype, 1);

    for (int64_t q = c->first_piece[i]; q < c->first_piece[i + 1]; q++) {
        const struct fmt_piece *p = &c->piece[q];
        if (!f) {
            s->piece[s->n_pieces] = *p;
            s->piece[s->n_pieces++].tensor = s->first[i];
            continue;
        }
        for (int64_t x = p->box.start[0]; x < p->box.start[0] + p->box.extent[0]; x++)
            for (int k = 0; k < f->n_parts; k++)
                if (cut_piece(f, p, x, k, size, &s->piece[s->n_pieces]))
                    s->piece[s->n_pieces++].tensor = s->first[i] + (int)x * f->n_parts + k;
    }
}

/* Hands the new tables to the checkpoint. */
static int take_tables(struct split *s, struct err *e)
{
    struct ckpt *c = s->c;
    int64_t *first = calloc((size_t)s->n + 2, sizeof *first);
    if (!first)
        return err_set(e, ERR_MEMORY, "%s: no memory for %d tensors", c->path, s->n);
    for (int i = 0; i < c->n_tensors; i++)
        if (s->fused_of[i] >= 0)
            free((char *)c->tensor[i].name);
    free(c->tensor);
    free(c->piece);
    free(c->first_piece);
    c->tensor = s->tensor;
    c->n_tensors = s->n;
    c->piece = s->piece;
    c->n_pieces = s->n_pieces;
    c->first_piece = first;
    s->tensor = NULL;
    s->piece = NULL;

    int rc = fmt_sort_names(c, e);
    for (int i = 1; rc >= 0 && i < c->n_tensors; i++)
        if (!fmt_compare_tensors(&c->tensor[i - 1], &c->tensor[i]))
            return err_set(e, ERR_FORMAT, "%s: %s is there by itself and in a fused tensor: remove one",
                           c->path, c->tensor[i].name);
    return rc;
}

/* Of a split that did not succeed. */
static void free_names(struct split *s)
{
    for (int i = 0; i < s->c->n_tensors; i++) {
        int end = i + 1 < s->c->n_tensors ? s->first[i + 1] : s->n;
        for (int k = s->first[i]; s->fused_of[i] >= 0 && k < end; k++)
            free((char *)s->tensor[k].name);
    }
}

static int make_tables(struct split *s, struct err *e)
{
    struct ckpt *c = s->c;
    int rc = 0;
    s->tensor = calloc((size_t)s->n + 1, sizeof *s->tensor);
    s->piece = calloc((size_t)s->n_pieces + 1, sizeof *s->piece);
    if (!s->tensor || !s->piece)
        return err_set(e, ERR_MEMORY, "%s: no memory for %d tensors", c->path, s->n);
    s->n_pieces = 0;
    for (int i = 0; i < c->n_tensors && rc >= 0; i++) {
        rc = add_tensors(s, i, e);
        add_pieces(s, i);
    }
    if (rc >= 0)
        rc = take_tables(s, e);
    if (s->tensor)
        free_names(s);
    return rc;
}

/* ---- the whole ---- */

/* Routers and what else has another name in the fused form. */
static int rename_others(struct ckpt *c, const struct expert_form *f, struct err *e)
{
    for (int i = 0; i < c->n_tensors; i++) {
        struct ckpt_tensor *t = &c->tensor[i];
        char name[FMT_NAME_MAX + 80];
        int n = 0;
        for (int k = 0; !n && k < RENAMES_MAX && f->rename[k].each; k++)
            n = replace_word(t->name, f->rename[k].fused, f->rename[k].each, name, sizeof name);
        if (!n)
            continue;
        char *copy = strdup(name);
        if (!copy)
            return err_set(e, ERR_MEMORY, "%s: no memory for the names of its routers", c->path);
        free((char *)t->name);
        t->name = copy;
    }
    return 0;
}

/* The checkpoint's config.json, or the one that the caller gave instead. */
static int find_form(struct ckpt *c, const struct expert_form **form, int64_t *rows, struct err *e)
{
    void *text = NULL;
    size_t n = 0;
    int rc = c->config_path ? io_read_file(c->config_path, FMT_EXTRA_MAX, &text, &n, e) : 0;
    *form = expert_form_of(c->config_path ? text : c->config);
    *rows = expert_block_rows(c->config_path ? text : c->config);
    free(text);
    return rc < 0 ? rc : 0;
}

int fused_experts_split(struct ckpt *c, struct err *e)
{
    struct split s = { .c = c };
    int rc = find_form(c, &s.form, &s.block_rows, e), any = 0, prefix, is_scale;
    for (int i = 0; rc >= 0 && s.form && i < c->n_tensors && !any; i++)
        any = stack_of(c->tensor[i].name, &prefix, &is_scale) != NULL;
    if (rc < 0 || !any)
        return rc;

    s.fused = calloc((size_t)c->n_tensors + 1, sizeof *s.fused);
    s.fused_of = calloc((size_t)c->n_tensors + 1, sizeof *s.fused_of);
    s.first = calloc((size_t)c->n_tensors + 1, sizeof *s.first);
    if (!s.fused || !s.fused_of || !s.first)
        rc = err_set(e, ERR_MEMORY, "%s: no memory for %d tensors", c->path, c->n_tensors);
    TRY(rc);
    TRY(list_fused(&s, e));
    TRY(rename_others(c, s.form, e));
    TRY(make_tables(&s, e));
out:
    free(s.fused);
    free(s.fused_of);
    free(s.first);
    free(s.tensor);
    free(s.piece);
    return rc < 0 ? rc : 0;
}
