/* gguf_pre.c - see gguf_vocab.h: the pre-tokenizers that tokenizer.ggml.pre names, as the patterns of the
 * models' own tokenizer.json. Source: llama.cpp's table of pre-tokenizers, which quotes them. */
#include <stddef.h>
#include <string.h>
#include "format/vocab/gguf_vocab.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 SHORT "|" WORD "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define QWEN2 SHORT "|" WORD "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define QWEN35 \
    SHORT "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(end) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" end
#define TEKKEN CASED("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
#define GPT4O CASED(SHORT "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
#define DEEPSEEK3 \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| " \
    "?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES
#define CJK "[一-龥぀-ゟ゠-ヿ]+"
#define CODER_CJK "[一-龥ࠀ-一가-퟿]+"

/* clang-format off */
static const struct gguf_pre rows[] = {
    { "gpt-2 phi-2 mpt olmo jais trillion gigachat mellum a.x-4.0 jina-es jina-de roberta-bpe", { GPT2 }, 0 },
    { "llama-bpe llama3 llama-v3 falcon3 pixtral lfm2", { LLAMA3 }, GGUF_PRE_WHOLE | GGUF_PRE_BOS },
    { "dbrx smaug-bpe chatglm-bpe", { LLAMA3 }, 0 },
    { "glm4 glm5", { LLAMA3 }, GGUF_PRE_WHOLE },
    { "qwen2 deepseek-r1-qwen", { QWEN2 }, GGUF_PRE_NFC },
    { "stablelm2 megrez hunyuan solar-open grok-2", { QWEN2 }, 0 },
    { "qwen35", { QWEN35 }, GGUF_PRE_NFC },
    { "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", { "\\p{N}", GPT2 }, 0 },
    { "falcon", { "[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]" }, 0 },
    { "tekken", { TEKKEN }, GGUF_PRE_WHOLE | GGUF_PRE_BOS },
    { "gpt-4o llama4 kanana2 minimax-m2", { GPT4O }, 0 },
    { "deepseek-v3 hunyuan-dense joyai-llm", { "\\p{N}{1,3}", CJK, DEEPSEEK3 }, 0 },
    { "deepseek-coder", { "[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CODER_CJK, "\\p{N}" }, 0 },
    { "gemma4 sarvam-moe", { NULL }, GGUF_PRE_TEXT },
    { "default", { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]" }, 0 },
};
/* clang-format on */

const struct gguf_pre *gguf_pre_find(const char *name, int64_t n)
{
    for (size_t i = 0; i < COUNT(rows) && n > 0; i++)
        for (const char *at = rows[i].names; *at;) {
            size_t width = strcspn(at, " ");
            if ((int64_t)width == n && !memcmp(at, name, width))
                return &rows[i];
            at += width + (at[width] == ' ');
        }
    return NULL;
}
