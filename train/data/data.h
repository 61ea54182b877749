/* data.h - tokens: files seen as one long sequence (or as a mixture), windows of it, and which window is
 * which row of which step. */
#ifndef SHARDLINE_TRAIN_DATA_DATA_H
#define SHARDLINE_TRAIN_DATA_DATA_H

#include <stdint.h>
#include "base/err.h"
#include "base/opt.h"

struct data;
/* files: token files of ptok (text/TOKENS.md, known by their first bytes; blocks are checked as they are
 * read), .u16 / .u32 raw little-endian ids (mapped, not read), anything else text through the tokenizer
 * ("bytes" or a folder).
 * order: "shuffle" or "stride:K". mix: NULL, or a weight a file, "7,3": of every 4096 samples a file gives
 * its share, to the nearest sample, in an order of its own; each file has its own windows and epochs.
 * ERR_USAGE: too little data for one window; ERR_FORMAT: odd length, id outside the vocabulary. */
int data_open(struct data **out, const struct opt_list *files, const char *tokenizer, const char *order,
              const char *mix, int64_t seq_len, int64_t vocab, uint64_t seed, struct err *e);
void data_close(struct data *d);
int64_t data_tokens(const struct data *d);
/* floor((tokens - 1) / seq_len); of a mixture: of every file, added */
int64_t data_windows(const struct data *d);
/* Window that sample k (counted from the start of the run: step * G + row) reads: a pure function. */
int64_t data_window(const struct data *d, int64_t sample);
/* Inputs and targets [seq_len] of a window. ERR_FORMAT names file and position of an id outside the
 * vocabulary. */
int data_read(const struct data *d, int64_t window, int32_t *ids, int32_t *targets, struct err *e);
/* Where the documents of a window's inputs begin, ascending from 0: their number. Ends are those of ptok's
 * files, and of every file.
 * ERR_USAGE: more than `most`. */
int data_documents(const struct data *d, int64_t window, int64_t *begin, int most, struct err *e);
int data_knows_documents(const struct data *d); /* some file of ptok says where they end */

#endif
