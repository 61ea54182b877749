/* words.c - trees of prefixes: see component.h. */
#define _GNU_SOURCE /* qsort_r */
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "text/grammar/component.h"
#include "text/tok.h"

struct sorting {
    const char *const *word;
    const size_t *n;
};

static int compare(const void *a, const void *b, void *arg)
{
    const struct sorting *s = arg;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    size_t n = s->n[x] < s->n[y] ? s->n[x] : s->n[y];
    int c = n ? memcmp(s->word[x], s->word[y], n) : 0; /* the order of bytes is that of code points */
    return c ? c : (s->n[x] > s->n[y]) - (s->n[x] < s->n[y]);
}

static int add_node(struct words *w, uint32_t cp, int32_t first, struct err *e)
{
    if (w->n == w->cap) {
        struct word_node *v = buf_grow(w->node, &w->cap, w->n + 1, sizeof *v);
        if (!v)
            return err_set(e, ERR_MEMORY, "no memory for a list of texts");
        w->node = v;
    }
    w->node[w->n++] = (struct word_node){ .cp = cp, .word = -1, .first = first, .end = first };
    return 0;
}

/* Adds the children of node at; every word below it is `used` bytes long there. used: [n_words] */
static int add_children(struct words *w, const struct sorting *s, size_t at, size_t *used, struct err *e)
{
    int32_t first = w->node[at].first, end = w->node[at].end;
    uint32_t cp = 0, last = 0;
    int rc;

    w->node[at].child = (int32_t)w->n;
    for (int32_t i = first; i < end; i++) {
        int32_t word = w->order[i];
        if (used[word] == s->n[word]) {
            w->node[at].word = word;
            continue;
        }
        int len = utf8_next(s->word[word] + used[word], s->n[word] - used[word], &cp);
        used[word] += len > 0 ? (size_t)len : 1;
        if (!w->node[at].n_children || cp != last) {
            if ((rc = add_node(w, cp, i, e)) < 0)
                return rc;
            w->node[at].n_children++;
            last = cp;
        }
        w->node[w->n - 1].end = i + 1;
    }
    return 0;
}

int words_open(struct words *w, const char *const *word, const size_t *n, int32_t n_words, struct err *e)
{
    struct sorting s = { word, n };
    size_t *used = calloc((size_t)n_words + 1, sizeof *used);
    int rc = 0;
    memset(w, 0, sizeof *w);
    w->order = malloc(((size_t)n_words + 1) * sizeof *w->order);
    if (!used || !w->order) {
        rc = err_set(e, ERR_MEMORY, "no memory for a list of texts");
        goto out;
    }

    w->n_words = n_words;
    for (int32_t i = 0; i < n_words; i++)
        w->order[i] = i;
    if (n_words)
        qsort_r(w->order, (size_t)n_words, sizeof *w->order, compare, &s);
    TRY(add_node(w, 0, 0, e));
    w->node[0].end = n_words;
    for (size_t i = 0; i < w->n; i++)
        TRY(add_children(w, &s, i, used, e));
out:
    free(used);
    if (rc < 0)
        words_close(w);
    return rc;
}

void words_close(struct words *w)
{
    free(w->node);
    free(w->order);
    memset(w, 0, sizeof *w);
}

uint32_t words_step(const struct words *w, uint32_t node, uint32_t cp)
{
    const struct word_node *x = &w->node[node];
    int32_t lo = x->child, hi = x->child + x->n_children;
    while (lo < hi) {
        int32_t mid = (lo + hi) / 2;
        if (w->node[mid].cp < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < x->child + x->n_children && w->node[lo].cp == cp ? (uint32_t)lo : STATE_DEAD;
}
