/* ptok_accepts.c - see ptok_accepts.h. */
#include "tools/ptok_accepts.h"

#include <stdlib.h>
#include <string.h>
#include "base/io.h"

#define GRAMMAR_LIMIT ((size_t)16 << 20)

int accepts_open(struct accepts *a, const struct accepts_options *o, const struct tokenizer *tokenizer,
                 struct err *e)
{
    const char *path = o->schema ? o->schema : o->grammar;
    struct grammar_spec spec = { .kind = o->schema  ? GRAMMAR_SCHEMA
                                         : o->regex ? GRAMMAR_REGEX
                                                    : GRAMMAR_EBNF,
                                 .flags = (o->compact ? GRAMMAR_COMPACT : 0) |
                                          (o->in_order ? GRAMMAR_IN_ORDER : 0) };
    void *text = NULL;
    int rc = 0;
    memset(a, 0, sizeof *a);
    if (!o->schema + !o->regex + !o->grammar != 2)
        return err_set(e, ERR_USAGE, "accepts needs one of --schema FILE, --regex R, --grammar FILE");

    if (path)
        TRY(io_read_file(path, GRAMMAR_LIMIT, &text, &spec.n, e));
    spec.text = path ? text : o->regex;
    spec.n = path ? spec.n : strlen(o->regex);
    if ((rc = grammar_open(&a->g, &spec, NULL, e)) < 0) {
        err_add(e, "%s", path ? path : "--regex");
        goto out;
    }
    if (tokenizer) {
        int32_t end = tokenizer_eos(tokenizer);
        TRY(token_trie_open(&a->trie, tokenizer, tokenizer_vocab(tokenizer), &end, end >= 0, e));
        a->tokenizer = tokenizer;
    }
out:
    free(text);
    return rc;
}

void accepts_close(struct accepts *a)
{
    token_trie_close(a->trie);
    grammar_close(a->g);
    memset(a, 0, sizeof *a);
}

/* Takes the ids of a text: each must be one that the mask allows. Returns 1: the text may end behind them. */
static int take_ids(struct matcher *m, uint32_t *mask, const int32_t *ids, size_t n, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; i < n; i++) {
        if ((rc = matcher_mask(m, mask, e)) < 0 && rc != -ERR_CONFIG)
            return rc;
        int allowed = rc == 0 && mask[ids[i] / 32] >> (ids[i] % 32) & 1;
        if ((rc = matcher_take(m, ids[i], e)) < 0)
            return rc;
        if (rc != allowed)
            return err_set(e, ERR_INTERNAL, "token %zu (id %d): the mask and the matcher disagree", i,
                           ids[i]);
        if (!rc)
            return 0;
    }
    return matcher_at_end(m) > 0;
}

static int accepts_ids(struct accepts *a, const char *text, size_t n, struct err *e)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    struct matcher *m = NULL;
    uint32_t *mask = malloc((token_trie_words(a->trie) + 1) * sizeof *mask);
    int rc = mask ? 0 : err_set(e, ERR_MEMORY, "no memory for a mask");
    TRY(rc);
    TRY(tokenizer_encode(a->tokenizer, text, n, 0, &ids, &n_ids, e));
    TRY(matcher_open(&m, a->g, a->trie, e));
    rc = take_ids(m, mask, ids, n_ids, e);
out:
    matcher_close(m);
    free(ids);
    free(mask);
    return rc;
}

int accepts_text(struct accepts *a, const char *text, size_t n, json_t *out, struct err *e)
{
    size_t at = 0;
    int accepted = grammar_accepts(a->g, text, n, &at, e);
    if (accepted > 0 && a->trie)
        accepted = accepts_ids(a, text, n, e);
    if (accepted < 0)
        return accepted;
    if (json_object_set_new(out, "accepted", json_boolean(accepted)) < 0 ||
        (!accepted && json_object_set_new(out, "at", json_integer((json_int_t)at)) < 0))
        return err_set(e, ERR_MEMORY, "no memory for this line: use shorter texts");
    return 0;
}
