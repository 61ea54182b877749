/* tables.c - see tables.h. */
#include "format/fmt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

const char *const ckpt_role_prefix[ROLE_COUNT] = { "", "master.", "exp_avg.", "exp_avg_sq." };

int fmt_name_check(const char *name, size_t n, const char *what, struct err *e)
{
    if (n == 0)
        return err_set(e, ERR_FORMAT, "%s: a tensor has an empty name: is the header damaged", what);
    if (n > FMT_NAME_MAX)
        return err_set(e, ERR_FORMAT, "%s: a tensor's name has %zu bytes, the limit is %d: %.40s…", what, n,
                       FMT_NAME_MAX, name);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 127)
            return err_set(e, ERR_FORMAT,
                           "%s: a tensor's name has a control character at byte %zu: is the header damaged",
                           what, i);
    return 0;
}

int fmt_file_name_check(const char *name, const char *what, struct err *e)
{
    size_t n = strlen(name);
    int ok = n > 0 && n < 256 && name[0] != '.' && !strchr(name, '/') && !strchr(name, '\\');
    for (size_t i = 0; i < n && ok; i++)
        ok = (unsigned char)name[i] >= ' ';
    if (!ok)
        return err_set(e, ERR_FORMAT,
                       "%s: names the file \"%.100s\": files must lie directly in the checkpoint's folder",
                       what, name);
    return 0;
}

int fmt_tail_check(const char *tail, int64_t *size, const char *what, const char *name, struct err *e)
{
    int64_t n = 1;
    const char *s = tail;
    char *end = NULL;
    for (;; s = end + 1) {
        long long v = *s >= '0' && *s <= '9' ? strtoll(s, &end, 10) : -1;
        if (v < 0 || v >= (int64_t)1 << 48 || __builtin_mul_overflow(n, (int64_t)v, &n) ||
            (*end && *end != ','))
            return err_set(e, ERR_FORMAT,
                           "%s: the dimensions of %s from %d on are %.60s: is the header damaged", what, name,
                           BOX_DIMS - 1, tail);
        if (!*end)
            break;
    }
    *size = n;
    return 0;
}

int fmt_keep_tail(struct ckpt *c, struct ckpt_tensor *t, char *tail, struct err *e)
{
    char **grown = realloc(c->tail, sizeof *grown * (size_t)(c->n_tails + 1));
    if (grown)
        c->tail = grown;
    if (!grown || !tail) {
        free(tail);
        return err_set(e, ERR_MEMORY, "%s: no memory for the shape of %s", c->path, t->name);
    }
    t->tail = c->tail[c->n_tails++] = tail;
    return 0;
}

int fmt_shape_check(enum stored_dtype t, int n_dims, const int64_t *shape, const char *what, const char *name,
                    int64_t *bytes, struct err *e)
{
    const int64_t limit = stored_elements(t, (int64_t)1 << 60);
    int64_t n = 1, most = 1;
    for (int i = 0; i < n_dims; i++) {
        /* a dim of 0 must not hide another one that would overflow the arithmetic on boxes */
        if (shape[i] < 0 || shape[i] >= (int64_t)1 << 48 || __builtin_mul_overflow(n, shape[i], &n) ||
            __builtin_mul_overflow(most, shape[i] ? shape[i] : 1, &most) || most >= limit)
            return err_set(
                e, ERR_FORMAT,
                "%s: the shape of %s is beyond the limit (dimension %d is %lld): is the header damaged", what,
                name, i, (long long)shape[i]);
    }
    if (!stored_on_bytes(t, n))
        return err_set(e, ERR_FORMAT,
                       "%s: %s has %lld elements of %d bits (%s), which is no whole number of bytes: is the "
                       "header damaged",
                       what, name, (long long)n, stored_dtype_bits(t), stored_dtype_name(t));
    *bytes = stored_bytes(t, n);
    return 0;
}

