/* gguf_write.h - a GGUF file for llama.cpp, made of a checkpoint of Hugging Face's names.
 *
 *     source -gguf_target_open-> view: the tensors as the file holds them -stream-> gguf_write_put -> file
 *
 * The view (ckpt_view.h) does the work: names of llama.cpp, rows of q and k in its order, experts merged,
 * norms of Gemma as 1 + w, vectors in fp32, blocks encoded. A quantised tensor of the view has dtype U8 and
 * its bytes as elements. The file is written by one process; tensors may come from several threads. */
#ifndef SHARDLINE_FORMAT_GGUF_WRITE_H
#define SHARDLINE_FORMAT_GGUF_WRITE_H

#include <jansson.h>
#include "format/ckpt.h"

/* ---- metadata ---- */

/* Keys and values in the order in which they were added. A failed allocation is kept and reported by
 * gguf_write_open. */
struct gguf_keys {
    char *data;
    size_t bytes, room;
    uint64_t n;
    int failed;
};
/* Each adds one key. The texts are copied. */
void gguf_key_u32(struct gguf_keys *k, const char *key, int64_t value);
void gguf_key_f32(struct gguf_keys *k, const char *key, double value);
void gguf_key_bool(struct gguf_keys *k, const char *key, int value);
void gguf_key_text(struct gguf_keys *k, const char *key, const char *text, size_t bytes);
void gguf_key_bools(struct gguf_keys *k, const char *key, const unsigned char *value, int n);
/* Frees the memory, and leaves no keys. */
void gguf_keys_free(struct gguf_keys *k);

/* The texts of a tokenizer's files; NULL: there is none. Not JSON objects: ERR_FORMAT. */
struct gguf_vocabulary {
    const char *tokenizer_json, *tokenizer_config, *chat_template;
    int64_t n_vocab;  /* rows of the embedding; tokens are added up to it */
    int64_t bos, eos; /* of config.json, where the files name none; -1: none */
    const char *why;  /* out: why llama.cpp has no such tokenizer, or NULL */
    int inexact;      /* out: it has, but may divide some words otherwise */
    char why_text[160];
};
/* Adds tokenizer.ggml.* and the chat template. Where llama.cpp cannot express the tokenizer, or there is
 * none, it adds the model "none", with which llama.cpp takes token ids only, and sets v->why. */
int gguf_key_vocabulary(struct gguf_keys *k, struct gguf_vocabulary *v, struct err *e);

/* ---- tensors ---- */

/* general.architecture of a family (config.json's model_type), or NULL. */
const char *gguf_arch(const char *model_type);
/* 1: such a type of blocks can be written ("q8_0", "q4_k", …; case does not count). */
int gguf_is_block_type(const char *name);

struct gguf_target_opts {
    const char *model_type;
    int64_t n_layers, n_heads, n_kv, n_experts;
    int64_t nope_dim, v_dim; /* of DeepSeek's heads */
    int tied;                /* no head of its own */
    int dtype;               /* of matrices: an enum stored_dtype, -1: the source's */
    const char *quantize;    /* type of matrices, NULL: none */
    int n_factors;           /* factors on wave lengths (Llama 3), 0: none */
    const float *factor;     /* copied */
};
struct gguf_target;
/* Makes the view of src, which it owns from now on, also after an error; *t lives as long as the view.
 * ERR_CONFIG: a tensor that the architecture does not have, an expert that is missing. ERR_USAGE: a dtype
 * that GGUF does not have. */
int gguf_target_open(struct ckpt **view, struct gguf_target **t, struct ckpt *src,
                     const struct gguf_target_opts *how, struct err *e);
/* To be filled before gguf_write_open. */
struct gguf_keys *gguf_target_keys(struct gguf_target *t);
/* general.file_type: the type of most values of matrices. */
int gguf_target_file_type(const struct gguf_target *t);
/* Matrices that --quantize left as they are, because their rows are no whole number of blocks; and tensors
 * that llama.cpp has no place for (the first one's name). */
int gguf_target_not_quantized(const struct gguf_target *t);
int gguf_target_left_out(const struct gguf_target *t, const char **first);
/* Values of norms read so far that are rounded in 1 + w (Gemma). */
int64_t gguf_target_rounded(const struct gguf_target *t);

/* ---- the file ---- */

struct gguf_write;
/* Creates the file: header, metadata and the places of all tensors are known before any data is written. */
int gguf_write_open(struct gguf_write **out, const char *path, struct gguf_target *t, struct err *e);
/* Writes the next n_elements of a tensor of the view, in its row-major order. Different tensors from
 * different threads. */
int gguf_write_put(struct gguf_write *w, const char *name, const void *data, int64_t n_elements,
                   struct err *e);
/* fsyncs and closes the file, and frees w. ERR_INTERNAL: a tensor is not whole. */
int gguf_write_seal(struct gguf_write *w, struct err *e);
/* Closes the file, which stays, and frees w. NULL is allowed. */
void gguf_write_abort(struct gguf_write *w);

/* Opens a GGUF file as the view of gguf_target_open has it: the file's own names, blocks as U8. For a proof
 * of what was written. */
int gguf_open_stored(struct ckpt **out, const char *path, struct err *e);

#endif
