/* embedding_info.h - what sentence-transformers wrote beside a model of embeddings: modules.json, the list of
 * what its vectors pass through, and 1_Pooling/config.json. Read for the defaults of /v1/embeddings.
 *
 * Such a folder is served whatever they say; what is not done here is only noted, so that a request for
 * vectors that does not choose a pooling itself is refused by name. */
#ifndef SHARDLINE_SERVE_WEIGHTS_EMBEDDING_INFO_H
#define SHARDLINE_SERVE_WEIGHTS_EMBEDDING_INFO_H

#include <stddef.h>
#include "base/err.h"
#include "serve/service.h"

/* Fills *h from the texts of the two files, each NULL where there is none: without both, the last token's
 * state, of length 1. With modules.json vectors have length 1 only if it names a Normalize. ERR_FORMAT: not
 * JSON, or a member of another type. */
int embedding_info_parse(struct embedding_habits *h, const char *modules, size_t n_modules,
                         const char *pooling, size_t n_pooling, struct err *e);

#endif
