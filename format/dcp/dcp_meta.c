/* dcp_meta.c - see dcp.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/dcp/dcp.h"

#define METADATA ".metadata"
#define METADATA_MAX ((size_t)1 << 29)

static int bad(const struct dcp *d, const char *key, int n_key, const char *what, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: %.*s %s: is the file damaged", d->name, n_key < 200 ? n_key : 200, key,
                   what);
}

/* ---- tensors and their chunks ---- */

static int read_sizes(const struct pk *p, int64_t *out, int *n)
{
    if (!p || p->kind != PK_TUPLE || p->n > TORCH_DIMS)
        return 0;
    *n = (int)p->n;
    for (uint32_t i = 0; i < p->n; i++)
        if (!pk_int(p->item[i], &out[i]) || out[i] < 0)
            return 0;
    return 1;
}

static int read_dtype(const struct pk *properties, enum torch_dtype *out)
{
    const struct pk *s = properties && properties->kind == PK_CALL ? properties->state : NULL;
    const struct pk *t = s && s->kind == PK_TUPLE && (s->n == 5 || s->n == 6) ? pk_at(s, 0)
                                                                              : pk_attr(properties, "dtype");
    if (!t || t->kind != PK_CLASS || t->cls->id != PK_DTYPE)
        return 0;
    *out = (enum torch_dtype)t->cls->value;
    return 1;
}

static int grow_parts(struct dcp *d, struct err *e)
{
    if ((d->n_parts & (d->n_parts - 1)) != 0)
        return 0; /* the capacity is the next power of two */
    int64_t capacity = d->n_parts ? (int64_t)d->n_parts * 2 : 1;
    struct dcp_part *grown = capacity < INT32_MAX ? realloc(d->part, sizeof *grown * (size_t)capacity) : NULL;
    if (!grown)
        return err_set(e, ERR_MEMORY, "%s: no memory for %lld chunks", d->name, (long long)capacity);
    d->part = grown;
    return 0;
}

static int add_part(struct dcp *d, struct dcp_item *x, const struct dcp_part *p, struct err *e)
{
    int rc = grow_parts(d, e);
    if (rc < 0)
        return rc;
    d->part[d->n_parts] = *p;
    d->part[d->n_parts++].file = -1;
    x->n++;
    return 0;
}

static int read_chunks(struct dcp *d, struct dcp_item *x, const struct pk *chunks, struct err *e)
{
    const struct pk *k;
    int rc = 0;

    if (!chunks || chunks->kind != PK_LIST)
        return bad(d, x->key, x->n_key, "has no list of chunks", e);
    for (uint32_t i = 0; (k = pk_at(chunks, i)) && rc >= 0; i++) {
        struct dcp_part p = { .file = -1 };
        int n_start = 0, n_size = 0,
            ok = read_sizes(pk_attr(k, "offsets"), p.start, &n_start) &&
                 read_sizes(pk_attr(k, "sizes"), p.size, &n_size);
        if (ok && n_size < n_start) { /* Megatron with stacked layers: sizes lack the leading dims of 1 */
            memmove(p.size + n_start - n_size, p.size, sizeof *p.size * (size_t)n_size);
            for (int j = 0; j < n_start - n_size; j++)
                p.size[j] = 1;
            n_size = n_start;
        }
        if (!ok || n_start != x->n_dims || n_size != x->n_dims)
            return bad(d, x->key, x->n_key, "has a chunk whose offsets or sizes make no sense", e);
        rc = add_part(d, x, &p, e);
    }
    return rc;
}

static int read_item(struct dcp *d, struct dcp_item *x, const struct pk *key, const struct pk *v, int order,
                     struct err *e)
{
    struct dcp_part object = { .file = -1 };
    if (key->kind != PK_TEXT || memchr(key->text, 0, key->n))
        return bad(d, "state_dict_metadata", 19, "has a key that is not text", e);
    *x = (struct dcp_item){ .key = key->text, .n_key = (int)key->n, .order = order, .first = d->n_parts };
    if (pk_is_call(v, "BytesStorageMetadata"))
        return add_part(d, x, &object, e);
    if (!pk_is_call(v, "TensorStorageMetadata"))
        return bad(d, x->key, x->n_key, "is neither a tensor nor bytes", e);
    x->is_tensor = 1;
    if (!read_sizes(pk_attr(v, "size"), x->shape, &x->n_dims) ||
        !read_dtype(pk_attr(v, "properties"), &x->dtype))
        return bad(d, x->key, x->n_key, "has a size or dtype that makes no sense", e);
    return read_chunks(d, x, pk_attr(v, "chunks"), e);
}

