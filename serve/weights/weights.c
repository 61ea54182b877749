/* weights.c - see weights.h. */
#include "serve/weights/weights.h"

#include <stdlib.h>
#include <string.h>
#include "base/test_hooks.h"
#include "model/packs.h"
#include "serve/weights/column_reader.h"
#include "serve/weights/mapped_weights.h"
#include "serve/weights/piece_reader.h"
#include "serve/weights/row_source.h"

#define CHUNK_ELEMENTS ((int64_t)4 << 20) /* elements read at a time where they must be converted */

static const struct {
    enum stored_dtype stored;
    enum dtype dt;
} readable[] = { { STORED_F32, DT_F32 }, { STORED_BF16, DT_BF16 }, { STORED_F16, DT_F16 } };

/* The dtype of a stored tensor as kernels name it; -1: not a dtype that weights can have. */
static int stored_dtype(const struct ckpt_tensor *t)
{
    for (size_t i = 0; i < sizeof readable / sizeof readable[0]; i++)
        if (readable[i].stored == t->dtype)
            return (int)readable[i].dt;
    return -1;
}

struct reader {
    struct background *background;
    struct model_info *l;
    const struct model *m;
    struct dev *host; /* for conversions */
    void *raw;        /* [CHUNK_ELEMENTS] as stored */
    float *wide;      /* [CHUNK_ELEMENTS] as float */
    struct comm *tp;
    int by_columns; /* column_reader.h is used */
    /* [tensors] digests of what was read, each element counted by one rank; NULL: the files store them */
    struct ckpt_digest *seen;
    int counts;          /* 1: elements that are read go into the digests */
    unsigned char *read; /* [parts] 1: read, not mapped; NULL: nothing is mapped */
    struct load_progress *progress;
};

/* Elements [lo, hi) of box b of tensor i. */
struct piece {
    int i;
    const struct box *b;
    int64_t lo, hi;
};

/* Adds a piece's stored bytes to the digest of its tensor. */
static void count_piece(struct reader *r, const struct piece *x, const void *stored)
{
    const struct ckpt_tensor *t = ckpt_tensor(r->l->ckpt, x->i);
    if (r->counts)
        ckpt_digest_add(&r->seen[x->i], t->dtype, t->n_dims, t->shape, x->b, x->lo, x->hi, stored);
}

/* Reads a piece to dst, converted from dtype `from` to dt. fp16 goes through fp32: widening is exact. */
static int read_piece(struct reader *r, const struct piece *x, enum dtype from, void *dst, enum dtype dt,
                      struct err *e)
{
    float *wide = dt == DT_F32 ? dst : r->wide;
    void *stored = r->raw;
    if (from == dt)
        stored = dst;
    else if (from == DT_F32)
        stored = wide;

    const struct piece_read read = { .c = r->l->ckpt,
                                     .tensor = x->i,
                                     .box = x->b,
                                     .lo = x->lo,
                                     .hi = x->hi,
                                     .dst = stored,
                                     .digest = r->counts ? &r->seen[x->i] : NULL,
                                     .is_proven = r->counts && r->l->counts_all && !r->l->mapped &&
                                                  ckpt_tensor(r->l->ckpt, x->i)->has_digest,
                                     .stop = &r->background->stop };
    int rc = piece_read(r->host->pool, &read, e);
    if (rc < 0)
        return rc;

    if (from == dt)
        return 0;
    if (from != DT_F32)
        KERNEL(r->host, widen, wide, r->raw, from, x->hi - x->lo);
    if (dt != DT_F32)
        KERNEL(r->host, round_to, dst, dt, wide, x->hi - x->lo);
    return 0;
}

