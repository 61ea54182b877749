/* http_server.c - see http_server.h: sockets, TLS, the library's callbacks. exchange.h has what happens to a
 * request. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/io.h"
#include "serve/http/exchange.h"

#define IDLE_TIMEOUT_S 120 /* of a connection that nothing comes from */
#define OTHER_FILES 256    /* of the process: checkpoint, ranks, replicas */
#define PEM_MAX ((size_t)1 << 20)

/* ---- the library's callbacks ---- */

static struct connection *connection_of(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i ? i->socket_context : NULL;
}

static void connected(void *arg, struct MHD_Connection *conn, void **context,
                      enum MHD_ConnectionNotificationCode what)
{
    struct http_server *h = arg;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *fd = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
        const union MHD_ConnectionInfo *client = MHD_get_connection_info(conn,
                                                                         MHD_CONNECTION_INFO_CLIENT_ADDRESS);
        *context = fd && client ? connection_open(&h->connections, fd->connect_fd, client->client_addr)
                                : NULL;
    } else {
        connection_closed(&h->connections, *context);
    }
}

/* The first line of a request is there. */
static void *first_line(void *arg, const char *uri, struct MHD_Connection *conn)
{
    struct http_server *h = arg;
    (void)uri;
    connection_begin(&h->connections, connection_of(conn));
    return NULL;
}

/* Called with the headers, then for every part of the body, at its end, and after a connection was
 * resumed. */
static enum MHD_Result handle(void *arg, struct MHD_Connection *conn, const char *url, const char *method,
                              const char *version, const char *data, size_t *n, void **state)
{
    struct exchange *x = *state;
    if (!x) {
        *state = x = exchange_new(arg, conn, connection_of(conn));
        if (!x)
            return MHD_NO;
        exchange_begin(x, url, method, version);
        if (!exchange_needs_no_body(x))
            return MHD_YES;
        connection_complete(&x->h->connections, x->from);
        return exchange_answer(x);
    }
    if (*n) {
        exchange_take_body(x, data, *n);
        *n = 0;
        return MHD_YES;
    }
    connection_complete(&x->h->connections, x->from);
    return x->worked ? exchange_continue(x) : exchange_answer(x);
}

/* The exchange has ended, well or not. */
static void completed(void *arg, struct MHD_Connection *conn, void **state,
                      enum MHD_RequestTerminationCode why)
{
    struct exchange *x = *state;
    struct http_server *h = arg;
    (void)why;
    connection_answered(&h->connections, connection_of(conn));
    if (x)
        exchange_free(x);
    *state = NULL;
}

/* ---- open and close ---- */

/* Is it an address of this machine that no other machine can reach? */
static int is_loopback(const struct sockaddr_storage *a)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
    if (a->ss_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    return a->ss_family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) ||
            (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) && v6->sin6_addr.s6_addr[12] == 127));
}

/* A socket that listens on host and port; *bound: the address and port it got. */
static int listen_on(const char *host, int port, struct sockaddr_storage *bound, struct err *e)
{
    struct addrinfo want = { .ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV },
                    *all, *a;
    socklen_t size = sizeof *bound;
    char text[16];
    int fd = -1, on = 1, rc;

    snprintf(text, sizeof text, "%d", port);
    if ((rc = getaddrinfo(host, text, &want, &all)) != 0)
        return err_set(e, ERR_USAGE, "--host %s: %s", host, gai_strerror(rc));
    for (a = all; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, SOMAXCONN) < 0 ||
            getsockname(fd, (struct sockaddr *)bound, &size) < 0) {
            int why = errno;
            close(fd);
            fd = -1;
            errno = why;
        }
    }

    rc = errno;
    freeaddrinfo(all);
    errno = rc;
    if (fd < 0)
        return err_sys(e, "cannot listen on %s port %d (choose another --port, or 0 for a free one)", host,
                       port);
    return fd;
}

static void no_log(void *arg, const char *fmt, va_list ap)
{
    (void)arg;
    (void)fmt;
    (void)ap; /* the library reports every client that disconnects */
}

/* Opens the access log: *fd, -1 where there is none. */
static int open_access(const char *path, int *fd, struct err *e)
{
    *fd = -1;
    if (path && !strcmp(path, "-"))
        *fd = dup(STDERR_FILENO);
    else if (path)
        return (*fd = io_open_sink(path, 1, 0640, e)) < 0 ? err_add(e, "the access log") : 0;
    return path && *fd < 0 ? err_sys(e, "cannot write the access log to stderr") : 0;
}

/* Reads a PEM file, *text is malloc'd; path NULL: nothing. */
static int read_pem(const char *path, char **text, struct err *e)
{
    void *data = NULL;
    size_t n;
    int rc = path ? io_read_file(path, PEM_MAX, &data, &n, e) : 0;
    if (rc < 0 || !path)
        return rc;
    *text = strndup(data, n);
    free(data);
    return *text ? 0 : err_set(e, ERR_MEMORY, "no memory for %s", path);
}