static int compare_item(const void *pa, const void *pb)
{
    const struct dcp_item *a = pa, *b = pb;
    int n = a->n_key < b->n_key ? a->n_key : b->n_key, r = memcmp(a->key, b->key, (size_t)n);
    return r ? r : (a->n_key > b->n_key) - (a->n_key < b->n_key);
}

static struct dcp_item *find(const struct dcp *d, const char *key, int n_key)
{
    struct dcp_item want = { .key = key, .n_key = n_key };
    return d->n_items ? bsearch(&want, d->item, (size_t)d->n_items, sizeof want, compare_item) : NULL;
}

const struct dcp_item *dcp_find(const struct dcp *d, const char *key)
{
    return find(d, key, (int)strlen(key));
}

int dcp_ranks(const struct dcp *d)
{
    int n = 0, rank;
    for (int i = 0; i < d->n_seen; i++)
        if (sscanf(d->seen[i].name, "__%d_", &rank) == 1 && rank >= n && rank < 1 << 24)
            n = rank + 1;
    return n;
}

int dcp_starts(const struct dcp_item *x, const char *prefix)
{
    size_t n = strlen(prefix);
    return (size_t)x->n_key >= n && !memcmp(x->key, prefix, n);
}

static int read_items(struct dcp *d, const struct pk *meta, struct err *e)
{
    const struct pk *all = pk_attr(meta, "state_dict_metadata"), *paths = pk_attr(meta, "planner_data");
    int rc = 0;

    if (!all || all->kind != PK_DICT)
        return bad(d, "state_dict_metadata", 19, "is missing", e);
    d->item = calloc((size_t)all->n + 1, sizeof *d->item);
    if (!d->item)
        return err_set(e, ERR_MEMORY, "%s: no memory for %u tensors", d->name, all->n);
    for (uint32_t i = 0; i < all->n && rc >= 0; i++)
        rc = read_item(d, &d->item[d->n_items++], all->item[2 * i], all->item[2 * i + 1], (int)i, e);
    if (rc < 0)
        return rc;
    qsort(d->item, (size_t)d->n_items, sizeof *d->item, compare_item);
    for (int i = 1; i < d->n_items; i++)
        if (!compare_item(&d->item[i - 1], &d->item[i]))
            return bad(d, d->item[i].key, d->item[i].n_key, "is there twice", e);
    for (uint32_t i = 0; paths && paths->kind == PK_DICT && i < paths->n; i++) {
        const struct pk *key = paths->item[2 * i], *path = paths->item[2 * i + 1];
        struct dcp_item *x = key->kind == PK_TEXT ? find(d, key->text, (int)key->n) : NULL;
        if (x && path->kind == PK_TUPLE)
            x->path = path;
    }
    return 0;
}

/* ---- where the chunks are ---- */

static int compare_start(const int64_t *a, const int64_t *b)
{
    for (int i = 0; i < TORCH_DIMS; i++)
        if (a[i] != b[i])
            return a[i] < b[i] ? -1 : 1;
    return 0;
}

static int compare_part(const void *pa, const void *pb)
{
    const struct dcp_part *a = pa, *b = pb;
    int d = compare_start(a->start, b->start);
    /* an empty chunk shares its start with the next one */
    return d ? d : compare_start(a->size, b->size);
}

static int is_empty(const struct dcp_part *p, int n_dims)
{
    for (int i = 0; i < n_dims; i++)
        if (p->size[i] == 0)
            return 1;
    return 0;
}

/* The part of x that starts there; if an empty one starts there too, the one with elements. */
static struct dcp_part *find_part(const struct dcp *d, const struct dcp_item *x, const int64_t *start)
{
    struct dcp_part *p = d->part + x->first, *found = NULL;
    int lo = 0, hi = x->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (compare_start(p[mid].start, start) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < x->n && !memcmp(p[lo].start, start, sizeof p->start); lo++)
        if (!found || (is_empty(found, x->n_dims) && !is_empty(&p[lo], x->n_dims)))
            found = &p[lo];
    return found;
}

