/* gguf_vocab.c - see gguf_model.h: tokenizer.json, tokenizer_config.json and generation_config.json, made of
 * a file's metadata when they are read. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* vasprintf */
#endif
#include "format/vocab/gguf_vocab.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/gguf/gguf_model.h"
#include "format/vocab/gguf_tokenizer.h"

#define TOKENS_MAX (1 << 24)

/* ---- texts ---- */

void gguf_print(struct buf *o, const char *fmt, ...)
{
    char *text = NULL;
    va_list a;
    va_start(a, fmt);
    int n = vasprintf(&text, fmt, a);
    va_end(a);
    if (n < 0) {
        o->failed = BUF_NO_MEMORY;
        return;
    }
    buf_add(o, text, (size_t)n);
    free(text);
}

void gguf_print_json(struct buf *o, const char *p, int64_t n)
{
    char escape[8];
    buf_add(o, "\"", 1);
    for (int64_t i = 0, end; i < n; i = end) {
        unsigned char c = (unsigned char)p[i];
        for (end = i; end < n && (unsigned char)p[end] >= 0x20 && !strchr("\"\\\x7f", p[end]);)
            end++;
        buf_add(o, p + i, (size_t)(end - i));
        if (end > i)
            continue;
        end = i + 1;
        if (c < 0x20 || c == 0x7f)
            buf_add(o, escape, (size_t)sprintf(escape, "\\u%04x", c));
        else
            buf_add(o, escape, (size_t)sprintf(escape, "\\%c", c));
    }
    buf_add(o, "\"", 1);
}

int gguf_is_utf8(const char *text, int64_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    for (int64_t i = 0; i < n;) {
        int more = p[i] < 0x80 ? 0 : p[i] >= 0xc2 && p[i] < 0xe0 ? 1 : (p[i] & 0xf0) == 0xe0 ? 2 : 3;
        uint32_t c = p[i] & (0x7f >> (more + (more > 0)));
        if (p[i] > 0xf4 || (p[i] >= 0x80 && p[i] < 0xc2) || i + more >= n)
            return 0;
        for (int k = 1; k <= more; k++) {
            if ((p[i + k] & 0xc0) != 0x80)
                return 0;
            c = c << 6 | (p[i + k] & 0x3f);
        }
        if ((more == 2 && (c < 0x800 || (c >= 0xd800 && c < 0xe000))) ||
            (more == 3 && (c < 0x10000 || c > 0x10ffff)))
            return 0;
        i += more + 1;
    }
    return 1;
}

/* ---- tokens ---- */

static uint32_t hash_of(const char *p, int64_t n)
{
    uint32_t h = 2166136261u;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)p[i]) * 16777619u;
    return h ^ h >> 15;
}

static int32_t *slot_of(const struct gguf_tokens *t, const char *p, int64_t n)
{
    for (uint32_t h = hash_of(p, n);; h++) {
        int32_t *s = &t->slot[h & (t->n_slots - 1)];
        if (!*s || (t->row[*s - 1].text.n == n && !memcmp(t->row[*s - 1].text.p, p, (size_t)n)))
            return s;
    }
}

int32_t gguf_token_find(const struct gguf_tokens *t, const char *p, int64_t n)
{
    return *slot_of(t, p, n) - 1;
}

void gguf_tokens_free(struct gguf_tokens *t)
{
    free(t->row);
    free(t->spelled);
    free(t->slot);
    memset(t, 0, sizeof *t);
}

/* Rows that the embedding has beyond the vocabulary: converters call them [PAD1], [PAD2], … */
static int is_padding(const struct gguf_token_row *r)
{
    return r->type == GGUF_UNUSED && r->text.n > 4 && !memcmp(r->text.p, "[PAD", 4);
}

int gguf_only_blanks(struct gguf_text t)
{
    for (int64_t i = 0; i < t.n; i++)
        if (t.p[i] != ' ')
            return 0;
    return 1;
}

/* Converters write the blanks of user-defined tokens as such; those of blanks alone are of the model. Returns
 * where the next text goes. */
