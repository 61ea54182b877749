/* store_priv.h - private to url.c (what a URL means), http_get.c (one request), store.c (requests
 * repeated) and local.c (files of this machine). */
#ifndef SHARDLINE_STORE_STORE_PRIV_H
#define SHARDLINE_STORE_STORE_PRIV_H

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include "store/sigv4.h"
#include "store/store.h"

#define STORE_IDLE 16 /* connections kept */
#define STORE_URL 4096

/* The URL of a file is base, revision, rest, name, tail, one behind the other. */
struct store {
    char base[2048], revision[128], rest[512], tail[1024];
    char commit[64], wanted[128]; /* wanted: the revision in the URL that was opened */
    char token[512];              /* sent to the host of base only */
    struct sigv4_key aws;
    char prefix[1024];   /* s3: of the objects' names, not encoded, without a slash at its end */
    int bucket_bytes;    /* s3: the URL of the bucket is so many bytes of base */
    char version[160];   /* the ETag of the one version that is read (store_is_version); "": none */
    _Atomic int is_late; /* the last store_stat ended with status 503 */
    int hub, s3;         /* s3: redirects are not followed, a signature is for one host */
    int local;           /* file://: base is a path, and nothing is sent */
    long stall_s;
    const volatile sig_atomic_t *stop;
    pthread_mutex_t lock;
    CURL *idle[STORE_IDLE];
    int n_idle;
    _Atomic int64_t received;
};

/* url: of a request; shown: the same for messages, without passwords and signatures. */
struct place {
    char url[STORE_URL], shown[STORE_URL];
};

/* url.c. Fills base, revision, rest, tail and the keys from a URL. */
int store_read_url(struct store *s, const char *url, struct err *e);
/* The URL of file `name`; characters that mean something in a URL are encoded. ERR_USAGE: too long. */
int store_place(const struct store *s, const char *name, struct place *p, struct err *e);

/* local.c: the same for file:// URLs. store_stat and store_read call these. */
int local_open(struct store *s, const char *url, struct err *e);
int local_stat(struct store *s, const char *name, struct store_info *info, struct err *e);
int local_read(struct store *s, const char *name, const struct store_info *info, int64_t off, int64_t n,
               void *dst, struct err *e);

/* The last response to a request (of a redirect only the hub's own headers are kept) and where its body
 * goes. */
struct answer {
    struct store *s;
    long status;
    int64_t length, first, total; /* -1: absent; first, total: of Content-Range */
    double retry_after_s;
    int encoded;
    char etag[160], modified[160], linked_etag[160], commit[64], region[64];
    char same_machine[SAME_MACHINE_BYTES];
    int64_t linked_bytes;
    /* the body */
    int accept, probe; /* accept: the only status whose body is taken; probe: no body is */
    char *dst;
    int fd; /* dst NULL: the body goes to this file, from byte `off` on */
    const char *path;
    int64_t off, most, got; /* most: bytes that the body may have */
    int too_long;
    struct err io;
    /* what is not data: header lines, the bodies of redirects and errors; why it was cut off, or NULL */
    int64_t other_bytes, begin_ns;
    const char *endless;
};
/* One GET of bytes [off, end] (end -1: the whole file), only of the version etag ("": any). why:
 * CURL_ERROR_SIZE bytes, the reason of a failure. Thread-safe. */
CURLcode http_get(struct store *s, const char *url, int64_t off, int64_t end, const char *etag,
                  struct answer *a, char *why);

/* ---- http_get.c, for other requests (s3.c) ---- */

/* A connection of s, and back. NULL: no memory. */
CURL *http_acquire(struct store *s);
void http_release(struct store *s, CURL *h);
/* Fills in all options of a GET. */
void http_options(struct store *s, CURL *h, const char *url, struct curl_slist *lines, struct answer *a,
                  char *why);
/* libcurl's function for a header line; arg: struct answer. */
size_t http_on_header(char *line, size_t size, size_t n, void *arg);
/* Adds a line; "": none. -1: no memory. */
int http_add_line(struct curl_slist **lines, const char *line);
/* Adds the lines of a signature where s has a key. -1: no memory, or the URL is too long. */
int http_add_signature(const struct store *s, const struct sigv4_request *q, struct curl_slist **lines);

/* ---- store.c: requests repeated ---- */

#define STORE_TRIES 6 /* requests without progress */
/* 1: a request that failed with this status (0: no answer) may succeed later. */
int store_can_pass(long status);
/* Waits before the next try, number `tries` from 0. ERR_STOPPED; ERR_FILE: the server asks for too long. */
int store_wait(const struct store *s, const char *shown, const struct answer *a, int tries, struct err *e);
/* Says why the server refused. Returns the error's code. */
int store_refused(const struct store *s, const char *shown, const struct answer *a, struct err *e);

#endif
