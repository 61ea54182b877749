/* scheme_fit.c - see scheme.h: the shapes of a weight's stored tensors against each other and against what
 * the configuration says. */
#include <stdio.h>
#include <string.h>
#include "format/quant/scheme.h"

#define WORD_BITS 32

struct fit {
    struct quant_weight *w;
    const struct quant_says *says;
    const struct ckpt_tensor *const *t;
    int64_t n, k; /* sizes of the weight's N and K */
    struct err *e;
};

char *quant_shape_text(int n_dims, const int64_t *shape, char out[96])
{
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < n_dims && at < 90; i++)
        at += (size_t)snprintf(out + at, 96 - at, "%s%lld", i ? "," : "[", (long long)shape[i]);
    snprintf(out + (at < 94 ? at : 94), 2, "]");
    return out;
}

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

static const struct ckpt_tensor *tensor_of(const struct fit *f, const struct quant_stored *s)
{
    return f->t[s->tensor];
}

static struct quant_stored *stored_of(const struct fit *f, enum quant_role role)
{
    for (int i = 0; i < f->w->n_stored; i++)
        if (f->w->stored[i].role == role)
            return &f->w->stored[i];
    return NULL;
}

static const struct ckpt_tensor *codes_of(const struct fit *f) { return tensor_of(f, &f->w->stored[0]); }

/* What all messages end with: the tensor, its shape, what the codes need. */
static int misfit(const struct fit *f, const struct ckpt_tensor *t, const char *needs)
{
    const struct ckpt_tensor *codes = codes_of(f);
    char have[96], of[96];
    return err_set(f->e, ERR_FORMAT, "%s: is %s, the codes in %s %s need %s: is the file whole, and its %s",
                   t->name, quant_shape_text(t->n_dims, t->shape, have), codes->name,
                   quant_shape_text(codes->n_dims, codes->shape, of), needs,
                   f->says->root ? "quantization_config of this model" : "config.json there");
}

static int wrong_dtype(const struct fit *f, const struct ckpt_tensor *t, const char *needs)
{
    return err_set(f->e, ERR_FORMAT, "%s: is %s, %s is needed for the weight %s: is the file whole", t->name,
                   stored_dtype_name(t->dtype), needs, f->w->name);
}

static int is_float(enum stored_dtype t) { return t == STORED_F32 || t == STORED_BF16 || t == STORED_F16; }

static void set_axis(struct quant_stored *s, int of, int dim, int64_t values, int indices)
{
    while (indices > 1 && values % 2 == 0 && indices % 2 == 0) {
        values /= 2;
        indices /= 2;
    }
    s->axis[of] = (struct quant_axis){ (int16_t)dim, (int16_t)indices, (int32_t)values };
}

/* `bits` bits a value, dense in words of 32. */
static void set_packed_axis(struct quant_stored *s, int of, int dim, int bits)
{
    set_axis(s, of, dim, WORD_BITS, bits);
}

static void set_shape(struct fit *f, int n_dims, int dim_n, int dim_k)
{
    struct quant_weight *w = f->w;
    const struct ckpt_tensor *codes = codes_of(f);
    w->n_dims = n_dims;
    for (int d = 0; d < BOX_DIMS; d++)
        w->shape[d] = d < n_dims - 2 ? codes->shape[d] : 1;
    w->dim_n = dim_n;
    w->dim_k = dim_k;
    w->shape[dim_n] = f->n;
    w->shape[dim_k] = f->k;
    for (int i = 0; i < w->n_stored; i++)
        for (int d = 0; d < QUANT_DIMS; d++)
            w->stored[i].axis[d] = (struct quant_axis){ -1, 1, 1 };
}

/* Dims before N and K count experts in every stored tensor that has them. */
static int n_lead(const struct fit *f) { return f->w->n_dims - 2; }

static int has_lead(const struct fit *f, const struct ckpt_tensor *t)
{
    int lead = n_lead(f);
    return lead && t->n_dims >= lead && !memcmp(t->shape, f->w->shape, sizeof *t->shape * (size_t)lead);
}

