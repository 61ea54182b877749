/* quantise.c - a view that shows weights as codes that are made here (format/quant_view.h; rules: QUANT.md).
 *
 * The view is made first, with the new names and configuration, so that its list of quantised weights is read
 * as that of any other checkpoint. Scales and codes are computed from the values below each time they are
 * read. */
#include "format/quant/quantise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/ckpt_view.h"

struct made {
    struct encoder encoder;
    struct scale_cache scales;
    char *name; /* of the weight */
};
struct quantise {
    struct quant_list list;
    enum quant_kind kind;
    int is_gpt_oss, n;
    struct made *made; /* [n] */
    pthread_mutex_t lock;
    struct scale_row row[SCALE_ROWS];
    int next;
    char **name; /* of computed tensors, until the view is open */
    int n_names;
};

static void free_names(struct quantise *q)
{
    for (int i = 0; i < q->n_names; i++)
        free(q->name[i]);
    free(q->name);
    q->name = NULL;
    q->n_names = 0;
}

static void free_quantise(void *arg)
{
    struct quantise *q = arg;
    for (int i = 0; i < SCALE_ROWS; i++)
        free(q->row[i].scale);
    for (int i = 0; q->made && i < q->n; i++)
        free(q->made[i].name);
    free_names(q);
    pthread_mutex_destroy(&q->lock);
    quant_close(&q->list);
    free(q->made);
    free(q);
}

/* ---- tensors ---- */

/* The two numbers of X.weight_shape. */
static int compute_shape(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi,
                         void *dst, struct err *e)
{
    const struct encoder *c = arg;
    (void)below, (void)e;
    for (int64_t i = lo; i < hi; i++)
        memcpy((char *)dst + 8 * (i - lo), &c->w.w->shape[b->start[0] + i], 8);
    return 0;
}

/* Adds a computed tensor named base + suffix. Returns its row; NULL: no memory. */
static struct ckpt_view_tensor *add(struct quantise *q, struct ckpt_view_tensor *t, const char *base,
                                    size_t n, const char *suffix)
{
    char *name = malloc(n + strlen(suffix) + 1);
    if (!name)
        return NULL;
    memcpy(name, base, n);
    strcpy(name + n, suffix);
    q->name[q->n_names++] = name;
    *t = (struct ckpt_view_tensor){ .t = { .name = name, .n_dims = 2 },
                                    .from = -1,
                                    .arg = &q->made[q->n].encoder };
    return t;
}

static int64_t blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }

/* X.weight [N, K] as codes and scales. Returns how many tensors, 0: no memory. */
static int add_linear(struct quantise *q, const struct ckpt_tensor *s, struct ckpt_view_tensor *t)
{
    static const char *const names[][2] = {
        [QUANT_KIND_INT8_G128] = { ".weight_packed", ".weight_scale" },
        [QUANT_KIND_FP8_B128] = { ".weight", ".weight_scale_inv" },
        [QUANT_KIND_MXFP4] = { ".weight_packed", ".weight_scale" },
    };
    static const enum stored_dtype dtypes[] = { [QUANT_KIND_INT8_G128] = STORED_I32,
                                                [QUANT_KIND_FP8_B128] = STORED_F8_E4M3,
                                                [QUANT_KIND_MXFP4] = STORED_U8 };
    static const int values[] = {
        [QUANT_KIND_INT8_G128] = 4, [QUANT_KIND_FP8_B128] = 1, [QUANT_KIND_MXFP4] = 2
    };
    const struct quantise_kind *kind = quantise_kind_of(q->kind);
    size_t n = strlen(s->name) - strlen(".weight");
    struct ckpt_view_tensor *codes = add(q, &t[0], s->name, n, names[q->kind][0]),
                            *scale = add(q, &t[1], s->name, n, names[q->kind][1]),
                            *shape = add(q, &t[2], s->name, n, ".weight_shape");
    if (!codes || !scale || !shape)
        return 0;

    codes->t.dtype = dtypes[q->kind];
    codes->t.shape[0] = s->shape[0];
    codes->t.shape[1] = s->shape[1] / values[q->kind];
    codes->compute = encode_codes;
    scale->t.dtype = q->kind == QUANT_KIND_FP8_B128 ? STORED_F32
                     : q->kind == QUANT_KIND_MXFP4  ? STORED_U8
                                                    : s->dtype;
    scale->t.shape[0] = blocks(s->shape[0], kind->block_n);
    scale->t.shape[1] = blocks(s->shape[1], kind->block_k);
    scale->compute = quantise_compute_scales;
    shape->t.dtype = STORED_I64;
    shape->t.n_dims = 1;
    shape->t.shape[0] = 2;
    shape->compute = compute_shape;
    return q->kind == QUANT_KIND_INT8_G128 ? 3 : 2;
}

/* gpt-oss's experts X [E, K, N] as X_blocks [E, N, K/32, 16] and X_scales [E, N, K/32]. */
static int add_experts(struct quantise *q, const struct ckpt_tensor *s, struct ckpt_view_tensor *t)
{
    struct ckpt_view_tensor *codes = add(q, &t[0], s->name, strlen(s->name), "_blocks"),
                            *scale = add(q, &t[1], s->name, strlen(s->name), "_scales");
    if (!codes || !scale)
        return 0;
    const int64_t shape[4] = { s->shape[0], s->shape[2], s->shape[1] / 32, 16 };
    codes->t.dtype = scale->t.dtype = STORED_U8;
    codes->t.n_dims = 4;
    scale->t.n_dims = 3;
    memcpy(codes->t.shape, shape, sizeof shape);
    memcpy(scale->t.shape, shape, 3 * sizeof *shape);
    codes->compute = encode_codes;
    scale->compute = quantise_compute_scales;
    return 2;
}

