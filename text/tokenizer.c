/* tokenizer.c - opening a tokenizer, and text to ids. Ids to text: detok.c. */
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "text/tokfile.h"

#define FILE_LIMIT ((size_t)256 << 20)

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    vocab_free(&t->vocab);
    bpe_free(&t->bpe);
    unigram_free(&t->unigram);
    trie_free(&t->plain);
    trie_free(&t->normal);
    steps_free(&t->normalizer);
    steps_free(&t->splitter);
    steps_free(&t->decoder);
    free(t->before.v);
    free(t->after.v);
    free(t);
}

static struct tokenizer *new_tokenizer(void)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    if (t)
        t->bos = t->eos = -1;
    return t;
}

int tokenizer_bytes(struct tokenizer **out, struct err *e)
{
    static const char decoder[] = "{\"type\":\"ByteLevel\"}";
    struct tokenizer *t = new_tokenizer();
    struct buf name = { 0 };
    json_t *node = NULL;
    int rc = 0;

    if (!t)
        return text_memory(e);
    t->raw_bytes = 1;
    for (int b = 0; b < 256; b++) {
        name.n = 0;
        buf_add_cp(&name, byte_char((unsigned char)b));
        if (name.failed) {
            rc = text_memory(e);
            goto out;
        }
        TRY(vocab_put(&t->vocab, name.p, name.n, b, TOKEN_MODEL, "bytes", e));
    }

    if (!(node = text_json(decoder, sizeof decoder - 1, "bytes", e))) {
        rc = -e->code;
        goto out;
    }

    TRY(steps_load(&t->decoder, node, decoder_kinds, "decoders", "bytes", e));
    TRY(token_bytes_fill(t, e));
    *out = t;
    t = NULL;
out:
    json_decref(node);
    buf_free(&name);
    tokenizer_close(t);
    return rc;
}

int tokenizer_open(struct tokenizer **out, const char *json, size_t n, const char *config, size_t n_config,
                   const char *what, struct err *e)
{
    struct tokenizer *t = new_tokenizer();
    json_t *root = NULL;
    int rc = 0;

    if (!t)
        return text_memory(e);
    if (!(root = text_json(json, n, what, e))) {
        rc = -e->code;
        goto out;
    }

    TRY(tokenizer_load(t, root, what, e));
    TRY(token_bytes_fill(t, e));
    if (config) {
        json_decref(root);
        if (!(root = text_json(config, n_config, "tokenizer_config.json", e))) {
            rc = -e->code;
            goto out;
        }
        TRY(tokenizer_load_config(t, root, "tokenizer_config.json", e));
    }

    *out = t;
    t = NULL;
out:
    json_decref(root);
    tokenizer_close(t);
    return rc;
}

int tokenizer_open_dir(struct tokenizer **out, const char *dir, struct err *e)
{
    char path[4096], config_path[4096];
    void *json = NULL, *config = NULL;
    size_t n, n_config = 0;
    int rc = 0;
    if (snprintf(path, sizeof path, "%s/tokenizer.json", dir) >= (int)sizeof path ||
        snprintf(config_path, sizeof config_path, "%s/tokenizer_config.json", dir) >= (int)sizeof config_path)
        return err_set(e, ERR_FILE, "the path of the tokenizer's folder is too long");
    TRY(io_read_file(path, FILE_LIMIT, &json, &n, e));
    if (io_exists(config_path))
        TRY(io_read_file(config_path, FILE_LIMIT, &config, &n_config, e));
    TRY(tokenizer_open(out, json, n, config, n_config, path, e));
out:
    free(json);
    free(config);
    return rc;
}

/* The tokenizer that a token file carries. */
static int open_carried(struct tokenizer **out, const char *path, struct err *e)
{
    struct tokfile *f = NULL;
    size_t n, n_config;
    int rc = tokfile_open(&f, path, e);
    if (rc < 0)
        return rc;
    const char *json = tokfile_part(f, "tokenizer.json", &n),
               *config = tokfile_part(f, "tokenizer_config.json", &n_config);
    rc = json ? tokenizer_open(out, json, n, config, n_config, path, e)
              : err_set(e, ERR_CONFIG, "%s carries no tokenizer: name the folder of one", path);
    tokfile_close(f);
    return rc;
}

int tokenizer_open_named(struct tokenizer **out, const char *name, struct err *e)
{
    if (!strcmp(name, "bytes"))
        return tokenizer_bytes(out, e);
    return tokfile_is_path(name) ? open_carried(out, name, e) : tokenizer_open_dir(out, name, e);
}

/* --- text to ids --- */

/* Finds which bytes of a normalised piece are untrusted. The piece `in` of text became bytes [off, out->n)
 * of out. The borders of an untrusted part are found by normalising the text in front of each. *marks:
 * malloc'd, one byte for each of out->p; those before off are undefined. */
