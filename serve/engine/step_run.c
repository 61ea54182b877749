/* step_run.c - see step_run.h. */
#include "serve/engine/step_run.h"

#include <string.h>

static size_t row_bytes(const struct model *m) { return (size_t)m->hidden * dtype_size(m->dt); }

/* ---- memory ---- */

/* The rows that wanted logits come together here. */
static int has_logits(const struct model *m, const struct replica_ranks *r)
{
    return m->has_head && replica_cp_rank(r) == 0;
}

void step_work_carve(const struct model *m, const struct replica_ranks *r, const struct step_limits *lim,
                     struct arena *a, struct forward_work *w)
{
    int64_t rows = step_share_rows(lim->rows, replica_cp(r));
    forward_work_carve(m, a, rows, has_logits(m, r) ? lim->max_wants : 0, w);
}

int64_t step_model_rows(const struct replica_ranks *r, const struct step_limits *lim)
{
    int64_t rows = step_share_rows(lim->rows, replica_cp(r));
    return rows > lim->max_wants ? rows : lim->max_wants;
}

static int stored(struct key_exchange *x, struct err *e)
{
    return comm_barrier(((struct step_work *)x)->ranks.cp, e);
}

int step_work_open(struct step_work *w, struct model *m, const struct replica_ranks *r,
                   const struct step_limits *lim, struct err *e)
{
    struct arena a = { 0 };

    *w = (struct step_work){ .exchange = { stored }, .ranks = *r, .dev = m->dev };
    step_work_carve(m, r, lim, &a, &w->forward);
    w->memory = dev_alloc(m->dev, MEM_WORK, a.used);
    if (!w->memory)
        return err_set(e, ERR_MEMORY,
                       "no memory for steps of %lld rows (%zu MiB): lower --prefill-chunk or --max-batch",
                       (long long)lim->rows, a.used >> 20);
    a = (struct arena){ .base = w->memory, .size = a.used };
    step_work_carve(m, r, lim, &a, &w->forward);

    if (!r->cp)
        return 0;
    return step_share_open(&w->share,
                           &(struct step_share_open){ .n = replica_cp(r),
                                                      .rank = replica_cp_rank(r),
                                                      .max_seqs = lim->max_seqs,
                                                      .rows = lim->rows,
                                                      .max_wants = lim->max_wants,
                                                      .hidden = m->hidden },
                           e);
}

void step_work_close(struct step_work *w)
{
    step_share_close(&w->share);
    if (w->dev)
        dev_free(w->dev, w->memory);
    memset(w, 0, sizeof *w);
}

/* ---- a step ---- */

/* Finds the pages. Ranks that share them zero some each, when none reads the step before any more, and write
 * none before all are zeroed. */
static int map_pages(struct step_work *w, struct step_message *p, const struct kv kv[PAGE_GROUPS],
                     struct err *e)
{
    struct comm *cp = w->ranks.cp;
    int rc = cp ? comm_barrier(cp, e) : 0;
    if (rc >= 0)
        rc = step_message_map_pages(p, kv, e);
    return rc >= 0 && cp ? comm_barrier(cp, e) : rc;
}

/* This rank's rows as a batch. */
static struct batch own_rows(struct step_work *w, const struct step_message *p,
                             const struct kv kv[PAGE_GROUPS])
{
    struct step_share *s = &w->share;
    struct batch b = { .n_rows = p->n_rows,
                       .ids = p->ids,
                       .n_seq = p->n_seq,
                       .seq = p->seq[0],
                       .grouped = kv[1].base ? p->seq[1] : NULL };
    if (!w->ranks.cp)
        return b;

    step_share_deal(s, p);
    b.n_rows = s->rows[s->rank];
    b.ids = s->ids;
    b.n_seq = s->n_seq;
    b.seq = s->seq[0];
    b.grouped = kv[1].base ? s->seq[1] : NULL;
    b.exchange = s->divided ? &w->exchange : NULL;
    return b;
}

/* All ranks' wanted rows to w->forward.picked of the first one, in the order of the message. */
static int collect_wanted(struct step_work *w, struct model *m, const struct step_message *p, struct err *e)
{
    const struct step_share *s = &w->share;
    struct forward_work *f = &w->forward;
    struct comm *cp = w->ranks.cp;
    char *to = f->norm_out; /* free until the head's norm */

    if (s->rank) {
        model_pick_rows(m, f->h, f->x, s->want, s->wants[s->rank]);
        size_t bytes = (size_t)s->wants[s->rank] * row_bytes(m);
        return bytes ? comm_send(cp, f->h, bytes, 0, e) : 0;
    }

    model_pick_rows(m, to, f->x, s->want, s->wants[0]);
    for (int r = 0; r < s->n; r++) {
        size_t bytes = (size_t)s->wants[r] * row_bytes(m);
        int rc = r && bytes ? comm_recv(cp, to, bytes, r, e) : 0;
        if (rc < 0)
            return rc;
        to += bytes;
    }
    model_pick_rows(m, f->picked, f->norm_out, s->order, p->n_want);
    return 0;
}

int step_run(struct step_work *w, struct model *m, struct weights *ws, struct step_message *p,
             const struct kv kv[PAGE_GROUPS], struct head_out *head, struct err *e)
{
    struct batch b;
    int rc;

    TRY(map_pages(w, p, kv, e));
    b = own_rows(w, p, kv);
    TRY(model_forward_part(m, ws, 0, &b, &w->forward, head, e));
    if (!p->n_want)
        goto out;
    if (w->ranks.cp)
        TRY(collect_wanted(w, m, p, e));
    else
        model_pick_rows(m, w->forward.picked, w->forward.x, p->want, p->n_want);
    if (has_logits(m, &w->ranks))
        TRY(model_forward_head(m, ws, p->n_want, &w->forward, head, e));
out:
    return rc < 0 ? rc : 0;
}