static void set_lead(const struct fit *f, struct quant_stored *s)
{
    for (int d = 0; d < n_lead(f); d++)
        set_axis(s, d, d, 1, 1);
}

/* ---- scales ---- */

static enum quant_scale_kind scale_kind(enum stored_dtype t)
{
    return t == STORED_F8_E4M3 ? QUANT_SCALE_E4M3 : is_float(t) ? QUANT_SCALE_FLOAT : QUANT_SCALE_E8M0;
}

static int fits(int64_t block, int64_t size, int64_t have)
{
    return block ? ceil_div(size, block) == have : have == 1;
}

/* The block sizes under which the weight has r x c scales. 0: none. */
static int find_block(const struct fit *f, int64_t r, int64_t c, int64_t *block_n, int64_t *block_k)
{
    int64_t try[2 * QUANT_HINTS + 4][2] = { { 0, 0 }, { 1, 0 } };
    int n = 2;
    for (int i = 0; i < f->says->n; i++) {
        const struct quant_hint *h = &f->says->hint[i];
        if (h->block_n) {
            try[n][0] = h->block_n;
            try[n++][1] = h->block_k;
        }
        if (h->group > 0) {
            try[n][0] = 1;
            try[n++][1] = h->group;
        }
    }

    /* FP4 and FP8 of Microscaling have fixed groups; without a configuration FP8 has the usual blocks */
    enum quant_form form = f->w->scheme.form;
    enum quant_scale_kind kind = f->w->scheme.scale;
    if (form == QUANT_FP4 || (form == QUANT_FP8 && kind == QUANT_SCALE_E8M0)) {
        try[n][0] = 1;
        try[n++][1] = form == QUANT_FP4 && kind == QUANT_SCALE_E4M3 ? 16 : 32;
    } else if (form == QUANT_FP8 && !f->says->n) {
        try[n][0] = try[n][1] = 128;
        n++;
    }

    for (int i = 0; i < n; i++)
        if (fits(try[i][0], f->n, r) && fits(try[i][1], f->k, c)) {
            *block_n = try[i][0];
            *block_k = try[i][1];
            return 1;
        }
    return 0;
}

/* What find_block() would take, for a message: the first block size that the configuration gives. */
static const char *wanted(const struct fit *f, char out[160])
{
    int64_t bn = 1, bk = f->w->scheme.form == QUANT_FP4 ? 16 : 128;
    if (f->w->scheme.form == QUANT_FP4 && f->w->scheme.scale == QUANT_SCALE_E8M0)
        bk = 32;
    if (f->w->scheme.form == QUANT_FP8)
        bn = 128;
    for (int i = f->says->n - 1; i >= 0; i--) {
        const struct quant_hint *h = &f->says->hint[i];
        bn = h->block_n ? h->block_n : h->group ? 1 : bn;
        bk = h->block_n ? h->block_k : h->group > 0 ? h->group : h->group ? f->k : bk;
    }
    snprintf(out, 160, "[%lld,%lld] in blocks of %lld x %lld", (long long)ceil_div(f->n, bn),
             (long long)ceil_div(f->k, bk), (long long)bn, (long long)bk);
    return out;
}

/* Scales, and zero points that are not packed: [N blocks, K blocks] behind the dims of experts, or fewer dims
 * where there is one block. */
static int fit_scales(const struct fit *f, struct quant_stored *s)
{
    const struct ckpt_tensor *t = tensor_of(f, s);
    struct quant_scheme *q = &f->w->scheme;
    int lead = has_lead(f, t) ? n_lead(f) : 0, d = lead;
    int64_t count = 1, r, c;
    char text[160];
    for (int i = 0; i < t->n_dims; i++)
        count *= t->shape[i];
    if (n_lead(f) && !lead && count > 1)
        return misfit(f, t, wanted(f, text));

    set_lead(f, s);
    if (!lead)
        for (int i = 0; i < n_lead(f); i++)
            s->axis[i].dim = -1;
    r = d < t->n_dims ? t->shape[d] : 1;
    c = d + 1 < t->n_dims ? t->shape[d + 1] : 1;
    if (t->n_dims - lead > 2 || !find_block(f, r, c, &q->block_n, &q->block_k))
        return misfit(f, t, wanted(f, text));
    if (q->block_n)
        set_axis(s, f->w->dim_n, d, q->block_n, 1);
    if (q->block_k)
        set_axis(s, f->w->dim_k, d + 1, q->block_k, 1);
    return 0;
}

