/* gguf_pre.h - private to format/vocab and format/gguf: the names of tokenizer.ggml.pre, and what each does
 * to a text before merges. Constant data and pure functions: any thread may use them. */
#ifndef SHARDLINE_FORMAT_VOCAB_GGUF_PRE_H
#define SHARDLINE_FORMAT_VOCAB_GGUF_PRE_H

#include <stdint.h>

enum gguf_pre_flag {
    GGUF_PRE_NFC = 1,   /* the text is normalised first */
    GGUF_PRE_WHOLE = 2, /* a word that is a token is not merged ("ignore_merges") */
    GGUF_PRE_BOS = 4,   /* a text begins with bos where the file does not say so */
    GGUF_PRE_TEXT = 8   /* merges of text with U+2581 for blanks, not of bytes as characters */
};
#define GGUF_PRE_SPLITS 6
/* Patterns of steps that tokenizer.json says in other words: ByteLevel with its regex, and Digits. */
#define GGUF_PRE_WORDS "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define GGUF_PRE_DIGIT "\\p{N}"
struct gguf_pre {
    const char *name;                   /* that the writer uses */
    const char *others;                 /* names with the same meaning, with blanks between them */
    const char *split[GGUF_PRE_SPLITS]; /* patterns, one after the other; each match is a word */
    unsigned flags;
};
/* The row of a name of n bytes; NULL: it is not known here. */
const struct gguf_pre *gguf_pre_find(const char *name, int64_t n);
/* The row of n patterns, 0 < n. whole: words that are tokens are not merged; of rows with the same patterns
 * the first that does so, else the first. NULL: llama.cpp has nothing like them. */
const struct gguf_pre *gguf_pre_of(const char *const *split, int n, int whole);

#endif
