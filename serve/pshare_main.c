/* pshare - serves the newest version of a checkpoint's weights as files over HTTP, with ranges. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include "base/io.h"
#include "base/opt.h"
#include "comm/comm.h"
#include "serve/share/mirror.h"
#include "serve/share/share_http.h"
#include "serve/share/share_source.h"
#include "store/memory.h"
#include "store/store.h"

#define NICE 5 /* a trainer's and a server's steps go first on this machine */

struct pshare_opts {
    const char *host, *key_file;
    int64_t port, poll_ms;
    int ends, http_only, deltas, verbose;
};
#define AT(member) offsetof(struct pshare_opts, member)
/* clang-format off */
static const struct opt table[] = {
    { OPT_GROUP, "Server", 0, NULL, NULL, NULL, 0, 0, 0 },
    { OPT_TEXT, "host",     AT(host),     "127.0.0.1", "ADDRESS", "address to listen on", 0, 0, 0 },
    { OPT_INT,  "port",     AT(port),     "8100",      "N",       "port (0: a free one)", 0, 65535, 0 },
    { OPT_TEXT, "key-file", AT(key_file), NULL,        "FILE",
      "keys, one a line, of readers on other machines (Bearer, or http://any:KEY@host)", 0, 0, 0 },
    { OPT_INT,  "poll",     AT(poll_ms),  "100",       "MS",
      "how often to look for a newer version", 1, 1e6, 0 },
    { OPT_SWITCH, "end-with-source", AT(ends), "0",      NULL,
      "end when the process of mem:PID ends", 0, 0, 0 },
    { OPT_SWITCH, "http-only", AT(http_only), "0",       NULL,
      "all bytes go over HTTP (readers of this user on this machine open the files themselves otherwise)", 0,
      0, 0 },
    { OPT_SWITCH, "deltas",   AT(deltas),   "0",         NULL,
      "keep older versions too, and give the bits that changed since then (pshare URL asks)", 0,
      0, 0 },
    { OPT_SWITCH, "verbose",  AT(verbose),  "0",         NULL, "a line a version on stderr", 0, 0, 0 },
    { OPT_GROUP, NULL, 0, NULL, NULL, NULL, 0, 0, 0 },
};
/* clang-format on */

static void print_version(FILE *out) { comm_version(out, "pshare", ""); }

static const char examples[] = "# the weights of a checkpoint, for any program at http://127.0.0.1:8100\n"
                               "pshare run/step-60\n"
                               "# always the newest checkpoint of a run\n"
                               "pshare run --port 8101\n"
                               "pserve http://127.0.0.1:8101 --tp 2\n"
                               "# of a trainer behind a slow wire, kept on this machine\n"
                               "pshare http://10.0.0.1:9000 --port 8102\n"
                               "pserve http://127.0.0.1:8102 --follow\n";

static const struct opt_program program = {
    .name = "pshare",
    .summary = "serves the newest version of a checkpoint's weights over HTTP",
    .usage = "CKPT|DIR|mem:PID|URL [--port N]",
    .opts = table,
    .min_args = 1,
    .max_args = 1,
    .print_version = print_version,
    .examples = examples,
};

/* Where versions come from. */
struct from {
    const char *source;
    int verbose;
    int64_t step;          /* of the newest version; -1: none yet */
    struct mirror *mirror; /* the source is a URL; or NULL */
};

static volatile sig_atomic_t stopped;
static void on_signal(int number) { stopped = number; }

/* A newer version of a URL. A signal ends the transfer. */
static int look_at_url(struct from *f, struct versions *v, char *path, size_t room, int64_t *step,
                       struct err *e)
{
    struct version *now = versions_acquire(v);
    struct mirror_got got;
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_UNBLOCK, &set, &before);
    int rc = mirror_next(f->mirror, now, path, room, step, &got, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    versions_release(v, now);
    if (rc > 0 && *got.whole)
        fprintf(stderr, "pshare: version %lld: %s: all of it was read\n", (long long)*step, got.whole);
    if (rc > 0 && f->verbose)
        fprintf(stderr, "pshare: version %lld: %lld bytes received%s\n", (long long)*step,
                (long long)got.received, got.from < 0 ? "" : ", what changed");
    return rc;
}

