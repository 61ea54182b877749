/* cut_sizes.h - private to reshard/: whole numbers of a config.json, for templates of cut tables
 * (cut_families.h). */
#ifndef SHARDLINE_RESHARD_CUT_SIZES_H
#define SHARDLINE_RESHARD_CUT_SIZES_H

#include <jansson.h>
#include <stdint.h>
#include "base/err.h"

struct cut_sizes {
    const json_t *text, *root; /* where keys are looked up: the language model's object, then the whole */
    const char *given[2];      /* "KEY=EXPRESSION ..." for keys that neither has, in this order */
    const char *what;          /* for messages */
};
/* The value of an expression: whole numbers, keys ("a.b": b in the object a; true is 1), + - * / and
 * parentheses. ERR_CONFIG: a key that is missing or no number, a division that leaves a rest, a number over
 * 2^48. */
int cut_sizes_value(const struct cut_sizes *s, const char *expression, int64_t *out, struct err *e);
/* The member of a path "a.b", of the language model's object, else of the whole; NULL: there is none. */
const json_t *cut_sizes_member(const struct cut_sizes *s, const char *path, size_t n);

#endif
