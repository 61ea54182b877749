/* mask_bench.c - how long a mask takes, and what it allows: for mask_bench.py and grammar_masks.py, which ask
 * llguidance the same.
 *
 * usage: mask_bench VOCABULARY <IN >OUT
 * VOCABULARY: for each token its number of bytes (u32, little-endian) and its bytes; the last one is the end.
 * IN: lines {"schema":…,"ids":[[…],…]}: texts as ids. OUT: a line each, {"compile_us":…,"masks_us":[…]}: the
 * first list has all masks of the first text, and so on; {"error":…} where the schema is refused. With
 * "strict":true in the line: JSON without white space, keys in order; "masks":[…] are the masks in hex, the
 * lowest bit of the first byte is id 0. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/io.h"
#include "text/grammar.h"

struct vocabulary {
    char *text;
    size_t *off;
    int64_t n;
};

/* Seconds of this thread on a core: other programs do not count. */
static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int read_vocabulary(struct vocabulary *v, const char *path, struct err *e)
{
    void *file = NULL;
    size_t n = 0, at = 0, used = 0;
    int rc = io_read_file(path, (size_t)1 << 28, &file, &n, e);
    if (rc < 0)
        return rc;
    v->text = malloc(n + 1);
    v->off = malloc((n + 1) * sizeof *v->off);
    while (v->text && v->off && at + 4 <= n) {
        uint32_t len;
        memcpy(&len, (char *)file + at, 4);
        v->off[v->n++] = used;
        memcpy(v->text + used, (char *)file + at + 4, len);
        used += len;
        at += 4 + len;
    }
    if (v->text && v->off)
        v->off[v->n] = used;
    free(file);
    return v->text && v->off ? 0 : err_set(e, ERR_MEMORY, "no memory for a vocabulary");
}

static json_t *hex_of(const uint32_t *mask, size_t words)
{
    char *hex = malloc(8 * words + 1);
    for (size_t i = 0; hex && i < 4 * words; i++)
        snprintf(hex + 2 * i, 3, "%02x", mask[i / 4] >> 8 * (i % 4) & 255);
    json_t *j = hex ? json_string(hex) : NULL;
    free(hex);
    return j;
}

/* The times of the masks of one text, in microseconds, appended to list; the masks to shown, or NULL. */
static int time_text(struct grammar *g, const struct token_trie *t, const json_t *ids, json_t *list,
                     json_t *shown, uint32_t *mask, struct err *e)
{
    struct matcher *m = NULL;
    int rc = matcher_open(&m, g, t, e);
    for (size_t i = 0; rc >= 0 && i <= json_array_size(ids); i++) {
        double begin = cpu_s();
        rc = matcher_mask(m, mask, e);
        double took = cpu_s() - begin;
        if (rc < 0)
            break;
        json_array_append_new(list, json_real(took * 1e6));
        if (shown)
            json_array_append_new(shown, hex_of(mask, token_trie_words(t)));
        if (i == json_array_size(ids))
            break;
        rc = matcher_take(m, (int32_t)json_integer_value(json_array_get(ids, i)), e);
        if (rc == 0)
            break;
    }
    matcher_close(m);
    return rc < 0 ? rc : 0;
}

static void time_line(const json_t *in, const struct token_trie *t, uint32_t *mask, json_t *out)
{
    char *schema = json_dumps(json_object_get(in, "schema"), JSON_COMPACT | JSON_ENCODE_ANY);
    struct grammar_spec s = { .kind = GRAMMAR_SCHEMA, .text = schema, .n = schema ? strlen(schema) : 0 };
    int strict = json_is_true(json_object_get(in, "strict"));
    s.flags = strict ? GRAMMAR_COMPACT | GRAMMAR_IN_ORDER : 0;
    const json_t *texts = json_object_get(in, "ids");
    struct grammar *g = NULL;
    struct err e = { 0 };
    double begin = cpu_s();
    int rc = grammar_open(&g, &s, NULL, &e);
    json_object_set_new(out, "compile_us", json_real((cpu_s() - begin) * 1e6));
    json_t *list = json_array(), *shown = strict ? json_array() : NULL;
    for (size_t i = 0; rc >= 0 && i < json_array_size(texts); i++)
        rc = time_text(g, t, json_array_get(texts, i), list, shown, mask, &e);
    json_object_set_new(out, "masks_us", list);
    if (shown)
        json_object_set_new(out, "masks", shown);
    if (rc < 0)
        json_object_set_new(out, "error", json_string(e.text));
    grammar_close(g);
    free(schema);
}

int main(int argc, char **argv)
{
    struct vocabulary v = { 0 };
    struct token_trie *t = NULL;
    struct err e = { 0 };
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    io_begin();
    int rc = argc == 2 ? read_vocabulary(&v, argv[1], &e)
                       : err_set(&e, ERR_USAGE, "usage: mask_bench VOCABULARY");
    int32_t end = (int32_t)v.n - 1;
    if (rc == 0)
        rc = token_trie_of(&t, v.text, v.off, v.n, &end, 1, &e);
    uint32_t *mask = rc == 0 ? malloc((token_trie_words(t) + 1) * sizeof *mask) : NULL;
    while (rc == 0 && mask && (n = getline(&line, &cap, stdin)) > 0) {
        json_t *in = json_loadb(line, (size_t)n, 0, NULL), *out = json_object();
        time_line(in, t, mask, out);
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(in);
        json_decref(out);
    }
    free(mask);
    free(line);
    token_trie_close(t);
    free(v.text);
    free(v.off);
    return io_end(rc, &e, "mask_bench");
}
