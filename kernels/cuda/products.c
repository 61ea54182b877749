/* products.c - see products.h. */
#include "kernels/cuda/products.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "kernels/cuda/lt/lt.h"
#include "kernels/cuda/priv.h"
#include "kernels/cuda/gemm/wgmma.h"

enum provider { SIMT, OWN, LT, PROVIDERS };
static const char *const names[PROVIDERS] = { "simt", "own", "lt" };
/* what SHARDLINE_CUDA may name: a provider, and what own does with wgmma */
static const struct choice {
    const char *name;
    enum provider provider;
    enum wgmma_use use;
} choices[] = { { "simt", SIMT, WGMMA_OFF }, { "own", OWN, WGMMA_ASK },     { "lt", LT, WGMMA_OFF },
                { "mma", OWN, WGMMA_OFF },   { "wgmma", OWN, WGMMA_ALONE }, { "", PROVIDERS, WGMMA_ASK } };
enum { CHOICES = 6 };
/* the providers for exact and fast, in this order, until one is available */
static const enum provider order[2][PROVIDERS] = { { OWN, SIMT, SIMT }, { LT, OWN, SIMT } };

struct products {
    struct dev *dev;
    const struct choice *choice;
    struct wgmma wgmma;
    struct gemm_ops simt;
    const struct gemm_ops *now;
    struct lt *lt;
    struct err missing; /* why lt is missing; empty: not tried */
};

static struct products *of(struct dev *d) { return cuda_products(d); }
struct wgmma *cuda_wgmma(struct dev *d) { return &of(d)->wgmma; }

/* ---- cuBLASLt's ops have its handle for the device ---- */
static void lt_op_pack(struct dev *d, struct panels *p, int n_w, const struct mat *w)
{
    lt_linear_pack(of(d)->lt, p, n_w, w);
}
static void lt_op_linear(struct dev *d, struct mat y, struct mat x, const struct panels *w)
{
    lt_linear(of(d)->lt, y, x, w);
}
static void lt_op_dx(struct dev *d, struct mat dx, int n_w, const struct mat *dy, const struct mat *w,
                     const struct leaves *l)
{
    lt_linear_dx(of(d)->lt, dx, n_w, dy, w, l);
}
static void lt_op_dw(struct dev *d, const struct tree_acc *acc, int64_t ld, struct mat dy, struct mat x,
                     int n_seq, int64_t seq_len)
{
    lt_linear_dw(of(d)->lt, acc, ld, dy, x, n_seq, seq_len);
}
static const struct gemm_ops gemm_lt;
static void lt_op_linear_experts(struct dev *d, struct mat y, struct listed x, const struct expert_rows *g,
                                 const struct panels *w)
{
    experts_loop_linear(d, &gemm_lt, y, x, g, w);
}
static void lt_op_dx_experts(struct dev *d, struct mat dx, int n_w, const struct listed *dy,
                             const struct mat *w, const struct leaves *l, const struct expert_rows *g)
{
    experts_loop_dx(d, &gemm_lt, dx, n_w, dy, w, l, g);
}
static void lt_op_dw_experts(struct dev *d, const struct tree_acc *acc, int64_t ld, struct listed dy,
                             struct listed x, const struct expert_rows *g)
{
    experts_loop_dw(d, &gemm_lt, acc, ld, dy, x, g);
}
static const struct gemm_ops gemm_lt = { lt_op_pack,           lt_op_linear,     lt_op_dx,        lt_op_dw,
                                         lt_op_linear_experts, lt_op_dx_experts, lt_op_dw_experts };

static const struct gemm_ops *open_simt(struct products *p) { return &p->simt; }
static const struct gemm_ops *open_own(struct products *p) { return cuda_gemm_own(p->dev); }
static const struct gemm_ops *open_lt(struct products *p)
{
    if (!p->lt && !p->missing.text[0])
        lt_open(&p->lt, p->dev, cuda_stream(p->dev), &p->missing);
    return p->lt ? &gemm_lt : NULL;
}
static const struct gemm_ops *(*const opens[PROVIDERS])(struct products *p) = { open_simt, open_own,
                                                                                open_lt };

/* ---- the table's rows: the provider in use ---- */
static void op_pack(struct dev *d, struct panels *p, int n_w, const struct mat *w)
{
    of(d)->now->linear_pack(d, p, n_w, w);
}
static void op_linear(struct dev *d, struct mat y, struct mat x, const struct panels *w)
{
    of(d)->now->linear(d, y, x, w);
}
static void op_dx(struct dev *d, struct mat dx, int n_w, const struct mat *dy, const struct mat *w,
                  const struct leaves *l)
{
    of(d)->now->linear_dx(d, dx, n_w, dy, w, l);
}
static void op_dw(struct dev *d, const struct tree_acc *acc, int64_t ld, struct mat dy, struct mat x,
                  int n_seq, int64_t seq_len)
{
    of(d)->now->linear_dw(d, acc, ld, dy, x, n_seq, seq_len);
}