static int file_of(struct dcp *d, const char *sub, const struct pk *path, struct err *e)
{
    char *name = pk_strdup(path), *full = NULL;
    int rc = 0;

    if (!name)
        return err_set(e, ERR_FORMAT, "%s: the place of a chunk names no file: is the file damaged", d->name);
    for (int i = d->n_seen; i-- > 0;)
        if (!strcmp(d->seen[i].name, name)) {
            free(name);
            return d->seen[i].file;
        }
    void *grown = realloc(d->seen, sizeof *d->seen * (size_t)(d->n_seen + 1));
    if (grown)
        d->seen = grown;
    if (!grown || !(full = build_text("%s%s", sub, name)))
        rc = err_set(e, ERR_MEMORY, "%s: no memory for the names of its files", d->name);
    else if ((rc = fmt_file_name_check(name, d->name, e)) >= 0)
        rc = build_file(d->c, full, e);
    if (rc >= 0) {
        d->seen[d->n_seen].name = name;
        d->seen[d->n_seen++].file = rc;
        name = NULL;
    } else if (e->code == ERR_FILE) {
        rc = err_add(e, "%s says that a part is in a file", d->name);
    }

    free(name);
    free(full);
    return rc;
}

static int place(struct dcp *d, const char *sub, const struct pk *index, const struct pk *info, struct err *e)
{
    const struct pk *key = pk_attr(index, "fqn"), *offset = pk_attr(index, "offset"),
                    *transforms = pk_attr(info, "transform_descriptors");
    struct dcp_item *x = key && key->kind == PK_TEXT ? find(d, key->text, (int)key->n) : NULL;
    int64_t start[TORCH_DIMS] = { 0 }, at = 0, length = 0;
    int n = 0, file;

    if (!x)
        return 0; /* an entry without a key that can be looked up */
    if (offset && offset->kind != PK_NONE && (!read_sizes(offset, start, &n) || n != x->n_dims))
        return bad(d, x->key, x->n_key, "has a chunk at an offset that makes no sense", e);
    struct dcp_part *p = find_part(d, x, start);
    if (!p || (x->is_tensor && x->n_dims && !n))
        return bad(d, x->key, x->n_key, "has a place for a chunk that it does not list", e);
    if (transforms && transforms->kind != PK_NONE && (transforms->kind != PK_LIST || transforms->n))
        return bad(d, x->key, x->n_key,
                   "was transformed when it was saved (compressed?), which this program cannot undo", e);
    if ((file = file_of(d, sub, pk_attr(info, "relative_path"), e)) < 0)
        return file;
    const struct fmt_file *f = &d->c->file[file];
    if (!pk_int(pk_attr(info, "offset"), &at) || !pk_int(pk_attr(info, "length"), &length) || at < 0 ||
        length < 0 || length > f->bytes || at > f->bytes - length)
        return err_set(
            e, ERR_FORMAT,
            "%s: %.*s is said to lie at bytes %lld to %lld, the file has %lld: is it whole, and of this save",
            f->path, x->n_key < 200 ? x->n_key : 200, x->key, (long long)at,
            (long long)(at > 0 && length > 0 && at < INT64_MAX - length ? at + length : at),
            (long long)f->bytes);
    if (p->file >= 0)
        return bad(d, x->key, x->n_key, "has two places for one chunk", e);
    p->file = file;
    p->at = at;
    p->length = length;
    return 0;
}

static int read_places(struct dcp *d, const char *sub, const struct pk *meta, struct err *e)
{
    const struct pk *all = pk_attr(meta, "storage_data");
    int rc = 0;
    if (!all || all->kind != PK_DICT)
        return bad(d, "storage_data", 12, "is missing", e);
    for (int i = 0; i < d->n_items; i++)
        if (d->item[i].n)
            qsort(d->part + d->item[i].first, (size_t)d->item[i].n, sizeof *d->part, compare_part);
    for (uint32_t i = 0; i < all->n && rc >= 0; i++)
        rc = place(d, sub, all->item[2 * i], all->item[2 * i + 1], e);
    return rc < 0 ? rc : 0;
}

/* ---- open and close ---- */

/* An interrupted save leaves data files, and perhaps metadata under a temporary name. */
static int no_metadata(const struct dcp *d, const char *path, const char *sub, struct err *e)
{
    char *tmp = build_text("%s" METADATA ".tmp", sub);
    int cut = tmp && build_exists(d->c, tmp);
    free(tmp);
    return err_set(e, ERR_FORMAT, "%s is missing: the save was not finished%s: take an older checkpoint",
                   path, cut ? " (there is a .metadata.tmp)" : "");
}

int dcp_open(struct dcp *d, struct ckpt *c, const char *sub, struct err *e)
{
    size_t n = 0;
    int rc = 0;

    *d = (struct dcp){ .c = c };
    d->name = build_text("%s/%s" METADATA, c->dir, sub);
    if (!d->name)
        return err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    if (!io_exists(d->name)) {
        rc = no_metadata(d, d->name, sub, e);
        goto out;
    }

    TRY(io_read_file(d->name, METADATA_MAX, &d->text, &n, e));
    TRY(pk_parse(&d->doc, d->text, n, d->name, e));
    if (!pk_is_call(d->doc.root, "Metadata") && !pk_is_call(d->doc.root, "MCoreMetadata")) {
        rc = err_set(e, ERR_FORMAT, "%s: a pickle, but not of checkpoint metadata: is the file damaged",
                     d->name);
        goto out;
    }

    TRY(read_items(d, d->doc.root, e));
    TRY(read_places(d, sub, d->doc.root, e));
out:
    if (rc < 0)
        dcp_close(d);
    return rc < 0 ? rc : 0;
}