/* Scales and zero points of GPTQ and AWQ: [G, N or its words]. Where columns are reordered, g_idx has their
 * groups, and every part needs all of them. */
static void set_group_axes(const struct fit *f, struct quant_stored *s, int per_word, int indices)
{
    if (f->w->scheme.block_k && !f->w->scheme.act_order)
        set_axis(s, f->w->dim_k, 0, f->w->scheme.block_k, 1);
    set_axis(s, f->w->dim_n, 1, per_word, indices);
}

/* ---- the other stored tensors ---- */

static int64_t count_of(const struct ckpt_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->n_dims; d++)
        n *= t->shape[d];
    return n;
}

static int fit_global(const struct fit *f, struct quant_stored *s)
{
    const struct ckpt_tensor *t = tensor_of(f, s);
    int64_t experts = n_lead(f) ? f->w->shape[0] : 1;
    if (t->dtype != STORED_F32)
        return wrong_dtype(f, t, "F32");
    if (count_of(t) != 1 && (count_of(t) != experts || t->shape[0] != experts))
        return misfit(f, t, experts > 1 ? "one number, or one an expert" : "one number");
    if (count_of(t) > 1)
        set_axis(s, 0, 0, 1, 1);
    return 0;
}

/* Scales of activations: one, one an expert, or one a column. */
static void place_input(const struct fit *f, struct quant_stored *s)
{
    const struct ckpt_tensor *t = tensor_of(f, s);
    if (has_lead(f, t))
        set_lead(f, s);
    else if (t->n_dims == 1 && t->shape[0] == f->k && f->k > 1)
        set_axis(s, f->w->dim_k, 0, 1, 1);
}

static int fit_g_idx(const struct fit *f, struct quant_stored *s)
{
    const struct ckpt_tensor *t = tensor_of(f, s);
    char text[96];
    if (t->dtype != STORED_I32)
        return wrong_dtype(f, t, "I32");
    snprintf(text, sizeof text, "[%lld]", (long long)f->k);
    if (t->n_dims != 1 || t->shape[0] != f->k)
        return misfit(f, t, text);
    set_axis(s, f->w->dim_k, 0, 1, 1);
    return 0;
}

static int fit_others(struct fit *f)
{
    int rc = 0;
    for (int i = 1; i < f->w->n_stored && rc >= 0; i++) {
        struct quant_stored *s = &f->w->stored[i];
        if (s->role == QUANT_GLOBAL_SCALE)
            rc = fit_global(f, s);
        else if (s->role == QUANT_INPUT)
            place_input(f, s);
        else if (s->role == QUANT_SHAPE &&
                 (count_of(tensor_of(f, s)) != f->w->n_dims || tensor_of(f, s)->dtype != STORED_I64))
            rc = misfit(f, tensor_of(f, s), "the two I64 sizes of the weight");
    }
    return rc;
}

/* Scales of one of these dtypes; NULL with *e set: none, or another dtype. */
static struct quant_stored *need_scales(const struct fit *f)
{
    struct quant_stored *s = stored_of(f, QUANT_SCALE);
    enum stored_dtype t = s ? tensor_of(f, s)->dtype : STORED_F32;
    int ok = is_float(t) || t == STORED_F8_E8M0 || t == STORED_U8 || t == STORED_F8_E4M3;
    if (!s)
        err_set(f->e, ERR_FORMAT, "%s: has no scales beside it: is the file whole", codes_of(f)->name);
    else if (!ok)
        wrong_dtype(f, tensor_of(f, s), "a float, F8_E8M0, F8_E4M3 or U8");
    return s && ok ? s : NULL;
}

