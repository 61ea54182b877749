/* ckpt_view.c - see ckpt_view.h. */
#include "format/ckpt_view.h"

#include <stdlib.h>
#include <string.h>
#include "format/fmt.h"

/* A small file of a view: `text`, or number `below` of the checkpoint below. */
struct small_file {
    char *name, *text;
    int below;
};

struct fmt_view {
    struct ckpt *below;
    struct ckpt_view_tensor *tensor; /* [c->n_tensors]; their names are those of c->tensor */
    char *once;                      /* [c->n_tensors] 1: no other tensor of the view is the same one below */
    int n_files;
    struct small_file *file;
    void *owned;
    void (*free_owned)(void *owned);
};

struct ckpt *ckpt_below(const struct ckpt *c) { return c->view ? c->view->below : NULL; }

int ckpt_is_computed(const struct ckpt *c, int i)
{
    for (; c->view && i >= 0; c = c->view->below)
        i = c->view->tensor[i].from;
    return i < 0;
}

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

int fmt_view_n_extra(const struct fmt_view *v) { return v->n_files; }
const char *fmt_view_extra_name(const struct fmt_view *v, int i) { return v->file[i].name; }

int fmt_view_extra_read(const struct fmt_view *v, int i, void **data, size_t *bytes, struct err *e)
{
    const struct small_file *f = &v->file[i];
    if (!f->text)
        return ckpt_extra_read(v->below, f->below, data, bytes, e);
    *data = strdup(f->text);
    *bytes = strlen(f->text);
    return *data ? 0 : err_set(e, ERR_MEMORY, "no memory for %s", f->name);
}

void fmt_view_free(struct fmt_view *v)
{
    if (!v)
        return;
    if (v->free_owned)
        v->free_owned(v->owned);
    ckpt_close(v->below);
    for (int i = 0; i < v->n_files; i++) {
        free(v->file[i].name);
        free(v->file[i].text);
    }
    free(v->file);
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

static int add_file(struct fmt_view *v, const char *name, const char *text, int below, struct err *e)
{
    struct small_file *f = &v->file[v->n_files++];
    *f = (struct small_file){ strdup(name), text ? strdup(text) : NULL, below };
    return f->name && (f->text || !text) ? 0 : err_set(e, ERR_MEMORY, "no memory for %s", name);
}

static int list_files(struct fmt_view *v, int n, const struct ckpt_view_file *file, struct err *e)
{
    int n_below = ckpt_n_extra(v->below), rc = 0;
    v->file = calloc((size_t)(n_below + n) + 1, sizeof *v->file);
    if (!v->file)
        return err_set(e, ERR_MEMORY, "no memory for %d small files", n_below + n);
    for (int i = 0; i < n_below && rc >= 0; i++) {
        int replaced = 0;
        for (int k = 0; k < n; k++)
            replaced |= !strcmp(file[k].name, ckpt_extra_name(v->below, i));
        if (!replaced)
            rc = add_file(v, ckpt_extra_name(v->below, i), NULL, i, e);
    }
    for (int k = 0; k < n && rc >= 0; k++)
        if (file[k].text)
            rc = add_file(v, file[k].name, file[k].text, -1, e);
    return rc;
}

static int fill(struct ckpt *c, int n, const struct ckpt_view_tensor *t, const struct ckpt_view_opts *how,
                struct err *e)
{
    struct fmt_view *v = c->view;
    const char *config = how->config;
    int rc = list_files(v, how->n_files, how->file, e);
    if (rc < 0)
        return rc;
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
    if ((rc = fill(c, n, t, how, e)) < 0) {
        ckpt_close(c);
        return rc;
    }
    *out = c;
    return 0;
}
