/* worker.h - threads for what would keep the HTTP thread too long: long bodies, chat templates. */
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
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct job *first, **end;
    int closed, n_threads;
    pthread_t thread[WORKER_THREADS];
};
int worker_open(struct worker *w, struct err *e);
/* runs it soon, in the order of arrival; run may free j */
void worker_put(struct worker *w, struct job *j);
/* when all jobs have run; nothing may be put meanwhile */
void worker_close(struct worker *w);

#endif
