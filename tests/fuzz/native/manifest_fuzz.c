/* manifest_fuzz.c - manifest.json with a checksum that fits, beside files of the lengths in it
 * (format/native/native_read.c, zst.c, manifest.c). The input is the text without its closing brace and
 * checksum; the files hold zeros. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "format/fmt.h"
#include "tests/fuzz/fuzz.h"

#define FILES_MAX 8

/* The small files whose checksums are in good manifests (tests/unit/format/format_make.h). */
static const struct {
    const char *name, *text;
} small[] = {
    { "config.json", "{\"model_type\":\"llama\"}\n" },
    { "tokenizer.json", "{\"version\":\"1.0\"}" },
    { "generation_config.json", "{}" },
};

static void make_files(const char *text, size_t n)
{
    json_t *root = json_loadb(text, n, 0, NULL), *o;
    size_t i;
    json_array_foreach(json_object_get(root, "files"), i, o) {
        const char *name = json_string_value(json_object_get(o, "name"));
        long long bytes = json_integer_value(json_object_get(o, "length"));
        if (i < FILES_MAX && name && *name && strlen(name) < 64 && !strchr(name, '/') && bytes >= 0 &&
            bytes < (1 << 22) && truncate(fuzz_write(name, "", 0), (off_t)bytes) < 0)
            abort();
    }
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char key[] = ",\"manifest_checksum\":";
    char hex[33], *text = malloc(n + sizeof key + 40);
    struct err e = { 0 };
    struct ckpt *c = NULL;
    fuzz_write_parts(NULL, 0, NULL, 0);
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        fuzz_write(small[i].name, small[i].text, strlen(small[i].text));
    memcpy(text, data, n);
    text[n] = '}';
    make_files(text, n + 1);
    memcpy(text + n, key, sizeof key - 1);
    n += sizeof key - 1;
    fmt_hex128(fmt_sum128(text, n), hex);
    n += (size_t)sprintf(text + n, "\"%s\"}\n", hex);
    fuzz_write("manifest.json", text, n);
    free(text);
    if (ckpt_open(&c, fuzz_dir(), NULL, &e) >= 0) {
        struct ckpt_digests d = ckpt_digest_all(ckpt_n_tensors(c), ckpt_tensor(c, 0), ckpt_state(c));
        (void)d;
        ckpt_verify(c, 1, &e);
        ckpt_verify(c, 0, &e);
        ckpt_close(c);
    }
    return 0;
}
