/* aio_threads.c - blocks by four threads that read and write. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/aio/aio_way.h"

enum { THREADS = 4 };

/* Numbers of blocks, first in, first out. */
struct queue {
    int item[AIO_BLOCKS], first, n;
};
struct threads {
    pthread_mutex_t lock;
    pthread_cond_t to_do, done;
    struct queue waiting, ended;
    struct aio_block block[AIO_BLOCKS]; /* copies of those under way */
    pthread_t thread[THREADS];
    int n_threads, stop;
};

static void put(struct queue *q, int i) { q->item[(q->first + q->n++) % AIO_BLOCKS] = i; }

static int take(struct queue *q)
{
    int i = q->item[q->first];
    q->first = (q->first + 1) % AIO_BLOCKS;
    q->n--;
    return i;
}

static long transfer(const struct aio_block *b)
{
    const struct aio_job *j = b->job;
    char *p = (char *)j->buf + b->at;
    off_t at = (off_t)(j->at + (int64_t)b->at);
    ssize_t n = j->write ? pwrite(j->file->fd, p, b->bytes, at) : pread(j->file->fd, p, b->bytes, at);
    return n < 0 ? -errno : n;
}

static void *work(void *arg)
{
    struct threads *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->waiting.n && !t->stop)
            pthread_cond_wait(&t->to_do, &t->lock);
        if (!t->waiting.n)
            break;
        int i = take(&t->waiting);
        struct aio_block b = t->block[i];
        pthread_mutex_unlock(&t->lock);
        b.result = transfer(&b);
        pthread_mutex_lock(&t->lock);
        t->block[i].result = b.result;
        put(&t->ended, i);
        pthread_cond_signal(&t->done);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void threads_close(void *state)
{
    struct threads *t = state;
    pthread_mutex_lock(&t->lock);
    t->stop = 1;
    pthread_cond_broadcast(&t->to_do);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < t->n_threads; i++)
        pthread_join(t->thread[i], NULL);
    pthread_cond_destroy(&t->to_do);
    pthread_cond_destroy(&t->done);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static int threads_open(void **state, struct err *e)
{
    struct threads *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_MEMORY, "no memory for threads that read and write");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->to_do, NULL);
    pthread_cond_init(&t->done, NULL);
    for (int rc; t->n_threads < THREADS; t->n_threads++)
        if ((rc = pthread_create(&t->thread[t->n_threads], NULL, work, t))) {
            threads_close(t);
            return err_set(e, ERR_MEMORY, "cannot start a thread that reads and writes: %s", strerror(rc));
        }
    *state = t;
    return 0;
}

static void threads_submit(void *state, int i, struct aio_block *b)
{
    struct threads *t = state;
    pthread_mutex_lock(&t->lock);
    t->block[i] = *b;
    put(&t->waiting, i);
    pthread_cond_signal(&t->to_do);
    pthread_mutex_unlock(&t->lock);
}

static int threads_reap(void *state, struct aio_block *blocks)
{
    struct threads *t = state;
    pthread_mutex_lock(&t->lock);
    while (!t->ended.n)
        pthread_cond_wait(&t->done, &t->lock);
    int i = take(&t->ended);
    blocks[i].result = t->block[i].result;
    pthread_mutex_unlock(&t->lock);
    return i;
}

const struct aio_way_ops aio_threads = { "threads", threads_open, threads_submit, threads_reap,
                                         threads_close };
