/* lora_save.c - see lora_save.h. */
#include "train/lora/lora_save.h"

#include <stdlib.h>
#include <string.h>

static size_t weight_bytes(const struct pieces *p)
{
    int n = 0;
    while (n < p->n && p->piece[n].t.role == ROLE_WEIGHT)
        n++;
    return n < p->n ? p->at[n] : p->bytes;
}

double lora_save_measure(const struct model *trained)
{
    double n = 0;
    for (int i = 0; i < trained->table.n; i++)
        n += (double)param_count(&trained->table.p[i]);
    return 2 * n * (double)dtype_size(trained->dt);
}

int lora_save_open(struct lora_save *s, struct pieces *p, const struct work *w, struct err *e)
{
    const struct model *m = work_trained(w);
    struct mem *mem = &w->ranks->mem;
    int dp_rank = comm_rank(ranks_zero(w->ranks)), zero = w->ranks->layout.zero, rc;
    int first = ranks_is_first(w->ranks);
    s->w = w;
    TRY(pieces_open(&s->mine, m, w->zero, dp_rank, zero, e));
    TRY(pieces_open_given(p, m, w->zero, dp_rank, zero, first, e));
    s->bytes = weight_bytes(&s->mine);
    s->sent = mem_alloc(mem, MEM_SAVE, s->bytes + 1);
    s->whole = first ? mem_alloc(mem, MEM_SAVE, weight_bytes(p) + 1) : NULL;
    p->given = s->whole;
    if (!s->sent || (first && !s->whole))
        rc = err_set(e, ERR_MEMORY, "no memory for the adapter on its way to a file");
out:
    return rc;
}

void lora_save_close(struct lora_save *s)
{
    if (!s->w)
        return;
    pieces_close(&s->mine);
    mem_free(&s->w->ranks->mem, s->sent);
    mem_free(&s->w->ranks->mem, s->whole);
}

/* Elements [lo, hi) of a piece's box, which lie at `from`, into the whole tensor. */
static void place(const struct ckpt_piece *x, const char *from, char *whole)
{
    struct box all = box_whole(x->t.n_dims, x->t.shape);
    size_t el = (size_t)stored_bytes(x->t.dtype, 1);
    struct box_walk walk = { 0 };
    struct box_run run;
    while (box_next_run(&x->box, x->lo, x->hi, &all, &walk, &run))
        memcpy(whole + (size_t)run.part_off * el, from + (size_t)(run.of_off - x->lo) * el,
               (size_t)run.count * el);
}

/* Where the tensor of a piece begins. */
static char *place_of(const struct lora_save *s, const struct ckpt_piece *x)
{
    const struct param_table *t = &work_trained(s->w)->table;
    char *at = s->whole;
    for (int i = 0; strcmp(t->p[i].name, x->t.name) || !t->p[i].n_sharing; i++) {
        struct box all = box_whole(t->p[i].n_dims, t->p[i].shape);
        at += t->p[i].n_sharing ? (size_t)stored_bytes(x->t.dtype, box_count(&all)) : 0;
    }
    return at;
}

/* What rank r of the job has sent. */
static int place_rank(const struct lora_save *s, int r, const char *from, struct err *e)
{
    const struct model *m = work_trained(s->w);
    const struct layout *l = &s->w->ranks->layout;
    struct rank_at at = layout_at(l, r);
    struct model of_rank = { .table = m->table, .dt = m->dt };
    struct pieces p = { 0 };
    int rc;
    TRY(params_local_open(&of_rank.local, &m->table, l, at, e));
    TRY(pieces_open(&p, &of_rank, NULL, at.dp * l->cp + at.cp, l->zero, e));
    for (int i = 0; i < p.n && p.piece[i].t.role == ROLE_WEIGHT; i++)
        place(&p.piece[i], from + p.at[i], place_of(s, &p.piece[i]));
out:
    pieces_close(&p);
    params_local_close(&of_rank.local);
    return rc;
}

int lora_save_gather(struct lora_save *s, struct err *e)
{
    struct comm *all = s->w->ranks->mesh.all;
    int n = world_size(s->w->ranks->world), rc = 0;
    size_t *sizes = calloc((size_t)n, sizeof *sizes);
    void *blobs = NULL;
    if (!sizes)
        rc = err_set(e, ERR_MEMORY, "no memory for the adapter on its way to a file");
    TRY(comm_agree(all, rc, e));
    for (int i = 0; i < s->mine.n && s->mine.piece[i].t.role == ROLE_WEIGHT; i++)
        pieces_copy(&s->mine, i, s->sent + s->mine.at[i]);
    TRY(comm_gather_blobs(all, s->sent, s->bytes, 0, &blobs, sizes, e));
    const char *from = blobs;
    for (int r = 0; s->whole && r < n && rc >= 0; from += sizes[r++])
        rc = place_rank(s, r, from, e);
    TRY(comm_agree(all, rc, e));
out:
    free(blobs);
    free(sizes);
    return rc;
}
