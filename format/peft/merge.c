/* merge.c - see peft.h. */
#include "format/peft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/ckpt_view.h"
#include "format/peft/merge_priv.h"
#include "format/quant_view.h"

/* A weight that was trained as a whole, in the model's dtype. */
static int read_saved(const struct merge_job *j, const struct box *b, int64_t lo, int64_t hi, void *dst,
                      struct err *e)
{
    struct ckpt *c = j->m->adapter;
    enum stored_dtype dt = ckpt_tensor(c, j->saved)->dtype;
    char raw[32 << 10];
    int64_t step = stored_elements(dt, sizeof raw);
    if (dt == j->t->dtype)
        return ckpt_read_range(c, j->saved, b, lo, hi, dst, e);
    for (int64_t at = lo; at < hi; at += step) {
        int64_t end = hi - at < step ? hi : at + step;
        int rc = ckpt_read_range(c, j->saved, b, at, end, raw, e);
        if (rc < 0)
            return rc;
        for (int64_t i = at; i < end; i++)
            merge_round(j->t->dtype, stored_value(dt, raw, i - at), dst, i - lo);
    }
    return 0;
}

static int compute(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi, void *dst,
                   struct err *e)
{
    const struct merge_job *j = arg;
    int rc = j->saved >= 0 ? read_saved(j, b, lo, hi, dst, e)
                           : ckpt_read_range(below, j->from, b, lo, hi, dst, e);
    if (j->saved >= 0) {
        atomic_fetch_add(&j->m->changed, hi - lo); /* whether they differ is not asked */
        atomic_fetch_add(&j->m->moved, hi - lo);
    }
    return rc >= 0 && j->mod ? merge_add_module(j, b, lo, hi, dst, e) : rc;
}

/* ---- the record ---- */

/* What the model says of adapters that were merged before; an empty list where it says nothing. NULL: *e. */
static json_t *earlier(const struct ckpt *c, struct err *e)
{
    void *text = NULL;
    size_t n = 0;
    json_t *root = NULL, *list = NULL;
    for (int i = 0; i < ckpt_n_extra(c) && !text; i++)
        if (!strcmp(ckpt_extra_name(c, i), PEFT_MERGED) && ckpt_extra_read(c, i, &text, &n, e) < 0)
            return NULL;
    if (!text)
        return json_array();
    if ((root = jx_parse(text, n, PEFT_MERGED, e)))
        list = json_incref(json_object_get(root, "adapters"));
    json_decref(root);
    free(text);
    if (root && !json_is_array(list)) {
        err_set(e, ERR_FORMAT, "%s: " PEFT_MERGED " has no list of adapters: remove it", ckpt_path(c));
        json_decref(list);
        return NULL;
    }
    return list;
}

/* One line of the record: what the product depends on. */
static json_t *record_of(const struct peft_merge *m, const char *digest)
{
    static const char *const kept[] = { "alpha_pattern", "lora_alpha", "r", "rank_pattern", "use_rslora" };
    json_t *o = json_pack("{s:s}", "digest", digest);
    for (size_t i = 0; o && i < sizeof kept / sizeof *kept; i++) {
        json_t *v = json_object_get(m->a.config.root, kept[i]);
        if (v && !json_is_null(v) && !(json_is_object(v) && !json_object_size(v)))
            json_object_set(o, kept[i], v);
    }
    return o;
}

/* The text of PEFT_MERGED, malloc'd. NULL: *e is set. */
static char *make_record(const struct peft_merge *m, const struct ckpt *c, const char *digest, struct err *e)
{
    json_t *list = earlier(c, e), *row = list ? record_of(m, digest) : NULL;
    json_t *root = row && json_array_append_new(list, row) == 0 ? json_pack("{s:O}", "adapters", list) : NULL;
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    if (list && !text)
        merge_no_memory(m, e);
    json_decref(list);
    json_decref(root);
    return text;
}

/* ---- opening ---- */

int merge_no_memory(const struct peft_merge *m, struct err *e)
{
    return err_set(e, ERR_MEMORY, "%s: no memory to merge it", m->path);
}

void merge_free(void *p)
{
    struct peft_merge *m = p;
    if (!m)
        return;
    peft_free(&m->a);
    ckpt_close(m->adapter);
    free(m->path);
    free(m->job);
    free(m->is_used);
    free(m->n_used);
    free(m);
}

