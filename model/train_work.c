/* train_work.c - the memory of one micro-batch on one pipeline stage: one walk over the stage's units
 * measures and carves it. See model.h.
 *
 *     [ scratch, or logits | again: x behind the last layer, buffers of one layer | kept: every unit's ]
 *     device memory
 *     [ a norm's leaves | scratch that ranks of tp add up ]
 *     comm memory
 *     [ lists of routed rows: every unit's ]
 *     host memory
 *     [ with cp: every unit's keys and values, or one set where layers are computed again ]
 *     memory that ranks of cp share
 *
 * Which buffers lie in "again", one set for all layers, is the recompute policy's decision (enum life). */
#include <stdlib.h>
#include <string.h>
#include "base/alter.h"
#include "kernels/attn_cut.h"
#include "model/units.h"

/* ---- sequences and their pages ---- */
static int leaves_of_model(const struct model *m) { return m->cp_grain > 1 ? m->cp_grain : 1; }

int model_cp_grain(int64_t seq_len)
{
    enum { MOST = 8, CHUNK_LEAST = 1024 };
    int c = MOST;
    while (c > 1 && (seq_len / (2 * c) < CHUNK_LEAST || seq_len % (2 * c * ATTN_PAGE)))
        c /= 2;
    return c;
}

int model_leaves(const struct model *m) { return leaves_of_model(m) / m->local.layout.cp; }

int64_t model_row_token(const struct model *m, int64_t seq_len, int64_t row)
{
    int leaves = leaves_of_model(m);
    int64_t chunk = seq_len / (2 * leaves), of = row / chunk,
            leaf = model_leaves(m) * m->local.at.cp + of / 2;
    if (leaves == 1)
        return row;
    /* altered: a leaf is two neighbouring chunks */
    int64_t second = ALTERED("cp_chunks") ? 2 * leaf + 1 : 2 * leaves - 1 - leaf;
    int64_t first = ALTERED("cp_chunks") ? 2 * leaf : leaf;
    return (of % 2 ? second : first) * chunk + row % chunk;
}

/* Of one sequence: every document but one may need a page more. */
static int64_t pages_of(const struct train_work *w)
{
    return (w->seq_len + ATTN_PAGE - 1) / ATTN_PAGE + w->documents - 1;
}

/* Runs of neighbouring positions among this rank's rows of a sequence, at most. */
static int64_t runs_of(const struct train_work *w) { return w->documents + 2 * w->r.leaves; }

static char **unit_pages(const struct train_work *w, int i) { return w->page + i * w->n_seq * pages_of(w); }
static char **own_pages(const struct train_work *w, int i) { return w->own_page + i * pages_of(w); }

static struct attn_seq *unit_documents(const struct train_work *w, int i)
{
    return w->doc + (int64_t)i * w->n_seq * w->documents;
}

static struct attn_seq *unit_sequences(const struct train_work *w, int i)
{
    return w->seq + (int64_t)i * w->n_seq * runs_of(w);
}

/* How unit i's sequences are cut; count 0: they are not. */
static struct attn_cut cut_of(const struct train_work *w, int i)
{
    int leaves = leaves_of_model(w->m), here = w->r.leaves;
    if (leaves == 1)
        return (struct attn_cut){ 0 };
    return (struct attn_cut){ .n_leaves = leaves,
                              .first = here * w->m->local.at.cp,
                              .count = here,
                              .n_docs = w->n_docs,
                              .len = w->seq_len,
                              .doc = unit_documents(w, i) };
}

/* The pages of unit i, from the memory that its attention carved: of all sequences, in the order of their
 * documents. */
static void set_pages(struct train_work *w, int i)
{
    const struct unit_buf *u = &w->unit[i];
    size_t bytes = model_page_bytes(w->m);
    char *kv = u->branch[0].kv ? u->branch[0].kv : u->branch[1].kv;
    for (int64_t k = 0; kv && k < w->n_seq * pages_of(w); k++) {
        unit_pages(w, i)[k] = kv + bytes * (size_t)(w->own_page ? w->map.read[k] : k);
        if (w->own_page)
            own_pages(w, i)[k] = kv + bytes * (size_t)w->map.own[k];
    }
}

