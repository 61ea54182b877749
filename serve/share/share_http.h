/* share_http.h - versions over HTTP: GET of files with ranges, and of the version.
 *
 *     GET /manifest.json, /config.json, /weights-00000.safetensors, …    ETag "STEP-DIGEST" on all of them
 *     GET /version                          {"version":STEP,"weights_digest":"HEX","etag":"STEP-DIGEST",…}
 *     GET /version?after=STEP&timeout=S     waits for a newer one: 200, or 204 when none came in time
 *     GET /version?after=STEP&hold=1        the same, and that version stays while it is read (versions_hold)
 *     GET /delta?from=STEP, /delta/STEP     the bits that changed since then (delta.h); 404: there is none;
 *                                           503: it is being made, ask again
 *
 * A request with If-Match of a version that is not there gets 412, so a reader never mixes versions. To
 * readers on this machine an answer names the file itself, which a process of the same user opens
 * (store/same_machine.h). */
#ifndef SHARDLINE_SERVE_SHARE_SHARE_HTTP_H
#define SHARDLINE_SERVE_SHARE_SHARE_HTTP_H

#include "serve/http/keys.h"
#include "serve/share/versions.h"

struct share_http;
struct share_http_opts {
    const char *host;
    int port;                /* 0: a free one */
    const struct keys *keys; /* what readers that are not on this machine give; or NULL, and then host must be
                              * a loopback address (ERR_USAGE) */
    int http_only;           /* no file is named to readers on this machine */
};
/* Listens. v is borrowed. ERR_USAGE: host; ERR_FILE: the port is taken. */
int share_http_open(struct share_http **out, const struct share_http_opts *o, struct versions *v,
                    struct err *e);
/* The port it listens on. Any thread. */
int share_http_port(const struct share_http *h);
/* Ends connections and waits. NULL is allowed. */
void share_http_close(struct share_http *h);

#endif
