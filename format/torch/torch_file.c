/* torch_file.c - see torch_file.h. */
#include "format/torch/torch_file.h"

#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/torch/zip_crc.h"

#define PICKLE_MAX ((int64_t)1 << 28)
/* Bytes of a stream to read first; four times as many each time the pickles do not end in them. */
#define PREFIX ((int64_t)1 << 20)
/* Bytes that a view larger than its storage (stride 0) may have. */
#define EXPAND_MAX ((int64_t)16 << 20)
#define UNWRAP_MAX 8
#define SMALL ((int64_t)1 << 16)

static const struct {
    const char *name;
    int size, known;
} dtypes[TORCH_DTYPES] = {
    [TORCH_F32] = { "float32", 4, STORED_F32 },
    [TORCH_F64] = { "float64", 8, STORED_F64 },
    [TORCH_F16] = { "float16", 2, STORED_F16 },
    [TORCH_BF16] = { "bfloat16", 2, STORED_BF16 },
    [TORCH_I64] = { "int64", 8, STORED_I64 },
    [TORCH_I32] = { "int32", 4, STORED_I32 },
    [TORCH_I16] = { "int16", 2, STORED_I16 },
    [TORCH_I8] = { "int8", 1, STORED_I8 },
    [TORCH_U8] = { "uint8", 1, STORED_U8 },
    [TORCH_BOOL] = { "bool", 1, STORED_BOOL },
    [TORCH_U16] = { "uint16", 2, STORED_U16 },
    [TORCH_U32] = { "uint32", 4, STORED_U32 },
    [TORCH_U64] = { "uint64", 8, STORED_U64 },
    [TORCH_C64] = { "complex64", 8, STORED_C64 },
    [TORCH_C128] = { "complex128", 16, -1 },
    [TORCH_F8_E4M3] = { "float8_e4m3fn", 1, STORED_F8_E4M3 },
    [TORCH_F8_E5M2] = { "float8_e5m2", 1, STORED_F8_E5M2 },
    [TORCH_F8_E8M0] = { "float8_e8m0fnu", 1, STORED_F8_E8M0 },
    [TORCH_F8_E4M3FNUZ] = { "float8_e4m3fnuz", 1, STORED_F8_E4M3FNUZ },
    [TORCH_F8_E5M2FNUZ] = { "float8_e5m2fnuz", 1, STORED_F8_E5M2FNUZ },
    [TORCH_BYTES] = { "untyped", 1, -1 },
};
const char *torch_dtype_name(enum torch_dtype t) { return dtypes[t].name; }
int64_t torch_dtype_size(enum torch_dtype t) { return dtypes[t].size; }
int torch_dtype_known(enum torch_dtype t) { return dtypes[t].known; }

static const char *path_of(const struct torch_file *t) { return t->c->file[t->file].path; }

/* ---- the zip ---- */

static int check_byteorder(struct torch_file *t, struct err *e)
{
    struct zip_entry *x = zip_find(&t->zip, "byteorder", 9);
    void *text = NULL;
    int rc = x ? zip_load(&t->zip, x, 16, &text, e) : 0;
    if (rc >= 0 && text && strcmp(text, "little"))
        rc = err_set(e, ERR_FORMAT,
                     "%s: written on a big-endian machine (byteorder says %.10s): save it again on a "
                     "little-endian one",
                     path_of(t), (char *)text);
    free(text);
    return rc;
}

static int open_zip(struct torch_file *t, int64_t base, int64_t length, struct err *e)
{
    struct zip_entry *x;
    int rc = 0;

    TRY(zip_open(&t->zip, t->c, t->file, base, length, e));
    t->is_zip = 1;
    if (zip_find(&t->zip, "constants.pkl", 13)) {
        rc = err_set(e, ERR_FORMAT,
                     "%s: a torch.jit archive holds code: save the state_dict of the model instead",
                     path_of(t));
        goto out;
    }

    if (!(x = zip_find(&t->zip, "data.pkl", 8))) {
        rc = err_set(e, ERR_FORMAT, "%s: a zip without data.pkl: was it written by torch.save", path_of(t));
        goto out;
    }

    TRY(check_byteorder(t, e));
    TRY(zip_load(&t->zip, x, PICKLE_MAX, &t->text, e));
    TRY(pk_parse(&t->doc[0], t->text, (size_t)x->bytes, path_of(t), e));
    t->root = t->doc[0].root;
out:
    return rc < 0 ? rc : 0;
}

