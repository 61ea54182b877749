/* ckpt_view.c - see ckpt_view.h. */
#include "format/ckpt_view.h"

#include <stdlib.h>
#include <string.h>
#include "format/fmt.h"

struct fmt_view {
    struct ckpt *below;
    struct ckpt_view_tensor *tensor; /* [c->n_tensors]; their names are those of c->tensor */
    char *once;                      /* [c->n_tensors] 1: no other tensor of the view is the same one below */
    void *owned;
    void (*free_owned)(void *owned);
};

struct ckpt *ckpt_below(const struct ckpt *c) { return c->view ? c->view->below : NULL; }

struct ckpt *fmt_bottom(const struct ckpt *c)
{
    while (c->view)
        c = c->view->below;
    return (struct ckpt *)c;
}

/* Blocks and records count each byte that a reader proves by digests once. So only a tensor that the view has
 * once may be read unproven; another one, and what computed tensors read, is checked as it is read. */
int fmt_view_read(struct ckpt *c, int i, const struct box *b, int64_t lo, int64_t hi, int trusted, void *dst,
                  struct err *e)
{
    const struct fmt_view *v = c->view;
    const struct ckpt_view_tensor *t = &v->tensor[i];
    int rc;
    if (t->from >= 0)
        return (trusted && v->once[i] ? ckpt_read_unproven : ckpt_read_range)(v->below, t->from, b, lo, hi,
                                                                              dst, e);
    rc = lo < hi ? t->compute(t->arg, v->below, b, lo, hi, dst, e) : 0;
    return rc < 0 ? err_add(e, "computing %s%s", ckpt_role_prefix[t->t.role], t->t.name) : 0;
}

void fmt_view_free(struct fmt_view *v)
{
    if (!v)
        return;
    if (v->free_owned)
        v->free_owned(v->owned);
    ckpt_close(v->below);
    free(v->tensor);
    free(v->once);
    free(v);
}

/* ---- opening ---- */

static int compare(const void *pa, const void *pb)
{
    const struct ckpt_view_tensor *a = pa, *b = pb;
    return fmt_compare_tensors(&a->t, &b->t);
}

/* Completes and checks one row of the table. */
static int take(struct ckpt *c, int i, struct err *e)
{
    struct ckpt_view_tensor *t = &c->view->tensor[i];
    const struct ckpt *below = c->view->below;
    const char *path = ckpt_path(below);
    int64_t bytes;
    int rc = fmt_name_check(t->t.name, strlen(t->t.name), path, e);
    if (rc < 0)
        return rc;
    if (t->from >= below->n_tensors || (t->from < 0 && !t->compute))
        return err_set(e, ERR_INTERNAL, "%s has no source: please report it", t->t.name);

    t->t.has_digest = 0;
    if (t->from >= 0) {
        struct ckpt_tensor named = below->tensor[t->from];
        named.name = t->t.name;
        named.role = t->t.role;
        t->t = named;
    }
    if ((rc = fmt_shape_check(t->t.dtype, t->t.n_dims, t->t.shape, path, t->t.name, &bytes, e)) < 0)
        return rc;
    if (i && compare(t - 1, t) == 0)
        return err_set(e, ERR_FORMAT, "%s: there would be two tensors %s%s", path,
                       ckpt_role_prefix[t->t.role], t->t.name);

    c->tensor[i] = t->t;
    c->n_tensors = i + 1;
    if (!(c->tensor[i].name = strdup(t->t.name)))
        return err_set(e, ERR_MEMORY, "%s: no memory for a view of its tensors", path);
    t->t.name = c->tensor[i].name;
    return 0;
}

static int mark_once(struct ckpt *c, struct err *e)
{
    struct fmt_view *v = c->view;
    int *uses = calloc((size_t)v->below->n_tensors + 1, sizeof *uses);
    if (!uses)
        return err_set(e, ERR_MEMORY, "%s: no memory for a view of its tensors", ckpt_path(v->below));
    for (int i = 0; i < c->n_tensors; i++)
        if (v->tensor[i].from >= 0)
            uses[v->tensor[i].from]++;
    for (int i = 0; i < c->n_tensors; i++)
        v->once[i] = v->tensor[i].from >= 0 && uses[v->tensor[i].from] == 1;
    free(uses);
    return 0;
}

static int fill(struct ckpt *c, int n, const struct ckpt_view_tensor *t, const char *config, struct err *e)
{
    struct fmt_view *v = c->view;
    int rc = 0;
    c->tensor = calloc((size_t)n + 1, sizeof *c->tensor);
    v->tensor = calloc((size_t)n + 1, sizeof *v->tensor);
    v->once = calloc((size_t)n + 1, 1);
    c->config = config ? strdup(config) : NULL;
    if (!c->tensor || !v->tensor || !v->once || (config && !c->config))
        return err_set(e, ERR_MEMORY, "%s: no memory for a view of its tensors", ckpt_path(v->below));

    for (int i = 0; i < n; i++)
        v->tensor[i] = t[i];
    qsort(v->tensor, (size_t)n, sizeof *v->tensor, compare);
    for (int i = 0; i < n && rc >= 0; i++)
        rc = take(c, i, e);
    return rc < 0 ? rc : mark_once(c, e);
}

int ckpt_view_open(struct ckpt **out, struct ckpt *below, int n, const struct ckpt_view_tensor *t,
                   const struct ckpt_view_opts *how, struct err *e)
{
    static const struct ckpt_view_opts none = { 0 };
    struct ckpt *c = calloc(1, sizeof *c);
    struct fmt_view *v = calloc(1, sizeof *v);
    int rc;
    how = how ? how : &none;
    if (!c || !v) {
        rc = err_set(e, ERR_MEMORY, "%s: no memory for a view of its tensors", ckpt_path(below));
        free(c);
        free(v);
        ckpt_close(below);
        if (how->free_owned)
            how->free_owned(how->owned);
        return rc;
    }

    pthread_mutex_init(&c->lock, NULL);
    c->hold = -1;
    c->view = v;
    *v = (struct fmt_view){ .below = below, .owned = how->owned, .free_owned = how->free_owned };
    if ((rc = fill(c, n, t, how->config, e)) < 0) {
        ckpt_close(c);
        return rc;
    }
    *out = c;
    return 0;
}
