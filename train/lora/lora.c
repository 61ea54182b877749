/* lora.c - see lora.h. */
#include "train/lora/lora.h"

#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/quant_view.h"
#include "train/run.h"

int lora_asked(const struct run *r)
{
    return r->o.lora || r->o.lora_init || (r->o.resume && r->source && peft_is(r->source));
}

/* ---- what was asked for ---- */
static int check_asked(const struct run *r, struct err *e)
{
    const struct train_opts *o = &r->o;
    const char *path = r->source ? ckpt_path(r->source) : "";
    int is_adapter = r->source && peft_is(r->source), resumes = r->source && o->resume;
    if (resumes && !is_adapter)
        return err_set(e, ERR_USAGE,
                       "%s is a run of all weights: leave --lora out, or start an adapter of its weights "
                       "with --init",
                       path);
    if (resumes && o->lora_init && !r->resumes_newest)
        return err_set(e, ERR_USAGE, "--lora-init %s: the resumed run has its own adapter: leave it out",
                       o->lora_init);
    if (o->eval_only && !o->lora_init)
        return err_set(e, ERR_USAGE,
                       "--eval-only --lora: nothing is trained: name a trained adapter with --lora-init");
    if (!r->source && !o->dry_run)
        return err_set(e, ERR_USAGE, "--lora needs --init CKPT, the weights that it changes");
    return 0;
}

static int open_base(struct run *r, struct err *e)
{
    struct lora *l = &r->lora;
    const char *path = r->o.init ? r->o.init : l->peft.config.base;
    const char *config = r->o.model && io_exists(r->o.model) ? r->o.model : NULL;
    l->base = r->source;
    if (!r->source || !r->o.resume)
        return 0;
    l->base = NULL;
    l->owns_base = 1;
    int rc = ckpt_open(&l->base, path, &(struct ckpt_open_opts){ .config_path = config }, e);
    if (rc < 0)
        return err_add(e, "the weights under %s (--init names others)", ckpt_path(r->source));
    return quant_refuse(l->base, e);
}

/* ---- the folder of an adapter ---- */
static int check_module(const struct lora *l, const struct param_table *t, const struct peft_module *m,
                        int *at, struct err *e)
{
    const char *path = ckpt_path(l->peft.c);
    char name[600];
    snprintf(name, sizeof name, "%s.weight", m->name);
    *at = m->is_param ? -1 : param_find(t, name);
    if (*at < 0)
        return err_set(e, ERR_USAGE, "%s changes %s, which this model does not have: is it of another model",
                       path, m->name);
    const struct param *p = &t->p[*at];
    int64_t out = p->shape[p->transposed], in = p->shape[!p->transposed];
    if (m->is_embedding || !adapter_computed(p))
        return err_set(e, ERR_USAGE,
                       "%s changes %s, for which no adapter is computed: leave it out, or merge "
                       "the adapter with reshard",
                       path, m->name);
    if (m->in != in || m->out != out)
        return err_set(e, ERR_USAGE,
                       "%s changes %s of [%lld,%lld], this model's is [%lld,%lld]: is it of another model",
                       path, m->name, (long long)m->out, (long long)m->in, (long long)out, (long long)in);
    return 0;
}

static int list_modules(struct lora *l, const struct param_table *t, struct err *e)
{
    const struct peft *a = &l->peft;
    if (a->n_saved)
        return err_set(e, ERR_USAGE, "%s holds %s as a whole: only A and B of adapters are trained",
                       ckpt_path(a->c), a->saved[0].name);
    l->list = calloc((size_t)a->n + 1, sizeof *l->list);
    if (!l->list)
        return err_set(e, ERR_MEMORY, "no memory for the list of adapted weights");
    for (int i = 0; i < a->n; i++) {
        int at, rc = check_module(l, t, &a->module[i], &at, e);
        if (rc < 0)
            return rc;
        l->list[l->n++] = (struct adapter_matrix){ at, a->module[i].rank, (float)a->module[i].scale };
    }
    return 0;
}

static int compare_params(const void *a, const void *b)
{
    return ((const struct adapter_matrix *)a)->param - ((const struct adapter_matrix *)b)->param;
}

