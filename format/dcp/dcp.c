/* dcp.c - opens a PyTorch Distributed Checkpoint: FSDP1, FSDP2, tensor parallel with FSDP; also as
 * safetensors shards.
 *
 *     model.model.layers.0.mlp.up_proj.weight          a weight, below "model" or at the top
 *     optim.state.model.layers.0….weight.exp_avg       a moment by name
 *     optim.state.6.exp_avg                            a moment by number (optimizer.state_dict() unchanged)
 *
 * The file has no names for the numbers. They follow the order of the parameters, either in one group or
 * matrices first. The order whose shapes fit is used; if none or more than one fits, the state is left
 * out. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/dcp/dcp.h"
#include "format/torch/run_state.h"
#include "format/torch/titan_names.h"

/* The meaning of an item, found from its key and path. */
struct meaning {
    enum { NOTHING, TENSOR, STEP } what;
    enum ckpt_role role;
    const char *name; /* n bytes */
    int n;
    int id; /* >= 0: the optimizer's number instead of a name */
};

static const struct {
    const char *suffix;
    int what;
    enum ckpt_role role;
} kinds[] = {
    { ".exp_avg", TENSOR, ROLE_EXP_AVG },
    { ".exp_avg_sq", TENSOR, ROLE_EXP_AVG_SQ },
    { ".step", STEP, ROLE_WEIGHT },
    { ".master_param", TENSOR, ROLE_MASTER },
};
/* Names that wrappers of modules add to the names of parameters. */
static const char *const wrappers[] = { "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.",
                                        "module." };
/* Members that hold the weights. */
static const char *const parents[] = {
    "model", "module", "state_dict", "model_state_dict", "net", "network"
};

static void unwrap(struct meaning *m)
{
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers;) {
        int n = (int)strlen(wrappers[i]);
        if (m->n > n && !memcmp(m->name, wrappers[i], (size_t)n)) {
            m->name += n;
            m->n -= n;
            i = 0;
        } else {
            i++;
        }
    }
}

/* prefix.state.NAME.kind, or the same without a prefix */
static int optimizer_key(const struct dcp_item *x, struct meaning *m)
{
    const char *key = x->key, *at = NULL;
    for (int i = 0; i + 6 < x->n_key && !at; i++)
        if (!memcmp(key + i, "state.", 6) && (i == 0 || key[i - 1] == '.'))
            at = key + i + 6;
    for (size_t k = 0; at && k < sizeof kinds / sizeof *kinds; k++) {
        int left = (int)(key + x->n_key - at), n = (int)strlen(kinds[k].suffix);
        if (left > n && !memcmp(at + left - n, kinds[k].suffix, (size_t)n)) {
            *m = (struct meaning){ kinds[k].what, kinds[k].role, at, left - n, -1 };
            int digits = 0;
            while (digits < m->n && isdigit((unsigned char)at[digits]))
                digits++;
            if (digits == m->n && digits < 9)
                m->id = atoi(at);
            unwrap(m);
            return 1;
        }
    }
    return 0;
}

static int is_parent(const struct pk *p)
{
    for (size_t i = 0; i < sizeof parents / sizeof *parents; i++)
        if (pk_is_text(p, parents[i]))
            return 1;
    return 0;
}

static void meaning_of(const struct dcp_item *x, int strip_model, struct meaning *m)
{
    const struct pk *last = x->path && x->path->n ? pk_at(x->path, x->path->n - 1) : NULL;
    *m = (struct meaning){ NOTHING, ROLE_WEIGHT, x->key, x->n_key, -1 };
    if (!x->is_tensor || optimizer_key(x, m))
        return;
    if (last && last->kind == PK_TEXT && last->n <= (uint32_t)x->n_key) {
        if (x->path->n > 1 && !is_parent(pk_at(x->path, x->path->n - 2)))
            return; /* of a scheduler, a data loader, …: not of the model */
        m->name = last->text;
        m->n = (int)last->n;
    } else if (strip_model && dcp_starts(x, "model.")) {
        m->name += 6;
        m->n -= 6;
    }
    m->what = TENSOR;
    unwrap(m);
}

/* Without paths: a key model.model.… shows that the weights are below "model". */
static int has_double_model(const struct dcp *d)
{
    for (int i = 0; i < d->n_items; i++)
        if (dcp_starts(&d->item[i], "model.model.") || dcp_starts(&d->item[i], "model.lm_head."))
            return 1;
    return 0;
}

