/* stream.c - every tensor read once, in order, in chunks of bounded size: converted, digested, and written to
 * the files that own a part.
 *
 *   source boxes -ckpt_read_range-> chunk of whole rows -cast-> chunk -runs of each owner's box-> its file
 *
 * A chunk ascends through the whole tensor, so it ascends through every box of it too: each piece is written
 * front to back. Where other processes write some of a tensor's pieces, this one reads the boxes of its own
 * pieces instead.
 *
 * What was written is read back from its file while it is still in a cache: checksums and digest of the
 * target are those of what its files hold, and that digest must be the source's. A native source claims
 * digests, so the comparison also proves what was read, and its blocks need no second sum. Records with a
 * CRC-32 (zip) that one process reads once are summed while they pass. Digests are sums: those of several
 * processes are added up before they are compared. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/pool.h"
#include "base/trace.h"
#include "reshard/cast.h"
#include "reshard/output.h"

/* Bytes of a buffer; a thread has three. A chunk is written and read back before it leaves the caches. */
#define CHUNK ((int64_t)1 << 20)

struct buffers {
    char *in, *cast, *part;
};
/* Digests of one target as this process (later: all of them) saw it: read from the source, converted, read
 * back from the files. */
struct tally {
    struct ckpt_digest read, cast, written;
};
struct stream {
    const struct plan *p;
    struct buffers *buffers; /* one for each thread */
    struct output out;
    struct tally *tally; /* [plan->n] */
    int *n_uses;         /* how many targets read a tensor of the source */
    struct log *log;
    double start_s;
    pthread_mutex_t lock;
    int64_t bytes_done;
    struct err err; /* the first one; code 0: none */
};

int request_stopped(const struct request *r) { return (r->stop && *r->stop) || procs_stopped(r->procs); }

/* ---- one chunk of one tensor ---- */

/* Cuts run r to [q->lo, q->hi) of the piece's box. 0: nothing remains. */
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

/* Writes the part of piece q that is in the chunk [lo, hi) of the whole tensor. Several runs are joined in
 * `part`; one run is written from the chunk. */
static int scatter(struct stream *s, int target, const struct target_piece *q, const char *data, int64_t lo,
                   int64_t hi, char *part, struct err *e)
{
    const struct ckpt_tensor *t = &s->p->target[target].t;
    enum stored_dtype dt = t->dtype;
    struct box whole = box_whole(t->n_dims, t->shape);
    struct box_walk w = { 0 };
    struct box_run r, first = { 0, 0, 0 };
    int64_t n = 0;
    int n_runs = 0;

    while (box_next_run(&whole, lo, hi, &q->box, &w, &r)) {
        if (r.part_off >= q->hi || r.part_off + (hi - lo) <= q->lo)
            break; /* this chunk is behind the slice, or before it altogether */
        if (!clip(q, &r))
            continue;
        if (n_runs++ == 0) {
            first = r;
        } else {
            if (n_runs == 2)
                memcpy(part, data + stored_bytes(dt, first.of_off - lo),
                       (size_t)stored_bytes(dt, first.count));
            memcpy(part + stored_bytes(dt, n), data + stored_bytes(dt, r.of_off - lo),
                   (size_t)stored_bytes(dt, r.count));
        }
        n += r.count;
    }

    if (n_runs == 0)
        return 0;
    return output_put(&s->out, target, q, n_runs == 1 ? data + stored_bytes(dt, first.of_off - lo) : part, n,
                      e);
}

static void add_done(struct stream *s, int64_t bytes)
{
    pthread_mutex_lock(&s->lock);
    s->bytes_done += bytes;
    if (s->log)
        log_rate(s->log, "written", (double)s->bytes_done, (double)s->p->bytes_here, s->start_s);
    pthread_mutex_unlock(&s->lock);
}

/* ---- one tensor ---- */

static int same(struct ckpt_digest a, struct ckpt_digest b) { return a.lo == b.lo && a.hi == b.hi; }

static void add(struct ckpt_digest *sum, struct ckpt_digest d)
{
    sum->lo += d.lo;
    sum->hi += d.hi;
}

