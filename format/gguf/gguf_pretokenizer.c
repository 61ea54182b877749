/* gguf_pretokenizer.c - see gguf_vocabulary.h. llama.cpp knows pre-tokenizers by name; a name is found by the
 * patterns of tokenizer.json (vocab/gguf_pre.h), which models of a family share. */
#include "format/gguf/gguf_vocabulary.h"

#include <stdio.h>
#include <string.h>
#include "format/vocab/gguf_pre.h"

#define STEPS 8

/* ---- the steps of a pre-tokenizer ---- */

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* Adds what a step does to the list. 0: llama.cpp has nothing like it. */
static int add_step(const json_t *p, const char *step[STEPS], int *n)
{
    const char *type = text_of(p, "type");
    const char *regex = text_of(json_object_get(p, "pattern"), "Regex");
    if (!strcmp(type, "ByteLevel")) {
        if (json_is_true(json_object_get(p, "add_prefix_space")))
            return 0;
        if (json_is_false(json_object_get(p, "use_regex")))
            return 1;
        step[(*n)++] = GGUF_PRE_WORDS;
        return 1;
    }
    if (!strcmp(type, "Digits") && json_is_true(json_object_get(p, "individual_digits"))) {
        step[(*n)++] = GGUF_PRE_DIGIT;
        return 1;
    }
    if (strcmp(type, "Split") != 0 || !*regex || strcmp(text_of(p, "behavior"), "Isolated") != 0 ||
        json_is_true(json_object_get(p, "invert")))
        return 0;
    step[(*n)++] = regex;
    return 1;
}

static int list_steps(const json_t *p, const char *step[STEPS])
{
    const json_t *list = json_object_get(p, "pretokenizers"), *one;
    size_t i;
    int n = 0;
    if (!list)
        return add_step(p, step, &n) ? n : -1;
    json_array_foreach(list, i, one)
        if (n == STEPS || !add_step(one, step, &n))
            return -1;
    return n;
}

const char *gguf_pretokenizer(const json_t *tokenizer, const char **why)
{
    const json_t *model = json_object_get(tokenizer, "model"),
                 *norm = json_object_get(tokenizer, "normalizer");
    const char *step[STEPS];
    int n = list_steps(json_object_get(tokenizer, "pre_tokenizer"), step);
    if (norm && !json_is_null(norm) && strcmp(text_of(norm, "type"), "NFC") != 0) {
        *why = "its normalizer";
        return NULL;
    }
    *why = "its pre-tokenizer";
    if (n == 0 && json_array_size(json_object_get(model, "merges")) == 0)
        return "gpt-2"; /* bytes: nothing is merged, wherever it is split */
    const struct gguf_pre *pre = gguf_pre_of(step, n, json_is_true(json_object_get(model, "ignore_merges")));
    return pre ? pre->name : NULL;
}

/* ---- SentencePiece ---- */

int gguf_is_byte_level(const json_t *tokenizer)
{
    const json_t *pre = json_object_get(tokenizer, "pre_tokenizer"), *list, *one;
    size_t i;
    if (!strcmp(text_of(json_object_get(tokenizer, "decoder"), "type"), "ByteLevel") ||
        !strcmp(text_of(pre, "type"), "ByteLevel"))
        return 1;
    list = json_object_get(pre, "pretokenizers");
    json_array_foreach(list, i, one)
        if (!strcmp(text_of(one, "type"), "ByteLevel"))
            return 1;
    return 0;
}

int gguf_prefixes_space(const json_t *tokenizer)
{
    const json_t *norm = json_object_get(tokenizer, "normalizer"),
                 *pre = json_object_get(tokenizer, "pre_tokenizer");
    const json_t *list = json_object_get(norm, "normalizers"), *one;
    size_t i;
    if (!strcmp(text_of(norm, "type"), "Prepend"))
        return 1;
    json_array_foreach(list, i, one)
        if (!strcmp(text_of(one, "type"), "Prepend"))
            return 1;
    return !strcmp(text_of(pre, "type"), "Metaspace") &&
           strcmp(text_of(pre, "prepend_scheme"), "never") != 0 &&
           !json_is_false(json_object_get(pre, "add_prefix_space"));
}