/* ---- the stream ---- */

static void drop_pickles(struct torch_file *t)
{
    for (int i = 0; i < 5; i++)
        pk_free(&t->doc[i]);
    free(t->text);
    t->text = NULL;
}

/* Parses the five pickles in the first n bytes; *end: the first byte of the storages. */
static int parse_stream(struct torch_file *t, int64_t n, int64_t *end, struct err *e)
{
    static const unsigned char magic[10] = { 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19 };
    const char *text = t->text;
    int64_t version = 0;

    *end = 0;
    for (int i = 0; i < 5; i++) {
        int rc = pk_parse(&t->doc[i], text + *end, (size_t)(n - *end), path_of(t), e);
        if (rc < 0)
            return rc;
        *end += (int64_t)t->doc[i].used;
        if (i == 0 && (t->doc[0].root->kind != PK_BIG || *end < 11 || memcmp(text + *end - 11, magic, 10)))
            return err_set(e, ERR_FORMAT, "%s: a pickle, but not one of torch.save: is it a checkpoint",
                           path_of(t));
    }

    const struct pk *little = pk_get(t->doc[2].root, "little_endian");
    if (!pk_int(t->doc[1].root, &version) || version != 1001)
        return err_set(e, ERR_FORMAT,
                       "%s: a stream of torch.save of version %lld, this program reads 1001: save it again",
                       path_of(t), (long long)version);
    if (!little || little->kind != PK_BOOL || !little->i)
        return err_set(e, ERR_FORMAT, "%s: not written on a little-endian machine: save it again on one",
                       path_of(t));
    return 0;
}

/* The element size of the storage with this key, which is stored where the object uses it. */
static int64_t size_of_key(const struct torch_file *t, const struct pk *key)
{
    for (const struct pk *p = t->doc[3].persid; p; p = p->state) {
        const struct pk *k = pk_at(p->args, 2), *c = pk_at(p->args, 1);
        if (k && k->kind == PK_TEXT && k->n == key->n && !memcmp(k->text, key->text, k->n) && c &&
            c->kind == PK_CLASS && c->cls->id == PK_STORAGE)
            return dtypes[c->cls->value].size;
    }
    return 0;
}

static int compare_key(const void *pa, const void *pb)
{
    const struct torch_storage *a = pa, *b = pb;
    int n = a->n_key < b->n_key ? a->n_key : b->n_key, d = memcmp(a->key, b->key, (size_t)n);
    return d ? d : (a->n_key > b->n_key) - (a->n_key < b->n_key);
}

static int place_storages(struct torch_file *t, int64_t at, int64_t end, struct err *e)
{
    const struct pk *keys = t->doc[4].root, *key;
    if (keys->kind != PK_LIST)
        return err_set(e, ERR_FORMAT, "%s: the stream has no list of storages: is the file whole",
                       path_of(t));
    t->storage = calloc((size_t)keys->n + 1, sizeof *t->storage);
    if (!t->storage)
        return err_set(e, ERR_MEMORY, "%s: no memory for %u storages", path_of(t), keys->n);
    for (uint32_t i = 0; (key = pk_at(keys, i)); i++) {
        uint64_t n = 0;
        int64_t size = key->kind == PK_TEXT ? size_of_key(t, key) : 0, bytes = 0;
        int rc = size && end - at >= 8 ? fmt_pread(t->c, t->file, &n, 8, at, e) : 0;
        if (rc < 0)
            return rc;
        if (!size || end - at < 8 || __builtin_mul_overflow((int64_t)n, size, &bytes) || bytes < 0 ||
            bytes > end - at - 8)
            return err_set(
                e, ERR_FORMAT,
                "%s: storage %u of %u at byte %lld has %llu elements, the file ends at %lld: is it whole",
                path_of(t), i, keys->n, (long long)at, (unsigned long long)n, (long long)end);
        t->storage[t->n_storages++] = (struct torch_storage){ key->text, (int)key->n, at + 8, bytes, NULL };
        at += 8 + bytes;
    }

    qsort(t->storage, (size_t)t->n_storages, sizeof *t->storage, compare_key);
    return 0;
}

