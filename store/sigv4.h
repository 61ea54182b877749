/* sigv4.h - private to the room: GET requests to S3 signed by AWS Signature Version 4.
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
/* Signs a GET of url at time now. url: percent-encoded, without a query. range: the value of the Range
 * header, or "". 0; -1: the URL is too long. */
int sigv4_sign(struct sigv4_lines *out, const struct sigv4_key *k, const char *url, const char *range,
               time_t now);
/* Percent-encodes text as S3 does for the path of an object: everything but letters, digits, -._~ and /.
 * room: bytes of out. Returns the length; -1: too long. */
int sigv4_encode(char *out, size_t room, const char *text);

#endif
