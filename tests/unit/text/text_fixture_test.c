/* text_fixture_test.c - every vector of the reference library: ids, decoding, and decoding as ids arrive. */
#include "tests/unit/text/text_help.h"

static const char *const names[] = { "gpt2",    "gpt2-added", "llama2", "llama2-added", "llama3",
                                     "mistral", "gemma",      "qwen2",  "qwen2-added",  "deepseek" };
#define N_NAMES (sizeof names / sizeof *names)

typedef void row_fn(const struct tokenizer *t, const json_t *row, const char *name);

static int for_rows(const char *file, row_fn *fn)
{
    const char *root = test_fixture_dir();
    if (!root) {
        test_skip("FIXTURES is not set: the vectors of tok/ were not read");
        return 0;
    }
    int n_rows = 0;
    for (size_t k = 0; k < N_NAMES; k++) {
        char dir[1024], path[1100];
        char *line = NULL;
        size_t cap = 0;
        struct tokenizer *t = NULL;
        struct err e = { 0 };
        snprintf(dir, sizeof dir, "%s/hf/tok/%s", root, names[k]);
        snprintf(path, sizeof path, "%s/%s", dir, file);
        FILE *f = fopen(path, "r");
        if (!f) {
            test_skip("%s is not there", path);
            return n_rows;
        }
        if (tokenizer_open_dir(&t, dir, &e) < 0)
            test_fail(__FILE__, __LINE__, "%s", e.text);
        while (t && getline(&line, &cap, f) > 1) {
            json_t *row = text_json(line, strlen(line), path, &e);
            if (!row)
                test_fail(__FILE__, __LINE__, "%s", e.text);
            else
                fn(t, row, names[k]);
            json_decref(row);
            n_rows++;
        }
        free(line);
        fclose(f);
        tokenizer_close(t);
    }
    return n_rows;
}

/* --- vectors.jsonl --- */

static size_t from_base64(const char *s, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *q = out;
    unsigned v = 0;
    int bits = 0;
    for (; *s && *s != '='; s++) {
        v = v << 6 | (unsigned)(strchr(digits, *s) - digits);
        if ((bits += 6) >= 8)
            *q++ = (char)(v >> (bits -= 8));
    }
    return (size_t)(q - out);
}

/* The row's text, malloc'd: as it is, as base64, or as a unit repeated. */
static char *row_text(const json_t *row, size_t *n)
{
    const json_t *text = json_object_get(row, "text"), *b64 = json_object_get(row, "b64"),
                 *repeat = json_object_get(row, "repeat");
    if (text) {
        *n = json_string_length(text);
        return memcpy(malloc(*n + 1), json_string_value(text), *n + 1);
    }
    if (b64) {
        char *out = malloc(json_string_length(b64) + 1);
        *n = from_base64(json_string_value(b64), out);
        return out;
    }
    const json_t *unit = json_array_get(repeat, 0), *suffix = json_object_get(row, "suffix");
    size_t n_unit = json_string_length(unit), times = (size_t)json_integer_value(json_array_get(repeat, 1)),
           n_suffix = json_string_length(suffix);
    char *out = malloc(n_unit * times + n_suffix + 1);
    for (size_t i = 0; i < times; i++)
        memcpy(out + i * n_unit, json_string_value(unit), n_unit);
    memcpy(out + times * n_unit, json_string_value(suffix), n_suffix);
    *n = n_unit * times + n_suffix;
    return out;
}

/* FNV-1a over the ids as uint32, little-endian */
static uint64_t fnv(const int32_t *ids, size_t n)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 4; k++)
            h = (h ^ ((uint32_t)ids[i] >> 8 * k & 255)) * 0x100000001B3u;
    return h;
}

static int same_ids(const json_t *want, const int32_t *ids, size_t n)
{
    if (json_is_object(want))
        return json_integer_value(json_object_get(want, "count")) == (json_int_t)n &&
               strtoull(json_string_value(json_object_get(want, "fnv1a64")), NULL, 16) == fnv(ids, n);
    int same = json_array_size(want) == n;
    for (size_t i = 0; same && i < n; i++)
        same = json_integer_value(json_array_get(want, i)) == ids[i];
    return same;
}

static int same_text(const struct tokenizer *t, const int32_t *ids, size_t n, int skip, const char *want,
                     size_t n_want)
{
    struct err e = { 0 };
    char *s = NULL;
    size_t n_s = 0;
    int same = tokenizer_decode(t, ids, n, skip, &s, &n_s, &e) == 0 && n_s == n_want && !memcmp(s, want, n_s);
    free(s);
    return same;
}

