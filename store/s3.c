/* s3.c - see s3.h: one request with its repeats, and what each kind of request and answer looks like. */
#include "store/s3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/io.h"
#include "store/s3/s3_xml.h"
#include "store/sha256.h"
#include "store/store_priv.h"

#define ANSWER_MAX ((size_t)8 << 20) /* bytes of a page of a list, which has a thousand entries at most */
#define COMPLETE_STALLS 15           /* joining parts may take so many times the stall limit */

struct call {
    const char *method, *name;
    const char *query; /* in canonical form, or "" */
    int on_bucket;     /* 1: of the bucket; name is not used */
    const struct s3_body *body;
    const char *line; /* one more header, or "" */
    int64_t slow;     /* the stall limit times this number */
    /* the answer */
    long status;
    char etag[160], *text;
    size_t n_text;
    /* while it runs */
    struct store *s;
    int64_t sent;
    int too_long;
    struct err io;
};

/* ---- one request ---- */

static size_t on_text(char *data, size_t size, size_t n, void *arg)
{
    struct call *q = arg;
    size_t m = size * n;
    char *grown = q->n_text + m <= ANSWER_MAX ? realloc(q->text, q->n_text + m + 1) : NULL;
    if (!grown) {
        q->too_long = 1;
        return 0;
    }
    q->text = grown;
    memcpy(q->text + q->n_text, data, m);
    q->n_text += m;
    q->text[q->n_text] = 0;
    return m;
}

static size_t on_send(char *out, size_t size, size_t n, void *arg)
{
    struct call *q = arg;
    const struct s3_body *b = q->body;
    int64_t m = (int64_t)(size * n) < b->bytes - q->sent ? (int64_t)(size * n) : b->bytes - q->sent;
    if (b->data)
        memcpy(out, b->data + q->sent, (size_t)m);
    else if (io_pread(b->fd, b->path, out, (size_t)m, b->off + q->sent, &q->io) < 0)
        return CURL_READFUNC_ABORT;
    q->sent += m;
    return (size_t)m;
}

/* libcurl sends again what a connection lost that the server had closed. */
static int on_seek(void *arg, curl_off_t off, int origin)
{
    struct call *q = arg;
    if (origin != SEEK_SET || off < 0 || off > q->body->bytes)
        return CURL_SEEKFUNC_CANTSEEK;
    q->sent = off;
    return CURL_SEEKFUNC_OK;
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct call *q = arg;
    (void)a, (void)b, (void)c, (void)d;
    return store_is_stopped(q->s);
}

static int make_url(const struct store *s, const struct call *q, char url[STORE_URL], char shown[STORE_URL],
                    struct err *e)
{
    struct place p;
    int n, rc = store_place(s, q->on_bucket ? "" : q->name, &p, e);
    if (rc < 0)
        return rc;
    snprintf(shown, STORE_URL, "%s", p.shown);
    if (q->on_bucket)
        n = snprintf(url, STORE_URL, "%.*s%s?%s", s->bucket_bytes, s->base,
                     strchr(strstr(s->base, "://") + 3, '/') < s->base + s->bucket_bytes ? "" : "/",
                     q->query);
    else
        n = snprintf(url, STORE_URL, "%s%s%s", p.url, *q->query ? "?" : "", q->query);
    return n < STORE_URL ? 0 : err_set(e, ERR_USAGE, "%.200s: the URL is too long", p.shown);
}

static int add_lines(const struct store *s, const struct call *q, const char *url, struct curl_slist **lines)
{
    char md5[25] = "", line[64] = "", hash[65];
    struct sigv4_request sign = { q->method, url, "", "", NULL };
    unsigned char sum[32];
    if (q->body) {
        md5_base64(q->body->md5, md5);
        snprintf(line, sizeof line, "Content-MD5: %s", md5);
        sign.md5 = md5;
        sign.payload = SIGV4_UNSIGNED; /* the server checks the body by its MD5, which is signed */
    }
    if (q->body && q->body->data) {
        struct sha256 h;
        sha256_start(&h);
        sha256_add(&h, q->body->data, (size_t)q->body->bytes);
        sha256_end(&h, sum);
        sha256_hex(sum, hash);
        sign.payload = hash;
    }
    return http_add_line(lines, line) < 0 || http_add_line(lines, "Expect:") < 0 ||
                   http_add_line(lines, "Content-Type: application/octet-stream") < 0 ||
                   http_add_line(lines, q->line) < 0 || http_add_signature(s, &sign, lines) < 0
               ? -1
               : 0;
}

