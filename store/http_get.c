/* http_get.c - one GET over libcurl: its headers, the headers of the answer, and where the body goes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include "base/clock.h"
#include "base/io.h"
#include "store/store_priv.h"

/* A server may send headers, the body of a redirect or of an error, or hints (status 103) without an end.
 * OTHER_MAX: bytes that are not data, of one answer and the redirects before it. OTHER_STALLS: the first byte
 * of data must come within so many times the stall limit. */
#define OTHER_MAX ((int64_t)256 << 10)
#define OTHER_STALLS 6

/* ---- the answer ---- */

/* Counts bytes that are not data. 0: there are too many. */
static int count_other(struct answer *a, int64_t n)
{
    a->other_bytes += n;
    if (a->other_bytes > OTHER_MAX)
        a->endless = "the server sent 256 KiB that are not the file";
    return !a->endless;
}

static void take_text(char *out, size_t room, const char *value)
{
    size_t n = strcspn(value, "\r\n");
    out[0] = 0;
    if (n < room)
        snprintf(out, room, "%.*s", (int)n, value);
}

static void take_etag(struct answer *a, const char *value)
{
    if (strncmp(value, "W/", 2)) /* a weak one does not identify bytes */
        take_text(a->etag, sizeof a->etag, value);
}

static void take_range(struct answer *a, const char *value)
{
    long long first, total;
    if (sscanf(value, "bytes %lld-%*d/%lld", &first, &total) == 2) {
        a->first = first;
        a->total = total;
    } else if (sscanf(value, "bytes */%lld", &total) == 1)
        a->total = total;
}

/* Seconds, or a date. */
static void take_retry(struct answer *a, const char *value)
{
    char text[64], *end;
    take_text(text, sizeof text, value);
    double s = strtod(text, &end);
    if (end == text) {
        time_t when = curl_getdate(text, NULL);
        s = when < 0 ? 0 : difftime(when, time(NULL));
    }
    a->retry_after_s = s > 0 ? s : 0;
}

static void take_length(struct answer *a, const char *value) { a->length = atoll(value); }
static void take_modified(struct answer *a, const char *value)
{
    take_text(a->modified, sizeof a->modified, value);
}
static void take_linked_etag(struct answer *a, const char *value)
{
    take_text(a->linked_etag, sizeof a->linked_etag, value);
}
static void take_linked_size(struct answer *a, const char *value) { a->linked_bytes = atoll(value); }
static void take_commit(struct answer *a, const char *value)
{
    take_text(a->commit, sizeof a->commit, value);
}
static void take_region(struct answer *a, const char *value)
{
    take_text(a->region, sizeof a->region, value);
}
static void take_same_machine(struct answer *a, const char *value)
{
    take_text(a->same_machine, sizeof a->same_machine, value);
}
static void take_encoding(struct answer *a, const char *value)
{
    a->encoded = strncasecmp(value, "identity", 8) != 0;
}

static const struct {
    const char *name;
    void (*take)(struct answer *a, const char *value);
} headers[] = {
    { "content-length", take_length },
    { "content-range", take_range },
    { "etag", take_etag },
    { "last-modified", take_modified },
    { "retry-after", take_retry },
    { "content-encoding", take_encoding },
    { "x-linked-etag", take_linked_etag },
    { "x-linked-size", take_linked_size },
    { "x-repo-commit", take_commit },
    { "x-amz-bucket-region", take_region },
    { SAME_MACHINE_HEADER, take_same_machine },
};

size_t http_on_header(char *line, size_t size, size_t n, void *arg)
{
    struct answer *a = arg;
    char text[512], *value;
    if (!count_other(a, (int64_t)(size * n)))
        return 0;
    snprintf(text, sizeof text, "%.*s", (int)(size * n < 511 ? size * n : 511), line);
    if (!strncmp(text, "HTTP/", 5)) {
        a->length = a->first = a->total = -1;
        a->retry_after_s = a->encoded = 0;
        a->etag[0] = a->modified[0] = a->same_machine[0] = 0;
        a->status = strchr(text, ' ') ? atol(strchr(text, ' ')) : 0;
        return size * n;
    }
    if (!(value = strchr(text, ':')))
        return size * n;
    *value++ = 0;
    value += strspn(value, " \t");
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        if (!strcasecmp(text, headers[i].name))
            headers[i].take(a, value);
    return size * n;
}

/* Takes the body of the expected answer only: a page that explains an error is not data. */
static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    struct answer *a = arg;
    int64_t m = (int64_t)(size * n);
    if (a->probe && a->status < 300) { /* a whole file is not read only to learn its length */
        a->got += m;
        return a->status == 206 && a->got == 1 ? size * n : 0;
    }
    if (a->status >= 300 || a->status < 200)
        return count_other(a, m) ? size * n : 0;
    if (a->status != a->accept || a->encoded || (a->accept == 206 && a->first != a->off))
        return 0;
    if (a->got + m > a->most) {
        a->too_long = 1;
        return 0;
    }
    if (a->dst)
        memcpy(a->dst + a->got, data, (size_t)m);
    else if (io_pwrite(a->fd, a->path, data, (size_t)m, a->off + a->got, &a->io) < 0)
        return 0;
    a->got += m;
    atomic_fetch_add(&a->s->received, m);
    return size * n;
}

