/* unigram.c - the unigram model: of all ways to cut a word into tokens, the one with the highest sum of
 * scores (Kudo 2018, "Subword regularization", section 3; the best path of a lattice, Viterbi 1967).
 *
 * best[i] is the best path from the start of the word to byte i. From every character on, all tokens that
 * the text begins with are tried, found in a tree of prefixes. Where no token is one whole character, the
 * character may be unknown, at 10 below the lowest score. Neighbouring unknown characters are one unknown
 * token, as in the Hugging Face library, whose order of comparisons this is: a tie goes to the path found
 * first. */
#include "text/tok.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UNK_PENALTY 10.0
#define TICKS_A_CHECK 1024u /* characters between two looks at the limit */

/* --- the tree of prefixes --- */

struct sorted {
    const char *s;
    size_t n;
    int32_t id;
};

static int by_text(const void *a, const void *b)
{
    const struct sorted *x = a, *y = b;
    int d = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return d ? d : (x->n > y->n) - (x->n < y->n);
}

/* A node that still has to get its children: the tokens [lo, hi) begin with its text, `depth` bytes long. */
struct range {
    int32_t lo, hi;
    size_t depth;
};
struct growing {
    struct prefix_node *node;
    struct range *range;
    size_t n, cap_node, cap_range;
};

static int add_node(struct growing *g, unsigned char byte, struct range r)
{
    struct prefix_node *node = g->n < g->cap_node ? g->node
                                                  : buf_grow(g->node, &g->cap_node, g->n + 1, sizeof *node);
    if (!node)
        return -1;
    g->node = node;
    struct range *range = g->n < g->cap_range ? g->range
                                              : buf_grow(g->range, &g->cap_range, g->n + 1, sizeof *range);
    if (!range)
        return -1;
    g->range = range;
    g->node[g->n] = (struct prefix_node){ .id = -1, .byte = byte };
    g->range[g->n++] = r;
    return 0;
}

/* Nodes are made level by level, so that the children of one are neighbours. */
static int grow_tree(struct growing *g, const struct sorted *t, int32_t n)
{
    if (add_node(g, 0, (struct range){ 0, n, 0 }) < 0)
        return -1;
    for (size_t i = 0; i < g->n; i++) {
        struct range r = g->range[i];
        if (g->n > INT32_MAX / 2)
            return -1;
        if (r.lo < r.hi && t[r.lo].n == r.depth)
            g->node[i].id = t[r.lo++].id;
        g->node[i].child = (int32_t)g->n;
        while (r.lo < r.hi) {
            unsigned char byte = (unsigned char)t[r.lo].s[r.depth];
            int32_t end = r.lo;
            while (end < r.hi && (unsigned char)t[end].s[r.depth] == byte)
                end++;
            if (add_node(g, byte, (struct range){ r.lo, end, r.depth + 1 }) < 0)
                return -1;
            g->node[i].n_children++;
            r.lo = end;
        }
    }
    return 0;
}

static int make_tree(struct unigram *u, const struct vocab *v, struct err *e)
{
    struct growing g = { 0 };
    struct sorted *t = malloc(sizeof *t * ((size_t)u->n + 1));
    int32_t n = 0;
    int rc = 0;
    for (int32_t id = 0; t && id < u->n; id++)
        if (v->v[id].n)
            t[n++] = (struct sorted){ v->text.p + v->v[id].off, v->v[id].n, id };
    if (t)
        qsort(t, (size_t)n, sizeof *t, by_text);
    if (!t || grow_tree(&g, t, n) < 0)
        rc = text_memory(e);
    u->node = g.node;
    u->n_nodes = g.n;
    free(g.range);
    free(t);
    return rc;
}

