/* hf_read.c - the driver of Hugging Face checkpoints: a folder with model.safetensors, or with
 * model.safetensors.index.json and its shards, an adapter of PEFT (adapter_model.safetensors), or a single
 * .safetensors file. They have no checksums;
 * everything else is checked before a byte of data is used. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"
#include "format/fmt.h"
#include "format/peft.h"
#include "format/quant_view.h"
#include "format/hf/safetensors.h"

#define ONE_FILE "model.safetensors"
#define INDEX "model.safetensors.index.json"
#define INDEX_MAX ((size_t)1 << 28)

struct found {
    struct ckpt_tensor t;
    struct fmt_piece p;
};
struct list {
    struct found *item;
    int n, room;
};

static int add_tensor(struct ckpt *c, struct list *l, struct st_entry *s, int64_t data, int file,
                      struct err *e)
{
    if (l->n == l->room) {
        int room = l->room ? l->room * 2 : 256;
        struct found *grown = realloc(l->item, sizeof *grown * (size_t)room);
        if (!grown)
            return err_set(e, ERR_MEMORY, "%s: no memory for %d tensors", c->path, room);
        l->item = grown;
        l->room = room;
    }
    struct found *f = &l->item[l->n++];
    memset(f, 0, sizeof *f);
    f->t.name = s->name;
    s->name = NULL; /* the list owns it now */
    f->t.role = ROLE_WEIGHT;
    f->t.dtype = s->dtype;
    f->t.n_dims = s->n_dims ? s->n_dims : 1;
    f->t.is_scalar = s->n_dims == 0;
    memcpy(f->t.shape, s->shape, sizeof s->shape);
    if (s->n_dims == 0)
        f->t.shape[0] = 1;
    f->p.file = file;
    f->p.offset = data + s->begin;
    f->p.box = box_whole(f->t.n_dims, f->t.shape);
    f->p.hi = box_count(&f->p.box);
    if (!s->tail)
        return 0;
    char *tail = s->tail;
    s->tail = NULL;
    return fmt_keep_tail(c, &f->t, tail, e);
}

static int add_shard(struct ckpt *c, struct list *l, const char *name, struct err *e)
{
    struct st_table t = { 0 };
    int fd = -1, rc = 0;
    struct fmt_file *f = fmt_add_file(c, name, 0, e);
    if (!f)
        return -e->code;
    TRY(fd = io_open_read(f->path, e));
    f->bytes = io_size(fd, f->path, e);
    if (f->bytes < 0) {
        rc = (int)f->bytes;
        goto out;
    }
    TRY(st_read(&t, fd, f->path, f->bytes, e));
    f->data = t.data;
    atomic_fetch_add(&c->bytes_read, t.data);
    for (int i = 0; i < t.n; i++)
        TRY(add_tensor(c, l, &t.entry[i], t.data, c->n_files - 1, e));
out:
    io_close(fd);
    st_free(&t);
    return rc < 0 ? rc : 0;
}

/* ---- the index ---- */

static int check_shard_name(const char *name, const char *index, struct err *e)
{
    size_t n = strlen(name);
    int rc = fmt_file_name_check(name, index, e);
    if (rc < 0)
        return rc;
    return n > 12 && !strcmp(name + n - 12, ".safetensors")
               ? 0
               : err_set(e, ERR_FORMAT, "%s: %s is not a .safetensors file", index, name);
}

/* Adds every file that the index names, once, in the order of their first mention. */
static int add_indexed(struct ckpt *c, struct list *l, const json_t *map, const char *index, struct err *e)
{
    const char *tensor, *name;
    json_t *v, *files = json_object();
    int rc = 0;
    json_object_foreach((json_t *)map, tensor, v) {
        if (!json_is_string(v)) {
            rc = err_set(e, ERR_FORMAT, "%s: weight_map gives no file for %.100s", index, tensor);
            goto out;
        }
        TRY(check_shard_name(json_string_value(v), index, e));
        json_object_set_new(files, json_string_value(v), json_true());
    }
    json_object_foreach(files, name, v)
        if ((rc = add_shard(c, l, name, e)) < 0) {
            rc = err_add(e, "%s names %s", index, name);
            goto out;
        }
out:
    json_decref(files);
    return rc < 0 ? rc : 0;
}

static int check_indexed(const struct ckpt *c, const json_t *map, const char *index, struct err *e)
{
    const char *tensor;
    json_t *v;
    json_object_foreach((json_t *)map, tensor, v) {
        int i = ckpt_find(c, ROLE_WEIGHT, tensor);
        if (i < 0)
            return err_set(e, ERR_FORMAT,
                           "%s: puts %.100s in %s, which has no such tensor: is the index of another save",
                           index, tensor, json_string_value(v));
        const char *file = c->file[c->piece[c->first_piece[i]].file].name;
        if (strcmp(file, json_string_value(v)))
            return err_set(e, ERR_FORMAT, "%s: puts %.100s in %s, it is in %s: is the index of another save",
                           index, tensor, json_string_value(v), file);
    }
    return 0;
}

/* ---- tables ---- */

static int compare_found(const void *a, const void *b)
{
    return fmt_compare_tensors(&((const struct found *)a)->t, &((const struct found *)b)->t);
}

