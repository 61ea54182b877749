/* bpe.c - byte pair encoding: merges the adjacent pair with the lowest rank, the leftmost of equal ones,
 * until none is left (Sennrich et al. 2016).
 *
 * A word of n symbols takes O(n log n): the symbols are a linked list, the candidates a heap, as in
 * SentencePiece and the Hugging Face library. A heap entry is stale if the pair at its place no longer merges
 * to its token. Comparing the token is enough: its text fixes how far it extends, so the same token at the
 * same place is the same pair.
 *
 * A text without a pre-tokeniser is one long word. It is cut between characters x and y where no merge
 * joins a token that ends in x with one that starts with y (often "e" and "▁"). The parts are independent,
 * so the ids are the same. Words that occurred before in the same text are found in a cache: their ids are
 * copied from earlier in the output. */
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define EMPTY_PAIR UINT64_MAX
#define CACHE_SLOTS 4096
#define CACHE_MIN_TEXT 512  /* bytes; clearing the cache costs more than it saves for shorter texts */
#define CACHE_WORD 64       /* bytes; longer words rarely occur twice */
#define CUT_WORD 32         /* bytes; shorter words are not cut */
#define TICKS_A_CHECK 1024u /* words and merges between two looks at the limit */
#define JOINT_BITS ((size_t)1 << 19)

struct symbol {
    int32_t id; /* -1: merged into the symbol before */
    int32_t prev, next;
};
struct candidate {
    uint32_t rank, pos;
    int32_t id;
};
/* A cached word: its bytes, and where its ids are in the output. */
struct seen {
    const char *word;
    size_t n, ids_at, n_ids;
};
struct work {
    struct symbol *sym;
    size_t n_sym, cap_sym;
    struct candidate *heap;
    size_t n_heap, cap_heap;
    struct seen *seen;
    const struct work_limit *limit;
    struct err *e;
    unsigned n_done; /* words and merges */
};

/* Looks at the limit at every so many words and merges. */
static int tick(struct work *w) { return ++w->n_done % TICKS_A_CHECK ? 0 : work_check(w->limit, w->e); }

/* May the next word be encoded? */
static int next_word(struct work *w, const struct ids *out)
{
    if (out->max && out->n > out->max)
        return err_set(w->e, ERR_CONFIG, "the text has more than %zu tokens", out->max);
    return tick(w);
}

/* --- the table of merges --- */

static uint64_t pair_of(int32_t a, int32_t b) { return (uint64_t)(uint32_t)a << 32 | (uint32_t)b; }

static struct merge *merge_slot(const struct bpe *b, uint64_t pair)
{
    size_t mask = b->n_slots - 1, i = (size_t)((pair * 0x9E3779B97F4A7C15u) >> 20) & mask;
    while (b->slot[i].pair != pair && b->slot[i].pair != EMPTY_PAIR)
        i = (i + 1) & mask;
    return &b->slot[i];
}

static const struct merge *find_merge(const struct bpe *b, int32_t left, int32_t right)
{
    const struct merge *m = merge_slot(b, pair_of(left, right));
    return m->pair == EMPTY_PAIR ? NULL : m;
}

static size_t joint_bit(uint32_t x, uint32_t y)
{
    return (size_t)(((uint64_t)x << 32 | y) * 0x9E3779B97F4A7C15u >> 45) % JOINT_BITS;
}

static void set_joint(struct bpe *b, const char *left, size_t n_left, const char *right, size_t n_right)
{
    uint32_t x, y;
    if (!n_left || !n_right)
        return;
    utf8_prev(left, n_left, &x);
    utf8_next(right, n_right, &y);
    size_t bit = joint_bit(x, y);
    b->joints[bit / 64] |= UINT64_C(1) << bit % 64;
}

static int32_t model_id(const struct vocab *v, const char *s, size_t n)
{
    int32_t id = vocab_find(v, s, n);
    return id >= 0 && v->v[id].flags & TOKEN_MODEL ? id : -1;
}

/* "a b", or ["a", "b"] in files written since 2024 */
static int merge_parts(const json_t *m, const char *part[2], size_t n[2])
{
    if (json_is_array(m)) {
        if (json_array_size(m) != 2)
            return -1;
        for (size_t k = 0; k < 2; k++) {
            const json_t *s = json_array_get(m, k);
            if (!json_is_string(s))
                return -1;
            part[k] = json_string_value(s);
            n[k] = json_string_length(s);
        }
        return 0;
    }

    if (!json_is_string(m))
        return -1;
    const char *s = json_string_value(m), *space = memchr(s, ' ', json_string_length(m));
    if (!space)
        return -1;
    part[0] = s;
    n[0] = (size_t)(space - s);
    part[1] = space + 1;
    n[1] = json_string_length(m) - n[0] - 1;
    return memchr(part[1], ' ', n[1]) ? -1 : 0;
}

