/* jx.h - glue over jansson: members with a wanted type and errors that name the file and the key. */
#ifndef SHARDLINE_BASE_JX_H
#define SHARDLINE_BASE_JX_H

#include <jansson.h>
#include <stdint.h>
#include "base/err.h"

/* Parses text (n bytes); duplicate keys and depth over 64 are errors. what: the file's name for messages.
 * NULL: error set. */
json_t *jx_parse(const char *text, size_t n, const char *what, struct err *e);
json_t *jx_load(const char *path, size_t limit, struct err *e);
/* Member `key` of o: 1 found, 0 absent or null (*out untouched), negative: wrong type, message names what
 * and key. */
int jx_int(const json_t *o, const char *what, const char *key, int64_t *out, struct err *e);
/* integers too */
int jx_float(const json_t *o, const char *what, const char *key, double *out, struct err *e);
int jx_bool(const json_t *o, const char *what, const char *key, int *out, struct err *e);
/* borrowed */
int jx_text(const json_t *o, const char *what, const char *key, const char **out, struct err *e);
char *jx_float32(float x, char out[32]); /* 9 significant digits: the binary32 value comes back */

#endif
