/* buf.h - byte strings and arrays that grow. */
#ifndef SHARDLINE_BASE_BUF_H
#define SHARDLINE_BASE_BUF_H

#include <stddef.h>

/* Bytes that grow. Zero it to start. A writer calls buf_add as often as it likes and checks `failed` once. */
struct buf {
    char *p;       /* malloc'd; NULL while empty */
    size_t n, cap; /* cap > n: a NUL fits behind the n bytes */
    size_t max;    /* n never exceeds it; 0: no limit */
    int failed;    /* bytes added since then are lost; one of: */
};
enum { BUF_NO_MEMORY = 1, BUF_BEYOND_MAX };

/* Appends n bytes. */
void buf_add(struct buf *b, const void *p, size_t n);

/* Frees the bytes and zeroes *b. */
void buf_free(struct buf *b);

/* Grows the malloc'd array p of *cap elements of `size` bytes to a capacity of at least `want` elements.
 * Returns the array, to be freed by the caller, with *cap set; NULL: out of memory, p and *cap are
 * unchanged. */
void *buf_grow(void *p, size_t *cap, size_t want, size_t size);

#endif