/* Fills in the tensors of the view and, in stay, the names of matrices that stay. Returns how many tensors,
 * -1: no memory. */
static int list_tensors(struct quantise *q, const struct ckpt *c, struct ckpt_view_tensor *t,
                        const char **stay, int *n_stay, int *n_narrow)
{
    int n = 0;
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct ckpt_tensor *s = ckpt_tensor(c, i);
        int narrow, more;
        if (!strncmp(s->name, QUANT_KEPT_PREFIX, strlen(QUANT_KEPT_PREFIX)))
            continue; /* of other codes than those made here */
        enum quantise_form form = quantise_form_of(q->kind, s, q->is_gpt_oss, &narrow);
        *n_narrow += narrow;
        if (form == QUANTISE_NOT) {
            if (s->role == ROLE_WEIGHT && s->n_dims > 1)
                stay[(*n_stay)++] = s->name;
            t[n++] = (struct ckpt_view_tensor){ .t = *s, .from = i };
            continue;
        }

        more = form == QUANTISE_LINEAR ? add_linear(q, s, t + n) : add_experts(q, s, t + n);
        struct made *m = &q->made[q->n];
        m->scales = (struct scale_cache){ quantise_kind_of(q->kind), t[n + 1].t.dtype, &q->lock, q->row,
                                          &q->next };
        m->encoder = (struct encoder){ .w = { .codes = t[n].t.dtype, .to = STORED_F32 },
                                       .values = i,
                                       .scales = quantise_scales,
                                       .arg = &m->scales };
        memcpy(m->encoder.shape, t[n].t.shape, sizeof m->encoder.shape);
        m->name = strdup(s->name);
        q->n++;
        if (!more || !m->name)
            return -1;
        n += more;
    }
    return n;
}

/* ---- the view ---- */

static int open_view(struct ckpt **c, struct quantise *q, int *n_narrow, struct err *e)
{
    struct ckpt *below = *c;
    size_t most = (size_t)ckpt_n_tensors(below) + 1;
    struct ckpt_view_tensor *t = calloc(most * QUANTISE_TENSORS, sizeof *t);
    const char **stay = malloc(sizeof *stay * most);
    const struct ckpt_view_file no_kept = { QUANT_KEPT_FILE, NULL };
    struct ckpt_view_opts how = { .owned = q, .free_owned = free_quantise, .n_files = 1, .file = &no_kept };
    char *config = NULL;
    int n_stay = 0, n = -1, rc = 0;
    q->made = calloc(most, sizeof *q->made);
    q->name = calloc(most * QUANTISE_TENSORS, sizeof *q->name);
    if (t && stay && q->made && q->name)
        n = list_tensors(q, below, t, stay, &n_stay, n_narrow);
    if (n < 0)
        rc = err_set(e, ERR_MEMORY, "no memory for a view of %zu tensors", most);
    else if (!q->n)
        rc = err_set(e, ERR_USAGE, "%s: has no weight that --quantize would change", ckpt_path(below));
    else if (!(config = quantise_config(q->kind, ckpt_config_json(below), stay, n_stay, q->is_gpt_oss, e)))
        rc = -e->code;
    if (rc < 0) {
        free_quantise(q);
    } else {
        how.config = config;
        *c = NULL;
        rc = ckpt_view_open(c, below, n, t, &how, e);
        if (rc >= 0)
            free_names(q);
    }
    free(t);
    free(stay);
    free(config);
    return rc;
}

/* Each encoder gets its weight from the list of the view. */
static int set_weights(struct quantise *q, struct ckpt *view, struct err *e)
{
    int rc = quant_open_ckpt(&q->list, view, e);
    if (rc >= 0)
        rc = quant_settle(&q->list, view, e);
    for (int i = 0; i < q->n && rc >= 0; i++) {
        int at = quant_find(&q->list, q->made[i].name);
        if (at < 0)
            return err_set(e, ERR_INTERNAL, "%s is not in the list of quantised weights: please report it",
                           q->made[i].name);
        q->made[i].encoder.w.w = &q->list.weight[at];
    }
    return rc;
}

static int check(struct quantise *q, struct ckpt *c, struct err *e)
{
    const char *text = ckpt_config_json(c), *type = "";
    struct quant_list list;
    if (!text)
        return err_set(e, ERR_CONFIG, "%s: has no config.json, which has to say what is quantised",
                       ckpt_path(c));
    json_t *o = jx_parse(text, strlen(text), "config.json", e);
    int rc = o ? jx_text(o, "config.json", "model_type", &type, e) : -e->code;
    q->is_gpt_oss = rc >= 0 && !strcmp(type, "gpt_oss");
    json_decref(o);
    if (rc < 0)
        return rc;
    rc = quant_open_ckpt(&list, c, e);
    if (rc >= 0 && (list.n || *list.method))
        rc = err_set(e, ERR_USAGE, "%s: holds quantised weights: add --dequantize bf16", ckpt_path(c));
    quant_close(&list);
    return rc;
}

int quant_quantize(struct ckpt **c, enum quant_kind kind, int *n_narrow, struct err *e)
{
    struct quantise *q = calloc(1, sizeof *q);
    int rc = q ? 0 : err_set(e, ERR_MEMORY, "no memory for a view of quantised weights");
    *n_narrow = 0;
    if (q) {
        pthread_mutex_init(&q->lock, NULL);
        q->kind = kind;
        if ((rc = check(q, *c, e)) < 0)
            free_quantise(q);
    }
    if (rc >= 0)
        rc = open_view(c, q, n_narrow, e);
    if (rc >= 0)
        rc = set_weights(q, *c, e);
    if (rc < 0) {
        ckpt_close(*c);
        *c = NULL;
    }
    return rc;
}
