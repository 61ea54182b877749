/* gguf_names.c - see gguf_model.h: the entries of GGUF files as tensors with Hugging Face names.
 *
 * What only moves rows becomes pieces: whole tensors, one of many experts, the halves of heads (with
 * strides), the upper 16 bits of fp32 numbers. Blocks are rows of bytes: NAME.Q4_K is U8 [rows, bytes of a
 * row]. What turns columns into rows, or computes, stays under its name in the file and goes to the list of
 * calculations. */
#include <stdlib.h>
#include <string.h>
#include "format/gguf/gguf_model.h"

#define CHECKED_BYTES ((int64_t)64 << 10) /* of fp32 numbers that are looked at when the file is opened */

/* An entry being added. */
struct item {
    struct gguf_model *m;
    const struct gguf_tensor *t;
    int file;
    const struct gguf_name *row; /* NULL: the family does not have it */
    int layer;
    char hf[GGUF_NAME_MAX]; /* of the expert 0 */
};

/* How the numbers of an entry lie: in units of an element of the checkpoint's tensor. */
struct place {
    enum stored_dtype dtype;
    int64_t offset; /* of the first unit, in the file */
    int64_t step;   /* units from a number to the next: 2 for the upper halves of fp32 */
    int n_dims;
    int64_t shape[BOX_DIMS];
};

static int is_blocks(const struct gguf_tensor *t) { return t->type->dtype < 0; }

static struct place place_of(const struct gguf_tensor *t, int narrowed)
{
    struct place v = { .dtype = is_blocks(t) ? STORED_U8 : (enum stored_dtype)t->type->dtype,
                       .offset = t->offset,
                       .step = 1,
                       .n_dims = t->n_dims };
    memcpy(v.shape, t->shape, sizeof v.shape);
    if (is_blocks(t))
        v.shape[t->n_dims - 1] = t->shape[t->n_dims - 1] / t->type->values * t->type->bytes;
    if (narrowed) {
        v.dtype = STORED_BF16;
        v.offset += 2;
        v.step = 2;
    }
    return v;
}

/* ---- fp32 that was bf16 ---- */

/* 1: the low halves of the first numbers (less `less`) are 0; of all where the entry is small. Of a URL only
 * the first entry is looked at: the others are checked when they are read. */
static int looks_bf16(const struct item *it, float less, struct err *e)
{
    struct gguf_model *m = it->m;
    int64_t n = it->t->bytes < CHECKED_BYTES ? it->t->bytes : CHECKED_BYTES;
    uint32_t low = 0, bits;
    if (m->c->remote && m->looked)
        return m->looked > 0;
    float *x = malloc((size_t)n);
    int rc = x ? fmt_pread(m->c, it->file, x, n, it->t->offset, e)
               : err_set(e, ERR_MEMORY, "%s: no memory to look at a tensor", m->c->path);
    for (int64_t i = 0; i < n / 4 && rc >= 0; i++) {
        x[i] -= less;
        memcpy(&bits, &x[i], sizeof bits);
        low |= bits & 0xffff;
    }
    free(x);
    m->looked = low ? -1 : 1;
    return rc < 0 ? rc : !low;
}

/* The router's correction is fp32 in every published file. */
static int stays_f32(const struct item *it)
{
    return !it->row || it->t->type->id != GGUF_F32 || !it->m->is_bf16 ||
           strstr(it->row->hf, "e_score_correction_bias");
}

/* ---- pieces ---- */

/* Adds part [rows `from` to `from` + extent[0]) of the entry as the box at `start` of a tensor; stride:
 * numbers from one row to the next. */
