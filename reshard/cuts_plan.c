/* cuts_plan.c - cut tables of the request and of checkpoints: found, applied to a plan, printed. */
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
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

static void log_cuts(const struct plan *p, const char *what, const char *why, struct log *log)
{
    const struct cut_model *m = &p->cut;
    if (!log)
        return;
    if (why)
        log_line(log, "tensors are carried unchecked: %s", why);
    if (!p->cuts)
        log_line(log, "no cut table: every tensor is cut by element over dp only");
    else if (m->n_unmatched)
        log_line(log, "%s: %d tensors are in no row (%s, ...): whole for tp, by element over dp", what,
                 m->n_unmatched, m->unmatched);
}

int plan_cuts(struct plan *p, const char *why, struct log *log, struct err *e)
{
    const struct layout *l = &p->req->layout;
    const struct ckpt_tensor **list = NULL;
    struct cuts cuts = { 0 };
    struct quant_list quant = { 0 };
    char reason[sizeof e->text] = "";
    const char *what = NULL;
    size_t n_text = 0;
    int rc = 0, n = 0, has_table;

    if (why)
        snprintf(reason, sizeof reason, "%s", why);
    TRY(load_cuts(p, &what, &n_text, e));
    has_table = rc > 0;
    if (!has_table && (l->tp > 1 || l->pp > 1 || l->ep > 1))
        return err_set(e, ERR_USAGE,
                       "%s: %s: --tp, --pp and --ep need to know how tensors are cut: give a cut table with "
                       "--cuts FILE, or another config.json with --config FILE",
                       ckpt_path(p->src), reason);
    if (has_table)
        TRY(cuts_parse(&cuts, p->cuts, n_text, what, e));

    TRY(list_tensors(p, &list, e));
    n = rc;
    if (has_table)
        TRY(quant_open_listed(&quant, p->src, p->config, list, n, e));
    TRY(cut_model_open_quant(&p->cut, &cuts, &quant, list, n, l, e));
    p->has_cuts = 1;
    log_cuts(p, what, why ? reason : NULL, log);
out:
    free(list);
    cuts_free(&cuts);
    quant_close(&quant);
    return rc < 0 ? rc : 0;
}

int report_cuts(const struct ckpt *c, FILE *out, struct err *e)
{
    const char *config = ckpt_config_json(c);
    struct model_config cfg;
    struct param_table table = { 0 };
    char *text = NULL;
    size_t n = 0;
    int rc = config ? model_config_parse(&cfg, config, "config.json", e) : -1;
    if (rc >= 0) {
        if (ckpt_state(c)->grain)
            cfg.grain = ckpt_state(c)->grain;
        rc = param_table_open(&table, &cfg, e);
        if (rc >= 0)
            rc = cuts_print(&table, out, e);
        param_table_close(&table);
        return rc;
    }

    if ((rc = read_beside(c, &text, &n, e)) > 0)
        fwrite(text, 1, n, out);
    else if (rc == 0)
        rc = err_set(e, ERR_CONFIG,
                     "%s: is of no known family and has no %s: write one (reshard/CUTS.md), or print that of "
                     "a similar model",
                     ckpt_path(c), CKPT_CUTS);
    free(text);
    return rc < 0 ? rc : 0;
}