static int add_item(struct build *b, struct dcp *d, const struct dcp_item *x, enum ckpt_role role,
                    const char *name, int n_name, struct err *e)
{
    int known = torch_dtype_known(x->dtype), tensor, rc = 0;
    struct titan_name ours;
    struct chunk k;

    if (dcp_titan_follows(d, name, n_name))
        return build_note(b->c, e, "%.*s left out: it follows from config.json", n_name, name);
    if (known < 0)
        return err_set(e, ERR_FORMAT,
                       "%s: %.*s has dtype %s, which this program does not know: convert it first", d->name,
                       n_name, name, torch_dtype_name(x->dtype));
    if (titan_name(&d->titan, name, n_name, &ours)) {
        if (ours.n > 1 || ours.order[0] != TITAN_AS_IS)
            return dcp_titan_add(b, d, x, role, &ours, e);
        name = ours.to[0];
        n_name = (int)strlen(name);
    }
    if ((tensor = build_tensor(b, role, name, n_name, (enum stored_dtype)known, x->n_dims, x->shape, e)) < 0)
        return tensor;
    for (int i = 0; i < x->n && rc >= 0; i++) {
        const struct dcp_part *p = &d->part[x->first + i];
        int empty = 0;
        for (int j = 0; j < x->n_dims; j++)
            empty |= p->size[j] == 0;
        if (empty)
            continue; /* a rank without rows */
        if ((rc = dcp_chunk(d, x, p, &k, e)) >= 0)
            rc = build_map(b, tensor, &k, &k.box, k.box.start, e);
    }
    return rc < 0 ? rc : 0;
}

/* ---- optimizer state by number ---- */

struct weight {
    const struct dcp_item *x;
    struct meaning m;
};
static int compare_order(const void *a, const void *b)
{
    const struct weight *x = a, *y = b;
    return (x->x->order > y->x->order) - (x->x->order < y->x->order);
}

/* The orders of parameters in training code: unchanged, matrices before vectors, vectors before matrices. */
enum { AS_IS, MATRICES_FIRST, VECTORS_FIRST, ORDERS };

static void arrange(int order, const struct weight *w, int n, const struct weight **out)
{
    int at = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n; i++) {
            int first = order == AS_IS || (w[i].x->n_dims > 1) == (order == MATRICES_FIRST);
            if (first == (pass == 0))
                out[at++] = &w[i];
        }
}

static int fits(const struct dcp *d, const char *prefix, int n_prefix, const struct weight **name, int n)
{
    for (int i = 0; i < n; i++) {
        char *key = build_text("%.*s%d.exp_avg", n_prefix, prefix, i);
        const struct dcp_item *x = key ? dcp_find(d, key) : NULL;
        free(key);
        if (!x || x->n_dims != name[i]->x->n_dims ||
            memcmp(x->shape, name[i]->x->shape, sizeof *x->shape * (size_t)x->n_dims))
            return 0;
    }
    return 1;
}

/* Finds names[id] of n numbered parameters. Returns 1: one order fits; 0: none, or several different ones. */
static int find_order(const struct dcp *d, const struct dcp_item *first, const struct weight *w, int n,
                      const struct weight **names, struct err *e)
{
    const struct weight **try = calloc((size_t)n + 1, sizeof *try);
    const char *state = NULL;
    int found = 0;

    if (!try)
        return err_set(e, ERR_MEMORY, "%s: no memory for the names of %d parameters", d->name, n);
    for (int i = 0; i + 6 < first->n_key && !state; i++)
        if (!memcmp(first->key + i, "state.", 6) && (i == 0 || first->key[i - 1] == '.'))
            state = first->key + i + 6;
    for (int o = AS_IS; o < ORDERS; o++) {
        arrange(o, w, n, try);
        if (!state || !fits(d, first->key, (int)(state - first->key), try, n) ||
            (found && !memcmp(try, names, sizeof *try * (size_t)n)))
            continue;
        memcpy(names, try, sizeof *try * (size_t)n);
        found++;
    }

    free(try);
    return found == 1;
}

