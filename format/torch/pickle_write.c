/* pickle_write.c - see pickle_write.h. */
#include "format/torch/pickle_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes ---- */

static void put(struct pkw *w, const void *data, size_t n) { buf_add(&w->b, data, n); }

static void put_le(struct pkw *w, int op, uint64_t v, int n_bytes)
{
    char b[9] = { (char)op };
    for (int i = 0; i < n_bytes; i++)
        b[1 + i] = (char)(v >> 8 * i);
    put(w, b, (size_t)n_bytes + 1);
}

void pkw_op(struct pkw *w, int op) { put_le(w, op, 0, 0); }

void pkw_begin(struct pkw *w) { put_le(w, 0x80, 2, 1); }

void pkw_free(struct pkw *w)
{
    buf_free(&w->b);
    memset(w, 0, sizeof *w);
}

int pkw_end(struct pkw *w, struct err *e)
{
    pkw_op(w, PKW_STOP);
    return w->b.failed ? err_set(e, ERR_MEMORY, "no memory for a pickle of %zu bytes", w->b.n) : 0;
}

/* ---- values ---- */

void pkw_text(struct pkw *w, const char *text)
{
    size_t n = strlen(text);
    put_le(w, 'X', n, 4);
    put(w, text, n);
}

void pkw_int(struct pkw *w, int64_t v)
{
    if (v >= 0 && v < 256)
        put_le(w, 'K', (uint64_t)v, 1);
    else if (v >= INT32_MIN && v <= INT32_MAX)
        put_le(w, 'J', (uint64_t)v, 4);
    else {
        put_le(w, 0x8a, 8, 1); /* LONG1: eight bytes, two's complement */
        put(w, &v, sizeof v);
    }
}

void pkw_float(struct pkw *w, double v)
{
    uint64_t bits;
    char b[9] = { 'G' };
    memcpy(&bits, &v, sizeof bits);
    for (int i = 0; i < 8; i++)
        b[1 + i] = (char)(bits >> (56 - 8 * i));
    put(w, b, sizeof b);
}

void pkw_ints(struct pkw *w, int n, const int64_t *v)
{
    pkw_op(w, PKW_MARK);
    for (int i = 0; i < n; i++)
        pkw_int(w, v[i]);
    pkw_op(w, PKW_TUPLE);
}

/* ---- memoized classes and words ---- */

/* Returns 1: it was written before, and a reference to it is written. */
static int recall(struct pkw *w, const char *module, const char *name)
{
    for (int i = 0; i < w->n_words; i++)
        if (!strcmp(w->word[i].name, name) && !w->word[i].module == !module &&
            (!module || !strcmp(w->word[i].module, module))) {
            put_le(w, 'h', (uint64_t)i, 1);
            return 1;
        }
    return 0;
}

static void keep(struct pkw *w, const char *module, const char *name)
{
    if (w->n_words == PKW_WORDS)
        return;
    put_le(w, 'q', (uint64_t)w->n_words, 1);
    w->word[w->n_words].module = module;
    w->word[w->n_words++].name = name;
}

void pkw_word(struct pkw *w, const char *text)
{
    if (recall(w, NULL, text))
        return;
    pkw_text(w, text);
    keep(w, NULL, text);
}

void pkw_global(struct pkw *w, const char *module, const char *name)
{
    if (recall(w, module, name))
        return;
    pkw_op(w, 'c');
    put(w, module, strlen(module));
    put(w, "\n", 1);
    put(w, name, strlen(name));
    put(w, "\n", 1);
    keep(w, module, name);
}

void pkw_object(struct pkw *w, const char *module, const char *name)
{
    pkw_global(w, module, name);
    pkw_op(w, PKW_EMPTY_TUPLE);
    pkw_op(w, PKW_NEWOBJ);
    pkw_op(w, PKW_DICT);
    pkw_op(w, PKW_MARK);
}

void pkw_object_end(struct pkw *w)
{
    pkw_op(w, PKW_SETITEMS);
    pkw_op(w, PKW_BUILD);
}

