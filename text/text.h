/* text.h - the door of room text: text to token ids and back.
 *
 * A tokenizer is built once from bytes in memory (tokenizer.json of the Hugging Face tokenizers library, or
 * plain bytes) and never
 * changes: every function that takes a const tokenizer may run in any number of threads at once.
 *
 * Text comes in as UTF-8; each maximal invalid part is read as U+FFFD (Unicode 15, section 3.9,
 * "substitution of maximal subparts"; Python's errors="replace"). What decoding gives is always valid UTF-8.
 * */
#ifndef SHARDLINE_TEXT_TEXT_H
#define SHARDLINE_TEXT_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct tokenizer;

/* Vocabulary 256, id = byte, no special tokens. The one tokenizer that encodes invalid UTF-8 as it is (data
 * stays data); its decoding gives U+FFFD for invalid parts, as all do. */
int tokenizer_bytes(struct tokenizer **out, struct err *e);
/* json, n: the text of tokenizer.json; config, n_config: the text of tokenizer_config.json, or NULL, 0 (then
 * bos and eos are unknown). Both may be freed afterwards. what: where it came from, for messages.
 * ERR_CONFIG: not a tokenizer, or one that needs a part that is not built; the message names the part. */
int tokenizer_open(struct tokenizer **out, const char *json, size_t n, const char *config, size_t n_config,
                   const char *what, struct err *e);
/* The same from a folder: DIR/tokenizer.json and, when it is there, DIR/tokenizer_config.json. ERR_FILE: no
 * tokenizer.json. */
int tokenizer_open_dir(struct tokenizer **out, const char *dir, struct err *e);
/* What --tokenizer takes: "bytes", or a folder. */
int tokenizer_open_named(struct tokenizer **out, const char *name, struct err *e);
void tokenizer_close(struct tokenizer *t); /* NULL is fine */

/* *ids: malloc'd (also when *n_ids is 0), the caller frees. add_special: with the ids that the
 * post-processor puts in front and behind (BOS, EOS); special tokens written in the text are recognised
 * either way. n up to 1 GiB, else ERR_CONFIG. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, int add_special, int32_t **ids,
                     size_t *n_ids, struct err *e);
/* Bytes [begin, end) of a text. */
struct text_span {
    size_t begin, end;
};
/* The same for a text of which parts came from outside (template.h: user spans, ascending): a special token
 * is one only where no byte of it lies in a span; inside or across it is plain text, whatever it spells.
 * ERR_CONFIG: text that is not UTF-8, spans out of order, or one that the tokenizer cannot write without a
 * special token. */
int tokenizer_encode_marked(const struct tokenizer *t, const char *text, size_t n,
                            const struct text_span *user, size_t n_user, int add_special, int32_t **ids,
                            size_t *n_ids, struct err *e);
/* *out: malloc'd, one NUL behind its *n_bytes bytes. Ids that do not exist stand for nothing, as in the
 * reference library. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, int skip_special, char **out,
                     size_t *n_bytes, struct err *e);

/* Decoding as ids arrive: each feed gives the bytes that are now certain, whatever follows - never part of a
 * character - and finish gives the rest (U+FFFD for a cut character). Joined they are the bytes of
 * tokenizer_decode over all ids. One stream belongs to one thread; the tokenizer must outlive it. *out is
 * lent until the next call on the same stream; *n may be 0. */
struct tokenizer_stream;
int tokenizer_stream_open(struct tokenizer_stream **out, const struct tokenizer *t, int skip_special,
                          struct err *e);
int tokenizer_stream_feed(struct tokenizer_stream *s, int32_t id, const char **out, size_t *n, struct err *e);
int tokenizer_stream_finish(struct tokenizer_stream *s, const char **out, size_t *n, struct err *e);
void tokenizer_stream_close(struct tokenizer_stream *s); /* NULL is fine */

/* highest id + 1, added tokens included */
int32_t tokenizer_vocab(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t); /* -1: none known */
int32_t tokenizer_eos(const struct tokenizer *t); /* -1: none known */
/* 0 also for an id that does not exist */
int tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* by the token's own text; -1: none */
int32_t tokenizer_id(const struct tokenizer *t, const char *token, size_t n);
/* The token as the vocabulary writes it ("Ġthe", "▁the", "<0x0A>"), NUL behind; NULL: no such id. Lent, as
 * long as t lives. */
const char *tokenizer_token_text(const struct tokenizer *t, int32_t id, size_t *n);
/* The bytes it stands for in the middle of a text (" the", "\n"; part of a character for some); NULL: no
 * such id. Lent. */
const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *n);

#endif