/* ---- forms ---- */

/* Codes side by side: FP8, FP4, INT8. */
static int fit_plain(struct fit *f)
{
    const struct ckpt_tensor *codes = codes_of(f);
    struct quant_stored *scale = need_scales(f), *zero = stored_of(f, QUANT_ZERO);
    int is_fp4 = f->w->scheme.form == QUANT_FP4, nd = codes->n_dims;
    int per_byte = is_fp4 && codes->dtype != STORED_F4 ? 2 : 1, rc = 0;
    if (!scale)
        return -f->e->code;
    if (nd < 2 || nd > QUANT_DIMS)
        return misfit(f, codes, "two to four dims");

    f->n = codes->shape[nd - 2];
    f->k = codes->shape[nd - 1] * per_byte;
    set_shape(f, nd, nd - 2, nd - 1);
    f->w->scheme.bits = is_fp4 ? 4 : 8;
    f->w->scheme.scale = scale_kind(tensor_of(f, scale)->dtype);
    set_lead(f, &f->w->stored[0]);
    set_axis(&f->w->stored[0], nd - 2, nd - 2, 1, 1);
    set_axis(&f->w->stored[0], nd - 1, nd - 1, per_byte, 1);
    rc = fit_scales(f, scale);
    if (rc >= 0 && zero) {
        const struct ckpt_tensor *z = tensor_of(f, zero), *s = tensor_of(f, scale);
        if (z->n_dims != s->n_dims || memcmp(z->shape, s->shape, sizeof *z->shape * (size_t)z->n_dims))
            return misfit(f, z, "the shape of the scales");
        f->w->scheme.has_zeros = 1;
        memcpy(zero->axis, scale->axis, sizeof zero->axis);
    }
    return rc < 0 ? rc : 0;
}

/* gpt-oss: blocks [.., N, G, 16], scales [.., N, G], of the weight [.., K, N]. */
static int fit_blocks(struct fit *f)
{
    const struct ckpt_tensor *codes = codes_of(f), *scales;
    struct quant_stored *s = need_scales(f), *c = &f->w->stored[0];
    int nd = codes->n_dims;
    char text[96];
    if (!s)
        return -f->e->code;
    if (nd < 3 || nd > QUANT_DIMS + 1 || codes->shape[nd - 1] != 16)
        return misfit(f, codes, "blocks of 16 bytes in their last dim");

    f->n = codes->shape[nd - 3];
    f->k = codes->shape[nd - 2] * 32;
    set_shape(f, nd - 1, nd - 2, nd - 3);
    f->w->scheme = (struct quant_scheme){
        QUANT_FP4, 4, 1, 32, QUANT_SCALE_E8M0, QUANT_GLOBAL_NONE, 0, 0, 1, 0
    };
    scales = tensor_of(f, s);
    if (scales->dtype != STORED_U8 && scales->dtype != STORED_F8_E8M0)
        return wrong_dtype(f, scales, "U8");
    if (scales->n_dims != nd - 1 ||
        memcmp(scales->shape, codes->shape, sizeof *codes->shape * (size_t)(nd - 1)))
        return misfit(f, scales, quant_shape_text(nd - 1, codes->shape, text));
    for (int i = 0; i < 2; i++) {
        struct quant_stored *one = i ? s : c;
        set_lead(f, one);
        set_axis(one, nd - 2, nd - 3, 1, 1);
        set_axis(one, nd - 3, nd - 2, 32, 1);
    }
    return 0;
}

/* K of packed codes under a hint: by the groups of the scales, by g_idx, or by the words alone (*at_most: K
 * may be less by the padding of the last word). 0: they do not fit. */
