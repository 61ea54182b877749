/* gguf_vocab.h - private to the room: the vocabulary of a GGUF file as Hugging Face's files. */
#ifndef SHARDLINE_FORMAT_VOCAB_GGUF_VOCAB_H
#define SHARDLINE_FORMAT_VOCAB_GGUF_VOCAB_H

#include "base/buf.h"
#include "format/gguf/gguf_file.h"
#include "format/vocab/gguf_pre.h"

/* ---- tokens (gguf_vocab.c) ---- */

#define GGUF_BLANK "\xe2\x96\x81" /* U+2581 */

struct gguf_token_row {
    struct gguf_text text; /* of the model: a blank is U+2581 where the vocabulary is SentencePiece's */
    struct gguf_text raw;  /* as it is in the file */
    enum gguf_token type;
    float score;
    int is_kept; /* in the vocabulary: valid UTF-8, no padding, the first of its text */
};
struct gguf_tokens {
    const struct gguf_file *f;
    int is_spm;                 /* text with U+2581 for blanks and tokens of bytes; else byte-level BPE */
    const struct gguf_pre *pre; /* NULL: merges come from scores */
    int32_t n;
    struct gguf_token_row *row;
    char *spelled; /* texts that are not as in the file */
    int32_t *slot; /* hash table of kept texts: number + 1 */
    uint32_t n_slots;
};

/* The number of a kept token of that text, or -1. */
int32_t gguf_token_find(const struct gguf_tokens *t, const char *p, int64_t n);

/* 1: nothing but blanks. */
int gguf_only_blanks(struct gguf_text t);

/* ---- texts ---- */

/* Adds text; o->failed where memory is missing. */
void gguf_print(struct buf *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A JSON string of n bytes of UTF-8. */
void gguf_print_json(struct buf *o, const char *p, int64_t n);
/* 1: n bytes are UTF-8. */
int gguf_is_utf8(const char *p, int64_t n);

/* ---- merges (gguf_merges.c) ---- */

/* Adds the merges of a SentencePiece vocabulary to o: a JSON list of texts. Two tokens that make a third are
 * a merge; the third's score orders them, as transformers' conversion of such models does. ERR_FORMAT: a
 * token of more than 1024 bytes. ERR_MEMORY. */
int gguf_print_merges(struct buf *o, const struct gguf_tokens *t, struct err *e);

#endif
