/* facts.c - see facts.h. */
#include "train/log/facts.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "base/version.h"
#include "model/family.h"
#include "train/eval.h"
#include "train/memory_check.h"

/* ---- collecting ---- */
static int count_params(const struct model_config *c, double *n, struct err *e)
{
    struct param_table t;
    int rc = param_table_open(&t, c, e);
    if (rc < 0)
        return rc;
    *n = 0;
    for (int i = 0; i < t.n; i++)
        *n += (double)param_count(&t.p[i]);
    param_table_close(&t);
    return 0;
}

int facts_collect(struct facts *f, const struct work *w, int sharers, struct err *e)
{
    const struct layout_spec a = memory_check_spec(w->run, w->ranks, sharers);
    int rc = 0;
    *f = (struct facts){ .work = w };
    TRY(count_params(&w->run->cfg, &f->params, e));
    for (int stage = 0; stage < a.layout.pp; stage++) {
        double bytes[MEM_CATS], sum = 0;
        TRY(memory_check_stage(w->run, &a, stage, bytes, e));
        for (int c = 0; c < MEM_CATS; c++)
            sum += bytes[c];
        if (sum > f->total_bytes) {
            f->total_bytes = sum;
            memcpy(f->bytes, bytes, sizeof bytes);
        }
    }
out:
    return rc < 0 ? rc : 0;
}

/* ---- lines on the terminal ---- */
/* "1.05M", "7.00B", "256" */
static const char *count_text(char out[32], double n)
{
    static const char unit[] = { 0, 'k', 'M', 'B', 'T' };
    int u = 0;
    for (; u < 4 && n >= 999.5; u++)
        n /= 1000;
    snprintf(out, 32, u ? "%.3g%c" : "%.3g", n, unit[u]);
    return out;
}

static const char *model_name(const struct run *r)
{
    return r->o.model ? r->o.model : r->source ? ckpt_path(r->source) : "tiny";
}

static void show_model(const struct facts *f, struct log *term)
{
    const struct model_config *c = &f->work->run->cfg;
    char n[32], experts[64] = "";
    if (c->n_experts)
        snprintf(experts, sizeof experts, ", %lld of %lld experts a token", (long long)c->experts_per_token,
                 (long long)c->n_experts);
    log_line(term, "model %s: %s, %s parameters, %lld layers of %lld, %lld heads%s, vocabulary %lld",
             model_name(f->work->run), c->family->name, count_text(n, f->params), (long long)c->n_layers,
             (long long)c->hidden, (long long)c->n_heads, experts, (long long)c->vocab);
}

struct line {
    char text[256];
    size_t n;
};

static void add(struct line *l, const char *name, int degree, int neutral)
{
    int left = (int)(sizeof l->text - l->n);
    if (degree == neutral)
        return;
    int n = snprintf(l->text + l->n, (size_t)left, ", %s %d", name, degree);
    l->n += (size_t)(n < left ? n : left - 1);
}

static void show_layout(const struct facts *f, struct log *term)
{
    const struct run *r = f->work->run;
    const struct ranks *ranks = f->work->ranks;
    const struct layout *l = &ranks->layout;
    struct line s = { .n = 0 };
    char memory[32];

    add(&s, "tp", l->tp, 1);
    add(&s, "cp", l->cp, 1);
    add(&s, "ep", l->ep, 1);
    add(&s, "dp", l->dp, 1);
    add(&s, "pp", l->pp, 1);
    add(&s, "zero", l->zero, 0);
    log_bytes(memory, f->total_bytes);
    log_line(term, "%d rank%s%s%s; %s, %s; %s %s, %d thread%s a rank; %s of memory planned a rank",
             layout_ranks(l), layout_ranks(l) == 1 ? "" : "s", s.n ? s.text : "", l->sp ? ", sp" : "",
             r->dt == DT_BF16 ? "bf16" : "fp32", r->o.numerics == NUMERICS_FAST ? "fast" : "exact",
             ranks->dev->kind, ranks->dev->isa, pool_threads(ranks->dev->pool),
             pool_threads(ranks->dev->pool) == 1 ? "" : "s", memory);
}

