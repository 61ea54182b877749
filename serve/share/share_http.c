/* share_http.c - see share_http.h. A thread a connection: a reader that waits for a version waits in its
 * own. Files go out by sendfile. */
#include "serve/share/share_http.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/io.h"
#include "serve/share/delta_maker.h"
#include "store/same_machine.h"

#define CONNECTIONS 512
#define WAIT_S 600.0     /* the longest wait for a version */
#define DELTA_WAIT_S 2.0 /* the longest wait for a delta; then the reader asks again */

struct share_http {
    struct versions *versions;
    const struct keys *keys;
    struct MHD_Daemon *daemon;
    int port, http_only;
    _Atomic int64_t requests, bytes; /* of files */
    struct delta_maker *deltas;
};
/* A request, from its headers on until its answer is sent. */
struct request {
    struct share_http *h;
    struct version *v; /* borrowed; or NULL */
};

/* ---- answers ---- */

static enum MHD_Result queue(struct MHD_Connection *conn, unsigned status, struct MHD_Response *r,
                             const struct version *v)
{
    char etag[96];
    if (!r)
        return MHD_NO;
    if (v) {
        snprintf(etag, sizeof etag, "\"%s\"", v->etag);
        MHD_add_response_header(r, "ETag", etag);
    }
    MHD_add_response_header(r, "Cache-Control", "no-cache");
    if (status == 401)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (status == 503)
        MHD_add_response_header(r, "Retry-After", "1");
    enum MHD_Result rc = MHD_queue_response(conn, status, r);
    MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result queue_text(struct MHD_Connection *conn, unsigned status, const struct version *v,
                                  const char *text)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text,
                                                             MHD_RESPMEM_MUST_COPY);
    if (r && status != 204)
        MHD_add_response_header(r, "Content-Type", "application/json");
    return queue(conn, status, r, v);
}

static enum MHD_Result refuse(struct MHD_Connection *conn, unsigned status, const struct version *v,
                              const char *why)
{
    char text[512];
    snprintf(text, sizeof text, "{\"error\":\"%s\"}\n", why);
    return queue_text(conn, status, v, text);
}

/* ---- requests ---- */

static const char *header(struct MHD_Connection *conn, const char *name)
{
    return MHD_lookup_connection_value(conn, MHD_HEADER_KIND, name);
}

static int is_loopback(const struct sockaddr *a)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
    if (a->sa_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) ||
            (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) && v6->sin6_addr.s6_addr[12] == 127));
}

static int is_here(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    return i && i->client_addr && is_loopback(i->client_addr);
}

/* A reader of this machine, or a key: Bearer, or the password of a URL (http://any:KEY@host). */
static int is_allowed(const struct share_http *h, struct MHD_Connection *conn)
{
    char *password = NULL, *user;
    if (is_here(conn))
        return 1;
    if (!h->keys)
        return 0;
    if (keys_find(h->keys, header(conn, "Authorization"), header(conn, "X-Api-Key")) >= 0)
        return 1;
    user = MHD_basic_auth_get_username_password(conn, &password);
    int found = password && keys_find(h->keys, NULL, password) >= 0;
    MHD_free(user);
    MHD_free(password);
    return found;
}

/* The range that the request asks for. 0: none, or of another version (If-Range); 1: [*off, *off + *n); -1:
 * there are no such bytes. Several ranges are answered with the whole file. */
static int read_range(struct MHD_Connection *conn, const struct version *v, int64_t bytes, int64_t *off,
                      int64_t *n)
{
    const char *range = header(conn, "Range"), *only = header(conn, "If-Range");
    char etag[96], *end;
    snprintf(etag, sizeof etag, "\"%s\"", v->etag);
    *off = 0;
    *n = bytes;
    if (!range || strncmp(range, "bytes=", 6) || strchr(range, ',') || (only && strcmp(only, etag)))
        return 0;
    range += 6;
    errno = 0;
    if (*range == '-') { /* the last ones */
        int64_t last = strtoll(range + 1, &end, 10);
        if (errno || end == range + 1 || *end || last <= 0)
            return -1;
        *n = last < bytes ? last : bytes;
        *off = bytes - *n;
        return bytes ? 1 : -1;
    }
    int64_t first = strtoll(range, &end, 10), last = bytes - 1;
    if (errno || end == range || *end != '-' || first < 0)
        return 0;
    if (end[1]) {
        last = strtoll(end + 1, &end, 10);
        if (errno || *end || last < first)
            return 0;
    }
    if (first >= bytes)
        return -1;
    *off = first;
    *n = (last < bytes ? last + 1 : bytes) - first;
    return 1;
}

/* The bytes of a file as an answer. */
static struct MHD_Response *file_response(const struct share_file *f, int64_t off, int64_t n)
{
    if (f->text)
        return MHD_create_response_from_buffer((size_t)n, f->text + off, MHD_RESPMEM_MUST_COPY);
    int fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 0); /* the answer may outlive the version */
    struct MHD_Response *r = fd < 0 ? NULL
                                    : MHD_create_response_from_fd_at_offset64((uint64_t)n, fd, (uint64_t)off);
    if (!r)
        io_close(fd);
    return r;
}

