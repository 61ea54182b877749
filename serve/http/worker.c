/* worker.c - see worker.h. */
#include "serve/http/worker.h"

#include <string.h>

static struct job *take(struct job_list *l)
{
    struct job *j = l->first;
    if (!j)
        return NULL;
    l->first = j->next;
    if (!l->first)
        l->end = &l->first;
    return j;
}

/* The thread that starts first takes no long jobs; the others take them before short ones, so that short ones
 * that keep coming do not hold up long ones for ever. */
static void *work(void *arg)
{
    struct worker *w = arg;

    pthread_mutex_lock(&w->lock);
    int takes_longs = w->n_started++ > 0;
    for (;;) {
        struct job *j = takes_longs ? take(&w->longs) : NULL;
        j = j ? j : take(&w->shorts);
        if (!j && w->closed)
            break;
        if (!j) {
            pthread_cond_wait(&w->filled, &w->lock);
            continue;
        }
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
    w->longs.end = &w->longs.first;
    w->shorts.end = &w->shorts.first;
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
    struct job_list *l = j->is_short ? &w->shorts : &w->longs;
    j->next = NULL;
    *l->end = j;
    l->end = &j->next;
    pthread_cond_broadcast(&w->filled); /* a signal could wake only the thread that takes no long jobs */
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
