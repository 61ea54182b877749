/* matcher.c - one sequence within a grammar: see text/grammar.h. */
#include <stdlib.h>
#include <string.h>
#include "text/grammar/matching.h"

#define LOOK_EVERY 64 /* ids between two looks at a machine's size */
struct matcher {
    struct grammar *g;
    const struct token_trie *t;
    struct shared_machine *s; /* NULL: there was no memory for one; begin() tries again */
    struct ints ids;          /* taken */
    struct ints configs;      /* [ids.n + 1] behind each of them, 0: an end id was taken; empty without s */
    int accepts, is_end;      /* of the last one */
};

static uint32_t now(const struct matcher *x)
{
    return x->configs.n ? (uint32_t)x->configs.v[x->configs.n - 1] : 0;
}

/* Notes what matcher_at_end says; under the lock. */
static void note_end(struct matcher *x)
{
    uint32_t config = now(x);
    size_t n;
    machine_threads(x->s->m, config, &n);
    x->accepts = config && x->s->m->config[config].accepts;
    x->is_end = x->accepts && n == 0;
}

static int push(struct matcher *x, uint32_t config, struct err *e)
{
    ints_add(&x->configs, (int32_t)config);
    if (x->configs.failed)
        return err_set(e, ERR_MEMORY, "no memory for a grammar's text of %zu tokens", x->ids.n);
    note_end(x);
    return 0;
}

/* Takes a machine, and the ids so far on it; under the lock. */
static int begin(struct matcher *x, struct err *e)
{
    x->configs.n = 0;
    x->s = shared_take(x->g, x->t, e);
    if (!x->s)
        return -e->code;
    uint32_t config = machine_begin(x->s->m);
    int rc = push(x, config, e);
    for (size_t i = 0; i < x->ids.n && rc == 0 && config; i++) {
        int is_end = x->t->kind[x->ids.v[i]] == TOKEN_END;
        config = is_end ? 0 : config_take(x->s->m, x->t, config, x->ids.v[i]);
        rc = push(x, config, e);
    }
    if (rc == 0 && x->s->m->failed)
        rc = machine_error(x->s->m, e);
    if (rc < 0) {
        shared_leave(x->s);
        x->s = NULL;
        x->configs.n = 0;
    }
    return rc;
}

/* Is the matcher's machine too large? The look is not free, so it is taken now and then. */
static int is_too_large(struct matcher *x)
{
    size_t share = memory_share(x->g);
    x->s->m->masks_most = share / 8 * 5;
    if (x->ids.n % LOOK_EVERY == LOOK_EVERY - 1)
        memory_note(x->s);
    else if (!memory_is_short(x->g))
        return 0;
    return x->s->bytes > 2 * share;
}

/* Before work on the machine; under the lock. One that has become too large is left. */
static int prepare(struct matcher *x, struct err *e)
{
    if (x->s && is_too_large(x)) {
        shared_leave(x->s);
        x->s = NULL;
    }
    if (!x->s)
        return begin(x, e);
    x->s->m->work = MACHINE_WORK;
    return x->s->m->failed ? machine_error(x->s->m, e) : 0;
}

int matcher_open(struct matcher **out, struct grammar *g, const struct token_trie *t, struct err *e)
{
    struct matcher *x = calloc(1, sizeof *x);
    *out = NULL;
    if (!x)
        return err_set(e, ERR_MEMORY, "no memory for a matcher");
    x->g = grammar_share(g);
    x->t = t;
    pthread_mutex_lock(&g->lock);
    int rc = begin(x, e);
    pthread_mutex_unlock(&g->lock);
    if (rc < 0)
        matcher_close(x);
    else
        *out = x;
    return rc;
}

void matcher_close(struct matcher *x)
{
    if (!x)
        return;
    pthread_mutex_lock(&x->g->lock);
    shared_leave(x->s);
    pthread_mutex_unlock(&x->g->lock);
    grammar_close(x->g);
    ints_free(&x->ids);
    ints_free(&x->configs);
    free(x);
}

int matcher_mask(struct matcher *x, uint32_t *bits, struct err *e)
{
    size_t words = x->t->n_words, i = 0;
    pthread_mutex_lock(&x->g->lock);
    int rc = prepare(x, e);
    if (rc == 0 && now(x)) {
        size_t before = x->s->m->mask_bytes;
        const uint32_t *mask = config_mask(x->s->m, x->t, now(x));
        if (x->s->m->mask_bytes != before)
            memory_note(x->s);
        if (mask)
            memcpy(bits, mask, words * sizeof *bits);
        else
            rc = machine_error(x->s->m, e);
    } else if (rc == 0) {
        memset(bits, 0, words * sizeof *bits);
    }
    pthread_mutex_unlock(&x->g->lock);

    while (rc == 0 && i < words && !bits[i])
        i++;
    if (rc == 0 && i == words)
        return err_set(
            e, ERR_CONFIG,
            "no token of the vocabulary may come behind %zu tokens: it lacks an end token or a byte "
            "that the grammar needs",
            x->ids.n);
    return rc;
}

