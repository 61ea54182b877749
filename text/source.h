/* source.h - documents of a file: a whole file of text, or the lines of JSONL; plain or compressed with
 * zstd. */
#ifndef SHARDLINE_TEXT_SOURCE_H
#define SHARDLINE_TEXT_SOURCE_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct source;
/* What the file is says its name: .jsonl, .ndjson; .zst behind it or behind any other name: compressed.
 * field: of a line of JSONL. */
int source_open(struct source **out, const char *path, const char *field, struct err *e);
void source_close(struct source *s); /* NULL is fine */
/* The next document: 1, *text is malloc'd, the caller frees; 0: there is none. bytes: at most this much of a
 * file of text at once, its parts belong together (*more is 1 but for the last); 0: whole. Errors name file,
 * line and byte. */
int source_next(struct source *s, size_t bytes, char **text, size_t *n, int *more, struct err *e);
/* Why a file that begins so is no text, whatever its name says ("is …: what to do"), or NULL. */
const char *source_not_text(const void *begin, size_t n);
int64_t source_line(const struct source *s); /* of the last document, from 1 */
/* where it begins, of the text before compression */
int64_t source_byte(const struct source *s);

#endif
