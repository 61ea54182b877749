/* step_run.c - see step_run.h. */
#include "serve/engine/step_run.h"

#include <stdlib.h>
#include <string.h>

#define MOVED_FLOATS ((int64_t)1 << 18) /* of logits in a message */
#define MESSAGES 16                     /* under way from one rank to another, at most */

static size_t row_bytes(const struct model *m) { return (size_t)m->hidden * dtype_size(m->dt); }

/* ---- memory ---- */

/* The rows that wanted logits come together here. */
static int has_logits(const struct model *m, const struct replica_ranks *r)
{
    return m->has_head && replica_cp_rank(r) == 0;
}

/* The rank that logits go to. */
static int is_first(const struct replica_ranks *r) { return comm_rank(r->all) == 0; }
static int is_last_stage(const struct replica_ranks *r) { return replica_pp_rank(r) == replica_pp(r) - 1; }

static void carve(const struct model *m, const struct replica_ranks *r, const struct step_limits *lim,
                  struct arena *a, struct step_work *w)
{
    int64_t rows = step_share_rows(lim->rows, replica_place(r));
    forward_work_carve(m, a, rows, has_logits(m, r) ? lim->max_wants : 0, &w->forward);
    if (!r->cp && !r->pp)
        w->carried = arena_take(a, (size_t)lim->carried * row_bytes(m));
    if (!r->pp || !is_first(r))
        return;
    w->logits = arena_take(a, (size_t)(lim->max_wants * m->vocab) * sizeof(float));
    w->stat = arena_take(a, (size_t)(2 * lim->max_wants) * sizeof(float));
    w->rows = arena_take(a, (size_t)lim->max_wants * row_bytes(m));
}

/* Copies that comm_send() keeps of a rank's messages, at most. */
static size_t message_bytes(const struct model *m, const struct replica_ranks *r,
                            const struct step_limits *lim)
{
    size_t rows = (size_t)step_share_rows(lim->rows, replica_place(r)) * row_bytes(m);
    int64_t logits = lim->max_wants * m->vocab, most = MESSAGES * MOVED_FLOATS;
    if (!m->has_head)
        return STEPS_AHEAD * rows;
    if (replica_cp_rank(r))
        return rows; /* wanted ones */
    if (!r->pp || comm_rank(r->tp))
        return 0;
    return (size_t)(logits < most ? logits : most) * sizeof(float);
}

size_t step_work_measure(const struct model *m, const struct replica_ranks *r, const struct step_limits *lim)
{
    struct step_work none = { 0 };
    struct arena a = { 0 };
    carve(m, r, lim, &a, &none);
    if (replica_place(r) < replica_cp(r))
        a.used += page_gather_measure(replica_cp(r), lim->rows, model_page_bytes(m));
    return a.used + message_bytes(m, r, lim);
}

int64_t step_model_rows(const struct replica_ranks *r, const struct step_limits *lim)
{
    int64_t rows = step_share_rows(lim->rows, replica_place(r));
    return rows > lim->max_wants ? rows : lim->max_wants;
}

static int stored(struct key_exchange *x, int grouped, size_t page_off, struct err *e)
{
    struct step_work *w = (struct step_work *)x;
    if (!w->gather.cp)
        return comm_barrier(w->ranks.cp, e);
    return page_gather_layer(&w->gather, &w->share, w->message, grouped, page_off, e);
}

int step_work_open(struct step_work *w, struct model *m, const struct replica_ranks *r,
                   const struct step_limits *lim, struct err *e)
{
    struct arena a = { 0 };

    *w = (struct step_work){ .exchange = { stored }, .ranks = *r, .dev = m->dev };
    carve(m, r, lim, &a, w);
    w->memory = dev_alloc(m->dev, MEM_WORK, a.used);
    if (!w->memory)
        return err_set(e, ERR_MEMORY,
                       "no memory for steps of %lld rows (%zu MiB): lower --prefill-chunk or --max-batch",
                       (long long)lim->rows, a.used >> 20);
    a = (struct arena){ .base = w->memory, .size = a.used };
    carve(m, r, lim, &a, w);

    w->cap_runs = lim->rows / STEP_PIECE + 3 * (int64_t)lim->max_seqs; /* of own rows; of absent adapters */
    w->run = calloc((size_t)w->cap_runs, sizeof *w->run);
    if (!w->run)
        return err_set(e, ERR_MEMORY, "no memory for steps of %d sequences: lower --max-batch",
                       lim->max_seqs);
    if (!r->cp)
        return 0;
    struct step_share_open how = { .n = replica_cp(r),
                                   .rank = replica_cp_rank(r),
                                   .place = replica_place(r),
                                   .max_seqs = lim->max_seqs,
                                   .rows = lim->rows,
                                   .max_wants = lim->max_wants,
                                   .hidden = m->hidden };
    int rc = step_share_open(&w->share, &how, e);
    return rc < 0 || how.place == how.n
               ? rc
               : page_gather_open(&w->gather, r->cp, m->dev, lim->rows, model_page_bytes(m), e);
}

