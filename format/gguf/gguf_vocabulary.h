/* gguf_vocabulary.h - private to the room: how llama.cpp names what tokenizer.json does before its merges. */
#ifndef SHARDLINE_FORMAT_GGUF_GGUF_VOCABULARY_H
#define SHARDLINE_FORMAT_GGUF_GGUF_VOCABULARY_H

#include <jansson.h>

/* tokenizer.ggml.pre of a byte-level BPE; NULL: llama.cpp has no name for it, and *why says of what. */
const char *gguf_pretokenizer(const json_t *tokenizer, const char **why);
/* 1: a space is put before the text (SentencePiece's dummy prefix). */
int gguf_prefixes_space(const json_t *tokenizer);
/* 1: the tokenizer works on bytes as printable characters (GPT-2), not on text with U+2581 for spaces. */
int gguf_is_byte_level(const json_t *tokenizer);

#endif
