/* products.c - see products.h. */
#include "kernels/cuda/products.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/lt.h"
#include "kernels/cuda/priv.h"

enum provider { SIMT, OWN, LT, PROVIDERS };
static const char *const names[PROVIDERS] = { "simt", "own", "lt" };
/* who is asked, in this order, until one is there */
static const enum provider order[2][PROVIDERS] = { { OWN, SIMT, SIMT }, { LT, OWN, SIMT } };

struct products {
    struct dev *dev;
    enum provider wish;                  /* PROVIDERS: none */
    struct gemm_ops simt;
    const struct gemm_ops *now;
    struct lt *lt;
    struct err missing;                  /* why lt is not there; empty: not tried */
};

static struct products *of(struct dev *d) { return cuda_products(d); }

/* ---- cuBLASLt's ops have its handle for the device ---- */
static void lt_op_pack(struct dev *d, struct panels *p, int n_w, const struct mat *w) { lt_linear_pack(of(d)->lt, p, n_w, w); }
static void lt_op_linear(struct dev *d, struct mat y, struct mat x, const struct panels *w) { lt_linear(of(d)->lt, y, x, w); }
static void lt_op_dx(struct dev *d, struct mat dx, int n_w, const struct mat *dy, const struct mat *w, const struct leaves *l)
{
    lt_linear_dx(of(d)->lt, dx, n_w, dy, w, l);
}
static void lt_op_dw(struct dev *d, const struct tree_acc *acc, int64_t ld, struct mat dy, struct mat x, int n_seq, int64_t seq_len)
{
    lt_linear_dw(of(d)->lt, acc, ld, dy, x, n_seq, seq_len);
}
static const struct gemm_ops gemm_lt = { lt_op_pack, lt_op_linear, lt_op_dx, lt_op_dw };

static const struct gemm_ops *open_simt(struct products *p) { return &p->simt; }
static const struct gemm_ops *open_own(struct products *p) { return cuda_gemm_own(p->dev); }
static const struct gemm_ops *open_lt(struct products *p)
{
    if (!p->lt && !p->missing.text[0])
        lt_open(&p->lt, p->dev, cuda_stream(p->dev), &p->missing);
    return p->lt ? &gemm_lt : NULL;
}
static const struct gemm_ops *(*const opens[PROVIDERS])(struct products *p) = { open_simt, open_own, open_lt };

/* ---- the table's rows: whoever it is now ---- */
static void op_pack(struct dev *d, struct panels *p, int n_w, const struct mat *w) { of(d)->now->linear_pack(d, p, n_w, w); }
static void op_linear(struct dev *d, struct mat y, struct mat x, const struct panels *w) { of(d)->now->linear(d, y, x, w); }
static void op_dx(struct dev *d, struct mat dx, int n_w, const struct mat *dy, const struct mat *w, const struct leaves *l) { of(d)->now->linear_dx(d, dx, n_w, dy, w, l); }
static void op_dw(struct dev *d, const struct tree_acc *acc, int64_t ld, struct mat dy, struct mat x, int n_seq, int64_t seq_len)
{
    of(d)->now->linear_dw(d, acc, ld, dy, x, n_seq, seq_len);
}

void products_numerics(struct dev *d)
{
    struct products *p = of(d);
    enum provider who = p->wish;
    const struct gemm_ops *found = who < PROVIDERS ? opens[who](p) : NULL;
    for (int i = 0; i < PROVIDERS && !found && p->wish == PROVIDERS; i++)
        found = opens[who = order[d->fast != 0][i]](p);
    if (found)
        p->now = found;
    const char *said = p->lt ? lt_name(p->lt) : p->missing.text;
    snprintf(d->note, sizeof d->note, "products on the GPU: %s%s%.100s", names[who], *said ? "; cuBLASLt: " : "", said);
}

int products_open(struct products **out, struct dev *d, struct kernel_ops *ops, struct err *e)
{
    const char *wish = getenv("SHARDLINE_CUDA");
    struct products *p = calloc(1, sizeof *p);
    int i = 0;
    *out = p;
    if (!p)
        return err_set(e, ERR_MEMORY, "no memory for the device's table");
    while (i < PROVIDERS && wish && *wish && strcmp(wish, names[i]))
        i++;
    if (i == PROVIDERS)
        return err_set(e, ERR_USAGE, "SHARDLINE_CUDA=%s: use simt, own or lt", wish);
    p->dev = d;
    p->wish = wish && *wish ? (enum provider)i : PROVIDERS;
    p->simt = (struct gemm_ops){ ops->linear_pack, ops->linear, ops->linear_dx, ops->linear_dw };
    p->now = &p->simt;
    ops->linear_pack = op_pack;
    ops->linear = op_linear;
    ops->linear_dx = op_dx;
    ops->linear_dw = op_dw;
    return 0;
}

int products_ready(struct dev *d, struct err *e)
{
    struct products *p = of(d);
    products_numerics(d);
    if (p->wish < PROVIDERS && !opens[p->wish](p))
        return err_set(e, ERR_DEVICE, "SHARDLINE_CUDA=%s: not here%s%s", names[p->wish], p->missing.text[0] ? ": " : "", p->missing.text);
    return 0;
}

int products_check(struct products *p, struct err *e) { return p && p->lt ? lt_check(p->lt, e) : 0; }

void products_close(struct products *p)
{
    if (p)
        lt_close(p->lt);
    free(p);
}
