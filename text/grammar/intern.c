/* intern.c - see intern.h. */
#include "text/grammar/intern.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/buf.h"

static int grow_slots(struct intern *t)
{
    size_t n = t->n_slots ? 2 * t->n_slots : 64;
    uint32_t *slot = calloc(n, sizeof *slot);
    if (!slot)
        return -1;
    for (uint32_t i = 0; i < t->n; i++) {
        size_t len, at;
        const void *key = intern_key(t, i, &len);
        for (at = XXH3_64bits(key, len) & (n - 1); slot[at];)
            at = (at + 1) & (n - 1);
        slot[at] = i + 1;
    }
    free(t->slot);
    t->slot = slot;
    t->n_slots = n;
    return 0;
}

static int reserve(struct intern *t, size_t n)
{
    void *p;
    if (2 * (size_t)(t->n + 1) > t->n_slots && grow_slots(t) < 0)
        return -1;
    if (t->n + 2 > t->cap) {
        if (!(p = buf_grow(t->begin, &t->cap, (size_t)t->n + 2, sizeof *t->begin)))
            return -1;
        t->begin = p;
        t->begin[0] = 0;
    }
    if (t->n_bytes + n > t->cap_bytes) {
        if (!(p = buf_grow(t->bytes, &t->cap_bytes, t->n_bytes + n, 1)))
            return -1;
        t->bytes = p;
    }
    return 0;
}

uint32_t intern_put(struct intern *t, const void *key, size_t n)
{
    size_t at = 0, mask;
    if (t->failed || (t->failed = reserve(t, n) < 0))
        return 0;

    mask = t->n_slots - 1;
    for (at = XXH3_64bits(key, n) & mask; t->slot[at]; at = (at + 1) & mask) {
        size_t len;
        const void *other = intern_key(t, t->slot[at] - 1, &len);
        if (len == n && (n == 0 || !memcmp(other, key, n)))
            return t->slot[at] - 1;
    }

    if (n)
        memcpy(t->bytes + t->n_bytes, key, n);
    t->n_bytes += n;
    t->begin[t->n + 1] = t->n_bytes;
    t->slot[at] = ++t->n;
    return t->n - 1;
}

size_t intern_size(const struct intern *t)
{
    return t->cap_bytes + t->cap * sizeof *t->begin + t->n_slots * sizeof *t->slot;
}

void intern_free(struct intern *t)
{
    free(t->bytes);
    free(t->begin);
    free(t->slot);
    memset(t, 0, sizeof *t);
}

void ints_add(struct ints *a, int32_t x)
{
    if (a->n == a->cap) {
        int32_t *p = buf_grow(a->v, &a->cap, a->n + 1, sizeof *p);
        if (!p) {
            a->failed = 1;
            return;
        }
        a->v = p;
    }
    a->v[a->n++] = x;
}

static int by_value(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

void ints_sort(struct ints *a)
{
    size_t n = 0;
    if (a->n)
        qsort(a->v, a->n, sizeof *a->v, by_value);
    for (size_t i = 0; i < a->n; i++)
        if (!i || a->v[i] != a->v[n - 1])
            a->v[n++] = a->v[i];
    a->n = n;
}

void ints_free(struct ints *a)
{
    free(a->v);
    memset(a, 0, sizeof *a);
}
