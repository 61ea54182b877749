/* prepare.c - see prepare.h. Reads a batch of documents, encodes it on all threads, writes it in order,
 * and goes on with the next batch. */
#include "text/prepare.h"

#include <stdlib.h>
#include <string.h>
#include "base/pool.h"
#include "text/source.h"
#include "text/tok.h"
#include "text/tokfile.h"

#define BATCH_DOCS 4096
#define BATCH_BYTES ((size_t)32 << 20)
#define BYTES_PART ((size_t)4 << 20) /* the byte tokenizer: a text may be cut anywhere */

struct doc {
    char *text;
    size_t n, n_ids;
    int32_t *ids;
    float *weights; /* of a conversation */
    int more, rc;   /* more: the next doc has more of this document */
    const char *path;
    int64_t line, byte;
    struct err e;
};
struct batch {
    const struct tokenizer *t;
    const struct prepare *p;
    struct doc *doc;
    size_t n, bytes;
};

static void free_batch(struct batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        free(b->doc[i].text);
        free(b->doc[i].ids);
        free(b->doc[i].weights);
    }
    b->n = b->bytes = 0;
}

/* Rejects text that is not UTF-8, with the line and byte in the file. (The lines of JSONL are checked by
 * the JSON parser.) */
static int check_utf8(const struct doc *d, struct err *e)
{
    int64_t line = d->line;
    for (size_t i = 0; i < d->n;) {
        uint32_t cp;
        int len = utf8_next(d->text + i, d->n - i, &cp);
        if (len <= 0)
            return err_set(e, ERR_FORMAT,
                           "%s: line %lld, byte %lld: not UTF-8: convert it, or use --invalid-utf8 replace, "
                           "or --tokenizer bytes",
                           d->path, (long long)line, (long long)(d->byte + (int64_t)i));
        line += cp == '\n';
        i += (size_t)len;
    }
    return 0;
}

static void encode_chat(struct batch *b, struct doc *d)
{
    struct chat_tokens x = { 0 };
    d->rc = chats_encode(b->p->chats, d->text, d->n, &x, &d->e);
    d->ids = x.ids;
    d->weights = x.weight;
    d->n_ids = x.n;
    if (d->rc < 0)
        err_add(&d->e, "%s: line %lld", d->path, (long long)d->line);
    free(d->text);
    d->text = NULL;
}

static void encode_one(void *arg, int64_t i, int thread)
{
    struct batch *b = arg;
    struct doc *d = &b->doc[i];
    (void)thread;
    if (b->p->chats) {
        encode_chat(b, d);
        return;
    }
    d->rc = b->p->replace_invalid || b->t->raw_bytes ? 0 : check_utf8(d, &d->e);
    if (d->rc < 0)
        return;
    d->rc = tokenizer_encode(b->t, d->text, d->n, 0, &d->ids, &d->n_ids, &d->e);
    if (d->rc < 0)
        err_add(&d->e, "%s: line %lld, byte %lld", d->path, (long long)d->line, (long long)d->byte);
    free(d->text);
    d->text = NULL;
}

static int write_batch(struct batch *b, struct pool *pool, struct tokfile_writer *w, struct err *e)
{
    int32_t eos = tokenizer_eos(b->t);
    int rc = 0;

    pool_run(pool, (int64_t)b->n, encode_one, b);
    for (size_t i = 0; i < b->n && rc == 0; i++) {
        struct doc *d = &b->doc[i];
        if (d->rc < 0) {
            *e = d->e;
            rc = d->rc;
            break;
        }
        rc = tokfile_add(w, d->ids, d->n_ids, e);
        if (rc == 0 && d->weights)
            rc = tokfile_weigh(w, d->weights, d->n_ids, e);
        if (rc == 0 && !d->more && b->p->append_eos)
            rc = tokfile_add(w, &eos, 1, e);
        if (rc == 0 && !d->more)
            rc = tokfile_end_document(w, e);
    }

    free_batch(b);
    return rc;
}

static int add_file(struct batch *b, const char *path, struct pool *pool, struct tokfile_writer *w,
                    struct prepared *out, struct err *e)
{
    struct source *s = NULL;
    int rc = source_open(&s, path, b->p->chats ? NULL : b->p->field, e);

    while (rc >= 0) {
        struct doc *d = &b->doc[b->n];
        *d = (struct doc){ .path = path };
        rc = source_next(s, b->t->raw_bytes && !b->p->chats ? BYTES_PART : 0, &d->text, &d->n, &d->more, e);
        if (rc <= 0)
            break;
        d->line = source_line(s);
        d->byte = source_byte(s);
        b->n++;
        b->bytes += d->n;
        out->bytes += (int64_t)d->n;
        out->documents += !d->more;
        if (b->n == BATCH_DOCS || b->bytes >= BATCH_BYTES)
            rc = write_batch(b, pool, w, e);
    }

    source_close(s);
    return rc < 0 ? rc : 0;
}

int prepare_tokens(const struct tokenizer *t, const struct prepare *p, struct prepared *out, struct err *e)
{
    struct batch b = { .t = t, .p = p };
    struct tokfile_writer *w = NULL;
    struct pool *pool = NULL;
    int rc = 0;

    *out = (struct prepared){ .width = tokenizer_vocab(t) > 65536 ? 4 : 2 };
    if (p->append_eos && tokenizer_eos(t) < 0)
        return err_set(e, ERR_USAGE,
                       "--append-eos: the tokenizer has no eos_token in its tokenizer_config.json: leave the "
                       "option out");
    if (!(b.doc = calloc(BATCH_DOCS, sizeof *b.doc)))
        return text_memory(e);
    TRY(pool_open(&pool, p->n_threads, e));
    TRY(tokfile_create(&w, p->out, tokenizer_vocab(t), e));
    for (int i = 0; i < p->n_files; i++)
        TRY(add_file(&b, p->files[i], pool, w, out, e));
    TRY(write_batch(&b, pool, w, e));
    for (int i = 0; p->carry && i < p->carry->n; i++)
        TRY(tokfile_carry(w, p->carry->name[i], p->carry->data[i], p->carry->bytes[i], e));
    out->tokens = tokfile_written(w);
    rc = tokfile_finish(w, e);
    w = NULL;
out:
    tokfile_abandon(w);
    if (pool)
        pool_close(pool);
    free_batch(&b);
    free(b.doc);
    return rc;
}
