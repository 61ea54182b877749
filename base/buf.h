/* buf.h - bytes that grow. Running out of memory is remembered in `failed` and asked for once, so that
 * writers stay one-liners. */
#ifndef SHARDLINE_BASE_BUF_H
#define SHARDLINE_BASE_BUF_H

#include <stddef.h>

struct buf {
    char *p; /* malloc'd; room for a NUL behind the n bytes */
    size_t n, cap;
    int failed; /* no memory: everything since is lost */
};
void buf_add(struct buf *b, const void *p, size_t n);
void buf_free(struct buf *b);

/* An array of *cap elements of so many bytes: room for want of them, or NULL: none, and p stays. */
void *buf_grow(void *p, size_t *cap, size_t want, size_t size);

#endif
