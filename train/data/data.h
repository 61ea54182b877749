/* data.h - training data: files as one long sequence of tokens (or as a mixture), windows of it, and which
 * window each row of each step reads. Nothing is collective; every rank opens the same data. */
#ifndef SHARDLINE_TRAIN_DATA_DATA_H
#define SHARDLINE_TRAIN_DATA_DATA_H

#include <stdint.h>
#include "base/err.h"
#include "base/opt.h"
#include "text/chats.h"

struct data;
/* How lines that are conversations become tokens (text/CHATS.md). template: a file, NULL: the tokenizer's. */
struct data_chats {
    const char *template;
    enum chat_turns turns;
};
struct data_options {
    /* Conversations (.jsonl whose first line is one, and ptok's files of them); token files of ptok
     * (text/TOKENS.md, known by their first bytes; blocks are checked as they are read), the pairs of
     * Megatron (text/indexed.h), .u16 and .u32 raw little-endian ids (mapped, not read), anything else text.
     * Borrowed until data_close(). */
    const struct opt_list *files;
    const char *tokenizer; /* of text: as tokenizer_open_named */
    const char *order;     /* "shuffle" or "stride:K" */
    /* NULL, or a weight for each file, "7,3": of every 4096 samples a file gives its part, to the nearest
     * sample, in an order of its own. Each file then has its own windows and epochs. */
    const char *mix;
    int64_t seq_len, vocab;
    uint64_t seed;
    const struct opt_list
        *weights; /* NULL or empty, or a .f32 file for each file, with a weight for each token */
    struct data_chats chats;
    int documents; /* conversations in a window, at most; 0: 1 */
};
/* ERR_USAGE: too few tokens for one window, or an order or mix that cannot be; ERR_FORMAT: a file that is
 * no whole number of ids, or that does not look like text. */
int data_open(struct data **out, const struct data_options *o, struct err *e);
void data_close(struct data *d);

/* Tokens of all files. */
int64_t data_tokens(const struct data *d);
/* floor((tokens - 1) / seq_len); of a mixture, the sum of that over the files; of conversations their rows:
 * whole ones, cut at seq_len + 1 tokens, filled up with token 0. */
int64_t data_windows(const struct data *d);
/* The window that a sample reads: a pure function. Samples count from the start of the run: step * G +
 * row. */
int64_t data_window(const struct data *d, int64_t sample);
/* Inputs and targets [seq_len] of a window. ERR_FORMAT: an id outside the vocabulary, with its file and
 * position. */
int data_read(const struct data *d, int64_t window, int32_t *ids, int32_t *targets, struct err *e);

/* Tokens of a window that are targets: seq_len, or less where it is filled up. */
int64_t data_targets(const struct data *d, int64_t window);
/* 1: targets have weights; 0: each counts as 1. */
int data_weighted(const struct data *d);
/* Weights of a window's targets [seq_len]: 0 where the loss does not count. ERR_FORMAT: one that is not
 * finite, with its file and position. */
int data_weights(const struct data *d, int64_t window, float *weights, struct err *e);

/* Returns how many documents a window's inputs have, and puts their first tokens, ascending from 0, into
 * begin[most]. A document ends where a token file says so, and where a file ends. ERR_USAGE: more than
 * `most`. */
int data_documents(const struct data *d, int64_t window, int64_t *begin, int most, struct err *e);
/* Whether a token file says where its documents end. */
int data_knows_documents(const struct data *d);

/* Conversations, the windows that they fill, how many are longer than a window; tokens of all that are
 * read, and those with a weight. */
struct data_packed {
    int64_t conversations, rows, n_cut, tokens, weighted;
    const char
        *plain_lines; /* a file of JSON lines that are no conversations, read as text; NULL: there is none */
};
/* Of all files; zeros where none has conversations. */
struct data_packed data_packed(const struct data *d);

#endif
