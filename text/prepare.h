/* prepare.h - texts to a token file: many documents at once, one order. */
#ifndef SHARDLINE_TEXT_PREPARE_H
#define SHARDLINE_TEXT_PREPARE_H

#include <stdint.h>
#include "base/err.h"
#include "text/text.h"

struct prepare {
    const char *const *files; /* in the order in which they are written */
    int n_files;
    const char *out;   /* the token file, which must not exist */
    const char *field; /* of a line of JSONL */
    int n_threads;
    int append_eos;      /* the tokenizer's eos behind every document */
    int replace_invalid; /* what is not UTF-8 becomes U+FFFD; else it is an error */
};
struct prepared {
    int64_t tokens, documents, bytes;
    int width;
};

/* The bytes of the token file depend on files and tokenizer only, not on threads. Errors name file, line and
 * byte. */
int prepare_tokens(const struct tokenizer *t, const struct prepare *p, struct prepared *out, struct err *e);

#endif
