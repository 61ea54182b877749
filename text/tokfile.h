/* tokfile.h - files of token ids with a header and checksums: random reads, sequential writes. The format is
 * text/TOKENS.md. */
#ifndef SHARDLINE_TEXT_TOKFILE_H
#define SHARDLINE_TEXT_TOKFILE_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct tokfile;
/* 1: the n first bytes of a file are those of a token file; 8 bytes are enough. */
int tokfile_is(const void *begin, size_t n);
/* 1: the file at this path can be read, and is one. */
int tokfile_is_path(const char *path);
/* Maps the file and checks its header, length and tables. Any number of threads may read an open file.
 * ERR_FORMAT: not a token file, or truncated. ERR_INTEGRITY: a wrong checksum. */
int tokfile_open(struct tokfile **out, const char *path, struct err *e);
void tokfile_close(struct tokfile *f); /* NULL is allowed */
/* ERR_INTEGRITY: the file has been cut since it was opened. A reader asks before it reads, because a byte
 * that is gone is a SIGBUS. */
int tokfile_check_size(const struct tokfile *f, struct err *e);
int64_t tokfile_count(const struct tokfile *f); /* ids */
int64_t tokfile_vocab(const struct tokfile *f);
int tokfile_width(const struct tokfile *f);                       /* bytes an id: 2 or 4 */
int64_t tokfile_documents(const struct tokfile *f);               /* 0: ends are not known */
int64_t tokfile_document_end(const struct tokfile *f, int64_t i); /* ids up to the end of document i */
/* The bytes of a small file that the token file carries ("tokenizer.json"); NULL: it carries none of this
 * name. Borrowed until tokfile_close. */
const void *tokfile_part(const struct tokfile *f, const char *name, size_t *n);
/* 1: its documents are conversations, which are trained on as wholes (text/CHATS.md). */
int tokfile_is_chats(const struct tokfile *f);
/* 1: its tokens have weights. tokfile_weights: those of ids [first, first + n), which must lie in the
 * file. */
int tokfile_has_weights(const struct tokfile *f);
int64_t tokfile_weighted(const struct tokfile *f); /* ids whose weight is not 0 */
void tokfile_weights(const struct tokfile *f, int64_t first, int64_t n, float *weights);
/* Reads ids [first, first + n), which must lie in the file. The first read of a block checks it.
 * ERR_INTEGRITY: a wrong checksum; the message names the bytes. ERR_FORMAT: an id outside the vocabulary. */
int tokfile_read(const struct tokfile *f, int64_t first, int64_t n, int32_t *ids, struct err *e);
int tokfile_verify(const struct tokfile *f, struct err *e); /* checks all blocks, as tokfile_read does */

/* Writing, by one thread. The file appears under its name when tokfile_finish succeeds, else not at all. */
struct tokfile_writer;
/* ERR_FILE: path exists. */
int tokfile_create(struct tokfile_writer **out, const char *path, int64_t vocab, struct err *e);
int tokfile_add(struct tokfile_writer *w, const int32_t *ids, size_t n, struct err *e);
/* The weights of the ids of the last tokfile_add: finite numbers. A file has weights for all its ids or for
 * none, and then its documents are conversations. */
int tokfile_weigh(struct tokfile_writer *w, const float *weights, size_t n, struct err *e);
int tokfile_end_document(struct tokfile_writer *w, struct err *e);
/* Carries a small file of at most 1 GiB; the name is not empty. */
int tokfile_carry(struct tokfile_writer *w, const char *name, const void *data, size_t n, struct err *e);
int64_t tokfile_written(const struct tokfile_writer *w); /* ids so far */
/* Closes w, also on failure. */
int tokfile_finish(struct tokfile_writer *w, struct err *e);
void tokfile_abandon(struct tokfile_writer *w); /* removes what was written; NULL is allowed */

#endif