/* The documents of sequence s, whose pages begin at page, from doc[0] on: their number. */
static int set_documents(const struct train_work *w, int s, int n, const int64_t *begin, char **page,
                         struct attn_seq *doc)
{
    for (int k = 0; k < n; k++) {
        int64_t from = k ? begin[k] : 0, to = k + 1 < n ? begin[k + 1] : w->seq_len;
        doc[k] = (struct attn_seq){ s * w->seq_len + from, to - from, 0, page };
        page += (to - from + ATTN_PAGE - 1) / ATTN_PAGE;
    }
    return n;
}

/* The runs of n documents of a sequence in the order of the rows, from seq[0] on: their number. */
static int set_runs(const struct attn *a, const struct attn_seq *doc, int n, struct attn_seq *seq)
{
    int n_runs = 0;
    for (int leaf = 0; leaf < attn_leaves(a); leaf++)
        for (int half = 0; half < 2; half++)
            for (int k = 0; k < n; k++) {
                struct attn_run r = attn_run_of(a, &doc[k], leaf, half);
                if (r.begin < r.end)
                    seq[n_runs++] = (struct attn_seq){ r.row, r.end - r.begin, r.begin, doc[k].page };
            }
    return n_runs;
}

void train_work_documents(struct train_work *w, const int *n, const int64_t *begin)
{
    if (w->own_page)
        page_map_make(&w->map, w, n ? n[0] : 1, begin);
    for (int i = 0; i < w->n_units; i++) {
        struct attn_seq *doc = unit_documents(w, i), *seq = unit_sequences(w, i);
        struct attn a = { .cut = cut_of(w, i) };
        set_pages(w, i);
        w->n_docs = w->n_attn = 0;
        for (int s = 0; s < w->n_seq; s++) {
            const int64_t *from = begin ? begin + (int64_t)s * w->documents : NULL;
            char **page = unit_pages(w, i) + s * pages_of(w);
            int more = set_documents(w, s, n ? n[s] : 1, from, page, doc + w->n_docs);
            w->n_attn += set_runs(&a, doc + w->n_docs, more, seq + w->n_attn);
            w->n_docs += more;
        }
        if (!w->own_page)
            continue;
        struct attn_seq *own = w->own_doc + (doc - w->doc);
        set_documents(w, 0, w->n_docs, begin, own_pages(w, i), own);
        set_runs(&a, own, w->n_docs, w->own_seq + (seq - w->seq));
    }
}

void train_pass_layer(struct pass *p, int unit)
{
    int i = unit - p->w->at.first_unit;
    p->seq = unit_sequences(p->w, i);
    p->n_seq = p->w->n_attn;
    p->cut = cut_of(p->w, i);
    p->own_seq = p->w->own_page ? p->w->own_seq + (p->seq - p->w->seq) : NULL;
}

void train_clean_pages(const struct pass *p, int unit)
{
    const struct attn_seq *doc = unit_documents(p->w, unit - p->w->at.first_unit);
    size_t bytes = model_page_bytes(p->m);
    if (p->w->documents == 1 || p->w->own_page)
        return;
    for (int i = 0; i < p->w->n_docs; i++)
        if (doc[i].n_rows % ATTN_PAGE)
            dev_fill(p->m->dev, doc[i].page[doc[i].n_rows / ATTN_PAGE], 0, bytes);
}

void train_clean_own_pages(const struct pass *p)
{
    const struct train_work *w = p->w;
    const struct attn_seq *doc = w->own_doc + (p->cut.doc - w->doc);
    size_t bytes = model_page_bytes(p->m);
    for (int i = 0; i < w->n_docs; i++)
        if (doc[i].n_rows % ATTN_PAGE && page_rank(w, doc[i].row + doc[i].n_rows - 1) == p->m->local.at.cp)
            dev_fill(p->m->dev, doc[i].page[doc[i].n_rows / ATTN_PAGE], 0, bytes);
}

/* ---- memory ---- */
enum { AT_SCRATCH, AT_AGAIN, AT_KEPT, AT_COMM, AT_HOST, AT_PAGES, PLACES };