static void set_body(CURL *h, struct call *q)
{
    if (q->body) {
        curl_easy_setopt(h, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(h, CURLOPT_INFILESIZE_LARGE, (curl_off_t)q->body->bytes);
        curl_easy_setopt(h, CURLOPT_UPLOAD_BUFFERSIZE, 256L << 10);
        curl_easy_setopt(h, CURLOPT_READFUNCTION, on_send);
        curl_easy_setopt(h, CURLOPT_READDATA, q);
        curl_easy_setopt(h, CURLOPT_SEEKFUNCTION, on_seek);
        curl_easy_setopt(h, CURLOPT_SEEKDATA, q);
    } else if (!strcmp(q->method, "POST")) {
        curl_easy_setopt(h, CURLOPT_POSTFIELDS, "");
    }
    curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, q->method);
}

static CURLcode send_once(struct store *s, struct call *q, const char *url, struct answer *a, char *why)
{
    struct curl_slist *lines = NULL;
    CURL *h = http_acquire(s);
    CURLcode code = h && add_lines(s, q, url, &lines) >= 0 ? CURLE_OK : CURLE_OUT_OF_MEMORY;
    free(q->text);
    q->text = NULL;
    q->n_text = 0;
    q->sent = 0;
    *why = 0;
    if (code == CURLE_OK) {
        http_options(s, h, url, lines, a, why);
        curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_text);
        curl_easy_setopt(h, CURLOPT_WRITEDATA, q);
        curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_progress);
        curl_easy_setopt(h, CURLOPT_XFERINFODATA, q);
        curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, s->stall_s * (q->slow ? q->slow : 1));
        set_body(h, q);
        code = curl_easy_perform(h);
    }
    if (!*why)
        snprintf(why, CURL_ERROR_SIZE, "%s",
                 q->too_long ? "its answer is too long" : curl_easy_strerror(code));
    curl_slist_free_all(lines);
    if (h)
        http_release(s, h);
    return code;
}

/* ---- its errors ---- */

/* What the words of S3 mean for a user. */
static const struct {
    const char *code, *what;
} known[] = {
    { "InvalidAccessKeyId", "the server does not know this key: check AWS_ACCESS_KEY_ID" },
    { "SignatureDoesNotMatch", "the secret does not belong to the key: check AWS_SECRET_ACCESS_KEY" },
    { "ExpiredToken", "the session of the key has ended: get a new AWS_SESSION_TOKEN" },
    { "InvalidToken", "the session does not belong to the key: check AWS_SESSION_TOKEN" },
    { "AccessDenied", "the key has not the right to do that: it needs to list, read, write and delete "
                      "objects there, and to list and abort uploads" },
    { "NoSuchBucket", "there is no such bucket: make it, or check the name and AWS_ENDPOINT_URL" },
    { "NoSuchUpload", "the upload was aborted by another program: start again" },
    { "InvalidPart", "the server lost a part: start again" },
    { "BadDigest", "other bytes arrived than were sent: start again, and check the network" },
    { "QuotaExceeded", "the quota of the bucket is used up: make room" },
    { "XMinioStorageFull", "the server's disk is full: make room" },
};

