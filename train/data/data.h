/* data.h - training data: files as one long sequence of tokens (or as a mixture), windows of it, and which
 * window each row of each step reads. Nothing is collective; every rank opens the same data. */
#ifndef SHARDLINE_TRAIN_DATA_DATA_H
#define SHARDLINE_TRAIN_DATA_DATA_H

#include <stdint.h>
#include "base/err.h"
#include "base/opt.h"

struct data;
struct data_options {
    /* Token files of ptok (text/TOKENS.md, known by their first bytes; blocks are checked as they are
     * read), the pairs of Megatron (text/indexed.h), .u16 and .u32 raw little-endian ids (mapped, not read),
     * anything else text. Borrowed until
     * data_close(). */
    const struct opt_list *files;
    const char *tokenizer; /* of text: as tokenizer_open_named */
    const char *order;     /* "shuffle" or "stride:K" */
    /* NULL, or a weight for each file, "7,3": of every 4096 samples a file gives its part, to the nearest
     * sample, in an order of its own. Each file then has its own windows and epochs. */
    const char *mix;
    int64_t seq_len, vocab;
    uint64_t seed;
};
/* ERR_USAGE: too few tokens for one window, or an order or mix that cannot be; ERR_FORMAT: a file that is
 * no whole number of ids, or that does not look like text. */
int data_open(struct data **out, const struct data_options *o, struct err *e);
void data_close(struct data *d);

/* Tokens of all files. */
int64_t data_tokens(const struct data *d);
/* floor((tokens - 1) / seq_len); of a mixture, the sum of that over the files. */
int64_t data_windows(const struct data *d);
/* The window that a sample reads: a pure function. Samples count from the start of the run: step * G +
 * row. */
int64_t data_window(const struct data *d, int64_t sample);
/* Inputs and targets [seq_len] of a window. ERR_FORMAT: an id outside the vocabulary, with its file and
 * position. */
int data_read(const struct data *d, int64_t window, int32_t *ids, int32_t *targets, struct err *e);

/* Returns how many documents a window's inputs have, and puts their first tokens, ascending from 0, into
 * begin[most]. A document ends where a token file says so, and where a file ends. ERR_USAGE: more than
 * `most`. */
int data_documents(const struct data *d, int64_t window, int64_t *begin, int most, struct err *e);
/* Whether a token file says where its documents end. */
int data_knows_documents(const struct data *d);

#endif
