/* scheme.c - see quant.h: the list of quantised weights, found by the names of tensors. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "format/quant/scheme.h"

#define NAME_MAX_BYTES 512

/* ---- names by hash ---- */

struct names {
    const struct ckpt_tensor *const *t;
    int *slot; /* an index in t, or -1 */
    uint32_t mask;
};

/* FNV-1a of the n bytes a and the text b. */
static uint32_t hash_of(const char *a, size_t n, const char *b)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)a[i]) * 16777619u;
    for (; *b; b++)
        h = (h ^ (unsigned char)*b) * 16777619u;
    return h ^ h >> 15;
}

/* The tensor whose name is the first n bytes of `base` and `suffix`, or -1. */
static int find_name(const struct names *s, const char *base, size_t n, const char *suffix)
{
    for (uint32_t i = hash_of(base, n, suffix) & s->mask; s->slot[i] >= 0; i = (i + 1) & s->mask) {
        const char *name = s->t[s->slot[i]]->name;
        if (!strncmp(name, base, n) && !strcmp(name + n, suffix))
            return s->slot[i];
    }
    return -1;
}

static int index_names(struct names *s, const struct ckpt_tensor *const *t, int n, struct err *e)
{
    uint32_t slots = 16;
    while (slots < 2 * (uint32_t)n)
        slots *= 2;
    s->t = t;
    s->mask = slots - 1;
    s->slot = malloc(slots * sizeof *s->slot);
    if (!s->slot)
        return err_set(e, ERR_MEMORY, "no memory for the names of %d tensors", n);
    memset(s->slot, -1, slots * sizeof *s->slot);
    for (int k = 0; k < n; k++) {
        uint32_t i = hash_of(t[k]->name, strlen(t[k]->name), "") & s->mask;
        while (s->slot[i] >= 0)
            i = (i + 1) & s->mask;
        s->slot[i] = k;
    }
    return 0;
}

/* ---- which tensors belong together ---- */

/* What stands in a name in place of the codes' suffix. */
struct companion {
    const char *suffix;
    enum quant_role role;
    enum quant_global global;
};
static const struct companion of_linear[] = {
    { ".weight_scale_inv", QUANT_SCALE, QUANT_GLOBAL_NONE },
    { ".weight_scale", QUANT_SCALE, QUANT_GLOBAL_NONE },
    { ".scale", QUANT_SCALE, QUANT_GLOBAL_NONE },
    { ".weight_zero_point", QUANT_ZERO, QUANT_GLOBAL_NONE },
    { ".weight_g_idx", QUANT_G_IDX, QUANT_GLOBAL_NONE },
    { ".weight_shape", QUANT_SHAPE, QUANT_GLOBAL_NONE },
    { ".weight_scale_2", QUANT_GLOBAL_SCALE, QUANT_GLOBAL_TIMES },
    { ".weight_global_scale", QUANT_GLOBAL_SCALE, QUANT_GLOBAL_DIVIDES },
    { ".input_scale", QUANT_INPUT, QUANT_GLOBAL_NONE },
    { ".input_global_scale", QUANT_INPUT, QUANT_GLOBAL_NONE },
    { ".activation_scale", QUANT_INPUT, QUANT_GLOBAL_NONE },
    { ".pre_quant_scale", QUANT_INPUT, QUANT_GLOBAL_NONE },
    { NULL, QUANT_ROLES, QUANT_GLOBAL_NONE },
};
static const struct companion of_experts[] = {
    { "_scale_inv", QUANT_SCALE, QUANT_GLOBAL_NONE },
    { "_scales_inv", QUANT_SCALE, QUANT_GLOBAL_NONE },
    { "_weight_scale_inv", QUANT_SCALE, QUANT_GLOBAL_NONE },
    { "_weight_scale", QUANT_SCALE, QUANT_GLOBAL_NONE },
    { "_scale", QUANT_SCALE, QUANT_GLOBAL_NONE },
    { "_weight_scale_2", QUANT_GLOBAL_SCALE, QUANT_GLOBAL_TIMES },
    { "_weight_global_scale", QUANT_GLOBAL_SCALE, QUANT_GLOBAL_DIVIDES },
    { "_input_scale", QUANT_INPUT, QUANT_GLOBAL_NONE },
    { "_activation_scale", QUANT_INPUT, QUANT_GLOBAL_NONE },
    { NULL, QUANT_ROLES, QUANT_GLOBAL_NONE },
};
static const struct companion of_blocks[] = {
    { "_scales", QUANT_SCALE, QUANT_GLOBAL_NONE },
    { NULL, QUANT_ROLES, QUANT_GLOBAL_NONE },
};
static const struct companion of_k_first[] = {
    { ".scales", QUANT_SCALE, QUANT_GLOBAL_NONE },
    { ".qzeros", QUANT_ZERO, QUANT_GLOBAL_NONE },
    { ".g_idx", QUANT_G_IDX, QUANT_GLOBAL_NONE },
    { NULL, QUANT_ROLES, QUANT_GLOBAL_NONE },
};

