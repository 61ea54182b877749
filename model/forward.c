/* forward.c - forward without backward: the server's step and evaluation. See model.h. */
#include <string.h>
#include "model/units.h"

/* Buffers of a layer for `rows` rows: the bodies' own from a, lists from host, the stream and its norm shared
 * by all branches. */
static void carve_layer(const struct model *m, const struct forward_work *w, int unit, int64_t rows,
                        int64_t most_rows, struct arena *a, struct arena *host, struct unit_buf *b)
{
    const struct unit *u = &m->unit[unit];
    struct carver from = { .of = { a, a, a, a, a, host, [LIFE_INPUT] = a } };
    struct call_shape c = { .n_seq = 1, .rows = rows, .own = rows, .most_rows = most_rows };

    memset(b, 0, sizeof *b);
    if (unit_has_side(u))
        b->side = arena_take(a, (size_t)(rows * m->hidden) * dtype_size(m->dt));
    for (int i = 0; i < u->n_branches; i++) {
        u->branch[i].body.kind->carve(&u->branch[i].body, m, &c, &from, &b->branch[i]);
        b->branch[i].x = w->x;
        b->branch[i].h = w->h;
        b->branch[i].stat = w->stat;
        b->branch[i].o = w->h; /* the body has read its input */
        b->branch[i].o_stat = w->stat;
    }
}

/* The most that any layer takes, of both kinds of memory. */
static void measure_layers(const struct model *m, int64_t rows, size_t *bytes, size_t *host_bytes)
{
    const struct forward_work none = { 0 };
    *bytes = *host_bytes = 0;
    for (int unit = 0; unit <= m->n_layers; unit++) {
        struct arena a = { 0 }, host = { 0 };
        struct unit_buf b;
        carve_layer(m, &none, unit, rows, rows, &a, &host, &b);
        *bytes = a.used > *bytes ? a.used : *bytes;
        *host_bytes = host.used > *host_bytes ? host.used : *host_bytes;
    }
}

size_t forward_lists_bytes(const struct model *m, int64_t rows)
{
    size_t bytes, host;
    measure_layers(m, rows, &bytes, &host);
    return host;
}

void forward_work_carve(const struct model *m, struct arena *a, int64_t rows, int64_t logit_rows,
                        struct forward_work *w)
{
    int tp = comm_size(m->tp);
    int64_t columns = (m->vocab + tp - 1) / tp + m->grain; /* a rank's at most */
    int64_t stat_rows = rows > logit_rows ? rows : logit_rows;
    size_t row = (size_t)m->hidden * dtype_size(m->dt), host;

    *w = (struct forward_work){ .rows = rows, .logit_rows = logit_rows };
    w->x = arena_take(a, (size_t)rows * row);
    w->h = arena_take(a, (size_t)rows * row);
    w->stat = arena_take(a, (size_t)(2 * stat_rows) * sizeof(float));
    measure_layers(m, rows, &w->layer_bytes, &host);
    w->layer_memory = arena_take(a, w->layer_bytes);
    w->norm_out = arena_take(a, (size_t)logit_rows * row);
    w->picked = arena_take(a, (size_t)logit_rows * row);
    w->logits = arena_take(a, (size_t)(logit_rows * m->vocab) * sizeof(float));
    if (tp > 1)
        w->part_logits = arena_take(a, (size_t)(logit_rows * columns * (1 + tp)) * sizeof(float));
}

/* Logits of the whole vocabulary on every rank: local columns, gathered, put side by side. */
static int gather_logits(const struct model *m, struct forward_work *w, int64_t n, int64_t width,
                         struct err *e)
{
    int tp = comm_size(m->tp), each = m->grain / tp;
    float *mine = w->part_logits, *all = mine + n * width;
    int rc = comm_all_gather(m->tp, all, mine, (size_t)(n * width) * sizeof(float), e);

    if (rc < 0)
        return rc;
    for (int r = 0; r < tp; r++) {
        int64_t begin = block_begin(m->vocab, m->grain, r * each);
        int64_t count = block_begin(m->vocab, m->grain, (r + 1) * each) - begin;
        dev_copy_rows(m->dev, w->logits + begin, (size_t)m->vocab * sizeof(float), all + r * n * width,
                      (size_t)width * sizeof(float), (size_t)count * sizeof(float), n);
    }
    return 0;
}

void model_pick_rows(const struct model *m, void *to, const void *from, const int32_t *list, int64_t n)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < n; i++)
        rows = list[i] >= rows ? list[i] + 1 : rows;
    if (n)
        KERNEL(m->dev, embed, rows_of(to, m->dt, n, m->hidden), rows_of(from, m->dt, rows, m->hidden), 0,
               list);
}

int model_forward_head(struct model *m, struct weights *ws, int64_t n, struct forward_work *w,
                       struct head_out *out, struct err *e)
{
    struct pass p = { .m = m, .r = rows_whole(n) };
    int unit = (int)m->n_layers + 1, alone = comm_size(m->tp) == 1;
    int64_t width = alone ? m->vocab : block_size(m->vocab, m->grain) * (m->grain / comm_size(m->tp));
    struct unit_buf b = { 0 };
    int rc;

    b.branch[0].x = w->picked;
    b.branch[0].h = w->norm_out;
    b.branch[0].stat = w->stat;
    b.branch[0].head.logits = alone ? w->logits : w->part_logits;
    b.branch[0].head.logit_ld = width;

