/* structured.h - constrained answers: response_format and structured_outputs of a request become a grammar,
 * which the engine's masks follow (text/grammar.h).
 *
 * Compiled grammars are kept by their text, the last ones used, and shared between requests; so are the bytes
 * of the vocabulary, which are read when the first request needs them. */
#ifndef SHARDLINE_SERVE_API_STRUCTURED_H
#define SHARDLINE_SERVE_API_STRUCTURED_H

#include <jansson.h>
#include "serve/service.h"
#include "text/grammar.h"

struct request;

/* What a request asks for; text is owned by its owner. */
struct structured {
    int kind; /* enum grammar_kind + 1; 0: nothing. GRAMMAR_CHOICE: text is a JSON list */
    unsigned flags;
    int behind;    /* reasoning of a chat: 0: there is none, 1: it may come first, 2: the prompt began it */
    int of_format; /* response_format said so, not structured_outputs */
    size_t n, n_tools;
    char *text; /* [n] and a NUL, malloc'd, or NULL */
    /* The calls that the answer may have instead, or must have, where their arguments are to follow schemas:
     * JSON, {"tools", "name", "required", "parallel"}; as text. */
    char *tools;
};

struct grammar_cache;
/* ERR_MEMORY. */
int grammar_cache_open(struct grammar_cache **out, struct err *e);
void grammar_cache_close(struct grammar_cache *c); /* NULL is allowed; grammars in use live on */
/* The bytes of the service's vocabulary, which live as long as the cache. NULL: *e. Any thread. */
const struct token_trie *grammar_cache_trie(struct grammar_cache *c, const struct service *sv, struct err *e);

/* Read a field of a request. 0, or -1 with *f. */
int structured_read_format(struct request *rq, const json_t *v, struct fault *f);
int structured_read_outputs(struct request *rq, const json_t *v, struct fault *f);
/* Notes which calls the answer may have or must have. name: of the only one that may be called, or NULL.
 * 0, or -1 with *f. */
int structured_set_tools(struct request *rq, const char *name, int required, struct fault *f);
/* Frees the texts. */
void structured_free(struct structured *s);
/* Refuses a field of vLLM before 0.12 and names the one that took its place. */
int structured_refuse_old(const char *name, struct fault *f);
/* Makes rq->grammar of what was read, if it was; else leaves it as it is. 0, or -1 with *f. Takes long for
 * a large schema: call it in a worker's thread. */
int structured_open(struct request *rq, struct fault *f);

#endif
