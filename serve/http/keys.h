/* keys.h - the keys that requests must give: a file with one in a line, compared in a time that tells
 * nothing about them. */
#ifndef SHARDLINE_SERVE_HTTP_KEYS_H
#define SHARDLINE_SERVE_HTTP_KEYS_H

#include <stdatomic.h>
#include "base/err.h"

#define KEY_MAX 256
struct keys {
    int n;
    /* padded with zeros */
    struct key {
        char text[KEY_MAX];
        _Atomic int n_active;
    } * key;
};
/* Lines that begin with # and empty ones are passed over; blanks at both ends do not belong to a key.
 * ERR_CONFIG: no key, one that
 * is too long, or one that is there twice: the message names the line, never the key. */
int keys_open(struct keys *k, const char *path, struct err *e);
void keys_close(struct keys *k); /* safe on zeroes */
/* Index of the key in "Authorization: Bearer KEY" or "X-Api-Key: KEY" (either may be NULL), or -1. */
int keys_find(const struct keys *k, const char *authorization, const char *x_api_key);

#endif