static int open_stream(struct torch_file *t, int64_t base, int64_t length, struct err *e)
{
    int64_t n = PREFIX, end = 0;
    int rc;

    for (;; n *= 4) {
        n = n < length ? n : length;
        n = n < PICKLE_MAX ? n : PICKLE_MAX;
        if (!(t->text = malloc((size_t)n + 1)))
            return err_set(e, ERR_MEMORY, "%s: no memory for its pickles", path_of(t));
        if ((rc = fmt_pread(t->c, t->file, t->text, n, base, e)) < 0)
            return rc;
        if ((rc = parse_stream(t, n, &end, e)) >= 0 || n == length || n == PICKLE_MAX ||
            e->code == ERR_MEMORY)
            break;
        drop_pickles(t);
    }

    if (rc < 0)
        return rc;
    t->root = t->doc[3].root;
    return place_storages(t, base + end, base + length, e);
}

/* ---- either ---- */

static int is_tar(const char *start, int64_t n) { return n >= 262 && !memcmp(start + 257, "ustar", 5); }

int torch_open(struct torch_file *t, struct ckpt *c, int file, int64_t base, int64_t length, struct err *e)
{
    char start[512] = { 0 };
    int64_t n = length < (int64_t)sizeof start ? length : (int64_t)sizeof start;
    int rc = 0;

    *t = (struct torch_file){ .c = c, .file = file };
    TRY(fmt_pread(c, file, start, n, base, e));
    if (n >= 2 && start[0] == '\x80' && start[1] >= 2 && start[1] <= 5)
        rc = open_stream(t, base, length, e);
    else if (is_tar(start, n))
        rc = err_set(e, ERR_FORMAT,
                     "%s: a tar file of torch before 0.1.10: load and save it again with a newer torch",
                     path_of(t));
    else
        rc = open_zip(t, base, length, e);
out:
    if (rc < 0)
        torch_close(t);
    return rc < 0 ? rc : 0;
}

void torch_close(struct torch_file *t)
{
    drop_pickles(t);
    zip_close(&t->zip);
    free(t->storage);
    t->storage = NULL;
    t->root = NULL;
    t->n_storages = 0;
}

int torch_looks_like(const char *path)
{
    struct err e;
    char start[512] = { 0 };
    int fd = io_open_read(path, &e), yes = 0;
    if (fd < 0)
        return 0;
    int64_t n = io_size(fd, path, &e);
    n = n < (int64_t)sizeof start ? n : (int64_t)sizeof start;
    if (n > 0 && io_pread(fd, path, start, (size_t)n, 0, &e) >= 0)
        yes = !memcmp(start, "PK\003\004", 4) || !memcmp(start, "PK\005\006", 4) ||
              (start[0] == '\x80' && start[1] >= 2 && start[1] <= 5) || is_tar(start, n);
    io_close(fd);
    return yes;
}

/* ---- tensors ---- */

/* Finds the call that rebuilds a tensor, inside of parameters and of tensors with attributes: its class
 * and arguments. */
static const struct pk *unwrap(const struct pk *p, enum pk_class_id *id)
{
    const struct pk *args = p && p->kind == PK_CALL ? p->args : NULL;
    *id = args ? p->cls->id : PK_INERT;
    for (int i = 0; args && i < UNWRAP_MAX; i++) {
        if (*id == PK_TENSOR_V2 || *id == PK_TENSOR_V3)
            return args;
        const struct pk *inner = pk_at(args, 0);
        if (*id == PK_FROM_TYPE && inner && inner->kind == PK_CLASS) {
            *id = inner->cls->id;
            args = pk_at(args, 2);
        } else if (*id == PK_PARAMETER && inner && inner->kind == PK_CALL) {
            *id = inner->cls->id;
            args = inner->args;
        } else {
            return NULL;
        }
    }
    return NULL;
}

int torch_is_tensor(const struct pk *p)
{
    enum pk_class_id id;
    return unwrap(p, &id) != NULL;
}

static int bad(const struct torch_file *t, const char *name, const char *what, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: %.200s %s: is the file damaged", path_of(t), name, what);
}

