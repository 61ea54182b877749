/* offload_walk.c - the walk over the pieces: read from generation A, update, write to generation B. A
 * thread of its own walks; on a device with memory of its own the device's thread does.
 *
 * A vector is OLD, READY (its gradients are final before the update has begun), TAKEN by the walk, or
 * NEW: its weights are there, its pieces written or on their way. When the update has begun and all
 * vectors are NEW, generation B becomes A and all are OLD again. */
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "train/offload/offload_priv.h"

static struct offload *offload_of(struct state_store *s) { return (struct offload *)(void *)s; }

/* ---- which piece is next ---- */
/* The vector to walk next, or -1. Under the lock. */
static int next_vector(const struct offload *o)
{
    if (o->cancel || o->rc < 0)
        return -1;
    for (int i = 0; i < o->of.n_vectors; i++) {
        int v = o->of.order[i];
        if (o->state[v] == VECTOR_READY || (o->begun && o->state[v] == VECTOR_OLD))
            return v;
    }
    return -1;
}

/* What the walk is at: pieces [piece, end) of the vector it took last. */
struct walk {
    int piece, end;
    int n_reading;
    int oldest; /* slot that was given a piece longest ago */
};

/* Takes the next piece; -1: there is none. */
static int take_piece(struct offload *o, struct walk *w)
{
    while (w->piece == w->end) {
        pthread_mutex_lock(&o->lock);
        int v = next_vector(o);
        if (v >= 0)
            o->state[v] = VECTOR_TAKEN;
        if (v >= 0 && o->of.first[v] == o->of.end[v])
            o->state[v] = VECTOR_NEW;
        pthread_mutex_unlock(&o->lock);
        if (v < 0)
            return -1;
        w->piece = o->of.first[v];
        w->end = o->of.end[v];
    }
    return w->piece++;
}

/* ---- one piece ---- */
float *walk_grads(const struct offload *o, const struct walk_slot *s)
{
    return (float *)(void *)(s->buf + state_section_bytes(o->of.most, sizeof(float)) * KIND_STATES);
}

char *walk_weights(const struct offload *o, const struct walk_slot *s)
{
    return (char *)walk_grads(o, s) +
           (o->store.has_grads ? state_section_bytes(o->of.most, sizeof(float)) : 0);
}

/* What the store's user sees of a slot. */
static struct state_piece piece_of(const struct offload *o, const struct walk_slot *s)
{
    const struct piece *x = &o->of.piece[s->piece];
    struct state_piece p = { .v = x->vector, .at = x->at, .n = x->n };
    for (int k = 0; k < KIND_STATES; k++)
        p.state[ZERO_MASTER + k] = (float *)(void *)(s->buf + x->section * (size_t)k);
    p.grads = o->store.has_grads ? walk_grads(o, s) : NULL;
    p.weights = o->store.has_weights ? walk_weights(o, s) : NULL;
    return p;
}

static void start_read(struct offload *o, struct walk_slot *s, int piece)
{
    struct state_files *f = &o->files;
    size_t section = o->of.piece[piece].section;
    struct state_place p = state_place_of(f, KIND_MASTER, f->now, piece);
    s->piece = piece;
    s->doing = SLOT_READING;
    s->n_read = 0;
    while (s->n_read < KIND_STATES && p.sum[s->n_read])
        s->n_read++;
    s->job[0] = state_place_job(&p, s->n_read, s->buf, 0);
    aio_start(o->aio, &s->job[0]);
    memset(s->buf + section * (size_t)s->n_read, 0, section * (size_t)(KIND_STATES - s->n_read));

    if (o->store.has_grads) {
        p = state_place_of(f, KIND_GRADS, 0, piece);
        s->job[1] = state_place_job(&p, 1, walk_grads(o, s), 0);
        aio_start(o->aio, &s->job[1]);
    }
    if (o->store.has_weights) /* what lies between parts */
        memset(walk_weights(o, s), 0, o->of.piece[piece].weights);
}

/* Waits for a piece, and compares its checksums. */
static int end_read(struct offload *o, struct walk_slot *s, struct err *e)
{
    struct state_files *f = &o->files;
    size_t section = o->of.piece[s->piece].section;
    int rc = 0, rest = 0;
    struct err other;
    s->doing = SLOT_FREE;
    rc = aio_wait(o->aio, &s->job[0], e);
    if (o->store.has_grads)
        rest = aio_wait(o->aio, &s->job[1], rc < 0 ? &other : e);
    TRY(rc < 0 ? rc : rest);
    for (int k = 0; k < s->n_read; k++) {
        struct state_place p = state_place_of(f, (enum kind)k, f->now, s->piece);
        TRY(state_place_check(f, &p, s->buf + section * (size_t)k, e));
    }
    if (o->store.has_grads) {
        struct state_place p = state_place_of(f, KIND_GRADS, 0, s->piece);
        TRY(state_place_check(f, &p, walk_grads(o, s), e));
    }
out:
    return rc;
}

