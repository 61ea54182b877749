/* store.h - private to the room: files at a URL, read by range. http, https, s3, hf over libcurl; local
 * files need no store. */
#ifndef SHARDLINE_STORE_STORE_H
#define SHARDLINE_STORE_STORE_H

#include <signal.h>
#include <stdint.h>
#include "base/err.h"

struct store;
struct store_info {
    int64_t bytes;
    int ranges;      /* 0: the server gives whole files only */
    char etag[160];  /* a strong one, with quotes; else the date of the last change; else "" */
    char sha256[65]; /* of the content, where the server says (Hugging Face, large files); or "" */
};
int store_is_url(const char *path);
/* Nothing is sent yet. Read here: HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_ENDPOINT, AWS_ACCESS_KEY_ID,
 * AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL, and the files these tools keep
 * tokens in; tokens go to the URL's own host alone.
 * ERR_USAGE: not a URL that is known. */
int store_open(struct store **out, const char *url, struct err *e);
void store_close(struct store *s);
/* From now on requests end, and are not tried again, when *stop is not 0 (ERR_STOPPED). */
void store_stop_on(struct store *s, const volatile sig_atomic_t *stop);
int store_is_stopped(const struct store *s);
/* hf: the commit that all files come from, known after the first store_stat when the hub says it; "" before,
 * and elsewhere. With store_pin a process takes over what another one has found. Not while other threads use
 * s. */
const char *store_commit(const struct store *s);
/* what the URL said: a branch, a tag, a commit; or "" */
const char *store_revision(const struct store *s);
void store_pin(struct store *s, const char *commit);
/* 1: there, *info filled; 0: no such file; or an error. name "": the URL itself. */
int store_stat(struct store *s, const char *name, struct store_info *info, struct err *e);
/* All of [off, off + n) to dst; thread-safe. ERR_INTEGRITY: the file changed since store_stat. */
int store_read(struct store *s, const char *name, const struct store_info *info, int64_t off, int64_t n,
               void *dst, struct err *e);
/* The whole file to fd, in one stream (servers without ranges). */
int store_copy(struct store *s, const char *name, const struct store_info *info, int fd, const char *path,
               struct err *e);
int store_is_http(const struct store *s);   /* a plain http or https URL: neither the hub nor S3 */
int64_t store_bytes(const struct store *s); /* received so far */

/* Splits the URL of a file: folder is the URL without the last part of its path, name that part without %XX.
 * 0: it does not end in a name of at most 255 bytes, or is 2000 bytes or longer. */
int url_split(const char *url, char folder[2048], char name[256]);

#endif