/* --lora beside an adapter that is there already must describe it. */
static int check_same(const struct lora *l, const struct param_table *t, struct err *e)
{
    struct adapter_matrix *want = NULL;
    int n = 0, rc = lora_spec_match(&l->spec, t, &want, &n, e), same = n == l->n;
    for (int i = 0; rc >= 0 && same && i < n; i++)
        same = want[i].param == l->list[i].param && want[i].rank == l->list[i].rank &&
               want[i].scale == l->list[i].scale;
    free(want);
    if (rc < 0 || same)
        return rc;
    return err_set(e, ERR_USAGE,
                   "--lora describes another adapter than %s (%d matrices, %d there): leave --lora out",
                   ckpt_path(l->peft.c), n, l->n);
}

static int read_adapter(struct run *r, struct err *e)
{
    struct lora *l = &r->lora;
    int rc = 0;
    int resumes = r->o.resume && r->source;
    if (r->o.lora_init && !resumes)
        TRY(ckpt_open(&l->init, r->o.lora_init, NULL, e));
    struct ckpt *from = resumes ? r->source : l->init;
    if (!from)
        return 0;
    if (!peft_is(from))
        return err_set(e, ERR_USAGE, "--lora-init %s is no adapter: name a folder with an " PEFT_CONFIG,
                       r->o.lora_init);
    rc = peft_read(&l->peft, from, e);
out:
    return rc;
}

/* ---- adapter_config.json ---- */
/* The name of a tensor's module behind its last dot. */
static const char *word_of(const char *module)
{
    const char *dot = strrchr(module, '.');
    return dot ? dot + 1 : module;
}

/* The names of the adapted modules: a word where all modules of this name are adapted, else the whole path.
 * 0: no memory. */
static int name_targets(const struct lora *l, const struct param_table *t, char **target)
{
    static const char end[] = ".weight";
    unsigned char *is_in = calloc((size_t)t->n + 1, 1);
    char **module = calloc((size_t)t->n + 1, sizeof *module);
    int n = 0, lost = 0;
    for (int i = 0; is_in && i < l->n; i++)
        is_in[l->list[i].param] = 1;
    for (int i = 0; module && i < t->n; i++) {
        size_t length = strlen(t->p[i].name), k = sizeof end - 1;
        if (t->p[i].n_sharing && length > k && !strcmp(t->p[i].name + length - k, end))
            lost |= !(module[i] = strndup(t->p[i].name, length - k));
    }
    for (int i = 0; is_in && module && !lost && i < t->n; i++) {
        int all = 1, known = 0;
        if (!is_in[i] || !module[i])
            continue;
        const char *word = word_of(module[i]);
        for (int j = 0; j < t->n; j++)
            all &= !module[j] || strcmp(word_of(module[j]), word) || is_in[j];
        const char *name = all ? word : module[i];
        for (int k = 0; k < n; k++)
            known |= !strcmp(target[k], name);
        if (!known)
            lost = !(target[n++] = strdup(name));
    }
    for (int i = 0; module && i < t->n; i++)
        free(module[i]);
    free(module);
    free(is_in);
    return lost ? 0 : n;
}

static char *new_config(const struct run *r, const struct param_table *t)
{
    const struct lora *l = &r->lora;
    char **target = calloc((size_t)l->n + 1, sizeof *target), *text = NULL;
    int n = target ? name_targets(l, t, target) : 0;
    struct peft_new p = { .base = r->o.init ? r->o.init : "",
                          .rank = l->spec.rank,
                          .alpha = l->spec.alpha,
                          .rslora = l->spec.rslora,
                          .gaussian = l->spec.gaussian,
                          .fan_in_fan_out = l->n && t->p[l->list[0].param].transposed,
                          .n = n,
                          .target = target };
    if (n)
        text = peft_config_text(&p);
    for (int i = 0; target && target[i]; i++)
        free(target[i]);
    free(target);
    return text;
}

static int make_config(struct run *r, const struct param_table *t, struct err *e)
{
    struct lora *l = &r->lora;
    if (!l->peft.c)
        l->config = new_config(r, t);
    else if (r->o.resume)
        l->config = strdup(l->peft.config.text);
    else
        l->config = peft_config_on(&l->peft.config, r->o.init ? r->o.init : "");
    return l->config ? 0 : err_set(e, ERR_MEMORY, "no memory for " PEFT_CONFIG);
}