static size_t stream_bytes(const struct train_work *w)
{
    return (size_t)(w->shape.own * w->m->hidden) * dtype_size(w->m->dt);
}

/* Where each life lies under the recompute policy. */
static struct carver carver_of(const struct train_work *w, struct arena a[PLACES], struct arena *nowhere)
{
    enum recompute policy = w->recompute;
    struct arena *kept = &a[AT_KEPT], *again = &a[AT_AGAIN];
    struct arena *costly = policy == RECOMPUTE_FULL ? again : kept;
    return (struct carver){ .of = { [LIFE_KEPT] = kept,
                                    [LIFE_COSTLY] = costly,
                                    [LIFE_PAGES] = w->m->local.layout.cp > 1 ? &a[AT_PAGES] : costly,
                                    [LIFE_INPUT] = w->spills ? nowhere : kept,
                                    [LIFE_CHEAP] = policy == RECOMPUTE_NONE ? kept : again,
                                    [LIFE_SCRATCH] = &a[AT_SCRATCH],
                                    [LIFE_COMM] = &a[AT_COMM],
                                    [LIFE_HOST] = &a[AT_HOST] } };
}

/* One unit; what it takes of places that units share is free again behind it. most: the largest use so
 * far. */
static void carve_unit(const struct train_work *w, int unit, const struct call_shape *c,
                       struct arena a[PLACES], size_t most[PLACES], struct unit_buf *b)
{
    static const int shared[] = { AT_SCRATCH, AT_AGAIN, AT_COMM, AT_PAGES };
    size_t n_shared = sizeof shared / sizeof shared[0] - (w->recompute != RECOMPUTE_FULL);
    struct arena nowhere = { 0 };
    struct carver from = carver_of(w, a, &nowhere);
    size_t begin[PLACES];

    for (int k = 0; k < PLACES; k++)
        begin[k] = a[k].used;
    unit_carve(w->m, &w->m->unit[unit], c, &from, b);
    for (size_t k = 0; k < n_shared; k++) {
        int at = shared[k];
        most[at] = a[at].used > most[at] ? a[at].used : most[at];
        a[at].used = begin[at];
    }
}

/* Where inputs go to a store: two layers' inputs have memory, in turn. */
static void set_input(const struct unit *u, struct unit_buf *b, void *x)
{
    b->branch[0].x = x;
    for (int i = 1; u->parallel && i < u->n_branches; i++)
        b->branch[i].x = x;
}

/* Carves all buffers, or measures them where a[].base is NULL: then w's pointers stay as they are. */
static void carve_all(struct train_work *w, struct arena a[PLACES])
{
    const struct model *m = w->m;
    int full = w->recompute == RECOMPUTE_FULL, head = (int)m->n_layers + 1;
    struct call_shape layer = w->shape, end = w->shape;
    struct unit_buf scratch;
    size_t most[PLACES] = { 0 };
    void *input[2] = { NULL, NULL };

    /* layers have no logits, the head no pages */
    layer.logit_ld = 0;
    end.pages = 0;
    w->x_last = arena_take(full ? &a[AT_AGAIN] : &a[AT_KEPT], stream_bytes(w));
    for (int k = 0; k < 2 && w->spills; k++)
        input[k] = arena_take(&a[AT_AGAIN], stream_bytes(w));
    w->dx = arena_take(&a[AT_KEPT], stream_bytes(w));
    if (rows_shared(&w->r))
        w->norm_leaf = arena_take(&a[AT_COMM], (size_t)(w->r.n_seq * 2 * m->hidden) * sizeof(float));

    for (int i = 0; i < w->n_units; i++) {
        int unit = w->at.first_unit + i;
        carve_unit(w, unit, &layer, a, most, w->unit ? &w->unit[i] : &scratch);
        if (w->spills && w->unit && a[AT_AGAIN].base)
            set_input(&m->unit[unit], &w->unit[i], input[i % 2]);
    }
    if (w->at.has_head) {
        carve_unit(w, head, &end, a, most, &w->head);
        w->head.branch[0].x = w->x_last;
    }
    for (int k = 0; k < PLACES; k++)
        a[k].used = a[k].used > most[k] ? a[k].used : most[k];
}

