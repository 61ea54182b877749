/* request_head.h - checks the head of a request before anything else reads it: which bytes are its body
 * (framing), and which host it names (Host). */
#ifndef SHARDLINE_SERVE_HTTP_REQUEST_HEAD_H
#define SHARDLINE_SERVE_HTTP_REQUEST_HEAD_H

#include <microhttpd.h>
#include "serve/api/request.h"

/* The names that a Host header may give, besides loopback's: localhost, *.localhost, 127.0.0.0/8, [::1]. The
 * case of letters does not count. */
struct host_names {
    int any;          /* no check */
    const char *own;  /* --host */
    const char *more; /* --allow-host: names, separated by commas; NULL: none */
};

/* Checks the headers of conn. version: of its first line. 0, or -1 with *f:
 * 400: the length of the body is ambiguous (two Content-Length, Content-Length with Transfer-Encoding,
 *      another coding than chunked, a name that is no token), or Host is missing or there twice. A proxy may
 *      have read such a request differently: close the connection, so that no byte of the body is taken for
 *      a request.
 * 403: Host is none of the allowed names. Without this check a web page could reach a server on loopback
 *      under a name of the page's own site, whose address it changes to 127.0.0.1 (DNS rebinding).
 * The library's thread. Source: RFC 9112, sections 3.2, 5.1 and 6.3. */
int request_head_check(struct MHD_Connection *conn, const char *version, const struct host_names *hosts,
                       struct fault *f);

#endif