static int map(struct item *it, int tensor, const struct place *v, int64_t from, int64_t rows, int64_t stride,
               int64_t to, struct err *e)
{
    struct chunk k = { .file = it->file, .dtype = v->dtype, .box = { .n_dims = v->n_dims } };
    int64_t start[BOX_DIMS] = { to }, row = v->step;
    for (int d = v->n_dims - 1; d >= 0; d--) {
        k.box.extent[d] = d ? v->shape[d] : rows;
        k.stride[d] = d ? row : row * stride;
        row *= d ? v->shape[d] : 1;
    }
    k.offset = v->offset + from * row * stored_bytes(v->dtype, 1);
    return build_map(&it->m->b, tensor, &k, &k.box, start, e);
}

static int add_named(struct item *it, const char *name, const struct place *v, int n_dims,
                     const int64_t *shape, struct err *e)
{
    char full[GGUF_NAME_MAX + 16];
    struct gguf_model *m = it->m;
    int before = m->c->n_tensors;
    snprintf(full, sizeof full, "%s%s%s", name, is_blocks(it->t) ? "." : "",
             is_blocks(it->t) ? it->t->type->name : "");
    int i = build_tensor(&m->b, ROLE_WEIGHT, full, (int)strlen(full), v->dtype, n_dims, shape, e);
    if (i >= 0 && m->c->n_tensors == before)
        return err_set(e, ERR_FORMAT, "%s: two of its tensors are %s: is the file damaged", m->c->path, full);
    return i;
}

/* The whole entry under a name. */
static int add_whole(struct item *it, const char *name, const struct place *v, struct err *e)
{
    int i = add_named(it, name, v, v->n_dims, v->shape, e);
    return i < 0 ? i : map(it, i, v, 0, v->shape[0], 1, 0, e);
}

static int wrong_rows(const struct item *it, int64_t heads, struct err *e)
{
    return err_set(e, ERR_FORMAT,
                   "%s: %s has %lld rows, which %lld heads of the metadata do not divide: is it damaged",
                   it->m->c->path, it->t->name, (long long)it->t->shape[0], (long long)heads);
}

/* Row i of half s of a head is row 2 i + s of the file. */
static int add_heads(struct item *it, const struct place *v, int64_t heads, struct err *e)
{
    int i, rc;
    if (heads < 1 || v->shape[0] % (2 * heads))
        return wrong_rows(it, heads, e);
    if ((i = add_named(it, it->hf, v, v->n_dims, v->shape, e)) < 0)
        return i;
    int64_t n = v->shape[0] / heads / 2;
    for (int64_t part = 0; part < 2 * heads; part++)
        if ((rc = map(it, i, v, part / 2 * 2 * n + part % 2, n, 2, part * n, e)) < 0)
            return rc;
    return 0;
}

/* Rows [q k v][heads][d] of the file are [heads][q k v][d]. */
static int add_qkv(struct item *it, const struct place *v, struct err *e)
{
    int64_t heads = it->m->heads;
    int i, rc;
    if (heads < 1 || v->shape[0] % (3 * heads))
        return wrong_rows(it, heads, e);
    if ((i = add_named(it, it->hf, v, v->n_dims, v->shape, e)) < 0)
        return i;
    int64_t n = v->shape[0] / heads / 3;
    for (int64_t part = 0; part < 3 * heads; part++)
        if ((rc = map(it, i, v, (part % 3 * heads + part / 3) * n, n, 1, part * n, e)) < 0)
            return rc;
    return 0;
}

