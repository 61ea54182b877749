/* cuts_quant.c - see cuts.h: quantised weights are cut as what they stand for.
 *
 * The table has a row for the weight X.weight [N, K]. Its stored tensors (codes, scales, zero points) are
 * replaced by one tensor of that name and shape, which is placed and cut by the row; then each of its
 * parameters becomes one of every stored tensor, in that tensor's own dims and blocks (struct quant_axis).
 * Nothing is requantised: a block that a cut divides is on both ranks, as in params.h. */
#include <stdlib.h>
#include <string.h>
#include "format/quant.h"
#include "reshard/cuts.h"

#define PARAMS_MAX (1 << 22)

struct expand {
    struct cut_model *m;
    const struct quant_list *q;
    const struct ckpt_tensor *const *t;
    int *weight_of_name; /* [q->n]: 1: the list has the weight in place of its stored tensors */
    struct param *p;     /* the new table */
    const char **name;
    int n;
};

/* ---- which weights ---- */

/* 1: a row fits the name. */
static int has_row(const struct cuts *c, const char *name)
{
    int64_t layer, expert;
    for (int i = 0; i < c->n; i++)
        if (cuts_match(c->row[i].pattern, name, &layer, &expert))
            return 1;
    return 0;
}

/* The last words of names (weight_scale, qweight) are few: those of which no row's pattern can end so are
 * remembered. */
struct endings {
    const struct cuts *c;
    int n;
    const char *word[32];
    int can_match[32];
};

static const char *last_word(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

static int may_have_row(struct endings *s, const char *name)
{
    const char *word = last_word(name);
    int64_t layer, expert;
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->word[i], word))
            return s->can_match[i];

    int can = 0;
    for (int i = 0; i < s->c->n && !can; i++)
        can = cuts_match(last_word(s->c->row[i].pattern), word, &layer, &expert);
    if (s->n < (int)(sizeof s->word / sizeof *s->word)) {
        s->word[s->n] = word;
        s->can_match[s->n++] = can;
    }
    return can;
}

/* A table that has rows for the stored tensors themselves says how they are cut. */
static int has_own_rows(struct endings *s, const struct quant_weight *w, const struct ckpt_tensor *const *t)
{
    for (int k = 0; k < w->n_stored; k++) {
        const char *name = t[w->stored[k].tensor]->name;
        if (strcmp(name, w->name) && may_have_row(s, name) && has_row(s->c, name))
            return 1;
    }
    return 0;
}

/* ---- parameters ---- */

/* The stored tensor whole, on every tp rank. */
static void make_whole(struct param *p)
{
    p->split = SPLIT_COPY;
    p->split_dim = p->n_dims - 1;
    p->begin = 0;
    p->size = p->shape[p->split_dim];
    p->block = p->n_fused = p->n_alternating = 1;
    p->indices = 0;
}

/* The parameter of the stored tensor s that goes with parameter w of its weight. 0: it has none, because it
 * does not depend on what divides this one from the weight's first one. */
static int make_param(const struct param *w, const struct quant_stored *s, const struct ckpt_tensor *t,
                      struct param *out)
{
    const struct quant_axis *a = &s->axis[w->split_dim];
    int is_cut = w->split != SPLIT_COPY && a->dim >= 0;
    *out = *w;
    out->n_dims = t->n_dims;
    memcpy(out->shape, t->shape, sizeof out->shape);
    for (int d = t->n_dims; d < BOX_DIMS; d++)
        out->shape[d] = 1;
    out->dtype = stored_dtype_bits(t->dtype) % 8 ? stored_dtype_name(t->dtype) : NULL;

    if (w->stacked && s->axis[0].dim < 0) { /* of all experts */
        out->stacked = 0;
        out->expert = -1;
        out->group = GROUP_DENSE;
        if (w->expert > 0)
            return 0;
    }
    if (!is_cut) {
        make_whole(out);
        return w->begin == 0;
    }
    out->split_dim = a->dim;
    out->block = (int)a->values;
    out->indices = a->indices;
    return 1;
}

static void add_stored(struct expand *x, const struct quant_weight *w, const struct param *first, int n)
{
    for (int k = 0; k < w->n_stored; k++) {
        const struct ckpt_tensor *t = x->t[w->stored[k].tensor];
        for (int i = 0; i < n; i++) {
            if (!make_param(&first[i], &w->stored[k], t, &x->p[x->n]))
                continue;
            x->name[x->n++] = t->name;
        }
    }
}

