/* sidecar.h - what a command line names to be read and is no checkpoint (text, tokens, a config.json, a
 * tokenizer), by path or URL, as a path here. */
#ifndef SHARDLINE_FORMAT_SIDECAR_H
#define SHARDLINE_FORMAT_SIDECAR_H

#include "base/err.h"

struct near;
/* zeroed at first; keeps what came from URLs as it is until near_close */
struct nears {
    int n;
    struct near *item;
};

/* where itself, when it is a path; else that of the whole file in the cache that all processes of the
 * machine share (README.md, URLs), lent until near_close. NULL: *e is set (ERR_USAGE: a URL of a kind that
 * is not known). */
const char *near_file(struct nears *all, const char *where, struct err *e);
/* The same for a tokenizer's folder: tokenizer.json, which must be there, and what may lie beside it. */
const char *near_tokenizer(struct nears *all, const char *where, struct err *e);
void near_close(struct nears *all);

#endif