static int normal_marks(const struct tokenizer *t, const char *text, const char *user, const struct piece *in,
                        const struct pieces *to, size_t off, char **marks, struct err *e)
{
    const struct buf *out = &to->text;
    struct buf head = { 0 };
    size_t done = off;
    int rc = 0;

    if (!(*marks = malloc(out->n + 1)))
        return text_memory(e);
    for (size_t i = 1; i <= in->n && rc == 0; i++) {
        if (i < in->n && user[in->off + i] == user[in->off + i - 1])
            continue;
        head.n = 0;
        rc = work_check(to->limit, e);
        rc = rc < 0 ? rc : normalize(&t->normalizer, text + in->off, i, &head, e);
        size_t end = i == in->n || off + head.n > out->n ? out->n : off + head.n;
        if (end > done)
            memset(*marks + done, user[in->off + i - 1], end - done);
        done = end > done ? end : done;
    }

    if (rc == 0 && head.failed)
        rc = text_memory(e);
    buf_free(&head);
    return rc;
}

/* Normalises the text between two added tokens, and splits it at the added tokens that are searched after
 * normalisation. */
static int add_normal(const struct tokenizer *t, const char *text, const char *user, struct piece p,
                      struct pieces *out, struct err *e)
{
    char *marks = NULL;
    struct piece in = p;
    p.off = out->text.n;
    int rc = normalize(&t->normalizer, text + in.off, in.n, &out->text, e);
    if (rc < 0 || out->text.failed)
        return rc < 0 ? rc : text_failed(&out->text, "normalizer", in.n, e);
    p.n = out->text.n - p.off;
    if (user && t->normal.has_special && memchr(user + in.off, 1, in.n))
        rc = normal_marks(t, text, user, &in, out, p.off, &marks, e);
    if (p.n && rc == 0)
        trie_split(&t->normal, out->text.p, marks, &p, out);
    free(marks);
    return rc;
}

int split_added(const struct tokenizer *t, struct pieces *raw, const char *user, struct pieces *out,
                struct buf *touched, struct err *e)
{
    struct piece all = { 0, raw->text.n, -1, 1 };
    out->text.max = text_growth(raw->text.n);
    out->limit = raw->limit;
    trie_split(&t->plain, raw->text.p ? raw->text.p : "", user, &all, raw);
    for (size_t i = 0; i < raw->n; i++) {
        struct piece p = raw->v[i];
        if (i % PIECES_A_CHECK == 0) {
            int rc = work_check(raw->limit, e);
            if (rc < 0)
                return rc;
        }
        char outside = user && memchr(user + p.off, 1, p.n);
        if (p.id >= 0) {
            buf_add(&out->text, raw->text.p + p.off, p.n);
            pieces_add(out, out->text.n - p.n, p.n, p.id, p.first);
        } else {
            int rc = add_normal(t, raw->text.p, user, p, out, e);
            if (rc < 0)
                return rc;
        }
        while (touched && !touched->failed && touched->n < out->n)
            buf_add(touched, &outside, 1);
        if (out->text.failed)
            break;
    }

    return raw->failed || raw->text.failed || out->failed || out->text.failed || (touched && touched->failed)
               ? text_memory(e)
               : 0;
}

int model_pieces(const struct tokenizer *t, const struct pieces *ps, struct ids *out, struct err *e)
{
    return t->unigram.node ? unigram_pieces(&t->unigram, &t->vocab, ps, out, e)
                           : bpe_pieces(&t->bpe, &t->vocab, ps, out, e);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, int add_special, int32_t **ids,
                     size_t *n_ids, struct err *e)
{
    return tokenizer_encode_marked(t, &(struct marked_text){ .text = text, .n = n }, add_special, ids, n_ids,
                                   e);
}

/* --- about tokens --- */

static const struct token *token(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab.n && t->vocab.v[id].flags ? &t->vocab.v[id] : NULL;
}

int32_t tokenizer_vocab(const struct tokenizer *t) { return t->vocab.n; }
int32_t tokenizer_bos(const struct tokenizer *t) { return t->bos; }
int32_t tokenizer_eos(const struct tokenizer *t) { return t->eos; }
int tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return token(t, id) && token(t, id)->flags & TOKEN_SPECIAL;
}
int tokenizer_is_added(const struct tokenizer *t, int32_t id)
{
    return token(t, id) && token(t, id)->flags & TOKEN_ADDED;
}
int32_t tokenizer_id(const struct tokenizer *t, const char *text, size_t n)
{
    return vocab_find(&t->vocab, text, n);
}

const char *tokenizer_token_text(const struct tokenizer *t, int32_t id, size_t *n)
{
    const struct token *k = token(t, id);
    *n = k ? k->n : 0;
    return k ? t->vocab.text.p + k->off : NULL;
}

const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *n)
{
    const struct token *k = token(t, id);
    *n = k ? k->raw_n : 0;
    return k ? t->vocab.raw.p + k->raw_off : NULL;
}