static int is_cast(const struct plan *p, const struct target *t)
{
    return ckpt_tensor(p->src, t->src)->dtype != t->t.dtype;
}

/* Whether the source claims a digest and nothing is converted. That claim is then compared with what was
 * written, and the stream makes no digest of its own, so that each byte is digested once. */
static int is_claimed(const struct plan *p, const struct target *t)
{
    return ckpt_tensor(p->src, t->src)->has_digest && !is_cast(p, t) && p->req->format == TARGET_NATIVE;
}

/* Reads, digests and converts the elements [lo, hi) of box b of a target. Returns them, in a buffer; NULL:
 * *e is set. */
static const char *load(struct stream *s, int target, const struct box *b, int64_t lo, int64_t hi,
                        const struct buffers *buf, struct err *e)
{
    const struct target *t = &s->p->target[target];
    const struct ckpt_tensor *from = ckpt_tensor(s->p->src, t->src);
    int claimed = is_claimed(s->p, t),
        once = claimed || (!from->has_digest && s->n_uses[t->src] == 1 && procs_size(s->p->req->procs) == 1);
    if (request_stopped(s->p->req)) {
        err_set(e, ERR_STOPPED, "stopped by a signal: nothing was written");
        return NULL;
    }
    if ((once ? ckpt_read_unproven : ckpt_read_range)(s->p->src, t->src, b, lo, hi, buf->in, e) < 0)
        return NULL;
    if (!claimed)
        ckpt_digest_add(&s->tally[target].read, from->dtype, from->n_dims, from->shape, b, lo, hi, buf->in);
    if (!is_cast(s->p, t))
        return buf->in;
    cast_run(from->dtype, t->t.dtype, buf->in, buf->cast, hi - lo);
    ckpt_digest_add(&s->tally[target].cast, t->t.dtype, t->t.n_dims, t->t.shape, b, lo, hi, buf->cast);
    return buf->cast;
}

static int64_t chunk_elements(const struct plan *p, const struct target *t)
{
    int64_t in = stored_elements(ckpt_tensor(p->src, t->src)->dtype, CHUNK);
    int64_t out = stored_elements(t->t.dtype, CHUNK);
    return in < out ? in : out;
}

static int stream_whole(struct stream *s, int target, const struct buffers *buf, struct err *e)
{
    const struct target *t = &s->p->target[target];
    struct box whole = box_whole(t->t.n_dims, t->t.shape);
    int64_t step = chunk_elements(s->p, t), n = box_count(&whole);
    for (int64_t lo = 0; lo < n; lo += step) {
        int64_t hi = lo + step < n ? lo + step : n;
        const char *data = load(s, target, &whole, lo, hi, buf, e);
        if (!data)
            return -e->code;
        for (int k = 0; k < t->n_pieces; k++) {
            int rc = scatter(s, target, &t->piece[k], data, lo, hi, buf->part, e);
            if (rc < 0)
                return rc;
        }
        add_done(s, stored_bytes(t->t.dtype, hi - lo));
    }
    return 0;
}

static int stream_piece(struct stream *s, int target, const struct target_piece *q, const struct buffers *buf,
                        struct err *e)
{
    const struct target *t = &s->p->target[target];
    int64_t step = chunk_elements(s->p, t);
    for (int64_t lo = q->lo; lo < q->hi; lo += step) {
        int64_t hi = lo + step < q->hi ? lo + step : q->hi;
        const char *data = load(s, target, &q->box, lo, hi, buf, e);
        int rc = data ? output_put(&s->out, target, q, data, hi - lo, e) : -e->code;
        if (rc < 0)
            return rc;
        add_done(s, stored_bytes(t->t.dtype, hi - lo));
    }
    return 0;
}