static void http_server_free(struct http_server *h)
{
    if (h->cert_key)
        explicit_bzero(h->cert_key, strlen(h->cert_key));
    free(h->cert);
    free(h->cert_key);
    if (h->access_fd >= 0)
        close(h->access_fd);
    free(h);
}

/* Starts libmicrohttpd's thread. */
static int start_daemon(struct http_server *h, struct err *e)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                     MHD_USE_ERROR_LOG | (h->cert ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls[] = { { MHD_OPTION_HTTPS_MEM_CERT, 0, h->cert },
                                    { MHD_OPTION_HTTPS_MEM_KEY, 0, h->cert_key },
                                    { MHD_OPTION_END, 0, NULL } };

    if (h->cert && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return err_set(e, ERR_CONFIG, "--tls-cert: this libmicrohttpd was built without TLS");
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, handle, h, MHD_OPTION_ARRAY, h->cert ? tls : &tls[2],
                                 MHD_OPTION_EXTERNAL_LOGGER, no_log, NULL, MHD_OPTION_LISTEN_SOCKET, h->fd,
                                 MHD_OPTION_NOTIFY_COMPLETED, completed, h, MHD_OPTION_NOTIFY_CONNECTION,
                                 connected, h, MHD_OPTION_URI_LOG_CALLBACK, first_line, h,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_TIMEOUT_S,
                                 MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)(h->o.max_connections + CONNECTIONS_SPARE), MHD_OPTION_END);
    if (!h->daemon && h->cert)
        return err_set(e, ERR_CONFIG,
                       "%s and %s are refused: they must be a certificate and its private key, both PEM",
                       h->o.tls_cert, h->o.tls_key);
    return h->daemon ? 0 : err_set(e, ERR_INTERNAL, "the http server does not start");
}

/* Starts the workers, the thread that watches connections, and the library's. */
static int start_threads(struct http_server *h, struct err *e)
{
    const struct connection_limits limits = { .receive_s = h->o.receive_timeout_s,
                                              .idle_s = IDLE_TIMEOUT_S,
                                              .max = h->o.max_connections,
                                              .max_per_address = h->o.max_connections_per_address };
    int rc = worker_open(&h->worker, e);
    if (rc < 0)
        return rc;
    rc = connections_open(&h->connections, &limits, h->sv->metrics, e);
    if (rc < 0) {
        worker_close(&h->worker);
        return rc;
    }
    rc = start_daemon(h, e);
    if (rc < 0) {
        worker_close(&h->worker);
        connections_close(&h->connections);
    }
    return rc;
}

int http_server_open(struct http_server **out, struct service *sv, struct router *router,
                     const struct http_options *o, struct err *e)
{
    struct http_server *h = calloc(1, sizeof *h);
    struct sockaddr_storage bound;
    int rc;

    *out = NULL;
    if (!h)
        return err_set(e, ERR_MEMORY, "no memory for the http server");
    h->sv = sv;
    h->router = router;
    h->o = *o;
    h->o.max_connections = o->max_connections ? o->max_connections : HTTP_CONNECTIONS_MAX;
    h->bodies.max = o->max_body_memory;
    h->fd = -1;
    h->access_fd = -1;
    TRY(read_pem(o->tls_cert, &h->cert, e));
    TRY(read_pem(o->tls_key, &h->cert_key, e));
    TRY(open_access(o->access_log, &h->access_fd, e));
    TRY(h->fd = listen_on(o->host, o->port, &bound, e));
    h->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                : ((struct sockaddr_in *)&bound)->sin_port);
    h->hosts = (struct host_names){ .any = !o->allow_host && (o->keys || !is_loopback(&bound)),
                                    .own = o->host,
                                    .more = o->allow_host };
    TRY(start_threads(h, e));
out:
    if (rc < 0) {
        if (h->fd >= 0)
            close(h->fd);
        http_server_free(h);
        return rc;
    }

    *out = h;
    return 0;
}

int http_server_port(const struct http_server *h) { return h->port; }

int http_server_files(int64_t max_connections)
{
    return (int)max_connections + CONNECTIONS_SPARE + OTHER_FILES;
}

void http_server_close(struct http_server *h, double grace_s)
{
    static const struct timespec nap = { 0, 2000000 };
    double end = clock_s() + grace_s;

    if (!h)
        return;

    /* no new connections; answers that are being sent get their time */
    int fd = MHD_quiesce_daemon(h->daemon);
    if (fd >= 0)
        close(fd);
    while (atomic_load(&h->in_flight) && clock_s() < end)
        nanosleep(&nap, NULL);

    worker_close(&h->worker);
    MHD_stop_daemon(h->daemon);
    connections_close(&h->connections);
    http_server_free(h);
}
