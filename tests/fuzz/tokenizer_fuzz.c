/* tokenizer_fuzz.c - any bytes as a tokenizer.json; what opens encodes a text and decodes every id
 * (text/tokenizer_load.c and behind it); and as a vocabulary of a GGUF file (format/gguf/). */
#include <stdlib.h>
#include <string.h>
#include "format/gguf_write.h"
#include "tests/fuzz/fuzz.h"
#include "text/text.h"

static const char sample[] = "The 12 quick  brown\tfoxes' don't\n\n jump\xc3\xa9 \xf0\x9f\xa6\x8a "
                             "\xe4\xb8\xad\xe6\x96\x87 <s>[INST] </s> \xff\x80 e\xcc\x81";

static void stream(const struct tokenizer *t, const int32_t *ids, size_t n)
{
    struct tokenizer_stream *s;
    struct err e;
    const char *out;
    size_t n_out;
    if (tokenizer_stream_open(&s, t, 0, &e) < 0)
        return;
    for (size_t i = 0; i < n; i++)
        if (tokenizer_stream_feed(s, ids[i], &out, &n_out, &e) < 0)
            break;
    tokenizer_stream_finish(s, &out, &n_out, &e);
    tokenizer_stream_close(s);
}

/* As llama.cpp's keys, whether or not our own tokenizer takes it. */
static void as_gguf(const char *json, size_t n)
{
    char *text = malloc(n + 1);
    struct gguf_keys k = { 0 };
    struct err e;
    if (!text)
        return;
    memcpy(text, json, n);
    text[n] = 0;
    struct gguf_vocabulary v = {
        .tokenizer_json = text, .tokenizer_config = text, .n_vocab = 300, .bos = 1, .eos = -1
    };
    gguf_key_vocabulary(&k, &v, &e);
    gguf_keys_free(&k);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tokenizer *t;
    struct err e;
    int32_t *ids, every[256];
    size_t n_ids, n_text;
    char *text, *json = fuzz_copy(data, n);
    const struct text_span user = { 20, 60 };
    int rc = tokenizer_open(&t, json, n, NULL, 0, "tokenizer.json", &e);
    as_gguf(json, n);
    free(json);
    if (rc < 0)
        return 0;
    if (tokenizer_encode(t, sample, sizeof sample - 1, 1, &ids, &n_ids, &e) >= 0) {
        if (tokenizer_decode(t, ids, n_ids, 1, &text, &n_text, &e) >= 0)
            free(text);
        stream(t, ids, n_ids);
        free(ids);
    }
    if (tokenizer_encode_marked(t, &(struct marked_text){ sample, 60, &user, 1 }, 0, &ids, &n_ids, &e) >= 0)
        free(ids);
    for (int i = 0; i < 256; i++)
        every[i] = i - 1;
    if (tokenizer_decode(t, every, 256, 0, &text, &n_text, &e) >= 0)
        free(text);
    tokenizer_close(t);
    return 0;
}
