/* delta_maker.c - see delta_maker.h. One delta at a time: asked for -> made by the thread -> kept until
 * another one is asked for. A new delta is kept for KEEP_S until a reader has asked for it, so that readers
 * of different versions seldom replace each other's delta. A reader whose delta is gone asks again, or reads
 * all files. */
#include "serve/share/delta_maker.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/io.h"
#include "serve/share/delta.h"

#define KEEP_S 10.0

enum phase { EMPTY, ASKED, MADE };

struct delta_maker {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    _Atomic int stop;

    /* the delta; under the lock */
    enum phase phase;
    int64_t from_step;
    char etag[sizeof((struct version *)0)->etag]; /* of the version that it makes */
    struct version *from, *to;                    /* references, while it is ASKED */
    int fd, is_taken;                             /* fd -1: there is none */
    int64_t bytes;
    double made_s;
};

/* ---- the thread ---- */

/* Makes the delta that was asked for; the lock is not held meanwhile. */
static void make(struct delta_maker *m)
{
    struct version *from = m->from, *to = m->to;
    struct err ignored;
    int64_t all = 0, bytes = 0;
    pthread_mutex_unlock(&m->lock);
    for (int i = 0; i < to->n; i++)
        all += to->file[i].bytes;
    int fd = delta_make(from, to, all, &m->stop, &bytes, &ignored);
    version_free(from);
    version_free(to);
    pthread_mutex_lock(&m->lock);
    m->from = m->to = NULL;
    m->fd = fd;
    m->bytes = bytes;
    m->made_s = clock_s();
    m->phase = MADE;
    pthread_cond_broadcast(&m->changed);
}

static void *run(void *arg)
{
    struct delta_maker *m = arg;
    pthread_mutex_lock(&m->lock);
    while (!atomic_load(&m->stop)) {
        if (m->phase == ASKED)
            make(m);
        else
            pthread_cond_wait(&m->changed, &m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* ---- requests; under the lock ---- */

static int is_the_one(const struct delta_maker *m, int64_t from_step, const struct version *to)
{
    return m->phase != EMPTY && m->from_step == from_step && !strcmp(m->etag, to->etag);
}

static int may_be_replaced(const struct delta_maker *m)
{
    return m->phase == EMPTY ||
           (m->phase == MADE && (m->fd < 0 || m->is_taken || clock_s() - m->made_s > KEEP_S));
}

static void ask(struct delta_maker *m, struct version *from, struct version *to)
{
    if (m->phase == MADE)
        io_close(m->fd); /* answers that are being sent have descriptors of their own */
    m->phase = ASKED;
    m->from_step = from->step;
    memcpy(m->etag, to->etag, sizeof m->etag);
    m->from = version_share(from);
    m->to = version_share(to);
    m->fd = -1;
    m->is_taken = 0;
    pthread_cond_broadcast(&m->changed);
}

static enum delta_answer take(struct delta_maker *m, struct share_file *file)
{
    *file = (struct share_file){ .bytes = m->bytes, .fd = m->fd < 0 ? -1 : fcntl(m->fd, F_DUPFD_CLOEXEC, 0) };
    m->is_taken = 1;
    return file->fd < 0 ? DELTA_NONE : DELTA_READY;
}

enum delta_answer delta_maker_get(struct delta_maker *m, int64_t from_step, struct version *from,
                                  struct version *to, double wait_s, struct share_file *file)
{
    const struct timespec until = clock_in((int64_t)(wait_s * 1e9));
    enum delta_answer got = DELTA_LATER;
    pthread_mutex_lock(&m->lock);
    for (int late = 0; got == DELTA_LATER; late = pthread_cond_timedwait(&m->changed, &m->lock, &until)) {
        if (is_the_one(m, from_step, to)) {
            if (m->phase == MADE)
                got = take(m, file);
        } else if (!from) {
            got = DELTA_NONE;
        } else if (may_be_replaced(m)) {
            ask(m, from, to);
        }
        if (got != DELTA_LATER || late || atomic_load(&m->stop))
            break;
    }
    pthread_mutex_unlock(&m->lock);
    return got;
}

/* ---- opening and closing ---- */

int delta_maker_open(struct delta_maker **out, struct err *e)
{
    pthread_condattr_t clock;
    struct delta_maker *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_MEMORY, "no memory for deltas");
    m->fd = -1;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, &clock);
    pthread_condattr_destroy(&clock);
    int rc = pthread_create(&m->thread, NULL, run, m);
    if (rc) {
        free(m);
        return err_set(e, ERR_MEMORY, "cannot start the thread that makes deltas: %s", strerror(rc));
    }
    *out = m;
    return 0;
}

void delta_maker_close(struct delta_maker *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    atomic_store(&m->stop, 1);
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    version_free(m->from);
    version_free(m->to);
    io_close(m->fd);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m);
}