/* Bytes of this rank; of what so many ranks of cp share a part of it. */
static size_t measure(struct train_work w, int sharers, struct arena a[PLACES])
{
    size_t sum = 0;
    memset(a, 0, PLACES * sizeof *a);
    carve_all(&w, a);
    for (int k = 0; k < PLACES; k++)
        sum += k == AT_PAGES ? a[k].used / (size_t)sharers : a[k].used;
    return sum;
}

struct train_work train_work_of(const struct model *m, int chunk, const struct work_shape *s)
{
    const struct stage *at = &m->chunk[chunk];
    int leaves = model_leaves(m), n_leaves = s->n_seq * leaves;
    int64_t len = s->seq_len / leaves_of_model(m), own = len / m->shares;
    struct train_work w = { .m = (struct model *)(uintptr_t)m,
                            .at = *at,
                            .recompute = s->recompute,
                            .spills = s->spills && s->recompute == RECOMPUTE_FULL,
                            .inputs = s->inputs,
                            .number = s->number,
                            .adapter = s->adapter,
                            .r = { n_leaves, len, own, leaves },
                            .n_seq = s->n_seq,
                            .seq_len = s->seq_len,
                            .documents = s->documents > 1 ? s->documents : 1,
                            .n_units = at->last_unit - at->first_unit + 1 };
    w.shape = (struct call_shape){ .n_seq = n_leaves,
                                   .rows = n_leaves * len,
                                   .own = n_leaves * own,
                                   .pages = m->local.layout.cp > 1 ? page_map_pages(&w)
                                                                   : s->n_seq * pages_of(&w),
                                   .logit_ld = m->vocab_n,
                                   .training = 1,
                                   .expert_buffer = s->expert_buffer,
                                   .leaves = s->leaves ? s->leaves : s->n_seq,
                                   .inner = leaves,
                                   .adapter = s->adapter,
                                   .deferred = s->deferred_weights };
    return w;
}

size_t train_work_measure(const struct model *m, int chunk, const struct work_shape *s)
{
    struct arena a[PLACES];
    return measure(train_work_of(m, chunk, s), s->sharers ? s->sharers : m->local.layout.cp, a);
}

size_t train_pages_measure(const struct model *m, int chunk, const struct work_shape *s)
{
    struct arena a[PLACES];
    measure(train_work_of(m, chunk, s), 1, a);
    return a[AT_PAGES].used / (size_t)(s->sharers ? s->sharers : m->local.layout.cp);
}

int train_work_check(const struct model *m, const struct work_shape *s, struct err *e)
{
    int leaves = leaves_of_model(m);
    if (m->shares > 1 && s->seq_len % (leaves * m->grain))
        return err_set(
            e, ERR_USAGE,
            "--seq-len %lld does not divide into the %d blocks (GRAIN) that --sp shares among ranks: "
            "use a multiple of %d",
            (long long)s->seq_len, leaves * m->grain, leaves * m->grain);
    if (leaves > 1 && s->seq_len % (2 * leaves * ATTN_PAGE))
        return err_set(e, ERR_USAGE,
                       "--seq-len %lld does not divide into %d leaves of two chunks of whole blocks of %d "
                       "positions: use a multiple of %d, or a smaller --cp-grain",
                       (long long)s->seq_len, leaves, ATTN_PAGE, 2 * leaves * ATTN_PAGE);
    return 0;
}

/* With cp: where this rank stores. */
static int open_own(struct train_work *w)
{
    size_t n = (size_t)w->n_units;
    w->own_page = calloc(n * (size_t)pages_of(w), sizeof *w->own_page);
    w->own_doc = calloc(n * (size_t)w->documents, sizeof *w->own_doc);
    w->own_seq = calloc(n * (size_t)runs_of(w), sizeof *w->own_seq);
    return page_map_open(&w->map, w, pages_of(w)) && w->own_page && w->own_doc && w->own_seq;
}