/* ---- opening ---- */
static int make_list(struct run *r, const struct param_table *t, struct err *e)
{
    struct lora *l = &r->lora;
    int rc = 0;
    if (l->peft.c)
        TRY(list_modules(l, t, e));
    else
        TRY(lora_spec_match(&l->spec, t, &l->list, &l->n, e));
    qsort(l->list, (size_t)l->n, sizeof *l->list, compare_params);
    if (l->peft.c && l->spec.rank && opts_given(r->given, "lora"))
        TRY(check_same(l, t, e));
    for (int i = 0; i < l->n; i++)
        l->rank = l->list[i].rank > l->rank ? l->list[i].rank : l->rank;
    rc = make_config(r, t, e);
out:
    return rc;
}

int lora_open(struct run *r, struct err *e)
{
    struct lora *l = &r->lora;
    struct param_table t = { 0 };
    int rc = 0;
    if (!lora_asked(r))
        return 0;
    TRY(check_asked(r, e));
    if (r->o.lora)
        TRY(lora_spec_parse(&l->spec, r->o.lora, e));
    TRY(read_adapter(r, e));
    TRY(open_base(r, e));
    TRY(param_table_open(&t, &r->cfg, e));
    rc = make_list(r, &t, e);
    param_table_close(&t);
out:
    return rc;
}

void lora_close(struct lora *l)
{
    lora_spec_free(&l->spec);
    peft_free(&l->peft);
    ckpt_close(l->init);
    if (l->owns_base)
        ckpt_close(l->base);
    free(l->list);
    free(l->config);
    *l = (struct lora){ 0 };
}

int lora_carry(struct run *r, struct err *e)
{
    const char *config = r->lora.config;
    return config ? carried_put(&r->files, PEFT_CONFIG, config, strlen(config), e) : 0;
}

/* ---- its tensors ---- */
void lora_set_init(const struct lora *l, struct adapter *a)
{
    for (int i = 0; l->spec.gaussian && i < a->m.table.n; i++) {
        struct param *p = &a->m.table.p[i];
        if (p->kind >= P_LORA_B)
            continue;
        p->init = INIT_NORMAL;
        p->init_range = 1.0 / (double)l->spec.rank;
    }
}

static int compare_module(const void *name, const void *m)
{
    return strcmp(name, ((const struct peft_module *)m)->name);
}

int lora_tensor(const struct lora *l, const struct param *p)
{
    static const char a_end[] = ".lora_A.weight", b_end[] = ".lora_B.weight";
    const char *name = p->name;
    char module[sizeof p->name];
    size_t n, k = sizeof a_end - 1;
    if (!strncmp(name, PEFT_PREFIX, strlen(PEFT_PREFIX)))
        name += strlen(PEFT_PREFIX);
    n = strlen(name);
    if (n <= k || (strcmp(name + n - k, a_end) && strcmp(name + n - k, b_end)))
        return -1;
    snprintf(module, sizeof module, "%.*s", (int)(n - k), name);
    const struct peft_module *m = bsearch(module, l->peft.module, (size_t)l->peft.n, sizeof *m,
                                          compare_module);
    return !m ? -1 : strcmp(name + n - k, a_end) ? m->b : m->a;
}

int lora_base_stage(const struct layout *l, enum dtype dt, int sharers)
{
    int here = sharers >= layout_slices(l);
    return l->zero == 3 || (dt == DT_F32 && here) ? 3 : 1;
}

double lora_count(const struct run *r)
{
    struct param_table t;
    struct err ignored;
    double sum = 0;
    if (!r->lora.n || param_table_open(&t, &r->cfg, &ignored) < 0)
        return 0;
    for (int i = 0; i < r->lora.n; i++) {
        const struct param *p = &t.p[r->lora.list[i].param];
        sum += (double)r->lora.list[i].rank * (double)(p->shape[0] + p->shape[1]);
    }
    param_table_close(&t);
    return sum;
}