static int64_t packed_k(const struct fit *f, const struct quant_hint *h, int64_t words, int64_t groups,
                        int *at_most)
{
    const struct quant_stored *g = stored_of(f, QUANT_G_IDX);
    int64_t most = words * WORD_BITS / h->bits, k = most;
    *at_most = 0;
    if (g)
        k = count_of(tensor_of(f, g));
    else if (h->group > 0 && groups * h->group <= most)
        k = groups * h->group;
    else
        *at_most = words * WORD_BITS % h->bits != 0 || WORD_BITS / h->bits > 1;
    if (k < 1 || ceil_div(k * h->bits, WORD_BITS) != words)
        return 0;
    return (h->group > 0 ? ceil_div(k, h->group) : 1) == groups ? k : 0;
}

/* The hint under which the packed codes and scales have these shapes, or NULL. Where several fit, the one
 * whose targets name the module. */
static const struct quant_hint *packed_hint(struct fit *f, int64_t words, int64_t groups)
{
    static const struct quant_hint usual = { .bits = 4, .group = 128, .symmetric = 1 };
    const struct quant_hint *found = NULL, *list = f->says->n ? f->says->hint : &usual;
    char module[512];
    size_t n = strlen(f->w->name);
    snprintf(module, sizeof module, "%.*s", (int)(n > 7 && n < sizeof module ? n - 7 : 0), f->w->name);
    for (int i = 0; i < (f->says->n ? f->says->n : 1); i++) {
        int at_most;
        const struct quant_hint *h = &list[i];
        if (h->is_float || h->bits < 1 || h->bits > 8 || !packed_k(f, h, words, groups, &at_most))
            continue;
        if (!found || (!quant_hint_names(found, module) && quant_hint_names(h, module)))
            found = h;
    }
    if (found)
        f->k = packed_k(f, found, words, groups, &f->w->k_at_most);
    return found;
}

static int fit_packed_zeros(struct fit *f, struct quant_stored *zero, const struct quant_stored *scale)
{
    const struct ckpt_tensor *t = tensor_of(f, zero), *s = tensor_of(f, scale);
    int nd = f->w->n_dims, dim = nd - 2;
    int64_t want[BOX_DIMS];
    char text[96];
    f->w->scheme.has_zeros = 1;
    memcpy(want, s->shape, sizeof want);
    memcpy(zero->axis, scale->axis, sizeof zero->axis);
    if (t->dtype == STORED_I32) {
        want[dim] = ceil_div(f->n * f->w->scheme.bits, WORD_BITS);
        set_packed_axis(zero, f->w->dim_n, dim, f->w->scheme.bits);
    } else if (t->dtype != STORED_I8) {
        return wrong_dtype(f, t, "I32 or I8");
    }
    if (t->n_dims != s->n_dims || memcmp(t->shape, want, sizeof *want * (size_t)t->n_dims))
        return misfit(f, t, quant_shape_text(s->n_dims, want, text));
    return 0;
}

/* compressed-tensors' pack-quantized. */
static int fit_packed(struct fit *f)
{
    const struct ckpt_tensor *codes = codes_of(f), *t;
    struct quant_stored *scale = need_scales(f), *zero = stored_of(f, QUANT_ZERO),
                        *g = stored_of(f, QUANT_G_IDX);
    int nd = codes->n_dims, rc = 0;
    if (!scale)
        return -f->e->code;
    t = tensor_of(f, scale);
    if (nd < 2 || nd > QUANT_DIMS)
        return misfit(f, codes, "two to four dims");
    if (!is_float(t->dtype))
        return wrong_dtype(f, t, "a float");

    int64_t groups = t->n_dims == nd ? t->shape[nd - 1] : 1;
    const struct quant_hint *h = packed_hint(f, codes->shape[nd - 1], groups);
    f->n = codes->shape[nd - 2];
    if (!h || t->n_dims != nd || t->shape[nd - 2] != f->n)
        return misfit(f, t, "a row for every row and a column for every group of config_groups");
    set_shape(f, nd, nd - 2, nd - 1);
    if (!has_lead(f, t) && nd > 2)
        return misfit(f, t, "as many experts");

    f->w->scheme.bits = h->bits;
    f->w->scheme.block_n = 1;
    f->w->scheme.block_k = h->group > 0 ? h->group : 0;
    f->w->scheme.act_order = g != NULL;
    set_lead(f, &f->w->stored[0]);
    set_axis(&f->w->stored[0], nd - 2, nd - 2, 1, 1);
    set_packed_axis(&f->w->stored[0], nd - 1, nd - 1, h->bits);
    set_lead(f, scale);
    set_axis(scale, nd - 2, nd - 2, 1, 1);
    if (f->w->scheme.block_k && !g)
        set_axis(scale, nd - 1, nd - 1, h->group, 1);
    if (zero)
        rc = fit_packed_zeros(f, zero, scale);
    return rc >= 0 && g ? fit_g_idx(f, g) : rc;
}

