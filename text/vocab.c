/* vocab.c - the vocabulary: tokens by id and ids by text. */
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static size_t slot_of(const struct vocab *v, const char *s, size_t n)
{
    size_t mask = v->n_slots - 1, i = (size_t)XXH3_64bits(s, n) & mask;
    while (v->slot[i] >= 0) {
        const struct token *t = &v->v[v->slot[i]];
        if (t->n == n && !memcmp(v->text.p + t->off, s, n))
            break;
        i = (i + 1) & mask;
    }
    return i;
}

int32_t vocab_find(const struct vocab *v, const char *s, size_t n)
{
    return v->n_slots ? v->slot[slot_of(v, s, n)] : -1;
}

static int make_slots(struct vocab *v)
{
    size_t n = v->n_slots ? v->n_slots * 2 : 1024;
    int32_t *old = v->slot, *slot = malloc(n * sizeof *slot);
    if (!slot)
        return -1;
    memset(slot, 0xFF, n * sizeof *slot); /* all -1 */
    size_t n_old = v->n_slots;
    v->slot = slot;
    v->n_slots = n;
    for (size_t i = 0; i < n_old; i++)
        if (old[i] >= 0)
            v->slot[slot_of(v, v->text.p + v->v[old[i]].off, v->v[old[i]].n)] = old[i];
    free(old);
    return 0;
}

/* Makes v->v long enough for id. */
static int reserve_ids(struct vocab *v, int32_t id)
{
    if ((size_t)id >= v->cap) {
        struct token *q = buf_grow(v->v, &v->cap, (size_t)id + 1, sizeof *q);
        if (!q)
            return -1;
        v->v = q;
    }
    for (; v->n <= id; v->n++)
        v->v[v->n] = (struct token){ 0 };
    return 0;
}

int vocab_put(struct vocab *v, const char *s, size_t n, int64_t id, int flags, const char *what,
              struct err *e)
{
    if (id < 0 || id >= TOK_ID_LIMIT)
        return err_set(e, ERR_CONFIG, "%s: token \"%.60s\" has the id %lld: ids are 0 … %d", what, s,
                       (long long)id, TOK_ID_LIMIT - 1);
    if ((v->n_used * 2 >= v->n_slots && make_slots(v) < 0) || reserve_ids(v, (int32_t)id) < 0)
        return text_memory(e);
    struct token *t = &v->v[id];
    int32_t there = vocab_find(v, s, n);
    if (there >= 0 && there != id)
        return err_set(e, ERR_CONFIG, "%s: token \"%.60s\" has two ids, %d and %lld", what, s, there,
                       (long long)id);
    if (t->flags && there != id)
        return err_set(e, ERR_CONFIG, "%s: id %lld stands for two tokens, \"%.60s\" and \"%.60s\"", what,
                       (long long)id, v->text.p + t->off, s);
    if (!t->flags) {
        t->off = t->decoded_off = v->text.n;
        t->n = t->decoded_n = n;
        buf_add(&v->text, s, n);
        buf_add(&v->text, "", 1);
        if (v->text.failed)
            return text_memory(e);
        v->slot[slot_of(v, s, n)] = (int32_t)id;
        v->n_used++;
    }

    t->flags |= flags;
    return 0;
}

int vocab_set_decoded(struct vocab *v, int32_t id, const char *s, size_t n, struct err *e)
{
    struct token *t = &v->v[id];
    if (n == t->n && !memcmp(s, v->text.p + t->off, n))
        return 0;
    t->decoded_off = v->text.n;
    t->decoded_n = n;
    t->flags |= TOKEN_REWRITTEN;
    buf_add(&v->text, s, n);
    buf_add(&v->text, "", 1);
    return v->text.failed ? text_memory(e) : 0;
}

void vocab_free(struct vocab *v)
{
    free(v->v);
    free(v->slot);
    buf_free(&v->text);
    buf_free(&v->raw);
    *v = (struct vocab){ 0 };
}
