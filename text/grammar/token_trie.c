/* token_trie.c - the bytes of a vocabulary as tries: see matching.h. */
#define _GNU_SOURCE /* qsort_r */
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "text/grammar/matching.h"
#include "text/tok.h"

static int no_memory(struct err *e)
{
    return err_set(e, ERR_MEMORY, "no memory for the bytes of a vocabulary");
}

/* --- which slice a token is in --- */

static int is_lower(uint32_t c) { return c >= 'a' && c <= 'z'; }
static int is_name(uint32_t c)
{
    return is_lower(c) || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}
static int is_ascii(uint32_t c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; }
static int is_text(uint32_t c) { return is_ascii(c) || c > 0x7F; }

/* N_SLICES: none. *n_chars: its characters. */
static int slice_of(const char *s, size_t n, int *n_chars)
{
    static int (*const is[N_SLICES])(uint32_t) = { is_lower, is_name, is_ascii, is_text };
    int slice = 0;
    *n_chars = 0;
    for (size_t i = 0; i < n && slice < N_SLICES; ++*n_chars) {
        uint32_t cp = 0;
        int len = utf8_next(s + i, n - i, &cp);
        if (len <= 0)
            return N_SLICES;
        while (slice < N_SLICES && !is[slice](cp))
            slice++;
        i += (size_t)len;
    }
    return *n_chars > SLICE_LENGTHS ? N_SLICES : slice;
}

/* --- tries --- */

static int by_bytes(const void *a, const void *b, void *arg)
{
    const struct token_trie *t = arg;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    size_t nx = t->off[x + 1] - t->off[x], ny = t->off[y + 1] - t->off[y];
    int c = memcmp(t->text + t->off[x], t->text + t->off[y], nx < ny ? nx : ny);
    return c ? c : nx != ny ? (nx > ny) - (nx < ny) : (x > y) - (x < y);
}

/* Nodes of ids[first, end), sorted, which agree in `depth` bytes. */
static int add_nodes(const struct token_trie *t, struct byte_trie *to, const int32_t *ids, int32_t first,
                     int32_t end, size_t depth)
{
    while (first < end) {
        unsigned char byte = (unsigned char)t->text[t->off[ids[first]] + depth];
        int32_t next = first, here;
        while (next < end && (unsigned char)t->text[t->off[ids[next]] + depth] == byte)
            next++;
        for (here = first; here < next && t->off[ids[here] + 1] - t->off[ids[here]] == depth + 1;)
            here++;
        if (to->n == to->cap) {
            struct byte_node *v = buf_grow(to->node, &to->cap, to->n + 1, sizeof *v);
            if (!v)
                return -1;
            to->node = v;
        }
        size_t at = to->n++;
        to->node[at] = (struct byte_node){ byte, (uint8_t)(depth + 1), 0, first, here - first };
        if (add_nodes(t, to, ids, here, next, depth + 1) < 0)
            return -1;
        to->node[at].end = (int32_t)to->n;
        first = next;
    }
    return 0;
}

/* The ids of one list: sorts them in place, and makes the trie. */
static int make_trie(struct token_trie *t, struct byte_trie *to, int32_t begin, int32_t end)
{
    if (end > begin)
        qsort_r(t->ids + begin, (size_t)(end - begin), sizeof *t->ids, by_bytes, t);
    return add_nodes(t, to, t->ids, begin, end, 0);
}

static int make_masks(struct token_trie *t, struct slice *s, const int32_t *ids, size_t n)
{
    size_t words = t->n_words + 1;
    int n_chars;
    s->n_tokens = n;
    for (size_t i = 0; i < n; i++) {
        slice_of(t->text + t->off[ids[i]], t->off[ids[i] + 1] - t->off[ids[i]], &n_chars);
        s->longest = n_chars > s->longest ? n_chars : s->longest;
    }
    for (int len = 0; len <= SLICE_LENGTHS; len++) {
        if (len > s->longest) { /* no token is longer: as all */
            s->up_to[len] = s->up_to[0];
            continue;
        }
        if (!(s->up_to[len] = calloc(words, sizeof(uint32_t))))
            return -1;
        for (size_t i = 0; i < n; i++) {
            slice_of(t->text + t->off[ids[i]], t->off[ids[i] + 1] - t->off[ids[i]], &n_chars);
            if (!len || n_chars <= len)
                s->up_to[len][ids[i] / 32] |= 1u << (ids[i] % 32);
        }
    }
    return 0;
}

