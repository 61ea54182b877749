/* gguf_file.c - see gguf_file.h. */
#include "format/gguf/gguf_file.h"

#include <stdlib.h>
#include <string.h>

#define ARRAYS_MAX 4  /* arrays within arrays */
#define KEY_MIN 13    /* bytes of the shortest key with its value: length, type, a byte */
#define TENSOR_MIN 33 /* bytes of the shortest entry of a tensor, with a name of one byte */
#define NAME_SHOWN 100

/* The part of the file that is in memory, and the whole file's length. */
struct input {
    const unsigned char *p;
    int64_t at, n, file_bytes;
    const char *path;
    const char *what; /* what is being read, for messages */
    struct gguf_text name;
};

/* ---- numbers and texts ---- */

static uint64_t number(const unsigned char *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

/* 0: n more bytes are in memory. 1: they are in the file. ERR_FORMAT: they are not. */
static int need(struct input *in, uint64_t n, struct err *e)
{
    int shown = in->name.n < NAME_SHOWN ? (int)in->name.n : NAME_SHOWN;
    if (n > (uint64_t)(in->file_bytes - in->at))
        return err_set(e, ERR_FORMAT,
                       "%s: %s %.*s needs %llu bytes at %lld, the file has %lld: was it cut short", in->path,
                       in->what, shown, in->name.p ? in->name.p : "", (unsigned long long)n,
                       (long long)in->at, (long long)in->file_bytes);
    if (n > (uint64_t)(GGUF_HEADER_MAX - in->at))
        return err_set(e, ERR_FORMAT, "%s: %s %.*s makes the header longer than %lld bytes: is it damaged",
                       in->path, in->what, shown, in->name.p ? in->name.p : "", (long long)GGUF_HEADER_MAX);
    return n > (uint64_t)(in->n - in->at);
}

static int take(struct input *in, int bytes, uint64_t *v, struct err *e)
{
    int rc = need(in, (uint64_t)bytes, e);
    if (rc)
        return rc;
    *v = number(in->p + in->at, bytes);
    in->at += bytes;
    return 0;
}

static int take_text(struct input *in, struct gguf_text *t, struct err *e)
{
    uint64_t n;
    int rc = take(in, 8, &n, e);
    if (rc || (rc = need(in, n, e)))
        return rc;
    *t = (struct gguf_text){ (const char *)in->p + in->at, (int64_t)n };
    in->at += (int64_t)n;
    return 0;
}

/* ---- metadata ---- */

static int bad_type(const struct input *in, uint64_t type, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: key %.*s has the type %llu, GGUF has 0 to %d: is it damaged", in->path,
                   in->name.n < NAME_SHOWN ? (int)in->name.n : NAME_SHOWN, in->name.p,
                   (unsigned long long)type, GGUF_VALUES - 1);
}

/* Moves behind n values of a type. */
static int skip_values(struct input *in, enum gguf_value type, uint64_t n, int depth, struct err *e)
{
    struct gguf_text t;
    uint64_t of, count;
    int width = gguf_value_bytes(type), rc = 0;
    if (width) {
        if (n > (uint64_t)INT64_MAX / 8)
            n = (uint64_t)INT64_MAX / 8; /* more than any file has */
        if ((rc = need(in, n * (uint64_t)width, e)) == 0)
            in->at += (int64_t)n * width;
        return rc;
    }

    for (uint64_t i = 0; i < n && !rc; i++) {
        if (type == GGUF_VALUE_TEXT) {
            rc = take_text(in, &t, e);
        } else if (!(rc = take(in, 4, &of, e)) && !(rc = take(in, 8, &count, e))) {
            if (of >= GGUF_VALUES)
                return bad_type(in, of, e);
            if (depth == ARRAYS_MAX)
                return err_set(e, ERR_FORMAT, "%s: key %.*s has arrays nested deeper than %d", in->path,
                               (int)(in->name.n < NAME_SHOWN ? in->name.n : NAME_SHOWN), in->name.p,
                               ARRAYS_MAX);
            rc = skip_values(in, (enum gguf_value)of, count, depth + 1, e);
        }
    }
    return rc;
}