/* Parameters of one tensor are neighbours and share its name. */
static int n_same(const struct cut_model *m, int i)
{
    int n = 1;
    while (i + n < m->table.n && m->name[i + n] == m->name[i])
        n++;
    return n;
}

static int64_t count_params(const struct expand *x)
{
    int64_t n = 0;
    for (int i = 0; i < x->m->table.n;) {
        int same = n_same(x->m, i), w = quant_find(x->q, x->m->name[i]);
        n += (int64_t)same * (w >= 0 && x->weight_of_name[w] ? x->q->weight[w].n_stored : 1);
        i += same;
    }
    return n;
}

static int expand(struct expand *x, struct err *e)
{
    struct cut_model *m = x->m;
    int64_t total = count_params(x);
    if (total > PARAMS_MAX)
        return err_set(e, ERR_CONFIG, "quantised weights make %lld parameters: at most %d are taken",
                       (long long)total, PARAMS_MAX);
    x->p = calloc((size_t)total + 1, sizeof *x->p);
    x->name = calloc((size_t)total + 1, sizeof *x->name);
    if (!x->p || !x->name) {
        free(x->p);
        free(x->name);
        return err_set(e, ERR_MEMORY, "no memory for a table of %lld parameters", (long long)total);
    }

    for (int i = 0; i < m->table.n;) {
        int same = n_same(m, i), w = quant_find(x->q, m->name[i]);
        if (w >= 0 && x->weight_of_name[w]) {
            add_stored(x, &x->q->weight[w], &m->table.p[i], same);
        } else {
            memcpy(&x->p[x->n], &m->table.p[i], sizeof *x->p * (size_t)same);
            for (int k = 0; k < same; k++)
                x->name[x->n++] = m->name[i];
        }
        i += same;
    }

    free(m->table.p);
    free(m->name);
    m->table.p = x->p;
    m->name = x->name;
    m->table.n = x->n;
    return 0;
}

/* ---- the list ---- */

/* The tensors, with one of its name and shape in place of the stored tensors of each weight. Returns how
 * many. */
static int list_weights(struct expand *x, struct cuts *c, int n, struct ckpt_tensor *weight,
                        const struct ckpt_tensor **out)
{
    struct endings endings = { .c = c };
    int count = 0;
    for (int i = 0; i < x->q->n; i++) {
        const struct quant_weight *w = &x->q->weight[i];
        if (has_own_rows(&endings, w, x->t))
            continue;
        x->weight_of_name[i] = 1;
        weight[i] = (struct ckpt_tensor){ .name = w->name, .dtype = STORED_U8, .n_dims = w->n_dims };
        memcpy(weight[i].shape, w->shape, sizeof weight[i].shape);
        out[count++] = &weight[i];
    }
    for (int i = 0; i < n; i++)
        if (x->q->weight_of[i] < 0 || !x->weight_of_name[x->q->weight_of[i]])
            out[count++] = x->t[i];
    return count;
}

/* The name of a weight that is no tensor ends with this function. */
static void keep_unmatched(struct cut_model *m, const struct quant_list *q,
                           const struct ckpt_tensor *const *t)
{
    int w = m->unmatched ? quant_find(q, m->unmatched) : -1;
    if (w >= 0)
        m->unmatched = t[q->weight[w].stored[0].tensor]->name;
}

int cut_model_open_quant(struct cut_model *m, struct cuts *c, const struct quant_list *q,
                         const struct ckpt_tensor *const *t, int n, const struct layout *l, struct err *e)
{
    if (!q->n)
        return cut_model_open(m, c, t, n, l, e);
    struct expand x = { .m = m, .q = q, .t = t };
    struct ckpt_tensor *weight = calloc((size_t)q->n + 1, sizeof *weight);
    const struct ckpt_tensor **list = calloc((size_t)(n + q->n) + 1, sizeof *list);
    int rc = 0;
    memset(m, 0, sizeof *m);
    x.weight_of_name = calloc((size_t)q->n + 1, sizeof *x.weight_of_name);
    if (!weight || !list || !x.weight_of_name) {
        rc = err_set(e, ERR_MEMORY, "no memory for a plan of %d tensors", n);
        goto out;
    }
    TRY(cut_model_open(m, c, list, list_weights(&x, c, n, weight, list), l, e));
    keep_unmatched(m, q, t);
    if ((rc = expand(&x, e)) < 0)
        cut_model_close(m);
out:
    free(weight);
    free(list);
    free(x.weight_of_name);
    return rc < 0 ? rc : 0;
}
