/* dcp_hf.c - reads safetensors shards that PyTorch DCP writes for Hugging Face (HuggingFaceStorageWriter with
 * save_distributed). Every file has the rows of one rank; their offsets are in its __metadata__, as JSON in a
 * string:
 *
 *     "DCP_SHARDING_INFO": "{\"model.norm.weight\": {\"saved_offsets\": [32]}, …}"
 *
 * The whole shape is not stored: it is the largest end of all shards; build_finish checks that there is no
 * hole. */
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/hf/safetensors.h"
#include "format/torch/torch_build.h"

#define HEADER_MAX 100000000u

struct shard {
    struct st_table table;
    json_t *info;
    int file;
};

static int is_shard(const char *name)
{
    size_t n = strlen(name);
    return !strncmp(name, "shard-", 6) && n > 12 && !strcmp(name + n - 12, ".safetensors");
}

int dcp_hf_probe(const struct ckpt *c, int is_folder)
{
    struct names l;
    struct err e;
    int yes = 0;
    if (!is_folder || build_exists(c, "model.safetensors") ||
        build_exists(c, "model.safetensors.index.json") || names_read(&l, c, "", &e) < 0)
        return 0;
    for (int i = 0; i < l.n; i++)
        yes |= is_shard(l.name[i]);
    names_free(&l);
    return yes;
}

/* Reads the sharding info of a file whose header st_read has checked. */
static int read_info(struct ckpt *c, struct shard *s, struct err *e)
{
    const char *path = c->file[s->file].path, *text = NULL;
    int64_t n = s->table.data - 8;
    char *head = n <= HEADER_MAX ? malloc((size_t)n + 1) : NULL;
    json_t *root = NULL;
    int rc = head ? fmt_pread(c, s->file, head, n, 8, e)
                  : err_set(e, ERR_MEMORY, "%s: no memory for its header", path);

    if (rc >= 0 && !(root = jx_parse(head, (size_t)n, path, e)))
        rc = -e->code;
    if (rc >= 0 && !(text = json_string_value(
                         json_object_get(json_object_get(root, "__metadata__"), "DCP_SHARDING_INFO"))))
        rc = err_set(e, ERR_FORMAT,
                     "%s: has no DCP_SHARDING_INFO, without it the place of its rows is not known: was it "
                     "written by save_distributed",
                     path);
    if (rc >= 0 && !(s->info = jx_parse(text, strlen(text), path, e)))
        rc = -e->code;
    json_decref(root);
    free(head);
    return rc < 0 ? rc : 0;
}

static int open_shard(struct ckpt *c, struct shard *s, const char *name, struct err *e)
{
    int fd, rc = s->file = build_file(c, name, e);
    if (rc < 0 || (rc = fmt_acquire(c, s->file, &fd, e)) < 0)
        return rc;
    rc = st_read(&s->table, fd, c->file[s->file].path, c->file[s->file].bytes, e);
    fmt_release(c, s->file);
    return rc < 0 ? rc : read_info(c, s, e);
}

static int start_of(const struct ckpt *c, const struct shard *s, const struct st_entry *x,
                    int64_t start[BOX_DIMS], struct err *e)
{
    const json_t *a = json_object_get(json_object_get(s->info, x->name), "saved_offsets");
    int ok = json_is_array(a) && json_array_size(a) == (size_t)x->n_dims;
    memset(start, 0, sizeof *start * BOX_DIMS);
    for (int d = 0; d < x->n_dims && ok; d++) {
        const json_t *v = json_array_get(a, (size_t)d);
        ok = json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < (int64_t)1 << 48;
        start[d] = ok ? json_integer_value(v) : 0;
    }
    return ok ? 0
              : err_set(e, ERR_FORMAT,
                        "%s: DCP_SHARDING_INFO gives %s no offsets, or not %d: is the file damaged",
                        c->file[s->file].path, x->name, x->n_dims);
}

/* ---- whole shapes: the largest end of the shards of a name ---- */

struct reach {
    char *name;
    int n_dims;
    int64_t shape[BOX_DIMS];
};

static int compare_reach(const void *a, const void *b)
{
    return strcmp(((const struct reach *)a)->name, ((const struct reach *)b)->name);
}