static void check_encode(const struct tokenizer *t, const json_t *row, const char *name)
{
    static const char *const decoded_key[2] = { "decoded", "decoded_skip" }, *const ids_key[2] = {
        "ids_plain", "ids"
    };
    int number = (int)json_integer_value(json_object_get(row, "n"));
    size_t n;
    char *text = row_text(row, &n);
    for (int special = 0; special < 2; special++) {
        struct err e = { 0 };
        int32_t *ids = NULL;
        size_t n_ids = 0;
        if (tokenizer_encode(t, text, n, special, &ids, &n_ids, &e) < 0 ||
            !same_ids(json_object_get(row, ids_key[special]), ids, n_ids))
            test_fail(__FILE__, __LINE__, "%s, n=%d: %s differ %s", name, number, ids_key[special], e.text);
        const json_t *want = json_object_get(row, decoded_key[special]);
        if (want && !same_text(t, ids, n_ids, special, json_string_value(want), json_string_length(want)))
            test_fail(__FILE__, __LINE__, "%s, n=%d: %s differs", name, number, decoded_key[special]);
        if (!special && json_is_true(json_object_get(row, "decoded_equals_text")) &&
            !same_text(t, ids, n_ids, 0, text, n))
            test_fail(__FILE__, __LINE__, "%s, n=%d: the text does not come back", name, number);
        free(ids);
    }
    free(text);
}

TEST(every_vector_encodes_and_decodes_as_the_library_does)
{
    int n = for_rows("vectors.jsonl", check_encode);
    CHECK(n == 0 || n >= 6000);
}

/* --- decode.jsonl --- */

static int is_byte_token(const struct tokenizer *t, int32_t id)
{
    size_t n;
    const char *s = tokenizer_token_text(t, id, &n);
    return n == 6 && !strncmp(s, "<0x", 3);
}

static void check_decode(const struct tokenizer *t, const json_t *row, const char *name)
{
    const json_t *list = json_object_get(row, "ids"), *prefixes = json_object_get(row, "prefixes");
    int number = (int)json_integer_value(json_object_get(row, "n"));
    size_t n = json_array_size(list);
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    for (int skip = 0; skip < 2; skip++) {
        const json_t *want = json_object_get(row, skip ? "decoded_skip" : "decoded");
        struct tokenizer_stream *s = NULL;
        struct buf joined = { 0 };
        struct err e = { 0 };
        const char *p;
        size_t n_p;
        if (!same_text(t, ids, n, skip, json_string_value(want), json_string_length(want)))
            test_fail(__FILE__, __LINE__, "%s, n=%d: decodes to something else", name, number);
        CHECK_INT(tokenizer_stream_open(&s, t, skip, &e), 0);
        for (size_t i = 0; i < n; i++) {
            CHECK_INT(tokenizer_stream_feed(s, ids[i], &p, &n_p, &e), 0);
            buf_add(&joined, p, n_p);
            const json_t *prefix = skip ? NULL : json_array_get(prefixes, i);
            size_t n_prefix = json_string_length(prefix);
            if (!prefix)
                continue;
            if (joined.n > n_prefix || (joined.n && memcmp(joined.p, json_string_value(prefix), joined.n)))
                test_fail(__FILE__, __LINE__, "%s, n=%d: after %zu ids more is out than is certain", name,
                          number, i + 1);
            /* byte-level: one cut character may wait; byte tokens: a run of them; else nothing */
            const char *rest = json_string_value(prefix) + joined.n;
            if (joined.n != n_prefix && !is_byte_token(t, ids[i]) && strcmp(rest, "\xEF\xBF\xBD"))
                test_fail(__FILE__, __LINE__, "%s, n=%d: after %zu ids \"%s\" still waits", name, number,
                          i + 1, rest);
        }
        CHECK_INT(tokenizer_stream_finish(s, &p, &n_p, &e), 0);
        buf_add(&joined, p, n_p);
        if (joined.n != json_string_length(want) ||
            (joined.n && memcmp(joined.p, json_string_value(want), joined.n)))
            test_fail(__FILE__, __LINE__, "%s, n=%d: the stream's pieces are not the whole", name, number);
        tokenizer_stream_close(s);
        buf_free(&joined);
    }
    free(ids);
}

TEST(every_list_of_ids_decodes_and_streams_as_the_library_does)
{
    int n = for_rows("decode.jsonl", check_decode);
    CHECK(n == 0 || n >= 2000);
}