static int find_zip_storage(struct torch_file *t, const struct pk *key, enum torch_dtype as, const char *name,
                            struct torch_storage *s, struct err *e)
{
    char record[80] = "data/";
    for (uint32_t i = 0; i < key->n; i++)
        if (key->n > 64 ||
            !((key->text[i] >= '0' && key->text[i] <= '9') || (key->text[i] >= 'a' && key->text[i] <= 'z') ||
              (key->text[i] >= 'A' && key->text[i] <= 'Z') || key->text[i] == '_'))
            return bad(t, name, "names its storage by something that is not a plain key", e);
    memcpy(record + 5, key->text, key->n);
    struct zip_entry *x = zip_find(&t->zip, record, 5 + (int)key->n);
    if (!x)
        return err_set(e, ERR_FORMAT, "%s: %.200s lies in record %s, which is not there: is the file whole",
                       path_of(t), name, record);
    if (x->used_as && x->used_as != 1 + (int)as)
        return bad(t, name, "reads as another type a storage that another tensor uses", e);
    x->used_as = 1 + (int)as;
    int rc = zip_locate(&t->zip, x, e);
    if (rc < 0 || (rc = zip_note_crc(&t->zip, x, e)) < 0)
        return rc;
    *s = (struct torch_storage){ x->name, x->n_name, x->data, x->bytes, x };
    return 0;
}

static int find_storage(struct torch_file *t, const struct pk *p, const char *name, enum torch_dtype *as,
                        struct torch_storage *s, int64_t *n, struct err *e)
{
    const struct pk *a = p && p->kind == PK_PERSID ? p->args : NULL, *cls = pk_at(a, 1), *key = pk_at(a, 2),
                    *view = pk_at(a, 5);
    int64_t bytes;

    if (!a || !pk_is_text(pk_at(a, 0), "storage") || !cls || cls->kind != PK_CLASS ||
        cls->cls->id != PK_STORAGE || !key || key->kind != PK_TEXT || !key->n)
        return bad(t, name, "has no storage", e);
    if (view && view->kind != PK_NONE)
        return bad(t, name, "is a view of a storage of another storage, which torch no longer writes", e);
    *as = (enum torch_dtype)cls->cls->value;
    if (!pk_int(pk_at(a, 4), n) || *n < 0 || __builtin_mul_overflow(*n, dtypes[*as].size, &bytes))
        return bad(t, name, "has a storage of a size that makes no sense", e);
    if (t->is_zip) {
        int rc = find_zip_storage(t, key, *as, name, s, e);
        if (rc < 0)
            return rc;
    } else {
        struct torch_storage want = { .key = key->text, .n_key = (int)key->n };
        struct torch_storage *found = t->n_storages ? bsearch(&want, t->storage, (size_t)t->n_storages,
                                                              sizeof want, compare_key)
                                                    : NULL;
        if (!found)
            return bad(t, name, "lies in a storage that is not in the file", e);
        *s = *found;
    }

    if (bytes != s->bytes)
        return err_set(e, ERR_FORMAT,
                       "%s: the storage of %.200s should have %lld bytes, it has %lld: is the file damaged",
                       path_of(t), name, (long long)bytes, (long long)s->bytes);
    return 0;
}

/* Checks sizes and strides: the product does not overflow, the last element is in the storage, and a view
 * with stride 0 is not too large. */
static int check_view(const struct torch_file *t, struct torch_tensor *out, const char *name, int64_t offset,
                      int64_t storage_n, struct err *e)
{
    int64_t last = offset, step, size = dtypes[out->dtype].size, bytes = size, dense = 1;
    out->n = 1;
    out->contiguous = 1;
    for (int d = 0; d < out->n_dims; d++) {
        if (out->shape[d] < 0 || out->stride[d] < 0)
            return bad(t, name, "has a negative size or stride", e);
        if (__builtin_mul_overflow(bytes, out->shape[d], &bytes) ||
            __builtin_mul_overflow(out->shape[d] - (out->shape[d] > 0), out->stride[d], &step) ||
            __builtin_add_overflow(last, step, &last))
            return bad(t, name, "has a shape that overflows", e);
        out->n *= out->shape[d];
    }

    for (int d = out->n_dims - 1; d >= 0 && out->n; d--) {
        if (out->shape[d] != 1 && out->stride[d] != dense)
            out->contiguous = 0;
        dense *= out->shape[d];
    }

    if (offset < 0 || offset > storage_n || (out->n && last >= storage_n))
        return err_set(e, ERR_FORMAT,
                       "%s: %.200s reaches element %lld of a storage of %lld: is the file damaged",
                       path_of(t), name, (long long)last, (long long)storage_n);
    if (out->n > storage_n && bytes > EXPAND_MAX)
        return err_set(
            e, ERR_FORMAT,
            "%s: %.200s makes %lld elements of a storage of %lld by stride 0: save a copy that is contiguous",
            path_of(t), name, (long long)out->n, (long long)storage_n);
    return 0;
}

