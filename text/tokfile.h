/* tokfile.h - files of token ids with a header and checksums (TOKENS.md): reading, and writing from front to
 * back. */
#ifndef SHARDLINE_TEXT_TOKFILE_H
#define SHARDLINE_TEXT_TOKFILE_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct tokfile;
/* 1: the file's first n bytes are those of a token file (8 are enough). */
int tokfile_is(const void *begin, size_t n);
/* Maps the file; header, length and tables are checked. ERR_FORMAT: no token file, or cut off;
 * ERR_INTEGRITY: a checksum does not fit. Any number of threads may read one at once. */
int tokfile_open(struct tokfile **out, const char *path, struct err *e);
void tokfile_close(struct tokfile *f); /* NULL is fine */
int64_t tokfile_count(const struct tokfile *f);
int64_t tokfile_vocab(const struct tokfile *f);
int tokfile_width(const struct tokfile *f);                       /* bytes an id: 2 or 4 */
int64_t tokfile_documents(const struct tokfile *f);               /* 0: ends are not known */
int64_t tokfile_document_end(const struct tokfile *f, int64_t i); /* ids up to the end of document i */
/* Ids [first, first + n), which lie in the file. Blocks read for the first time are checked: ERR_INTEGRITY
 * names the bytes; an id that is
 * not below the vocabulary: ERR_FORMAT. */
int tokfile_read(const struct tokfile *f, int64_t first, int64_t n, int32_t *ids, struct err *e);
int tokfile_verify(const struct tokfile *f, struct err *e); /* all blocks */

/* Writing: PATH appears whole at finish, or not at all. */
struct tokfile_writer;
/* ERR_FILE: path exists */
int tokfile_create(struct tokfile_writer **out, const char *path, int64_t vocab, struct err *e);
int tokfile_add(struct tokfile_writer *w, const int32_t *ids, size_t n, struct err *e);
int tokfile_end_document(struct tokfile_writer *w, struct err *e);
int64_t tokfile_written(const struct tokfile_writer *w);
/* Closes w in any case. */
int tokfile_finish(struct tokfile_writer *w, struct err *e);
void tokfile_abandon(struct tokfile_writer *w); /* nothing stays; NULL is fine */

#endif
