/* sidecar.h - files that a command line names by path or URL besides checkpoints (text, tokens, a
 * config.json, a tokenizer), as paths on this machine. */
#ifndef SHARDLINE_STORE_SIDECAR_H
#define SHARDLINE_STORE_SIDECAR_H

#include "base/err.h"

/* The small files that belong to a tokenizer and travel with weights and tokens: the one list of the
 * project. */
#define TOKENIZER_FILES 10
extern const char *const tokenizer_file_names[TOKENIZER_FILES];

/* What was opened by URL, held until sidecar_close. Zero it first. */
struct sidecars {
    int n;
    struct url_cache **item;
    int n_paths;
    char **path; /* of file:// URLs */
};

/* A path is returned as it is. A URL is transferred whole into the cache that all processes of the machine
 * share; its path there is valid, and its bytes stay the same, until sidecar_close. NULL: *e is set;
 * ERR_USAGE: a URL of an unknown kind. */
const char *sidecar_file(struct sidecars *all, const char *where, struct err *e);
/* The same for a tokenizer's folder: tokenizer.json, which must be there, and the files that may lie beside
 * it. */
const char *sidecar_tokenizer(struct sidecars *all, const char *where, struct err *e);
/* Releases what came from URLs and zeroes *all. */
void sidecar_close(struct sidecars *all);

#endif
