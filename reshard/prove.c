/* prove.c - opens the target again before it has its final name, and compares its digests with those of the
 * stream.
 *
 * The digests in a native manifest were made from what the files hold (stream.c), so only its tables are
 * read again: headers, sizes, cover, digests. Other formats have no digests, and compressed files are made
 * after the files were read back: there all data are read. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"
#include "base/pool.h"
#include "reshard/cuts/cut_template.h"
#include "format/ckpt_view.h"
#include "reshard/dest.h"
#include "reshard/gguf/gguf_prepare.h"

#define CHUNK ((int64_t)4 << 20)

struct proof {
    struct ckpt *c;
    const struct procs *procs;
    struct ckpt_digest *out;
    const char *only; /* 1 for the tensors that are digested; NULL: all */
    pthread_mutex_t lock;
    struct err err;
};

static int digest_tensor(struct ckpt *c, int i, struct ckpt_digest *out, char *data, struct err *e)
{
    const struct ckpt_tensor *t = ckpt_tensor(c, i);
    struct box whole = box_whole(t->n_dims, t->shape);
    int64_t step = stored_elements(t->dtype, CHUNK), n = box_count(&whole);
    struct ckpt_digest d = { 0, 0 };
    int once = ckpt_is_read_once(c); /* the caller compares all digests */
    for (int64_t lo = 0; lo < n; lo += step) {
        int64_t hi = lo + step < n ? lo + step : n;
        int rc = (once ? ckpt_read_unproven : ckpt_read_range)(c, i, &whole, lo, hi, data, e);
        if (rc < 0)
            return rc;
        ckpt_digest_add(&d, t->dtype, t->n_dims, t->shape, &whole, lo, hi, data);
    }
    if (!once && t->has_digest && (d.lo != t->digest.lo || d.hi != t->digest.hi))
        return err_set(e, ERR_INTEGRITY,
                       "%s: %s%s does not have the digest in its manifest: restore it from a good copy",
                       ckpt_path(c), ckpt_role_prefix[t->role], t->name);
    *out = d;
    return 0;
}

static void digest_task(void *arg, int64_t i, int thread)
{
    struct proof *p = arg;
    struct err e = { 0 };
    (void)thread;
    pthread_mutex_lock(&p->lock);
    int failed = p->err.code;
    pthread_mutex_unlock(&p->lock);
    if (failed || (p->only && !p->only[i]) || i % procs_size(p->procs) != procs_rank(p->procs))
        return;
    char *data = malloc((size_t)CHUNK);
    int rc = data ? digest_tensor(p->c, (int)i, &p->out[i], data, &e)
                  : err_set(&e, ERR_MEMORY, "no memory for the buffers of a thread");
    free(data);
    pthread_mutex_lock(&p->lock);
    if (rc < 0 && !p->err.code)
        p->err = e;
    pthread_mutex_unlock(&p->lock);
}

static int digest_all(struct ckpt *c, int n_threads, const struct procs *procs, const char *only,
                      struct ckpt_digest *out, struct err *e)
{
    struct proof p = { .c = c, .procs = procs, .out = out, .only = only };
    struct pool *pool = NULL;
    int rc = procs_agree(procs, pool_open(&pool, n_threads, e), e);
    if (rc < 0) {
        pool_close(pool);
        return rc;
    }
    memset(out, 0, sizeof *out * (size_t)ckpt_n_tensors(c));
    pthread_mutex_init(&p.lock, NULL);
    pool_run(pool, ckpt_n_tensors(c), digest_task, &p);
    pool_close(pool);
    pthread_mutex_destroy(&p.lock);
    if (p.err.code)
        *e = p.err;
    rc = procs_agree(procs, -p.err.code, e);
    return rc < 0 ? rc
                  : procs_sum(procs, (int64_t *)out,
                              ckpt_n_tensors(c) * (int64_t)(sizeof *out / sizeof(int64_t)), e);
}

int prove_digests(struct ckpt *c, int n_threads, const struct procs *procs, struct ckpt_digest *out,
                  struct err *e)
{
    return digest_all(c, n_threads, procs, NULL, out, e);
}

