/* ring.c - see ring.h. */
#include "kernels/ring.h"

#define ALIGN ((size_t)64)

int dev_execute(const struct dev_executor *x, int (*fn)(void *arg, struct err *e), void *arg, struct err *e)
{
    return x->call ? x->call(x->ctx, fn, arg, e) : fn(arg, e);
}

int ring_open(struct ring *r, struct dev *d, const struct dev_executor *x, size_t buffer_bytes, struct err *e)
{
    *r = (struct ring){ .d = d, .executor = *x, .bytes = buffer_bytes };
    for (int i = 0; d->memory && i < 2; i++)
        if (!(r->buffer[i] = dev_pin(d, buffer_bytes))) {
            ring_close(r);
            return err_set(e, ERR_MEMORY, "no pinned memory for %zu MiB of staging buffers",
                           2 * buffer_bytes >> 20);
        }
    return 0;
}

/* Copies the buffer that was filled. The copies wait for the compute queue, which may still read the old
 * contents. The host waits for the buffer that it fills next. */
static int send(void *arg, struct err *e)
{
    struct ring *r = arg;
    struct dev *d = r->d;
    if (r->n) {
        enum dev_queue before = dev_use(d, DEV_COPY);
        dev_wait(d, DEV_COPY, dev_mark(d, DEV_COMPUTE));
        for (int i = 0; i < r->n; i++)
            dev_send(d, r->piece[i].to, r->buffer[r->now] + r->piece[i].at, r->piece[i].bytes);
        r->mark[r->now] = dev_mark(d, DEV_COPY);
        dev_use(d, before);
        r->now ^= 1;
        dev_await(d, r->mark[r->now]);
    }
    r->used = 0;
    r->n = 0;
    return dev_check(d, e);
}

/* Space for the next bytes. Where they continue the last piece on both sides they become part of it. */
static char *append(struct ring *r, char *p, size_t bytes)
{
    struct ring_piece *last = r->n ? &r->piece[r->n - 1] : NULL;
    char *host = r->buffer[r->now] + r->used;
    if (last && last->to + last->bytes == p && last->at + last->bytes == r->used) {
        last->bytes += bytes;
    } else {
        r->used = (r->used + ALIGN - 1) / ALIGN * ALIGN;
        host = r->buffer[r->now] + r->used;
        r->piece[r->n++] = (struct ring_piece){ p, r->used, bytes };
    }
    r->used += bytes;
    return host;
}

int64_t ring_take(struct ring *r, void *p, int64_t n, size_t element, void **host, struct err *e)
{
    if (!r->buffer[0]) {
        *host = p;
        return n;
    }
    size_t at = (r->used + ALIGN - 1) / ALIGN * ALIGN, want = (size_t)n * element,
           left = at < r->bytes ? r->bytes - at : 0;
    /* a slice is not cut for a small rest of the buffer */
    if (r->n == RING_PIECES || (left < want && left < r->bytes / 8)) {
        int rc = dev_execute(&r->executor, send, r, e);
        if (rc < 0)
            return rc;
        left = r->bytes;
    }
    if (want > left)
        want = left / element * element;
    *host = append(r, p, want);
    return (int64_t)(want / element);
}

int ring_put(struct ring *r, void *p, const void *from, size_t bytes, struct err *e)
{
    for (size_t at = 0; at < bytes;) {
        void *host;
        int64_t n = ring_take(r, (char *)p + at, (int64_t)(bytes - at), 1, &host, e);
        if (n < 0)
            return (int)n;
        memcpy(host, (const char *)from + at, (size_t)n);
        at += (size_t)n;
    }
    return 0;
}

int ring_settle(struct ring *r, struct err *e)
{
    if (!r->buffer[0])
        return 0;
    int rc = send(r, e);
    dev_wait(r->d, DEV_COMPUTE, r->mark[r->now ^ 1]);
    return rc;
}

void ring_close(struct ring *r)
{
    for (int i = 0; i < 2; i++) {
        if (!r->buffer[i])
            continue;
        /* a later free of the memory that was filled comes behind the copies */
        dev_wait(r->d, DEV_COMPUTE, r->mark[i]);
        dev_await(r->d, r->mark[i]);
        dev_unpin(r->d, r->buffer[i], r->bytes);
    }
    *r = (struct ring){ 0 };
}
