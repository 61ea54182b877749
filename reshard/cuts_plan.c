/* cuts_plan.c - cut tables of the request and of checkpoints: found, applied to a plan, printed. */
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "reshard/cuts/cut_template.h"
#include "reshard/lora/adapter_cuts.h"
#include "reshard/report.h"
#include "reshard/reshard.h"

/* The source's cuts.txt: 1 with *text and *n, which the caller frees; 0: it has none. */
static int read_beside(const struct ckpt *c, char **text, size_t *n, struct err *e)
{
    void *data = NULL;
    for (int i = 0; i < ckpt_n_extra(c); i++) {
        if (strcmp(ckpt_extra_name(c, i), CKPT_CUTS))
            continue;
        int rc = ckpt_extra_read(c, i, &data, n, e);
        *text = data;
        return rc < 0 ? rc : 1;
    }
    return 0;
}

/* 1: p->cuts is the table's text. 0: there is none. */
static int load_cuts(struct plan *p, const char **what, size_t *n, struct err *e)
{
    void *data = NULL;
    if (!p->req->cuts_path) {
        *what = CKPT_CUTS;
        return read_beside(p->src, &p->cuts, n, e);
    }
    *what = p->req->cuts_path;
    int rc = io_read_file(*what, CUTS_BYTES_MAX, &data, n, e);
    p->cuts = data;
    return rc < 0 ? rc : 1;
}

/* The distinct tensors of the targets: of each name the weight, or what comes first. *out: the caller's. */
static int list_tensors(const struct plan *p, const struct ckpt_tensor ***out, struct err *e)
{
    const struct ckpt_tensor **list = calloc((size_t)p->n + 1, sizeof *list);
    int n = 0;
    *out = list;
    if (!list)
        return err_set(e, ERR_MEMORY, "no memory for a plan of %d tensors", p->n);
    for (int i = 0; i < p->n; i++) {
        const struct ckpt_tensor *t = &p->target[i].t;
        if (t->role == ROLE_WEIGHT)
            list[n++] = t;
    }

    /* optimizer state is cut as its weight is */
    for (int i = 0; i < p->n; i++) {
        const struct ckpt_tensor *t = &p->target[i].t, *w = NULL;
        int at = t->role == ROLE_WEIGHT ? -1 : plan_find(p, ROLE_WEIGHT, t->name);
        if (at >= 0)
            w = &p->target[at].t;
        if (w && (w->n_dims != t->n_dims || memcmp(w->shape, t->shape, sizeof *w->shape * (size_t)w->n_dims)))
            return err_set(e, ERR_CONFIG, "%s: %s%s has another shape than the weight: is it of another run",
                           ckpt_path(p->src), ckpt_role_prefix[t->role], t->name);
    }
    return n;
}

/* The table that ships for the model of these tensors: 1 with *text, which the caller frees; 0: none, *e says
 * why. Its rows are for quantised weights, not for what is stored in place of them. */
static int known_table(struct cut_query *q, const struct quant_list *quant, char **text, struct err *e)
{
    struct ckpt_tensor *weight = calloc((size_t)quant->n + 1, sizeof *weight);
    const struct ckpt_tensor **list = calloc((size_t)(q->n + quant->n) + 1, sizeof *list);
    int n = q->n, rc;
    if (weight && list && q->config) {
        memcpy(list, q->tensor, sizeof *list * (size_t)n);
        for (int i = 0; i < quant->n; i++) {
            weight[i].name = quant->weight[i].name;
            list[n++] = &weight[i];
        }
        q->tensor = list;
        q->n = n;
        rc = cut_template(q, text, e);
    } else {
        rc = q->config ? err_set(e, ERR_MEMORY, "no memory for a list of %d tensors", n) : 0;
    }
    free(weight);
    free(list);
    return rc;
}

/* That of a plan. what: its name, for messages. */
static int load_known(const struct plan *p, const struct ckpt_tensor *const *list, int n,
                      const struct quant_list *quant, char **text, char what[256], struct err *e)
{
    struct cut_query q = { .config = p->config,
                           .what = p->req->config_path ? p->req->config_path : "config.json",
                           .grain = ckpt_state(p->src)->grain,
                           .tensor = list,
                           .n = n };
    snprintf(what, 256, "cut table of %.200s", q.what);
    if (peft_is(p->src))
        return p->config ? adapter_cuts(p->src, p->config, q.what, text, e) : 0;
    return known_table(&q, quant, text, e);
}

