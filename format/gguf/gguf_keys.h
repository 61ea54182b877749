/* gguf_keys.h - private to the room: parts of metadata, for keys whose value is an array. The elements follow
 * the call of gguf_key_array. */
#ifndef SHARDLINE_FORMAT_GGUF_GGUF_KEYS_H
#define SHARDLINE_FORMAT_GGUF_GGUF_KEYS_H

#include "format/gguf_write.h"
#include "format/gguf/gguf.h"

/* Appends bytes as they are. */
void gguf_put(struct gguf_keys *k, const void *data, size_t bytes);
void gguf_put_u32(struct gguf_keys *k, uint32_t v);
void gguf_put_u64(struct gguf_keys *k, uint64_t v);
/* A length and its bytes. */
void gguf_put_text(struct gguf_keys *k, const char *text, size_t bytes);
/* A key of n elements, which the caller appends. */
void gguf_key_array(struct gguf_keys *k, const char *key, enum gguf_value type, uint64_t n);

#endif