/* ---- GPTQ and AWQ: K first ---- */

/* Columns of a group, from the number of groups: what the configuration says, or an even division. */
static int find_group(struct fit *f, const struct ckpt_tensor *scales)
{
    int64_t groups = scales->shape[0], say = f->says->n ? f->says->hint[0].group : 0;
    char text[96];
    if (groups == 1 && (say < 0 || !say || say >= f->k || f->says->per_module))
        f->w->scheme.block_k = 0;
    else if (say > 0 && ceil_div(f->k, say) == groups)
        f->w->scheme.block_k = say;
    else if ((!say || f->says->per_module) && groups > 1 && f->k % groups == 0)
        f->w->scheme.block_k = f->k / groups;
    else {
        snprintf(text, sizeof text, "[%lld,%lld] in groups of %lld",
                 (long long)(say > 0 ? ceil_div(f->k, say) : 1), (long long)f->n, (long long)say);
        return misfit(f, scales, text);
    }
    return 0;
}

static int fit_zeros_of_words(struct fit *f, int bits)
{
    struct quant_stored *zero = stored_of(f, QUANT_ZERO);
    const struct ckpt_tensor *t = zero ? tensor_of(f, zero) : NULL,
                             *s = tensor_of(f, stored_of(f, QUANT_SCALE));
    int64_t want[2] = { s->shape[0], ceil_div(f->n * bits, WORD_BITS) };
    char text[96];
    if (!zero)
        return 0;
    if (t->dtype != STORED_I32)
        return wrong_dtype(f, t, "I32");
    if (t->n_dims != 2 || t->shape[0] != want[0] || t->shape[1] != want[1])
        return misfit(f, t, quant_shape_text(2, want, text));
    f->w->scheme.has_zeros = 1;
    set_group_axes(f, zero, WORD_BITS, bits);
    return 0;
}

/* Bits of GPTQ's codes and K: g_idx counts the columns; else the configuration has the bits. */
static int find_bits(struct fit *f, const struct ckpt_tensor *codes)
{
    const struct quant_stored *g = stored_of(f, QUANT_G_IDX);
    int64_t words = codes->shape[0], say = f->says->n ? f->says->hint[0].bits : 0, bits = say ? say : 4;
    if (g) {
        f->k = count_of(tensor_of(f, g));
        bits = f->k ? words * WORD_BITS / f->k : 0;
        if (f->k < 1 || bits < 2 || bits > 8 || ceil_div(f->k * bits, WORD_BITS) != words ||
            (say && say != bits && !f->says->per_module))
            return err_set(f->e, ERR_FORMAT,
                           "%s: has %lld rows of words for the %lld columns of %s: codes of %lld bits need "
                           "%lld rows",
                           codes->name, (long long)words, (long long)f->k, tensor_of(f, g)->name,
                           (long long)(say ? say : 4),
                           (long long)ceil_div(f->k * (say ? say : 4), WORD_BITS));
    }
    f->w->scheme.bits = (int)bits;
    f->k = g ? f->k : words * WORD_BITS / bits;
    return 0;
}

static int check_k_first(const struct fit *f, const struct ckpt_tensor *codes,
                         const struct ckpt_tensor *scales)
{
    if (codes->dtype != STORED_I32)
        return wrong_dtype(f, codes, "I32");
    if (!is_float(scales->dtype))
        return wrong_dtype(f, scales, "a float");
    if (codes->n_dims != 2)
        return misfit(f, codes, "two dims");
    return scales->n_dims == 2 ? 0 : misfit(f, scales, "two dims");
}