int fmt_box_check(const struct ckpt_tensor *t, const struct box *b, int64_t lo, int64_t hi, struct err *e)
{
    int d = t->n_dims - 1;
    int64_t unit =
        1; /* elements from one index of dim d to the next, modulo 8: the dims behind d are whole */
    if (stored_dtype_bits(t->dtype) >= 8)
        return 0;
    while (d > 0 && b->extent[d] == t->shape[d])
        unit = unit * (t->shape[d--] % 8) % 8;
    int ok = stored_on_bytes(t->dtype, b->start[d] % 8 * unit) &&
             stored_on_bytes(t->dtype, b->extent[d] % 8 * unit) &&
             (d == 0 || stored_on_bytes(t->dtype, t->shape[d] % 8 * unit)) && stored_on_bytes(t->dtype, lo) &&
             stored_on_bytes(t->dtype, hi);
    if (ok)
        return 0;
    return err_set(
        e, ERR_USAGE,
        "%s%s is %s (%d bits an element): a part of it does not begin and end at bytes: cut it at a "
        "multiple of %d elements",
        ckpt_role_prefix[t->role], t->name, stored_dtype_name(t->dtype), stored_dtype_bits(t->dtype),
        stored_dtype_bits(t->dtype) == 4 ? 2 : 4);
}

/* ---- checksums ---- */

uint64_t fmt_sum64(const void *p, size_t n) { return XXH64(p, n, 0); }

struct sum128 fmt_sum128(const void *p, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(p, n);
    return (struct sum128){ h.low64, h.high64 };
}

struct sum128 fmt_sum_blocks(const uint64_t *block, int64_t n)
{
    return fmt_sum128(block, sizeof *block * (size_t)n);
}

void fmt_hex128(struct sum128 s, char out[33])
{
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)s.hi, (unsigned long long)s.lo);
}

int fmt_parse_hex(const char *text, size_t n, uint64_t *out)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            return -1;
        v = v << 4 | (uint64_t)digit;
    }
    *out = v;
    return 0;
}

int fmt_parse_hex128(const char *text, struct sum128 *out)
{
    return strlen(text) == 32 && !fmt_parse_hex(text, 16, &out->hi) && !fmt_parse_hex(text + 16, 16, &out->lo)
               ? 0
               : -1;
}

/* ---- order ---- */

int fmt_compare_tensors(const void *pa, const void *pb)
{
    const struct ckpt_tensor *a = pa, *b = pb;
    return a->role != b->role ? (a->role > b->role) - (a->role < b->role) : strcmp(a->name, b->name);
}

const struct ckpt_tensor *fmt_find_tensor(const struct ckpt_tensor *t, int n, enum ckpt_role role,
                                          const char *name)
{
    struct ckpt_tensor key = { .name = name, .role = role };
    return n ? bsearch(&key, t, (size_t)n, sizeof key, fmt_compare_tensors) : NULL;
}

static int compare_piece(const void *pa, const void *pb)
{
    const struct fmt_piece *a = pa, *b = pb;
    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    for (int d = 0; d < a->box.n_dims; d++) {
        if (a->box.start[d] != b->box.start[d])
            return a->box.start[d] < b->box.start[d] ? -1 : 1;
        if (a->box.extent[d] != b->box.extent[d])
            return a->box.extent[d] < b->box.extent[d] ? -1 : 1;
    }
    return (a->lo > b->lo) - (a->lo < b->lo);
}

void fmt_sort_tensors(struct ckpt *c)
{
    qsort(c->piece, (size_t)c->n_pieces, sizeof *c->piece, compare_piece);
    int64_t p = 0;
    for (int i = 0; i < c->n_tensors; i++) {
        c->first_piece[i] = p;
        while (p < c->n_pieces && c->piece[p].tensor == i)
            p++;
    }
    c->first_piece[c->n_tensors] = p;
}

struct order {
    struct ckpt_tensor t;
    int was;
};
static int compare_order(const void *a, const void *b)
{
    return fmt_compare_tensors(&((const struct order *)a)->t, &((const struct order *)b)->t);
}

