/* gguf_pretokenizer.c - see gguf_vocabulary.h. llama.cpp knows pre-tokenizers by name; a name is found by the
 * patterns of tokenizer.json, which models of a family share. Patterns as in llama.cpp's llama-vocab.cpp and
 * the published tokenizer.json files. */
#include "format/gguf/gguf_vocabulary.h"

#include <stdio.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define STEPS 8

/* ---- the steps of a pre-tokenizer ----
 * A step is a pattern to split at, DIGIT (each digit alone) or WORDS (GPT-2's pattern, which ByteLevel has
 * inside). */
#define DIGIT "digit"
#define WORDS "words"

#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define CASES(first, second) \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]" first "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" \
    "]" second

static const struct {
    const char *name, *merging; /* merging: the name where merges build words of the vocabulary too */
    const char *step[3];
} pretokenizers[] = {
    { "gpt-2", "gpt-2", { WORDS } },
    { "llama-bpe",
      "dbrx",
      { ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES } },
    { "qwen2",
      "qwen2",
      { ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES } },
    { "qwen35",
      "qwen35",
      { ENDINGS
        "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES } },
    { "deepseek-v3",
      "deepseek-v3",
      { "\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
        "?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES } },
    { "gpt-4o",
      "gpt-4o",
      { CASES("*", "+") ENDINGS "?|" CASES("+", "*") ENDINGS
        "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES } },
    { "tekken",
      "tekken",
      { CASES("*", "+") "|" CASES("+", "*") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES } },
    { "seed-coder",
      "seed-coder",
      { ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES } },
    { "smollm", "smollm", { DIGIT, WORDS } },
};

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* The next sign of a pattern: \r, \n and \" are what they stand for, because files have both forms. */
static int next_sign(const char **p)
{
    static const char written[] = "rn\"", meant[] = "\r\n\"";
    const char *at = **p == '\\' && (*p)[1] ? strchr(written, (*p)[1]) : NULL;
    *p += at ? 2 : 1;
    return at ? meant[at - written] : (*p)[-1];
}

static int same_pattern(const char *a, const char *b)
{
    while (*a && *b)
        if (next_sign(&a) != next_sign(&b))
            return 0;
    return *a == *b;
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
        step[(*n)++] = WORDS;
        return 1;
    }
    if (!strcmp(type, "Digits") && json_is_true(json_object_get(p, "individual_digits"))) {
        step[(*n)++] = DIGIT;
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
    int n = list_steps(json_object_get(tokenizer, "pre_tokenizer"), step), whole = 0;
    if (norm && !json_is_null(norm) && strcmp(text_of(norm, "type"), "NFC") != 0) {
        *why = "its normalizer";
        return NULL;
    }
    *why = "its pre-tokenizer";
    if (n == 0 && json_array_size(json_object_get(model, "merges")) == 0)
        return "gpt-2"; /* bytes: nothing is merged, wherever it is split */
    for (size_t i = 0; n > 0 && i < COUNT(pretokenizers); i++) {
        for (whole = 0; whole < n && whole < 3 && pretokenizers[i].step[whole]; whole++)
            if (!same_pattern(step[whole], pretokenizers[i].step[whole]))
                break;
        if (whole == n && (whole == 3 || !pretokenizers[i].step[whole]))
            return json_is_true(json_object_get(model, "ignore_merges")) ? pretokenizers[i].name
                                                                         : pretokenizers[i].merging;
    }
    return NULL;
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
