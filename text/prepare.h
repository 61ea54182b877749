/* prepare.h - tokenizes text files into one token file; many documents at once, written in order. */
#ifndef SHARDLINE_TEXT_PREPARE_H
#define SHARDLINE_TEXT_PREPARE_H

#include <stdint.h>
#include "base/err.h"
#include "text/carry.h"
#include "text/chats.h"
#include "text/text.h"

struct prepare {
    const char *const *files; /* in the order in which they are written */
    int n_files;
    const char *out;                /* the token file, which must not exist */
    const char *field;              /* the member of a JSONL line that has the text */
    const struct chat_coder *chats; /* of lines that are conversations: all files are such; NULL: none is */
    int n_threads;
    int append_eos;              /* write the tokenizer's eos after every document */
    const struct carried *carry; /* files of the tokenizer that the token file carries; NULL: none */
    int replace_invalid;         /* read invalid UTF-8 as U+FFFD; 0: invalid UTF-8 is an error */
};
struct prepared {
    int64_t tokens, documents, bytes; /* bytes: of text, before compression */
    int width;                        /* bytes an id in the token file */
};

/* The bytes of the token file depend on the files and the tokenizer, not on the number of threads. Error
 * messages name file, line and byte. */
int prepare_tokens(const struct tokenizer *t, const struct prepare *p, struct prepared *out, struct err *e);

#endif
