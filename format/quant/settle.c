/* settle.c - see quant.h: what a checkpoint's small files and contents say about its quantised weights. */
#include <stdlib.h>
#include <string.h>
#include "format/ckpt.h"
#include "format/quant.h"

#define WORD_BITS 32
#define SAMPLE_WORDS 1024 /* of the zero points of a weight */

/* ---- the small files ---- */

/* The text of a small file, NULL: there is none. The caller frees it. */
static int read_text(struct ckpt *c, const char *name, char **out, struct err *e)
{
    for (int i = 0; i < ckpt_n_extra(c); i++) {
        void *data = NULL;
        size_t n = 0;
        if (strcmp(ckpt_extra_name(c, i), name))
            continue;
        int rc = ckpt_extra_read(c, i, &data, &n, e);
        if (rc >= 0 && !(*out = calloc(n + 1, 1)))
            rc = err_set(e, ERR_MEMORY, "no memory for %s", name);
        if (rc >= 0)
            memcpy(*out, data, n);
        free(data);
        return rc < 0 ? rc : 0;
    }
    return 0;
}

static int open_listed(struct quant_list *q, struct ckpt *c, const char *config,
                       const struct ckpt_tensor *const *t, int n, struct err *e)
{
    char *gptq = NULL, *modelopt = NULL;
    int rc = 0;
    memset(q, 0, sizeof *q);
    TRY(read_text(c, QUANT_GPTQ_FILE, &gptq, e));
    TRY(read_text(c, QUANT_MODELOPT_FILE, &modelopt, e));
    const struct quant_texts texts = { config, gptq, modelopt };
    rc = quant_open(q, &texts, t, n, e);
out:
    free(gptq);
    free(modelopt);
    return rc < 0 ? err_add(e, "%s", ckpt_path(c)) : 0;
}

int quant_open_as(struct quant_list *q, struct ckpt *c, const char *config, struct err *e)
{
    int n = 0, rc;
    const struct ckpt_tensor **t = malloc(sizeof *t * (size_t)(ckpt_n_tensors(c) + 1));
    memset(q, 0, sizeof *q);
    if (!t)
        return err_set(e, ERR_MEMORY, "no memory for %d tensors", ckpt_n_tensors(c));
    while (n < ckpt_n_tensors(c) && ckpt_tensor(c, n)->role == ROLE_WEIGHT) { /* they come first */
        t[n] = ckpt_tensor(c, n);
        n++;
    }
    rc = open_listed(q, c, config, t, n, e);
    free(t);
    return rc;
}

int quant_open_ckpt(struct quant_list *q, struct ckpt *c, struct err *e)
{
    return quant_open_as(q, c, ckpt_config_json(c), e);
}

int quant_check_values(const struct quant_list *q, const struct ckpt *c, struct err *e)
{
    if (!q->is_known)
        return err_set(
            e, ERR_CONFIG,
            "%s: quant_method %s: its values are not known here, only its bytes: leave out what asks "
            "for values, or use a copy in another format",
            ckpt_path(c), q->method);
    if (q->unscaled >= 0)
        return err_set(e, ERR_FORMAT, "%s: %s has no scales beside it: is the file whole", ckpt_path(c),
                       ckpt_tensor(c, q->unscaled)->name);
    return 0;
}

/* ---- contents ---- */

/* The first elements of a stored tensor, at most `most` of its first row. Returns how many. */
static int64_t read_head(struct ckpt *c, int tensor, int64_t most, void *dst, struct err *e)
{
    const struct ckpt_tensor *t = ckpt_tensor(c, tensor);
    struct box b = box_whole(t->n_dims, t->shape);
    int64_t n = box_count(&b);
    n = n < most ? n : most;
    int rc = ckpt_read_range(c, tensor, &b, 0, n, dst, e);
    return rc < 0 ? rc : n;
}

/* X.weight_shape: the exact K. */
static int settle_shape(struct quant_weight *w, struct ckpt *c, struct err *e)
{
    const struct quant_stored *s = quant_part(w, QUANT_SHAPE), *codes = quant_part(w, QUANT_CODES);
    int64_t size[BOX_DIMS] = { 0 }, k, words = ckpt_tensor(c, codes->tensor)->shape[w->dim_k], n;
    if (!s || !w->k_at_most)
        return 0;
    if ((n = read_head(c, s->tensor, w->n_dims, size, e)) < 0)
        return (int)n;
    k = size[w->dim_k];
    if (size[w->dim_n] != w->shape[w->dim_n] || k < 1 || k > w->shape[w->dim_k] ||
        (k * w->scheme.bits + WORD_BITS - 1) / WORD_BITS != words)
        return err_set(
            e, ERR_FORMAT,
            "%s: says [%lld,%lld], the codes hold %lld rows of at most %lld values: is the file whole",
            ckpt_tensor(c, s->tensor)->name, (long long)size[w->dim_n], (long long)k,
            (long long)w->shape[w->dim_n], (long long)w->shape[w->dim_k]);
    w->shape[w->dim_k] = k;
    w->k_at_most = 0;
    return 0;
}