static int compare_computed(const struct plan *p, const char *computed, const struct ckpt_digest *first,
                            const struct ckpt_digest *again, struct err *e)
{
    for (int i = 0; i < p->n; i++) {
        const struct target *t = &p->target[i];
        if (computed[t->src] && t->t.dtype == ckpt_tensor(p->src, t->src)->dtype &&
            (first[i].lo != again[t->src].lo || first[i].hi != again[t->src].hi))
            return err_set(
                e, ERR_INTEGRITY,
                "%s was computed twice with different results: nothing was published, check memory",
                t->t.name);
    }
    return 0;
}

int prove_computed(const struct plan *p, const struct ckpt_digest *digest, struct log *log, struct err *e)
{
    const struct procs *procs = p->req->procs;
    size_t n = (size_t)ckpt_n_tensors(p->src) + 1;
    struct ckpt_digest *again = calloc(n, sizeof *again);
    char *computed = calloc(n, 1);
    int rc = again && computed ? 0 : err_set(e, ERR_MEMORY, "no memory for the digests of %zu tensors", n);
    if (log)
        log_progress(log, 0, "computing it again");
    TRY(procs_agree(procs, rc, e));
    for (int i = 0; i < ckpt_n_tensors(p->src); i++)
        computed[i] = (char)ckpt_is_computed(p->src, i);
    TRY(digest_all(p->src, p->req->n_threads, procs, computed, again, e));
    TRY(procs_agree(procs, compare_computed(p, computed, digest, again, e), e));
out:
    free(again);
    free(computed);
    return rc < 0 ? rc : 0;
}

static int compare(const struct plan *p, const struct ckpt *c, const struct ckpt_digest *want,
                   const struct ckpt_digest *have, struct err *e)
{
    if (ckpt_n_tensors(c) != p->n)
        return err_set(e, ERR_INTEGRITY,
                       "%d tensors were to be written, %d are there: nothing was published, please report it",
                       p->n, ckpt_n_tensors(c));
    for (int i = 0; i < p->n; i++) {
        const struct ckpt_tensor *t = &p->target[i].t, *got;
        int at = ckpt_find(c, t->role, t->name);
        if (at < 0)
            return err_set(e, ERR_INTEGRITY, "%s%s is not there: nothing was published, please report it",
                           ckpt_role_prefix[t->role], t->name);

        got = ckpt_tensor(c, at);
        if (got->dtype != t->dtype || !ckpt_shape_same(got, t) || have[at].lo != want[i].lo ||
            have[at].hi != want[i].hi)
            return err_set(e, ERR_INTEGRITY,
                           "%s%s was read with one digest and written with another: nothing was published, "
                           "check memory and disk",
                           ckpt_role_prefix[t->role], t->name);
    }
    return 0;
}

/* Step, seed and data position are no tensors; other formats keep them in places of their own. */
static int compare_state(const struct plan *p, const struct ckpt *c, struct err *e)
{
    const struct ckpt_state *want = ckpt_state(p->src), *have = ckpt_state(c);
    if (p->req->weights_only || p->req->format == TARGET_HF || !want->has_state)
        return 0;
    if (have->has_state && have->step == want->step && have->seed == want->seed &&
        have->epoch == want->epoch && have->sample == want->sample &&
        ckpt_counts_same(&have->counts, &want->counts))
        return 0;
    return err_set(e, ERR_INTEGRITY,
                   "the state is of step %lld, written was that of step %lld, or its seed, data position "
                   "or counts of experts differ: nothing was published, please report it",
                   (long long)have->step, (long long)want->step);
}

/* A GGUF file with its own names and blocks: the digests are of what was computed for it. */
static int open_gguf(struct ckpt **c, const char *tmp, struct err *e)
{
    char *path = io_join(tmp, GGUF_FILE);
    int rc = path ? gguf_open_stored(c, path, e) : err_set(e, ERR_MEMORY, "no memory for a path");
    free(path);
    return rc;
}