void step_work_close(struct step_work *w)
{
    step_share_close(&w->share);
    page_gather_close(&w->gather);
    free(w->run);
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

/* Which of n runs of rows have which adapter; neighbours with the same one are one run. */
static const struct adapter_rows *adapted_rows(struct step_work *w, int n, const struct attn_seq *seq,
                                               const int32_t *slot)
{
    int k = 0;
    for (int i = 0; i < n; i++) {
        struct adapter_slot *x = w->adapters->slot[slot[i]];
        struct adapter_run *last = k ? &w->run[k - 1] : NULL;
        if (!x)
            continue;
        if (last && last->a == &x->adapter && last->first + last->n == seq[i].row)
            last->n += seq[i].n_rows;
        else
            w->run[k++] = (struct adapter_run){ &x->adapter, seq[i].row, seq[i].n_rows };
    }
    w->adapted = (struct adapter_rows){ k, w->run };
    return &w->adapted;
}

/* Other ranks' rows come to the experts of this one: adds the adapters that none of its own rows has. */
static void add_absent(struct step_work *w, const struct step_message *p)
{
    for (int i = 0; i < p->n_seq; i++) {
        struct adapter_slot *x = w->adapters->slot[p->adapter[i]];
        int k = 0;
        while (x && k < w->adapted.n && w->run[k].a != &x->adapter)
            k++;
        if (x && k == w->adapted.n)
            w->run[w->adapted.n++] = (struct adapter_run){ .a = &x->adapter };
    }
}

/* This rank's rows as a batch. */
static struct batch own_rows(struct step_work *w, const struct step_message *p,
                             const struct kv kv[PAGE_GROUPS])
{
    struct step_share *s = &w->share;
    struct batch b = { .n_rows = p->n_rows,
                       .ids = p->ids,
                       .states = w->states,
                       .n_seq = p->n_seq,
                       .seq = p->seq[0],
                       .grouped = kv[1].base ? p->seq[1] : NULL };
    const int adapted = w->adapters && p->n_adapted;
    if (!w->ranks.cp) {
        b.adapters = adapted ? adapted_rows(w, p->n_seq, b.seq, p->adapter) : NULL;
        return b;
    }

    w->message = p;
    step_share_deal(s, p);
    b.n_rows = s->rows[s->rank];
    b.ids = s->ids;
    b.n_seq = s->n_seq;
    b.seq = s->seq[0];
    b.grouped = kv[1].base ? s->seq[1] : NULL;
    b.exchange = s->divided ? &w->exchange : NULL;
    b.adapters = adapted ? adapted_rows(w, b.n_seq, b.seq, s->adapter) : NULL;
    if (w->ranks.ep && comm_size(w->ranks.ep) > comm_size(w->ranks.tp)) {
        for (int r = 0; r < s->n; r++)
            b.most_rows = s->rows[r] > b.most_rows ? s->rows[r] : b.most_rows;
        if (adapted)
            add_absent(w, p);
    }
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

/* ---- stages ---- */

int step_message_pass(struct step_message *p, const struct replica_ranks *r, struct err *e)
{
    int stage = replica_pp_rank(r), leads = comm_rank(r->stage) == 0, rc = 0;
    if (leads && stage > 0)
        TRY(step_message_receive(p, r->pp, stage - 1, e));
    if (leads && !is_last_stage(r))
        TRY(step_message_send(p, r->pp, stage + 1, e));
    rc = step_message_broadcast(p, r->stage, e);
out:
    return rc;
}

/* Waits until the next stage has taken all but `left` of the steps that were sent to it. */
static int wait_taken(struct step_work *w, int left, struct err *e)
{
    int32_t taken;
    int rc = 0;
    for (; w->n_ahead > left; w->n_ahead--)
        TRY(comm_recv(w->ranks.pp, &taken, sizeof taken, comm_rank(w->ranks.pp) + 1, e));
out:
    return rc;
}

/* The rows of the stage before, and the word that they are taken. */
static int receive_rows(struct step_work *w, const struct model *m, int64_t rows, struct err *e)
{
    const int32_t taken = 1;
    struct comm *pp = w->ranks.pp;
    if (!rows || m->has_embed)
        return 0;
    int rc = comm_recv(pp, w->forward.x, (size_t)rows * row_bytes(m), comm_rank(pp) - 1, e);
    return rc < 0 ? rc : comm_send(pp, &taken, sizeof taken, comm_rank(pp) - 1, e);
}

static int send_rows(struct step_work *w, const struct model *m, int64_t rows, struct err *e)
{
    struct comm *pp = w->ranks.pp;
    if (!rows || m->has_head)
        return 0;
    int rc = wait_taken(w, STEPS_AHEAD - 1, e);
    if (rc >= 0)
        rc = comm_send(pp, w->forward.x, (size_t)rows * row_bytes(m), comm_rank(pp) + 1, e);
    w->n_ahead++;
    return rc;
}

/* Sends, or receives, n floats between the last stage and the first rank, in pieces: a transport keeps copies
 * of several messages, and buffers for each of their sizes. */
static int move_floats(struct comm *pp, float *at, int64_t n, int sends, struct err *e)
{
    int last = comm_size(pp) - 1, rc = 0;
    for (int64_t done = 0, each; rc >= 0 && done < n; done += each) {
        each = n - done < MOVED_FLOATS ? n - done : MOVED_FLOATS;
        size_t bytes = (size_t)each * sizeof *at;
        rc = sends ? comm_send(pp, at + done, bytes, 0, e) : comm_recv(pp, at + done, bytes, last, e);
    }
    return rc;
}

/* Hidden states of n rows from the last stage to the first rank, a row a message. */
static int move_rows(struct step_work *w, const struct model *m, int64_t n, struct head_out *head, int sends,
                     struct err *e)
{
    struct comm *pp = w->ranks.pp;
    int last = comm_size(pp) - 1, rc = 0;

    if (!sends)
        head->rows = w->rows;
    for (int64_t i = 0; rc >= 0 && i < n; i++) {
        char *at = (char *)(uintptr_t)head->rows + (size_t)i * row_bytes(m);
        rc = sends ? comm_send(pp, at, row_bytes(m), 0, e) : comm_recv(pp, at, row_bytes(m), last, e);
    }
    return rc;
}

/* Logits of a step's wanted rows from the last stage to the first rank. What says that rows are taken lies
 * before them. */
static int move_logits(struct step_work *w, const struct model *m, const struct step_message *p,
                       struct head_out *head, struct err *e)
{
    int64_t n = p->n_want;
    int first = is_first(&w->ranks), sends = comm_rank(w->ranks.stage) == 0 && is_last_stage(&w->ranks);
    int rc = first ? wait_taken(w, 0, e) : 0;
    if (rc < 0 || (!first && !sends))
        return rc;

    if (first)
        *head = (struct head_out){ w->logits, w->stat, w->stat + n, NULL };
    const float *from[] = { head->logits, head->max, head->sum };
    const int64_t count[] = { n * m->vocab, n, n };
    for (int i = 0; rc >= 0 && i < 3; i++)
        rc = move_floats(w->ranks.pp, (float *)(uintptr_t)from[i], count[i], sends, e);
    return rc >= 0 && p->wants_rows ? move_rows(w, m, n, head, sends, e) : rc;
}

/* Logits of the wanted rows, on the stage with the head. */
static int find_logits(struct step_work *w, struct model *m, struct weights *ws, const struct step_message *p,
                       struct head_out *head, struct err *e)
{
    struct forward_work *f = &w->forward;
    int rc = 0;

    if (w->ranks.cp)
        rc = collect_wanted(w, m, p, e);
    else
        model_pick_rows(m, f->picked, f->x, p->want, p->n_want);
    return rc >= 0 && has_logits(m, &w->ranks) ? model_forward_head(m, ws, p->n_want, f, head, e) : rc;
}

int step_run(struct step_work *w, struct model *m, struct weights *ws, struct step_message *p,
             const struct kv kv[PAGE_GROUPS], struct head_out *head, struct err *e)
{
    struct batch b;
    int rc;

    TRY(map_pages(w, p, kv, e));
    b = own_rows(w, p, kv);
    TRY(receive_rows(w, m, b.n_rows, e));
    TRY(model_forward_part(m, ws, 0, &b, &w->forward, head, e));
    TRY(send_rows(w, m, b.n_rows, e));
    if (p->n_want && m->has_head)
        TRY(find_logits(w, m, ws, p, head, e));
    if (p->n_want && w->ranks.pp)
        TRY(move_logits(w, m, p, head, e));
    rc = 0;
out:
    return rc;
}

int step_run_slice(struct step_work *w, struct model *m, struct weights *ws, struct step_message *p,
                   const struct kv kv[PAGE_GROUPS], struct err *e)
{
    struct forward_work f = w->forward;
    struct batch b;
    int rc = map_pages(w, p, kv, e);

    if (rc < 0)
        return rc;
    b = own_rows(w, p, kv);
    f.x = w->carried;
    return model_forward_units(m, ws, p->first_unit, p->last_unit, &b, &f, e);
}