/* Says why the server refused. Returns the error's code. */
static int refused(const struct store *s, const struct call *q, const char *shown, const struct answer *a,
                   struct err *e)
{
    struct xml_span body = { q->text ? q->text : "", q->n_text };
    char code[80], here[24], there[40];
    time_t now = time(NULL), server;
    struct tm t;
    xml_text(body, "Code", code, sizeof code);
    if (!strcmp(code, "RequestTimeTooSkewed")) {
        gmtime_r(&now, &t);
        strftime(here, sizeof here, "%Y-%m-%dT%H:%M:%SZ", &t);
        xml_text(body, "ServerTime", there, sizeof there);
        server = curl_getdate(there, NULL);
        return err_set(e, ERR_FILE,
                       "%s: status %ld: the clock of this machine says %s, that of the server %s: set it "
                       "right",
                       shown, q->status, here, server < 0 && !*there ? "another time" : there);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(code, known[i].code))
            return err_set(e, ERR_FILE, "%s: status %ld: %s", shown, q->status, known[i].what);
    if (*code && (q->status < 300 || q->status >= 400) && q->status != 503)
        return err_set(e, ERR_FILE, "%s: status %ld: the server says %s: look it up there", shown, q->status,
                       code);
    if (q->status == 403)
        return err_set(e, ERR_FILE, "%s: status 403: access is forbidden: %s", shown,
                       *s->aws.id ? "has the key the right to write there"
                                  : "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    return store_refused(s, shown, a, e);
}

/* S3 may find out that joining parts fails when it has sent the status 200 already. */
static int has_error(const struct call *q)
{
    struct xml_span in = { q->text ? q->text : "", q->n_text }, ignored;
    return q->status == 200 && !strcmp(q->method, "POST") && xml_next(&in, "Error", &ignored);
}

/* Sends a request until it is answered. 1: the answer is in q; 0: it is 404, which the caller allows. */
static int send_call(struct store *s, struct call *q, int may_be_absent, struct err *e)
{
    char url[STORE_URL], shown[STORE_URL], why[CURL_ERROR_SIZE];
    int rc = make_url(s, q, url, shown, e);
    q->s = s;
    for (int tries = 0; rc >= 0; tries++) {
        struct answer a = { .s = s, .length = -1, .first = -1, .total = -1, .linked_bytes = -1, .fd = -1 };
        CURLcode code = send_once(s, q, url, &a, why);
        q->status = a.status;
        snprintf(q->etag, sizeof q->etag, "%s", a.etag);
        if (q->io.code) {
            *e = q->io;
            return -e->code;
        }
        if (store_is_stopped(s))
            return err_set(e, ERR_STOPPED, "%s: stopped by a signal", shown);
        if (code == CURLE_OUT_OF_MEMORY)
            return err_set(e, ERR_MEMORY, "%s: no memory for a request", shown);
        if (code == CURLE_OK && q->status >= 200 && q->status < 300 && !has_error(q))
            return 1;
        if (code == CURLE_OK && q->status == 404 && may_be_absent)
            return 0;

        int again = has_error(q) || (store_can_pass(q->status) && q->status != 501) ||
                    (code != CURLE_OK && q->status < 300);
        if (!again || code == CURLE_PEER_FAILED_VERIFICATION || q->too_long || tries == STORE_TRIES)
            return q->status >= 300 || has_error(q)
                       ? refused(s, q, shown, &a, e)
                       : err_set(e, ERR_FILE, "%s: %s: check the URL and the network", shown, why);
        rc = store_wait(s, shown, &a, tries, e);
    }
    return rc;
}

static int finish(struct call *q, int rc)
{
    free(q->text);
    q->text = NULL;
    return rc < 0 ? rc : 0;
}

static struct s3_body body_of_text(const char *text)
{
    struct s3_body b = { .data = text, .fd = -1, .bytes = (int64_t)strlen(text) };
    struct md5 m;
    md5_start(&m);
    md5_add(&m, text, strlen(text));
    md5_end(&m, b.md5);
    return b;
}

/* Without quotes; "" where it is too long. */
static void take_etag(char out[80], const char *etag)
{
    size_t n = strlen(etag);
    int quoted = n >= 2 && etag[0] == '"' && etag[n - 1] == '"';
    out[0] = 0;
    if (n < 80)
        snprintf(out, 80, "%.*s", (int)(quoted ? n - 2 : n), etag + quoted);
}

/* ---- lists ---- */

static const struct {
    const char *item, *name;
} lists[] = {
    [S3_OBJECTS] = { "Contents", "Key" },
    [S3_UPLOADS] = { "Upload", "Key" },
    [S3_PARTS] = { "Part", "PartNumber" },
};

static void take_item(struct s3_item *out, struct xml_span in, enum s3_list what)
{
    char etag[160];
    memset(out, 0, sizeof *out);
    if (what != S3_PARTS)
        xml_text(in, "Key", out->name, sizeof out->name);
    xml_text(in, "UploadId", out->id, sizeof out->id);
    xml_text(in, what == S3_UPLOADS ? "Initiated" : "LastModified", out->when, sizeof out->when);
    xml_text(in, "ETag", etag, sizeof etag);
    take_etag(out->etag, etag);
    out->bytes = xml_number(in, "Size");
    out->number = xml_number(in, "PartNumber");
}

/* The query of the next page: prefix, and where the page before ended. -1: too long. */
static int page_query(const struct store *s, enum s3_list what, const char *id, struct xml_span before,
                      char *out, size_t room)
{
    char raw[1100], from[3300] = "", more[3300] = "", prefix[3300];
    int n;
    snprintf(raw, sizeof raw, "%s%s", s->prefix, *s->prefix ? "/" : "");
    if (sigv4_encode_value(prefix, sizeof prefix, raw) < 0)
        return -1;
    if (xml_text(before, what == S3_OBJECTS ? "NextContinuationToken" : "NextKeyMarker", raw, sizeof raw) &&
        sigv4_encode_value(from, sizeof from, raw) < 0)
        return -1;
    if (xml_text(before, "NextUploadIdMarker", raw, sizeof raw) &&
        sigv4_encode_value(more, sizeof more, raw) < 0)
        return -1;
    if (what == S3_PARTS) {
        if (xml_text(before, "NextPartNumberMarker", raw, sizeof raw) &&
            sigv4_encode_value(from, sizeof from, raw) < 0)
            return -1;
        n = snprintf(out, room, "%s%s%suploadId=%s", *from ? "part-number-marker=" : "", from,
                     *from ? "&" : "", id);
    } else if (what == S3_OBJECTS) {
        n = snprintf(out, room, "%s%s%slist-type=2&prefix=%s", *from ? "continuation-token=" : "", from,
                     *from ? "&" : "", prefix);
    } else {
        n = snprintf(out, room, "%s%s%sprefix=%s%s%s&uploads=", *from ? "key-marker=" : "", from,
                     *from ? "&" : "", prefix, *more ? "&upload-id-marker=" : "", more);
    }
    return n < (int)room ? 0 : -1;
}

/* The name below the URL, in place. 0: it is not below. */
static int cut_prefix(const struct store *s, char *name)
{
    size_t n = strlen(s->prefix);
    if (n && (strncmp(name, s->prefix, n) || name[n] != '/'))
        return 0;
    n += n > 0;
    memmove(name, name + n, strlen(name + n) + 1);
    return *name != 0;
}

static int visit_page(const struct store *s, enum s3_list what, struct xml_span page,
                      int (*visit)(void *arg, const struct s3_item *item, struct err *e), void *arg,
                      struct err *e)
{
    struct s3_item item;
    struct xml_span one;
    int rc = 0;
    while (rc >= 0 && xml_next(&page, lists[what].item, &one)) {
        take_item(&item, one, what);
        if (what == S3_PARTS || cut_prefix(s, item.name))
            rc = visit(arg, &item, e);
    }
    return rc < 0 ? rc : 0;
}

int s3_list(struct store *s, enum s3_list what, const char *name, const char *id,
            int (*visit)(void *arg, const struct s3_item *item, struct err *e), void *arg, struct err *e)
{
    char query[STORE_URL - 1100], coded[3 * S3_ID], last[STORE_URL - 1100] = "", again[8] = "true";
    struct call q = {
        .method = "GET", .name = name, .query = query, .on_bucket = what != S3_PARTS, .line = ""
    };
    int rc = sigv4_encode_value(coded, sizeof coded, id);
    while (rc >= 0 && !strcmp(again, "true")) {
        struct xml_span page = { q.text ? q.text : "", q.n_text };
        if (page_query(s, what, coded, page, query, sizeof query) < 0 || !strcmp(query, last)) {
            rc = err_set(e, ERR_FORMAT, "s3://.../%s: the server's list does not go on: is it an S3 server",
                         s->prefix);
            break;
        }
        snprintf(last, sizeof last, "%s", query);
        if ((rc = send_call(s, &q, what == S3_PARTS, e)) <= 0)
            break;
        page = (struct xml_span){ q.text ? q.text : "", q.n_text };
        rc = visit_page(s, what, page, visit, arg, e);
        xml_text(page, "IsTruncated", again, sizeof again);
    }
    return finish(&q, rc);
}

/* ---- uploads of parts ---- */

int s3_begin(struct store *s, const char *name, char id[S3_ID], struct err *e)
{
    struct call q = { .method = "POST", .name = name, .query = "uploads=", .line = "" };
    int rc = send_call(s, &q, 0, e);
    struct xml_span text = { q.text ? q.text : "", q.n_text };
    if (rc >= 0 && !xml_text(text, "UploadId", id, S3_ID))
        rc = err_set(e, ERR_FORMAT, "%s: the server gave no id for an upload: is it an S3 server", name);
    return finish(&q, rc);
}

/* The query of an upload. -1: too long. */
static int upload_query(char *out, size_t room, const char *id, int part)
{
    char coded[3 * S3_ID], number[40] = "";
    if (part)
        snprintf(number, sizeof number, "partNumber=%d&", part);
    return sigv4_encode_value(coded, sizeof coded, id) < 0 ||
                   snprintf(out, room, "%suploadId=%s", number, coded) >= (int)room
               ? -1
               : 0;
}

static int too_long(const char *name, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: the server's id of the upload is too long: is it an S3 server", name);
}

int s3_put_part(struct store *s, const char *name, const char *id, int number, const struct s3_body *b,
                char etag[80], struct err *e)
{
    char query[3 * S3_ID + 64];
    struct call q = { .method = "PUT", .name = name, .query = query, .body = b, .line = "" };
    if (upload_query(query, sizeof query, id, number) < 0)
        return too_long(name, e);
    int rc = send_call(s, &q, 0, e);
    take_etag(etag, q.etag);
    if (rc >= 0 && !*etag)
        rc = err_set(e, ERR_FORMAT, "%s: the server gave no ETag for a part: is it an S3 server", name);
    return finish(&q, rc);
}

int s3_complete(struct store *s, const char *name, const char *id, int n, char (*etag)[80], struct err *e)
{
    char query[3 * S3_ID + 64];
    size_t room = 64 + (size_t)n * 160, at = 0;
    char *text = malloc(room);
    if (!text)
        return err_set(e, ERR_MEMORY, "%s: no memory for the list of its parts", name);
    at += (size_t)snprintf(text, room, "<CompleteMultipartUpload>");
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, room - at,
                               "<Part><PartNumber>%d</PartNumber><ETag>\"%s\"</ETag></Part>", i + 1, etag[i]);
    snprintf(text + at, room - at, "</CompleteMultipartUpload>");