static int read_meta(struct input *in, struct gguf_meta *m, struct err *e)
{
    uint64_t type, of = 0, n = 1;
    int rc;
    in->name = (struct gguf_text){ 0 };
    if ((rc = take_text(in, &m->key, e)))
        return rc;
    in->name = m->key;
    if ((rc = take(in, 4, &type, e)))
        return rc;
    if (type >= GGUF_VALUES)
        return bad_type(in, type, e);
    m->type = (enum gguf_value)type;

    if (m->type == GGUF_VALUE_TEXT) {
        struct gguf_text t;
        if ((rc = take_text(in, &t, e)))
            return rc;
        m->data = (const unsigned char *)t.p;
        m->n = t.n;
        return 0;
    }
    if (m->type == GGUF_VALUE_ARRAY) {
        if ((rc = take(in, 4, &of, e)) || (rc = take(in, 8, &n, e)))
            return rc;
        if (of >= GGUF_VALUES)
            return bad_type(in, of, e);
    }
    m->of = (enum gguf_value)of;
    m->n = (int64_t)n;
    m->data = in->p + in->at;
    return skip_values(in, m->type == GGUF_VALUE_ARRAY ? m->of : m->type, n, 1, e);
}

static int compare_texts(struct gguf_text a, struct gguf_text b)
{
    int64_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.p, b.p, (size_t)n) : 0;
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

static int compare_meta(const void *a, const void *b)
{
    return compare_texts(((const struct gguf_meta *)a)->key, ((const struct gguf_meta *)b)->key);
}

static int read_all_meta(struct gguf_file *f, struct input *in, uint64_t n, struct err *e)
{
    int room = 0, rc;
    in->what = "key";
    for (uint64_t i = 0; i < n; i++) {
        if (f->n_meta == room) {
            struct gguf_meta *grown = realloc(f->meta, sizeof *grown * (size_t)(room = room * 2 + 64));
            if (!grown)
                return err_set(e, ERR_MEMORY, "%s: no memory for %d keys", in->path, room);
            f->meta = grown;
        }
        memset(&f->meta[f->n_meta], 0, sizeof *f->meta);
        if ((rc = read_meta(in, &f->meta[f->n_meta], e)))
            return rc;
        f->n_meta++;
    }
    if (f->n_meta)
        qsort(f->meta, (size_t)f->n_meta, sizeof *f->meta, compare_meta);
    for (int i = 1; i < f->n_meta; i++)
        if (!compare_meta(&f->meta[i - 1], &f->meta[i]))
            return err_set(e, ERR_FORMAT, "%s: has the key %.*s twice", in->path,
                           f->meta[i].key.n < NAME_SHOWN ? (int)f->meta[i].key.n : NAME_SHOWN,
                           f->meta[i].key.p);
    return 0;
}

/* ---- tensors ---- */

static int read_shape(struct input *in, struct gguf_tensor *t, struct err *e)
{
    uint64_t n_dims, v;
    int64_t count = 1;
    int rc = take(in, 4, &n_dims, e);
    if (rc)
        return rc;
    if (n_dims < 1 || n_dims > GGUF_DIMS)
        return err_set(e, ERR_FORMAT, "%s: tensor %.100s has %llu dims, GGUF has 1 to %d", in->path, t->name,
                       (unsigned long long)n_dims, GGUF_DIMS);
    t->n_dims = (int)n_dims;
    for (int d = t->n_dims - 1; d >= 0; d--) {
        if ((rc = take(in, 8, &v, e)))
            return rc;
        if (v > INT64_MAX / 64 || __builtin_mul_overflow(count, (int64_t)v, &count) || count > INT64_MAX / 64)
            return err_set(e, ERR_FORMAT,
                           "%s: tensor %.100s has a dim of %llu and more than 2^57 elements: is it damaged",
                           in->path, t->name, (unsigned long long)v);
        t->shape[d] = (int64_t)v;
    }
    return 0;
}

