/* panels_fuzz.c - a checkpoint of the serve format: the text of its manifest and the bytes of its file, with
 * checksums that fit both (format/native/panels_table.c, panels_header.c, panels_read.c, panel_b12.c). The
 * input: the manifest's text without its closing brace and checksum, a zero byte, and the file's first bytes;
 * what is missing of the file is zeros. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/fmt.h"
#include "tests/fuzz/fuzz.h"

#define FILE_MAX (1 << 16)
#define BLOCK ((size_t)1 << 20)
#define NAME "weights-00000.safetensors"

static const char config[] = "{\"model_type\":\"llama\"}\n";

/* Writes the file of the weights and makes its entry fit. */
static void make_file(json_t *entry, const uint8_t *data, size_t n)
{
    const json_int_t length = json_integer_value(json_object_get(entry, "length"));
    const size_t bytes = length > 0 && length <= FILE_MAX ? (size_t)length : n;
    uint8_t *file = calloc(bytes + 1, 1);
    char blocks[17], sum[33];
    memcpy(file, data, n < bytes ? n : bytes);
    fuzz_write(NAME, file, bytes);
    const uint64_t block = fmt_sum64(file, bytes < BLOCK ? bytes : BLOCK);
    snprintf(blocks, sizeof blocks, "%016llx", (unsigned long long)block);
    fmt_hex128(fmt_sum128(&block, sizeof block), sum); /* of little-endian words */
    json_object_set_new(entry, "blocks", json_string(blocks));
    json_object_set_new(entry, "checksum", json_string(sum));
    free(file);
}

static void make_manifest(json_t *root)
{
    static const char key[] = ",\"manifest_checksum\":";
    char hex[33], *dump = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    size_t n = strlen(dump) - 1;
    char *text = malloc(n + sizeof key + 40);
    memcpy(text, dump, n);
    memcpy(text + n, key, sizeof key - 1);
    n += sizeof key - 1;
    fmt_hex128(fmt_sum128(text, n), hex);
    n += (size_t)sprintf(text + n, "\"%s\"}\n", hex);
    fuzz_write("manifest.json", text, n);
    free(text);
    free(dump);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *end = memchr(data, 0, n);
    const size_t n_text = end ? (size_t)(end - data) : n;
    char *text = malloc(n_text + 2);
    memcpy(text, data, n_text);
    memcpy(text + n_text, "}", 2);
    json_t *root = json_loads(text, 0, NULL), *entry = json_array_get(json_object_get(root, "files"), 0);
    const char *name = json_string_value(json_object_get(entry, "name"));
    free(text);
    fuzz_write_parts(NULL, 0, NULL, 0);
    if (json_is_object(root) && name && !strcmp(name, NAME)) {
        fuzz_write("config.json", config, sizeof config - 1);
        make_file(entry, end ? end + 1 : data, end ? n - n_text - 1 : 0);
        make_manifest(root);
        fuzz_open_ckpt(fuzz_dir());
    }
    json_decref(root);
    return 0;
}