static void show_steps(const struct facts *f, struct log *term)
{
    const struct work *w = f->work;
    const struct train_opts *o = &w->run->o;
    char step[32], data[32], all[32];
    double tokens = (double)o->global_batch * (double)o->seq_len,
           whole = (double)(run_end_step(w->run) - w->at.step) * tokens;

    if (o->eval_only) {
        log_line(term, "evaluation of %lld windows of %lld tokens", (long long)eval_windows(w),
                 (long long)o->seq_len);
        return;
    }
    log_line(
        term,
        "steps %lld to %lld of %lld, each %lld sequences of %lld: %s tokens; %s in all, of %s in the data",
        (long long)w->at.step + 1, (long long)run_end_step(w->run), (long long)o->steps,
        (long long)o->global_batch, (long long)o->seq_len, count_text(step, tokens), count_text(all, whole),
        count_text(data, (double)data_tokens(w->data)));
}

void facts_show(const struct facts *f, struct log *term)
{
    show_model(f, term);
    if (f->work->run->lora.n) {
        char how[300], n[32];
        lora_text(f->work->run, how);
        log_line(term, "adapter: %s; %d matrices, %s parameters are trained", how, f->work->run->lora.n,
                 count_text(n, lora_count(f->work->run)));
    }
    show_layout(f, term);
    if (f->work->run->o.eval_only || f->work->at.step < run_end_step(f->work->run))
        show_steps(f, term);
}

/* ---- the first line of the log ---- */
static void write_text(FILE *out, const char *key, const char *text)
{
    json_t *j = json_string(text);
    char *quoted = j ? json_dumps(j, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    fprintf(out, ",\"%s\":%s", key, quoted ? quoted : "null");
    free(quoted);
    json_decref(j);
}

/* text: JSON, freed here; NULL: none. */
static void write_json(FILE *out, const char *key, char *text)
{
    fprintf(out, ",\"%s\":", key);
    for (const char *c = text ? text : "null"; *c; c++)
        if (*c != '\n') /* a line of the log stays a line */
            fputc(*c, out);
    free(text);
}

void facts_write(const struct facts *f, FILE *out)
{
    const struct work *w = f->work;
    const struct run *r = w->run;
    const struct layout *l = &w->ranks->layout;
    const struct dev *d = w->ranks->dev;
    const char *dtype = r->dt == DT_BF16 ? "bf16" : "fp32";

    fprintf(out, "{\"event\":\"run\",\"step\":%lld", (long long)w->at.step);
    write_text(out, "version", SHARDLINE_VERSION);
    write_json(out, "arguments", opt_json_all(&ptrain_program, &r->o));
    write_text(out, "model_name", model_name(r));
    write_json(out, "model", model_config_json(&r->cfg, r->dt == DT_BF16 ? "bfloat16" : "float32"));
    fprintf(out, ",\"parameters\":%.0f", f->params);
    if (r->lora.n)
        lora_write(r, lora_count(r), out);
    fprintf(out,
            ",\"layout\":{\"ranks\":%d,\"tp\":%d,\"pp\":%d,\"cp\":%d,\"dp\":%d,\"ep\":%d,\"zero\":%d,"
            "\"sp\":%s,\"virtual_stages\":%d}",
            layout_ranks(l), l->tp, l->pp, l->cp, l->dp, l->ep, l->zero, l->sp ? "true" : "false", l->vpp);
    fprintf(out, ",\"orders\":{\"grain\":%d,\"expert_leaf\":%d,\"cp_grain\":%d,\"own_bits\":%s}",
            r->cfg.grain, r->expert_leaf, r->cp_grain,
            layout_grain(l, &r->cfg) != r->cfg.grain || (!r->o.eval_only && !w->plan.in_tree) ? "true"
                                                                                              : "false");
    write_text(out, "dtype", dtype);
    write_text(out, "numerics", r->o.numerics == NUMERICS_FAST ? "fast" : "exact");
    fprintf(out, ",\"device\":{\"kind\":\"%s\",\"isa\":\"%s\",\"threads\":%d}", d->kind, d->isa,
            pool_threads(d->pool));

    fprintf(out, ",\"plan\":{\"memory_bytes\":%.0f", f->total_bytes);
    for (enum mem_cat c = 0; c < MEM_CATS; c++)
        fprintf(out, ",\"%s\":%.0f", mem_cat_name(c), f->bytes[c]);
    fprintf(out, "},\"tokens_a_step\":%lld,\"data_tokens\":%lld",
            (long long)(r->o.global_batch * r->o.seq_len),
            (long long)(w->data ? data_tokens(w->data) : data_tokens(w->eval)));
}
