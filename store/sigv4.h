/* sigv4.h - private to the room: requests to S3 signed by AWS Signature Version 4.
 * Source: AWS General Reference, "Signature calculations for the Authorization header: single chunk". */
#ifndef SHARDLINE_STORE_SIGV4_H
#define SHARDLINE_STORE_SIGV4_H

#include <time.h>

/* id "": requests are not signed; session may be "" */
struct sigv4_key {
    char id[256], secret[256], session[2048], region[64];
};
/* "Name: value", ready to send; session may be "" */
struct sigv4_lines {
    char content[96], date[40], session[2100], authorization[800];
};
/* What a request is, for its signature. */
struct sigv4_request {
    const char *method;
    const char *url; /* percent-encoded; its query, if any, in canonical form: sorted, every name with "=" */
    const char *md5; /* the value of Content-MD5, or "" */
    const char *range;   /* the value of Range, or "" */
    const char *payload; /* SHA-256 of the body as text, SIGV4_UNSIGNED, or NULL: there is no body */
};
#define SIGV4_UNSIGNED "UNSIGNED-PAYLOAD"
/* Signs a request at time now. 0; -1: the URL is too long. */
int sigv4_sign_request(struct sigv4_lines *out, const struct sigv4_key *k, const struct sigv4_request *q,
                       time_t now);
/* Signs a GET of url, which has no query. range: the value of the Range header, or "". */
int sigv4_sign(struct sigv4_lines *out, const struct sigv4_key *k, const char *url, const char *range,
               time_t now);
/* Percent-encodes text as S3 does for the path of an object: everything but letters, digits, -._~ and /.
 * room: bytes of out. 0; -1: too long. */
int sigv4_encode(char *out, size_t room, const char *text);
/* The same for a value in a query, where / is encoded too. */
int sigv4_encode_value(char *out, size_t room, const char *text);

#endif
