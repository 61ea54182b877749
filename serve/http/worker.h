/* worker.h - threads for work that would block the HTTP thread too long: long bodies, chat templates,
 * reloads. */
#ifndef SHARDLINE_SERVE_HTTP_WORKER_H
#define SHARDLINE_SERVE_HTTP_WORKER_H

#include <pthread.h>
#include "base/err.h"

#define WORKER_THREADS 2
struct job {
    struct job *next;
    void (*run)(struct job *j);
};
struct worker {
    pthread_mutex_t lock; /* of first, end and closed */
    pthread_cond_t filled;
    struct job *first, **end;
    int closed, n_threads;
    pthread_t thread[WORKER_THREADS];
};
/* Starts the threads; ERR_MEMORY. */
int worker_open(struct worker *w, struct err *e);
/* Runs j in one of the threads, in the order of arrival. j is the caller's; run may free it. Any thread. */
void worker_put(struct worker *w, struct job *j);
/* Joins the threads when all jobs have run; no job may be put meanwhile. */
void worker_close(struct worker *w);

#endif