/* Takes a newer version where there is one. A checkpoint that cannot be opened is an error only when it is
 * the first one. */
static int look(struct from *f, struct versions *v, struct err *e)
{
    char path[4096];
    int64_t found;
    struct version *n;
    int rc = f->mirror ? look_at_url(f, v, path, sizeof path, &found, e)
                       : source_newest(f->source, f->step, path, sizeof path, &found);
    if (rc <= 0 || (rc = version_open(&n, path, found, e)) < 0)
        return rc;
    f->step = n->step;
    if (f->verbose)
        fprintf(stderr, "pshare: version %s\n", n->etag);
    return versions_add(v, n, e);
}

/* Until a signal comes: looks for newer versions, after a failure less often. */
static int run(struct from *f, struct versions *v, const struct pshare_opts *o, const sigset_t *set,
               int watched)
{
    int64_t failed = -1;
    int n_failed = 0, code = 0;
    struct err e = { 0 };
    const int follows = f->mirror || source_follows(f->source);
    struct pollfd owner = { watched, POLLIN, 0 };
    struct timespec nap;
    do {
        int64_t ms = o->poll_ms << (n_failed < 6 ? n_failed : 6);
        nap = (struct timespec){ ms / 1000, ms % 1000 * 1000000 };
        if (poll(&owner, 1, 0) > 0)
            break;
        versions_expire(v);
        const int rc = follows ? look(f, v, &e) : 0;
        n_failed = rc < 0 && f->mirror ? n_failed + 1 : 0;
        if (rc >= 0 || (failed == f->step && code == e.code) || stopped)
            continue;
        failed = f->step; /* each kind of error is said once; the next look may find it whole */
        code = e.code;
        fprintf(stderr, "pshare: the version is passed over: %s\n", e.text);
    } while (!stopped && sigtimedwait(set, NULL, &nap) < 0);
    return 0;
}

static int serve(const struct pshare_opts *o, const char *source, struct err *e)
{
    struct versions v;
    struct keys keys = { 0 };
    struct share_http *h = NULL;
    sigset_t set;
    struct from f = { .source = source, .verbose = o->verbose, .step = -1 };
    char shown[4200];
    int rc, watched = -1;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    setpriority(PRIO_PROCESS, 0, NICE); /* before there are threads */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    if ((rc = versions_open(&v, e)) < 0)
        return rc;
    if (o->key_file)
        TRY(keys_open(&keys, o->key_file, e));
    if (o->ends && memory_is(source) && (watched = source_watch(source)) < 0) {
        rc = err_sys(e, "%s: its process cannot be watched (--end-with-source)", source);
        goto out;
    }
    v.keeps_before = o->deltas;
    TRY(store_is_url(source) ? mirror_open(&f.mirror, source, &stopped, e) : 0);
    TRY(look(&f, &v, e));
    if (!v.newest && f.mirror) {
        rc = stopped ? 0
                     : err_set(e, ERR_FILE, "%s has no version yet: start this when it has",
                               url_shown(source, shown, sizeof shown));
        goto out;
    }
    const struct share_http_opts how = {
        .host = o->host, .port = (int)o->port, .keys = o->key_file ? &keys : NULL, .http_only = o->http_only
    };
    TRY(share_http_open(&h, &how, &v, e));
    printf("pshare: ready on http://%s:%d (version %lld)\n", o->host, share_http_port(h), (long long)f.step);
    TRY(io_flush_stdout(e));
    rc = run(&f, &v, o, &set, watched);
out:
    versions_stop(&v);
    share_http_close(h);
    versions_close(&v);
    mirror_close(f.mirror);
    keys_close(&keys);
    io_close(watched);
    return rc < 0 ? rc : 0;
}

int main(int argc, char **argv)
{
    struct pshare_opts o;
    struct opt_args args;
    struct err e = { 0 };
    io_begin();
    int rc = opt_parse(&program, argc, argv, &o, &args, NULL, &e);
    if (rc == 0) {
        rc = serve(&o, args.item[0], &e);
        opt_free(&program, &o, &args);
    }
    return io_end(rc < 0 ? rc : 0, &e, "pshare");
}
