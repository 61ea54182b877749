/* pieces.c - see pieces.h. */
#include "train/checkpoint/pieces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/peft.h"

/* Bytes of the buffer through which device memory, or joined rows, reach a file. */
#define BUFFER ((size_t)1 << 20)

struct piece_source {
    enum zero_state state;
    struct param_piece at;
};

static const enum ckpt_role roles[ZERO_STATES] = { ROLE_WEIGHT, ROLE_MASTER, ROLE_EXP_AVG, ROLE_EXP_AVG_SQ };

/* ---- the list ---- */

/* Which states a rank keeps, and which of them are cut over dp. */
static int has_state(enum zero_state k, enum dtype dt) { return k != ZERO_MASTER || dt != DT_F32; }
static int is_sliced(enum zero_state k, int zero) { return k == ZERO_WEIGHT ? zero == 3 : zero >= 1; }
static enum stored_dtype stored_dtype(enum zero_state k, enum dtype dt)
{
    return k == ZERO_WEIGHT && dt == DT_BF16 ? STORED_BF16 : STORED_F32;
}
static const struct param *param_of(const struct model *m, const struct param_piece *at)
{
    return &m->table.p[m->local.part[at->part].param];
}

/* No optimizer sees it: it has weights alone. */
static int has_own_dtype(const struct model *m, const struct param_piece *at)
{
    return param_of(m, at)->dtype != NULL;
}

/* The name of a parameter's tensor in files. */
static const char *name_of(struct pieces *p, const struct param *q)
{
    char **name = &p->name[q - p->m->table.p];
    size_t room = strlen(q->name) + sizeof PEFT_PREFIX;
    if (!p->of_adapter)
        return q->name;
    if (!*name && (*name = malloc(room)))
        snprintf(*name, room, PEFT_PREFIX "%s", q->name);
    return *name ? *name : ""; /* a writer refuses it */
}

static void add(struct pieces *p, enum zero_state state, const struct param_piece *at)
{
    const struct param *q = param_of(p->m, at);
    struct ckpt_piece *x = &p->piece[p->n];
    *x = (struct ckpt_piece){ .t = { .name = name_of(p, q), .role = roles[state], .n_dims = q->n_dims },
                              .box = at->box,
                              .lo = at->lo,
                              .hi = at->hi };
    memcpy(x->t.shape, q->shape, sizeof q->shape);
    x->t.dtype = q->dtype ? STORED_F32 : stored_dtype(state, p->m->dt);
    p->source[p->n] = (struct piece_source){ state, *at };
    p->at[p->n++] = p->bytes;
    p->bytes += (size_t)stored_bytes(x->t.dtype, at->hi - at->lo);
}

/* Which weights are listed. */
enum listed_weights { WEIGHTS_OWN, WEIGHTS_ALONE, WEIGHTS_WHOLE, WEIGHTS_NONE };

/* Every tensor of the table once. */
static void add_whole(struct pieces *p)
{
    const struct param_table *t = &p->m->table;
    for (int i = 0; i < t->n; i++) {
        struct ckpt_piece *x = &p->piece[p->n];
        if (!t->p[i].n_sharing)
            continue;
        *x = (struct ckpt_piece){ .t = { .name = name_of(p, &t->p[i]), .n_dims = t->p[i].n_dims } };
        memcpy(x->t.shape, t->p[i].shape, sizeof x->t.shape);
        x->t.dtype = stored_dtype(ZERO_WEIGHT, p->m->dt);
        x->box = box_whole(x->t.n_dims, x->t.shape);
        x->hi = box_count(&x->box);
        p->at[p->n++] = p->bytes;
        p->bytes += (size_t)stored_bytes(x->t.dtype, x->hi);
    }
    p->n_given = p->n;
}

static int open_list(struct pieces *p, const struct model *m, const struct zero *z, int dp_rank, int zero,
                     enum listed_weights weights, struct err *e)
{
    size_t most = (size_t)m->local.n_parts * ZERO_STATES + (size_t)m->table.n + 1;
    struct param_piece *buf = calloc(most, sizeof *buf);
    *p = (struct pieces){ .m = m,
                          .z = z,
                          .piece = calloc(most, sizeof *p->piece),
                          .source = calloc(most, sizeof *p->source),
                          .at = calloc(most, sizeof *p->at),
                          .of_adapter = weights == WEIGHTS_WHOLE || weights == WEIGHTS_NONE,
                          .name = calloc((size_t)m->table.n + 1, sizeof *p->name) };
    int ok = buf && p->piece && p->source && p->at && p->name;
    if (ok && weights == WEIGHTS_WHOLE)
        add_whole(p);
    enum zero_state first = p->of_adapter ? ZERO_MASTER : ZERO_WEIGHT,
                    end = weights == WEIGHTS_ALONE ? ZERO_WEIGHT + 1 : ZERO_STATES;
    for (enum zero_state k = first; ok && k < end; k++) {
        int n = has_state(k, m->dt) ? params_pieces(&m->local, dp_rank, is_sliced(k, zero), buf) : 0;
        for (int i = 0; i < n; i++)
            if (k == ZERO_WEIGHT || !has_own_dtype(m, &buf[i]))
                add(p, k, &buf[i]);
    }
    free(buf);
    return ok ? 0 : err_set(e, ERR_MEMORY, "no memory for the list of pieces");
}

