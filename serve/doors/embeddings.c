/* embeddings.c - see embeddings.h. */
#include "serve/doors/embeddings.h"

#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "serve/api/answer.h"

#define BAD 400

int embeddings_read_pooling(struct request *rq, const json_t *v, struct fault *f)
{
    const char *word = json_is_string(v) ? json_string_value(v) : "";
    rq->pooling = !strcmp(word, "mean") ? POOLING_MEAN : POOLING_LAST;
    rq->pooling_given = 1;
    return rq->pooling == POOLING_MEAN || !strcmp(word, "last")
               ? 0
               : fault_set(f, BAD, "pooling",
                           "pooling must be \"last\" (the last token's hidden state) or \"mean\" (of all)");
}

int embeddings_read_encoding(struct request *rq, const json_t *v, struct fault *f)
{
    const char *word = json_is_string(v) ? json_string_value(v) : "";
    rq->as_base64 = !strcmp(word, "base64");
    return rq->as_base64 || !strcmp(word, "float")
               ? 0
               : fault_set(f, BAD, "encoding_format", "encoding_format must be \"float\" or \"base64\"");
}

/* The n floats in base64: 4 bytes each, the lowest first. */
static void write_base64(struct json_out *o, const float *x, size_t n)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t bytes = n * sizeof *x;
    unsigned char *p = malloc(bytes + 3);
    char four[4];

    o->failed |= !p;
    if (!p)
        return;
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        for (int k = 0; k < 4; k++)
            p[4 * i + (size_t)k] = (unsigned char)(u >> 8 * k);
    }
    p[bytes] = p[bytes + 1] = 0;

    json_out_text(o, "\"");
    for (size_t i = 0; i < bytes; i += 3) {
        uint32_t u = (uint32_t)p[i] << 16 | (uint32_t)p[i + 1] << 8 | p[i + 2];
        for (int k = 0; k < 4; k++)
            four[k] = i + (size_t)k > bytes ? '=' : letters[u >> (18 - 6 * k) & 63];
        json_out_bytes(o, four, 4);
    }
    json_out_text(o, "\"");
    free(p);
}

static void write_floats(struct json_out *o, const float *x, size_t n)
{
    char digits[32];

    json_out_text(o, "[");
    for (size_t i = 0; i < n; i++) {
        json_out_text(o, i ? "," : "");
        json_out_text(o, jx_float32(x[i], digits));
    }
    json_out_text(o, "]");
}

static void write_vector(struct json_out *o, const struct choice *c)
{
    const struct request *rq = c->rq;
    int64_t n = rq->dimensions ? rq->dimensions : c->pooled.n;
    float *x = malloc(sizeof *x * (size_t)(n + 1));

    o->failed |= !x;
    if (!x)
        return;
    pooled_vector(&c->pooled, rq->pooling == POOLING_MEAN ? c->prompt->n : 1, n, rq->normalize, x);
    json_out_fmt(o, "{\"object\":\"embedding\",\"index\":%d,\"embedding\":", c->index);
    if (rq->as_base64)
        write_base64(o, x, (size_t)n);
    else
        write_floats(o, x, (size_t)n);
    json_out_text(o, "}");
    free(x);
}

void embeddings_answer(struct json_out *o, const struct request *rq)
{
    int64_t tokens = 0;

    json_out_fmt(o, "{\"object\":\"list\",\"id\":\"%s\",\"created\":%lld,\"data\":[", rq->id,
                 (long long)rq->created);
    for (int i = 0; i < rq->n_choices; i++) {
        json_out_text(o, i ? "," : "");
        write_vector(o, &rq->choice[i]);
        tokens += rq->choice[i].prompt->n;
    }
    json_out_text(o, "],\"model\":");
    json_out_string(o, request_model(rq));
    answer_write_weights(o, rq);
    json_out_fmt(o, ",\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}}", (long long)tokens,
                 (long long)tokens);
}
