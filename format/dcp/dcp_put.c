/* dcp_put.c - see dcp_put.h. */
#include "format/dcp/dcp_put.h"

#include <stdlib.h>
#include "base/io.h"

#define META "torch.distributed.checkpoint.metadata"

/* Five members, as torch up to 2.14 reads them; 2.15 writes strides too, and reads both. */
static void put_properties(struct pkw *p, enum stored_dtype t)
{
    pkw_global(p, META, "TensorProperties");
    pkw_op(p, PKW_EMPTY_TUPLE);
    pkw_op(p, PKW_NEWOBJ);
    pkw_op(p, PKW_MARK);
    pkw_dtype(p, t);
    pkw_global(p, "torch.serialization", "_get_layout");
    pkw_op(p, PKW_MARK);
    pkw_word(p, "torch.strided");
    pkw_op(p, PKW_TUPLE);
    pkw_op(p, PKW_REDUCE);
    pkw_op(p, PKW_FALSE); /* requires_grad */
    pkw_global(p, META, "_MEM_FORMAT_ENCODING");
    pkw_op(p, PKW_MARK);
    pkw_int(p, 0); /* torch.contiguous_format */
    pkw_op(p, PKW_TUPLE);
    pkw_op(p, PKW_REDUCE);
    pkw_op(p, PKW_FALSE); /* pin_memory */
    pkw_op(p, PKW_TUPLE);
    pkw_op(p, PKW_BUILD);
}

static void put_chunk(struct pkw *p, int n_dims, const int64_t *start, const int64_t *extent)
{
    pkw_object(p, META, "ChunkStorageMetadata");
    pkw_word(p, "offsets");
    pkw_size(p, n_dims, start);
    pkw_word(p, "sizes");
    pkw_size(p, n_dims, extent);
    pkw_object_end(p);
}

static void begin_tensor(struct pkw *p, enum stored_dtype t, int n_dims, const int64_t *shape)
{
    pkw_object(p, META, "TensorStorageMetadata");
    pkw_word(p, "properties");
    put_properties(p, t);
    pkw_word(p, "size");
    pkw_size(p, n_dims, shape);
    pkw_word(p, "chunks");
    pkw_op(p, PKW_LIST);
    pkw_op(p, PKW_MARK);
}

static void end_tensor(struct pkw *p)
{
    pkw_op(p, PKW_APPENDS);
    pkw_object_end(p);
}

void dcp_put_tensor(struct pkw *p, const struct dcp_write *w, const struct dcp_chunks *c, int tensor)
{
    const struct ckpt_tensor *t = &w->t[tensor];
    begin_tensor(p, t->dtype, t->is_scalar ? 0 : t->n_dims, t->shape);
    for (int i = c->first[tensor]; i < c->first[tensor + 1]; i++) {
        const struct box *box = &w->file[c->chunk[i].file].item[c->chunk[i].item].box;
        put_chunk(p, t->is_scalar ? 0 : box->n_dims, box->start, box->extent);
    }
    end_tensor(p);
}

void dcp_put_scalar(struct pkw *p, enum stored_dtype t)
{
    begin_tensor(p, t, 0, NULL);
    put_chunk(p, 0, NULL, NULL);
    end_tensor(p);
}

void dcp_put_object(struct pkw *p)
{
    pkw_global(p, META, "BytesStorageMetadata");
    pkw_op(p, PKW_EMPTY_TUPLE);
    pkw_op(p, PKW_NEWOBJ);
}

void dcp_put_place(struct pkw *p, const char *key, int n_dims, const int64_t *start, const char *file,
                   int64_t at, int64_t length)
{
    pkw_object(p, META, "MetadataIndex");
    pkw_word(p, "fqn");
    pkw_text(p, key);
    if (n_dims >= 0) {
        pkw_word(p, "offset");
        pkw_size(p, n_dims, start);
    }

    pkw_word(p, "index");
    pkw_op(p, PKW_NONE);
    pkw_object_end(p);
    pkw_object(p, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
    pkw_word(p, "relative_path");
    pkw_text(p, file);
    pkw_word(p, "offset");
    pkw_int(p, at);
    pkw_word(p, "length");
    pkw_int(p, length);
    pkw_object_end(p);
}

void dcp_put_tensor_places(struct pkw *p, const struct dcp_write *w, const struct dcp_chunks *c, int tensor,
                           const char *key)
{
    for (int i = c->first[tensor]; i < c->first[tensor + 1]; i++) {
        const struct dcp_file *f = &w->file[c->chunk[i].file];
        const struct dcp_chunk *x = &f->item[c->chunk[i].item];
        dcp_put_place(p, key, w->t[tensor].is_scalar ? 0 : x->box.n_dims, x->box.start, f->name, x->at,
                      x->length);
    }
}

/* The chunks of every tensor, in the order of the files. */
int dcp_chunks_sort(struct dcp_chunks *b, const struct dcp_write *w, struct err *e)
{
    int total = 0;

    b->first = calloc((size_t)w->n + 2, sizeof *b->first);
    for (int f = 0; f < w->n_files; f++)
        total += w->file[f].n;
    b->chunk = calloc((size_t)total + 1, sizeof *b->chunk);
    if (!b->first || !b->chunk)
        return err_set(e, ERR_MEMORY, "no memory for a table of %d chunks", total);
    for (int f = 0; f < w->n_files; f++)
        for (int i = 0; i < w->file[f].n; i++)
            b->first[w->file[f].item[i].tensor + 2]++;
    for (int i = 2; i <= w->n + 1; i++)
        b->first[i] += b->first[i - 1];
    for (int f = 0; f < w->n_files; f++) /* first[t + 1] advances from the start of t to its end */
        for (int i = 0; i < w->file[f].n; i++)
            b->chunk[b->first[w->file[f].item[i].tensor + 1]++] = (struct dcp_chunk_ref){ f, i };
    return 0;
}

void dcp_chunks_free(struct dcp_chunks *c)
{
    free(c->chunk);
    free(c->first);
}

static void put_section(struct pkw *p, const char *name, void (*put)(void *arg), void *arg)
{
    pkw_word(p, name);
    if (!put) {
        pkw_op(p, PKW_NONE);
        return;
    }
    pkw_op(p, PKW_DICT);
    pkw_op(p, PKW_MARK);
    put(arg);
    pkw_op(p, PKW_SETITEMS);
}

int dcp_put_metadata(struct pkw *p, const char *dir, const struct dcp_sections *s, struct err *e)
{
    pkw_begin(p);
    pkw_object(p, META, "Metadata");
    put_section(p, "state_dict_metadata", s->contents, s->arg);
    put_section(p, "planner_data", s->paths, s->arg);
    put_section(p, "storage_data", s->places, s->arg);
    pkw_word(p, "storage_meta");
    pkw_op(p, PKW_NONE);
    pkw_word(p, "version");
    pkw_text(p, "1.0.0");
    pkw_object_end(p);
    int rc = pkw_end(p, e);
    char *path = rc < 0 ? NULL : io_join(dir, ".metadata");
    if (rc >= 0)
        rc = path ? io_write_file(path, p->b.p, p->b.n, e)
                  : err_set(e, ERR_MEMORY, "no memory for the path of .metadata");
    free(path);
    return rc < 0 ? rc : 0;
}