static void log_cuts(const struct plan *p, const char *what, const char *why, struct log *log)
{
    const struct cut_model *m = &p->cut;
    if (!log)
        return;
    if (!what)
        log_line(log, "no cut table: tensors are carried whole for tp and by element over dp%s%s",
                 why ? ": " : "", why ? why : "");
    else if (m->n_unmatched)
        log_line(log, "%s: %d tensors are in no row (%s, ...): whole for tp, by element over dp", what,
                 m->n_unmatched, m->unmatched);
}

static int needs_table(const struct layout *l) { return l->tp > 1 || l->pp > 1 || l->ep > 1; }

/* Without a table: 1 where the layout needs none, or an error. */
static int without_table(const struct plan *p, const char *why, struct err *e)
{
    char reason[sizeof e->text];
    snprintf(reason, sizeof reason, "%s", why);
    if (needs_table(&p->req->layout))
        return err_set(e, ERR_USAGE,
                       "%s: %s: --tp, --pp and --ep need to know how tensors are cut: give a cut table with "
                       "--cuts FILE, or another config.json with --config FILE",
                       ckpt_path(p->src), reason);
    return 1;
}

int plan_cuts(struct plan *p, const char *why, struct log *log, struct err *e)
{
    const struct layout *l = &p->req->layout;
    const struct ckpt_tensor **list = NULL;
    struct cuts cuts = { 0 };
    const struct quant_list none = { 0 }, *quant = &none;
    char reason[sizeof e->text] = "", *known = NULL, known_what[256];
    const char *what = NULL;
    size_t n_text = 0;
    int rc = 0, n = 0, has_table;

    if (why)
        snprintf(reason, sizeof reason, "%s", why);
    TRY(list_tensors(p, &list, e));
    n = rc;
    if (!p->carries_quant && p->quant.n_tensors == n) /* the list is that of the source's weights */
        quant = &p->quant;
    TRY(p->has_model ? 0 : load_cuts(p, &what, &n_text, e));
    has_table = rc > 0;
    if (!has_table && !p->carries_quant && (rc = load_known(p, list, n, quant, &known, known_what, e)) > 0) {
        what = known_what;
        n_text = strlen(known);
    } else if (!has_table) {
        if (rc < 0)
            snprintf(reason, sizeof reason, "%s", e->text);
        TRY(without_table(p, reason, e));
        what = NULL;
    }

    if (what)
        TRY(cuts_parse(&cuts, known ? known : p->cuts, n_text, what, e));
    TRY(cut_model_open_quant(&p->cut, &cuts, what ? quant : &none, list, n, l, e));
    p->has_cuts = 1;
    log_cuts(p, what, *reason ? reason : NULL, log);
out:
    free(list);
    free(known);
    cuts_free(&cuts);
    return rc < 0 ? rc : 0;
}

/* That of a checkpoint: printed; 0: there is none. */
static int print_known(struct ckpt *c, FILE *out, struct err *e)
{
    const struct ckpt_tensor **list = calloc((size_t)ckpt_n_tensors(c) + 1, sizeof *list);
    struct cut_query q = {
        .config = ckpt_config_json(c), .what = "config.json", .grain = ckpt_state(c)->grain, .tensor = list
    };
    struct quant_list quant = { 0 };
    char *text = NULL;
    int rc = 0;
    if (!list)
        return err_set(e, ERR_MEMORY, "no memory for a list of %d tensors", ckpt_n_tensors(c));
    for (int i = 0; i < ckpt_n_tensors(c); i++)
        if (ckpt_tensor(c, i)->role == ROLE_WEIGHT)
            list[q.n++] = ckpt_tensor(c, i);
    TRY(quant_open_ckpt(&quant, c, e));
    if ((rc = known_table(&q, &quant, &text, e)) > 0)
        fputs(text, out);
out:
    free(text);
    free(list);
    quant_close(&quant);
    return rc;
}

static int has_family(const struct ckpt *c)
{
    struct model_config cfg;
    struct err ignored = { 0 };
    const char *config = ckpt_config_json(c);
    return config && model_config_parse(&cfg, config, "config.json", &ignored) >= 0;
}

int report_cuts(struct ckpt *c, FILE *out, struct err *e)
{
    char *text = NULL;
    size_t n = 0;
    int rc = has_family(c) ? 0 : read_beside(c, &text, &n, e);
    if (rc > 0)
        fwrite(text, 1, n, out);
    else if (rc == 0 && (rc = print_known(c, out, e)) == 0)
        rc = err_set(e, ERR_CONFIG,
                     "%s: is of no known family and has no %s: write one (reshard/CUTS.md), or print that of "
                     "a similar model",
                     ckpt_path(c), CKPT_CUTS);
    free(text);
    return rc < 0 ? rc : 0;
}
