/* encode_fuzz.c - any text, with untrusted parts, through tokenizers of every kind, and back (text/marked.c,
 * added.c, split.c, bpe.c, detok.c). The input: a byte that chooses the tokenizer, a byte for the number of
 * untrusted parts, two for the bytes before and in each, the text. */
#include <stdlib.h>
#include <string.h>
#include "tests/fuzz/fuzz.h"
#include "text/text.h"

#define SPANS_MAX 16
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

static const char *const tokenizers[] = {
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
#define N_TOKENIZERS (sizeof tokenizers / sizeof *tokenizers)

static struct tokenizer *tokenizer(size_t i)
{
    static struct tokenizer *open[N_TOKENIZERS]; /* kept: opening one takes longer than most texts */
    struct err e;
    if (!open[i] &&
        tokenizer_open(&open[i], tokenizers[i], strlen(tokenizers[i]), NULL, 0, "tokenizer.json", &e) < 0)
        abort();
    return open[i];
}

/* A place in the text at or after `at` where a character may begin; sometimes one that is not. */
static size_t border(const uint8_t *text, size_t n, size_t at)
{
    while (at < n && (text[at] & 0xC0) == 0x80 && at % 31)
        at++;
    return at < n || at % 31 == 0 ? at : n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct text_span span[SPANS_MAX];
    size_t n_span = n > 1 ? data[1] % (SPANS_MAX + 1) : 0, head = 2 + 2 * n_span, at = 0, n_ids, n_text;
    struct err e;
    int32_t *ids;
    char *back;
    if (n < 2 || n < head)
        return 0;
    const struct tokenizer *t = tokenizer(data[0] % N_TOKENIZERS);
    for (size_t i = 0; i < n_span; i++) {
        span[i].begin = at = border(data + head, n - head, at + data[2 + 2 * i]);
        span[i].end = at = border(data + head, n - head, at + data[3 + 2 * i]);
    }

    char *text = fuzz_copy(data + head, n - head);
    const struct marked_text m = { .text = text, .n = n - head, .user = span, .n_user = n_span };
    if (tokenizer_encode_marked(t, &m, data[0] >> 7, &ids, &n_ids, &e) >= 0) {
        if (tokenizer_decode(t, ids, n_ids, data[0] >> 6 & 1, &back, &n_text, &e) >= 0)
            free(back);
        free(ids);
    }
    free(text);
    return 0;
}