static int add_experts(struct item *it, const struct place *all, struct err *e)
{
    struct place v = *all;
    char name[GGUF_NAME_MAX];
    int64_t bytes = it->t->bytes / all->shape[0];
    if (all->n_dims != 3)
        return err_set(e, ERR_FORMAT, "%s: %s has %d dims, experts have 3", it->m->c->path, it->t->name,
                       all->n_dims);
    v.n_dims = 2;
    v.shape[0] = all->shape[1];
    v.shape[1] = all->shape[2];
    for (int x = 0; x < all->shape[0]; x++, v.offset += bytes) {
        int rc = add_whole(it, gguf_fill(it->row->hf, it->layer, x, name), &v, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* [1, n], which some files have as [n]. */
static int add_row(struct item *it, const struct place *v, struct err *e)
{
    struct place row = *v;
    if (v->n_dims == 1) {
        row.n_dims = 2;
        row.shape[0] = 1;
        row.shape[1] = v->shape[0];
    }
    return add_whole(it, it->hf, &row, e);
}

static int add_pieces(struct item *it, const struct place *v, struct err *e)
{
    enum gguf_form form = it->row ? it->row->form : GGUF_SAME;
    switch (form) {
    case GGUF_ROPE_Q: return add_heads(it, v, it->m->heads, e);
    case GGUF_ROPE_K: return add_heads(it, v, it->m->kv_heads, e);
    case GGUF_QKV: return add_qkv(it, v, e);
    case GGUF_EXPERT: return add_experts(it, v, e);
    case GGUF_ROW: return add_row(it, v, e);
    default: return add_whole(it, it->hf, v, e);
    }
}

/* ---- calculations ---- */

static struct gguf_calc *new_calc(struct gguf_model *m, int for_blocks, struct err *e)
{
    struct gguf_calc **list = for_blocks ? &m->block : &m->calc;
    int *n = for_blocks ? &m->n_blocks : &m->n_calcs;
    if ((*n & (*n - 1)) == 0) {
        struct gguf_calc *grown = realloc(*list, sizeof *grown * (size_t)(*n ? *n * 2 : 1));
        if (!grown) {
            err_set(e, ERR_MEMORY, "%s: no memory for %d tensors", m->c->path, *n);
            return NULL;
        }
        *list = grown;
    }
    memset(&(*list)[*n], 0, sizeof **list);
    return &(*list)[(*n)++];
}

/* The entry of that name with the type of t, and its file; NULL: there is none. */
static const struct gguf_tensor *find_entry(const struct gguf_model *m, const char *name, int *file)
{
    for (int p = 0; p < m->n_parts; p++)
        for (int i = 0; i < m->part[p].f.n_tensors; i++)
            if (!strcmp(m->part[p].f.tensor[i].name, name)) {
                *file = m->part[p].file;
                return &m->part[p].f.tensor[i];
            }
    return NULL;
}

/* Adds entry t, as it is, under its name in the file, and notes it as the next source of k. */
static int add_source(struct item *it, const struct gguf_tensor *t, int file, struct gguf_calc *k,
                      struct err *e)
{
    struct item raw = { .m = it->m, .t = t, .file = file };
    struct place v = place_of(t, 0);
    char name[GGUF_NAME_MAX + 16];
    int rc = add_whole(&raw, t->name, &v, e);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof name, "%s%s%s", t->name, is_blocks(t) ? "." : "",
             is_blocks(t) ? t->type->name : "");
    if (!(k->entry_name[k->n++] = strdup(name)))
        return err_set(e, ERR_MEMORY, "%s: no memory for a name", it->m->c->path);
    return 0;
}

/* The row of the other half of a tensor that lies in two entries. */
static const struct gguf_name *other_half(const struct item *it)
{
    for (const struct gguf_name *r = it->row + 1; r->hf && !strcmp(r->hf, it->row->hf); r++)
        if (r->form == GGUF_ODD || r->form == GGUF_VALUE_B)
            return r;
    return NULL;
}

static int bad_pair(const struct item *it, const struct gguf_tensor *a, const struct gguf_tensor *b,
                    struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: %s (%s, %d dims) and %s (%s, %d dims) do not go together",
                   it->m->c->path, a->name, a->type->name, a->n_dims, b->name, b->type->name, b->n_dims);
}

/* The shape of a tensor that is turned round or joined; a: the entry, b: its other half or a. */
static int turned_shape(const struct item *it, struct gguf_calc *k, const struct gguf_tensor *a,
                        const struct gguf_tensor *b, struct err *e)
{
    int last = a->n_dims - 1;
    if (a->n_dims > 3)
        return bad_pair(it, a, b, e);
    k->t.n_dims = a->n_dims;
    memcpy(k->t.shape, a->shape, sizeof k->t.shape);
    if (k->form == GGUF_KEY_B) {
        if (a->n_dims != 3 || b->n_dims != 3 || a->shape[0] != b->shape[0] || a->shape[1] != b->shape[2])
            return bad_pair(it, a, b, e);
        k->heads = a->shape[0];
        k->nope = a->shape[2];
        k->value = b->shape[1];
        k->t.n_dims = 2;
        k->t.shape[0] = k->heads * (k->nope + k->value);
        k->t.shape[1] = a->shape[1];
        return 0;
    }
    if (a->n_dims != b->n_dims || memcmp(a->shape, b->shape, sizeof a->shape) != 0)
        return bad_pair(it, a, b, e);
    /* a bias is not turned round */
    if (k->form == GGUF_TRANSPOSED ? last > 0 : k->form == GGUF_EVEN && last > 1) {
        k->t.shape[last] = a->shape[last - 1];
        k->t.shape[last - 1] = a->shape[last];
    }
    if (k->form == GGUF_EVEN)
        k->t.shape[last] *= 2;
    return 0;
}

/* gpt-oss as published: NAME_blocks [E, N, K/32, 16] and NAME_scales [E, N, K/32]; N counts both halves. */
static int add_fp4(struct item *it, const struct gguf_calc *like, struct err *e)
{
    static const char *const ends[] = { "_blocks", "_scales" };
    for (int s = 0; s < 2; s++) {
        struct gguf_calc *k = new_calc(it->m, 0, e);
        char name[GGUF_NAME_MAX + 8];
        if (!k)
            return -e->code;
        *k = *like;
        k->numbers = s ? GGUF_FP4_SCALES : GGUF_FP4_CODES;
        snprintf(name, sizeof name, "%s%s", it->hf, ends[s]);
        k->t = (struct ckpt_tensor){ .dtype = STORED_U8, .n_dims = s ? 3 : 4 };
        k->t.shape[0] = it->t->shape[0];
        k->t.shape[1] = it->t->shape[1] * like->n;
        k->t.shape[2] = it->t->shape[2] / 32;
        k->t.shape[3] = s ? 0 : 16;
        k->t.name = strdup(name);
        for (int i = 0; i < like->n; i++)
            k->entry_name[i] = strdup(like->entry_name[i]);
        if (!k->t.name || !k->entry_name[0] || (like->n > 1 && !k->entry_name[1]))
            return err_set(e, ERR_MEMORY, "%s: no memory for a name", it->m->c->path);
    }
    return 0;
}

/* A tensor whose numbers are computed, or which is turned round. */
static int add_calc(struct item *it, enum gguf_numbers numbers, enum stored_dtype dtype, struct err *e)
{
    const struct gguf_name *half = other_half(it);
    const struct gguf_tensor *second = it->t;
    int is_fp4 = it->t->type->id == GGUF_MXFP4 && it->t->n_dims == 3 && it->row->form != GGUF_KEY_B;
    int file = it->file, rc = 0;
    char name[GGUF_NAME_MAX];
    struct gguf_calc fp4 = { 0 }, *k = is_fp4 ? &fp4 : new_calc(it->m, is_blocks(it->t), e);

    if (!k)
        return -e->code;
    k->form = it->row->form;
    k->numbers = numbers;
    k->type = it->t->type;
    k->t.dtype = dtype;
    if (half && !(second = find_entry(it->m, gguf_fill(half->file, it->layer, -1, name), &file)))
        return err_set(e, ERR_FORMAT, "%s: has %s and not %s: is it whole", it->m->c->path, it->t->name,
                       name);
    if (second->type != it->t->type)
        return bad_pair(it, it->t, second, e);
    TRY(turned_shape(it, k, it->t, second, e));
    TRY(add_source(it, it->t, it->file, k, e));
    if (second != it->t)
        TRY(add_source(it, second, file, k, e));
    if (is_fp4)
        rc = add_fp4(it, k, e);
    else if (!(k->t.name = strdup(it->hf)))
        rc = err_set(e, ERR_MEMORY, "%s: no memory for a name", it->m->c->path);
out:
    free(fp4.entry_name[0]);
    free(fp4.entry_name[1]);
    return rc < 0 ? rc : 0;
}

/* ---- every entry ---- */

/* Factors of RoPE, which config.json has as numbers. */
static int is_rope(const struct item *it)
{
    static const char *const names[] = { "rope_freqs.weight", "rope_factors_long.weight",
                                         "rope_factors_short.weight" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (it->m->family && !strcmp(it->t->name, names[i]))
            return 1;
    return 0;
}

/* The second half of a tensor: its first half adds it. */
static int check_first_half(const struct item *it, struct err *e)
{
    char name[GGUF_NAME_MAX];
    int file;
    const struct gguf_name *first = it->m->family->names;
    while (strcmp(first->hf, it->row->hf) != 0)
        first++;
    if (find_entry(it->m, gguf_fill(first->file, it->layer, -1, name), &file))
        return 0;
    return err_set(e, ERR_FORMAT, "%s: has %s and not %s: is it whole", it->m->c->path, it->t->name, name);
}

static int add_known(struct item *it, struct err *e)
{
    enum gguf_form form = it->row->form;
    enum gguf_type type = it->t->type->id;
    int narrow = 0, is_large = it->t->bytes > CHECKED_BYTES || it->m->c->remote;
    if (form == GGUF_PLUS_ONE && type != GGUF_F32)
        return err_set(e, ERR_FORMAT, "%s: %s is %s, a norm of %s is F32", it->m->c->path, it->t->name,
                       it->t->type->name, it->m->arch);
    if (!stays_f32(it) && (narrow = looks_bf16(it, form == GGUF_PLUS_ONE ? 1.0f : 0.0f, e)) < 0)
        return narrow;

    enum stored_dtype dtype = narrow             ? STORED_BF16
                              : is_blocks(it->t) ? STORED_F32
                                                 : (enum stored_dtype)it->t->type->dtype;
    if (form == GGUF_PLUS_ONE)
        return add_calc(it, GGUF_MINUS_ONE, dtype, e);
    if (form == GGUF_TRANSPOSED || form == GGUF_EVEN || form == GGUF_KEY_B)
        return add_calc(it, narrow ? GGUF_TO_BF16 : is_blocks(it->t) ? GGUF_OF_BLOCKS : GGUF_AS_IS, dtype, e);
    if (narrow && is_large && form == GGUF_SAME)
        return add_calc(it, GGUF_TO_BF16, dtype, e);
    struct place v = place_of(it->t, narrow);
    return add_pieces(it, &v, e);
}

static int add_entry(struct item *it, struct err *e)
{
    struct gguf_model *m = it->m;
    if (m->family)
        it->row = gguf_find_file(m->family->names, it->t->name, &it->layer);
    if (is_rope(it))
        return 0;
    if (it->row && (it->row->form == GGUF_ODD || it->row->form == GGUF_VALUE_B))
        return check_first_half(it, e);
    if (it->row) {
        gguf_fill(it->row->hf, it->layer, 0, it->hf);
        return add_known(it, e);
    }

    if (m->family && !m->n_unknown++)
        snprintf(m->unknown, sizeof m->unknown, "%s", it->t->name);
    struct place v = place_of(it->t, 0);
    return add_whole(it, it->t->name, &v, e);
}

int gguf_add_tensors(struct gguf_model *m, struct err *e)
{
    for (int p = 0; p < m->n_parts; p++)
        for (int i = 0; i < m->part[p].f.n_tensors; i++) {
            struct item it = { .m = m, .t = &m->part[p].f.tensor[i], .file = m->part[p].file, .layer = -1 };
            int rc = add_entry(&it, e);
            if (rc < 0)
                return rc;
        }
    return 0;
}
