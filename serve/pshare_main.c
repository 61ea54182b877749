/* pshare - serves the newest version of a checkpoint's weights as files over HTTP, with ranges. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/io.h"
#include "base/opt.h"
#include "comm/comm.h"
#include "serve/share/share_http.h"
#include "serve/share/share_source.h"
#include "store/memory.h"

struct pshare_opts {
    const char *host, *key_file;
    int64_t port, poll_ms;
    int ends, apart, verbose;
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
    { OPT_SWITCH, "http-only", AT(apart),    "0",        NULL,
      "all bytes go over HTTP (readers of this user on this machine open the files themselves otherwise)", 0,
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
                               "pserve http://127.0.0.1:8101 --tp 2\n";

static const struct opt_program program = {
    .name = "pshare",
    .summary = "serves the newest version of a checkpoint's weights over HTTP",
    .usage = "CKPT|DIR|mem:PID [--port N]",
    .opts = table,
    .min_args = 1,
    .max_args = 1,
    .print_version = print_version,
    .examples = examples,
};

/* Takes a newer version where there is one. A checkpoint that cannot be opened is an error only when it is
 * the first one. */
static int look(struct versions *v, const char *source, int verbose, int64_t *step, struct err *e)
{
    char path[4096];
    int64_t found;
    struct version *n;
    if (!source_newest(source, *step, path, sizeof path, &found))
        return 0;
    int rc = version_open(&n, path, found, e);
    if (rc < 0)
        return rc;
    *step = n->step;
    if (verbose)
        fprintf(stderr, "pshare: version %s\n", n->etag);
    return versions_add(v, n, e);
}

/* Until a signal comes: looks for newer versions. */
static int run(struct versions *v, const struct pshare_opts *o, const char *source, const sigset_t *set,
               int64_t step, int watched)
{
    const struct timespec nap = { o->poll_ms / 1000, o->poll_ms % 1000 * 1000000 };
    int64_t failed = -1;
    struct err e = { 0 };
    int follows = source_follows(source);
    struct pollfd owner = { watched, POLLIN, 0 };
    while (sigtimedwait(set, NULL, &nap) < 0) {
        if (poll(&owner, 1, 0) > 0)
            break;
        if (!follows || look(v, source, o->verbose, &step, &e) >= 0 || failed == step)
            continue;
        failed = step; /* said once; the next look may find it whole */
        fprintf(stderr, "pshare: the version is passed over: %s\n", e.text);
    }
    return 0;
}

static int serve(const struct pshare_opts *o, const char *source, struct err *e)
{
    struct versions v;
    struct keys keys = { 0 };
    struct share_http *h = NULL;
    sigset_t set;
    int64_t step = -1;
    int rc, watched = -1;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    if ((rc = versions_open(&v, e)) < 0)
        return rc;
    if (o->key_file)
        TRY(keys_open(&keys, o->key_file, e));
    if (o->ends && memory_is(source) && (watched = source_watch(source)) < 0) {
        rc = err_sys(e, "%s: its process cannot be watched (--end-with-source)", source);
        goto out;
    }
    TRY(look(&v, source, o->verbose, &step, e));
    const struct share_http_opts how = {
        .host = o->host, .port = (int)o->port, .keys = o->key_file ? &keys : NULL, .apart = o->apart
    };
    TRY(share_http_open(&h, &how, &v, e));
    printf("pshare: ready on http://%s:%d (version %lld)\n", o->host, share_http_port(h), (long long)step);
    TRY(io_flush_stdout(e));
    rc = run(&v, o, source, &set, step, watched);
out:
    versions_stop(&v);
    share_http_close(h);
    versions_close(&v);
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
