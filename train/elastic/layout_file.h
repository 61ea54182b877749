/* layout_file.h - the layout of a run as a file that may change while it trains, and as arguments of the next
 * start. */
#ifndef SHARDLINE_TRAIN_LAYOUT_FILE_H
#define SHARDLINE_TRAIN_LAYOUT_FILE_H

#include "base/err.h"
#include "train/train_options.h"

/* Reads TOML with the keys ranks, tp, pp, dp, cp, ep, zero, sp, schedule, virtual-stages and micro-batch into
 * *o, whose other members stay; so do those of keys that the file does not have. dp: ranks follow from it.
 * ERR_USAGE: another key, a value out of range, ranks that tp x pp x cp does not divide. ERR_FILE. */
int layout_file_read(const char *path, struct train_opts *o, struct err *e);
/* 1: both have the same layout. */
int layout_file_same(const struct train_opts *a, const struct train_opts *b);

#define LAYOUT_ARGS 10
#define LAYOUT_ARGS_BYTES 240
/* The layout as options of a command line: LAYOUT_ARGS words with a space between them. */
void layout_args(const struct train_opts *o, char text[LAYOUT_ARGS_BYTES]);
/* For a person: "4 ranks, tp 2, dp 2, zero 1". */
void layout_words(const struct train_opts *o, char text[LAYOUT_ARGS_BYTES]);

#endif
