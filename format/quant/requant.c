/* requant.c - a view that shows the values of a dequantised checkpoint as the codes that they were made from
 * (format/quant_view.h).
 *
 * The view is made first, with the published names, configuration and small files, so that the list of
 * quantised weights is read from it as from the published checkpoint. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/ckpt_view.h"
#include "format/quant/encode.h"
#include "format/quant/kept.h"
#include "format/quant_view.h"

struct requant {
    struct kept kept;
    struct quant_list list;
    int n;                   /* tensors of codes */
    struct encoder *encoder; /* [n] */
    const char **weight;     /* [n]: the weight that each is of; borrowed from kept */
    const char **code;       /* [n]: its own name */
};

static void free_requant(void *arg)
{
    struct requant *q = arg;
    quant_close(&q->list);
    kept_close(&q->kept);
    free(q->encoder);
    free(q->weight);
    free(q->code);
    free(q);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* ---- tensors ---- */

/* The tensors of codes, in the order of kept.codes. */
static int list_codes(struct requant *q, const struct ckpt *c, struct ckpt_view_tensor *t, struct err *e)
{
    const char *name;
    json_t *row;
    json_object_foreach(q->kept.codes, name, row) {
        struct encoder *x = &q->encoder[q->n];
        struct ckpt_view_tensor *v = &t[q->n];
        *v = (struct ckpt_view_tensor){ .from = -1, .compute = encode_codes, .arg = x };
        int rc = kept_row(name, row, &v->t, &q->weight[q->n], e);
        if (rc < 0)
            return rc;
        memcpy(x->shape, v->t.shape, sizeof x->shape);
        x->exact = 1;
        x->values = ckpt_find(c, ROLE_WEIGHT, q->weight[q->n]);
        x->w.codes = v->t.dtype;
        if (x->values < 0)
            return err_set(e, ERR_CONFIG, "%s: has no %.200s, which " QUANT_KEPT_FILE " names", ckpt_path(c),
                           q->weight[q->n]);
        /* --dtype may have rounded fp32 values since: to the bits that --dequantize bf16 makes */
        x->w.to = ckpt_tensor(c, x->values)->dtype == STORED_BF16 ? STORED_BF16 : q->kept.values;
        if (stored_dtype_bits(v->t.dtype) < 8)
            return err_set(e, ERR_CONFIG, "%s is %s: codes of that dtype are not made", name,
                           stored_dtype_name(v->t.dtype));
        q->code[q->n++] = name;
    }
    return 0;
}

/* All others: what was kept under its published name, and what was never quantised. */
static int list_others(struct requant *q, const struct ckpt *c, struct ckpt_view_tensor *t)
{
    const size_t prefix = strlen(QUANT_KEPT_PREFIX);
    const char **sorted = malloc(sizeof *sorted * (size_t)(q->n + 1));
    int n = 0;
    if (!sorted)
        return -1;
    memcpy(sorted, q->weight, sizeof *sorted * (size_t)q->n);
    qsort(sorted, (size_t)q->n, sizeof *sorted, compare_names);
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct ckpt_tensor *s = ckpt_tensor(c, i);
        if (s->role == ROLE_WEIGHT && bsearch(&s->name, sorted, (size_t)q->n, sizeof *sorted, compare_names))
            continue;
        t[n] = (struct ckpt_view_tensor){ .t = *s, .from = i };
        if (s->role == ROLE_WEIGHT && !strncmp(s->name, QUANT_KEPT_PREFIX, prefix))
            t[n].t.name = s->name + prefix;
        n++;
    }
    free(sorted);
    return n;
}

