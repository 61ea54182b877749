/* quant_codes.c - codes and scales one by one: see quant.h. */
#include "format/quant.h"

#include <stdlib.h>
#include <string.h>
#include "format/quant/region.h"

struct quant_source {
    struct ckpt *c;
    struct quant_list list;
};

int quant_source_open(struct quant_source **out, struct ckpt *c, struct err *e)
{
    struct quant_source *s = *out = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_MEMORY, "no memory for the list of quantised weights");
    s->c = c;
    int rc = quant_open_ckpt(&s->list, c, e);
    if (rc >= 0)
        rc = quant_settle(&s->list, c, e);
    if (rc >= 0)
        return 0;
    quant_source_close(s);
    *out = NULL;
    return rc;
}

void quant_source_close(struct quant_source *s)
{
    if (s)
        quant_close(&s->list);
    free(s);
}

static enum stored_dtype dtype_of(const struct quant_source *s, const struct quant_weight *w,
                                  enum quant_role role)
{
    return ckpt_tensor(s->c, quant_part(w, role)->tensor)->dtype;
}

/* The code that holds those of the scheme; -1: none. */
static int code_of(const struct quant_source *s, const struct quant_weight *w)
{
    const struct quant_scheme *q = &w->scheme;
    switch (q->form) {
    case QUANT_FP8: return dtype_of(s, w, QUANT_CODES) == STORED_F8_E4M3 ? QUANT_CODE_E4M3 : -1;
    case QUANT_FP4: return q->scale == QUANT_SCALE_E8M0 ? QUANT_CODE_E2M1 : -1;
    default: return q->bits == 8 ? QUANT_CODE_S8 : q->bits == 4 ? QUANT_CODE_U4 : -1;
    }
}

static enum quant_code_scale scale_of(const struct quant_source *s, const struct quant_weight *w, int code)
{
    const enum stored_dtype t = dtype_of(s, w, QUANT_SCALE);
    if (code == QUANT_CODE_E2M1)
        return QUANT_SCALED_E8M0;
    return t == STORED_BF16 ? QUANT_SCALED_BF16 : t == STORED_F16 ? QUANT_SCALED_F16 : QUANT_SCALED_F32;
}

int quant_source_form(const struct quant_source *s, const char *name, struct quant_code_form *f)
{
    const int i = quant_find(&s->list, name);
    const struct quant_weight *w = i < 0 ? NULL : &s->list.weight[i];
    if (!w || !s->list.is_known || w->scheme.act_order || w->scheme.global != QUANT_GLOBAL_NONE ||
        !quant_part(w, QUANT_SCALE))
        return 0;
    const int code = code_of(s, w);
    if (code < 0)
        return 0;
    *f = (struct quant_code_form){ .code = (enum quant_code)code,
                                   .scale = scale_of(s, w, code),
                                   .has_zeros = quant_part(w, QUANT_ZERO) && code <= QUANT_CODE_U4,
                                   .group = w->scheme.block_k,
                                   .dim_n = w->dim_n,
                                   .dim_k = w->dim_k,
                                   .n_dims = w->n_dims };
    return 1;
}

/* Scales and zero points of every output and group of the piece. */
static void spread(const struct region *r, const struct quant_code_form *f, struct quant_codes *out)
{
    const struct patch *p = &r->p;
    const int less = f->code == QUANT_CODE_S8 ? 128 : 0;
    const int64_t first = f->group ? p->k0 / f->group : 0;
    for (int64_t n = p->n0; n < p->n1; n++)
        for (int64_t g = 0; g < out->n_groups; g++) {
            const int64_t at = (n - p->n0) * out->n_groups + g, k = (first + g) * f->group;
            const struct codec c = region_codec_at(r, n, k > p->k0 ? k : p->k0);
            out->scale[at] = c.scale;
            if (out->zero)
                out->zero[at] = (int16_t)(c.zero - less);
        }
}

int quant_source_read(struct quant_source *s, const char *name, const struct quant_piece *p,
                      struct quant_codes *out, struct err *e)
{
    const struct quant_weight *w = &s->list.weight[quant_find(&s->list, name)];
    struct region_weight rw = { .w = w, .to = STORED_F32 };
    const struct patch patch = { p->e, p->n0, p->n1, p->k0, p->k1 };
    const int64_t n = p->n1 - p->n0, k = p->k1 - p->k0;
    struct quant_code_form f;
    struct region r;
    quant_source_form(s, name, &f);
    for (int i = 0; i < w->n_stored; i++)
        rw.tensor[i] = w->stored[i].tensor;
    rw.codes = dtype_of(s, w, QUANT_CODES);
    memset(out, 0, sizeof *out);
    out->n_groups = f.group ? (p->k1 - 1) / f.group - p->k0 / f.group + 1 : 1;
    int rc = region_load(&r, s->c, &rw, &patch, 1, e);
    if (rc >= 0) {
        out->code = malloc((size_t)(n * k) + 1);
        out->scale = malloc((size_t)(n * out->n_groups) * sizeof *out->scale + 1);
        out->zero = f.has_zeros ? malloc((size_t)(n * out->n_groups) * sizeof *out->zero + 1) : NULL;
        if (!out->code || !out->scale || (f.has_zeros && !out->zero))
            rc = err_set(e, ERR_MEMORY, "no memory for the codes of %s", name);
    }
    if (rc >= 0) {
        region_codes(&r, out->code);
        spread(&r, &f, out);
        for (int64_t i = 0; f.code == QUANT_CODE_S8 && i < n * k; i++)
            out->code[i] ^= 0x80;
    }
    region_free(&r);
    return rc < 0 ? rc : 0;
}

void quant_codes_free(struct quant_codes *x)
{
    free(x->code);
    free(x->scale);
    free(x->zero);
    memset(x, 0, sizeof *x);
}