    if ((rc = ws->get(ws, unit, 0, &p.uw, e)) < 0)
        return rc;
    rc = unit_forward(&p, &m->unit[unit], &b, NULL, e);
    if (rc >= 0 && !alone)
        rc = gather_logits(m, w, n, width, e);
    *out = (struct head_out){ w->logits, m->stat, m->stat + m->max_rows, w->norm_out };
    ws->put(ws, unit);
    return rc < 0 ? rc : dev_check(m->dev, e);
}

int model_final_states(struct model *m, struct weights *ws, int64_t n, struct forward_work *w, struct err *e)
{
    struct pass p = { .m = m, .r = rows_whole(n) };
    int unit = (int)m->n_layers + 1, rc = ws->get(ws, unit, 0, &p.uw, e);
    const struct norm *norm = &m->unit[unit].branch[0].norm;

    if (rc < 0)
        return rc;
    norm_apply(&p, norm, w->h, w->x, w->stat);
    ws->put(ws, unit);
    return dev_check(m->dev, e);
}

static int one_unit(struct pass *p, struct weights *ws, struct forward_work *w, int unit, int next,
                    struct err *e)
{
    struct arena a = { w->layer_memory, 0, w->layer_bytes };
    struct arena host = { p->m->lists, 0, p->m->lists_bytes };
    struct unit_buf b = { .branch = { { .x = w->x } } };
    int rc = ws->get(ws, unit, 0, &p->uw, e);

    if (rc < 0)
        return rc;
    if (next)
        rc = weights_soon(ws, next, 0, e);
    carve_layer(p->m, w, unit, rows_all(&p->r), p->most_rows, &a, &host, &b);
    if (rc >= 0)
        rc = adapters_get(p, unit, 0, e);
    if (rc >= 0)
        rc = unit_forward(p, &p->m->unit[unit], &b, w->x, e);
    adapters_put(p, unit);
    ws->put(ws, unit);
    return rc;
}

static struct pass pass_of(struct model *m, const struct batch *b)
{
    return (struct pass){ .m = m,
                          .r = rows_whole(b->n_rows),
                          .most_rows = b->most_rows,
                          .ids = b->ids,
                          .states = b->states,
                          .pos = m->pos,
                          .seq = b->seq,
                          .n_seq = b->n_seq,
                          .whole_pages = 1,
                          .grouped = b->grouped,
                          .exchange = b->exchange,
                          .adapters = b->adapters };
}

static int check_rows(const struct model *m, const struct batch *b, const struct forward_work *w,
                      struct err *e)
{
    if (b->n_rows <= w->rows && b->n_want <= w->logit_rows && b->n_rows <= m->max_rows)
        return 0;
    return err_set(e, ERR_INTERNAL, "a batch of %lld rows and %lld logit rows, work memory for %lld and %lld",
                   (long long)b->n_rows, (long long)b->n_want, (long long)w->rows, (long long)w->logit_rows);
}

/* The tables of positions that the rows need. */
static int find_positions(struct model *m, const struct batch *b, struct err *e)
{
    int rc = 0;
    if (m->pos)
        positions_of(b->seq, b->n_seq, m->pos);
    for (int i = 0; rc >= 0 && i < b->n_seq; i++)
        rc = rope_extend(m, b->seq[i].pos + b->seq[i].n_rows, e);
    return rc;
}

int model_forward_units(struct model *m, struct weights *ws, int first, int last, const struct batch *b,
                        struct forward_work *w, struct err *e)
{
    struct pass p = pass_of(m, b);
    int rc = check_rows(m, b, w, e);

    if (rc >= 0)
        rc = find_positions(m, b, e);
    for (int unit = first; rc >= 0 && unit <= last; unit++)
        rc = one_unit(&p, ws, w, unit, unit < last ? unit + 1 : 0, e);
    return rc < 0 ? rc : dev_check(m->dev, e);
}

int model_forward_part(struct model *m, struct weights *ws, int chunk, const struct batch *b,
                       struct forward_work *w, struct head_out *out, struct err *e)
{
    const struct stage *at = &m->chunk[chunk];
    struct pass p = pass_of(m, b);
    int rc = 0;

    TRY(check_rows(m, b, w, e));
    for (int unit = at->first_unit; !b->n_rows && !b->most_rows && unit <= at->last_unit; unit++) {
        struct page_place place = page_place(m, unit - 1);
        TRY(keys_gather(&p, &place, NULL, NULL, e));
    }
    if (!b->n_rows && !b->most_rows)
        goto out;
    TRY(find_positions(m, b, e));

    if (at->has_embed)
        TRY(one_unit(&p, ws, w, 0, 0, e));
    for (int unit = at->first_unit; unit <= at->last_unit; unit++) {
        int more = unit < at->last_unit || (at->has_head && b->n_want);
        TRY(one_unit(&p, ws, w, unit, more ? unit + 1 : 0, e));
    }
    rc = dev_check(m->dev, e);
    if (rc >= 0 && at->has_head && b->n_want) {
        model_pick_rows(m, w->picked, w->x, b->want, b->n_want);
        rc = model_forward_head(m, ws, b->n_want, w, out, e);
    }
out:
    return rc;
}

int model_forward(struct model *m, struct weights *ws, const struct batch *b, struct forward_work *w,
                  struct head_out *out, struct err *e)
{
    return model_forward_part(m, ws, 0, b, w, out, e);
}
