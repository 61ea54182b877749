/* gguf_vocabulary.c - tokenizer.json as tokenizer.ggml.* keys. See gguf_write.h.
 *
 *   byte-level BPE    model "gpt2": tokens, types, merges, and a name for the pre-tokenizer
 *   SentencePiece     model "llama": tokens, types, and a score for each: llama.cpp merges any two neighbours
 *                     whose join is a token, the best score first
 *   the same, with merges that scores cannot say: model "gpt2" with pre "sarvam-moe", where no space is
 *                     put before the text */
#include "format/gguf/gguf_vocabulary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/gguf/gguf_keys.h"

#define SPACE_SIGN "\xe2\x96\x81" /* U+2581 */
#define MOST_TOKENS 4000000
#define LONGEST 1024 /* bytes of a token whose divisions are all tried */

struct token {
    const char *text; /* NULL: no such id */
    enum gguf_token type;
    int added, rank; /* rank: of the first merge that makes it, -1: none */
};
struct vocabulary {
    json_t *root, *config;
    const json_t *model, *merges;
    int n;
    struct token *token;
    int joins_lines; /* a merge joins the end of a line with something else */
    struct gguf_vocabulary *out;
};

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* ---- tokens ---- */

static int is_byte(const char *s) { return strlen(s) == 6 && !strncmp(s, "<0x", 3) && s[5] == '>'; }

/* Tokens that steer although their file does not call them special, as llama.cpp's converter sees them. */
static int looks_special(const char *s)
{
    static const char *const words[] = { "<pad>", "<mask>", "<2mass>", "[@BOS@]" };
    static const struct {
        const char *begin, *end;
    } marks[] = { { "<|", "|>" }, { "<｜", "｜>" }, { "<unused", ">" } };
    size_t n = strlen(s);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(s, words[i]))
            return 1;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        size_t b = strlen(marks[i].begin), e = strlen(marks[i].end);
        if (n >= b + e && !memcmp(s, marks[i].begin, b) && !memcmp(s + n - e, marks[i].end, e))
            return 1;
    }
    return 0;
}

/* Ids beyond the embedding's rows have no meaning. */
static struct token *token_at(struct vocabulary *v, const json_t *id)
{
    json_int_t i = json_is_integer(id) ? json_integer_value(id) : -1;
    return i >= 0 && i < v->n ? &v->token[i] : NULL;
}

static void list_tokens(struct vocabulary *v)
{
    const json_t *vocab = json_object_get(v->model, "vocab"), *id, *one;
    const char *text, *unknown = text_of(v->model, "unk_token");
    int bytes = json_is_true(json_object_get(v->model, "byte_fallback"));
    size_t i;
    for (int k = 0; k < v->n; k++)
        v->token[k].rank = -1;
    json_object_foreach((json_t *)vocab, text, id) {
        struct token *t = token_at(v, id);
        if (!t)
            continue;
        *t = (struct token){ text, GGUF_NORMAL, 0, -1 };
        if (bytes && is_byte(text))
            t->type = GGUF_BYTE;
        else if (*unknown && !strcmp(text, unknown))
            t->type = GGUF_UNKNOWN;
    }
    json_array_foreach(json_object_get(v->root, "added_tokens"), i, one) {
        struct token *t = token_at(v, json_object_get(one, "id"));
        text = text_of(one, "content");
        if (!t || !*text)
            continue;
        struct token *other = token_at(v, json_object_get(vocab, text));
        if (other && other != t) /* the added one is meant; llama.cpp wants each text once */
            *other = (struct token){ .rank = -1 };
        int special = json_is_true(json_object_get(one, "special")) || looks_special(text);
        enum gguf_token type = special ? GGUF_CONTROL : GGUF_USER_DEFINED;
        *t = (struct token){ text, t->type == GGUF_UNKNOWN ? GGUF_UNKNOWN : type, 1, -1 };
    }
}

/* Token i as the file has it: missing ones get a name, because llama.cpp wants each text once. A token that
 * the user defines has its spaces. */
