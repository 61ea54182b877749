/* carry.h - the small files of a tokenizer, in memory: what a checkpoint and a token file carry with them. */
#ifndef SHARDLINE_TEXT_CARRY_H
#define SHARDLINE_TEXT_CARRY_H

#include <stddef.h>
#include "base/err.h"

/* Arrays of n. */
struct carried {
    int n;
    const char **name;
    const void **data;
    size_t *bytes;
};

/* Fills *x with the files of a tokenizer that `names` lists: tokenizer is "bytes" (none), a folder, or a
 * token file that carries one (text/TOKENS.md). The names are borrowed, the rest is freed by carried_free. *x
 * zeroed before; carried_free also after an error. */
int carried_read(struct carried *x, const char *tokenizer, const char *const *names, int n_names,
                 struct err *e);
/* Puts a copy of n bytes in the place of the file of that name, or behind the others. name: borrowed. */
int carried_put(struct carried *x, const char *name, const void *data, size_t n, struct err *e);
void carried_free(struct carried *x);

#endif