/* Lists the weights in the order of the model; the tied head is not listed. */
static int list_weights(const struct dcp *d, int strip, int n_ids, struct weight **out, int *n, struct err *e)
{
    struct weight *w = calloc((size_t)d->n_items + 1, sizeof *w);
    *n = 0;
    if (!w)
        return err_set(e, ERR_MEMORY, "%s: no memory for the names of its parameters", d->name);
    for (int i = 0; i < d->n_items; i++) {
        w[*n].x = &d->item[i];
        meaning_of(&d->item[i], strip, &w[*n].m);
        *n += w[*n].m.what == TENSOR && w[*n].m.role == ROLE_WEIGHT;
    }
    qsort(w, (size_t)*n, sizeof *w, compare_order);
    for (int i = 0; i < *n && *n == n_ids + 1; i++)
        if (w[i].m.n == 14 && !memcmp(w[i].m.name, "lm_head.weight", 14))
            memmove(&w[i], &w[i + 1], sizeof *w * (size_t)(--*n - i));
    *out = w;
    return 0;
}

static int note_no_order(struct ckpt *c, struct err *e)
{
    return build_note(c, e,
                      "optimizer state left out: it is numbered, the order of its parameters is not in the "
                      "checkpoint and their shapes do not tell it "
                      "(save it with torch.distributed.checkpoint.state_dict.get_state_dict)");
}

static int add_numbered(struct build *b, struct dcp *d, int strip, int n_ids, const struct dcp_item *first,
                        struct err *e)
{
    const struct weight **names = calloc((size_t)n_ids + 1, sizeof *names);
    struct weight *w = NULL;
    struct meaning m;
    int n = 0, rc = names ? list_weights(d, strip, n_ids, &w, &n, e)
                          : err_set(e, ERR_MEMORY, "%s: no memory for %d parameters", d->name, n_ids);

    if (rc >= 0)
        rc = n == n_ids ? find_order(d, first, w, n, names, e) : 0;
    if (rc == 0)
        rc = note_no_order(b->c, e);
    else if (rc > 0)
        for (int i = 0; i < d->n_items && rc >= 0; i++) {
            meaning_of(&d->item[i], strip, &m);
            if (m.what != TENSOR || m.role == ROLE_WEIGHT || m.id < 0)
                continue;
            if (m.id >= n_ids)
                rc = err_set(e, ERR_FORMAT,
                             "%s: optimizer state of parameter %d, there are %d: is the file damaged",
                             d->name, m.id, n_ids);
            else
                rc = add_item(b, d, &d->item[i], m.role, names[m.id]->m.name, names[m.id]->m.n, e);
        }
    free(w);
    free(names);
    return rc < 0 ? rc : 0;
}

/* ---- the run's settings: objects beside the tensors ---- */

static int ends(const struct dcp_item *x, const char *suffix)
{
    int n = (int)strlen(suffix);
    return x->n_key >= n && !memcmp(x->key + x->n_key - n, suffix, (size_t)n);
}

static int has_part(const struct dcp_item *x, const char *part)
{
    int n = (int)strlen(part);
    for (int i = 0; i + n <= x->n_key; i++)
        if (!memcmp(x->key + i, part, (size_t)n))
            return 1;
    return 0;
}

/* Reads the number of item x, or of element `at` of its list. Returns 1: there is one. */
static int setting(struct dcp *d, const struct dcp_item *x, uint32_t at, double *out)
{
    struct torch_file t = { 0 };
    struct err e;
    int found = 0;
    if (x && x->is_tensor)
        return x->n == 1 && dcp_number(d, x, out, &e) >= 0;
    if (!x || dcp_object(d, x, &t, &e) < 0)
        return 0;
    const struct pk *p = t.root->kind == PK_LIST || t.root->kind == PK_TUPLE ? pk_at(t.root, at)
                         : at == 0                                           ? t.root
                                                                             : NULL;
    found = p && torch_number(&t, p, "a setting", out, &e) > 0;
    torch_close(&t);
    return found;
}

static int sibling(struct dcp *d, const struct dcp_item *x, const char *suffix, const char *other,
                   double *out)
{
    char *key = build_text("%.*s%s", x->n_key - (int)strlen(suffix), x->key, other);
    int found = key && setting(d, dcp_find(d, key), 0, out);
    free(key);
    return found;
}

/* Reads the state of a scheduler of torch.optim, which is recognised by its last_epoch; T_max is cosine
 * annealing's. Lambdas are not in the file. */
static void read_scheduler(struct build *b, struct dcp *d, const struct dcp_item *x)
{
    static const char at[] = ".last_epoch";
    double base, t_max, least = 0;
    if (!sibling(d, x, at, ".base_lrs", &base))
        return;
    if (sibling(d, x, at, ".T_max", &t_max) && sibling(d, x, at, ".eta_min", &least))
        run_schedule(&b->run, "cosine", base, least, 0, (int64_t)t_max);
    else
        run_unknown(&b->run, "one of torch.optim", 18);
}

