/* kept_digest.c - see kept_digest.h. Digests are sums of integers over elements, so those of all ranks'
 * pieces add up to the tensor's (format/FORMAT.md). */
#include "train/elastic/kept_digest.h"

#include <stdlib.h>
#include "train/checkpoint/pieces.h"

/* Adds what this rank holds to got[tensor of c]. */
static int add_pieces(const struct work *w, const struct ckpt *c, struct ckpt_digest *got, struct err *e)
{
    const struct ranks *r = w->ranks;
    struct pieces p = { 0 };
    int rc;
    TRY(pieces_open(&p, &w->model, w->zero, comm_rank(ranks_zero(r)), r->layout.zero, e));
    for (int i = 0; i < p.n; i++) {
        const struct ckpt_tensor *t = &p.piece[i].t;
        const int at = ckpt_find(c, t->role, t->name);
        if (at < 0) {
            rc = err_set(e, ERR_INTEGRITY, "%s has no tensor %s", ckpt_path(c), t->name);
            goto out;
        }
        TRY(pieces_digest(&p, i, &got[at], e));
    }
    rc = 0;
out:
    if (p.m)
        pieces_close(&p);
    return rc;
}

int kept_digest_check(const struct work *w, char digest[33], struct err *e)
{
    const struct ckpt *c = w->run->source;
    struct comm *all = w->ranks->mesh.all;
    const int n = ckpt_n_tensors(c);
    struct ckpt_tensor *t = calloc((size_t)n + 1, sizeof *t);
    struct ckpt_digest *got = calloc((size_t)n + 1, sizeof *got);
    int rc = t && got ? 0 : err_set(e, ERR_MEMORY, "no memory for digests");
    if (rc >= 0 && !w->run->lora.n)
        rc = add_pieces(w, c, got, e);
    TRY(comm_agree(all, rc, e));
    if (!w->run->lora.n)
        TRY(comm_all_reduce_i64(all, (int64_t *)(void *)got, 2 * (size_t)n, e));
    for (int i = 0; i < n; i++) {
        t[i] = *ckpt_tensor(c, i);
        if (w->run->lora.n || (t[i].digest.lo == got[i].lo && t[i].digest.hi == got[i].hi))
            continue;
        rc = err_set(e, ERR_INTEGRITY,
                     "%s: the ranks do not hold the state that was kept: start again with "
                     "--resume auto",
                     t[i].name);
        goto out;
    }
    ckpt_digest_hex(ckpt_digest_all(n, t, ckpt_state(c)).state, digest);
out:
    free(t);
    free(got);
    return rc;
}