/* Reads box b of tensor i, whatever dtype it is stored in, to dst through the ring. */
static int read_here(struct reader *r, int i, const struct box *b, struct ring *ring, void *dst,
                     enum dtype dt, struct err *e)
{
    const enum dtype from = (enum dtype)stored_dtype(ckpt_tensor(r->l->ckpt, i));
    const size_t element = dtype_size(dt);
    int64_t n = box_count(b), got;
    for (int64_t lo = 0; lo < n; lo += got) {
        void *place;
        got = n - lo < CHUNK_ELEMENTS || from == dt ? n - lo : CHUNK_ELEMENTS;
        got = ring_take(ring, (char *)dst + (size_t)lo * element, got, element, &place, e);
        int rc = got < 0 ? (int)got
                         : read_piece(r, &(struct piece){ i, b, lo, lo + got }, from, place, dt, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Rows for the column reader. */
struct rows {
    struct reader *r;
    int tensor;
    enum dtype dt;
};
static int read_rows(void *ctx, const struct box *b, void *dst, struct err *e)
{
    const struct rows *x = ctx;
    struct ring none = { .d = x->r->host };
    return read_here(x->r, x->tensor, b, &none, dst, x->dt, e);
}

/* Does this rank count what it reads of p for the digest? Of boxes that several ranks read, the owner counts.
 * Where ranks read rows for each other (rows), each row is read once, by one of them, for every parameter in
 * the tensor. The last stage reads a tied embedding besides the first one. */
static int counts_box(const struct reader *r, const struct param *p, int rows)
{
    const struct params_local *l = &r->m->local;
    int whole = p->expert >= 0 && l->layout.ep > 1;
    if ((p->unit == 0 && !r->m->has_embed) || !(whole ? r->l->counts_experts : r->l->counts_dense))
        return 0;
    for (int i = 0; !rows && i < l->n_parts; i++)
        if (&l->table->p[l->part[i].param] == p)
            return l->part[i].owner;
    return rows && p->n_sharing;
}

/* ---- what is mapped is neither read nor copied ---- */

static int point_pack(void *ctx, int unit, int pack, struct panels *p, struct err *e)
{
    struct reader *r = ctx;
    return row_source_pack(r->l->rows, unit, pack, p, e);
}

static int point_part(void *ctx, int part, const void **at, struct err *e)
{
    struct reader *r = ctx;
    return row_source_part(r->l->rows, part, at, e);
}

struct counting {
    struct reader *r;
    int tensor, part;
};

/* A stretch of a mapped part, for the digest of its tensor. */
static int count_stretch(void *arg, int64_t lo, int64_t hi, const void *from, struct err *e)
{
    const struct counting *x = arg;
    (void)e;
    count_piece(x->r, &(struct piece){ x->tensor, &x->r->m->local.part[x->part].box, lo, hi }, from);
    return 0;
}

/* Adds the parts that were not read to the digests. */
static int count_mapped(struct reader *r, struct err *e)
{
    const struct params_local *l = &r->m->local;
    int rc = 0;
    for (int i = 0; rc >= 0 && r->seen && r->l->rows && i < l->n_parts; i++) {
        const struct param *p = &l->table->p[l->part[i].param];
        r->counts = counts_box(r, p, 0);
        if (!l->part[i].count || r->read[i] || !r->counts)
            continue;
        struct counting x = { r, ckpt_find(r->l->ckpt, ROLE_WEIGHT, p->name), i };
        rc = row_source_walk(r->l->rows, i, count_stretch, &x, e);
        if (rc >= 0 && r->progress)
            atomic_fetch_add(&r->progress->done, l->part[i].count * (int64_t)dtype_size(r->m->dt));
    }
    return rc;
}

/* Is what is mapped checked and digested behind serving? The same on every rank. Small files are not: that
 * takes less than starting to serve. */
#define LATE_BYTES ((int64_t)64 << 20)
static int is_late(const struct reader *r)
{
    int64_t bytes = 0;
    for (int i = 0; i < r->m->table.n; i++) {
        const struct param *p = &r->m->table.p[i];
        const struct box whole = box_whole(p->n_dims, p->shape);
        bytes += box_count(&whole) * (int64_t)dtype_size(r->m->dt);
    }
    return r->l->rows && !r->l->at_once && (bytes > LATE_BYTES || hook_packs_every_ms() != 0);
}

static int read_param(struct reader *r, const struct param *p, const struct box *b, struct ring *ring,
                      void *dst, enum dtype dt, struct err *e)
{
    int i = ckpt_find(r->l->ckpt, ROLE_WEIGHT, p->name);
    const struct ckpt_tensor *t = i < 0 ? NULL : ckpt_tensor(r->l->ckpt, i);
    char how[320];

    if (!t)
        return err_set(e, ERR_FORMAT,
                       "there is no tensor %s, which this config.json needs: is the checkpoint whole",
                       p->name);
    if (!param_shape_fits(p, t->n_dims, t->shape))
        return err_set(e, ERR_FORMAT, "%s %s", p->name, param_shape_differs(p, t->n_dims, t->shape, how));
    if (stored_dtype(t) < 0)
        return err_set(e, ERR_FORMAT, "%s is stored as %s, weights are F32, BF16 or F16: convert it first",
                       p->name, stored_dtype_name(t->dtype));
    int whole = p->expert >= 0 && r->m->local.layout.ep > 1;
    int rows = r->by_columns && !whole && p->n_dims == 2 && p->split != SPLIT_COPY && p->split_dim == 1;
    r->counts = r->seen && counts_box(r, p, rows);
    if (rows) {
        struct rows ctx = { r, i, dt };
        struct column_read c = { .p = p,
                                 .mine = b,
                                 .element = dtype_size(dt),
                                 .read = read_rows,
                                 .ctx = &ctx,
                                 .ring = ring,
                                 .dst = dst };
        return column_reader_read(r->background, r->tp, &c, e);
    }

    return read_here(r, i, b, ring, dst, dt, e);
}

static int read_box(void *ctx, const struct param *p, const struct box *b, struct ring *ring, void *dst,
                    enum dtype dt, struct err *e)
{
    struct reader *r = ctx;
    int rc = r->background->stop
                 ? err_set(e, ERR_STOPPED, "stopped: another rank has failed, or the server ends")
                 : read_param(r, p, b, ring, dst, dt, e);
    if (rc >= 0 && r->progress)
        atomic_fetch_add(&r->progress->done, box_count(b) * (int64_t)dtype_size(dt));
    for (int i = 0; r->read && rc >= 0 && i < r->m->local.n_parts; i++)
        r->read[i] |= &r->m->table.p[r->m->local.part[i].param] == p &&
                      box_equal(&r->m->local.part[i].box, b);
    return rc;
}

/* Adds the values of a matrix that lies as codes to the digest: what the weights are does not depend on how
 * they lie. */
static int count_values(struct reader *r, const struct pack_matrix *w, struct err *e)
{
    const struct param *p = &r->m->table.p[w->param];
    const int i = ckpt_find(r->l->ckpt, ROLE_WEIGHT, p->name);
    const enum dtype stored = (enum dtype)stored_dtype(ckpt_tensor(r->l->ckpt, i));
    const int64_t n = box_count(&w->box);
    int rc = 0;
    r->counts = r->seen && counts_box(r, p, 0);
    for (int64_t lo = 0; lo < n && rc >= 0 && r->counts; lo += CHUNK_ELEMENTS) {
        const struct piece x = { i, &w->box, lo, n - lo < CHUNK_ELEMENTS ? n : lo + CHUNK_ELEMENTS };
        rc = read_piece(r, &x, stored, r->raw, stored, e);
    }
    if (r->progress)
        atomic_fetch_add(&r->progress->done, n * (int64_t)dtype_size(r->m->dt));
    return rc;
}

static int point_codes(void *ctx, int unit, int pack, struct panels *p, struct err *e)
{
    struct reader *r = ctx;
    struct pack_info info;
    int rc = r->l->codes ? codes_weights_pack(r->l->codes, r->m, unit, pack, p, e) : 0;
    if (rc <= 0)
        return rc;
    model_pack_info(r->m, unit, pack, &info);
    for (int i = 0; i < info.n && rc >= 0; i++)
        rc = count_values(r, &info.matrix[i], e);
    return rc < 0 ? rc : 1;
}

static int panels_pack(void *ctx, int unit, int pack, struct panels *p, struct err *e)
{
    struct reader *r = ctx;
    return mapped_weights_pack(r->l->mapped, unit, pack, p, e);
}

static int panels_part(void *ctx, int part, const void **at, struct err *e)
{
    struct reader *r = ctx;
    return mapped_weights_part(r->l->mapped, part, at, e);
}

/* The files store the digest of every weight. */
static int digests_are_stored(const struct ckpt *c)
{
    int known = 1;
    for (int i = 0; i < ckpt_n_tensors(c); i++)
        known &= ckpt_tensor(c, i)->has_digest || ckpt_tensor(c, i)->role != ROLE_WEIGHT;
    return known;
}

/* Allocates the digests of what will be read, where the files do not store them, or are not believed. */
static int open_digests(struct reader *r, struct err *e)
{
    int n = ckpt_n_tensors(r->l->ckpt), needed = !digests_are_stored(r->l->ckpt) || r->l->counts_all;
    r->seen = needed ? calloc((size_t)n, sizeof *r->seen) : NULL;
    return !needed || r->seen ? 0 : err_set(e, ERR_MEMORY, "no memory for the digests of %d tensors", n);
}

/* Was tensor i read as its file says it is? What is mapped in the serve format has checksums of its own. */
static int check_seen(const struct model_info *l, int i, struct err *e)
{
    const struct ckpt_tensor *t = ckpt_tensor(l->ckpt, i);
    char want[33], got[33];
    if (!l->seen || !t->has_digest || l->mapped)
        return 0;
    ckpt_digest_hex(t->digest, want);
    ckpt_digest_hex(l->seen[i], got);
    return strcmp(want, got)
               ? err_set(e, ERR_INTEGRITY,
                         "%s: %s has digest %s, the manifest says %s: the version has changed, or "
                         "the file is damaged",
                         ckpt_path(l->ckpt), t->name, got, want)
               : 0;
}

/* The weights_digest: from the files where they store it, else of what all ranks have read. In that case
 * tensors that the model does not use stay out. */
int weights_identify(struct model_info *l, const struct model *m, struct comm *all, struct err *e)
{
    struct ckpt *c = l->ckpt;
    int n = 0, rc = 0;
    if (l->late.digest)
        return 0;
    const int stored = digests_are_stored(c);
    struct ckpt_tensor *t = calloc((size_t)ckpt_n_tensors(c) + 1, sizeof *t);

    if (!t)
        rc = err_set(e, ERR_MEMORY, "no memory for the digests of %d tensors", ckpt_n_tensors(c));
    TRY(comm_agree(all, rc, e));
    rc = comm_agree_alike(all, &(uint64_t){ ckpt_list_hash(c) }, 1, CKPT_DIFFERS, e);
    TRY(rc < 0 ? err_add(e, "%s", ckpt_path(c)) : 0);
    if (l->seen)
        TRY(comm_all_reduce_i64(all, (int64_t *)l->seen, 2 * ckpt_n_tensors(c), e));
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const int used = ckpt_tensor(c, i)->role == ROLE_WEIGHT &&
                         param_find(&m->table, ckpt_tensor(c, i)->name) >= 0;
        if (!used && (!stored || l->of_model_only))
            continue;
        TRY(used ? check_seen(l, i, e) : 0);
        t[n] = *ckpt_tensor(c, i);
        if (!t[n].has_digest)
            t[n].digest = l->seen[i];
        n++;
    }

    l->identity = ckpt_digest_all(n, t, NULL).weights;
    rc = comm_agree_alike(all, (uint64_t[]){ l->identity.lo, l->identity.hi }, 2, CKPT_DIFFERS, e);
    TRY(rc < 0 ? err_add(e, "%s", ckpt_path(c)) : 0);
out:
    free(l->seen);
    l->seen = NULL;
    free(t);
    return rc;
}

int weights_digest(const struct model_info *l, const volatile sig_atomic_t *stop, struct ckpt_digest *out,
                   struct err *e)
{
    struct ckpt *c = l->ckpt;
    int n = 0, rc = 0;
    struct ckpt_tensor *t = calloc((size_t)ckpt_n_tensors(c) + 1, sizeof *t);
    if (!t)
        return err_set(e, ERR_MEMORY, "no memory for the digests of %d tensors", ckpt_n_tensors(c));
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct ckpt_tensor *x = ckpt_tensor(c, i);
        if (x->role != ROLE_WEIGHT || param_find(&l->m.table, x->name) < 0)
            continue;
        TRY(*stop ? err_set(e, ERR_STOPPED, "stopped: the server ends") : 0);
        t[n] = *x;
        t[n].digest = (struct ckpt_digest){ 0 };
        TRY(ckpt_digest_read(c, i, &t[n].digest, e));
        n++;
    }
    *out = ckpt_digest_all(n, t, NULL).weights;
    rc = 0;
out:
    free(t);
    return rc;
}

/* Host memory may be written by any thread; device memory only by the main thread. */
static int by_device(void *ctx, int (*fn)(void *arg, struct err *e), void *arg, struct err *e)
{
    struct reader *r = ctx;
    return r->m->dev->memory ? background_on_device(r->background, fn, arg, e) : fn(arg, e);
}

int weights_read(struct background *a, struct model_info *l, struct model *m, struct dev *host,
                 struct load_progress *progress, struct err *e)
{
    struct comm *tp = m->tp;
    struct reader r = { .background = a, .l = l, .m = m, .host = host, .tp = tp, .progress = progress };
    struct resident_source from = {
        .read = read_box, .ctx = &r, .executor = { by_device, &r }, .reuse = l->reuse
    };
    int rc;