static int stream_tensor(struct stream *s, int target, const struct buffers *buf, struct err *e)
{
    const struct target *t = &s->p->target[target];
    struct ckpt_digest d;
    int ours = 0, rc = 0;
    for (int k = 0; k < t->n_pieces; k++)
        ours += output_owns(&s->out, &t->piece[k]);
    if (ours == t->n_pieces)
        TRY(stream_whole(s, target, buf, e));
    for (int k = 0; k < t->n_pieces; k++) {
        if (!output_owns(&s->out, &t->piece[k]))
            continue;
        if (ours < t->n_pieces)
            TRY(stream_piece(s, target, &t->piece[k], buf, e));
        if (!s->out.sink->checks)
            continue;
        TRY(output_digest(&s->out, &t->piece[k], &d, e));
        add(&s->tally[target].written, d);
    }
out:
    return rc < 0 ? rc : 0;
}

/* ---- all of them ---- */

static int has_failed(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    int failed = s->err.code;
    pthread_mutex_unlock(&s->lock);
    return failed;
}

static void keep_error(struct stream *s, int rc, const struct err *e)
{
    pthread_mutex_lock(&s->lock);
    if (rc < 0 && !s->err.code)
        s->err = *e;
    pthread_mutex_unlock(&s->lock);
}

static void stream_task(void *arg, int64_t target, int thread)
{
    struct stream *s = arg;
    struct err e = { 0 };
    if (has_failed(s))
        return;
    int64_t began = trace_now(s->p->req->trace);
    keep_error(s, stream_tensor(s, (int)target, &s->buffers[thread], &e), &e);
    trace_span_of(s->p->req->trace, thread, TRACE_PHASE, s->p->target[target].t.name, began);
}

static void close_task(void *arg, int64_t unit, int thread)
{
    struct stream *s = arg;
    struct err e = { 0 };
    (void)thread;
    if (!has_failed(s))
        keep_error(s, output_close(&s->out, (int)unit, &e), &e);
}

static int open_buffers(struct stream *s, int n_threads, struct err *e)
{
    int ok = (s->buffers = calloc((size_t)n_threads, sizeof *s->buffers)) != NULL;
    for (int i = 0; ok && i < n_threads; i++) {
        struct buffers *b = &s->buffers[i];
        *b = (struct buffers){ malloc((size_t)CHUNK), malloc((size_t)CHUNK), malloc((size_t)CHUNK) };
        ok = b->in && b->cast && b->part;
    }
    s->tally = calloc((size_t)s->p->n + 1, sizeof *s->tally);
    s->n_uses = calloc((size_t)ckpt_n_tensors(s->p->src) + 1, sizeof *s->n_uses);
    for (int i = 0; s->n_uses && i < s->p->n; i++)
        s->n_uses[s->p->target[i].src]++;
    return ok && s->tally && s->n_uses
               ? 0
               : err_set(e, ERR_MEMORY, "no memory for the buffers of %d threads", n_threads);
}

static void free_buffers(struct stream *s, int n_threads)
{
    for (int i = 0; s->buffers && i < n_threads; i++) {
        free(s->buffers[i].in);
        free(s->buffers[i].cast);
        free(s->buffers[i].part);
    }
    free(s->buffers);
    free(s->tally);
    free(s->n_uses);
}

/* Writes this process's part: afterwards all of its files are on the disk. */
static int write_files(struct stream *s, const struct dest *d, struct err *e)
{
    const struct plan *p = s->p;
    struct pool *pool = NULL;
    int rc = 0;
    TRY(open_buffers(s, p->req->n_threads, e));
    TRY(output_open(&s->out, p, d, e));
    TRY(pool_open(&pool, p->req->n_threads, e));
    pool_run(pool, p->n, stream_task, s);
    pool_run(pool, p->n_ranks * UNITS, close_task, s);
    pool_close(pool);
    if (s->err.code) {
        *e = s->err;
        rc = -e->code;
    }
out:
    return rc < 0 ? rc : 0;
}

/* ---- the verdict ---- */

static int check_source_digest(const struct plan *p, const struct ckpt_tensor *t, struct ckpt_digest d,
                               struct err *e)
{
    char have[33], want[33];
    if (!t->has_digest || same(d, t->digest))
        return 0;
    ckpt_digest_hex(d, have);
    ckpt_digest_hex(t->digest, want);
    return err_set(e, ERR_INTEGRITY,
                   "%s: %s%s has digest %s, its manifest says %s: restore it from a good copy",
                   ckpt_path(p->src), ckpt_role_prefix[t->role], t->name, have, want);
}

