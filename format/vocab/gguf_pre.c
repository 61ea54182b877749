/* gguf_pre.c - see gguf_pre.h: patterns as in the models' own tokenizer.json. Source: llama.cpp's table of
 * pre-tokenizers, which quotes them. */
#include "format/vocab/gguf_pre.h"

#include <stddef.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))
/* clang-format off */
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SIGNS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define REST "\\s+(?!\\S)|\\s+"
#define SPACES "\\s*[\\r\\n]+|" REST
#define LLAMA3 SHORT "|" WORD "|\\p{N}{1,3}|" SIGNS "|" SPACES
#define QWEN2 SHORT "|" WORD "|\\p{N}|" SIGNS "|" SPACES
#define QWEN35 \
    SHORT "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|" \
    " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES
#define SEED_CODER SHORT "|" WORD "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES
#define BAILING \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|" \
    "\\s*[\\r\\n]|" REST
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(end) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" end
#define PATHS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
#define ASCII_WORD \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
#define DEEPSEEK3 ASCII_WORD "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES
#define CJK "[一-龥぀-ゟ゠-ヿ]+"
#define CODER_CJK "[一-龥ࠀ-一가-퟿]+"
#define BLOOM " ?[^(\\s|.,!?…。，、।۔،)]+"
#define LIKE_GPT2 \
    "phi-2 mpt olmo jais trillion gigachat mellum a.x-4.0 exaone4 granite-docling modern-bert jina-es " \
    "jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe"
/* letters that have two cases */
#define LETTERS \
    ("\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ" \
    "-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-" \
    "ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+")

/* Of names with the same patterns the writer takes the first. */
static const struct gguf_pre rows[] = {
    { "gpt-2", LIKE_GPT2, { GGUF_PRE_WORDS }, 0 },
    { "llama-bpe", "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", { LLAMA3 },
      GGUF_PRE_WHOLE | GGUF_PRE_BOS },
    { "dbrx", "smaug-bpe chatglm-bpe", { LLAMA3 }, 0 },
    { "glm4", "glm5", { LLAMA3 }, GGUF_PRE_WHOLE },
    { "minicpm5", "", { "\\p{N}{1,3}", SHORT "|" WORD "|\\p{N}+|" SIGNS "|" SPACES }, GGUF_PRE_WHOLE },
    { "qwen2", "deepseek-r1-qwen", { QWEN2 }, GGUF_PRE_NFC },
    { "stablelm2", "megrez hunyuan solar-open grok-2 kormo f2llmv2", { QWEN2 }, 0 },
    { "qwen35", "", { QWEN35 }, GGUF_PRE_NFC },
    { "ufakzeka", "", { WORD "|\\p{N}|" SIGNS "|" SPACES }, 0 },
    { "seed-coder", "", { SEED_CODER }, 0 },
    { "bailingmoe", "bailingmoe2 llada-moe", { BAILING }, 0 },
    { "smollm", "starcoder refact command-r codeshell exaone minerva-7b mellum2",
      { GGUF_PRE_DIGIT, GGUF_PRE_WORDS }, 0 },
    { "falcon", "", { "[\\p{P}\\$\\+<=>\\^~\\|`]+", GGUF_PRE_WORDS, "[0-9][0-9][0-9]" }, 0 },
    { "tekken", "", { CASED("") "|\\p{N}" PATHS }, GGUF_PRE_WHOLE | GGUF_PRE_BOS },
    { "gpt-4o", "llama4 kanana2 talkie minimax-m2", { CASED(SHORT "?") "|\\p{N}{1,3}" PATHS }, 0 },
    { "deepseek-v3", "hunyuan-dense joyai-llm hy_v4", { "\\p{N}{1,3}", CJK, DEEPSEEK3 }, 0 },
    { "spark2_5", "",
      { "\\p{N}{1,3}", CJK, ASCII_WORD "| ?[\\p{P}\\p{S}]+|[\\r\\n]|" REST, GGUF_PRE_DIGIT }, 0 },
    { "deepseek-llm", "",
      { "[\\r\\n]", LETTERS, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", CODER_CJK, GGUF_PRE_DIGIT }, 0 },
    { "deepseek-coder", "", { "[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CODER_CJK, GGUF_PRE_DIGIT }, 0 },
    { "bloom", "poro-chat gpt3-finnish", { BLOOM }, 0 },
    { "viking", "", { BLOOM, GGUF_PRE_DIGIT }, 0 },
    { "sarvam-moe", "gemma4", { NULL }, GGUF_PRE_TEXT },
    { "default", "", { "[\\p{P}\\$\\+<=>\\^~\\|]+", GGUF_PRE_WORDS, "\\p{N}+", "[0-9][0-9][0-9]" }, 0 },
};
/* clang-format on */

static int holds(const char *names, const char *name, size_t n)
{
    for (const char *at = names; *at;) {
        size_t width = strcspn(at, " ");
        if (width == n && !memcmp(at, name, n))
            return 1;
        at += width + (at[width] == ' ');
    }
    return 0;
}

const struct gguf_pre *gguf_pre_find(const char *name, int64_t n)
{
    for (size_t i = 0; i < COUNT(rows) && n > 0; i++)
        if (holds(rows[i].name, name, (size_t)n) || holds(rows[i].others, name, (size_t)n))
            return &rows[i];
    return NULL;
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

static int same_patterns(const struct gguf_pre *row, const char *const *split, int n)
{
    for (int i = 0; i < n; i++)
        if (i == GGUF_PRE_SPLITS || !row->split[i] || !same_pattern(row->split[i], split[i]))
            return 0;
    return n == GGUF_PRE_SPLITS || !row->split[n];
}

const struct gguf_pre *gguf_pre_of(const char *const *split, int n, int whole)
{
    const struct gguf_pre *first = NULL;
    for (size_t i = 0; i < COUNT(rows) && n > 0; i++) {
        if (!same_patterns(&rows[i], split, n))
            continue;
        if (!(rows[i].flags & GGUF_PRE_WHOLE) == !whole)
            return &rows[i];
        first = first ? first : &rows[i];
    }
    return first;
}