int pieces_open(struct pieces *p, const struct model *m, const struct zero *z, int dp_rank, int zero,
                struct err *e)
{
    return open_list(p, m, z, dp_rank, zero, WEIGHTS_OWN, e);
}

int pieces_open_weights(struct pieces *p, const struct model *m, const struct zero *z, int dp_rank, int zero,
                        struct err *e)
{
    return open_list(p, m, z, dp_rank, zero, WEIGHTS_ALONE, e);
}

int pieces_open_given(struct pieces *p, const struct model *m, const struct zero *z, int dp_rank, int zero,
                      int whole, struct err *e)
{
    return open_list(p, m, z, dp_rank, zero, whole ? WEIGHTS_WHOLE : WEIGHTS_NONE, e);
}

void pieces_close(struct pieces *p)
{
    for (int i = 0; p->name && i < p->m->table.n; i++)
        free(p->name[i]);
    free(p->name);
    free(p->piece);
    free(p->source);
    free(p->at);
    memset(p, 0, sizeof *p);
}

static double measure(const struct model *m, int dp_rank, int zero, enum listed_weights weights)
{
    struct pieces p;
    struct err e;
    double bytes = open_list(&p, m, NULL, dp_rank, zero, weights, &e) < 0 ? 0 : (double)p.bytes;
    pieces_close(&p);
    return bytes;
}

double pieces_measure(const struct model *m, int dp_rank, int zero)
{
    return measure(m, dp_rank, zero, WEIGHTS_OWN);
}

double pieces_measure_weights(const struct model *m, int dp_rank, int zero)
{
    return measure(m, dp_rank, zero, WEIGHTS_ALONE);
}

/* ---- the bytes ---- */

/* A tensor that several parameters share: a row of it is one row of each, side by side. */
struct joined {
    int n;
    int64_t rows;     /* 1: the parts lie one after the other */
    size_t el, width; /* bytes of an element, of a row */
    enum zero_state state;
    struct param_piece part[PARTS_MAX];
    const char *data[PARTS_MAX]; /* NULL: a store has it */
    size_t bytes[PARTS_MAX];     /* of a row of each part */
};

static struct joined join(const struct pieces *p, const struct piece_source *from)
{
    const struct param *q = param_of(p->m, &from->at);
    struct joined j = { .n = from->at.n_parts,
                        .state = from->state,
                        .el = (size_t)stored_bytes(stored_dtype(from->state, p->m->dt), 1) };
    j.rows = 1;
    for (int d = 0; d < q->split_dim; d++)
        j.rows *= from->at.box.extent[d];
    for (int k = 0; k < j.n; k++) {
        const struct part *x = &p->m->local.part[from->at.part + k];
        j.part[k] = (struct param_piece){ from->at.part + k, 1, x->box, 0, x->count, x->offset };
        j.data[k] = zero_piece(p->z, from->state, &j.part[k]);
        j.bytes[k] = j.el * (size_t)(x->count / j.rows);
        j.width += j.bytes[k];
    }
    return j;
}

/* Elements [at, at + n) of a piece that lies at `data`, to the host's memory. */
static int read_elements(const struct pieces *p, enum zero_state state, const struct param_piece *piece,
                         const char *data, int64_t at, int64_t n, size_t el, char *out, struct err *e)
{
    if (!data)
        return zero_read_piece(p->z, state, piece, at, n, out, e);
    dev_read(p->m->dev, out, data + (size_t)at * el, (size_t)n * el);
    return 0;
}

static int join_rows(const struct pieces *p, const struct joined *j, int64_t begin, int64_t end, char *out,
                     struct err *e)
{
    int rc = 0;
    for (int64_t r = begin; r < end; r++) {
        for (int k = 0; rc >= 0 && k < j->n; k++) {
            int64_t n = (int64_t)(j->bytes[k] / j->el);
            rc = read_elements(p, j->state, &j->part[k], j->data[k], r * n, n, j->el, out, e);
            out += j->bytes[k];
        }
    }
    return rc;
}