/* ---- objects of torch ---- */

/* Without the name of a storage: torch saves such tensors as bytes and their dtype. */
static const struct {
    const char *dtype, *storage;
} names[STORED_DTYPES] = {
    [STORED_F32] = { "float32", "FloatStorage" },
    [STORED_BF16] = { "bfloat16", "BFloat16Storage" },
    [STORED_F16] = { "float16", "HalfStorage" },
    [STORED_F64] = { "float64", "DoubleStorage" },
    [STORED_I64] = { "int64", "LongStorage" },
    [STORED_I32] = { "int32", "IntStorage" },
    [STORED_I16] = { "int16", "ShortStorage" },
    [STORED_I8] = { "int8", "CharStorage" },
    [STORED_U8] = { "uint8", "ByteStorage" },
    [STORED_BOOL] = { "bool", "BoolStorage" },
    [STORED_C64] = { "complex64", "ComplexFloatStorage" },
    [STORED_U64] = { "uint64", NULL },
    [STORED_U32] = { "uint32", NULL },
    [STORED_U16] = { "uint16", NULL },
    [STORED_F8_E4M3] = { "float8_e4m3fn", NULL },
    [STORED_F8_E5M2] = { "float8_e5m2", NULL },
    [STORED_F8_E8M0] = { "float8_e8m0fnu", NULL },
    [STORED_F8_E4M3FNUZ] = { "float8_e4m3fnuz", NULL },
    [STORED_F8_E5M2FNUZ] = { "float8_e5m2fnuz", NULL },
};

int pkw_check_dtype(const struct ckpt_tensor *t, const char *format, struct err *e)
{
    if (t->tail)
        return err_set(e, ERR_USAGE,
                       "%s has more than %d dims: --format %s cannot hold it: choose --format native or hf",
                       t->name, BOX_DIMS, format);
    if (names[t->dtype].dtype)
        return 0;
    return err_set(e, ERR_USAGE, "%s is %s: --format %s cannot hold it: choose --format native or hf",
                   t->name, stored_dtype_name(t->dtype), format);
}

void pkw_dtype(struct pkw *w, enum stored_dtype t) { pkw_global(w, "torch", names[t].dtype); }

void pkw_size(struct pkw *w, int n, const int64_t *v)
{
    pkw_global(w, "torch", "Size");
    pkw_op(w, PKW_MARK);
    pkw_ints(w, n, v);
    pkw_op(w, PKW_TUPLE);
    pkw_op(w, PKW_REDUCE);
}

void pkw_tensor(struct pkw *w, enum stored_dtype t, int n_dims, const int64_t *shape, int number)
{
    const int is_bytes = !names[t].storage;
    int64_t stride[BOX_DIMS], n = 1;
    char key[16];

    snprintf(key, sizeof key, "%d", number);
    for (int d = n_dims - 1; d >= 0; d--) {
        stride[d] = n;
        n *= shape[d];
    }

    pkw_global(w, "torch._utils", is_bytes ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
    pkw_op(w, PKW_MARK);
    pkw_op(w, PKW_MARK);
    pkw_word(w, "storage");
    pkw_global(w, is_bytes ? "torch.storage" : "torch", is_bytes ? "UntypedStorage" : names[t].storage);
    pkw_text(w, key);
    pkw_word(w, "cpu");
    pkw_int(w, is_bytes ? stored_bytes(t, n) : n);
    pkw_op(w, PKW_TUPLE);
    pkw_op(w, PKW_PERSID);
    pkw_int(w, 0);
    pkw_ints(w, n_dims, shape);
    pkw_ints(w, n_dims, stride);
    pkw_op(w, PKW_FALSE);                        /* requires_grad */
    pkw_global(w, "collections", "OrderedDict"); /* hooks: none */
    pkw_op(w, PKW_EMPTY_TUPLE);
    pkw_op(w, PKW_REDUCE);
    if (is_bytes)
        pkw_dtype(w, t);
    pkw_op(w, PKW_TUPLE);
    pkw_op(w, PKW_REDUCE);
}
