/* source.h - reads documents from a file: a text file is one document, a JSONL file has one a line; either
 * may be compressed with zstd. */
#ifndef SHARDLINE_TEXT_SOURCE_H
#define SHARDLINE_TEXT_SOURCE_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct source;
/* The name gives the format: .jsonl and .ndjson are JSONL, any other name is text; .zst behind it means
 * compressed. field: the member of a JSONL line that has the text; NULL: a document is the line itself. A
 * source belongs to one thread. */
int source_open(struct source **out, const char *path, const char *field, struct err *e);
void source_close(struct source *s); /* NULL is allowed */
/* Returns 1: the next document is in *text, malloc'd, n bytes and a NUL, the caller frees it; 0: there are no
 * more. bytes: the most to return of a text file in one call; *more is 1 until the last part. 0: the whole
 * file at once. Error messages name file, line and byte. */
int source_next(struct source *s, size_t bytes, char **text, size_t *n, int *more, struct err *e);
/* If the first bytes of a file show that it is not text, whatever its name, returns what it is ("is …: what
 * to do"); else NULL. */
const char *source_not_text(const void *begin, size_t n);
/* Position of the last document: its line, from 1, and its first byte before compression. */
int64_t source_line(const struct source *s);
int64_t source_byte(const struct source *s);

#endif