static void read_type(struct peft_merge *m)
{
    struct err ignored = { 0 };
    const char *type = NULL;
    json_t *o = m->config ? jx_parse(m->config, strlen(m->config), "config.json", &ignored) : NULL;
    if (o && jx_text(o, "config.json", "model_type", &type, &ignored) > 0)
        snprintf(m->type, sizeof m->type, "%s", type);
    json_decref(o);
}

int merge_prepare(struct peft_merge *m, const struct ckpt *c, struct err *e)
{
    size_t n = (size_t)ckpt_n_tensors(c);
    int rc = peft_read(&m->a, m->adapter, e);
    if (rc < 0)
        return rc;
    m->config = ckpt_config_json(c);
    read_type(m);
    m->job = calloc(n + 1, sizeof *m->job);
    m->is_used = calloc((size_t)(m->a.n + m->a.n_saved) + 1, 1);
    m->n_used = calloc((size_t)m->a.n + 1, sizeof *m->n_used);
    if (!m->job || !m->is_used || !m->n_used)
        return merge_no_memory(m, e);
    return merge_find_jobs(m, c, e);
}

/* The tensors of the view: those of c, without what --requantize would need. Returns how many. */
static int list_tensors(struct peft_merge *m, const struct ckpt *c, struct ckpt_view_tensor *list)
{
    int n = 0, job = 0;
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor(c, i);
        int is_job = job < m->n_jobs && m->job[job].from == i;
        if (!strncmp(t->name, QUANT_KEPT_PREFIX, strlen(QUANT_KEPT_PREFIX)))
            continue;
        list[n++] = (struct ckpt_view_tensor){ .t = *t,
                                               .from = is_job ? -1 : i,
                                               .compute = is_job ? compute : NULL,
                                               .arg = is_job ? &m->job[job] : NULL };
        job += is_job;
    }
    return n;
}

static int open_view(struct peft_merge *m, struct ckpt **c, const char *digest, struct err *e)
{
    struct ckpt *below = *c;
    struct ckpt_view_tensor *list = calloc((size_t)ckpt_n_tensors(below) + 1, sizeof *list);
    char *record = list ? make_record(m, below, digest, e) : NULL;
    if (!list)
        merge_no_memory(m, e);
    if (!record) {
        free(list);
        return -e->code;
    }
    const struct ckpt_view_file files[] = { { PEFT_MERGED, record }, { QUANT_KEPT_FILE, NULL } };
    struct ckpt_view_opts how = {
        .config = ckpt_config_json(below), .owned = m, .free_owned = merge_free, .n_files = 2, .file = files
    };
    *c = NULL;
    int rc = ckpt_view_open(c, below, list_tensors(m, below, list), list, &how, e);
    free(list);
    free(record);
    return rc < 0 ? rc : 1;
}

int peft_merge_open(struct peft_merge **out, struct ckpt **c, const struct peft_merge_source *from,
                    struct err *e)
{
    struct peft_merge *m = calloc(1, sizeof *m);
    int rc = m && (m->path = strdup(from->path))
                 ? 0
                 : err_set(e, ERR_MEMORY, "%s: no memory to merge it", from->path);
    if (rc < 0) {
        ckpt_close(from->adapter);
        goto out;
    }
    m->adapter = from->adapter;
    TRY(merge_prepare(m, *c, e));
    rc = open_view(m, c, from->digest, e);
    if (rc >= 0)
        *out = m;
    else if (!*c)
        m = NULL; /* the view has freed it */
out:
    if (rc < 0) {
        merge_free(m);
        ckpt_close(*c);
        *c = NULL;
    }
    return rc < 0 ? rc : 0;
}

const struct peft *peft_merge_adapter(const struct peft_merge *m) { return &m->a; }
int peft_merge_n_tensors(const struct peft_merge *m) { return m->n_jobs; }

/* ---- afterwards ---- */

void peft_merge_counts(const struct peft_merge *m, int64_t v[2])
{
    v[0] = atomic_load(&((struct peft_merge *)m)->moved);
    v[1] = atomic_load(&((struct peft_merge *)m)->changed);
}

int peft_merge_check(const struct peft_merge *m, const int64_t v[2], struct err *e)
{
    if (v[0] == 0 || v[1] > 0)
        return 0;
    return err_set(
        e, ERR_INTEGRITY,
        "%s: the adapter is not zero, and has changed no weight: its update is below the last bit of "
        "their dtype: merge into --dtype fp32 weights",
        m->path);
}
