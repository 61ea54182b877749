/* request_head.c - see request_head.h. */
#include "serve/http/request_head.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* ---- framing ---- */

/* What the headers of a request say about its framing. */
struct framing {
    int n_hosts, n_lengths, n_codings;
    int bad_name;     /* the name of a header is no token */
    int not_chunked;  /* a coding is not "chunked" */
    const char *host; /* value of the last Host */
};

/* Is the text a token (RFC 9110, section 5.6.2)? */
static int is_token(const char *s)
{
    static const char allowed[] = "!#$%&'*+-.^_`|~0123456789"
                                  "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    return *s && !s[strspn(s, allowed)];
}

static enum MHD_Result count_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct framing *g = arg;

    (void)kind;
    value = value ? value : "";
    g->bad_name |= !is_token(name);
    if (!strcasecmp(name, MHD_HTTP_HEADER_HOST)) {
        g->n_hosts++;
        g->host = value;
    } else if (!strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH)) {
        g->n_lengths++;
    } else if (!strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        g->n_codings++;
        g->not_chunked |= strcasecmp(value, "chunked") != 0;
    }
    return MHD_YES;
}

/* Why the framing cannot be trusted, or NULL. */
static const char *framing_fault(const struct framing *g, int is_http_1_0)
{
    const struct {
        int found;
        const char *why;
    } rule[] = {
        { g->bad_name, "the name of a header holds a blank or another character that names cannot have" },
        { g->n_lengths > 1, "there is more than one Content-Length: send one" },
        { g->n_lengths && g->n_codings, "there are both Content-Length and Transfer-Encoding: send one" },
        { g->n_codings > 1 || g->not_chunked, "Transfer-Encoding must be chunked, and nothing else" },
        { g->n_codings && is_http_1_0, "HTTP/1.0 has no Transfer-Encoding: send Content-Length" },
        { g->n_hosts > 1, "there is more than one Host: send one" },
        { !g->n_hosts && !is_http_1_0, "there is no Host: HTTP/1.1 needs it" },
    };
    for (size_t i = 0; i < sizeof rule / sizeof rule[0]; i++)
        if (rule[i].found)
            return rule[i].why;
    return NULL;
}

/* ---- Host ---- */

/* Copies the name in a Host header (no port, no brackets, no final dot) to name. 0, or -1: too long, or not
 * of this form. */
static int host_name(const char *value, char name[256])
{
    int is_v6 = *value == '[';
    size_t n = is_v6 ? strcspn(value, "]") : strcspn(value, ":");
    const char *port = value + n + (is_v6 && value[n]);

    if (n >= 256 || (is_v6 && !value[n]))
        return -1;
    if (*port && (*port != ':' || port[1 + strspn(port + 1, "0123456789")]))
        return -1;
    memcpy(name, value + is_v6, n - (size_t)is_v6);
    name[n - (size_t)is_v6] = 0;
    n = strlen(name);
    if (n && name[n - 1] == '.')
        name[n - 1] = 0;
    return 0;
}

static int is_loopback_name(const char *name)
{
    static const char domain[] = ".localhost";
    size_t n = strlen(name), k = strlen(domain);
    struct in_addr v4;
    struct in6_addr v6;

    if (!strcasecmp(name, domain + 1) || (n > k && !strcasecmp(name + n - k, domain)))
        return 1;
    if (inet_pton(AF_INET, name, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, name, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/* Is name in the list, whose items are separated by commas? */
static int is_listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p && *p;) {
        size_t k = strcspn(p, ",");
        if ((k == n && n && !strncasecmp(p, name, n)) || (k == 1 && *p == '*'))
            return 1;
        p += k;
        p += *p == ',';
    }
    return 0;
}

/* Is the value of a Host header, with or without a port, an allowed name? */
static int is_allowed(const char *value, const struct host_names *hosts)
{
    char name[256];
    if (host_name(value, name) < 0)
        return 0;
    return is_loopback_name(name) || (hosts->own && *name && !strcasecmp(name, hosts->own)) ||
           is_listed(hosts->more, name);
}

int request_head_check(struct MHD_Connection *conn, const char *version, const struct host_names *hosts,
                       struct fault *f)
{
    struct framing g = { 0 };
    const char *why;

    MHD_get_connection_values(conn, MHD_HEADER_KIND, count_header, &g);
    if ((why = framing_fault(&g, !strcasecmp(version, MHD_HTTP_VERSION_1_0))) != NULL)
        return fault_set(f, 400, NULL, "%s", why);
    if (g.host && !hosts->any && !is_allowed(g.host, hosts))
        return fault_set(f, 403, NULL,
                         "Host is '%.100s': without keys this server takes loopback names only (localhost, "
                         "127.0.0.1, [::1]), so that no web page can reach it under another name: give the "
                         "name to --allow-host, or start it with --api-key-file",
                         g.host);
    return 0;
}