void pieces_copy(const struct pieces *p, int i, char *out)
{
    const struct piece_source *from = &p->source[i];
    struct err ignored; /* memory is read */
    struct joined j;
    if (i < p->n_given) {
        memcpy(out, p->given + p->at[i], (i + 1 < p->n ? p->at[i + 1] : p->bytes) - p->at[i]);
        return;
    }
    if (from->at.n_parts == 1) {
        dev_read(p->m->dev, out, zero_piece(p->z, from->state, &from->at),
                 (i + 1 < p->n ? p->at[i + 1] : p->bytes) - p->at[i]);
        return;
    }
    j = join(p, from);
    join_rows(p, &j, 0, j.rows, out, &ignored);
}

/* n elements of a piece from its first one on. data: device memory; NULL: a store has them. */
struct elements {
    enum zero_state state;
    const struct param_piece *piece;
    const char *data;
    int64_t n;
    size_t el;
};

/* Takes the next n elements of piece i, in its row-major order. */
struct sink {
    int (*take)(struct sink *to, int i, const void *data, int64_t n, struct err *e);
    struct ckpt_shard *f;
    const struct ckpt_piece *piece;
    struct ckpt_digest *digest;
    int64_t at;
};

static int take_file(struct sink *to, int i, const void *data, int64_t n, struct err *e)
{
    return ckpt_shard_put(to->f, i, data, n, e);
}

static int take_digest(struct sink *to, int i, const void *data, int64_t n, struct err *e)
{
    const struct ckpt_piece *c = to->piece;
    (void)i;
    (void)e;
    ckpt_digest_add(to->digest, c->t.dtype, c->t.n_dims, c->t.shape, &c->box, c->lo + to->at,
                    c->lo + to->at + n, data);
    to->at += n;
    return 0;
}

/* Straight from memory on a CPU, else through a buffer. */
static int put_elements(const struct pieces *p, const struct elements *x, struct sink *to, int i,
                        struct err *e)
{
    if (x->data && !p->m->dev->memory)
        return to->take(to, i, x->data, x->n, e);
    int64_t step = (int64_t)(BUFFER / x->el);
    char *buf = malloc(BUFFER);
    int rc = buf ? 0 : err_set(e, ERR_MEMORY, "no memory to save what the device holds");
    for (int64_t at = 0; at < x->n && rc >= 0; at += step) {
        int64_t some = x->n - at < step ? x->n - at : step;
        rc = read_elements(p, x->state, x->piece, x->data, at, some, x->el, buf, e);
        if (rc >= 0)
            rc = to->take(to, i, buf, some, e);
    }
    free(buf);
    return rc;
}

static int put_joined(const struct pieces *p, const struct joined *j, struct sink *to, int i, struct err *e)
{
    int64_t step = 1 + (int64_t)(BUFFER / j->width);
    int rc = 0;
    if (j->rows == 1) {
        for (int k = 0; k < j->n && rc >= 0; k++) {
            struct elements x = { j->state, &j->part[k], j->data[k], (int64_t)(j->bytes[k] / j->el), j->el };
            rc = put_elements(p, &x, to, i, e);
        }
        return rc;
    }
    char *buf = malloc((size_t)step * j->width);
    if (!buf)
        return err_set(e, ERR_MEMORY, "no memory to save a joined tensor");
    for (int64_t r = 0; r < j->rows && rc >= 0; r += step) {
        int64_t end = r + step < j->rows ? r + step : j->rows;
        rc = join_rows(p, j, r, end, buf, e);
        if (rc >= 0)
            rc = to->take(to, i, buf, (int64_t)((size_t)(end - r) * j->width / j->el), e);
    }
    free(buf);
    return rc;
}

static int put(const struct pieces *p, int i, struct sink *to, struct err *e)
{
    const struct piece_source *from = &p->source[i];
    const struct ckpt_piece *c = &p->piece[i];
    if (from->at.n_parts > 1) {
        struct joined j = join(p, from);
        return put_joined(p, &j, to, i, e);
    }
    struct elements x = { from->state, &from->at, zero_piece(p->z, from->state, &from->at), c->hi - c->lo,
                          (size_t)stored_bytes(c->t.dtype, 1) };
    return put_elements(p, &x, to, i, e);
}

int pieces_put(const struct pieces *p, int i, struct ckpt_shard *f, struct err *e)
{
    struct sink to = { .take = take_file, .f = f };
    if (i < p->n_given)
        return ckpt_shard_put(f, i, p->given + p->at[i], p->piece[i].hi - p->piece[i].lo, e);
    return put(p, i, &to, e);
}

int pieces_digest(const struct pieces *p, int i, struct ckpt_digest *d, struct err *e)
{
    struct sink to = { .take = take_digest, .piece = &p->piece[i], .digest = d };
    return put(p, i, &to, e);
}