/* How names of codes end. The weight's name is what is left, and `weight`. */
static const struct codes_name {
    const char *suffix, *weight;
    const struct companion *with;
} codes_names[] = {
    { ".qweight", ".weight", of_k_first },
    { ".weight_packed", ".weight", of_linear },
    { "_blocks", "", of_blocks },
    { ".weight", ".weight", of_linear },
    { "", "", of_experts },
};

static int is_f8(enum stored_dtype t) { return t == STORED_F8_E4M3 || t == STORED_F8_E5M2; }

/* Whether a tensor of this dtype under this name can be codes. */
static int can_be_codes(const struct codes_name *c, enum stored_dtype t)
{
    if (c->with == of_k_first)
        return 1;
    if (c->with == of_blocks)
        return t == STORED_U8;
    if (!strcmp(c->suffix, ".weight_packed"))
        return 1;
    return is_f8(t) || t == STORED_I8 || t == STORED_U8 || t == STORED_F4;
}

static const struct codes_name *codes_name_of(const struct ckpt_tensor *t)
{
    size_t n = strlen(t->name);
    for (size_t i = 0; i < sizeof codes_names / sizeof *codes_names; i++) {
        const struct codes_name *c = &codes_names[i];
        size_t m = strlen(c->suffix);
        if (n > m && !strcmp(t->name + n - m, c->suffix) && can_be_codes(c, t->dtype))
            return c;
    }
    return NULL;
}

/* ---- one weight ---- */

#define UNSCALED (-2) /* in weight_of until the list is finished: codes without scales */

struct maker {
    struct quant_list *q;
    struct quant_says says;
    struct names names;
    struct err *e;
};

/* Adds the companions of w that are there: one of each role, the first spelling that is found. */
static void find_companions(const struct maker *m, struct quant_weight *w, const char *base, size_t n,
                            const struct companion *with)
{
    unsigned has = 0;
    for (const struct companion *c = with; c->suffix && w->n_stored < QUANT_STORED_MAX; c++) {
        int at = has & 1u << c->role && c->role != QUANT_INPUT ? -1
                                                               : find_name(&m->names, base, n, c->suffix);
        if (at < 0 || at == w->stored[0].tensor)
            continue;
        has |= 1u << c->role;
        if (c->role == QUANT_GLOBAL_SCALE)
            w->scheme.global = c->global;
        w->stored[w->n_stored++] = (struct quant_stored){ .role = c->role, .tensor = at };
    }
}

static const struct ckpt_tensor *scale_of(const struct maker *m, const struct quant_weight *w)
{
    const struct quant_stored *s = quant_part(w, QUANT_SCALE);
    return s ? m->names.t[s->tensor] : NULL;
}

/* Scales of 4-bit codes, two a byte, have a column for 8 or 16 bytes. */
static int is_two_a_byte(const struct ckpt_tensor *codes, const struct ckpt_tensor *scale)
{
    int64_t bytes = codes->shape[codes->n_dims - 1], columns = scale->shape[scale->n_dims - 1];
    if (scale->n_dims != codes->n_dims || scale->shape[scale->n_dims - 2] != codes->shape[codes->n_dims - 2])
        return 0;
    return (scale->dtype == STORED_F8_E4M3 && bytes / 8 == columns) ||
           ((scale->dtype == STORED_F8_E8M0 || scale->dtype == STORED_U8) && bytes / 16 == columns);
}

