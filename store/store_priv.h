/* store_priv.h - private to the three files of the store: store_url.c (what a URL means), http.c (one
 * request), store.c (again, later). */
#ifndef SHARDLINE_STORE_STORE_PRIV_H
#define SHARDLINE_STORE_STORE_PRIV_H

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include "store/sigv4.h"
#include "store/store.h"

#define STORE_IDLE 16 /* connections kept */
#define STORE_URL 4096

/* A file's URL: base, revision, rest, name, tail. */
struct store {
    char base[2048], revision[128], rest[512], tail[1024];
    char commit[64], wanted[128]; /* wanted: the revision as the URL gave it */
    char token[512];              /* sent to the host of base alone */
    struct sigv4_key aws;
    int hub, s3; /* s3: redirects are not followed, a signature is for one host */
    long stall_s;
    const volatile sig_atomic_t *stop;
    pthread_mutex_t lock;
    CURL *idle[STORE_IDLE];
    int n_idle;
    _Atomic int64_t received;
};

/* url: what is asked for; shown: the same for messages, without passwords and signatures. */
struct place {
    char url[STORE_URL], shown[STORE_URL];
};

/* store_url.c */
int store_read_url(struct store *s, const char *url, struct err *e);
int store_place(const struct store *s, const char *name, struct place *p, struct err *e);

/* http.c: the last response (a redirect's headers are forgotten, but for what the hub says in them) and
 * where its body goes. */
struct answer {
    struct store *s;
    long status;
    int64_t length, first, total; /* -1: not said; first, total: of Content-Range */
    double retry_after_s;
    int encoded;
    char etag[160], modified[160], linked_etag[160], commit[64], region[64];
    int64_t linked_bytes;
    /* the body */
    int accept, probe; /* the one status whose body is taken; probe: none is */
    char *dst;
    int fd; /* dst NULL: to this file, from byte `off` */
    const char *path;
    int64_t off, room, got;
    int too_long;
    struct err io;
};
/* One GET of [off, end] (end -1: the whole file), of the version etag alone ("": any). why: CURL_ERROR_SIZE
 * bytes. */
CURLcode http_get(struct store *s, const char *url, int64_t off, int64_t end, const char *etag,
                  struct answer *a, char *why);

#endif