static void read_run(struct build *b, struct dcp *d)
{
    static const struct {
        const char *suffix;
        enum run_value which;
        uint32_t at;
    } members[] = {
        { ".lr", RUN_LR, 0 },       { ".initial_lr", RUN_FIRST_LR, 0 },
        { ".eps", RUN_EPS, 0 },     { ".weight_decay", RUN_DECAY, 0 },
        { ".betas", RUN_BETA1, 0 }, { ".betas", RUN_BETA2, 1 },
    };

    double v;
    for (int i = 0; i < d->n_items; i++) {
        const struct dcp_item *x = &d->item[i];
        if (has_part(x, "param_groups."))
            for (size_t k = 0; k < sizeof members / sizeof *members; k++)
                if (ends(x, members[k].suffix) && setting(d, x, members[k].at, &v))
                    run_value(&b->run, members[k].which, v);
        if (ends(x, ".last_epoch"))
            read_scheduler(b, d, x);
    }
}

/* ---- the driver ---- */

int dcp_probe(const struct ckpt *c, int is_folder)
{
    struct names l;
    struct err e;
    int yes = is_folder && (build_exists(c, ".metadata") || build_exists(c, ".metadata.tmp"));
    if (!is_folder || yes || names_read(&l, c, "", &e) < 0)
        return yes;
    for (int i = 0; i < l.n; i++)
        yes |= strlen(l.name[i]) > 7 && !strcmp(l.name[i] + strlen(l.name[i]) - 7, ".distcp");
    names_free(&l);
    return yes;
}

static int add_all(struct build *b, struct dcp *d, struct err *e)
{
    const struct dcp_item *numbered = NULL;
    int strip = has_double_model(d), n_ids = 0, rc = 0;

    for (int i = 0; i < d->n_items; i++) {
        struct meaning m;
        meaning_of(&d->item[i], strip, &m);
        d->is_titan |= m.what == TENSOR && m.n == 21 && !memcmp(m.name, "tok_embeddings.weight", 21);
    }
    for (int i = 0; i < d->n_items && rc >= 0; i++) {
        const struct dcp_item *x = &d->item[i];
        struct meaning m;
        char name[80];
        double step;
        meaning_of(x, strip, &m);
        snprintf(name, sizeof name, "%.*s", m.n < 79 ? m.n : 79, m.name);
        if (m.what == STEP) {
            if ((rc = dcp_number(d, x, &step, e)) >= 0)
                rc = build_step(b, step, name, e);
        } else if (m.what == TENSOR && m.id >= 0) {
            numbered = x;
            n_ids += m.role == ROLE_EXP_AVG;
        } else if (m.what == TENSOR) {
            rc = add_item(b, d, x, m.role, m.name, m.n, e);
        }
    }

    if (rc >= 0 && numbered)
        rc = add_numbered(b, d, strip, n_ids, numbered, e);
    if (rc >= 0 && b->has_step && !dcp_find(d, RUN_STATE_KEY))
        read_run(b, d);
    return rc < 0 ? rc : 0;
}

/* Reads the run state that reshard wrote as an object. */
static int read_run_state(struct ckpt *c, struct dcp *d, struct err *e)
{
    const struct dcp_item *x = dcp_find(d, RUN_STATE_KEY);
    struct torch_file t = { 0 };
    int rc = x && !x->is_tensor ? dcp_object(d, x, &t, e) : 0;
    if (rc >= 0)
        rc = run_state_read(c, t.root, e);
    torch_close(&t);
    return rc < 0 ? rc : 0;
}

int dcp_open_ckpt(struct ckpt *c, int is_folder, struct err *e)
{
    struct build b = { .c = c };
    struct dcp d = { 0 };
    int rc = 0;
    (void)is_folder;
    TRY(build_config(c, e));
    TRY(dcp_open(&d, c, "", e));
    titan_read(c->config, &d.titan);
    TRY(add_all(&b, &d, e));
    TRY(build_finish(&b, e));
    TRY(build_writer(c, "PyTorch Distributed Checkpoint", NULL, dcp_ranks(&d), e));
    TRY(read_run_state(c, &d, e));
out:
    dcp_close(&d);
    build_free(&b);
    return rc < 0 ? rc : 0;
}