int matcher_take(struct matcher *x, int32_t id, struct err *e)
{
    if (id < 0 || id >= x->t->vocab || !now(x))
        return 0;
    pthread_mutex_lock(&x->g->lock);
    int rc = prepare(x, e), is_end = x->t->kind[id] == TOKEN_END;
    uint32_t next = 0;
    if (rc == 0 && !is_end)
        next = config_take(x->s->m, x->t, now(x), id);
    if (rc == 0 && x->s->m->failed)
        rc = machine_error(x->s->m, e);
    if (rc == 0 && (is_end ? x->accepts : next != 0)) {
        ints_add(&x->ids, id);
        rc = x->ids.failed ? err_set(e, ERR_MEMORY, "no memory for a grammar's text") : push(x, next, e);
        rc = rc < 0 ? rc : 1;
    }
    pthread_mutex_unlock(&x->g->lock);
    return rc;
}

void matcher_rewind(struct matcher *x, int64_t n)
{
    if (n <= 0)
        return;
    n = n > (int64_t)x->ids.n ? (int64_t)x->ids.n : n;
    x->ids.n -= (size_t)n;
    if (!x->s)
        return;
    x->configs.n -= (size_t)n;
    pthread_mutex_lock(&x->g->lock);
    note_end(x);
    pthread_mutex_unlock(&x->g->lock);
}

int matcher_at_end(const struct matcher *x) { return x->is_end ? 2 : x->accepts; }

#define FORCED_BYTES 1024
/* The only byte that can follow; -1: there are several, or none. */
static int forced_byte(struct machine *m, uint32_t config)
{
    int found = -1;
    for (int b = 0; b < 256 && !m->config[config].accepts; b++)
        if (machine_step(m, config, (unsigned char)b)) {
            if (found >= 0)
                return -1;
            found = b;
        }
    return found;
}

/* The only bytes that can follow, at most FORCED_BYTES. *ends: the text can only end behind them. */
static size_t forced_bytes(struct matcher *x, char *out, int *ends)
{
    struct machine *m = x->s->m;
    uint32_t config = now(x);
    size_t n = 0, n_threads;
    for (int b; n < FORCED_BYTES && config && (b = forced_byte(m, config)) >= 0;) {
        out[n++] = (char)b;
        config = machine_step(m, config, (unsigned char)b);
    }
    machine_threads(m, config, &n_threads);
    *ends = config && m->config[config].accepts && n_threads == 0;
    return n;
}

/* The text as the tokenizer cuts it, as long as its tokens write these bytes: one that begins every text with
 * a space does not. Returns the number of ids, *used: their bytes; or an error. */
static int cut_by_tokenizer(const struct token_trie *t, const char *text, size_t n, int32_t *ids, int max,
                            size_t *used, struct err *e)
{
    int32_t *list = NULL;
    size_t n_list = 0;
    int k = 0, rc = t->tokenizer ? tokenizer_encode(t->tokenizer, text, n, 0, &list, &n_list, e) : 0;
    for (*used = 0; rc == 0 && k < max && (size_t)k < n_list; k++) {
        int32_t id = list[k];
        if (id < 0 || id >= t->vocab || t->kind[id] != TOKEN_PLAIN)
            break;
        size_t len = t->off[id + 1] - t->off[id];
        if (*used + len > n || memcmp(text + *used, t->text + t->off[id], len))
            break;
        *used += len;
        ids[k] = id;
    }
    free(list);
    return rc < 0 ? rc : k;
}

/* The text cut into the longest tokens. */
static int cut_by_length(const struct token_trie *t, const char *text, size_t n, int32_t *ids, int max,
                         size_t *used)
{
    int k = 0;
    size_t len;
    for (*used = 0; k < max && *used < n; k++, *used += len)
        if (!(len = token_trie_longest(t, text + *used, n - *used, &ids[k])))
            break;
    return k;
}

int matcher_forced(struct matcher *x, int32_t *ids, int max, struct err *e)
{
    char text[FORCED_BYTES];
    size_t n_text = 0, used;
    int ends = 0;

    if (!now(x) || max < 1)
        return 0;
    pthread_mutex_lock(&x->g->lock);
    int rc = prepare(x, e);
    if (rc == 0)
        n_text = forced_bytes(x, text, &ends);
    pthread_mutex_unlock(&x->g->lock);
    if (rc < 0 || !n_text)
        return rc;

    int n = cut_by_tokenizer(x->t, text, n_text, ids, max, &used, e);
    if (n == 0)
        n = cut_by_length(x->t, text, n_text, ids, max, &used);
    /* the model's token at the end of these bytes may reach further */
    return n > 1 && used == n_text && !ends ? n - 1 : n;
}
