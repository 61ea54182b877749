/* hf_write.c - see hf_write.h. */
#include "format/hf_write.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/fmt.h"
#include "format/small_files.h"
#include "format/hf/safetensors.h"

struct shard {
    char name[48], *path;
    int fd, first, n;
    int64_t bytes;
};
struct place {
    int shard;
    int64_t offset, bytes, done;
};
struct hf_write {
    char *dir;
    int n, n_shards;
    const struct ckpt_tensor *t;
    struct place *place;
    struct shard *shard;
};

static int64_t tensor_bytes(const struct ckpt_tensor *t)
{
    struct box b = box_whole(t->n_dims, t->shape);
    return stored_bytes(t->dtype, box_count(&b));
}

/* Cuts the list into shards: a new one when the next tensor does not fit. */
static void cut(struct hf_write *w, int64_t shard_bytes)
{
    int64_t at = 0;
    for (int i = 0; i < w->n; i++) {
        struct place *p = &w->place[i];
        p->bytes = tensor_bytes(&w->t[i]);
        if (i == 0 || at + p->bytes > shard_bytes) {
            w->shard[w->n_shards] = (struct shard){ .fd = -1, .first = i };
            w->n_shards++;
            at = 0;
        }
        p->shard = w->n_shards - 1;
        p->offset = at; /* in the data, for now */
        at += p->bytes;
        w->shard[p->shard].n++;
    }
    for (int s = 0; s < w->n_shards; s++) {
        if (w->n_shards == 1)
            snprintf(w->shard[s].name, sizeof w->shard[s].name, "model.safetensors");
        else
            snprintf(w->shard[s].name, sizeof w->shard[s].name, "model-%05d-of-%05d.safetensors", s + 1,
                     w->n_shards);
    }
}

static int start_shard(struct hf_write *w, struct shard *s, struct err *e)
{
    struct st_entry *entry = calloc((size_t)s->n + 1, sizeof *entry);
    char *head = NULL;
    size_t n = 0;
    int rc = 0;
    s->path = io_join(w->dir, s->name);
    if (!entry || !s->path) {
        rc = err_set(e, ERR_MEMORY, "no memory for the header of %s", s->name);
        goto out;
    }
    for (int i = 0; i < s->n; i++) {
        const struct ckpt_tensor *t = &w->t[s->first + i];
        const struct place *p = &w->place[s->first + i];
        entry[i] = (struct st_entry){ .name = (char *)t->name,
                                      .dtype = t->dtype,
                                      .n_dims = t->n_dims,
                                      .begin = p->offset,
                                      .end = p->offset + p->bytes };
        memcpy(entry[i].shape, t->shape, sizeof t->shape);
    }
    TRY(st_make(entry, s->n, &head, &n, e));
    for (int i = 0; i < s->n; i++)
        w->place[s->first + i].offset += (int64_t)n;
    TRY(s->fd = io_create(s->path, e));
    TRY(io_pwrite(s->fd, s->path, head, n, 0, e));
out:
    free(entry);
    free(head);
    return rc < 0 ? rc : 0;
}

int hf_write_open(struct hf_write **out, const char *dir, int n, const struct ckpt_tensor *t,
                  int64_t shard_bytes, struct err *e)
{
    struct hf_write *w = calloc(1, sizeof *w);
    int rc = 0;
    if (!w)
        return err_set(e, ERR_MEMORY, "no memory to write %d tensors", n);
    w->n = n;
    w->t = t;
    w->dir = strdup(dir);
    w->place = calloc((size_t)n + 1, sizeof *w->place);
    w->shard = calloc((size_t)n + 1, sizeof *w->shard);
    if (!w->dir || !w->place || !w->shard) {
        rc = err_set(e, ERR_MEMORY, "no memory to write %d tensors", n);
        goto out;
    }
    cut(w, shard_bytes);
    for (int s = 0; s < w->n_shards; s++)
        TRY(start_shard(w, &w->shard[s], e));
out:
    if (rc < 0) {
        hf_write_abort(w);
        return rc;
    }
    *out = w;
    return 0;
}

int hf_write_put(struct hf_write *w, int i, const void *data, int64_t n_elements, struct err *e)
{
    struct place *p = &w->place[i];
    struct shard *s = &w->shard[p->shard];
    int64_t n = stored_bytes(w->t[i].dtype, n_elements);
    if (n > p->bytes - p->done)
        return err_set(e, ERR_INTERNAL, "more elements than %s has: please report it", w->t[i].name);
    int rc = io_pwrite(s->fd, s->path, data, (size_t)n, p->offset + p->done, e);
    p->done += n;
    return rc < 0 ? rc : 0;
}

static int write_index(const struct hf_write *w, struct err *e)
{
    json_t *map = json_object();
    int64_t total = 0;
    for (int i = 0; i < w->n; i++) {
        json_object_set_new(map, w->t[i].name, json_string(w->shard[w->place[i].shard].name));
        total += w->place[i].bytes;
    }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map",
                             map);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL,
         *path = io_join(w->dir, "model.safetensors.index.json");
    int rc = text && path ? io_write_file(path, text, strlen(text), e)
                          : err_set(e, ERR_MEMORY, "no memory for the index of %d tensors", w->n);
    json_decref(root);
    free(text);
    free(path);
    return rc < 0 ? rc : 0;
}

int hf_write_seal(struct hf_write *w, const struct ckpt_meta *meta, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < w->n; i++)
        if (w->place[i].done != w->place[i].bytes) {
            rc = err_set(e, ERR_INTERNAL, "%s got %lld of %lld bytes: please report it", w->t[i].name,
                         (long long)w->place[i].done, (long long)w->place[i].bytes);
            goto out;
        }
    for (int s = 0; s < w->n_shards; s++) {
        int fd = w->shard[s].fd;
        w->shard[s].fd = -1;
        TRY(io_sync_close(fd, w->shard[s].path, e));
    }
    if (w->n_shards > 1)
        TRY(write_index(w, e));
    TRY(small_files_write(w->dir, meta, e));
    TRY(io_sync_dir(w->dir, e));
out:
    if (rc < 0)
        ckpt_abandon(w->dir, -1);
    hf_write_abort(w);
    return rc < 0 ? rc : 0;
}

void hf_write_abort(struct hf_write *w)
{
    if (!w)
        return;
    for (int s = 0; s < w->n_shards; s++) {
        io_close(w->shard[s].fd);
        free(w->shard[s].path);
    }
    free(w->dir);
    free(w->place);
    free(w->shard);
    free(w);
}
