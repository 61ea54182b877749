/* kept.c - see kept.h. */
#include "format/quant/kept.h"

#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/fmt.h"
#include "format/quant_view.h"

/* ---- config.json ---- */

char *config_dump(json_t *o, struct err *e)
{
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL,
         *line = text ? realloc(text, strlen(text) + 2) : NULL;
    json_decref(o);
    if (!line) {
        free(text);
        err_set(e, ERR_MEMORY, "no memory for config.json");
        return NULL;
    }
    return strcat(line, "\n");
}

/* Removes what describes the quantisation, and names the dtype of the weights where one was named. */
static void make_plain(json_t *o, const char *dtype)
{
    static const char *const quantised[] = { "quantization_config", "compression_config" };
    static const char *const dtypes[] = { "torch_dtype", "dtype" };
    for (size_t i = 0; i < 2; i++)
        json_object_del(o, quantised[i]);
    for (size_t i = 0; i < 2; i++)
        if (json_is_string(json_object_get(o, dtypes[i])))
            json_object_set_new(o, dtypes[i], json_string(dtype));
}

char *config_plain(const char *text, enum stored_dtype to, struct err *e)
{
    const char *dtype = to == STORED_F32 ? "float32" : "bfloat16", *key;
    json_t *o = jx_parse(text, strlen(text), FMT_CONFIG, e), *v;
    if (!o)
        return NULL;
    make_plain(o, dtype);
    json_object_foreach(o, key, v)
        if (json_is_object(v) && strstr(key, "_config"))
            make_plain(v, dtype);
    return config_dump(o, e);
}

/* ---- writing ---- */

static int add_file(json_t *files, const char *name, const char *text, size_t n, struct err *e)
{
    json_t *s = json_stringn(text, n);
    if (s && json_object_set_new(files, name, s) == 0)
        return 0;
    return err_set(e, ERR_FORMAT, "%s is not UTF-8: it cannot be kept for --requantize", name);
}

static int is_quant_file(const char *name)
{
    return !strcmp(name, QUANT_GPTQ_FILE) || !strcmp(name, QUANT_MODELOPT_FILE);
}

static int add_files(json_t *files, struct ckpt *c, struct err *e)
{
    const char *config = ckpt_config_json(c);
    int rc = config ? add_file(files, FMT_CONFIG, config, strlen(config), e) : 0;
    for (int i = 0; i < ckpt_n_extra(c) && rc >= 0; i++) {
        void *data = NULL;
        size_t n;
        if (!is_quant_file(ckpt_extra_name(c, i)))
            continue;
        rc = ckpt_extra_read(c, i, &data, &n, e);
        if (rc >= 0)
            rc = add_file(files, ckpt_extra_name(c, i), data, n, e);
        free(data);
    }
    return rc;
}

static void add_codes(json_t *codes, const struct ckpt *c, const struct quant_list *q)
{
    for (int i = 0; i < q->n; i++) {
        const struct ckpt_tensor *t = ckpt_tensor(c, quant_part(&q->weight[i], QUANT_CODES)->tensor);
        json_t *shape = json_array();
        for (int d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer(t->shape[d]));
        json_object_set_new(codes, t->name,
                            json_pack("[s,o,s]", stored_dtype_name(t->dtype), shape, q->weight[i].name));
    }
}

char *kept_text(struct ckpt *c, const struct quant_list *q, enum stored_dtype to, struct err *e)
{
    json_t *files = json_object(), *codes = json_object();
    json_t *root = json_pack("{s:i,s:s,s:o,s:o}", "format", 1, "values", stored_dtype_name(to), "files",
                             files, "codes", codes);
    char *text = NULL;
    if (!root) {
        err_set(e, ERR_MEMORY, "no memory for " QUANT_KEPT_FILE);
        return NULL;
    }
    add_codes(codes, c, q);
    if (add_files(files, c, e) >= 0 && !(text = json_dumps(root, JSON_COMPACT)))
        err_set(e, ERR_MEMORY, "no memory for " QUANT_KEPT_FILE);
    json_decref(root);
    return text;
}

/* ---- reading ---- */

static int parse(struct kept *k, const char *text, size_t n, struct err *e)
{
    const char *values = "", *name;
    int64_t format = 0;
    json_t *v;
    if (!(k->root = jx_parse(text, n, QUANT_KEPT_FILE, e)))
        return -e->code;
    if (jx_int(k->root, QUANT_KEPT_FILE, "format", &format, e) < 0 ||
        jx_text(k->root, QUANT_KEPT_FILE, "values", &values, e) < 0)
        return -e->code;
    k->files = json_object_get(k->root, "files");
    k->codes = json_object_get(k->root, "codes");
    int dtype = stored_dtype_find(values);
    if (format != 1 || (dtype != STORED_F32 && dtype != STORED_BF16) || !json_is_object(k->files) ||
        !json_is_object(k->codes))
        return err_set(e, ERR_FORMAT, QUANT_KEPT_FILE ": is not what --dequantize writes: restore it");
    k->values = (enum stored_dtype)dtype;
    json_object_foreach(k->files, name, v)
        if (!json_is_string(v) || (strcmp(name, FMT_CONFIG) && !is_quant_file(name)))
            return err_set(e, ERR_FORMAT,
                           QUANT_KEPT_FILE ": holds %.60s, which is no file of a configuration", name);
    return 0;
}

int kept_open(struct kept *k, struct ckpt *c, struct err *e)
{
    memset(k, 0, sizeof *k);
    for (int i = 0; i < ckpt_n_extra(c); i++) {
        void *data = NULL;
        size_t n;
        if (strcmp(ckpt_extra_name(c, i), QUANT_KEPT_FILE))
            continue;
        int rc = ckpt_extra_read(c, i, &data, &n, e);
        if (rc >= 0)
            rc = parse(k, data, n, e);
        free(data);
        return rc < 0 ? err_add(e, "%s", ckpt_path(c)) : 0;
    }
    return err_set(e, ERR_CONFIG,
                   "%s: has no " QUANT_KEPT_FILE ": --requantize takes what --dequantize wrote",
                   ckpt_path(c));
}

void kept_close(struct kept *k)
{
    json_decref(k->root);
    memset(k, 0, sizeof *k);
}

int kept_row(const char *name, const json_t *row, struct ckpt_tensor *t, const char **weight, struct err *e)
{
    const json_t *shape = json_array_get(row, 1), *size;
    const char *dtype = json_string_value(json_array_get(row, 0));
    int found = dtype ? stored_dtype_find(dtype) : -1;
    size_t i;
    *weight = json_string_value(json_array_get(row, 2));
    *t = (struct ckpt_tensor){ .name = name, .role = ROLE_WEIGHT, .n_dims = (int)json_array_size(shape) };
    if (!*weight || found < 0 || t->n_dims < 1 || t->n_dims > BOX_DIMS)
        return err_set(e, ERR_FORMAT, QUANT_KEPT_FILE ": %.100s has no dtype, shape and weight: restore it",
                       name);
    t->dtype = (enum stored_dtype)found;
    json_array_foreach((json_t *)shape, i, size)
        t->shape[i] = json_integer_value(size);
    return 0;
}
