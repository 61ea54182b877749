/* store.c - see store.h. One request asks for one range. A failure that may pass (a lost connection, 408,
 * 429, 5xx, a stall) is repeated from the byte where it stopped, after a longer wait each time; others are
 * errors at once. */
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/env.h"
#include "store/store_priv.h"

#define PROGRESS ((int64_t)64 << 10) /* fewer bytes are no progress */
#define LONGEST_WAIT_S 300.0         /* a server may ask for */

int store_open(struct store **out, const char *url, struct err *e)
{
    struct store *s = calloc(1, sizeof *s);
    const char *stall = env_get(ENV_SHARDLINE_STALL_S);
    if (!s || curl_global_init(CURL_GLOBAL_DEFAULT)) {
        free(s);
        return err_set(e, ERR_MEMORY, "%s: no room for a connection", url);
    }
    pthread_mutex_init(&s->lock, NULL);
    s->stall_s = stall && atol(stall) > 0 ? atol(stall) : 20;
    int rc = store_read_url(s, url, e);
    if (rc < 0) {
        store_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_idle; i++)
        curl_easy_cleanup(s->idle[i]);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void store_stop_on(struct store *s, const volatile sig_atomic_t *stop) { s->stop = stop; }
int store_is_stopped(const struct store *s) { return s->stop && *s->stop; }
const char *store_commit(const struct store *s) { return s->commit; }
const char *store_revision(const struct store *s) { return s->wanted; }
int store_has_parent(const struct store *s) { return !s->hub && !s->s3; }
int64_t store_bytes(const struct store *s) { return atomic_load(&((struct store *)s)->received); }

/* A commit is 40 hex digits; anything else is not put into URLs. */
void store_pin(struct store *s, const char *commit)
{
    if (!s->hub || strlen(commit) != 40 || strspn(commit, "0123456789abcdef") != 40)
        return;
    snprintf(s->commit, sizeof s->commit, "%s", commit);
    snprintf(s->revision, sizeof s->revision, "%s", commit);
}

int store_is_version(const char *etag)
{
    size_t step = *etag == '"' ? strspn(etag + 1, "0123456789") : 0;
    const char *digest = etag + step + 2;
    return step && etag[step + 1] == '-' && strspn(digest, "0123456789abcdef") == 32 &&
           !strcmp(digest + 32, "\"");
}

void store_keep_to(struct store *s, const char *etag) { snprintf(s->version, sizeof s->version, "%s", etag); }

int store_is_late(const struct store *s) { return s->is_late; }

static int other_version(const char *shown, struct err *e)
{
    return err_set(e, ERR_INTEGRITY, "%s: the version has changed: open it again", shown);
}

/* ---- requests repeated ---- */

int store_can_pass(long status) { return status == 0 || status == 408 || status == 429 || status >= 500; }

/* Waits as long as the server asked for, or longer each time; a random part keeps ranks from asking all at
 * once. */
int store_wait(const struct store *s, const char *shown, const struct answer *a, int tries, struct err *e)
{
    if (a->retry_after_s > LONGEST_WAIT_S)
        return err_set(e, ERR_FILE, "%s: status %ld: the server asks to come back in %.0f s: try again then",
                       shown, a->status, a->retry_after_s);
    double wait_s = a->retry_after_s > 0
                        ? a->retry_after_s
                        : 0.25 * (1 << tries) * (0.5 + (double)(clock_ns() / 1000 % 1000) / 1000.0);
    while (wait_s > 0 && !store_is_stopped(s)) {
        double part_s = wait_s < 0.25 ? wait_s : 0.25;
        struct timespec t = { 0, (long)(part_s * 1e9) };
        nanosleep(&t, NULL);
        wait_s -= part_s;
    }
    return store_is_stopped(s) ? err_set(e, ERR_STOPPED, "%s: stopped by a signal", shown) : 0;
}

int store_refused(const struct store *s, const char *shown, const struct answer *a, struct err *e)
{
    static const struct {
        long status;
        const char *what;
    } known[] = {
        { 401, "access is refused: set HF_TOKEN, AWS_ACCESS_KEY_ID or use a signed URL" },
        { 403, "access is forbidden: has the token or key the right to read it, is a signed URL too old" },
        { 404, "there is no such file" },
        { 408, "the server gave up waiting" },
        { 429, "the server asks for fewer requests: try again later" },
        { 503, "the server is overloaded: try again later" },
    };
    if (s->s3 && (a->status == 301 || a->status == 307 || a->status == 400) && *a->region &&
        strcmp(a->region, s->aws.region))
        return err_set(e, ERR_FILE, "%s: the bucket is in region %s, not %s: set AWS_REGION=%s", shown,
                       a->region, s->aws.region, a->region);
    if (s->s3 && a->status >= 300 && a->status < 400)
        return err_set(e, ERR_FILE,
                       "%s: status %ld: the bucket is elsewhere, and keys go to no other host: check "
                       "AWS_REGION and AWS_ENDPOINT_URL",
                       shown, a->status);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].status == a->status)
            return err_set(e, ERR_FILE, "%s: status %ld: %s", shown, a->status, known[i].what);
    return err_set(e, ERR_FILE, "%s: status %ld: try again later or look at the server", shown, a->status);
}

