/* store.h - files at a URL (http, https, s3, hf), read by range over libcurl, or of this machine (file).
 * Where no copy is wanted, a file:// URL is a path (url_local_path) and needs no store. */
#ifndef SHARDLINE_STORE_STORE_H
#define SHARDLINE_STORE_STORE_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "store/same_machine.h"

struct store;
/* One version of a file. */
struct store_info {
    int64_t bytes;
    int ranges;     /* 0: the server gives whole files only */
    char etag[160]; /* a strong one, with quotes; else the date of the last change; else "" */
    /* what same_machine_open takes, where the server is on this machine and says so; or "" */
    char same_machine[SAME_MACHINE_BYTES];
    char sha256[65]; /* of the content, where the server gives it (Hugging Face, large files); or "" */
};

/* ---- URLs ---- */

/* 1: path is a URL of another machine that store_open knows. store_open knows file:// too. */
int store_is_url(const char *path);
/* Fills path with what a file:// URL names, %XX decoded. 0: it is no file:// URL, or the path is too long. */
#define URL_LOCAL_BYTES 4096
int url_local_path(const char *url, char path[URL_LOCAL_BYTES]);
/* Splits the URL of a file: folder is the URL without the last part of its path, name that part with %XX
 * decoded. 0: the URL does not end in a name of at most 255 bytes, or has 2000 bytes or more. */
int url_split(const char *url, char folder[2048], char name[256]);

/* Fills out with url as messages show it, without the user and the key of http://any:KEY@host. Returns it. */
const char *url_shown(const char *url, char *out, size_t room);

/* Opens the folder or file at url; nothing is sent yet. Reads HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_ENDPOINT,
 * AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL, and the files in
 * which the clients of these services keep tokens. Tokens are sent to the URL's own host only. ERR_USAGE: the
 * URL cannot be understood. */
int store_open(struct store **out, const char *url, struct err *e);
/* Closes the connections. NULL is allowed. */
void store_close(struct store *s);
/* 1: the folder above the URL may be asked for files: http, https, file; neither the hub nor S3. */
int store_has_parent(const struct store *s);

/* From now on requests end with ERR_STOPPED, and are not repeated, when *stop is not 0. stop outlives s;
 * NULL: none. */
void store_stop_on(struct store *s, const volatile sig_atomic_t *stop);
/* 1: *stop is not 0. */
int store_is_stopped(const struct store *s);

/* hf: the commit that all files come from, known after the first store_stat when the hub names it; "" before,
 * and for other URLs. */
const char *store_commit(const struct store *s);
/* hf: the branch, tag or commit of the URL; "" for other URLs. */
const char *store_revision(const struct store *s);
/* hf: reads from that commit, which another process has found. Not while another thread uses s. */
void store_pin(struct store *s, const char *commit);

/* 1: the ETag "STEP-DIGEST" (32 hex digits) of a server whose files are of one version together (pshare). A
 * store keeps to the first version that it meets: every request names it, another one is ERR_INTEGRITY. */
int store_is_version(const char *etag);
/* Keeps to that version from the first request on. Before the first request. */
void store_keep_to(struct store *s, const char *etag);
/* 1: the last file that was asked for is not there yet (status 503): ask again. Not while another thread uses
 * s. */
int store_is_late(const struct store *s);

/* ---- files; thread-safe. name: a path below the URL; "": the URL itself ---- */

/* 1: the file exists, and *info is its version; 0: there is no such file. */
int store_stat(struct store *s, const char *name, struct store_info *info, struct err *e);
/* Reads bytes [off, off + n) of that version to dst. ERR_INTEGRITY: the file has changed since store_stat. */
int store_read(struct store *s, const char *name, const struct store_info *info, int64_t off, int64_t n,
               void *dst, struct err *e);
/* Writes the whole file to fd in one stream, for servers without ranges. path: for messages. */
int store_copy(struct store *s, const char *name, const struct store_info *info, int fd, const char *path,
               struct err *e);
/* Bytes received so far. */
int64_t store_bytes(const struct store *s);

#endif
