/* codes_weights.c - see codes_weights.h. */
#include "serve/weights/codes_weights.h"

#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "format/ckpt_view.h"
#include "format/quant.h"
#include "kernels/panel_codes.h"
#include "model/packs.h"

/* Panels of one pack, which follow in memory. */
struct kept {
    struct kept *next;
    struct panel_codes codes;
    void *panels;
};
struct codes_weights {
    struct quant_source *source;
    struct mem *mem;
    enum codes_wish wish;
    struct kept *kept;
    int n;
    int64_t bytes;
    int has_integers;
};

int codes_weights_open(struct codes_weights **out, struct ckpt *view, struct mem *mem, enum codes_wish wish,
                       struct err *e)
{
    struct codes_weights *x = *out = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_MEMORY, "no memory for the list of quantised weights");
    x->mem = mem;
    x->wish = wish;
    int rc = quant_source_open(&x->source, ckpt_below(view), e);
    if (rc >= 0)
        return 0;
    codes_weights_close(x);
    *out = NULL;
    return rc;
}

void codes_weights_close(struct codes_weights *x)
{
    if (!x)
        return;
    for (struct kept *k = x->kept, *next; k; k = next) {
        next = k->next;
        mem_free(x->mem, k->panels);
        free(k);
    }
    quant_source_close(x->source);
    free(x);
}

const char *codes_weights_class(const struct codes_weights *x)
{
    if (!x->has_integers)
        return code_class_name(CODES_DEQ);
    return code_class_name(x->wish == CODES_WISH_INT8 ? CODES_INT : CODES_GRP);
}
int codes_weights_count(const struct codes_weights *x) { return x->n; }
int64_t codes_weights_bytes(const struct codes_weights *x) { return x->bytes; }

/* ---- forms ---- */

static struct panel_codes panels_of(const struct codes_weights *x, const struct quant_code_form *f)
{
    static const enum code_kind kind[] = { CODE_S8, CODE_U4, CODE_E4M3, CODE_E2M1 };
    static const enum code_scale scale[] = { CODE_SCALE_F32, CODE_SCALE_BF16, CODE_SCALE_F16,
                                             CODE_SCALE_E8M0 };
    const int is_integer = f->code == QUANT_CODE_S8 || f->code == QUANT_CODE_U4;
    return (struct panel_codes){ .kind = kind[f->code],
                                 .class = !is_integer                  ? CODES_DEQ
                                          : x->wish == CODES_WISH_INT8 ? CODES_INT
                                                                       : CODES_GRP,
                                 .scale = scale[f->scale],
                                 .has_zeros = f->has_zeros,
                                 .group = f->group };
}

static int are_same(const struct panel_codes *a, const struct panel_codes *b)
{
    return a->kind == b->kind && a->scale == b->scale && a->has_zeros == b->has_zeros &&
           a->group == b->group && a->first == b->first;
}

/* Can the pack lie as codes? Then *c says how. */
static int fits(const struct codes_weights *x, const struct model *m, const struct pack_info *info,
                struct panel_codes *c)
{
    for (int i = 0; i < info->n; i++) {
        const struct pack_matrix *w = &info->matrix[i];
        struct quant_code_form f;
        if (info->tied || !quant_source_form(x->source, m->table.p[w->param].name, &f))
            return 0;
        if (w->out_dim != f.dim_n || w->in_dim != f.dim_k || w->box.n_dims != f.n_dims)
            return 0;
        struct panel_codes now = panels_of(x, &f);
        now.first = w->box.start[w->in_dim];
        if (i > 0 && !are_same(c, &now))
            return 0;
        *c = now;
    }
    return info->n > 0 && !codes_misfit(c, &info->leaves);
}

/* Where one matrix of a unit is read as values, all of them are. */
static int unit_fits(const struct codes_weights *x, const struct model *m, int unit)
{
    for (int i = 0; i < model_n_packs(m, unit); i++) {
        struct pack_info info;
        struct panel_codes c;
        model_pack_info(m, unit, i, &info);
        if (!fits(x, m, &info, &c))
            return 0;
    }
    return m->dt == DT_BF16 && !m->dev->memory;
}

/* ---- panels ---- */

static int read_matrices(struct codes_weights *x, const struct model *m, const struct pack_info *info,
                         struct quant_codes read[PACK_MATRICES], struct codes_source source[PACK_MATRICES],
                         struct err *e)
{
    int rc = 0;
    for (int i = 0; i < info->n && rc >= 0; i++) {
        const struct pack_matrix *w = &info->matrix[i];
        const struct box *b = &w->box;
        const int64_t n0 = b->start[w->out_dim], k0 = b->start[w->in_dim];
        const struct quant_piece p = { b->n_dims == 3 ? b->start[0] : 0, n0, n0 + b->extent[w->out_dim], k0,
                                       k0 + b->extent[w->in_dim] };
        rc = quant_source_read(x->source, m->table.p[w->param].name, &p, &read[i], e);
        source[i] = (struct codes_source){ .n = p.n1 - p.n0,
                                           .code = read[i].code,
                                           .code_ld = p.k1 - p.k0,
                                           .scale = read[i].scale,
                                           .zero = read[i].zero,
                                           .scale_rows = 1,
                                           .scale_ld = read[i].n_groups };
    }
    return rc;
}

int codes_weights_pack(struct codes_weights *x, const struct model *m, int unit, int pack, struct panels *p,
                       struct err *e)
{
    struct quant_codes read[PACK_MATRICES] = { 0 };
    struct codes_source source[PACK_MATRICES];
    struct pack_info info;
    int rc;
    if (!unit_fits(x, m, unit))
        return 0;
    model_pack_info(m, unit, pack, &info);
    struct kept *k = calloc(1, sizeof *k);
    if (!k)
        return err_set(e, ERR_MEMORY, "no memory for a pack of unit %d", unit);
    fits(x, m, &info, &k->codes);
    const size_t bytes = codes_bytes(p->n, &k->codes, &p->leaves);
    k->next = x->kept, x->kept = k;
    k->panels = mem_alloc(x->mem, MEM_PARAMS, bytes + 64);
    rc = k->panels ? read_matrices(x, m, &info, read, source, e)
                   : err_set(e, ERR_MEMORY, "no memory for the codes of unit %d (%zu MiB): use more tp ranks",
                             unit, bytes >> 20);
    if (rc >= 0) {
        p->p = k->panels, p->kind = PANEL_CODES, p->codes = &k->codes;
        codes_pack(m->dev, p, info.n, source);
        x->n++, x->bytes += (int64_t)bytes;
        x->has_integers |= k->codes.class != CODES_DEQ;
    }
    for (int i = 0; i < info.n; i++)
        quant_codes_free(&read[i]);
    return rc < 0 ? rc : 1;
}