static int load_merges(struct bpe *b, const struct vocab *v, const json_t *merges, const char *what,
                       struct err *e)
{
    struct buf joined = { 0 };
    int rc = 0;

    if (!json_is_array(merges))
        return err_set(e, ERR_CONFIG, "%s: model has no list of merges", what);
    size_t n_merges = json_array_size(merges);
    b->n_slots = 16;
    while (b->n_slots < n_merges * 2)
        b->n_slots *= 2;
    b->slot = malloc(b->n_slots * sizeof *b->slot);
    b->joints = calloc(JOINT_BITS / 64, sizeof *b->joints);
    if (!b->slot || !b->joints)
        return text_memory(e);
    for (size_t i = 0; i < b->n_slots; i++)
        b->slot[i].pair = EMPTY_PAIR;
    for (size_t i = 0; i < n_merges; i++) {
        const char *part[2];
        size_t n[2];
        if (merge_parts(json_array_get(merges, i), part, n) < 0) {
            rc = err_set(e, ERR_CONFIG, "%s: merge %zu is neither \"a b\" nor [\"a\", \"b\"]", what, i);
            goto out;
        }
        joined.n = 0;
        buf_add(&joined, part[0], n[0]);
        buf_add(&joined, part[1], n[1]);
        if (joined.failed) {
            rc = text_memory(e);
            goto out;
        }
        int32_t left = model_id(v, part[0], n[0]), right = model_id(v, part[1], n[1]),
                both = model_id(v, joined.p ? joined.p : "", joined.n);
        if (left < 0 || right < 0 || both < 0) {
            rc = err_set(
                e, ERR_CONFIG,
                "%s: merge %zu (\"%.40s\" and \"%.40s\") needs a token that the vocabulary does not have",
                what, i, part[0], part[1]);
            goto out;
        }
        /* the last of several merges of one pair counts */
        uint64_t pair = pair_of(left, right);
        *merge_slot(b, pair) = (struct merge){ pair, (int32_t)i, both };
        set_joint(b, part[0], n[0], part[1], n[1]);
    }
out:
    buf_free(&joined);
    return rc;
}

/* --- loading --- */

