/* worker.c - see worker.h. */
#include "serve/http/worker.h"

#include <string.h>

static void *work(void *arg)
{
    struct worker *w = arg;

    pthread_mutex_lock(&w->lock);
    while (w->first || !w->closed) {
        struct job *j = w->first;
        if (!j) {
            pthread_cond_wait(&w->filled, &w->lock);
            continue;
        }
        w->first = j->next;
        if (!w->first)
            w->end = &w->first;
        pthread_mutex_unlock(&w->lock);
        j->run(j);
        pthread_mutex_lock(&w->lock);
    }

    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int worker_open(struct worker *w, struct err *e)
{
    memset(w, 0, sizeof *w);
    w->end = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->filled, NULL);
    for (; w->n_threads < WORKER_THREADS; w->n_threads++)
        if (pthread_create(&w->thread[w->n_threads], NULL, work, w) != 0) {
            worker_close(w);
            return err_set(e, ERR_MEMORY, "no thread for reading requests: raise the limit of processes");
        }
    return 0;
}

void worker_put(struct worker *w, struct job *j)
{
    pthread_mutex_lock(&w->lock);
    j->next = NULL;
    *w->end = j;
    w->end = &j->next;
    pthread_cond_signal(&w->filled);
    pthread_mutex_unlock(&w->lock);
}

void worker_close(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->closed = 1;
    pthread_cond_broadcast(&w->filled);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_threads; i++)
        pthread_join(w->thread[i], NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->filled);
}
