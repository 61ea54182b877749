/* background.c - see background.h. */
#include "serve/weights/background.h"
#include "base/clock.h"

#include <string.h>

/* ---- the task's thread ---- */

static void *run(void *arg)
{
    struct background *a = arg;
    if (a->pool)
        pool_unpin_self(a->pool);
    int rc = a->work(a, a->arg, &a->err);
    pthread_mutex_lock(&a->lock);
    a->rc = rc < 0 ? rc : 0;
    a->state = BACKGROUND_FINISHED;
    pthread_cond_signal(&a->asked);
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static int ask(struct background *a, int state, background_call fn, void *arg, struct err *e)
{
    pthread_mutex_lock(&a->lock);
    a->call = fn;
    a->call_arg = arg;
    a->call_err = e;
    a->state = state;
    pthread_cond_signal(&a->asked);
    while ((int)a->state == state)
        pthread_cond_wait(&a->answered, &a->lock);
    int rc = a->call_rc;
    pthread_mutex_unlock(&a->lock);
    return rc;
}

int background_on_device(struct background *a, background_call fn, void *arg, struct err *e)
{
    return ask(a, BACKGROUND_ON_DEVICE, fn, arg, e);
}
int background_collective(struct background *a, background_call fn, void *arg, struct err *e)
{
    return ask(a, BACKGROUND_COLLECTIVE, fn, arg, e);
}

/* ---- the main thread ---- */

void background_start(struct background *a, background_work work, void *arg, const struct pool *pool)
{
    pthread_condattr_t c;

    memset(a, 0, sizeof *a);
    a->work = work;
    a->arg = arg;
    a->pool = pool;
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_init(&c);
    pthread_condattr_setclock(&c, CLOCK_MONOTONIC);
    pthread_cond_init(&a->asked, &c);
    pthread_cond_init(&a->answered, NULL);
    pthread_condattr_destroy(&c);
    a->state = BACKGROUND_RUNNING;
    a->started = pthread_create(&a->thread, NULL, run, a) == 0;
    if (a->started)
        return;
    a->rc = err_set(&a->err, ERR_MEMORY, "no thread to read weights: raise the limit of processes");
    a->state = BACKGROUND_FINISHED;
}

static int state_of(struct background *a)
{
    pthread_mutex_lock(&a->lock);
    int state = a->state;
    pthread_mutex_unlock(&a->lock);
    return state;
}

int background_wants_sync(struct background *a) { return state_of(a) > BACKGROUND_RUNNING; }

static void answer(struct background *a, int rc)
{
    pthread_mutex_lock(&a->lock);
    a->call_rc = rc;
    a->state = BACKGROUND_RUNNING;
    pthread_cond_signal(&a->answered);
    pthread_mutex_unlock(&a->lock);
}

void background_wait(struct background *a, int ms)
{
    struct timespec t = clock_in(ms * (SECOND_NS / 1000));
    pthread_mutex_lock(&a->lock);
    for (int waits = 1; waits && (a->state == BACKGROUND_RUNNING || a->state == BACKGROUND_ON_DEVICE);) {
        if (a->state == BACKGROUND_RUNNING) {
            waits = pthread_cond_timedwait(&a->asked, &a->lock, &t) == 0;
            continue;
        }
        pthread_mutex_unlock(&a->lock);
        answer(a, a->call(a->call_arg, a->call_err));
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
}

void background_cancel(struct background *a)
{
    a->cancelled = 1;
    a->stop = 1;
}

static void refuse(struct background *a)
{
    answer(a, err_set(a->call_err, ERR_STOPPED, "stopped: another rank has failed, or the server ends"));
}

int background_sync(struct background *a, struct comm *group, struct comm *all, struct err *e)
{
    int state = state_of(a);

    if (state == BACKGROUND_ON_DEVICE) {
        answer(a, a->call(a->call_arg, a->call_err));
        state = state_of(a);
    }

    int64_t seen[3] = { state == BACKGROUND_FINISHED,
                        a->cancelled || (state == BACKGROUND_FINISHED && a->rc < 0),
                        state == BACKGROUND_COLLECTIVE },
            here = seen[2];
    int rc = comm_all_reduce_i64(all, seen, 3, e);
    if (rc >= 0 && group != all) {
        seen[2] = here;
        rc = comm_all_reduce_i64(group, &seen[2], 1, e);
    }

    if (rc < 0)
        return rc;
    if (seen[1])
        a->stop = 1;
    if (here && seen[1])
        refuse(a);
    else if (here && seen[2] == comm_size(group))
        answer(a, a->call(a->call_arg, a->call_err));
    return seen[0] == comm_size(all);
}

static void release(struct background *a)
{
    if (a->started)
        pthread_join(a->thread, NULL);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->asked);
    pthread_cond_destroy(&a->answered);
    a->started = 0;
    a->state = BACKGROUND_NONE;
}

int background_finish(struct background *a, struct comm *all, struct err *e)
{
    int rc = a->rc;
    release(a);
    if (rc == -ERR_STOPPED && !a->cancelled)
        rc = 0; /* stopped because another rank failed: report that rank's error */
    if (rc < 0)
        *e = a->err;
    return comm_agree(all, rc, e);
}

void background_abort(struct background *a)
{
    if (a->state == BACKGROUND_NONE)
        return;
    a->stop = 1;
    for (int state; (state = state_of(a)) != BACKGROUND_FINISHED; background_wait(a, 100)) {
        if (state == BACKGROUND_ON_DEVICE)
            answer(a, a->call(a->call_arg, a->call_err));
        else if (state == BACKGROUND_COLLECTIVE)
            refuse(a);
    }
    release(a);
}
