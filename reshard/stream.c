/* stream.c - every tensor read once, in order, in chunks of bounded size: converted, digested, and handed to the ranks that own a part.
 *
 *   source boxes --ckpt_read_range--> chunk of whole rows --cast--> chunk --runs of each owner's box--> its shard
 * A chunk ascends through the whole tensor, so it ascends through every box of it too: each piece is written front to back. What was
 * written is read back from its file while it is still in a cache: checksums and digest of the target are those of what its files hold, and
 * that digest must be the source's. A native source claims its digests: then this proves what was read too, and blocks need no second sum. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include "base/pool.h"
#include "base/trace.h"
#include "format/hf_write.h"
#include "reshard/cast.h"
#include "reshard/reshard.h"

#define CHUNK ((int64_t)1 << 20)        /* bytes of a buffer, three a thread: written and read back before they leave the caches */

struct output {
    struct ckpt_shard **shard;          /* native: one a rank that has pieces */
    void **table;
    size_t *table_bytes;
    struct ckpt_tensor *list;           /* Hugging Face: the tensors, for the writer */
    struct hf_write *hf;
};
struct stream {
    const struct plan *p;
    struct buffers *room;               /* one a thread */
    struct output out;
    struct ckpt_digest *digest;
    struct log *log;
    pthread_mutex_t lock;
    int64_t bytes_done;
    struct err err;                     /* the first one; code 0: none */
};
struct buffers { char *in, *cast, *part; };

/* ---- outputs ---- */

static int open_shard(const struct plan *p, struct output *o, const char *tmp, int rank, struct err *e)
{
    struct ckpt_piece *list = calloc((size_t)p->rank_pieces[rank] + 1, sizeof *list);
    if (!list)
        return err_set(e, ERR_MEMORY, "no room for %d pieces", p->rank_pieces[rank]);
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->target[i].n_pieces; k++) {
            const struct target_piece *q = &p->target[i].piece[k];
            if (q->rank == rank)
                list[q->index] = (struct ckpt_piece){ p->target[i].t, q->box, q->lo, q->hi };
        }
    int rc = ckpt_shard_open(&o->shard[rank], tmp, rank, p->rank_pieces[rank], list, e);
    free(list);
    if (rc >= 0)
        ckpt_shard_defer(o->shard[rank]);
    if (rc >= 0 && p->req->zstd_level)
        ckpt_shard_compress(o->shard[rank], p->req->zstd_level);
    return rc;
}

