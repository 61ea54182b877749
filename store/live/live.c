/* live.c - see live.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem */
#endif
#include "store/live.h"

#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "base/jx.h"
#include "store/store.h"

#define ANSWER_MAX 4096                      /* bytes */
#define NO_VERSION "there is no version yet" /* in the answer of a pshare that has none */
#define LATE_S 20                            /* a server may answer so much later than it was asked to */

struct taken {
    char text[ANSWER_MAX];
    size_t n;
    const volatile sig_atomic_t *stop;
};

static size_t take(char *data, size_t size, size_t n, void *arg)
{
    struct taken *t = arg;
    if (size * n > sizeof t->text - t->n)
        return 0;
    memcpy(t->text + t->n, data, size * n);
    t->n += size * n;
    return size * n;
}

static int look(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct taken *t = arg;
    (void)a, (void)b, (void)c, (void)d;
    return t->stop && *t->stop;
}

/* One GET. Returns the status, or 0 with why[CURL_ERROR_SIZE]. */
static long get(const char *url, int timeout_s, struct taken *t, char *why)
{
    CURL *h = curl_easy_init();
    long status = 0;
    snprintf(why, CURL_ERROR_SIZE, "no memory for a connection");
    if (!h)
        return 0;
    why[0] = 0;
    curl_easy_setopt(h, CURLOPT_URL, url);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT, 10L);
    curl_easy_setopt(h, CURLOPT_TIMEOUT, (long)timeout_s);
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, look);
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, t);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "shardline");
    CURLcode code = curl_easy_perform(h);
    if (code == CURLE_OK)
        curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &status);
    else if (!*why)
        snprintf(why, CURL_ERROR_SIZE, "%s", curl_easy_strerror(code));
    curl_easy_cleanup(h);
    return status;
}

static int parse(const struct taken *t, struct live_version *v)
{
    struct err ignored;
    json_t *j = jx_parse(t->text, t->n, "the answer", &ignored);
    const json_t *n = json_object_get(j, "version");
    const char *digest = json_string_value(json_object_get(j, "weights_digest"));
    int ok = json_is_integer(n) && json_integer_value(n) >= 0 && digest && strlen(digest) == 32 &&
             strspn(digest, "0123456789abcdef") == 32;
    if (ok) {
        v->version = json_integer_value(n);
        memcpy(v->digest, digest, sizeof v->digest);
    }
    json_decref(j);
    return ok;
}

/* query: of the request, with its "?"; or "". */
static int ask(const char *url, const char *query, int wait_s, const volatile sig_atomic_t *stop,
               struct live_version *v, struct err *e)
{
    char at[4200], shown[4200], why[CURL_ERROR_SIZE];
    struct taken t = { .stop = stop };
    size_t n = strcspn(url, "?#");
    while (n && url[n - 1] == '/')
        n--;
    if (n > 4096)
        return err_set(e, ERR_USAGE, "%.60s…: the URL has %zu bytes, at most 4096 are taken",
                       url_shown(url, shown, sizeof shown), n);
    snprintf(at, sizeof at, "%.*s/version%s", (int)n, url, query);

    url_shown(at, shown, sizeof shown);
    long status = get(at, wait_s + LATE_S, &t, why);
    if (stop && *stop)
        return err_set(e, ERR_STOPPED, "%s: stopped by a signal", url_shown(url, shown, sizeof shown));
    if (!status)
        return err_set(e, ERR_FILE, "%s: %s", shown, why);
    if (status == 204 || (status == 503 && memmem(t.text, t.n, NO_VERSION, sizeof NO_VERSION - 1)))
        return 0;
    if (status != 200)
        return err_set(e, ERR_FILE, "%s: status %ld: is a trainer's --publish, or pshare, at this address",
                       shown, status);
    return parse(&t, v) ? 1
                        : err_set(e, ERR_FORMAT,
                                  "%s: the answer has no version and weights_digest: is a trainer's "
                                  "--publish, or pshare, at this address",
                                  shown);
}

int live_version_get(const char *url, int64_t after, int wait_s, const volatile sig_atomic_t *stop,
                     struct live_version *v, struct err *e)
{
    char query[64] = "";
    if (after >= 0)
        snprintf(query, sizeof query, "?after=%lld&timeout=%d", (long long)after, wait_s);
    return ask(url, query, wait_s, stop, v, e);
}

int live_version_hold(const char *url, int64_t after, const volatile sig_atomic_t *stop,
                      struct live_version *v, struct err *e)
{
    char query[64] = "?hold=1";
    if (after >= 0)
        snprintf(query, sizeof query, "?after=%lld&timeout=0&hold=1", (long long)after);
    return ask(url, query, 0, stop, v, e);
}