static int read_tensor(struct input *in, struct gguf_tensor *t, struct err *e)
{
    struct gguf_text name;
    uint64_t type, offset;
    int rc;
    in->name = (struct gguf_text){ 0 };
    if ((rc = take_text(in, &name, e)))
        return rc;
    if (!name.n || name.n >= GGUF_NAME_MAX || memchr(name.p, 0, (size_t)name.n))
        return err_set(e, ERR_FORMAT, "%s: a tensor's name has %lld bytes: 1 to %d, and no zero byte",
                       in->path, (long long)name.n, GGUF_NAME_MAX - 1);
    if (!(t->name = strndup(name.p, (size_t)name.n)))
        return err_set(e, ERR_MEMORY, "%s: no memory for a name", in->path);
    in->name = name;

    if ((rc = read_shape(in, t, e)) || (rc = take(in, 4, &type, e)) || (rc = take(in, 8, &offset, e)))
        return rc;
    if (!(t->type = gguf_type_row((uint32_t)type)))
        return err_set(e, ERR_FORMAT, "%s: tensor %.100s has the type %llu, which is not known here",
                       in->path, t->name, (unsigned long long)type);
    int64_t row = t->shape[t->n_dims - 1], count = 1;
    for (int d = 0; d < t->n_dims; d++)
        count *= t->shape[d];
    if (row % t->type->values)
        return err_set(e, ERR_FORMAT, "%s: tensor %.100s has rows of %lld values, blocks of %s have %d",
                       in->path, t->name, (long long)row, t->type->name, t->type->values);
    if (count == 0)
        return err_set(e, ERR_FORMAT, "%s: tensor %.100s has a dim of 0", in->path, t->name);
    /* 2^57 values of at most 8 bytes */
    t->bytes = count / t->type->values * t->type->bytes;
    t->offset = offset > INT64_MAX / 2 ? INT64_MAX / 2 : (int64_t)offset;
    return 0;
}

static int read_all_tensors(struct gguf_file *f, struct input *in, uint64_t n, struct err *e)
{
    int room = 0, rc;
    in->what = "tensor";
    for (uint64_t i = 0; i < n; i++) {
        if (f->n_tensors == room) {
            struct gguf_tensor *grown = realloc(f->tensor, sizeof *grown * (size_t)(room = room * 2 + 256));
            if (!grown)
                return err_set(e, ERR_MEMORY, "%s: no memory for %d tensors", in->path, room);
            f->tensor = grown;
        }
        memset(&f->tensor[f->n_tensors], 0, sizeof *f->tensor);
        f->n_tensors++; /* a name is freed also where the rest fails */
        if ((rc = read_tensor(in, &f->tensor[f->n_tensors - 1], e)))
            return rc;
    }
    return 0;
}

/* ---- places ---- */

static int compare_offsets(const void *pa, const void *pb)
{
    const struct gguf_tensor *a = *(const struct gguf_tensor *const *)pa;
    const struct gguf_tensor *b = *(const struct gguf_tensor *const *)pb;
    return a->offset != b->offset ? (a->offset > b->offset ? 1 : -1) : strcmp(a->name, b->name);
}

static int compare_names(const void *pa, const void *pb)
{
    return strcmp((*(const struct gguf_tensor *const *)pa)->name,
                  (*(const struct gguf_tensor *const *)pb)->name);
}

/* No two tensors share a name or a byte. */
static int check_apart(const struct gguf_file *f, struct gguf_tensor **by, struct err *e)
{
    for (int i = 0; i < f->n_tensors; i++)
        by[i] = &f->tensor[i];
    qsort(by, (size_t)f->n_tensors, sizeof *by, compare_names);
    for (int i = 1; i < f->n_tensors; i++)
        if (!strcmp(by[i - 1]->name, by[i]->name))
            return err_set(e, ERR_FORMAT, "%s: has the tensor %.100s twice", f->path, by[i]->name);

    qsort(by, (size_t)f->n_tensors, sizeof *by, compare_offsets);
    for (int i = 1; i < f->n_tensors; i++)
        if (by[i]->offset < by[i - 1]->offset + by[i - 1]->bytes)
            return err_set(e, ERR_FORMAT,
                           "%s: tensor %.100s begins at %lld, %.100s ends at %lld: they overlap", f->path,
                           by[i]->name, (long long)by[i]->offset, by[i - 1]->name,
                           (long long)(by[i - 1]->offset + by[i - 1]->bytes));
    return 0;
}

