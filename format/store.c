/* store.c - see store.h. One request asks for one range; what can pass (a cut connection, 408, 429, 5xx, a stall) is tried again
 * from where it stopped, later each time; what cannot is an error at once. */
#include "format/store.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include "base/io.h"

#define TRIES 6                     /* without progress */
#define LONGEST_WAIT_S 60.0
#define IDLE_MAX 16                 /* connections kept */

struct store {
    char base[2048], tail[256];     /* a file's URL: base, name, tail */
    char token[512], user[512], session[2100], sigv4[128];
    long stall_s;
    pthread_mutex_t lock;
    CURL *idle[IDLE_MAX];
    int n_idle;
    _Atomic int64_t received;
};

int store_is_url(const char *path)
{
    static const char *const schemes[] = { "http://", "https://", "s3://", "hf://" };
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (!strncmp(path, schemes[i], strlen(schemes[i])))
            return 1;
    return 0;
}

/* ---- what a URL means ---- */

static const char *env_or(const char *name, const char *otherwise)
{
    const char *v = getenv(name);
    return v && *v ? v : otherwise;
}

static int open_http(struct store *s, const char *url, struct err *e)
{
    const char *query = strchr(url, '?');
    size_t n = query ? (size_t)(query - url) : strlen(url);
    if (n + 2 >= sizeof s->base || (query && strlen(query) >= sizeof s->tail))
        return err_set(e, ERR_USAGE, "a URL of %zu bytes: use a shorter one", strlen(url));
    while (n && url[n - 1] == '/')
        n--;
    snprintf(s->base, sizeof s->base, "%.*s", (int)n, url);
    snprintf(s->tail, sizeof s->tail, "%s", query ? query : "");
    return 0;
}

/* hf://owner/name[@revision][/folder] */
static int open_hf(struct store *s, const char *url, struct err *e)
{
    char owner[128], name[160], revision[128] = "main", *at;
    if (sscanf(url + 5, "%127[^/]/%159[^/]", owner, name) != 2)
        return err_set(e, ERR_USAGE, "%s: give hf://owner/name or hf://owner/name@revision", url);
    if ((at = strchr(name, '@'))) {
        *at = 0;
        snprintf(revision, sizeof revision, "%s", at + 1);
    }
    const char *rest = strchr(strchr(url + 5, '/') + 1, '/');
    snprintf(s->base, sizeof s->base, "%s/%s/%s/resolve/%s%s", env_or("HF_ENDPOINT", "https://huggingface.co"), owner, name, revision, rest ? rest : "");
    snprintf(s->token, sizeof s->token, "%s", env_or("HF_TOKEN", ""));
    return 0;
}

static int open_s3(struct store *s, const char *url, struct err *e)
{
    char bucket[256], region[64];
    const char *key = strchr(url + 5, '/'), *endpoint = env_or("AWS_ENDPOINT_URL", NULL), *id = env_or("AWS_ACCESS_KEY_ID", NULL);
    size_t n = key ? (size_t)(key - url - 5) : strlen(url + 5);
    if (n == 0 || n >= sizeof bucket)
        return err_set(e, ERR_USAGE, "%s: give s3://bucket/prefix", url);
    snprintf(bucket, sizeof bucket, "%.*s", (int)n, url + 5);
    snprintf(region, sizeof region, "%s", env_or("AWS_REGION", env_or("AWS_DEFAULT_REGION", "us-east-1")));
    if (endpoint)
        snprintf(s->base, sizeof s->base, "%s/%s%s", endpoint, bucket, key ? key : "");
    else
        snprintf(s->base, sizeof s->base, "https://%s.s3.%s.amazonaws.com%s", bucket, region, key ? key : "");
    for (n = strlen(s->base); n && s->base[n - 1] == '/'; n--)
        s->base[n - 1] = 0;
    if (id) {
        snprintf(s->user, sizeof s->user, "%s:%s", id, env_or("AWS_SECRET_ACCESS_KEY", ""));
        snprintf(s->sigv4, sizeof s->sigv4, "aws:amz:%s:s3", region);
        if (getenv("AWS_SESSION_TOKEN"))
            snprintf(s->session, sizeof s->session, "x-amz-security-token: %s", getenv("AWS_SESSION_TOKEN"));
    }
    return 0;
}

