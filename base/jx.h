/* jx.h - glue over jansson: parsing with limits, members of a wanted type, errors that name file and key. */
#ifndef SHARDLINE_BASE_JX_H
#define SHARDLINE_BASE_JX_H

#include <jansson.h>
#include <stdint.h>
#include "base/err.h"

/* Parses n bytes. what: name of the file, for messages. Returns a reference that the caller releases with
 * json_decref. NULL: ERR_FORMAT, also for duplicate keys, U+0000 in a text and nesting deeper than 64. */
json_t *jx_parse(const char *text, size_t n, const char *what, struct err *e);

/* Most values of a text: lists and objects, and values of all kinds. */
struct jx_limits {
    size_t lists, values;
};
/* The same, for JSON of strangers. ERR_FORMAT: also beyond the limits. */
json_t *jx_parse_within(const char *text, size_t n, const struct jx_limits *limits, const char *what,
                        struct err *e);

/* Parses a file of at most `limit` bytes. NULL: *e is set. */
json_t *jx_load(const char *path, size_t limit, struct err *e);

/* These read member `key` of object o. Return 1: found, *out is set. 0: absent or null, *out is unchanged.
 * -ERR_FORMAT: another type; the message names `what` and the key. jx_float takes integers too. *out of
 * jx_text is borrowed from o. */
int jx_int(const json_t *o, const char *what, const char *key, int64_t *out, struct err *e);
int jx_float(const json_t *o, const char *what, const char *key, double *out, struct err *e);
int jx_bool(const json_t *o, const char *what, const char *key, int *out, struct err *e);
int jx_text(const json_t *o, const char *what, const char *key, const char **out, struct err *e);

/* Prints x with 9 significant digits, from which the same binary32 value is read back; NaN and infinities
 * give "null". Returns out. */
char *jx_float32(float x, char out[32]);

#endif