int fmt_sort_names(struct ckpt *c, struct err *e)
{
    size_t n = (size_t)c->n_tensors;
    struct order *o = malloc(sizeof *o * (n + 1));
    int *now = malloc(sizeof *now * (n + 1));
    int rc = o && now ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for %zu tensors", c->path, n);
    if (rc >= 0) {
        for (size_t i = 0; i < n; i++)
            o[i] = (struct order){ c->tensor[i], (int)i };
        qsort(o, n, sizeof *o, compare_order);
        for (size_t i = 0; i < n; i++) {
            c->tensor[i] = o[i].t;
            now[o[i].was] = (int)i;
        }
        for (int64_t p = 0; p < c->n_pieces; p++)
            c->piece[p].tensor = now[c->piece[p].tensor];
        fmt_sort_tensors(c);
    }
    free(o);
    free(now);
    return rc;
}

/* ---- names ---- */

/* transformers saves a model without its head under names that lack the first word ("gpt2" on the hub is
 * one), and reads both. sign: a tensor that shows it; tops: how the names begin that get the prefix. */
static const struct {
    const char *sign, *prefix, *tops[5];
} bases[] = {
    { "wte.weight", "transformer.", { "wte.", "wpe.", "h.", "ln_f." } },
    { "embed_tokens.weight", "model.", { "embed_tokens.", "layers.", "norm." } },
};

static int begins(const char *name, const char *const *tops)
{
    for (; *tops; tops++)
        if (!strncmp(name, *tops, strlen(*tops)))
            return 1;
    return 0;
}

int fmt_base_names(struct ckpt *c, struct err *e)
{
    for (size_t k = 0; k < sizeof bases / sizeof *bases; k++) {
        if (ckpt_find(c, ROLE_WEIGHT, bases[k].sign) < 0)
            continue;
        for (int i = 0; i < c->n_tensors; i++) {
            struct ckpt_tensor *t = &c->tensor[i];
            size_t n = strlen(bases[k].prefix) + strlen(t->name) + 1;
            char *name = begins(t->name, bases[k].tops) ? malloc(n) : NULL;
            if (!name && begins(t->name, bases[k].tops))
                return err_set(e, ERR_MEMORY, "%s: no memory for the names of its tensors", c->path);
            if (!name)
                continue;
            snprintf(name, n, "%s%s", bases[k].prefix, t->name);
            free((char *)t->name);
            t->name = name;
        }
        return fmt_sort_names(c, e);
    }
    return 0;
}

/* ---- exact cover ---- */

/* The pieces [at, next) have the same box: their ranges must tile it. Returns next, or a negative code. */
static int64_t cover_box(const struct ckpt_tensor *t, const struct fmt_piece *p, int64_t at, int64_t n,
                         const char *what, struct err *e)
{
    int64_t end = 0, i = at;
    for (; i < n && box_equal(&p[i].box, &p[at].box); i++) {
        if (p[i].lo != end)
            return err_set(
                e, ERR_FORMAT,
                "%s: %s%s: elements %lld to %lld of a box are stored %s: are files of two saves mixed", what,
                ckpt_role_prefix[t->role], t->name, (long long)(p[i].lo < end ? p[i].lo : end),
                (long long)(p[i].lo < end ? end : p[i].lo), p[i].lo < end ? "twice" : "nowhere");
        end = p[i].hi;
    }
    if (end != box_count(&p[at].box))
        return err_set(
            e, ERR_FORMAT,
            "%s: %s%s: elements %lld to %lld of a box are stored nowhere: is a rank's file missing", what,
            ckpt_role_prefix[t->role], t->name, (long long)end, (long long)box_count(&p[at].box));
    return i;
}

/* Boxes are sorted by their start in one dim, so that only near ones are compared: the dim with the most
 * distinct starts separates them best. */