static enum MHD_Result send_file(struct share_http *h, struct MHD_Connection *conn, const struct version *v,
                                 const struct share_file *f)
{
    int64_t off, n;
    char text[96], same[SAME_MACHINE_BYTES];
    int has_range = read_range(conn, v, f->bytes, &off, &n);
    struct MHD_Response *r = has_range < 0 ? MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT)
                                           : file_response(f, off, n);
    if (!r)
        return refuse(conn, 503, v, "no memory or files left: try again");
    MHD_add_response_header(r, "Accept-Ranges", "bytes");
    if (f->fd >= 0 && !h->http_only && is_here(conn) && same_machine_name(f->fd, same))
        MHD_add_response_header(r, SAME_MACHINE_HEADER, same);
    if (has_range < 0)
        snprintf(text, sizeof text, "bytes */%lld", (long long)f->bytes);
    else
        snprintf(text, sizeof text, "bytes %lld-%lld/%lld", (long long)off, (long long)(off + n - 1),
                 (long long)f->bytes);
    if (has_range)
        MHD_add_response_header(r, "Content-Range", text);
    atomic_fetch_add(&h->requests, 1);
    atomic_fetch_add(&h->bytes, has_range < 0 ? 0 : n);
    return queue(conn, has_range < 0 ? 416 : has_range ? 206 : 200, r, v);
}

static enum MHD_Result get_file(struct share_http *h, struct MHD_Connection *conn, const struct version *v,
                                const char *name)
{
    const struct share_file *f = version_file(v, name);
    return f ? send_file(h, conn, v, f) : refuse(conn, 404, v, "there is no such file");
}

static enum MHD_Result get_delta(struct share_http *h, struct MHD_Connection *conn, struct version *v,
                                 const char *from)
{
    char *end;
    const int64_t step = from ? strtoll(from, &end, 10) : -1;
    struct share_file f = { .fd = -1 };
    if (!from || end == from || *end || step < 0)
        return refuse(conn, 404, v, "give the step of the version before: /delta?from=STEP");
    struct version *base = versions_base(h->versions, v, step);
    enum delta_answer got = delta_maker_get(h->deltas, step, base, v, DELTA_WAIT_S, &f);
    versions_release(h->versions, base);
    if (got == DELTA_LATER)
        return refuse(conn, 503, v, "the delta is being made: ask again");
    enum MHD_Result rc =
        got == DELTA_READY
            ? send_file(h, conn, v, &f)
            : refuse(conn, 404, v,
                     "there is no delta: from the version before, or the one that the reader took last, "
                     "where it is smaller than the files, and with --deltas");
    io_close(f.fd);
    return rc;
}

static enum MHD_Result put_version(struct share_http *h, struct MHD_Connection *conn, const struct version *v)
{
    char text[400];
    int64_t bytes = 0;
    for (int i = 0; i < v->n; i++)
        bytes += v->file[i].bytes;
    snprintf(text, sizeof text,
             "{\"version\":%lld,\"weights_digest\":\"%s\",\"etag\":\"%s\",\"bytes\":%lld,\"requests\":%lld,"
             "\"bytes_sent\":%lld}\n",
             (long long)v->step, v->digest, v->etag, (long long)bytes, (long long)atomic_load(&h->requests),
             (long long)atomic_load(&h->bytes));
    return queue_text(conn, 200, v, text);
}

/* A number of the query; otherwise. */
static double number(struct MHD_Connection *conn, const char *key, double otherwise)
{
    const char *text = MHD_lookup_connection_value(conn, MHD_GET_ARGUMENT_KIND, key);
    char *end;
    double x = text ? strtod(text, &end) : otherwise;
    return text && (end == text || *end || !(x >= -1 && x < 9e15)) ? otherwise : x;
}

static enum MHD_Result get_version(struct share_http *h, struct MHD_Connection *conn)
{
    int waits = MHD_lookup_connection_value(conn, MHD_GET_ARGUMENT_KIND, "after") != NULL;
    const int holds = number(conn, "hold", 0) > 0;
    const int64_t after = (int64_t)number(conn, "after", -1);
    double timeout_s = number(conn, "timeout", 30);
    timeout_s = timeout_s < 0 ? 0 : timeout_s > WAIT_S ? WAIT_S : timeout_s;
    struct version *v = holds ? versions_hold(h->versions, after) : NULL;
    if (!v)
        v = waits ? versions_wait(h->versions, after, timeout_s) : versions_acquire(h->versions);
    enum MHD_Result rc = v       ? put_version(h, conn, v)
                         : waits ? queue_text(conn, 204, NULL, "")
                                 : refuse(conn, 503, NULL, "there is no version yet: try again");
    versions_release(h->versions, v);
    return rc;
}