static void start_write(struct offload *o, struct walk_slot *s)
{
    struct state_files *f = &o->files;
    size_t section = o->of.piece[s->piece].section;
    for (int k = 0; k < KIND_STATES; k++) {
        struct state_place p = state_place_of(f, (enum kind)k, !f->now, s->piece);
        state_place_sum(&p, s->buf + section * (size_t)k);
    }
    struct state_place p = state_place_of(f, KIND_MASTER, !f->now, s->piece);
    s->job[0] = state_place_job(&p, KIND_STATES, s->buf, 1);
    aio_start(o->aio, &s->job[0]);
    if (o->store.has_weights) {
        p = state_place_of(f, KIND_WEIGHTS, 0, s->piece);
        state_place_sum(&p, walk_weights(o, s));
        s->job[2] = state_place_job(&p, 1, walk_weights(o, s), 1);
        aio_start(o->aio, &s->job[2]);
    }
    s->doing = SLOT_WRITING;
}

/* Waits for the piece, updates it, starts to write it. */
static int update_piece(struct offload *o, struct walk_slot *s, struct err *e)
{
    struct state_piece p = piece_of(o, s);
    int rc;
    TRY(end_read(o, s, e));
    TRY(o->store.update.run(o->store.update.ctx, &p, e));
    start_write(o, s);
out:
    return rc;
}

/* Waits for what a slot is doing. */
static int empty_slot(struct offload *o, struct walk_slot *s, struct err *e)
{
    struct err other;
    int rc = 0;
    if (s->doing == SLOT_READING)
        return end_read(o, s, e);
    if (s->doing == SLOT_FREE)
        return 0;
    s->doing = SLOT_FREE;
    rc = aio_wait(o->aio, &s->job[0], e);
    if (o->store.has_weights) {
        int weights = aio_wait(o->aio, &s->job[2], rc < 0 ? &other : e);
        rc = rc < 0 ? rc : weights;
    }
    return rc;
}

/* The weights of a vector are needed from the disk: waits for all that is being written. */
static int end_writes(struct offload *o, struct err *e)
{
    int rc = 0;
    for (int i = 0; rc >= 0 && o->store.has_weights && i < WALK_BUFFERS; i++)
        if (o->slot[i].doing == SLOT_WRITING)
            rc = empty_slot(o, &o->slot[i], e);
    return rc;
}

/* Gives pieces to the slots that follow, as long as none of them is being read. */
static int fill_slots(struct offload *o, struct walk *w, struct err *e)
{
    while (w->n_reading < WALK_BUFFERS - 1) {
        struct walk_slot *s = &o->slot[(w->oldest + w->n_reading) % WALK_BUFFERS];
        int piece = take_piece(o, w), rc;
        if (piece < 0)
            return 0;
        if ((rc = empty_slot(o, s, e)) < 0)
            return rc;
        start_read(o, s, piece);
        w->n_reading++;
    }
    return 0;
}

static void set_state(struct offload *o, int v, enum vector_state state)
{
    pthread_mutex_lock(&o->lock);
    o->state[v] = state;
    pthread_cond_broadcast(&o->done);
    pthread_mutex_unlock(&o->lock);
}

/* Walks until no vector may be updated, and waits for all that it wrote. */
static int walk(struct offload *o, struct err *e)
{
    struct walk w = { 0 };
    struct err other;
    int rc = 0;
    for (;;) {
        TRY(fill_slots(o, &w, e));
        if (!w.n_reading)
            break;
        struct walk_slot *s = &o->slot[w.oldest];
        int piece = s->piece, v = o->of.piece[piece].vector;
        w.oldest = (w.oldest + 1) % WALK_BUFFERS;
        w.n_reading--;
        TRY(update_piece(o, s, e));
        if (piece + 1 < o->of.end[v])
            continue;
        TRY(end_writes(o, e));
        set_state(o, v, VECTOR_NEW);
    }
out:
    for (int i = 0; i < WALK_BUFFERS; i++) {
        int end = empty_slot(o, &o->slot[i], rc < 0 ? &other : e);
        rc = rc < 0 ? rc : end;
    }
    return rc < 0 ? err_add(e, "offloaded state") : 0;
}