static int fit_gptq(struct fit *f)
{
    const struct ckpt_tensor *codes = codes_of(f), *scales;
    struct quant_stored *s = need_scales(f), *g = stored_of(f, QUANT_G_IDX);
    struct quant_scheme *q = &f->w->scheme;
    char text[96];
    int rc = 0;
    if (!s)
        return -f->e->code;
    scales = tensor_of(f, s);
    TRY(check_k_first(f, codes, scales));
    TRY(find_bits(f, codes));

    f->n = codes->shape[1];
    snprintf(text, sizeof text, "%lld columns", (long long)f->n);
    if (scales->shape[1] != f->n)
        return misfit(f, scales, text);
    set_shape(f, 2, f->says->transposed, !f->says->transposed);
    TRY(find_group(f, scales));
    q->block_n = 1;
    q->zero_less_one = f->says->zero_less_one;
    q->symmetric = f->says->n ? f->says->hint[0].symmetric : 1;
    q->act_order = g && f->says->desc_act && q->block_k;

    set_axis(&f->w->stored[0], f->w->dim_n, 1, 1, 1);
    set_packed_axis(&f->w->stored[0], f->w->dim_k, 0, q->bits);
    set_group_axes(f, s, 1, 1);
    TRY(fit_zeros_of_words(f, q->bits));
    if (g)
        TRY(fit_g_idx(f, g));
out:
    return rc < 0 ? rc : 0;
}

static int fit_awq(struct fit *f)
{
    const struct ckpt_tensor *codes = codes_of(f), *scales;
    struct quant_stored *s = need_scales(f);
    char text[96];
    int rc = 0;
    if (!s)
        return -f->e->code;
    scales = tensor_of(f, s);
    TRY(check_k_first(f, codes, scales));

    f->k = codes->shape[0];
    f->n = codes->shape[1] * 8;
    snprintf(text, sizeof text, "%lld columns", (long long)f->n);
    if (scales->shape[1] != f->n)
        return misfit(f, scales, text);
    set_shape(f, 2, f->says->transposed, !f->says->transposed);
    TRY(find_group(f, scales));
    f->w->scheme.bits = 4;
    f->w->scheme.block_n = 1;

    set_axis(&f->w->stored[0], f->w->dim_k, 0, 1, 1);
    set_axis(&f->w->stored[0], f->w->dim_n, 1, 8, 1);
    set_group_axes(f, s, 1, 1);
    TRY(fit_zeros_of_words(f, 4));
out:
    return rc < 0 ? rc : 0;
}

int quant_fit(struct quant_weight *w, const struct quant_says *s, const struct ckpt_tensor *const *t,
              struct err *e)
{
    static int (*const forms[QUANT_FORMS])(struct fit *) = {
        [QUANT_FP8] = fit_plain,     [QUANT_FP4] = fit_plain, [QUANT_INT8] = fit_plain,
        [QUANT_PACKED] = fit_packed, [QUANT_GPTQ] = fit_gptq, [QUANT_AWQ] = fit_awq,
    };
    struct fit f = { w, s, t, 0, 0, e };
    const char *name = t[w->stored[0].tensor]->name, *end = strrchr(name, '_');
    int is_blocks = w->scheme.form == QUANT_FP4 && end && !strcmp(end, "_blocks");
    for (int i = 0; i < w->n_stored; i++)
        for (int d = 0; d < t[w->stored[i].tensor]->n_dims; d++)
            if (t[w->stored[i].tensor]->shape[d] < 1 || t[w->stored[i].tensor]->shape[d] > (int64_t)1 << 26)
                return misfit(&f, t[w->stored[i].tensor], "sizes from 1 to 2^26");
    int rc = is_blocks ? fit_blocks(&f) : forms[w->scheme.form](&f);
    return rc < 0 ? rc : fit_others(&f);
}