static int open_tables(struct train_work *w)
{
    int64_t n_units = w->n_units, n_seq = w->n_seq;
    w->unit = calloc((size_t)n_units, sizeof *w->unit);
    w->page = calloc((size_t)(n_units * n_seq * pages_of(w)), sizeof *w->page);
    w->doc = calloc((size_t)(n_units * n_seq * w->documents), sizeof *w->doc);
    w->seq = calloc((size_t)(n_units * n_seq * runs_of(w)), sizeof *w->seq);
    if (w->m->local.layout.cp > 1 && !open_own(w))
        return 0;
    if (w->m->learned_positions)
        w->pos = calloc((size_t)w->shape.rows, sizeof *w->pos);
    return w->unit && w->page && w->doc && w->seq && (w->pos || !w->m->learned_positions);
}

/* The memory of a micro-batch but for pages that ranks share. */
static int open_memory(struct train_work *w, const struct arena a[PLACES], size_t bytes, struct err *e)
{
    struct model *m = w->m;
    w->memory = dev_alloc(m->dev, MEM_ACTS, bytes);
    w->comm_memory = comm_alloc(m->tp, MEM_ACTS, a[AT_COMM].used);
    w->host_memory = a[AT_HOST].used ? mem_alloc(m->dev->mem, MEM_ACTS, a[AT_HOST].used) : NULL;
    if (open_tables(w) && w->memory && w->comm_memory && (!a[AT_HOST].used || w->host_memory))
        return 0;
    return err_set(e, ERR_MEMORY,
                   "no memory for the activations of %d sequences of %lld tokens (%zu MiB): use a smaller "
                   "--micro-batch or --seq-len, or --recompute",
                   w->n_seq, (long long)w->seq_len, bytes >> 20);
}

int train_work_open(struct train_work **out, struct model *m, int chunk, const struct work_shape *s,
                    struct err *e)
{
    struct train_work *w = calloc(1, sizeof *w);
    struct arena a[PLACES];
    size_t bytes, at = 0;
    int rc;

    if (!w)
        return err_set(e, ERR_MEMORY, "no memory for a micro-batch");
    *w = train_work_of(m, chunk, s);
    measure(*w, 1, a);
    bytes = a[AT_SCRATCH].used + a[AT_AGAIN].used + a[AT_KEPT].used;
    rc = open_memory(w, a, bytes, e);
    if (m->cp)
        rc = comm_agree(m->cp, rc, e);
    if (rc >= 0 && a[AT_PAGES].used)
        rc = comm_alloc_shared(&w->page_memory, m->cp, MEM_ACTS, a[AT_PAGES].used, e);
    if (rc < 0) {
        train_work_close(w);
        return rc;
    }

    /* the same walk again, over memory */
    w->again = (char *)w->memory + a[AT_SCRATCH].used;
    w->again_bytes = a[AT_AGAIN].used;
    for (int k = 0; k < PLACES; k++) {
        size_t size = a[k].used;
        a[k] = (struct arena){ (char *)w->memory + at, 0, size };
        at += size;
    }
    a[AT_COMM].base = w->comm_memory;
    a[AT_HOST].base = w->host_memory;
    a[AT_PAGES].base = w->page_memory;
    carve_all(w, a);
    train_work_documents(w, NULL, NULL);
    *out = w;
    return 0;
}

void train_work_close(struct train_work *w)
{
    if (!w)
        return;
    struct err ignored;
    if (w->page_memory)
        comm_free_shared(w->m->cp, w->page_memory, &ignored);
    comm_free(w->m->tp, w->comm_memory);
    dev_free(w->m->dev, w->memory);
    mem_free(w->m->dev->mem, w->host_memory);
    page_map_close(&w->map);
    free(w->own_page);
    free(w->own_doc);
    free(w->own_seq);
    free(w->pos);
    free(w->seq);
    free(w->doc);
    free(w->page);
    free(w->unit);
    free(w);
}

void *train_work_input(struct train_work *w) { return w->unit[0].branch[0].x; }
void *train_work_output(struct train_work *w) { return w->x_last; }
void *train_work_grad(struct train_work *w) { return w->dx; }
size_t train_work_bytes(const struct train_work *w) { return stream_bytes(w); }