static char *spell(struct gguf_token_row *r, char *to)
{
    if (r->type != GGUF_USER_DEFINED || !gguf_only_blanks(r->raw))
        return to;
    r->text = (struct gguf_text){ to, 0 };
    for (int64_t i = 0; i < r->raw.n; i++) {
        memcpy(to, GGUF_BLANK, sizeof GGUF_BLANK - 1);
        to += sizeof GGUF_BLANK - 1;
    }
    r->text.n = to - r->text.p;
    return to;
}

/* Bytes that spell() may need. */
static size_t spelled_bytes(const struct gguf_tokens *t, const struct gguf_meta *list)
{
    const unsigned char *at = list->data;
    size_t n = 1;
    for (int32_t i = 0; i < t->n && t->is_spm; i++) {
        struct gguf_text x = gguf_next_text(&at);
        n += gguf_only_blanks(x) ? 3 * (size_t)x.n : 0;
    }
    return n;
}

int gguf_tokens_read(struct gguf_tokens *t, const struct gguf_file *f, struct err *e)
{
    const struct gguf_meta *list = gguf_meta_find(f, "tokenizer.ggml.tokens");
    const struct gguf_meta *types = gguf_meta_find(f, "tokenizer.ggml.token_type");
    const struct gguf_meta *scores = gguf_meta_find(f, "tokenizer.ggml.scores");
    const unsigned char *at = list ? list->data : NULL;

    if (!list || list->type != GGUF_VALUE_ARRAY || list->of != GGUF_VALUE_TEXT || !list->n ||
        list->n > TOKENS_MAX)
        return err_set(e, ERR_FORMAT, "%s: tokenizer.ggml.tokens is no list of 1 to 2^24 texts", f->path);
    if (types && (types->type != GGUF_VALUE_ARRAY || !gguf_value_bytes(types->of) || types->n != list->n))
        return err_set(e, ERR_FORMAT, "%s: has %lld tokens, and %lld types of tokens", f->path,
                       (long long)list->n, (long long)types->n);
    if (scores && (scores->type != GGUF_VALUE_ARRAY || !gguf_value_bytes(scores->of) || scores->n != list->n))
        return err_set(e, ERR_FORMAT, "%s: has %lld tokens, and %lld scores of tokens", f->path,
                       (long long)list->n, (long long)scores->n);

    t->f = f;
    t->n = (int32_t)list->n;
    for (t->n_slots = 1024; t->n_slots < (uint32_t)t->n * 2;)
        t->n_slots *= 2;
    t->row = calloc((size_t)t->n, sizeof *t->row);
    t->slot = calloc(t->n_slots, sizeof *t->slot);
    char *next = t->spelled = malloc(spelled_bytes(t, list));
    if (!t->row || !t->slot || !next)
        return err_set(e, ERR_MEMORY, "%s: no memory for %d tokens", f->path, t->n);
    for (int32_t i = 0; i < t->n; i++) {
        struct gguf_token_row *r = &t->row[i];
        int64_t type = types ? gguf_array_int(types, i) : GGUF_NORMAL;
        r->text = r->raw = gguf_next_text(&at);
        r->type = type >= GGUF_NORMAL && type <= GGUF_BYTE ? (enum gguf_token)type : GGUF_NORMAL;
        r->score = scores ? (float)gguf_array_float(scores, i) : 0;
        if (t->is_spm)
            next = spell(r, next);
        int32_t *slot = slot_of(t, r->text.p, r->text.n);
        r->is_kept = !*slot && r->text.n && !is_padding(r) && gguf_is_utf8(r->text.p, r->text.n);
        if (r->is_kept)
            *slot = i + 1;
    }
    return 0;
}

/* ---- which tokenizer ---- */

/* The tokenizer.json that the file carries whole. 0: it has none. */
static int carries(const struct gguf_file *f, struct gguf_text *whole)
{
    return gguf_get_text(f, "tokenizer.huggingface.json", whole) && whole->n > 0 &&
           gguf_meta_find(f, "tokenizer.ggml.tokens");
}