/* Two files a rank are open at once: a plan of many ranks needs more than a shell's usual limit. */
static void raise_file_limit(int n_ranks)
{
    struct rlimit r;
    rlim_t want = (rlim_t)n_ranks * 2 + 256;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < want) {
        r.rlim_cur = want < r.rlim_max ? want : r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

static int open_output(const struct plan *p, struct output *o, const char *tmp, struct err *e)
{
    int rc = 0;
    if (p->req->format == TARGET_HF) {
        o->list = calloc((size_t)p->n + 1, sizeof *o->list);
        if (!o->list)
            return err_set(e, ERR_MEMORY, "no room for %d tensors", p->n);
        for (int i = 0; i < p->n; i++)
            o->list[i] = p->target[i].t;
        return hf_write_open(&o->hf, tmp, p->n, o->list, p->req->shard_bytes, e);
    }
    o->shard = calloc((size_t)p->n_ranks, sizeof *o->shard);
    o->table = calloc((size_t)p->n_ranks, sizeof *o->table);
    o->table_bytes = calloc((size_t)p->n_ranks, sizeof *o->table_bytes);
    if (!o->shard || !o->table || !o->table_bytes)
        return err_set(e, ERR_MEMORY, "no room for %d ranks", p->n_ranks);
    raise_file_limit(p->n_ranks);
    for (int r = 0; r < p->n_ranks && rc >= 0; r++)
        rc = open_shard(p, o, tmp, r, e);
    return rc < 0 ? rc : 0;
}

static void free_output(const struct plan *p, struct output *o)
{
    for (int r = 0; o->shard && r < p->n_ranks; r++)
        ckpt_shard_abort(o->shard[r]);
    for (int r = 0; o->table && r < p->n_ranks; r++)
        free(o->table[r]);
    hf_write_abort(o->hf);
    free(o->shard);
    free(o->table);
    free(o->table_bytes);
    free(o->list);
}

/* ---- one chunk of one tensor ---- */

static int put(struct stream *s, int target, const struct target_piece *q, const void *data, int64_t n, struct err *e)
{
    struct ckpt_digest so_far;
    if (s->out.hf)
        return hf_write_put(s->out.hf, target, data, n, e);
    int rc = ckpt_shard_put(s->out.shard[q->rank], q->index, data, n, e);
    return rc < 0 ? rc : ckpt_shard_check(s->out.shard[q->rank], q->index, &so_far, e);
}

/* Cuts run r to what lies in [q->lo, q->hi) of the piece's box. */
static int clip(const struct target_piece *q, struct box_run *r)
{
    int64_t skip = r->part_off < q->lo ? q->lo - r->part_off : 0, end = r->part_off + r->count;
    if (end > q->hi)
        end = q->hi;
    r->part_off += skip;
    r->of_off += skip;
    r->count = end - r->part_off;
    return r->count > 0;
}

/* Gives piece q what the chunk [lo, hi) of the whole tensor has of it. */
static int scatter(struct stream *s, int target, const struct target_piece *q, const char *data, int64_t lo, int64_t hi, char *part, struct err *e)
{
    const struct ckpt_tensor *t = &s->p->target[target].t;
    size_t size = ckpt_dtype_size(t->dtype);
    struct box whole = box_whole(t->n_dims, t->shape);
    struct box_walk w = { 0 };
    struct box_run r, first = { 0, 0, 0 };
    int64_t n = 0;
    int n_runs = 0;
    while (box_next_run(&whole, lo, hi, &q->box, &w, &r)) {
        if (r.part_off >= q->hi || r.part_off + (hi - lo) <= q->lo)
            break;                      /* this chunk is behind the slice, or before it altogether */
        if (!clip(q, &r))
            continue;
        if (n_runs++ == 0) {
            first = r;
        } else {
            if (n_runs == 2)
                memcpy(part, data + size * (size_t)(first.of_off - lo), size * (size_t)first.count);
            memcpy(part + size * (size_t)n, data + size * (size_t)(r.of_off - lo), size * (size_t)r.count);
        }
        n += r.count;
    }
    if (n_runs == 0)
        return 0;
    return put(s, target, q, n_runs == 1 ? data + size * (size_t)(first.of_off - lo) : part, n, e);
}

static int same(struct ckpt_digest a, struct ckpt_digest b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

static int check_source_digest(const struct plan *p, const struct ckpt_tensor *t, struct ckpt_digest d, struct err *e)
{
    char have[33], want[33];
    if (!t->has_digest || same(d, t->digest))
        return 0;
    ckpt_digest_hex(d, have);
    ckpt_digest_hex(t->digest, want);
    return err_set(e, ERR_INTEGRITY, "%s: %s%s has digest %s, its manifest says %s: restore it from a good copy", ckpt_path(p->src),
                   ckpt_role_prefix[t->role], t->name, have, want);
}

/* The target's digest is not the source's: who is wrong? */
static int blame(const struct stream *s, const struct target *t, const struct buffers *b, struct err *e)
{
    const struct ckpt_tensor *from = ckpt_tensor(s->p->src, t->src);
    struct box whole = box_whole(from->n_dims, from->shape);
    int64_t step = CHUNK / (int64_t)ckpt_dtype_size(from->dtype), n = box_count(&whole);
    struct ckpt_digest d = { 0, 0 };
    int rc = 0;
    for (int64_t lo = 0; lo < n; lo += step) {
        int64_t hi = lo + step < n ? lo + step : n;
        TRY(ckpt_read_range(s->p->src, t->src, &whole, lo, hi, b->in, e));
        ckpt_digest_add(&d, from->dtype, from->n_dims, from->shape, &whole, lo, hi, b->in);
    }
    TRY(check_source_digest(s->p, from, d, e));
    rc = err_set(e, ERR_INTEGRITY, "%s%s was read with one digest and written with another: nothing was published, check memory and disk",
                 ckpt_role_prefix[t->t.role], t->t.name);
out:
    return rc;
}

/* What was read back of a tensor must have the digest `want`, that of the source. */
static int check_written(struct stream *s, int target, struct ckpt_digest want, const struct buffers *b, struct err *e)
{
    const struct target *t = &s->p->target[target];
    struct ckpt_digest sum = { 0, 0 }, d;
    for (int k = 0; k < t->n_pieces; k++) {
        int rc = ckpt_shard_check(s->out.shard[t->piece[k].rank], t->piece[k].index, &d, e);
        if (rc < 0)
            return rc;
        sum.lo += d.lo;
        sum.hi += d.hi;
    }
    return same(sum, want) ? 0 : blame(s, t, b, e);
}

static void add_done(struct stream *s, int64_t bytes)
{
    char done[32], all[32];
    pthread_mutex_lock(&s->lock);
    s->bytes_done += bytes;
    log_bytes(done, (double)s->bytes_done);
    log_bytes(all, (double)s->p->bytes_out);
    if (s->log)
        log_progress(s->log, 0, "written %s of %s", done, all);
    pthread_mutex_unlock(&s->lock);
}

/* Where the source claims a digest and nothing is converted, that claim is compared with what was written, and the stream needs none of
 * its own: each byte is digested once. */
static int stream_tensor(struct stream *s, int target, const struct buffers *b, struct err *e)
{
    const struct target *t = &s->p->target[target];
    const struct ckpt_tensor *from = ckpt_tensor(s->p->src, t->src);
    size_t in_size = ckpt_dtype_size(from->dtype), out_size = ckpt_dtype_size(t->t.dtype);
    int64_t step = CHUNK / (int64_t)(in_size > out_size ? in_size : out_size);
    struct box whole = box_whole(from->n_dims, from->shape);
    struct ckpt_digest seen = { 0, 0 };
    int cast = from->dtype != t->t.dtype, claimed = from->has_digest && !cast && s->out.shard, rc = 0;
    for (int64_t lo = 0, n = box_count(&whole); lo < n; lo += step) {
        int64_t hi = lo + step < n ? lo + step : n;
        if (s->p->req->stop && *s->p->req->stop)
            return err_set(e, ERR_STOPPED, "stopped by a signal: nothing was written");
        TRY((claimed ? ckpt_read_unproven : ckpt_read_range)(s->p->src, t->src, &whole, lo, hi, b->in, e));
        if (!claimed)
            ckpt_digest_add(&seen, from->dtype, from->n_dims, from->shape, &whole, lo, hi, b->in);
        if (cast) {
            cast_run(from->dtype, t->t.dtype, b->in, b->cast, hi - lo);
            ckpt_digest_add(&s->digest[target], t->t.dtype, t->t.n_dims, t->t.shape, &whole, lo, hi, b->cast);
        }
        for (int k = 0; k < t->n_pieces; k++)
            TRY(scatter(s, target, &t->piece[k], cast ? b->cast : b->in, lo, hi, b->part, e));
        add_done(s, (hi - lo) * (int64_t)out_size);
    }
    if (!claimed)
        TRY(check_source_digest(s->p, from, seen, e));
    if (!cast)
        s->digest[target] = claimed ? from->digest : seen;
    if (s->out.shard)
        TRY(check_written(s, target, s->digest[target], b, e));
out:
    return rc < 0 ? rc : 0;
}

static void stream_task(void *arg, int64_t target, int thread)
{
    struct stream *s = arg;
    struct err e = { 0 };
    pthread_mutex_lock(&s->lock);
    int failed = s->err.code;
    pthread_mutex_unlock(&s->lock);
    if (failed)
        return;
    int64_t began = trace_now(s->p->req->trace);
    int rc = stream_tensor(s, (int)target, &s->room[thread], &e);
    trace_span_of(s->p->req->trace, thread, TRACE_PHASE, s->p->target[target].t.name, began);
    pthread_mutex_lock(&s->lock);
    if (rc < 0 && !s->err.code)
        s->err = e;
    pthread_mutex_unlock(&s->lock);
}

/* ---- the small files, and the end ---- */

struct extras { int n; const char **name; const void **data; size_t *bytes; };

static int add_extra(struct extras *x, const char *name, void *data, size_t bytes, struct err *e)
{
    if (!data)
        return err_set(e, ERR_MEMORY, "no room for %s", name);
    x->name[x->n] = name;
    x->data[x->n] = data;
    x->bytes[x->n++] = bytes;
    return 0;
}

static int add_text(struct extras *x, const char *name, char *text, struct err *e)
{
    for (int i = 0; i < x->n; i++)
        if (!strcmp(x->name[i], name)) {
            free(text);
            return 0;           /* SRC has its own */
        }
    return add_extra(x, name, text, text ? strlen(text) : 0, e);
}

static int has_tokenizer(const struct extras *x)
{
    for (int i = 0; i < x->n; i++)
        if (!strcmp(x->name[i], "tokenizer.json") || !strcmp(x->name[i], "tokenizer.model"))
            return 1;
    return 0;
}

static int collect_extras(const struct plan *p, struct extras *x, struct err *e)
{
    int n = ckpt_n_extra(p->src), rc = 0;
    size_t room = (size_t)n + 4;
    x->name = calloc(room, sizeof *x->name);
    x->data = calloc(room, sizeof *x->data);
    x->bytes = calloc(room, sizeof *x->bytes);
    if (!x->name || !x->data || !x->bytes)
        return err_set(e, ERR_MEMORY, "no room for %d small files", n);
    for (int i = 0; i < n; i++) {
        void *data = NULL;
        size_t bytes = 0;
        TRY(ckpt_extra_read(p->src, i, &data, &bytes, e));
        TRY(add_extra(x, ckpt_extra_name(p->src, i), data, bytes, e));
    }
    if (p->req->format == TARGET_HF && p->has_model && p->cfg.vocab == 256 && !has_tokenizer(x)) {
        TRY(add_text(x, "tokenizer.json", byte_tokenizer_json(), e));
        TRY(add_text(x, "tokenizer_config.json", byte_tokenizer_config_json(p->cfg.max_pos), e));
        TRY(add_text(x, "generation_config.json", byte_generation_config_json(&p->cfg), e));
    }
out:
    return rc < 0 ? rc : 0;
}

/* Closing is where the disk is waited for, and where files are compressed: by all threads. */
static void close_task(void *arg, int64_t rank, int thread)
{
    struct stream *s = arg;
    struct output *o = &s->out;
    struct ckpt_shard *shard = o->shard[rank];
    struct err e = { 0 };
    (void)thread;
    o->shard[rank] = NULL;
    int rc = ckpt_shard_close(shard, &o->table[rank], &o->table_bytes[rank], &e);
    pthread_mutex_lock(&s->lock);
    if (rc < 0 && !s->err.code)
        s->err = e;
    pthread_mutex_unlock(&s->lock);
}

static int close_output(const struct plan *p, struct output *o, const char *tmp, struct err *e)
{
    const struct layout *l = &p->req->layout;
    struct extras x = { 0 };
    struct ckpt_meta meta = { .layout = { l->tp, l->pp, l->cp, l->dp, l->ep, l->zero }, .config_json = p->config };
    int rc = 0;
    if (!p->req->weights_only)
        meta.state = *ckpt_state(p->src);
    meta.state.grain = p->grain;
    TRY(collect_extras(p, &x, e));
    meta.n_extra = x.n;
    meta.extra_name = x.name;
    meta.extra_data = x.data;
    meta.extra_bytes = x.bytes;
    if (o->hf) {
        struct hf_write *w = o->hf;
        o->hf = NULL;
        TRY(hf_write_seal(w, &meta, e));
        goto out;
    }
    TRY(ckpt_seal(tmp, p->n_ranks, o->table, o->table_bytes, &meta, NULL, e));
out:
    for (int i = 0; x.data && i < x.n; i++)
        free((void *)x.data[i]);
    free(x.name);
    free(x.data);
    free(x.bytes);
    return rc < 0 ? rc : 0;
}

static int open_room(struct stream *s, int n_threads, struct err *e)
{
    int ok = (s->room = calloc((size_t)n_threads, sizeof *s->room)) != NULL;
    for (int i = 0; ok && i < n_threads; i++) {
        struct buffers *b = &s->room[i];
        *b = (struct buffers){ malloc((size_t)CHUNK), malloc((size_t)CHUNK), malloc((size_t)CHUNK) };
        ok = b->in && b->cast && b->part;
    }
    return ok ? 0 : err_set(e, ERR_MEMORY, "no room for the buffers of %d threads", n_threads);
}

static void free_room(struct stream *s, int n_threads)
{
    for (int i = 0; s->room && i < n_threads; i++) {
        free(s->room[i].in);
        free(s->room[i].cast);
        free(s->room[i].part);
    }
    free(s->room);
}

int stream_run(const struct plan *p, const char *tmp, struct ckpt_digest *digest, struct log *log, struct err *e)
{
    struct stream s = { .p = p, .digest = digest, .log = log };
    struct pool *pool = NULL;
    int rc = 0;
    pthread_mutex_init(&s.lock, NULL);
    TRY(open_room(&s, p->req->n_threads, e));
    TRY(open_output(p, &s.out, tmp, e));
    TRY(pool_open(&pool, p->req->n_threads, e));
    pool_run(pool, p->n, stream_task, &s);
    if (!s.err.code && s.out.shard)
        pool_run(pool, p->n_ranks, close_task, &s);
    pool_close(pool);
    if (s.err.code) {
        *e = s.err;
        rc = -e->code;
        goto out;
    }
    TRY(close_output(p, &s.out, tmp, e));
    TRY(ckpt_check_rest(p->src, 0, 1, e));
out:
    free_output(p, &s.out);
    free_room(&s, p->req->n_threads);
    pthread_mutex_destroy(&s.lock);
    return rc < 0 ? rc : 0;
}
