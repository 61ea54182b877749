/* text.h - public header of room text: tokenizers, text to token ids and back.
 *
 * A tokenizer is built once from bytes in memory (tokenizer.json of the Hugging Face tokenizers library, or
 * plain bytes) and is immutable afterwards: any number of threads may call the functions that take a const
 * tokenizer at the same time.
 *
 * Text is UTF-8. Each maximal invalid part is read as U+FFFD (Unicode 15, section 3.9, "substitution of
 * maximal subparts"; errors="replace" in Python). Decoded text is always valid UTF-8. */
#ifndef SHARDLINE_TEXT_TEXT_H
#define SHARDLINE_TEXT_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/work_limit.h"

struct tokenizer;

/* The byte tokenizer: vocabulary 256, id = byte, no special tokens. It alone encodes invalid UTF-8 unchanged;
 * its decoder writes U+FFFD for invalid parts, as every decoder does. */
int tokenizer_bytes(struct tokenizer **out, struct err *e);
/* json, n: the text of tokenizer.json. config, n_config: the text of tokenizer_config.json, or NULL, 0: bos
 * and eos are then unknown. The caller may free both afterwards. what: the source, for messages.
 * ERR_CONFIG: not a tokenizer, or it needs an unsupported part, which the message names. */
int tokenizer_open(struct tokenizer **out, const char *json, size_t n, const char *config, size_t n_config,
                   const char *what, struct err *e);
/* The same from a folder: DIR/tokenizer.json and, if present, DIR/tokenizer_config.json. ERR_FILE: no
 * tokenizer.json. */
int tokenizer_open_dir(struct tokenizer **out, const char *dir, struct err *e);
/* name: the value of --tokenizer: "bytes", a folder, or a token file that carries a tokenizer. */
int tokenizer_open_named(struct tokenizer **out, const char *name, struct err *e);
void tokenizer_close(struct tokenizer *t); /* NULL is allowed */

/* *ids: malloc'd (also when *n_ids is 0), the caller frees it. add_special: also add the ids of the
 * post-processor (BOS, EOS). Special tokens written in the text are recognised either way.
 * ERR_CONFIG: n is more than 1 GiB. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, int add_special, int32_t **ids,
                     size_t *n_ids, struct err *e);
/* Bytes [begin, end) of a text. */
struct text_span {
    size_t begin, end;
};
/* A text of n bytes with untrusted parts: n_user ascending spans (see template.h). */
struct marked_text {
    const char *text;
    size_t n;
    const struct text_span *user;
    size_t n_user;
    size_t max_ids;                 /* give up beyond so many ids; 0: never */
    const struct work_limit *limit; /* give up when it is reached; NULL: never */
};
/* As tokenizer_encode, for a text with untrusted parts (n_user may be 0). A special token is recognised only
 * where none of its bytes lies in a span; elsewhere its text is plain text. ERR_CONFIG: the text is not
 * UTF-8, the spans do not ascend or end in a character, the tokenizer cannot write a character of a span
 * without a special token, or the text has more than max_ids ids. ERR_STOPPED: the limit is reached. */
int tokenizer_encode_marked(const struct tokenizer *t, const struct marked_text *text, int add_special,
                            int32_t **ids, size_t *n_ids, struct err *e);
/* *out: malloc'd, *n_bytes bytes and a NUL; the caller frees it. Ids that do not exist are skipped, as in the
 * Hugging Face library. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, int skip_special, char **out,
                     size_t *n_bytes, struct err *e);

/* Decoding as ids arrive. tokenizer_stream_feed returns the bytes that no later id can change, never part of
 * a character; tokenizer_stream_finish returns the rest, with U+FFFD for an incomplete character. All results
 * in order are the bytes that tokenizer_decode returns for all ids.
 * One stream belongs to one thread, and the tokenizer must outlive it. *out is borrowed until the next call
 * on the same stream; *n may be 0. */
struct tokenizer_stream;
int tokenizer_stream_open(struct tokenizer_stream **out, const struct tokenizer *t, int skip_special,
                          struct err *e);
int tokenizer_stream_feed(struct tokenizer_stream *s, int32_t id, const char **out, size_t *n, struct err *e);
int tokenizer_stream_finish(struct tokenizer_stream *s, const char **out, size_t *n, struct err *e);
/* Gives a stream the n ids of the prompt before its first id. skip_special: of the prompt; the stream keeps
 * its own. *out, *n_text: the prompt's text without an incomplete character at its end; borrowed as above.
 * Later results hold only what follows: a word keeps the space before it, and a character that the prompt
 * begins comes whole. */
int tokenizer_stream_begin(struct tokenizer_stream *s, const int32_t *ids, size_t n, int skip_special,
                           const char **out, size_t *n_text, struct err *e);
void tokenizer_stream_close(struct tokenizer_stream *s); /* NULL is allowed */

/* The highest id + 1, added tokens included. */
int32_t tokenizer_vocab(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t); /* -1: not known */
int32_t tokenizer_eos(const struct tokenizer *t); /* -1: not known */
/* 1: a special token; 0: another token, or no such id. */
int tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* 1: a token added to the model's vocabulary, special or not; 0: another token, or no such id. */
int tokenizer_is_added(const struct tokenizer *t, int32_t id);
/* The id of the token with this text in the vocabulary; -1: none. */
int32_t tokenizer_id(const struct tokenizer *t, const char *token, size_t n);
/* The token's text in the vocabulary ("Ġthe", "▁the", "<0x0A>"), NUL-terminated; NULL: no such id. Borrowed
 * from t. */
const char *tokenizer_token_text(const struct tokenizer *t, int32_t id, size_t *n);
/* The bytes that the token decodes to in the middle of a text (" the", "\n"; for some tokens part of a
 * character); NULL: no such id. Borrowed from t. */
const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *n);

#endif
