/* gguf_tokenizer.h - private to the room: the three files of a vocabulary as text. */
#ifndef SHARDLINE_FORMAT_VOCAB_GGUF_TOKENIZER_H
#define SHARDLINE_FORMAT_VOCAB_GGUF_TOKENIZER_H

#include "format/vocab/gguf_vocab.h"

/* ---- gguf_vocab.c ---- */

/* 1: a tokenizer.json can be made; t->is_spm and t->pre say of what kind. 0: not, `why` is a line to print
 * that says why, or "" where the file has no vocabulary. */
int gguf_tokenizer_known(struct gguf_tokens *t, const struct gguf_file *f, char why[160]);
/* Reads the lists of tokens, types and scores. ERR_FORMAT: of different lengths, or of other types. */
int gguf_tokens_read(struct gguf_tokens *t, const struct gguf_file *f, struct err *e);
void gguf_tokens_free(struct gguf_tokens *t);

/* ---- gguf_tokenizer.c ---- */

/* tokenizer.json. ERR_FORMAT: a byte-level BPE without merges. */
int gguf_tokenizer_json(struct buf *o, const struct gguf_tokens *t, struct err *e);
/* tokenizer_config.json: names of special tokens, the chat template. */
void gguf_tokenizer_config(struct buf *o, const struct gguf_tokens *t);
/* generation_config.json: the tokens that end an answer. */
void gguf_generation_config(struct buf *o, const struct gguf_file *f);

#endif