static int check_metadata(const struct torch_file *t, const struct pk *meta, const char *name, struct err *e)
{
    if (meta && !(meta->kind == PK_NONE || (meta->kind == PK_DICT && meta->n == 0)))
        return bad(t, name, "is conjugated, negated or otherwise not what its bytes say", e);
    return 0;
}

int torch_tensor(struct torch_file *t, const struct pk *p, const char *name, struct torch_tensor *out,
                 struct err *e)
{
    enum pk_class_id id;
    const struct pk *a = unwrap(p, &id), *size = pk_at(a, 2), *stride = pk_at(a, 3), *dtype = pk_at(a, 6);
    struct torch_storage s = { 0 };
    enum torch_dtype as = TORCH_BYTES;
    int64_t offset = 0, storage_n = 0;
    int rc = 0;

    memset(out, 0, sizeof *out);
    if (!a || !size || !stride || size->kind != PK_TUPLE || stride->kind != PK_TUPLE)
        return bad(t, name, "is not a tensor", e);
    if (size->n != stride->n)
        return bad(t, name, "has more sizes than strides, or fewer", e);
    if (size->n > TORCH_DIMS)
        return err_set(e, ERR_FORMAT,
                       "%s: %.200s has %u dimensions, this program knows up to %d: is the file damaged",
                       path_of(t), name, size->n, TORCH_DIMS);
    TRY(find_storage(t, pk_at(a, 0), name, &as, &s, &storage_n, e));
    out->dtype = as;
    if (id == PK_TENSOR_V3) {
        if (!dtype || dtype->kind != PK_CLASS || dtype->cls->id != PK_DTYPE)
            return bad(t, name, "has no dtype", e);
        out->dtype = (enum torch_dtype)dtype->cls->value;
        storage_n = s.bytes / dtypes[out->dtype].size;
    }

    TRY(check_metadata(t, pk_at(a, id == PK_TENSOR_V3 ? 7 : 6), name, e));
    out->n_dims = (int)size->n;
    int whole = pk_int(pk_at(a, 1), &offset);
    for (int d = 0; d < out->n_dims && whole; d++)
        whole = pk_int(pk_at(size, (uint32_t)d), &out->shape[d]) &&
                pk_int(pk_at(stride, (uint32_t)d), &out->stride[d]);
    if (!whole)
        return bad(t, name, "has a size, stride or offset that is not a number of 64 bits", e);
    TRY(check_view(t, out, name, offset, storage_n, e));
    out->record = s.record;
    out->offset = s.data + offset * dtypes[out->dtype].size;
out:
    return rc < 0 ? rc : 0;
}

/* Reads the bytes of a small tensor and checks the CRC-32 of its record. */
static int read_small(struct torch_file *t, const struct torch_tensor *x, void *dst, struct err *e)
{
    size_t n = (size_t)dtypes[x->dtype].size;
    void *all = NULL;
    if (!x->record || x->record->bytes > SMALL)
        return fmt_pread(t->c, t->file, dst, (int64_t)n, x->offset, e);
    int rc = zip_load(&t->zip, x->record, SMALL, &all, e);
    if (rc >= 0)
        memcpy(dst, (char *)all + (x->offset - x->record->data), n);
    free(all);
    return rc;
}

int torch_number(struct torch_file *t, const struct pk *p, const char *name, double *out, struct err *e)
{
    struct torch_tensor x;
    int64_t i = 0;
    char data[8] = { 0 };
    int rc;

    if (p && p->kind == PK_FLOAT)
        return *out = p->f, 1;
    if (pk_int(p, &i))
        return *out = (double)i, 1;
    if (!torch_is_tensor(p))
        return 0;
    if ((rc = torch_tensor(t, p, name, &x, e)) < 0)
        return rc;
    if (x.n != 1 ||
        (x.dtype != TORCH_F32 && x.dtype != TORCH_F64 && x.dtype != TORCH_I64 && x.dtype != TORCH_I32))
        return err_set(e, ERR_FORMAT, "%s: %.200s is not one number: is the file damaged", path_of(t), name);
    if ((rc = read_small(t, &x, data, e)) < 0)
        return rc;
    float f;
    int32_t k;
    switch (x.dtype) {
    case TORCH_F32:
        memcpy(&f, data, 4);
        *out = (double)f;
        break;
    case TORCH_F64: memcpy(out, data, 8); break;
    case TORCH_I32:
        memcpy(&k, data, 4);
        *out = k;
        break;
    default: memcpy(&i, data, 8); *out = (double)i;
    }
    return 1;
}