static int is_final(const struct answer *a, CURLcode code)
{
    return a->endless || code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_UNSUPPORTED_PROTOCOL ||
           code == CURLE_PEER_FAILED_VERIFICATION || (a->status >= 300 && !store_can_pass(a->status));
}

/* ---- length and version ---- */

static int fill_info(struct store *s, const char *shown, const struct answer *a, struct store_info *info,
                     struct err *e)
{
    info->ranges = a->status != 200;
    info->bytes = a->status == 200 ? a->length : a->total;
    if (a->linked_bytes >= 0 && a->status == 200)
        info->bytes = a->linked_bytes;
    if (a->encoded)
        return err_set(e, ERR_FORMAT,
                       "%s: the server sends it compressed though that was refused: is there a broken proxy",
                       shown);
    if (info->bytes < 0)
        return err_set(e, ERR_FORMAT,
                       "%s: the server does not say how long it is: download it with another program", shown);
    snprintf(info->etag, sizeof info->etag, "%s", a->etag);
    snprintf(info->same_machine, sizeof info->same_machine, "%s", a->same_machine);
    if (*s->version && strcmp(s->version, a->etag))
        return other_version(shown, e);
    if (store_is_version(a->etag))
        memcpy(s->version, a->etag, sizeof s->version);
    size_t n = strlen(a->linked_etag);
    if (n == 66 && strspn(a->linked_etag + 1, "0123456789abcdef") == 64)
        snprintf(info->sha256, sizeof info->sha256, "%.64s", a->linked_etag + 1);
    if (!*s->commit)
        store_pin(s, a->commit);
    return 1;
}

int store_stat(struct store *s, const char *name, struct store_info *info, struct err *e)
{
    struct place p;
    char why[CURL_ERROR_SIZE];
    int rc = 0;
    if (s->local)
        return local_stat(s, name, info, e);
    memset(info, 0, sizeof *info);
    for (int tries = 0; rc >= 0; tries++) {
        struct answer a = {
            .s = s, .length = -1, .first = -1, .total = -1, .linked_bytes = -1, .probe = 1, .fd = -1
        };
        if ((rc = store_place(s, name, &p, e)) < 0)
            break;
        CURLcode code = http_get(s, p.url, 0, 0, "", &a, why);
        s->is_late = a.status == 503;
        int answered = a.status == 206 || a.status == 200 || a.status == 416;
        if (a.status == 404 || a.status == 410) {
            if (!*s->commit)
                store_pin(s, a.commit);
            return 0;
        }
        if (a.status == 412)
            return other_version(p.shown, e);
        if (answered && !a.endless && (code == CURLE_OK || code == CURLE_WRITE_ERROR))
            return fill_info(s, p.shown, &a, info, e);
        if (is_final(&a, code) || tries == STORE_TRIES)
            return a.status >= 400 || (s->s3 && a.status >= 300)
                       ? store_refused(s, p.shown, &a, e)
                       : err_set(e, ERR_FILE, "%s: %s: check the URL and the network", p.shown, why);
        rc = store_wait(s, p.shown, &a, tries, e);
    }
    return rc;
}

/* ---- bytes ---- */

static int changed(const char *shown, struct err *e)
{
    return err_set(e, ERR_INTEGRITY, "%s: changed while it was read: start again", shown);
}