int store_open(struct store **out, const char *url, struct err *e)
{
    static const struct { const char *scheme; int (*open)(struct store *s, const char *url, struct err *e); } kinds[] = {
        { "hf://", open_hf }, { "s3://", open_s3 }, { "http", open_http },
    };
    struct store *s = calloc(1, sizeof *s);
    size_t k = 0;
    if (!s || curl_global_init(CURL_GLOBAL_DEFAULT)) {
        free(s);
        return err_set(e, ERR_MEMORY, "%s: no room for a connection", url);
    }
    pthread_mutex_init(&s->lock, NULL);
    s->stall_s = atol(env_or("SHARDLINE_STALL_S", "20"));
    while (strncmp(url, kinds[k].scheme, strlen(kinds[k].scheme)))
        k++;
    int rc = kinds[k].open(s, url, e);
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

int64_t store_bytes(const struct store *s)
{
    return atomic_load(&((struct store *)s)->received);
}

/* ---- one request ---- */

struct answer {                     /* of the last response: a redirect's headers are forgotten, but for what the hub says in them */
    struct store *s;
    long status;
    int64_t length, first, total;   /* -1: not said; first, total: of Content-Range */
    double retry_after_s;
    int encoded, accept;
    char etag[160], modified[160], linked_etag[160];
    int64_t linked_bytes;
    /* the body */
    char *dst;
    int fd;                         /* dst NULL: to this file, from byte `off` */
    const char *path;
    int64_t off, room, got;
    int too_long, probe;
    struct err io;
};

static void take_etag(char out[160], const char *value)
{
    size_t n = strcspn(value, "\r\n");
    out[0] = 0;
    if (n < 160 && strncmp(value, "W/", 2))        /* a weak one says nothing about bytes */
        snprintf(out, 160, "%.*s", (int)n, value);
}

static size_t on_header(char *line, size_t size, size_t n, void *arg)
{
    struct answer *a = arg;
    char text[512], *value;
    long long first, total;
    snprintf(text, sizeof text, "%.*s", (int)(size * n < 511 ? size * n : 511), line);
    if (!strncmp(text, "HTTP/", 5)) {
        a->length = a->first = a->total = -1;
        a->retry_after_s = a->encoded = 0;
        a->etag[0] = a->modified[0] = 0;
        a->status = strchr(text, ' ') ? atol(strchr(text, ' ')) : 0;
        return size * n;
    }
    if (!(value = strchr(text, ':')))
        return size * n;
    *value++ = 0;
    value += strspn(value, " \t");
    if (!strcasecmp(text, "content-length"))
        a->length = atoll(value);
    else if (!strcasecmp(text, "content-range")) {
        if (sscanf(value, "bytes %lld-%*d/%lld", &first, &total) == 2) {
            a->first = first;
            a->total = total;
        } else if (sscanf(value, "bytes */%lld", &total) == 1)
            a->total = total;
    } else if (!strcasecmp(text, "etag"))
        take_etag(a->etag, value);
    else if (!strcasecmp(text, "last-modified"))
        take_etag(a->modified, value);
    else if (!strcasecmp(text, "x-linked-etag"))
        take_etag(a->linked_etag, value);
    else if (!strcasecmp(text, "x-linked-size"))
        a->linked_bytes = atoll(value);
    else if (!strcasecmp(text, "retry-after"))
        a->retry_after_s = atof(value);
    else if (!strcasecmp(text, "content-encoding"))
        a->encoded = strncasecmp(value, "identity", 8) != 0;
    return size * n;
}

/* Takes bytes only of the answer that was asked for: a page that explains an error is not data. */
static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    struct answer *a = arg;
    int64_t m = (int64_t)(size * n);
    if (a->probe)
        return a->status == 206 ? size * n : 0;         /* a whole file is not read only to learn its length */
    if (a->status != a->accept || a->encoded || (a->accept == 206 && a->first != a->off))
        return a->status >= 300 || a->status < 200 ? size * n : 0;
    if (a->got + m > a->room) {
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

static CURL *take_handle(struct store *s)
{
    CURL *h = NULL;
    pthread_mutex_lock(&s->lock);
    if (s->n_idle)
        h = s->idle[--s->n_idle];
    pthread_mutex_unlock(&s->lock);
    return h ? h : curl_easy_init();
}

static void give_handle(struct store *s, CURL *h)
{
    pthread_mutex_lock(&s->lock);
    if (s->n_idle < IDLE_MAX) {
        s->idle[s->n_idle++] = h;
        h = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    if (h)
        curl_easy_cleanup(h);
}

static void set_options(struct store *s, CURL *h, const char *url, struct curl_slist *headers, struct answer *a, char *why)
{
    const char *follow = strncmp(url, "https", 5) ? "http,https" : "https";       /* never down to http, never to a file */
    curl_easy_reset(h);
    curl_easy_setopt(h, CURLOPT_URL, url);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_REDIR_PROTOCOLS_STR, follow);
    curl_easy_setopt(h, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(h, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT, 20L);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1000L);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, s->stall_s);
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(h, CURLOPT_HEADERDATA, a);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, a);
    curl_easy_setopt(h, CURLOPT_BUFFERSIZE, 256L << 10);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "shardline");
    if (*s->token) {                    /* curl sends it to the first host only */
        curl_easy_setopt(h, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        curl_easy_setopt(h, CURLOPT_XOAUTH2_BEARER, s->token);
    }
    if (*s->user) {
        curl_easy_setopt(h, CURLOPT_AWS_SIGV4, s->sigv4);
        curl_easy_setopt(h, CURLOPT_USERPWD, s->user);
    }
}