static void put_token(struct gguf_keys *k, const struct token *t, int i)
{
    char name[32];
    if (!t->text) {
        int n = snprintf(name, sizeof name, "[PAD%d]", i);
        gguf_put_text(k, name, (size_t)n);
        return;
    }
    if (t->type != GGUF_USER_DEFINED || !strstr(t->text, SPACE_SIGN)) {
        gguf_put_text(k, t->text, strlen(t->text));
        return;
    }
    char *plain = malloc(strlen(t->text) + 1), *to = plain;
    if (!plain) {
        k->failed = 1;
        return;
    }
    for (const char *s = t->text; *s;)
        if (!strncmp(s, SPACE_SIGN, 3)) {
            *to++ = ' ';
            s += 3;
        } else {
            *to++ = *s++;
        }
    gguf_put_text(k, plain, (size_t)(to - plain));
    free(plain);
}

static void put_tokens(struct gguf_keys *k, const struct vocabulary *v, int with_scores)
{
    gguf_key_array(k, "tokenizer.ggml.tokens", GGUF_VALUE_TEXT, (uint64_t)v->n);
    for (int i = 0; i < v->n; i++)
        put_token(k, &v->token[i], i);

    if (with_scores)
        gguf_key_array(k, "tokenizer.ggml.scores", GGUF_VALUE_F32, (uint64_t)v->n);
    for (int i = 0; with_scores && i < v->n; i++) {
        const struct token *t = &v->token[i];
        float score = t->rank >= 0 ? -(float)t->rank : t->type == GGUF_NORMAL ? -1e6f : t->added ? -1000 : 0;
        gguf_put(k, &score, sizeof score);
    }

    gguf_key_array(k, "tokenizer.ggml.token_type", GGUF_VALUE_I32, (uint64_t)v->n);
    for (int i = 0; i < v->n; i++)
        gguf_put_u32(k, v->token[i].text ? v->token[i].type : GGUF_UNUSED);
}

/* ---- merges ---- */

/* The two halves of merge i, "a b" or ["a", "b"]; a[n] need not end. 0: it is none. */
static int merge_at(const json_t *merges, size_t i, const char **a, size_t *n, const char **b)
{
    const json_t *m = json_array_get(merges, i);
    if (json_is_string(m)) {
        *a = json_string_value(m);
        const char *gap = **a ? strchr(*a + 1, ' ') : NULL;
        if (!gap)
            return 0;
        *n = (size_t)(gap - *a);
        *b = gap + 1;
        return 1;
    }
    *a = json_string_value(json_array_get(m, 0));
    *b = json_string_value(json_array_get(m, 1));
    if (!*a || !*b)
        return 0;
    *n = strlen(*a);
    return 1;
}

/* A space inside a half would end it; GPT-2's sign for the byte stands for it. */
static void put_half(struct gguf_keys *k, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] == ' ')
            gguf_put(k, "\xc4\xa0", 2);
        else
            gguf_put(k, s + i, 1);
}

static size_t half_bytes(const char *s, size_t n)
{
    size_t bytes = n;
    for (size_t i = 0; i < n; i++)
        bytes += s[i] == ' ';
    return bytes;
}

static void put_merges(struct gguf_keys *k, const json_t *merges)
{
    const char *a, *b;
    size_t n, count = json_array_size(merges);
    gguf_key_array(k, "tokenizer.ggml.merges", GGUF_VALUE_TEXT, count);
    for (size_t i = 0; i < count; i++) {
        if (!merge_at(merges, i, &a, &n, &b))
            a = b = "", n = 0;
        gguf_put_u64(k, half_bytes(a, n) + 1 + half_bytes(b, strlen(b)));
        put_half(k, a, n);
        gguf_put(k, " ", 1);
        put_half(k, b, strlen(b));
    }
}

/* Ranks of tokens by their first merge. Returns whether scores say all that the merges do: the merges of one
 * token are neighbours, and every way to divide a token into two tokens is a merge of it. */