/* A file of a version, or a delta. The request has the version until its answer is sent. */
static enum MHD_Result get_of_version(struct request *q, struct MHD_Connection *conn, const char *url)
{
    struct share_http *h = q->h;
    const char *want = header(conn, "If-Match");
    const int is_other = want && !(q->v = versions_find(h->versions, want));
    if (!q->v)
        q->v = versions_acquire(h->versions);
    if (!q->v)
        return refuse(conn, 503, NULL, "there is no version yet: try again");
    if (is_other)
        return refuse(conn, 412, q->v, "the version has changed: open it again");
    if (!strcmp(url, "/delta"))
        return get_delta(h, conn, q->v, MHD_lookup_connection_value(conn, MHD_GET_ARGUMENT_KIND, "from"));
    return !strncmp(url, "/delta/", 7) ? get_delta(h, conn, q->v, url + 7)
                                       : get_file(h, conn, q->v, url + (*url == '/'));
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *conn, const char *url, const char *method,
                              const char *http, const char *data, size_t *n, void **state)
{
    struct share_http *h = arg;
    struct request *q = *state;
    (void)http, (void)data;
    if (!q) { /* called with the headers first, and again when the request is whole */
        if (!(*state = q = calloc(1, sizeof *q)))
            return MHD_NO;
        q->h = h;
        return MHD_YES;
    }
    if (*n) {
        *n = 0;
        return MHD_YES;
    }
    if (!is_allowed(h, conn))
        return refuse(conn, 401, NULL, "give a key of --key-file: Authorization: Bearer KEY");
    if (strcmp(method, "GET") && strcmp(method, "HEAD"))
        return refuse(conn, 405, NULL, "GET and HEAD are answered");
    if (!strcmp(url, "/version"))
        return get_version(h, conn);
    if (!strcmp(url, "/health"))
        return queue_text(conn, 200, NULL, "{}\n");
    return get_of_version(q, conn, url);
}

static void completed(void *arg, struct MHD_Connection *conn, void **state,
                      enum MHD_RequestTerminationCode why)
{
    struct request *q = *state;
    (void)arg, (void)conn, (void)why;
    if (!q)
        return;
    versions_release(q->h->versions, q->v);
    free(q);
    *state = NULL;
}

/* ---- open and close ---- */

/* A socket that listens; *port: the one it got. */
static int listen_on(const char *host, int *port, int has_keys, struct err *e)
{
    struct addrinfo want = { .ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV },
                    *all = NULL;
    struct sockaddr_storage bound = { 0 };
    socklen_t size = sizeof bound;
    char text[16];
    int on = 1, fd = -1, rc;
    snprintf(text, sizeof text, "%d", *port);
    if ((rc = getaddrinfo(host, text, &want, &all)) != 0)
        return err_set(e, ERR_USAGE, "--host %s: %s", host, gai_strerror(rc));
    if (!is_loopback(all->ai_addr) && !has_keys) {
        rc = err_set(e, ERR_USAGE,
                     "--host %s is reached by other machines: give --key-file, or --host 127.0.0.1", host);
        goto out;
    }
    fd = socket(all->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, all->ai_addr, all->ai_addrlen) < 0 || listen(fd, SOMAXCONN) < 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &size) < 0) {
        rc = err_sys(e, "cannot listen on %s port %d (choose another port, or 0 for a free one)", host,
                     *port);
        goto out;
    }
    *port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                              : ((struct sockaddr_in *)&bound)->sin_port);
out:
    freeaddrinfo(all);
    if (rc < 0)
        io_close(fd);
    return rc < 0 ? rc : fd;
}

static void no_log(void *arg, const char *fmt, va_list ap)
{
    (void)arg, (void)fmt, (void)ap; /* the library reports every client that disconnects */
}

int share_http_open(struct share_http **out, const struct share_http_opts *o, struct versions *v,
                    struct err *e)
{
    struct share_http *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, ERR_MEMORY, "no memory for the http server");
    h->versions = v;
    h->keys = o->keys;
    h->port = o->port;
    h->http_only = o->http_only;
    int fd = listen_on(o->host, &h->port, o->keys != NULL, e), rc = fd < 0 ? fd : 0;
    if (rc < 0 || (rc = delta_maker_open(&h->deltas, e)) < 0) {
        io_close(fd);
        free(h);
        return rc;
    }
    h->daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION |
                                     MHD_USE_AUTO | MHD_USE_ITC | MHD_USE_ERROR_LOG,
                                 0, NULL, NULL, handle, h, MHD_OPTION_EXTERNAL_LOGGER, no_log, NULL,
                                 MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED, completed, NULL,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)(WAIT_S + 60), MHD_OPTION_END);
    if (!h->daemon) {
        io_close(fd);
        delta_maker_close(h->deltas);
        free(h);
        return err_set(e, ERR_INTERNAL, "the http server does not start");
    }
    *out = h;
    return 0;
}

int share_http_port(const struct share_http *h) { return h->port; }

void share_http_close(struct share_http *h)
{
    if (!h)
        return;
    MHD_stop_daemon(h->daemon);
    delta_maker_close(h->deltas);
    free(h);
}
