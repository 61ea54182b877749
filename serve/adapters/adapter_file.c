/* adapter_file.c - see adapter_file.h. */
#include "serve/adapters/adapter_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/ckpt_proof.h"

/* ---- the matrices ---- */

/* Of the model's tensors: which of the adapter's changes it. */
static int find_tensors(struct adapter_file *f, struct err *e)
{
    const struct ckpt *c = f->model;
    const int n = ckpt_n_tensors(c), n_fit = peft_fit_n(f->fit);
    f->fit_of = malloc(sizeof *f->fit_of * (size_t)(n + 1));
    f->matrix = calloc((size_t)f->table->n + 1, sizeof *f->matrix);
    if (!f->fit_of || !f->matrix)
        return err_set(e, ERR_MEMORY, "%s: no memory for its tables", f->path);
    for (int i = 0; i < n; i++)
        f->fit_of[i] = -1;
    for (int i = 0; i < n_fit; i++)
        f->fit_of[peft_fit_at(f->fit, i).tensor] = i;
    return 0;
}

/* Adds the parameter that is the first in its tensor, if the adapter changes it. */
static int add_matrix(struct adapter_file *f, int param, char *is_used, struct err *e)
{
    const struct param *p = &f->table->p[param];
    const int tensor = p->companion_of < 0 ? ckpt_find(f->model, ROLE_WEIGHT, p->name) : -1;
    const int i = tensor < 0 ? -1 : f->fit_of[tensor];
    if (i < 0)
        return 0;
    is_used[i] = 1;
    if (!p->n_fused) /* the first of its neighbours stands for all of them */
        return 0;
    const struct peft_module *mod = peft_fit_at(f->fit, i).module;
    if (!adapter_computed(p))
        return err_set(e, ERR_CONFIG,
                       "%s: changes %s, for which no adapter is computed: merge it into the model "
                       "(reshard --merge)",
                       f->path, p->name);
    f->matrix[f->n++] = (struct adapter_matrix){ .param = param,
                                                 .rank = mod->rank,
                                                 .scale = (float)mod->scale };
    f->rank = mod->rank > f->rank ? mod->rank : f->rank;
    return 0;
}

static int find_matrices(struct adapter_file *f, struct err *e)
{
    const int n = peft_fit_n(f->fit);
    char *is_used = calloc((size_t)n + 1, 1);
    int rc = is_used ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for its tables", f->path);
    for (int i = 0; rc >= 0 && i < f->table->n; i++)
        rc = add_matrix(f, i, is_used, e);
    for (int i = 0; rc >= 0 && i < n; i++)
        if (!is_used[i])
            rc = err_set(e, ERR_CONFIG, "%s: changes %s, which the model does not use", f->path,
                         ckpt_tensor(f->model, peft_fit_at(f->fit, i).tensor)->name);
    free(is_used);
    return rc;
}

int adapter_file_open(struct adapter_file *f, const char *path, const struct adapter_base *base,
                      struct err *e)
{
    int rc;
    *f = (struct adapter_file){ .model = base->ckpt, .table = base->table, .path = strdup(path) };
    if (!f->path)
        return err_set(e, ERR_MEMORY, "%s: no memory to read it", path);
    TRY(ckpt_open(&f->ckpt, path, &(struct ckpt_open_opts){ .stop = base->stop }, e));
    rc = peft_fit_open(&f->fit, f->ckpt, f->path, base->ckpt, e);
    if (rc < 0)
        f->ckpt = NULL;
    TRY(rc);
    TRY(find_tensors(f, e));
    TRY(find_matrices(f, e));
out:
    return rc < 0 ? rc : 0;
}

void adapter_file_close(struct adapter_file *f)
{
    peft_fit_close(f->fit);
    free(f->fit_of);
    free(f->matrix);
    free(f->wide);
    free(f->path);
    memset(f, 0, sizeof *f);
}

/* ---- reading ---- */

/* The tensor of the model that a parameter of the adapter belongs to: X.lora_A.weight to X.weight. */
static int tensor_of(const struct adapter_file *f, const struct param *p, int *is_b, struct err *e)
{
    char name[sizeof p->name];
    snprintf(name, sizeof name, "%s", p->name);
    char *mark = strstr(name, ".lora_");
    if (mark && (mark[6] == 'A' || mark[6] == 'B')) {
        *is_b = mark[6] == 'B';
        memmove(mark, mark + 7, strlen(mark + 7) + 1);
        int tensor = ckpt_find(f->model, ROLE_WEIGHT, name);
        if (tensor >= 0 && f->fit_of[tensor] >= 0)
            return tensor;
    }
    return err_set(e, ERR_INTERNAL, "%s is no parameter of this adapter: please report it", p->name);
}

