/* follow.c - see follow.h. */
#include "serve/follow.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "base/log.h"
#include "store/live.h"
#include "store/store.h"

#define WAIT_S 20      /* how long the server may think about a newer version */
#define PAUSE_MIN 0.1  /* between two tries, s; each one is twice as long, … */
#define PAUSE_MAX 10.0 /* … up to this */
#define SAYS_AFTER 3   /* versions that changed while they were read */

struct follow {
    const char *url;
    enum reload_mode mode;
    struct service *sv;
    struct router *rt;
    struct log log; /* the thread's own */
    pthread_t thread;
    volatile sig_atomic_t stop;

    /* the thread's: */
    int unreachable; /* tries */
    int failed;      /* tries of version `refused` */
    int64_t refused; /* -1: none */
    int64_t behind;  /* a version that is not newer, about which a line was written; -1: none */
    int changed;     /* versions in a row that changed while they were read */
};

static void pause_s(const struct follow *f, double s)
{
    for (double end = clock_s() + s; clock_s() < end && !f->stop;)
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
}

static double pause_of(int tries)
{
    double s = PAUSE_MIN * (double)(1 << (tries < 10 ? tries : 10));
    return s < PAUSE_MAX ? s : PAUSE_MAX;
}

static void set_unreachable(struct follow *f, const struct err *e)
{
    if (!f->unreachable)
        log_line(&f->log, "%s: this version is served on, and the URL asked again", e->text);
    pause_s(f, pause_of(f->unreachable++));
}

/* Writes a line about a version that is there and is not newer than the one that is served: a trainer that
 * was started anew, or another one. */
static void look_behind(struct follow *f)
{
    struct live_version v;
    struct err e;
    char digest[33], shown[4200];
    int64_t now = served_get(&f->sv->served, digest);
    if (live_version_get(f->url, -1, 0, &f->stop, &v, &e) <= 0)
        return;
    if (v.version > now || v.version == f->behind || (v.version == now && !strcmp(v.digest, digest)))
        return;
    f->behind = v.version;
    log_line(&f->log, "%s has version %lld (%s), version %lld (%s) is served: a newer one is waited for",
             url_shown(f->url, shown, sizeof shown), (long long)v.version, v.digest, (long long)now, digest);
}

/* Why a version was not taken: it has changed (it is begun again at once), or it is refused. */
static void set_failed(struct follow *f, const struct live_version *v, const struct fault *why)
{
    struct live_version now;
    struct err e;
    char shown[4200];
    if (f->stop)
        return;
    if (why->status == 409 && !why->param[0]) { /* an operator's reload */
        pause_s(f, PAUSE_MIN);
        return;
    }
    if (live_version_get(f->url, -1, 0, &f->stop, &now, &e) > 0 && now.version != v->version) {
        if (++f->changed == SAYS_AFTER)
            log_line(&f->log,
                     "%s changes sooner than it is read, at version %lld: publish less often, or a copy",
                     url_shown(f->url, shown, sizeof shown), (long long)now.version);
        return;
    }
    f->failed = f->refused == v->version ? f->failed + 1 : 0;
    f->refused = v->version;
    if (!f->failed)
        log_line(&f->log, "version %lld is refused: %s", (long long)v->version, why->text);

    /* a newer one may come meanwhile */
    double pause = pause_of(f->failed);
    if (pause < 1)
        pause_s(f, pause);
    else if (live_version_get(f->url, v->version, (int)pause, &f->stop, &now, &e) < 0)
        pause_s(f, pause);
}

static void take(struct follow *f, const struct live_version *v)
{
    struct reload_order o = { .version = v->version, .live = 1, .quiet = 1, .mode = f->mode };
    struct reload_times t = { 0 };
    struct fault why;
    char fingerprint[64];
    snprintf(o.path, sizeof o.path, "%s", f->url);
    memcpy(o.digest, v->digest, sizeof o.digest);
    if (reload_all(f->rt, &o, fingerprint, &t, &why) < 0) {
        set_failed(f, v, &why);
        return;
    }
    f->changed = 0;
    f->refused = f->behind = -1;
    log_line(&f->log, "version %lld is served: weights_digest %s, read in %.2f s, swapped (%s) in %.3f s",
             (long long)v->version, v->digest, t.read_s, reload_mode_name(f->mode), t.swap_s);
}

static void *run(void *arg)
{
    struct follow *f = arg;
    while (!f->stop) {
        struct live_version v;
        struct err e;
        double begin = clock_s();
        int64_t now = served_get(&f->sv->served, NULL);
        int rc = live_version_get(f->url, now, WAIT_S, &f->stop, &v, &e);
        if (f->stop)
            break;
        if (rc < 0) {
            set_unreachable(f, &e);
            continue;
        }
        if (f->unreachable)
            log_line(&f->log, "%s answers again", f->url);
        f->unreachable = 0;
        if (rc > 0 && v.version > now) {
            take(f, &v);
            continue;
        }
        look_behind(f);
        if (clock_s() - begin < PAUSE_MIN) /* the server does not wait */
            pause_s(f, 10 * PAUSE_MIN);
    }
    return NULL;
}

int follow_open(struct follow **out, const char *url, enum reload_mode mode, struct service *sv,
                struct router *rt, struct err *e)
{
    struct follow *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(e, ERR_MEMORY, "no memory to follow %s", url);
    *f = (struct follow){ .url = url, .mode = mode, .sv = sv, .rt = rt, .refused = -1, .behind = -1 };
    log_open(&f->log, "pserve", 0, 0);
    if (pthread_create(&f->thread, NULL, run, f) != 0) {
        free(f);
        return err_set(e, ERR_MEMORY, "no thread to follow %s: raise the limit of processes", url);
    }
    *out = f;
    return 0;
}

void follow_stop(struct follow *f)
{
    if (f)
        f->stop = 1;
}

void follow_close(struct follow *f)
{
    if (!f)
        return;
    follow_stop(f);
    pthread_join(f->thread, NULL);
    free(f);
}