/* received: of a body. Those of redirects do not reach on_body. */
static int on_progress(void *arg, curl_off_t total, curl_off_t received, curl_off_t c, curl_off_t d)
{
    struct answer *a = arg;
    (void)total, (void)c, (void)d;
    if (!a->got && received > OTHER_MAX)
        count_other(a, received);
    if (!a->got && clock_ns() - a->begin_ns > OTHER_STALLS * a->s->stall_s * SECOND_NS)
        a->endless = "the server sends and sends, but not the file";
    return a->endless || store_is_stopped(a->s);
}

/* ---- the request ---- */

CURL *http_acquire(struct store *s)
{
    CURL *h = NULL;
    pthread_mutex_lock(&s->lock);
    if (s->n_idle)
        h = s->idle[--s->n_idle];
    pthread_mutex_unlock(&s->lock);
    return h ? h : curl_easy_init();
}

void http_release(struct store *s, CURL *h)
{
    pthread_mutex_lock(&s->lock);
    if (s->n_idle < STORE_IDLE) {
        s->idle[s->n_idle++] = h;
        h = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    if (h)
        curl_easy_cleanup(h);
}

void http_options(struct store *s, CURL *h, const char *url, struct curl_slist *lines, struct answer *a,
                  char *why)
{
    /* never down to http, never to a file */
    const char *follow = strncmp(url, "https", 5) ? "http,https" : "https";
    curl_easy_reset(h);
    curl_easy_setopt(h, CURLOPT_URL, url);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_REDIR_PROTOCOLS_STR, follow);
    curl_easy_setopt(h, CURLOPT_FOLLOWLOCATION, s->s3 ? 0L : 1L);
    curl_easy_setopt(h, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT, 20L);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1000L);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, s->stall_s);
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, lines);
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, http_on_header);
    curl_easy_setopt(h, CURLOPT_HEADERDATA, a);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, a);
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, a);
    curl_easy_setopt(h, CURLOPT_BUFFERSIZE, 256L << 10);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "shardline");
    if (*s->token) { /* curl sends it to the first host only */
        curl_easy_setopt(h, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        curl_easy_setopt(h, CURLOPT_XOAUTH2_BEARER, s->token);
    }
}

int http_add_line(struct curl_slist **lines, const char *line)
{
    struct curl_slist *grown = *line ? curl_slist_append(*lines, line) : NULL;
    if (*line && !grown)
        return -1;
    *lines = grown ? grown : *lines;
    return 0;
}

int http_add_signature(const struct store *s, const struct sigv4_request *q, struct curl_slist **lines)
{
    struct sigv4_lines l;
    if (!*s->aws.id)
        return 0;
    if (sigv4_sign_request(&l, &s->aws, q, time(NULL)) < 0)
        return -1;
    return http_add_line(lines, l.content) < 0 || http_add_line(lines, l.date) < 0 ||
                   http_add_line(lines, l.session) < 0 || http_add_line(lines, l.authorization) < 0
               ? -1
               : 0;
}

/* Was the last request of h sent to this machine? */
static int is_loopback(CURL *h)
{
    const char *ip = NULL;
    return curl_easy_getinfo(h, CURLINFO_PRIMARY_IP, &ip) == CURLE_OK && ip &&
           (!strncmp(ip, "127.", 4) || !strcmp(ip, "::1") || !strncmp(ip, "::ffff:127.", 11));
}

CURLcode http_get(struct store *s, const char *url, int64_t off, int64_t end, const char *etag,
                  struct answer *a, char *why)
{
    char range[96] = "Range: ", condition[200] = "";
    struct curl_slist *lines = NULL;
    struct sigv4_request sign = { "GET", url, "", range + 7, NULL };
    CURL *h = http_acquire(s);
    if (end >= 0)
        snprintf(range + 7, sizeof range - 7, "bytes=%lld-%lld", (long long)off, (long long)end);
    if (*s->version)
        etag = s->version;
    if (store_is_version(etag)) /* also of requests without a range */
        snprintf(condition, sizeof condition, "If-Match: %s", etag);
    else if (end >= 0 && *etag) /* S3 knows no If-Range */
        snprintf(condition, sizeof condition, "%s: %s", s->s3 && *etag == '"' ? "If-Match" : "If-Range",
                 etag);
    why[0] = 0;
    a->status = a->encoded = 0;
    a->retry_after_s = 0;
    a->other_bytes = 0;
    a->endless = NULL;
    a->begin_ns = clock_ns();
    CURLcode code = h && http_add_line(&lines, "Accept-Encoding: identity") >= 0 &&
                            http_add_line(&lines, range[7] ? range : "") >= 0 &&
                            http_add_line(&lines, condition) >= 0 && http_add_signature(s, &sign, &lines) >= 0
                        ? CURLE_OK
                        : CURLE_OUT_OF_MEMORY;
    if (code == CURLE_OK) {
        http_options(s, h, url, lines, a, why);
        code = curl_easy_perform(h);
        if (*a->same_machine && !is_loopback(h)) /* numbers of another machine's files */
            *a->same_machine = 0;
    }
    if (!*a->etag)
        memcpy(a->etag, a->modified, sizeof a->etag); /* If-Range takes a date too */
    if (code == CURLE_OUT_OF_MEMORY && a->status)
        a->endless = "a header line is too long, or no memory is left";
    if (a->endless || !*why)
        snprintf(why, CURL_ERROR_SIZE, "%s", a->endless ? a->endless : curl_easy_strerror(code));
    curl_slist_free_all(lines);
    if (h)
        http_release(s, h);
    return code;
}
