/* jx.h - glue over jansson: parsing with limits, members of a wanted type, errors that name file and key. */
#ifndef SHARDLINE_BASE_JX_H
#define SHARDLINE_BASE_JX_H

#include <jansson.h>
#include <stdint.h>
#include "base/buf.h"
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

/* ---- long lists: an element at a time, with memory for one of them (jx/jx_parts.c) ---- */

/* A value of a text, not parsed; n 0: there is none. The text is borrowed. */
struct jx_slice {
    const char *text;
    size_t n;
};
struct jx_walk {
    const char *at, *end;
    int begun, closing; /* closing: the bracket at the end; 0: the value is no list and no object */
};
/* A walk over the elements of a list or the members of an object. */
struct jx_walk jx_walk(struct jx_slice of);
/* 1: *value is the next element, or member with its *key in quotes. 0: there is no further one. -1: not
 * JSON. Only brackets, commas and the ends of texts are checked: who parses every value has checked
 * everything. key may be NULL for lists. */
int jx_walk_next(struct jx_walk *w, struct jx_slice *key, struct jx_slice *value);
/* The next element of a list, parsed: 1 with *out, which the caller releases; 0: there is none.
 * ERR_FORMAT. */
int jx_walk_parse(struct jx_walk *w, const char *what, json_t **out, struct err *e);
/* How many elements or members; those before the damage where it is not JSON. */
size_t jx_count(struct jx_slice of);

/* As jx_parse() of an object, but for the lists that are its members key[i]: they become empty lists, and
 * their text is apart[i]. */
json_t *jx_parse_apart(struct jx_slice text, const char *const *key, struct jx_slice *apart, int n,
                       const char *what, struct err *e);

/* Appends the canonical text: sorted keys, no spaces. */
void jx_put(struct buf *to, const json_t *v);
/* A further member of an object, whose value put() appends. */
struct jx_member {
    const char *key;
    void (*put)(struct buf *to, const void *arg);
    const void *arg;
};
/* The same for an object with n further members. */
void jx_put_with(struct buf *to, const json_t *o, const struct jx_member *more, int n);

/* Prints x with 9 significant digits, from which the same binary32 value is read back; NaN and infinities
 * give "null". Returns out. */
char *jx_float32(float x, char out[32]);

#endif