/* The target's digest is not the source's: reads the source again, to report whether source or target is
 * wrong. */
static int blame(const struct stream *s, const struct target *t, struct err *e)
{
    const struct ckpt_tensor *from = ckpt_tensor(s->p->src, t->src);
    struct box whole = box_whole(from->n_dims, from->shape);
    int64_t step = stored_elements(from->dtype, CHUNK), n = box_count(&whole);
    struct ckpt_digest d = { 0, 0 };
    int rc = 0;
    for (int64_t lo = 0; lo < n; lo += step) {
        int64_t hi = lo + step < n ? lo + step : n;
        TRY(ckpt_read_range(s->p->src, t->src, &whole, lo, hi, s->buffers[0].in, e));
        ckpt_digest_add(&d, from->dtype, from->n_dims, from->shape, &whole, lo, hi, s->buffers[0].in);
    }
    TRY(check_source_digest(s->p, from, d, e));
    rc = err_set(e, ERR_INTEGRITY,
                 "%s%s was read with one digest and written with another: nothing was published, check "
                 "memory and disk",
                 ckpt_role_prefix[t->t.role], t->t.name);
out:
    return rc;
}

/* What was read must have the digest that the source claims, and what was written the digest of what was
 * read. */
static int judge(struct stream *s, struct ckpt_digest *digest, struct err *e)
{
    const struct plan *p = s->p;
    int rc = 0;
    for (int i = 0; i < p->n; i++) {
        const struct target *t = &p->target[i];
        const struct ckpt_tensor *from = ckpt_tensor(p->src, t->src);
        int claimed = is_claimed(p, t);
        if (!claimed)
            TRY(check_source_digest(p, from, s->tally[i].read, e));
        digest[i] = claimed ? from->digest : is_cast(p, t) ? s->tally[i].cast : s->tally[i].read;
        if (s->out.sink->checks && !same(s->tally[i].written, digest[i]))
            TRY(blame(s, t, e));
    }
out:
    return rc < 0 ? rc : 0;
}

/* Adds up over the processes which blocks of the source were proven by digests; the processes then check
 * the rest. */
static int check_rest(const struct plan *p, struct err *e)
{
    const struct procs *procs = p->req->procs;
    int64_t n = ckpt_proven_count(p->src), *v = calloc((size_t)n + 1, sizeof *v);
    int rc = procs_agree(procs,
                         v ? 0 : err_set(e, ERR_MEMORY, "no memory to count %lld blocks", (long long)n), e);
    if (rc < 0)
        goto out;
    ckpt_proven_get(p->src, v);
    TRY(procs_sum(procs, v, n, e));
    ckpt_proven_set(p->src, v);
    TRY(procs_agree(procs, ckpt_check_rest(p->src, procs_rank(procs), procs_size(procs), e), e));
out:
    free(v);
    return rc < 0 ? rc : 0;
}

int stream_run(const struct plan *p, const struct dest *d, struct ckpt_digest *digest, struct log *log,
               struct err *e)
{
    const struct procs *procs = p->req->procs;
    struct stream s = { .p = p, .log = log, .start_s = clock_s() };
    int rc = 0;
    pthread_mutex_init(&s.lock, NULL);
    TRY(procs_agree(procs, write_files(&s, d, e), e));
    TRY(procs_sum(procs, (int64_t *)s.tally, p->n * (int64_t)(sizeof *s.tally / sizeof(int64_t)), e));
    TRY(procs_agree(procs, judge(&s, digest, e), e));
    TRY(output_seal(&s.out, d->tmp, e));
    TRY(check_rest(p, e));
out:
    output_free(&s.out);
    free_buffers(&s, p->req->n_threads);
    pthread_mutex_destroy(&s.lock);
    return rc < 0 ? rc : 0;
}