/* Sorts, and merges equal names into one with the largest end in every dim. */
static int fold(const struct ckpt *c, struct reach *r, int n, struct err *e)
{
    int last = -1;
    qsort(r, (size_t)n, sizeof *r, compare_reach);
    for (int i = 0; i < n; i++) {
        if (last < 0 || strcmp(r[last].name, r[i].name)) {
            r[++last] = r[i];
            continue;
        }
        if (r[last].n_dims != r[i].n_dims)
            return err_set(e, ERR_FORMAT,
                           "%s: %s has %d dims in one shard and %d in another: are files of two saves mixed",
                           c->path, r[i].name, r[last].n_dims, r[i].n_dims);
        for (int d = 0; d < r[i].n_dims; d++)
            r[last].shape[d] = r[i].shape[d] > r[last].shape[d] ? r[i].shape[d] : r[last].shape[d];
    }
    return last + 1;
}

static int find_reach(const struct ckpt *c, const struct shard *s, int n_shards, struct reach **out,
                      struct err *e)
{
    int64_t start[BOX_DIMS];
    int n = 0, rc = 0;

    for (int i = 0; i < n_shards; i++)
        n += s[i].table.n;
    struct reach *r = calloc((size_t)n + 1, sizeof *r);
    if (!r)
        return err_set(e, ERR_MEMORY, "%s: no memory for %d tensors", c->path, n);
    n = 0;
    for (int i = 0; i < n_shards; i++)
        for (int k = 0; k < s[i].table.n; k++) {
            const struct st_entry *x = &s[i].table.entry[k];
            if ((rc = start_of(c, &s[i], x, start, e)) < 0) {
                free(r);
                return rc;
            }
            r[n] = (struct reach){ .name = x->name, .n_dims = x->n_dims };
            for (int d = 0; d < x->n_dims; d++)
                r[n].shape[d] = x->shape[d] ? start[d] + x->shape[d] : 0;
            n++;
        }
    rc = fold(c, r, n, e);
    *out = r;
    return rc;
}

static int add_shard(struct build *b, const struct shard *s, const struct reach *r, int n, struct err *e)
{
    for (int k = 0; k < s->table.n; k++) {
        const struct st_entry *x = &s->table.entry[k];
        struct reach want = { .name = x->name },
                     *found = bsearch(&want, r, (size_t)n, sizeof want, compare_reach);
        struct box box = { .n_dims = x->n_dims ? x->n_dims : 1, .extent = { 1 } };
        int tensor = build_tensor(b, ROLE_WEIGHT, x->name, (int)strlen(x->name), x->dtype, x->n_dims,
                                  found->shape, e),
            rc;
        if (tensor < 0)
            return tensor;
        if ((rc = start_of(b->c, s, x, box.start, e)) < 0)
            return rc;
        for (int d = 0; d < x->n_dims; d++)
            box.extent[d] = x->shape[d];
        if ((rc = build_piece(b, tensor, s->file, s->table.data + x->begin, &box, 0, box_count(&box), e)) < 0)
            return rc;
    }
    return 0;
}

int dcp_hf_open(struct ckpt *c, int is_folder, struct err *e)
{
    struct build b = { .c = c };
    struct names l = { 0 };
    struct shard *s = NULL;
    struct reach *r = NULL;
    int n = 0, n_reach = 0, rc = 0;
    (void)is_folder;

    TRY(build_config(c, e));
    TRY(names_read(&l, c, "", e));
    if (!(s = calloc((size_t)l.n + 1, sizeof *s))) {
        rc = err_set(e, ERR_MEMORY, "%s: no memory for %d files", c->path, l.n);
        goto out;
    }

    for (int i = 0; i < l.n; i++)
        if (is_shard(l.name[i]))
            TRY(open_shard(c, &s[n++], l.name[i], e));
    TRY(n_reach = find_reach(c, s, n, &r, e));
    for (int i = 0; i < n; i++)
        TRY(add_shard(&b, &s[i], r, n_reach, e));
    TRY(build_finish(&b, e));
    TRY(build_writer(c, "PyTorch Distributed Checkpoint as Hugging Face shards", NULL, n, e));
out:
    for (int i = 0; s && i < n; i++) {
        st_free(&s[i].table);
        json_decref(s[i].info);
    }

    free(r);
    free(s);
    names_free(&l);
    build_free(&b);
    return rc < 0 ? rc : 0;
}