/* ---- the end of an update ---- */
/* Makes B the state, where all of it is there. Under the lock. */
static void end_update(struct offload *o)
{
    struct aio_count now = aio_count(o->aio);
    for (int v = 0; v < o->of.n_vectors; v++)
        if (o->state[v] != VECTOR_NEW)
            return;
    if (!o->begun)
        return;
    o->files.now = !o->files.now;
    o->begun = 0;
    memset(o->state, 0, sizeof *o->state * (size_t)o->of.n_vectors);
    o->count.updates++;
    o->count.read_bytes = now.read_bytes - o->before.read_bytes;
    o->count.written_bytes = now.written_bytes - o->before.written_bytes;
    o->count.disk_s += now.busy_s - o->before.busy_s;
    o->before = now;
}

static void *run_thread(void *arg)
{
    struct offload *o = arg;
    pool_unpin_self(o->m->dev->pool); /* not on the CPU that computes */
    pthread_mutex_lock(&o->lock);
    for (;;) {
        while (!o->stop && next_vector(o) < 0)
            pthread_cond_wait(&o->to_do, &o->lock);
        if (o->stop)
            break;
        o->busy = 1;
        pthread_mutex_unlock(&o->lock);
        int rc = walk(o, &o->err);
        pthread_mutex_lock(&o->lock);
        o->busy = 0;
        o->rc = rc;
        if (rc >= 0)
            end_update(o);
        pthread_cond_broadcast(&o->done);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

/* ---- what training calls ---- */
static int error_of(const struct offload *o, struct err *e)
{
    if (o->rc < 0)
        *e = o->err;
    return o->rc;
}

/* Waits until the thread has nothing under way: the last update is complete. With the lock. */
static int wait_idle(struct offload *o, struct err *e)
{
    double began = clock_s();
    while ((o->busy || o->begun) && o->rc >= 0)
        pthread_cond_wait(&o->done, &o->lock);
    while (o->busy)
        pthread_cond_wait(&o->done, &o->lock);
    o->count.waited_s += clock_s() - began;
    return error_of(o, e);
}

static int be_idle(struct offload *o, struct err *e)
{
    pthread_mutex_lock(&o->lock);
    int rc = wait_idle(o, e);
    pthread_mutex_unlock(&o->lock);
    return rc;
}

static float *memory_of(const struct state_store *s, int v, enum zero_state k)
{
    (void)s;
    (void)v;
    (void)k;
    return NULL;
}

static enum kind kind_of(enum zero_state k)
{
    return k == ZERO_WEIGHT ? KIND_WEIGHTS : (enum kind)(k - ZERO_MASTER);
}

static int read_state(struct state_store *s, int v, enum zero_state k, int64_t at, int64_t n, void *out,
                      struct err *e)
{
    struct offload *o = offload_of(s);
    int rc = be_idle(o, e);
    return rc < 0 ? rc : sections_move(o, v, kind_of(k), at, n, out, NULL, e);
}

static int write_state(struct state_store *s, int v, enum zero_state k, int64_t at, int64_t n, const void *in,
                       struct err *e)
{
    struct offload *o = offload_of(s);
    int rc = be_idle(o, e);
    return rc < 0 ? rc : sections_move(o, v, kind_of(k), at, n, NULL, in, e);
}

/* Before the first vector of an update: the one before is complete, the buffers are the walk's. */
static int begin_walk(struct offload *o, struct err *e)
{
    int rc = wait_idle(o, e);
    if (rc < 0)
        return rc;
    if ((rc = sections_flush(o, e)) < 0) {
        o->rc = rc;
        o->err = *e;
    }
    o->before = aio_count(o->aio);
    return rc;
}

static int is_ahead(const struct offload *o)
{
    for (int v = 0; v < o->of.n_vectors; v++)
        if (o->state[v] != VECTOR_OLD)
            return 1;
    return 0;
}

static int begin(struct state_store *s, struct err *e)
{
    struct offload *o = offload_of(s);
    int rc = side_settle(o, e);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&o->lock);
    if (o->begun || !is_ahead(o))
        rc = begin_walk(o, e);
    o->begun = rc >= 0;
    if (rc >= 0 && o->has_thread && !o->busy) { /* all may be new already */
        end_update(o);
        pthread_cond_signal(&o->to_do);
    }
    pthread_mutex_unlock(&o->lock);
    if (rc < 0 || o->has_thread)
        return rc;

    TRY(walk(o, e));
    end_update(o);
out:
    return rc;
}

static int wait_vector(struct state_store *s, int v, struct err *e)
{
    struct offload *o = offload_of(s);
    double began = clock_s();
    pthread_mutex_lock(&o->lock);
    while (o->begun && o->state[v] != VECTOR_NEW && o->rc >= 0)
        pthread_cond_wait(&o->done, &o->lock);
    o->count.waited_s += clock_s() - began;
    int rc = error_of(o, e);
    pthread_mutex_unlock(&o->lock);
    return rc;
}

/* An error is found by begin() or wait_vector(). */
static void ahead(struct state_store *s, int v)
{
    struct offload *o = offload_of(s);
    struct err ignored;
    if (side_settle(o, &ignored) < 0)
        return;
    pthread_mutex_lock(&o->lock);
    int rc = o->begun || !is_ahead(o) ? begin_walk(o, &ignored) : 0;
    if (rc >= 0 && o->state[v] == VECTOR_OLD) {
        o->state[v] = VECTOR_READY;
        pthread_cond_signal(&o->to_do);
    }
    pthread_mutex_unlock(&o->lock);
}

/* The weights of a vector that was updated ahead, as they were: generation A still has their masters. */
static int restore(struct offload *o, int v, struct err *e)
{
    struct walk_slot *s = &o->slot[0];
    int rc = 0;
    for (s->piece = o->of.first[v]; s->piece < o->of.end[v]; s->piece++) {
        struct state_place masters = state_place_of(&o->files, KIND_MASTER, o->files.now, s->piece);
        struct state_piece p = piece_of(o, s);
        struct aio_job j = state_place_job(&masters, 1, s->buf, 0);
        if (!*masters.sum) /* what no parameter uses */
            continue;
        aio_start(o->aio, &j);
        TRY(aio_wait(o->aio, &j, e));
        TRY(state_place_check(&o->files, &masters, s->buf, e));
        TRY(o->store.update.restore(o->store.update.ctx, &p, e));
        if (!p.weights)
            continue;
        struct state_place weights = state_place_of(&o->files, KIND_WEIGHTS, 0, s->piece);
        state_place_sum(&weights, p.weights);
        j = state_place_job(&weights, 1, p.weights, 1);
        aio_start(o->aio, &j);
        TRY(aio_wait(o->aio, &j, e));
    }
out:
    return rc;
}

static int cancel(struct state_store *s, struct err *e)
{
    struct offload *o = offload_of(s);
    int rc;
    pthread_mutex_lock(&o->lock);
    o->cancel = 1;
    while (o->busy)
        pthread_cond_wait(&o->done, &o->lock);
    rc = error_of(o, e);
    for (int v = 0; rc >= 0 && v < o->of.n_vectors; v++) {
        if (o->state[v] == VECTOR_TAKEN || o->state[v] == VECTOR_NEW)
            rc = restore(o, v, e);
        o->state[v] = VECTOR_OLD;
    }
    o->cancel = 0;
    o->count.redone++;
    pthread_mutex_unlock(&o->lock);
    return rc;
}

const struct state_ops offload_in_files = { .memory = memory_of,
                                            .read = read_state,
                                            .write = write_state,
                                            .begin = begin,
                                            .wait = wait_vector,
                                            .ahead = ahead,
                                            .cancel = cancel,
                                            .put_grads = side_put_grads,
                                            .get_grads = side_get_grads,
                                            .fetch = side_fetch,
                                            .fetched = side_fetched };

int walk_open(struct offload *o, struct err *e)
{
    o->state = calloc((size_t)o->of.n_vectors + 1, sizeof *o->state);
    if (!o->state)
        return err_set(e, ERR_MEMORY, "no memory for offloaded state");
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->to_do, NULL);
    pthread_cond_init(&o->done, NULL);
    if (!o->store.late)
        return 0;
    int rc = pthread_create(&o->thread, NULL, run_thread, o);
    if (rc)
        return err_set(e, ERR_MEMORY, "cannot start the thread of offloaded state: %s", strerror(rc));
    o->has_thread = 1;
    return 0;
}

void walk_close(struct offload *o)
{
    if (!o->state)
        return;
    if (o->has_thread) {
        pthread_mutex_lock(&o->lock);
        o->stop = o->cancel = 1;
        pthread_cond_signal(&o->to_do);
        pthread_mutex_unlock(&o->lock);
        pthread_join(o->thread, NULL);
    }
    pthread_cond_destroy(&o->to_do);
    pthread_cond_destroy(&o->done);
    pthread_mutex_destroy(&o->lock);
    free(o->state);
}