/* Judges the answer to a range. 0: right so far, the transfer may go on where it stopped. */
static int judge(const struct store *s, const char *shown, const struct answer *a, CURLcode code,
                 const struct store_info *info, const char *why, struct err *e)
{
    int same = !*info->etag || !*a->etag || !strcmp(info->etag, a->etag);
    if (a->io.code) {
        *e = a->io;
        return -e->code;
    }
    if (store_is_stopped(s))
        return err_set(e, ERR_STOPPED, "%s: stopped by a signal", shown);
    if (a->too_long)
        return err_set(e, ERR_INTEGRITY,
                       "%s: the server sent more than was asked for: is there a broken proxy", shown);
    if (a->encoded)
        return err_set(e, ERR_FORMAT,
                       "%s: the server sent it compressed though that was refused: is there a broken proxy",
                       shown);
    if (a->status == 200 && a->accept == 206 && *info->etag && !strcmp(info->etag, a->etag))
        return err_set(e, ERR_FILE,
                       "%s: the server gave ranges before, and now the whole file: try again later", shown);
    if (store_is_version(info->etag) && (a->status == 412 || (a->status == a->accept && !same)))
        return other_version(shown, e);
    if ((a->status == 200 && a->accept == 206) || a->status == 412 || a->status == 416)
        return changed(shown, e);
    if (a->status == 206 && a->accept == 206 && a->total >= 0 && a->total != info->bytes)
        return changed(shown, e);
    if (a->status == 206 && a->accept == 206 && a->first != a->off)
        return err_set(e, ERR_INTEGRITY,
                       "%s: byte %lld of %lld was asked for, the server sent %lld: is there a broken proxy",
                       shown, (long long)a->off, (long long)info->bytes, (long long)a->first);
    if (a->status == a->accept && !same)
        return changed(shown, e);
    if (a->status >= 300 && !store_can_pass(a->status))
        return store_refused(s, shown, a, e);
    return is_final(a, code) ? err_set(e, ERR_FILE, "%s: %s: check the URL and the network", shown, why) : 0;
}

static int get_all(struct store *s, const char *name, const struct store_info *info, struct answer *a,
                   int64_t off, int64_t n, struct err *e)
{
    struct place p;
    char why[CURL_ERROR_SIZE], *dst = a->dst;
    int64_t done = 0;
    int rc = store_place(s, name, &p, e);
    for (int tries = 0; rc >= 0 && done < n;) {
        if (a->accept == 200)
            done = 0; /* without ranges each request begins at the front */
        a->dst = dst ? dst + done : NULL;
        a->off = off + done;
        a->most = n - done;
        a->got = 0;
        CURLcode code = http_get(s, p.url, a->off, a->accept == 206 ? off + n - 1 : -1, info->etag, a, why);
        if ((rc = judge(s, p.shown, a, code, info, why, e)) < 0)
            break;
        done += a->got;
        if (done == n)
            break;
        tries = a->got >= PROGRESS && a->accept == 206 ? 0 : tries + 1;
        if (tries > STORE_TRIES)
            return a->status >= 300 ? store_refused(s, p.shown, a, e)
                                    : err_set(e, ERR_FILE, "%s: stopped at byte %lld of %lld: %s: try again",
                                              p.shown, (long long)(off + done), (long long)info->bytes, why);
        rc = store_wait(s, p.shown, a, tries > 0 ? tries - 1 : 0, e);
    }
    return rc < 0 ? rc : 0;
}

int store_read(struct store *s, const char *name, const struct store_info *info, int64_t off, int64_t n,
               void *dst, struct err *e)
{
    struct answer a = {
        .s = s, .linked_bytes = -1, .dst = dst, .accept = info->ranges ? 206 : 200, .fd = -1
    };
    if (s->local)
        return n ? local_read(s, name, info, off, n, dst, e) : 0;
    if (!info->ranges && (off || n != info->bytes))
        return err_set(e, ERR_INTERNAL,
                       "a part of a file was asked for where there are no ranges: please report it");
    return n ? get_all(s, name, info, &a, off, n, e) : 0;
}

int store_copy(struct store *s, const char *name, const struct store_info *info, int fd, const char *path,
               struct err *e)
{
    struct answer a = { .s = s, .linked_bytes = -1, .fd = fd, .path = path, .accept = 200 };
    return get_all(s, name, info, &a, 0, info->bytes, e);
}