static int rank_tokens(struct vocabulary *v, int *exact, struct err *e)
{
    const json_t *vocab = json_object_get(v->model, "vocab");
    size_t n_merges = json_array_size(v->merges), n;
    const char *a, *b;
    char *join = NULL;
    int *count = calloc((size_t)v->n + 1, sizeof *count), rc = 0;
    struct token *last = NULL;
    *exact = 1;
    if (!count)
        return err_set(e, ERR_MEMORY, "no memory for %d tokens", v->n);
    for (size_t i = 0; i < n_merges; i++) {
        if (!merge_at(v->merges, i, &a, &n, &b))
            continue;
        char *grown = realloc(join, n + strlen(b) + 1);
        if (!grown)
            TRY(err_set(e, ERR_MEMORY, "no memory for the merges of the tokenizer"));
        join = grown;
        memcpy(join, a, n);
        strcpy(join + n, b);
        v->joins_lines |= strchr(join, '\n') && join[strspn(join, "\n")];
        struct token *t = token_at(v, json_object_get(vocab, join));
        if (!t)
            continue;
        if (t->rank < 0)
            t->rank = (int)i;
        else if (t != last)
            *exact = 0;
        last = t;
        count[t - v->token]++;
    }

    for (int i = 0; i < v->n && *exact; i++) {
        const char *s = v->token[i].text;
        if (v->token[i].rank >= 0 && strlen(s) > LONGEST) {
            *exact = 0;
            break;
        }
        for (size_t at = 1; v->token[i].rank >= 0 && s[at]; at++) {
            char *left = (s[at] & 0xc0) == 0x80 ? NULL : strndup(s, at);
            count[i] -= left && json_object_get(vocab, left) && json_object_get(vocab, s + at);
            free(left);
        }
        *exact &= count[i] == 0;
    }
out:
    free(join);
    free(count);
    return rc < 0 ? rc : 0;
}

/* ---- special tokens ---- */

/* The id of a token by its text, -1: none. */
static int64_t id_of(const struct vocabulary *v, const char *text)
{
    const json_t *one, *id = json_object_get(json_object_get(v->model, "vocab"), text);
    size_t i;
    json_array_foreach(json_object_get(v->root, "added_tokens"), i, one)
        if (!strcmp(text_of(one, "content"), text))
            id = json_object_get(one, "id");
    return json_is_integer(id) ? json_integer_value(id) : -1;
}

/* The text of tokenizer_config.json's KIND_token, "" where there is none. */
static const char *special_text(const struct vocabulary *v, const char *kind)
{
    char key[32];
    snprintf(key, sizeof key, "%s_token", kind);
    const json_t *t = json_object_get(v->config, key);
    return json_is_string(t) ? json_string_value(t) : text_of(t, "content");
}

/* The token that the post-processor puts at the begin (last 0) or end of a text, or "". */
static const char *added_by_processor(const struct vocabulary *v, int last)
{
    const json_t *post = json_object_get(v->root, "post_processor"),
                 *list = json_object_get(post, "processors");
    size_t n = list ? json_array_size(list) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *single = json_object_get(list ? json_array_get(list, i) : post, "single");
        size_t m = json_array_size(single);
        const char *id = text_of(json_object_get(json_array_get(single, last && m ? m - 1 : 0),
                                                 "SpecialToken"),
                                 "id");
        if (m > 1 && *id)
            return id;
    }
    return "";
}

static void put_special(struct gguf_keys *k, const struct vocabulary *v)
{
    static const struct {
        const char *kind, *key;
    } kinds[] = {
        { "bos", "tokenizer.ggml.bos_token_id" },     { "eos", "tokenizer.ggml.eos_token_id" },
        { "unk", "tokenizer.ggml.unknown_token_id" }, { "sep", "tokenizer.ggml.seperator_token_id" },
        { "pad", "tokenizer.ggml.padding_token_id" }, { "mask", "tokenizer.ggml.mask_token_id" }
    };
    int64_t id[6];
    for (size_t i = 0; i < 6; i++) {
        const char *text = special_text(v, kinds[i].kind);
        id[i] = *text ? id_of(v, text) : -1;
        if (i == 2 && id[i] < 0 && *text_of(v->model, "unk_token"))
            id[i] = id_of(v, text_of(v->model, "unk_token"));
        if (id[i] < 0)
            id[i] = i == 0 ? v->out->bos : i == 1 ? v->out->eos : -1;
        if (id[i] >= 0 && id[i] < v->n)
            gguf_key_u32(k, kinds[i].key, id[i]);
    }
    const char *first = added_by_processor(v, 0), *end = added_by_processor(v, 1);
    int64_t bos = *first ? id_of(v, first) : -1, eos = *end ? id_of(v, end) : -1;
    gguf_key_bool(k, "tokenizer.ggml.add_bos_token", bos >= 0 && (id[0] < 0 || bos == id[0]));
    gguf_key_bool(k, "tokenizer.ggml.add_eos_token", eos >= 0 && eos == id[1]);
}