/* Moves the list into the tables of c, which owns the names afterwards. */
static int fill(struct ckpt *c, struct list *l, struct err *e)
{
    c->tensor = calloc((size_t)l->n + 1, sizeof *c->tensor);
    c->piece = calloc((size_t)l->n + 1, sizeof *c->piece);
    c->first_piece = calloc((size_t)l->n + 2, sizeof *c->first_piece);
    if (!c->tensor || !c->piece || !c->first_piece)
        return err_set(e, ERR_MEMORY, "%s: no memory for %d tensors", c->path, l->n);
    if (l->n)
        qsort(l->item, (size_t)l->n, sizeof *l->item, compare_found);
    for (int i = 1; i < l->n; i++)
        if (!compare_found(&l->item[i - 1], &l->item[i]))
            return err_set(e, ERR_FORMAT, "%s: %s is in %s and in %s: remove one", c->path, l->item[i].t.name,
                           c->file[l->item[i - 1].p.file].name, c->file[l->item[i].p.file].name);
    for (int i = 0; i < l->n; i++) {
        c->tensor[i] = l->item[i].t;
        c->piece[i] = l->item[i].p;
        c->piece[i].tensor = i;
    }
    c->n_tensors = l->n;
    c->n_pieces = l->n;
    l->n = 0;
    fmt_sort_tensors(c);
    return 0;
}

static int read_config(struct ckpt *c, struct err *e)
{
    char *path = io_join(c->dir, FMT_CONFIG);
    void *text = NULL;
    size_t n = 0;
    int rc = 0;
    if (!path)
        return err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    if (io_exists(path)) {
        TRY(io_read_file(path, FMT_EXTRA_MAX, &text, &n, e));
        if (strlen(text) != n)
            rc = err_set(e, ERR_CONFIG, "%s: holds a zero byte: is it a text file", path);
        c->config = text;
    }
out:
    free(path);
    return rc < 0 ? rc : 0;
}

static int exists_in(const struct ckpt *c, const char *name)
{
    char *path = io_join(c->dir, name);
    int yes = path && io_exists(path);
    free(path);
    return yes;
}

/* The largest N of the checkpoints step-N in a folder of ptrain --out; -1: none. */
static long long newest_step(const char *dir)
{
    long long newest = -1, step;
    DIR *d = opendir(dir);
    for (struct dirent *f; d && (f = readdir(d));) {
        char manifest[64], end;
        if (sscanf(f->d_name, "step-%18lld%c", &step, &end) != 1 || step <= newest)
            continue;
        snprintf(manifest, sizeof manifest, "step-%lld/%s", step, FMT_MANIFEST);
        char *path = io_join(dir, manifest);
        newest = path && io_exists(path) ? step : newest;
        free(path);
    }
    if (d)
        closedir(d);
    return newest;
}

static int nothing_here(const struct ckpt *c, struct err *e)
{
    long long step = newest_step(c->dir);
    if (step >= 0)
        return err_set(e, ERR_FORMAT, "%s: is the folder of a run: give its newest checkpoint, %s/step-%lld",
                       c->path, c->path, step);
    if (exists_in(c, "weights-00000.safetensors"))
        return err_set(
            e, ERR_FORMAT,
            "%s: manifest.json is missing: without it the pieces have no places: restore it from a good copy",
            c->path);
    return err_set(e, ERR_FORMAT, "%s: has no manifest.json, %s or %s: is it a checkpoint", c->path, ONE_FILE,
                   INDEX);
}

/* What --dequantize keeps beside the weights. Other programs do not look for this file. */
static int add_kept(struct ckpt *c, struct list *l, struct err *e)
{
    return exists_in(c, QUANT_KEPT_TENSORS) ? add_shard(c, l, QUANT_KEPT_TENSORS, e) : 0;
}

static int open_index(struct ckpt *c, struct list *l, struct err *e)
{
    char *path = io_join(c->dir, INDEX);
    json_t *root = path ? jx_load(path, INDEX_MAX, e) : NULL, *map = json_object_get(root, "weight_map");
    int rc = 0;
    if (!path)
        rc = err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    else if (!root)
        rc = -e->code;
    else if (!json_is_object(map) || !json_object_size(map))
        rc = err_set(e, ERR_FORMAT, "%s: has no weight_map: is it whole", path);
    if (rc < 0)
        goto out;
    TRY(add_indexed(c, l, map, path, e));
    TRY(add_kept(c, l, e));
    TRY(fill(c, l, e));
    TRY(check_indexed(c, map, path, e));
out:
    json_decref(root);
    free(path);
    return rc < 0 ? rc : 0;
}

int hf_probe(const struct ckpt *c, int is_folder)
{
    (void)c;
    (void)is_folder;
    return 1;
}

int hf_open(struct ckpt *c, int is_folder, struct err *e)
{
    struct list l = { 0 };
    int rc = 0;
    if (!is_folder) {
        const char *slash = strrchr(c->path, '/');
        TRY(add_shard(c, &l, slash ? slash + 1 : c->path, e));
        TRY(fill(c, &l, e));
    } else if (exists_in(c, ONE_FILE)) {
        TRY(add_shard(c, &l, ONE_FILE, e));
        TRY(add_kept(c, &l, e));
        TRY(fill(c, &l, e));
    } else if (exists_in(c, INDEX)) {
        TRY(open_index(c, &l, e));
    } else if (exists_in(c, PEFT_TENSORS)) {
        TRY(add_shard(c, &l, PEFT_TENSORS, e));
        TRY(fill(c, &l, e));
    } else {
        return nothing_here(c, e);
    }
    TRY(read_config(c, e));
out:
    for (int i = 0; i < l.n; i++)
        free((char *)l.item[i].t.name);
    free(l.item);
    return rc < 0 ? rc : 0;
}
