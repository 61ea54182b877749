/* adapters.c - see adapters.h. */
#include "reshard/lora/adapters.h"

#include <stdlib.h>
#include <string.h>
#include "format/ckpt_proof.h"
#include "format/peft.h"

/* The digest that `reshard digest` prints of the adapter. */
static int digest_of(struct ckpt *c, int n_threads, char hex[33], struct err *e)
{
    int n = ckpt_n_tensors(c), rc = 0;
    struct ckpt_digest *d = calloc((size_t)n + 1, sizeof *d);
    struct ckpt_tensor *t = calloc((size_t)n + 1, sizeof *t);
    if (!d || !t) {
        rc = err_set(e, ERR_MEMORY, "no memory for the digests of %d tensors", n);
        goto out;
    }
    TRY(prove_digests(c, n_threads, NULL, d, e));
    TRY(ckpt_check_rest(c, 0, 1, e));
    for (int i = 0; i < n; i++) {
        t[i] = *ckpt_tensor(c, i);
        t[i].digest = d[i];
    }
    ckpt_digest_hex(ckpt_digest_all(n, t, ckpt_state(c)).weights, hex);
out:
    free(d);
    free(t);
    return rc < 0 ? rc : 0;
}

static int merge_one(struct adapters *a, struct ckpt **src, const char *path, const struct request *req,
                     struct log *log, struct err *e)
{
    struct ckpt_open_opts how = { .stop = req->stop };
    struct peft_merge_source from = { .path = path };
    char hex[33];
    int rc = ckpt_open(&from.adapter, path, &how, e);
    if (rc < 0)
        return rc;
    if (!peft_is(from.adapter))
        rc = err_set(e, ERR_FORMAT, "%s: has no " PEFT_CONFIG ": --merge takes the folder of an adapter",
                     path);
    if (rc >= 0)
        rc = digest_of(from.adapter, req->n_threads, hex, e);
    if (rc < 0) {
        ckpt_close(from.adapter);
        return rc;
    }

    from.digest = hex;
    struct peft_merge **m = &a->merge[a->n];
    if ((rc = peft_merge_open(m, src, &from, e)) < 0)
        return rc;
    a->n++;
    const struct peft *p = peft_merge_adapter(*m);
    if (log)
        log_line(log, "%s: %d modules and %d whole tensors merged into %d tensors; weights_digest %s", path,
                 p->n, p->n_saved, peft_merge_n_tensors(*m), hex);
    return 0;
}

/* An adapter is no model. */
static int check_adapter(const struct request *req, struct err *e)
{
    const enum target_format f = req->format;
    if (req->n_merge)
        return err_set(e, ERR_USAGE, "%s: is an adapter: --merge merges into a model: give that as SRC",
                       req->src);
    if (f == TARGET_GGUF || f == TARGET_MEGATRON || f == TARGET_UNIVERSAL)
        return err_set(
            e, ERR_USAGE,
            "%s: is an adapter, and this --format holds models: merge it into its model first (--merge)",
            req->src);
    if (req->quant.quantize)
        return err_set(e, ERR_USAGE, "%s: is an adapter: --quantize is for models", req->src);
    return 0;
}

static int adapters_open(struct adapters *a, struct ckpt **src, const struct request *req, struct log *log,
                         struct err *e)
{
    int rc = 0;
    if (peft_is(*src))
        return check_adapter(req, e);
    if (!req->n_merge)
        return 0;
    if (ckpt_state(*src)->has_state && !req->weights_only)
        return err_set(e, ERR_USAGE,
                       "--merge: the optimizer state belongs to the weights without the adapter: add "
                       "--weights-only");
    if (!(a->merge = calloc((size_t)req->n_merge, sizeof(*a->merge))))
        return err_set(e, ERR_MEMORY, "no memory to merge %d adapters", req->n_merge);
    for (int i = 0; i < req->n_merge && rc >= 0; i++)
        rc = merge_one(a, src, req->merge[i], req, log, e);
    return rc < 0 ? rc : 0;
}

int adapters_check(const struct adapters *a, const struct procs *procs, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < a->n && rc >= 0; i++) {
        int64_t v[2];
        peft_merge_counts(a->merge[i], v);
        rc = procs_sum(procs, v, 2, e);
        rc = rc < 0 ? rc : peft_merge_check(a->merge[i], v, e);
    }
    return rc < 0 ? rc : 0;
}

int source_views(struct ckpt **src, struct adapters *a, int *n_narrow, const struct request *req,
                 struct log *log, struct err *e)
{
    struct quant_wish first = req->quant,
                      last = { .quantize = req->quant.quantize, .weights_only = req->quant.weights_only };
    first.quantize = req->n_merge ? QUANT_KIND_NONE : first.quantize;
    int rc = quant_views(src, &first, n_narrow, e);
    if (rc >= 0)
        rc = adapters_open(a, src, req, log, e);
    return rc >= 0 && req->n_merge && last.quantize ? quant_views(src, &last, n_narrow, e) : rc;
}

void adapters_free(struct adapters *a)
{
    free(a->merge);
    *a = (struct adapters){ 0 };
}
