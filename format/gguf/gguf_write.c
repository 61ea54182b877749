/* gguf_write.c - a GGUF file: its header, and data at the places that the header gives. See gguf_write.h;
 * gguf.h has the layout of the file. */
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/fmt.h"
#include "format/gguf/gguf_target.h"

/* A tensor in the file. Sorted by name. */
struct place {
    const struct gguf_out *o;
    int64_t offset, bytes; /* offset: in the file */
    int64_t done;          /* written so far; by one thread at a time */
};
struct gguf_write {
    char *path;
    int fd, n;
    struct place *place;
    const struct gguf_out **order; /* as the file has them */
};

static int64_t aligned(int64_t n) { return (n + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT; }

/* What belongs to no layer first, then layer by layer, as the model is read. */
static int by_layer(const void *pa, const void *pb)
{
    const struct gguf_out *a = *(const struct gguf_out *const *)pa, *b = *(const struct gguf_out *const *)pb;
    return a->layer != b->layer ? (a->layer > b->layer) - (a->layer < b->layer) : strcmp(a->name, b->name);
}

static int by_name(const void *pa, const void *pb)
{
    const struct place *a = pa, *b = pb;
    return strcmp(a->o->name, b->o->name);
}

/* ---- the header ---- */

static void put_tensor(struct gguf_keys *head, const struct gguf_out *o, int64_t offset)
{
    gguf_put_text(head, o->name, strlen(o->name));
    gguf_put_u32(head, (uint32_t)o->n_dims);
    for (int d = o->n_dims - 1; d >= 0; d--)
        gguf_put_u64(head, (uint64_t)o->shape[d]);
    gguf_put_u32(head, o->type->id);
    gguf_put_u64(head, (uint64_t)offset);
}

/* Puts the header together, and the offsets of the data behind it. */
static void lay_out(struct gguf_write *w, const struct gguf_target *t, struct gguf_keys *head)
{
    int64_t offset = 0;
    gguf_put(head, GGUF_MAGIC, 4);
    gguf_put_u32(head, GGUF_VERSION);
    gguf_put_u64(head, (uint64_t)t->n);
    gguf_put_u64(head, t->keys.n);
    gguf_put(head, t->keys.data, t->keys.bytes);
    for (int i = 0; i < w->n; i++) {
        w->place[i] = (struct place){ .o = w->order[i],
                                      .offset = offset,
                                      .bytes = gguf_out_bytes(w->order[i]) };
        put_tensor(head, w->order[i], offset);
        offset = aligned(offset + w->place[i].bytes);
    }
    int64_t data = aligned((int64_t)head->bytes);
    static const char zeros[GGUF_ALIGNMENT];
    gguf_put(head, zeros, (size_t)(data - (int64_t)head->bytes));
    for (int i = 0; i < w->n; i++)
        w->place[i].offset += data;
}

int gguf_write_open(struct gguf_write **out, const char *path, struct gguf_target *t, struct err *e)
{
    struct gguf_write *w = calloc(1, sizeof *w);
    struct gguf_keys head = { 0 };
    int rc = 0;
    if (!w)
        return err_set(e, ERR_MEMORY, "%s: no memory to write it", path);
    w->fd = -1;
    w->n = t->n;
    w->path = strdup(path);
    w->place = calloc((size_t)t->n + 1, sizeof *w->place);
    w->order = calloc((size_t)t->n + 1, sizeof *w->order);
    if (!w->path || !w->place || !w->order)
        TRY(err_set(e, ERR_MEMORY, "%s: no memory for %d tensors", path, t->n));

    for (int i = 0; i < t->n; i++)
        w->order[i] = &t->out[i];
    qsort(w->order, (size_t)t->n, sizeof *w->order, by_layer);
    lay_out(w, t, &head);
    if (head.failed || t->keys.failed)
        TRY(err_set(e, ERR_MEMORY, "%s: no memory for its header", path));

    TRY(w->fd = io_create(path, e));
    TRY(io_pwrite(w->fd, path, head.data, head.bytes, 0, e));
    if (t->n) /* the end of the last one, to its alignment */
        TRY(io_truncate(w->fd, path, aligned(w->place[t->n - 1].offset + w->place[t->n - 1].bytes), e));
    qsort(w->place, (size_t)t->n, sizeof *w->place, by_name);
out:
    gguf_keys_free(&head);
    if (rc < 0) {
        gguf_write_abort(w);
        return rc;
    }
    *out = w;
    return 0;
}

/* ---- data ---- */

int gguf_write_put(struct gguf_write *w, const char *name, const void *data, int64_t n_elements,
                   struct err *e)
{
    struct gguf_out named = { .name = (char *)name };
    struct place key = { .o = &named }, *p = bsearch(&key, w->place, (size_t)w->n, sizeof key, by_name);
    if (!p)
        return err_set(e, ERR_INTERNAL, "%s is no tensor of %s: please report it", name, w->path);
    int64_t n = stored_bytes(gguf_view_dtype(p->o), n_elements);
    if (n > p->bytes - p->done)
        return err_set(e, ERR_INTERNAL, "more elements than %s has: please report it", name);
    int rc = io_pwrite(w->fd, w->path, data, (size_t)n, p->offset + p->done, e);
    p->done += n;
    return rc < 0 ? rc : 0;
}

int gguf_write_seal(struct gguf_write *w, struct err *e)
{
    int rc = 0, fd = w->fd;
    for (int i = 0; i < w->n; i++)
        if (w->place[i].done != w->place[i].bytes)
            TRY(err_set(e, ERR_INTERNAL, "%s got %lld of %lld bytes: please report it", w->place[i].o->name,
                        (long long)w->place[i].done, (long long)w->place[i].bytes));
    w->fd = -1;
    rc = io_sync_close(fd, w->path, e);
out:
    gguf_write_abort(w);
    return rc < 0 ? rc : 0;
}

void gguf_write_abort(struct gguf_write *w)
{
    if (!w)
        return;
    io_close(w->fd);
    free(w->path);
    free(w->place);
    free(w->order);
    free(w);
}