/* The form of codes that lie side by side, by dtypes; -1: they are not codes. */
static int plain_form(const struct maker *m, const struct quant_weight *w, const struct ckpt_tensor *codes)
{
    const struct ckpt_tensor *scale = scale_of(m, w);
    if (is_f8(codes->dtype))
        return QUANT_FP8;
    if (codes->dtype == STORED_F4)
        return QUANT_FP4;
    if (!scale || scale->n_dims < 1 || codes->n_dims < 2)
        return -1;
    if (codes->dtype == STORED_I8 &&
        (scale->dtype == STORED_F32 || scale->dtype == STORED_BF16 || scale->dtype == STORED_F16))
        return QUANT_INT8;
    return is_two_a_byte(codes, scale) || w->scheme.global ? QUANT_FP4 : -1;
}

static int form_of(const struct maker *m, const struct quant_weight *w, const struct codes_name *c,
                   const struct ckpt_tensor *codes)
{
    const struct ckpt_tensor *scale = scale_of(m, w);
    int same_columns = scale && scale->n_dims == 2 && codes->n_dims == 2 &&
                       scale->shape[1] == codes->shape[1];
    if (c->with == of_k_first)
        return !strcasecmp(m->q->method, "awq")    ? QUANT_AWQ
               : !strcasecmp(m->q->method, "gptq") ? QUANT_GPTQ
               : same_columns                      ? QUANT_GPTQ
                                                   : QUANT_AWQ;
    if (c->with == of_blocks)
        return QUANT_FP4;
    if (!strcmp(c->suffix, ".weight_packed"))
        return codes->dtype == STORED_U8 ? QUANT_FP4 : QUANT_PACKED;
    return plain_form(m, w, codes);
}

/* The weight whose codes are tensor i. Returns 1: *w is it, 0: it is none. */
static int make_weight(struct maker *m, int i, struct quant_weight *w)
{
    const struct ckpt_tensor *codes = m->names.t[i];
    const struct codes_name *c = codes_name_of(codes);
    if (!c)
        return 0;
    size_t n = strlen(codes->name) - strlen(c->suffix);
    int form, rc;
    *w = (struct quant_weight){ .n_stored = 1, .stored = { { .role = QUANT_CODES, .tensor = i } } };
    find_companions(m, w, codes->name, n, c->with);
    if ((form = form_of(m, w, c, codes)) < 0)
        return 0;
    if ((c->suffix == codes_names[3].suffix || !*c->suffix) && !scale_of(m, w)) {
        /* codes without a name of their own: an F8 tensor can be just that */
        m->q->weight_of[i] = UNSCALED;
        return 0;
    }

    w->scheme.form = (enum quant_form)form;
    if (!(w->name = malloc(n + strlen(c->weight) + 1)))
        return err_set(m->e, ERR_MEMORY, "no memory for the names of quantised weights");
    memcpy(w->name, codes->name, n);
    strcpy(w->name + n, c->weight);
    rc = quant_fit(w, &m->says, m->names.t, m->e);
    if (rc >= 0)
        return 1;
    free(w->name);
    w->name = NULL;
    if (!m->says.is_known) /* the tensors of an unknown method need not fit */
        return 0;
    return rc;
}

/* ---- the list ---- */

static int compare_weights(const void *a, const void *b)
{
    return strcmp(((const struct quant_weight *)a)->name, ((const struct quant_weight *)b)->name);
}

static int add_weight(struct quant_list *q, int *capacity, const struct quant_weight *w, struct err *e)
{
    if (q->n == *capacity) {
        int more = *capacity ? 2 * *capacity : 64;
        struct quant_weight *grown = realloc(q->weight, sizeof *grown * (size_t)more);
        if (!grown) {
            free(w->name);
            return err_set(e, ERR_MEMORY, "no memory for %d quantised weights", more);
        }
        q->weight = grown;
        *capacity = more;
    }
    q->weight[q->n++] = *w;
    return 0;
}