/* 1: the keys say all of a tokenizer, *t of what kind. 0: not, and `why` says why ("": the file has none). */
static int is_known(struct gguf_tokens *t, const struct gguf_file *f, char why[160])
{
    struct gguf_text model, pre = { "default", 7 };
    why[0] = 0;
    if (!gguf_get_text(f, "tokenizer.ggml.model", &model) || gguf_text_is(model, "none") ||
        gguf_text_is(model, "no_vocab") || !gguf_meta_find(f, "tokenizer.ggml.tokens"))
        return 0;
    t->is_spm = gguf_text_is(model, "llama");
    if (t->is_spm)
        return 1;
    if (!gguf_text_is(model, "gpt2") && !gguf_text_is(model, "gemma4")) {
        snprintf(why, 160, "the tokenizer \"%.*s\" of the GGUF file is not known here: token ids only",
                 model.n < 40 ? (int)model.n : 40, model.p);
        return 0;
    }
    if (gguf_text_is(model, "gemma4"))
        pre = model;
    else
        gguf_get_text(f, "tokenizer.ggml.pre", &pre);
    t->pre = gguf_pre_find(pre.p, pre.n);
    t->is_spm = t->pre && t->pre->flags & GGUF_PRE_TEXT;
    if (t->pre)
        return 1;
    snprintf(why, 160, "the pre-tokenizer \"%.*s\" of the GGUF file is not known here: token ids only",
             pre.n < 40 ? (int)pre.n : 40, pre.p);
    return 0;
}

int gguf_tokenizer_known(struct gguf_tokens *t, const struct gguf_file *f, char why[160])
{
    struct gguf_text whole;
    int known = is_known(t, f, why);
    if (!known && carries(f, &whole)) {
        why[0] = 0;
        return 1;
    }
    return known;
}

/* ---- files that are made when they are read ---- */

static int make(struct ckpt *c, const char *name, void **data, size_t *bytes, struct err *e)
{
    struct gguf_part p = { .file = 0 };
    struct gguf_tokens t = { 0 };
    struct buf o = { 0 };
    struct gguf_text whole;
    char why[160];
    int rc = gguf_part_read(c, 0, &p, e);
    if (rc >= 0 && gguf_tokenizer_known(&t, &p.f, why))
        rc = gguf_tokens_read(&t, &p.f, e);
    if (rc >= 0 && !strcmp(name, "tokenizer.json") && carries(&p.f, &whole))
        buf_add(&o, whole.p, (size_t)whole.n);
    else if (rc >= 0 && !strcmp(name, "tokenizer.json"))
        rc = gguf_tokenizer_json(&o, &t, e);
    else if (rc >= 0 && !strcmp(name, "tokenizer_config.json"))
        gguf_tokenizer_config(&o, &t);
    else if (rc >= 0)
        gguf_generation_config(&o, &p.f);
    if (rc >= 0 && o.failed)
        rc = err_set(e, ERR_MEMORY, "%s: no memory for %s", c->path, name);
    gguf_tokens_free(&t);
    gguf_part_free(&p);
    if (rc < 0) {
        buf_free(&o);
        return rc;
    }
    *data = o.p;
    *bytes = o.n;
    return 0;
}

static int add(struct ckpt *c, const char *name, int is_file, struct err *e)
{
    struct fmt_extra *x = &c->extra[c->n_extra];
    if (!(x->name = strdup(name)))
        return err_set(e, ERR_MEMORY, "%s: no memory for the names of its files", c->path);
    x->make = is_file ? NULL : make;
    c->n_extra++;
    return 0;
}

int gguf_add_vocabulary(struct gguf_model *m, struct err *e)
{
    struct ckpt *c = m->c;
    const struct gguf_file *f = &m->part[0].f;
    struct gguf_tokens t = { 0 };
    char why[160];
    int known = gguf_tokenizer_known(&t, f, why), rc = 0;
    if (!(c->extra = calloc(4, sizeof *c->extra)))
        return err_set(e, ERR_MEMORY, "%s: no memory for the names of its files", c->path);
    if (known)
        rc = gguf_tokens_read(&t, f, e);
    gguf_tokens_free(&t);
    if (rc >= 0 && known && (rc = add(c, "tokenizer.json", 0, e)) >= 0)
        rc = add(c, "tokenizer_config.json", 0, e);
    if (rc >= 0 && gguf_meta_find(f, "tokenizer.ggml.eos_token_id"))
        rc = add(c, "generation_config.json", 0, e);
    if (rc >= 0 && build_exists(c, FMT_CUTS))
        rc = add(c, FMT_CUTS, 1, e);
    if (rc >= 0 && why[0])
        rc = build_note(c, e, "%s", why);
    return rc < 0 ? rc : 0;
}
