/* source_fuzz.c - documents to be made into tokens: text, JSONL, zstd of both (files/source.c). The first
 * byte selects one; 8 in it: a line that is a conversation (text/chats), by one of two templates and four
 * tokenizers. A frame may ask for a window of up to 128 MiB, as for `zstd -d`, and a text may have 1 GiB:
 * inputs that do or have are left out, so that other large allocations are seen. */
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_getFrameHeader */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/lib/small_tokenizers.h"
#include "text/chats.h"
#include "text/source.h"

#define TEXT_MOST ((size_t)4 << 20)

static int asks_for_much(const uint8_t *data, size_t n)
{
    for (size_t i = 0; i + 4 <= n; i++) {
        ZSTD_frameHeader h;
        if (!memcmp(data + i, "\x28\xb5\x2f\xfd", 4) && ZSTD_getFrameHeader(&h, data + i, n - i) == 0 &&
            h.windowSize > 8 << 20)
            return 1;
    }
    return 0;
}

/* Does a frame begin here that the source would unpack? The library alone would also take older formats. */
static int begins_frame(const uint8_t *p, size_t n)
{
    uint32_t magic = 0;
    if (n >= sizeof magic)
        memcpy(&magic, p, sizeof magic);
    return magic == ZSTD_MAGICNUMBER || (magic & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START;
}

/* Do the frames unpack to more than a document of a few MiB? */
static int unpacks_to_much(const uint8_t *data, size_t n)
{
    static char chunk[1 << 16];
    size_t total = 0, left = 0;
    ZSTD_DCtx *z = ZSTD_createDCtx();
    ZSTD_inBuffer in = { data, n, 0 };
    if (!z)
        abort();
    while (total <= TEXT_MOST && (left || begins_frame(data + in.pos, n - in.pos))) {
        ZSTD_outBuffer out = { chunk, sizeof chunk, 0 };
        left = ZSTD_decompressStream(z, &out, &in);
        total += out.pos;
        if (ZSTD_isError(left) || (left && in.pos == n && out.pos < sizeof chunk))
            break;
    }
    ZSTD_freeDCtx(z);
    return total > TEXT_MOST;
}

static void encode_line(int how, const uint8_t *data, size_t n)
{
    static const char *const forms[] = {
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ "
        "c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %};{% endfor %}{% if "
        "add_generation_prompt "
        "%}<assistant>{% endif %}",
        "{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %};{% endfor "
        "%}",
    };
    static struct tokenizer *bytes; /* kept, as the templates are */
    static struct template *form[2];
    static struct chat_style style[2];
    struct chat_tokens x = { 0 };
    struct err e;

    if (!bytes && tokenizer_bytes(&bytes, &e) < 0)
        abort();
    for (int i = 0; i < 2; i++)
        if (!form[i]) {
            if (template_open(&form[i], forms[i], strlen(forms[i]), "form", &e) < 0)
                abort();
            chats_find_style(form[i], &style[i]);
        }
    size_t small = (size_t)how >> 4 & 3; /* 0: bytes */
    struct chat_coder c = { .t = small ? small_tokenizer(small - 1) : bytes,
                            .form = form[how & 1],
                            .style = &style[how & 1],
                            .turns = how & 2 ? CHAT_TURNS_LAST : CHAT_TURNS_ALL };
    char *line = fuzz_copy(data, n);
    if (chats_encode(&c, line, n, &x, &e) >= 0) {
        if (x.n && x.weight[0] != 0)
            abort();
        for (size_t i = 0; i < x.n; i++)
            if (x.ids[i] < 0 || x.ids[i] >= tokenizer_vocab(c.t) || !isfinite(x.weight[i]))
                abort();
        chat_tokens_free(&x);
    }
    free(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = { "a.txt", "a.jsonl", "a.txt.zst", "a.jsonl.zst" };
    struct source *s;
    struct err e;
    char *text;
    size_t n_text;
    int more;
    if (n && data[0] & 8) {
        encode_line(data[0], data + 1, n - 1);
        return 0;
    }
    if (!n || asks_for_much(data, n) || unpacks_to_much(data + 1, n - 1) ||
        source_open(&s, fuzz_write(names[data[0] & 3], data + 1, n - 1), "text", &e) < 0)
        return 0;
    for (int i = 0; i < 1000 && source_next(s, data[0] & 4 ? 100 : 0, &text, &n_text, &more, &e) > 0; i++)
        free(text);
    source_close(s);
    return 0;
}