static void op_linear_experts(struct dev *d, struct mat y, struct listed x, const struct expert_rows *g,
                              const struct panels *w)
{
    of(d)->now->linear_experts(d, y, x, g, w);
}
static void op_dx_experts(struct dev *d, struct mat dx, int n_w, const struct listed *dy, const struct mat *w,
                          const struct leaves *l, const struct expert_rows *g)
{
    of(d)->now->linear_dx_experts(d, dx, n_w, dy, w, l, g);
}
static void op_dw_experts(struct dev *d, const struct tree_acc *acc, int64_t ld, struct listed dy,
                          struct listed x, const struct expert_rows *g)
{
    of(d)->now->linear_dw_experts(d, acc, ld, dy, x, g);
}

void products_numerics(struct dev *d)
{
    struct products *p = of(d);
    enum provider provider = p->choice->provider;
    const struct gemm_ops *found = provider < PROVIDERS ? opens[provider](p) : NULL;
    for (int i = 0; i < PROVIDERS && !found && p->choice->provider == PROVIDERS; i++)
        found = opens[provider = order[d->fast != 0][i]](p);
    if (found)
        p->now = found;
    const char *library = p->lt ? lt_name(p->lt) : p->missing.text;
    snprintf(d->note, sizeof d->note, "products on the GPU: %s%s%s%s%.90s", names[provider],
             provider == OWN && p->wgmma.why[0] ? ", " : "", provider == OWN ? p->wgmma.why : "",
             *library ? "; cuBLASLt: " : "", library);
}

int products_open(struct products **out, struct dev *d, struct kernel_ops *ops, struct err *e)
{
    const char *wanted = env_get(ENV_SHARDLINE_CUDA);
    struct products *p = calloc(1, sizeof *p);
    int i = 0;
    *out = p;
    if (!p)
        return err_set(e, ERR_MEMORY, "no memory for the device's table");
    while (i < CHOICES && strcmp(wanted ? wanted : "", choices[i].name))
        i++;
    if (i == CHOICES)
        return err_set(e, ERR_USAGE, "SHARDLINE_CUDA=%s: use simt, own, lt, mma or wgmma", wanted);
    p->dev = d;
    p->choice = &choices[i];
    p->simt = (struct gemm_ops){ .linear_pack = ops->linear_pack,
                                 .linear = ops->linear,
                                 .linear_dx = ops->linear_dx,
                                 .linear_dw = ops->linear_dw,
                                 .linear_experts = ops->linear_experts,
                                 .linear_dx_experts = ops->linear_dx_experts,
                                 .linear_dw_experts = ops->linear_dw_experts };
    p->now = &p->simt;
    ops->linear_pack = op_pack;
    ops->linear = op_linear;
    ops->linear_dx = op_dx;
    ops->linear_dw = op_dw;
    ops->linear_experts = op_linear_experts;
    ops->linear_dx_experts = op_dx_experts;
    ops->linear_dw_experts = op_dw_experts;
    return 0;
}

int products_ready(struct dev *d, struct err *e)
{
    struct products *p = of(d);
    const struct choice *w = p->choice;
    if (wgmma_open(d, &p->wgmma, w->use, e) < 0)
        return -e->code;
    if (p->wgmma.encode && dev_check(d, e) < 0)
        return err_add(e, "looking at wgmma (SHARDLINE_CUDA=mma does not)");
    products_numerics(d);
    if ((w->provider < PROVIDERS && !opens[w->provider](p)) ||
        (w->use == WGMMA_ALONE && p->wgmma.use != WGMMA_ALONE))
        return err_set(e, ERR_DEVICE, "SHARDLINE_CUDA=%s: not here%s%s", w->name,
                       p->missing.text[0] ? ": " : "", p->missing.text);
    return 0;
}

/* A missing cuBLASLt is no failure; a table that cannot be read is one. */
int products_check(struct products *p, struct err *e)
{
    if (p && p->missing.code && p->missing.code != ERR_DEVICE)
        return *e = p->missing, -e->code;
    return p && p->lt ? lt_check(p->lt, e) : 0;
}

void products_close(struct products *p)
{
    if (p)
        lt_close(p->lt);
    free(p);
}
