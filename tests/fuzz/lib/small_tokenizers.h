/* small_tokenizers.h - tokenizers of every kind with a few tokens, for targets that encode texts. */
#ifndef SHARDLINE_TESTS_FUZZ_LIB_SMALL_TOKENIZERS_H
#define SHARDLINE_TESTS_FUZZ_LIB_SMALL_TOKENIZERS_H

#include <stdlib.h>
#include <string.h>
#include "text/text.h"

#define ADDED \
    "\"added_tokens\":[{\"id\":20,\"content\":\"<s>\",\"special\":true},{\"id\":21,\"content\":\"<t>\"," \
    "\"special\":true,\"lstrip\":true,\"rstrip\":true},{\"id\":22,\"content\":\"bc\",\"single_word\":true," \
    "\"normalized\":true},{\"id\":23,\"content\":\"<n>\",\"special\":true,\"normalized\":true}],"
#define VOCAB \
    "\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"c\":3,\" " \
    "\":4,\"<\":5,\"s\":6,\">\":7,\"ab\":8,\"abc\":9,\"\u2581\":10," \
    "\"\u2581a\":11,\"<0x0A>\":12,\"<0xC3>\":13,\"<0xA9>\":14,\"\u0120\":15,\"\u0120a\":16,\"n\":17,\"t\":" \
    "18},"
#define MERGES "\"merges\":[\"a b\",\"ab c\",\"\u2581 a\",\"\u0120 a\"]"

static const char *const small_tokenizers[] = {
    "{" ADDED
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{" VOCAB MERGES
    "}}",
    "{" ADDED
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Lowercase\"},"
    "{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
    "\"},\"content\":"
    "\"\u2581\"}]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":"
    "\"\u2581\"},\"content\":\" "
    "\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \","
    "\"start\":1,\"stop\":0}]},\"model\":{\"byte_fallback\":true,\"fuse_unk\":true,\"unk_token\":\"<unk>"
    "\"," VOCAB MERGES "}}",
    "{" ADDED
    "\"normalizer\":{\"type\":\"StripAccents\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"behavior\":\"MergedWithPrevious\",\"pattern\":{\"Regex\":\"\\\\p{L}+|\\\\s+(?!"
    "\\\\S)|\\\\s+\"}},"
    "{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"Punctuation\"},{\"type\":\"Metaspace\"}]},"
    "\"decoder\":{"
    "\"type\":\"Metaspace\"},\"model\":{\"ignore_merges\":true,\"unk_token\":\"<unk>\"," VOCAB MERGES "}}",
};
#define SMALL_TOKENIZERS (sizeof small_tokenizers / sizeof *small_tokenizers)

/* Number i of SMALL_TOKENIZERS, kept: opening one takes longer than most texts. */
static struct tokenizer *small_tokenizer(size_t i)
{
    static struct tokenizer *open[SMALL_TOKENIZERS];
    const char *json = small_tokenizers[i];
    struct err e;
    if (!open[i] && tokenizer_open(&open[i], json, strlen(json), NULL, 0, "tokenizer.json", &e) < 0)
        abort();
    return open[i];
}

#undef ADDED
#undef VOCAB
#undef MERGES

#endif
