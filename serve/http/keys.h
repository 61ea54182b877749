/* keys.h - the keys that requests must give: a file with one a line, compared in a time that does not depend
 * on them. */
#ifndef SHARDLINE_SERVE_HTTP_KEYS_H
#define SHARDLINE_SERVE_HTTP_KEYS_H

#include <stdatomic.h>
#include "base/err.h"
#include "serve/http/body_budget.h"

#define KEY_MAX 256
struct keys {
    int n;
    struct key {
        char text[KEY_MAX];   /* padded with zeros */
        _Atomic int n_active; /* requests of this key */
        struct body_share bodies;
    } * key;
};
/* Reads the file at path. Empty lines and lines that begin with # are skipped; blanks at both ends do not
 * belong to a key. ERR_CONFIG: no key, one that is too long, or one that is there twice: the message names
 * the line, never the key. */
int keys_open(struct keys *k, const char *path, struct err *e);
/* Safe on zeroes. */
void keys_close(struct keys *k);
/* Index of the key in "Authorization: Bearer KEY" or "X-Api-Key: KEY" (the headers' values; either may be
 * NULL), or -1. Any thread. */
int keys_find(const struct keys *k, const char *authorization, const char *x_api_key);

#endif
