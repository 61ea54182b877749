/* buf.c - see buf.h. */
#include "base/buf.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void *buf_grow(void *p, size_t *cap, size_t want, size_t size)
{
    size_t to = *cap ? *cap : 16;
    while (to < want) {
        if (to > SIZE_MAX / 2 / size)
            return NULL;
        to *= 2;
    }
    void *q = realloc(p, to * size);
    if (q)
        *cap = to;
    return q;
}

void buf_add(struct buf *b, const void *p, size_t n)
{
    if (b->failed || n == 0)
        return;
    if (b->max && n > b->max - b->n) {
        b->failed = BUF_BEYOND_MAX;
        return;
    }
    if (b->n + n + 1 > b->cap) { /* one more, for a NUL */
        char *q = buf_grow(b->p, &b->cap, b->n + n + 1, 1);
        if (!q) {
            b->failed = BUF_NO_MEMORY;
            return;
        }
        b->p = q;
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void buf_free(struct buf *b)
{
    free(b->p);
    *b = (struct buf){ 0 };
}