/* A factor's numbers, as they are read: number i of the outputs or inputs, k of the rank. */
struct factor {
    int is_right;
    int64_t at, n, r;
};

static double value(const struct adapter_file *f, const struct factor *x, int64_t i, int64_t k)
{
    return f->wide[x->is_right ? k * x->n + i : i * x->r + k];
}

/* Reads the outputs (of B) or inputs (of A) that box b names, for all of the rank. */
static int read_factor(struct adapter_file *f, const struct param *p, int tensor, int is_b,
                       const struct box *b, struct factor *x, struct err *e)
{
    const struct peft_fit_tensor t = peft_fit_at(f->fit, f->fit_of[tensor]);
    const struct param *of = &f->table->p[param_find(f->table, ckpt_tensor(f->model, tensor)->name)];
    const int d = b->n_dims - (is_b ? 2 : 1), expert = t.expert >= 0 ? t.expert : p->expert;
    *x = (struct factor){
        .is_right = is_b == of->transposed, .at = b->start[d], .n = b->extent[d], .r = t.module->rank
    };

    if (x->n * x->r > f->wide_cap) {
        free(f->wide);
        f->wide_cap = x->n * x->r;
        f->wide = malloc(sizeof *f->wide * (size_t)f->wide_cap);
        if (!f->wide) {
            f->wide_cap = 0;
            return err_set(e, ERR_MEMORY, "%s: no memory to read %s", f->path, p->name);
        }
    }
    return (x->is_right ? peft_fit_right : peft_fit_left)(f->fit, f->fit_of[tensor], expert, x->at, x->n,
                                                          f->wide, e);
}

#define CHUNK 4096 /* elements converted at a time */

int adapter_file_read(void *ctx, const struct param *p, const struct box *b, struct ring *ring, void *dst,
                      enum dtype dt, struct err *e)
{
    struct adapter_file *f = ctx;
    struct factor x;
    float some[CHUNK];
    int is_b = 0, tensor = tensor_of(f, p, &is_b, e);
    int rc = tensor < 0 ? tensor : read_factor(f, p, tensor, is_b, b, &x, e);
    const int d = b->n_dims - 2;
    const int64_t cols = b->extent[d + 1], n = box_count(b);
    const float beyond = dt == DT_BF16 ? 0x1.ffp127f : INFINITY; /* the first that is rounded to infinity */

    for (int64_t at = 0, got; rc >= 0 && at < n; at += got) {
        void *place;
        got = n - at < CHUNK ? n - at : CHUNK;
        got = ring_take(ring, (char *)dst + (size_t)at * dtype_size(dt), got, dtype_size(dt), &place, e);
        if (got < 0)
            return (int)got;
        for (int64_t j = 0; j < got; j++) {
            int64_t row = (at + j) / cols, col = (at + j) % cols;
            some[j] = (float)(is_b ? value(f, &x, row, b->start[d + 1] + col)
                                   : value(f, &x, col, b->start[d] + row));
            if (!(fabsf(some[j]) < beyond))
                return err_set(e, ERR_FORMAT, "%s: %s has a value that %s does not hold", f->path, p->name,
                               dt == DT_BF16 ? "bf16" : "fp32");
        }
        KERNEL(f->host, round_to, place, dt, some, got);
    }
    return rc < 0 ? rc : 0;
}

/* ---- the digest of an adapter's tensors and factors ---- */

int adapter_file_digest(const struct adapter_file *f, int part, int n_parts, struct ckpt_digest *seen,
                        struct err *e)
{
    int rc = 0;
    for (int i = part; rc >= 0 && i < ckpt_n_tensors(f->ckpt); i += n_parts)
        rc = ckpt_digest_read(f->ckpt, i, &seen[i], e);
    return rc < 0 ? rc : ckpt_check_rest(f->ckpt, part, n_parts, e);
}

int adapter_file_name(const struct adapter_file *f, const struct ckpt_digest *seen,
                      char out[ADAPTER_DIGEST_MAX], struct err *e)
{
    const int n = ckpt_n_tensors(f->ckpt);
    struct ckpt_tensor *t = calloc((size_t)n + 1, sizeof *t);
    char hex[33];
    if (!t)
        return err_set(e, ERR_MEMORY, "%s: no memory for its digest", f->path);
    for (int i = 0; i < n; i++) {
        t[i] = *ckpt_tensor(f->ckpt, i);
        t[i].digest = seen[i];
    }
    ckpt_digest_hex(ckpt_digest_all(n, t, NULL).weights, hex);
    snprintf(out, ADAPTER_DIGEST_MAX, "%s-%016llx", hex, (unsigned long long)peft_fit_scales(f->fit));
    free(t);
    return 0;
}
