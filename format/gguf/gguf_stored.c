/* gguf_stored.c - a GGUF file as it is stored: its own names, blocks as bytes. See gguf_write.h. */
#include <stdlib.h>
#include <string.h>
#include "format/fmt.h"
#include "format/gguf_write.h"
#include "format/gguf/gguf_file.h"

static int no_memory(const char *path, struct err *e)
{
    return err_set(e, ERR_MEMORY, "%s: no memory for its tables", path);
}

/* Reads the header, with twice the bytes until it is whole. The caller frees *bytes and *f. */
static int read_header(struct ckpt *c, void **bytes, struct gguf_file *f, struct err *e)
{
    int64_t size = c->file[0].bytes, n = GGUF_HEADER_FIRST < size ? GGUF_HEADER_FIRST : size;
    int rc = 1;
    while (rc == 1) {
        char *grown = realloc(*bytes, (size_t)n + 1);
        if (!grown)
            return no_memory(c->path, e);
        *bytes = grown;
        if ((rc = fmt_pread(c, 0, *bytes, n, 0, e)) < 0 ||
            (rc = gguf_parse(f, *bytes, n, size, c->path, e)) < 0)
            return rc;
        n = n * 2 < size ? n * 2 : size;
    }
    return 0;
}

static int fill(struct ckpt *c, const struct gguf_file *f, struct err *e)
{
    size_t n = (size_t)f->n_tensors;
    c->tensor = calloc(n + 1, sizeof *c->tensor);
    c->piece = calloc(n + 1, sizeof *c->piece);
    c->first_piece = calloc(n + 1, sizeof *c->first_piece);
    if (!c->tensor || !c->piece || !c->first_piece)
        return no_memory(c->path, e);
    for (int i = 0; i < f->n_tensors; i++) {
        const struct gguf_tensor *g = &f->tensor[i];
        struct ckpt_tensor *t = &c->tensor[i];
        *t = (struct ckpt_tensor){ .name = strdup(g->name), .role = ROLE_WEIGHT, .n_dims = g->n_dims };
        c->n_tensors++;
        if (!t->name)
            return no_memory(c->path, e);
        t->dtype = g->type->values > 1 ? STORED_U8 : (enum stored_dtype)g->type->dtype;
        memcpy(t->shape, g->shape, sizeof *t->shape * (size_t)g->n_dims);
        if (g->type->values > 1)
            t->shape[t->n_dims - 1] = t->shape[t->n_dims - 1] / g->type->values * g->type->bytes;
        struct box whole = box_whole(t->n_dims, t->shape);
        c->piece[c->n_pieces++] = (struct fmt_piece){
            .tensor = i, .offset = g->offset, .box = whole, .hi = box_count(&whole)
        };
    }
    return fmt_sort_names(c, e);
}

int gguf_open_stored(struct ckpt **out, const char *path, struct err *e)
{
    struct ckpt *c = calloc(1, sizeof *c);
    struct gguf_file f = { 0 };
    void *bytes = NULL;
    int fd = -1, rc = 0;
    int64_t size = 0;
    if (!c)
        return no_memory(path, e);
    pthread_mutex_init(&c->lock, NULL);
    c->hold = -1;
    c->layout = (struct ckpt_layout){ 1, 1, 1, 1, 1, 0 };
    c->driver = "gguf";
    c->path = strdup(path);
    const char *slash = strrchr(path, '/');
    c->dir = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
    if (!c->path || !c->dir)
        TRY(no_memory(path, e));

    TRY(fd = io_open_read(path, e));
    TRY((size = io_size(fd, path, e)) < 0 ? -e->code : 0);
    if (!fmt_add_file(c, slash ? slash + 1 : path, size, e))
        TRY(-e->code);
    TRY(read_header(c, &bytes, &f, e));
    TRY(fill(c, &f, e));
    TRY(fmt_find_gaps(c, e));
    *out = c;
    c = NULL;
out:
    io_close(fd);
    gguf_file_free(&f);
    free(bytes);
    ckpt_close(c);
    return rc < 0 ? rc : 0;
}
