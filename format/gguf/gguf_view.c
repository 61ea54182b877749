/* gguf_view.c - see gguf_model.h and format/gguf_read.h: the views of a GGUF checkpoint. The first computes
 * what is not a piece of the file; the second, on demand, makes numbers of blocks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/gguf/gguf_block.h"
#include "format/gguf/gguf_model.h"
#include "format/gguf_read.h"

/* A list of tensors of a view being made. */
struct rows {
    int n;
    struct ckpt_view_tensor *t;
    char *used; /* [tensors below] 1: only computed tensors read it */
};

static int rows_open(struct rows *r, const struct ckpt *c, int more, struct err *e)
{
    int n = ckpt_n_tensors(c);
    r->n = 0;
    r->t = calloc((size_t)(n + more) + 1, sizeof *r->t);
    r->used = calloc((size_t)n + 1, 1);
    return r->t && r->used ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for a view", ckpt_path(c));
}

static void rows_free(struct rows *r)
{
    free(r->t);
    free(r->used);
}

/* Adds a computed tensor, whose entries are tensors of c. */
static int add_calc(struct rows *r, const struct ckpt *c, struct gguf_calc *k, struct err *e)
{
    for (int i = 0; i < k->n; i++) {
        k->entry[i] = ckpt_find(c, ROLE_WEIGHT, k->entry_name[i]);
        if (k->entry[i] < 0)
            return err_set(e, ERR_INTERNAL, "%s: %s is not there: please report it", ckpt_path(c),
                           k->entry_name[i]);
        r->used[k->entry[i]] = 1;
    }
    r->t[r->n++] = (struct ckpt_view_tensor){ .t = k->t, .from = -1, .compute = gguf_compute, .arg = k };
    return 0;
}

static void pass_on(struct rows *r, const struct ckpt *c, int i)
{
    r->t[r->n++] = (struct ckpt_view_tensor){ .t = *ckpt_tensor(c, i), .from = i };
}

int gguf_present(struct ckpt **c, struct err *e)
{
    struct gguf_model *m = (*c)->gguf;
    struct rows r = { 0 };
    struct ckpt *below = *c;
    int rc = 0;
    if (!m || !m->n_calcs)
        return 0;
    TRY(rows_open(&r, below, m->n_calcs, e));
    for (int i = 0; i < m->n_calcs; i++)
        TRY(add_calc(&r, below, &m->calc[i], e));
    for (int i = 0; i < ckpt_n_tensors(below); i++)
        if (!r.used[i])
            pass_on(&r, below, i);
    *c = NULL; /* the view owns it */
    rc = ckpt_view_open(c, below, r.n, r.t, NULL, e);
out:
    rows_free(&r);
    return rc < 0 ? rc : 0;
}

/* ---- numbers of blocks ---- */

/* The type of "NAME.Q4_K", a tensor of bytes; *n: the length of NAME. NULL: it is none. */
static const struct gguf_type_row *blocks_of(const struct ckpt_tensor *t, size_t *n)
{
    const char *dot = strrchr(t->name, '.');
    const struct gguf_type_row *type = dot && t->dtype == STORED_U8 ? gguf_type_named(dot + 1) : NULL;
    *n = dot ? (size_t)(dot - t->name) : 0;
    return type && type->dtype < 0 && t->shape[t->n_dims - 1] % type->bytes == 0 ? type : NULL;
}

int gguf_has_blocks(const struct ckpt *c, char types[128])
{
    int found = 0;
    size_t n, at = 0;
    if (types)
        types[0] = 0;
    if (strcmp(ckpt_driver(c), "gguf") != 0)
        return 0;
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct gguf_type_row *type = blocks_of(ckpt_tensor(c, i), &n);
        found |= type != NULL;
        if (type && types && !strstr(types, type->name) && at + 16 < 128)
            at += (size_t)snprintf(types + at, 128 - at, "%s%s", at ? ", " : "", type->name);
    }
    return found;
}

int gguf_refuse_blocks(const struct ckpt *c, struct err *e)
{
    char types[128];
    if (!gguf_has_blocks(c, types))
        return 0;
    return err_set(
        e, ERR_USAGE,
        "%s: has tensors in blocks of GGUF (%s): reshard with --dequantize bf16 or fp32 makes numbers "
        "of them",
        ckpt_path(c), types);
}

/* The calculations that the view made for itself. */
struct own {
    int n;
    struct gguf_calc *calc;
};