/* Opens the view over *c; q is the view's, or freed. */
static int open_view(struct ckpt **c, struct requant *q, struct err *e)
{
    struct ckpt *below = *c;
    size_t n = json_object_size(q->kept.codes);
    struct ckpt_view_tensor *t = calloc((size_t)ckpt_n_tensors(below) + n + 1, sizeof *t);
    struct ckpt_view_file *file = calloc(json_object_size(q->kept.files) + 1, sizeof *file);
    struct ckpt_view_opts how = { .file = file, .owned = q, .free_owned = free_requant };
    const char *name;
    json_t *text;
    int rc = 0, others = -1;
    q->encoder = calloc(n + 1, sizeof *q->encoder);
    q->weight = calloc(n + 1, sizeof *q->weight);
    q->code = calloc(n + 1, sizeof *q->code);
    if (!t || !file || !q->encoder || !q->weight || !q->code)
        rc = err_set(e, ERR_MEMORY, "no memory for a view of %zu weights", n);
    if (rc >= 0 && (rc = list_codes(q, below, t, e)) >= 0 && (others = list_others(q, below, t + q->n)) < 0)
        rc = err_set(e, ERR_MEMORY, "no memory for a view of %zu weights", n);
    if (rc < 0) {
        free_requant(q);
        goto out;
    }

    file[how.n_files++] = (struct ckpt_view_file){ QUANT_KEPT_FILE, NULL };
    json_object_foreach(q->kept.files, name, text) {
        if (strcmp(name, "config.json"))
            file[how.n_files++] = (struct ckpt_view_file){ name, json_string_value(text) };
        else
            how.config = json_string_value(text);
    }
    *c = NULL;
    rc = ckpt_view_open(c, below, q->n + others, t, &how, e);
out:
    free(t);
    free(file);
    return rc;
}

/* ---- weights ---- */

/* Tells an encoder what the list of the view says of its weight. view: numbers of the list; below: those that
 * the encoder reads by. */
static int set_weight(struct requant *q, int i, const struct ckpt *view, const struct ckpt *below,
                      struct err *e)
{
    struct encoder *x = &q->encoder[i];
    int at = quant_find(&q->list, q->weight[i]);
    const struct quant_weight *w = at < 0 ? NULL : &q->list.weight[at];
    const struct ckpt_tensor *have = ckpt_tensor(below, x->values);
    if (!w || strcmp(ckpt_tensor(view, quant_part(w, QUANT_CODES)->tensor)->name, q->code[i]))
        return err_set(e, ERR_CONFIG,
                       "%s: %s and the kept configuration do not fit: restore " QUANT_KEPT_FILE,
                       ckpt_path(below), q->weight[i]);
    if (have->n_dims != w->n_dims || memcmp(have->shape, w->shape, sizeof *w->shape * (size_t)w->n_dims))
        return err_set(e, ERR_CONFIG,
                       "%s: %s has not the shape that its codes had: was it changed since "
                       "--dequantize",
                       ckpt_path(below), q->weight[i]);

    x->w.w = w;
    for (int k = 0; k < w->n_stored; k++) {
        char name[1024];
        snprintf(name, sizeof name, QUANT_KEPT_PREFIX "%s", ckpt_tensor(view, w->stored[k].tensor)->name);
        x->w.tensor[k] = ckpt_find(below, ROLE_WEIGHT, name);
    }
    return 0;
}

static int set_weights(struct requant *q, struct ckpt *view, struct err *e)
{
    int rc = 0;
    TRY(quant_open_ckpt(&q->list, view, e));
    TRY(quant_check_values(&q->list, view, e));
    TRY(quant_settle(&q->list, view, e));
    for (int i = 0; i < q->n; i++)
        TRY(set_weight(q, i, view, ckpt_below(view), e));
out:
    return rc < 0 ? rc : 0;
}

int quant_requantize(struct ckpt **c, struct err *e)
{
    struct requant *q = calloc(1, sizeof *q);
    int rc = q ? kept_open(&q->kept, *c, e)
               : err_set(e, ERR_MEMORY, "no memory for a view of quantised weights");
    if (rc < 0 && q)
        free_requant(q);
    if (rc >= 0)
        rc = open_view(c, q, e);
    if (rc >= 0)
        rc = set_weights(q, *c, e);
    if (rc < 0) {
        ckpt_close(*c);
        *c = NULL;
    }
    return rc;
}