struct key {
    int64_t start;
    int64_t piece;
};
static int compare_key(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

static int best_dim(const struct fmt_piece *p, struct key *key, int64_t n)
{
    int best = 0;
    int64_t most = -1;
    for (int d = 0; d < p->box.n_dims; d++) {
        int64_t distinct = 1;
        for (int64_t i = 0; i < n; i++)
            key[i].start = p[key[i].piece].box.start[d];
        qsort(key, (size_t)n, sizeof *key, compare_key);
        for (int64_t i = 1; i < n; i++)
            distinct += key[i].start != key[i - 1].start;
        if (distinct > most)
            most = distinct, best = d;
    }
    return best;
}

static int disjoint(const struct ckpt_tensor *t, const struct fmt_piece *p, struct key *key, int64_t n,
                    const char *what, struct err *e)
{
    const int64_t limit = (int64_t)1 << 28; /* pairs: a grid of 4096 x 4096 boxes needs far less */
    int64_t pairs = 0;
    struct box common;
    int d = best_dim(p, key, n);
    for (int64_t i = 0; i < n; i++)
        key[i].start = p[key[i].piece].box.start[d];
    qsort(key, (size_t)n, sizeof *key, compare_key);
    for (int64_t i = 0; i < n; i++) {
        const struct box *a = &p[key[i].piece].box;
        for (int64_t j = i + 1; j < n && key[j].start < a->start[d] + a->extent[d]; j++) {
            if (box_intersect(a, &p[key[j].piece].box, &common) > 0)
                return err_set(e, ERR_FORMAT,
                               "%s: %s%s: two pieces overlap at [%lld, …]: are files of two saves mixed",
                               what, ckpt_role_prefix[t->role], t->name, (long long)common.start[0]);
            if (++pairs > limit)
                return err_set(e, ERR_FORMAT,
                               "%s: %s%s is cut in %lld boxes, too many to check: write it with fewer ranks",
                               what, ckpt_role_prefix[t->role], t->name, (long long)n);
        }
    }
    return 0;
}

/* The box lies inside the tensor, the range inside the box, and both fall on bytes. */
static int piece_inside(const struct ckpt_tensor *t, const struct fmt_piece *p, const char *what,
                        struct err *e)
{
    int ok = p->box.n_dims == t->n_dims;
    for (int d = 0; d < t->n_dims && ok; d++)
        ok = p->box.start[d] >= 0 && p->box.extent[d] >= 0 && p->box.start[d] <= t->shape[d] &&
             p->box.extent[d] <= t->shape[d] - p->box.start[d];
    if (!ok || p->lo < 0 || p->hi < p->lo || p->hi > box_count(&p->box))
        return err_set(e, ERR_FORMAT,
                       "%s: a piece of %s%s lies outside of it: is the manifest of another model", what,
                       ckpt_role_prefix[t->role], t->name);
    return fmt_box_check(t, &p->box, p->lo, p->hi, e) < 0 ? err_add(e, "%s", what) : 0;
}

int fmt_cover(const struct ckpt_tensor *t, struct fmt_piece *p, int64_t n, const char *what, struct err *e)
{
    int rc = 0;
    struct box whole = box_whole(t->n_dims, t->shape);
    int64_t boxes = 0, volume = 0, total = box_count(&whole);
    for (int64_t i = 0; i < n; i++)
        if ((rc = piece_inside(t, &p[i], what, e)) < 0)
            return rc;
    struct key *key = malloc(sizeof *key * (size_t)(n ? n : 1));
    if (!key)
        return err_set(e, ERR_MEMORY, "%s: no memory to check %lld pieces", what, (long long)n);
    qsort(p, (size_t)n, sizeof *p, compare_piece);
    for (int64_t i = 0; i < n;) {
        int64_t next = cover_box(t, p, i, n, what, e);
        if (next < 0) {
            rc = (int)next;
            goto out;
        }
        volume += box_count(&p[i].box);
        key[boxes++].piece = i;
        i = next;
        if (volume > total)
            break; /* they overlap; and the sum must not overflow */
    }
    TRY(disjoint(t, p, key, boxes, what, e));
    if (volume != total)
        rc = err_set(e, ERR_FORMAT, "%s: %s%s: %lld of %lld elements are stored: is a rank's file missing",
                     what, ckpt_role_prefix[t->role], t->name, (long long)volume, (long long)total);
out:
    free(key);
    return rc < 0 ? rc : 0;
}