/* The child of a node by its byte; -1: it has none. */
static int32_t child_of(const struct unigram *u, int32_t at, unsigned char byte)
{
    const struct prefix_node *p = &u->node[at];
    int32_t lo = p->child, hi = lo + p->n_children;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (u->node[mid].byte == byte)
            return mid;
        if (u->node[mid].byte < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

/* --- loading --- */

static int load_token(struct unigram *u, struct vocab *v, const json_t *row, int32_t id, const char *what,
                      struct err *e)
{
    const json_t *text = json_array_get(row, 0), *score = json_array_get(row, 1);
    if (!json_is_string(text) || !json_is_number(score))
        return err_set(e, ERR_CONFIG, "%s: token %d of vocab is not [\"text\", score]", what, id);
    u->score[id] = json_number_value(score);
    u->unk_score = fmin(u->unk_score, u->score[id] - UNK_PENALTY);
    return vocab_put(v, json_string_value(text), json_string_length(text), id, TOKEN_MODEL, what, e);
}

static int load_unk(struct unigram *u, const json_t *model, const char *what, struct err *e)
{
    const json_t *unk = json_object_get(model, "unk_id");
    u->unk = -1;
    if (!unk || json_is_null(unk))
        return 0;
    if (!json_is_integer(unk) || json_integer_value(unk) < 0 || json_integer_value(unk) >= u->n)
        return err_set(e, ERR_CONFIG, "%s: unk_id is not the id of a token", what);
    u->unk = (int32_t)json_integer_value(unk);
    return 0;
}

int unigram_load(struct unigram *u, struct vocab *v, const json_t *model, const char *what, struct err *e)
{
    const json_t *vocab = json_object_get(model, "vocab"), *row;
    char name[8];
    size_t i;
    int rc = 0;
    if (!json_is_array(vocab) || !json_array_size(vocab) || json_array_size(vocab) >= TOK_ID_LIMIT)
        return err_set(e, ERR_CONFIG, "%s: model has no list vocab of 1 … %d tokens", what, TOK_ID_LIMIT - 1);
    u->n = (int32_t)json_array_size(vocab);
    u->unk_score = INFINITY;
    TRY(flag_member(model, "byte_fallback", 0, &u->byte_fallback, what, e));
    TRY(load_unk(u, model, what, e));
    if (!(u->score = calloc((size_t)u->n, sizeof *u->score)))
        return text_memory(e);
    json_array_foreach(vocab, i, row)
        TRY(load_token(u, v, row, (int32_t)i, what, e));

    for (unsigned b = 0; b < 256; b++) {
        snprintf(name, sizeof name, "<0x%02X>", b);
        u->byte_id[b] = vocab_find(v, name, 6);
    }
    rc = make_tree(u, v, e);
out:
    return rc < 0 ? rc : 0;
}

void unigram_free(struct unigram *u)
{
    free(u->node);
    free(u->score);
    u->node = NULL;
    u->score = NULL;
}

/* --- a word --- */

/* The best path to a byte: its last token, and where that begins. */
struct path {
    double score;
    int32_t from; /* -1: no path yet */
    int32_t id;
};
struct work {
    const struct unigram *u;
    const struct vocab *v;
    struct path *best;
    size_t cap;
    int32_t *cut; /* begins and ends of the tokens, from the last on */
    size_t cap_cut;
    const struct work_limit *limit;
    struct ids *out;
    struct err *e;
    unsigned n_done;
};

static void offer(struct path *p, double score, int32_t from, int32_t id)
{
    if (p->from < 0 || score > p->score)
        *p = (struct path){ score, from, id };
}

/* Offers all tokens that begin at byte `at`. */
static int step(struct work *w, const char *s, size_t n, size_t at)
{
    uint32_t cp;
    const size_t len = (size_t)utf8_next(s + at, n - at, &cp);
    const double till_here = w->best[at].score;
    int32_t node = 0;
    int single = 0;
    for (size_t i = at; i < n && (node = child_of(w->u, node, (unsigned char)s[i])) >= 0; i++) {
        int32_t id = w->u->node[node].id;
        if (id < 0)
            continue;
        offer(&w->best[i + 1], w->u->score[id] + till_here, (int32_t)at, id);
        single |= i + 1 - at == len;
    }

    if (!single && w->u->unk < 0)
        return err_set(w->e, ERR_CONFIG,
                       "the text has a character without a token (\"%.*s\"), and the model has no unk_id",
                       (int)len, s + at);
    if (!single)
        offer(&w->best[at + len], w->u->unk_score + till_here, (int32_t)at, w->u->unk);
    return (int)len;
}

/* A text that is no token: its bytes, or the unknown token. */
static void add_unknown(struct work *w, const char *s, size_t n)
{
    const int32_t *byte_id = w->u->byte_id;
    int bytes = w->u->byte_fallback;
    for (size_t i = 0; i < n && bytes; i++)
        bytes = byte_id[(unsigned char)s[i]] >= 0;
    for (size_t i = 0; i < n && bytes; i++)
        ids_add(w->out, byte_id[(unsigned char)s[i]]);
    if (!bytes)
        ids_add(w->out, w->u->unk);
}

static void add_text(struct work *w, const char *s, size_t n)
{
    int32_t id = vocab_find(w->v, s, n);
    if (id >= 0 && id < w->u->n)
        ids_add(w->out, id);
    else
        add_unknown(w, s, n);
}

/* Follows the best path back, and adds its tokens from the first on. */
static int add_path(struct work *w, const char *s, size_t n)
{
    size_t n_cuts = 0, end = n;
    while (end > 0) {
        size_t begin = (size_t)w->best[end].from;
        int unknown = w->best[end].id == w->u->unk;
        while (unknown && begin > 0 && w->best[begin].id == w->u->unk)
            begin = (size_t)w->best[begin].from;
        if (n_cuts + 2 > w->cap_cut) {
            int32_t *q = buf_grow(w->cut, &w->cap_cut, n_cuts + 2, sizeof *q);
            if (!q)
                return text_memory(w->e);
            w->cut = q;
        }
        w->cut[n_cuts++] = (int32_t)end;
        w->cut[n_cuts++] = (int32_t)begin;
        end = begin;
    }
    for (; n_cuts; n_cuts -= 2)
        add_text(w, s + w->cut[n_cuts - 1], (size_t)(w->cut[n_cuts - 2] - w->cut[n_cuts - 1]));
    return 0;
}

static int word(struct work *w, const char *s, size_t n)
{
    int rc = 0;
    if (n > INT32_MAX / 2)
        return text_memory(w->e);
    if (w->cap < n + 1) {
        struct path *q = buf_grow(w->best, &w->cap, n + 1, sizeof *q);
        if (!q)
            return text_memory(w->e);
        w->best = q;
    }
    w->best[0] = (struct path){ 0, 0, -1 };
    for (size_t i = 1; i <= n; i++)
        w->best[i].from = -1;
    for (size_t at = 0; at < n; at += (size_t)rc) {
        if (++w->n_done % TICKS_A_CHECK == 0)
            TRY(work_check(w->limit, w->e));
        TRY(step(w, s, n, at));
    }
    rc = add_path(w, s, n);
out:
    return rc;
}

int unigram_pieces(const struct unigram *u, const struct vocab *v, const struct pieces *ps, struct ids *out,
                   struct err *e)
{
    struct work w = { .u = u, .v = v, .limit = ps->limit, .out = out, .e = e };
    int rc = work_check(ps->limit, e);
    for (size_t i = 0; i < ps->n && rc == 0; i++) {
        const struct piece *p = &ps->v[i];
        if (out->max && out->n > out->max)
            rc = err_set(e, ERR_CONFIG, "the text has more than %zu tokens", out->max);
        else if (p->id >= 0)
            ids_add(out, p->id);
        else
            rc = word(&w, ps->text.p + p->off, p->n);
    }
    free(w.best);
    free(w.cut);
    return rc == 0 && out->failed ? text_memory(e) : rc;
}