static int check_places(struct gguf_file *f, int64_t file_bytes, struct err *e)
{
    for (int i = 0; i < f->n_tensors; i++) {
        struct gguf_tensor *t = &f->tensor[i];
        if (t->offset % f->alignment)
            return err_set(e, ERR_FORMAT, "%s: tensor %.100s is at %lld of the data, no multiple of %lld",
                           f->path, t->name, (long long)t->offset, (long long)f->alignment);
        int64_t left = file_bytes - f->data;
        if (t->offset > left || t->bytes > left - t->offset)
            return err_set(e, ERR_FORMAT,
                           "%s: tensor %.100s ends at %lld of the data, which have %lld bytes: was the file "
                           "cut short",
                           f->path, t->name, (long long)(t->offset + t->bytes),
                           (long long)(left > 0 ? left : 0));
        t->offset += f->data;
    }

    struct gguf_tensor **by = malloc(sizeof(struct gguf_tensor *) * (size_t)(f->n_tensors + 1));
    int rc = by ? check_apart(f, by, e) : err_set(e, ERR_MEMORY, "%s: no memory for its tensors", f->path);
    free(by);
    return rc;
}

static int find_data(struct gguf_file *f, int64_t end, struct err *e)
{
    const struct gguf_meta *m = gguf_meta_find(f, "general.alignment");
    f->alignment = GGUF_ALIGNMENT;
    if (m) {
        int64_t a = -1;
        gguf_int(f, "general.alignment", &a);
        if (m->type != GGUF_VALUE_U32 || a < 1 || (a & (a - 1)))
            return err_set(e, ERR_FORMAT, "%s: general.alignment is %lld, a power of two as u32 is expected",
                           f->path, (long long)a);
        f->alignment = a;
    }
    f->data = (end + f->alignment - 1) / f->alignment * f->alignment;
    return 0;
}

/* ---- the whole header ---- */

static int check_counts(const struct input *in, uint64_t n_tensors, uint64_t n_meta, struct err *e)
{
    uint64_t left = (uint64_t)(in->file_bytes - in->at);
    if (n_meta > left / KEY_MIN || n_tensors > left / TENSOR_MIN)
        return err_set(
            e, ERR_FORMAT,
            "%s: says that it has %llu tensors and %llu keys, its %lld bytes have no place for them",
            in->path, (unsigned long long)n_tensors, (unsigned long long)n_meta, (long long)in->file_bytes);
    return 0;
}

static int parse(struct gguf_file *f, struct input *in, struct err *e)
{
    uint64_t magic, version, n_tensors, n_meta;
    int rc;
    in->what = "the header";
    if ((rc = take(in, 4, &magic, e)))
        return rc;
    if (memcmp(in->p, GGUF_MAGIC, 4) != 0)
        return err_set(e, ERR_FORMAT, "%s: does not begin with " GGUF_MAGIC ": is it a GGUF file", in->path);
    if ((rc = take(in, 4, &version, e)))
        return rc;
    if (version && !(version & 0xffff))
        return err_set(e, ERR_FORMAT, "%s: is a big-endian GGUF file: only little-endian ones are read",
                       in->path);
    if (version < 2 || version > GGUF_VERSION)
        return err_set(e, ERR_FORMAT, "%s: has version %llu of GGUF, versions 2 and %d are read", in->path,
                       (unsigned long long)version, GGUF_VERSION);
    if ((rc = take(in, 8, &n_tensors, e)) || (rc = take(in, 8, &n_meta, e)) ||
        (rc = check_counts(in, n_tensors, n_meta, e)) || (rc = read_all_meta(f, in, n_meta, e)) ||
        (rc = read_all_tensors(f, in, n_tensors, e)) || (rc = find_data(f, in->at, e)))
        return rc;
    return check_places(f, in->file_bytes, e);
}