    r.raw = mem_alloc(host->mem, MEM_WORK, sizeof(float) * CHUNK_ELEMENTS);
    r.wide = mem_alloc(host->mem, MEM_WORK, sizeof(float) * CHUNK_ELEMENTS);
    TRY(r.raw && r.wide ? 0 : err_set(e, ERR_MEMORY, "no memory to read weights"));
    TRY(open_digests(&r, e));
    if (l->is_quantised && l->wish != CODES_WISH_VALUES)
        TRY(codes_weights_open(&l->codes, l->ckpt, m->dev->mem, l->wish, e));
    TRY(r.by_columns = column_reader_needed(a, tp, ckpt_cache(l->ckpt), e));
    if (l->codes)
        from.pack = point_codes;
    if (!l->codes)
        TRY(mapped_weights_open(&l->mapped, l->ckpt, m, e));
    if (l->mapped) {
        from.pack = panels_pack;
        from.part = panels_part;
    } else if (!l->copied && !l->codes) {
        TRY(row_source_open(&l->rows, l->ckpt, m, e));
    }
    if (l->rows) {
        from.pack = point_pack;
        from.part = point_part;
        r.read = calloc((size_t)m->local.n_parts + 1, 1);
        TRY(r.read ? 0 : err_set(e, ERR_MEMORY, "no memory to map weights"));
    }
    TRY(resident_fill(&l->weights, m, &from, e));
    l->has_weights = 1;
    l->late.digest = r.seen && is_late(&r);
    TRY(l->late.digest ? 0 : count_mapped(&r, e));

    /* damage in a part that no rank needs is reported too */
    const struct layout *lay = &m->local.layout;
    l->late.check = is_late(&r);
    l->late.check_part = m->local.at.pp * lay->tp + m->local.at.tp;
    l->late.check_parts = lay->tp * lay->pp;
    if (!l->late.check && !(l->mapped && l->checks_behind))
        TRY(ckpt_check_rest(l->ckpt, l->late.check_part, l->late.check_parts, e));
    if (!l->late.digest) {
        l->seen = r.seen;
        r.seen = NULL;
    }
    rc = 0;
out:
    free(r.read);
    free(r.seen);
    mem_free(host->mem, r.raw);
    mem_free(host->mem, r.wide);
    return rc < 0 ? err_add(e, "loading %s", ckpt_path(l->ckpt)) : 0;
}

int64_t weights_bytes(const struct model *m)
{
    int64_t n = 0;
    for (int i = 0; i < m->local.n_parts; i++)
        n += m->local.part[i].count;
    return n * (int64_t)dtype_size(m->dt);
}