/* One GET of [off, end] (end -1: the whole file); etag: only of that version. */
static CURLcode get_once(struct store *s, const char *url, int64_t off, int64_t end, const char *etag, struct answer *a, char *why)
{
    char range[96], cond[200];
    CURL *h = take_handle(s);
    struct curl_slist *headers = curl_slist_append(NULL, "Accept-Encoding: identity");
    if (!h || !headers)
        return CURLE_OUT_OF_MEMORY;
    if (end >= 0) {
        snprintf(range, sizeof range, "Range: bytes=%lld-%lld", (long long)off, (long long)end);
        headers = curl_slist_append(headers, range);
    }
    if (end >= 0 && *etag) {
        snprintf(cond, sizeof cond, "If-Range: %s", etag);
        headers = curl_slist_append(headers, cond);
    }
    if (*s->session)
        headers = curl_slist_append(headers, s->session);
    why[0] = 0;
    a->status = 0;
    set_options(s, h, url, headers, a, why);
    CURLcode code = curl_easy_perform(h);
    if (!*a->etag)
        snprintf(a->etag, sizeof a->etag, "%s", a->modified);        /* If-Range takes a date too */
    if (!*why)
        snprintf(why, CURL_ERROR_SIZE, "%s", curl_easy_strerror(code));
    curl_slist_free_all(headers);
    give_handle(s, h);
    return code;
}

/* ---- again, later ---- */

static int can_pass(long status)
{
    return status == 0 || status == 408 || status == 429 || status >= 500;
}

static void wait_before(int tries, double asked_s)
{
    double s = asked_s > 0 ? asked_s : 0.25 * (1 << tries);
    if (s > LONGEST_WAIT_S)
        s = LONGEST_WAIT_S;
    struct timespec t = { (time_t)s, (long)((s - (double)(time_t)s) * 1e9) };
    nanosleep(&t, NULL);
}

static int refused(const char *url, long status, struct err *e)
{
    static const struct { long status; const char *what; } known[] = {
        { 401, "access is refused: set HF_TOKEN, AWS_ACCESS_KEY_ID or use a signed URL" },
        { 403, "access is forbidden: has the token or key the right to read it, is a signed URL too old" },
        { 404, "there is no such file" }, { 408, "the server gave up waiting" },
        { 429, "the server asks for fewer requests: try again later" }, { 503, "the server is overloaded: try again later" },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].status == status)
            return err_set(e, ERR_FILE, "%s: status %ld: %s", url, status, known[i].what);
    return err_set(e, ERR_FILE, "%s: status %ld: try again later or look at the server", url, status);
}

static int url_of(const struct store *s, const char *name, char url[2600], struct err *e)
{
    int n = snprintf(url, 2600, "%s%s%s%s", s->base, *name ? "/" : "", name, s->tail);
    return n < 2600 ? 0 : err_set(e, ERR_USAGE, "the URL of %s is too long", name);
}

int store_stat(struct store *s, const char *name, struct store_info *info, struct err *e)
{
    char url[2600], why[CURL_ERROR_SIZE];
    int rc = url_of(s, name, url, e);
    memset(info, 0, sizeof *info);
    for (int tries = 0; rc >= 0; tries++) {
        struct answer a = { .s = s, .length = -1, .first = -1, .total = -1, .linked_bytes = -1, .probe = 1, .fd = -1 };
        CURLcode code = get_once(s, url, 0, 0, "", &a, why);
        int answered = a.status == 206 || a.status == 200 || a.status == 416;
        if (a.status == 404 || a.status == 410)
            return 0;
        if (answered && (code == CURLE_OK || code == CURLE_WRITE_ERROR)) {
            info->ranges = a.status != 200;
            info->bytes = a.status == 200 ? a.length : a.total;
            if (a.linked_bytes >= 0 && a.status == 200)
                info->bytes = a.linked_bytes;
            if (a.encoded)
                return err_set(e, ERR_FORMAT, "%s: the server sends it compressed though that was refused: is there a broken proxy", url);
            if (info->bytes < 0)
                return err_set(e, ERR_FORMAT, "%s: the server does not say how long it is: download it with another program", url);
            snprintf(info->etag, sizeof info->etag, "%s", a.etag);
            if (strlen(a.linked_etag) == 66)
                snprintf(info->sha256, sizeof info->sha256, "%.64s", a.linked_etag + 1);
            return 1;
        }
        if (code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_UNSUPPORTED_PROTOCOL || (a.status && !can_pass(a.status)) || tries == TRIES)
            return a.status >= 400 ? refused(url, a.status, e) : err_set(e, ERR_FILE, "%s: %s: check the URL and the network", url, why);
        wait_before(tries, a.retry_after_s);
    }
    return rc;
}

