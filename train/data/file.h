/* file.h - private to train/data: one file of the data, its tokens, weights and documents. */
#ifndef SHARDLINE_TRAIN_DATA_FILE_H
#define SHARDLINE_TRAIN_DATA_FILE_H

#include "base/io.h"
#include "text/indexed.h"
#include "text/tokfile.h"
#include "train/data/data.h"
#include "train/data/pack.h"

/* Bytes of a file in memory. */
struct bytes {
    const unsigned char *p;
    size_t n;            /* mapped; 0: malloc'd */
    struct io_mark mark; /* of the map */
};
struct data_file {
    const char *path;
    int64_t first, n;              /* its tokens in the whole sequence */
    int64_t first_window, windows; /* of a mixture, or of conversations: its windows among all */
    int64_t per_block;             /* of a mixture: its samples in a block */
    int width;                     /* bytes an id */
    struct bytes ids;              /* of the file, or of the encoded text */
    struct tokfile *tok;           /* a file of ptok, or NULL */
    struct indexed pair;           /* Megatron's index of the ids, or zeroed */
    const char *given_path;        /* of --loss-weights, or NULL */
    struct bytes given;            /* its floats */
    int is_chats;                  /* documents are conversations: a window is a row of `pack` */
    float *weight;                 /* malloc'd: of conversations that were lines, or NULL */
    int64_t *end, n_ends;          /* malloc'd: likewise, their documents; also those of tok for `pack` */
    struct pack pack;
};

/* Opens o->files->item[i]. data_file_close() also after an error. ERR_FORMAT, ERR_USAGE as data_open(). */
int data_file_open(struct data_file *f, const struct data_options *o, int i, struct err *e);
void data_file_close(struct data_file *f);
/* Before a window is read. ERR_INTEGRITY: the file has been cut since it was opened. */
int data_file_check_size(const struct data_file *f, struct err *e);
/* The file's ids [at, at + n). ERR_FORMAT: an id outside of the vocabulary, with its position. */
int data_file_read(const struct data_file *f, int64_t at, int64_t n, int64_t vocab, int32_t *ids,
                   struct err *e);
/* 1: its tokens have weights; 0: all are 1. data_file_weights: of the file's ids [at, at + n). ERR_FORMAT: a
 * weight that is not finite, with its position. */
int data_file_weighted(const struct data_file *f);
int data_file_weights(const struct data_file *f, int64_t at, int64_t n, float *weights, struct err *e);
/* Of conversations: tokens whose weight is not 0, before --loss-weights. */
int64_t data_file_weighted_tokens(const struct data_file *f);
/* Documents; 0: ends are not known. Tokens of the file up to the end of document i. */
int64_t data_file_documents(const struct data_file *f);
int64_t data_file_document_end(const struct data_file *f, int64_t i);

#endif
