/* vocabulary.c - the tokens of a run: whose tokenizer, and how many of them the model knows. */
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "text/chats.h"
#include "text/text.h"
#include "text/tokfile.h"
#include "train/run.h"

/* What the token files of a run agree on. */
struct found {
    const char *first;  /* that carries a tokenizer; NULL: none does */
    struct carried own; /* its tokenizer.json */
    int64_t vocab;      /* the largest of any token file */
};

static const char *const main_file[] = { "tokenizer.json" };

/* Takes what one file of the data says. */
static int look_at(struct found *f, const char *path, struct err *e)
{
    struct tokfile *t = NULL;
    size_t n;
    int rc = tokfile_open(&t, path, e);
    if (rc < 0)
        return rc;
    f->vocab = tokfile_vocab(t) > f->vocab ? tokfile_vocab(t) : f->vocab;
    const void *json = tokfile_part(t, main_file[0], &n);
    if (json && !f->first) {
        f->first = path;
        rc = f->own.n ? 0 : carried_read(&f->own, path, main_file, 1, e);
    }
    if (json && rc >= 0 && (f->own.bytes[0] != n || memcmp(f->own.data[0], json, n)))
        rc = err_set(e, ERR_USAGE,
                     "%s was made with another tokenizer than %s: make both with one, or name one with "
                     "--tokenizer",
                     path, f->first == path ? "the run" : f->first);
    tokfile_close(t);
    return rc;
}

static int look_at_list(struct found *f, const struct opt_list *files, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < files->n; i++)
        if (tokfile_is_path(files->item[i]))
            TRY(look_at(f, files->item[i], e));
out:
    return rc;
}

/* Conversations as bytes would be lost on a model that has a tokenizer of its own. */
static int check_own_tokenizer(const struct run *r, const struct opt_list *files, struct err *e)
{
    int n = r->source && !r->o.resume ? ckpt_n_extra(r->source) : 0, i = 0;
    while (i < n && strcmp(ckpt_extra_name(r->source, i), main_file[0]))
        i++;
    if (i == n || opts_given(r->given, "tokenizer") || strcmp(r->o.tokenizer, "bytes"))
        return 0;
    for (int k = 0; k < files->n; k++) {
        int is = chats_is_path(files->item[k], NULL, e);
        if (is > 0)
            return err_set(e, ERR_USAGE,
                           "%s has conversations, and %s a tokenizer of its own: give --tokenizer %s (or "
                           "--tokenizer bytes)",
                           files->item[k], ckpt_path(r->source), ckpt_path(r->source));
        if (is < 0)
            return is;
    }
    return 0;
}

/* A tokenizer that the command line names is taken without a question. One that a resumed run had must be
 * that of the token files. */
static int find_tokenizer(struct run *r, struct found *f, struct err *e)
{
    int rc;
    if (!opts_given(r->given, "tokenizer"))
        TRY(carried_read(&f->own, r->o.tokenizer, main_file, 1, e));
    TRY(look_at_list(f, &r->o.data, e));
    TRY(look_at_list(f, &r->o.eval_data, e));
    TRY(check_own_tokenizer(r, &r->o.data, e));
    TRY(check_own_tokenizer(r, &r->o.eval_data, e));
    if (f->first && !opts_given(r->given, "tokenizer") && !strcmp(r->o.tokenizer, "bytes"))
        r->o.tokenizer = f->first;
out:
    return rc;
}

/* The vocabulary of a preset, and its first and last token: the tokenizer's. Bytes fit every vocabulary of
 * 256 and more, so they leave it as it is. */
static int follow_tokenizer(struct run *r, int64_t of_data, struct err *e)
{
    struct model_config *c = &r->cfg;
    struct tokenizer *t = NULL;
    int rc;
    if (!strcmp(r->o.tokenizer, "bytes")) {
        if (of_data <= 256)
            return 0;
        c->vocab = of_data; /* ids of an unknown tokenizer */
        c->bos = -1;
        c->n_eos = 0;
        return 0;
    }
    TRY(tokenizer_open_named(&t, r->o.tokenizer, e));
    c->vocab = tokenizer_vocab(t) > of_data ? tokenizer_vocab(t) : of_data;
    c->bos = tokenizer_bos(t);
    c->eos[0] = tokenizer_eos(t);
    c->n_eos = c->eos[0] >= 0;
out:
    tokenizer_close(t);
    return rc < 0 ? rc : 0;
}

int run_set_vocabulary(struct run *r, struct err *e)
{
    const int64_t asked = r->o.vocab_size;
    struct found f = { 0 };
    int rc = 0;
    TRY(find_tokenizer(r, &f, e));
    if (r->source) {
        if (asked && asked != r->cfg.vocab)
            rc = err_set(e, ERR_USAGE, "--vocab-size %lld: %s has %lld: leave it out", (long long)asked,
                         ckpt_path(r->source), (long long)r->cfg.vocab);
        goto out;
    }
    if (r->is_preset)
        TRY(follow_tokenizer(r, f.vocab, e));
    if (asked)
        r->cfg.vocab = asked;
out:
    carried_free(&f.own);
    return rc < 0 ? rc : 0;
}