/* Sorts, and notes of which weight each tensor is a part. */
static int finish(struct quant_list *q, const struct ckpt_tensor *const *t, struct err *e)
{
    if (q->n)
        qsort(q->weight, (size_t)q->n, sizeof *q->weight, compare_weights);
    for (int i = 1; i < q->n; i++)
        if (!strcmp(q->weight[i - 1].name, q->weight[i].name))
            return err_set(e, ERR_FORMAT, "%s: %s and %s hold the same weight: remove one", q->weight[i].name,
                           t[q->weight[i - 1].stored[0].tensor]->name,
                           t[q->weight[i].stored[0].tensor]->name);
    for (int i = 0; i < q->n_tensors; i++)
        q->weight_of[i] = q->weight_of[i] == UNSCALED ? UNSCALED : -1;
    for (int i = 0; i < q->n; i++)
        for (int k = 0; k < q->weight[i].n_stored; k++)
            q->weight_of[q->weight[i].stored[k].tensor] = i;

    /* Scales in F8 look like codes without scales until their weight is known. */
    for (int i = q->n_tensors - 1; i >= 0; i--)
        if (q->weight_of[i] == UNSCALED) {
            q->weight_of[i] = -1;
            q->unscaled = i;
        }
    return 0;
}

int quant_open(struct quant_list *q, const struct quant_texts *texts, const struct ckpt_tensor *const *t,
               int n, struct err *e)
{
    struct maker m = { .q = q, .e = e };
    int capacity = 0, rc = 0;
    memset(q, 0, sizeof *q);
    q->unscaled = -1;
    TRY(quant_says_read(&m.says, texts, e));
    memcpy(q->method, m.says.method, sizeof q->method);
    q->is_known = m.says.is_known;
    q->n_tensors = n;
    if (!(q->weight_of = calloc((size_t)n + 1, sizeof *q->weight_of))) {
        rc = err_set(e, ERR_MEMORY, "no memory for %d tensors", n);
        goto out;
    }

    TRY(index_names(&m.names, t, n, e));
    for (int i = 0; i < n; i++) {
        struct quant_weight w;
        TRY(make_weight(&m, i, &w));
        if (rc)
            TRY(add_weight(q, &capacity, &w, e));
    }
    TRY(finish(q, t, e));
out:
    free(m.names.slot);
    quant_says_free(&m.says);
    return rc < 0 ? rc : 0;
}

void quant_close(struct quant_list *q)
{
    for (int i = 0; i < q->n; i++)
        free(q->weight[i].name);
    free(q->weight);
    free(q->weight_of);
    memset(q, 0, sizeof *q);
}

int quant_find(const struct quant_list *q, const char *name)
{
    struct quant_weight key = { .name = (char *)name };
    const struct quant_weight *w = q->n ? bsearch(&key, q->weight, (size_t)q->n, sizeof key, compare_weights)
                                        : NULL;
    return w ? (int)(w - q->weight) : -1;
}

const struct quant_stored *quant_part(const struct quant_weight *w, enum quant_role role)
{
    for (int i = 0; i < w->n_stored; i++)
        if (w->stored[i].role == role)
            return &w->stored[i];
    return NULL;
}

struct box quant_box(const struct quant_weight *w, const struct quant_stored *s, int n_dims,
                     const int64_t *shape, const struct box *b)
{
    struct box out = box_whole(n_dims, shape);
    for (int d = 0; d < w->n_dims; d++) {
        const struct quant_axis *a = &s->axis[d];
        if (a->dim < 0 || a->dim >= n_dims)
            continue;
        int64_t end = b->start[d] + b->extent[d], from = b->start[d] * a->indices / a->values;
        int64_t to = (end * a->indices + a->values - 1) / a->values;
        to = to < shape[a->dim] ? to : shape[a->dim];
        out.start[a->dim] = from;
        out.extent[a->dim] = b->extent[d] && to > from ? to - from : 0;
    }
    return out;
}