    struct s3_body b = body_of_text(text);
    struct call q = {
        .method = "POST", .name = name, .query = query, .body = &b, .line = "", .slow = COMPLETE_STALLS
    };
    int rc = upload_query(query, sizeof query, id, 0) < 0 ? too_long(name, e) : send_call(s, &q, 0, e);
    free(text);
    return finish(&q, rc);
}

int s3_abort(struct store *s, const char *name, const char *id, struct err *e)
{
    char query[3 * S3_ID + 64];
    struct call q = { .method = "DELETE", .name = name, .query = query, .line = "" };
    if (upload_query(query, sizeof query, id, 0) < 0)
        return too_long(name, e);
    return finish(&q, send_call(s, &q, 1, e));
}

/* ---- whole objects ---- */

int s3_put(struct store *s, const char *name, const struct s3_body *b, int only_new, struct err *e)
{
    struct call q = {
        .method = "PUT", .name = name, .query = "", .body = b, .line = only_new ? "If-None-Match: *" : ""
    };
    struct err why = { 0 };
    int rc = send_call(s, &q, 0, &why);
    if (rc < 0 && only_new && q.status == 501) { /* a server that does not know the condition */
        q.line = "";
        rc = send_call(s, &q, 0, &why);
    }
    int is_taken = rc < 0 && only_new && (q.status == 412 || q.status == 409);
    if (rc < 0 && !is_taken)
        *e = why;
    rc = finish(&q, rc);
    return is_taken ? 1 : rc;
}

int s3_delete(struct store *s, const char *name, struct err *e)
{
    struct call q = { .method = "DELETE", .name = name, .query = "", .line = "" };
    return finish(&q, send_call(s, &q, 1, e));
}