/* What the answer to a range may be; 0: fine so far, go on where it stopped. */
static int judge(const char *url, const struct answer *a, CURLcode code, const struct store_info *info, const char *why, struct err *e)
{
    if (a->io.code) {
        *e = a->io;
        return -e->code;
    }
    if (a->too_long)
        return err_set(e, ERR_INTEGRITY, "%s: the server sent more than was asked for: is there a broken proxy", url);
    if (a->encoded)
        return err_set(e, ERR_FORMAT, "%s: the server sent it compressed though that was refused: is there a broken proxy", url);
    if ((a->status == 200 && a->accept == 206) || a->status == 412 || a->status == 416)
        return err_set(e, ERR_INTEGRITY, "%s: changed while it was read: start again", url);
    if (a->status == 206 && a->accept == 206 && (a->first != a->off || (a->total >= 0 && a->total != info->bytes)))
        return err_set(e, ERR_INTEGRITY, "%s: byte %lld of %lld was asked for, the server sent %lld of %lld: is there a broken proxy", url,
                       (long long)a->off, (long long)info->bytes, (long long)a->first, (long long)a->total);
    if (a->status == a->accept && *info->etag && *a->etag && strcmp(info->etag, a->etag))
        return err_set(e, ERR_INTEGRITY, "%s: changed while it was read: start again", url);
    if (a->status >= 300 && !can_pass(a->status))
        return refused(url, a->status, e);
    if (code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_PEER_FAILED_VERIFICATION)
        return err_set(e, ERR_FILE, "%s: %s: check the URL and the network", url, why);
    return 0;
}

static int get_all(struct store *s, const char *name, const struct store_info *info, struct answer *a, int64_t off, int64_t n, struct err *e)
{
    char url[2600], why[CURL_ERROR_SIZE], *dst = a->dst;
    int64_t done = 0;
    int rc = url_of(s, name, url, e);
    for (int tries = 0; rc >= 0 && done < n;) {
        if (a->accept == 200)
            done = 0;                   /* without ranges it starts at the front each time */
        a->dst = dst ? dst + done : NULL;
        a->off = off + done;
        a->room = n - done;
        a->got = 0;
        CURLcode code = get_once(s, url, a->off, a->accept == 206 ? off + n - 1 : -1, info->etag, a, why);
        if ((rc = judge(url, a, code, info, why, e)) < 0)
            break;
        done += a->got;
        if (done == n)
            break;
        tries = a->got && a->accept == 206 ? 0 : tries + 1;
        if (tries > TRIES)
            return a->status >= 300 ? refused(url, a->status, e)
                                    : err_set(e, ERR_FILE, "%s: stopped at byte %lld of %lld: %s: try again", url, (long long)(off + done),
                                              (long long)info->bytes, why);
        wait_before(tries > 0 ? tries - 1 : 0, a->retry_after_s);
    }
    return rc < 0 ? rc : 0;
}

int store_read(struct store *s, const char *name, const struct store_info *info, int64_t off, int64_t n, void *dst, struct err *e)
{
    struct answer a = { .s = s, .linked_bytes = -1, .dst = dst, .accept = info->ranges ? 206 : 200, .fd = -1 };
    if (!info->ranges && (off || n != info->bytes))
        return err_set(e, ERR_INTERNAL, "a part of a file was asked for where there are no ranges: please report it");
    return n ? get_all(s, name, info, &a, off, n, e) : 0;
}

int store_copy(struct store *s, const char *name, const struct store_info *info, int fd, const char *path, struct err *e)
{
    struct answer a = { .s = s, .linked_bytes = -1, .fd = fd, .path = path, .accept = 200 };
    return get_all(s, name, info, &a, 0, info->bytes, e);
}