static void own_free(void *p)
{
    struct own *o = p;
    for (int i = 0; i < o->n; i++) {
        free((char *)o->calc[i].t.name);
        free(o->calc[i].entry_name[0]);
    }
    free(o->calc);
    free(o);
}

static int check_decodes(const struct ckpt *c, const struct ckpt_tensor *t, const struct gguf_type_row *type,
                         struct err *e)
{
    return gguf_decodes(type->id)
               ? 0
               : err_set(e, ERR_CONFIG,
                         "%s: %s is in blocks of %s, which are not decoded here: quantise the model "
                         "as Q4_K, Q5_K, Q6_K or Q8_0",
                         ckpt_path(c), t->name, type->name);
}

/* Tensor i with the same shape, in numbers of dtype `to`. */
static int add_straight(struct rows *r, struct own *o, const struct ckpt *c, int i, enum stored_dtype to,
                        struct err *e)
{
    static const struct gguf_type_row floats = { .values = 1 };
    const struct ckpt_tensor *t = ckpt_tensor(c, i);
    size_t n = strlen(t->name);
    const struct gguf_type_row *type = blocks_of(t, &n);
    struct gguf_calc *k = &o->calc[o->n];
    int last = t->n_dims - 1, rc = type ? check_decodes(c, t, type, e) : 0;

    if (rc < 0)
        return rc;
    if (t->n_dims > 3 || (!type && (!stored_is_float(t->dtype) || t->dtype == to)) ||
        strstr(t->name, "e_score_correction_bias")) {
        pass_on(r, c, i);
        return 0;
    }
    *k = (struct gguf_calc){ .t = *t, .numbers = GGUF_OF_BLOCKS, .n = 1, .type = type ? type : &floats };
    k->t.name = strndup(t->name, type ? n : strlen(t->name));
    k->t.dtype = to;
    k->t.has_digest = 0;
    if (type)
        k->t.shape[last] = t->shape[last] / type->bytes * type->values;
    k->entry_name[0] = strdup(t->name);
    o->n++;
    if (!k->t.name || !k->entry_name[0])
        return err_set(e, ERR_MEMORY, "%s: no memory for a name", ckpt_path(c));
    return add_calc(r, c, k, e);
}

/* config.json with the dtype that its numbers have now; malloc'd. NULL: *e. */
static char *config_with(const char *config, enum stored_dtype to, struct err *e)
{
    json_t *o = jx_parse(config, strlen(config), FMT_CONFIG, e);
    char *text = NULL;
    if (!o)
        return NULL;
    if (json_object_set_new(o, "torch_dtype", json_string(to == STORED_F32 ? "float32" : "bfloat16")) < 0 ||
        !(text = json_dumps(o, JSON_INDENT(2))))
        err_set(e, ERR_MEMORY, "no memory for config.json");
    json_decref(o);
    return text;
}

int gguf_dequantize(struct ckpt **c, enum stored_dtype to, struct err *e)
{
    struct ckpt *below = *c;
    struct gguf_model *m = fmt_bottom(below)->gguf;
    struct rows r = { 0 };
    struct own *o = NULL;
    struct ckpt_view_opts how = { .free_owned = own_free };
    char *config = NULL;
    int rc = 0, n = ckpt_n_tensors(below);
    if (!m || !gguf_has_blocks(below, NULL))
        return 0;

    TRY(rows_open(&r, below, m->n_blocks, e));
    o = calloc(1, sizeof *o);
    if (o)
        o->calc = calloc((size_t)n + 1, sizeof *o->calc);
    if (!o || !o->calc) {
        rc = err_set(e, ERR_MEMORY, "%s: no memory for a view", ckpt_path(below));
        goto out;
    }
    for (int i = 0; i < m->n_blocks; i++) {
        m->block[i].t.dtype = to;
        TRY(add_calc(&r, below, &m->block[i], e));
        TRY(check_decodes(below, &m->block[i].t, m->block[i].type, e));
    }
    for (int i = 0; i < n; i++)
        if (!r.used[i])
            TRY(add_straight(&r, o, below, i, to, e));

    if (ckpt_config_json(below) && !(config = config_with(ckpt_config_json(below), to, e)))
        TRY(-e->code);
    how.config = config;
    how.owned = o;
    o = NULL; /* the view's */
    *c = NULL;
    rc = ckpt_view_open(c, below, r.n, r.t, &how, e);
out:
    if (o)
        own_free(o);
    free(config);
    rows_free(&r);
    if (rc < 0) {
        ckpt_close(*c);
        *c = NULL;
    }
    return rc < 0 ? rc : 0;
}