/* Makes the tries and masks of all plain tokens. */
static int make_slices(struct token_trie *t, struct err *e)
{
    int32_t begin[N_SLICES + 2] = { 0 }, fill[N_SLICES + 1];
    uint8_t *slice = malloc((size_t)t->vocab + 1);
    int rc = slice ? 0 : -1, n_chars;
    for (int64_t i = 0; rc == 0 && i < t->vocab; i++) {
        size_t n = t->off[i + 1] - t->off[i];
        slice[i] = UINT8_MAX;
        if (t->kind[i] != TOKEN_PLAIN || n > TOKEN_BYTES)
            continue;
        slice[i] = (uint8_t)slice_of(t->text + t->off[i], n, &n_chars);
        begin[slice[i] + 1]++;
    }
    for (int i = 0; i <= N_SLICES; i++) {
        begin[i + 1] += begin[i];
        fill[i] = begin[i];
    }
    for (int64_t i = 0; rc == 0 && i < t->vocab; i++)
        if (slice[i] != UINT8_MAX)
            t->ids[fill[slice[i]]++] = (int32_t)i;

    for (int i = 0; rc == 0 && i <= N_SLICES; i++) {
        rc = make_trie(t, i < N_SLICES ? &t->slice[i].trie : &t->rest, begin[i], begin[i + 1]);
        if (i < N_SLICES)
            t->slice[i].first_id = begin[i];
        if (rc == 0 && i < N_SLICES)
            rc = make_masks(t, &t->slice[i], t->ids + begin[i], (size_t)(begin[i + 1] - begin[i]));
        for (size_t j = 0; rc == 0 && i < N_SLICES && j < t->n_words; j++)
            t->all_slices[j] |= t->slice[i].up_to[0][j];
    }
    free(slice);
    return rc < 0 ? no_memory(e) : 0;
}

/* --- opening --- */

/* Lists the tokens that are no part of a trie. */
static void list_others(struct token_trie *t)
{
    for (int64_t i = 0; i < t->vocab; i++) {
        size_t n = t->off[i + 1] - t->off[i];
        if (t->kind[i] == TOKEN_OF_ADDED && n)
            t->added[t->n_added++] = (int32_t)i;
        if (t->kind[i] == TOKEN_PLAIN && n > TOKEN_BYTES)
            t->longer[t->n_longer++] = (int32_t)i;
    }
}

/* A trie without tokens yet; text: n bytes, copied. */
static struct token_trie *new_trie(size_t n_text, int64_t vocab, const int32_t *ends, int n_ends)
{
    struct token_trie *t = calloc(1, sizeof *t);
    size_t n = (size_t)vocab + 1;
    if (!t)
        return NULL;
    t->vocab = vocab;
    t->n_words = (n + 30) / 32;
    t->text = malloc(n_text + 1);
    t->off = calloc(n + 1, sizeof *t->off);
    t->kind = calloc(n, 1);
    t->ids = malloc(n * sizeof *t->ids);
    t->added = malloc(n * sizeof *t->added);
    t->longer = malloc(n * sizeof *t->longer);
    t->end = malloc(((size_t)n_ends + 1) * sizeof *t->end);
    t->all_slices = calloc(t->n_words + 1, sizeof *t->all_slices);
    if (!t->text || !t->off || !t->kind || !t->ids || !t->added || !t->longer || !t->end || !t->all_slices) {
        token_trie_close(t);
        return NULL;
    }
    if (n_ends)
        memcpy(t->end, ends, (size_t)n_ends * sizeof *ends);
    t->n_ends = n_ends;
    return t;
}

