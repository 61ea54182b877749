/* dcp_write.c - see dcp_write.h: the data files. dcp_write_meta.c is their table. */
#include "format/dcp_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/dcp/dcp_write_priv.h"
#include "format/torch/crc32.h"

#define ALIGN 64 /* of the zips, so that storages aligned in a zip are aligned in the file */

int dcp_write_open(struct dcp_write **out, const char *dir, int n, const struct ckpt_tensor *t, int n_files,
                   const int *n_items, const char *ours, struct err *e)
{
    for (int i = 0; i < n; i++) {
        int rc = pkw_check_dtype(&t[i], "dcp", e);
        if (rc < 0)
            return rc;
    }
    struct dcp_write *w = calloc(1, sizeof *w);
    int ok = w != NULL;

    if (ok) {
        w->n = n;
        w->t = t;
        w->n_files = n_files;
        w->dir = strdup(dir);
        w->file = calloc((size_t)n_files + 1, sizeof *w->file);
        ok = w->dir && w->file;
    }

    for (int f = 0; ok && f < n_files; f++) {
        struct dcp_file *x = &w->file[f];
        snprintf(x->name, sizeof x->name, "__%d_%d.distcp", f / DCP_KINDS, f % DCP_KINDS);
        x->fd = -1;
        x->n = n_items[f];
        x->ours = ours[f] && n_items[f];
        x->path = io_join(dir, x->name);
        x->item = calloc((size_t)x->n + 1, sizeof *x->item);
        ok = x->path && x->item;
    }

    if (!ok) {
        dcp_write_free(w);
        return err_set(e, ERR_MEMORY, "no memory to write %d tensors to %d files", n, n_files);
    }

    *out = w;
    return 0;
}

void dcp_write_free(struct dcp_write *w)
{
    if (!w)
        return;
    for (int f = 0; w->file && f < w->n_files; f++) {
        io_close(w->file[f].fd);
        free(w->file[f].path);
        free(w->file[f].item);
    }
    free(w->file);
    free(w->dir);
    free(w);
}

void dcp_write_item(struct dcp_write *w, int f, int item, int tensor, const struct box *b)
{
    w->file[f].item[item] = (struct dcp_chunk){ .tensor = tensor, .box = *b };
}

/* Describes the zip of a chunk; *z borrows *w and *part. */
static int plan_item(const struct dcp_write *w, const struct dcp_chunk *x, struct pkw *p,
                     struct torch_part *part, struct torch_out *z, struct err *e)
{
    const struct ckpt_tensor *t = &w->t[x->tensor];
    pkw_begin(p);
    pkw_tensor(p, t->dtype, t->is_scalar ? 0 : x->box.n_dims, x->box.extent, 0);
    int rc = pkw_end(p, e);
    int64_t bytes = stored_bytes(t->dtype, box_count(&x->box));
    *part = (struct torch_part){ bytes, 0, x->in_parts ? fmt_crc32_whole(x->crc, bytes) : x->crc };
    *z = (struct torch_out){ .root = "archive", .pickle = p->b.p, .n_pickle = p->b.n, .n = 1, .part = part };
    return rc < 0 ? rc : torch_out_plan(z, e);
}

int dcp_write_start(struct dcp_write *w, struct err *e)
{
    int rc = 0;
    for (int f = 0; f < w->n_files; f++) {
        struct dcp_file *x = &w->file[f];
        int64_t at = 0;
        for (int i = 0; i < x->n; i++) {
            struct dcp_chunk *c = &x->item[i];
            struct pkw p = { 0 };
            struct torch_part part;
            struct torch_out z;
            rc = plan_item(w, c, &p, &part, &z, e);
            pkw_free(&p);
            if (rc < 0)
                return rc;
            c->at = at;
            c->length = z.length;
            c->data = at + part.at;
            at = (at + z.length + ALIGN - 1) / ALIGN * ALIGN;
        }
        if (x->ours && (x->fd = io_create(x->path, e)) < 0)
            return x->fd;
    }
    return 0;
}

int dcp_write_put(struct dcp_write *w, int f, int item, const void *data, int64_t n, struct err *e)
{
    struct dcp_file *x = &w->file[f];
    struct dcp_chunk *c = &x->item[item];
    int64_t bytes = stored_bytes(w->t[c->tensor].dtype, n);
    if (bytes > stored_bytes(w->t[c->tensor].dtype, box_count(&c->box)) - c->done)
        return err_set(e, ERR_INTERNAL, "more elements than a chunk of %s has: please report it",
                       w->t[c->tensor].name);
    int rc = io_pwrite(x->fd, x->path, data, (size_t)bytes, c->data + c->done, e);
    c->crc = fmt_crc32(c->crc, data, (size_t)bytes);
    c->done += bytes;
    return rc < 0 ? rc : 0;
}

int dcp_write_put_at(struct dcp_write *w, int f, int item, int64_t at, const void *data, int64_t n,
                     struct err *e)
{
    struct dcp_file *x = &w->file[f];
    struct dcp_chunk *c = &x->item[item];
    enum stored_dtype t = w->t[c->tensor].dtype;
    int64_t from = stored_bytes(t, at), bytes = stored_bytes(t, n), all = stored_bytes(t, box_count(&c->box));
    if (at < 0 || from + bytes > all)
        return err_set(e, ERR_INTERNAL, "elements outside of a chunk of %s: please report it",
                       w->t[c->tensor].name);
    int rc = io_pwrite(x->fd, x->path, data, (size_t)bytes, c->data + from, e);
    __atomic_fetch_xor(&c->crc, fmt_crc32_part(data, (size_t)bytes, all - from - bytes), __ATOMIC_RELAXED);
    __atomic_fetch_add(&c->done, bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&c->in_parts, 1, __ATOMIC_RELAXED);
    return rc < 0 ? rc : 0;
}

static int close_item(struct dcp_write *w, const struct dcp_file *x, const struct dcp_chunk *c, struct err *e)
{
    struct pkw p = { 0 };
    struct torch_part part;
    struct torch_out z;
    int rc = plan_item(w, c, &p, &part, &z, e);
    if (rc >= 0 && part.bytes != c->done)
        rc = err_set(e, ERR_INTERNAL, "a chunk of %s got %lld of %lld bytes: please report it",
                     w->t[c->tensor].name, (long long)c->done, (long long)part.bytes);
    if (rc >= 0)
        rc = torch_out_frame(&z, x->fd, x->path, c->at, e);
    pkw_free(&p);
    return rc < 0 ? rc : 0;
}

int dcp_write_close(struct dcp_write *w, int f, struct err *e)
{
    struct dcp_file *x = &w->file[f];
    int rc = 0;
    if (!x->ours)
        return 0;
    for (int i = 0; i < x->n; i++)
        TRY(close_item(w, x, &x->item[i], e));
    int fd = x->fd;
    x->fd = -1;
    TRY(io_sync_close(fd, x->path, e));
out:
    return rc < 0 ? rc : 0;
}