void dcp_close(struct dcp *d)
{
    for (int i = 0; i < d->n_seen; i++)
        free(d->seen[i].name);
    free(d->seen);
    free(d->item);
    free(d->part);
    pk_free(&d->doc);
    free(d->text);
    free(d->name);
    memset(d, 0, sizeof *d);
}

/* ---- data ---- */

static void key_text(const struct dcp_item *x, char out[FMT_NAME_MAX + 1])
{
    snprintf(out, FMT_NAME_MAX + 1, "%.*s", x->n_key < FMT_NAME_MAX ? x->n_key : FMT_NAME_MAX, x->key);
}

/* A length and the { of a JSON header: safetensors, since no zip starts like that. */
static int is_safetensors(struct ckpt *c, const struct dcp_part *p)
{
    unsigned char head[9];
    struct err e;
    return c->file[p->file].bytes > 9 && fmt_pread(c, p->file, head, sizeof head, 0, &e) >= 0 &&
           head[8] == '{' && !head[5] && !head[6] && !head[7];
}

static int open_part(struct dcp *d, const struct dcp_item *x, const struct dcp_part *p, struct torch_file *t,
                     struct err *e)
{
    if (p->file < 0)
        return bad(d, x->key, x->n_key, "has a chunk that is stored nowhere", e);
    if (is_safetensors(d->c, p))
        return err_set(e, ERR_FORMAT,
                       "%s: its data files are safetensors (SerializationFormat.SAFETENSORS), whose places "
                       "the metadata do not tell; torch does not "
                       "load them either: save with HuggingFaceStorageWriter or as it is by default",
                       d->name);
    int rc = torch_open(t, d->c, p->file, p->at, p->length, e);
    return rc < 0 ? err_add(e, "%.*s", x->n_key < 200 ? x->n_key : 200, x->key) : 0;
}

int dcp_tensor(struct dcp *d, const struct dcp_item *x, const struct dcp_part *p, struct torch_file *t,
               struct torch_tensor *out, struct err *e)
{
    char name[FMT_NAME_MAX + 1];
    int rc = open_part(d, x, p, t, e);
    if (rc < 0)
        return rc;
    key_text(x, name);
    if ((rc = torch_tensor(t, t->root, name, out, e)) >= 0) {
        int lead = x->n_dims - out->n_dims, same = lead >= 0;
        for (int i = 0; i < x->n_dims && same; i++)
            same = p->size[i] == (i < lead ? 1 : out->shape[i - lead]);
        if (!same)
            rc = bad(d, x->key, x->n_key, "has a chunk of another shape than the metadata say", e);
    }
    if (rc < 0)
        torch_close(t);
    return rc;
}

int dcp_chunk(struct dcp *d, const struct dcp_item *x, const struct dcp_part *p, struct chunk *k,
              struct err *e)
{
    struct torch_file t = { 0 };
    struct torch_tensor v;
    char name[FMT_NAME_MAX + 1];
    int rc = dcp_tensor(d, x, p, &t, &v, e);
    if (rc < 0)
        return rc;
    key_text(x, name);
    rc = build_chunk(k, &t, &v, x->n_dims ? x->n_dims : 1, p->start, name, e);
    torch_close(&t);
    return rc;
}

int dcp_object(struct dcp *d, const struct dcp_item *x, struct torch_file *t, struct err *e)
{
    if (x->is_tensor || x->n != 1)
        return bad(d, x->key, x->n_key, "is not an object", e);
    return open_part(d, x, d->part + x->first, t, e);
}

int dcp_number(struct dcp *d, const struct dcp_item *x, double *out, struct err *e)
{
    struct torch_file t = { 0 };
    struct torch_tensor v;
    char name[FMT_NAME_MAX + 1];
    if (!x->is_tensor || x->n != 1)
        return bad(d, x->key, x->n_key, "is not one number", e);
    int rc = dcp_tensor(d, x, d->part + x->first, &t, &v, e);
    if (rc < 0)
        return rc;
    key_text(x, name);
    rc = torch_number(&t, t.root, name, out, e);
    torch_close(&t);
    return rc < 0 ? rc : 0;
}