int gguf_parse(struct gguf_file *f, const void *p, int64_t n, int64_t file_bytes, const char *path,
               struct err *e)
{
    struct input in = { .p = p, .n = n, .file_bytes = file_bytes, .path = path };
    *f = (struct gguf_file){ .bytes = p, .path = path };
    int rc = parse(f, &in, e);
    if (rc)
        gguf_file_free(f);
    return rc;
}

void gguf_file_free(struct gguf_file *f)
{
    for (int i = 0; i < f->n_tensors; i++)
        free(f->tensor[i].name);
    free(f->tensor);
    free(f->meta);
    *f = (struct gguf_file){ 0 };
}

/* ---- values ---- */

int gguf_text_is(struct gguf_text t, const char *s)
{
    return (size_t)t.n == strlen(s) && !memcmp(t.p, s, (size_t)t.n);
}

const struct gguf_meta *gguf_meta_find(const struct gguf_file *f, const char *key)
{
    struct gguf_meta k = { .key = { key, (int64_t)strlen(key) } };
    return f->n_meta ? bsearch(&k, f->meta, (size_t)f->n_meta, sizeof k, compare_meta) : NULL;
}

static double value_float(enum gguf_value type, const unsigned char *p)
{
    float f;
    double d;
    switch (type) {
    case GGUF_VALUE_F32: memcpy(&f, p, 4); return (double)f;
    case GGUF_VALUE_F64: memcpy(&d, p, 8); return d;
    case GGUF_VALUE_I8: return (double)(int8_t)p[0];
    case GGUF_VALUE_I16: return (double)(int16_t)number(p, 2);
    case GGUF_VALUE_I32: return (double)(int32_t)number(p, 4);
    case GGUF_VALUE_I64: return (double)(int64_t)number(p, 8);
    default: return (double)number(p, gguf_value_bytes(type));
    }
}

static int64_t value_int(enum gguf_value type, const unsigned char *p)
{
    double d;
    switch (type) {
    case GGUF_VALUE_F32:
    case GGUF_VALUE_F64:
        d = value_float(type, p);
        return d >= -9e18 && d <= 9e18 ? (int64_t)d : 0; /* NaN too */
    case GGUF_VALUE_I8: return (int8_t)p[0];
    case GGUF_VALUE_I16: return (int16_t)number(p, 2);
    case GGUF_VALUE_I32: return (int32_t)number(p, 4);
    default: return (int64_t)number(p, gguf_value_bytes(type));
    }
}

static int is_number(const struct gguf_meta *m) { return m && gguf_value_bytes(m->type) > 0; }

int gguf_int(const struct gguf_file *f, const char *key, int64_t *out)
{
    const struct gguf_meta *m = gguf_meta_find(f, key);
    if (is_number(m))
        *out = value_int(m->type, m->data);
    return is_number(m);
}

int gguf_float(const struct gguf_file *f, const char *key, double *out)
{
    const struct gguf_meta *m = gguf_meta_find(f, key);
    if (is_number(m))
        *out = value_float(m->type, m->data);
    return is_number(m);
}

int gguf_get_text(const struct gguf_file *f, const char *key, struct gguf_text *out)
{
    const struct gguf_meta *m = gguf_meta_find(f, key);
    if (!m || m->type != GGUF_VALUE_TEXT)
        return 0;
    *out = (struct gguf_text){ (const char *)m->data, m->n };
    return 1;
}

int64_t gguf_array_int(const struct gguf_meta *m, int64_t i)
{
    return value_int(m->of, m->data + i * gguf_value_bytes(m->of));
}

double gguf_array_float(const struct gguf_meta *m, int64_t i)
{
    return value_float(m->of, m->data + i * gguf_value_bytes(m->of));
}

struct gguf_text gguf_next_text(const unsigned char **at)
{
    struct gguf_text t = { (const char *)*at + 8, (int64_t)number(*at, 8) };
    *at += 8 + t.n;
    return t;
}