/* The rest of opening, once texts and kinds are there. */
static int finish(struct token_trie **out, struct token_trie *t, struct err *e)
{
    for (int i = 0; i < t->n_ends; i++)
        if (t->end[i] >= 0 && t->end[i] < t->vocab)
            t->kind[t->end[i]] = TOKEN_END;
    list_others(t);
    int rc = make_slices(t, e);
    if (rc < 0)
        token_trie_close(t);
    else
        *out = t;
    return rc;
}

int token_trie_of(struct token_trie **out, const char *text, const size_t *off, int64_t vocab,
                  const int32_t *ends, int n_ends, struct err *e)
{
    struct token_trie *t = new_trie(off[vocab], vocab, ends, n_ends);
    *out = NULL;
    if (!t)
        return no_memory(e);
    memcpy(t->text, text, off[vocab]);
    memcpy(t->off, off, ((size_t)vocab + 1) * sizeof *off);
    for (int64_t i = 0; i < vocab; i++)
        t->kind[i] = off[i + 1] > off[i] ? TOKEN_PLAIN : TOKEN_NONE;
    return finish(out, t, e);
}

int token_trie_open(struct token_trie **out, const struct tokenizer *tok, int64_t vocab, const int32_t *ends,
                    int n_ends, struct err *e)
{
    int64_t known = tokenizer_vocab(tok) < vocab ? tokenizer_vocab(tok) : vocab;
    size_t n_text = 0, n = 0;
    *out = NULL;
    for (int64_t i = 0; i < known; i++)
        n_text += tokenizer_token_bytes(tok, (int32_t)i, &n) ? n : 0;
    struct token_trie *t = new_trie(n_text, vocab, ends, n_ends);
    if (!t)
        return no_memory(e);

    t->tokenizer = tok;
    n_text = 0;
    for (int64_t i = 0; i < vocab; i++) {
        const char *bytes = i < known ? tokenizer_token_bytes(tok, (int32_t)i, &n) : NULL;
        t->off[i] = n_text;
        if (!bytes || !n)
            continue;
        memcpy(t->text + n_text, bytes, n);
        n_text += n;
        t->kind[i] = tokenizer_is_added(tok, (int32_t)i) ? TOKEN_OF_ADDED : TOKEN_PLAIN;
    }
    t->off[vocab] = n_text;
    return finish(out, t, e);
}

/* The same among the tokens of a trie, if it is longer than the *longest so far. */
static void find_longest(const struct token_trie *t, const struct byte_trie *trie, const char *text, size_t n,
                         size_t *longest, int32_t *id)
{
    for (int32_t i = 0, end = (int32_t)trie->n; i < end;) {
        const struct byte_node *x = &trie->node[i];
        if (x->depth > n)
            return;
        if (x->byte != (uint8_t)text[x->depth - 1]) {
            i = x->end;
            continue;
        }
        if (x->n && x->depth > *longest) {
            *longest = x->depth;
            *id = t->ids[x->first];
        }
        end = x->end;
        i++;
    }
}

size_t token_trie_longest(const struct token_trie *t, const char *text, size_t n, int32_t *id)
{
    size_t longest = 0;
    find_longest(t, &t->rest, text, n, &longest, id);
    for (int i = 0; i < N_SLICES; i++)
        find_longest(t, &t->slice[i].trie, text, n, &longest, id);
    return longest;
}

void token_trie_close(struct token_trie *t)
{
    if (!t)
        return;
    for (int i = 0; i < N_SLICES; i++) {
        for (int len = SLICE_LENGTHS; len > 0; len--)
            if (t->slice[i].up_to[len] != t->slice[i].up_to[0])
                free(t->slice[i].up_to[len]);
        free(t->slice[i].up_to[0]);
        free(t->slice[i].trie.node);
    }
    free(t->rest.node);
    free(t->text);
    free(t->off);
    free(t->kind);
    free(t->end);
    free(t->ids);
    free(t->all_slices);
    free(t->added);
    free(t->longer);
    free(t);
}

size_t token_trie_words(const struct token_trie *t) { return t->n_words; }
