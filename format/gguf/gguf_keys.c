/* gguf_keys.c - metadata of a GGUF file, put together in memory. See gguf_write.h and gguf_keys.h. */
#include "format/gguf/gguf_keys.h"

#include <stdlib.h>
#include <string.h>

void gguf_put(struct gguf_keys *k, const void *data, size_t bytes)
{
    if (k->failed)
        return;
    if (bytes > k->room - k->bytes) {
        size_t room = k->room ? k->room * 2 : 4096;
        while (room < k->bytes + bytes)
            room *= 2;
        char *grown = realloc(k->data, room);
        if (!grown) {
            k->failed = 1;
            return;
        }
        k->data = grown;
        k->room = room;
    }
    memcpy(k->data + k->bytes, data, bytes);
    k->bytes += bytes;
}

void gguf_put_u32(struct gguf_keys *k, uint32_t v) { gguf_put(k, &v, sizeof v); }
void gguf_put_u64(struct gguf_keys *k, uint64_t v) { gguf_put(k, &v, sizeof v); }

void gguf_put_text(struct gguf_keys *k, const char *text, size_t bytes)
{
    gguf_put_u64(k, bytes);
    gguf_put(k, text, bytes);
}

static void begin(struct gguf_keys *k, const char *key, enum gguf_value type)
{
    gguf_put_text(k, key, strlen(key));
    gguf_put_u32(k, type);
    k->n++;
}

void gguf_key_u32(struct gguf_keys *k, const char *key, int64_t value)
{
    begin(k, key, GGUF_VALUE_U32);
    gguf_put_u32(k, (uint32_t)value);
}

void gguf_key_f32(struct gguf_keys *k, const char *key, double value)
{
    float f = (float)value;
    begin(k, key, GGUF_VALUE_F32);
    gguf_put(k, &f, sizeof f);
}

void gguf_key_bool(struct gguf_keys *k, const char *key, int value)
{
    unsigned char b = value != 0;
    begin(k, key, GGUF_VALUE_BOOL);
    gguf_put(k, &b, 1);
}

void gguf_key_text(struct gguf_keys *k, const char *key, const char *text, size_t bytes)
{
    begin(k, key, GGUF_VALUE_TEXT);
    gguf_put_text(k, text, bytes);
}

void gguf_key_array(struct gguf_keys *k, const char *key, enum gguf_value type, uint64_t n)
{
    begin(k, key, GGUF_VALUE_ARRAY);
    gguf_put_u32(k, type);
    gguf_put_u64(k, n);
}

void gguf_key_bools(struct gguf_keys *k, const char *key, const unsigned char *value, int n)
{
    gguf_key_array(k, key, GGUF_VALUE_BOOL, (uint64_t)n);
    gguf_put(k, value, (size_t)n);
}

void gguf_keys_free(struct gguf_keys *k)
{
    free(k->data);
    memset(k, 0, sizeof *k);
}
