/* intern.h - private to text/grammar: numbers for byte strings, 0, 1, 2, … in order of arrival, and arrays
 * that grow. Both remember a failed allocation in `failed`. */
#ifndef SHARDLINE_TEXT_GRAMMAR_INTERN_H
#define SHARDLINE_TEXT_GRAMMAR_INTERN_H

#include <stddef.h>
#include <stdint.h>

struct intern {
    char *bytes; /* of all keys, one behind the other */
    size_t n_bytes, cap_bytes;
    size_t *begin; /* [n + 1] */
    size_t cap;
    uint32_t *slot; /* [n_slots] number + 1; 0: empty */
    size_t n_slots;
    uint32_t n;
    int failed;
};
/* The number of a key of n bytes, which becomes the last one when it is new. 0 when memory fails. */
uint32_t intern_put(struct intern *t, const void *key, size_t n);
/* The bytes of a key, until the next intern_put. */
static inline const void *intern_key(const struct intern *t, uint32_t id, size_t *n)
{
    *n = t->begin[id + 1] - t->begin[id];
    return t->bytes + t->begin[id];
}
/* Bytes of memory that t holds. */
size_t intern_size(const struct intern *t);
/* Frees what t holds, not t. */
void intern_free(struct intern *t);

/* 32-bit numbers that grow. Zero it to start. */
struct ints {
    int32_t *v;
    size_t n, cap;
    int failed;
};
/* Appends x. */
void ints_add(struct ints *a, int32_t x);
/* Sorts, and removes what occurs twice. */
void ints_sort(struct ints *a);
/* Frees what a holds, not a. */
void ints_free(struct ints *a);

#endif