static void put_templates(struct gguf_keys *k, const json_t *config, const char *file)
{
    const json_t *t = json_object_get(config, "chat_template"), *one;
    const char *text = file ? file : json_string_value(t);
    char key[128];
    size_t i;
    if (text)
        gguf_key_text(k, "tokenizer.chat_template", text, strlen(text));
    json_array_foreach(t, i, one) {
        const char *name = text_of(one, "name");
        text = text_of(one, "template");
        if (!strcmp(name, "default") && file)
            continue;
        snprintf(key, sizeof key, "tokenizer.chat_template.%.80s", name);
        if (*name && *text)
            gguf_key_text(k, strcmp(name, "default") ? key : "tokenizer.chat_template", text, strlen(text));
    }
}

/* ---- the whole ---- */

static int is_special_bpe(struct vocabulary *v)
{
    return json_is_true(json_object_get(v->model, "byte_fallback")) ||
           strstr(text_of(v->model, "unk_token"), "unk");
}

/* *pre: the pre-tokenizer's name; *scores: 1 for SentencePiece. why in v->out where llama.cpp has nothing. */
static int find_form(struct vocabulary *v, const char **pre, int *scores, struct err *e)
{
    const char *why = "its model";
    int exact = 1, prefix = gguf_prefixes_space(v->root);
    *pre = NULL;
    *scores = 0;
    if (strcmp(text_of(v->model, "type"), "BPE") != 0) {
        why = "its model, which is not BPE,";
    } else if (gguf_is_byte_level(v->root)) {
        *pre = gguf_pretokenizer(v->root, &why);
    } else if (is_special_bpe(v)) {
        int rc = rank_tokens(v, &exact, e);
        if (rc < 0)
            return rc;
        *scores = exact || prefix;
        *pre = *scores ? "default" : "sarvam-moe";
        v->out->inexact = !exact && (prefix || v->joins_lines); /* sarvam-moe ends words at lines */
    }
    if (!*pre) {
        snprintf(v->out->why_text, sizeof v->out->why_text, "llama.cpp has nothing like %s", why);
        v->out->why = v->out->why_text;
    }
    return 0;
}

static void put_none(struct gguf_keys *k) { gguf_key_text(k, "tokenizer.ggml.model", "none", 4); }

static int put_vocabulary(struct gguf_keys *k, struct vocabulary *v, struct err *e)
{
    const char *pre;
    int scores, rc = find_form(v, &pre, &scores, e);
    if (rc < 0)
        return rc;

    const char *model = scores ? "llama" : "gpt2";
    if (pre) {
        gguf_key_text(k, "tokenizer.ggml.model", model, strlen(model));
        gguf_key_text(k, "tokenizer.ggml.pre", pre, strlen(pre));
    } else {
        put_none(k); /* llama.cpp ignores the other keys, reshard gives them back */
    }
    put_tokens(k, v, scores);
    if (pre && !scores)
        put_merges(k, v->merges);
    else if (pre)
        gguf_key_bool(k, "tokenizer.ggml.add_space_prefix", gguf_prefixes_space(v->root));
    put_special(k, v);
    gguf_key_text(k, "tokenizer.huggingface.json", v->out->tokenizer_json, strlen(v->out->tokenizer_json));
    return 0;
}

int gguf_key_vocabulary(struct gguf_keys *k, struct gguf_vocabulary *out, struct err *e)
{
    struct vocabulary v = { .out = out, .n = (int)out->n_vocab };
    int rc = 0;
    out->why = NULL;
    out->inexact = 0;
    if (out->n_vocab > MOST_TOKENS)
        return err_set(e, ERR_CONFIG, "a vocabulary of %lld: at most %d", (long long)out->n_vocab,
                       MOST_TOKENS);
    if (out->tokenizer_config && !(v.config = jx_parse(out->tokenizer_config, strlen(out->tokenizer_config),
                                                       "tokenizer_config.json", e)))
        return -e->code;
    if (!out->tokenizer_json) {
        out->why = "there is no tokenizer.json";
        put_none(k);
    } else {
        if (!(v.root = jx_parse(out->tokenizer_json, strlen(out->tokenizer_json), "tokenizer.json", e)) ||
            !(v.token = calloc((size_t)v.n + 1, sizeof *v.token)))
            TRY(v.root ? err_set(e, ERR_MEMORY, "no memory for %d tokens", v.n) : -e->code);
        v.model = json_object_get(v.root, "model");
        v.merges = json_object_get(v.model, "merges");
        list_tokens(&v);
        TRY(put_vocabulary(k, &v, e));
    }
    put_templates(k, v.config, out->chat_template);
out:
    json_decref(v.root);
    json_decref(v.config);
    free(v.token);
    return rc < 0 ? rc : 0;
}