static int load_vocab(struct vocab *v, const json_t *vocab, const char *what, struct err *e)
{
    if (!json_is_object(vocab))
        return err_set(e, ERR_CONFIG, "%s: model has no vocab", what);
    for (void *it = json_object_iter((json_t *)vocab); it; it = json_object_iter_next((json_t *)vocab, it)) {
        const json_t *id = json_object_iter_value(it);
        const char *key = json_object_iter_key(it);
        if (!json_is_integer(id))
            return err_set(e, ERR_CONFIG, "%s: the id of token \"%.60s\" is not an integer", what, key);
        int rc = vocab_put(v, key, json_object_iter_key_len(it), json_integer_value(id), TOKEN_MODEL, what,
                           e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Rejects options of the model that are not supported and would change the ids. */
static int refuse_rest(const json_t *model, const char *what, struct err *e)
{
    static const char *const affixes[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const char *s;
    size_t n;
    for (int i = 0; i < 2; i++) {
        int rc = text_member(model, affixes[i], &s, &n, what, e);
        if (rc < 0)
            return rc;
        if (rc && n)
            return err_set(e, ERR_CONFIG, "%s: the model's %s \"%s\" is not supported", what, affixes[i], s);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0.0))
        return err_set(e, ERR_CONFIG, "%s: the model's dropout is not supported: set it to null", what);
    return 0;
}

static void fill_shortcuts(struct bpe *b, const struct vocab *v)
{
    char name[8];
    for (uint32_t cp = 0; cp < BPE_CHARS; cp++) {
        char s[2];
        if (cp < 0x80) {
            s[0] = (char)cp;
        } else {
            s[0] = (char)(0xC0 | cp >> 6);
            s[1] = (char)(0x80 | (cp & 0x3F));
        }
        b->char_id[cp] = model_id(v, s, cp < 0x80 ? 1 : 2);
    }
    for (unsigned i = 0; i < 256; i++) {
        snprintf(name, sizeof name, "<0x%02X>", i);
        b->byte_id[i] = model_id(v, name, 6);
    }
}

int bpe_load(struct bpe *b, struct vocab *v, const json_t *model, const char *what, struct err *e)
{
    const char *unk;
    size_t n;
    int rc = 0;

    b->unk = -1;
    TRY(refuse_rest(model, what, e));
    TRY(flag_member(model, "byte_fallback", 0, &b->byte_fallback, what, e));
    TRY(flag_member(model, "fuse_unk", 0, &b->fuse_unk, what, e));
    TRY(flag_member(model, "ignore_merges", 0, &b->ignore_merges, what, e));
    TRY(load_vocab(v, json_object_get(model, "vocab"), what, e));
    TRY(load_merges(b, v, json_object_get(model, "merges"), what, e));
    TRY(text_member(model, "unk_token", &unk, &n, what, e));
    if (rc && (b->unk = model_id(v, unk, n)) < 0)
        return err_set(e, ERR_CONFIG, "%s: the model's unk_token \"%s\" is not in its vocab", what, unk);
    fill_shortcuts(b, v);
    rc = 0;
out:
    return rc;
}

void bpe_free(struct bpe *b)
{
    free(b->slot);
    free(b->joints);
    b->slot = NULL;
    b->joints = NULL;
}

/* --- one word --- */

static int before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static void sift_down(struct candidate *h, size_t n, size_t i)
{
    struct candidate c = h[i];
    for (size_t k; (k = 2 * i + 1) < n; i = k) {
        k += k + 1 < n && before(&h[k + 1], &h[k]);
        if (!before(&h[k], &c))
            break;
        h[i] = h[k];
    }
    h[i] = c;
}

static void heap_push(struct work *w, struct candidate c)
{
    size_t i = w->n_heap++;
    for (; i > 0 && before(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}

static struct candidate heap_pop(struct work *w)
{
    struct candidate top = w->heap[0];
    w->heap[0] = w->heap[--w->n_heap];
    if (w->n_heap)
        sift_down(w->heap, w->n_heap, 0);
    return top;
}

static void add_symbol(struct work *w, int32_t id)
{
    w->sym[w->n_sym] = (struct symbol){ id, (int32_t)w->n_sym - 1, (int32_t)w->n_sym + 1 };
    w->n_sym++;
}

static int32_t char_token(const struct bpe *b, const struct vocab *v, uint32_t cp, const char *s, size_t n)
{
    return cp < BPE_CHARS ? b->char_id[cp] : model_id(v, s, n);
}

/* Adds the bytes of a character that is not in the vocabulary as <0x..> tokens. Returns 0 if the vocabulary
 * does not have them all. */
static int add_bytes(const struct bpe *b, struct work *w, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (b->byte_id[(unsigned char)s[i]] < 0)
            return 0;
    for (size_t i = 0; i < n; i++)
        add_symbol(w, b->byte_id[(unsigned char)s[i]]);
    return 1;
}

/* Turns characters into symbols. An unknown token is held back, so that the next one can be fused with it;
 * byte tokens are added before it, as in the Hugging Face library. */
static void word_symbols(const struct bpe *b, const struct vocab *v, struct work *w, const char *s, size_t n)
{
    int unk_held = 0;
    w->n_sym = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = (size_t)utf8_next(s + i, n - i, &cp);
        int32_t id = char_token(b, v, cp, s + i, len);
        if (id >= 0) {
            if (unk_held)
                add_symbol(w, b->unk);
            unk_held = 0;
            add_symbol(w, id);
        } else if (!(b->byte_fallback && add_bytes(b, w, s + i, len)) && b->unk >= 0) {
            if (unk_held && !b->fuse_unk)
                add_symbol(w, b->unk);
            unk_held = 1;
        }
        i += len;
    }

    if (unk_held)
        add_symbol(w, b->unk);
    if (w->n_sym)
        w->sym[w->n_sym - 1].next = -1;
}

static void candidate_at(const struct bpe *b, struct work *w, int32_t pos)
{
    const struct symbol *s = &w->sym[pos];
    const struct merge *m = s->next < 0 ? NULL : find_merge(b, s->id, w->sym[s->next].id);
    if (m)
        heap_push(w, (struct candidate){ (uint32_t)m->rank, (uint32_t)pos, m->id });
}

static int merge_all(const struct bpe *b, struct work *w)
{
    int rc = 0;
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < w->n_sym; i++) {
        const struct merge *m = find_merge(b, w->sym[i].id, w->sym[i + 1].id);
        if (m)
            w->heap[w->n_heap++] = (struct candidate){ (uint32_t)m->rank, (uint32_t)i, m->id };
    }

    for (size_t i = w->n_heap / 2; i-- > 0;)
        sift_down(w->heap, w->n_heap, i);
    while (w->n_heap && (rc = tick(w)) == 0) {
        struct candidate top = heap_pop(w);
        struct symbol *left = &w->sym[top.pos];
        if (left->id < 0 || left->next < 0)
            continue;
        struct symbol *right = &w->sym[left->next];
        const struct merge *m = find_merge(b, left->id, right->id);
        if (!m || m->id != top.id)
            continue;
        left->id = top.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            w->sym[left->next].prev = (int32_t)top.pos;
        if (left->prev >= 0)
            candidate_at(b, w, left->prev);
        candidate_at(b, w, (int32_t)top.pos);
    }
    return rc;
}

/* A merge removes one candidate and adds at most two, so twice as many candidates as symbols are enough. */
static int reserve(struct work *w, size_t n_bytes)
{
    if (w->cap_sym < n_bytes) {
        struct symbol *q = buf_grow(w->sym, &w->cap_sym, n_bytes, sizeof *q);
        if (!q)
            return -1;
        w->sym = q;
    }
    if (w->cap_heap < 2 * n_bytes) {
        struct candidate *q = buf_grow(w->heap, &w->cap_heap, 2 * n_bytes, sizeof *q);
        if (!q)
            return -1;
        w->heap = q;
    }
    return 0;
}

static int word(const struct bpe *b, const struct vocab *v, struct work *w, const char *s, size_t n,
                struct ids *out)
{
    int32_t whole = b->ignore_merges ? model_id(v, s, n) : -1;
    if (whole >= 0) {
        ids_add(out, whole);
        return 0;
    }
    if (n > INT32_MAX / 2 || reserve(w, n) < 0)
        return text_memory(w->e);
    word_symbols(b, v, w, s, n);
    int rc = merge_all(b, w);
    if (rc < 0)
        return rc;
    for (int32_t i = 0; w->n_sym && i >= 0; i = w->sym[i].next)
        ids_add(out, w->sym[i].id);
    return 0;
}

/* --- all words --- */

static int cached_word(const struct bpe *b, const struct vocab *v, struct work *w, const char *s, size_t n,
                       struct ids *out)
{
    if (!w->seen || n > CACHE_WORD)
        return word(b, v, w, s, n, out);
    struct seen *c = &w->seen[XXH3_64bits(s, n) % CACHE_SLOTS];
    if (c->n == n && !memcmp(c->word, s, n)) {
        for (size_t i = 0; i < c->n_ids; i++)
            ids_add(out, out->v[c->ids_at + i]);
        return 0;
    }
    size_t at = out->n;
    int rc = word(b, v, w, s, n, out);
    *c = (struct seen){ s, n, at, out->n - at };
    return rc;
}

struct character {
    const char *s;
    size_t n;
    uint32_t cp;
};

static struct character character_at(const char *s, size_t n)
{
    struct character c = { .s = s };
    c.n = (size_t)utf8_next(s, n, &c.cp);
    return c;
}

/* Whether a word may be cut between characters x and y: no merge joins tokens across, and both are tokens,
 * since an unknown one may fuse with its neighbours. */
static int may_cut(const struct bpe *b, const struct vocab *v, struct character x, struct character y)
{
    size_t bit = joint_bit(x.cp, y.cp);
    if (b->joints[bit / 64] >> bit % 64 & 1)
        return 0;
    return char_token(b, v, x.cp, x.s, x.n) >= 0 && char_token(b, v, y.cp, y.s, y.n) >= 0;
}

static int long_word(const struct bpe *b, const struct vocab *v, struct work *w, const char *s, size_t n,
                     struct ids *out)
{
    struct character x = character_at(s, n);
    size_t from = 0;
    int rc = 0;

    for (size_t i = x.n; i < n && rc == 0 && (rc = next_word(w, out)) == 0; i += x.n) {
        struct character y = character_at(s + i, n - i);
        if (may_cut(b, v, x, y)) {
            rc = cached_word(b, v, w, s + from, i - from, out);
            from = i;
        }
        x = y;
    }

    return rc < 0 ? rc : cached_word(b, v, w, s + from, n - from, out);
}

int bpe_pieces(const struct bpe *b, const struct vocab *v, const struct pieces *ps, struct ids *out,
               struct err *e)
{
    struct work w = { .limit = ps->limit, .e = e };
    int rc = work_check(ps->limit, e);

    if (rc == 0 && ps->text.n >= CACHE_MIN_TEXT && !(w.seen = calloc(CACHE_SLOTS, sizeof *w.seen)))
        rc = text_memory(e);
    for (size_t i = 0; i < ps->n && rc == 0 && (rc = next_word(&w, out)) == 0; i++) {
        const struct piece *p = &ps->v[i];
        if (p->id >= 0)
            ids_add(out, p->id);
        else if (p->n < CUT_WORD || b->ignore_merges) /* ignore_merges looks whole words up: a part is none */
            rc = cached_word(b, v, &w, ps->text.p + p->off, p->n, out);
        else
            rc = long_word(b, v, &w, ps->text.p + p->off, p->n, out);
    }

    free(w.sym);
    free(w.heap);
    free(w.seen);
    return rc == 0 && out->failed ? text_memory(e) : rc;
}
