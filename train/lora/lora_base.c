/* lora_base.c - the digest of the frozen weights, and what people read of a run with an adapter; see
 * lora.h. */
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "train/ranks.h"
#include "train/run.h"

/* The member of the stored settings with the digest of the frozen weights. */
#define STORED_DIGEST "lora-base"

/* ---- the digest ---- */
/* Digests of this rank's share of the tensors; those of the others stay 0. */
static int digest_share(struct ckpt *c, int rank, int n_ranks, struct ckpt_digest *d, struct err *e)
{
    int rc = 0;
    for (int i = rank; i < ckpt_n_tensors(c) && rc >= 0; i += n_ranks) {
        const struct ckpt_tensor *t = ckpt_tensor(c, i);
        if (t->has_digest)
            d[i] = t->digest;
        else if (t->role == ROLE_WEIGHT)
            rc = ckpt_digest_read(c, i, &d[i], e);
    }
    return rc;
}

/* Digests of parts add up, so those of all ranks' shares do. */
static int digest_base(struct ckpt *c, const struct ranks *ranks, char out[33], struct err *e)
{
    int n = ckpt_n_tensors(c), rc = 0, used = 0;
    struct ckpt_digest *d = calloc((size_t)n + 1, sizeof *d);
    struct ckpt_tensor *t = calloc((size_t)n + 1, sizeof *t);
    int64_t *sum = calloc(2 * (size_t)n + 1, sizeof *sum);
    const struct ckpt_state none = { 0 };
    if (!d || !t || !sum)
        rc = err_set(e, ERR_MEMORY, "no memory for the digests of the frozen weights");
    if (rc >= 0)
        rc = digest_share(c, world_rank(ranks->world), world_size(ranks->world), d, e);
    TRY(comm_agree(ranks->mesh.all, rc, e));
    rc = comm_agree_alike(ranks->mesh.all, &(uint64_t){ ckpt_list_hash(c) }, 1, CKPT_DIFFERS, e);
    TRY(rc < 0 ? err_add(e, "%s", ckpt_path(c)) : 0);
    for (int i = 0; i < n; i++)
        memcpy(&sum[2 * i], &d[i], sizeof d[i]);
    TRY(comm_all_reduce_i64(ranks->mesh.all, sum, 2 * n, e));

    for (int i = 0; i < n; i++) {
        t[used] = *ckpt_tensor(c, i);
        memcpy(&t[used].digest, &sum[2 * i], sizeof t[used].digest);
        t[used].has_digest = 1;
        used += t[used].role == ROLE_WEIGHT;
    }
    ckpt_digest_hex(ckpt_digest_all(used, t, &none).weights, out);
out:
    free(d);
    free(t);
    free(sum);
    return rc < 0 ? err_add(e, "computing the digest of the frozen weights") : 0;
}

static int keep_digest(struct run *r, struct err *e)
{
    const char *text = r->stored_json ? r->stored_json : "{}";
    json_t *o = jx_parse(text, strlen(text), "the options", e);
    if (!o)
        return -e->code;
    json_object_set_new(o, STORED_DIGEST, json_string(r->lora.digest));
    char *kept = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    if (!kept)
        return err_set(e, ERR_MEMORY, "no memory for the options");
    free(r->stored_json);
    r->stored_json = kept;
    return 0;
}

static int compare_stored(const struct run *r, struct err *e)
{
    const char *text = r->o.resume ? ckpt_state(r->source)->run_json : NULL, *had = NULL;
    json_t *o = text ? jx_parse(text, strlen(text), ckpt_path(r->source), e) : NULL;
    int rc = 0;
    if (text && !o)
        return -e->code;
    if (o)
        rc = jx_text(o, ckpt_path(r->source), STORED_DIGEST, &had, e);
    if (rc >= 0 && had && strcmp(had, r->lora.digest))
        rc = err_set(e, ERR_USAGE,
                     "%s was trained on weights with digest %s, those of %s have %s: name the right ones "
                     "with --init",
                     ckpt_path(r->source), had, ckpt_path(r->lora.base), r->lora.digest);
    json_decref(o);
    return rc < 0 ? rc : 0;
}

int lora_check_base(struct run *r, const struct ranks *ranks, struct err *e)
{
    int rc = 0;
    if (!r->lora.n || !r->lora.base || r->o.dry_run || r->o.eval_only)
        return 0;
    TRY(digest_base(r->lora.base, ranks, r->lora.digest, e));
    TRY(compare_stored(r, e));
    rc = keep_digest(r, e);
out:
    return rc;
}

/* ---- for people ---- */
/* Targets as adapter_config.json has them: a list of texts, or one text. */
static json_t *targets_of(const struct lora *l)
{
    struct err ignored;
    json_t *o = l->config ? jx_parse(l->config, strlen(l->config), PEFT_CONFIG, &ignored) : NULL;
    json_t *list = json_incref(json_object_get(o, "target_modules"));
    json_decref(o);
    return list ? list : json_array();
}

void lora_text(const struct run *r, char out[300])
{
    const struct lora *l = &r->lora;
    double alpha = l->peft.c ? l->peft.config.alpha : l->spec.alpha;
    int rslora = l->peft.c ? l->peft.config.rslora : l->spec.rslora;
    json_t *list = targets_of(l), *v;
    size_t i, n = (size_t)snprintf(out, 300, "r %lld, alpha %g%s, targets", (long long)l->rank, alpha,
                                   rslora ? " (rslora)" : "");
    json_array_foreach(list, i, v) {
        const char *name = json_string_value(v);
        if (name && n + strlen(name) + 6 < 300)
            n += (size_t)snprintf(out + n, 300 - n, "%s %s", i ? "," : "", name);
    }
    json_decref(list);
}

void lora_write(const struct run *r, double trained, FILE *out)
{
    const struct lora *l = &r->lora;
    json_t *list = targets_of(l);
    char *targets = json_dumps(list, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    fprintf(out, ",\"lora\":{\"r\":%lld,\"alpha\":%.17g,\"rslora\":%s,\"targets\":%s,\"matrices\":%d,",
            (long long)l->rank, l->peft.c ? l->peft.config.alpha : l->spec.alpha,
            (l->peft.c ? l->peft.config.rslora : l->spec.rslora) ? "true" : "false",
            targets ? targets : "null", l->n);
    fprintf(out, "\"trained_parameters\":%.0f,\"base_digest\":\"%s\"}", trained, l->digest);
    free(targets);
    json_decref(list);
}