/* At a URL the files that publish it are not there yet. */
static int open_again(struct ckpt **c, const struct plan *p, const struct dest *d, struct ckpt_digest **have,
                      struct err *e)
{
    struct ckpt_open_opts how = { .unpublished = d->tmp, .stop = p->req->stop };
    int rc = p->req->format == TARGET_GGUF ? open_gguf(c, d->tmp, e)
             : d->upload                   ? ckpt_open(c, p->req->dst, &how, e)
                                           : ckpt_open(c, d->tmp, NULL, e);
    if (rc < 0)
        return rc;
    *have = calloc((size_t)ckpt_n_tensors(*c) + 1, sizeof **have);
    return *have ? 0 : err_set(e, ERR_MEMORY, "no memory for the digests of %d tensors", ckpt_n_tensors(*c));
}

int prove_run(const struct plan *p, const struct dest *d, const struct ckpt_digest *digest, struct log *log,
              struct err *e)
{
    const struct procs *procs = p->req->procs;
    int native = p->req->format == TARGET_NATIVE, serve = p->req->format == TARGET_SERVE;
    int first = procs_rank(procs) == 0, rc = 0;
    struct ckpt *c = NULL;
    struct ckpt_digest *have = NULL;
    if (log)
        log_progress(log, 0, "reading it again");
    TRY(procs_agree(procs, open_again(&c, p, d, &have, e), e));
    TRY(procs_agree(procs, (native || serve) && first ? ckpt_verify(c, 1, e) : 0, e));

    if (native && !p->req->codec && !d->upload) {
        for (int i = 0; i < ckpt_n_tensors(c); i++)
            have[i] = ckpt_tensor(c, i)->digest;
    } else {
        TRY(prove_digests(c, p->req->n_threads, procs, have, e));
        TRY(procs_agree(procs, serve ? ckpt_check_copies(c, e) : 0, e));
        TRY(procs_agree(procs, ckpt_check_rest(c, procs_rank(procs), procs_size(procs), e), e));
    }

    TRY(procs_agree(procs, compare(p, c, digest, have, e), e));
    TRY(procs_agree(procs, compare_state(p, c, e), e));
out:
    free(have);
    ckpt_close(c);
    return rc < 0 ? rc : 0;
}

/* ---- tied heads ---- */

static int is_tied(const struct plan *p)
{
    struct err ignored = { 0 };
    const char *type;
    json_t *root = p->config ? jx_parse(p->config, strlen(p->config), "config.json", &ignored) : NULL;
    const json_t *inner = json_object_get(cut_config_text(root, &type), "tie_word_embeddings");
    int tied = p->has_model ? p->cfg.tied
                            : json_is_true(inner ? inner : json_object_get(root, "tie_word_embeddings"));
    json_decref(root);
    return tied;
}

/* The weight whose name is this one behind some prefix, or -1. */
static int find_behind(const struct plan *p, const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; i < p->n; i++) {
        const struct ckpt_tensor *t = &p->target[i].t;
        size_t len = strlen(t->name);
        if (t->role == ROLE_WEIGHT && len >= n && !strcmp(t->name + len - n, name) &&
            (len == n || t->name[len - n - 1] == '.') && !strstr(t->name, ".layers.") &&
            strncmp(t->name, "mtp.", 4) != 0)
            return i;
    }
    return -1;
}

void prove_tied(const struct plan *p, const struct ckpt_digest *digest, struct log *log)
{
    static const char *const embeddings[] = { "embed_tokens.weight", "wte.weight", "word_embeddings.weight",
                                              "embed_in.weight" };
    int head = find_behind(p, "lm_head.weight"), embedding = -1;
    if (!log || head < 0 || !is_tied(p))
        return;
    for (size_t i = 0; embedding < 0 && i < sizeof embeddings / sizeof *embeddings; i++)
        embedding = find_behind(p, embeddings[i]);
    if (embedding >= 0 && memcmp(&digest[head], &digest[embedding], sizeof *digest) != 0)
        log_line(log,
                 "%s differs from %s, and config.json ties them: both are carried, most programs read the "
                 "embedding alone",
                 p->target[head].t.name, p->target[embedding].t.name);
}
