/* worker.h - threads for work that would block the HTTP thread too long: long bodies, chat templates,
 * reloads. */
#ifndef SHARDLINE_SERVE_HTTP_WORKER_H
#define SHARDLINE_SERVE_HTTP_WORKER_H

#include <pthread.h>
#include "base/err.h"

#define WORKER_THREADS \
    3 /* one of them runs short jobs only, so that two long ones do not delay a short one */
struct job {
    struct job *next;
    void (*run)(struct job *j);
    int is_short; /* set by who puts it: it ends soon */
};
struct job_list {
    struct job *first, **end;
};
struct worker {
    pthread_mutex_t lock; /* of the lists, closed and n_started */
    pthread_cond_t filled;
    struct job_list longs, shorts;
    int closed, n_threads, n_started;
    pthread_t thread[WORKER_THREADS];
};
/* Starts the threads; ERR_MEMORY. */
int worker_open(struct worker *w, struct err *e);
/* Runs j in one of the threads: short and long jobs each in the order of arrival. j is the caller's; run may
 * free it. Any thread. */
void worker_put(struct worker *w, struct job *j);
/* Joins the threads when all jobs have run; no job may be put meanwhile. */
void worker_close(struct worker *w);

#endif