/* The zero point of symmetric codes is 2^(bits - 1): stored so by v2, less one by v1, whatever the label. */
static int settle_zeros(struct quant_weight *w, struct ckpt *c, struct err *e)
{
    const struct quant_stored *z = quant_part(w, QUANT_ZERO);
    const int bits = w->scheme.bits;
    uint32_t word[SAMPLE_WORDS], v1 = 0, v2 = 0;
    int64_t n, is_v1 = 0, is_v2 = 0;
    if (!z || w->scheme.form != QUANT_GPTQ || !w->scheme.symmetric || WORD_BITS % bits)
        return 0;
    if ((n = read_head(c, z->tensor, SAMPLE_WORDS, word, e)) < 0)
        return (int)n;
    for (int b = 0; b < WORD_BITS; b += bits) {
        v2 |= 1u << (bits - 1) << b;
        v1 |= ((1u << (bits - 1)) - 1) << b;
    }
    for (int64_t i = 0; i < n; i++) {
        is_v1 += word[i] == v1;
        is_v2 += word[i] == v2;
    }
    if (is_v1 == n || is_v2 == n)
        w->scheme.zero_less_one = is_v1 == n;
    return 0;
}

static void set_order(struct quant_weight *w, int act_order, int group_dim)
{
    static const struct quant_axis all = { -1, 1, 1 };
    const struct quant_axis ramp = { (int16_t)group_dim, 1, (int32_t)w->scheme.block_k };
    w->scheme.act_order = act_order;
    for (int i = 0; i < w->n_stored; i++)
        if (w->stored[i].role == QUANT_SCALE || w->stored[i].role == QUANT_ZERO)
            w->stored[i].axis[w->dim_k] = act_order ? all : ramp;
}

/* g_idx: in range, and a ramp (or all 0, which old files have for one) where columns are not reordered. */
static int settle_order(struct quant_weight *w, struct ckpt *c, struct err *e)
{
    const struct quant_stored *g = quant_part(w, QUANT_G_IDX), *s = quant_part(w, QUANT_SCALE);
    int64_t k = w->shape[w->dim_k], step = w->scheme.block_k, n, is_ramp = 1, is_zero = 1;
    if (!g || !step)
        return 0;
    const struct ckpt_tensor *scale = ckpt_tensor(c, s->tensor);
    int group_dim = w->scheme.form == QUANT_GPTQ ? 0 : scale->n_dims - 1;
    int64_t groups = scale->shape[group_dim];
    int32_t *idx = malloc(sizeof *idx * (size_t)k);
    if (!idx)
        return err_set(e, ERR_MEMORY, "no memory for %lld columns", (long long)k);
    n = read_head(c, g->tensor, k, idx, e);

    for (int64_t i = 0; i < n; i++) {
        is_ramp &= idx[i] == i / step;
        is_zero &= idx[i] == 0;
        if (idx[i] < 0 || idx[i] >= groups) {
            n = err_set(e, ERR_FORMAT, "%s: column %lld is in group %ld of %lld: is the file whole",
                        ckpt_tensor(c, g->tensor)->name, (long long)i, (long)idx[i], (long long)groups);
            break;
        }
    }
    if (n >= 0)
        set_order(w, !is_ramp && !is_zero, group_dim);
    free(idx);
    return n < 0 ? (int)n : 0;
}

int quant_settle_shapes(struct quant_list *q, struct ckpt *c, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < q->n && rc >= 0; i++)
        rc = settle_shape(&q->weight[i], c, e);
    return rc < 0 ? err_add(e, "%s", ckpt_path(c)) : 0;
}

int quant_settle(struct quant_list *q, struct ckpt *c, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < q->n && rc >= 0; i++) {
        struct quant_weight *w = &q->weight[i];
        TRY(settle_shape(w, c, e));
        TRY(settle_zeros(w, c, e));
        TRY(settle_order(w, c, e));
    }
out:
    return rc < 0 ? err_add(e, "%s", ckpt_path(c)) : 0;
}
