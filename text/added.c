/* added.c - finds added tokens ("<|eot_id|>", "[INST]") in a text, from left to right; the longest of those
 * that start at a place.
 *
 * The rules for single_word, lstrip and rstrip are those of the Hugging Face library, checked against its
 * vectors: single_word skips a match that is not a whole word; lstrip and rstrip take the spaces beside the
 * token, except those that an earlier token took. */
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>

static int32_t child_of(const struct trie *t, int32_t node, unsigned char byte)
{
    int32_t c = t->v[node].child;
    while (c >= 0 && t->v[c].byte != byte)
        c = t->v[c].next;
    return c;
}

static int32_t new_node(struct trie *t, int32_t parent, unsigned char byte)
{
    if (t->n == t->cap) {
        struct trie_node *q = buf_grow(t->v, &t->cap, t->n + 1, sizeof *q);
        if (!q)
            return -1;
        t->v = q;
    }
    t->v[t->n] = (struct trie_node){ -1, parent >= 0 ? t->v[parent].child : -1, -1, byte };
    if (parent >= 0)
        t->v[parent].child = (int32_t)t->n;
    return (int32_t)t->n++;
}

int trie_put(struct trie *t, const char *s, size_t n, const struct added *a, struct err *e)
{
    int32_t node = 0;
    if (n == 0)
        return 0;
    if (t->n == 0 && new_node(t, -1, 0) < 0)
        return text_memory(e);
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)s[i];
        int32_t next = child_of(t, node, byte);
        if (next < 0 && (t->n > INT32_MAX - 1 || (next = new_node(t, node, byte)) < 0))
            return text_memory(e);
        node = next;
    }

    if (t->n_added == t->cap_added) {
        struct added *q = buf_grow(t->added, &t->cap_added, t->n_added + 1, sizeof *q);
        if (!q)
            return text_memory(e);
        t->added = q;
    }

    /* two tokens may normalise to the same text: the first one is kept */
    if (t->v[node].added < 0)
        t->v[node].added = (int32_t)t->n_added;
    t->added[t->n_added++] = *a;
    t->begins[(unsigned char)s[0]] = 1;
    t->has_special |= a->special;
    return 0;
}

/* Returns the bytes of the longest token that starts at s, 0: none. Special tokens with an untrusted byte do
 * not count. */
static size_t longest(const struct trie *t, const char *s, const char *user, size_t n, const struct added **a)
{
    size_t best = 0;
    int32_t node = 0;
    int outside = 0;
    for (size_t i = 0; i < n; i++) {
        node = child_of(t, node, (unsigned char)s[i]);
        if (node < 0)
            break;
        outside |= user && user[i];
        if (t->v[node].added >= 0 && !(outside && t->added[t->v[node].added].special)) {
            best = i + 1;
            *a = &t->added[t->v[node].added];
        }
    }
    return best;
}

static int is_whole_word(const char *s, size_t n, size_t start, size_t end)
{
    uint32_t cp;
    if (start > 0) {
        utf8_prev(s, start, &cp);
        if (uni_is_word(cp))
            return 0;
    }
    if (end == n)
        return 1;
    utf8_next(s + end, n - end, &cp);
    return !uni_is_word(cp);
}

static size_t spaces_before(const char *s, size_t start, size_t least)
{
    uint32_t cp;
    while (start > least) {
        int len = utf8_prev(s, start, &cp);
        if (!uni_is_space(cp))
            break;
        start -= (size_t)len;
    }
    return start;
}

static size_t spaces_behind(const char *s, size_t n, size_t end)
{
    uint32_t cp;
    while (end < n) {
        int len = utf8_next(s + end, n - end, &cp);
        if (!uni_is_space(cp))
            break;
        end += (size_t)len;
    }
    return end;
}

void trie_split(const struct trie *t, const char *text, const char *user, const struct piece *p,
                struct pieces *out)
{
    const char *s = text + p->off;
    user = user ? user + p->off : NULL;
    size_t done = 0, at = 0;
    while (at < p->n && t->n) {
        const struct added *a = NULL;
        size_t len = t->begins[(unsigned char)s[at]]
                         ? longest(t, s + at, user ? user + at : NULL, p->n - at, &a)
                         : 0;
        if (!len) {
            at++;
            continue;
        }
        size_t start = at, end = at + len;
        at = end;
        if (a->single_word && !is_whole_word(s, p->n, start, end))
            continue;
        if (a->lstrip)
            start = spaces_before(s, start, done);
        if (a->rstrip)
            end = spaces_behind(s, p->n, end);
        if (start > done)
            pieces_add(out, p->off + done, start - done, -1, p->first && done == 0);
        pieces_add(out, p->off + start, end - start, a->id, p->first && start == 0);
        done = end;
    }

    if (done < p->n)
        pieces_add(out, p->off + done, p->n - done, -1, p->first && done == 0);
}

void trie_free(struct trie *t)
{
    free(t->v);
    free(t->added);
    *t = (struct trie){ 0 };
}
